//! How long a KVM host polls for a vCPU that has halted before it gives the pCPU up.
//!
//! Source: Linux, virt/kvm/kvm_main.c, `kvm_vcpu_halt`, `grow_halt_poll_ns`, `shrink_halt_poll_ns`, and
//! Documentation/virt/kvm/halt-polling.rst. Each vCPU's window grows when a wake-up came after its end but within the limit,
//! and shrinks when it came after the limit. Polling ends when another task of the host wants the pCPU.

use serde::{Deserialize, Serialize};

/// The parameters of the module `kvm`, with their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// `halt_poll_ns`: longest polling; 0 for none.
    pub limit_ns: u64,
    /// `halt_poll_ns_grow`: factor on growing; 0 for none.
    pub grow: u64,
    /// `halt_poll_ns_grow_start`: first window, and the shortest.
    pub grow_start_ns: u64,
    /// `halt_poll_ns_shrink`: divisor on shrinking; 0 shrinks to nothing.
    pub shrink: u64,
}

impl Default for Config {
    /// x86's (arch/x86/include/asm/kvm_host.h), and since 6.11 a divisor of 2.
    fn default() -> Self {
        Self { limit_ns: 200_000, grow: 2, grow_start_ns: 10_000, shrink: 2 }
    }
}

/// One vCPU's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HaltPoll {
    window_ns: u64,
}

impl HaltPoll {
    /// How long to poll now; nothing unless the vCPU's thread is alone on its pCPU (`kvm_vcpu_can_poll`).
    pub fn window_ns(&self, is_alone: bool) -> u64 {
        if is_alone { self.window_ns } else { 0 }
    }

    /// Takes in that the vCPU was halted for `halted_ns`, polling included, until something woke it.
    pub fn woken_after(&mut self, halted_ns: u64, config: &Config) {
        let limit = config.limit_ns;
        if limit == 0 {
            self.window_ns = 0;
        } else if halted_ns > self.window_ns {
            if self.window_ns > 0 && halted_ns > limit {
                self.shrink(config);
            } else if self.window_ns < limit && halted_ns < limit {
                self.grow(config);
            }
        }
    }

    fn grow(&mut self, config: &Config) {
        if config.grow > 0 {
            let grown = self.window_ns.saturating_mul(config.grow).max(config.grow_start_ns);
            self.window_ns = grown.min(config.limit_ns);
        }
    }

    fn shrink(&mut self, config: &Config) {
        let shrunk = self.window_ns.checked_div(config.shrink).unwrap_or(0);
        self.window_ns = if shrunk < config.grow_start_ns { 0 } else { shrunk };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grows_doubling_from_its_start_and_shrinks_by_half_to_nothing() {
        let config = Config::default();
        let mut poll = HaltPoll::default();
        let mut after = |halted_ns| {
            poll.woken_after(halted_ns, &config);
            poll.window_ns(true)
        };
        assert_eq!([after(5_000), after(5_000), after(15_000), after(150_000)], [10_000, 10_000, 20_000, 40_000]);
        assert_eq!([after(199_000), after(199_000), after(199_000)], [80_000, 160_000, 200_000]);
        assert_eq!([after(200_001), after(300_000), after(300_000)], [100_000, 50_000, 25_000]);
        assert_eq!([after(300_000), after(300_000)], [12_500, 0], "below the first window there is none");
        assert_eq!(after(1_000_000), 0);
    }

    #[test]
    fn does_not_poll_where_another_task_waits() {
        let mut poll = HaltPoll::default();
        poll.woken_after(5_000, &Config::default());
        assert_eq!((poll.window_ns(true), poll.window_ns(false)), (10_000, 0));
    }

    proptest! {
        #[test]
        fn never_polls_beyond_the_limit(halts in proptest::collection::vec(0u64..1_000_000, 0..64),
            limit_ns in 0u64..400_000, grow in 0u64..5, shrink in 0u64..5) {
            let config = Config { limit_ns, grow, shrink, ..Config::default() };
            let mut poll = HaltPoll::default();
            for halted in halts {
                poll.woken_after(halted, &config);
                prop_assert!(poll.window_ns(true) <= limit_ns);
            }
        }
    }
}
