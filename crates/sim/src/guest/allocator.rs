//! The locks of the page allocator: `zone->lock` of free pages (Linux 2.6.31, mm/page_alloc.c) and `zone->lru_lock` of the lists
//! that reclaim goes through (mm/swap.c).
//!
//! A CPU keeps free pages of its own, which it gets from the zone and gives back to it by batches; what it adds to the
//! reclaim lists it collects in a vector. So a fault for new memory takes `lock` once in [`BATCH`] pages and `lru_lock` once
//! in [`PAGEVEC`]; freeing takes `lru_lock` once in as many, and `lock` where the CPU has more than [`MOST`].
//! Natively each NUMA node has a zone, whose pages go to those of its CPUs that touch them first; a guest of Xen 4.0 sees no
//! nodes and has one zone for all.
//!
//! The work under the locks is in the price of a fault or of munmap: what is added is the way of the locks' lines and the
//! waiting. Left out: the zones' counters, which each CPU keeps and rarely folds, the locks of page tables, one for each
//! of their pages where a kernel is built for four CPUs or more (include/linux/mm_types.h), the process's counts of its
//! pages (atomic, but their line is nothing beside the mm semaphore's), other zones than the node's own (pages are freed
//! to the node of the CPU that frees them), and pages of files and of processes that end.

use crate::engine::{NS, Ps};
use crate::guest::kernel_locks::{LockId, Plan};
use crate::guest::thread::Step;
use crate::machine::lines::Lines;
use crate::machine::spinlock::{Kind, SpinLock};
use crate::world::World;

/// `per_cpu_pages.batch` of a zone of 512 MiB or more (`zone_batchsize`).
const BATCH: u32 = 31;
/// `per_cpu_pages.high` (`setup_pageset`).
const MOST: u32 = 6 * BATCH;
/// PAGEVEC_SIZE.
const PAGEVEC: u32 = 14;

/// One page that moves between a zone and a CPU (`__rmqueue`, `__free_one_page`): assumed.
const MOVE_PAGE: Ps = 20 * NS;
/// One page that comes onto a reclaim list or off it: assumed.
const LIST_PAGE: Ps = 20 * NS;

/// A node's or a guest's memory.
#[derive(Debug)]
struct Zone {
    lock: SpinLock,
    lru_lock: SpinLock,
}

/// A CPU's own pages.
#[derive(Debug, Clone, Copy)]
struct Lists {
    zone: u32,
    free: u32,
    /// In its vector of pages that are not on a reclaim list yet.
    unlisted: u32,
}

/// All zones, and what each vCPU has of them.
#[derive(Debug, Default)]
pub struct Allocator {
    zones: Vec<Zone>,
    lists: Vec<Lists>,
}

impl Allocator {
    /// Adds vCPUs, each given by its node; those of a node share a zone.
    pub fn add(&mut self, nodes: impl Iterator<Item = u32>, lines: &mut Lines) {
        let first = self.zones.len();
        for node in nodes {
            let zone = first + node as usize;
            while self.zones.len() <= zone {
                let lock = SpinLock::new(Kind::Ticket, lines.add());
                self.zones.push(Zone { lock, lru_lock: SpinLock::new(Kind::Ticket, lines.add()) });
            }
            self.lists.push(Lists { zone: zone as u32, free: 0, unlisted: 0 });
        }
    }

    /// vCPU `c` takes a new page for which it needs no lock; whether it has one.
    #[inline]
    fn take_own(&mut self, c: usize) -> bool {
        let own = &mut self.lists[c];
        let has_one = own.free > 0 && own.unlisted + 1 < PAGEVEC;
        own.free -= u32::from(has_one);
        own.unlisted += u32::from(has_one);
        has_one
    }

    /// vCPU `c` takes a new page (`buffered_rmqueue`, `__lru_cache_add`); what it does under locks for that.
    #[inline]
    fn take(&mut self, c: usize) -> Plan {
        let own = &mut self.lists[c];
        let mut plan = Plan::NONE;
        if own.free == 0 {
            own.free = BATCH;
            plan = plan.then_under(LockId::Zone(own.zone), Ps::from(BATCH) * MOVE_PAGE);
        }
        own.free -= 1;
        own.unlisted += 1;
        if own.unlisted == PAGEVEC {
            own.unlisted = 0;
            plan = plan.then_under(LockId::Lru(own.zone), Ps::from(PAGEVEC) * LIST_PAGE);
        }
        plan
    }

    /// vCPU `c` puts what it has not listed yet onto the reclaim lists (`lru_add_drain`).
    fn list(&mut self, c: usize, plan: Plan) -> Plan {
        let own = &mut self.lists[c];
        match std::mem::take(&mut own.unlisted) {
            0 => plan,
            pages => plan.then_under(LockId::Lru(own.zone), Ps::from(pages) * LIST_PAGE),
        }
    }

    /// vCPU `c` frees at most [`PAGEVEC`] pages (`release_pages`, `free_hot_cold_page`).
    fn free(&mut self, c: usize, pages: u32, plan: Plan) -> Plan {
        let own = &mut self.lists[c];
        let listed = plan.then_under(LockId::Lru(own.zone), Ps::from(pages) * LIST_PAGE);
        own.free += pages;
        if own.free < MOST {
            return listed;
        }
        own.free -= BATCH;
        listed.then_under(LockId::Zone(own.zone), Ps::from(BATCH) * MOVE_PAGE)
    }

    /// How many zones there are.
    pub fn zones(&self) -> usize {
        self.zones.len()
    }

    /// A zone's lock; of its reclaim lists, or of its free pages.
    pub fn lock(&mut self, zone: usize, of_lists: bool) -> &mut SpinLock {
        let zone = &mut self.zones[zone];
        if of_lists { &mut zone.lru_lock } else { &mut zone.lock }
    }
}

impl World {
    /// vCPU `c`'s thread works for `work` on a fault for which it needs a new page; `enters` says that this begins the fault.
    #[inline]
    pub(crate) fn take_page(&mut self, c: usize, work: Ps, enters: bool) {
        if enters {
            self.enter_kernel(c);
        }
        let Some(allocator) = self.allocator.as_mut() else { return self.in_kernel(c, work, Step::Fetch) };
        if allocator.take_own(c) {
            return self.in_kernel(c, work, Step::Fetch);
        }
        let plan = allocator.take(c);
        self.in_kernel_under(c, &plan, work, Step::Fetch);
    }

    /// vCPU `c`'s thread frees `pages` of an unmapping, as many as fit a vector; the operation comes again for the others.
    pub(crate) fn free_pages(&mut self, c: usize, pages: u32) {
        let thread = &mut self.threads[self.vcpus[c].current as usize];
        let is_first = thread.unfreed == 0;
        let left = if is_first { pages } else { thread.unfreed };
        let now = left.min(PAGEVEC);
        thread.unfreed = left - now;
        thread.pc -= u32::from(left > now);
        let plan = self.allocator.as_mut().map_or(Plan::NONE, |allocator| {
            let listed = if is_first { allocator.list(c, Plan::NONE) } else { Plan::NONE };
            allocator.free(c, now, listed)
        });
        self.in_kernel_under(c, &plan, Ps::from(now) * self.prices.unmap_page, Step::Fetch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::lines::Cause;
    use crate::run::Simulation;
    use muster_model::study::{Environment, Experiment, GuestKernel};
    use muster_model::{Profile, Topology, Workload};

    #[test]
    fn a_cpu_goes_to_its_zone_by_batches() {
        let topology = Topology::regular(1, 1, 2, 1).unwrap();
        let mut lines = Lines::new(&topology, 2, [0; 5], 0, 0);
        let mut allocator = Allocator::default();
        allocator.add([0, 0].into_iter(), &mut lines);
        let pages = BATCH * PAGEVEC;
        let held: Ps = (0..pages).map(|_| allocator.take(0).held()).sum();
        assert_eq!(held, Ps::from(pages) * (MOVE_PAGE + LIST_PAGE));
        // A CPU that frees what it took does without the zone's lock.
        for _ in 0..100 {
            let held = (0..13).map(|_| allocator.take(0).held()).sum::<Ps>();
            let listing = allocator.list(0, Plan::NONE).held();
            let freeing = allocator.free(0, 13, Plan::NONE).held();
            let batch = if allocator.lists[0].free == BATCH { Ps::from(BATCH) * MOVE_PAGE } else { 0 };
            assert!(held + listing + freeing <= 26 * LIST_PAGE + batch, "{held} {listing} {freeing}");
        }
        // One that only frees gives a batch back for each that it gets.
        let gives =
            (0..31 * BATCH).filter(|_| allocator.free(1, PAGEVEC, Plan::NONE).held() > Ps::from(PAGEVEC) * LIST_PAGE);
        assert_eq!(gives.count() as u32, (31 * BATCH * PAGEVEC - MOST) / BATCH + 1);
        assert!(allocator.lists[1].free < MOST);
    }

    /// After a run of one process a core that gets so many pages, of memory or of a file, and does `then`.
    fn touched(environment: Environment, cores: u32, cached: bool, then: &str, locked: bool) -> World {
        let profile = Profile::from_toml(include_str!("../../../../machines/ixen-opteron48.toml"), "machine").unwrap();
        let workload = format!(
            r#"{{"name":"w","groups":[{{"name":"g","count":"threads","phases":[{{"fork":{{"phases":[{{"loop":{{"times":40,"phases":[
            {{"run":{{"ns":{{"exponential":{{"mean":3000}}}}}}}},
            {{"touch-memory":{{"pages":100,"cached":{cached}}}}}{then}]}}}}]}}}}]}}]}}"#
        );
        let workload = Workload::from_json(&workload, "workload").unwrap();
        let (kernel, vcpus) = (Some(GuestKernel::Linux2631), (environment != Environment::Native).then_some(cores));
        let experiment = Experiment { kernel, vcpus, ..Experiment::new(environment, cores) };
        let mut world = Simulation::new(&experiment, &profile, &workload, None).unwrap().into_world();
        if !locked {
            world.allocator = None;
        }
        world.run().unwrap();
        for core in 0..cores as usize {
            assert_eq!(world.ledgers.pcpus().core(core).iter().sum::<Ps>(), world.now, "the books balance");
        }
        world
    }

    const PAGES: f64 = 4000.0;

    fn misses(world: &World, cores: u32) -> f64 {
        world.shared.lines.misses()[Cause::Guest as usize] as f64 / PAGES / f64::from(cores)
    }

    fn spun(world: &World, cores: u32) -> f64 {
        world.kernel_spin as f64 / PAGES / f64::from(cores)
    }

    #[test]
    fn cpus_of_a_node_contend_for_its_zone_and_those_of_others_do_not() {
        let native = |cores| touched(Environment::Native, cores, false, "", true);
        let [one, two, six, twelve] = [1, 2, 6, 12].map(native);
        assert_eq!(one.kernel_spin, 0);
        assert!(misses(&one, 1) < 0.01, "each line comes once: {}", misses(&one, 1));
        // A line for one page in 31 and one in 14, and more where somebody has the lock.
        assert!(misses(&two, 2) > 0.03 && misses(&six, 6) > misses(&two, 2), "{}", misses(&six, 6));
        assert!(spun(&six, 6) > 1.5 * spun(&two, 2), "{} {}", spun(&six, 6), spun(&two, 2));
        assert!((spun(&twelve, 12) / spun(&six, 6) - 1.0).abs() < 0.2, "{} {}", spun(&twelve, 12), spun(&six, 6));
        // A guest sees no nodes.
        let guest = |cores| spun(&touched(Environment::Pv, cores, false, "", true), cores);
        assert!(guest(12) > 1.5 * guest(6), "{} {}", guest(12), guest(6));
    }

    #[test]
    fn pages_of_files_come_from_no_zone() {
        let world = touched(Environment::Native, 6, true, "", true);
        assert_eq!(world.kernel_spin, 0);
        assert!(misses(&world, 6) < 0.01, "{}", misses(&world, 6));
    }

    #[test]
    fn freeing_takes_the_locks_as_well() {
        let unmap = r#",{"unmap":{"pages":100}}"#;
        let spun = |cores, then| spun(&touched(Environment::Native, cores, false, then, true), cores);
        assert!(spun(6, unmap) > 1.3 * spun(6, ""), "{} {}", spun(6, unmap), spun(6, ""));
        assert_eq!(spun(1, unmap), 0.0);
    }

    #[test]
    fn on_one_cpu_locks_cost_next_to_nothing() {
        for then in ["", r#",{"unmap":{"pages":100}}"#, r#",{"unmap":{"pages":1}}"#] {
            let [with, without] = [true, false].map(|locked| touched(Environment::Native, 1, false, then, locked).now);
            assert!(with >= without && with - without < without / 100, "{then}: {with} {without}");
        }
    }
}
