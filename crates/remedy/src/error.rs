//! Why a program could not be run or watched.

use thiserror::Error;

/// Why a program could not be run or watched.
#[derive(Debug, Error)]
pub enum Error {
    /// The program to run does not exist.
    #[error("cannot run `{command}`: no such program")]
    NotFound {
        /// Its name as given.
        command: String,
    },
    /// The program exists but cannot be started.
    #[error("cannot run `{command}`: {source}")]
    NotRunnable {
        /// Its name as given.
        command: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// There is no such process.
    #[error("--pid {0}: there is no such process; give the number of a running one")]
    NoProcess(u32),
    /// A remedy was asked for that this machine or user cannot apply.
    #[error("--remedy {remedy}: {why}")]
    NotPermitted {
        /// The remedy's name.
        remedy: &'static str,
        /// What is missing and how to give it.
        why: String,
    },
    /// The program's own count cannot be read.
    #[error("--metric {why}")]
    Metric {
        /// The source, and what is wrong with it.
        why: String,
    },
    /// The undo journal refused.
    #[error(transparent)]
    Undo(#[from] muster_undo::Error),
    /// The system refused something that cannot be done without.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The trace could not be written.
    #[error("trace {path}: {source}")]
    Trace {
        /// The file.
        path: String,
        /// What went wrong.
        source: std::io::Error,
    },
}

impl Error {
    /// Wraps what the kernel said about `what`.
    pub(crate) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
