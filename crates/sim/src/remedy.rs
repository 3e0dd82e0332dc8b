//! Consolidation: the daemon that gives a policy its facts each period and applies what it decides.
//!
//! The policies are those of the live world. What the daemon costs is charged to the first active core as work in its
//! own right; a daemon whose core sleeps is not simulated waking it.

use crate::engine::{NS, Ps};
use crate::machine::interrupt::reason;
use crate::machine::prices::Prices;
use crate::world::{CoreState, World, core_slot, kind};
use muster_model::study::{Consolidation, Environment, Experiment, IdleKind};
use muster_model::{Account, CpuSet, PeriodFacts, ThreadId, ThreadLoad, Topology, WakePair, WakeWindow};
use muster_policy::consolidate::{self, Controller, Decision, Group, IdleMode, Objective, Permitted, Wanted};
use muster_policy::{colocate, yielding};
use std::collections::BTreeMap;

/// Who decides how many cores are active.
#[derive(Debug)]
pub struct Daemon {
    rule: Rule,
    last: Totals,
    /// The threads that have a seat, and what they and the others woke and ran since the controller asked.
    seated: Vec<Group>,
    pub(crate) window: Option<Window>,
    /// What idle cores did before the first decision: kind, polling limit, yielding threads.
    found: Option<(IdleKind, u64, bool)>,
}

#[derive(Debug)]
enum Rule {
    None,
    Yielding(yielding::Controller),
    Controller(Box<Controller>),
}

/// Who woke whom, and how long each thread ran, since `since`.
#[derive(Debug)]
pub struct Window {
    since: Ps,
    pub(crate) pairs: BTreeMap<(u32, u32), u64>,
    pub(crate) ran: Vec<Ps>,
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
    /// The daemon an experiment asks for.
    pub fn new(experiment: &Experiment, topology: &Topology, cores: &CpuSet, prices: &Prices) -> Self {
        let controller = |permitted| {
            Rule::Controller(Box::new(Controller::new(consolidate::Config {
                allowed: *cores,
                topology: topology.clone(),
                prices: prices.of_waking(experiment.environment == Environment::Virtual),
                objective: Objective::Speed,
                permitted,
                guest_halt_poll_ns: if experiment.idle == IdleKind::Haltpoll { 200_000 } else { 0 },
            })))
        };
        let rule = match experiment.consolidation {
            Consolidation::None => Rule::None,
            Consolidation::Yielding => {
                Rule::Yielding(yielding::Controller::new(yielding::Config::default(), experiment.cores))
            }
            Consolidation::Controller => {
                let colocate = cores.len() >= colocate::WORTHWHILE_VCPUS;
                controller(Permitted { consolidate: true, awake: true, poll: true, colocate })
            }
            Consolidation::Colocate => {
                controller(Permitted { consolidate: false, awake: false, poll: false, colocate: true })
            }
        };
        Self { rule, last: Totals::default(), seated: Vec::new(), window: None, found: None }
    }
}

/// Whether a core in this state runs a thread of the program.
fn runs_a_thread(state: CoreState) -> bool {
    matches!(state, CoreState::Thread | CoreState::Spinning | CoreState::AwaitingAcks)
}

impl World {
    pub(crate) fn start_daemon(&mut self) {
        let period_ns = match &self.daemon.rule {
            Rule::None => return,
            Rule::Yielding(controller) => controller.period_ns(),
            Rule::Controller(_) => FIRST_PERIOD_NS,
        };
        self.queue.schedule(core_slot(0, kind::DAEMON), period_ns * NS);
    }

    /// A period ends.
    pub(crate) fn daemon_due(&mut self) {
        self.stuck = self.nothing_can_happen();
        let totals = self.totals();
        let last = std::mem::replace(&mut self.daemon.last, totals);
        let mut rule = std::mem::replace(&mut self.daemon.rule, Rule::None);
        let (moved, next_ns) = match &mut rule {
            Rule::None => return,
            Rule::Yielding(controller) => {
                let active = controller.step((totals.yielded - last.yielded) / NS);
                (self.activate(CpuSet::first(active as usize), true), controller.period_ns())
            }
            Rule::Controller(controller) => {
                let facts = PeriodFacts { pairs: self.end_window(), ..self.facts(&last, &totals) };
                let decision = controller.step(&facts);
                let moved = self.apply(&decision);
                if decision.wanted == Wanted::Pairs {
                    self.begin_window();
                }
                (moved, decision.next_period_ns.max(100_000))
            }
        };
        self.daemon.rule = rule;
        self.queue.schedule(core_slot(0, kind::DAEMON), self.now + next_ns * NS);
        self.charge_daemon(moved);
    }

    fn charge_daemon(&mut self, moved: u32) {
        let Some(c) = self.active.iter().next() else { return };
        if self.is_awake(c) {
            self.cores[c].daemon_work += self.prices.remedy_step + self.prices.remedy_move * Ps::from(moved);
            self.interrupt(c, reason::DAEMON);
        }
    }

    /// Only the daemon's own periods are left: every core rests with nothing on its way to it.
    fn nothing_can_happen(&self) -> bool {
        let rests =
            |state| matches!(state, CoreState::Halted | CoreState::Mwait | CoreState::Polling | CoreState::Yielding);
        let on_its_way = |c: usize| {
            [kind::CORE, kind::RESCHEDULE, kind::FLUSH, kind::NOTICE, kind::PULL]
                .iter()
                .any(|&kind| self.queue.is_pending(core_slot(c, kind)))
        };
        self.asleep == 0
            && self.waiting == 0
            && (0..self.cores.len()).all(|c| rests(self.cores[c].state) && self.cores[c].pending == 0 && !on_its_way(c))
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals {
            now: self.now,
            cpu: self.cpu_ps,
            user: self.books.total_until(Account::User, self.now),
            idle: self.books.total_until(Account::Idle, self.now),
            polled: self.polled_ps,
            yielded: self.yielded_ps,
            waiting: self.waiting_ps + Ps::from(self.waiting) * (self.now - self.waiting_since),
            idle_entries: self.counters.idle_entries,
            poll_entries: self.counters.poll_entries,
            switches: self.counters.switches,
        };
        for core in &self.cores {
            match core.state {
                state if runs_a_thread(state) => totals.cpu += self.now - core.run_since,
                CoreState::Polling => totals.polled += self.now - core.rest_since,
                CoreState::Yielding => totals.yielded += self.now - core.rest_since,
                _ => {}
            }
        }
        totals
    }

    fn facts(&self, last: &Totals, now: &Totals) -> PeriodFacts {
        PeriodFacts {
            now_ns: now.now / NS,
            period_ns: (now.now - last.now) / NS,
            active: self.active,
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
            threads: self.live,
            pairs: None,
        }
    }

    /// Sees from now on who wakes whom. What seeing takes is not simulated.
    fn begin_window(&mut self) {
        self.charge_running();
        let ran = vec![0; self.threads.len()];
        self.daemon.window = Some(Window { since: self.now, pairs: BTreeMap::new(), ran });
    }

    /// Charges every thread that runs with what it has run so far.
    fn charge_running(&mut self) {
        for c in 0..self.cores.len() {
            if runs_a_thread(self.cores[c].state) {
                self.charge(c);
            }
        }
    }

    /// What was seen, if it was looked at.
    fn end_window(&mut self) -> Option<WakeWindow> {
        self.daemon.window.as_ref()?;
        self.charge_running();
        let window = self.daemon.window.take()?;
        let pair = |(&(waker, wakee), &count): (&(u32, u32), &u64)| WakePair {
            waker: ThreadId(waker),
            wakee: ThreadId(wakee),
            count,
        };
        let load = |(thread, ran): (u32, &Ps)| ThreadLoad { thread: ThreadId(thread), cpu_ns: Some(ran / NS) };
        Some(WakeWindow {
            window_ns: (self.now - window.since) / NS,
            pairs: window.pairs.iter().map(pair).collect(),
            threads: (0..).zip(&window.ran).map(load).collect(),
        })
    }

    /// Applies a decision; how many threads had to be moved.
    fn apply(&mut self, decision: &Decision) -> u32 {
        let found = self.daemon.found.unwrap_or((self.idle_kind, self.haltpoll.limit_ns, self.yielding));
        self.daemon.found = Some(found);
        (self.idle_kind, self.haltpoll.limit_ns, self.yielding) = match decision.idle {
            IdleMode::Untouched => found,
            IdleMode::Awake => (found.0, found.1, true),
            IdleMode::Poll { limit_ns } => (IdleKind::Haltpoll, limit_ns, false),
        };
        let reseats = decision.groups != self.daemon.seated;
        let moved = self.activate(decision.active, decision.spread && !reseats);
        if !reseats {
            return moved;
        }
        let seated = self.seat(&decision.groups);
        // Only now may threads that had a seat be pushed elsewhere.
        (0..self.cores.len()).filter(|_| decision.spread).for_each(|c| while self.push_one(c) {});
        moved + seated
    }

    /// Gives threads of `groups` their cores, and those that had one before and have none now all active ones; how many
    /// affinities were set.
    fn seat(&mut self, groups: &[Group]) -> u32 {
        let before = std::mem::replace(&mut self.daemon.seated, groups.to_vec());
        let active = self.active;
        let freed = before.iter().flat_map(|group| group.threads.iter().map(|&thread| (thread, active)));
        let seated = groups.iter().flat_map(|group| group.threads.iter().map(|&thread| (thread, group.cpus)));
        let masks: BTreeMap<ThreadId, CpuSet> =
            freed.chain(seated).filter(|(thread, _)| (thread.0 as usize) < self.threads.len()).collect();
        masks.iter().for_each(|(thread, cpus)| self.restrict(thread.0, cpus));
        masks.len() as u32
    }

    /// Makes `active` the cores that threads may use; how many threads' affinities changed. With `spread`, threads that
    /// wait are pushed out to cores that have become free.
    fn activate(&mut self, active: CpuSet, spread: bool) -> u32 {
        let active = active.intersection(&CpuSet::first(self.cores.len()));
        let changed = active != self.active && !active.is_empty();
        if changed {
            self.active = active;
            self.active_history.push((self.now, active.len() as u32));
            for t in 0..self.threads.len() as u32 {
                self.restrict(t, &active);
            }
        }
        for c in 0..self.cores.len() {
            self.reconsider_idle(c);
            while spread && self.push_one(c) {}
        }
        if changed { self.live } else { 0 }
    }

    /// A thread may only use its own CPUs among `cpus`; if there is none, its own.
    fn restrict(&mut self, t: u32, cpus: &CpuSet) {
        let own = self.pinned[t as usize];
        let within = own.intersection(cpus);
        self.allowed[t as usize] = if within.is_empty() { own } else { within };
        let c = self.threads[t as usize].cpu as usize;
        if self.allowed[t as usize].contains(c) {
            return;
        }
        if self.cores[c].current == t {
            self.cores[c].need_resched = true;
            self.deliver(c);
        } else if let Some(index) = self.cores[c].queue.iter().position(|&queued| queued == t) {
            self.dequeue(c, index);
            self.displace(t, c);
        }
    }

    /// The yielding threads of an experiment that has them without a daemon.
    pub(crate) fn has_yielding_threads(experiment: &Experiment) -> bool {
        experiment.yielding || experiment.consolidation == Consolidation::Yielding
    }
}
