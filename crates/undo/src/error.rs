//! What can go wrong with a journal.

use std::io;
use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on `path` failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The journal directory, or a file in it, could be under somebody else's control.
    #[error("{} is not safe to keep a journal in: {why}", path.display())]
    Unsafe {
        /// The directory or file.
        path: PathBuf,
        /// What was found and what is allowed.
        why: String,
    },
    /// Another run has changed the same thing and not yet put it back.
    #[error("{what} is already changed by {by}")]
    Claimed {
        /// The file, cgroup or program.
        what: String,
        /// The other run, and what to do about it.
        by: String,
    },
    /// A change that cannot be recorded, because it could not be undone safely.
    #[error("cannot record {what}: {why}")]
    Refused {
        /// The change.
        what: String,
        /// What is allowed.
        why: String,
    },
    /// The kernel did not do what was asked of a PCI device.
    #[error("PCI device {device}: {source}")]
    Device {
        /// Its address.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel did not do what was asked of a module.
    #[error("module {module}: {source}")]
    Module {
        /// Its name.
        module: String,
        /// What the system said.
        source: io::Error,
    },
    /// A journal that cannot be read.
    #[error("{} is not a journal: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }

    pub(crate) fn errno(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.into();
        move |errno| Self::Io { doing, path, source: errno.into() }
    }
}
