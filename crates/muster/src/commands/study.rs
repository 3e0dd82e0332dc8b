//! `muster study`: simulates a paper's evaluation and prints its numbers beside the paper's.

mod saved;

use crate::BadInput;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use muster_model::results::{ResultFile, StudyNumber};
use muster_report::table;
use muster_sim::study::journal::Header;
use muster_sim::study::{Options, StudyRun};
use muster_sim::{SimError, Study};
use saved::Saved;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Simulate a paper's whole evaluation and print every number beside the paper's.
///
/// `calibrated` numbers may be fitted to; `predicted` numbers are what the simulator is judged by. Runs are saved as they
/// end: a study that was interrupted goes on where it was.
#[derive(clap::Args)]
pub struct Args {
    /// The study: gleaner, sharing, ixen, hardware-acceleration.
    name: String,
    /// Print one JSON object a number, one a line.
    #[arg(long)]
    json: bool,
    /// Seed of every random draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this table or figure, such as "Figure 4".
    #[arg(long, value_name = "FIGURE")]
    only: Option<String>,
    /// Grow the study's largest machine and VM to N cores; the paper has no numbers for that.
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Runs to simulate at once; as many as there are CPUs when absent.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Factor on the length of every run.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Also write the results to FILE, for `muster report`. Until then FILE.runs has the runs that have ended.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !(args.scale.is_finite() && args.scale > 0.0) {
        return Err(BadInput(format!("--scale: found {}; allowed: a number above 0", args.scale)).into());
    }
    let mut study = Study::builtin(&args.name)?;
    if let Some(cores) = args.cores {
        study.grow(cores)?;
    }
    if let Some(figure) = &args.only {
        study.only(figure)?;
    }
    args.out.as_deref().map_or(Ok(()), super::probe::check_writable)?;
    let jobs = args.jobs.map_or_else(available, usize::from);
    let options = Options { seed: args.seed, jobs, scale: args.scale };
    let muster = format!("{} ({})", env!("CARGO_PKG_VERSION"), saved::build());
    let header = Header { muster, study: study.name.clone(), seed: args.seed, scale: args.scale, cores: study.cores() };
    let (saved, there) = Saved::open(args.out.as_deref(), &header);
    let bar = progress_bar();
    let started = Instant::now();
    let outcome = study.resume(&options, &there, &|progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        if let Some(warning) = progress.ended.and_then(|record| saved.keep(record)) {
            bar.suspend(|| eprintln!("{warning}"));
        }
    });
    bar.finish_and_clear();
    let run = outcome.map_err(input_error)?;
    report_speed(&run, started.elapsed().as_secs_f64(), jobs);
    if let Some(file) = &args.out {
        let text = serde_json::to_string_pretty(&ResultFile::Study(run.results.clone()))?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let text = if args.json { json_lines(&run.results.numbers)? } else { table::study(&run.results) };
    let printed = print(&text)?;
    saved.remove();
    Ok(printed)
}

/// One object a number, with the fields of DESIGN section 4, a note where there is one, and `in_points` where the error is
/// absolute points.
fn json_lines(numbers: &[StudyNumber]) -> anyhow::Result<String> {
    let mut text = String::new();
    for number in numbers {
        let mut object = serde_json::to_value(number)?;
        object.as_object_mut().map(|fields| fields.remove("paper_bound"));
        text.push_str(&object.to_string());
        text.push('\n');
    }
    Ok(text)
}

fn report_speed(run: &StudyRun, seconds: f64, jobs: usize) {
    eprintln!(
        "{} runs, {:.1} million events in {seconds:.1} s on {jobs} jobs: {:.1} million events/s, {:.1} simulated core-seconds/s",
        run.runs,
        run.events as f64 / 1e6,
        run.events as f64 / 1e6 / seconds,
        run.core_seconds / seconds,
    );
}

fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Wrong input keeps its own type, which decides the exit code.
pub(super) fn input_error(error: SimError) -> anyhow::Error {
    match error {
        SimError::Input(input) => input.into(),
        other => other.into(),
    }
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {elapsed}").expect("the template is constant");
    ProgressBar::new(0).with_style(style)
}

/// Prints to standard output; a reader that has seen enough is no error.
pub(super) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS).context("cannot write to standard output"),
    }
}
