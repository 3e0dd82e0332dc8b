//! Caps: CFS bandwidth control (Linux, Documentation/scheduler/sched-bwc.rst).
//!
//! A domain has a quota of CPU time in each period. Its pCPUs take it from the domain's pool by slices; where that is empty the
//! domain is *throttled*: off the pCPU's root queue until the pool is filled again. What was run beyond is paid for first.

use super::{NONE, Scheduler};
use muster_model::CpuSet;

/// How often a domain's quota is filled up (`cpu.max`'s default period).
pub const PERIOD_NS: u64 = 100_000_000;
/// What a pCPU takes from a domain's pool at a time (sched_cfs_bandwidth_slice_us).
pub const RUNTIME_SLICE_NS: u64 = 5_000_000;
/// What a pCPU on which a domain has nothing to run any more keeps (min_cfs_rq_runtime).
const KEPT_NS: i64 = 1_000_000;

impl Scheduler {
    /// A domain's period begins: its pool is full again, and throttled pCPUs get what they need to go on. Nothing happens
    /// without a cap.
    pub fn refill(&mut self, domain: super::DomainId, now_ns: u64) -> &CpuSet {
        self.kicks = CpuSet::EMPTY;
        if let Some(quota_ns) = self.domains[domain as usize].quota_ns {
            self.domains[domain as usize].pool_ns = quota_ns;
            self.distribute(domain as usize, now_ns);
        }
        &self.kicks
    }

    /// Whether the domain of a vCPU may run on its pCPU.
    pub(super) fn may_run(&mut self, vcpu: super::VcpuId) -> bool {
        let at = self.group_of(vcpu);
        self.has_runtime(at)
    }

    /// The same of a group, which asks the pool if it has to (`assign_cfs_rq_runtime`).
    pub(super) fn has_runtime(&mut self, at: usize) -> bool {
        let domain = &mut self.domains[at / self.pcpus.len()];
        let group = &mut self.groups[at];
        if domain.quota_ns.is_some() && group.runtime_ns <= 0 {
            let wanted = (RUNTIME_SLICE_NS as i64 - group.runtime_ns) as u64;
            let got = wanted.min(domain.pool_ns);
            domain.pool_ns -= got;
            group.runtime_ns += got as i64;
        }
        domain.quota_ns.is_none() || group.runtime_ns > 0
    }

    /// A group has run; whether it may go on.
    pub(super) fn use_runtime(&mut self, at: usize, ran_ns: u64) -> bool {
        if self.domains[at / self.pcpus.len()].quota_ns.is_none() {
            return true;
        }
        self.groups[at].runtime_ns -= ran_ns as i64;
        self.groups[at].is_throttled || self.has_runtime(at)
    }

    /// A domain has used up what it may on a pCPU.
    pub(super) fn throttle(&mut self, at: usize, pcpu: usize) {
        let limit = self.lag_limit_ns();
        let group = &mut self.groups[at];
        group.is_throttled = true;
        self.pcpus[pcpu].root.remove(&mut self.entities, group.entity, limit);
        self.pcpus[pcpu].runnable -= group.queue.len();
        self.domains[at / self.pcpus.len()].throttled.insert(pcpu);
        self.note(pcpu);
    }

    /// A domain has nothing to run on a pCPU any more: what it has left there is of use to others.
    pub(super) fn give_back(&mut self, at: usize, now_ns: u64) {
        let number = at / self.pcpus.len();
        let domain = &mut self.domains[number];
        let spare = self.groups[at].runtime_ns - KEPT_NS;
        if domain.quota_ns.is_none() || spare <= 0 {
            return;
        }
        self.groups[at].runtime_ns -= spare;
        domain.pool_ns += spare as u64;
        if domain.pool_ns > RUNTIME_SLICE_NS && !domain.throttled.is_empty() {
            self.distribute(number, now_ns);
        }
    }

    /// Hands the pool of a domain to the pCPUs on which it is throttled (`distribute_cfs_runtime`).
    fn distribute(&mut self, domain: usize, now_ns: u64) {
        for pcpu in self.domains[domain].throttled.iter().collect::<Vec<_>>() {
            let at = self.group_at(domain as u32, pcpu);
            let needed = (1 - self.groups[at].runtime_ns).max(0) as u64;
            let got = needed.min(self.domains[domain].pool_ns);
            self.domains[domain].pool_ns -= got;
            self.groups[at].runtime_ns += got as i64;
            if self.groups[at].runtime_ns > 0 {
                self.unthrottle(at, domain, pcpu, now_ns);
            }
        }
    }

    fn unthrottle(&mut self, at: usize, domain: usize, pcpu: usize, now_ns: u64) {
        self.charge(pcpu, now_ns);
        self.domains[domain].throttled.remove(pcpu);
        let group = &mut self.groups[at];
        group.is_throttled = false;
        let (here, entity) = (group.queue.len(), group.entity);
        if here == 0 {
            return;
        }
        let weight = self.group_weight(domain as u32, here);
        let root = &mut self.pcpus[pcpu].root;
        root.reweight(&mut self.entities, entity, weight);
        root.place(&mut self.entities, entity, self.slice_ns, false);
        self.pcpus[pcpu].runnable += here;
        self.note(pcpu);
        let current = self.pcpus[pcpu].current;
        let idles = current == NONE || !self.is_runnable(current);
        if idles || self.pcpus[pcpu].root.pick(&self.entities) == Some(entity) {
            self.kicks.insert(pcpu);
        }
    }
}
