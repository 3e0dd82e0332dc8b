//! What can go wrong on a host.

use muster_undo::Report;
use std::io;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong on a host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The root directory is none.
    #[error("{}: {why}", path.display())]
    Root {
        /// The directory.
        path: PathBuf,
        /// What was wrong with it.
        why: String,
    },
    /// What was asked for cannot be had here: one sentence.
    #[error("{0}")]
    Request(String),
    /// The user may not.
    #[error("{what} needs root: run the command with sudo; nothing was changed")]
    NotPermitted {
        /// What would have to be written.
        what: String,
    },
    /// A value was written and is not there.
    #[error("`{value}` was written to {path}, but it reads `{reads}`")]
    NotTaken {
        /// The file.
        path: String,
        /// What was written.
        value: String,
        /// What it reads.
        reads: String,
    },
    /// The journal, or what it was to record.
    #[error(transparent)]
    Undo(#[from] muster_undo::Error),
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Ended by a signal.
    #[error("ended by signal {0}")]
    Signal(i32),
    /// A step failed; what had been done before was undone.
    #[error("{cause}; {}", undone(report))]
    Undone {
        /// What went wrong.
        cause: Box<Error>,
        /// What was put back.
        report: Box<Report>,
    },
}

impl Error {
    /// The signal that ended it, if one did.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Self::Signal(signal) => Some(*signal),
            Self::Undone { cause, .. } => cause.signal(),
            _ => None,
        }
    }
}

fn undone(report: &Report) -> String {
    match report.is_complete() {
        true => "everything was put back".to_owned(),
        false => {
            let failed: Vec<&str> = report.failed.iter().map(|item| item.what.as_str()).collect();
            format!("not put back: {} (`muster undo` tries again)", failed.join(", "))
        }
    }
}
