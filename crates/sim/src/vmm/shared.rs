//! What the VMM's code shares between pCPUs: its scheduler's locks, queues and bitmap, each in the cache line where Xen has
//! it, and what coming by them takes.
//!
//! Xen 4.0 (xen/common/sched_credit.c, xen/include/xen/sched-if.h): each pCPU's `schedule_lock` shares its line with
//! what runs there; a pCPU's run queue has a line, as has each vCPU. In `struct csched_private` the lock comes first, and
//! the bitmap of idlers, the credit balance and the count of sorts follow in the next line.

use crate::engine::Ps;
use crate::machine::lines::{ByDistance, LineId, Lines};
use crate::machine::spinlock::{Kind, SpinLock};
use crate::machine::walk::Walk;
use muster_model::Topology;
use muster_policy::credit::Touch;

/// The shared objects of the VMM, and all cache lines of the machine that are objects.
#[derive(Debug)]
pub struct Shared {
    /// The machine's lines; guests have some of them, too.
    pub lines: Lines,
    /// Time that decisions took, over all pCPUs.
    pub decisions: Ps,
    /// By pCPU.
    schedule_locks: Vec<SpinLock>,
    /// By pCPU.
    queues: Vec<LineId>,
    /// By vCPU.
    credits: Vec<LineId>,
    private_lock: SpinLock,
    /// Bitmap of idlers, balance and count of sorts.
    private: LineId,
}

impl Shared {
    /// The objects of a machine with so many pCPUs and vCPUs. Lines move at `price`, come from memory at `memory`, and are copied
    /// for many at `copy` each.
    pub fn new(topology: &Topology, pcpus: usize, vcpus: usize, price: ByDistance, memory: Ps, copy: Ps) -> Self {
        let mut lines = Lines::new(topology, pcpus, price, memory, copy);
        Self {
            schedule_locks: (0..pcpus).map(|_| SpinLock::new(Kind::TestAndSet, lines.add())).collect(),
            queues: (0..pcpus).map(|_| lines.add()).collect(),
            credits: (0..vcpus).map(|_| lines.add()).collect(),
            private_lock: SpinLock::new(Kind::TestAndSet, lines.add()),
            private: lines.add(),
            lines,
            decisions: 0,
        }
    }

    /// Whether somebody has the `schedule_lock` of a pCPU at `at`.
    pub fn is_scheduling(&self, pcpu: usize, at: Ps) -> bool {
        self.schedule_locks[pcpu].is_held(at)
    }

    /// Walks through the objects that a decision touches, in order; what the decision does besides, `work`, is spread
    /// evenly before each.
    pub fn touch(&mut self, touches: &[Touch], work: Ps, walk: &mut Walk) {
        let step = work / (touches.len() as Ps).max(1);
        let from = walk.at;
        for touch in touches {
            walk.at += step;
            self.touch_one(*touch, walk);
        }
        walk.at += work - step * touches.len() as Ps;
        self.decisions += walk.at - from;
    }

    fn touch_one(&mut self, touch: Touch, walk: &mut Walk) {
        let lines = &mut self.lines;
        match touch {
            Touch::Lock(p) => walk.acquire(&mut self.schedule_locks[p], lines),
            Touch::TryLock { pcpu, taken: true } => walk.acquire(&mut self.schedule_locks[pcpu], lines),
            Touch::TryLock { pcpu, taken: false } => walk.write(self.schedule_locks[pcpu].line(), lines),
            Touch::Unlock(p) => walk.release(&mut self.schedule_locks[p], lines),
            Touch::PeekQueue(p) => walk.read(self.queues[p], lines),
            Touch::ChangeQueue(p) => walk.write(self.queues[p], lines),
            Touch::PeekIdlers | Touch::PeekEpoch => walk.read(self.private, lines),
            Touch::ChangeIdlers => walk.write(self.private, lines),
            Touch::LockPrivate => walk.acquire(&mut self.private_lock, lines),
            Touch::UnlockPrivate => walk.release(&mut self.private_lock, lines),
            Touch::ChangeCredits(vcpu) => walk.write(self.credits[vcpu as usize], lines),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::lines::Cause;
    use muster_model::CpuSet;
    use muster_policy::credit::{Config, Scheduler, Share, Tickle};

    const PCPUS: usize = 32;

    fn shared() -> (Shared, Topology) {
        let topology = Topology::regular(8, 1, 6, 1).unwrap();
        let price = [0, 0, 50_000, 50_000, 200_000];
        (Shared::new(&topology, PCPUS, PCPUS, price, 120_000, 90_000), topology)
    }

    /// What a block and a wake of one of 32 pinned vCPUs, the others running, take per turn, and all misses.
    fn blocks_and_wakes(lone_skips_balance: bool) -> (Ps, u64) {
        let (mut shared, topology) = shared();
        let config = Config { topology, pcpus: PCPUS, tickle: Tickle::One, lone_skips_balance };
        let mut scheduler = Scheduler::new(&config).unwrap();
        let domain = scheduler.add_domain(Share::default()).unwrap();
        for p in 0..PCPUS {
            scheduler.add_vcpu(domain, &CpuSet::single(p)).unwrap();
        }
        let mut at = 0;
        let mut took = 0;
        let mut walk = |shared: &mut Shared, p: usize, touches: &[Touch]| {
            at += 10_000_000;
            let mut walk = Walk::new(p, Cause::VmmScheduler, at);
            shared.touch(touches, 0, &mut walk);
            took += walk.at - at;
        };
        for p in 0..PCPUS {
            scheduler.wake(p as u32, p);
            scheduler.schedule(p, 0, |_| false);
        }
        for round in 0..10 {
            for p in 0..PCPUS {
                walk(&mut shared, p, scheduler.block(p as u32).touches);
                walk(&mut shared, p, scheduler.schedule(p, 0, |_| false).touches);
                let by = (p + 7 * round) % PCPUS;
                walk(&mut shared, by, scheduler.wake(p as u32, by).touches);
                walk(&mut shared, p, scheduler.schedule(p, 0, |_| false).touches);
            }
        }
        (took / (10 * PCPUS as Ps), shared.lines.misses()[Cause::VmmScheduler as usize])
    }

    #[test]
    fn who_looks_for_work_everywhere_moves_lines_from_everywhere() {
        let (with, without) = (blocks_and_wakes(false), blocks_and_wakes(true));
        println!("balancing {with:?}, lone pCPUs do not: {without:?}");
        assert!(with.0 > 2 * without.0 && with.1 > 2 * without.1, "{with:?} {without:?}");
    }

    #[test]
    fn a_walk_books_what_it_waits_for() {
        let (mut shared, _) = shared();
        let mut first = Walk::new(0, Cause::VmmScheduler, 1_000);
        shared.touch(&[Touch::Lock(3), Touch::ChangeQueue(3), Touch::Unlock(3)], 3_000, &mut first);
        assert_eq!(first.at, 1_000 + 3_000 + 2 * 120_000);
        let mut second = Walk::new(6, Cause::VmmScheduler, 2_000);
        assert!(shared.is_scheduling(3, 200_000) && !shared.is_scheduling(3, first.at));
        shared.touch(&[Touch::Lock(3), Touch::ChangeQueue(3), Touch::Unlock(3)], 0, &mut second);
        assert!(second.at >= first.at + 400_000);
        assert_eq!(second.parts.total(), second.at - 2_000);
    }
}
