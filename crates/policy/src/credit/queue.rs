//! The run queues: linked lists through the vCPUs themselves, each in one at most.

use super::{NONE, Priority, Scheduler, Vcpu, VcpuId};

impl Scheduler {
    /// Puts a vCPU into its pCPU's queue, behind all of its priority or a higher one.
    ///
    /// It goes before the first of a lower priority; while the queue is not sorted, others of its own may stand behind.
    pub(super) fn insert(&mut self, vcpu: VcpuId) {
        let Vcpu { pcpu, priority, queued, .. } = self.vcpus[vcpu as usize];
        assert!(!queued, "vCPU {vcpu} waits twice");
        let behind = self.waiting(pcpu).find(|&other| self.vcpus[other as usize].priority < priority).unwrap_or(NONE);
        self.insert_before(vcpu, behind);
    }

    /// The same of one that yields: behind one of a lower priority as well, if there is one (Xen 4.1, `__runq_insert`).
    pub(super) fn insert_behind_one_lower(&mut self, vcpu: VcpuId) {
        let Vcpu { pcpu, priority, queued, .. } = self.vcpus[vcpu as usize];
        assert!(!queued, "vCPU {vcpu} waits twice");
        let lower = self.waiting(pcpu).find(|&other| self.vcpus[other as usize].priority < priority);
        self.insert_before(vcpu, lower.map_or(NONE, |lower| self.vcpus[lower as usize].next));
    }

    /// The same before all of its priority.
    pub(super) fn insert_first(&mut self, vcpu: VcpuId) {
        let Vcpu { pcpu, priority, queued, .. } = self.vcpus[vcpu as usize];
        assert!(!queued, "vCPU {vcpu} waits twice");
        let behind = self.waiting(pcpu).find(|&other| self.vcpus[other as usize].priority <= priority).unwrap_or(NONE);
        self.insert_before(vcpu, behind);
    }

    /// Takes a vCPU out of its pCPU's queue.
    pub(super) fn remove(&mut self, vcpu: VcpuId) {
        let Vcpu { pcpu, next, previous, queued, .. } = self.vcpus[vcpu as usize];
        assert!(queued, "vCPU {vcpu} does not wait");
        self.vcpus[vcpu as usize].queued = false;
        self.link(pcpu, previous, next);
    }

    /// Moves the vCPUs with credits before those without, each in the order in which they are.
    pub(super) fn sort(&mut self, pcpu: usize) {
        let mut vcpu = self.pcpus[pcpu].head;
        let mut first_over = NONE;
        while vcpu != NONE {
            let next = self.vcpus[vcpu as usize].next;
            if self.vcpus[vcpu as usize].priority < Priority::Under {
                first_over = if first_over == NONE { vcpu } else { first_over };
            } else if first_over != NONE {
                self.remove(vcpu);
                self.insert_before(vcpu, first_over);
            }
            vcpu = next;
        }
    }

    /// Puts a vCPU before `behind` in its pCPU's queue, at the end when that is [`NONE`].
    fn insert_before(&mut self, vcpu: VcpuId, behind: VcpuId) {
        let pcpu = self.vcpus[vcpu as usize].pcpu;
        let before = if behind == NONE { self.pcpus[pcpu].tail } else { self.vcpus[behind as usize].previous };
        self.link(pcpu, before, vcpu);
        self.link(pcpu, vcpu, behind);
        self.vcpus[vcpu as usize].queued = true;
    }

    /// Makes `first` and `second` neighbours; [`NONE`] is the end of the queue.
    fn link(&mut self, pcpu: usize, first: VcpuId, second: VcpuId) {
        match first {
            NONE => self.pcpus[pcpu].head = second,
            _ => self.vcpus[first as usize].next = second,
        }
        match second {
            NONE => self.pcpus[pcpu].tail = first,
            _ => self.vcpus[second as usize].previous = first,
        }
    }
}
