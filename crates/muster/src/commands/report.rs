//! `muster report`: turns result files into one self-contained HTML page.

use crate::BadInput;
use anyhow::Context;
use muster_report::input::{InputError, read_all};
use muster_report::page::{in_short, page};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Turn results into one self-contained HTML page with plots
///
/// Reads what `muster probe`, `explain`, `compare` and `study` write with --json, in the order given. See
/// docs/report.md.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write the page; its directory is made if it is missing
    #[arg(short, long, default_value = "out/report.html", value_name = "FILE")]
    output: PathBuf,
    /// Print what was read as JSON instead of writing the page
    #[arg(long)]
    json: bool,
    /// Result files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Writes the page, says what it found, and the path of the page on standard error.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let documents = read_all(&args.files).map_err(|error: InputError| BadInput(error.to_string()))?;
    if args.json {
        println!("{}", muster_report::input::to_json(&documents)?);
        return Ok(ExitCode::SUCCESS);
    }
    let output = args.output;
    if let Some(directory) = output.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(&output, page(&documents)).with_context(|| output.display().to_string())?;
    print!("{}", in_short(&documents));
    eprintln!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}
