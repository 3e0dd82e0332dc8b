//! What moving a modified cache line between two CPUs costs.

use crate::affinity;
use crate::batch::Effort;
use crate::error::Result;
use crate::stamp::Stamps;
use muster_model::{CpuSet, Distance, Topology};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Pairs of allowed CPUs, each with its distance: all of them up to `limit`, else `limit` at most, spread evenly over the
/// distances and over the pairs of each.
pub fn pairs(topology: &Topology, allowed: &CpuSet, limit: usize) -> Vec<(Distance, usize, usize)> {
    let cpus: Vec<usize> = allowed.iter().collect();
    let mut by_distance: Vec<Vec<(Distance, usize, usize)>> = vec![Vec::new(); Distance::ALL.len()];
    for (index, &a) in cpus.iter().enumerate() {
        for &b in &cpus[index + 1..] {
            if let Some(distance) = topology.distance(a, b) {
                by_distance[distance as usize].push((distance, a, b));
            }
        }
    }
    by_distance.retain(|pairs| !pairs.is_empty());
    // The rarest first: what it does not use of its share goes to the others.
    by_distance.sort_by_key(Vec::len);
    let mut left = limit;
    let groups = by_distance.len();
    let mut chosen = Vec::new();
    for (index, pairs) in by_distance.into_iter().enumerate() {
        let share = pairs.len().min(left / (groups - index));
        chosen.extend((0..share).map(|n| pairs[n * pairs.len() / share]));
        left -= share;
    }
    chosen.sort();
    chosen
}

/// One pair for each distance there is, nearest first.
pub fn one_pair_per_distance(topology: &Topology, allowed: &CpuSet) -> Vec<(Distance, usize, usize)> {
    let mut pairs = pairs(topology, allowed, usize::MAX);
    pairs.dedup_by_key(|pair| pair.0);
    pairs
}

/// A word on cache lines of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds per one-way transfer of a modified line between two CPUs, in each batch.
///
/// # Errors
/// When a thread cannot be confined.
pub fn transfer(a: usize, b: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    // Odd numbers are the first side's, even ones the answers: one line goes back and forth.
    let line = Line(AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answerer = affinity::spawn_on(scope, b, || {
            while !stop.load(Relaxed) {
                let value = line.0.load(Acquire);
                if value % 2 == 1 {
                    line.0.store(value + 1, Release);
                } else {
                    std::hint::spin_loop();
                }
            }
            Ok(())
        })?;
        let asker = affinity::on_cpu(a, || {
            let mut value = line.0.load(Relaxed);
            Ok(crate::batch::batches(effort, |count| {
                let start = stamps.now();
                for _ in 0..count {
                    line.0.store(value + 1, Release);
                    value += 2;
                    while line.0.load(Acquire) != value {
                        if answerer.is_finished() {
                            return f64::NAN;
                        }
                        std::hint::spin_loop();
                    }
                }
                stamps.ns(start, stamps.now()) / 2.0
            }))
        });
        stop.store(true, Relaxed);
        affinity::finish(answerer)?;
        asker
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn few_pairs_are_all_taken_and_many_are_sampled_over_every_distance() {
        let small = Topology::regular(1, 1, 4, 1).unwrap();
        assert_eq!(pairs(&small, &small.all(), 64).len(), 6);
        let large = Topology::regular(2, 4, 8, 2).unwrap();
        let sampled = pairs(&large, &large.all(), 64);
        assert_eq!(sampled.len(), 64);
        let distances: BTreeSet<Distance> = sampled.iter().map(|pair| pair.0).collect();
        assert_eq!(distances.len(), 4);
        assert!(sampled.iter().all(|&(distance, a, b)| large.distance(a, b) == Some(distance) && a < b));
        assert_eq!(sampled.iter().collect::<BTreeSet<_>>().len(), 64, "no pair twice");
    }

    #[test]
    fn every_distance_has_one_pair_of_allowed_cpus() {
        let machine = Topology::regular(2, 2, 2, 2).unwrap();
        let found = one_pair_per_distance(&machine, &machine.all());
        assert_eq!(found.iter().map(|pair| pair.0).collect::<Vec<_>>(), Distance::ALL[1..]);
        let confined: CpuSet = "0,4".parse().unwrap();
        assert_eq!(one_pair_per_distance(&machine, &confined), [(Distance::OtherNode, 0, 4)]);
        assert!(one_pair_per_distance(&machine, &CpuSet::single(3)).is_empty());
    }
}
