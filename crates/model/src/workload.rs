//! A workload: what a program's threads do, as data. A small language of phases, read from JSON.
//!
//! This module reads and validates; what a phase costs is the simulator's business. Times are nanoseconds. Whatever
//! can be seen to be impossible without running it (unknown names, cycles in waits, barriers that not everybody
//! passes equally often) is refused here.

use crate::{CpuSet, ModelError};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub mod address_space;
pub mod files;
pub mod working_set;

pub use address_space::{AddressSpace, HeapPage};
pub use files::{Directory, FileCall, Files};
pub use working_set::WorkingSet;

/// How long a [`Phase::RunFor`] computes between two looks at the clock, as rt-app's `runtime`.
pub const RUN_FOR_PIECE_NS: u64 = 32_000;
/// Most threads a workload may have once its counts are known.
pub const MAX_THREADS: u64 = 4096;
/// Longest single duration: three hours.
pub const MAX_NS: u64 = 10_800_000_000_000;
/// Most repetitions of one loop, permits, pages or clock reads.
pub const MAX_COUNT: u64 = 1_000_000_000;

/// A program: its locks, barriers and conditions, and its threads in groups.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Short name.
    pub name: String,
    /// What it stands for.
    #[serde(default)]
    pub description: String,
    /// Where its structure and its parameters come from.
    #[serde(default)]
    pub sources: Vec<String>,
    /// Locks by name.
    #[serde(default)]
    pub locks: BTreeMap<String, Lock>,
    /// Barriers by name; every thread of every group that names one takes part in it.
    #[serde(default)]
    pub barriers: BTreeMap<String, Barrier>,
    /// Conditions by name.
    #[serde(default)]
    pub conditions: BTreeMap<String, Condition>,
    /// Kinds of buffers by name, which start small and grow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub buffers: BTreeMap<String, Buffer>,
    /// Directories by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub directories: BTreeMap<String, Directory>,
    /// Sets of files by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, Files>,
    /// Whether the files' file system keeps a journal, as ext3 does; tmpfs has none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub journaled: bool,
    /// Condition variables by name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub condvars: BTreeSet<String>,
    /// Timers by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timers: BTreeMap<String, Timer>,
    /// When the program is ended from outside, whatever its threads do; multiplied by the experiment's scale. Absent: when
    /// its threads have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// What pages the process goes through, where translations are followed page by page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space: Option<AddressSpace>,
    /// The threads.
    pub groups: Vec<Group>,
}

/// How a lock waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Lock {
    /// A futex-based mutex: a waiter blocks, a release wakes one waiter, which competes with newcomers.
    Mutex,
    /// A sleeping lock inside the kernel with hand-over in order of arrival, as Linux's rw-semaphore taken for writing.
    KernelMutex,
    /// A fair spin lock: waiters spin in order of arrival.
    Spin,
    /// Waiters spin up to `spin_ns` and then block as in a mutex.
    SpinThenBlock {
        /// How long a waiter spins.
        spin_ns: u64,
    },
}

/// How a barrier waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Barrier {
    /// One futex that the last thread to arrive wakes completely (pthread_barrier_wait(3)).
    Futex,
    /// A mutex and a condition variable (the SPLASH-2 `BARRIER` macro): the broadcast wakes one thread and moves the
    /// others to the mutex, where each wakes the next as it leaves.
    Condvar,
}

/// A counting condition: `wake` gives permits, `wait` takes one and blocks while there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Permits at the start.
    #[serde(default)]
    pub permits: u64,
}

/// Buffers of each thread that fill together: when they are full, each goes on in a new piece of twice the size. The remedy
/// `itlb` starts them larger (iXen, section 3.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// How many of them a thread has.
    pub count: u64,
    /// The size of each at the start, in bytes.
    pub initial_bytes: u64,
    /// The same under `itlb`: more than `initial_bytes`.
    pub larger_bytes: u64,
}

/// A periodic timer. It counts from the start of the program, or from the thread's last `sleep-until`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    /// Whether all threads move the same timer on; each has its own otherwise.
    #[serde(default)]
    pub shared: bool,
    /// Whether a thread that comes late catches up; the timer starts anew from there otherwise.
    #[serde(default)]
    pub absolute: bool,
}

/// Threads that do the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Short name.
    pub name: String,
    /// How many.
    pub count: Count,
    /// The CPUs they are pinned to; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Their niceness, -20 to 19: their shares of a CPU where others want it too.
    #[serde(default, skip_serializing_if = "is_0")]
    pub nice: i8,
    /// What of the memory each goes through again and again; caches are followed where it is stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<WorkingSet>,
    /// What each does, in order.
    pub phases: Vec<Phase>,
}

/// A number: fixed, the experiment's thread count (written `"threads"`), or without end (`"forever"`, of loops only).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// This many.
    Fixed(u32),
    /// As many as the experiment says.
    Threads,
    /// Until the program is ended.
    Forever,
}

impl Count {
    /// The number when the experiment's thread count is `threads`.
    pub fn resolve(self, threads: u32) -> u32 {
        match self {
            Self::Fixed(count) => count,
            Self::Threads => threads,
            Self::Forever => u32::MAX,
        }
    }
}

/// A duration in nanoseconds: fixed (a number) or drawn anew each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duration {
    /// Always the same.
    Fixed(u64),
    /// Uniform between both ends, inclusive.
    Uniform {
        /// Lower end.
        min: u64,
        /// Upper end.
        max: u64,
    },
    /// Exponential with this mean.
    Exponential {
        /// The mean.
        mean: u64,
    },
}

impl Default for Duration {
    /// No time.
    fn default() -> Self {
        Self::Fixed(0)
    }
}

impl Duration {
    /// The mean, rounded down.
    pub fn mean(self) -> u64 {
        match self {
            Self::Fixed(ns) | Self::Exponential { mean: ns } => ns,
            Self::Uniform { min, max } => min + (max.saturating_sub(min)) / 2,
        }
    }
}

/// What a thread does next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Phase {
    /// Computes.
    Run {
        /// How long.
        ns: Duration,
        /// Whether the group's threads share the work: each does its part of `ns`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shared: bool,
    },
    /// Takes a lock, does something, and releases it.
    Lock {
        /// Which lock.
        lock: String,
        /// What is done while it is held.
        phases: Vec<Phase>,
    },
    /// Computes a piece of [`RUN_FOR_PIECE_NS`], and another until the clock says that so long has passed.
    RunFor {
        /// How long.
        ns: u64,
    },
    /// Waits at a barrier.
    Barrier {
        /// Which barrier.
        barrier: String,
    },
    /// Takes a permit of a condition; blocks while there is none.
    Wait {
        /// Which condition.
        condition: String,
    },
    /// Gives permits to a condition.
    Wake {
        /// Which condition.
        condition: String,
        /// How many permits.
        #[serde(default = "one_count")]
        count: Count,
    },
    /// Releases a mutex that it holds, blocks until the condition variable is signalled, and takes the mutex again
    /// (pthread_cond_wait(3)).
    Await {
        /// Which condition variable.
        condvar: String,
        /// Which mutex.
        lock: String,
    },
    /// Wakes one thread that waits for a condition variable, or all; lost when nobody does (pthread_cond_signal(3)).
    Signal {
        /// Which condition variable.
        condvar: String,
        /// Whether all who wait are woken.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        all: bool,
    },
    /// Adds to each of the thread's buffers of a kind; where they are full, a new piece of each is allocated.
    Fill {
        /// Which kind of buffer.
        buffer: String,
        /// How many bytes come into each.
        bytes: u64,
    },
    /// Allocates memory from the thread's heap, which grows by whole pages (malloc(3) in a thread that is not the first), and
    /// touches it.
    Allocate {
        /// How many bytes.
        bytes: u64,
    },
    /// Touches fresh pages: a minor fault each.
    TouchMemory {
        /// How many.
        pages: u64,
        /// Whether they are pages of a mapped file that the page cache has already; else each is new memory.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cached: bool,
    },
    /// Maps memory.
    Map {
        /// How many pages.
        pages: u64,
    },
    /// Unmaps memory: every CPU that runs the process drops its translations.
    Unmap {
        /// How many pages.
        pages: u64,
    },
    /// Reads the clock.
    ReadClock {
        /// How often.
        #[serde(default = "one")]
        times: u64,
    },
    /// A system call that does not block.
    Syscall {
        /// Time in the kernel, without entry and exit.
        ns: Duration,
    },
    /// Takes one file of a set, at random, and calls the kernel for it.
    File {
        /// Which set.
        of: String,
        /// The calls, in order.
        calls: Vec<FileCall>,
        /// Time in user mode before each call.
        #[serde(default, skip_serializing_if = "is_no_time")]
        user_ns: Duration,
    },
    /// Sends bytes over the network.
    Send {
        /// How many.
        bytes: u64,
    },
    /// Receives bytes from the network.
    Receive {
        /// How many.
        bytes: u64,
    },
    /// Reads from a disk.
    ReadDisk {
        /// How many bytes.
        bytes: u64,
    },
    /// Writes to a disk, and waits until that is done.
    WriteDisk {
        /// How many bytes.
        bytes: u64,
    },
    /// Sleeps.
    Sleep {
        /// How long.
        ns: Duration,
    },
    /// Sleeps until so long after the start of the program; the thread's timers begin there.
    SleepUntil {
        /// How long after the start.
        ns: u64,
    },
    /// Moves a timer on by a period and sleeps until then; goes on at once when that is past.
    Timer {
        /// Which timer.
        timer: String,
        /// The period.
        period_ns: u64,
    },
    /// Lets others that wait for this CPU go first (sched_yield(2)).
    Yield {},
    /// From here on runs on these CPUs only (sched_setaffinity(2)); on all when absent. Free where that is so already.
    Affinity {
        /// Which CPUs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpus: Option<CpuSet>,
    },
    /// Starts a child process that does `phases`, and waits for it.
    Fork {
        /// What the child does.
        phases: Vec<Phase>,
        /// The memory of the program that it executes (execve(2)); absent where it goes on as a copy of its parent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exec: Option<AddressSpace>,
    },
    /// Repeats.
    Loop {
        /// How often.
        times: Count,
        /// Whether `times` is multiplied by the experiment's scale.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        scaled: bool,
        /// What is repeated.
        phases: Vec<Phase>,
    },
}

fn is_0(nice: &i8) -> bool {
    *nice == 0
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_no_time(duration: &Duration) -> bool {
    *duration == Duration::default()
}

fn one() -> u64 {
    1
}

fn one_count() -> Count {
    Count::Fixed(1)
}

/// How often a loop runs at a scale: at least once, `u64::MAX` for ever.
pub fn repetitions(times: Count, threads: u32, scaled: bool, scale: f64) -> u64 {
    if times == Count::Forever {
        return u64::MAX;
    }
    let times = u64::from(times.resolve(threads));
    if scaled { ((times as f64 * scale).round() as u64).max(1) } else { times }
}

impl Phase {
    /// The phase's name as it stands in a file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::RunFor { .. } => "run-for",
            Self::Lock { .. } => "lock",
            Self::Barrier { .. } => "barrier",
            Self::Wait { .. } => "wait",
            Self::Wake { .. } => "wake",
            Self::Await { .. } => "await",
            Self::Signal { .. } => "signal",
            Self::Fill { .. } => "fill",
            Self::Allocate { .. } => "allocate",
            Self::TouchMemory { .. } => "touch-memory",
            Self::Map { .. } => "map",
            Self::Unmap { .. } => "unmap",
            Self::ReadClock { .. } => "read-clock",
            Self::Syscall { .. } => "syscall",
            Self::File { .. } => "file",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
            Self::ReadDisk { .. } => "read-disk",
            Self::WriteDisk { .. } => "write-disk",
            Self::Sleep { .. } => "sleep",
            Self::SleepUntil { .. } => "sleep-until",
            Self::Timer { .. } => "timer",
            Self::Yield {} => "yield",
            Self::Affinity { .. } => "affinity",
            Self::Fork { .. } => "fork",
            Self::Loop { .. } => "loop",
        }
    }
}

impl Workload {
    /// Reads a workload from JSON; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed JSON, an unknown field or name, a number out of range, or waits that can never end.
    pub fn from_json(text: &str, file: &str) -> Result<Self, ModelError> {
        let workload: Self = serde_json::from_str(text).map_err(|error| {
            let found = error.to_string();
            let found = found.split(" at line ").next().unwrap_or(&found).to_owned();
            let allowed = "the workload language of docs/sim.md";
            ModelError::new(format!("{file}, line {}", error.line()), found, allowed)
        })?;
        workload.validate().map_err(|error| error.within(file))?;
        Ok(workload)
    }

    /// Checks all that does not depend on the thread count.
    pub(crate) fn validate(&self) -> Result<(), ModelError> {
        if self.groups.is_empty() {
            return Err(ModelError::new("groups", "none", "at least one group of threads"));
        }
        self.check_files()?;
        self.address_space.map_or(Ok(()), |space| space.check("address_space"))?;
        let mut names = BTreeSet::new();
        for group in &self.groups {
            let place = format!("groups.{}", group.name);
            if !names.insert(&group.name) {
                return Err(ModelError::new(place, "the name twice", "each group's name once"));
            }
            if matches!(group.count, Count::Fixed(0) | Count::Forever) {
                let found = if group.count == Count::Forever { "\"forever\"" } else { "0 threads" };
                return Err(ModelError::new(format!("{place}.count"), found, "1 or more, or \"threads\""));
            }
            check_cpus(group.cpus, &place)?;
            if !(-20..=19).contains(&group.nice) {
                return Err(ModelError::new(format!("{place}.nice"), group.nice.to_string(), "-20 to 19"));
            }
            group.working_set.map_or(Ok(()), |set| set.check(&format!("{place}.working_set")))?;
            self.check_phases(&group.phases, &place, &mut Vec::new())?;
        }
        for (name, lock) in &self.locks {
            if let Lock::SpinThenBlock { spin_ns } = lock {
                range(&format!("locks.{name}.spin_ns"), *spin_ns, 0, MAX_NS)?;
            }
        }
        for (name, condition) in &self.conditions {
            range(&format!("conditions.{name}.permits"), condition.permits, 0, MAX_COUNT)?;
        }
        for (name, buffer) in &self.buffers {
            range(&format!("buffers.{name}.count"), buffer.count, 1, MAX_COUNT)?;
            range(&format!("buffers.{name}.initial_bytes"), buffer.initial_bytes, 1, MAX_COUNT - 1)?;
            let place = format!("buffers.{name}.larger_bytes");
            range(&place, buffer.larger_bytes, buffer.initial_bytes + 1, MAX_COUNT)?;
        }
        if let Some(ns) = self.duration_ns {
            range("duration_ns", ns, 1, MAX_NS)?;
        }
        self.check_lock_order()?;
        self.check_wait_cycles()
    }

    fn check_phases<'a>(&'a self, phases: &'a [Phase], place: &str, held: &mut Vec<&'a str>) -> Result<(), ModelError> {
        for (index, phase) in phases.iter().enumerate() {
            let place = format!("{place}.phases[{index}].{}", phase.name());
            self.check_phase(phase, &place, held)?;
            if let Phase::Loop { times: Count::Forever, .. } = phase
                && index + 1 < phases.len()
            {
                let found = format!("`{}` behind an endless loop", phases[index + 1].name());
                return Err(ModelError::new(place, found, "nothing behind a loop that has no end"));
            }
        }
        Ok(())
    }

    fn check_phase<'a>(&'a self, phase: &'a Phase, place: &str, held: &mut Vec<&'a str>) -> Result<(), ModelError> {
        match phase {
            Phase::Run { ns, .. } | Phase::Syscall { ns } | Phase::Sleep { ns } => {
                check_duration(*ns, &format!("{place}.ns"))
            }
            Phase::File { of, calls, user_ns } => self.check_calls(of, calls, *user_ns, place),
            Phase::Lock { lock, phases } => {
                known(lock, self.locks.keys(), &format!("{place}.lock"), "lock")?;
                if held.contains(&lock.as_str()) {
                    let found = format!("`{lock}` while it is held");
                    return Err(ModelError::new(
                        format!("{place}.lock"),
                        found,
                        "a lock that the thread does not hold",
                    ));
                }
                held.push(lock);
                self.check_phases(phases, place, held)?;
                held.pop();
                Ok(())
            }
            Phase::RunFor { ns } | Phase::SleepUntil { ns } => range(&format!("{place}.ns"), *ns, 0, MAX_NS),
            Phase::Timer { timer, period_ns } => {
                known(timer, self.timers.keys(), &format!("{place}.timer"), "timer")?;
                range(&format!("{place}.period_ns"), *period_ns, 0, MAX_NS)
            }
            Phase::Yield {} => Ok(()),
            Phase::Affinity { cpus } => check_cpus(*cpus, place),
            Phase::Await { condvar, lock } => {
                known(condvar, &self.condvars, &format!("{place}.condvar"), "condition variable")?;
                self.check_await(lock, place, held)
            }
            Phase::Signal { condvar, .. } => {
                known(condvar, &self.condvars, &format!("{place}.condvar"), "condition variable")
            }
            Phase::Barrier { barrier } => {
                known(barrier, self.barriers.keys(), &format!("{place}.barrier"), "barrier")?;
                match held.first() {
                    Some(lock) => {
                        let found = format!("a barrier while lock `{lock}` is held");
                        Err(ModelError::new(place, found, "barriers outside of locks"))
                    }
                    None => Ok(()),
                }
            }
            Phase::Wait { condition } => {
                known(condition, self.conditions.keys(), &format!("{place}.condition"), "condition")
            }
            Phase::Wake { condition, count } => {
                known(condition, self.conditions.keys(), &format!("{place}.condition"), "condition")?;
                check_count(*count, &format!("{place}.count"))
            }
            Phase::Fill { buffer, bytes } => {
                known(buffer, self.buffers.keys(), &format!("{place}.buffer"), "buffer")?;
                range(&format!("{place}.bytes"), *bytes, 1, MAX_COUNT)
            }
            Phase::Allocate { bytes } => range(&format!("{place}.bytes"), *bytes, 1, MAX_COUNT),
            Phase::TouchMemory { pages, .. } | Phase::Map { pages } | Phase::Unmap { pages } => {
                range(&format!("{place}.pages"), *pages, 1, MAX_COUNT)
            }
            Phase::ReadClock { times } => range(&format!("{place}.times"), *times, 1, MAX_COUNT),
            Phase::Send { bytes }
            | Phase::Receive { bytes }
            | Phase::ReadDisk { bytes }
            | Phase::WriteDisk { bytes } => range(&format!("{place}.bytes"), *bytes, 1, u64::MAX),
            Phase::Fork { phases, exec } => {
                exec.map_or(Ok(()), |exec| exec.check(&format!("{place}.exec")))?;
                self.check_phases(phases, place, held)
            }
            Phase::Loop { times, phases, .. } => {
                match times {
                    Count::Forever => self.check_endless(phases, place)?,
                    _ => check_count(*times, &format!("{place}.times"))?,
                }
                self.check_phases(phases, place, held)
            }
        }
    }

    /// A thread can only wait for a condition variable with a mutex that it holds.
    fn check_await(&self, lock: &str, place: &str, held: &[&str]) -> Result<(), ModelError> {
        known(lock, self.locks.keys(), &format!("{place}.lock"), "lock")?;
        if self.locks[lock] != Lock::Mutex {
            let found = format!("lock `{lock}` of another kind");
            return Err(ModelError::new(format!("{place}.lock"), found, "a lock of kind `mutex`"));
        }
        if !held.contains(&lock) {
            let found = format!("`{lock}`, which the thread does not hold");
            return Err(ModelError::new(format!("{place}.lock"), found, "a mutex that the thread holds"));
        }
        Ok(())
    }

    /// An endless loop needs somebody who ends the program, and each turn must take time.
    fn check_endless(&self, phases: &[Phase], place: &str) -> Result<(), ModelError> {
        if self.duration_ns.is_none() {
            return Err(ModelError::new(
                place,
                "an endless loop and no `duration_ns`",
                "a `duration_ns` of the workload",
            ));
        }
        if !takes_time(phases) {
            let allowed = "a phase in it that always takes time: run, run-for, sleep, timer, syscall, await ...";
            return Err(ModelError::new(place, "an endless loop whose turns can take no time", allowed));
        }
        Ok(())
    }

    /// Two locks taken in both orders can deadlock.
    fn check_lock_order(&self) -> Result<(), ModelError> {
        let mut after: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for group in &self.groups {
            visit(&group.phases, &mut |phase| {
                if let Phase::Lock { lock, phases } = phase {
                    visit(phases, &mut |inner| {
                        if let Phase::Lock { lock: inner, .. } = inner {
                            after.entry(lock).or_default().insert(inner);
                        }
                    });
                }
            });
        }
        // A lock is settled once every lock taken inside it is settled; a cycle never settles.
        let mut settled: BTreeSet<&str> = BTreeSet::new();
        loop {
            let ready: Vec<&str> = self
                .locks
                .keys()
                .map(String::as_str)
                .filter(|lock| !settled.contains(lock))
                .filter(|lock| after.get(lock).is_none_or(|inner| inner.is_subset(&settled)))
                .collect();
            if ready.is_empty() {
                break;
            }
            settled.extend(ready);
        }
        match self.locks.keys().find(|lock| !settled.contains(lock.as_str())) {
            Some(lock) => {
                let found = format!("a cycle of locks taken inside each other, through `{lock}`");
                Err(ModelError::new("locks", found, "nested locks in one order everywhere"))
            }
            None => Ok(()),
        }
    }

    /// A condition can be waited for only if it has permits or somebody can reach a `wake` of it; a condition variable, if
    /// somebody can reach a `signal`.
    fn check_wait_cycles(&self) -> Result<(), ModelError> {
        let mut fed: BTreeSet<Awaited> =
            self.conditions.iter().filter(|(_, c)| c.permits > 0).map(|(name, _)| Awaited::Condition(name)).collect();
        loop {
            let before = fed.len();
            for group in &self.groups {
                let mut reached = true;
                visit(&group.phases, &mut |phase| match phase {
                    Phase::Wake { condition, .. } if reached => {
                        fed.insert(Awaited::Condition(condition));
                    }
                    Phase::Signal { condvar, .. } if reached => {
                        fed.insert(Awaited::Condvar(condvar));
                    }
                    _ => reached &= awaited(phase).is_none_or(|what| fed.contains(&what)),
                });
            }
            if fed.len() == before {
                break;
            }
        }
        for group in &self.groups {
            let mut stuck = None;
            visit(&group.phases, &mut |phase| {
                if let Some(what) = awaited(phase)
                    && !fed.contains(&what)
                {
                    stuck.get_or_insert(what);
                }
            });
            if let Some(what) = stuck {
                let (kind, name, woken) = match what {
                    Awaited::Condition(name) => ("condition", name, "wake"),
                    Awaited::Condvar(name) => ("condition variable", name, "signal"),
                };
                return Err(ModelError::new(
                    format!("groups.{}", group.name),
                    format!("a wait for {kind} `{name}` that nobody can ever {woken} (a cycle of waits)"),
                    format!("waits for conditions with permits, or with a {woken} that does not wait for them in turn"),
                ));
            }
        }
        Ok(())
    }

    /// Checks what depends on the thread count and the scale: sizes, barriers passed equally often, enough permits.
    ///
    /// # Errors
    /// When there are too many threads, a barrier would be left waiting, or permits cannot suffice.
    pub fn check_for(&self, threads: u32, scale: f64) -> Result<(), ModelError> {
        let total: u64 = self.groups.iter().map(|group| u64::from(group.count.resolve(threads))).sum();
        if total == 0 || total > MAX_THREADS {
            let allowed = format!("1 to {MAX_THREADS} threads");
            return Err(ModelError::new(format!("workload `{}`", self.name), format!("{total} threads"), allowed));
        }
        for barrier in self.barriers.keys() {
            let mut passes =
                self.groups.iter().map(|group| passes(&group.phases, barrier, threads, scale)).filter(|&n| n > 0);
            let first = passes.next();
            if let Some(other) = passes.find(|&n| Some(n) != first) {
                let found = format!("{} and {} passes by different groups", often(first.unwrap_or(0)), often(other));
                let allowed = "equally many passes by every group that uses it";
                return Err(ModelError::new(format!("barriers.{barrier}"), found, allowed));
            }
        }
        for (name, condition) in &self.conditions {
            let (mut taken, mut given) = (0u64, condition.permits);
            for group in &self.groups {
                let (t, g) = permits(&group.phases, name, threads, scale);
                let threads = u64::from(group.count.resolve(threads));
                taken = taken.saturating_add(t.saturating_mul(threads));
                given = given.saturating_add(g.saturating_mul(threads));
            }
            if taken > given {
                let found = format!("{} waits for {} permits", often(taken), often(given));
                return Err(ModelError::new(
                    format!("conditions.{name}"),
                    found,
                    "no more waits than permits and wakes",
                ));
            }
        }
        Ok(())
    }

    /// Every set of CPUs that it names, with its place.
    pub fn cpu_sets(&self) -> Vec<(String, CpuSet)> {
        let mut sets = Vec::new();
        for group in &self.groups {
            sets.extend(group.cpus.map(|cpus| (format!("groups.{}.cpus", group.name), cpus)));
            visit(&group.phases, &mut |phase| {
                if let Phase::Affinity { cpus: Some(cpus) } = phase {
                    sets.push((format!("groups.{}.affinity.cpus", group.name), *cpus));
                }
            });
        }
        sets
    }

    /// The workload as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a workload holds only what JSON can express")
    }
}

/// Calls `f` on every phase in program order, outer phases first.
pub(crate) fn visit<'a>(phases: &'a [Phase], f: &mut dyn FnMut(&'a Phase)) {
    for phase in phases {
        f(phase);
        if let Phase::Lock { phases, .. } | Phase::Loop { phases, .. } | Phase::Fork { phases, .. } = phase {
            visit(phases, f);
        }
    }
}

/// What a thread can wait for until somebody does something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Awaited<'a> {
    Condition(&'a str),
    Condvar(&'a str),
}

fn awaited(phase: &Phase) -> Option<Awaited<'_>> {
    match phase {
        Phase::Wait { condition } => Some(Awaited::Condition(condition)),
        Phase::Await { condvar, .. } => Some(Awaited::Condvar(condvar)),
        _ => None,
    }
}

/// Whether doing the phases once takes time whatever the other threads do.
fn takes_time(phases: &[Phase]) -> bool {
    let lasts = |ns: Duration| match ns {
        Duration::Fixed(ns) | Duration::Uniform { min: ns, .. } | Duration::Exponential { mean: ns } => ns > 0,
    };
    phases.iter().any(|phase| match phase {
        Phase::Run { ns, .. } => lasts(*ns),
        Phase::Lock { phases, .. } | Phase::Loop { phases, .. } | Phase::Fork { phases, .. } => takes_time(phases),
        Phase::Wait { .. } | Phase::Wake { .. } | Phase::Signal { .. } => false,
        Phase::SleepUntil { .. } | Phase::Affinity { .. } => false,
        Phase::Barrier { .. } | Phase::Await { .. } | Phase::TouchMemory { .. } | Phase::Map { .. } => true,
        // Not always, but again and again.
        Phase::Fill { .. } | Phase::Allocate { .. } => true,
        Phase::Unmap { .. } | Phase::ReadClock { .. } | Phase::Syscall { .. } | Phase::Sleep { .. } => true,
        Phase::File { .. } => true,
        Phase::Send { .. } | Phase::Receive { .. } | Phase::ReadDisk { .. } | Phase::WriteDisk { .. } => true,
        Phase::RunFor { .. } | Phase::Timer { .. } | Phase::Yield {} => true,
    })
}

/// A number of times for a message.
fn often(times: u64) -> String {
    if times == u64::MAX { "endless".to_owned() } else { times.to_string() }
}

fn passes(phases: &[Phase], name: &str, threads: u32, scale: f64) -> u64 {
    phases.iter().fold(0u64, |sum, phase| {
        sum.saturating_add(match phase {
            Phase::Barrier { barrier } => u64::from(barrier == name),
            Phase::Lock { phases, .. } | Phase::Fork { phases, .. } => passes(phases, name, threads, scale),
            Phase::Loop { times, scaled, phases } => {
                passes(phases, name, threads, scale).saturating_mul(repetitions(*times, threads, *scaled, scale))
            }
            _ => 0,
        })
    })
}

fn permits(phases: &[Phase], name: &str, threads: u32, scale: f64) -> (u64, u64) {
    phases.iter().fold((0u64, 0u64), |(taken, given), phase| {
        let (t, g) = match phase {
            Phase::Wait { condition } => (u64::from(condition == name), 0),
            Phase::Wake { condition, count } => {
                (0, if condition == name { u64::from(count.resolve(threads)) } else { 0 })
            }
            Phase::Lock { phases, .. } | Phase::Fork { phases, .. } => permits(phases, name, threads, scale),
            Phase::Loop { times, scaled, phases } => {
                let (t, g) = permits(phases, name, threads, scale);
                let times = repetitions(*times, threads, *scaled, scale);
                (t.saturating_mul(times), g.saturating_mul(times))
            }
            _ => (0, 0),
        };
        (taken.saturating_add(t), given.saturating_add(g))
    })
}

fn known<'k>(
    name: &str,
    declared: impl IntoIterator<Item = &'k String> + Clone,
    place: &str,
    what: &str,
) -> Result<(), ModelError> {
    if declared.clone().into_iter().any(|key| key == name) {
        return Ok(());
    }
    let names = declared.into_iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let allowed = if names.is_empty() { format!("a {what} that the file declares (it declares none)") } else { names };
    Err(ModelError::new(place, format!("unknown {what} `{name}`"), allowed))
}

fn range(place: &str, value: u64, min: u64, max: u64) -> Result<(), ModelError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ModelError::new(place, value.to_string(), format!("{min} to {max}")))
}

fn check_count(count: Count, place: &str) -> Result<(), ModelError> {
    match count {
        Count::Fixed(count) => range(place, u64::from(count), 1, MAX_COUNT),
        Count::Threads => Ok(()),
        Count::Forever => Err(ModelError::new(place, "\"forever\"", format!("1 to {MAX_COUNT}, or \"threads\""))),
    }
}

fn check_cpus(cpus: Option<CpuSet>, place: &str) -> Result<(), ModelError> {
    match cpus {
        Some(cpus) if cpus.is_empty() => Err(ModelError::new(format!("{place}.cpus"), "no CPU", "at least one CPU")),
        _ => Ok(()),
    }
}

fn check_duration(duration: Duration, place: &str) -> Result<(), ModelError> {
    match duration {
        Duration::Fixed(ns) => range(place, ns, 0, MAX_NS),
        Duration::Exponential { mean } => range(&format!("{place}.exponential.mean"), mean, 0, MAX_NS),
        Duration::Uniform { min, max } => range(&format!("{place}.uniform.max"), max, min, MAX_NS),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Drawn {
    Uniform { min: u64, max: u64 },
    Exponential { mean: u64 },
}

impl Serialize for Duration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Fixed(ns) => serializer.serialize_u64(ns),
            Self::Uniform { min, max } => Drawn::Uniform { min, max }.serialize(serializer),
            Self::Exponential { mean } => Drawn::Exponential { mean }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("nanoseconds, {\"uniform\": {\"min\", \"max\"}} or {\"exponential\": {\"mean\"}}")
            }
            fn visit_u64<E: de::Error>(self, ns: u64) -> Result<Duration, E> {
                Ok(Duration::Fixed(ns))
            }
            // TOML's integers are signed.
            fn visit_i64<E: de::Error>(self, ns: i64) -> Result<Duration, E> {
                let ns = u64::try_from(ns).map_err(|_| E::invalid_type(de::Unexpected::Signed(ns), &self))?;
                Ok(Duration::Fixed(ns))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Duration, A::Error> {
                Ok(match Drawn::deserialize(MapAccessDeserializer::new(map))? {
                    Drawn::Uniform { min, max } => Duration::Uniform { min, max },
                    Drawn::Exponential { mean } => Duration::Exponential { mean },
                })
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl Serialize for Count {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Fixed(count) => serializer.serialize_u32(count),
            Self::Threads => serializer.serialize_str("threads"),
            Self::Forever => serializer.serialize_str("forever"),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number below 2^32, \"threads\" or (loops only) \"forever\"")
            }
            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Count, E> {
                u32::try_from(count)
                    .map(Count::Fixed)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(count), &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Count, E> {
                match text {
                    "threads" => Ok(Count::Threads),
                    "forever" => Ok(Count::Forever),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Workload, ModelError> {
        Workload::from_json(text, "w.json")
    }

    fn group(phases: &str) -> String {
        format!(
            r#"{{"name":"w","locks":{{"a":{{"kind":"mutex"}},"b":{{"kind":"spin"}}}},
               "barriers":{{"x":{{"kind":"futex"}}}},"conditions":{{"c":{{}},"d":{{}}}},
               "condvars":["v","u"],"timers":{{"t":{{"shared":true}}}},"duration_ns":1000000,
               "groups":[{{"name":"g","count":"threads","phases":{phases}}}]}}"#
        )
    }

    #[test]
    fn reads_every_phase_and_writes_it_back() {
        let text = group(
            r#"[{"run":{"ns":5}},{"run":{"ns":{"uniform":{"min":1,"max":9}},"shared":true}},
                {"lock":{"lock":"a","phases":[{"lock":{"lock":"b","phases":[]}}]}},{"barrier":{"barrier":"x"}},
                {"wake":{"condition":"c"}},{"wait":{"condition":"c"}},{"touch-memory":{"pages":1}},
                {"map":{"pages":1}},{"unmap":{"pages":1}},{"read-clock":{}},{"syscall":{"ns":{"exponential":{"mean":3}}}},
                {"send":{"bytes":1}},{"receive":{"bytes":1}},{"read-disk":{"bytes":1}},{"sleep":{"ns":1}},
                {"fork":{"phases":[]}},{"loop":{"times":3,"scaled":true,"phases":[]}},{"run-for":{"ns":7}},
                {"sleep-until":{"ns":8}},{"timer":{"timer":"t","period_ns":9}},{"yield":{}},{"affinity":{"cpus":"0-3"}},
                {"affinity":{}},{"signal":{"condvar":"v","all":true}},{"signal":{"condvar":"v"}},
                {"lock":{"lock":"a","phases":[{"await":{"condvar":"v","lock":"a"}}]}},
                {"loop":{"times":"forever","phases":[{"yield":{}}]}}]"#,
        );
        let workload = read(&text).unwrap();
        assert_eq!(workload.groups[0].phases.len(), 27);
        assert_eq!(read(&workload.to_json()).unwrap(), workload);
    }

    #[test]
    fn refuses_with_the_place_and_what_is_allowed() {
        for (phases, wanted) in [
            (
                r#"[{"lock":{"lock":"z","phases":[]}}]"#,
                "groups.g.phases[0].lock.lock: found unknown lock `z`; allowed: `a`, `b`",
            ),
            (r#"[{"jump":{}}]"#, "unknown variant `jump`"),
            (r#"[{"run":{"ns":-5}}]"#, "nanoseconds"),
            (r#"[{"run":{"ns":5,"x":1}}]"#, "unknown field `x`"),
            (r#"[{"run":{"ns":{"uniform":{"min":5,"max":1}}}}]"#, "uniform.max"),
            (r#"[{"loop":{"times":0,"phases":[]}}]"#, "times"),
            (r#"[{"wait":{"condition":"c"}},{"wake":{"condition":"c"}}]"#, "cycle of waits"),
            (
                r#"[{"wait":{"condition":"c"}},{"wake":{"condition":"d"}},{"wait":{"condition":"d"}},{"wake":{"condition":"c"}}]"#,
                "cycle of waits",
            ),
            (r#"[{"lock":{"lock":"a","phases":[{"lock":{"lock":"a","phases":[]}}]}}]"#, "while it is held"),
            (
                r#"[{"lock":{"lock":"a","phases":[{"lock":{"lock":"b","phases":[]}}]}},{"lock":{"lock":"b","phases":[{"lock":{"lock":"a","phases":[]}}]}}]"#,
                "cycle of locks",
            ),
            (r#"[{"lock":{"lock":"a","phases":[{"barrier":{"barrier":"x"}}]}}]"#, "barrier while lock"),
            (r#"[{"timer":{"timer":"u","period_ns":5}}]"#, "unknown timer `u`; allowed: `t`"),
            (r#"[{"signal":{"condvar":"c"}}]"#, "unknown condition variable `c`; allowed: `u`, `v`"),
            (r#"[{"affinity":{"cpus":""}}]"#, "cpus"),
            (r#"[{"fill":{"buffer":"b","bytes":2}}]"#, "unknown buffer `b`"),
            (r#"[{"allocate":{"bytes":0}}]"#, "allocate.bytes"),
            (r#"[{"signal":{"condvar":"v"}},{"await":{"condvar":"v","lock":"a"}}]"#, "does not hold"),
            (
                r#"[{"signal":{"condvar":"v"}},{"lock":{"lock":"b","phases":[{"await":{"condvar":"v","lock":"b"}}]}}]"#,
                "kind `mutex`",
            ),
            (
                r#"[{"lock":{"lock":"a","phases":[{"await":{"condvar":"v","lock":"a"}},{"signal":{"condvar":"v"}}]}}]"#,
                "condition variable `v` that nobody can ever signal (a cycle of waits)",
            ),
            (
                r#"[{"loop":{"times":"forever","phases":[{"yield":{}}]}},{"run":{"ns":5}}]"#,
                "`run` behind an endless loop",
            ),
            (r#"[{"loop":{"times":"forever","phases":[{"signal":{"condvar":"v"}}]}}]"#, "can take no time"),
            (r#"[{"wake":{"condition":"c","count":"forever"}}]"#, "found \"forever\""),
            (r#"[{"loop":{"times":"always","phases":[]}}]"#, "forever"),
        ] {
            let error = read(&group(phases)).unwrap_err().to_string();
            assert!(error.starts_with("w.json") && error.contains(wanted), "{error}");
        }
        let none = r#"{"name":"w","groups":[{"name":"g","count":0,"phases":[]}]}"#;
        assert!(read(none).unwrap_err().to_string().contains("0 threads"));
        assert!(read(r#"{"name":"w","groups":[]}"#).is_err());
        let nice = r#"{"name":"w","groups":[{"name":"g","count":1,"nice":20,"phases":[]}]}"#;
        assert!(read(nice).unwrap_err().to_string().contains("groups.g.nice: found 20; allowed: -20 to 19"));
        assert!(read(&nice.replace("20", "-20")).unwrap().to_json().contains("\"nice\": -20"));
        let endless = group(r#"[{"loop":{"times":"forever","phases":[{"yield":{}}]}}]"#);
        let unended = endless.replace(r#""duration_ns":1000000,"#, "");
        assert!(read(&unended).unwrap_err().to_string().contains("no `duration_ns`"));
        assert!(read(&endless.replace("1000000", "0")).unwrap_err().to_string().contains("duration_ns: found 0"));
        assert!(read(&endless.replace(r#""threads""#, r#""forever""#)).is_err());
    }

    #[test]
    fn counts_are_checked_once_they_are_known() {
        let uneven = r#"{"name":"w","barriers":{"x":{"kind":"futex"}},"groups":[
            {"name":"g","count":1,"phases":[{"barrier":{"barrier":"x"}}]},
            {"name":"h","count":1,"phases":[{"loop":{"times":2,"phases":[{"barrier":{"barrier":"x"}}]}}]}]}"#;
        assert!(read(uneven).unwrap().check_for(1, 1.0).unwrap_err().to_string().contains("1 and 2 passes"));
        let endless = uneven
            .replace(r#""times":2"#, r#""times":"forever""#)
            .replace(r#""groups""#, r#""duration_ns":5,"groups""#);
        assert!(read(&endless).unwrap().check_for(1, 1.0).unwrap_err().to_string().contains("1 and endless passes"));
        let starved = r#"{"name":"w","conditions":{"c":{"permits":1}},"groups":[
            {"name":"g","count":"threads","phases":[{"wait":{"condition":"c"}}]}]}"#;
        let workload = read(starved).unwrap();
        assert!(workload.check_for(1, 1.0).is_ok());
        assert!(workload.check_for(2, 1.0).unwrap_err().to_string().contains("2 waits for 1 permits"));
        assert!(workload.check_for(0, 1.0).is_err() && workload.check_for(5000, 1.0).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{}\":,a-z0-9]{0,80}") {
            let _ = read(&text);
        }

        #[test]
        fn any_mutilation_is_read_or_refused(at in 0usize..400, with in "\\PC{0,3}") {
            let text = group(r#"[{"run":{"ns":5}},{"lock":{"lock":"a","phases":[{"syscall":{"ns":7}}]}},{"barrier":{"barrier":"x"}}]"#);
            let at = (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap();
            let broken = format!("{}{with}{}", &text[..at], &text[at..]);
            if let Ok(workload) = read(&broken) {
                prop_assert_eq!(read(&workload.to_json()).unwrap(), workload);
            }
        }
    }
}
