//! Threads that spin with interrupts off for a lock whose holder has not said until when it will hold it, because it wakes
//! others meanwhile: a semaphore's own spin lock, and the VMM's lock of a VM's event channels.
//!
//! A release hands a semaphore's lock to whoever asks first from then on, all of whom ask again; the VMM's goes to the
//! first who waits.

use super::thread::{Mode, Step};
use crate::engine::Ps;
use crate::guest::vcpu::VcpuState;
use crate::machine::lines::{Cause, LineId};
use crate::machine::spinlock::{Kind, SpinLock};
use crate::vmm::ple::PauseLoop;
use crate::world::{NONE, World};
use muster_model::Account;
use std::collections::VecDeque;

/// A spin lock that may be held over events, and the threads that wait for its release.
#[derive(Debug, Clone)]
pub struct OpenLock {
    /// The lock.
    pub lock: SpinLock,
    waiting: VecDeque<u32>,
}

impl OpenLock {
    /// A free lock whose word is `line`.
    pub fn new(kind: Kind, line: LineId) -> Self {
        Self { lock: SpinLock::new(kind, line), waiting: VecDeque::new() }
    }
}

impl World {
    /// The vCPU's thread spins until it is let on, and then does `step`.
    fn spin_masked(&mut self, c: usize, account: Account, step: Step) {
        let thread = &mut self.threads[self.vcpus[c].current as usize];
        thread.step = step;
        thread.mode = Mode::Stretch;
        thread.account = account;
        thread.in_kernel = true;
        thread.remaining = 0;
        self.vcpus[c].run_since = self.now;
        self.spin_masked_again(c, account);
    }

    fn spin_masked_again(&mut self, c: usize, account: Account) {
        self.rest(c, VcpuState::Masked, account);
        if account == Account::Spin {
            self.begin_pauses(c, PauseLoop::SpinLock);
        }
    }

    /// A vCPU that was stopped while it spun goes on; `left` says that it has been let on.
    pub(crate) fn spin_masked_on(&mut self, c: usize, account: Account, left: Option<Ps>) {
        self.vcpus[c].run_since = self.now;
        match left {
            Some(left) => self.busy(c, VcpuState::Masked, account, left),
            None => self.spin_masked_again(c, account),
        }
    }

    /// A thread that spins is let on, so much later.
    fn let_on(&mut self, t: u32, later: Ps) {
        let c = self.threads[t as usize].cpu as usize;
        if self.vcpus[c].is_stopped() {
            self.vcpus[c].left = Some(later);
        } else {
            let account = self.threads[t as usize].account;
            let rest_since = self.vcpus[c].rest_since;
            self.vcpus[c].ple_armed = false;
            self.busy(c, VcpuState::Masked, account, later);
            self.vcpus[c].rest_since = rest_since;
        }
    }

    /// The vCPU's thread has been let on; interrupts that have come meanwhile are handled first.
    pub(crate) fn masked_over(&mut self, c: usize) {
        self.end_pauses(c);
        self.charge(c);
        let thread = &mut self.threads[self.vcpus[c].current as usize];
        thread.remaining = 0;
        if thread.account == Account::Spin {
            self.note_asked(c);
            self.kernel_spin += self.now - self.vcpus[c].rest_since;
        }
        if self.vcpus[c].pending != 0 && !self.vcpus[c].in_call {
            self.handle_interrupts(c, false);
        } else {
            self.step(c);
        }
    }

    // ---- a semaphore's own lock ----

    /// Whether the semaphore's own lock is held by somebody who wakes; then the vCPU's thread waits for its release.
    pub(crate) fn waits_for_count(&mut self, c: usize, l: u32) -> bool {
        let t = self.vcpus[c].current;
        let Some(count) = self.locks[l as usize].count.as_mut().filter(|count| count.lock.is_open()) else {
            return false;
        };
        count.waiting.push_back(t);
        self.note_asking(c);
        self.spin_masked(c, Account::Spin, Step::Count(l));
        true
    }

    /// A thread that has kept a semaphore's own lock while it woke others is done with that.
    pub(crate) fn release_count(&mut self, t: u32) {
        let l = std::mem::replace(&mut self.threads[t as usize].counts, NONE);
        if l == NONE {
            return;
        }
        let count = self.locks[l as usize].count.as_mut().expect("it has the lock");
        count.lock.release(&mut self.shared.lines, self.now);
        let waiting = std::mem::take(&mut count.waiting);
        waiting.into_iter().for_each(|t| self.let_on(t, 0));
    }

    // ---- event channels ----

    /// A PV guest sends an event: the VMM takes the VM's lock of event channels first, and holds it until the target has
    /// been woken (Xen until 4.6, xen/common/event_channel.c, `evtchn_send`).
    pub(crate) fn lock_events(&mut self, c: usize, target: u32) {
        let (t, pcpu) = (self.vcpus[c].current, self.vcpus[c].pcpu as usize);
        self.vcpus[c].in_call = true;
        let events = self.vms[self.vcpus[c].vm as usize].events.as_mut().expect("only PV guests send events");
        if events.lock.is_open() {
            events.waiting.push_back(t);
            return self.spin_masked(c, Account::VmmLock, Step::EventsLocked(target));
        }
        let has_it = events.lock.acquire(&mut self.shared.lines, pcpu, self.now, Cause::Vmm);
        self.stretch(c, has_it - self.now + self.prices.event_send, Account::VmmLock, true, Step::EventsLocked(target));
    }

    /// The event has been sent. The next who waits gets the lock.
    pub(crate) fn unlock_events(&mut self, c: usize) {
        let pcpu = self.vcpus[c].pcpu as usize;
        self.vcpus[c].in_call = false;
        let events = self.vms[self.vcpus[c].vm as usize].events.as_mut().expect("only PV guests send events");
        events.lock.release(&mut self.shared.lines, self.now);
        if let Some(next) = events.waiting.pop_front() {
            let on = self.vcpus[self.threads[next as usize].cpu as usize].pcpu as usize;
            let has_it = events.lock.take_over(&mut self.shared.lines, on, events.waiting.len(), Cause::Vmm);
            self.let_on(next, has_it - self.now + self.prices.event_send);
        }
        let t = self.vcpus[c].current;
        let thread = &mut self.threads[t as usize];
        (thread.step, thread.remaining) = (Step::WakeNext, 0);
        // Interrupts of the host and of the guest have waited for the end of the call.
        if self.pcpus[pcpu].softirqs != 0 {
            self.host_interrupt(pcpu, 0);
        } else if self.vcpus[c].pending != 0 {
            self.handle_interrupts(c, false);
        } else {
            self.wake_next(c, t);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Simulation;
    use muster_model::study::{Environment, Experiment, GuestKernel};
    use muster_model::{Profile, Workload};

    /// Threads that change their address space and fault in turn.
    fn world(kernel: GuestKernel, environment: Environment) -> World {
        let machine = include_str!("../../../../machines/ixen-opteron48.toml");
        let profile = Profile::from_toml(machine, "machine").unwrap();
        let workload = r#"{"name":"w","groups":[{"name":"g","count":12,"phases":[{"loop":{"times":60,"phases":[
            {"map":{"pages":2}},{"touch-memory":{"pages":8}},{"run":{"ns":{"exponential":{"mean":4000}}}}]}}]}]}"#;
        let workload = Workload::from_json(workload, "workload").unwrap();
        let experiment = Experiment { kernel: Some(kernel), ..Experiment::new(environment, 12) };
        Simulation::new(&experiment, &profile, &workload, None).unwrap().into_world()
    }

    #[test]
    fn who_keeps_a_semaphores_lock_gives_it_back_and_nobody_else() {
        for kernel in [GuestKernel::Linux2631, GuestKernel::Pk] {
            for environment in [Environment::Native, Environment::Pv] {
                let mut world = world(kernel, environment);
                world.start();
                let mut kept = 0;
                while world.unfinished > 0 {
                    world.go_on(world.now + 1).unwrap();
                    let mut keepers = vec![0; world.locks.len()];
                    let counted = world.threads.iter().map(|thread| thread.counts).filter(|&l| l != NONE);
                    counted.for_each(|l| keepers[l as usize] += 1);
                    for (lock, &keepers) in world.locks.iter().zip(&keepers) {
                        let is_open = lock.count.as_ref().is_some_and(|count| count.lock.is_open());
                        assert_eq!(keepers, i32::from(is_open), "{kernel:?} {environment:?} at {} ps", world.now);
                        kept += keepers;
                    }
                }
                assert!(kept > 100, "{kernel:?} {environment:?}: {kept}");
            }
        }
    }
}
