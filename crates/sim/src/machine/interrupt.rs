//! Interrupts: how they reach a vCPU in each of its states, and what happens when the handler returns.

use crate::engine::Ps;
use crate::engine::books::Cost;
use crate::guest::vcpu::VcpuState;
use crate::world::{NONE, World};
use muster_model::Account;
use muster_model::study::Apic;

/// A reason to interrupt a vCPU; a vCPU's pending reasons are a set of these bits.
pub mod reason {
    /// Look at the run queue.
    pub const RESCHEDULE: u8 = 1;
    /// Drop translations.
    pub const FLUSH: u8 = 2;
    /// The periodic tick.
    pub const TICK: u8 = 4;
    /// A thread's sleep is over.
    pub const TIMER: u8 = 8;
    /// A fault that stands for a rescheduling interrupt and never leaves the guest.
    pub const EXCEPTION: u8 = 16;
    /// The consolidation daemon runs.
    pub const DAEMON: u8 = 32;
    /// A device or another VM has something (`io`).
    pub const DEVICE: u8 = 64;
}

impl World {
    /// An interrupt arrives at vCPU `c`; one that is stopped sees it when it goes on.
    pub(crate) fn interrupt(&mut self, c: usize, bits: u8) {
        self.vcpus[c].pending |= bits;
        if self.vcpus[c].is_stopped() || self.vcpus[c].in_call {
            return;
        }
        match self.vcpus[c].state {
            VcpuState::Thread | VcpuState::Spinning | VcpuState::AwaitingAcks => {
                self.pause_thread(c);
                self.handle_interrupts(c, false);
            }
            VcpuState::Polling | VcpuState::Yielding => {
                self.end_rest(c);
                self.handle_interrupts(c, false);
            }
            VcpuState::HostPolling => self.host_poll_hits(c),
            VcpuState::Halted | VcpuState::Mwait => self.leave_halt(c),
            // Interrupts are off; the end of what the vCPU does looks at `pending`.
            VcpuState::Masked
            | VcpuState::Locking
            | VcpuState::Queueing
            | VcpuState::Interrupt
            | VcpuState::Switching
            | VcpuState::Refilling
            | VcpuState::EnteringIdle
            | VcpuState::Suspending
            | VcpuState::Resuming
            | VcpuState::SchedulingIn
            | VcpuState::LeavingIdle => {}
        }
    }

    /// Runs the handlers of everything pending. `entering` says that the vCPU is on its way into the guest anyway, so
    /// that the first interrupt needs no exit.
    pub(crate) fn handle_interrupts(&mut self, c: usize, entering: bool) {
        let bits = std::mem::take(&mut self.vcpus[c].pending);
        self.vcpus[c].handling = bits;
        let account = if bits & reason::FLUSH != 0 {
            Account::TlbShootdown
        } else if bits & (reason::RESCHEDULE | reason::EXCEPTION) != 0 {
            Account::Ipi
        } else if bits & reason::DEVICE != 0 && self.vm(c).is_service {
            Account::IoService
        } else {
            Account::Kernel
        };
        let price = self.handler_price(c, bits, entering);
        let by_timer = bits & (reason::TICK | reason::TIMER) != 0;
        self.vcpus[c].clock_reads = if by_timer { self.vm(c).emulated_reads_per_tick() } else { 0 };
        let fetching = self.fetch_in_handlers(c, bits, price);
        let reload =
            if bits & reason::FLUSH != 0 && self.paging.is_some() { self.reload_space(c) } else { Cost::default() };
        if by_timer {
            return self.handle_under_queue(c, account, price, fetching, &reload);
        }
        self.work(c, VcpuState::Interrupt, account, price, fetching.total() + reload.time);
        self.divide(c, &reload.parts);
        self.book_fetching(c, fetching);
    }

    fn handler_price(&mut self, c: usize, bits: u8, entering: bool) -> Ps {
        let prices = &self.prices;
        let flushed_by_vmm = self.vm(c).flush_call.is_some();
        let posts = self.kvm.apic != Apic::Emulated;
        let mut total = 0;
        let mut first = entering;
        let mut exits = 0;
        for bit in [reason::RESCHEDULE, reason::FLUSH, reason::TICK, reason::TIMER] {
            if bits & bit == 0 {
                continue;
            }
            if bit == reason::FLUSH && flushed_by_vmm {
                total += prices.host_interrupt + prices.tlb_flush;
                continue;
            }
            total += prices.interrupt;
            if self.virtualized {
                let by_ipi = bit & (reason::RESCHEDULE | reason::FLUSH) != 0;
                let exit = !(first || posts && by_ipi);
                let enters = if first { prices.vm_entry } else { 0 };
                let kick = prices.kick() + if by_ipi { prices.kick_delivery } else { 0 };
                total += match (posts, exit) {
                    (true, true) => enters + kick - prices.inject,
                    (true, false) => enters,
                    (false, true) => kick + prices.end_of_interrupt(),
                    (false, false) => prices.inject + enters + prices.end_of_interrupt(),
                };
                exits += u64::from(exit) + u64::from(!posts);
                first = false;
            }
            total += match bit {
                reason::FLUSH => prices.tlb_flush,
                reason::TICK => prices.tick + if self.virtualized { prices.timer_write() } else { 0 },
                _ => 0,
            };
        }
        if bits & reason::DEVICE != 0 {
            let (price, of_devices) = self.device_handler(c, &mut first);
            (total, exits) = (total + price, exits + of_devices);
        }
        let prices = &self.prices;
        if first && self.virtualized {
            total += prices.vm_entry;
        }
        if bits & reason::EXCEPTION != 0 {
            total += prices.exception;
        }
        if bits & reason::DAEMON != 0 {
            total += std::mem::take(&mut self.vcpus[c].daemon_work);
        }
        self.vm_mut(c).counters.interrupt_exits += exits;
        total
    }

    /// The handlers are done, but for clock reads that take the VMM: these come one by one, so that others' come between.
    pub(crate) fn interrupts_handled(&mut self, c: usize) {
        if self.vcpus[c].clock_reads > 0 {
            self.vcpus[c].clock_reads -= 1;
            let (reading, parts) = self.read_clock(c);
            self.busy(c, VcpuState::Interrupt, Account::ClockEmulation, reading);
            return self.ledgers.divide(c, self.vcpus[c].pcpu as usize, &parts);
        }
        let bits = std::mem::take(&mut self.vcpus[c].handling);
        if bits & (reason::RESCHEDULE | reason::EXCEPTION) != 0 {
            self.vcpus[c].signalled = false;
        }
        if bits & reason::FLUSH != 0 {
            self.acknowledge_flush(c);
        }
        if bits & reason::TIMER != 0 {
            self.wake_sleepers(c);
        }
        if bits & reason::DEVICE != 0 {
            self.devices_handled(c);
        }
        if bits & reason::TICK != 0
            && let Some(to) = self.tick(c)
            && self.push_under_locks(c, to)
        {
            // It comes back here, with nothing left to handle.
            return;
        }
        if self.vcpus[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        let t = self.vcpus[c].current;
        if t == NONE {
            self.after_idle_interrupt(c);
        } else if self.vcpus[c].need_resched && !self.threads[t as usize].in_kernel {
            self.preempt(c);
        } else {
            self.resume(c);
        }
    }
}
