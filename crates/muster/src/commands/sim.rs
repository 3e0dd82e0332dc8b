//! `muster sim`: simulates one experiment and prints its ledger.

use super::study::{input_error, print};
use anyhow::Context;
use muster_model::study::Experiment;
use muster_model::{Ledger, ModelError, Profile, Workload};
use muster_report::table;
use muster_sim::timeline::chrome_trace;
use muster_sim::{Outcome, Simulation};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Simulate one experiment: a machine, an environment, a program and its remedies.
///
/// FILE is TOML; the machine profile and the workload it names are looked for beside it, then in the current
/// directory.
#[derive(clap::Args)]
pub struct Args {
    /// The experiment.
    file: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Use this seed instead of the experiment's.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulate so many cores (vCPUs) instead of the experiment's; a machine that has fewer is scaled out.
    #[arg(long, value_name = "N")]
    vcpus: Option<u32>,
    /// Write every core's timeline to FILE, for Perfetto or chrome://tracing (the first million stretches).
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

/// Stretches a timeline keeps.
const TIMELINE_LIMIT: usize = 1_000_000;

#[derive(Serialize)]
struct Report {
    wall_s: f64,
    events: u64,
    idle_transitions_per_s: f64,
    lock_wake_us: f64,
    wakeups: u64,
    ipis: u64,
    exceptions: u64,
    migrations: u64,
    switches: u64,
    tlb_shootdowns: u64,
    exits: Exits,
    mean_active_cpus: f64,
    ledger: Ledger,
}

#[derive(Serialize)]
struct Exits {
    halt: u64,
    ipi: u64,
    interrupt: u64,
    timer: u64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display().to_string();
    let mut experiment = Experiment::from_toml(&read(&args.file, "the experiment")?, &name)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    if let Some(vcpus) = args.vcpus {
        (experiment.cores, experiment.scale_out) = (vcpus, true);
        experiment.validate().map_err(|error| error.within("--vcpus"))?;
    }
    let machine = beside(&args.file, &experiment.machine);
    let workload = beside(&args.file, &experiment.workload);
    let profile = Profile::from_toml(&read(&machine, "the machine profile")?, &experiment.machine)?;
    let program = Workload::from_json(&read(&workload, "the workload")?, &experiment.workload)?;
    let limit = args.timeline.is_some().then_some(TIMELINE_LIMIT);
    let outcome = Simulation::new(&experiment, &profile, &program, limit)?.run().map_err(input_error)?;
    if let Some(file) = &args.timeline {
        std::fs::write(file, chrome_trace(&outcome.timeline, outcome.cores))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let report = report(&outcome);
    print(&if args.json { serde_json::to_string_pretty(&report)? } else { page(&report) })
}

/// A file that the experiment names: relative to the experiment, else to the current directory.
fn beside(experiment: &Path, named: &str) -> PathBuf {
    let near = experiment.parent().unwrap_or(Path::new("")).join(named);
    if near.exists() { near } else { PathBuf::from(named) }
}

fn read(path: &Path, what: &str) -> Result<String, ModelError> {
    std::fs::read_to_string(path)
        .map_err(|error| ModelError::new(path.display().to_string(), error.to_string(), format!("{what}, readable")))
}

fn report(outcome: &Outcome) -> Report {
    let counters = &outcome.counters;
    Report {
        wall_s: outcome.seconds(),
        events: counters.events,
        idle_transitions_per_s: outcome.idle_transitions_per_second(),
        lock_wake_us: outcome.lock_wake_us(),
        wakeups: counters.wakeups,
        ipis: counters.ipis,
        exceptions: counters.exceptions,
        migrations: counters.migrations,
        switches: counters.switches,
        tlb_shootdowns: counters.shootdowns,
        exits: Exits {
            halt: counters.halt_exits,
            ipi: counters.ipi_exits,
            interrupt: counters.interrupt_exits,
            timer: counters.timer_exits,
        },
        mean_active_cpus: outcome.mean_active(),
        ledger: outcome.ledger(),
    }
}

fn page(report: &Report) -> String {
    let Report { exits, .. } = report;
    format!(
        "{}\nsimulated time        {:.6} s\nmean active CPUs      {:.2}\nidle transitions      {:.0}/s\n\
         wake-ups              {}\nlock wake-up latency  {:.2} us\nIPIs                  {}\nexceptions            {}\n\
         migrations            {}\ncontext switches      {}\nTLB shootdowns        {}\n\
         VM exits              HLT {}, IPI {}, interrupt {}, timer {}\nevents                {}\n",
        table::ledger(&report.ledger),
        report.wall_s,
        report.mean_active_cpus,
        report.idle_transitions_per_s,
        report.wakeups,
        report.lock_wake_us,
        report.ipis,
        report.exceptions,
        report.migrations,
        report.switches,
        report.tlb_shootdowns,
        exits.halt,
        exits.ipi,
        exits.interrupt,
        exits.timer,
        report.events,
    )
}
