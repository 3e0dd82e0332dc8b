//! What a study keeps of a run: the figures that numbers and curves are computed from, small enough to keep for every run
//! and to write down as soon as the run has ended.

use super::measure::RunFigures;
use crate::engine::Ps;
use crate::run::{Outcome, VmOutcome, active_share};
use muster_model::study::{BusyIn, Experiment, IdleIn, MissKind, MissPart, VMM_FUNCTIONS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunEnd {
    /// With its program.
    Ended(Box<RunSummary>),
    /// It was given up, as this says.
    GivenUp(String),
}

/// A run of a study, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The run.
    pub experiment: Experiment,
    /// Its end.
    pub end: RunEnd,
}

impl RunRecord {
    /// Its figures, if it ended.
    pub fn summary(&self) -> Option<&RunSummary> {
        match &self.end {
            RunEnd::Ended(summary) => Some(summary),
            RunEnd::GivenUp(_) => None,
        }
    }
}

/// The figures of a run, as [`RunFigures`] has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Simulated time.
    pub wall_ps: Ps,
    /// Cores of the machine.
    pub cores: u32,
    /// Events.
    pub events: u64,
    /// When the number of active cores changed, and to what; ascending.
    pub active_history: Vec<(Ps, u32)>,
    lock_wake_us: f64,
    idle_transitions_per_s: f64,
    /// In the order of [`VMM_FUNCTIONS`].
    functions: [Option<f64>; VMM_FUNCTIONS.len()],
    kernel: Option<f64>,
    /// In the order of [`IDLE`].
    idle: [Option<f64>; IDLE.len()],
    /// By [`MISSES`] and [`MissPart::ALL`].
    misses: [[Option<f64>; MissPart::ALL.len()]; MISSES.len()],
    vms: Vec<VmFigures>,
    /// In the order of [`BUSY`].
    busy_threads: [Option<f64>; BUSY.len()],
    gigabits_per_s: Option<f64>,
    /// Of pCPUs, by power of two picoseconds: from how long on, how many, how long together.
    idle_periods: Vec<(Ps, u64, Ps)>,
    /// Share of the waits for spin locks that are longer than 2 to the power of its index, in cycles.
    waits_above: Vec<f64>,
    ple: Option<(f64, f64)>,
}

/// The figures of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct VmFigures {
    /// None of a service VM's.
    workload: Option<String>,
    /// What its program got done in a second.
    rate: f64,
    /// Its CPU time over the length of the run, in hardware threads.
    busy_threads: f64,
    /// Exits by reason: how many, and their time over the length of the run, in hardware threads.
    exits: BTreeMap<String, (u64, f64)>,
}

impl VmFigures {
    fn of(vm: &VmOutcome, wall_ps: Ps) -> Self {
        let threads = |time: Ps| time as f64 / wall_ps.max(1) as f64;
        let there = vm.exits().into_iter().filter(|&(_, count, _)| count > 0);
        Self {
            workload: vm.workload.clone(),
            rate: vm.rate(),
            busy_threads: threads(vm.cpu_ps()),
            exits: there.map(|(reason, count, time)| (reason.to_owned(), (count, threads(time)))).collect(),
        }
    }
}

const IDLE: [IdleIn; 3] = [IdleIn::Guest, IdleIn::Vmm, IdleIn::Daemon];
const BUSY: [BusyIn; 3] = [BusyIn::Machine, BusyIn::Service, BusyIn::Guests];
const MISSES: [MissKind; 2] = [MissKind::L2, MissKind::Itlb];

impl RunSummary {
    /// The figures of an outcome.
    pub fn of(outcome: &Outcome) -> Self {
        Self {
            wall_ps: outcome.wall_ps,
            cores: outcome.cores,
            events: outcome.counters.events,
            active_history: outcome.active_history.clone(),
            lock_wake_us: outcome.lock_wake_us(),
            idle_transitions_per_s: outcome.idle_transitions_per_second(),
            functions: VMM_FUNCTIONS.map(|function| outcome.function_share(function)),
            kernel: outcome.kernel_share(),
            idle: IDLE.map(|of| outcome.idle_share(of)),
            misses: MISSES.map(|what| MissPart::ALL.map(|of| RunFigures::misses(outcome, what, of))),
            vms: outcome.vms.iter().map(|vm| VmFigures::of(vm, outcome.wall_ps)).collect(),
            busy_threads: BUSY.map(|of| outcome.busy_threads(of)),
            gigabits_per_s: outcome.gigabits_per_second(),
            waits_above: (0..u32::BITS).map_while(|power| outcome.waits_above(1 << power)).collect(),
            ple: outcome.ple(),
            idle_periods: outcome.idle_periods.buckets().collect(),
        }
    }
}

impl RunSummary {
    fn vms_of(&self, workload: &str) -> impl Iterator<Item = &VmFigures> {
        self.vms.iter().filter(move |vm| vm.workload.as_deref() == Some(workload))
    }
}

impl RunFigures for RunSummary {
    fn idle_periods(&self) -> Vec<(Ps, u64, Ps)> {
        self.idle_periods.clone()
    }
    fn seconds(&self) -> f64 {
        self.wall_ps as f64 / 1e12
    }
    fn lock_wake_us(&self) -> f64 {
        self.lock_wake_us
    }
    fn idle_transitions_per_second(&self) -> f64 {
        self.idle_transitions_per_s
    }
    fn active_share(&self, at_most: u32) -> f64 {
        active_share(&self.active_history, self.wall_ps, at_most)
    }
    fn function_share(&self, function: &str) -> Option<f64> {
        let index = VMM_FUNCTIONS.iter().position(|&known| known == function)?;
        self.functions[index]
    }
    fn kernel_share(&self) -> Option<f64> {
        self.kernel
    }
    fn idle_share(&self, of: IdleIn) -> Option<f64> {
        self.idle[IDLE.iter().position(|&known| known == of)?]
    }
    fn misses(&self, what: MissKind, of: MissPart) -> Option<f64> {
        let (what, of) = (MISSES.iter().position(|&it| it == what)?, MissPart::ALL.iter().position(|&it| it == of)?);
        self.misses[what][of]
    }
    fn rates(&self, workload: &str) -> Vec<f64> {
        self.vms_of(workload).map(|vm| vm.rate).collect()
    }
    fn busy_threads_of(&self, workload: &str) -> Option<f64> {
        Some(self.vms_of(workload).map(|vm| vm.busy_threads).sum())
    }
    fn busy_threads(&self, of: BusyIn) -> Option<f64> {
        self.busy_threads[BUSY.iter().position(|&known| known == of)?]
    }
    fn hardware_threads(&self) -> f64 {
        f64::from(self.cores)
    }
    fn exits(&self, reason: Option<&str>, workload: Option<&str>) -> Option<(f64, f64)> {
        let vms = self.vms.iter().filter(|vm| workload.is_none_or(|name| vm.workload.as_deref() == Some(name)));
        let exits = vms.flat_map(|vm| &vm.exits).filter(|(name, _)| reason.is_none_or(|of| of == *name));
        let add = |(count, time): (f64, f64), (_, &(n, t)): (&String, &(u64, f64))| (count + n as f64, time + t);
        Some(exits.fold((0.0, 0.0), add))
    }
    fn gigabits_per_second(&self) -> Option<f64> {
        self.gigabits_per_s
    }
    fn waits_above(&self, cycles: u64) -> Option<f64> {
        let power = cycles.checked_ilog2().filter(|&power| 1 << power == cycles)?;
        self.waits_above.get(power as usize).copied()
    }
    fn ple(&self) -> Option<(f64, f64)> {
        self.ple
    }
}
