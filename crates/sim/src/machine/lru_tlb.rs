//! Translations that a core holds by whose they are, with replacement of the least recently used.
//!
//! Entries carry the tag of their guest (VPID, ASID). Code of an *owner* goes through all its pages again and again, or
//! comes to any page of a larger region now and then. No entry is an object: what is held is a number for each owner, in the
//! order in which they ran last, and misses are those that an LRU cache has on average (a test compares with one).
//!
//! Where an owner comes back of whose `a` pages `m` have been displaced, and nobody older is there to be displaced for them, a
//! miss pushes out the oldest, which is one of its own that it has not come to yet. Each step takes one of the `a - m` that are
//! left, found or displaced, so that `m` are missed after them and `m / (m + left)` of the steps before: on average
//! `m * (1 + ln(a / m))` in all.

/// Whose translations.
pub type Owner = u32;

/// What is held for an owner.
#[derive(Debug, Clone, Copy)]
struct Held {
    owner: Owner,
    pages: f64,
}

/// Entries for pages of one size.
#[derive(Debug, Clone)]
pub struct LruTlb {
    entries: f64,
    /// The one that ran last first.
    held: Vec<Held>,
}

impl LruTlb {
    /// So many entries, none in use.
    pub fn new(entries: u32) -> Self {
        Self { entries: f64::from(entries), held: Vec::with_capacity(8) }
    }

    /// An owner comes to `most` of its `pages` pages, which it goes through all the time; how many it misses.
    #[inline]
    pub fn touch(&mut self, owner: Owner, pages: u32, most: u32) -> f64 {
        let pages = f64::from(pages).min(self.entries);
        let place = self.held.iter().position(|held| held.owner == owner);
        if let Some(place) = place
            && self.held[place].pages >= pages
        {
            self.held[..=place].rotate_right(1);
            return 0.0;
        }
        self.refill(owner, place, pages, f64::from(most))
    }

    fn refill(&mut self, owner: Owner, place: Option<usize>, pages: f64, most: f64) -> f64 {
        let used: f64 = self.held.iter().map(|held| held.pages).sum();
        let (mine, older) = match place {
            Some(place) => (self.held.remove(place).pages, self.held[place..].iter().map(|held| held.pages).sum()),
            None => (0.0, used),
        };
        let missing = pages - mine;
        // Displaced without regret: room that nobody uses, and what is older than the owner's own.
        let free: f64 = self.entries - used + older;
        let cascade = missing - free;
        let misses = if cascade <= 0.0 || mine == 0.0 {
            missing
        } else {
            let left = mine * cascade / missing;
            free + cascade * (1.0 + libm::log((left + cascade) / cascade))
        };
        let came_to = misses.min(most);
        let held = (mine + came_to.min(missing)).min(pages);
        self.held.insert(0, Held { owner, pages: held });
        self.displace();
        came_to
    }

    /// An owner, that of `behind` while it goes through its own pages, comes to any of `region` pages `times` times; how often
    /// it misses.
    pub fn wander(&mut self, owner: Owner, behind: Owner, region: f64, times: f64) -> f64 {
        let newer: f64 = self.held.iter().take_while(|held| held.owner == behind).map(|held| held.pages).sum();
        let most = (self.entries - newer).min(region).max(0.0);
        let place = self.held.iter().position(|held| held.owner == owner);
        let before = place.map_or(0.0, |place| self.held.remove(place).pages).min(most);
        let (misses, now) = wandered(before, most, region, times);
        let at = usize::from(self.held.first().is_some_and(|held| held.owner == behind));
        self.held.insert(at, Held { owner, pages: now });
        self.displace();
        misses
    }

    /// What does not fit goes, the oldest first.
    fn displace(&mut self) {
        let mut room = self.entries;
        self.held.retain_mut(|held| {
            held.pages = held.pages.min(room);
            room -= held.pages;
            held.pages > 0.0
        });
    }

    /// All translations of the owners for which `gone` says so are gone.
    pub fn flush(&mut self, gone: impl Fn(Owner) -> bool) {
        self.held.retain(|held| !gone(held.owner));
    }

    /// How many pages of an owner it holds.
    pub fn holds(&self, owner: Owner) -> f64 {
        self.held.iter().find(|held| held.owner == owner).map_or(0.0, |held| held.pages)
    }
}

/// Misses of `times` visits to any of `region` pages of which `held` are there and at most `most` can be; and how many are
/// there then.
fn wandered(held: f64, most: f64, region: f64, times: f64) -> (f64, f64) {
    // Each miss adds one: what is missing shrinks by a factor of 1 - 1/region a visit.
    let until_full = if most >= region { f64::INFINITY } else { region * libm::log((region - held) / (region - most)) };
    if until_full >= times {
        let now = region - (region - held) * libm::exp(-times / region);
        return (now - held, now);
    }
    (most - held + (times - until_full) * (1.0 - most / region), most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::random::Random;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// An LRU cache of single pages.
    struct Naive {
        entries: usize,
        /// The most recently used first.
        pages: VecDeque<(Owner, u32)>,
    }

    impl Naive {
        fn misses(&mut self, page: (Owner, u32)) -> bool {
            let place = self.pages.iter().position(|&there| there == page);
            place.map(|place| self.pages.remove(place));
            self.pages.push_front(page);
            self.pages.truncate(self.entries);
            place.is_none()
        }
    }

    /// All of them in a random order.
    fn shuffled(pages: u32, random: &mut Random) -> Vec<u32> {
        let mut order: Vec<u32> = (0..pages).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i as u32 + 1) as usize));
        order
    }

    #[test]
    fn what_fits_is_missed_once_and_what_was_flushed_again() {
        let mut tlb = LruTlb::new(64);
        assert_eq!(
            [tlb.touch(1, 40, 99), tlb.touch(1, 40, 99), tlb.touch(2, 20, 99), tlb.touch(1, 40, 99)],
            [40.0, 0.0, 20.0, 0.0]
        );
        tlb.flush(|owner| owner == 1);
        assert_eq!((tlb.touch(2, 20, 99), tlb.touch(1, 40, 10), tlb.touch(1, 40, 99)), (0.0, 10.0, 30.0));
    }

    #[test]
    fn who_comes_back_misses_what_others_have_displaced_and_what_it_displaces_itself() {
        let mut tlb = LruTlb::new(64);
        tlb.touch(1, 50, 99);
        tlb.touch(2, 24, 99);
        // Ten of 50 are gone; the first that are fetched push out others.
        let misses = tlb.touch(1, 50, 99);
        assert!((misses - 10.0 * (1.0 + (5.0f64).ln())).abs() < 1e-9, "{misses}");
        assert_eq!((tlb.holds(1), tlb.holds(2)), (50.0, 14.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Hit rates are those of an LRU cache of single pages, over any sequence of owners and flushes.
        #[test]
        fn hit_rates_agree_with_a_reference(
            sizes in proptest::collection::vec(1u32..90, 1..5),
            entries in 16u32..160,
            runs in proptest::collection::vec((0usize..5, 0u32..12), 20..80),
            seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed, 0);
            let (mut expected, mut found, mut touches) = (0.0, 0u32, 0u32);
            // The same runs again and again: what is compared are means.
            let mut tlb = LruTlb::new(entries);
            let mut naive = Naive { entries: entries as usize, pages: VecDeque::new() };
            for _ in 0..30 {
                for &(owner, flush) in &runs {
                    let owner = owner % sizes.len();
                    let pages = sizes[owner].min(entries);
                    if flush == 0 {
                        tlb.flush(|other| other == owner as Owner);
                        naive.pages.retain(|&(other, _)| other != owner as Owner);
                    }
                    expected += tlb.touch(owner as Owner, pages, u32::MAX);
                    for page in shuffled(pages, &mut random) {
                        found += u32::from(naive.misses((owner as Owner, page)));
                    }
                    touches += pages;
                }
            }
            let (expected, found) = (expected / f64::from(touches), f64::from(found) / f64::from(touches));
            prop_assert!((expected - found).abs() < 0.02, "{expected:.4} of touches missed, {found:.4} with the reference");
        }

        /// So are those of an owner that wanders beside its own pages.
        #[test]
        fn wandering_agrees_with_a_reference(
            hot in 1u32..60,
            region in 1u32..2000,
            entries in 64u32..512,
            times in 1u32..40,
            flush in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed, 0);
            let (mut tlb, mut naive) = (LruTlb::new(entries), Naive { entries: entries as usize, pages: VecDeque::new() });
            let (mut expected, mut found) = (0.0, 0u32);
            let rounds = 200;
            for _ in 0..rounds {
                if flush {
                    tlb.flush(|_| true);
                    naive.pages.clear();
                }
                expected += tlb.touch(0, hot, u32::MAX) + tlb.wander(1, 0, f64::from(region), f64::from(times));
                found += shuffled(hot, &mut random).into_iter().map(|page| u32::from(naive.misses((0, page)))).sum::<u32>();
                for _ in 0..times {
                    found += u32::from(naive.misses((1, random.below(region))));
                    // Its own pages are never old.
                    for page in 0..hot {
                        found += u32::from(naive.misses((0, page)));
                    }
                }
            }
            let touches = f64::from(rounds * (hot + times));
            let (expected, found) = (expected / touches, f64::from(found) / touches);
            prop_assert!((expected - found).abs() < 0.03, "{expected:.4} of touches missed, {found:.4} with the reference");
        }
    }
}
