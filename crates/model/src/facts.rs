//! What a policy may know of a period: counts and times, from the simulated or the live world alike.
//!
//! Every field that a world may be unable to observe is an `Option`; a policy works with what is there.

use crate::CpuSet;
use serde::{Deserialize, Serialize};

/// A thread: the kernel's tid, or the simulator's thread number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThreadId(pub u32);

/// What one thread did while its program was watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFacts {
    /// Which.
    pub id: ThreadId,
    /// CPU time.
    pub cpu_ns: u64,
    /// Time spent runnable without running, the way from a wake-up to the vCPU included.
    pub waiting_ns: u64,
    /// How often it was switched in.
    pub switches: u64,
}

/// How often one thread woke another during the period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakePair {
    /// Who woke.
    pub waker: ThreadId,
    /// Who was woken.
    pub wakee: ThreadId,
    /// How often.
    pub count: u64,
}

/// A thread of the program, and the CPU time it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadLoad {
    /// The thread.
    pub thread: ThreadId,
    /// Its CPU time, where known.
    pub cpu_ns: Option<u64>,
}

/// Who woke whom in a stretch of time, and what CPU time the program's threads took in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeWindow {
    /// Length of the stretch.
    pub window_ns: u64,
    /// Wake-ups of the program's threads; a waker that is not among `threads` is no thread of the program, and 0 is an
    /// interrupt.
    pub pairs: Vec<WakePair>,
    /// The program's threads.
    pub threads: Vec<ThreadLoad>,
}

/// One period of a program's life under watch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeriodFacts {
    /// End of the period, on a monotonic clock of the world's own.
    pub now_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// The CPUs the program's threads may run on right now.
    pub active: CpuSet,
    /// CPU time of the program, over all its threads.
    pub cpu_ns: u64,
    /// Part of `cpu_ns` spent in user mode.
    pub user_ns: Option<u64>,
    /// CPU time of everything else on the allowed CPUs, steal included.
    pub foreign_ns: Option<u64>,
    /// Entries into idle states that halt, on the allowed CPUs.
    pub idle_entries: Option<u64>,
    /// Time in idle states that halt, over the allowed CPUs.
    pub idle_ns: Option<u64>,
    /// Entries into polling idle, on the allowed CPUs.
    #[serde(default)]
    pub poll_entries: Option<u64>,
    /// Time in polling idle, over the allowed CPUs.
    #[serde(default)]
    pub poll_ns: Option<u64>,
    /// Time the program's threads spent runnable without running, summed over threads.
    pub waiting_ns: Option<u64>,
    /// How often a thread of the program was switched in.
    pub switches: Option<u64>,
    /// Read and write system calls of the program.
    #[serde(default)]
    pub io_calls: Option<u64>,
    /// Bytes that those calls moved.
    #[serde(default)]
    pub io_bytes: Option<u64>,
    /// Units of work done, by the program's own count.
    pub progress: Option<f64>,
    /// Live threads of the program.
    pub threads: u32,
    /// Who woke whom, in periods in which that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<WakeWindow>,
}

impl PeriodFacts {
    /// A count of the period as a rate per second.
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.period_ns.max(1) as f64
    }

    /// The program's CPU rate: CPUs it kept busy on average, 0 to the number of CPUs.
    pub fn cpu_rate(&self) -> f64 {
        self.cpu_ns as f64 / self.period_ns.max(1) as f64
    }
}
