//! Interrupts: how they reach a core in each of its states, and what happens when the handler returns.

use crate::engine::Ps;
use crate::world::{CoreState, NONE, World};
use muster_model::Account;

/// A reason to interrupt a core; a core's pending reasons are a set of these bits.
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
}

impl World {
    /// An interrupt arrives at core `c`.
    pub(crate) fn interrupt(&mut self, c: usize, bits: u8) {
        self.cores[c].pending |= bits;
        match self.cores[c].state {
            CoreState::Thread | CoreState::Spinning | CoreState::AwaitingAcks => {
                self.pause_thread(c);
                self.handle_interrupts(c, false);
            }
            CoreState::Polling | CoreState::Yielding => {
                self.end_rest(c);
                self.handle_interrupts(c, false);
            }
            CoreState::Halted | CoreState::Mwait => self.leave_halt(c),
            // Interrupts are off; the end of what the core does looks at `pending`.
            CoreState::Interrupt
            | CoreState::Switching
            | CoreState::Refilling
            | CoreState::EnteringIdle
            | CoreState::Suspending
            | CoreState::Resuming
            | CoreState::SchedulingIn
            | CoreState::LeavingIdle => {}
        }
    }

    /// Runs the handlers of everything pending. `entering` says that the core is on its way into the guest anyway, so
    /// that the first interrupt needs no exit.
    pub(crate) fn handle_interrupts(&mut self, c: usize, entering: bool) {
        let bits = std::mem::take(&mut self.cores[c].pending);
        self.cores[c].handling = bits;
        let account = if bits & reason::FLUSH != 0 {
            Account::TlbShootdown
        } else if bits & (reason::RESCHEDULE | reason::EXCEPTION) != 0 {
            Account::Ipi
        } else {
            Account::Kernel
        };
        let price = self.handler_price(c, bits, entering);
        self.busy(c, CoreState::Interrupt, account, price);
    }

    fn handler_price(&mut self, c: usize, bits: u8, entering: bool) -> Ps {
        let prices = &self.prices;
        let mut total = 0;
        let mut first = entering;
        for bit in [reason::RESCHEDULE, reason::FLUSH, reason::TICK, reason::TIMER] {
            if bits & bit == 0 {
                continue;
            }
            total += prices.interrupt;
            if self.virtualized {
                let by_ipi = bit & (reason::RESCHEDULE | reason::FLUSH) != 0;
                let kick = prices.kick() + if by_ipi { prices.kick_delivery } else { 0 };
                total += if first { prices.inject + prices.vm_entry } else { kick } + prices.end_of_interrupt();
                self.counters.interrupt_exits += u64::from(!first) + 1;
                first = false;
            }
            total += match bit {
                reason::FLUSH => prices.tlb_flush,
                reason::TICK => prices.tick + if self.virtualized { prices.timer_write() } else { 0 },
                _ => 0,
            };
        }
        if first && self.virtualized {
            total += prices.vm_entry;
        }
        if bits & reason::EXCEPTION != 0 {
            total += prices.exception;
        }
        if bits & reason::DAEMON != 0 {
            total += std::mem::take(&mut self.cores[c].daemon_work);
        }
        total
    }

    /// The handlers are done.
    pub(crate) fn interrupts_handled(&mut self, c: usize) {
        let bits = std::mem::take(&mut self.cores[c].handling);
        if bits & (reason::RESCHEDULE | reason::EXCEPTION) != 0 {
            self.cores[c].signalled = false;
        }
        if bits & reason::FLUSH != 0 {
            self.acknowledge_flush(c);
        }
        if bits & reason::TIMER != 0 {
            self.wake_sleepers(c);
        }
        if bits & reason::TICK != 0 {
            self.tick(c);
        }
        if self.cores[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        let t = self.cores[c].current;
        if t == NONE {
            self.after_idle_interrupt(c);
        } else if self.cores[c].need_resched && !self.threads[t as usize].in_kernel {
            self.preempt(c);
        } else {
            self.resume(c);
        }
    }
}
