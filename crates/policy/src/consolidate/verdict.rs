//! What a trial came to, for traces and people: nothing is decided by it.

use super::rates::{Rates, Scale, Yardstick};
use super::{Arm, Config};
use serde::{Deserialize, Serialize};

/// What a trial came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// By which count the settings were compared.
    pub yardstick: Yardstick,
    /// What they scored, in the order in which they were measured.
    pub scores: Vec<Scored>,
    /// The one that is kept.
    pub winner: Arm,
}

/// A setting and what it scored.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// The setting.
    pub arm: Arm,
    /// Units of the yardstick per second, the more the better; before any weighing by what a wrong verdict would cost.
    pub score: f64,
}

impl Verdict {
    pub(crate) fn new(config: &Config, measured: &[(Arm, Rates)], winner: Arm) -> Self {
        let scale = Scale::of(config.objective, measured, &config.prices);
        let scored = |(arm, rates): &(Arm, Rates)| Scored { arm: *arm, score: scale.score(*arm, rates) };
        Self { yardstick: scale.yardstick, scores: measured.iter().map(scored).collect(), winner }
    }
}
