//! `muster import`: rt-app's JSON as a workload of our own.

use super::sim::read;
use super::study::print;
use anyhow::Context;
use muster_model::rtapp::{self, Imported, MEMSET_BYTES_PER_NS, Options};
use std::path::PathBuf;
use std::process::ExitCode;

/// Import a workload of rt-app, to be simulated or edited.
///
/// Prints the workload; what it leaves out or simulates otherwise goes to standard error. An experiment may also name
/// rt-app's file itself.
#[derive(clap::Args)]
pub struct Args {
    /// The file for rt-app.
    file: PathBuf,
    /// Write the workload to FILE instead.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// End the program after so long, whatever the file's `duration` is.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// How fast `mem` writes.
    #[arg(long, value_name = "BYTES", default_value_t = MEMSET_BYTES_PER_NS)]
    memset_bytes_per_ns: f64,
    /// Print an object with the workload and the notes.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = read(&args.file, "a file for rt-app")?;
    let options = Options { duration_s: args.duration, memset_bytes_per_ns: args.memset_bytes_per_ns };
    let Imported { workload, notes } = rtapp::import(&text, &args.file.display().to_string(), &options)?;
    if let Some(file) = &args.out {
        std::fs::write(file, workload.to_json() + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        let object = serde_json::json!({"workload": workload, "notes": notes});
        return print(&serde_json::to_string_pretty(&object)?);
    }
    print_notes(&notes);
    if args.out.is_some() { Ok(ExitCode::SUCCESS) } else { print(&workload.to_json()) }
}

/// Says what an import leaves out.
pub(super) fn print_notes(notes: &[String]) {
    for note in notes {
        eprintln!("muster: {note}");
    }
}
