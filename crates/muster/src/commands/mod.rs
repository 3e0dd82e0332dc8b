//! One file a subcommand: `Args` (clap) and `run(Args) -> anyhow::Result<ExitCode>`.

pub mod compare;
pub mod explain;
pub mod guard;
pub mod host;
pub mod import;
pub mod pause_loops;
pub mod probe;
pub mod report;
pub mod run;
pub mod sim;
pub mod study;
pub mod undo;
pub mod vsuite;
