//! Gleaner's own rule for the number of active vCPUs: thresholds on the CPU time of its yielding threads.
//!
//! Source: Gleaner, section 5. Every active vCPU has a thread of the lowest priority that calls sched_yield(2) in a
//! loop. What they run together within a period is what the program left over. The paper gives neither the thresholds
//! nor the period; [`Config::default`] says what is assumed and why.

use serde::{Deserialize, Serialize};

/// The thresholds, in vCPUs' worth of yielding time, and the period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Below this the active vCPUs are overloaded: one more is activated.
    pub low: f64,
    /// Above this they are under-loaded: one is released. More than 1 above `low`, or the rule would swing.
    pub high: f64,
    /// How often the daemon looks.
    pub period_ns: u64,
}

impl Default for Config {
    /// Assumed: a quarter of a vCPU left over counts as full, and one is released only if half a vCPU would still be
    /// left over without it. 10 ms is short beside the paper's Figure 5 and long beside the daemon's own cost.
    fn default() -> Self {
        Self { low: 0.25, high: 1.5, period_ns: 10_000_000 }
    }
}

/// The daemon's state: how many vCPUs are active.
#[derive(Debug, Clone, Copy)]
pub struct Controller {
    config: Config,
    active: u32,
    allowed: u32,
}

impl Controller {
    /// A controller of a VM with `allowed` vCPUs, all active.
    pub fn new(config: Config, allowed: u32) -> Self {
        Self { config, active: allowed.max(1), allowed: allowed.max(1) }
    }

    /// Takes in what the yielding threads ran together during the last period; says how many vCPUs are to be active.
    pub fn step(&mut self, yielding_ns: u64) -> u32 {
        let left_over = yielding_ns as f64 / self.config.period_ns.max(1) as f64;
        if left_over < self.config.low {
            self.active = (self.active + 1).min(self.allowed);
        } else if left_over > self.config.high {
            self.active = (self.active - 1).max(1);
        }
        self.active
    }

    /// How often to call [`Self::step`].
    pub fn period_ns(&self) -> u64 {
        self.config.period_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn releases_when_idle_and_activates_when_full() {
        let mut controller = Controller::new(Config::default(), 4);
        assert_eq!(controller.step(20_000_000), 3);
        assert_eq!(controller.step(10_000_000), 3);
        assert_eq!(controller.step(1_000_000), 4);
        assert_eq!(controller.step(0), 4);
    }

    proptest! {
        #[test]
        fn a_steady_load_settles(load in 0.0f64..8.0, allowed in 1u32..16) {
            // The program uses `load` vCPUs if it gets them; the rest is yielding time.
            let mut controller = Controller::new(Config::default(), allowed);
            let mut history = Vec::new();
            for _ in 0..64 {
                let active = *history.last().unwrap_or(&allowed);
                let left = (f64::from(active) - load).max(0.0);
                let next = controller.step((left * 1e7) as u64);
                prop_assert!((1..=allowed).contains(&next));
                history.push(next);
            }
            prop_assert!(history[32..].iter().all(|active| *active == history[32]), "{history:?}");
        }
    }
}
