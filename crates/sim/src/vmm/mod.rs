//! The virtual machine monitor: VM exits, vCPUs that are suspended and brought back, interrupts that are delivered by
//! software, pCPUs that vCPUs share.
//!
//! On the machine itself (`virtualized` is false) these paths cost what the silicon costs and nothing else.

pub mod idle_periods;
pub mod kvm;
pub mod pcpu;
pub mod ple;
pub mod pm_timer;
pub mod preempt;
pub mod pv_locks;
pub mod scheduler;
pub mod service;
pub mod shadow;
pub mod shared;

use crate::engine::{NS, Ps};
use crate::guest::vcpu::VcpuState;
use crate::machine::lines::Cause;
use crate::machine::prices::Prices;
use crate::world::World;
use muster_model::Account;
use muster_model::workload::Duration;

impl Prices {
    /// A host interrupt takes a running vCPU out of the guest and an interrupt into it.
    pub(crate) fn kick(&self) -> Ps {
        self.vm_exit + self.host_interrupt + self.inject + self.vm_entry
    }

    /// The guest's end-of-interrupt write, which exits (no virtual APIC before Ivy Bridge-EP).
    pub(crate) fn end_of_interrupt(&self) -> Ps {
        self.vm_exit + self.eoi + self.vm_entry
    }

    /// What waking costs by the state of the target (Table 1, A to C), for a policy that predicts: the sum of the steps
    /// that lie between the waking call and the woken thread within one cache domain.
    pub(crate) fn of_waking(&self, virtualized: bool) -> muster_policy::consolidate::Prices {
        let near = muster_model::Distance::SameLlc as usize;
        let ns = |ps: Ps| ps as f64 / 1e3;
        let call = self.syscall + self.futex_wake + self.wake_up;
        let switch = self.context_switch + if virtualized { self.guest_switch } else { 0 } + self.return_from_wait;
        let interrupt = self.interrupt + if virtualized { self.kick() + self.end_of_interrupt() } else { 0 };
        let send = self.ipi_delivery
            + if virtualized { self.vm_exit + self.ipi_emulation + self.event_send } else { self.ipi_send };
        let there = call + send + interrupt + switch + self.wake_lines[near];
        let awake = there + if virtualized { self.kick_delivery } else { 0 };
        let host = self.wake_vcpu + self.host_idle_exit + self.schedule_in + self.unblock + self.timer_write();
        let halted = there + self.c1_exit + self.idle_exit + if virtualized { host } else { 0 };
        muster_policy::consolidate::Prices {
            wake_same_cpu_ns: ns(call + switch),
            wake_awake_ns: ns(awake),
            wake_halted_ns: ns(halted),
            handover_lines_ns: ns(self.poll_notice + self.wake_lines[near]),
        }
    }

    /// What the simulated machine charges threads for waking and blocking, for a recording that leaves it out.
    pub(crate) fn overheads(&self, virtualized: bool) -> muster_policy::record::Overheads {
        let ns = |ps: Ps| ps as f64 / 1e3;
        let near = muster_model::Distance::SameLlc as usize;
        let call = self.syscall + self.futex_wake + self.wake_up;
        let exit =
            self.vm_exit + self.ipi_emulation + self.event_send + self.wake_vcpu + self.vm_entry + self.after_send;
        let send = if virtualized { exit } else { self.ipi_send };
        muster_policy::record::Overheads {
            wake_halted_ns: ns(call + send),
            wake_queued_ns: ns(call),
            block_ns: ns(self.syscall + self.block + self.wake_lines[near] + self.return_from_wait),
            syscall_ns: ns(self.syscall),
            transit_ns: (self.of_waking(virtualized).wake_halted_ns - ns(call + send)).max(0.0),
        }
    }

    /// The guest programs its timer, which exits.
    pub(crate) fn timer_write(&self) -> Ps {
        self.vm_exit + self.timer_emulation + self.vm_entry
    }
}

impl World {
    /// By how much the VMM is late with a timer of this vCPU: Xen lets timers wait for each other for a while.
    pub(crate) fn timer_lateness(&mut self, c: usize) -> Ps {
        let vm = &self.vms[self.vcpus[c].vm as usize];
        let Some(slop) = vm.timer_slop else { return 0 };
        self.timer_random[c].duration(Duration::Uniform { min: 0, max: slop / NS })
    }

    /// The sender's part of an IPI before it is on its way.
    pub(crate) fn ipi_send_price(&self, exits: bool) -> Ps {
        if exits { self.prices.vm_exit + self.prices.ipi_emulation } else { self.prices.ipi_send }
    }

    /// The vCPU executes HLT: on the machine itself the core is in C1 at once; in a VM it exits and is suspended.
    pub(crate) fn halt(&mut self, c: usize) {
        if self.virtualized {
            self.vm_mut(c).counters.halt_exits += 1;
            if self.polls_for(c) {
                return;
            }
            let price = self.prices.vm_exit + self.prices.suspend;
            let fetching = self.vmm_fetches(self.vcpus[c].pcpu as usize, Cause::Vmm, price);
            self.busy(c, VcpuState::Suspending, Account::HaltWake, price + fetching.total());
            self.book_fetching(c, fetching);
        } else {
            self.rest(c, VcpuState::Halted, Account::Idle);
        }
    }

    /// The vCPU is ready to leave its pCPU - unless something came in on the way, which the VMM sees before it gives
    /// the pCPU up.
    pub(crate) fn suspended(&mut self, c: usize) {
        if self.vcpus[c].pending != 0 {
            self.busy(c, VcpuState::SchedulingIn, Account::VmmScheduler, self.prices.unblock);
        } else {
            self.block_vcpu(c);
        }
    }

    /// An interrupt reaches a vCPU that sleeps.
    pub(crate) fn leave_halt(&mut self, c: usize) {
        if self.virtualized && self.vcpus[c].state == VcpuState::Halted {
            self.wake_by_interrupt(c);
        } else {
            self.busy(c, VcpuState::Resuming, Account::HaltWake, self.prices.c1_exit);
        }
    }

    /// The core is out of its sleep state.
    pub(crate) fn resumed(&mut self, c: usize) {
        if self.vcpus[c].pending != 0 {
            self.handle_interrupts(c, false);
        } else {
            self.leave_idle(c);
        }
    }

    /// The vCPU, which has not left its pCPU after all, enters the guest with what is pending.
    pub(crate) fn scheduled_in(&mut self, c: usize) {
        let p = self.vcpus[c].pcpu as usize;
        if self.pcpus[p].softirqs != 0 { self.do_softirqs(p) } else { self.handle_interrupts(c, true) }
    }
}
