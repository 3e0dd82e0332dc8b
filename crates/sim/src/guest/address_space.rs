//! Address spaces of a guest: its processes' and its kernel's, the pages that they map, and where its page allocator puts pages
//! and page tables.
//!
//! Memory that nobody has used yet is handed out in order: pages of data from one end of a free region, page tables from
//! regions of 2 MiB of their own (the kernel groups pages by mobility, mm/page_alloc.c from 2.6.24 on). A page that has been
//! freed goes to whoever asks next, whatever it was, the last freed first; of more than [`HOT`] of them the first freed go back to
//! the zone, whose free pages are in no order, since some find their buddies and others do not, and from where they come
//! back by batches. So tables stay next to each other while pages are taken and kept, and come to lie all over what has been
//! freed where processes come and go beside each other.
//! Confined tables have regions that hold nothing else.

use crate::engine::random::Random;
use crate::machine::lru_tlb::Owner;
use crate::machine::page_tables::{Frame, Page, Shape, Tables};
use muster_model::study::{GuestMode, TablePlacement};
use muster_model::workload::{AddressSpace as Spec, HeapPage};
use std::collections::{BTreeMap, VecDeque};

/// Freed pages that a CPU keeps (`per_cpu_pages.high`), and how many of the zone's it gets at a time; as in `guest::allocator`.
const HOT: usize = 186;
const BATCH: usize = 31;
/// Pages of 4 KiB in a region of 2 MiB.
const REGION: u32 = 512;
/// Where the kernel maps all memory, by page: 3 GiB, and in 64-bit mode 0xffff880000000000 less the sign.
const DIRECT_MAP: [Page; 2] = [0xc_0000, 0x8_8000_0000];
/// Where programs lie, by page: code and heap; libraries; stack (arch/x86/include/asm/elf.h, processor.h).
const AREAS: [[Page; 3]; 2] = [[0x8048, 0xb_7c00, 0xb_ff00], [0x400, 0x7_f123_4560, 0x7_ffff_fe00]];
/// Libraries are so many pages apart.
const LIBRARY: Page = 0x400;
/// From here on pages are mapped on demand.
const DEMAND: [Page; 2] = [0x9000, 0x10_0000];
/// Up to here.
const DEMAND_END: [Page; 2] = [0xb_0000, 0x6_0000_0000];

/// The page allocator of a guest.
#[derive(Debug, Clone)]
pub struct Frames {
    total: Frame,
    confined: bool,
    /// The next that nobody has used.
    unused: Frame,
    /// What is left of the region that tables are taken from.
    region: std::ops::Range<Frame>,
    /// Freed ones, the last freed last.
    hot: VecDeque<Frame>,
    /// Freed ones that the zone has.
    zone: Vec<Frame>,
    random: Random,
    /// Freed tables, where they are confined.
    freed_tables: Vec<Frame>,
}

impl Frames {
    /// Of a guest with so much memory, whose kernel has the first 16 MiB.
    pub fn new(memory_mib: u32, placement: TablePlacement) -> Self {
        let confined = placement == TablePlacement::Confined;
        Self {
            total: memory_mib * 256,
            confined,
            unused: 4096,
            region: 0..0,
            hot: VecDeque::new(),
            zone: Vec::new(),
            random: Random::new(0, 0),
            freed_tables: Vec::new(),
        }
    }

    /// A page that nobody has used; once there is none left, one that the page cache gives up, in order of address.
    fn fresh(&mut self, count: Frame) -> Frame {
        if self.unused + count > self.total {
            self.unused = 4096;
        }
        self.unused += count;
        self.unused - count
    }

    /// A page that has been freed, if there is one.
    fn freed(&mut self) -> Option<Frame> {
        if self.hot.is_empty() {
            for _ in 0..self.zone.len().min(BATCH) {
                let place = self.random.below(self.zone.len() as u32);
                self.hot.push_back(self.zone.swap_remove(place as usize));
            }
        }
        self.hot.pop_back()
    }

    /// A page of data.
    pub fn page(&mut self) -> Frame {
        self.freed().unwrap_or_else(|| self.fresh(1))
    }

    /// A page table.
    pub fn table(&mut self) -> Frame {
        let freed = if self.confined { self.freed_tables.pop() } else { self.freed() };
        if let Some(frame) = freed {
            return frame;
        }
        if self.region.is_empty() {
            let aligned = self.unused.next_multiple_of(REGION);
            self.unused = aligned.min(self.total);
            let first = self.fresh(REGION);
            self.region = first..first + REGION;
        }
        self.region.next().expect("a region was just taken")
    }

    /// So many pages next to each other, for a heap that is mapped by large pages or all at once.
    fn run(&mut self, pages: Frame) -> Frame {
        self.unused = self.unused.next_multiple_of(REGION).min(self.total);
        self.fresh(pages)
    }

    /// A process's pages are freed, and then its tables.
    fn free(&mut self, pages: impl IntoIterator<Item = Frame>, tables: impl Iterator<Item = Frame>) {
        self.hot.extend(pages);
        if self.confined {
            self.freed_tables.extend(tables)
        } else {
            self.hot.extend(tables)
        }
        while self.hot.len() > HOT {
            self.zone.extend(self.hot.pop_front());
        }
    }
}

/// The entries of one table of the last level.
#[derive(Debug, Clone, Copy, Default)]
pub struct Region {
    /// Pages that it maps.
    pub mapped: u16,
    /// Of these, writable ones.
    pub writable: u16,
    /// Of the pages that the process goes through all the time, so many lie here.
    pub hot: u16,
    /// Whether the VMM has a shadow of it.
    pub has_shadow: bool,
    /// How many of its entries that has.
    pub in_shadow: u16,
    /// The vCPU that has let it go out of sync with its shadow, if one has.
    pub lazy_of: Option<u32>,
}

/// A page that is gone through all the time.
#[derive(Debug, Clone, Copy)]
pub struct Hot {
    /// Where in the address space.
    pub page: Page,
    /// The level of the entry that maps it.
    pub leaf: u8,
    /// Where in memory.
    pub frame: Frame,
}

/// A heap that a process comes back to anywhere.
#[derive(Debug, Clone, Copy)]
pub struct Heap {
    /// Its first page.
    pub first: Page,
    /// Where that lies; the others follow, unless it has come page by page.
    pub frame: Frame,
    /// How many pages of 4 KiB it has.
    pub pages: u32,
    /// How many it grows to by pages that the process comes to.
    pub most: u32,
    /// The level of the entries that map it.
    pub leaf: u8,
    /// Nanoseconds between two visits.
    pub every_ns: u64,
}

/// An address space.
#[derive(Debug, Clone)]
pub struct AddressSpace {
    /// Whose translations they are.
    pub owner: Owner,
    /// Its tables.
    pub tables: Tables,
    /// The pages that it goes through all the time.
    pub hot: Vec<Hot>,
    /// How many of them it has come to.
    pub warm: u32,
    /// The heap.
    pub heap: Option<Heap>,
    /// By the number of the last level's table.
    pub regions: BTreeMap<u64, Region>,
    /// Whether the VMM has shadows of its tables above the last level.
    pub has_root_shadow: bool,
    /// Where what is known of walks through it is kept.
    pub slot: u32,
    /// Which of the hot pages are code: the first.
    code: u32,
    /// Pages of its own, to be freed with it.
    own: Vec<Frame>,
    /// The next page on demand, and how many are mapped so.
    demand: Page,
    demanded: u32,
    /// Pages that it still shares with its parent and may write.
    shared: u32,
}

/// What happened to an address space when a page was touched for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// The number of the last level's table.
    pub region: u64,
    /// Tables that had to be added.
    pub tables: u32,
    /// It took the place of a page that was shared with the parent.
    pub was_copied: bool,
}

fn is_long(shape: Shape) -> usize {
    usize::from(shape.levels == 4)
}

impl AddressSpace {
    /// A process that has just begun and whose tables have nothing but the first; its code and data are those of `spec`.
    pub fn new(owner: Owner, spec: &Spec, mode: GuestMode, slot: u32, frames: &mut Frames) -> Self {
        let shape = Shape::of(mode);
        let first = DEMAND[is_long(shape)];
        let grows =
            Heap { first, frame: 0, pages: 0, most: (spec.heap_bytes / 4096) as u32, leaf: 1, every_ns: spec.heap_ns };
        Self {
            owner,
            tables: Tables::new(shape, frames.table()),
            hot: hot_pages(spec, shape),
            warm: 0,
            heap: Some(grows).filter(|heap| heap.most > 0),
            regions: BTreeMap::new(),
            has_root_shadow: false,
            slot,
            code: spec.code_pages as u32,
            own: Vec::new(),
            demand: first,
            demanded: 0,
            shared: 0,
        }
    }

    /// The same with all its pages mapped, the heap's and other resident ones included.
    pub fn resident(owner: Owner, spec: &Spec, mode: GuestMode, slot: u32, frames: &mut Frames) -> Self {
        let mut this = Self { heap: None, ..Self::new(owner, spec, mode, slot, frames) };
        for place in 0..this.hot.len() {
            this.warm_up(place, frames);
        }
        let pages = (spec.heap_bytes / 4096) as u32;
        if pages > 0 {
            let leaf = if spec.heap_page == HeapPage::Large { 2 } else { 1 };
            let first = this.demand.next_multiple_of(this.tables.shape.reach());
            this.heap = Some(Heap { first, frame: frames.run(pages), pages, most: 0, leaf, every_ns: spec.heap_ns });
            let reach = if leaf == 2 { u64::from(REGION) } else { this.tables.shape.reach() };
            for page in (0..u64::from(pages)).step_by(reach as usize) {
                this.tables.map(first + page, leaf, || frames.table());
                let mapped = reach.min(u64::from(pages) - page) as u16;
                if leaf == 1 {
                    let region = Region { mapped, writable: mapped, ..Region::default() };
                    this.regions.insert((first + page) / reach, region);
                }
            }
            this.demand = first + u64::from(pages);
        }
        for _ in 0..spec.resident_pages {
            this.demand(true, frames);
        }
        this
    }

    /// Its kernel: `pages` of `leaf`s, mapped where the kernel maps all memory.
    pub fn of_kernel(owner: Owner, pages: &[(Page, u8)], mode: GuestMode, slot: u32, frames: &mut Frames) -> Self {
        let shape = Shape::of(mode);
        let base = DIRECT_MAP[is_long(shape)];
        let mut tables = Tables::new(shape, frames.table());
        let hot: Vec<Hot> =
            pages.iter().map(|&(page, leaf)| Hot { page: base + page, leaf, frame: page as Frame }).collect();
        for hot in &hot {
            tables.map(hot.page, hot.leaf, || frames.table());
        }
        let code = 0;
        let warm = hot.len() as u32;
        let (regions, own) = (BTreeMap::new(), Vec::new());
        let (heap, has_root_shadow, demand, demanded, shared) = (None, true, 0, 0, 0);
        Self { owner, tables, hot, warm, heap, regions, has_root_shadow, slot, code, own, demand, demanded, shared }
    }

    /// A copy of it whose pages are the same until they are written (fork(2)).
    pub fn fork(&self, owner: Owner, slot: u32, frames: &mut Frames) -> Self {
        let fresh = |region: &Region| Region { has_shadow: false, in_shadow: 0, lazy_of: None, ..*region };
        Self {
            owner,
            tables: self.tables.copy(|| frames.table()),
            regions: self.regions.iter().map(|(&number, region)| (number, fresh(region))).collect(),
            has_root_shadow: false,
            slot,
            hot: self.hot.clone(),
            own: Vec::new(),
            shared: (self.hot.len() as u32).saturating_sub(self.code),
            ..*self
        }
    }

    /// Maps a page, and counts it.
    fn map(&mut self, page: Page, leaf: u8, is_writable: bool, frames: &mut Frames) -> (u64, u32) {
        let tables = self.tables.map(page, leaf, || frames.table());
        let number = page / self.tables.shape.reach();
        if leaf == 1 {
            let region = self.regions.entry(number).or_default();
            region.mapped += 1;
            region.writable += u16::from(is_writable);
        }
        (number, tables)
    }

    /// It comes to a page that it will go through all the time.
    fn warm_up(&mut self, place: usize, frames: &mut Frames) -> (u64, u32) {
        let frame = frames.page();
        self.own.push(frame);
        self.hot[place].frame = frame;
        self.warm = self.warm.max(place as u32 + 1);
        let is_data = place as u32 >= self.code;
        let mapped = self.map(self.hot[place].page, 1, is_data, frames);
        self.regions.get_mut(&mapped.0).expect("it was just mapped").hot += 1;
        mapped
    }

    /// Another page on demand; `is_new` says that it takes memory, and is not one of a file that is there already.
    fn demand(&mut self, is_new: bool, frames: &mut Frames) -> (u64, u32) {
        if is_new {
            self.own.push(frames.page());
        }
        let shape = is_long(self.tables.shape);
        if self.demand >= DEMAND_END[shape] {
            self.demand = DEMAND[shape] + self.heap.map_or(0, |heap| u64::from(heap.pages));
        }
        self.demand += 1;
        self.demanded += 1;
        if let Some(heap) = &mut self.heap {
            heap.pages += u32::from(heap.pages < heap.most);
        }
        self.map(self.demand - 1, 1, is_new, frames)
    }

    /// A page fault: the process comes to a page that it has not come to, or writes one that it shares with its parent.
    pub fn touch(&mut self, is_new: bool, frames: &mut Frames) -> Touched {
        if self.shared > 0 && is_new {
            self.shared -= 1;
            let place = self.hot.len() - 1 - self.shared as usize;
            let frame = frames.page();
            self.own.push(frame);
            self.hot[place].frame = frame;
            let region = self.hot[place].page / self.tables.shape.reach();
            return Touched { region, tables: 0, was_copied: true };
        }
        let place = self.warm as usize;
        let (region, tables) =
            if place < self.hot.len() { self.warm_up(place, frames) } else { self.demand(is_new, frames) };
        Touched { region, tables, was_copied: false }
    }

    /// Takes back at most so many of the pages that it has come to on demand; how many by region.
    pub fn unmap(&mut self, pages: u32, frames: &mut Frames) -> BTreeMap<u64, u16> {
        let pages = pages.min(self.demanded);
        let mut gone: BTreeMap<u64, u16> = BTreeMap::new();
        for _ in 0..pages {
            self.demand -= 1;
            self.demanded -= 1;
            let number = self.demand / self.tables.shape.reach();
            *gone.entry(number).or_default() += 1;
            if let Some(region) = self.regions.get_mut(&number) {
                region.mapped = region.mapped.saturating_sub(1);
                region.writable = region.writable.min(region.mapped);
                region.in_shadow = region.in_shadow.min(region.mapped);
            }
            if let Some(heap) = &mut self.heap
                && heap.most > 0
            {
                heap.pages = heap.pages.min(self.demanded);
            }
            if let Some(frame) = self.own.pop() {
                frames.free([frame], std::iter::empty());
            }
        }
        gone
    }

    /// One of its heap's pages.
    pub fn of_heap(&self, heap: &Heap, page: u32) -> Hot {
        let by_itself = || self.own[page as usize % self.own.len().max(1)];
        let frame = if heap.most > 0 && !self.own.is_empty() { by_itself() } else { heap.frame + page };
        Hot { page: heap.first + Page::from(page), leaf: heap.leaf, frame }
    }

    /// The process is over.
    pub fn free(self, frames: &mut Frames) {
        frames.free(self.own, self.tables.frames());
    }

    /// How many tables there are above the last level.
    pub fn upper_tables(&self) -> u32 {
        (self.tables.len() - self.regions.len().min(self.tables.len() - 1)) as u32
    }
}

/// Where a program's pages lie: evenly in its own place, in libraries and in its stack's; code in all but that, with data behind.
fn hot_pages(spec: &Spec, shape: Shape) -> Vec<Hot> {
    let [program, libraries, stack] = AREAS[is_long(shape)];
    let last = spec.areas - 1;
    let base = move |area: u64| match area {
        0 => program,
        area if area == last => stack,
        area => libraries - area * LIBRARY,
    };
    let of = |count: u64, areas: u64, past: u64| {
        let each = count.div_ceil(areas).max(1);
        (0..count).map(move |number| Hot { page: base(number / each) + past + number % each, leaf: 1, frame: 0 })
    };
    let behind = spec.code_pages.div_ceil(last);
    of(spec.code_pages, last, 0).chain(of(spec.data_pages, spec.areas, behind)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn regions(space: &AddressSpace) -> usize {
        space.tables.frames().map(|frame| frame / REGION).collect::<BTreeSet<_>>().len()
    }

    fn process(frames: &mut Frames, mode: GuestMode, spec: &Spec) -> AddressSpace {
        AddressSpace::resident(0, spec, mode, 0, frames)
    }

    #[test]
    fn a_small_process_has_a_few_tables() {
        for (mode, tables) in [(GuestMode::Legacy, 4), (GuestMode::Pae, 6), (GuestMode::Long, 10)] {
            let mut frames = Frames::new(512, TablePlacement::Allocated);
            let space = process(&mut frames, mode, &Spec::default());
            assert_eq!(space.tables.len(), tables, "{mode:?}");
            assert_eq!((space.warm, space.hot.len()), (80, 80));
            assert_eq!(space.regions.values().map(|region| region.mapped).sum::<u16>(), 80);
            assert_eq!(space.upper_tables() as usize, tables - space.regions.len());
        }
    }

    #[test]
    fn tables_of_a_static_program_lie_next_to_each_other_and_those_of_one_that_forks_come_apart() {
        let heap = Spec { heap_bytes: 256 << 20, ..Spec::default() };
        let mut frames = Frames::new(1024, TablePlacement::Allocated);
        let server = process(&mut frames, GuestMode::Long, &heap);
        assert!(server.tables.len() > 128 && regions(&server) == 1, "{}", regions(&server));

        // Forty requests are served at a time, each by a child that comes to up to 100 pages; who is done gives way to the next.
        let scattered = |placement| {
            let mut frames = Frames::new(1024, placement);
            let mut random = Random::new(3, 0);
            let parent = process(&mut frames, GuestMode::Long, &Spec { resident_pages: 300, ..Spec::default() });
            let mut children: Vec<(AddressSpace, u32)> = Vec::new();
            for number in 0..200_000 {
                let turn = random.below(40) as usize;
                match children.get_mut(turn) {
                    Some((child, left)) if *left > 0 => {
                        *left -= 1;
                        child.touch(true, &mut frames);
                    }
                    Some(_) => children.swap_remove(turn).0.free(&mut frames),
                    None => children.push((parent.fork(number, 0, &mut frames), random.below(100))),
                }
            }
            children.iter().map(|(child, _)| regions(child)).sum::<usize>() as f64 / children.len() as f64
        };
        let (allocated, confined) = (scattered(TablePlacement::Allocated), scattered(TablePlacement::Confined));
        assert!(allocated > 4.0, "{allocated} regions of 2 MiB for the tables of one process");
        assert_eq!(confined, 1.0);
    }

    #[test]
    fn a_child_copies_what_it_writes_and_gives_it_back() {
        let mut frames = Frames::new(64, TablePlacement::Allocated);
        let parent = process(&mut frames, GuestMode::Pae, &Spec::default());
        let mut child = parent.fork(1, 0, &mut frames);
        let touched: Vec<Touched> = (0..70).map(|_| child.touch(true, &mut frames)).collect();
        assert!(touched[..60].iter().all(|it| it.was_copied && it.tables == 0));
        assert!(touched[60..].iter().all(|it| !it.was_copied));
        assert_ne!(parent.hot[79].frame, child.hot[79].frame);
        assert_eq!(parent.hot[0].frame, child.hot[0].frame, "its code is its parent's");
        let gone = child.unmap(100, &mut frames);
        assert_eq!(gone.values().sum::<u16>(), 10);
        let tables = child.tables.len();
        child.free(&mut frames);
        assert_eq!(frames.hot.len(), 70 + tables);
    }
}
