//! vCPUs that the VMM takes off their pCPU in the middle of something, and puts back.
//!
//! What a stopped vCPU did goes on where it stopped. Meanwhile its guest's kernel sees it as it was: a lock that its
//! thread holds stays held, a lock that its thread spins for may be granted to it and is taken when it is back, a store
//! that it polls is noticed then. Interrupts for it stay pending and are handled first thing when it is back; of ticks
//! only one is kept, and none is counted while it is off. The guest's scheduler clock stands still with it, as Xen's
//! does (arch/x86/xen/time.c, `xen_sched_clock`, before 3.0): no thread is charged for time that the vCPU did not have.

use crate::engine::Ps;
use crate::guest::vcpu::VcpuState;
use crate::world::{NONE, World, kind, slot_of};

impl World {
    /// Stops whatever a vCPU does.
    pub(crate) fn stop_vcpu(&mut self, c: usize) {
        let account = self.ledgers.account(c);
        let slot = slot_of(c, kind::VCPU);
        let ends = self.queue.is_pending(slot) && !self.vcpus[c].ple_armed;
        let left = ends.then(|| self.work_left(c, self.vcpus[c].until.saturating_sub(self.now)));
        if self.vcpus[c].runs_a_thread() {
            self.pause_thread(c);
        } else {
            self.end_pauses(c);
            self.end_rest(c);
        }
        let vcpu = &mut self.vcpus[c];
        vcpu.stopped_at = self.now;
        vcpu.left = left;
        vcpu.account = account;
    }

    /// A vCPU that was stopped goes on.
    pub(crate) fn continue_vcpu(&mut self, c: usize) {
        self.note_resumed(c);
        let vcpu = &mut self.vcpus[c];
        vcpu.slice_start += self.now - std::mem::replace(&mut vcpu.stopped_at, Ps::MAX);
        let (state, account, left, pending) = (vcpu.state, vcpu.account, vcpu.left, vcpu.pending);
        if vcpu.current != NONE || self.vms[vcpu.vm as usize].kernel.ticks_in_idle {
            self.start_tick(c);
        }
        match state {
            VcpuState::Thread | VcpuState::Spinning | VcpuState::AwaitingAcks if pending == 0 => self.resume(c),
            VcpuState::Polling | VcpuState::Yielding | VcpuState::Mwait if pending == 0 => self.rest_on(c),
            VcpuState::Thread
            | VcpuState::Spinning
            | VcpuState::AwaitingAcks
            | VcpuState::Polling
            | VcpuState::Yielding
            | VcpuState::Mwait => self.handle_interrupts(c, true),
            VcpuState::Masked => self.spin_masked_on(c, account, left),
            VcpuState::Locking | VcpuState::Queueing => self.plan_on(c, state, account, left),
            // Interrupts are off; the end of what it does looks at `pending`.
            _ => self.busy(c, state, account, left.expect("only these states have no end")),
        }
    }

    /// A vCPU that was stopped in an idle state looks at what has come meanwhile.
    fn rest_on(&mut self, c: usize) {
        let vcpu = &self.vcpus[c];
        let (state, account, left) = (vcpu.state, vcpu.account, vcpu.left);
        let has_work = !vcpu.queue.is_empty();
        if has_work || (state == VcpuState::Yielding && !self.yields(c)) {
            return self.after_idle_interrupt(c);
        }
        match left {
            Some(left) => {
                self.vcpus[c].rest_since = self.now;
                self.busy(c, state, account, left);
            }
            None => self.rest(c, state, account),
        }
        self.pull_due(c);
    }
}
