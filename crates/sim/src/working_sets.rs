//! Who goes through which memory: programs, guests' kernels and the VMM as [working sets](crate::machine::cache), where a
//! workload states them.
//!
//! Time in a workload is without the misses of its working sets, and what they take is part of the time of whoever runs; what
//! comes from another CPU's caches is booked as such. Pages that a program touches for the first time are streams: each line is
//! missed once, when the program goes on after its faults. A thread or vCPU that moves pays by where its lines are, so that
//! the prices of refilling after a migration are not charged besides.
//!
//! A VM whose workload states none has no working sets at all, and costs nothing here.

use crate::engine::books::{Cost, Parts};
use crate::engine::{NS, Ps};
use crate::guest::translations::Walks;
use crate::machine::cache::{Caches, Filling, Misses, SetId};
use crate::machine::interrupt::reason;
use crate::machine::lines::{ByDistance, Cause};
use crate::machine::tlb::Space;
use crate::workload::program::Program;
use crate::world::World;
use muster_model::{Account, ModelError, Profile, Topology};

/// Lines of a page of 4 KiB.
pub const PAGE_LINES: u32 = 64;

/// What a guest's kernel goes through on a vCPU: as many bytes as its footprint of pages has (`guest::kernel`), assumed. Its
/// data is the larger part.
const KERNEL: (u64, u64) = (80 << 10, 60);
/// What the VMM goes through on a pCPU from an exit or a call until it is back in the guest: fitted, with [`LINES`], to the
/// overheads of HVM on one core (docs/papers/ixen.md).
const VMM: (u64, u64) = (32 << 10, 50);
/// Code of the VMM's scheduler: assumed. What it shares between pCPUs are lines by themselves.
const SCHEDULER: (u64, u64) = (4 << 10, 0);
/// Lines that kernels and VMMs come to in a picosecond, one in 10 ns.
const LINES: f64 = 1.0 / 10e3;
/// What the VMM takes of a paravirtualized guest's way into its kernel: about `sim.xen.bounce` and `sim.xen.iret`.
const ON_THE_WAY: Ps = 500 * NS;

/// A set, and how many of its lines code comes to in a picosecond.
#[derive(Debug, Clone, Copy)]
struct Rate {
    set: SetId,
    lines: f64,
}

/// What a thread goes through.
#[derive(Debug, Clone, Default)]
struct OfThread {
    sets: Vec<Rate>,
    /// Lines of pages that it has just got.
    streamed: u32,
}

/// All working sets of a world.
#[derive(Debug, Clone)]
pub struct WorkingSets {
    caches: Caches,
    threads: Vec<OfThread>,
    /// By vCPU, its kernel's; none where its VM has no working sets.
    kernels: Vec<Option<SetId>>,
    /// By pCPU, the VMM's and its scheduler's.
    vmm: Vec<[SetId; 2]>,
    /// How long programs have waited for lines from other CPUs' caches.
    moved_for_users: Ps,
}

/// What a run missed in its caches.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheMisses {
    /// Of the second level, lines that moved as objects included.
    pub l2: Misses,
    /// Of the last-level caches, without those.
    pub llc: Misses,
}

impl WorkingSets {
    /// The working sets of VMs, each given by its number of vCPUs and its program, on the first `pcpus` CPUs of a machine; none
    /// if no workload states any.
    ///
    /// # Errors
    /// When one does, and the machine does not say how large its caches are or what they cost.
    pub fn of<'a>(
        profile: &Profile,
        topology: &Topology,
        pcpus: usize,
        line: ByDistance,
        vms: impl Iterator<Item = (u32, &'a Program)> + Clone,
        has_tables: bool,
    ) -> Result<Option<Box<Self>>, ModelError> {
        if !has_tables && vms.clone().all(|(_, program)| !program.has_working_sets()) {
            return Ok(None);
        }
        let mut caches = Caches::new(profile, topology, pcpus, line)?;
        let mut own = |(bytes, written)| caches.add_set(bytes, written, false);
        let vmm = (0..pcpus).map(|_| [own(VMM), own(SCHEDULER)]).collect();
        let mut this = Self { caches, threads: Vec::new(), kernels: Vec::new(), vmm, moved_for_users: 0 };
        vms.for_each(|(vcpus, program)| this.add_vm(vcpus, program));
        Ok(Some(Box::new(this)))
    }

    fn add_vm(&mut self, vcpus: u32, program: &Program) {
        if !program.has_working_sets() {
            self.kernels.extend((0..vcpus).map(|_| None));
            return self.threads.extend(program.threads.iter().map(|_| OfThread::default()));
        }
        let caches = &mut self.caches;
        self.kernels.extend((0..vcpus).map(|_| Some(caches.add_set(KERNEL.0, KERNEL.1, false))));
        let mut shared = std::collections::BTreeMap::new();
        for thread in &program.threads {
            let Some(set) = thread.working_set else {
                self.threads.push(OfThread::default());
                continue;
            };
            let per_byte = 1.0 / (set.line_ns as f64 * NS as f64) / set.bytes as f64;
            let own = set.bytes - set.shared_bytes;
            let of_group = (set.shared_bytes > 0).then(|| {
                let add = || self.caches.add_set(set.shared_bytes, set.written_percent, true);
                (*shared.entry(thread.start).or_insert_with(add), set.shared_bytes)
            });
            let own = (own > 0).then(|| (self.caches.add_set(own, set.written_percent, false), own));
            let rate = |(set, bytes)| Rate { set, lines: bytes as f64 * per_byte };
            self.threads.push(OfThread { sets: own.into_iter().chain(of_group).map(rate).collect(), streamed: 0 });
        }
    }

    /// The caches themselves, for who has working sets of a kind of its own.
    pub(crate) fn caches(&mut self) -> &mut Caches {
        &mut self.caches
    }

    /// What the run missed; `lines` are those that are objects.
    pub fn misses(&self, lines: &[u64; Cause::ALL.len()]) -> CacheMisses {
        let mut l2 = *self.caches.l2_misses();
        for (cause, &moved) in lines.iter().enumerate() {
            l2.all[cause] += moved as f64;
            l2.coherence[cause] += moved as f64;
        }
        CacheMisses { l2, llc: *self.caches.llc_misses() }
    }

    /// How long programs have waited for lines from other CPUs' caches.
    pub fn moved_for_users(&self) -> Ps {
        self.moved_for_users
    }

    /// A thread computes for `time` on a CPU.
    fn user(&mut self, cpu: usize, thread: usize, time: Ps) -> Filling {
        let of_thread = &mut self.threads[thread];
        let mut filling = Filling::default();
        let streamed = std::mem::take(&mut of_thread.streamed);
        if streamed > 0 {
            filling += self.caches.stream(cpu, streamed, Cause::User);
        }
        for &Rate { set, lines } in &of_thread.sets {
            filling += self.caches.touch(cpu, set, time as f64 * lines, Cause::User);
        }
        self.moved_for_users += filling.moved;
        filling
    }

    /// The kernel of a vCPU runs for `time` on a CPU.
    #[inline]
    fn kernel(&mut self, cpu: usize, vcpu: usize, time: Ps) -> Filling {
        let Some(set) = self.kernels[vcpu] else { return Filling::default() };
        self.caches.touch(cpu, set, time as f64 * LINES, Cause::Guest)
    }

    /// The VMM, or its scheduler, runs for `time` on a CPU.
    #[inline]
    fn vmm(&mut self, cpu: usize, cause: Cause, time: Ps) -> Filling {
        let set = self.vmm[cpu][usize::from(cause == Cause::VmmScheduler)];
        self.caches.touch(cpu, set, time as f64 * LINES, cause)
    }
}

/// What code fetches into caches and TLBs, on top of what it takes otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fetching {
    pub(crate) filling: Filling,
    /// Walks through page tables.
    pub(crate) walking: Ps,
}

impl Fetching {
    /// All of it.
    #[inline]
    pub(crate) fn total(&self) -> Ps {
        self.filling.total() + self.walking
    }

    /// Adds what is not its code's own to the parts of a stretch.
    #[inline]
    pub(crate) fn divide(&self, parts: &mut Parts) {
        parts.add(Account::PageWalk, self.walking);
        parts.add(Account::CacheTransfer, self.filling.moved);
    }

    /// Adds it to a cost.
    #[inline]
    pub(crate) fn add_to(&self, cost: &mut Cost) {
        cost.time += self.total();
        self.divide(&mut cost.parts);
    }
}

impl Program {
    fn has_working_sets(&self) -> bool {
        self.threads.iter().any(|thread| thread.working_set.is_some())
    }
}

impl World {
    /// What a stretch of `time` of vCPU `c`'s thread, in the kernel or not, fetches into caches. A paravirtualized kernel is
    /// entered by way of the VMM.
    #[inline]
    fn fill_caches(&mut self, c: usize, in_kernel: bool, time: Ps) -> Filling {
        if self.working_sets.is_none() { Filling::default() } else { self.fill_followed_caches(c, in_kernel, time) }
    }

    /// What a stretch of vCPU `c`'s thread fetches into caches and TLBs.
    #[inline]
    pub(crate) fn fetch_in_stretch(&mut self, c: usize, in_kernel: bool, time: Ps) -> Fetching {
        let filling = self.fill_caches(c, in_kernel, time);
        Fetching { filling, walking: self.walk_tables(c, in_kernel, time) }
    }

    #[inline(never)]
    fn fill_followed_caches(&mut self, c: usize, in_kernel: bool, time: Ps) -> Filling {
        let Some(sets) = &mut self.working_sets else { return Filling::default() };
        let vcpu = &self.vcpus[c];
        let cpu = vcpu.pcpu as usize;
        if !in_kernel {
            return sets.user(cpu, vcpu.current as usize, time);
        }
        let mut filling = sets.kernel(cpu, c, time);
        if self.pcpus[cpu].space == Space::User && self.walks.as_ref().is_some_and(Walks::by_vmm) {
            filling += sets.vmm(cpu, Cause::Vmm, ON_THE_WAY);
        }
        filling
    }

    /// What vCPU `c`'s handlers of the interrupts `bits` fetch; with what the VMM does for that they take `time`.
    pub(crate) fn fetch_in_handlers(&mut self, c: usize, bits: u8, time: Ps) -> Fetching {
        let p = self.vcpus[c].pcpu as usize;
        let tick = if bits & reason::TICK != 0 { self.prices.tick } else { 0 };
        let handlers = (Ps::from(bits.count_ones()) * self.prices.interrupt + tick).min(time);
        let mut fetching = self.vmm_fetches_in_guest(p, time - handlers);
        if let Some(sets) = &mut self.working_sets {
            fetching.filling += sets.kernel(p, c, handlers);
        }
        fetching
    }

    /// What the VMM, which runs for `time` on a pCPU, fetches where it takes over from a guest; natively there is none.
    #[inline]
    pub(crate) fn vmm_fetches_in_guest(&mut self, p: usize, time: Ps) -> Fetching {
        if self.virtualized { self.vmm_fetches(p, Cause::Vmm, time) } else { Fetching::default() }
    }

    /// What the VMM, or its scheduler, which runs for `time` on a pCPU, fetches.
    #[inline]
    pub(crate) fn vmm_fetches(&mut self, p: usize, cause: Cause, time: Ps) -> Fetching {
        let walking = self.walk_vmm_tables(p, time);
        let filling = self.working_sets.as_mut().map_or(Filling::default(), |sets| sets.vmm(p, cause, time));
        Fetching { filling, walking }
    }

    /// Books what the stretch that vCPU `c` has just begun fetches.
    #[inline]
    pub(crate) fn book_fetching(&mut self, c: usize, fetching: Fetching) {
        if fetching.walking + fetching.filling.moved > 0 {
            let mut parts = Parts::NONE;
            fetching.divide(&mut parts);
            self.ledgers.divide(c, self.vcpus[c].pcpu as usize, &parts);
        }
    }

    /// A thread has got pages that it goes through next.
    pub(crate) fn streams(&mut self, t: usize, lines: u32) {
        if let Some(sets) = &mut self.working_sets {
            sets.threads[t].streamed += lines;
        }
    }

    /// Whether what vCPU `c` refills after a migration is followed.
    pub(crate) fn follows_caches_of(&self, c: usize) -> bool {
        self.working_sets.as_ref().is_some_and(|sets| sets.kernels[c].is_some())
    }

    /// Lines that a woken thread fetched from where its waker wrote them, at a price by distance.
    pub(crate) fn count_wake_lines(&mut self, distance: usize) {
        if self.working_sets.is_some() && self.prices.cache_line[distance] > 0 {
            let lines = self.prices.wake_lines[distance] / self.prices.cache_line[distance];
            self.shared.lines.add_misses(Cause::Guest, lines);
        }
    }
}
