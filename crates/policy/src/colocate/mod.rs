//! Which threads share a vCPU because they wake each other (Gleaner, section 4: IPI-free wake-up by co-location).
//!
//! From who wakes whom, groups of threads are formed that wake each other and together take no more than one vCPU can
//! give, and each group gets a vCPU. Whether to look, and whether groups pay, is for [`crate::consolidate`] to decide.

mod groups;
mod seats;
#[cfg(test)]
mod tests;

use crate::consolidate::{Group, Prices};
use crate::predict::{Gain, WakeSignals, awake_gain_over};
use groups::{Company, Memory};
use muster_model::{CpuSet, ThreadId, Topology, WakeWindow};

/// On fewer vCPUs, what groups could gain is had by fewer vCPUs or by polling, and costs no look at who wakes whom.
pub const WORTHWHILE_VCPUS: usize = 4;

/// Groups of threads that wake each other, as `window` shows them in a program that keeps `cpu_rate` CPUs busy; none
/// takes more than one vCPU can give. Ordered by first thread; see [`gain`] for what putting each on a vCPU would do.
pub fn groups(window: &WakeWindow, cpu_rate: f64) -> Vec<Vec<ThreadId>> {
    Company::of(window, cpu_rate).clusters(&[]).into_iter().map(|cluster| cluster.threads).collect()
}

/// The share of all wake-ups in `window`, 0 to 1, whose waker and wakee are in one of `groups`.
pub fn share_inside(window: &WakeWindow, groups: &[Vec<ThreadId>]) -> f64 {
    Company::of(window, 0.0).share_inside(groups.iter().map(Vec::as_slice))
}

/// What it would do to keep `inside` of the wake-ups on their waker's vCPU: lengths of periods and signals in them.
/// No group is larger than a vCPU, so that no work waits for other work that was done at the same time before.
pub fn gain(periods: &[(f64, WakeSignals)], prices: &Prices, inside: f64) -> Option<Gain> {
    let mixed = inside * prices.wake_same_cpu_ns + (1.0 - inside) * prices.wake_halted_ns;
    awake_gain_over(periods, &Prices { wake_awake_ns: mixed, ..*prices })
}

/// The groups of a program over time, each with its vCPU.
#[derive(Debug, Clone, Default)]
pub struct Colocation {
    groups: Vec<Group>,
    memory: Memory,
}

impl Colocation {
    /// The groups as last formed, ordered by first thread.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Forms the groups anew, as `window` shows a program that keeps `cpu_rate` CPUs busy; returns the share of wake-ups
    /// inside, 0 to 1. Threads that are silent for a window or two keep their place, and groups that stay their vCPU.
    pub fn regroup(&mut self, window: &WakeWindow, cpu_rate: f64, allowed: &CpuSet, topology: &Topology) -> f64 {
        let company = Company::of(window, cpu_rate);
        let before: Vec<Vec<ThreadId>> = self.groups.iter().map(|group| group.threads.clone()).collect();
        let left = self.memory.still_together(&company, &before);
        let clusters = company.clusters(&left);
        self.groups = seats::seat(&company, &clusters, &self.groups, allowed, topology);
        company.share_inside(self.groups.iter().map(|group| group.threads.as_slice()))
    }

    /// The vCPUs of the groups.
    pub fn seats(&self) -> CpuSet {
        self.groups.iter().fold(CpuSet::EMPTY, |all, group| all.union(&group.cpus))
    }
}
