//! Counters of a program and its vCPUs, read once a period and turned into [`PeriodFacts`].
//!
//! Reads /proc, sysfs and cgroup files and CPU clocks; every file is opened once and re-read in place. The prices of
//! the channels differ by a factor of fifty, so the caller chooses per sample how much it wants to know.

use crate::progress::Progress;
use crate::tree::Tree;
use muster_model::{CpuSet, PeriodFacts, ThreadFacts, ThreadId};
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How much a sample reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// CPU time and the switches of the few busiest threads: a few microseconds.
    Handovers,
    /// The same and idle entries: two more for each vCPU.
    Signals,
    /// Everything there is: some tens of microseconds, and one for each process and thread.
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
    poll_entries: Option<u64>,
    poll_ns: Option<u64>,
    busy_ns: Option<u64>,
    waiting_ns: Option<u64>,
    switches: Option<u64>,
    /// Of the busiest threads as of the last full sample.
    busiest_switches: Option<u64>,
    io_calls: Option<u64>,
    io_bytes: Option<u64>,
    progress: Option<f64>,
}

/// Reads a program's counters period by period.
#[derive(Debug)]
pub struct Sampler {
    tree: Tree,
    allowed: CpuSet,
    cpu: CpuChannel,
    halting: IdleStates,
    polling: IdleStates,
    stat: Option<Counter>,
    io: PerTask<2>,
    schedstat: PerTask<3>,
    progress: Option<Progress>,
    buffer: Vec<u8>,
    signals: Totals,
    full: Totals,
}

impl Sampler {
    /// Starts to watch the processes of `tree` on the vCPUs `allowed`, and the program's own count of its work.
    pub fn new(tree: Tree, allowed: CpuSet, cgroup: &CgroupPaths, progress: Option<Progress>) -> Self {
        let (polling, halting) = allowed.iter().flat_map(idle_states).partition::<Vec<_>, _>(|state| is_polling(state));
        let mut sampler = Self {
            cpu: cpu_channel(cgroup),
            halting: IdleStates::open(&halting),
            polling: IdleStates::open(&polling),
            stat: Counter::open("/proc/stat"),
            io: PerTask::default(),
            schedstat: PerTask::default(),
            progress,
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

    /// The few threads that were switched in most often between the last two full samples, busiest first.
    pub fn busiest_threads(&self) -> &[u32] {
        &self.schedstat.busiest
    }

    /// What each thread did since the sampler began, as of the last full sample; of ended threads the busiest.
    pub fn threads(&self) -> Vec<ThreadFacts> {
        let facts = |(id, numbers): (u32, [u64; 3])| {
            let [cpu_ns, waiting_ns, switches] = numbers;
            ThreadFacts { id: ThreadId(id), cpu_ns, waiting_ns, switches }
        };
        self.schedstat.by_task().into_iter().map(facts).collect()
    }

    /// The vCPUs whose counters are read.
    pub fn allowed(&self) -> CpuSet {
        self.allowed
    }

    /// The processes under watch.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The processes under watch, to refresh them or leave one out.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// The units of work that the program has counted so far; `None` where it does not.
    pub fn total_progress(&mut self) -> Option<f64> {
        self.progress.as_mut()?.total()
    }

    /// What happened since the last sample of at least this detail; `active` is handed through.
    pub fn sample(&mut self, detail: Detail, active: CpuSet) -> PeriodFacts {
        let now = self.totals(detail);
        let before = match detail {
            Detail::Handovers | Detail::Signals => std::mem::replace(&mut self.signals, now),
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
        PeriodFacts {
            now_ns: now.now_ns,
            period_ns: now.now_ns.saturating_sub(before.now_ns),
            active,
            cpu_ns,
            user_ns: None,
            foreign_ns: busy_ns.map(|busy_ns| busy_ns.saturating_sub(cpu_ns)),
            idle_entries: difference(now.idle_entries, before.idle_entries),
            idle_ns: difference(now.idle_ns, before.idle_ns),
            poll_entries: difference(now.poll_entries, before.poll_entries),
            poll_ns: difference(now.poll_ns, before.poll_ns),
            waiting_ns: difference(now.waiting_ns, before.waiting_ns),
            switches: difference(now.switches, before.switches)
                .or_else(|| difference(now.busiest_switches, before.busiest_switches)),
            io_calls: difference(now.io_calls, before.io_calls),
            io_bytes: difference(now.io_bytes, before.io_bytes),
            progress: now.progress.zip(before.progress).map(|(now, before)| now - before).filter(|&units| units >= 0.0),
            threads: self.tree.threads().count() as u32,
            pairs: None,
        }
    }

    fn totals(&mut self, detail: Detail) -> Totals {
        let mut totals = Totals { now_ns: monotonic_ns(), cpu_ns: self.cpu_ns(), ..Totals::default() };
        totals.progress = self.progress.as_mut().and_then(Progress::read);
        if detail != Detail::Handovers {
            totals.idle_entries = sum(&self.halting.usage, &mut self.buffer, 1);
            totals.poll_entries = sum(&self.polling.usage, &mut self.buffer, 1);
        }
        if detail != Detail::Full {
            totals.busiest_switches = self.schedstat.busiest(schedstat, &mut self.buffer);
        } else {
            totals.idle_ns = sum(&self.halting.time, &mut self.buffer, 1000);
            totals.poll_ns = sum(&self.polling.time, &mut self.buffer, 1000);
            totals.busy_ns = self.busy_ns();
            [totals.io_bytes, totals.io_calls] = self.io_bytes_and_calls().map(Some);
            [_, totals.waiting_ns, totals.switches] = self.schedstat().map(Some);
            totals.busiest_switches = self.schedstat.busiest_at_last_look();
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

    /// Busy time of the allowed CPUs (proc_stat(5)).
    fn busy_ns(&mut self) -> Option<u64> {
        let text = self.stat.as_ref()?.read(&mut self.buffer)?;
        busy_ticks(text, &self.allowed).map(|ticks| ticks * TICK_NS)
    }

    /// Read and write system calls of all processes and the bytes they moved (proc_pid_io(5)).
    fn io_bytes_and_calls(&mut self) -> [u64; 2] {
        let path = |pid| format!("/proc/{pid}/io");
        let sum = |text: &str, read, write| Some(field(text, read)? + field(text, write)?);
        let read = |text: &str| Some([sum(text, "rchar: ", "wchar: ")?, sum(text, "syscr: ", "syscw: ")?]);
        self.io.totals(self.tree.processes().map(|process| process.id), path, read, &mut self.buffer)
    }

    /// CPU time, run-queue waiting time and switch-ins of all threads.
    fn schedstat(&mut self) -> [u64; 3] {
        let path = |tid| format!("/proc/{tid}/schedstat");
        self.schedstat.totals(self.tree.threads().take(MAX_THREADS), path, schedstat, &mut self.buffer)
    }
}

/// Of a program with more threads only so many are read: a part that stays the same compares as well as the whole, at
/// a bounded price.
const MAX_THREADS: usize = 64;

/// Cumulative numbers of many tasks; those of ended tasks are kept as last seen.
#[derive(Debug)]
struct PerTask<const N: usize> {
    live: HashMap<u32, (Counter, [u64; N])>,
    ended: [u64; N],
    /// What the tasks that were there at the first look had counted by then.
    at_first: Option<HashMap<u32, [u64; N]>>,
    /// Of the tasks that ended, those with the highest first number.
    ended_tasks: Vec<(u32, [u64; N])>,
    /// The tasks whose last number rose most between the last two looks at all.
    busiest: Vec<u32>,
}

/// So many ended tasks are remembered one by one.
const MAX_ENDED: usize = 64;

/// So many threads are looked at each period: those of a hand-over are two or a few.
const BUSIEST: usize = 4;

impl<const N: usize> Default for PerTask<N> {
    fn default() -> Self {
        Self { live: HashMap::new(), ended: [0; N], at_first: None, ended_tasks: Vec::new(), busiest: Vec::new() }
    }
}

impl<const N: usize> PerTask<N> {
    /// The totals over `tasks`.
    fn totals(
        &mut self,
        tasks: impl Iterator<Item = u32>,
        path: impl Fn(u32) -> String,
        read: impl Fn(&str) -> Option<[u64; N]>,
        buffer: &mut Vec<u8>,
    ) -> [u64; N] {
        let mut live = HashMap::with_capacity(self.live.len());
        let mut rises = Vec::new();
        for task in tasks {
            let (counter, last) = match self.live.remove(&task) {
                Some(known) => known,
                None => match Counter::open(path(task)) {
                    Some(counter) => (counter, [0; N]),
                    None => continue,
                },
            };
            match counter.read(buffer).and_then(&read) {
                Some(now) => {
                    rises.push((now[N - 1].saturating_sub(last[N - 1]), task));
                    live.insert(task, (counter, now));
                }
                None => self.end(task, last),
            }
        }
        for (task, (_, last)) in std::mem::take(&mut self.live) {
            self.end(task, last);
        }
        self.at_first.get_or_insert_with(|| live.iter().map(|(&task, &(_, now))| (task, now)).collect());
        rises.sort_unstable_by(|a, b| b.cmp(a));
        self.busiest = rises.into_iter().take(BUSIEST).map(|(_, task)| task).collect();
        self.live = live;
        let mut totals = self.ended;
        self.live.values().for_each(|(_, now)| add(&mut totals, now));
        totals
    }

    fn end(&mut self, task: u32, last: [u64; N]) {
        add(&mut self.ended, &last);
        if self.ended_tasks.len() < MAX_ENDED {
            self.ended_tasks.push((task, last));
        } else if let Some(least) = self.ended_tasks.iter_mut().min_by_key(|(_, numbers)| numbers[0])
            && least.1[0] < last[0]
        {
            *least = (task, last);
        }
    }

    /// By task, what it counted since the first look; ascending by task.
    fn by_task(&self) -> Vec<(u32, [u64; N])> {
        let live = self.live.iter().map(|(&task, &(_, now))| (task, now));
        let mut all: Vec<(u32, [u64; N])> = live.chain(self.ended_tasks.iter().copied()).collect();
        for (task, numbers) in &mut all {
            if let Some(before) = self.at_first.as_ref().and_then(|at_first| at_first.get(task)) {
                numbers.iter_mut().zip(before).for_each(|(now, before)| *now = now.saturating_sub(*before));
            }
        }
        all.sort_unstable_by_key(|(task, _)| *task);
        all
    }

    /// The last number, summed over the busiest tasks, read now; `None` when one of them has ended or none is known.
    fn busiest(&self, read: impl Fn(&str) -> Option<[u64; N]>, buffer: &mut Vec<u8>) -> Option<u64> {
        let now = |task| Some(read(self.live.get(task)?.0.read(buffer)?)?[N - 1]);
        self.busiest.iter().map(now).sum::<Option<u64>>().filter(|_| !self.busiest.is_empty())
    }

    /// The same as of the last look at all.
    fn busiest_at_last_look(&self) -> Option<u64> {
        let last = |task| Some(self.live.get(task)?.1[N - 1]);
        self.busiest.iter().map(last).sum()
    }
}

/// CPU time, waiting time and switch-ins in the text of a `schedstat` file (Documentation/scheduler/sched-stats.rst).
fn schedstat(text: &str) -> Option<[u64; 3]> {
    let mut words = text.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some([words.next()?, words.next()?, words.next()?])
}

fn add<const N: usize>(totals: &mut [u64; N], more: &[u64; N]) {
    totals.iter_mut().zip(more).for_each(|(total, more)| *total += more);
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

/// Counters of idle states (Documentation/admin-guide/pm/cpuidle.rst).
#[derive(Debug)]
struct IdleStates {
    /// Entries.
    usage: Vec<Counter>,
    /// Microseconds.
    time: Vec<Counter>,
}

impl IdleStates {
    fn open(folders: &[PathBuf]) -> Self {
        let all = |file| folders.iter().filter_map(|folder| Counter::open(folder.join(file))).collect();
        Self { usage: all("usage"), time: all("time") }
    }
}

/// The folders of a CPU's idle states; none where the kernel has no cpuidle driver.
fn idle_states(cpu: usize) -> Vec<PathBuf> {
    let Ok(states) = fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle")) else { return Vec::new() };
    states.flatten().map(|state| state.path()).collect()
}

/// Whether an idle state polls in the guest; the kernel names it so on every driver.
fn is_polling(state: &Path) -> bool {
    fs::read_to_string(state.join("name")).is_ok_and(|name| name.trim() == "POLL")
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
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
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
    fn tasks_are_told_apart_from_the_first_look_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = |task: u32| directory.path().join(task.to_string()).display().to_string();
        let write = |task, text: &str| fs::write(path(task), text).unwrap();
        let mut tasks = PerTask::<3>::default();
        write(7, "100 10 1\n");
        tasks.totals([7].into_iter(), path, schedstat, &mut Vec::new());
        write(7, "150 20 3\n");
        write(8, "5 6 7\n");
        let totals = tasks.totals([7, 8].into_iter(), path, schedstat, &mut Vec::new());
        assert_eq!(totals, [155, 26, 10]);
        assert_eq!(tasks.by_task(), [(7, [50, 10, 2]), (8, [5, 6, 7])]);
        tasks.totals([7].into_iter(), path, schedstat, &mut Vec::new());
        assert_eq!(tasks.by_task(), [(7, [50, 10, 2]), (8, [5, 6, 7])], "an ended task is remembered");
        for task in 100..100 + 2 * MAX_ENDED as u32 {
            tasks.end(task, [u64::from(task), 0, 0]);
        }
        assert_eq!(tasks.ended_tasks.len(), MAX_ENDED);
        assert!(tasks.by_task().iter().any(|(task, _)| *task == 99 + 2 * MAX_ENDED as u32), "the busiest stay");
    }

    #[test]
    fn a_busy_process_shows_its_cpu_time() {
        let me = std::process::id();
        let tree = Tree::new(me, None).expect("this process exists");
        let allowed = CpuSet::first(1);
        let mut sampler = Sampler::new(tree, allowed, &CgroupPaths::default(), None);
        let mut waste = 0u64;
        for round in 0..20_000_000u64 {
            waste = std::hint::black_box(waste.wrapping_add(round));
        }
        let facts = sampler.sample(Detail::Full, allowed);
        assert!(facts.cpu_ns > 0 && facts.period_ns > 0);
        let threads = sampler.threads();
        assert!(threads.iter().any(|thread| thread.cpu_ns > 0), "{threads:?}");
        assert!(threads.iter().map(|thread| thread.cpu_ns).sum::<u64>() <= 2 * facts.cpu_ns, "since the first look");
        assert_eq!(facts.active, allowed);
    }
}
