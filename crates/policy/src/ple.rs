//! Pause-loop exiting (PLE): which window and gap to set, how KVM's window adapts, and to whom a spinning vCPU gives way.
//!
//! The hardware takes a vCPU out of the guest that executes PAUSE in ring 0 again and again, no two further apart than the
//! *gap*, for longer than the *window* (Intel SDM, volume 3, "Instructions That Cause VM Exits Conditionally").
//!
//! Sources: Dong et al., "Improving Virtualization Performance and Scalability with Advanced Hardware Accelerations", 2010,
//! section IV.C ([`choose`]); Linux, arch/x86/kvm/vmx (`grow_ple_window`, `shrink_ple_window`: [`Window`]) and
//! virt/kvm/kvm_main.c (`kvm_vcpu_on_spin`: [`DirectedYield`]).

use muster_model::ModelError;
use serde::{Deserialize, Serialize};

mod certainty;
mod directed;
#[cfg(test)]
mod tests;

pub use certainty::Certainty;
pub use directed::{DirectedYield, Yielded};

/// What at most so many of a thousand lock waits may exceed: the window (section IV.C: 0.5 %).
const LONG_WAITS_PER_MILLE: u64 = 5;

/// How often locks were waited for how long, by powers of two of cycles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
pub struct Waits {
    /// Waits of more than 2^(n-1) and at most 2^n cycles; the first of at most one.
    by_power: [u64; Self::POWERS],
}

impl Default for Waits {
    fn default() -> Self {
        Self { by_power: [0; Self::POWERS] }
    }
}

impl From<[u64; Waits::POWERS]> for Waits {
    fn from(by_power: [u64; Self::POWERS]) -> Self {
        Self { by_power }
    }
}

/// Counts by power, without those after the last that is not 0.
impl From<Waits> for Vec<u64> {
    fn from(waits: Waits) -> Self {
        let used = waits.by_power.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        waits.by_power[..used].to_vec()
    }
}

impl TryFrom<Vec<u64>> for Waits {
    type Error = ModelError;

    /// Counts by power, the missing ones 0.
    fn try_from(counts: Vec<u64>) -> Result<Self, ModelError> {
        let mut waits = Self::default();
        let places = waits.by_power.get_mut(..counts.len());
        let bad = |found: String, allowed: String| ModelError::new("lock waits", found, allowed);
        let places = places.ok_or_else(|| {
            bad(format!("{} counts", counts.len()), format!("at most {}, one a power of two", Self::POWERS))
        })?;
        places.copy_from_slice(&counts);
        let sum = counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count)).filter(|&sum| sum <= Self::MOST);
        sum.map(|_| waits).ok_or_else(|| bad("more waits than can be".to_owned(), format!("at most {}", Self::MOST)))
    }
}

impl std::ops::AddAssign<&Waits> for Waits {
    fn add_assign(&mut self, other: &Waits) {
        self.by_power.iter_mut().zip(&other.by_power).for_each(|(sum, more)| *sum += more);
    }
}

impl Waits {
    /// Powers of two that are told apart: up to a minute at any clock.
    pub const POWERS: usize = 40;

    /// More waits than a machine ever has.
    const MOST: u64 = 1 << 50;

    /// One more wait.
    pub fn add(&mut self, cycles: u64) {
        let power = cycles.saturating_sub(1).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.by_power[power.min(Self::POWERS - 1)] += 1;
    }

    /// How many waits of more than 2^(n-1) and at most 2^n cycles there were, by n.
    pub fn by_power(&self) -> &[u64; Self::POWERS] {
        &self.by_power
    }

    /// All waits.
    pub fn count(&self) -> u64 {
        self.by_power.iter().sum()
    }

    /// How many were longer than 2^`power` cycles.
    pub fn longer_than(&self, power: usize) -> u64 {
        self.by_power.iter().skip(power + 1).sum()
    }
}

/// PAUSE exits per second with a gap.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExitRate {
    /// The gap, in cycles.
    pub gap: u32,
    /// Exits per second.
    pub per_second: f64,
}

/// What the hardware is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// PLE_Gap, in cycles.
    pub gap: u32,
    /// PLE_Window, in cycles.
    pub window: u32,
}

/// The empirical setting (section IV.C).
///
/// The *window* is the smallest power of two that at most 0.5 % of the lock waits exceed: a lock that is waited for longer
/// has a holder that does not run. The *gap* is the smallest power of two beyond the knee of the curve of PAUSE exits per
/// second over the gap: from there on, loops that wait for locks are all seen, and a larger gap only adds loops that pause
/// for other reasons.
///
/// # Errors
/// When there were no waits, or the curve is not one: fewer than three gaps, gaps that do not ascend from 1 on, rates that are
/// no numbers, or that do not rise.
pub fn choose(waits: &Waits, curve: &[ExitRate]) -> Result<Setting, ModelError> {
    Ok(Setting { gap: beyond(knee(curve)?)?, window: window(waits)? })
}

/// The window of [`choose`].
///
/// # Errors
/// When there were no waits, or too many beyond 2^31 cycles.
pub fn window(waits: &Waits) -> Result<u32, ModelError> {
    let count = waits.count();
    if count == 0 {
        return Err(ModelError::new("lock waits", "none", "at least one"));
    }
    let is_enough = |&power: &usize| waits.longer_than(power) * 1000 <= count * LONG_WAITS_PER_MILLE;
    let power = (0..u32::BITS as usize).find(is_enough);
    power.map(|power| 1 << power).ok_or_else(|| {
        let found = format!("{} of {count} longer than 2^31 cycles", waits.longer_than(31));
        ModelError::new("lock waits", found, "at most 0.5 %: PLE_Window has 32 bits")
    })
}

/// Where a curve of exits over the gap bends: the point that lies farthest above the straight line from its first to its
/// last, gaps taken by their logarithm (Satopaa et al., "Finding a Kneedle in a Haystack", 2011; without its smoothing). Of
/// equals the first.
///
/// # Errors
/// As [`choose`].
pub fn knee(curve: &[ExitRate]) -> Result<u32, ModelError> {
    let bad = |found: String, allowed: &str| Err(ModelError::new("PAUSE exits by gap", found, allowed));
    if curve.len() < 3 {
        return bad(format!("{} gaps", curve.len()), "at least 3");
    }
    if let Some(at) = curve.windows(2).position(|pair| pair[0].gap == 0 || pair[0].gap >= pair[1].gap) {
        return bad(format!("gap {} before {}", curve[at].gap, curve[at + 1].gap), "ascending gaps of 1 or more");
    }
    if let Some(rate) = curve.iter().find(|rate| !(rate.per_second.is_finite() && rate.per_second >= 0.0)) {
        return bad(format!("{} exits per second at gap {}", rate.per_second, rate.gap), "numbers of 0 or more");
    }
    let (first, last) = (curve[0], curve[curve.len() - 1]);
    let rise = last.per_second - first.per_second;
    if rise <= 0.0 {
        return bad(
            format!("{} exits per second at the first gap, {} at the last", first.per_second, last.per_second),
            "a curve that rises",
        );
    }
    let log = |gap: u32| f64::from(gap).log2();
    let above_line = |rate: &ExitRate| {
        (rate.per_second - first.per_second) / rise
            - (log(rate.gap) - log(first.gap)) / (log(last.gap) - log(first.gap))
    };
    // Differences below this are rounding.
    const SAME: f64 = 1e-9;
    let farthest = |best: (f64, u32), rate: &ExitRate| {
        let above = above_line(rate);
        if above > best.0 + SAME { (above, rate.gap) } else { best }
    };
    Ok(curve[1..].iter().fold((above_line(&first), first.gap), farthest).1)
}

/// The smallest power of two beyond `gap`.
fn beyond(gap: u32) -> Result<u32, ModelError> {
    let next = gap.checked_add(1).and_then(u32::checked_next_power_of_two);
    next.ok_or_else(|| {
        ModelError::new("PAUSE exits by gap", format!("a knee at {gap}"), "below 2^31: PLE_Gap has 32 bits")
    })
}

/// How a vCPU's window follows what happens (KVM's `ple_window*` parameters), in cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowConfig {
    /// `ple_window`: where it begins, and the least.
    pub base: u32,
    /// `ple_window_grow`: factor, if less than `base`, else what is added; 0: back to `base`.
    pub grow: u32,
    /// `ple_window_shrink`: divisor, if less than `base`, else what is taken off; 0: back to `base`.
    pub shrink: u32,
    /// `ple_window_max`.
    pub max: u32,
}

/// One vCPU's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    cycles: u32,
}

impl Window {
    /// The window of a vCPU that has not spun yet.
    pub fn new(config: &WindowConfig) -> Self {
        Self { cycles: config.base }
    }

    /// The window now.
    pub fn cycles(&self) -> u32 {
        self.cycles
    }

    /// A PAUSE exit: the next comes later (`grow_ple_window`).
    pub fn exited(&mut self, config: &WindowConfig) {
        self.cycles = match config.grow {
            0 => config.base,
            grow if grow < config.base => self.cycles.saturating_mul(grow).min(config.max),
            grow => self.cycles.saturating_add(grow).min(config.max),
        };
    }

    /// The vCPU comes onto a pCPU again: it may well spin for another reason (`shrink_ple_window`).
    pub fn loaded(&mut self, config: &WindowConfig) {
        self.cycles = match config.shrink {
            0 => config.base,
            shrink if shrink < config.base => (self.cycles / shrink).max(config.base),
            shrink => self.cycles.saturating_sub(shrink).max(config.base),
        };
    }
}
