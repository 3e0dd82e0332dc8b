//! Cache lines that CPUs share: who holds one, and how long it takes to get it.
//!
//! A line is in one state of MOESI at each CPU: some CPUs hold a copy, and the last writer owns it until another CPU
//! writes. A CPU that holds what it needs goes on at once; else the line moves, at a price that depends on how far away
//! the nearest holder is (to read) or the farthest (to write: it has to confirm that its copy is gone). A line moves for one CPU
//! at a time: requests are served one after the other, in the order in which they are made.
//!
//! Nothing here takes an event: who asks for a line learns when it will be there.

use crate::engine::Ps;
use muster_model::topology::Cpu;
use muster_model::{CpuSet, Distance, Topology};
use std::collections::BTreeMap;

/// Number of a line.
pub type LineId = u32;

/// Who caused a line to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The program.
    User,
    /// The guest's kernel.
    Guest,
    /// The VMM, but for its scheduler.
    Vmm,
    /// The VMM's vCPU scheduler.
    VmmScheduler,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 4] = [Self::User, Self::Guest, Self::Vmm, Self::VmmScheduler];
}

/// Prices by distance, indexed by [`Distance`].
pub type ByDistance = [Ps; Distance::ALL.len()];

#[derive(Debug, Clone)]
struct Line {
    /// Who holds it while it is at one CPU or none, as most lines are most of the time.
    holder: Holder,
    /// Who hold it while they are several.
    holders: CpuSet,
    /// When the last request that was made will have been served.
    free_at: Ps,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    One(u32),
    Several,
}

/// All lines of a machine, and its shape as lines see it.
#[derive(Debug, Clone)]
pub struct Lines {
    lines: Vec<Line>,
    price: ByDistance,
    /// From memory, when nobody holds the line.
    memory: Ps,
    /// Each further copy when many read a line at once.
    copy: Ps,
    /// By CPU.
    places: Vec<Cpu>,
    /// By CPU, itself and all CPUs up to a distance: core, LLC, node.
    within: Vec<[CpuSet; 3]>,
    misses: [u64; Cause::ALL.len()],
}

/// The distances of [`Lines::within`]; what lies beyond is in another node.
const RINGS: [Distance; 3] = [Distance::SmtSibling, Distance::SameLlc, Distance::OtherLlc];

impl Lines {
    /// No lines, on the first `cpus` CPUs of a machine. `price` is for a line that moves from a CPU, `memory` from memory,
    /// `copy` for each further copy when many read it at once.
    ///
    /// # Panics
    /// When the machine lacks one of them.
    pub fn new(topology: &Topology, cpus: usize, price: ByDistance, memory: Ps, copy: Ps) -> Self {
        let place = |cpu: usize| *topology.cpu(cpu).expect("the machine has the CPUs");
        let places: Vec<Cpu> = (0..cpus).map(place).collect();
        let within = rings(&places);
        Self { lines: Vec::new(), price, memory, copy, places, within, misses: [0; Cause::ALL.len()] }
    }

    /// A line that nobody holds.
    pub fn add(&mut self) -> LineId {
        self.lines.push(Line { holder: Holder::Nobody, holders: CpuSet::EMPTY, free_at: 0 });
        self.lines.len() as LineId - 1
    }

    /// Whether `cpu` alone has the line.
    #[inline]
    pub fn is_own(&self, line: LineId, cpu: usize) -> bool {
        self.lines[line as usize].holder == Holder::One(cpu as u32)
    }

    /// `cpu` reads the line at `at`; when it has it.
    #[inline]
    pub fn read(&mut self, line: LineId, cpu: usize, at: Ps, cause: Cause) -> Ps {
        let there = &self.lines[line as usize];
        let (price, first) = match there.holder {
            Holder::One(holder) if holder as usize == cpu => return at,
            Holder::Several if there.holders.contains(cpu) => return at,
            Holder::Nobody => (self.memory, None),
            Holder::One(holder) => (self.price(holder as usize, cpu), Some(holder as usize)),
            Holder::Several => (self.nearest(&there.holders, cpu), None),
        };
        let served = self.serve(line, at, price, cause);
        let there = &mut self.lines[line as usize];
        match (there.holder, first) {
            (Holder::Several, _) => there.holders.insert(cpu),
            (_, None) => there.holder = Holder::One(cpu as u32),
            (_, Some(first)) => {
                there.holders = CpuSet::single(first);
                there.holders.insert(cpu);
                there.holder = Holder::Several;
            }
        }
        served
    }

    /// `cpu` writes the line at `at`; when it has it for itself.
    #[inline]
    pub fn write(&mut self, line: LineId, cpu: usize, at: Ps, cause: Cause) -> Ps {
        let there = &self.lines[line as usize];
        let price = match there.holder {
            Holder::One(holder) if holder as usize == cpu => return at,
            Holder::Nobody => self.memory,
            Holder::One(holder) => self.price(holder as usize, cpu),
            Holder::Several => self.farthest(&there.holders, cpu),
        };
        let served = self.serve(line, at, price, cause);
        self.lines[line as usize].holder = Holder::One(cpu as u32);
        served
    }

    /// The line comes to `cpu` alone at `at`, at the end of transfers that were reckoned elsewhere.
    pub fn hand_over(&mut self, line: LineId, cpu: usize, at: Ps) {
        self.keep_busy(line, at);
        self.lines[line as usize].holder = Holder::One(cpu as u32);
    }

    /// The line is kept busy until `until` by CPUs that try in vain: who asks now is served later.
    pub fn keep_busy(&mut self, line: LineId, until: Ps) {
        let free_at = &mut self.lines[line as usize].free_at;
        *free_at = (*free_at).max(until);
    }

    /// What moving a line from `from` to `to` costs.
    #[inline]
    pub fn price(&self, from: usize, to: usize) -> Ps {
        self.price[self.distance(from, to) as usize]
    }

    /// How far apart two CPUs are.
    #[inline]
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        if a == b { Distance::SameCpu } else { self.places[a].distance(&self.places[b]) }
    }

    /// How long each further copy takes when many read a line at once.
    pub fn copy(&self) -> Ps {
        self.copy
    }

    /// How often a line had to move, by cause (in the order of [`Cause::ALL`]).
    pub fn misses(&self) -> &[u64; Cause::ALL.len()] {
        &self.misses
    }

    /// Books lines that moved without being objects here.
    pub fn add_misses(&mut self, cause: Cause, count: u64) {
        self.misses[cause as usize] += count;
    }

    fn serve(&mut self, line: LineId, at: Ps, price: Ps, cause: Cause) -> Ps {
        self.misses[cause as usize] += 1;
        let free_at = &mut self.lines[line as usize].free_at;
        *free_at = at.max(*free_at) + price;
        *free_at
    }

    fn nearest(&self, holders: &CpuSet, cpu: usize) -> Ps {
        self.price[ring(|within| !within.is_disjoint(holders), &self.within[cpu])]
    }

    fn farthest(&self, holders: &CpuSet, cpu: usize) -> Ps {
        self.price[ring(|within| holders.is_subset(within), &self.within[cpu])]
    }
}

/// By CPU, the CPUs up to each of [`RINGS`].
fn rings(places: &[Cpu]) -> Vec<[CpuSet; 3]> {
    let by = |of: fn(&Cpu) -> u32| {
        let mut sets: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for (cpu, place) in places.iter().enumerate() {
            sets.entry(of(place)).or_insert(CpuSet::EMPTY).insert(cpu);
        }
        sets
    };
    let (cores, llcs, nodes) = (by(|cpu| cpu.core), by(|cpu| cpu.llc), by(|cpu| cpu.node));
    let up_to = |cpu: &Cpu| {
        let core = cores[&cpu.core];
        let llc = core.union(&llcs[&cpu.llc]);
        [core, llc, llc.union(&nodes[&cpu.node])]
    };
    places.iter().map(up_to).collect()
}

/// The first ring that satisfies `is_it`, as an index by [`Distance`]; [`Distance::OtherNode`] when none does.
#[inline]
fn ring(is_it: impl Fn(&CpuSet) -> bool, within: &[CpuSet; 3]) -> usize {
    RINGS.iter().zip(within).find(|(_, within)| is_it(within)).map_or(Distance::OtherNode, |(ring, _)| *ring) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRICE: ByDistance = [0, 10, 40, 100, 200];
    const MEMORY: Ps = 150;
    const CPUS: usize = 16;

    /// Two sockets, two LLCs each, two cores each, two threads each.
    fn lines() -> (Lines, LineId) {
        let topology = Topology::regular(2, 2, 2, 2).unwrap();
        let mut lines = Lines::new(&topology, CPUS, PRICE, MEMORY, 20);
        let line = lines.add();
        (lines, line)
    }

    fn holders(lines: &Lines, line: LineId) -> CpuSet {
        match lines.lines[line as usize].holder {
            Holder::Nobody => CpuSet::EMPTY,
            Holder::One(cpu) => CpuSet::single(cpu as usize),
            Holder::Several => lines.lines[line as usize].holders,
        }
    }

    #[test]
    fn what_is_held_costs_nothing_and_what_is_not_costs_by_distance() {
        let (mut lines, line) = lines();
        assert_eq!(lines.write(line, 0, 1_000, Cause::Guest), 1_000 + MEMORY);
        assert_eq!(lines.write(line, 0, 2_000, Cause::Guest), 2_000, "it is its own");
        assert_eq!(lines.read(line, 0, 2_000, Cause::Guest), 2_000);
        assert_eq!(lines.read(line, 8, 3_000, Cause::Guest), 3_010, "the sibling's");
        assert_eq!(lines.read(line, 1, 4_000, Cause::Guest), 4_040, "in the same LLC");
        assert_eq!(lines.read(line, 2, 5_000, Cause::Guest), 5_100, "in the same socket");
        assert_eq!(lines.read(line, 15, 6_000, Cause::Guest), 6_200, "in the other");
        assert_eq!(lines.read(line, 7, 7_000, Cause::Guest), 7_010, "15 has a copy by now");
        assert_eq!(lines.write(line, 0, 8_000, Cause::Guest), 8_200, "15's copy has to go");
        assert_eq!(lines.misses(), &[0, 7, 0, 0]);
    }

    #[test]
    fn requests_are_served_one_after_the_other() {
        let (mut lines, line) = lines();
        lines.write(line, 0, 0, Cause::Vmm);
        let there: Vec<Ps> = [4, 12, 5].iter().map(|&cpu| lines.write(line, cpu, 1_000, Cause::Vmm)).collect();
        assert_eq!(there, [1_200, 1_210, 1_250]);
        lines.keep_busy(line, 5_000);
        assert_eq!(lines.write(line, 0, 4_000, Cause::Vmm), 5_200);
        assert_eq!(lines.write(line, 0, 4_500, Cause::Vmm), 4_500, "nobody else asked");
    }

    proptest! {
        /// One writer or many readers; nobody is served before it asks; who is served holds the line.
        #[test]
        fn a_line_is_one_writers_or_many_readers(requests in proptest::collection::vec((0usize..CPUS, any::<bool>(), 0u64..300), 1..200)) {
            let (mut lines, line) = lines();
            let mut at = 0;
            let mut last = 0;
            for (cpu, writes, later) in requests {
                at += later;
                let held = holders(&lines, line).contains(cpu);
                let there = if writes { lines.write(line, cpu, at, Cause::User) } else { lines.read(line, cpu, at, Cause::User) };
                let holders = holders(&lines, line);
                prop_assert!(there >= at);
                prop_assert!(holders.contains(cpu));
                prop_assert!(!writes || holders.len() == 1);
                prop_assert!(writes || !held || there == at);
                if there > at {
                    prop_assert!(there > last, "two transfers end at the same time");
                    last = there;
                }
            }
        }
    }
}
