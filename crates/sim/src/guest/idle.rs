//! The idle loop: halting, MWAIT, polling, polling for a while, and the yielding thread in its place.

use crate::machine::interrupt::reason;
use crate::world::{CoreState, NONE, World, core_slot, kind};
use muster_model::Account;
use muster_model::study::IdleKind;

impl World {
    /// Whether an idle core runs a yielding thread.
    pub(crate) fn yields(&self, c: usize) -> bool {
        self.yielding && self.active.contains(c)
    }

    /// Nothing to run.
    pub(crate) fn go_idle(&mut self, c: usize) {
        self.idle.insert(c);
        let core = &mut self.cores[c];
        core.idle_since = self.now;
        core.current = NONE;
        core.in_idle_loop = !(self.yielding && self.active.contains(c));
        if core.in_idle_loop {
            self.enter_idle(c);
        } else {
            self.in_mm.remove(c);
            self.busy(c, CoreState::Switching, Account::Kernel, self.switch_price());
        }
    }

    /// From the scheduler to the idle instruction; a core that is going to sleep stops its tick on the way.
    fn enter_idle(&mut self, c: usize) {
        self.idle.insert(c);
        let polls = match self.idle_kind {
            IdleKind::Poll => true,
            IdleKind::Haltpoll => self.cores[c].haltpoll.window_ns() > 0,
            IdleKind::Halt | IdleKind::Mwait => false,
        };
        self.cores[c].polled = false;
        let stop = if polls { 0 } else { self.stop_tick(c) };
        self.busy(c, CoreState::EnteringIdle, Account::HaltWake, self.prices.idle_enter + stop);
    }

    /// Stops the tick, unless an interrupt in the idle loop has only left it stopped.
    fn stop_tick(&mut self, c: usize) -> crate::engine::Ps {
        self.queue.cancel(core_slot(c, kind::TICK));
        if self.cores[c].tick_stopped {
            return 0;
        }
        self.cores[c].tick_stopped = self.virtualized;
        self.counters.timer_exits += u64::from(self.virtualized);
        if self.virtualized { self.prices.timer_write() } else { 0 }
    }

    /// The last look before the idle instruction.
    pub(crate) fn entered_idle(&mut self, c: usize) {
        if self.cores[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        if !self.cores[c].queue.is_empty() {
            return self.leave_idle(c);
        }
        let window = self.cores[c].haltpoll.window_ns();
        match self.idle_kind {
            IdleKind::Poll => {
                self.counters.poll_entries += 1;
                self.rest(c, CoreState::Polling, Account::Spin);
            }
            IdleKind::Haltpoll if window > 0 && !self.cores[c].polled => {
                self.counters.poll_entries += 1;
                self.cores[c].rest_since = self.now;
                self.busy(c, CoreState::Polling, Account::Spin, window * crate::engine::NS);
            }
            IdleKind::Mwait => {
                self.counters.idle_entries += 1;
                self.rest(c, CoreState::Mwait, Account::Idle);
            }
            IdleKind::Halt | IdleKind::Haltpoll => {
                self.counters.idle_entries += 1;
                self.halt(c);
            }
        }
    }

    /// Polling found nothing in its window: the core halts after all.
    pub(crate) fn poll_over(&mut self, c: usize) {
        self.end_rest(c);
        self.cores[c].polled = true;
        let stop = self.stop_tick(c);
        self.busy(c, CoreState::EnteringIdle, Account::HaltWake, stop);
    }

    /// A store that the core watches has come over.
    pub(crate) fn notice(&mut self, c: usize) {
        match self.cores[c].state {
            CoreState::Polling => {
                self.end_rest(c);
                self.leave_idle(c);
            }
            CoreState::Mwait => self.leave_halt(c),
            // It found out by itself.
            _ => {}
        }
    }

    /// The core stops polling or yielding.
    pub(crate) fn end_rest(&mut self, c: usize) {
        self.queue.cancel(core_slot(c, kind::CORE));
        let rested = self.now - self.cores[c].rest_since;
        match self.cores[c].state {
            CoreState::Polling => self.polled_ps += rested,
            CoreState::Yielding => self.yielded_ps += rested,
            _ => {}
        }
    }

    /// From the idle loop to the scheduler; a stopped tick is started again.
    pub(crate) fn leave_idle(&mut self, c: usize) {
        let restart = std::mem::take(&mut self.cores[c].tick_stopped);
        self.counters.timer_exits += u64::from(restart);
        if self.idle_kind == IdleKind::Haltpoll {
            let idle_ns = (self.now - self.cores[c].idle_since) / crate::engine::NS;
            self.cores[c].haltpoll.woken_after(idle_ns, &self.haltpoll);
        }
        let restart = if restart { self.prices.timer_write() } else { 0 };
        self.busy(c, CoreState::LeavingIdle, Account::Kernel, self.prices.idle_exit + restart);
    }

    /// In the scheduler again.
    pub(crate) fn left_idle(&mut self, c: usize) {
        if self.cores[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        self.cores[c].in_idle_loop = false;
        self.schedule(c);
    }

    /// The switch to the yielding thread is done.
    pub(crate) fn switched_to_yielding(&mut self, c: usize) {
        if self.cores[c].pending != 0 {
            self.handle_interrupts(c, false);
        } else if self.cores[c].queue.is_empty() && self.yields(c) {
            self.yield_on(c);
        } else {
            self.schedule(c);
        }
    }

    fn yield_on(&mut self, c: usize) {
        self.idle.insert(c);
        self.rest(c, CoreState::Yielding, Account::Spin);
    }

    /// An interrupt in the idle loop or the yielding thread has been handled.
    pub(crate) fn after_idle_interrupt(&mut self, c: usize) {
        let empty = self.cores[c].queue.is_empty();
        let (in_loop, yields) = (self.cores[c].in_idle_loop, self.yields(c));
        match (empty, in_loop, yields) {
            (false, true, _) | (true, true, true) => self.leave_idle(c),
            (false, false, _) => self.schedule(c),
            (true, false, true) => self.yield_on(c),
            (true, false, false) => self.go_idle(c),
            (true, true, false) => self.enter_idle(c),
        }
    }

    /// Makes an idle core notice that it should now run, or no longer run, a yielding thread.
    pub(crate) fn reconsider_idle(&mut self, c: usize) {
        match self.cores[c].state {
            CoreState::Yielding if !self.yields(c) => {
                self.end_rest(c);
                self.go_idle(c);
            }
            CoreState::Halted | CoreState::Mwait if self.yields(c) => self.interrupt(c, reason::RESCHEDULE),
            _ => {}
        }
    }
}
