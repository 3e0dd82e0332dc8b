//! `muster vsuite`: runs nine real programs over a list of core counts and prints how they scale.

use super::study::print;
use crate::BadInput;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use muster_model::results::{Accelerator, ResultFile, SuiteCheck, SuiteResults, SuiteSkip};
use muster_report::table;
use muster_vsuite::vm::MAX_CORES;
use muster_vsuite::{Event, Native, Plan, Program, SuiteError, VmPlan, run_guest, run_one};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run nine real programs over a list of core counts and print how they scale
///
/// The programs are those by which the iXen paper tells what keeps programs from scaling in virtual machines: make,
/// dbench, histogram, wordcount, linear-regression, compress, xml-validation, dedup and streamcluster. Inputs are
/// generated from the seed and gone at the end. With --vm each also runs in a virtual machine of as many vCPUs, and what
/// it loses there is printed beside it. See docs/vsuite.md.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  muster vsuite
  muster vsuite --programs dedup,streamcluster --cores 1,2 --runs 3
  muster vsuite --vm --cores 1,2,4
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
    /// Also run everything in a QEMU guest: KVM where it works, else the emulator, whose times are none.
    #[arg(long)]
    vm: bool,
    /// What runs the guest's instructions; without it, KVM is tried first.
    #[arg(long, value_enum, value_name = "NAME", requires = "vm")]
    accel: Option<Accel>,
    /// The guest's kernel; an installed one or the distribution's package, when absent.
    #[arg(long, value_name = "FILE", requires = "vm")]
    kernel: Option<PathBuf>,
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

#[derive(Clone, Copy, clap::ValueEnum)]
enum Accel {
    Kvm,
    Tcg,
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

/// The first process of a virtual machine; started by `muster vsuite --vm`.
#[derive(clap::Args)]
pub struct GuestArgs {}

/// Measures and prints; fails when a result was wrong, and when no program could be run.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let cores = Native::new()?.cores();
    let (out, as_json) = (args.out.clone(), args.json);
    let plan = plan(args, cores).map_err(input_error)?;
    plan.check(cores).map_err(input_error)?;
    out.as_deref().map_or(Ok(()), super::probe::check_writable)?;
    let bar = ProgressBar::new(plan.programs.len() as u64 * runs_of_a_program(&plan)).with_style(style());
    let outcome = muster_vsuite::run(&plan, &mut |event| show(&bar, &plan, out.as_deref(), event));
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

/// The body of the hidden `vsuite-guest`: switches the machine off when it is done.
pub fn run_in_guest(_: GuestArgs) -> anyhow::Result<ExitCode> {
    run_guest().map_err(input_error)?;
    Ok(ExitCode::SUCCESS)
}

fn plan(args: Args, cores: usize) -> Result<Plan, SuiteError> {
    let programs: Vec<Program> = args.programs.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    // A path that stays the same program, also when the file is replaced while the suite runs.
    let muster = format!("/proc/{}/exe", std::process::id());
    let accelerator = args.accel.map(|accel| match accel {
        Accel::Kvm => Accelerator::Kvm,
        Accel::Tcg => Accelerator::Tcg,
    });
    let usual = || muster_vsuite::usual_cores(if args.vm { cores.min(MAX_CORES) } else { cores });
    Ok(Plan {
        programs: if programs.is_empty() { Program::ALL.to_vec() } else { programs },
        cores: if args.cores.is_empty() { usual() } else { args.cores },
        runs: args.runs,
        scale: args.scale,
        seed: args.seed,
        dir: args.dir,
        keep: args.keep,
        runner: [muster, "vsuite-run".to_owned()],
        vm: args.vm.then_some(VmPlan { accelerator, kernel: args.kernel }),
    })
}

fn runs_of_a_program(plan: &Plan) -> u64 {
    let places = if plan.vm.is_some() { 2 } else { 1 };
    (plan.cores.len() * plan.runs * places) as u64
}

fn show(bar: &ProgressBar, plan: &Plan, out: Option<&Path>, event: Event<'_>) -> Result<(), SuiteError> {
    match event {
        Event::Waits(what) => bar.set_message(what.to_owned()),
        Event::HasVm(vm) => bar.suspend(|| table::suite_vm(vm).iter().for_each(|line| eprintln!("{line}"))),
        Event::Prepares(program) => bar.set_message(format!("{program}: making its input")),
        Event::Skipped(SuiteSkip { program, why }) => bar.suspend(|| eprintln!("SKIPPED: {program}: {why}")),
        Event::Begins { program, cores, run } => bar.set_message(format!("{program} on {cores}, {run}")),
        Event::Ran => bar.inc(1),
        Event::Measured { program, results } => {
            bar.set_position(programs_done(results) * runs_of_a_program(plan));
            let news = table::suite_news(results, program.name());
            bar.suspend(|| news.iter().for_each(|line| eprintln!("{line}")));
            return out.map_or(Ok(()), |file| write(results, file));
        }
    }
    bar.tick();
    Ok(())
}

fn programs_done(results: &SuiteResults) -> u64 {
    let run = results.rows.iter().map(|row| &row.program);
    run.chain(results.skipped.iter().map(|skip| &skip.program)).collect::<BTreeSet<_>>().len() as u64
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
