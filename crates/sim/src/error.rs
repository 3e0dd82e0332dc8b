//! What can go wrong in the simulated world.

use crate::progress::Stall;
use muster_model::ModelError;
use thiserror::Error;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum SimError {
    /// The experiment, workload or profile is not what it should be.
    #[error(transparent)]
    Input(#[from] ModelError),
    /// No event is pending and threads are left.
    #[error("the workload deadlocks after {after_s:.6} s: {waiting}")]
    Deadlock {
        /// Simulated time.
        after_s: f64,
        /// Which threads wait for what.
        waiting: String,
    },
    /// The world is busy, and no thread advances.
    #[error("{0}; no thread of the program has advanced in {length_s:.3} s up to {until_s:.3} s of simulated time", length_s = .0.seconds().0, until_s = .0.seconds().1)]
    NoProgress(Stall),
    /// The run did not end in time.
    #[error("the run is not over after {limit_s} s of simulated time (`limit_s`); a smaller `scale` shortens it")]
    Unfinished {
        /// The limit.
        limit_s: f64,
    },
}
