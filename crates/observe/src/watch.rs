//! Follows one program for a while and writes down what happened: the loop over all channels, from the cheapest up.
//!
//! May touch: /proc, sysfs, CPU clocks, and BPF where it was asked for. Changes nothing.

use crate::bpf::BpfError;
use crate::counters::Counters;
use crate::machine::Settings;
use crate::pairs::PairWatch;
use crate::sampler::{CgroupPaths, Detail, Sampler, monotonic_ns};
use crate::states::{Looks, StateLooks};
use crate::tree::Tree;
use crate::usage::{Usage, UsageReader};
use crate::wakes::{WakesSeen, WindowSums, Windows};
use muster_model::{CpuSet, PeriodFacts, ThreadFacts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::atomic::{AtomicBool, Ordering};

/// A program cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Nobody has this process number.
    #[error("no process has the number {0}; allowed: the number of a running process")]
    NoSuchProcess(u32),
    /// The kernel does not let us wait for its end.
    #[error("cannot watch process {pid}: {source}")]
    Pidfd {
        /// The process.
        pid: u32,
        /// What the kernel said.
        source: rustix::io::Errno,
    },
}

/// What to read, and for how long.
pub struct Options<'a> {
    /// Stop after this long; `None`: when the program ends.
    pub duration_ns: Option<u64>,
    /// Why BPF is not to be used; `None` to use it.
    pub no_bpf: Option<String>,
    /// For how long the tracepoints may be attached, from their rate per second and price in nanoseconds.
    pub windows: &'a dyn Fn(f64, f64) -> Windows,
    /// Set to stop early.
    pub stop: &'a AtomicBool,
}

/// One period of a watch.
#[derive(Debug, Clone)]
pub struct Period {
    /// What the program and its vCPUs did.
    pub facts: PeriodFacts,
    /// How often threads were found runnable.
    pub looks: Looks,
    /// Minor page faults.
    pub minor_faults: u64,
    /// What each thread did, where schedstat is there; of ended threads the busiest, as last seen.
    pub threads: Vec<ThreadFacts>,
}

/// What happened while a program was watched.
#[derive(Debug, Clone)]
pub struct Observation {
    /// How long it was watched.
    pub wall_ns: u64,
    /// The vCPUs it could use.
    pub allowed: CpuSet,
    /// CPU time of muster itself.
    pub own_ns: u64,
    /// What the program used in that time.
    pub usage: Usage,
    /// The same in periods.
    pub periods: Vec<Period>,
    /// The last period of a program that ended in it: its CPU time is known only to [`Observation::charge`].
    pub(crate) unfinished: Option<Period>,
    /// What the machine counted in that time.
    pub counters: Counters,
    /// How often threads were found runnable.
    pub looks: Looks,
    /// How the machine is set.
    pub settings: Settings,
    /// Who woke whom, where BPF saw it.
    pub wakes: Option<WakesSeen>,
    /// Channels that were read.
    pub channels_used: Vec<String>,
    /// Channels that were missing, and what is lost by it.
    pub channels_missing: Vec<String>,
}

/// Length of the first periods. They grow with time, so that a watch of hours does not fill the memory.
const PERIOD_NS: u64 = 100_000_000;
/// After this many periods they are twice as long, then three times, and so on.
const PERIODS_OF_A_LENGTH: u64 = 300;
/// Reading a period may take this share of one CPU.
const PERIOD_BUDGET: f64 = 0.005;

/// Counters from before the program began.
#[derive(Debug)]
pub struct Before {
    allowed: CpuSet,
    counters: Counters,
    own_ns: u64,
    now_ns: u64,
}

/// CPU time that this process has used.
fn own_ns() -> u64 {
    crate::sampler::process_cpu_ns(std::process::id()).unwrap_or(0)
}

impl Before {
    /// Reads them; to be called just before attaching to `process`, or before this process starts a program of its own.
    pub fn read(process: Option<u32>) -> Self {
        let allowed = affinity(process.and_then(pid_of));
        Self { allowed, counters: Counters::read(&allowed), own_ns: own_ns(), now_ns: monotonic_ns() }
    }
}

/// Watches process `root` and its descendants until it ends, `options` say to stop, or time is up. `is_new`: it was
/// started after `before` was read, so that all it ever used counts.
///
/// # Errors
/// When there is no such process.
pub fn watch(root: u32, is_new: bool, before: Before, options: &Options) -> Result<Observation, WatchError> {
    let tree = Tree::new(root, None).ok_or(WatchError::NoSuchProcess(root))?;
    let pid = pid_of(root).ok_or(WatchError::NoSuchProcess(root))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|source| WatchError::Pidfd { pid: root, source })?;
    let mut watcher = Watcher::new(tree, is_new, &before);
    let mut wakes = Wakes::open(options);
    let end_ns = options.duration_ns.map_or(u64::MAX, |duration_ns| before.now_ns.saturating_add(duration_ns));
    while monotonic_ns() < end_ns && !options.stop.load(Ordering::Relaxed) {
        let next_ns = watcher.work().min(wakes.work(watcher.sampler.tree(), options)).min(end_ns);
        if ends_before(&pidfd, next_ns) {
            break;
        }
    }
    let (wakes, channels_missing) = wakes.finish(watcher.sampler.tree());
    Ok(watcher.finish(before, wakes, channels_missing))
}

/// A process number as the kernel takes it; `None` for 0 and what no process can have.
fn pid_of(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// Sleeps until `until_ns`; true when the process ended meanwhile. A signal to us ends the sleep.
fn ends_before(pidfd: &OwnedFd, until_ns: u64) -> bool {
    let rest_ns = until_ns.saturating_sub(monotonic_ns());
    let timeout = Timespec { tv_sec: (rest_ns / 1_000_000_000) as i64, tv_nsec: (rest_ns % 1_000_000_000) as _ };
    matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)), Ok(ready) if ready > 0)
}

/// The CPUs a process (`None`: this one) may use; all there are where the kernel does not say.
fn affinity(pid: Option<Pid>) -> CpuSet {
    match rustix::thread::sched_getaffinity(pid) {
        Ok(set) => (0..muster_model::cpuset::MAX_CPUS).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => CpuSet::first(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}

/// The unprivileged channels.
struct Watcher {
    sampler: Sampler,
    usage: UsageReader,
    first: Usage,
    last: Usage,
    looks: StateLooks,
    periods: Vec<Period>,
    looks_so_far: Looks,
    threads_so_far: Vec<ThreadFacts>,
    period_due_ns: u64,
    allowed: CpuSet,
}

impl Watcher {
    fn new(tree: Tree, is_new: bool, before: &Before) -> Self {
        let allowed = before.allowed;
        let mut usage = UsageReader::default();
        let now = usage.read(tree.processes());
        let first = if is_new { Usage::default() } else { now };
        let sampler = Sampler::new(tree, allowed, &CgroupPaths::default(), None);
        let period_due_ns = before.now_ns + PERIOD_NS;
        Self {
            sampler,
            usage,
            first,
            last: first,
            looks: StateLooks::default(),
            periods: Vec::new(),
            looks_so_far: Looks::default(),
            threads_so_far: Vec::new(),
            period_due_ns,
            allowed,
        }
    }

    /// Does what is due, and says when to come again.
    fn work(&mut self) -> u64 {
        let look_due_ns = self.looks.look(self.sampler.tree_mut());
        let begin_ns = monotonic_ns();
        if begin_ns >= self.period_due_ns {
            self.end_period();
            let now_ns = monotonic_ns();
            let length_ns = PERIOD_NS * (1 + self.periods.len() as u64 / PERIODS_OF_A_LENGTH);
            self.period_due_ns = now_ns + length_ns.max(((now_ns - begin_ns) as f64 / PERIOD_BUDGET) as u64);
        }
        look_due_ns.min(self.period_due_ns)
    }

    fn end_period(&mut self) {
        self.sampler.tree_mut().refresh();
        let period = self.period();
        self.periods.push(period);
    }

    /// What happened since the last period ended.
    fn period(&mut self) -> Period {
        let usage = match self.sampler.tree().is_alive() {
            true => self.usage.read(self.sampler.tree().processes()),
            false => self.last,
        };
        let used = usage.since(&self.last);
        self.last = usage;
        let facts = self.sampler.sample(Detail::Full, self.allowed);
        let looks = self.looks.found();
        let since = std::mem::replace(&mut self.looks_so_far, looks);
        let threads = self.sampler.threads();
        let before = std::mem::replace(&mut self.threads_so_far, threads.clone());
        Period {
            facts: PeriodFacts { cpu_ns: used.cpu_ns, user_ns: Some(used.user_ns), ..facts },
            looks: looks.since(&since),
            minor_faults: used.minor_faults,
            threads: since_before(threads, &before),
        }
    }

    fn finish(mut self, before: Before, wakes: Option<WakesSeen>, channels_missing: Vec<String>) -> Observation {
        let wall_ns = monotonic_ns().saturating_sub(before.now_ns);
        self.sampler.tree_mut().refresh();
        let is_alive = self.sampler.tree().is_alive();
        let rest = self.period();
        // What an ended program used since its last period is not known before it is waited for.
        let unfinished = (!is_alive).then(|| Period { facts: uncounted(&rest.facts), ..rest.clone() });
        self.periods.extend(is_alive.then_some(rest));
        let counters = Counters::read(&self.allowed).since(&before.counters);
        let mut observation = Observation {
            wall_ns,
            allowed: self.allowed,
            own_ns: own_ns().saturating_sub(before.own_ns),
            usage: self.last.since(&self.first),
            periods: self.periods,
            unfinished,
            counters,
            looks: self.looks.found(),
            settings: Settings::read(),
            wakes,
            channels_used: Vec::new(),
            channels_missing,
        };
        observation.name_channels();
        observation
    }
}

/// A period without what is read from each process and thread: of ended ones that is lost.
fn uncounted(facts: &PeriodFacts) -> PeriodFacts {
    PeriodFacts { switches: None, waiting_ns: None, io_calls: None, io_bytes: None, ..facts.clone() }
}

/// What each thread did since `before`; both ascending by thread.
fn since_before(mut threads: Vec<ThreadFacts>, before: &[ThreadFacts]) -> Vec<ThreadFacts> {
    for thread in &mut threads {
        if let Ok(at) = before.binary_search_by_key(&thread.id, |thread| thread.id) {
            thread.cpu_ns = thread.cpu_ns.saturating_sub(before[at].cpu_ns);
            thread.waiting_ns = thread.waiting_ns.saturating_sub(before[at].waiting_ns);
            thread.switches = thread.switches.saturating_sub(before[at].switches);
        }
    }
    threads.retain(|thread| thread.switches > 0 || thread.cpu_ns > 0);
    threads
}

impl Observation {
    /// Puts what the kernel charged to a program that was waited for, all its descendants included, in place of what
    /// was sampled; what no period holds yet belongs to the last one.
    pub fn charge(&mut self, charged: Usage) {
        self.usage = Usage { refaults: self.usage.refaults, ..charged };
        let Some(last) = self.unfinished.take() else { return };
        let rest = |total: u64, part: fn(&PeriodFacts) -> u64| total.saturating_sub(self.facts().map(part).sum());
        let user_ns = rest(charged.user_ns, |facts| facts.user_ns.unwrap_or(0));
        let cpu_ns = rest(charged.cpu_ns, |facts| facts.cpu_ns);
        let facts = PeriodFacts { cpu_ns, user_ns: Some(user_ns.min(cpu_ns)), ..last.facts };
        let faults_before: u64 = self.periods.iter().map(|period| period.minor_faults).sum();
        let minor_faults = charged.minor_faults.saturating_sub(faults_before);
        self.periods.push(Period { facts, minor_faults, ..last });
    }

    /// What happened, period by period.
    pub fn facts(&self) -> impl Iterator<Item = &PeriodFacts> {
        self.periods.iter().map(|period| &period.facts)
    }

    /// Sums a count over all periods; `None` where no period has it.
    pub fn sum(&self, count: impl Fn(&PeriodFacts) -> Option<u64>) -> Option<u64> {
        self.facts().filter_map(count).reduce(|sum, more| sum + more)
    }

    /// How many nanoseconds all periods are long together.
    pub fn sampled_ns(&self) -> u64 {
        self.facts().map(|facts| facts.period_ns).sum()
    }

    fn name_channels(&mut self) {
        let halts = self.facts().any(|facts| facts.idle_entries.is_some());
        let waits = self.facts().any(|facts| facts.switches.is_some_and(|switches| switches > 0));
        let counters = self.counters;
        let channels = [
            (true, "CPU clocks and /proc/PID/stat", ""),
            (halts, "cpuidle usage and time", "halts cannot be counted, so wake-up costs are unknown"),
            (self.looks.looks > 0, "thread states", "waiting for the outside cannot be told from waking"),
            (
                counters.tasks_ns.is_some(),
                "root cgroup's CPU account",
                "CPU time of others is known to 10 ms ticks only",
            ),
            (counters.cpu_pressure_ns.is_some(), "PSI", "waiting for disks has no bound"),
            (counters.interrupts.is_some(), "/proc/interrupts", "IPIs and TLB shootdowns are not counted"),
            (waits, "/proc/PID/schedstat", "threads that block each other cannot be told from threads that compute"),
        ];
        for (is_there, channel, loss) in channels {
            match is_there {
                true => self.channels_used.push(channel.to_owned()),
                false => self.channels_missing.push(format!("{channel}: {loss}")),
            }
        }
        if let Some(wakes) = &self.wakes {
            let attached = format!("BPF raw tracepoints, attached {} ms", wakes.window.window_ns / 1_000_000);
            self.channels_used.push(attached);
        }
    }
}

/// The privileged channel, in its windows.
struct Wakes {
    watch: Option<PairWatch>,
    missing: Vec<String>,
    windows: Option<Windows>,
    seen: WindowSums,
    due_ns: u64,
}

/// The first window: it measures the rate and the price of tracepoints.
const FIRST_WINDOW_NS: u64 = 10_000_000;

/// What the answer loses without BPF, and why it is missing.
fn without_bpf(why: impl std::fmt::Display) -> String {
    format!(
        "BPF ({why}): who wakes whom, how long wake-ups take in the program itself and how long threads sleep is not seen"
    )
}

impl Wakes {
    fn open(options: &Options) -> Self {
        let loaded = match &options.no_bpf {
            Some(why) => Err(without_bpf(why)),
            None => PairWatch::load().map_err(without_bpf),
        };
        let (watch, missing) = match loaded {
            Ok(watch) => (Some(watch), Vec::new()),
            Err(why) => (None, vec![why]),
        };
        let due_ns = if watch.is_some() { monotonic_ns() + FIRST_WINDOW_NS } else { u64::MAX };
        Self { watch, missing, windows: None, seen: WindowSums::default(), due_ns }
    }

    /// Opens or closes a window if it is time, and says when to come again.
    fn work(&mut self, tree: &Tree, options: &Options) -> u64 {
        let Some(watch) = self.watch.as_mut().filter(|_| monotonic_ns() >= self.due_ns) else { return self.due_ns };
        let done = match watch.is_open() {
            false => self.open_window(tree),
            true => self.close_window(tree, options),
        };
        if let Err(error) = done {
            self.missing.push(without_bpf(error));
            self.watch = None;
            self.due_ns = u64::MAX;
        }
        self.due_ns
    }

    fn open_window(&mut self, tree: &Tree) -> Result<(), BpfError> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        watch.open(tree)?;
        self.due_ns = monotonic_ns() + self.windows.map_or(FIRST_WINDOW_NS, |windows| windows.window_ns);
        Ok(())
    }

    fn close_window(&mut self, tree: &Tree, options: &Options) -> Result<(), BpfError> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        let now_ns = monotonic_ns();
        watch.close(tree).iter().for_each(|window| self.seen.add(window));
        let (per_second, price_ns) = watch.rate_and_price()?;
        let windows = (options.windows)(per_second, price_ns);
        self.windows = Some(windows);
        self.due_ns = now_ns + windows.period_ns.saturating_sub(windows.window_ns).max(FIRST_WINDOW_NS);
        Ok(())
    }

    fn finish(mut self, tree: &Tree) -> (Option<WakesSeen>, Vec<String>) {
        let Some(watch) = &mut self.watch else { return (None, self.missing) };
        watch.close(tree).iter().for_each(|window| self.seen.add(window));
        match watch.totals() {
            Ok(totals) => {
                let (window, price_ns) = (self.seen.window(), watch.price_ns());
                (Some(WakesSeen { totals, window, price_ns }), self.missing)
            }
            Err(error) => (None, vec![without_bpf(error)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn options(stop: &AtomicBool, duration_ns: Option<u64>) -> Options<'_> {
        let windows = &|_: f64, _: f64| Windows { window_ns: 20_000_000, period_ns: 100_000_000 };
        Options { duration_ns, no_bpf: None, windows, stop }
    }

    #[test]
    fn watches_a_program_to_its_end() {
        let stop = AtomicBool::new(false);
        let before = Before::read(None);
        let script = "for i in 1 2 3; do (i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); done";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut seen = watch(child.id(), true, before, &options(&stop, None)).unwrap();
        child.wait().unwrap();
        seen.charge(Usage { minor_faults: seen.usage.minor_faults + 7, ..seen.usage });
        let last = seen.periods.last().unwrap();
        assert_eq!(
            (last.facts.switches, last.facts.io_calls),
            (None, None),
            "what an ended program did is lost, not 0"
        );
        assert!(last.minor_faults >= 7, "what no period holds belongs to the last: {last:?}");
        assert!(seen.wall_ns > 0 && !seen.allowed.is_empty(), "{seen:?}");
        assert!(seen.usage.cpu_ns > 0 || seen.periods.is_empty(), "{seen:?}");
        let of_threads: u64 = seen.periods.iter().flat_map(|period| &period.threads).map(|thread| thread.cpu_ns).sum();
        assert!(of_threads <= 2 * seen.usage.cpu_ns, "each thread's time is told once: {seen:?}");
        assert!(seen.channels_used.iter().any(|channel| channel.starts_with("CPU clocks")));
    }

    #[test]
    fn stops_when_told_and_when_time_is_up() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        let stop = AtomicBool::new(true);
        let stopped = watch(child.id(), true, Before::read(None), &options(&stop, None)).unwrap();
        let running = AtomicBool::new(false);
        let timed = watch(child.id(), true, Before::read(None), &options(&running, Some(250_000_000))).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stopped.periods.len() <= 1);
        assert!(!timed.periods.is_empty() && timed.looks.looks > 0);
        assert!(timed.looks.none * 2 > timed.looks.looks, "a sleeper waits for the outside: {:?}", timed.looks);
    }

    #[test]
    fn no_such_process_is_an_error() {
        let stop = AtomicBool::new(false);
        for nobody in [0, 1 << 30, u32::MAX] {
            let error = watch(nobody, false, Before::read(Some(nobody)), &options(&stop, None)).unwrap_err();
            assert!(error.to_string().contains("no process has the number"), "{error}");
        }
    }
}
