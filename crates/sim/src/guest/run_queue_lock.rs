//! The locks of run queues (Linux 2.6.31, kernel/sched.c, `rq->lock`): ticket locks with a line each, taken with interrupts off.
//!
//! Who wakes a thread has the lock of the queue where it was last while it chooses a CPU, and then the lock of that CPU's queue
//! (`try_to_wake_up`); a CPU has its own in schedule(), up to the end of the switch (`finish_task_switch`), and in
//! `scheduler_tick`; who moves a waiting thread has those of both queues (`double_lock_balance`).
//!
//! The work that is done under a lock is in the prices of whoever takes it: what is added here is the way of the lock's
//! line and the waiting. The other lines that it guards move with the woken thread (`sim.cpu.wake-lines`).
//!
//! Left out: what timers' wake-ups take from other CPUs' queues, moves because of affinity, moves by a CPU that polls, and the
//! reading of other queues' loads by those who balance.

use crate::engine::books::{Cost, Parts};
use crate::engine::{NS, Ps};
use crate::guest::kernel_locks::{Act, LockId, Plan};
use crate::guest::thread::Step;
use crate::guest::vcpu::VcpuState;
use crate::machine::lines::Lines;
use crate::machine::spinlock::{Kind, SpinLock};
use crate::working_sets::Fetching;
use crate::world::World;
use muster_model::Account;

/// For how long the tick, or a timer that wakes, has the lock: a handful of cache hits, assumed.
const TICK: Ps = 150 * NS;
/// For how long two queues are locked to move a thread from one to the other: assumed.
const MOVE: Ps = 300 * NS;

/// The locks of `count` run queues.
pub(crate) fn locks(count: usize, lines: &mut Lines) -> impl Iterator<Item = SpinLock> {
    (0..count).map(|_| SpinLock::new(Kind::Ticket, lines.add()))
}

impl World {
    /// vCPU `c` does something for `duration`, of which it has its own queue's lock for `held`.
    #[inline]
    pub(crate) fn busy_under_own_queue(
        &mut self,
        c: usize,
        what: (VcpuState, Account),
        held: Ps,
        duration: Ps,
        parts: Parts,
    ) {
        let is_there = match self.run_queue_locks.get_mut(c) {
            Some(lock) => {
                let pcpu = self.vcpus[c].pcpu as usize;
                self.spinning.is_none() && lock.hold_at_once(&mut self.shared.lines, pcpu, self.now, held)
            }
            None => true,
        };
        if is_there {
            self.busy(c, what.0, what.1, duration);
            return self.divide(c, &parts);
        }
        self.busy_under(c, what, &Plan::under(LockId::Queue(c as u32), held), duration, parts);
    }

    /// The handlers of a tick or a timer, which look at their queue.
    pub(crate) fn handle_under_queue(
        &mut self,
        c: usize,
        account: Account,
        price: Ps,
        fetching: Fetching,
        reload: &Cost,
    ) {
        let mut parts = reload.parts;
        fetching.divide(&mut parts);
        let duration = price + fetching.total() + reload.time;
        self.busy_under_own_queue(c, (VcpuState::Interrupt, account), TICK, duration, parts);
    }

    /// What vCPU `c` does under locks to pull a thread from the queue of `from`, which it has searched for with its own queue
    /// locked, and to switch to it.
    pub(crate) fn pull_plan(&self, c: usize, from: usize, switch: Ps) -> Plan {
        if self.run_queue_locks.is_empty() {
            return Plan::NONE;
        }
        let search = self.prices.balance.saturating_sub(MOVE);
        let searched = Plan::NONE.then(Act::Take(LockId::Queue(c as u32))).then(Act::Hold(search));
        let moved = self.then_move(searched, c, from, self.prices.balance - search);
        moved.then(Act::Hold(switch)).then(Act::Give(LockId::Queue(c as u32)))
    }

    /// With its own queue locked, vCPU `c` locks another as well and moves a thread. Where others may do the same meanwhile
    /// the lower comes first, and the own lock is given up for that (`double_lock_balance`).
    fn then_move(&self, plan: Plan, c: usize, other: usize, held: Ps) -> Plan {
        let (own, other) = (LockId::Queue(c as u32), LockId::Queue(other as u32));
        let is_in_order = matches!((own, other), (LockId::Queue(own), LockId::Queue(other)) if own < other);
        let locked = if self.spinning.is_none() || is_in_order {
            plan.then(Act::Take(other))
        } else {
            plan.then(Act::Give(own)).then(Act::Take(other)).then(Act::Take(own))
        };
        locked.then(Act::Hold(held)).then(Act::Give(other))
    }

    /// What the tick of vCPU `c` takes longer to move a thread from its queue to that of `to`; whether it takes longer.
    pub(crate) fn push_under_locks(&mut self, c: usize, to: usize) -> bool {
        if self.run_queue_locks.is_empty() {
            return false;
        }
        let own = LockId::Queue(c as u32);
        let plan = self.then_move(Plan::NONE.then(Act::Take(own)), c, to, MOVE).then(Act::Give(own));
        self.busy_under_if_longer(c, (VcpuState::Interrupt, Account::Kernel), &plan)
    }

    /// vCPU `c`'s thread begins to wake the first of those that it has to wake. Half of that is the choice of a CPU; which one it
    /// will be is decided at the end, while the lock that is taken is that of the best one now.
    pub(crate) fn start_wake_up(&mut self, c: usize, t: u32) {
        let work = self.prices.wake_up;
        if self.run_queue_locks.is_empty() {
            return self.in_kernel(c, work, Step::Wake);
        }
        let w = self.threads[t as usize].wakes.first();
        let last = self.threads[w as usize].cpu;
        let target = self.place(c, w, self.vm(c).placement) as u32;
        let plan = if target == last {
            Plan::under(LockId::Queue(last), work)
        } else {
            Plan::under(LockId::Queue(last), work / 2).then_under(LockId::Queue(target), work - work / 2)
        };
        self.in_kernel_under(c, &plan, work, Step::Wake);
    }

    /// Parts of what vCPU `c` has just begun belong to other accounts.
    #[inline]
    pub(crate) fn divide(&mut self, c: usize, parts: &Parts) {
        self.ledgers.divide(c, self.vcpus[c].pcpu as usize, parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::lines::Cause;
    use crate::run::Simulation;
    use muster_model::study::{Environment, Experiment, GuestKernel};
    use muster_model::{Profile, Workload};

    /// Threads on CPUs of their own, each of which wakes one of as many others, which share CPU 0, every 100 us; after a run.
    fn woken(cores: u32, locked: bool) -> World {
        let profile = Profile::from_toml(include_str!("../../../../machines/ixen-opteron48.toml"), "machine").unwrap();
        let (wakers, cpus) = if cores == 1 { (1, "0") } else { (cores - 1, "1-47") };
        let workload = format!(
            r#"{{"name":"w","conditions":{{"c":{{}}}},"groups":[
            {{"name":"wakers","count":{wakers},"cpus":"{cpus}","phases":[{{"loop":{{"times":300,"phases":[
                {{"run":{{"ns":{{"exponential":{{"mean":100000}}}}}}}},{{"wake":{{"condition":"c"}}}}]}}}}]}},
            {{"name":"sleepers","count":{wakers},"cpus":"0","phases":[{{"loop":{{"times":300,"phases":[
                {{"wait":{{"condition":"c"}}}}]}}}}]}}]}}"#
        );
        let workload = Workload::from_json(&workload, "workload").unwrap();
        let kernel = Some(GuestKernel::Linux2631);
        let experiment = Experiment { kernel, ..Experiment::new(Environment::Native, cores) };
        let mut world = Simulation::new(&experiment, &profile, &workload, None).unwrap().into_world();
        assert_eq!(world.run_queue_locks.len(), cores as usize);
        if !locked {
            world.run_queue_locks.clear();
        }
        world.run().unwrap();
        for core in 0..cores as usize {
            assert_eq!(world.ledgers.pcpus().core(core).iter().sum::<Ps>(), world.now, "the books balance");
        }
        world
    }

    fn misses(world: &World) -> u64 {
        world.shared.lines.misses()[Cause::Guest as usize]
    }

    #[test]
    fn those_who_wait_for_a_queue_wait_longer_the_more_wake_there() {
        let waits = [2, 5, 13].map(|cores| {
            let world = woken(cores, true);
            let spun: Ps = (0..cores as usize).map(|c| world.ledgers.pcpus().core(c)[Account::Spin as usize]).sum();
            assert!(spun > 0 && spun <= world.kernel_spin, "{spun} of {}", world.kernel_spin);
            world.kernel_spin / world.counters().wakeups
        });
        assert!(waits.is_sorted_by(|a, b| 3 * a < 2 * b), "{waits:?}");
        let (with, without) = (woken(5, true), woken(5, false));
        assert_eq!(without.kernel_spin, 0);
        // The line comes to the waker and back.
        let lines = (misses(&with) - misses(&without)) as f64 / with.counters().wakeups as f64;
        assert!((1.0..4.0).contains(&lines), "{lines}");
    }

    #[test]
    fn on_one_cpu_nothing_moves() {
        let (with, without) = (woken(1, true), woken(1, false));
        assert_eq!(with.kernel_spin, 0);
        assert_eq!(misses(&with), misses(&without) + 1, "it comes once from memory");
        assert!(with.now.abs_diff(without.now) < 1_000 * NS, "{} {}", with.now, without.now);
    }
}
