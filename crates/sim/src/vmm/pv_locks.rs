//! Queued spin locks whose waiters give their pCPU up: a guest that knows KVM halts a vCPU that has waited for long, and has it kicked
//! when the lock is its.
//!
//! Source: Linux, kernel/locking/qspinlock_paravirt.h (`pv_wait_node`, `pv_wait_head_or_lock`, `pv_wait_early`) and
//! arch/x86/kernel/kvm.c (`kvm_wait`, `kvm_kick_cpu`): KVM_FEATURE_PV_UNHALT. Interrupts are off meanwhile: only the kick wakes.
//! For locks of run queues and zones; left out is that a waiter may overtake the queue once (`pv_hybrid_queued_unfair_trylock`).

use super::pcpu::{PcpuState, softirq};
use super::ple::PauseLoop;
use crate::engine::Ps;
use crate::engine::books::Cost;
use crate::guest::vcpu::VcpuState;
use crate::world::World;
use muster_model::Account;

/// Turns of the loop before a waiter halts (SPIN_THRESHOLD).
const TURNS: Ps = 1 << 15;
/// How often it looks whether the one before it has halted (PV_PREV_CHECK_MASK).
const EARLY_TURNS: Ps = 1 << 8;

impl World {
    /// For how long a vCPU that begins to wait for a kernel's lock spins before it halts; for ever where it does not.
    pub(super) fn patience(&self, c: usize, which: PauseLoop, turn: Ps) -> Ps {
        let knows = self.kvm.pv_unhalt && self.vm(c).kernel.knows_kvm;
        let waits = which == PauseLoop::SpinLock && self.vcpus[c].state == VcpuState::Queueing;
        let Some(spinning) = self.spinning.as_ref().filter(|spinning| knows && waits && spinning.is_queued()) else {
            return Ps::MAX;
        };
        let before = spinning.before(c);
        let turns = if before.is_some_and(|before| self.vcpus[before].pv_halted) { EARLY_TURNS } else { TURNS };
        turns * turn
    }

    /// A vCPU has waited for long enough: it halts.
    pub(super) fn pv_halt(&mut self, c: usize) {
        let p = self.vcpus[c].pcpu as usize;
        self.stop_vcpu(c);
        self.vcpus[c].pv_halted = true;
        let counters = &mut self.vm_mut(c).counters;
        counters.halt_exits += 1;
        counters.lock_halts += 1;
        self.pcpus[p].softirqs |= softirq::BLOCK | softirq::SCHEDULE;
        let price = self.prices.vm_exit + self.prices.suspend;
        self.in_vmm(p, PcpuState::Vmm, Account::HaltWake, price.into());
    }

    /// The vCPU on a pCPU is off from now on, unless it has been kicked meanwhile; what deciding that takes.
    pub(super) fn pv_block(&mut self, p: usize) -> Cost {
        let c = self.pcpus[p].current as usize;
        if !self.vcpus.get(c).is_some_and(|vcpu| vcpu.pv_halted) {
            return Cost::default();
        }
        self.ledgers.enter_vcpu(c, self.now, Account::Idle);
        if self.scheduler.decides() { self.block_in_scheduler(c, p) } else { Cost::default() }
    }

    /// vCPU `by` hands a lock to one that may have halted, and kicks it then; what that takes (KVM_HC_KICK_CPU).
    pub(crate) fn pv_kick(&mut self, c: usize, by: usize) -> Cost {
        if !std::mem::take(&mut self.vcpus[c].pv_halted) {
            return Cost::default();
        }
        let mut cost = Cost::from(self.prices.vm_exit + self.prices.wake_vcpu + self.prices.vm_entry);
        let p = self.vcpus[c].pcpu as usize;
        if self.pcpus[p].current == c as u32 {
            // It is on its way out, and finds out there.
            return cost;
        }
        self.ledgers.enter_vcpu(c, self.now, Account::Steal);
        if self.scheduler.decides() {
            cost += self.wake_vcpu(c, self.vcpus[by].pcpu as usize);
        } else {
            self.host_interrupt(p, softirq::SCHEDULE);
        }
        cost
    }
}

impl super::ple::Spinning {
    /// The vCPU before one that has just joined the queue of its lock.
    fn before(&self, c: usize) -> Option<usize> {
        let lock = self.underway[c].waits_for()?;
        let queue = self.queue_of(lock);
        let at = queue.iter().position(|&waiter| waiter == c as u32)?;
        at.checked_sub(1).map(|before| queue[before] as usize)
    }
}
