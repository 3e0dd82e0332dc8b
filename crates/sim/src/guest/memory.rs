//! Address spaces: the TLB shootdown that an unmap waits for. The mm mutex itself is a kernel mutex (`sync`).
//!
//! Cores that do not run the process are in lazy TLB mode and are left alone (Linux, arch/x86/mm/tlb.c). All threads
//! of a workload are one process, and its mm mutex is held, so that at most one shootdown is under way.

use super::thread::{Mode, Step};
use crate::world::{CoreState, NONE, World, core_slot, kind};
use muster_model::Account;

impl World {
    /// The core's thread drops its own translations and sends the interrupts, all with one write.
    pub(crate) fn shoot_down(&mut self, c: usize) {
        let targets = self.flush_targets(c).count() as u64;
        let send = match (targets, self.virtualized) {
            (0, _) => 0,
            (_, false) => self.prices.ipi_send,
            (n, true) => self.prices.vm_exit + self.prices.ipi_emulation * n,
        };
        self.counters.shootdowns += u64::from(targets > 0);
        self.counters.ipi_exits += u64::from(targets > 0 && self.virtualized);
        self.stretch(c, self.prices.tlb_flush + send, Account::TlbShootdown, true, Step::FlushSent);
    }

    fn flush_targets(&self, c: usize) -> impl Iterator<Item = usize> + use<'_> {
        let current = |other: usize| self.cores[other].current;
        (0..self.cores.len()).filter(move |&other| other != c && current(other) != NONE)
    }

    /// The interrupts leave; the thread waits until every target has dropped its translations.
    pub(crate) fn await_flushes(&mut self, c: usize, t: u32) {
        debug_assert_eq!(self.flushes_left, 0, "the mm mutex allows one shootdown at a time");
        self.flushes_left = 0;
        for other in 0..self.cores.len() {
            if other != c && self.cores[other].current != NONE {
                self.flushes_left += 1;
                self.queue.schedule(core_slot(other, kind::FLUSH), self.now + self.prices.ipi_delivery);
            }
        }
        if self.flushes_left == 0 {
            return self.fetch(c);
        }
        self.flusher = t;
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
        self.flushes_left -= 1;
        let waiting = self.threads[self.flusher as usize].cpu as usize;
        if self.flushes_left == 0 && self.cores[waiting].state == CoreState::AwaitingAcks {
            let line = self.prices.cache_line[self.apart(c, waiting)];
            self.queue.schedule(core_slot(waiting, kind::CORE), self.now + line);
        }
    }
}
