//! Address spaces: the TLB shootdown that an unmap waits for. The mm mutex itself is a kernel mutex (`sync`).
//!
//! A vCPU keeps the process's address space in lazy TLB mode while it idles: the next shootdown interrupts it there,
//! wakes it if it sleeps, and only then it leaves the address space (Linux 3.2, arch/x86/mm/tlb.c,
//! `smp_invalidate_interrupt` and `leave_mm`). A yielding thread is another process: its vCPU has left.
//! The interrupts are sent with one write for each target on machines of more than 8 CPUs, whose APICs are in physical
//! mode (arch/x86/kernel/apic/apic_flat_64.c, `physflat_send_IPI_mask`), and with one write otherwise.
//! A PV guest asks Xen for it (MMUEXT_TLB_FLUSH_MULTI), which interrupts the pCPUs itself; its lock for that, `flush_lock`, is
//! left out, since only one VM's shootdowns of one process contend for it here.
//!
//! All threads of a workload are one process, and its mm mutex is held, so that at most one shootdown is under way.

use super::thread::{Mode, Step};
use crate::engine::Ps;
use crate::engine::books::Cost;
use crate::guest::vcpu::VcpuState;
use crate::machine::interrupt::reason;
use crate::machine::lines::Cause;
use crate::vmm::pcpu::RunState;
use crate::vmm::ple::PauseLoop;
use crate::world::{NONE, World, kind, slot_of};
use muster_model::{Account, CpuSet};

/// With more CPUs the APICs are in physical mode.
const LOGICAL_MODE_CPUS: usize = 8;

impl World {
    /// The vCPU's thread drops its own translations and sends the interrupts; each leaves when it is written.
    pub(crate) fn shoot_down(&mut self, c: usize) {
        let vm = &mut self.vms[self.vcpus[c].vm as usize];
        debug_assert_eq!(vm.flushes_left, 0, "the mm mutex allows one shootdown at a time");
        let mut targets = vm.in_mm;
        targets.remove(c);
        vm.flusher = self.vcpus[c].current;
        vm.counters.shootdowns += u64::from(!targets.is_empty());
        let by_vmm = vm.flush_call;
        let targets = self.defer_flushes(c, targets);
        self.vm_mut(c).flushes_left = targets.len() as u32;
        self.drop_translations(c);
        let reload = if self.paging.is_some() { self.reload_space(c) } else { Cost::default() };
        let mut price = self.prices.tlb_flush + by_vmm.unwrap_or(0) + reload.time;
        for (index, target) in targets.iter().enumerate() {
            price += match by_vmm {
                Some(_) => self.prices.ipi_send,
                None => self.flush_send_price(index, target),
            };
            let arrives = self.now + price + self.prices.ipi_delivery;
            self.queue.schedule(slot_of(target, kind::FLUSH), arrives);
        }
        self.stretch(c, price, Account::TlbShootdown, true, Step::FlushSent);
        self.divide(c, &reload.parts);
    }

    /// Where the guest and KVM agree on it, vCPUs that are off their pCPUs are only marked, and drop their translations when they
    /// come back (arch/x86/kernel/kvm.c, `kvm_flush_tlb_multi`). The others.
    fn defer_flushes(&mut self, c: usize, targets: CpuSet) -> CpuSet {
        if !(self.kvm.pv_tlb_flush && self.vm(c).kernel.knows_kvm) {
            return targets;
        }
        let off: CpuSet = targets.iter().filter(|&target| self.run_state(target) != RunState::Running).collect();
        off.iter().for_each(|target| self.vcpus[target].flush_at_entry = true);
        targets.difference(&off)
    }

    /// A vCPU comes back to a pCPU, and drops translations if it has been marked meanwhile; what that takes.
    pub(crate) fn flush_at_entry(&mut self, c: usize) -> Ps {
        if !std::mem::take(&mut self.vcpus[c].flush_at_entry) {
            return 0;
        }
        self.drop_translations(c);
        self.vm_mut(c).counters.deferred_flushes += 1;
        self.prices.tlb_flush
    }

    /// What the sender pays for one target; the first one's write may be all that is needed.
    fn flush_send_price(&mut self, index: usize, target: usize) -> Ps {
        let by_call = self.kvm.pv_ipi && self.vm(target).kernel.knows_kvm;
        let writes = index == 0 || (!by_call && self.vm(target).vcpus.len() > LOGICAL_MODE_CPUS);
        if !by_call && !self.ipi_exits(target) {
            return if writes { self.prices.ipi_send } else { 0 };
        }
        self.vm_mut(target).counters.ipi_exits += u64::from(writes);
        let exit = if writes { self.prices.vm_exit + self.prices.vm_entry } else { 0 };
        let suspended = self.vcpus[target].state == VcpuState::Halted;
        let wakes = if suspended { self.prices.wake_vcpu } else { 0 };
        // A call brings all targets at once: nothing is decoded, and each is looked up in a map.
        let each = if by_call && !writes { self.kvm_prices.ipi_target } else { self.prices.ipi_emulation };
        exit + each + wakes
    }

    /// A shootdown's interrupt comes to a vCPU. A VMM that was asked for the shootdown interrupts its own pCPUs, and drops the
    /// translations of a vCPU there without the guest's help; one that is off its pCPU is not woken.
    pub(crate) fn flush_arrives(&mut self, c: usize) {
        let vcpu = &self.vcpus[c];
        let runs_guest_code = !vcpu.is_stopped()
            && matches!(
                vcpu.state,
                VcpuState::Thread
                    | VcpuState::Spinning
                    | VcpuState::AwaitingAcks
                    | VcpuState::Polling
                    | VcpuState::Yielding
            );
        if self.vm(c).flush_call.is_none() || (runs_guest_code && !vcpu.in_call) {
            self.interrupt(c, reason::FLUSH);
        } else {
            self.acknowledge_flush(c);
        }
    }

    /// The interrupts have been sent; the thread waits until every target has dropped its translations.
    pub(crate) fn await_flushes(&mut self, c: usize, t: u32) {
        let thread = &mut self.threads[t as usize];
        thread.mode = Mode::Acks;
        thread.in_kernel = true;
        self.await_acks(c);
    }

    /// The vCPU's thread waits (again) for the others.
    pub(crate) fn await_acks(&mut self, c: usize) {
        self.vcpus[c].run_since = self.now;
        if self.vm(c).flushes_left == 0 {
            self.busy(c, VcpuState::AwaitingAcks, Account::TlbShootdown, 0);
        } else {
            self.rest(c, VcpuState::AwaitingAcks, Account::TlbShootdown);
            self.begin_pauses(c, PauseLoop::Acks);
        }
    }

    /// A vCPU has dropped its translations; the last one lets the waiting thread go on.
    pub(crate) fn acknowledge_flush(&mut self, c: usize) {
        self.drop_translations(c);
        let vm = &mut self.vms[self.vcpus[c].vm as usize];
        if self.vcpus[c].current == NONE && vm.flush_call.is_none() {
            vm.in_mm.remove(c);
        }
        vm.flushes_left -= 1;
        let waiting = self.threads[vm.flusher as usize].cpu as usize;
        let vcpu = &self.vcpus[waiting];
        if vm.flushes_left == 0 && vcpu.state == VcpuState::AwaitingAcks && !vcpu.is_stopped() {
            let line = self.prices.cache_line[self.apart(c, waiting)];
            self.shared.lines.add_misses(Cause::Guest, 1);
            self.vcpus[waiting].ple_armed = false;
            self.queue.schedule(slot_of(waiting, kind::VCPU), self.now + line);
        }
    }
}
