//! Address spaces: the TLB shootdown that an unmap waits for. The mm mutex itself is a kernel mutex (`sync`).
//!
//! A core keeps the process's address space in lazy TLB mode while it idles: the next shootdown interrupts it there,
//! wakes it if it sleeps, and only then it leaves the address space (Linux 3.2, arch/x86/mm/tlb.c,
//! `smp_invalidate_interrupt` and `leave_mm`). A yielding thread is another process: its core has left.
//! The interrupts are sent with one write for each target on machines of more than 8 CPUs, whose APICs are in physical
//! mode (arch/x86/kernel/apic/apic_flat_64.c, `physflat_send_IPI_mask`), and with one write otherwise.
//!
//! All threads of a workload are one process, and its mm mutex is held, so that at most one shootdown is under way.

use super::thread::{Mode, Step};
use crate::engine::Ps;
use crate::world::{CoreState, NONE, World, core_slot, kind};
use muster_model::Account;

/// With more CPUs the APICs are in physical mode.
const LOGICAL_MODE_CPUS: usize = 8;

impl World {
    /// The core's thread drops its own translations and sends the interrupts; each leaves when it is written.
    pub(crate) fn shoot_down(&mut self, c: usize) {
        debug_assert_eq!(self.flushes_left, 0, "the mm mutex allows one shootdown at a time");
        let mut targets = self.in_mm;
        targets.remove(c);
        self.flusher = self.cores[c].current;
        self.flushes_left = targets.len() as u32;
        self.counters.shootdowns += u64::from(!targets.is_empty());
        let mut price = self.prices.tlb_flush;
        for (index, target) in targets.iter().enumerate() {
            price += self.flush_send_price(index, target);
            let arrives = self.now + price + self.prices.ipi_delivery;
            self.queue.schedule(core_slot(target, kind::FLUSH), arrives);
        }
        self.stretch(c, price, Account::TlbShootdown, true, Step::FlushSent);
    }

    /// What the sender pays for one target; the first one's write may be all that is needed.
    fn flush_send_price(&mut self, index: usize, target: usize) -> Ps {
        let writes = index == 0 || self.cores.len() > LOGICAL_MODE_CPUS;
        if !self.virtualized {
            return if writes { self.prices.ipi_send } else { 0 };
        }
        self.counters.ipi_exits += u64::from(writes);
        let exit = if writes { self.prices.vm_exit + self.prices.vm_entry } else { 0 };
        let suspended = self.cores[target].state == CoreState::Halted;
        exit + self.prices.ipi_emulation + if suspended { self.prices.wake_vcpu } else { 0 }
    }

    /// The interrupts have been sent; the thread waits until every target has dropped its translations.
    pub(crate) fn await_flushes(&mut self, c: usize, t: u32) {
        let thread = &mut self.threads[t as usize];
        thread.mode = Mode::Acks;
        thread.in_kernel = true;
        self.await_acks(c);
    }

    /// The core's thread waits (again) for the others.
    pub(crate) fn await_acks(&mut self, c: usize) {
        self.cores[c].run_since = self.now;
        if self.flushes_left == 0 {
            self.busy(c, CoreState::AwaitingAcks, Account::TlbShootdown, 0);
        } else {
            self.rest(c, CoreState::AwaitingAcks, Account::TlbShootdown);
        }
    }

    /// A core has dropped its translations; the last one lets the waiting thread go on.
    pub(crate) fn acknowledge_flush(&mut self, c: usize) {
        if self.cores[c].current == NONE {
            self.in_mm.remove(c);
        }
        self.flushes_left -= 1;
        let waiting = self.threads[self.flusher as usize].cpu as usize;
        if self.flushes_left == 0 && self.cores[waiting].state == CoreState::AwaitingAcks {
            let line = self.prices.cache_line[self.apart(c, waiting)];
            self.queue.schedule(core_slot(waiting, kind::CORE), self.now + line);
        }
    }
}
