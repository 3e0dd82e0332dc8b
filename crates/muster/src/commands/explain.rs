//! `muster explain`: runs a program unchanged, or attaches to one, and says where its time goes and what would help.

use crate::BadInput;
use anyhow::Context;
use muster_model::Profile;
use muster_model::results::{Explanation, ResultFile};
use muster_observe::ledger::{ledger, others_ns};
use muster_observe::prices::UnitPrices;
use muster_observe::program::{Output, Program, stop_on_signals};
use muster_observe::signals::signals;
use muster_observe::wakes::Windows;
use muster_observe::watch::{Before, Observation, Options, Period, WatchError, watch};
use muster_policy::advice::{self, Churn, Clock, Disturbance, Situation};
use muster_policy::consolidate::Prices;
use muster_policy::predict::WakeSignals;
use muster_policy::record::{MainPhase, Recording, Seen, Stretch, main_phase, record};
use muster_sim::project::{Home, as_met, overheads, project};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Run a program unchanged and say where its time goes and what would help.
///
/// The program keeps its input, output and exit code. When it has ended, the explanation is printed on standard error;
/// with --json it is printed on standard output, and the program's own output goes to standard error.
#[derive(clap::Args)]
pub struct Args {
    /// Watch this running process and its descendants instead of starting a program; Ctrl-C ends the watch.
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Watch for so many seconds only; the program goes on.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<f64>,
    /// Print the explanation as JSON on standard output.
    #[arg(long)]
    json: bool,
    /// Also write the explanation as JSON to FILE.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Take prices from this machine profile (TOML) instead of the one `muster probe` keeps.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Simulate what the same program would meet on N vCPUs of this machine's kind (1 to 1024).
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    project: u32,
    /// Do not simulate it on other numbers of vCPUs.
    #[arg(long, conflicts_with = "project")]
    no_project: bool,
    /// Write what was seen as a workload (JSON) to FILE, for `muster sim`.
    #[arg(long, value_name = "FILE")]
    save_workload: Option<PathBuf>,
    /// Leave BPF out, also where it could be used.
    #[arg(long)]
    no_bpf: bool,
    /// The program and its arguments.
    #[arg(last = true, required_unless_present = "pid", value_name = "CMD")]
    command: Vec<OsString>,
}

/// Seed of the projection's random draws: equal recordings give equal numbers.
const SEED: u64 = 1;

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = [("--out", &args.out), ("--save-workload", &args.save_workload)];
    files.iter().try_for_each(|(option, file)| file.as_deref().map_or(Ok(()), |file| check_writable(option, file)))?;
    let profile = profile(args.profile.as_deref())?;
    let no_bpf = args.no_bpf.then(|| "left out by --no-bpf".to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let windows = |events_per_s, price_ns| {
        let duty = advice::duty(events_per_s, price_ns);
        Windows { window_ns: duty.window_ns, period_ns: duty.period_ns }
    };
    let duration_ns = args.duration.map(|seconds| (seconds * 1e9) as u64);
    let options = Options { duration_ns, no_bpf, windows: &windows, stop: &stop };
    match args.pid {
        Some(pid) => {
            stop_on_signals(&stop)?;
            let seen = attach(pid, &options)?;
            tell(&args, &seen, &profile, &format!("--pid {pid}"))?;
            Ok(ExitCode::SUCCESS)
        }
        None => run_program(&args, &options, &profile),
    }
}

/// A watch shorter than a period shows nothing; one of more than a year was meant otherwise.
fn seconds(text: &str) -> Result<f64, String> {
    let allowed = || "a number of seconds from 0.1 to 31536000".to_owned();
    text.parse().ok().filter(|seconds| (0.1..=31_536_000.0).contains(seconds)).ok_or_else(allowed)
}

fn check_writable(option: &str, file: &Path) -> Result<(), BadInput> {
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).map_err(|error| {
        BadInput(format!("{option}: cannot write {}: {error}; allowed: a file in a folder that exists", file.display()))
    })
}

/// The prices: from the file that was named, else those `muster probe` keeps, else measured now.
fn profile(file: Option<&Path>) -> anyhow::Result<Profile> {
    let Some(file) = file else {
        return muster_probe::stored_or_quick().context("cannot tell what waking a thread costs here");
    };
    let text = std::fs::read_to_string(file).map_err(|error| {
        BadInput(format!("--profile: cannot read {}: {error}; allowed: a machine profile (TOML)", file.display()))
    })?;
    Ok(Profile::from_toml(&text, &file.display().to_string())?)
}

fn attach(pid: u32, options: &Options) -> anyhow::Result<Observation> {
    watch(pid, false, Before::read(Some(pid)), options).map_err(|error| match error {
        WatchError::NoSuchProcess(_) => BadInput(format!("--pid: {error}")).into(),
        other => other.into(),
    })
}

fn run_program(args: &Args, options: &Options, profile: &Profile) -> anyhow::Result<ExitCode> {
    let output = if args.json { Output::ToStandardError } else { Output::Inherited };
    let before = Before::read(None);
    let program = match Program::start(&args.command, output) {
        Ok(program) => program,
        Err(error) => return Ok(cannot_start(&args.command[0], &error)),
    };
    let mut seen = watch(program.id(), true, before, options)?;
    let words: Vec<_> = args.command.iter().map(|word| shell_word(&word.to_string_lossy())).collect();
    let target = format!("-- {}", words.join(" "));
    if args.duration.is_some() {
        tell(args, &seen, profile, &target)?;
    }
    let ended = program.wait().context("cannot wait for the program")?;
    if args.duration.is_none() {
        seen.charge(ended.usage);
        tell(args, &seen, profile, &target)?;
    }
    Ok(exit_code(ended.status))
}

/// The exit codes of env(1): 127 for a program that does not exist, 126 for one that cannot be started.
fn cannot_start(program: &OsString, error: &io::Error) -> ExitCode {
    eprintln!("muster: cannot run {}: {error}", program.display());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// As a shell reports it: 128 and the signal's number for a program that was killed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let signal = || std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0);
    ExitCode::from(status.code().unwrap_or_else(|| 128 + signal()) as u8)
}

/// A word as it can be typed into a shell.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn explain(seen: &Observation, profile: &Profile, target: &str) -> Explanation {
    let prices = UnitPrices::of(profile);
    let periods: Vec<(f64, WakeSignals)> = seen
        .periods
        .iter()
        .filter_map(|period| {
            let signals = WakeSignals::of(&period.facts)?;
            let faults_per_s = Some(period.facts.per_second(period.minor_faults));
            let outside = period.looks.outside();
            Some((period.facts.period_ns as f64, WakeSignals { outside, faults_per_s, ..signals }))
        })
        .collect();
    let situation = Situation {
        periods: &periods,
        prices: Prices::from_profile(profile),
        idle_wakes: seen.wakes.as_ref().and_then(|wakes| {
            let idle = wakes.totals.idle_cpu;
            Some((idle.count, idle.mean_ns()?))
        }),
        guest_halt_poll_ns: seen.settings.guest_halt_poll_ns,
        wakes: seen.wakes.as_ref().map(|wakes| &wakes.window),
        clock: clock(seen),
        churn: churn(seen, &prices),
        disturbance: disturbance(seen),
        target,
    };
    let remedies = advice::advise(&situation);
    Explanation {
        command: target.strip_prefix("-- ").unwrap_or(target).to_owned(),
        ledger: ledger(seen, &prices),
        signals: signals(seen),
        findings: advice::findings(&situation, &remedies),
        remedies,
        channels_used: seen.channels_used.clone(),
        channels_missing: seen.channels_missing.clone(),
        projection: None,
    }
}

/// What was seen, as a workload, and what it has to reproduce; `None` when the program did next to nothing.
fn recording(seen: &Observation, profile: &Profile, command: &str) -> anyhow::Result<Option<(Recording, Home)>> {
    let stretches: Vec<Stretch> = seen.periods.iter().map(stretch).collect();
    let Some(MainPhase { seen: main, share, switches_per_s }) = main_phase(&stretches) else { return Ok(None) };
    let wakes = seen.wakes.as_ref().map(|wakes| (wakes.window.pairs.as_slice(), wakes.window.window_ns));
    let recorded = record(&Seen { name: command, main: &main, share, wakes }, &overheads(profile)?);
    let home = Home {
        vcpus: seen.allowed.len() as u32,
        cpu_rate: main.cpu_rate(),
        halts_per_s: main.halts_per_s(),
        switches_per_s,
        polls: seen.settings.guest_halt_poll_ns.is_some_and(|limit_ns| limit_ns > 0),
    };
    Ok(recorded.map(|recorded| (recorded, home)))
}

fn stretch(period: &Period) -> Stretch {
    let facts = &period.facts;
    Stretch {
        wall_ns: facts.period_ns,
        cpu_ns: facts.cpu_ns,
        user_ns: facts.user_ns.unwrap_or(0),
        halts: facts.idle_entries.unwrap_or(0),
        looks: (period.looks.looks, period.looks.none),
        threads: period.threads.clone(),
    }
}

fn clock(seen: &Observation) -> Clock {
    let settings = &seen.settings;
    Clock {
        source: settings.clock_source.clone(),
        leaves_guest: settings.clock_leaves_guest(),
        better: settings.better_clock_source().map(str::to_owned),
    }
}

fn disturbance(seen: &Observation) -> Disturbance {
    let rate = |time_ns: u64| time_ns as f64 / seen.wall_ns.max(1) as f64;
    Disturbance { others_rate: rate(others_ns(seen)), steal_rate: seen.counters.steal_ns.map_or(0.0, rate) }
}

fn churn(seen: &Observation, prices: &UnitPrices) -> Churn {
    let per_second = |count: u64| count as f64 * 1e9 / seen.wall_ns.max(1) as f64;
    Churn {
        refaults_per_s: per_second(seen.usage.refaults),
        shootdowns_per_s: seen.counters.interrupts.map_or(0.0, |interrupts| per_second(interrupts.tlb)),
        first_touch_ns: prices.first_touch.map(|price| price.ns),
        shootdown_ns: prices.shootdown.map(|price| price.ns),
    }
}

/// Writes the explanation to where it was asked for, and the recorded workload.
fn tell(args: &Args, seen: &Observation, profile: &Profile, target: &str) -> anyhow::Result<()> {
    let mut explanation = explain(seen, profile, target);
    let idle_wakes = seen.wakes.as_ref().map(|wakes| wakes.totals.idle_cpu);
    let profile = &as_met(profile, idle_wakes.and_then(|idle| Some((idle.count, idle.mean_ns()?))));
    let recorded = recording(seen, profile, &explanation.command)
        .and_then(|recorded| recorded.context("the program did next to nothing, or not for long enough"));
    if let Some(file) = &args.save_workload {
        let (recorded, _) = recorded.as_ref().map_err(|error| anyhow::anyhow!("--save-workload: {error:#}"))?;
        std::fs::write(file, recorded.workload.to_json())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if !args.no_project {
        let projected = |(recorded, home)| Ok(project(&recorded, profile, &home, args.project, SEED)?);
        match recorded.and_then(projected) {
            Ok(projection) => explanation.projection = Some(Box::new(projection)),
            Err(why) => explanation.channels_missing.push(format!("projection to {} vCPUs: {why:#}", args.project)),
        }
    }
    print(args, &explanation)
}

fn print(args: &Args, explanation: &Explanation) -> anyhow::Result<()> {
    let json = || serde_json::to_string_pretty(&ResultFile::Explain(explanation.clone()));
    if let Some(file) = &args.out {
        std::fs::write(file, json()?).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        println!("{}", json()?);
    } else {
        eprint!("{}", muster_report::table::explanation(explanation));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        for (word, typed) in
            [("a-b/c.d", "a-b/c.d"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")]
        {
            assert_eq!(shell_word(word), typed);
        }
    }

    #[test]
    fn durations_are_checked() {
        assert_eq!(seconds("1.5"), Ok(1.5));
        for wrong in ["", "x", "0", "-1", "nan", "inf", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
