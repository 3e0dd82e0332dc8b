//! `muster compare`: alternates plain and remedied runs of a program and says, with confidence, what was gained.

use crate::BadInput;
use crate::commands::run::check_remedy;
use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use muster_compare::arm::parse_all;
use muster_compare::export::{self, Exports};
use muster_compare::metric::{self, Metric};
use muster_compare::pair::{self, Pair, Ready, Reporting};
use muster_compare::{CompareError, Event, Plan, Program, Quiet};
use muster_model::results::Comparison;
use muster_report::format::percent;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Alternate plain and remedied runs of a program and say, with confidence, what was gained
///
/// Every round runs the program once under each arm, in an order that cancels drift; the ratio to the first arm is
/// taken round by round and comes with a 95 % confidence interval. See docs/compare.md.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  muster compare -- perf bench sched pipe
  muster compare --arm auto --arm one='taskset -c 0' --metric '([0-9]+) ops/sec' -- perf bench sched pipe
  muster compare --server 'redis-server --port 7001 --save \"\"' --ready-port 7001 \\
      --load 'redis-benchmark -p 7001 -c 1 -n 60000 -t get --csv' --metric '\"GET\",\"([0-9.]+)\"'")]
pub struct Args {
    /// Counted rounds; 6 or more give an exact interval
    #[arg(long, default_value_t = 7, value_name = "N")]
    runs: usize,
    /// Rounds before the first counted one
    #[arg(long, default_value_t = 1, value_name = "N")]
    warmup: usize,
    /// A throughput in the program's output: a regular expression with one group around the number; the last match
    /// counts. Without it each run's time is compared
    #[arg(long, value_name = "REGEX", conflicts_with = "metric_time")]
    metric: Option<String>,
    /// A time in the program's output, lower is better, likewise
    #[arg(long, value_name = "REGEX")]
    metric_time: Option<String>,
    /// What the metric counts
    #[arg(long, value_name = "WORD", value_parser = NonEmptyStringValueParser::new())]
    metric_name: Option<String>,
    /// An arm: plain, auto, consolidate, poll, awake, colocate, clock or memory, or NAME='PREFIX COMMAND' of your own; may
    /// be repeated
    /// [default: plain and auto]
    #[arg(long = "arm", value_name = "NAME")]
    arms: Vec<String>,
    /// What the remedies aim at
    #[arg(long, default_value = "speed", value_parser = ["speed", "cost", "tail"], value_name = "OBJECTIVE")]
    objective: String,
    /// Compare a server under load: the server's shell command, which must stay in the foreground
    #[arg(long, value_name = "CMD", requires = "load", requires = "readiness")]
    server: Option<String>,
    /// The load generator's shell command; its time and output are what is measured
    #[arg(long, value_name = "CMD", requires = "server")]
    load: Option<String>,
    /// The server is ready when a line of its output matches
    #[arg(long, value_name = "REGEX", requires = "server", group = "readiness")]
    ready: Option<String>,
    /// The server is ready when it accepts a connection to this port of the loopback address
    #[arg(long, value_name = "PORT", requires = "server", group = "readiness")]
    ready_port: Option<u16>,
    /// Shell command before each run, neither remedied nor measured
    #[arg(long, value_name = "CMD")]
    prepare: Option<String>,
    /// Shell command after each run, likewise
    #[arg(long, value_name = "CMD")]
    conclude: Option<String>,
    /// How long to wait for a quiet machine, in all
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    max_wait: f64,
    /// Up to this share of all CPU time used by others a run counts as undisturbed
    #[arg(long, default_value_t = 6.0, value_name = "PERCENT")]
    max_foreign: f64,
    /// Write every run as JSON, after every round; `muster report` reads it
    #[arg(long, value_name = "FILE")]
    export_json: Option<PathBuf>,
    /// Write one line an arm as CSV, after every round
    #[arg(long, value_name = "FILE")]
    export_csv: Option<PathBuf>,
    /// Write a Markdown table, after every round
    #[arg(long, value_name = "FILE")]
    export_markdown: Option<PathBuf>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "server", conflicts_with = "server", value_name = "CMD")]
    command: Vec<String>,
}

/// One run of a server and its load; started by `muster compare`.
#[derive(clap::Args)]
pub struct PairArgs {
    #[arg(long)]
    server: String,
    #[arg(long)]
    load: String,
    #[arg(long, group = "readiness", required_unless_present = "ready_port")]
    ready: Option<String>,
    #[arg(long, group = "readiness")]
    ready_port: Option<u16>,
    #[arg(long)]
    report: PathBuf,
    #[arg(long)]
    log: PathBuf,
    #[arg(long)]
    root: u32,
}

/// Compares and prints; the exit code is 0 whatever the verdict.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let exports = Exports {
        json: args.export_json.clone(),
        csv: args.export_csv.clone(),
        markdown: args.export_markdown.clone(),
    };
    let as_json = args.json;
    args.arms.iter().try_for_each(|arm| check_remedy(arm))?;
    let bar = ProgressBar::new((args.runs.saturating_add(args.warmup)) as u64).with_style(style());
    let outcome = plan(args).and_then(|plan| {
        exports.check()?;
        bar.set_length(((plan.rounds + plan.warmup) * plan.arms.len()) as u64);
        muster_compare::run(&plan, &mut |event| show(&bar, &exports, event))
    });
    bar.finish_and_clear();
    match outcome {
        Ok(comparison) if as_json => print!("{}", export::json(&comparison)?),
        Ok(comparison) => print!("{}", muster_report::table::comparison(&comparison)),
        Err(error) => return fail(error),
    }
    Ok(ExitCode::SUCCESS)
}

/// The body of the hidden `compare-pair`: its exit code is the load's.
pub fn run_pair(args: PairArgs) -> anyhow::Result<ExitCode> {
    let ready = readiness(args.ready.as_deref(), args.ready_port)?.context("no --ready and no --ready-port")?;
    let pair = Pair { server: args.server, load: args.load, ready };
    let to = Reporting { report: args.report, log: args.log, root: args.root };
    Ok(ExitCode::from(pair::run(&pair, &to)?))
}

fn plan(args: Args) -> Result<Plan, CompareError> {
    let seconds = |option: &str, value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| CompareError::bad_input(option, value.to_string(), "a number of seconds, 0 or more"))
    };
    if args.runs == 0 || args.runs > 10_000 {
        return Err(CompareError::bad_input("--runs", args.runs.to_string(), "1 to 10000"));
    }
    if args.warmup > 10_000 {
        return Err(CompareError::bad_input("--warmup", args.warmup.to_string(), "0 to 10000"));
    }
    if !(0.0..=100.0).contains(&args.max_foreign) {
        return Err(CompareError::bad_input("--max-foreign", args.max_foreign.to_string(), "0 to 100 percent"));
    }
    // A path that leads here from any descendant, also when the file is replaced while the comparison runs.
    let muster = format!("/proc/{}/exe", std::process::id());
    let metric = match (&args.metric, &args.metric_time) {
        (Some(pattern), _) => Metric::throughput(pattern)?,
        (None, Some(pattern)) => Metric::time(pattern)?,
        (None, None) => Metric::WallTime,
    };
    let ready = readiness(args.ready.as_deref(), args.ready_port)?;
    let program = match (args.server, args.load, ready) {
        (Some(server), Some(load), Some(ready)) => Program::Pair(Pair { server, load, ready }),
        _ => Program::Command(args.command),
    };
    Ok(Plan {
        program,
        arms: parse_all(&args.arms, &muster, &args.objective)?,
        unit: args.metric_name.unwrap_or_else(|| metric.unit().to_owned()),
        metric,
        rounds: args.runs,
        warmup: args.warmup,
        quiet: Quiet { max_foreign: args.max_foreign / 100.0, max_wait: seconds("--max-wait", args.max_wait)? },
        prepare: args.prepare,
        conclude: args.conclude,
        muster,
    })
}

fn readiness(pattern: Option<&str>, port: Option<u16>) -> Result<Option<Ready>, CompareError> {
    let pattern = pattern.map(|pattern| metric::regex("--ready", pattern)).transpose()?;
    Ok(pattern.map(Ready::Output).or(port.map(Ready::Port)))
}

fn show(bar: &ProgressBar, exports: &Exports, event: Event<'_>) -> Result<(), CompareError> {
    match event {
        Event::Waiting(foreign) => {
            let who = foreign.most.as_deref().unwrap_or("somebody");
            bar.set_prefix(format!("waiting for a quiet machine ({who}, {})", percent(foreign.share)));
            bar.tick();
        }
        Event::Repeats(foreign) => {
            let who = foreign.most.as_deref().unwrap_or("somebody");
            bar.println(format!("repeating a round: {who} and others used {}", percent(foreign.share)));
        }
        Event::Begins { arm, run } => {
            bar.set_prefix(format!("{run}, {arm}"));
            bar.tick();
        }
        Event::Ran => bar.inc(1),
        Event::Round(comparison) => {
            bar.set_message(estimate(comparison));
            exports.write(comparison)?;
        }
    }
    Ok(())
}

/// The ratios so far, for the progress bar.
fn estimate(comparison: &Comparison) -> String {
    let arm = |arm: &muster_model::results::Arm| {
        arm.speed_ratio.map(|ratio| format!("{} {}", arm.name, muster_report::format::ratio_range(&ratio)))
    };
    comparison.arms.iter().filter_map(arm).collect::<Vec<_>>().join("  ")
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {prefix}  {msg}").expect("a constant template")
}

fn fail(error: CompareError) -> anyhow::Result<ExitCode> {
    match error.exit_code() {
        2 if matches!(error, CompareError::BadInput { .. } | CompareError::NoMetric { .. }) => {
            Err(BadInput(error.to_string()).into())
        }
        1 => Err(error.into()),
        code => {
            eprintln!("muster: {error}");
            Ok(ExitCode::from(code))
        }
    }
}
