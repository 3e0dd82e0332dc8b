//! The one error of this room: something that was handed in is not what it should be.

use thiserror::Error;

/// A malformed or impossible input. `what` names the file, line or field; `found` and `allowed` finish the sentence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}: found {found}; allowed: {allowed}")]
pub struct ModelError {
    /// The file, line or field that was wrong.
    pub what: String,
    /// What stood there.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
}

impl ModelError {
    /// An error about `what`, where `found` stands in place of `allowed`.
    pub fn new(what: impl Into<String>, found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self { what: what.into(), found: found.into(), allowed: allowed.into() }
    }

    /// The same error with the file or section it occurred in put before `what`.
    pub fn within(mut self, place: &str) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }
}
