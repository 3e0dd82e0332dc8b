//! Batches: how long to measure, and how batches become a price.

use crate::stamp::Stamps;
use muster_model::{Price, PriceKind};

/// A spread above this share of the median makes a price noisy.
pub const NOISY_SPREAD: f64 = 0.15;
/// Foreign or stolen CPU time above this share of the machine makes every price taken meanwhile noisy.
pub const NOISY_FOREIGN_SHARE: f64 = 0.10;

/// How much time to spend.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Batches per price; the spread is taken over them.
    pub batches: usize,
    /// Length of a batch of short operations.
    pub batch_ns: u64,
    /// Wake-ups per batch.
    pub wakes: usize,
    /// Largest working set of the pointer chase.
    pub chase_bytes: u64,
}

impl Effort {
    /// A full run: under a minute.
    pub const FULL: Self = Self { batches: 21, batch_ns: 10_000_000, wakes: 50, chase_bytes: 512 << 20 };
    /// A quick run: under ten seconds.
    pub const QUICK: Self = Self { batches: 9, batch_ns: 2_000_000, wakes: 24, chase_bytes: 256 << 20 };
    /// Hand-overs only, for a program about to start: well under 300 ms.
    pub const HANDOVERS_ONLY: Self = Self { batches: 5, batch_ns: 1_000_000, wakes: 16, chase_bytes: 0 };
}

/// Nanoseconds per operation in each batch; `run(n)` does the operation `n` times and returns the nanoseconds it took.
pub fn batches(effort: &Effort, mut run: impl FnMut(u64) -> f64) -> Vec<f64> {
    let mut count = 1;
    loop {
        let took_ns = run(count);
        let enough = effort.batch_ns as f64;
        if took_ns >= enough / 4.0 || count >= 1 << 32 {
            count = ((count as f64 * enough / took_ns.max(1.0)) as u64).clamp(1, 1 << 32);
            break;
        }
        count *= 4;
    }
    (0..effort.batches).map(|_| run(count) / count as f64).collect()
}

/// Nanoseconds per operation in each batch of `operation`, called in a tight loop.
pub fn tight(effort: &Effort, stamps: Stamps, mut operation: impl FnMut()) -> Vec<f64> {
    batches(effort, |count| {
        let start = stamps.now();
        for _ in 0..count {
            operation();
        }
        stamps.ns(start, stamps.now())
    })
}

/// The price that batches give: their median, and half the distance between their quartiles. `None` without a batch.
///
/// Whatever is subtracted or skewed below zero counts as zero.
pub fn price(batches_ns: &[f64], source: impl Into<String>) -> Option<Price> {
    let summary = muster_stats::summary(batches_ns)?;
    let (ns, spread) = (rounded(summary.median.max(0.0)), rounded(summary.half_iqr()));
    let noisy = matches!(muster_stats::noise(batches_ns, NOISY_SPREAD), muster_stats::Noise::Noisy { .. });
    Some(Price { ns, spread_ns: Some(spread), kind: PriceKind::Measured, source: source.into(), noisy })
}

/// A price to the picosecond: finer digits are noise, and make files that do not read back alike.
pub fn rounded(ns: f64) -> f64 {
    (ns * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_until_they_are_long_enough() {
        let effort = Effort { batches: 5, batch_ns: 10_000, ..Effort::QUICK };
        let mut largest = 0;
        let per_operation = batches(&effort, |count| {
            largest = largest.max(count);
            count as f64 * 7.0
        });
        assert_eq!(per_operation, vec![7.0; 5]);
        assert!((1200..=1600).contains(&largest), "{largest}");
    }

    #[test]
    fn an_operation_longer_than_a_batch_runs_once_per_batch() {
        let effort = Effort { batches: 3, batch_ns: 10, ..Effort::QUICK };
        assert_eq!(batches(&effort, |count| count as f64 * 1000.0), vec![1000.0; 3]);
    }

    #[test]
    fn wide_batches_are_noisy_and_none_are_no_price() {
        assert!(!price(&[10.0, 10.1, 10.2, 9.9], "").unwrap().noisy);
        assert!(price(&[10.0, 20.0, 30.0, 5.0], "").unwrap().noisy);
        assert_eq!(price(&[-1.0, -1.0, -1.0], "").unwrap().ns, 0.0);
        assert!(price(&[], "").is_none());
    }
}
