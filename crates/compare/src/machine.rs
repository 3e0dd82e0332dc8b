//! What the machine and a process tree have used so far: two snapshots make the figures of a run.
//!
//! Reads /proc/PID/stat, /proc/stat and cpuidle, all unprivileged. Three things are easily got wrong here:
//!
//! - cpuidle books a state's time when the CPU leaves it, so a CPU that sleeps through the end of a run would show
//!   nothing of its sleep. The reader visits every CPU in turn: a CPU that runs the reader has left its state.
//! - /proc/stat's times are sampled by the timer tick and wrong for threads that sleep and wake between ticks. Busy
//!   time is therefore wall x CPUs - time in halting idle states - steal, wherever cpuidle exists. That counts polling
//!   idle as busy, as the host sees it. Interrupts taken inside the halt instruction's window count as halted.
//! - CPU time of children moves to the parent when it waits for them. Own time and waited-for children's time are
//!   added up over the whole tree, so that nothing is lost or counted twice.

use crate::error::CompareError;
use muster_model::CpuSet;
use muster_model::results::Run;
use rustix::process::Pid;
use rustix::thread::{CpuSet as KernelCpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Counters at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When: CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// CPUs that are online.
    pub cpus: u32,
    /// CPU time of the tree under watch, ended children included.
    pub tree_cpu_ns: u64,
    /// Counters of the whole machine.
    pub machine: Machine,
    /// CPU time of every process outside the tree, kernel threads excepted (they serve everybody, the program first).
    pub others: BTreeMap<u32, Other>,
}

/// Counters of the whole machine, over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Busy time by the timer tick: user, nice, system, irq, softirq.
    pub ticked_busy_ns: u64,
    /// Time in which the host ran somebody else.
    pub steal_ns: u64,
    /// Context switches.
    pub switches: u64,
    /// What cpuidle shows, where it exists.
    pub idle: Option<IdleStates>,
}

/// cpuidle's counters over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleStates {
    /// Time in states that give the CPU up.
    pub halted_ns: u64,
    /// Time in the polling state.
    pub polling_ns: u64,
    /// Entries into states that give the CPU up.
    pub entries: u64,
}

/// A process outside the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// Its name.
    pub name: String,
    /// CPU time of itself and of the children it has waited for.
    pub cpu_ns: u64,
}

/// Who else used the CPUs between two snapshots.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Foreign {
    /// Others' CPU time and steal, as a share of all CPU time, 0 to 1.
    pub share: f64,
    /// The process that used most, if any used something.
    pub most: Option<String>,
}

impl Snapshot {
    /// Counters before a run: those that a run is charged with are read last.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn before(root: u32) -> Result<Self, CompareError> {
        let (tree_cpu_ns, others) = processes(root)?;
        let (cpus, machine) = machine()?;
        Ok(Self { at_ns: now_ns(), cpus, tree_cpu_ns, machine, others })
    }

    /// Counters after a run: the clock is read first.
    ///
    /// # Errors
    /// As [`Self::before`].
    pub fn after(root: u32) -> Result<Self, CompareError> {
        let at_ns = now_ns();
        let (cpus, machine) = machine()?;
        let (tree_cpu_ns, others) = processes(root)?;
        Ok(Self { at_ns, cpus, tree_cpu_ns, machine, others })
    }

    /// The figures of a run from here to `after`; its speed is for the caller to fill in.
    pub fn run_until(&self, after: &Self) -> Run {
        let wall_ns = after.at_ns.saturating_sub(self.at_ns);
        let idle = self.machine.idle.zip(after.machine.idle);
        Run {
            wall_ns,
            speed: 0.0,
            cpu_ns: after.tree_cpu_ns.saturating_sub(self.tree_cpu_ns),
            machine_busy_ns: self.busy_until(after, wall_ns),
            polling_ns: idle.map(|(from, to)| to.polling_ns.saturating_sub(from.polling_ns)),
            idle_entries: idle.map(|(from, to)| to.entries.saturating_sub(from.entries)),
            switches: Some(after.machine.switches.saturating_sub(self.machine.switches)),
            foreign_share: self.foreign_until(after).share,
        }
    }

    fn busy_until(&self, after: &Self, wall_ns: u64) -> u64 {
        let (from, to) = (&self.machine, &after.machine);
        match from.idle.zip(to.idle) {
            None => to.ticked_busy_ns.saturating_sub(from.ticked_busy_ns),
            Some((from_idle, to_idle)) => (wall_ns * u64::from(self.cpus))
                .saturating_sub(to_idle.halted_ns.saturating_sub(from_idle.halted_ns))
                .saturating_sub(to.steal_ns.saturating_sub(from.steal_ns)),
        }
    }

    /// Who else used the CPUs from here to `after`.
    pub fn foreign_until(&self, after: &Self) -> Foreign {
        let used = |others: &BTreeMap<u32, Other>| others.values().map(|other| other.cpu_ns).sum::<u64>();
        // A process that ended is charged to the parent that waited for it: sums, not single processes, are conserved.
        let others_ns = used(&after.others).saturating_sub(used(&self.others));
        let steal_ns = after.machine.steal_ns.saturating_sub(self.machine.steal_ns);
        let total_ns = after.at_ns.saturating_sub(self.at_ns).max(1) as f64 * f64::from(self.cpus.max(1));
        let gain = |(pid, other): (&u32, &Other)| {
            other.cpu_ns.saturating_sub(self.others.get(pid).map_or(0, |before| before.cpu_ns))
        };
        let most = after.others.iter().max_by_key(|entry| gain(*entry)).filter(|entry| gain(*entry) > 0);
        let most = most.map(|(_, other)| other.name.clone());
        let most = if steal_ns > others_ns { Some("the host (steal)".to_owned()) } else { most };
        Foreign { share: ((others_ns + steal_ns) as f64 / total_ns).min(1.0), most }
    }
}

/// CLOCK_MONOTONIC.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn machine() -> Result<(u32, Machine), CompareError> {
    let path = "/proc/stat";
    let text = fs::read_to_string(path).map_err(CompareError::system(path))?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|list| list.parse::<CpuSet>().ok());
    let online = online.unwrap_or_else(|| CpuSet::first(text.lines().filter(|line| is_cpu_line(line)).count()));
    let mut machine = parse_stat(&text, tick_ns());
    machine.idle = idle_states(&online);
    Ok((online.len() as u32, machine))
}

fn is_cpu_line(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Reads proc_stat(5).
fn parse_stat(text: &str, tick_ns: u64) -> Machine {
    let mut machine = Machine::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("cpu") => {
                let ticks: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
                let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
                // user nice system idle iowait irq softirq steal
                machine.ticked_busy_ns = (at(0) + at(1) + at(2) + at(5) + at(6)) * tick_ns;
                machine.steal_ns = at(7) * tick_ns;
            }
            Some("ctxt") => machine.switches = words.next().and_then(|word| word.parse().ok()).unwrap_or(0),
            _ => {}
        }
    }
    machine
}

/// cpuidle's counters, read on each CPU in turn; `None` where a CPU has none.
fn idle_states(online: &CpuSet) -> Option<IdleStates> {
    let home = sched_getaffinity(None).ok()?;
    let mut sum = Some(IdleStates::default());
    for cpu in online.iter() {
        let mut here = KernelCpuSet::new();
        here.set(cpu);
        // Where a cgroup forbids the visit the counters are read from afar and may lack the sleep under way.
        let _ = sched_setaffinity(None, &here);
        sum = sum.and_then(|sum| add_states(sum, Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle"))));
    }
    // The mask was ours a moment ago; if it is gone (a CPU went offline) the kernel has already chosen another.
    let _ = sched_setaffinity(None, &home);
    sum
}

fn add_states(mut sum: IdleStates, directory: &Path) -> Option<IdleStates> {
    let mut found = false;
    for number in 0.. {
        let state = directory.join(format!("state{number}"));
        let read = |file: &str| fs::read_to_string(state.join(file)).ok();
        let (Some(name), Some(time), Some(usage)) = (read("name"), read("time"), read("usage")) else { break };
        let time_ns = time.trim().parse::<u64>().ok()? * 1000;
        if name.trim() == "POLL" {
            sum.polling_ns += time_ns;
        } else {
            sum.halted_ns += time_ns;
            sum.entries += usage.trim().parse::<u64>().ok()?;
        }
        found = true;
    }
    found.then_some(sum)
}

/// One line of /proc/PID/stat, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    name: String,
    parent: u32,
    own_ticks: u64,
    children_ticks: u64,
}

/// Reads proc_pid_stat(5). The name may hold blanks and parentheses: fields are counted from the last `)`.
fn parse_process(text: &str) -> Option<ProcessStat> {
    let (head, rest) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // `rest` begins with field 3, the state.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(ProcessStat {
        name,
        parent: number(4)?.try_into().ok()?,
        own_ticks: number(14)? + number(15)?,
        children_ticks: number(16)? + number(17)?,
    })
}

/// CPU time of the tree below `root` (`root` itself not included), and of everybody else.
fn processes(root: u32) -> Result<(u64, BTreeMap<u32, Other>), CompareError> {
    let own = std::process::id();
    let mut tree_cpu_ns = if root == own { rusage_ns(libc::RUSAGE_CHILDREN) } else { 0 };
    let mut others = BTreeMap::new();
    let all = all_processes()?;
    for (&pid, stat) in &all {
        if is_below(pid, root, &all) {
            tree_cpu_ns += tree_member_ns(pid, own, stat);
        } else if pid != root && pid != own && pid != KTHREADD && stat.parent != KTHREADD {
            let cpu_ns = (stat.own_ticks + stat.children_ticks) * tick_ns();
            others.insert(pid, Other { name: stat.name.clone(), cpu_ns });
        }
    }
    Ok((tree_cpu_ns, others))
}

/// The parent of all kernel threads.
const KTHREADD: u32 = 2;

fn all_processes() -> Result<BTreeMap<u32, ProcessStat>, CompareError> {
    let entries = fs::read_dir("/proc").map_err(CompareError::system("/proc"))?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // A process that ends between listing and reading is left out; its parent has its time.
    Ok(pids
        .filter_map(|pid| Some((pid, parse_process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect())
}

fn is_below(pid: u32, root: u32, all: &BTreeMap<u32, ProcessStat>) -> bool {
    let mut at = pid;
    // Processes that change hands while they are listed could close a loop: no chain is longer than all of them.
    for _ in 0..all.len() {
        match all.get(&at) {
            Some(stat) if stat.parent == root => return true,
            Some(stat) => at = stat.parent,
            None => return false,
        }
    }
    false
}

/// As exact as the system gives it: nanoseconds for a living process, ticks for children that have ended.
fn tree_member_ns(pid: u32, own: u32, stat: &ProcessStat) -> u64 {
    if pid == own {
        return rusage_ns(libc::RUSAGE_SELF) + rusage_ns(libc::RUSAGE_CHILDREN);
    }
    process_clock_ns(pid).unwrap_or(stat.own_ticks * tick_ns()) + stat.children_ticks * tick_ns()
}

/// CPU time of all threads of a living process, ended ones included (clock_getcpuclockid(3)).
fn process_clock_ns(pid: u32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls only write to the two locals they are handed.
    let failed = unsafe {
        libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
    };
    (!failed).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn rusage_ns(who: libc::c_int) -> u64 {
    // SAFETY: all-zero bytes are a valid rusage, and getrusage only writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// The processes below this one that are still there, by name: what a run left behind.
///
/// # Errors
/// When /proc cannot be read.
pub fn left_behind() -> Result<Vec<String>, CompareError> {
    reap_orphans();
    let own = std::process::id();
    let all = all_processes()?;
    Ok(all
        .iter()
        .filter(|(pid, _)| is_below(**pid, own, &all))
        .map(|(pid, stat)| format!("{} ({pid})", stat.name))
        .collect())
}

/// Every process below this one.
///
/// # Errors
/// When /proc cannot be read.
pub fn descendants() -> Result<Vec<Pid>, CompareError> {
    let own = std::process::id();
    let all = all_processes()?;
    let below = all.keys().filter(|pid| is_below(**pid, own, &all));
    Ok(below.filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)).collect())
}

/// Takes in children that have ended: orphans of earlier runs come to this process, which is their subreaper.
pub fn reap_orphans() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Makes this process the one that orphans of its descendants come to (prctl(2), PR_SET_CHILD_SUBREAPER), so that
/// their CPU time is not lost.
///
/// # Errors
/// When the kernel refuses.
pub fn become_subreaper() -> Result<(), CompareError> {
    rustix::process::set_child_subreaper(Some(Pid::INIT))
        .map_err(|error| CompareError::system("prctl(PR_SET_CHILD_SUBREAPER)")(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn snapshot(at_ns: u64, others: &[(u32, u64)]) -> Snapshot {
        let other = |&(pid, cpu_ns): &(u32, u64)| (pid, Other { name: format!("p{pid}"), cpu_ns });
        Snapshot {
            at_ns,
            cpus: 2,
            tree_cpu_ns: 0,
            machine: Machine::default(),
            others: others.iter().map(other).collect(),
        }
    }

    #[test]
    fn stat_is_read() {
        let machine = parse_stat("cpu  10 1 5 1000 7 2 3 4 0 0\ncpu0 1 1 1\nctxt 99\n", 10);
        let expected = Machine { ticked_busy_ns: 210, steal_ns: 40, switches: 99, idle: None };
        assert_eq!(machine, expected);
    }

    #[test]
    fn names_with_parentheses_are_read() {
        let line = "7 (a) (b)) S 3 1 1 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0 5";
        let expected = ProcessStat { name: "a) (b)".to_owned(), parent: 3, own_ticks: 23, children_ticks: 27 };
        assert_eq!(parse_process(line), Some(expected));
    }

    #[test]
    fn a_process_that_ends_and_is_waited_for_is_not_counted_twice() {
        let before = snapshot(0, &[(1, 100), (2, 500)]);
        let after = snapshot(1000, &[(1, 700)]);
        let foreign = before.foreign_until(&after);
        assert!((foreign.share - 100.0 / 2000.0).abs() < 1e-12);
        assert_eq!(foreign.most.as_deref(), Some("p1"));
        assert_eq!(before.foreign_until(&before).share, 0.0);
    }

    #[test]
    fn polling_is_busy_and_halting_is_not() {
        let mut before = snapshot(0, &[]);
        let mut after = snapshot(1000, &[]);
        before.machine.idle = Some(IdleStates { halted_ns: 50, polling_ns: 10, entries: 1 });
        after.machine.idle = Some(IdleStates { halted_ns: 1550, polling_ns: 210, entries: 8 });
        after.machine.steal_ns = 100;
        let run = before.run_until(&after);
        assert_eq!((run.machine_busy_ns, run.polling_ns, run.idle_entries), (400, Some(200), Some(7)));
    }

    #[test]
    fn this_process_finds_its_own_time() {
        let before = Snapshot::before(std::process::id()).unwrap();
        let after = Snapshot::after(std::process::id()).unwrap();
        assert!(after.at_ns >= before.at_ns && after.machine.switches >= before.machine.switches);
        assert!(process_clock_ns(std::process::id()).unwrap() > 0);
        assert!(!before.others.contains_key(&std::process::id()));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = parse_process(&text);
            let _ = parse_stat(&text, 1);
        }
    }
}
