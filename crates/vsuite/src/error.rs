//! What can go wrong in a suite.

use crate::platform::Job;
use thiserror::Error;

/// Why a suite could not be started, or ended before its last run.
#[derive(Debug, Error)]
pub enum SuiteError {
    /// The user asked for something impossible; `allowed` says what is possible.
    #[error("{what}: found {found}; allowed: {allowed}")]
    BadInput {
        /// The option that was wrong.
        what: String,
        /// What stood there.
        found: String,
        /// What may stand there.
        allowed: String,
    },
    /// A program failed.
    #[error("{program} on {} {how}{}", cores_text(*.cores), tail_text(.tail))]
    RunFailed {
        /// The program's name.
        program: String,
        /// On how many cores it ran.
        cores: usize,
        /// How it ended, in words.
        how: String,
        /// The last lines of its standard error.
        tail: String,
    },
    /// The input of a program is not what its generator makes.
    #[error("the input of {program}: found {found}; allowed: what `muster vsuite` generates")]
    Input {
        /// The program's name.
        program: String,
        /// What is wrong.
        found: String,
    },
    /// There can be no virtual machine here.
    #[error("--vm: {0}")]
    NoVm(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl SuiteError {
    /// An input error about `what`.
    pub fn bad_input(what: impl Into<String>, found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::BadInput { what: what.into(), found: found.into(), allowed: allowed.into() }
    }

    /// A job that failed in this way.
    pub fn run_failed(job: &Job, how: impl Into<String>, tail: impl Into<String>) -> Self {
        Self::RunFailed { program: job.program.clone(), cores: job.cores, how: how.into(), tail: tail.into() }
    }

    /// A closure that turns the system's error into one that says what was tried.
    pub fn system<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: source.into() }
    }
}

fn cores_text(cores: usize) -> String {
    if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") }
}

fn tail_text(tail: &str) -> String {
    if tail.is_empty() { "; it wrote nothing about it".to_owned() } else { format!("; its last words:\n{tail}") }
}
