//! The prices that the live ledger multiplies its counts with, taken from a machine profile.

use muster_model::profile::names;
use muster_model::{Distance, PriceKind, Profile};

/// A price and whether it was measured on this very machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitPrice {
    /// Nanoseconds.
    pub ns: f64,
    /// Measured here, not noisy.
    pub is_sure: bool,
}

/// Prices by what they are multiplied with; `None` where the profile has none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnitPrices {
    /// Waking a thread on the waker's own vCPU.
    pub wake_same_cpu: Option<UnitPrice>,
    /// Waking a thread on another vCPU that is awake.
    pub wake_awake: Option<UnitPrice>,
    /// Waking a thread on another vCPU that has halted.
    pub wake_halted: Option<UnitPrice>,
    /// What the waker itself pays of that.
    pub waker_halted: Option<UnitPrice>,
    /// One TLB shootdown received, with what the sender waits for it.
    pub shootdown: Option<UnitPrice>,
    /// Touching a page of 4 KiB for the first time.
    pub first_touch: Option<UnitPrice>,
    /// Where they come from: the profile's name.
    pub source: String,
}

/// Which of the distances between vCPUs a wake-up most likely has: the nearest that is not a sibling's.
const TYPICAL: [Distance; 4] = [Distance::SameLlc, Distance::OtherLlc, Distance::OtherNode, Distance::SmtSibling];

impl UnitPrices {
    /// The prices in `profile`.
    pub fn of(profile: &Profile) -> Self {
        let price = |name: &str| {
            let price = profile.prices.get(name)?;
            Some(UnitPrice { ns: price.ns, is_sure: price.kind == PriceKind::Measured && !price.noisy })
        };
        let far = |name: fn(&str, &str, Distance) -> String, setting: &str| {
            TYPICAL.iter().find_map(|&distance| price(&name("futex", setting, distance)))
        };
        Self {
            wake_same_cpu: price(&names::wake_same_cpu("futex")),
            wake_awake: far(names::wake, "awake"),
            wake_halted: far(names::wake, "halted"),
            waker_halted: far(names::waker, "halted"),
            shootdown: shootdown(price(&names::tlb_threads("munmap", 1)), price(&names::tlb_threads("munmap", 0))),
            first_touch: price(&names::first_touch("4k")),
            source: profile.name.clone(),
        }
    }
}

/// What one other running thread adds to an unmapping.
fn shootdown(with: Option<UnitPrice>, without: Option<UnitPrice>) -> Option<UnitPrice> {
    let (with, without) = (with?, without?);
    Some(UnitPrice { ns: (with.ns - without.ns).max(0.0), is_sure: with.is_sure && without.is_sure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::Price;
    use muster_model::Topology;

    #[test]
    fn takes_the_nearest_distance_that_is_priced() {
        let price = |ns, noisy| Price { ns, spread_ns: None, kind: PriceKind::Measured, source: String::new(), noisy };
        let prices = [
            ("wake.futex.same-cpu", price(2.0, false)),
            ("wake.futex.halted.smt-sibling", price(9.0, false)),
            ("wake.futex.halted.other-llc", price(30.0, true)),
            ("tlb.munmap.threads-0", price(5.0, false)),
            ("tlb.munmap.threads-1", price(12.0, false)),
        ];
        let profile = Profile {
            name: "here".into(),
            description: String::new(),
            platform: Default::default(),
            topology: Topology::regular(1, 1, 2, 1).unwrap(),
            prices: prices.into_iter().map(|(name, price)| (name.to_owned(), price)).collect(),
            notes: Vec::new(),
        };
        let unit = UnitPrices::of(&profile);
        assert_eq!(unit.wake_same_cpu, Some(UnitPrice { ns: 2.0, is_sure: true }));
        assert_eq!(unit.wake_halted, Some(UnitPrice { ns: 30.0, is_sure: false }));
        assert_eq!(unit.shootdown, Some(UnitPrice { ns: 7.0, is_sure: true }));
        assert_eq!((unit.wake_awake, unit.first_touch), (None, None));
    }
}
