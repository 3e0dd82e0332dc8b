//! How long pCPUs stay idle at a time.

use crate::engine::Ps;

/// Idle periods of all pCPUs that have ended, by the power of two below their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdlePeriods {
    /// How many of 2^n to 2^(n+1) picoseconds there were.
    pub counts: [u64; 64],
    /// How long those were together, in picoseconds.
    pub total_ps: [Ps; 64],
}

impl Default for IdlePeriods {
    fn default() -> Self {
        Self { counts: [0; 64], total_ps: [0; 64] }
    }
}

impl IdlePeriods {
    /// A period has ended.
    pub(crate) fn add(&mut self, length: Ps) {
        let bucket = length.max(1).ilog2() as usize;
        self.counts[bucket] += 1;
        self.total_ps[bucket] += length;
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their mean length in picoseconds; 0 when there was none.
    pub fn mean_ps(&self) -> Ps {
        self.total_ps.iter().sum::<Ps>() / self.count().max(1)
    }

    /// The length in picoseconds below which half of the idle time is, to a power of two; 0 when there was none.
    pub fn half_of_time_ps(&self) -> Ps {
        let all: Ps = self.total_ps.iter().sum();
        let mut so_far = 0;
        let half = self.total_ps.iter().position(|&time| {
            so_far += time;
            2 * so_far >= all && all > 0
        });
        half.map_or(0, |bucket| 2 << bucket)
    }

    /// The buckets that have any: from which length in picoseconds (to twice that), how many, and how long together.
    pub fn buckets(&self) -> impl Iterator<Item = (Ps, u64, Ps)> + '_ {
        let all = self.counts.iter().zip(&self.total_ps).enumerate();
        all.filter(|(_, (count, _))| **count > 0).map(|(bucket, (&count, &total))| (1 << bucket, count, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_counted_by_powers_of_two() {
        let mut periods = IdlePeriods::default();
        assert_eq!((periods.mean_ps(), periods.half_of_time_ps()), (0, 0));
        [3, 2, 9, 100].into_iter().for_each(|length| periods.add(length));
        assert_eq!(periods.buckets().collect::<Vec<_>>(), [(2, 2, 5), (8, 1, 9), (64, 1, 100)]);
        assert_eq!((periods.count(), periods.mean_ps(), periods.half_of_time_ps()), (4, 28, 128));
    }
}
