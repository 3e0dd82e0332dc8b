//! Memory virtualization of VMs that ask for it ([`muster_model::study::Paging`]): whose page tables a core walks, what its
//! TLBs and paging-structure caches hold, what walks fetch into caches, and the exits of shadow paging.
//!
//! A process goes through its pages of code and data all the time, and comes to pages of its heap now and then; its kernel and
//! the VMM have pages of their own. What a core's TLB lacks of these is walked for. A translation covers the smaller of the
//! guest's page and the VMM's. Loading a page-table base drops the guest's own translations, and under shadow paging, whose
//! entries are not global, the kernel's as well; those of other guests stay (VPID).
//!
//! Walks go through real tables entry by entry, on the core's own paging-structure caches. As the same process walks for the same
//! pages again after each switch, one walk in `SAMPLE` is made, and the others take what that took; the entries' lines are
//! a working set of their own in the core's caches, which fetch what has been displaced (`machine::cache`).

use crate::engine::books::Cost;
use crate::engine::random::Random;
use crate::engine::{NS, Ps};
use crate::guest::address_space::{AddressSpace, Frames, Hot};
use crate::guest::kernel::{Footprints, Kernel};
use crate::guest::thread::{Mode, Step};
use crate::guest::vcpu::VcpuState;
use crate::machine::cache::{Caches, LINE_BYTES, SetId};
use crate::machine::lines::{Cause, Lines};
use crate::machine::lru_tlb::{LruTlb, Owner};
use crate::machine::page_tables::{Page, Reference, Second, Shape, Tables, Walker};
use crate::machine::prices::{Prices, ReferencePrices, ShadowPrices};
use crate::machine::walk::Walk;
use crate::vmm::shadow::{Exit, Shadow, ShadowExits, Spaces, Todos, Write};
use crate::workload::program::Program;
use crate::world::{NONE, World};
use muster_model::profile::{Dimension, TlbUse};
use muster_model::study::{self, Backing, GuestMode, PagingKind, VmSpec};
use muster_model::workload::AddressSpace as Spec;
use muster_model::{Account, ModelError, Profile};
use std::ops::Range;

/// One walk in so many is made entry by entry.
const SAMPLE: f64 = 16.0;
/// Of one new process in so many all walks are made, once.
const NEW_SAMPLE: u32 = 4;
/// Walks of a sample of the heap, and for how many more they stand.
const HEAP_SAMPLE: usize = 64;
const HEAP_HOLDS: f64 = 50_000.0;
/// Code comes to a page that it has not been at for a while once in this time, at most: assumed, as in `machine::tlb`.
const NEW_PAGE: Ps = 25_000;
/// What is missing is reckoned from this share of a page on.
const LEAST: f64 = 1e-6;
/// Pages of 2 MiB of code and data that the VMM goes through, and the references of a walk for one of them.
const VMM: (u32, u32, f64) = (1, 2, 3.0);

const OF_KERNEL: Owner = 1 << 31;
const OF_VMM: Owner = Owner::MAX;
/// Owners of a VM: its number above these bits.
const VM_SHIFT: u32 = 20;

/// What walks of an address space have been found to take, for one page.
#[derive(Debug, Clone, Copy, Default)]
struct Walked {
    /// References to the guest's tables, or to a shadow.
    guest: f64,
    /// References to the VMM's.
    nested: f64,
    /// Of both, those to entries that map the page itself.
    last: f64,
    /// Until so many more pages have been walked for.
    holds_for: f64,
}

/// What stays when a process gives way to the next one of its kind.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The lines that walks for its pages go through.
    lines: SetId,
    /// Those of the entries that map the heap, and how many they are.
    heap_lines: SetId,
    heap_size: u64,
    hot: Walked,
    heap: Walked,
}

/// A core's TLBs and paging-structure caches.
#[derive(Debug, Clone)]
struct Core {
    small: LruTlb,
    large_code: LruTlb,
    large_data: LruTlb,
    walker: Walker,
}

/// What walks of a VM took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WalkCounts {
    /// Translations that the TLB lacked, of programs and of the kernel.
    pub misses: [f64; 2],
    /// References to tables by [`Dimension`].
    pub references: [f64; 2],
    /// What walking took.
    pub time_ps: Ps,
}

impl std::ops::AddAssign for WalkCounts {
    fn add_assign(&mut self, other: Self) {
        for kind in 0..2 {
            self.misses[kind] += other.misses[kind];
            self.references[kind] += other.references[kind];
        }
        self.time_ps += other.time_ps;
    }
}

/// What memory virtualization did in a VM.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PagingOutcome {
    /// Walks.
    pub walks: WalkCounts,
    /// Exits of shadow paging.
    pub exits: ShadowExits,
}

impl std::ops::AddAssign for PagingOutcome {
    fn add_assign(&mut self, other: Self) {
        self.walks += other.walks;
        self.exits += other.exits;
    }
}

/// A VM's memory.
#[derive(Debug)]
struct VmMemory {
    mode: GuestMode,
    second: Second,
    shadow: Option<Shadow>,
    frames: Frames,
    kernel: AddressSpace,
    /// Pages of code and data that the kernel goes through, and whether they are large ones.
    kernel_pages: (u32, u32, bool),
    /// Its first vCPU.
    first: usize,
    owners: Owner,
    counts: WalkCounts,
}

/// A thread's address spaces: its program's, and those of the child processes that run in its place.
#[derive(Debug, Clone, Default)]
struct OfThread {
    spaces: Vec<u32>,
    /// By depth, where what is known of walks of such a child is kept.
    slots: Vec<u32>,
    /// Exits to come.
    todos: Todos,
    /// The region of the page that has just been mapped.
    mapped: Option<u64>,
}

/// Memory virtualization of a world.
#[derive(Debug)]
pub struct Paging {
    vms: Vec<Option<VmMemory>>,
    cores: Vec<Core>,
    spaces: Spaces,
    unused: Vec<u32>,
    slots: Vec<Slot>,
    threads: Vec<OfThread>,
    /// By vCPU, the address space that is loaded.
    loaded: Vec<u32>,
    /// What programs execute, by number.
    execs: Vec<Spec>,
    prices: ReferencePrices,
    random: Random,
    /// Lines of a sample.
    seen: Vec<u64>,
}

/// What a machine has and charges for paging.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Its profile.
    pub profile: &'a Profile,
    /// Prices in force.
    pub prices: &'a Prices,
    /// How many of its CPUs are in use.
    pub pcpus: usize,
}

/// What paging has to know of a VM.
#[derive(Debug, Clone)]
pub struct Guest {
    paging: Option<study::Paging>,
    vcpus: usize,
    threads: usize,
    space: Spec,
    execs: Vec<Spec>,
    footprints: Footprints,
}

impl Guest {
    /// A VM that runs a program on a kernel which goes through these pages, or as many as Linux 2.6.31 does.
    pub fn new(spec: &VmSpec, program: &Program, footprints: Option<Footprints>) -> Self {
        let footprints = footprints.or(Kernel::LINUX_2_6_31.footprints);
        Self {
            footprints: footprints.expect("that kernel states them"),
            paging: spec.paging,
            vcpus: spec.vcpus as usize,
            threads: program.threads.len(),
            space: program.address_space.unwrap_or_default(),
            execs: program.execs.clone(),
        }
    }
}

impl Core {
    fn new(profile: &Profile) -> Result<Self, ModelError> {
        let most = |page: &str, holds: TlbUse| {
            let tlbs = profile.platform.tlbs.iter();
            tlbs.filter(|tlb| tlb.page == page && tlb.holds.covers(holds)).map(|tlb| tlb.entries).max()
        };
        let lacks = || ModelError::new(format!("profile `{}`", profile.name), "no size of a TLB", "`platform.tlbs`");
        let small = |holds| most("4k", holds).ok_or_else(lacks);
        let unified = profile.platform.tlbs.iter().filter(|tlb| tlb.page == "4k" && tlb.holds == TlbUse::Unified);
        let small_entries = match unified.map(|tlb| tlb.entries).max() {
            Some(entries) => entries,
            None => small(TlbUse::Instructions)? + small(TlbUse::Data)?,
        };
        let large = |holds| most("2m", holds).map_or_else(|| small(holds), Ok);
        Ok(Self {
            small: LruTlb::new(small_entries),
            large_code: LruTlb::new(large(TlbUse::Instructions)?),
            large_data: LruTlb::new(large(TlbUse::Data)?),
            walker: Walker::new(&profile.platform.walk_caches),
        })
    }

    fn flush(&mut self, gone: impl Fn(Owner) -> bool + Copy) {
        [&mut self.small, &mut self.large_code, &mut self.large_data].into_iter().for_each(|tlb| tlb.flush(gone));
        self.walker.flush();
    }
}

impl Paging {
    /// The paging of VMs, each with its program; none if no VM asks for it.
    ///
    /// # Errors
    /// When the machine lacks a price or the size of a TLB, or a process does not fit its VM's memory.
    pub(crate) fn of(
        machine: &Machine<'_>,
        vms: &[Guest],
        caches: Option<&mut Caches>,
        lines: &mut Lines,
    ) -> Result<Option<Box<Self>>, ModelError> {
        let Some(caches) = caches.filter(|_| vms.iter().any(|vm| vm.paging.is_some())) else {
            return Ok(None);
        };
        let core = Core::new(machine.profile)?;
        let mut this = Self {
            vms: Vec::with_capacity(vms.len()),
            cores: vec![core; machine.pcpus],
            spaces: Vec::new(),
            unused: Vec::new(),
            slots: Vec::new(),
            threads: Vec::new(),
            loaded: Vec::new(),
            execs: Vec::new(),
            prices: ReferencePrices::new(machine.profile)?,
            random: Random::new(0, 0),
            seen: Vec::new(),
        };
        for guest in vms {
            this.add_vm(machine, guest, caches, lines)?;
        }
        Ok(Some(Box::new(this)))
    }

    fn add_vm(
        &mut self,
        machine: &Machine<'_>,
        guest: &Guest,
        caches: &mut Caches,
        lines: &mut Lines,
    ) -> Result<(), ModelError> {
        let first = self.loaded.len();
        self.loaded.extend((0..guest.vcpus).map(|_| NONE));
        self.execs.extend(&guest.execs);
        let threads = self.threads.len()..self.threads.len() + guest.threads;
        self.threads.resize(threads.end, OfThread::default());
        let Some(paging) = guest.paging else {
            self.vms.push(None);
            return Ok(());
        };
        let shadow = match paging.kind {
            PagingKind::Nested => None,
            PagingKind::Shadow => {
                let prices = ShadowPrices::new(machine.profile)?;
                Some(Shadow::new(lines, prices, machine.prices, paging.sync, guest.vcpus))
            }
        };
        let vm = self.vms.len() as u32;
        let second = if shadow.is_some() { Second::None } else { Second::Nested(paging.backing, vm) };
        let mut frames = Frames::new(paging.memory_mib, paging.tables);
        let is_large = second == Second::Nested(Backing::Large, vm);
        let pages = kernel_pages(&guest.footprints, is_large);
        let slot = self.new_slot(caches, 1);
        let kernel = AddressSpace::of_kernel(OF_KERNEL | vm, &pages, paging.mode, slot, &mut frames);
        let of_size = if is_large { guest.footprints.large_kernel } else { guest.footprints.kernel };
        let mut memory = VmMemory {
            mode: paging.mode,
            second,
            shadow,
            frames,
            kernel,
            kernel_pages: (of_size.code, of_size.data, is_large),
            first,
            owners: 0,
            counts: WalkCounts::default(),
        };
        let space = guest.space;
        check_size(&space, &guest.execs, paging.mode, paging.memory_mib)?;
        let slot = self.new_slot(caches, heap_lines(&space, paging.mode, second));
        let owner = memory.new_owner(vm);
        let base = AddressSpace::resident(owner, &space, paging.mode, slot, &mut memory.frames);
        let base = self.add_space(base);
        self.threads[threads].iter_mut().for_each(|thread| thread.spaces.push(base));
        self.vms.push(Some(memory));
        Ok(())
    }

    fn new_slot(&mut self, caches: &mut Caches, heap_lines: u64) -> u32 {
        let mut set = |lines: u64| caches.add_set(lines.max(1) * LINE_BYTES, 0, true);
        let (lines, heap_size) = (set(1), heap_lines);
        let heap_lines = set(heap_size);
        self.slots.push(Slot { lines, heap_lines, heap_size, hot: Walked::default(), heap: Walked::default() });
        self.slots.len() as u32 - 1
    }

    /// A slot is used by a process with a heap whose entries take so many lines.
    fn resize_heap(&mut self, caches: &mut Caches, slot: u32, lines: u64) {
        let slot = &mut self.slots[slot as usize];
        if std::mem::replace(&mut slot.heap_size, lines) != lines {
            caches.resize(slot.heap_lines, lines);
        }
    }

    fn add_space(&mut self, space: AddressSpace) -> u32 {
        match self.unused.pop() {
            Some(number) => {
                self.spaces[number as usize] = Some(space);
                number
            }
            None => {
                self.spaces.push(Some(space));
                self.spaces.len() as u32 - 1
            }
        }
    }

    /// Whether exits of a thread are to come.
    #[inline]
    pub(crate) fn has_exits(&self, t: usize) -> bool {
        !self.threads[t].todos.is_empty()
    }

    /// What a VM's paging did; none if it is not simulated.
    pub(crate) fn outcome(&self, vm: usize) -> Option<PagingOutcome> {
        let memory = self.vms[vm].as_ref()?;
        let exits = memory.shadow.as_ref().map_or(ShadowExits::default(), |shadow| shadow.exits);
        Some(PagingOutcome { walks: memory.counts, exits })
    }

    // ---- walks ----

    /// What a stretch of `time` of a VM's thread walks page tables for; nothing is said of a VM without paging.
    #[inline]
    fn walk(&mut self, caches: &mut Caches, vm: usize, p: usize, t: Option<usize>, time: Ps) -> Option<Ps> {
        let memory = self.vms[vm].as_mut()?;
        let most = (time / NEW_PAGE + 1).min(Ps::from(u32::MAX)) as u32;
        let core = &mut self.cores[p];
        let Some(t) = t else {
            let owner = memory.kernel.owner;
            let (code, data, is_large) = memory.kernel_pages;
            let misses = if is_large {
                core.large_code.touch(owner, code, most) + core.large_data.touch(owner, data, most)
            } else {
                core.small.touch(owner, code + data, most)
            };
            return Some(if misses > LEAST { self.walk_hot(caches, vm, p, None, misses) } else { 0 });
        };
        let space = *self.threads[t].spaces.last()?;
        let it = self.spaces[space as usize].as_ref()?;
        let misses = core.small.touch(it.owner, it.warm, most);
        let heap = it.heap.filter(|heap| heap.pages > 0).map_or(0.0, |heap| {
            let times = time as f64 / (heap.every_ns * NS) as f64;
            if heap.leaf == 2 && memory.second.by_large_pages() {
                core.large_data.wander(it.owner | 1, it.owner, f64::from(heap.pages.div_ceil(512)), times)
            } else {
                core.small.wander(it.owner | 1, it.owner, f64::from(heap.pages), times)
            }
        });
        if misses <= LEAST && heap <= LEAST {
            return Some(0);
        }
        let mut took = if misses > LEAST { self.walk_hot(caches, vm, p, Some(space), misses) } else { 0 };
        if heap > LEAST {
            took += self.walk_heap(caches, vm, p, space, heap);
        }
        Some(took)
    }

    /// Walks for so many pages that a process, or its kernel, goes through all the time.
    fn walk_hot(&mut self, caches: &mut Caches, vm: usize, p: usize, space: Option<u32>, misses: f64) -> Ps {
        let Some(memory) = self.vms[vm].as_mut() else { return 0 };
        let it = match space {
            Some(space) => self.spaces[space as usize].as_ref().unwrap_or(&memory.kernel),
            None => &memory.kernel,
        };
        let slot = &mut self.slots[it.slot as usize];
        if slot.hot.holds_for <= 0.0 {
            self.cores[p].walker.flush();
            self.seen.clear();
            let pages = &it.hot[..it.warm as usize];
            slot.hot = sample(&mut self.cores[p].walker, it, memory, pages, &mut self.seen);
            slot.hot.holds_for = SAMPLE * f64::from(it.warm.max(1));
            self.seen.sort_unstable();
            self.seen.dedup();
            caches.resize(slot.lines, self.seen.len() as u64);
        }
        slot.hot.holds_for -= misses;
        let (walked, lines) = (slot.hot, slot.lines);
        memory.counts.misses[usize::from(space.is_none())] += misses;
        let references = misses * (walked.guest + walked.nested);
        let cause = if space.is_none() { Cause::Guest } else { Cause::User };
        let filling = caches.touch(p, lines, references, cause).total();
        memory.counts.add(&walked, misses, self.prices.of(&walked, misses) + filling)
    }

    /// Walks for so many pages of a process's heap.
    fn walk_heap(&mut self, caches: &mut Caches, vm: usize, p: usize, space: u32, misses: f64) -> Ps {
        let Some(memory) = self.vms[vm].as_mut() else { return 0 };
        let Some(it) = self.spaces[space as usize].as_ref() else { return 0 };
        let Some(heap) = it.heap else { return 0 };
        let slot = &mut self.slots[it.slot as usize];
        if slot.heap.holds_for <= 0.0 {
            let pages: [Hot; HEAP_SAMPLE] = std::array::from_fn(|_| it.of_heap(&heap, self.random.below(heap.pages)));
            slot.heap = sample(&mut self.cores[p].walker, it, memory, &pages, &mut self.seen);
            slot.heap.holds_for = HEAP_HOLDS;
        }
        slot.heap.holds_for -= misses;
        let (walked, slot) = (slot.heap, *slot);
        memory.counts.misses[0] += misses;
        // Entries on the way are few, and those that map pages are many.
        let on_the_way = misses * (walked.guest + walked.nested - walked.last);
        let mut filling = caches.touch(p, slot.lines, on_the_way, Cause::User).total();
        filling += caches.touch(p, slot.heap_lines, misses * walked.last, Cause::User).total();
        memory.counts.add(&walked, misses, self.prices.of(&walked, misses) + filling)
    }

    /// What the VMM's own code walks for on a core.
    fn walk_vmm(&mut self, p: usize, time: Ps) -> Ps {
        let most = (time / NEW_PAGE + 1).min(Ps::from(u32::MAX)) as u32;
        let core = &mut self.cores[p];
        let misses = core.large_code.touch(OF_VMM, VMM.0, most) + core.large_data.touch(OF_VMM, VMM.1, most);
        (misses * VMM.2 * self.prices.private as f64) as Ps
    }

    /// A vCPU on a core loads the base of a process's tables, or drops all of the process's translations.
    fn drop_process(&mut self, vm: usize, p: usize) {
        let Some(memory) = &self.vms[vm] else { return };
        let drops_kernel = memory.shadow.is_some();
        let vm = vm as Owner;
        let gone = move |owner: Owner| owner >> VM_SHIFT == vm || (drops_kernel && owner == OF_KERNEL | vm);
        self.cores[p].flush(gone);
    }

    // ---- processes ----

    fn vm_of(&mut self, vm: usize) -> Option<(&mut VmMemory, &mut Spaces, &mut Vec<OfThread>)> {
        Some((self.vms[vm].as_mut()?, &mut self.spaces, &mut self.threads))
    }

    /// vCPU `c` goes on with a thread's address space; with shadows, the exit that this is and what follows from it.
    fn load(&mut self, vm: usize, c: usize, p: usize, t: usize) -> Option<crate::vmm::shadow::Todo> {
        let space = *self.threads[t].spaces.last()?;
        self.loaded[c] = space;
        self.drop_process(vm, p);
        let (memory, spaces, threads) = self.vm_of(vm)?;
        let kernel = memory.kernel_entries();
        let (v, todos) = (c - memory.first, &mut threads[t].todos);
        let shadow = memory.shadow.as_mut()?;
        let todo = shadow.load(v, spaces, space, kernel, todos);
        shadow.refill(spaces, space, todos);
        Some(todo)
    }

    /// The same in the middle of a thread's kernel code: the exit comes before what follows from it.
    fn load_in_turn(&mut self, vm: usize, c: usize, p: usize, t: usize) {
        let before = self.threads[t].todos.len();
        if let Some(todo) = self.load(vm, c, p, t) {
            self.threads[t].todos.insert(before, todo);
        }
    }

    /// A thread has a page fault.
    fn touch(&mut self, vm: usize, c: usize, t: usize, is_new: bool) {
        let Some((memory, spaces, threads)) = self.vm_of(vm) else { return };
        let thread = &mut threads[t];
        let Some(&space) = thread.spaces.last() else { return };
        let Some(it) = spaces[space as usize].as_mut() else { return };
        let touched = it.touch(is_new, &mut memory.frames);
        let Some(shadow) = memory.shadow.as_mut() else { return };
        let (v, todos, at) = (c - memory.first, &mut thread.todos, (space, touched.region));
        shadow.fault(v, todos);
        shadow.write_upper(it, touched.tables, todos);
        shadow.write(v, spaces, at, (1, Write::Maps), todos);
        if touched.was_copied {
            shadow.drop_one(v, spaces, at, todos);
        }
        thread.mapped = Some(touched.region);
    }

    /// The thread goes on at the page that has just been mapped.
    fn touch_again(&mut self, vm: usize, t: usize) {
        let Some((memory, spaces, threads)) = self.vm_of(vm) else { return };
        let thread = &mut threads[t];
        let (Some(shadow), Some(region), Some(&space)) =
            (memory.shadow.as_mut(), thread.mapped.take(), thread.spaces.last())
        else {
            return;
        };
        if !shadow.has_made(spaces, (space, region)) {
            shadow.fill(spaces, (space, region), &mut thread.todos);
        }
    }

    /// A thread's process is copied, and the child runs in its place; `exec` is the program that it executes, if any.
    fn fork(&mut self, caches: &mut Caches, vm: usize, c: usize, p: usize, t: usize, exec: Option<u32>) {
        let depth = self.threads[t].spaces.len() - 1;
        let spec = exec.map(|exec| self.execs[exec as usize]);
        if self.threads[t].slots.len() == depth {
            let slot = self.new_slot(caches, 1);
            self.threads[t].slots.push(slot);
        }
        let slot = self.threads[t].slots[depth];
        let Some(memory) = &self.vms[vm] else { return };
        let of_parent = || self.spaces[self.threads[t].spaces[depth] as usize].as_ref().map_or(0, |it| it.slot);
        let lines = match &spec {
            Some(spec) => heap_lines(spec, memory.mode, memory.second),
            None => self.slots[of_parent() as usize].heap_size,
        };
        self.resize_heap(caches, slot, lines);
        if self.random.below(NEW_SAMPLE) == 0 {
            self.slots[slot as usize].hot.holds_for = 0.0;
        }
        let Some((memory, spaces, threads)) = self.vm_of(vm) else { return };
        let (thread, v) = (&mut threads[t], c - memory.first);
        let parent = thread.spaces[depth];
        let kernel = memory.kernel_entries();
        if let Some(shadow) = memory.shadow.as_mut() {
            shadow.fork(v, spaces, parent, &mut thread.todos);
            // The parent's translations say that it may write.
            let flush = shadow.load(v, spaces, parent, kernel, &mut thread.todos);
            thread.todos.push_back(flush);
        }
        let owner = memory.new_owner(vm as u32);
        let Some(it) = spaces[parent as usize].as_ref() else { return };
        let child = match &spec {
            Some(spec) => AddressSpace::new(owner, spec, memory.mode, slot, &mut memory.frames),
            None => it.fork(owner, slot, &mut memory.frames),
        };
        let child = self.add_space(child);
        self.threads[t].spaces.push(child);
        self.load_in_turn(vm, c, p, t);
    }

    /// The child that runs in a thread's place is over.
    fn end_child(&mut self, vm: usize, c: usize, p: usize, t: usize) {
        let Some((memory, spaces, threads)) = self.vm_of(vm) else { return };
        let thread = &mut threads[t];
        if thread.spaces.len() < 2 {
            return;
        }
        let child = thread.spaces.pop().expect("there are two");
        if let Some(shadow) = memory.shadow.as_mut() {
            shadow.end(c - memory.first, spaces, child, &mut thread.todos);
        }
        if let Some(it) = spaces[child as usize].take() {
            it.free(&mut memory.frames);
        }
        self.unused.push(child);
        self.load_in_turn(vm, c, p, t);
    }

    /// A thread takes back pages that it has come to; in a child process, it drops their translations itself.
    fn unmap(&mut self, vm: usize, c: usize, p: usize, t: usize, pages: u32) {
        let Some((memory, spaces, threads)) = self.vm_of(vm) else { return };
        let thread = &mut threads[t];
        let Some(&space) = thread.spaces.last() else { return };
        let Some(it) = spaces[space as usize].as_mut() else { return };
        let gone = it.unmap(pages, &mut memory.frames);
        if let Some(shadow) = memory.shadow.as_mut() {
            for (number, entries) in gone {
                shadow.write(c - memory.first, spaces, (space, number), (entries, Write::Clears), &mut thread.todos);
            }
        }
        if thread.spaces.len() > 1 {
            self.load_in_turn(vm, c, p, t);
        }
    }

    /// A thread's program starts again.
    pub(crate) fn restart(&mut self, t: usize) {
        let thread = &mut self.threads[t];
        thread.todos.clear();
        thread.mapped = None;
        let children = if thread.spaces.is_empty() { Vec::new() } else { thread.spaces.split_off(1) };
        for child in children {
            if let Some(it) = self.spaces[child as usize].take() {
                let vm = (it.owner >> VM_SHIFT) as usize;
                if let Some(memory) = self.vms[vm].as_mut() {
                    it.free(&mut memory.frames);
                }
            }
            self.unused.push(child);
        }
    }
}

impl WalkCounts {
    /// So many walks of a kind, which took that long.
    fn add(&mut self, walked: &Walked, walks: f64, took: Ps) -> Ps {
        self.references[Dimension::Guest as usize] += walks * walked.guest;
        self.references[Dimension::Nested as usize] += walks * walked.nested;
        self.time_ps += took;
        took
    }
}

impl ReferencePrices {
    /// What the references of so many walks take in the nearest caches: entries that map pages are rarely in the first.
    fn of(&self, walked: &Walked, walks: f64) -> Ps {
        let near = walked.guest + walked.nested - walked.last;
        (walks * (near * self.l1 as f64 + walked.last * self.private as f64)) as Ps
    }
}

impl VmMemory {
    fn new_owner(&mut self, vm: u32) -> Owner {
        self.owners = (self.owners + 2) & ((1 << VM_SHIFT) - 1);
        vm << VM_SHIFT | self.owners
    }

    /// Entries of the first table that the kernel's pages need.
    fn kernel_entries(&self) -> u32 {
        let shape = Shape::of(self.mode);
        let mut entries: Vec<Page> = self.kernel.hot.iter().map(|hot| hot.page / shape.reach()).collect();
        entries.dedup();
        entries.len() as u32
    }
}

impl Second {
    fn by_large_pages(self) -> bool {
        matches!(self, Self::Nested(Backing::Large, _))
    }
}

/// Walks for pages one after the other; what one takes.
fn sample(walker: &mut Walker, space: &AddressSpace, memory: &VmMemory, pages: &[Hot], seen: &mut Vec<u64>) -> Walked {
    let mut sum = [0u32; 3];
    let mut see = |reference: Reference| {
        sum[reference.of as usize] += 1;
        sum[2] += u32::from(reference.is_last);
        seen.push(reference.line);
    };
    let shadow = memory.shadow.as_ref().map(|_| shadow_of(space, memory.mode, pages));
    for &Hot { page, leaf, frame } in pages {
        match &shadow {
            Some(tables) => walker.walk(tables, (page, 1), frame, Second::None, &mut see),
            None => walker.walk(&space.tables, (page, leaf), frame, memory.second, &mut see),
        }
    }
    let [guest, nested, last] = sum.map(|sum| f64::from(sum) / pages.len().max(1) as f64);
    Walked { guest, nested, last, holds_for: 0.0 }
}

/// The shadow of an address space, as far as these pages go; the VMM's pages are as far apart as it happens.
fn shadow_of(space: &AddressSpace, mode: GuestMode, pages: &[Hot]) -> Tables {
    let mut next = space.slot * 4096;
    let mut frame = || {
        next += 1;
        next
    };
    let mut tables = Tables::new(Shape::of_shadow(mode), frame());
    for hot in pages {
        tables.map(hot.page, 1, &mut frame);
    }
    tables
}

/// Pages that a kernel goes through, from the beginning of memory on: its text after 1 MiB, its data all over the first 16 MiB.
fn kernel_pages(footprints: &Footprints, is_large: bool) -> Vec<(Page, u8)> {
    let of = if is_large { footprints.large_kernel } else { footprints.kernel };
    let step = if is_large { 512 } else { 1 };
    let text = (0..Page::from(of.code)).map(|number| 256 + number * step);
    let data = (0..Page::from(of.data)).map(|number| 1024 + number * if is_large { 512 } else { 173 });
    text.chain(data).map(|page| (page, 2)).collect()
}

/// Lines of the entries that map a heap.
fn heap_lines(space: &Spec, mode: GuestMode, second: Second) -> u64 {
    let pages = space.heap_bytes.div_ceil(4096);
    let lines = |entries: u64, bytes: u64| (entries * bytes).div_ceil(LINE_BYTES);
    let entry = if mode == GuestMode::Legacy && second != Second::None { 4 } else { 8 };
    let is_large = space.heap_page == muster_model::workload::HeapPage::Large && second != Second::None;
    let own = lines(if is_large { pages / 512 } else { pages }, entry);
    own + match second {
        Second::None => 0,
        Second::Nested(Backing::Small, _) => lines(pages, 8),
        Second::Nested(Backing::Large, _) => lines(pages / 512, 8),
    }
}

fn check_size(space: &Spec, execs: &[Spec], mode: GuestMode, memory_mib: u32) -> Result<(), ModelError> {
    // The kernel has 16 MiB, and of 32-bit addresses, programs have 2.5 GiB for their heap.
    let most = (u64::from(memory_mib) - 16) << 20;
    let most = if mode == GuestMode::Long { most } else { most.min(5 << 29) };
    for space in std::iter::once(space).chain(execs) {
        let bytes = space.heap_bytes + (space.code_pages + space.data_pages + space.resident_pages) * 4096;
        if bytes > most {
            let allowed = format!("at most {most} bytes with `paging.memory_mib` and `paging.mode` as they are");
            return Err(ModelError::new("address_space", format!("{bytes} bytes of memory"), allowed));
        }
    }
    Ok(())
}

impl World {
    /// The parts of a thread's place: its VM, its pCPU.
    fn paging_place(&self, c: usize) -> (usize, usize) {
        let vcpu = &self.vcpus[c];
        (vcpu.vm as usize, vcpu.pcpu as usize)
    }

    /// What a stretch of vCPU `c` walks page tables for, where that is simulated entry by entry.
    #[inline]
    pub(crate) fn walk_entries(&mut self, c: usize, in_kernel: bool, time: Ps) -> Option<Ps> {
        let (vm, p) = self.paging_place(c);
        let thread = Some(self.vcpus[c].current as usize).filter(|_| !in_kernel);
        let caches = self.working_sets.as_mut()?.caches();
        self.paging.as_mut()?.walk(caches, vm, p, thread, time)
    }

    /// The same of the VMM's own code on a pCPU.
    #[inline]
    pub(crate) fn walk_vmm_entries(&mut self, p: usize, time: Ps) -> Ps {
        self.paging.as_mut().map_or(0, |paging| paging.walk_vmm(p, time))
    }

    /// A shootdown has come to vCPU `c`.
    pub(crate) fn drop_process(&mut self, c: usize) {
        let (vm, p) = self.paging_place(c);
        if let Some(paging) = &mut self.paging {
            paging.drop_process(vm, p);
        }
    }

    /// vCPU `c` is about to switch to a thread: it loads the base of that one's tables, unless it has it; what that takes.
    pub(crate) fn load_space(&mut self, c: usize, t: u32) -> Cost {
        let (vm, p) = self.paging_place(c);
        let Some(paging) = &mut self.paging else { return Cost::default() };
        if paging.threads[t as usize].spaces.last().is_none_or(|&space| paging.loaded[c] == space) {
            return Cost::default();
        }
        let todo = paging.load(vm, c, p, t as usize);
        todo.map_or_else(Cost::default, |todo| self.exit_now(c, todo))
    }

    /// vCPU `c` drops its process's translations by loading the base again; what that takes where it exits.
    pub(crate) fn reload_space(&mut self, c: usize) -> Cost {
        let (vm, _) = self.paging_place(c);
        let Some(paging) = &mut self.paging else { return Cost::default() };
        let space = paging.loaded[c];
        let Some((memory, spaces, _)) = paging.vm_of(vm).filter(|_| space != NONE) else { return Cost::default() };
        if spaces[space as usize].is_none() {
            return Cost::default();
        }
        let (v, kernel) = (c - memory.first, memory.kernel_entries());
        let Some(shadow) = memory.shadow.as_mut() else { return Cost::default() };
        let todo = shadow.load(v, spaces, space, kernel, &mut Todos::new());
        self.exit_now(c, todo)
    }

    /// An exit of vCPU `c` in the middle of something else.
    fn exit_now(&mut self, c: usize, todo: crate::vmm::shadow::Todo) -> Cost {
        let (vm, p) = self.paging_place(c);
        let mut walk = Walk::new(p, Cause::Vmm, self.now);
        if let Some(shadow) = self.paging.as_mut().and_then(|paging| paging.vms[vm].as_mut()?.shadow.as_mut()) {
            shadow.exit(todo, &mut self.shared.lines, &mut walk);
        }
        let mut cost = Cost { time: walk.at - self.now, parts: walk.parts };
        self.vmm_fetches(p, Cause::Vmm, cost.time - walk.waited).add_to(&mut cost);
        cost
    }

    /// The next exit of vCPU `c`'s thread, which then goes on where it was.
    pub(crate) fn next_exit(&mut self, c: usize, t: usize, in_call: bool) {
        let Some(todo) = self.paging.as_mut().and_then(|paging| paging.threads[t].todos.pop_front()) else {
            return self.proceed(c, in_call);
        };
        let is_fault = matches!(todo.exit, Exit::GuestFault | Exit::HiddenFault);
        let cost = self.exit_now(c, todo);
        let thread = &mut self.threads[t];
        thread.step = if in_call { Step::InCall } else { Step::Fetch };
        (thread.mode, thread.account, thread.remaining) = (Mode::Stretch, Account::PageWalk, 0);
        thread.in_kernel = !is_fault;
        self.vcpus[c].run_since = self.now;
        self.busy(c, VcpuState::Thread, Account::PageWalk, cost.time);
        self.divide(c, &cost.parts);
    }

    /// vCPU `c`'s thread has a page fault; `is_new` says that it takes new memory.
    pub(crate) fn map_page(&mut self, c: usize, t: usize, is_new: bool) {
        let (vm, _) = self.paging_place(c);
        if let Some(paging) = &mut self.paging {
            paging.touch(vm, c, t, is_new);
        }
    }

    /// The fault is over, and the thread comes to the page again.
    pub(crate) fn page_mapped(&mut self, c: usize, t: usize) {
        let (vm, _) = self.paging_place(c);
        if let Some(paging) = &mut self.paging {
            paging.touch_again(vm, t);
        }
    }

    /// vCPU `c`'s thread is replaced by its child.
    pub(crate) fn fork_space(&mut self, c: usize, t: usize, exec: Option<u32>) {
        let (vm, p) = self.paging_place(c);
        let (Some(paging), Some(sets)) = (&mut self.paging, &mut self.working_sets) else { return };
        if paging.vms[vm].is_some() {
            paging.fork(sets.caches(), vm, c, p, t, exec);
        }
    }

    /// Its child is over.
    pub(crate) fn end_child(&mut self, c: usize, t: usize) {
        let (vm, p) = self.paging_place(c);
        if let Some(paging) = &mut self.paging {
            paging.end_child(vm, c, p, t);
        }
    }

    /// It takes pages back.
    pub(crate) fn unmap_pages(&mut self, c: usize, t: usize, pages: u32) {
        let (vm, p) = self.paging_place(c);
        if let Some(paging) = &mut self.paging {
            paging.unmap(vm, c, p, t, pages);
        }
    }
}

/// What all VMs' paging did.
pub(crate) fn all(vms: Range<usize>, paging: Option<&Paging>) -> Option<PagingOutcome> {
    let paging = paging?;
    let mut sum = PagingOutcome::default();
    vms.filter_map(|vm| paging.outcome(vm)).for_each(|outcome| sum += outcome);
    Some(sum)
}
