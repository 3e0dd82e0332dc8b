//! How long an idle vCPU polls before it halts: Linux's haltpoll governor.
//!
//! Source: Linux, Documentation/virt/guest-halt-polling.rst. Each vCPU's window grows when a wake-up came after its end
//! but within the global limit, and shrinks when the wake-up came after the limit.

use serde::{Deserialize, Serialize};

/// The governor's parameters, with Linux's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaltPollConfig {
    /// `guest_halt_poll_ns`: longest polling.
    pub limit_ns: u64,
    /// `guest_halt_poll_grow`: factor on growing.
    pub grow: u64,
    /// `guest_halt_poll_grow_start`: first window.
    pub grow_start_ns: u64,
    /// `guest_halt_poll_shrink`: divisor on shrinking; 0 shrinks to nothing.
    pub shrink: u64,
    /// `guest_halt_poll_allow_shrink`.
    pub allow_shrink: bool,
}

impl Default for HaltPollConfig {
    fn default() -> Self {
        Self { limit_ns: 200_000, grow: 2, grow_start_ns: 50_000, shrink: 2, allow_shrink: true }
    }
}

/// One vCPU's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HaltPoll {
    window_ns: u64,
}

impl HaltPoll {
    /// How long to poll now before halting.
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Takes in that the vCPU was idle for `idle_ns`, polling included, until something woke it.
    pub fn woken_after(&mut self, idle_ns: u64, config: &HaltPollConfig) {
        if idle_ns > self.window_ns && idle_ns <= config.limit_ns {
            let grown = self.window_ns.saturating_mul(config.grow).max(config.grow_start_ns);
            self.window_ns = grown.min(config.limit_ns);
        } else if idle_ns > config.limit_ns && config.allow_shrink {
            self.window_ns = self.window_ns.checked_div(config.shrink).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grows_from_its_start_and_shrinks_by_half() {
        let config = HaltPollConfig::default();
        let mut poll = HaltPoll::default();
        let mut after = |idle_ns| {
            poll.woken_after(idle_ns, &config);
            poll.window_ns()
        };
        assert_eq!(after(30_000), 50_000);
        assert_eq!(after(30_000), 50_000);
        assert_eq!(after(60_000), 100_000);
        assert_eq!(after(150_000), 200_000);
        assert_eq!(after(300_000), 100_000);
        assert_eq!(HaltPollConfig { limit_ns: 0, ..config }.limit_ns, 0);
    }

    proptest! {
        #[test]
        fn never_polls_beyond_the_limit(idles in proptest::collection::vec(0u64..1_000_000, 0..64), limit in 0u64..400_000) {
            let config = HaltPollConfig { limit_ns: limit, ..HaltPollConfig::default() };
            let mut poll = HaltPoll::default();
            for idle in idles {
                poll.woken_after(idle, &config);
                prop_assert!(poll.window_ns() <= limit);
            }
        }
    }
}
