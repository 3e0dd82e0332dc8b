//! Shadow paging: the VMM's copies of a guest's page tables, which hardware walks, and the exits that keep them up.
//!
//! As in Xen (xen/arch/x86/mm/shadow/multi.c, common.c; 3.4 and 4.0):
//! - A page fault of the guest's own exits, too; the VMM walks the guest's tables without a lock and passes it on.
//! - A table with a shadow is write-protected. A write to it is emulated under the VM's one lock, and the shadow's entry made
//!   (`sh_validate_guest_pt_write`); where that takes rights away, the VM's other vCPUs are told. So fork(2) exits for each page
//!   that the parent may write. The second entry of one table in a row that is cleared, with no other write or fault in between,
//!   is taken for the beginning of exit(2): the shadow is thrown away, and further writes are free (`emulate_unmap_dest`,
//!   `check_for_early_unshadow`).
//! - With [`ShadowSync::Lazy`] a table of the last level goes out of sync instead: the write exits once, until the table is brought
//!   back when its vCPU loads a page-table base or drops a translation of it, or when a vCPU has more than three such tables
//!   (`sh_unsync`, `sh_resync_all`, SHADOW_OOS_PAGES).
//! - A page that the guest has mapped and the shadow has not is a hidden fault: the entry is made under the lock, and those
//!   behind it (`sh_prefetch`); a table's first one makes its shadow and takes away the guest's right to write to it, which
//!   the VM's other vCPUs have to be told of.
//! - Loading a page-table base exits (`sh_update_cr3`), as does INVLPG.
//!
//! Tables of the kernel's part of address spaces have one shadow for all of them; a new process's first table is linked to
//! it by hidden faults.
//!
//! Left out: memory for shadows that runs short, the search for a table's writable mapping where it is not where the guest's
//! kernel maps all memory, accessed and dirty bits that are set by faults of their own, and the time that the other
//! vCPUs take to drop translations.

use crate::engine::Ps;
use crate::guest::address_space::AddressSpace;
use crate::machine::lines::Lines;
use crate::machine::prices::{Prices, ShadowPrices};
use crate::machine::spinlock::{Kind, SpinLock};
use crate::machine::walk::Walk;
use muster_model::Account;
use muster_model::study::ShadowSync;
use std::collections::VecDeque;

/// Entries that a hidden fault makes besides (PREFETCH_DISTANCE).
const PREFETCH: u16 = 32;
/// Tables that a vCPU lets go out of sync at a time (SHADOW_OOS_PAGES).
const LAZY: usize = 3;

/// What the guest writes to an entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// A page that has been mapped.
    Maps,
    /// The same page without the right to write it.
    Protects,
    /// Nothing.
    Clears,
}

/// Why a vCPU left the guest for its page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// A page fault that is the guest's own.
    GuestFault,
    /// A write to a table that is write-protected.
    WriteProtect,
    /// A page that the shadow lacks.
    HiddenFault,
    /// A page-table base was loaded.
    Cr3,
    /// A single translation was dropped.
    Invlpg,
}

impl Exit {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::GuestFault, Self::WriteProtect, Self::HiddenFault, Self::Cr3, Self::Invlpg];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::GuestFault => "guest-fault",
            Self::WriteProtect => "write-protect",
            Self::HiddenFault => "hidden-fault",
            Self::Cr3 => "cr3",
            Self::Invlpg => "invlpg",
        }
    }
}

/// Exits by reason (in the order of [`Exit::ALL`]), and what they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowExits {
    /// How many.
    pub count: [u64; Exit::ALL.len()],
    /// How long, waits for the lock included.
    pub time_ps: [Ps; Exit::ALL.len()],
    /// How long vCPUs have waited for the lock.
    pub waited_ps: Ps,
}

impl std::ops::AddAssign for ShadowExits {
    fn add_assign(&mut self, other: Self) {
        (0..Exit::ALL.len()).for_each(|exit| {
            self.count[exit] += other.count[exit];
            self.time_ps[exit] += other.time_ps[exit];
        });
        self.waited_ps += other.waited_ps;
    }
}

/// An exit that is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Todo {
    /// Why.
    pub exit: Exit,
    /// What the VMM does without the lock, ...
    outside: Ps,
    /// ... and with it.
    inside: Ps,
}

/// Exits to come, in order.
pub type Todos = VecDeque<Todo>;

/// An address space among others, by number.
pub type Spaces = Vec<Option<AddressSpace>>;

/// What the VMM keeps of one VM.
#[derive(Debug)]
pub struct Shadow {
    lock: SpinLock,
    prices: ShadowPrices,
    /// Out of the guest and back.
    round_trip: Ps,
    /// Telling the other vCPUs that a right to write is gone.
    tell: Ps,
    sync: ShadowSync,
    /// By vCPU within the VM, tables out of sync: address space and region.
    lazy: Vec<VecDeque<(u32, u64)>>,
    /// By vCPU, the table to which the last write was emulated.
    last_cleared: Vec<Option<(u32, u64)>>,
    /// First tables of processes that are gone; the VMM still takes them for tables.
    stale: u32,
    /// What was done.
    pub exits: ShadowExits,
}

impl Shadow {
    /// Of a VM with so many vCPUs; nothing has a shadow yet.
    pub fn new(lines: &mut Lines, prices: ShadowPrices, machine: &Prices, sync: ShadowSync, vcpus: usize) -> Self {
        let tell = machine.ipi_send + machine.ipi_delivery + machine.tlb_flush;
        Self {
            lock: SpinLock::new(Kind::TestAndSet, lines.add()),
            prices,
            round_trip: machine.vm_exit + machine.vm_entry,
            tell: if vcpus > 1 { tell } else { 0 },
            sync,
            lazy: vec![VecDeque::new(); vcpus],
            last_cleared: vec![None; vcpus],
            stale: 0,
            exits: ShadowExits::default(),
        }
    }

    fn todo(&self, exit: Exit, inside: Ps) -> Todo {
        let outside = match exit {
            Exit::GuestFault => self.prices.walk + self.prices.inject,
            Exit::WriteProtect | Exit::HiddenFault => self.prices.walk,
            Exit::Cr3 => 0,
            Exit::Invlpg => self.prices.invlpg,
        };
        Todo { exit, outside, inside }
    }

    /// A vCPU exits.
    pub fn exit(&mut self, todo: Todo, lines: &mut Lines, walk: &mut Walk) {
        let (began, waited) = (walk.at, walk.waited);
        walk.wait(walk.at + self.round_trip + todo.outside, Account::PageWalk);
        if todo.inside > 0 {
            walk.acquire(&mut self.lock, lines);
            walk.wait(walk.at + todo.inside, Account::PageWalk);
            walk.release(&mut self.lock, lines);
        }
        let exits = &mut self.exits;
        exits.count[todo.exit as usize] += 1;
        exits.time_ps[todo.exit as usize] += walk.at - began;
        exits.waited_ps += walk.waited - waited;
    }

    /// The guest has a page fault of its own.
    pub fn fault(&mut self, vcpu: usize, todos: &mut Todos) {
        self.last_cleared[vcpu] = None;
        todos.push_back(self.todo(Exit::GuestFault, 0));
    }

    /// The guest writes so many entries of a table of the last level.
    pub fn write(
        &mut self,
        vcpu: usize,
        spaces: &mut Spaces,
        at: (u32, u64),
        (entries, what): (u16, Write),
        todos: &mut Todos,
    ) {
        match self.sync {
            ShadowSync::Trap => (0..entries).for_each(|_| self.emulate(vcpu, spaces, at, what, todos)),
            ShadowSync::Lazy => self.unsync(vcpu, spaces, at, todos),
        }
    }

    fn emulate(&mut self, vcpu: usize, spaces: &mut Spaces, at: (u32, u64), what: Write, todos: &mut Todos) {
        let Some(region) = region(spaces, at).filter(|region| region.has_shadow) else { return };
        let is_second = what == Write::Clears && self.last_cleared[vcpu] == Some(at);
        let loses_rights = what != Write::Maps && region.in_shadow > 0;
        match what {
            Write::Clears if is_second => (region.has_shadow, region.in_shadow) = (false, 0),
            Write::Clears => region.in_shadow = region.in_shadow.saturating_sub(1),
            Write::Maps => region.in_shadow = (region.in_shadow + 1).min(region.mapped),
            Write::Protects => {}
        }
        self.last_cleared[vcpu] = Some(at).filter(|_| what == Write::Clears && !is_second);
        let tell = if loses_rights { self.tell } else { 0 };
        todos.push_back(self.todo(Exit::WriteProtect, self.prices.emulate + tell));
    }

    fn unsync(&mut self, vcpu: usize, spaces: &mut Spaces, at: (u32, u64), todos: &mut Todos) {
        let Some(region) = region(spaces, at).filter(|region| region.has_shadow && region.lazy_of.is_none()) else {
            return;
        };
        region.lazy_of = Some(vcpu as u32);
        let mut inside = self.prices.unsync;
        self.lazy[vcpu].push_back(at);
        if self.lazy[vcpu].len() > LAZY {
            inside += self.resync_first(vcpu, spaces);
        }
        todos.push_back(self.todo(Exit::WriteProtect, inside));
    }

    /// The first table that a vCPU has let go out of sync is brought back; what that takes.
    fn resync_first(&mut self, vcpu: usize, spaces: &mut Spaces) -> Ps {
        let Some(at) = self.lazy[vcpu].pop_front() else { return 0 };
        if let Some(region) = region(spaces, at) {
            region.lazy_of = None;
            region.in_shadow = region.in_shadow.min(region.mapped);
        }
        self.prices.resync + self.tell
    }

    /// The guest adds tables above the last level, or takes them away: so many entries of theirs are written.
    pub fn write_upper(&mut self, space: &AddressSpace, entries: u32, todos: &mut Todos) {
        let entries = if space.has_root_shadow { entries } else { 0 };
        (0..entries).for_each(|_| todos.push_back(self.todo(Exit::WriteProtect, self.prices.emulate)));
    }

    /// The guest comes to a page of a region; if its shadow lacks that, it is made there.
    pub fn fill(&mut self, spaces: &mut Spaces, at: (u32, u64), todos: &mut Todos) {
        let Some(region) = region(spaces, at) else { return };
        if region.has_shadow && region.in_shadow >= region.mapped {
            return;
        }
        let first = if region.has_shadow { 0 } else { self.prices.promote + self.tell };
        region.has_shadow = true;
        region.in_shadow = (region.in_shadow + 1 + PREFETCH).min(region.mapped);
        todos.push_back(self.todo(Exit::HiddenFault, self.prices.fill + first));
    }

    /// Whether a page's entry was made in the shadow when the guest wrote its own.
    pub fn has_made(&self, spaces: &mut Spaces, at: (u32, u64)) -> bool {
        self.sync == ShadowSync::Trap && region(spaces, at).is_some_and(|region| region.has_shadow)
    }

    /// The process goes on, and comes to what it goes through all the time.
    pub fn refill(&mut self, spaces: &mut Spaces, space: u32, todos: &mut Todos) {
        let Some(it) = spaces[space as usize].as_ref() else { return };
        let lacking: Vec<(u64, u16)> = (it.regions.iter())
            .filter(|(_, region)| region.in_shadow < region.hot.min(region.mapped))
            .map(|(&number, region)| (number, (region.hot - region.in_shadow).div_ceil(PREFETCH + 1)))
            .collect();
        for (number, times) in lacking {
            (0..times).for_each(|_| self.fill(spaces, (space, number), todos));
        }
    }

    /// A vCPU loads the base of an address space's tables, `kernel` of whose tables the kernel's part has; hidden faults that
    /// follow from it go to `todos`.
    pub fn load(&mut self, vcpu: usize, spaces: &mut Spaces, space: u32, kernel: u32, todos: &mut Todos) -> Todo {
        let mut inside = self.prices.cr3;
        while !self.lazy[vcpu].is_empty() {
            inside += self.resync_first(vcpu, spaces);
        }
        // The others' stay out of sync; their shadows are brought up to date.
        let others: usize = self.lazy.iter().map(VecDeque::len).sum();
        inside += others as Ps * self.prices.resync;
        if let Some(it) = spaces[space as usize].as_mut()
            && !std::mem::replace(&mut it.has_root_shadow, true)
        {
            inside += Ps::from(it.upper_tables()) * (self.prices.promote + self.tell);
            (0..kernel).for_each(|_| todos.push_back(self.todo(Exit::HiddenFault, self.prices.fill)));
        }
        self.todo(Exit::Cr3, inside)
    }

    /// A vCPU drops the translation of one page of a region.
    pub fn drop_one(&mut self, vcpu: usize, spaces: &mut Spaces, at: (u32, u64), todos: &mut Todos) {
        let mut inside = 0;
        if region(spaces, at).is_some_and(|region| region.lazy_of.is_some()) {
            self.lazy[vcpu].retain(|&there| there != at);
            self.lazy[vcpu].push_front(at);
            inside = self.resync_first(vcpu, spaces);
        }
        todos.push_back(self.todo(Exit::Invlpg, inside));
    }

    /// A process is copied: each entry of a page that it may write loses the right to be written.
    pub fn fork(&mut self, vcpu: usize, spaces: &mut Spaces, parent: u32, todos: &mut Todos) {
        if self.stale > 0 {
            // The child's first table was another process's, of which the VMM knows no better until it is written twice.
            self.stale -= 1;
            (0..2).for_each(|_| todos.push_back(self.todo(Exit::WriteProtect, self.prices.emulate)));
        }
        let Some(it) = spaces[parent as usize].as_ref() else { return };
        let regions: Vec<(u64, u16)> = it.regions.iter().map(|(&number, region)| (number, region.writable)).collect();
        for (number, writable) in regions {
            self.write(vcpu, spaces, (parent, number), (writable, Write::Protects), todos);
        }
    }

    /// A process is over: its tables are cleared, entry by entry, and the last level's freed.
    pub fn end(&mut self, vcpu: usize, spaces: &mut Spaces, space: u32, todos: &mut Todos) {
        let Some(it) = spaces[space as usize].as_ref() else { return };
        let regions: Vec<(u64, u16)> = it.regions.iter().map(|(&number, region)| (number, region.mapped)).collect();
        let (upper, cleared) = (it.has_root_shadow, regions.len().min(2) as u32);
        for &(number, mapped) in &regions {
            self.write(vcpu, spaces, (space, number), (mapped, Write::Clears), todos);
        }
        if let Some(it) = spaces[space as usize].as_ref() {
            // The second write in a row to a directory ends its shadow.
            self.write_upper(it, cleared, todos);
        }
        self.stale += u32::from(upper);
        self.lazy.iter_mut().for_each(|tables| tables.retain(|&(of, _)| of != space));
        let last = self.last_cleared.iter_mut();
        last.for_each(|last| *last = last.filter(|&(of, _)| of != space));
    }
}

fn region(spaces: &mut Spaces, (space, number): (u32, u64)) -> Option<&mut crate::guest::address_space::Region> {
    spaces[space as usize].as_mut()?.regions.get_mut(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::address_space::Frames;
    use muster_model::study::{GuestMode, TablePlacement};
    use muster_model::workload::AddressSpace as Spec;
    use muster_model::{Profile, Topology};

    const PRICES: ShadowPrices = ShadowPrices {
        walk: 1,
        inject: 10,
        emulate: 100,
        unsync: 1_000,
        resync: 10_000,
        fill: 100_000,
        promote: 1_000_000,
        cr3: 10_000_000,
        invlpg: 100_000_000,
    };

    struct Bench {
        shadow: Shadow,
        spaces: Spaces,
        frames: Frames,
        todos: Todos,
    }

    /// A VM with one process, that has 80 pages in three tables.
    fn bench(sync: ShadowSync) -> Bench {
        let text = include_str!("../../../../machines/gleaner-r720.toml");
        let prices = Prices::new(&Profile::from_toml(text, "machine").unwrap()).unwrap();
        let mut lines = Lines::new(&Topology::regular(1, 1, 2, 1).unwrap(), 2, [0; 5], 0, 0);
        let mut frames = Frames::new(64, TablePlacement::Allocated);
        let space = AddressSpace::resident(0, &Spec::default(), GuestMode::Legacy, 0, &mut frames);
        let shadow = Shadow::new(&mut lines, PRICES, &prices, sync, 1);
        Bench { shadow, spaces: vec![Some(space)], frames, todos: Todos::new() }
    }

    impl Bench {
        fn load(&mut self, space: u32) -> Todo {
            let todo = self.shadow.load(0, &mut self.spaces, space, 1, &mut self.todos);
            self.shadow.refill(&mut self.spaces, space, &mut self.todos);
            todo
        }

        fn took(&mut self) -> Vec<(Exit, Ps)> {
            self.todos.drain(..).map(|todo| (todo.exit, todo.inside)).collect()
        }

        fn count(&mut self, exit: Exit) -> usize {
            self.took().iter().filter(|(of, _)| *of == exit).count()
        }

        fn regions(&self) -> Vec<u64> {
            self.spaces[0].as_ref().unwrap().regions.keys().copied().collect()
        }
    }

    #[test]
    fn a_process_that_is_loaded_for_the_first_time_gets_its_shadows() {
        let mut bench = bench(ShadowSync::Trap);
        let first = bench.load(0);
        assert_eq!(first.inside, PRICES.cr3 + PRICES.promote, "the shadow of its first table");
        let took = bench.took();
        let tables = bench.regions().len();
        assert_eq!(took.iter().filter(|(_, inside)| *inside > PRICES.promote).count(), tables);
        assert!(took.iter().all(|(exit, _)| *exit == Exit::HiddenFault));
        assert_eq!(bench.load(0).inside, PRICES.cr3);
        assert_eq!(bench.took(), [], "it has them still");
    }

    #[test]
    fn each_write_is_emulated_and_the_second_cleared_in_a_row_ends_the_shadow() {
        let mut bench = bench(ShadowSync::Trap);
        bench.load(0);
        bench.took();
        let at = (0, bench.regions()[0]);
        for _ in 0..5 {
            bench.shadow.fault(0, &mut bench.todos);
            bench.shadow.write(0, &mut bench.spaces, at, (1, Write::Clears), &mut bench.todos);
        }
        assert_eq!(bench.took().len(), 10, "a fault comes before each");
        for what in [Write::Maps, Write::Protects] {
            bench.shadow.write(0, &mut bench.spaces, at, (9, what), &mut bench.todos);
            assert_eq!(bench.count(Exit::WriteProtect), 9, "{what:?}");
        }
        bench.shadow.write(0, &mut bench.spaces, at, (1, Write::Clears), &mut bench.todos);
        bench.shadow.write(0, &mut bench.spaces, at, (1, Write::Maps), &mut bench.todos);
        bench.shadow.write(0, &mut bench.spaces, at, (500, Write::Clears), &mut bench.todos);
        assert_eq!(bench.count(Exit::WriteProtect), 4);
        assert!(!bench.shadow.has_made(&mut bench.spaces, at));
        bench.shadow.fill(&mut bench.spaces, at, &mut bench.todos);
        assert_eq!(bench.took(), [(Exit::HiddenFault, PRICES.fill + PRICES.promote)]);
    }

    #[test]
    fn tables_out_of_sync_exit_once_and_come_back_with_the_next_base() {
        let mut bench = bench(ShadowSync::Lazy);
        bench.load(0);
        bench.took();
        let at = (0, bench.regions()[0]);
        for _ in 0..7 {
            bench.shadow.write(0, &mut bench.spaces, at, (9, Write::Maps), &mut bench.todos);
        }
        assert_eq!(bench.took(), [(Exit::WriteProtect, PRICES.unsync)]);
        assert_eq!(bench.load(0).inside, PRICES.cr3 + PRICES.resync);
        bench.shadow.write(0, &mut bench.spaces, at, (1, Write::Maps), &mut bench.todos);
        bench.shadow.drop_one(0, &mut bench.spaces, at, &mut bench.todos);
        assert_eq!(bench.took(), [(Exit::WriteProtect, PRICES.unsync), (Exit::Invlpg, PRICES.resync)]);
    }

    #[test]
    fn a_vcpu_lets_three_tables_go_out_of_sync() {
        let mut bench = bench(ShadowSync::Lazy);
        let spec = Spec { heap_bytes: 30 << 20, ..Spec::default() };
        bench.spaces[0] = Some(AddressSpace::resident(0, &spec, GuestMode::Legacy, 0, &mut bench.frames));
        for number in bench.regions() {
            bench.shadow.fill(&mut bench.spaces, (0, number), &mut bench.todos);
        }
        bench.took();
        bench.shadow.fork(0, &mut bench.spaces, 0, &mut bench.todos);
        let took = bench.took();
        let evicted = took.iter().filter(|(_, inside)| *inside == PRICES.unsync + PRICES.resync).count();
        assert_eq!((took.len(), evicted), (bench.regions().len(), bench.regions().len() - LAZY));
    }

    #[test]
    fn fork_exits_for_each_page_and_the_end_twice_for_each_table() {
        let mut bench = bench(ShadowSync::Trap);
        bench.load(0);
        bench.took();
        let tables = bench.regions().len();
        bench.shadow.fork(0, &mut bench.spaces, 0, &mut bench.todos);
        let writable: usize =
            bench.spaces[0].as_ref().unwrap().regions.values().map(|region| usize::from(region.writable)).sum();
        assert_eq!(bench.count(Exit::WriteProtect), writable);
        let child = bench.spaces[0].as_ref().unwrap().fork(2, 0, &mut bench.frames);
        bench.spaces.push(Some(child));
        bench.load(1);
        assert!(bench.count(Exit::HiddenFault) > tables, "its shadows are its own");
        bench.shadow.end(0, &mut bench.spaces, 1, &mut bench.todos);
        assert_eq!(bench.count(Exit::WriteProtect), 2 * tables + 2);
        bench.shadow.fork(0, &mut bench.spaces, 0, &mut bench.todos);
        assert_eq!(bench.count(Exit::WriteProtect), 2 + writable, "its first table is taken for one still");
    }
}
