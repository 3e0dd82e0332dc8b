//! How sure a window is that was chosen from a sample of lock waits.

use super::{LONG_WAITS_PER_MILLE, Waits, window};
use muster_model::ModelError;
use serde::{Deserialize, Serialize};

/// Standard deviations of a normal distribution that hold 95 %.
const Z: f64 = 1.96;
/// More waits than a sample will ever have.
const MANY: u64 = 1 << 40;

/// A window and what the sample allows to say about it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Certainty {
    /// What [`window`] chooses from the sample, in cycles.
    pub window: u32,
    /// The smallest power of two that may be the right one: 95 % confidence does not exclude that at most 0.5 % exceed it.
    pub least: u32,
    /// The smallest that surely is enough: with 95 % confidence at most 0.5 % exceed it. None, when the sample is too
    /// small to say so of any.
    pub enough: Option<u32>,
    /// Share of the sample that exceeds `window`, with its 95 % confidence interval.
    pub exceeding: f64,
    /// The interval's ends.
    pub between: [f64; 2],
    /// How many waits more would make `least` and `enough` one, if they were distributed as these are; 0 when they are.
    /// None, when no number would.
    pub more_waits: Option<u64>,
}

impl Certainty {
    /// Whether the sample tells one window from all others.
    pub fn is_certain(&self) -> bool {
        self.enough == Some(self.least)
    }

    /// What the waits say.
    ///
    /// # Errors
    /// As [`window`].
    pub fn of(waits: &Waits) -> Result<Self, ModelError> {
        let (window, count) = (window(waits)?, waits.count());
        let interval = |power: usize| wilson(waits.longer_than(power), count);
        let first = |is_so: &dyn Fn([f64; 2]) -> bool| (0..u32::BITS as usize).find(|&power| is_so(interval(power)));
        let (low_ok, high_ok) = (|ends: [f64; 2]| ends[0] <= LIMIT, |ends: [f64; 2]| ends[1] <= LIMIT);
        let power = window.ilog2() as usize;
        let (least, enough) = (first(&low_ok).unwrap_or(power), first(&high_ok));
        let is_certain = enough == Some(least);
        Ok(Self {
            window,
            least: 1 << least,
            enough: enough.map(|power| 1 << power),
            exceeding: waits.longer_than(power) as f64 / count as f64,
            between: interval(power),
            more_waits: if is_certain { Some(0) } else { more_waits(waits, power) },
        })
    }
}

/// What [`window`] lets exceed it.
const LIMIT: f64 = LONG_WAITS_PER_MILLE as f64 / 1000.0;

/// How many waits more, distributed as these, it takes until the window at this power is surely enough and the next
/// smaller one surely is not.
fn more_waits(waits: &Waits, power: usize) -> Option<u64> {
    let count = waits.count();
    let told = |of: u64| {
        let scaled = |power: usize| (waits.longer_than(power) as f64 * of as f64 / count as f64).round() as u64;
        let below = power.checked_sub(1).map(scaled);
        wilson(scaled(power), of)[1] <= LIMIT && below.is_none_or(|below| wilson(below, of)[0] > LIMIT)
    };
    let enough = std::iter::successors(Some(count + 1), |of| Some(of + of / 64 + 1)).take_while(|&of| of < MANY);
    enough.into_iter().find(|&of| told(of)).map(|of| of - count)
}

/// The 95 % confidence interval of a share, from `longer` of `count` (Wilson, "Probable Inference, the Law of Succession,
/// and Statistical Inference", 1927).
fn wilson(longer: u64, count: u64) -> [f64; 2] {
    let (n, p) = (count as f64, longer as f64 / count as f64);
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    [((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(short: u64, long: u64) -> Waits {
        let mut waits = Waits::default();
        (0..short).for_each(|_| waits.add(1000));
        (0..long).for_each(|_| waits.add(5000));
        waits
    }

    #[test]
    fn the_interval_is_wilsons() {
        // Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I: 81 of 263, 15 of 148, 0 of 20.
        for (longer, count, low, high) in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)] {
            let [found_low, found_high] = wilson(longer, count);
            assert!((found_low - low).abs() < 1e-4 && (found_high - high).abs() < 1e-4, "{found_low} {found_high}");
        }
    }

    #[test]
    fn a_small_sample_is_not_enough_and_says_how_many_more_are() {
        let few = Certainty::of(&sample(100, 0)).unwrap();
        assert_eq!((few.window, few.enough, few.is_certain()), (1024, None, false));
        let more = few.more_waits.unwrap();
        assert!((660..=680).contains(&more), "Wilson's interval of none of 765 ends at 0.5 %: {more}");
        let then = Certainty::of(&sample(100 + more, 0)).unwrap();
        assert_eq!((then.window, then.enough, then.is_certain(), then.more_waits), (1024, Some(1024), true, Some(0)));
    }

    #[test]
    fn near_the_limit_two_windows_are_possible() {
        // 0.4 % of 2000: at most 0.5 %, but for 2000 waits it may be more.
        let near = Certainty::of(&sample(1992, 8)).unwrap();
        assert_eq!((near.window, near.least, near.enough), (1024, 1024, Some(8192)));
        assert!(near.between[0] < 0.004 && near.between[1] > 0.005 && near.exceeding == 0.004, "{near:?}");
        let more = near.more_waits.unwrap();
        assert!(
            Certainty::of(&sample((1992 * (2000 + more)) / 2000, (8 * (2000 + more)) / 2000)).unwrap().is_certain()
        );
        let far = Certainty::of(&sample(1_990_000, 10_000)).unwrap();
        assert_eq!((far.window, far.more_waits), (1024, None), "exactly 0.5 %: no sample tells");
    }

    #[test]
    fn no_waits_say_nothing() {
        assert!(Certainty::of(&Waits::default()).is_err());
    }
}
