//! `muster host`: what a KVM host offers its guests, and what to set on it.

use crate::BadInput;
use clap::Subcommand;
use muster_host::Tree;
use std::path::PathBuf;
use std::process::ExitCode;

/// Audit a KVM host, and set what its guests gain by.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Audit(AuditArgs),
}

/// Where the host is looked at.
#[derive(clap::Args)]
struct Place {
    /// Read and write below DIR instead of /: a recorded tree of sysfs and procfs.
    #[arg(long, value_name = "DIR", default_value = "/")]
    sysroot: PathBuf,
}

impl Place {
    fn tree(&self) -> Result<Tree, BadInput> {
        Tree::at(&self.sysroot).map_err(|error| BadInput(format!("--sysroot {}: {error}", self.sysroot.display())))
    }
}

/// Say what could be better on this host, and why; changes nothing.
#[derive(clap::Args)]
struct AuditArgs {
    #[command(flatten)]
    place: Place,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Audit(args) => audit(&args),
    }
}

fn audit(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let audit = muster_host::audit(&args.place.tree()?);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&audit)?),
        false => print!("{}", muster_report::table::host_audit(&audit)),
    }
    Ok(ExitCode::SUCCESS)
}
