//! Page tables of several levels and the hardware that walks them, entry by entry, in one dimension or in two.
//!
//! Levels are counted from the last one, whose entries map pages of 4 KiB: 1 is a page table, 2 a page directory, up to 4. Where
//! the walker goes through a guest's tables under nested paging, the address of each of them and that of the page itself are
//! guest-physical and walked for in turn (Bhargava et al., "Accelerating Two-Dimensional Page Walks for Virtualized Systems",
//! ASPLOS 2008, section 2.1): without caches `(g + 1) * (n + 1) - 1` references for `g` levels of the guest's and `n` of the
//! VMM's.
//!
//! Paging-structure caches hold entries that point to tables (Intel SDM, volume 3A, section 4.10.3): those of the guest's
//! dimension with the table's host-physical address, so that nothing of the nested dimension is needed to go on from there
//! (volume 3B, section 25.3.1, combined mappings); those of the nested one by guest-physical address, and a cache of
//! whole translations of those, if there is one (guest-physical mappings).

use muster_model::profile::{Dimension, WalkCache};
use muster_model::study::{Backing, GuestMode};
use std::collections::BTreeMap;

/// Number of a page of 4 KiB in memory, as the tables' owner sees it.
pub type Frame = u32;
/// Number of a page of 4 KiB in an address space.
pub type Page = u64;

/// Levels of the nested dimension.
const NESTED_LEVELS: u8 = 4;
/// Entries of a nested table, as a power of two.
const NESTED_BITS: u32 = 9;
/// Bytes of a cache line, as a power of two.
const LINE_BITS: u32 = 6;

/// The shape of page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many levels.
    pub levels: u8,
    /// Entries of a table, as a power of two.
    bits: u32,
    /// Bytes of an entry, as a power of two.
    entry: u32,
}

impl Shape {
    /// That of a guest's.
    pub fn of(mode: GuestMode) -> Self {
        match mode {
            GuestMode::Legacy => Self { levels: 2, bits: 10, entry: 2 },
            GuestMode::Pae | GuestMode::Long => Self { levels: mode.levels(), bits: 9, entry: 3 },
        }
    }

    /// That of the shadows which a 64-bit VMM keeps of a guest's: those of 32-bit guests are in PAE format
    /// (xen/arch/x86/mm/shadow/multi.c).
    pub fn of_shadow(mode: GuestMode) -> Self {
        Self::of(if mode == GuestMode::Legacy { GuestMode::Pae } else { mode })
    }

    /// How many pages a table of the last level maps.
    pub fn reach(self) -> u64 {
        1 << self.bits
    }

    /// Which entry of which table of a level translates a page: the entry's number over all tables of the level.
    fn entry(self, level: u8, page: Page) -> u64 {
        page >> (self.bits * u32::from(level - 1))
    }

    /// The number of the level's table that translates it.
    fn table(self, level: u8, page: Page) -> u64 {
        self.entry(level, page) >> self.bits
    }
}

/// Page tables: where each table lies.
#[derive(Debug, Clone)]
pub struct Tables {
    /// Their shape.
    pub shape: Shape,
    /// By level and number.
    frames: BTreeMap<(u8, u64), Frame>,
}

impl Tables {
    /// No tables but the first, at `root`.
    pub fn new(shape: Shape, root: Frame) -> Self {
        Self { shape, frames: [((shape.levels, 0), root)].into() }
    }

    /// Adds the tables that a page lacks, down to the level whose entry maps it, and takes a frame for each; how many.
    pub fn map(&mut self, page: Page, leaf: u8, mut frame: impl FnMut() -> Frame) -> u32 {
        let mut added = 0;
        for level in leaf..=self.shape.levels {
            let key = (level, self.shape.table(level, page));
            if self.frames.contains_key(&key) {
                break;
            }
            self.frames.insert(key, frame());
            added += 1;
        }
        added
    }

    /// How many tables there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is none, which never is.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Where they lie.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.frames.values().copied()
    }

    /// The same tables elsewhere.
    pub fn copy(&self, mut frame: impl FnMut() -> Frame) -> Self {
        Self { shape: self.shape, frames: self.frames.keys().map(|&key| (key, frame())).collect() }
    }

    fn frame(&self, level: u8, page: Page) -> Frame {
        self.frames[&(level, self.shape.table(level, page))]
    }
}

/// A reference of a walk to an entry in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Whose entry.
    pub of: Dimension,
    /// It maps the page itself, and no table on the way.
    pub is_last: bool,
    /// Its cache line: no two are the same.
    pub line: u64,
}

/// A small cache with replacement of the least recently used.
#[derive(Debug, Clone, Default)]
struct Lru {
    most: usize,
    /// The most recently used first.
    tags: Vec<u64>,
}

impl Lru {
    /// Whether it has it; it is the most recently used one then.
    fn has(&mut self, tag: u64) -> bool {
        match self.tags.iter().position(|&there| there == tag) {
            Some(place) => {
                self.tags[..=place].rotate_right(1);
                true
            }
            None => false,
        }
    }

    fn add(&mut self, tag: u64) {
        if self.most == 0 {
            return;
        }
        if self.tags.len() == self.most {
            self.tags.pop();
        }
        self.tags.insert(0, tag);
    }
}

/// What is walked in the second dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// Nothing: the tables hold the machine's own addresses.
    None,
    /// The VMM's tables for a guest, by its number; they are all there.
    Nested(Backing, u32),
}

/// The walker of a CPU: its paging-structure caches.
#[derive(Debug, Clone)]
pub struct Walker {
    guest: [Lru; 5],
    nested: [Lru; 5],
}

impl Walker {
    /// With the caches of a machine.
    pub fn new(caches: &[WalkCache]) -> Self {
        let of = |dimension| {
            std::array::from_fn(|level| {
                let mut sizes =
                    caches.iter().filter(|cache| cache.of == dimension && usize::from(cache.level) == level);
                Lru { most: sizes.next().map_or(0, |cache| cache.entries as usize), tags: Vec::new() }
            })
        };
        Self { guest: of(Dimension::Guest), nested: of(Dimension::Nested) }
    }

    /// Another page-table base is loaded: what is held of the old tables goes, guest-physical translations stay.
    pub fn flush(&mut self) {
        self.guest.iter_mut().for_each(|cache| cache.tags.clear());
    }

    /// Walks for a page that lies at `frame`, mapped by an entry of the level `leaf`; `see` is told each reference.
    pub fn walk(
        &mut self,
        tables: &Tables,
        (page, leaf): (Page, u8),
        frame: Frame,
        second: Second,
        mut see: impl FnMut(Reference),
    ) {
        let shape = tables.shape;
        let cached =
            (leaf + 1..=shape.levels).find(|&level| self.guest[usize::from(level)].has(shape.entry(level, page)));
        // A cached entry holds the host-physical address of the table it points to.
        let mut is_known = cached.is_some();
        for level in (leaf..cached.unwrap_or(shape.levels + 1)).rev() {
            let table = tables.frame(level, page);
            if !is_known {
                self.walk_nested(table, second, false, &mut see);
            }
            is_known = false;
            let entry = shape.entry(level, page);
            let index = entry & (shape.reach() - 1);
            let line = (u64::from(table) << (12 - LINE_BITS)) + ((index << shape.entry) >> LINE_BITS);
            see(Reference { of: Dimension::Guest, is_last: level == leaf, line });
            if level > leaf {
                self.guest[usize::from(level)].add(entry);
            }
        }
        self.walk_nested(frame, second, true, &mut see);
    }

    fn walk_nested(&mut self, frame: Frame, second: Second, is_last: bool, see: &mut impl FnMut(Reference)) {
        let Second::Nested(backing, guest) = second else { return };
        let leaf = if backing == Backing::Large { 2 } else { 1 };
        let tag = |level: u8| (u64::from(guest) << 40) | (u64::from(frame) >> (NESTED_BITS * u32::from(level - 1)));
        if self.nested[1].has(tag(leaf)) {
            return;
        }
        let cached = (leaf + 1..=NESTED_LEVELS).find(|&level| self.nested[usize::from(level)].has(tag(level)));
        for level in (leaf..cached.unwrap_or(NESTED_LEVELS + 1)).rev() {
            let line = (1 << 63) | (u64::from(level) << 60) | (tag(level) >> (LINE_BITS - 3));
            see(Reference { of: Dimension::Nested, is_last: is_last && level == leaf, line });
            if level > leaf {
                self.nested[usize::from(level)].add(tag(level));
            }
        }
        self.nested[1].add(tag(leaf));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MODES: [GuestMode; 3] = [GuestMode::Legacy, GuestMode::Pae, GuestMode::Long];

    fn cache(of: Dimension, level: u8, entries: u32) -> WalkCache {
        WalkCache { of, level, entries, source: String::new() }
    }

    /// Tables that map these pages, and the frames of the tables.
    fn mapped(mode: GuestMode, pages: &[(Page, u8)]) -> Tables {
        let mut next = 1000;
        let mut frame = || {
            next += 1;
            next
        };
        let mut tables = Tables::new(Shape::of(mode), frame());
        for &(page, leaf) in pages {
            tables.map(page, leaf, &mut frame);
        }
        tables
    }

    fn references(walker: &mut Walker, tables: &Tables, page: (Page, u8), second: Second) -> Vec<Reference> {
        let mut seen = Vec::new();
        walker.walk(tables, page, (page.0 % 4_000) as Frame, second, |reference| seen.push(reference));
        seen
    }

    #[test]
    fn a_walk_through_four_levels_under_four_takes_24_references() {
        let tables = mapped(GuestMode::Long, &[(5, 1)]);
        let second = Second::Nested(Backing::Small, 0);
        assert_eq!(references(&mut Walker::new(&[]), &tables, (5, 1), second).len(), 24);
        assert_eq!(references(&mut Walker::new(&[]), &tables, (5, 1), Second::None).len(), 4);
    }

    #[test]
    fn a_cached_directory_entry_leaves_one_reference_to_each_dimension() {
        let caches = [2, 3, 4].map(|level| cache(Dimension::Guest, level, 4));
        let nested = [2, 3, 4].map(|level| cache(Dimension::Nested, level, 4));
        let mut walker = Walker::new(&[&caches[..], &nested[..]].concat());
        let tables = mapped(GuestMode::Long, &[(5, 1), (6, 1)]);
        let second = Second::Nested(Backing::Small, 0);
        references(&mut walker, &tables, (5, 1), second);
        let seen = references(&mut walker, &tables, (6, 1), second);
        assert_eq!(
            seen.iter().map(|it| (it.of, it.is_last)).collect::<Vec<_>>(),
            [(Dimension::Guest, true), (Dimension::Nested, true)]
        );
        // Another base is loaded: the guest's tables are walked from the first on, the nested entries are still there.
        walker.flush();
        assert_eq!(references(&mut walker, &tables, (6, 1), second).len(), 4 + 5);
    }

    #[test]
    fn tables_in_one_region_need_one_whole_translation() {
        let nested = [cache(Dimension::Nested, 1, 1)];
        let (near, far) = ([2000, 2001, 2002, 2003], [2000, 9000, 20_000, 40_000]);
        let count = |frames: [Frame; 4]| {
            let mut frames = frames.into_iter();
            let mut tables = Tables::new(Shape::of(GuestMode::Long), frames.next().unwrap());
            tables.map(5, 1, || frames.next().unwrap());
            let mut seen = 0;
            let mut walker = Walker::new(&nested);
            walker.walk(&tables, (5, 1), 2005, Second::Nested(Backing::Large, 0), |_| seen += 1);
            seen
        };
        assert_eq!((count(near), count(far)), (4 + 3, 4 + 5 * 3));
    }

    proptest! {
        /// Without caches every walk takes what the closed form says, for every combination of levels and page sizes.
        #[test]
        fn walks_take_what_the_closed_form_says(
            pages in proptest::collection::vec((0u64..1 << 20, any::<bool>()), 1..40),
            mode in 0usize..3,
            large_backing in any::<bool>(),
            is_nested in any::<bool>(),
        ) {
            let mode = MODES[mode];
            // A large page and small ones do not share a directory's entry.
            let pages: Vec<(Page, u8)> = pages.into_iter().map(|(page, large)| {
                if large { ((page | 1 << 19) & !1023, 2) } else { (page & !(1 << 19), 1) }
            }).collect();
            let tables = mapped(mode, &pages);
            let backing = if large_backing { Backing::Large } else { Backing::Small };
            let second = if is_nested { Second::Nested(backing, 0) } else { Second::None };
            for (page, leaf) in pages {
                let seen = references(&mut Walker::new(&[]), &tables, (page, leaf), second);
                let g = usize::from(mode.levels() - leaf + 1);
                let n = match (is_nested, large_backing) { (false, _) => 0, (true, false) => 4, (true, true) => 3 };
                prop_assert_eq!(seen.len(), (g + 1) * (n + 1) - 1);
                prop_assert_eq!(seen.iter().filter(|it| it.of == Dimension::Guest).count(), g);
                prop_assert_eq!(seen.iter().filter(|it| it.is_last).count(), 1 + usize::from(is_nested));
            }
        }

        /// Caches never add references, and a walker with room for everything refers to each entry that points on once.
        #[test]
        fn caches_save_references(
            pages in proptest::collection::vec(0u64..1 << 20, 1..60),
            sizes in proptest::collection::vec(0u32..40, 7),
            mode in 0usize..3,
        ) {
            let leaves: Vec<(Page, u8)> = pages.iter().map(|&page| (page, 1)).collect();
            let tables = mapped(MODES[mode], &leaves);
            let second = Second::Nested(Backing::Small, 0);
            let cached = |sizes: &[u32]| {
                let kinds = [(Dimension::Guest, 2), (Dimension::Guest, 3), (Dimension::Guest, 4),
                    (Dimension::Nested, 1), (Dimension::Nested, 2), (Dimension::Nested, 3), (Dimension::Nested, 4)];
                let caches: Vec<WalkCache> =
                    kinds.iter().zip(sizes).map(|(&(of, level), &entries)| cache(of, level, entries)).collect();
                let mut walker = Walker::new(&caches);
                leaves.iter().flat_map(|&leaf| references(&mut walker, &tables, leaf, second)).collect::<Vec<_>>()
            };
            let (none, some, all) = (cached(&[0; 7]), cached(&sizes), cached(&[1000; 7]));
            prop_assert!(some.len() <= none.len() && all.len() <= none.len());
            let inner = all.iter().filter(|it| it.of == Dimension::Guest && !it.is_last).count();
            prop_assert_eq!(inner + 1, tables.len(), "each table but the first is found through one entry");
            let lines: BTreeSet<u64> = none.iter().map(|it| it.line).collect();
            prop_assert!(all.iter().all(|it| lines.contains(&it.line)));
        }
    }
}
