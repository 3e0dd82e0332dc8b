//! What a process tree has used so far. Reads CPU clocks and /proc/PID/stat; children that lived and died between two
//! looks are in their parents' books.

use crate::sampler::process_cpu_ns;
use crate::tree::{Identity, Stat};
use std::collections::HashMap;

/// USER_HZ is 100 on every Linux architecture muster runs on.
const TICK_NS: u64 = 10_000_000;

/// Cumulative use of a process tree, since its processes began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time.
    pub cpu_ns: u64,
    /// Part of it in user mode, as the kernel splits it by its ticks.
    pub user_ns: u64,
    /// Minor page faults.
    pub minor_faults: u64,
    /// Minor page faults beyond the most pages the same process ever held: memory given back and taken again.
    pub refaults: u64,
}

impl Usage {
    /// What was used between `before` and `self`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            refaults: self.refaults.saturating_sub(before.refaults),
        }
    }
}

/// Reads the use of a tree again and again.
#[derive(Debug, Default)]
pub struct UsageReader {
    most: HashMap<Identity, Pages>,
    gone_refaults: u64,
}

/// What one process did with its memory while it was watched.
#[derive(Debug, Clone, Copy)]
struct Pages {
    resident_at_first: u64,
    resident_most: u64,
    faults_at_first: u64,
    faults: u64,
}

impl Pages {
    fn refaults(&self) -> u64 {
        let grown = self.resident_most.saturating_sub(self.resident_at_first);
        (self.faults - self.faults_at_first).saturating_sub(grown)
    }
}

impl UsageReader {
    /// The use of the `processes`; those that ended in between are with their parents, or lost if nobody waited.
    pub fn read(&mut self, processes: impl Iterator<Item = Identity>) -> Usage {
        let mut usage = Usage::default();
        let mut most = HashMap::new();
        for process in processes {
            let Some(stat) = Stat::of(process.id) else { continue };
            usage.cpu_ns += process_cpu_ns(process.id).unwrap_or((stat.user_ticks + stat.system_ticks) * TICK_NS)
                + (stat.user_ticks_of_children + stat.system_ticks_of_children) * TICK_NS;
            usage.user_ns += (stat.user_ticks + stat.user_ticks_of_children) * TICK_NS;
            usage.minor_faults += stat.minor_faults + stat.minor_faults_of_children;
            most.insert(process, self.pages(process, &stat));
        }
        self.gone_refaults += self.most.drain().map(|(_, pages)| pages.refaults()).sum::<u64>();
        usage.refaults = self.gone_refaults + most.values().map(Pages::refaults).sum::<u64>();
        self.most = most;
        usage
    }

    fn pages(&mut self, process: Identity, stat: &Stat) -> Pages {
        let known = self.most.remove(&process).unwrap_or(Pages {
            resident_at_first: stat.resident_pages,
            resident_most: stat.resident_pages,
            faults_at_first: stat.minor_faults,
            faults: stat.minor_faults,
        });
        Pages {
            resident_most: known.resident_most.max(stat.resident_pages),
            faults: known.faults.max(stat.minor_faults),
            ..known
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_is_not_refaulting() {
        let grew = Pages { resident_at_first: 10, resident_most: 110, faults_at_first: 5, faults: 105 };
        assert_eq!(grew.refaults(), 0);
        let churned = Pages { resident_at_first: 10, resident_most: 20, faults_at_first: 5, faults: 1005 };
        assert_eq!(churned.refaults(), 990);
    }

    #[test]
    fn reads_this_process() {
        let me = std::process::id();
        let identity = Identity { id: me, start_ticks: Stat::of(me).unwrap().start_ticks };
        let mut reader = UsageReader::default();
        let first = reader.read([identity].into_iter());
        std::hint::black_box((0..3_000_000u64).fold(0u64, |sum, x| std::hint::black_box(sum ^ x)));
        let second = reader.read([identity].into_iter());
        let used = second.since(&first);
        assert!(used.cpu_ns > 0 && first.minor_faults > 0 && used.cpu_ns < second.cpu_ns);
    }
}
