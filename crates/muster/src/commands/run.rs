//! `muster run`: runs a program with the remedies that pay, and puts everything back when it ends.

use crate::BadInput;
use anyhow::Context;
use clap::ValueEnum;
use muster_policy::consolidate::Prices;
use muster_remedy::{
    Background, Error, OnSignal, Options, Outcome, RUN_VARIABLE, Side, Source, Started, Target, detach,
};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run a program with the remedies that pay.
///
/// The program runs as it would alone: same input, output, exit code and signals. What is changed for it on this
/// machine is put back when it ends, also after a crash of muster.
#[derive(clap::Args)]
pub struct Args {
    /// What is done for the program.
    #[arg(long, value_enum, default_value_t = Remedy::Auto)]
    remedy: Remedy,
    /// What you want more of.
    #[arg(long, value_enum, default_value_t = Objective::Speed)]
    objective: Objective,
    /// Attach to this running process and its descendants instead of starting a program.
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Watch from the background until the last process of the program has ended: for daemons.
    #[arg(long)]
    service: bool,
    /// Stay in the foreground all the same: for service managers.
    #[arg(long, requires = "service")]
    foreground: bool,
    /// Judge by the program's own count of its work: `counter` (MUSTER_PROGRESS names a file that it adds to),
    /// `counter:PATH` (such a file that it keeps already), `file:PATH` (the first number in a text), or with root
    /// `calls:PROGRAM:FUNCTION` and `usdt:PROGRAM:PROVIDER:NAME` (how often its processes pass there).
    #[arg(long, value_name = "SOURCE")]
    metric: Option<Source>,
    /// Write what was seen and decided each period to FILE, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// When the program has ended, say on standard error what was done.
    #[arg(long, short)]
    verbose: bool,
    /// When the program has ended, print what was done as one JSON object on standard error.
    #[arg(long)]
    json: bool,
    /// The program and its arguments.
    #[arg(last = true, required_unless_present = "pid", value_name = "CMD")]
    command: Vec<OsString>,
}

/// What `--remedy` takes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Remedy {
    /// Whatever pays, tried and measured while the program runs.
    Auto,
    /// Fewer vCPUs whenever that pays.
    Consolidate,
    /// The guest polls before it halts (needs root).
    Poll,
    /// Lowest-priority pause loops keep vCPUs from halting.
    Awake,
    /// The guest's clock is read without leaving the guest (needs root).
    Clock,
    /// Threads that wake each other share a vCPU, each group its own, whenever that pays (needs root and BPF).
    Colocate,
    /// glibc's allocator keeps memory instead of remapping it.
    Memory,
    /// Nothing; the program is only watched.
    None,
}

/// What `--objective` takes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Objective {
    /// Work per second.
    Speed,
    /// Work per CPU second, at no loss of speed.
    Cost,
    /// Short waits.
    Tail,
}

/// Refuses the remedy of this name where it cannot be applied; other names are no remedies and are passed.
pub(super) fn check_remedy(name: &str) -> Result<(), BadInput> {
    let Ok(remedy) = Remedy::from_str(name, false) else { return Ok(()) };
    muster_remedy::check(remedy.into()).map_err(|error| BadInput(error.to_string()))
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(outer) = std::env::var_os(RUN_VARIABLE) {
        let outer = outer.to_string_lossy().into_owned();
        return Err(BadInput(format!(
            "`muster run` inside `muster run` (run {outer}); the outer one cares for everything it starts"
        ))
        .into());
    }
    // Before anything that starts threads.
    let mut background = match args.service && !args.foreground {
        false => None,
        true => match detach()? {
            Side::Caller(code) => return Ok(ExitCode::from(code)),
            Side::Service(background) => Some(background),
        },
    };
    let (verbose, json) = (args.verbose, args.json);
    let outcome = care(args, &mut background);
    if let Some(background) = background {
        background.failed();
    }
    match outcome {
        Ok(outcome) => report(&outcome, verbose, json),
        Err(error) => error.downcast().map_or_else(Err, refuse),
    }
}

/// Cares for the program until the end of the session; takes `background` once its caller has been told.
fn care(args: Args, background: &mut Option<Background>) -> anyhow::Result<Outcome> {
    let profile = muster_probe::stored_or_quick().context("cannot tell what waking a thread costs here")?;
    let prices = Prices::from_profile(&profile).unwrap_or(Prices::NONE);
    let options = Options {
        target: args.pid.map_or(Target::Command(args.command), Target::Process),
        remedy: args.remedy.into(),
        objective: args.objective.into(),
        prices,
        topology: profile.topology,
        metric: args.metric,
        trace: args.trace,
        until_all_ended: args.service,
        on_signal: if background.is_some() { OnSignal::Leave } else { OnSignal::PassOn },
    };
    let ready = |started: &Started| background.take().map_or(Ok(()), |background| background.ready(&farewell(started)));
    Ok(muster_remedy::run(&options, ready)?)
}

/// What the caller of a service is told.
fn farewell(started: &Started) -> String {
    let own = std::process::id();
    let notes: String = started.notes.iter().map(|note| format!("muster: {note}\n")).collect();
    format!(
        "{notes}muster: process {own} watches process {} until the last process of its program has ended; `kill {own}` \
         ends the watch, and the program goes on as before",
        started.program
    )
}

fn report(outcome: &Outcome, verbose: bool, json: bool) -> anyhow::Result<ExitCode> {
    let summary = &outcome.summary;
    if json {
        eprintln!("{}", serde_json::to_string(summary)?);
    } else if verbose {
        eprint!("{summary}");
    } else {
        summary.notes.iter().for_each(|note| eprintln!("muster: {note}"));
    }
    Ok(ExitCode::from(outcome.exit_code.unwrap_or(0)))
}

/// The exit codes of env(1): 127 for a program that does not exist, 126 for one that cannot be started.
fn refuse(error: Error) -> anyhow::Result<ExitCode> {
    let code = match error {
        Error::NotFound { .. } => 127,
        Error::NotRunnable { .. } => 126,
        Error::NoProcess(_) | Error::NotPermitted { .. } | Error::Metric { .. } | Error::Trace { .. } => {
            return Err(BadInput(error.to_string()).into());
        }
        other => return Err(other.into()),
    };
    eprintln!("muster: {error}");
    Ok(ExitCode::from(code))
}

impl From<Remedy> for muster_remedy::Remedy {
    fn from(remedy: Remedy) -> Self {
        match remedy {
            Remedy::Auto => Self::Auto,
            Remedy::Consolidate => Self::Consolidate,
            Remedy::Poll => Self::Poll,
            Remedy::Awake => Self::Awake,
            Remedy::Clock => Self::Clock,
            Remedy::Colocate => Self::Colocate,
            Remedy::Memory => Self::Memory,
            Remedy::None => Self::None,
        }
    }
}

impl From<Objective> for muster_policy::consolidate::Objective {
    fn from(objective: Objective) -> Self {
        match objective {
            Objective::Speed => Self::Speed,
            Objective::Cost => Self::Cost,
            Objective::Tail => Self::Tail,
        }
    }
}
