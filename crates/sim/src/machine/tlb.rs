//! Translations that a core holds: how many of the pages that code goes through, and what refilling takes.
//!
//! Code of a kind (the program's, the guest kernel's, the VMM's) goes through a *footprint* of pages again and again. A flush
//! drops what a core holds of one; when such code runs there again it walks the page tables for each page once. TLBs have two
//! levels, and entries of their own for instructions and data and for pages of 4 KiB and of 2 MiB. A translation that has
//! left the first level is found in the second, at a price. One footprint may push out what is held of another where both
//! do not fit; one that does not fit alone fills its level, and what it goes on missing there is part of the time that its
//! code takes.

use crate::engine::Ps;

/// Whose pages they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// The program's.
    User,
    /// The kernel's.
    Kernel,
    /// The VMM's.
    Vmm,
}

/// So many pages of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Of instructions.
    pub code: u32,
    /// Of data.
    pub data: u32,
}

/// How large pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
}

/// Pages that code of a space goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// How many.
    pub footprint: Footprint,
    /// Of which size.
    pub size: PageSize,
}

/// The pages of each [`Space`].
pub type Spaces = [Pages; 3];

/// How many entries a core has, by level (the second together with the first) and [`PageSize`].
pub type Entries = [[Footprint; 2]; 2];

/// What code goes through, and what a core has for it.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    spaces: Spaces,
    entries: Entries,
    /// By [`Space`] and level, what of its pages fits there.
    fits: [[Footprint; 2]; 3],
}

impl Layout {
    /// These spaces on a core with these entries.
    pub fn new(spaces: Spaces, entries: Entries) -> Self {
        let fit =
            |Pages { footprint, size }: Pages| entries.map(|level| footprint.each(level[size as usize], u32::min));
        Self { spaces, entries, fits: spaces.map(fit) }
    }
}

/// What a core holds, by level and [`Space`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Tlb {
    held: [[Footprint; 3]; 2],
}

/// Translations that a piece of code did not find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Misses {
    /// Not in the first level, but in the second.
    pub second_level: u32,
    /// In neither: walks through page tables.
    pub walks: Footprint,
}

/// Code comes to a page that it has not been at for a while once in this time, at most: assumed.
const NEW_PAGE: Ps = 25_000;

impl Footprint {
    fn each(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        Self { code: f(self.code, other.code), data: f(self.data, other.data) }
    }
}

impl Tlb {
    /// Code of `space` runs for `time` and goes through its pages; what it does not find.
    #[inline]
    pub fn run(&mut self, space: Space, layout: &Layout, time: Ps) -> Misses {
        let fits = &layout.fits[space as usize];
        let has = |level: usize| {
            let (held, fits) = (self.held[level][space as usize], fits[level]);
            held.code == fits.code && held.data == fits.data
        };
        if has(0) && has(1) {
            return Misses::default();
        }
        self.fetch(space, layout, time)
    }

    fn fetch(&mut self, space: Space, layout: &Layout, time: Ps) -> Misses {
        let (fits, size) = (&layout.fits[space as usize], layout.spaces[space as usize].size);
        // A short piece of code does not come to all of them.
        let most = (time / NEW_PAGE + 1).min(Ps::from(u32::MAX)) as u32;
        let [first, walks] = [0, 1].map(|level| {
            let held = self.held[level][space as usize];
            let misses =
                fits[level].each(held, u32::saturating_sub).each(Footprint { code: most, data: most }, u32::min);
            let now = held.each(misses, |held, new| held + new);
            self.take(level, space, now, &layout.spaces, layout.entries[level][size as usize]);
            misses
        });
        let found = first.each(walks, u32::saturating_sub);
        Misses { second_level: found.code + found.data, walks }
    }

    /// A space holds so much of a level from now on; others with pages of that size have what is left.
    fn take(&mut self, level: usize, space: Space, now: Footprint, spaces: &Spaces, entries: Footprint) {
        self.held[level][space as usize] = now;
        let mut left = entries.each(now, u32::saturating_sub);
        for (other, held) in self.held[level].iter_mut().enumerate() {
            if other != space as usize && spaces[other].size == spaces[space as usize].size {
                *held = held.each(left, u32::min);
                left = left.each(*held, |left, held| left - held);
            }
        }
    }

    /// All translations of `space` are gone.
    #[inline]
    pub fn flush(&mut self, space: Space) {
        self.held.iter_mut().for_each(|level| level[space as usize] = Footprint::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: Ps = 1_000_000_000;

    const fn both(entries: u32) -> Footprint {
        Footprint { code: entries, data: entries }
    }

    /// Eight entries a size in the first level, 64 and 16 in both.
    const ENTRIES: Entries = [[both(8), both(8)], [both(64), both(16)]];

    fn small(code: u32, data: u32) -> Pages {
        Pages { footprint: Footprint { code, data }, size: PageSize::Small }
    }

    fn spaces(user: Pages, kernel: Pages) -> Spaces {
        [user, kernel, Pages { footprint: Footprint { code: 1, data: 2 }, size: PageSize::Large }]
    }

    fn run(tlb: &mut Tlb, space: Space, spaces: &Spaces) -> Misses {
        tlb.run(space, &Layout::new(*spaces, ENTRIES), LONG)
    }

    fn walks(code: u32, data: u32) -> Footprint {
        Footprint { code, data }
    }

    #[test]
    fn what_is_held_is_not_walked_for_and_what_was_flushed_is() {
        let mut tlb = Tlb::default();
        let spaces = spaces(small(3, 4), small(5, 4));
        assert_eq!(run(&mut tlb, Space::User, &spaces).walks, walks(3, 4));
        assert_eq!(run(&mut tlb, Space::Kernel, &spaces).walks, walks(5, 4));
        assert_eq!(run(&mut tlb, Space::Vmm, &spaces).walks, walks(1, 2));
        assert_eq!(run(&mut tlb, Space::User, &spaces), Misses::default());
        tlb.flush(Space::Kernel);
        assert_eq!(run(&mut tlb, Space::User, &spaces), Misses::default());
        assert_eq!(run(&mut tlb, Space::Kernel, &spaces), Misses { second_level: 0, walks: walks(5, 4) });
    }

    #[test]
    fn what_left_the_first_level_is_found_in_the_second() {
        let mut tlb = Tlb::default();
        let spaces = spaces(small(6, 0), small(5, 0));
        run(&mut tlb, Space::User, &spaces);
        run(&mut tlb, Space::Kernel, &spaces);
        // Eight entries: five are the kernel's, so that three of the program's six are left.
        assert_eq!(run(&mut tlb, Space::User, &spaces), Misses { second_level: 3, walks: walks(0, 0) });
        assert_eq!(run(&mut tlb, Space::Kernel, &spaces), Misses { second_level: 3, walks: walks(0, 0) });
    }

    #[test]
    fn pages_of_other_sizes_are_in_nobodys_way() {
        let mut tlb = Tlb::default();
        let large = Pages { size: PageSize::Large, ..small(7, 7) };
        let spaces = spaces(small(64, 64), large);
        for space in [Space::User, Space::Kernel] {
            run(&mut tlb, space, &spaces);
        }
        assert_eq!(run(&mut tlb, Space::User, &spaces), Misses::default(), "it fills a level by itself");
    }

    #[test]
    fn footprints_that_do_not_fit_together_push_each_other_out() {
        let mut tlb = Tlb::default();
        let spaces = spaces(small(60, 0), small(10, 0));
        run(&mut tlb, Space::User, &spaces);
        run(&mut tlb, Space::Kernel, &spaces);
        assert_eq!(run(&mut tlb, Space::User, &spaces).walks, walks(6, 0));
    }

    #[test]
    fn a_short_piece_of_code_comes_to_few_pages() {
        let mut tlb = Tlb::default();
        let spaces = spaces(small(20, 40), small(0, 0));
        assert_eq!(tlb.run(Space::User, &Layout::new(spaces, ENTRIES), 4 * NEW_PAGE).walks, walks(5, 5));
        assert_eq!(run(&mut tlb, Space::User, &spaces).walks, walks(15, 35));
    }

    proptest! {
        /// No level ever holds more than it has entries, and code walks for no more pages than it goes through.
        #[test]
        fn levels_hold_what_fits(
            sizes in [(0u32..90, 0u32..90, any::<bool>()), (0u32..90, 0u32..90, any::<bool>()), (0u32..90, 0u32..90, any::<bool>())],
            runs in proptest::collection::vec((0usize..3, 0u64..2_000_000, any::<bool>()), 1..100)
        ) {
            let spaces: Spaces = sizes.map(|(code, data, large)| Pages {
                footprint: Footprint { code, data },
                size: if large { PageSize::Large } else { PageSize::Small },
            });
            let mut tlb = Tlb::default();
            for (space, time, flush) in runs {
                let space = [Space::User, Space::Kernel, Space::Vmm][space];
                if flush {
                    tlb.flush(space);
                }
                let all = tlb.run(space, &Layout::new(spaces, ENTRIES), time).walks;
                let wanted = spaces[space as usize].footprint;
                prop_assert!(all.code <= wanted.code && all.data <= wanted.data);
                for (level, entries) in ENTRIES.iter().enumerate() {
                    for size in [PageSize::Small, PageSize::Large] {
                        let of_size = |space: &usize| spaces[*space].size == size;
                        let held = (0..3).filter(of_size).map(|space| tlb.held[level][space]);
                        let sum = held.fold(Footprint::default(), |a, b| a.each(b, |a, b| a + b));
                        prop_assert!(sum.code <= entries[size as usize].code && sum.data <= entries[size as usize].data);
                    }
                }
            }
        }
    }
}
