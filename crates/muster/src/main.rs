//! The command line: one file a subcommand under `commands`, no logic.

mod commands;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Makes multi-threaded programs scale inside virtual machines.
#[derive(Parser)]
#[command(name = "muster", version, about, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    // A line a subcommand: `Name(commands::name::Args)`; the doc comment of Args is its help.
    Compare(Box<commands::compare::Args>),
    #[command(hide = true)]
    ComparePair(commands::compare::PairArgs),
    Explain(commands::explain::Args),
    #[command(hide = true)]
    Guard(commands::guard::Args),
    Host(commands::host::Args),
    Import(commands::import::Args),
    #[command(hide = true)]
    PauseLoops(commands::pause_loops::Args),
    Probe(commands::probe::Args),
    Report(commands::report::Args),
    Run(commands::run::Args),
    Sim(commands::sim::Args),
    Study(commands::study::Args),
    Undo(commands::undo::Args),
    Vsuite(commands::vsuite::Args),
    #[command(hide = true)]
    VsuiteGuest(commands::vsuite::GuestArgs),
    #[command(hide = true)]
    VsuiteRun(commands::vsuite::RunArgs),
}

/// The user's input was wrong: reported as it stands, exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("MUSTER_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    let outcome = match Cli::parse().command {
        Command::Compare(args) => commands::compare::run(*args),
        Command::ComparePair(args) => commands::compare::run_pair(args),
        Command::Explain(args) => commands::explain::run(args),
        Command::Guard(args) => commands::guard::run(args),
        Command::Host(args) => commands::host::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::PauseLoops(args) => commands::pause_loops::run(args),
        Command::Probe(args) => commands::probe::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Sim(args) => commands::sim::run(args),
        Command::Study(args) => commands::study::run(args),
        Command::Undo(args) => commands::undo::run(args),
        Command::Vsuite(args) => commands::vsuite::run(args),
        Command::VsuiteGuest(args) => commands::vsuite::run_in_guest(args),
        Command::VsuiteRun(args) => commands::vsuite::run_child(args),
    };
    exit_code(outcome)
}

/// The exit code of a finished command; an error is printed as one sentence first.
fn exit_code(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("muster: {error:#}");
        let is_bad_input = error.chain().any(|cause| cause.is::<BadInput>() || cause.is::<muster_model::ModelError>());
        ExitCode::from(if is_bad_input { 2 } else { 1 })
    })
}
