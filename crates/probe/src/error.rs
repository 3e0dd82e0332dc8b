//! What can go wrong while measuring.

use muster_model::ModelError;
use std::io;
use thiserror::Error;

/// Why a machine, or one of its prices, could not be measured.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The call, and what it was for.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A measurement cannot be made on this machine, or by this process; the text says why.
    #[error("{0}")]
    NotMeasurable(String),
    /// The machine's description makes no sense.
    #[error(transparent)]
    Machine(#[from] ModelError),
}

impl ProbeError {
    /// The error of the call that just failed, from `errno`.
    pub(crate) fn last(call: &'static str) -> Self {
        Self::Call { call, source: io::Error::last_os_error() }
    }

    /// The error of a call through rustix.
    pub(crate) fn call(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Call { call, source: errno.into() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ProbeError>;
