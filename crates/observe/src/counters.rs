//! Counters of the machine that are read at the beginning and the end of a watch only: too dear, or too coarse, for a
//! period.

use crate::interrupts::Interrupts;
use muster_model::CpuSet;
use std::fs;

/// USER_HZ is 100 on every Linux architecture muster runs on.
const TICK_NS: u64 = 10_000_000;

/// Cumulative counters since boot; `None` where the kernel does not offer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Inter-processor interrupts.
    pub interrupts: Option<Interrupts>,
    /// CPU time of all tasks of the machine, exact (the root cgroup's account).
    pub tasks_ns: Option<u64>,
    /// Time the hypervisor ran something else while a vCPU wanted to run, in ticks' resolution.
    pub steal_ns: Option<u64>,
    /// Time in which some task waited for a CPU (PSI `cpu`, `some`).
    pub cpu_pressure_ns: Option<u64>,
    /// Time in which some task waited for a disk (PSI `io`, `some`).
    pub io_pressure_ns: Option<u64>,
}

impl Counters {
    /// Reads them for the CPUs `allowed`.
    pub fn read(allowed: &CpuSet) -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        let v1 = || text("/sys/fs/cgroup/cpuacct/cpuacct.usage").and_then(|text| text.trim().parse().ok());
        let v2 = || text("/sys/fs/cgroup/cpu.stat").and_then(|text| microseconds_behind(&text, "usage_usec "));
        Self {
            interrupts: text("/proc/interrupts").and_then(|text| Interrupts::parse(&text, allowed)),
            tasks_ns: v1().or_else(v2),
            steal_ns: text("/proc/stat").and_then(|text| steal_ns(&text, allowed)),
            cpu_pressure_ns: text("/proc/pressure/cpu").and_then(|text| microseconds_behind(&text, "total=")),
            io_pressure_ns: text("/proc/pressure/io").and_then(|text| microseconds_behind(&text, "total=")),
        }
    }

    /// What was counted between `before` and `self`.
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            interrupts: self.interrupts.zip(before.interrupts).map(|(now, before)| now.since(&before)),
            tasks_ns: less(self.tasks_ns, before.tasks_ns),
            steal_ns: less(self.steal_ns, before.steal_ns),
            cpu_pressure_ns: less(self.cpu_pressure_ns, before.cpu_pressure_ns),
            io_pressure_ns: less(self.io_pressure_ns, before.io_pressure_ns),
        }
    }
}

/// The microseconds that stand behind the first `key`, in nanoseconds.
fn microseconds_behind(text: &str, key: &str) -> Option<u64> {
    let rest = &text[text.find(key)? + key.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse::<u64>().ok()?.checked_mul(1000)
}

/// Steal time of the CPUs `allowed` in the text of `/proc/stat` (proc_stat(5): the eighth number).
fn steal_ns(text: &str, allowed: &CpuSet) -> Option<u64> {
    let mut ticks = None;
    for line in text.lines() {
        let Some((cpu, numbers)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) else { continue };
        if cpu.parse().is_ok_and(|cpu: usize| allowed.contains(cpu)) {
            let stolen: u64 = numbers.split_ascii_whitespace().nth(7)?.parse().ok()?;
            *ticks.get_or_insert(0) += stolen;
        }
    }
    ticks.map(|ticks| ticks * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_steal_of_allowed_cpus() {
        let text = "cpu  30 0 30 99 9 3 3 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        assert_eq!(steal_ns(text, &CpuSet::single(0)), Some(80_000_000));
        assert_eq!(steal_ns(text, &CpuSet::first(2)), Some(90_000_000));
        for broken in ["", "cpu0 1 2\n", "intr 1\n"] {
            assert_eq!(steal_ns(broken, &CpuSet::first(1)), None, "{broken:?}");
        }
    }

    #[test]
    fn reads_pressure_and_cgroup_texts() {
        let text = "some avg10=0.30 avg60=1.10 avg300=0.70 total=9940825\nfull avg10=0.00 total=0\n";
        assert_eq!(microseconds_behind(text, "total="), Some(9_940_825_000));
        assert_eq!(microseconds_behind("usage_usec 7\nuser_usec 1\n", "usage_usec "), Some(7_000));
        assert_eq!(microseconds_behind("total=x", "total="), None);
        assert_eq!(microseconds_behind("", "total="), None);
    }

    #[test]
    fn differences_need_both_ends() {
        let before = Counters { tasks_ns: Some(5), ..Counters::default() };
        let now = Counters { tasks_ns: Some(9), steal_ns: Some(1), ..Counters::default() };
        assert_eq!(now.since(&before), Counters { tasks_ns: Some(4), ..Counters::default() });
    }
}
