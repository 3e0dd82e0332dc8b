//! What can go wrong in a comparison.

use thiserror::Error;

/// Why a comparison could not be started, or ended before its last round.
#[derive(Debug, Error)]
pub enum CompareError {
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
    /// A run ended with an exit code other than 0, or by a signal.
    #[error("arm `{arm}`, {run}: {how}{}", tail_text(.tail))]
    RunFailed {
        /// Which arm.
        arm: String,
        /// Which run, in words.
        run: String,
        /// How it ended, in words.
        how: String,
        /// The shell's exit code for that end: the program's own, 128 + signal, 126 or 127.
        code: u8,
        /// The last lines of its standard error.
        tail: String,
    },
    /// The metric did not occur in the output of a run.
    #[error("arm `{arm}`, {run}: {problem}")]
    NoMetric {
        /// Which arm.
        arm: String,
        /// Which run, in words.
        run: String,
        /// What is wrong with the output, and what is allowed.
        problem: String,
    },
    /// A command around the runs (`--prepare`, `--conclude`) failed.
    #[error("the command `{command}` {how}")]
    HelperFailed {
        /// The command.
        command: String,
        /// How it ended, in words.
        how: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl CompareError {
    /// An input error about `what`.
    pub fn bad_input(what: impl Into<String>, found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::BadInput { what: what.into(), found: found.into(), allowed: allowed.into() }
    }

    /// A closure that turns the system's error into one that says what was tried.
    pub fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    /// The exit code that a command should end with: 2 for bad input, a program's own code or 127 for a program that
    /// could not be run, else 1 (DESIGN section 6).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput { .. } | Self::NoMetric { .. } => 2,
            Self::RunFailed { code, .. } => *code,
            Self::HelperFailed { .. } | Self::System { .. } => 1,
        }
    }
}

fn tail_text(tail: &str) -> String {
    if tail.is_empty() {
        "; it wrote nothing to standard error".to_owned()
    } else {
        format!("; its last words:\n{tail}")
    }
}
