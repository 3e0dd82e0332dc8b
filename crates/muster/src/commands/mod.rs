//! One file a subcommand: `Args` (clap) and `run(Args) -> anyhow::Result<ExitCode>`.

pub mod guard;
pub mod undo;
