//! `muster host ple`: the window for pause-loop exiting that the locks of this guest, or the VMs of this host, call for.

use crate::BadInput;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use muster_host::ple::{Answer, LockWaits, PauseExits};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Say which window for pause-loop exiting the lock waits here call for; changes nothing
#[derive(clap::Args)]
pub struct Args {
    /// Watch the locks of this kernel, or the PAUSE exits of this host's VMs [default: host where KVM is loaded]
    #[arg(long, value_enum)]
    side: Option<Side>,
    /// How long to watch
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Take the waits from what `--side guest --json` printed, of several guests together, instead of watching
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["side", "seconds"])]
    from: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Side {
    Guest,
    Host,
}

/// Exit code 1 when it cannot be watched here.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = Path::new("/");
    let is_host = || ["kvm_intel", "kvm_amd"].iter().any(|module| root.join("sys/module").join(module).is_dir());
    let side = args.side.unwrap_or_else(|| if is_host() { Side::Host } else { Side::Guest });
    let duration = Duration::from_secs(args.seconds);
    let answer = match side {
        _ if !args.from.is_empty() => Answer::for_guest(recorded(&args.from)?),
        Side::Guest => Answer::for_guest(watched(duration, |tick| LockWaits::watch(duration, tick))?),
        Side::Host => Answer::for_host(watched(duration, |tick| PauseExits::watch(root, duration, tick))?),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print!("{}", answer.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn watched<T, E>(duration: Duration, watch: impl FnOnce(&mut dyn FnMut(Duration)) -> Result<T, E>) -> Result<T, E> {
    let style = ProgressStyle::with_template("{bar:40} {msg}").expect("a template");
    let bar = ProgressBar::new(duration.as_millis() as u64).with_style(style).with_message("watching");
    let outcome = watch(&mut |elapsed| bar.set_position(elapsed.as_millis() as u64));
    bar.finish_and_clear();
    outcome
}

/// What the option `--from` may name.
const RECORD: &str = "what `muster host ple --side guest --json` printed";

fn recorded(paths: &[PathBuf]) -> anyhow::Result<LockWaits> {
    let read = |path: &PathBuf| {
        let bad = |what: String| BadInput(format!("--from: {}: {what}; allowed: {RECORD}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        match serde_json::from_str(&text).map_err(|error| bad(format!("found no such JSON: {error}")))? {
            Answer::Guest { waits, .. } => Ok(*waits),
            Answer::Host { .. } => Err(bad("found what a host saw".to_owned())),
        }
    };
    let all = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    LockWaits::together(all).context("clap asks for a file")
}
