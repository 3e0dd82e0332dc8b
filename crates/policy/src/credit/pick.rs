//! Where a vCPU would run best: on the idle pCPU with the most idle neighbours (`csched_cpu_pick`).

use super::{Scheduler, Touch, VcpuId};
use muster_model::CpuSet;

impl Scheduler {
    /// The pCPU for a vCPU: its own, unless that has fewer idle neighbours than another idle one - on its core, within a
    /// socket; twice as few on its socket, between sockets. With `commit` the choice is remembered, so that the next goes
    /// elsewhere.
    pub(super) fn pick(&mut self, vcpu: VcpuId, commit: bool) -> usize {
        self.touches.push(Touch::PeekIdlers);
        let vcpu = &self.vcpus[vcpu as usize];
        let stays = vcpu.affinity.contains(vcpu.pcpu);
        let mut best = if stays { vcpu.pcpu } else { vcpu.affinity.next_after(vcpu.pcpu).unwrap_or(vcpu.pcpu) };
        let mut idle = self.idlers;
        idle.insert(best);
        let mut left = vcpu.affinity.intersection(&idle);
        left.remove(best);
        while let Some(next) = left.next_after(best) {
            let (factor, around_best, around_next) = self.idle_neighbours(best, next, &idle);
            if around_best.len() * factor < around_next.len() {
                let candidates = left.intersection(&around_next);
                best = candidates.next_after(self.pcpus[next].idle_bias).unwrap_or(next);
                if commit {
                    self.pcpus[next].idle_bias = best;
                }
                left = left.difference(&self.pcpus[best].core);
            } else {
                left = left.difference(&around_next);
            }
        }
        best
    }

    /// By what factor the second of two pCPUs must have more idle neighbours to be better, and the neighbours that count.
    fn idle_neighbours(&self, best: usize, next: usize, idle: &CpuSet) -> (usize, CpuSet, CpuSet) {
        let (best, next, is_near) = (&self.pcpus[best], &self.pcpus[next], self.pcpus[next].socket.contains(best));
        if is_near {
            (1, idle.intersection(&best.core), idle.intersection(&next.core))
        } else {
            (2, idle.intersection(&best.socket), idle.intersection(&next.socket))
        }
    }
}
