//! `muster guard`: the guardian of a journal; started by muster itself, never by a person.

use std::path::PathBuf;
use std::process::ExitCode;

/// Restores a journal once its owner is dead
#[derive(clap::Args)]
pub struct Args {
    /// The journal
    #[arg(long, value_name = "FILE")]
    journal: PathBuf,
}

/// Waits, restores, and says on stderr what it had to restore.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(report) = muster_undo::guardian::watch(&args.journal)? else { return Ok(ExitCode::SUCCESS) };
    eprintln!("muster: run {} was ended before it could restore what it had changed", report.run);
    eprint!("{}", super::undo::render(std::slice::from_ref(&report), false));
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
