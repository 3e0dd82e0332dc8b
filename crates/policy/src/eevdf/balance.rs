//! Which pCPU a vCPU goes to: where it wakes, and when a pCPU with less to do takes it from one with more.

use super::{NONE, Pcpu, Scheduler, VcpuId};
use muster_model::CpuSet;

/// A vCPU that has just run has its working set in its pCPU's caches, and is left there by a pCPU that has just come to idle
/// (sysctl_sched_migration_cost; balancing at ticks stops to mind it after a few failures).
const HOT_NS: u64 = 500_000;
/// A busy pCPU balances once in so long for each pCPU of the domain (a millisecond by busy_factor).
pub(super) const PERIOD_NS: u64 = 16_000_000;
/// By how many per cent the load of the busiest must exceed the own (imbalance_pct): within a cache domain, over the machine.
const IMBALANCE: [u64; 2] = [117, 125];

impl Scheduler {
    /// Where a vCPU that the pCPU `by` wakes goes (`select_task_rq_fair`): near the waker or its last pCPU, and there to an
    /// idle one if there is any.
    pub(super) fn select(&self, vcpu: VcpuId, by: usize) -> usize {
        let vcpu = &self.vcpus[vcpu as usize];
        let last = vcpu.pcpu;
        if vcpu.affinity.len() == 1 {
            return last;
        }
        let target = if vcpu.affinity.contains(by) { self.affine(last, by) } else { last };
        if self.idlers.is_empty() {
            return target;
        }
        if self.idlers.contains(target) {
            return target;
        }
        let near = &self.pcpus[target].llc;
        if near.contains(last) && self.idlers.contains(last) {
            return last;
        }
        let idle = self.idlers.intersection(near).intersection(&vcpu.affinity);
        self.idle_core(&idle, target).or_else(|| idle.next_after(target)).unwrap_or(target)
    }

    /// The waker's pCPU or the last one (`wake_affine`).
    fn affine(&self, last: usize, by: usize) -> usize {
        let near = self.pcpus[by].llc.contains(last);
        let idles = |pcpu: usize| self.idlers.contains(pcpu);
        if idles(by) && near {
            return if idles(last) { last } else { by };
        }
        if idles(last) {
            return last;
        }
        let load = |pcpu: usize| self.pcpus[pcpu].root.weight();
        let bias = 100 + (IMBALANCE[0] - 100) / 2;
        if load(by) * 100 < load(last) * bias { by } else { last }
    }

    /// An idle pCPU all of whose core idles.
    fn idle_core(&self, idle: &CpuSet, target: usize) -> Option<usize> {
        if !self.has_smt {
            return None;
        }
        let mut left = *idle;
        let mut at = target;
        while let Some(next) = left.next_after(at) {
            if self.pcpus[next].core.is_subset(&self.idlers) {
                return Some(next);
            }
            left.remove(next);
            at = next;
        }
        None
    }

    /// A pCPU that is about to idle takes a vCPU that waits elsewhere, near ones first (`newidle_balance`); whether there was
    /// one.
    pub(super) fn pull(&mut self, pcpu: usize, now_ns: u64) -> bool {
        if self.crowded.is_empty() {
            return false;
        }
        let Pcpu { llc: near, core, current, .. } = self.pcpus[pcpu];
        let fits = |from: usize, vcpu: VcpuId, _| {
            let ran_until = self.vcpus[vcpu as usize].ran_until_ns;
            current == NONE || core.contains(from) || now_ns - ran_until >= HOT_NS
        };
        let found = self.waiting_in(&self.crowded.intersection(&near), pcpu, fits);
        let found = found.or_else(|| self.waiting_in(&self.crowded.difference(&near), pcpu, fits));
        let Some(vcpu) = found else { return false };
        self.migrate(vcpu, pcpu, now_ns);
        true
    }

    /// Of the pCPUs `among`, from the one with the most load: a vCPU that waits, may run on `pcpu`, and of which `fits` says, by
    /// where it is and what it weighs there, that it may leave.
    fn waiting_in(&self, among: &CpuSet, pcpu: usize, fits: impl Fn(usize, VcpuId, u64) -> bool) -> Option<VcpuId> {
        let mut left = *among;
        left.remove(pcpu);
        while let Some(busiest) = left.iter().max_by_key(|&other| (self.pcpus[other].root.weight(), other)) {
            left.remove(busiest);
            let may_go = |&(vcpu, weight): &(VcpuId, u64)| {
                let waits = vcpu != self.pcpus[busiest].current;
                waits && self.vcpus[vcpu as usize].affinity.contains(pcpu) && fits(busiest, vcpu, weight)
            };
            if let Some((vcpu, _)) = self.vcpus_on(busiest).find(may_go) {
                return Some(vcpu);
            }
        }
        None
    }

    /// The vCPUs that are to run on a pCPU, and what each weighs there (`task_h_load`).
    fn vcpus_on(&self, pcpu: usize) -> impl Iterator<Item = (VcpuId, u64)> + '_ {
        self.pcpus[pcpu].root.members().iter().flat_map(move |&group| {
            let group = &self.entities[group as usize];
            let queue = &self.groups[group.owner as usize].queue;
            let each = group.weight / queue.len().max(1) as u64;
            queue.members().iter().map(move |&id| (self.entities[id as usize].owner, each))
        })
    }

    fn migrate(&mut self, vcpu: VcpuId, to: usize, now_ns: u64) {
        self.dequeue(vcpu, now_ns);
        self.vcpus[vcpu as usize].pcpu = to;
        self.enqueue(vcpu, now_ns);
    }

    /// Has an idle pCPU look for work if vCPUs wait here (`nohz_balancer_kick`).
    pub(super) fn offer_to_idle(&mut self, pcpu: usize) {
        if self.idlers.is_empty() || !self.crowded.contains(pcpu) {
            return;
        }
        let current = self.pcpus[pcpu].current;
        let could_go = |(vcpu, _): (VcpuId, u64)| {
            let idle = self.idlers.intersection(&self.vcpus[vcpu as usize].affinity);
            let near = idle.intersection(&self.pcpus[pcpu].llc);
            let there = near.next_after(pcpu).or_else(|| idle.next_after(pcpu));
            there.filter(|_| vcpu != current)
        };
        let idler = self.vcpus_on(pcpu).find_map(could_go);
        idler.iter().for_each(|&idler| self.kicks.insert(idler));
    }

    /// A busy pCPU takes a vCPU from the busiest one once in a while, within its cache domain and over the machine
    /// (`rebalance_domains`).
    pub(super) fn balance(&mut self, pcpu: usize, now_ns: u64) {
        for level in 0..2 {
            let Pcpu { balances_ns, llc, .. } = &self.pcpus[pcpu];
            let domain = if level == 0 { *llc } else { self.all };
            if now_ns < balances_ns[level] || domain.len() < 2 {
                continue;
            }
            self.pcpus[pcpu].balances_ns[level] = now_ns + domain.len() as u64 * PERIOD_NS;
            if let Some(vcpu) = self.excess(pcpu, &domain, IMBALANCE[level]) {
                self.migrate(vcpu, pcpu, now_ns);
                self.check_preemption(vcpu);
            }
        }
    }

    /// The vCPU by whose leaving the busiest pCPU of a domain comes nearer to the mean, and so does this one by its coming.
    fn excess(&self, pcpu: usize, domain: &CpuSet, imbalance: u64) -> Option<VcpuId> {
        let crowded = self.crowded.intersection(domain);
        let load = |other: usize| self.pcpus[other].root.weight();
        let own = load(pcpu);
        let most = crowded.iter().map(load).max().filter(|&most| most * 100 > own * imbalance)?;
        let mean = domain.iter().map(load).sum::<u64>() / domain.len() as u64;
        let surplus = most.saturating_sub(mean).min(mean.saturating_sub(own));
        let busiest: CpuSet = crowded.iter().filter(|&other| load(other) == most).collect();
        self.waiting_in(&busiest, pcpu, |_, _, weight| weight / 2 <= surplus)
    }

    /// The period of the tick.
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Whether a pCPU has nothing but the vCPU that is on it (`single_task_running`).
    pub fn is_alone(&self, pcpu: usize) -> bool {
        self.pcpus[pcpu].current == NONE || self.pcpus[pcpu].runnable <= 1
    }
}
