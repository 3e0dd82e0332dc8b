//! What a load costs by how much memory is in use: a chase of pointers through one random cycle.
//!
//! Every load depends on the one before, so that its latency shows. The same chase with 4 KiB and with 2 MiB pages
//! differs by the page walks of the former.

use crate::affinity;
use crate::batch::{Effort, batches};
use crate::error::Result;
use crate::mapping::{Mapping, Pages};
use crate::memory::no_huge_pages;
use crate::stamp::Stamps;
use muster_model::profile::Cache;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();
/// The smallest working set, bytes.
const SMALLEST: u64 = 16 << 10;
/// A difference below this share of the price with large pages is no page walk.
const WALK_SHARE: f64 = 0.1;

/// The working sets to measure, bytes: powers of two up to `largest`, at most an eighth of the memory.
pub fn sizes(largest: u64, memory_bytes: Option<u64>) -> Vec<u64> {
    let limit = memory_bytes.map_or(largest, |memory| largest.min(memory / 8));
    std::iter::successors(Some(SMALLEST), |size| size.checked_mul(2)).take_while(|&size| size <= limit).collect()
}

/// Memory to chase through, large enough for the largest working set.
pub struct Arena {
    mapping: Mapping,
    pages: Pages,
}

impl Arena {
    /// Maps and touches `bytes`.
    ///
    /// # Errors
    /// When the kernel has no memory, or no huge pages to give.
    pub fn new(bytes: u64, pages: Pages) -> Result<Self> {
        let mapping = Mapping::private(bytes as usize, pages)?;
        mapping.touch(pages.bytes());
        if pages == Pages::Large && !mapping.is_large() {
            return Err(no_huge_pages());
        }
        Ok(Self { mapping, pages })
    }

    /// The pages it is made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Nanoseconds per load in each batch, in a working set of `bytes`, on `cpu`.
    ///
    /// # Errors
    /// When the thread cannot be confined.
    pub fn chase(&mut self, bytes: u64, cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
        let len = (bytes as usize).min(self.mapping.len()) / size_of::<u64>();
        let words = &mut self.mapping.words()[..len];
        affinity::on_cpu(cpu, || {
            lay_cycle(words, bytes);
            let mut at = follow(words, 0, words.len() / LINE_WORDS);
            Ok(batches(effort, |count| {
                let start = stamps.now();
                at = follow(words, at, count as usize);
                stamps.ns(start, stamps.now())
            }))
        })
    }
}

/// Writes one cycle through all cache lines in random order (Sattolo's algorithm): the first word of a line holds the
/// index of the next line's first word.
fn lay_cycle(words: &mut [u64], seed: u64) {
    let lines = words.len() / LINE_WORDS;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..lines).for_each(|line| words[line * LINE_WORDS] = (line * LINE_WORDS) as u64);
    for line in (1..lines).rev() {
        let other = (random.next_u64() % line as u64) as usize;
        words.swap(line * LINE_WORDS, other * LINE_WORDS);
    }
}

/// Follows the cycle for `steps` loads from `at`; returns where it ends, so that no load can be left out.
#[inline(never)]
fn follow(words: &[u64], mut at: usize, steps: usize) -> usize {
    for _ in 0..steps {
        at = words[at] as usize;
    }
    at
}

/// One point of a chase: working set in bytes, nanoseconds per load.
pub type Point = (u64, f64);

/// The price of a load that hits each cache, and of one that misses all: the chase with large pages where the working
/// set fills about half a cache, and at its largest. Pairs of price name and nanoseconds; a level whose size the kernel
/// does not tell, or that no working set fits, is left out.
pub fn levels(chase: &[Point], caches: &[Cache]) -> Vec<(&'static str, Point)> {
    let names = ["cache.l1", "cache.l2", "cache.l3"];
    let mut below = 0;
    let mut found = Vec::new();
    for (name, cache) in names.into_iter().zip(caches) {
        let fits = |&&(bytes, _): &&Point| bytes > below && bytes <= cache.size_bytes / 2;
        let at_level = chase.iter().rfind(fits);
        found.extend(at_level.map(|&point| (name, point)));
        below = cache.size_bytes;
    }
    let last_level = caches.last().map_or(0, |cache| cache.size_bytes);
    let beyond = chase.last().filter(|(bytes, _)| last_level > 0 && *bytes >= 2 * last_level);
    found.extend(beyond.map(|&point| ("memory.latency", point)));
    found
}

/// What misses of the TLB cost: the working set from which they show, and nanoseconds per walk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Walk {
    /// The largest working set with 4 KiB pages that costs no more than with 2 MiB pages, bytes.
    pub reach_bytes: u64,
    /// How much dearer a load is at the largest working set, nanoseconds.
    pub ns: f64,
}

/// The walk that two chases over the same working sets show; `None` when small pages are never dearer, or a chase is
/// missing.
pub fn walk(small: &[Point], large: &[Point]) -> Option<Walk> {
    let pairs: Vec<(u64, f64, f64)> = small
        .iter()
        .filter_map(|&(bytes, ns)| large.iter().find(|point| point.0 == bytes).map(|point| (bytes, ns, point.1)))
        .collect();
    let is_dearer = |&(_, small, large): &(u64, f64, f64)| small - large > WALK_SHARE * large;
    let reach = pairs.iter().rev().take_while(|pair| is_dearer(pair)).count();
    let &(_, small_ns, large_ns) = pairs.last().filter(|pair| is_dearer(pair))?;
    let reach_bytes = pairs.len().checked_sub(reach + 1).map_or(0, |index| pairs[index].0);
    Some(Walk { reach_bytes, ns: small_ns - large_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_visits_every_line_once() {
        for lines in [1, 2, 7, 1024] {
            let mut words = vec![0; lines * LINE_WORDS];
            lay_cycle(&mut words, 42);
            let mut seen = vec![false; lines];
            let mut at = 0;
            for _ in 0..lines {
                at = follow(&words, at, 1);
                assert!(!std::mem::replace(&mut seen[at / LINE_WORDS], true));
            }
            assert_eq!(at, 0);
        }
    }

    #[test]
    fn working_sets_stay_within_memory() {
        assert_eq!(sizes(64 << 10, None), [16 << 10, 32 << 10, 64 << 10]);
        assert_eq!(sizes(1 << 30, Some(1 << 20)), [16 << 10, 32 << 10, 64 << 10, 128 << 10]);
        assert!(sizes(1 << 30, Some(0)).is_empty());
    }

    fn cache(level: u32, size_bytes: u64) -> Cache {
        Cache { level, size_bytes, shared_by: 1 }
    }

    #[test]
    fn levels_are_read_where_they_are_half_full() {
        let chase: Vec<Point> = sizes(64 << 20, None).into_iter().map(|bytes| (bytes, bytes as f64)).collect();
        let caches = [cache(1, 48 << 10), cache(2, 1 << 20), cache(3, 32 << 20)];
        let found = levels(&chase, &caches);
        let expected = [("cache.l1", 16), ("cache.l2", 512), ("cache.l3", 16 << 10), ("memory.latency", 64 << 10)];
        assert_eq!(found.iter().map(|(name, point)| (*name, point.0 >> 10)).collect::<Vec<_>>(), expected);
        assert!(levels(&chase, &[]).is_empty());
        assert!(levels(&[], &caches).is_empty());
        let too_small: Vec<Point> = chase.into_iter().filter(|point| point.0 < 8 << 20).collect();
        assert!(levels(&too_small, &caches).iter().all(|(name, _)| *name != "memory.latency"));
    }

    #[test]
    fn a_walk_is_what_small_pages_cost_more() {
        let large = [(1, 1.0), (2, 2.0), (4, 10.0), (8, 20.0)];
        assert_eq!(walk(&[(1, 1.0), (2, 2.1), (4, 13.0), (8, 30.0)], &large), Some(Walk { reach_bytes: 2, ns: 10.0 }));
        assert_eq!(walk(&large, &large), None);
        assert_eq!(walk(&[], &large), None);
        assert_eq!(walk(&[(1, 9.0), (2, 9.0)], &large), Some(Walk { reach_bytes: 0, ns: 7.0 }));
    }
}
