//! What code of a guest's kernel does under spin locks with interrupts off, and how that goes.
//!
//! A [`Plan`] says which locks are taken, for how long each is held, and when it is given back. Where every vCPU has a pCPU to
//! itself, it is reckoned in one go when it begins ([`crate::machine::spinlock`]). Where vCPUs share pCPUs, or an experiment
//! looks at spinning, it goes over events: a vCPU may be preempted while it holds a lock or waits for one, and
//! all behind it wait as well, in order of arrival. What they do meanwhile is spin, where the VMM sees them
//! ([`crate::vmm::ple`]).
//!
//! Interrupts wait for the end of a plan. A lock that a plan takes is given back by the same plan.

use super::thread::{Mode, Step};
use crate::engine::Ps;
use crate::engine::books::Parts;
use crate::guest::allocator::Allocator;
use crate::guest::vcpu::VcpuState;
use crate::machine::lines::Cause;
use crate::machine::spinlock::SpinLock;
use crate::machine::walk::Walk;
use crate::vmm::ple::PauseLoop;
use crate::world::{World, kind, slot_of};
use muster_model::Account;

/// A spin lock of a guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockId {
    /// A vCPU's run queue's.
    Queue(u32),
    /// A zone's, of its free pages.
    Zone(u32),
    /// A zone's, of its reclaim lists.
    Lru(u32),
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Waits for a lock, and has it.
    Take(LockId),
    /// Works for so long.
    Hold(Ps),
    /// Gives a lock back.
    Give(LockId),
}

/// More steps than this no plan has.
const MOST: usize = 10;

/// What is done under which locks, in order.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    acts: [Act; MOST],
    len: u8,
}

impl Plan {
    /// Nothing.
    pub const NONE: Self = Self { acts: [Act::Hold(0); MOST], len: 0 };

    /// One lock, held for so long.
    pub fn under(lock: LockId, held: Ps) -> Self {
        Self::NONE.then_under(lock, held)
    }

    /// And then this.
    pub fn then(mut self, act: Act) -> Self {
        self.acts[usize::from(self.len)] = act;
        self.len += 1;
        self
    }

    /// And then another lock, held for so long.
    pub fn then_under(self, lock: LockId, held: Ps) -> Self {
        self.then(Act::Take(lock)).then(Act::Hold(held)).then(Act::Give(lock))
    }

    /// How long it works under locks, without waits.
    pub fn held(&self) -> Ps {
        let work = |act: &Act| if let Act::Hold(held) = act { *held } else { 0 };
        self.acts().iter().map(work).sum()
    }

    fn acts(&self) -> &[Act] {
        &self.acts[..usize::from(self.len)]
    }
}

/// What a vCPU does after its plan.
#[derive(Debug, Clone, Copy)]
struct Then {
    state: VcpuState,
    account: Account,
    rest: Ps,
    parts: Parts,
}

/// A vCPU's plan that goes over events.
#[derive(Debug, Clone, Copy)]
pub struct Underway {
    plan: Plan,
    next: u8,
    /// What the lines of locks that it has just taken take, which is booked with the work under them.
    lines: Ps,
    /// When it asked for the lock that it waits for.
    asked: Ps,
    then: Then,
}

impl Underway {
    /// Nothing to do.
    pub fn new() -> Self {
        let then = Then { state: VcpuState::Thread, account: Account::Kernel, rest: 0, parts: Parts::NONE };
        Self { plan: Plan::NONE, next: 0, lines: 0, asked: 0, then }
    }
}

impl Underway {
    /// The lock that it waits for, where it waits.
    pub(crate) fn waits_for(&self) -> Option<LockId> {
        match self.plan.acts().get(usize::from(self.next).checked_sub(1)?) {
            Some(&Act::Take(lock)) => Some(lock),
            _ => None,
        }
    }
}

impl Default for Underway {
    fn default() -> Self {
        Self::new()
    }
}

/// The lock itself.
fn lock_of<'a>(queues: &'a mut [SpinLock], zones: &'a mut Option<Box<Allocator>>, lock: LockId) -> &'a mut SpinLock {
    match lock {
        LockId::Queue(c) => &mut queues[c as usize],
        LockId::Zone(zone) | LockId::Lru(zone) => zones
            .as_mut()
            .expect("a zone's lock is the allocator's")
            .lock(zone as usize, matches!(lock, LockId::Lru(_))),
    }
}

impl World {
    // ---- in one go, or over events ----

    /// The vCPU's thread works in the kernel for `work`, of which `plan` under locks.
    pub(crate) fn in_kernel_under(&mut self, c: usize, plan: &Plan, work: Ps, step: Step) {
        if self.spinning.is_some() {
            return self.stretch_over_events(c, plan, work, step);
        }
        let mut walk = self.walk_plan(c, plan);
        walk.at += work.saturating_sub(plan.held());
        self.walk_in_kernel(c, &walk, step);
    }

    /// The vCPU does something else for `duration`, of which `plan` under locks and `parts` for other accounts.
    pub(crate) fn busy_under(
        &mut self,
        c: usize,
        (state, account): (VcpuState, Account),
        plan: &Plan,
        duration: Ps,
        parts: Parts,
    ) {
        let rest = duration.saturating_sub(plan.held());
        if self.spinning.is_some() {
            return self.begin_plan(c, plan, Then { state, account, rest, parts });
        }
        let walk = self.walk_plan(c, plan);
        self.kernel_spin += walk.waited;
        self.work(c, state, account, duration, walk.at - self.now - plan.held());
        self.divide(c, &parts);
        self.divide(c, &walk.parts);
    }

    /// The same where the work is in the price of something else: only what takes longer is done; whether that is anything.
    pub(crate) fn busy_under_if_longer(
        &mut self,
        c: usize,
        (state, account): (VcpuState, Account),
        plan: &Plan,
    ) -> bool {
        if self.spinning.is_some() {
            self.begin_plan(c, plan, Then { state, account, rest: 0, parts: Parts::NONE });
            return true;
        }
        let walk = self.walk_plan(c, plan);
        self.kernel_spin += walk.waited;
        let beyond = walk.at - self.now - plan.held();
        if beyond > 0 {
            self.work(c, state, account, 0, beyond);
            self.divide(c, &walk.parts);
        }
        beyond > 0
    }

    fn walk_plan(&mut self, c: usize, plan: &Plan) -> Walk {
        let mut walk = self.kernel_walk(c);
        for &act in plan.acts() {
            let lines = &mut self.shared.lines;
            match act {
                Act::Take(lock) => {
                    walk.acquire(lock_of(&mut self.run_queue_locks, &mut self.allocator, lock), lines);
                }
                Act::Hold(held) => walk.at += held,
                Act::Give(lock) => {
                    walk.release(lock_of(&mut self.run_queue_locks, &mut self.allocator, lock), lines);
                }
            }
        }
        walk
    }

    // ---- over events ----

    fn stretch_over_events(&mut self, c: usize, plan: &Plan, work: Ps, step: Step) {
        let fetching = self.fetch_in_stretch(c, true, work);
        let thread = &mut self.threads[self.vcpus[c].current as usize];
        (thread.step, thread.mode, thread.account) = (step, Mode::Stretch, Account::Kernel);
        (thread.in_kernel, thread.remaining) = (true, 0);
        self.vcpus[c].run_since = self.now;
        self.kernel_walks += fetching.walking;
        let mut parts = Parts::NONE;
        fetching.divide(&mut parts);
        let rest = work.saturating_sub(plan.held()) + fetching.total();
        self.begin_plan(c, plan, Then { state: VcpuState::Thread, account: Account::Kernel, rest, parts });
    }

    fn begin_plan(&mut self, c: usize, plan: &Plan, then: Then) {
        self.vcpus[c].is_aside = then.state != VcpuState::Thread;
        self.underway(c, |underway| *underway = Underway { plan: *plan, next: 0, lines: 0, asked: 0, then });
        self.go_on_with_plan(c);
    }

    /// Looks at a vCPU's plan, or changes it.
    fn underway<T>(&mut self, c: usize, what: impl FnOnce(&mut Underway) -> T) -> T {
        what(&mut self.spinning.as_mut().expect("plans go over events with it only").underway[c])
    }

    fn go_on_with_plan(&mut self, c: usize) {
        loop {
            let next = self.underway(c, |underway| {
                underway.next += 1;
                underway.plan.acts().get(usize::from(underway.next) - 1).copied()
            });
            match next {
                Some(Act::Take(lock)) => {
                    if !self.take_lock(c, lock) {
                        return;
                    }
                }
                Some(Act::Hold(held)) => return self.hold_lock(c, held),
                Some(Act::Give(lock)) => self.give_lock(c, lock),
                None => return self.end_plan(c),
            }
        }
    }

    /// Whether the vCPU has the lock; else it queues.
    fn take_lock(&mut self, c: usize, id: LockId) -> bool {
        let (pcpu, now) = (self.vcpus[c].pcpu as usize, self.now);
        let lock = lock_of(&mut self.run_queue_locks, &mut self.allocator, id);
        if !lock.is_open() {
            let takes = lock.acquire(&mut self.shared.lines, pcpu, now, Cause::Guest) - now;
            self.underway(c, |underway| underway.lines += takes);
            self.note_lock_wait(takes);
            return true;
        }
        self.underway(c, |underway| underway.asked = now);
        self.disturb_queue(id, pcpu);
        self.shared.lines.add_misses(Cause::Guest, 3);
        self.spinning_mut().spun[c] = 0;
        self.spinning_mut().queue(id).push_back(c as u32);
        self.queue_on(c);
        false
    }

    fn hold_lock(&mut self, c: usize, held: Ps) {
        let (lines, account) =
            self.underway(c, |underway| (std::mem::take(&mut underway.lines), underway.then.account));
        self.work(c, VcpuState::Locking, account, held, lines);
        let mut parts = Parts::NONE;
        parts.add(Account::CacheTransfer, lines);
        self.divide(c, &parts);
    }

    /// The vCPU gives a lock back, which goes to the next in line, even if that does not run.
    fn give_lock(&mut self, c: usize, id: LockId) {
        let lock = lock_of(&mut self.run_queue_locks, &mut self.allocator, id);
        lock.release(&mut self.shared.lines, self.now);
        let spinning = self.spinning.as_mut().expect("plans go over events with it only");
        let Some(next) = spinning.queue(id).pop_front() else { return };
        let next = next as usize;
        let others = spinning.queue(id).len();
        let pcpu = self.vcpus[next].pcpu as usize;
        let has_it = lock.hand_over(&mut self.shared.lines, pcpu, spinning.looks_of(others));
        self.disturb_queue(id, self.vcpus[c].pcpu as usize);
        let kick = self.pv_kick(next, c);
        self.underway(c, |underway| {
            underway.then.rest += kick.time;
            underway.then.parts.add_all(&kick.parts);
            underway.then.parts.add(Account::VmmScheduler, kick.time - kick.parts.total());
        });
        self.let_have(next, has_it - self.now);
    }

    /// A vCPU that waits has been given its lock, and learns it so much later.
    fn let_have(&mut self, c: usize, later: Ps) {
        if self.vcpus[c].is_stopped() {
            self.vcpus[c].left = Some(later);
        } else {
            let until = self.now + later;
            self.vcpus[c].until = until;
            self.vcpus[c].ple_armed = false;
            self.queue.schedule(slot_of(c, kind::VCPU), until);
        }
    }

    /// The vCPU waits (again) for a lock.
    fn queue_on(&mut self, c: usize) {
        self.vcpus[c].run_since = self.now;
        self.rest(c, VcpuState::Queueing, Account::Spin);
        self.begin_pauses(c, PauseLoop::SpinLock);
    }

    /// It has the lock.
    pub(crate) fn queued_over(&mut self, c: usize) {
        self.end_pauses(c);
        let waited = self.now - self.underway(c, |underway| underway.asked);
        self.note_lock_wait(waited);
        self.go_on_with_plan(c);
    }

    /// The work under a lock is done.
    pub(crate) fn locking_over(&mut self, c: usize) {
        self.go_on_with_plan(c);
    }

    /// All locks are given back. Interrupts that have come meanwhile are handled first.
    fn end_plan(&mut self, c: usize) {
        let Then { state, account, rest, parts } = self.underway(c, |underway| underway.then);
        if state != VcpuState::Thread {
            self.busy(c, state, account, rest);
            return self.divide(c, &parts);
        }
        self.charge(c);
        self.threads[self.vcpus[c].current as usize].remaining = rest;
        if self.vcpus[c].pending != 0 {
            return self.handle_interrupts(c, false);
        }
        self.resume(c);
        if rest > 0 {
            self.divide(c, &parts);
        }
    }

    /// A vCPU that was stopped in the middle of a plan goes on; `left` is what is left of its work, or until it knows that it has
    /// the lock that it waits for.
    pub(crate) fn plan_on(&mut self, c: usize, state: VcpuState, account: Account, left: Option<Ps>) {
        self.vcpus[c].run_since = self.now;
        match left {
            Some(left) => {
                self.vcpus[c].rest_since = self.now;
                self.busy(c, state, account, left);
            }
            None => self.queue_on(c),
        }
    }

    /// The word of a lock changes: all who look at it read it again.
    fn disturb_queue(&mut self, id: LockId, by: usize) {
        let spinning = self.spinning_mut();
        if spinning.is_queued() || spinning.queue(id).is_empty() {
            return;
        }
        let waiting = std::mem::take(spinning.queue(id));
        waiting.iter().for_each(|&c| self.disturb_pauses(c as usize, by));
        *self.spinning_mut().queue(id) = waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Simulation;
    use crate::world::NONE;
    use muster_model::study::{Environment, Experiment, GuestKernel, Ple, PleKind, SpinLocks};
    use muster_model::{Profile, Workload};

    /// Two VMs of four vCPUs on three pCPUs, whose threads take pages, give them back and wake each other.
    fn world(kind: PleKind, locks: SpinLocks) -> World {
        let opteron = include_str!("../../../../machines/ixen-opteron48.toml");
        let price = |name: &str, ns: f64| {
            format!("\n[prices.\"sim.cpu.{name}\"]\nns = {ns}\nkind = \"assumed\"\nsource = \"a test\"\n")
        };
        let text = format!("{opteron}{}{}", price("cycle", 0.4), price("pause-loop", 20.0));
        let profile = Profile::from_toml(&text, "machine").unwrap();
        let workload = r#"{"name":"w","conditions":{"c":{}},"directories":{"d":{}},"files":{"f":{"in":"d","count":3}},
            "groups":[{"name":"g","count":6,"phases":[{"loop":{"times":100,"phases":[
            {"fork":{"phases":[{"map":{"pages":300}},{"touch-memory":{"pages":300}},{"unmap":{"pages":300}}]}},
            {"file":{"of":"f","calls":["stat","open","close"]}},
            {"wake":{"condition":"c"}},{"run":{"ns":{"exponential":{"mean":20000}}}},{"wait":{"condition":"c"}}]}}]}]}"#;
        let workload = Workload::from_json(workload, "workload").unwrap();
        let experiment = Experiment {
            kernel: Some(GuestKernel::Linux2631),
            pcpus: Some(3),
            copies: 2,
            ple: Some(Ple { window: 1000, gap: 500, ..Ple::new(kind) }),
            spin_locks: Some(locks),
            ..Experiment::new(Environment::Hvm, 4)
        };
        Simulation::of_vms(&experiment, &profile, &[&workload, &workload], None).unwrap().into_world()
    }

    fn all_locks(world: &World) -> Vec<LockId> {
        let zones = world.allocator.as_ref().map_or(0, |allocator| allocator.zones()) as u32;
        let queues = (0..world.vcpus.len() as u32).map(LockId::Queue);
        queues.chain((0..zones).flat_map(|zone| [LockId::Zone(zone), LockId::Lru(zone)])).collect()
    }

    /// The locks that a vCPU's plan has taken and not given back; the one that it waits for comes apart.
    fn has(world: &World, c: usize) -> (Vec<LockId>, Option<LockId>) {
        let vcpu = &world.vcpus[c];
        if !matches!(vcpu.state, VcpuState::Locking | VcpuState::Queueing) {
            return (Vec::new(), None);
        }
        let underway = &world.spinning.as_ref().unwrap().underway[c];
        let done = &underway.plan.acts()[..usize::from(underway.next)];
        let mut held = Vec::new();
        for act in done {
            match *act {
                Act::Take(lock) => held.push(lock),
                Act::Give(lock) => held.retain(|&other| other != lock),
                Act::Hold(_) => {}
            }
        }
        let waits = if vcpu.state == VcpuState::Queueing { held.pop() } else { None };
        (held, waits)
    }

    #[test]
    fn a_lock_is_one_vcpus_and_all_who_wait_get_it_in_turn() {
        for (kind, locks) in
            [(PleKind::Off, SpinLocks::Ticket), (PleKind::Xen, SpinLocks::Ticket), (PleKind::Kvm, SpinLocks::Queued)]
        {
            let mut world = world(kind, locks);
            world.start();
            let (mut contended, mut preempted_holders, mut preempted_waiters) = (0, 0, 0);
            let ids = all_locks(&world);
            let mut before: Vec<Vec<u32>> = vec![Vec::new(); ids.len()];
            while world.unfinished > 0 {
                world.go_on(world.now + 1).unwrap();
                let of: Vec<_> = (0..world.vcpus.len()).map(|c| has(&world, c)).collect();
                for (index, &id) in ids.iter().enumerate() {
                    let waiting: Vec<u32> = world.spinning_mut().queue(id).iter().copied().collect();
                    let is_open = lock_of(&mut world.run_queue_locks, &mut world.allocator, id).is_open();
                    let holders: Vec<usize> = (0..of.len()).filter(|&c| of[c].0.contains(&id)).collect();
                    // Whoever waits and is not in the queue any more has been given the lock.
                    let granted = (0..of.len()).filter(|&c| of[c].1 == Some(id) && !waiting.contains(&(c as u32)));
                    let granted: Vec<usize> = granted.collect();
                    assert_eq!(holders.len() + granted.len(), usize::from(is_open), "{kind:?} {id:?} at {}", world.now);
                    assert!(waiting.iter().all(|&c| of[c as usize].1 == Some(id)));
                    // First come, first served: the queue loses its head and gains at its end.
                    let stays: Vec<u32> = before[index].iter().copied().filter(|c| waiting.contains(c)).collect();
                    assert!(before[index].ends_with(&stays) && waiting.starts_with(&stays), "{before:?} {waiting:?}");
                    contended += waiting.len();
                    preempted_holders += holders.iter().filter(|&&c| world.vcpus[c].is_stopped()).count();
                    preempted_waiters += waiting.iter().filter(|&&c| world.vcpus[c as usize].is_stopped()).count();
                    before[index] = waiting;
                }
                for vcpu in &world.vcpus {
                    assert!(!vcpu.ple_armed || (kind != PleKind::Off && !vcpu.is_stopped()));
                    assert!(vcpu.state != VcpuState::Queueing || vcpu.is_aside || vcpu.current != NONE, "{kind:?}");
                }
            }
            assert!(contended > 100 && preempted_holders > 10, "{kind:?}: {contended} {preempted_holders}");
            // Who waits no longer than others hold is hardly ever preempted meanwhile, unless it leaves the guest for that.
            assert!(kind == PleKind::Off || preempted_waiters > 10, "{kind:?}: {preempted_waiters}");
            let exits = world.counters().pause_exits;
            assert_eq!(exits > 0, kind != PleKind::Off, "{kind:?}: {exits}");
        }
    }
}
