//! `muster vsuite`: runs nine real programs over a list of core counts and prints how they scale.

use super::study::print;
use crate::BadInput;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use muster_model::results::{ResultFile, SuiteCheck, SuiteResults};
use muster_report::table;
use muster_vsuite::{Event, Native, Plan, Platform, Program, SuiteError, run_one};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run nine real programs over a list of core counts and print how they scale
///
/// The programs are those by which the iXen paper tells what keeps programs from scaling in virtual machines: make,
/// dbench, histogram, wordcount, linear-regression, compress, xml-validation, dedup and streamcluster. Inputs are
/// generated from the seed and gone at the end. See docs/vsuite.md.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  muster vsuite
  muster vsuite --programs dedup,streamcluster --cores 1,2 --runs 3
  muster vsuite --scale 1 --dir /mnt/big --out vsuite.json")]
pub struct Args {
    /// Only these programs.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    programs: Vec<String>,
    /// On how many cores to run, each with as many threads; powers of two and all there are when absent.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Measured runs of each program on each number of cores.
    #[arg(long, default_value_t = 5, value_name = "N")]
    runs: usize,
    /// Size of the inputs, relative to the paper's (2 GB for most); the default fits a machine of 2 cores.
    #[arg(long, default_value_t = 0.05, value_name = "FACTOR", allow_negative_numbers = true)]
    scale: f64,
    /// What the inputs are generated from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs and outputs lie; /dev/shm where it can be written, when absent.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave the inputs for the next time.
    #[arg(long)]
    keep: bool,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write the results to FILE, anew after every program.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// One measured run of one of our own programs; started by `muster vsuite`.
#[derive(clap::Args)]
pub struct RunArgs {
    #[arg(long)]
    program: String,
    #[arg(long)]
    threads: NonZeroUsize,
    #[arg(long)]
    input: PathBuf,
    #[arg(long)]
    output: PathBuf,
}

/// Measures and prints; fails when a result was wrong, and when no program could be run.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let platform = Native::new()?;
    let (out, as_json) = (args.out.clone(), args.json);
    let plan = plan(args, &platform).map_err(input_error)?;
    plan.check(platform.cores()).map_err(input_error)?;
    out.as_deref().map_or(Ok(()), super::probe::check_writable)?;
    let bar = ProgressBar::new((plan.programs.len() * plan.cores.len() * plan.runs) as u64).with_style(style());
    let outcome = muster_vsuite::run(&plan, &platform, &mut |event| show(&bar, &plan, out.as_deref(), event));
    bar.finish_and_clear();
    let results = outcome.map_err(input_error)?;
    print(&if as_json { json(&results)? } else { table::suite(&results) })?;
    Ok(exit_code(&results))
}

/// The body of the hidden `vsuite-run`: prints the checksum.
pub fn run_child(args: RunArgs) -> anyhow::Result<ExitCode> {
    let program = args.program.parse().map_err(input_error)?;
    let checksum = run_one(program, args.threads, &args.input, &args.output).map_err(input_error)?;
    print(&format!("{checksum:016x}"))
}

fn plan(args: Args, platform: &dyn Platform) -> Result<Plan, SuiteError> {
    let programs: Vec<Program> = args.programs.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    // A path that stays the same program, also when the file is replaced while the suite runs.
    let muster = format!("/proc/{}/exe", std::process::id());
    Ok(Plan {
        programs: if programs.is_empty() { Program::ALL.to_vec() } else { programs },
        cores: if args.cores.is_empty() { muster_vsuite::usual_cores(platform.cores()) } else { args.cores },
        runs: args.runs,
        scale: args.scale,
        seed: args.seed,
        dir: args.dir,
        keep: args.keep,
        runner: [muster, "vsuite-run".to_owned()],
    })
}

fn show(bar: &ProgressBar, plan: &Plan, out: Option<&Path>, event: Event<'_>) -> Result<(), SuiteError> {
    match event {
        Event::Prepares(program) => bar.set_message(format!("{program}: making its input")),
        Event::Skipped(skip) => {
            bar.inc((plan.cores.len() * plan.runs) as u64);
            bar.suspend(|| eprintln!("SKIPPED: {}: {}", skip.program, skip.why));
        }
        Event::Begins { program, cores, run } => bar.set_message(format!("{program} on {cores}, {run}")),
        Event::Ran => bar.inc(1),
        Event::Measured(results) => {
            bar.suspend(|| table::suite_news(results).iter().for_each(|line| eprintln!("{line}")));
            return out.map_or(Ok(()), |file| write(results, file));
        }
    }
    bar.tick();
    Ok(())
}

fn write(results: &SuiteResults, file: &Path) -> Result<(), SuiteError> {
    let text = serde_json::to_string_pretty(&ResultFile::Vsuite(results.clone())).map_err(std::io::Error::from);
    let written = text.and_then(|text| std::fs::write(file, text));
    written.map_err(SuiteError::system(format!("cannot write {}", file.display())))
}

fn json(results: &SuiteResults) -> anyhow::Result<String> {
    serde_json::to_string_pretty(&ResultFile::Vsuite(results.clone())).context("cannot write the results as JSON")
}

fn exit_code(results: &SuiteResults) -> ExitCode {
    let is_wrong = results.rows.iter().any(|row| row.check == SuiteCheck::Differs);
    if is_wrong || results.rows.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn input_error(error: SuiteError) -> anyhow::Error {
    match error {
        SuiteError::BadInput { .. } => BadInput(error.to_string()).into(),
        other => other.into(),
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}").expect("a constant template")
}
