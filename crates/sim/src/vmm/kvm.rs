//! What a KVM host of today does besides: it polls for a vCPU that has halted, and lets hardware deliver interrupts.
//!
//! Source: Linux, virt/kvm/kvm_main.c (`kvm_vcpu_halt`, `kvm_vcpu_can_poll`). The vCPU's thread polls on its pCPU, and goes on
//! being what runs there for the host's scheduler. It stops when an interrupt for the vCPU comes, when its window is over, and when
//! another task of the host wants the pCPU; ticks of the host come and go meanwhile.

use super::pcpu::{RunState, softirq};
use crate::engine::{NS, Ps};
use crate::guest::vcpu::VcpuState;
use crate::world::{World, kind, slot_of};
use muster_model::Account;
use muster_model::study::{Apic, Kvm};
use muster_policy::halt_poll::Config;

/// The parameters of halt polling.
pub(crate) fn halt_poll(kvm: &Kvm) -> Config {
    Config {
        limit_ns: kvm.halt_poll_ns,
        grow: kvm.halt_poll_ns_grow,
        grow_start_ns: kvm.halt_poll_ns_grow_start,
        shrink: kvm.halt_poll_ns_shrink,
    }
}

impl World {
    /// Whether an IPI to a vCPU takes its sender out of the guest.
    #[inline]
    pub(crate) fn ipi_exits(&self, target: usize) -> bool {
        let by_hardware = || {
            let is_there = self.vcpus[target].state != VcpuState::HostPolling;
            self.kvm.apic == Apic::Avic && is_there && self.run_state(target) == RunState::Running
        };
        self.virtualized && !by_hardware()
    }

    /// The vCPU has executed HLT; whether the host polls for it first.
    pub(crate) fn polls_for(&mut self, c: usize) -> bool {
        self.vcpus[c].halted_at = self.now;
        if self.kvm.halt_poll_ns == 0 {
            return false;
        }
        let is_alone = self.scheduler.is_alone(self.vcpus[c].pcpu as usize);
        let window = self.vcpus[c].host_poll.window_ns(is_alone) * NS;
        if window > 0 {
            self.vm_mut(c).counters.host_polls += 1;
            self.vcpus[c].polled_from = self.now + self.prices.vm_exit;
            self.busy(c, VcpuState::HostPolling, Account::HaltWake, self.prices.vm_exit + window);
        }
        window > 0
    }

    /// The host has polled for nothing: the vCPU gives its pCPU up.
    pub(crate) fn host_poll_over(&mut self, c: usize) {
        self.busy(c, VcpuState::Suspending, Account::HaltWake, self.prices.suspend);
    }

    /// An interrupt comes for a vCPU for which the host polls: it goes back into the guest.
    pub(crate) fn host_poll_hits(&mut self, c: usize) {
        self.vm_mut(c).counters.host_poll_hits += 1;
        self.note_halt(c);
        // It has to be out of the guest first.
        let left = self.vcpus[c].polled_from.saturating_sub(self.now);
        self.busy(c, VcpuState::SchedulingIn, Account::HaltWake, left);
    }

    /// A host interrupt comes to a pCPU that polls for its vCPU.
    pub(super) fn interrupt_host_poll(&mut self, p: usize, c: usize) {
        if self.pcpus[p].softirqs == softirq::TICK {
            self.pcpus[p].softirqs = 0;
            self.tick_scheduler(p);
        } else {
            // What else there is to do is done when the vCPU is off.
            self.host_poll_over(c);
        }
    }

    /// A vCPU has become runnable: if it waits behind one for which the host polls, that ends.
    pub(super) fn end_poll_before(&mut self, c: usize) {
        if self.kvm.halt_poll_ns == 0 {
            return;
        }
        let p = self.scheduler.home(c);
        let Some(current) = self.vcpus.get(self.pcpus[p].current as usize) else { return };
        let slot = slot_of(p, kind::KICK);
        if current.state == VcpuState::HostPolling && !current.is_stopped() && !self.queue.is_pending(slot) {
            self.queue.schedule(slot, self.now);
        }
    }

    /// A vCPU's halt is over.
    pub(super) fn note_halt(&mut self, c: usize) {
        if self.kvm.halt_poll_ns > 0 {
            let halted: Ps = self.now - self.vcpus[c].halted_at;
            self.vcpus[c].host_poll.woken_after(halted / NS, &halt_poll(&self.kvm));
        }
    }
}
