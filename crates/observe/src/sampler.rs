//! Counters of a program and its vCPUs, read once a period and turned into [`PeriodFacts`].
//!
//! Reads /proc, sysfs and cgroup files and CPU clocks; every file is opened once and re-read in place. The prices of
//! the channels differ by a factor of fifty, so the caller chooses per sample how much it wants to know.

use crate::tree::{Stat, Tree};
use muster_model::{CpuSet, PeriodFacts, Progress, ProgressKind};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How much a sample reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// CPU time and idle counters: a few microseconds.
    Signals,
    /// Also context switches, run-queue pressure and progress: some tens of microseconds.
    Full,
}

/// A file that is opened once and re-read from its beginning.
#[derive(Debug)]
struct Counter(File);

impl Counter {
    fn open(path: impl AsRef<Path>) -> Option<Self> {
        File::open(path).ok().map(Self)
    }

    fn read<'a>(&self, buffer: &'a mut Vec<u8>) -> Option<&'a str> {
        if buffer.is_empty() {
            buffer.resize(4096, 0);
        }
        loop {
            let length = self.0.read_at(buffer, 0).ok()?;
            if length < buffer.len() {
                return std::str::from_utf8(&buffer[..length]).ok();
            }
            buffer.resize(buffer.len() * 2, 0);
        }
    }

    fn number(&self, buffer: &mut Vec<u8>) -> Option<u64> {
        self.read(buffer)?.trim_end().parse().ok()
    }
}

/// How the program's CPU time is read.
#[derive(Debug)]
enum CpuChannel {
    /// `cpuacct.usage` of the program's own v1 cgroup, in ns.
    CgroupV1(Counter),
    /// `cpu.stat` of the program's own v2 cgroup, in us.
    CgroupV2(Counter),
    /// The CPU clock of every process (clock_getcpuclockid(3)), and what ended processes had used when last seen.
    Clocks { last_ns: HashMap<u32, u64>, ended_ns: u64 },
}

/// Where the program's own cgroup is, if it has one.
#[derive(Debug, Clone, Default)]
pub struct CgroupPaths {
    /// Folder in the v1 `cpuacct` hierarchy.
    pub cpuacct_v1: Option<PathBuf>,
    /// Folder in the v2 hierarchy.
    pub unified: Option<PathBuf>,
}

/// Cumulative readings.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    now_ns: u64,
    cpu_ns: u64,
    idle_entries: Option<u64>,
    idle_ns: Option<u64>,
    busy_ns: Option<u64>,
    waiting_ns: Option<u64>,
    switches: Option<u64>,
    progress: Option<(ProgressKind, f64)>,
}

/// Reads a program's counters period by period.
#[derive(Debug)]
pub struct Sampler {
    tree: Tree,
    allowed: CpuSet,
    cpu: CpuChannel,
    idle_usage: Vec<Counter>,
    idle_time: Vec<Counter>,
    pressure: Option<Counter>,
    stat: Option<Counter>,
    io: HashMap<u32, Counter>,
    io_ended: f64,
    io_last: HashMap<u32, f64>,
    buffer: Vec<u8>,
    signals: Totals,
    full: Totals,
}

impl Sampler {
    /// Starts to watch the processes of `tree` on the vCPUs `allowed`.
    pub fn new(tree: Tree, allowed: CpuSet, cgroup: &CgroupPaths) -> Self {
        let idle = |file: &str| allowed.iter().flat_map(|cpu| idle_states(cpu, file)).collect();
        let mut sampler = Self {
            cpu: cpu_channel(cgroup),
            idle_usage: idle("usage"),
            idle_time: idle("time"),
            pressure: Counter::open("/proc/pressure/cpu"),
            stat: Counter::open("/proc/stat"),
            io: HashMap::new(),
            io_ended: 0.0,
            io_last: HashMap::new(),
            buffer: Vec::new(),
            signals: Totals::default(),
            full: Totals::default(),
            tree,
            allowed,
        };
        sampler.full = sampler.totals(Detail::Full);
        sampler.signals = sampler.full;
        sampler
    }

    /// The processes under watch.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The processes under watch, to refresh them or leave one out.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// What happened since the last sample of at least this detail; `active` is handed through.
    pub fn sample(&mut self, detail: Detail, active: CpuSet) -> PeriodFacts {
        let now = self.totals(detail);
        let before = match detail {
            Detail::Signals => std::mem::replace(&mut self.signals, now),
            Detail::Full => {
                self.signals = now;
                std::mem::replace(&mut self.full, now)
            }
        };
        self.facts(&before, &now, active)
    }

    fn facts(&self, before: &Totals, now: &Totals, active: CpuSet) -> PeriodFacts {
        let difference = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let cpu_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        let busy_ns = difference(now.busy_ns, before.busy_ns);
        let progress = now.progress.zip(before.progress).and_then(|((kind, now), (kind_before, before))| {
            (kind == kind_before).then_some(Progress { kind, count: (now - before).max(0.0) })
        });
        PeriodFacts {
            now_ns: now.now_ns,
            period_ns: now.now_ns.saturating_sub(before.now_ns),
            active,
            cpu_ns,
            user_ns: None,
            foreign_ns: busy_ns.map(|busy_ns| busy_ns.saturating_sub(cpu_ns)),
            idle_entries: difference(now.idle_entries, before.idle_entries),
            idle_ns: difference(now.idle_ns, before.idle_ns),
            waiting_ns: difference(now.waiting_ns, before.waiting_ns),
            switches: difference(now.switches, before.switches),
            progress,
            threads: 0,
            pairs: None,
        }
    }

    fn totals(&mut self, detail: Detail) -> Totals {
        let mut totals = Totals {
            now_ns: monotonic_ns(),
            cpu_ns: self.cpu_ns(),
            idle_entries: sum(&self.idle_usage, &mut self.buffer, 1),
            idle_ns: sum(&self.idle_time, &mut self.buffer, 1000),
            ..Totals::default()
        };
        if detail == Detail::Full {
            totals.waiting_ns = self.waiting_ns();
            (totals.switches, totals.busy_ns) = self.switches_and_busy_ns();
            totals.progress = self.io_calls().map(|calls| (ProgressKind::IoCalls, calls));
        }
        totals
    }

    fn cpu_ns(&mut self) -> u64 {
        match &mut self.cpu {
            CpuChannel::CgroupV1(usage) => usage.number(&mut self.buffer).unwrap_or(0),
            CpuChannel::CgroupV2(stat) => {
                stat.read(&mut self.buffer).and_then(|text| field(text, "usage_usec ")).unwrap_or(0) * 1000
            }
            CpuChannel::Clocks { last_ns, ended_ns } => {
                let mut seen = HashMap::with_capacity(last_ns.len());
                for process in self.tree.processes() {
                    if let Some(time_ns) = process_cpu_ns(process.id) {
                        last_ns.remove(&process.id);
                        seen.insert(process.id, time_ns);
                    }
                }
                *ended_ns += last_ns.values().sum::<u64>();
                *last_ns = seen;
                *ended_ns + last_ns.values().sum::<u64>()
            }
        }
    }

    /// System-wide time in which at least one task waited for a CPU (Documentation/accounting/psi.rst).
    fn waiting_ns(&mut self) -> Option<u64> {
        Some(field(self.pressure.as_ref()?.read(&mut self.buffer)?, "total=")? * 1000)
    }

    /// Context switches of the whole system and busy time of the allowed CPUs (proc_stat(5)).
    fn switches_and_busy_ns(&mut self) -> (Option<u64>, Option<u64>) {
        let Some(text) = self.stat.as_ref().and_then(|stat| stat.read(&mut self.buffer)) else { return (None, None) };
        (field(text, "\nctxt "), busy_ticks(text, &self.allowed).map(|ticks| ticks * TICK_NS))
    }

    /// Read and write system calls of all processes, ended ones as last seen (proc_pid_io(5)).
    fn io_calls(&mut self) -> Option<f64> {
        let mut last = HashMap::with_capacity(self.io_last.len());
        for process in self.tree.processes() {
            let counter = match self.io.entry(process.id) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    let Some(counter) = Counter::open(format!("/proc/{}/io", process.id)) else { continue };
                    entry.insert(counter)
                }
            };
            let Some(text) = counter.read(&mut self.buffer) else { continue };
            let calls = field(text, "syscr: ")? + field(text, "syscw: ")?;
            self.io_last.remove(&process.id);
            last.insert(process.id, calls as f64);
        }
        self.io_ended += self.io_last.values().sum::<f64>();
        self.io.retain(|pid, _| last.contains_key(pid));
        self.io_last = last;
        Some(self.io_ended + self.io_last.values().sum::<f64>())
    }

    /// Live threads of the program.
    pub fn threads(&self) -> u32 {
        self.tree.processes().filter_map(|process| Stat::of(process.id)).map(|stat| stat.threads).sum()
    }
}

/// `/proc/stat` counts in ticks of USER_HZ, which is 100 on every Linux architecture muster runs on.
const TICK_NS: u64 = 10_000_000;

fn cpu_channel(cgroup: &CgroupPaths) -> CpuChannel {
    let v1 = cgroup.cpuacct_v1.as_ref().and_then(|path| Counter::open(path.join("cpuacct.usage")));
    let v2 = || cgroup.unified.as_ref().and_then(|path| Counter::open(path.join("cpu.stat")));
    match v1 {
        Some(usage) => CpuChannel::CgroupV1(usage),
        None => match v2() {
            Some(stat) => CpuChannel::CgroupV2(stat),
            None => CpuChannel::Clocks { last_ns: HashMap::new(), ended_ns: 0 },
        },
    }
}

/// The `usage` or `time` files of a CPU's idle states (Documentation/admin-guide/pm/cpuidle.rst).
fn idle_states(cpu: usize, file: &str) -> Vec<Counter> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
    let Ok(states) = fs::read_dir(folder) else { return Vec::new() };
    states.flatten().filter_map(|state| Counter::open(state.path().join(file))).collect()
}

fn sum(counters: &[Counter], buffer: &mut Vec<u8>, unit: u64) -> Option<u64> {
    if counters.is_empty() {
        return None;
    }
    counters.iter().map(|counter| counter.number(buffer)).sum::<Option<u64>>().map(|total| total * unit)
}

/// The number that follows the first `key` in `text`.
fn field(text: &str, key: &str) -> Option<u64> {
    let rest = &text[text.find(key)? + key.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Busy ticks (everything but idle and iowait) of the CPUs `allowed` in the text of `/proc/stat`.
fn busy_ticks(text: &str, allowed: &CpuSet) -> Option<u64> {
    let mut total = 0;
    for line in text.lines().skip(1).take_while(|line| line.starts_with("cpu")) {
        let mut words = line[3..].split_ascii_whitespace();
        if words.next()?.parse().is_ok_and(|cpu: usize| allowed.contains(cpu)) {
            // user nice system idle iowait irq softirq steal; guest time is part of user.
            let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
            total += ticks.iter().sum::<u64>() - ticks.get(3)? - ticks.get(4)?;
        }
    }
    Some(total)
}

/// The monotonic clock in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of a whole process, all threads, ended ones included; `None` when it is gone.
fn process_cpu_ns(pid: u32) -> Option<u64> {
    // clock_getcpuclockid(3): the complement of the pid, shifted, with CPUCLOCK_SCHED.
    let clock = (!(pid as libc::clockid_t) << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live, writable timespec; an unknown clock id is answered with an error.
    let failed = unsafe { libc::clock_gettime(clock, &mut time) } != 0;
    (!failed).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_behind_keys() {
        let text = "some avg10=0.00 avg60=0.15 avg300=0.36 total=2487569\nfull total=0\n";
        assert_eq!(field(text, "total="), Some(2_487_569));
        assert_eq!(field("usage_usec 12\nuser_usec 5\n", "usage_usec "), Some(12));
        assert_eq!(field("x", "total="), None);
    }

    #[test]
    fn counts_busy_ticks_of_allowed_cpus_only() {
        let text =
            "cpu  30 0 30 99 9 3 3 3 0 0\ncpu0 10 1 10 33 3 1 1 1 0 0\ncpu1 20 0 20 66 6 2 2 2 0 0\nintr 5\nctxt 77\n";
        assert_eq!(busy_ticks(text, &CpuSet::single(0)), Some(24));
        assert_eq!(busy_ticks(text, &CpuSet::first(2)), Some(70));
        assert_eq!(field(text, "\nctxt "), Some(77));
    }

    #[test]
    fn a_busy_process_shows_its_cpu_time() {
        let me = std::process::id();
        let tree = Tree::new(me, None).expect("this process exists");
        let allowed = CpuSet::first(1);
        let mut sampler = Sampler::new(tree, allowed, &CgroupPaths::default());
        let mut waste = 0u64;
        for round in 0..20_000_000u64 {
            waste = std::hint::black_box(waste.wrapping_add(round));
        }
        let facts = sampler.sample(Detail::Full, allowed);
        assert!(facts.cpu_ns > 0 && facts.period_ns > 0);
        assert_eq!(facts.active, allowed);
    }
}
