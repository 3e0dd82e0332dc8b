//! Consolidation: the daemon that gives a policy its facts each period and applies what it decides.
//!
//! The policies are those of the live world. What the daemon costs is charged to the first active vCPU as work in its
//! own right; a daemon whose vCPU sleeps is not simulated waking it.

use crate::engine::{NS, Ps};
use crate::guest::vcpu::VcpuState;
use crate::guest::vm::of_vm;
use crate::machine::interrupt::reason;
use crate::machine::prices::Prices;
use crate::world::{World, kind, slot_of};
use muster_model::study::{Consolidation, Environment, Experiment, IdleKind, VmSpec};
use muster_model::{Account, CpuSet, PeriodFacts, ThreadId, ThreadLoad, Topology, WakePair, WakeWindow};
use muster_policy::consolidate::{self, Controller, Decision, Group, IdleMode, Objective, Permitted, Wanted};
use muster_policy::{colocate, yielding};
use std::collections::BTreeMap;

/// Who decides how many of a VM's vCPUs are active. Its policies number the vCPUs from 0.
#[derive(Debug)]
pub struct Daemon {
    rule: Rule,
    last: Totals,
    /// The threads that have a seat, and what they and the others woke and ran since the controller asked.
    seated: Vec<Group>,
    pub(crate) window: Option<Window>,
    /// What idle vCPUs did before the first decision: kind, polling limit, yielding threads.
    found: Option<(IdleKind, u64, bool)>,
}

#[derive(Debug)]
enum Rule {
    None,
    Yielding(yielding::Controller),
    Controller(Box<Controller>),
}

/// Who woke whom since `since`, and what each thread had run by then.
#[derive(Debug)]
pub struct Window {
    since: Ps,
    pub(crate) pairs: BTreeMap<(u32, u32), u64>,
    had_run: Vec<Ps>,
}

/// Running totals at the end of a period.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) now: Ps,
    pub(crate) cpu: Ps,
    user: Ps,
    idle: Ps,
    pub(crate) polled: Ps,
    yielded: Ps,
    waiting: Ps,
    pub(crate) idle_entries: u64,
    poll_entries: u64,
    pub(crate) switches: u64,
}

/// First period of the controller; the following ones are its own decisions.
const FIRST_PERIOD_NS: u64 = 4_000_000;

impl Daemon {
    /// The daemon that a VM asks for, whose guest sees `topology`.
    pub fn new(experiment: &Experiment, spec: &VmSpec, topology: &Topology, prices: &Prices) -> Self {
        let vcpus = CpuSet::first(spec.vcpus as usize);
        let controller = |permitted| {
            Rule::Controller(Box::new(Controller::new(consolidate::Config {
                allowed: vcpus,
                topology: topology.clone(),
                prices: prices.of_waking(experiment.environment == Environment::Virtual),
                objective: Objective::Speed,
                permitted,
                guest_halt_poll_ns: if spec.guest.idle() == IdleKind::Haltpoll { 200_000 } else { 0 },
            })))
        };
        let rule = match spec.consolidation {
            Consolidation::None => Rule::None,
            Consolidation::Yielding => {
                Rule::Yielding(yielding::Controller::new(yielding::Config::default(), spec.vcpus))
            }
            Consolidation::Controller => {
                let colocate = vcpus.len() >= colocate::WORTHWHILE_VCPUS;
                controller(Permitted { consolidate: true, awake: true, poll: true, colocate })
            }
            Consolidation::Colocate => {
                controller(Permitted { consolidate: false, awake: false, poll: false, colocate: true })
            }
        };
        Self { rule, last: Totals::default(), seated: Vec::new(), window: None, found: None }
    }
}

impl World {
    pub(crate) fn start_daemon(&mut self, vm: usize) {
        let period_ns = match &self.vms[vm].daemon.rule {
            Rule::None => return,
            Rule::Yielding(controller) => controller.period_ns(),
            Rule::Controller(_) => FIRST_PERIOD_NS,
        };
        self.queue.schedule(slot_of(vm, kind::DAEMON), self.now + period_ns * NS);
    }

    /// The period of a VM's daemon ends.
    pub(crate) fn daemon_due(&mut self, vm: usize) {
        self.stuck = self.vms[vm].ends.is_none() && self.nothing_can_happen(vm);
        let totals = self.totals(vm);
        let last = std::mem::replace(&mut self.vms[vm].daemon.last, totals);
        let mut rule = std::mem::replace(&mut self.vms[vm].daemon.rule, Rule::None);
        let (moved, next_ns) = match &mut rule {
            Rule::None => return,
            Rule::Yielding(controller) => {
                let active = controller.step((totals.yielded - last.yielded) / NS);
                (self.activate(vm, &CpuSet::first(active as usize), true), controller.period_ns())
            }
            Rule::Controller(controller) => {
                let facts = PeriodFacts { pairs: self.end_window(vm), ..self.facts(vm, &last, &totals) };
                let decision = controller.step(&facts);
                let moved = self.apply(vm, &decision);
                if decision.wanted == Wanted::Pairs {
                    self.begin_window(vm);
                }
                (moved, decision.next_period_ns.max(100_000))
            }
        };
        self.vms[vm].daemon.rule = rule;
        self.queue.schedule(slot_of(vm, kind::DAEMON), self.now + next_ns * NS);
        self.charge_daemon(vm, moved);
    }

    fn charge_daemon(&mut self, vm: usize, moved: u32) {
        let Some(c) = self.vms[vm].active.iter().next() else { return };
        if self.is_awake(c) {
            self.vcpus[c].daemon_work += self.prices.remedy_step + self.prices.remedy_move * Ps::from(moved);
            self.interrupt(c, reason::DAEMON);
        }
    }

    /// Only the daemon's own periods are left: every vCPU rests with nothing on its way to it.
    pub(crate) fn nothing_can_happen(&self, vm: usize) -> bool {
        let rests =
            |state| matches!(state, VcpuState::Halted | VcpuState::Mwait | VcpuState::Polling | VcpuState::Yielding);
        let on_its_way = |c: usize| {
            [kind::VCPU, kind::RESCHEDULE, kind::FLUSH, kind::NOTICE, kind::PULL]
                .iter()
                .any(|&kind| self.queue.is_pending(slot_of(c, kind)))
        };
        let vm = &self.vms[vm];
        vm.live > 0
            && vm.asleep == 0
            && vm.device_waits == 0
            && vm.waiting == 0
            && vm.vcpus.clone().all(|c| rests(self.vcpus[c].state) && self.vcpus[c].pending == 0 && !on_its_way(c))
    }

    pub(crate) fn totals(&self, vm: usize) -> Totals {
        let vm = &self.vms[vm];
        let mut totals = Totals {
            now: self.now,
            cpu: self.threads[vm.threads.clone()].iter().map(|thread| thread.cpu_ps).sum(),
            user: self.ledgers.vcpus().total_until(vm.vcpus.clone(), Account::User, self.now),
            idle: self.ledgers.vcpus().total_until(vm.vcpus.clone(), Account::Idle, self.now),
            polled: vm.polled_ps,
            yielded: vm.yielded_ps,
            waiting: vm.waiting_ps + Ps::from(vm.waiting) * (self.now - vm.waiting_since),
            idle_entries: vm.counters.idle_entries,
            poll_entries: vm.counters.poll_entries,
            switches: vm.counters.switches,
        };
        for vcpu in &self.vcpus[vm.vcpus.clone()] {
            totals.cpu += vcpu.uncharged(self.now);
            match vcpu.state {
                _ if vcpu.is_stopped() => {}
                VcpuState::Polling => totals.polled += self.now - vcpu.rest_since,
                VcpuState::Yielding => totals.yielded += self.now - vcpu.rest_since,
                _ => {}
            }
        }
        totals
    }

    fn facts(&self, vm: usize, last: &Totals, now: &Totals) -> PeriodFacts {
        let vm = &self.vms[vm];
        PeriodFacts {
            now_ns: now.now / NS,
            period_ns: (now.now - last.now) / NS,
            active: vm.active.iter().map(|c| c - vm.vcpus.start).collect(),
            cpu_ns: (now.cpu - last.cpu) / NS,
            user_ns: Some((now.user - last.user) / NS),
            foreign_ns: Some(0),
            idle_entries: Some(now.idle_entries - last.idle_entries),
            idle_ns: Some((now.idle - last.idle) / NS),
            poll_entries: Some(now.poll_entries - last.poll_entries),
            poll_ns: Some((now.polled - last.polled) / NS),
            waiting_ns: Some((now.waiting - last.waiting) / NS),
            switches: Some(now.switches - last.switches),
            io_calls: None,
            io_bytes: None,
            progress: None,
            threads: vm.live,
            pairs: None,
        }
    }

    /// Sees from now on who wakes whom. What seeing takes is not simulated.
    fn begin_window(&mut self, vm: usize) {
        self.charge_running(vm);
        let guest = &mut self.vms[vm];
        let had_run = self.threads[guest.threads.clone()].iter().map(|thread| thread.cpu_ps).collect();
        guest.daemon.window = Some(Window { since: self.now, pairs: BTreeMap::new(), had_run });
    }

    /// Charges every thread that runs with what it has run so far.
    fn charge_running(&mut self, vm: usize) {
        for c in self.vms[vm].vcpus.clone() {
            if self.vcpus[c].runs_a_thread() && !self.vcpus[c].is_stopped() {
                self.charge(c);
            }
        }
    }

    /// What was seen, if it was looked at.
    fn end_window(&mut self, vm: usize) -> Option<WakeWindow> {
        self.vms[vm].daemon.window.as_ref()?;
        self.charge_running(vm);
        let window = self.vms[vm].daemon.window.take()?;
        let pair = |(&(waker, wakee), &count): (&(u32, u32), &u64)| WakePair {
            waker: ThreadId(waker),
            wakee: ThreadId(wakee),
            count,
        };
        let load = |(t, had_run): (usize, &Ps)| {
            let ran = self.threads[t].cpu_ps - had_run;
            ThreadLoad { thread: ThreadId(t as u32), cpu_ns: Some(ran / NS) }
        };
        Some(WakeWindow {
            window_ns: (self.now - window.since) / NS,
            pairs: window.pairs.iter().map(pair).collect(),
            threads: self.vms[vm].threads.clone().zip(&window.had_run).map(load).collect(),
        })
    }

    /// Applies a decision; how many threads had to be moved.
    fn apply(&mut self, vm: usize, decision: &Decision) -> u32 {
        let guest = &mut self.vms[vm];
        let found = guest.daemon.found.unwrap_or((guest.idle_kind, guest.haltpoll.limit_ns, guest.yielding));
        guest.daemon.found = Some(found);
        (guest.idle_kind, guest.haltpoll.limit_ns, guest.yielding) = match decision.idle {
            IdleMode::Untouched => found,
            IdleMode::Awake => (found.0, found.1, true),
            IdleMode::Poll { limit_ns } => (IdleKind::Haltpoll, limit_ns, false),
        };
        let reseats = decision.groups != guest.daemon.seated;
        let vcpus = guest.vcpus.clone();
        let moved = self.activate(vm, &decision.active, decision.spread && !reseats);
        if !reseats {
            return moved;
        }
        let seated = self.seat(vm, &decision.groups);
        // Only now may threads that had a seat be pushed elsewhere.
        vcpus.filter(|_| decision.spread).for_each(|c| while self.push_one(c).is_some() {});
        moved + seated
    }

    /// Gives threads of `groups` their vCPUs, and those that had one before and have none now all active ones; how many
    /// affinities were set.
    fn seat(&mut self, vm: usize, groups: &[Group]) -> u32 {
        let vm = &mut self.vms[vm];
        let before = std::mem::replace(&mut vm.daemon.seated, groups.to_vec());
        let (active, vcpus, threads) = (vm.active, vm.vcpus.clone(), vm.threads.clone());
        let freed = before.iter().flat_map(|group| group.threads.iter().map(|&thread| (thread, active)));
        let seated =
            groups.iter().flat_map(|group| group.threads.iter().map(|&thread| (thread, of_vm(&vcpus, &group.cpus))));
        let masks: BTreeMap<ThreadId, CpuSet> =
            freed.chain(seated).filter(|(thread, _)| threads.contains(&(thread.0 as usize))).collect();
        masks.iter().for_each(|(thread, cpus)| self.restrict(thread.0, cpus));
        masks.len() as u32
    }

    /// Makes `cpus`, numbered within the VM, the vCPUs that threads may use; how many threads' affinities changed. With
    /// `spread`, threads that wait are pushed out to vCPUs that have become free.
    fn activate(&mut self, vm: usize, cpus: &CpuSet, spread: bool) -> u32 {
        let guest = &mut self.vms[vm];
        let (vcpus, threads) = (guest.vcpus.clone(), guest.threads.clone());
        let active = of_vm(&vcpus, cpus);
        let changed = active != guest.active && !active.is_empty();
        if changed {
            guest.active = active;
            guest.active_history.push((self.now, active.len() as u32));
            threads.for_each(|t| self.restrict(t as u32, &active));
        }
        for c in vcpus {
            self.reconsider_idle(c);
            while spread && self.push_one(c).is_some() {}
        }
        if changed { self.vms[vm].live } else { 0 }
    }

    /// Where a thread may run from now on: its own vCPUs among `cpus`; if there is none, its own.
    pub(crate) fn allow(&mut self, t: u32, cpus: &CpuSet) {
        let own = self.pinned[t as usize];
        let within = own.intersection(cpus);
        self.allowed[t as usize] = if within.is_empty() { own } else { within };
    }

    /// A thread may only use its own CPUs among `cpus`; if there is none, its own.
    fn restrict(&mut self, t: u32, cpus: &CpuSet) {
        self.allow(t, cpus);
        let c = self.threads[t as usize].cpu as usize;
        if self.allowed[t as usize].contains(c) {
            return;
        }
        if self.vcpus[c].current == t {
            self.vcpus[c].need_resched = true;
            self.deliver(c, c);
        } else if let Some(index) = self.vcpus[c].queue.iter().position(|&queued| queued == t) {
            self.dequeue(c, index);
            self.displace(t, c);
        }
    }
}
