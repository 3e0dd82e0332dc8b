//! The idle loop: halting, MWAIT, polling, polling for a while, and the yielding thread in its place.

use crate::engine::books::Parts;
use crate::guest::vcpu::VcpuState;
use crate::machine::interrupt::reason;
use crate::world::{NONE, World, kind, slot_of};
use muster_model::Account;
use muster_model::study::IdleKind;

impl World {
    /// Whether an idle vCPU runs a yielding thread.
    pub(crate) fn yields(&self, c: usize) -> bool {
        let vm = self.vm(c);
        vm.yielding && vm.active.contains(c)
    }

    /// Nothing to run.
    pub(crate) fn go_idle(&mut self, c: usize) {
        let vcpu = &mut self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        vm.idle.insert(c);
        vcpu.idle_since = self.now;
        vcpu.current = NONE;
        vcpu.in_idle_loop = !(vm.yielding && vm.active.contains(c));
        if vcpu.in_idle_loop {
            self.enter_idle(c, true);
        } else {
            vm.in_mm.remove(c);
            let price = self.switch_price(c);
            self.busy_under_own_queue(c, (VcpuState::Switching, Account::Kernel), price, price, Parts::NONE);
        }
    }

    /// From the scheduler, if it comes from there, to the idle instruction; a vCPU that is going to sleep stops its tick on the
    /// way.
    fn enter_idle(&mut self, c: usize, from_scheduler: bool) {
        let vm = self.vm_mut(c);
        vm.idle.insert(c);
        let polls = match vm.idle_kind {
            IdleKind::Poll => true,
            IdleKind::Haltpoll => self.vcpus[c].haltpoll.window_ns() > 0,
            IdleKind::Halt | IdleKind::Mwait => false,
        };
        self.vcpus[c].polled = false;
        let stop = if polls { 0 } else { self.stop_tick(c) };
        let enter = self.prices.idle_enter;
        if from_scheduler {
            self.busy_under_own_queue(
                c,
                (VcpuState::EnteringIdle, Account::HaltWake),
                enter,
                enter + stop,
                Parts::NONE,
            );
        } else {
            self.busy(c, VcpuState::EnteringIdle, Account::HaltWake, enter + stop);
        }
    }

    /// Stops the tick, unless an interrupt in the idle loop has only left it stopped.
    fn stop_tick(&mut self, c: usize) -> crate::engine::Ps {
        if self.vm(c).kernel.ticks_in_idle {
            return 0;
        }
        self.queue.cancel(slot_of(c, kind::TICK));
        if self.vcpus[c].tick_stopped {
            return 0;
        }
        self.vcpus[c].tick_stopped = self.virtualized;
        let exits = u64::from(self.virtualized);
        self.vm_mut(c).counters.timer_exits += exits;
        if self.virtualized { self.prices.timer_write() } else { 0 }
    }

    /// The last look before the idle instruction.
    pub(crate) fn entered_idle(&mut self, c: usize) {
        if self.vcpus[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        if !self.vcpus[c].queue.is_empty() {
            return self.leave_idle(c);
        }
        let vcpu = &mut self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        let window = vcpu.haltpoll.window_ns();
        match vm.idle_kind {
            IdleKind::Poll => {
                vm.counters.poll_entries += 1;
                self.rest(c, VcpuState::Polling, Account::Spin);
            }
            IdleKind::Haltpoll if window > 0 && !vcpu.polled => {
                vm.counters.poll_entries += 1;
                vcpu.rest_since = self.now;
                self.busy(c, VcpuState::Polling, Account::Spin, window * crate::engine::NS);
            }
            IdleKind::Mwait => {
                vm.counters.idle_entries += 1;
                self.rest(c, VcpuState::Mwait, Account::Idle);
            }
            IdleKind::Halt | IdleKind::Haltpoll => {
                vm.counters.idle_entries += 1;
                self.halt(c);
            }
        }
    }

    /// Polling found nothing in its window: the vCPU halts after all.
    pub(crate) fn poll_over(&mut self, c: usize) {
        self.end_rest(c);
        self.vcpus[c].polled = true;
        let stop = self.stop_tick(c);
        self.busy(c, VcpuState::EnteringIdle, Account::HaltWake, stop);
    }

    /// A store that the vCPU watches has come over.
    pub(crate) fn notice(&mut self, c: usize) {
        match self.vcpus[c].state {
            // It looks when it goes on.
            _ if self.vcpus[c].is_stopped() => {}
            VcpuState::Polling => {
                self.end_rest(c);
                self.leave_idle(c);
            }
            VcpuState::Mwait => self.leave_halt(c),
            // It found out by itself.
            _ => {}
        }
    }

    /// The vCPU stops polling or yielding.
    pub(crate) fn end_rest(&mut self, c: usize) {
        self.queue.cancel(slot_of(c, kind::VCPU));
        let vcpu = &self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        let rested = self.now - vcpu.rest_since;
        match vcpu.state {
            VcpuState::Polling => vm.polled_ps += rested,
            VcpuState::Yielding => vm.yielded_ps += rested,
            _ => {}
        }
    }

    /// From the idle loop to the scheduler; a stopped tick is started again.
    pub(crate) fn leave_idle(&mut self, c: usize) {
        let vcpu = &mut self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        let restart = std::mem::take(&mut vcpu.tick_stopped);
        vm.counters.timer_exits += u64::from(restart);
        if vm.idle_kind == IdleKind::Haltpoll {
            let idle_ns = (self.now - vcpu.idle_since) / crate::engine::NS;
            vcpu.haltpoll.woken_after(idle_ns, &vm.haltpoll);
        }
        let restart = if restart { self.prices.timer_write() } else { 0 };
        self.busy(c, VcpuState::LeavingIdle, Account::Kernel, self.prices.idle_exit + restart);
    }

    /// In the scheduler again.
    pub(crate) fn left_idle(&mut self, c: usize) {
        if self.vcpus[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        self.vcpus[c].in_idle_loop = false;
        self.schedule(c);
    }

    /// The switch to the yielding thread is done.
    pub(crate) fn switched_to_yielding(&mut self, c: usize) {
        if self.vcpus[c].pending != 0 {
            self.handle_interrupts(c, false);
        } else if self.vcpus[c].queue.is_empty() && self.yields(c) {
            self.yield_on(c);
        } else {
            self.schedule(c);
        }
    }

    fn yield_on(&mut self, c: usize) {
        self.vm_mut(c).idle.insert(c);
        self.rest(c, VcpuState::Yielding, Account::Spin);
    }

    /// An interrupt in the idle loop or the yielding thread has been handled.
    pub(crate) fn after_idle_interrupt(&mut self, c: usize) {
        let empty = self.vcpus[c].queue.is_empty();
        let (in_loop, yields) = (self.vcpus[c].in_idle_loop, self.yields(c));
        match (empty, in_loop, yields) {
            (false, true, _) | (true, true, true) => self.leave_idle(c),
            (false, false, _) => self.schedule(c),
            (true, false, true) => self.yield_on(c),
            (true, false, false) => self.go_idle(c),
            (true, true, false) => self.enter_idle(c, false),
        }
    }

    /// Makes an idle vCPU notice that it should now run, or no longer run, a yielding thread.
    pub(crate) fn reconsider_idle(&mut self, c: usize) {
        match self.vcpus[c].state {
            _ if self.vcpus[c].is_stopped() => {}
            VcpuState::Yielding if !self.yields(c) => {
                self.end_rest(c);
                self.go_idle(c);
            }
            VcpuState::Halted | VcpuState::HostPolling | VcpuState::Mwait if self.yields(c) => {
                self.interrupt(c, reason::RESCHEDULE)
            }
            _ => {}
        }
    }
}
