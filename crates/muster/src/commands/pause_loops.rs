//! `muster pause-loops`: the process that keeps vCPUs from halting; started by `muster run` only.

use muster_model::CpuSet;
use std::process::ExitCode;

/// Keep vCPUs awake as told on standard input.
#[derive(clap::Args)]
pub struct Args {
    /// The vCPUs.
    #[arg(long, value_name = "LIST")]
    cpus: CpuSet,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    muster_remedy::pause::serve(&args.cpus)?;
    Ok(ExitCode::SUCCESS)
}
