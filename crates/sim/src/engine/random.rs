//! Seeded randomness: one stream per thread of the workload, so that a change of policy or price leaves every
//! thread's own draws as they were.

use super::{NS, Ps};
use muster_model::workload::Duration;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// One stream of draws.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The stream of number `index` under `seed`.
    pub fn new(seed: u64, index: u64) -> Self {
        // xoshiro's seeding passes the value through SplitMix64, which separates neighbouring seeds.
        Self(Xoshiro256PlusPlus::seed_from_u64(seed ^ index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A number below `n`, each as likely as the others.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(n) * (self.0.next_u64() >> 32)) >> 32) as u32
    }

    /// A draw from a distribution of nanoseconds, in picoseconds.
    #[inline]
    pub fn duration(&mut self, duration: Duration) -> Ps {
        match duration {
            Duration::Fixed(ns) => ns * NS,
            Duration::Uniform { min, max } => {
                let span = u128::from((max - min) * NS) + 1;
                min * NS + ((u128::from(self.0.next_u64()) * span) >> 64) as Ps
            }
            Duration::Exponential { mean } => {
                // (0, 1]: the logarithm exists. libm's is the same on every machine.
                let unit = ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                (-libm::log(unit) * (mean * NS) as f64) as Ps
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_keep_their_range_and_mean() {
        let mut random = Random::new(7, 0);
        let uniform = Duration::Uniform { min: 10, max: 20 };
        let draws: Vec<Ps> = (0..10_000).map(|_| random.duration(uniform)).collect();
        assert!(draws.iter().all(|&ps| (10 * NS..=20 * NS).contains(&ps)));
        let mean = |draws: &[Ps]| draws.iter().sum::<Ps>() as f64 / draws.len() as f64;
        assert!((mean(&draws) - 15_000.0).abs() < 100.0);
        let draws: Vec<Ps> = (0..40_000).map(|_| random.duration(Duration::Exponential { mean: 100 })).collect();
        assert!((mean(&draws) - 100_000.0).abs() < 2_000.0);
        assert_eq!(random.duration(Duration::Fixed(3)), 3_000);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let draw = |seed, index| Random::new(seed, index).duration(Duration::Uniform { min: 0, max: 1_000_000 });
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
