//! How many vCPUs a program should use, which, and what its idle vCPUs should do (Gleaner, sections 4 and 5).

use muster_model::{CpuSet, PeriodFacts, ThreadId, Topology};
use serde::{Deserialize, Serialize};

/// What the user wants more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Work per second.
    Speed,
    /// Work per CPU second, at no loss of work per second.
    Cost,
    /// Short waits: keep vCPUs from halting.
    Tail,
}

/// Which remedies the world at hand can apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permitted {
    /// Restricting the program to fewer vCPUs.
    pub consolidate: bool,
    /// Keeping idle vCPUs busy with lowest-priority pause loops.
    pub awake: bool,
    /// Setting the guest's halt polling.
    pub poll: bool,
    /// Placing threads that wake each other on one vCPU while the others stay in use.
    pub colocate: bool,
}

/// Measured prices the predictions rest on, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// Waking a thread on the waker's own vCPU (Table 1, A).
    pub wake_same_cpu_ns: f64,
    /// Waking a thread on another vCPU that is awake (Table 1, B).
    pub wake_awake_ns: f64,
    /// Waking a thread on another vCPU that has halted (Table 1, C).
    pub wake_halted_ns: f64,
}

/// What the controller is told once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The vCPUs the program may use at most (its limits before muster came).
    pub allowed: CpuSet,
    /// The machine's shape.
    pub topology: Topology,
    /// What waking costs here.
    pub prices: Prices,
    /// What the user wants more of.
    pub objective: Objective,
    /// What can be done here.
    pub permitted: Permitted,
    /// The guest's halt polling as muster found it; 0 where idle vCPUs halt at once.
    pub guest_halt_poll_ns: u64,
}

/// What idle vCPUs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleMode {
    /// What they did before muster came.
    Untouched,
    /// Lowest-priority pause loops keep them from halting.
    Awake,
    /// The guest polls up to `limit_ns` before it halts.
    Poll {
        /// `guest_halt_poll_ns`.
        limit_ns: u64,
    },
}

/// Threads that belong together, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The threads.
    pub threads: Vec<ThreadId>,
    /// The vCPUs they may use.
    pub cpus: CpuSet,
}

/// What to do until the next period ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The vCPUs the program's threads may run on; a subset of [`Config::allowed`], never empty.
    pub active: CpuSet,
    /// Threads to be placed more narrowly than `active`, where pairs are known.
    pub groups: Vec<Group>,
    /// What idle vCPUs of `active` do.
    pub idle: IdleMode,
    /// Length of the next period.
    pub next_period_ns: u64,
    /// Why, for traces and people.
    pub why: Reason,
}

/// Why a decision was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nothing to gain is in sight.
    Watching,
}

/// The controller: one per program.
#[derive(Debug, Clone)]
pub struct Controller {
    config: Config,
}

impl Controller {
    /// A controller that has seen nothing yet and has changed nothing.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes in one period and decides the next.
    pub fn step(&mut self, _facts: &PeriodFacts) -> Decision {
        Decision {
            active: self.config.allowed,
            groups: Vec::new(),
            idle: IdleMode::Untouched,
            next_period_ns: 4_000_000,
            why: Reason::Watching,
        }
    }
}
