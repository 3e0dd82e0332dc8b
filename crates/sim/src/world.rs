//! The simulated world: all state in flat arrays, and the loop that takes one event after the other.
//!
//! What an event does lives in the rooms: `machine` (interrupts), `vmm` (exits, suspended vCPUs), `guest` (run queues,
//! idle, synchronization, memory), `remedy` (consolidation). Every path through them ends with the core in a state
//! that either has an end (`busy`) or waits for somebody else (`rest`).

use crate::SimError;
use crate::engine::books::Books;
use crate::engine::queue::{Queue, Slot};
use crate::engine::random::Random;
use crate::engine::{NS, Ps};
use crate::guest::sync::{Barrier, Condition, Lock};
use crate::guest::thread::{List, Thread};
use crate::machine::interrupt::reason;
use crate::machine::prices::Prices;
use crate::remedy::Daemon;
use crate::workload::program::{LOOP_DEPTH, Op, Program};
use muster_model::study::{Experiment, IdleKind, Placement, RemoteWake, WakeSignal};
use muster_model::workload::Duration;
use muster_model::{Account, CpuSet, Distance, Topology};
use muster_policy::idle::{HaltPoll, HaltPollConfig};

/// No thread.
pub const NONE: u32 = u32::MAX;

/// Kinds of event slots.
pub mod kind {
    /// The end of what a core does.
    pub const CORE: u32 = 0;
    /// A rescheduling interrupt arrives.
    pub const RESCHEDULE: u32 = 1;
    /// A TLB shootdown's interrupt arrives.
    pub const FLUSH: u32 = 2;
    /// A core's periodic tick.
    pub const TICK: u32 = 3;
    /// A polling core or one in MWAIT notices a store.
    pub const NOTICE: u32 = 4;
    /// A core that is awake and idle looks for waiting threads.
    pub const PULL: u32 = 5;
    /// A thread's sleep ends.
    pub const TIMER: u32 = 6;
    /// The consolidation daemon's period ends.
    pub const DAEMON: u32 = 7;
}

/// The slot of a kind of event of a core (or thread, for [`kind::TIMER`]).
#[inline]
pub fn core_slot(index: usize, kind: u32) -> Slot {
    (index as u32) << 3 | kind
}

/// What a core does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreState {
    /// Runs a stretch of its thread.
    Thread,
    /// Its thread spins for a lock.
    Spinning,
    /// Its thread waits for other cores to drop translations.
    AwaitingAcks,
    /// Handles interrupts.
    Interrupt,
    /// Switches to its thread, or to the yielding thread when it has none.
    Switching,
    /// Refills caches for a thread that came from another core.
    Refilling,
    /// On the way from the scheduler to the idle instruction.
    EnteringIdle,
    /// The VMM takes its vCPU off.
    Suspending,
    /// In C1; in a VM its vCPU is suspended as well.
    Halted,
    /// In MWAIT.
    Mwait,
    /// Polls.
    Polling,
    /// Runs the yielding thread.
    Yielding,
    /// Leaves its sleep state.
    Resuming,
    /// The VMM puts its vCPU back.
    SchedulingIn,
    /// On the way from the idle loop to the scheduler.
    LeavingIdle,
}

/// One core: a physical core and, in a VM, its vCPU.
#[derive(Debug)]
pub struct Core {
    /// What it does.
    pub state: CoreState,
    /// Its thread, or [`NONE`].
    pub current: u32,
    /// When what it does ends.
    pub until: Ps,
    /// Since when its thread has run without being charged.
    pub run_since: Ps,
    /// Since when it has had this thread.
    pub slice_start: Ps,
    /// Reasons of interrupts that have arrived and are not handled.
    pub pending: u8,
    /// Reasons that are being handled.
    pub handling: u8,
    /// The thread should give way at the next return to user mode.
    pub need_resched: bool,
    /// A rescheduling signal is on its way.
    pub signalled: bool,
    /// Its vCPU was suspended when it left its sleep state.
    pub suspended: bool,
    /// The tick was stopped on the way into idle and has to be started again.
    pub tick_stopped: bool,
    /// It is between go_idle and the scheduler, and not in the yielding thread.
    pub in_idle_loop: bool,
    /// Its halt polling found nothing this time.
    pub polled: bool,
    /// Since when it rests in its present state.
    pub rest_since: Ps,
    /// Threads that wait for it.
    pub queue: Vec<u32>,
    /// Floor of its threads' virtual run times.
    pub min_vruntime: Ps,
    /// Threads whose sleep ended and whose timer interrupt is not handled yet.
    pub sleepers: List,
    /// Since when it has been idle.
    pub idle_since: Ps,
    /// Its halt polling.
    pub haltpoll: HaltPoll,
    /// Work of the daemon that is due here.
    pub daemon_work: Ps,
}

/// Counts over the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Queue pops that changed a state.
    pub events: u64,
    /// Entries into idle states that halt.
    pub idle_entries: u64,
    /// Entries into polling idle.
    pub poll_entries: u64,
    /// Threads switched in.
    pub switches: u64,
    /// Threads that moved to another core.
    pub migrations: u64,
    /// Rescheduling IPIs.
    pub ipis: u64,
    /// Rescheduling exceptions in place of IPIs.
    pub exceptions: u64,
    /// Threads woken.
    pub wakeups: u64,
    /// VM exits by HLT.
    pub halt_exits: u64,
    /// VM exits by writes to the interrupt command register.
    pub ipi_exits: u64,
    /// VM exits by interrupts that take a vCPU out of the guest, and by ends of interrupts.
    pub interrupt_exits: u64,
    /// VM exits by writes to the timer.
    pub timer_exits: u64,
    /// TLB shootdowns with at least one other core.
    pub shootdowns: u64,
    /// Wake-ups of threads blocked on a lock that were timed.
    pub lock_wakes: u64,
    /// The sum of their latencies.
    pub lock_wake_ps: Ps,
}

/// The world.
#[derive(Debug)]
pub struct World {
    pub(crate) now: Ps,
    pub(crate) queue: Queue,
    pub(crate) books: Books,
    pub(crate) prices: Prices,
    pub(crate) virtualized: bool,
    pub(crate) idle_kind: IdleKind,
    pub(crate) haltpoll: HaltPollConfig,
    pub(crate) remote_wake: RemoteWake,
    pub(crate) placement: Placement,
    pub(crate) wake_signal: WakeSignal,
    /// Whether active cores have yielding threads.
    pub(crate) yielding: bool,
    pub(crate) cores: Vec<Core>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) live: u32,
    /// By thread, where it may run now: its own CPUs that are active.
    pub(crate) allowed: Vec<CpuSet>,
    /// By thread, its own CPUs.
    pub(crate) pinned: Vec<CpuSet>,
    pub(crate) random: Vec<Random>,
    /// By thread, turns of its outermost loops that are done: its progress.
    pub(crate) turns: Vec<u64>,
    /// By thread and depth, repetitions left.
    pub(crate) loops: Vec<u32>,
    pub(crate) ops: Vec<Op>,
    pub(crate) durations: Vec<Duration>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) conditions: Vec<Condition>,
    /// Cores that hold the process's address space, lazily or in use.
    pub(crate) in_mm: CpuSet,
    /// Cores that have not dropped their translations yet, and the thread that waits for them.
    pub(crate) flushes_left: u32,
    pub(crate) flusher: u32,
    /// By pair of cores.
    pub(crate) distance: Vec<Distance>,
    /// By core, the cores of its last-level cache.
    pub(crate) llc: Vec<CpuSet>,
    /// Cores that have nothing to do.
    pub(crate) idle: CpuSet,
    /// Cores that threads may use.
    pub(crate) active: CpuSet,
    pub(crate) daemon: Daemon,
    /// Threads in run queues.
    pub(crate) waiting: u32,
    pub(crate) waiting_since: Ps,
    pub(crate) waiting_ps: Ps,
    pub(crate) cpu_ps: Ps,
    pub(crate) yielded_ps: Ps,
    pub(crate) polled_ps: Ps,
    pub(crate) counters: Counters,
    /// When the number of active cores changed, and to what.
    pub(crate) active_history: Vec<(Ps, u32)>,
    /// Nothing can happen any more but the daemon's periods.
    pub(crate) stuck: bool,
    /// Threads that sleep on a timer.
    pub(crate) asleep: u32,
    limit: Ps,
}

/// The tick, at the same time on all CPUs (Linux 2.6.36 to 3.4 do not skew it): 250 Hz, as Ubuntu 12.04's server kernel
/// (CONFIG_HZ=250).
pub const TICK: Ps = 4_000_000 * NS;

impl World {
    pub(crate) fn new(
        experiment: &Experiment,
        topology: &Topology,
        prices: Prices,
        program: Program,
        timeline: Option<usize>,
    ) -> Self {
        let n = experiment.cores as usize;
        let all = CpuSet::first(n);
        let threads = program.threads.len();
        let distance = |a, b| topology.distance(a, b).expect("the cores are the topology's first");
        let pinned: Vec<CpuSet> =
            program.threads.iter().map(|(_, cpus)| cpus.map_or(all, |cpus| cpus.intersection(&all))).collect();
        Self {
            now: 0,
            queue: Queue::new(n.max(threads) << 3),
            books: Books::new(n, timeline),
            prices,
            virtualized: experiment.environment == muster_model::study::Environment::Virtual,
            idle_kind: experiment.idle,
            haltpoll: HaltPollConfig::default(),
            remote_wake: experiment.remote_wake,
            placement: experiment.wakeup,
            wake_signal: experiment.wake_signal,
            yielding: Self::has_yielding_threads(experiment),
            cores: (0..n).map(|_| Core::new()).collect(),
            threads: program.threads.iter().map(|&(pc, _)| Thread::new(pc)).collect(),
            live: threads as u32,
            allowed: pinned.clone(),
            pinned,
            random: (0..threads as u64).map(|t| Random::new(experiment.seed, t)).collect(),
            turns: vec![0; threads],
            loops: vec![0; threads * LOOP_DEPTH],
            ops: program.ops,
            durations: program.durations,
            locks: program.locks.iter().map(|&kind| Lock::new(kind)).collect(),
            barriers: program.barriers.iter().map(|spec| Barrier::new(spec.parties)).collect(),
            conditions: program.permits.iter().map(|&permits| Condition::new(permits)).collect(),
            in_mm: CpuSet::EMPTY,
            flushes_left: 0,
            flusher: NONE,
            distance: (0..n * n).map(|pair| distance(pair / n, pair % n)).collect(),
            llc: (0..n).map(|c| topology.llc_domain(c).intersection(&all)).collect(),
            idle: CpuSet::EMPTY,
            active: all,
            daemon: Daemon::new(experiment, topology, &all, &prices),
            waiting: 0,
            waiting_since: 0,
            waiting_ps: 0,
            cpu_ps: 0,
            yielded_ps: 0,
            polled_ps: 0,
            counters: Counters::default(),
            active_history: vec![(0, n as u32)],
            stuck: false,
            asleep: 0,
            limit: (experiment.limit_s * 1e12) as Ps,
        }
    }

    /// Runs until every thread has ended.
    ///
    /// # Errors
    /// On a deadlock, or when the limit on simulated time is reached.
    pub(crate) fn run(&mut self) -> Result<(), SimError> {
        self.start();
        self.go_on(Ps::MAX)?;
        self.books.close(self.now);
        Ok(())
    }

    /// Goes on until every thread has ended, or up to the first event at or after `until`.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn go_on(&mut self, until: Ps) -> Result<(), SimError> {
        while self.live > 0 && self.now < until {
            let Some((time, slot)) = self.queue.pop() else {
                return Err(SimError::Deadlock { after_s: self.now as f64 / 1e12, waiting: self.who_waits() });
            };
            if time > self.limit {
                return Err(SimError::Unfinished { limit_s: self.limit as f64 / 1e12 });
            }
            self.now = time;
            self.counters.events += 1;
            self.dispatch((slot >> 3) as usize, slot & 7);
            if self.stuck {
                return Err(SimError::Deadlock { after_s: self.now as f64 / 1e12, waiting: self.who_waits() });
            }
        }
        Ok(())
    }

    #[inline]
    fn dispatch(&mut self, index: usize, kind: u32) {
        match kind {
            kind::CORE => self.core_event(index),
            kind::RESCHEDULE => {
                let exception = self.wake_signal == WakeSignal::Exception && self.is_awake(index);
                self.interrupt(index, if exception { reason::EXCEPTION } else { reason::RESCHEDULE });
            }
            kind::FLUSH => self.interrupt(index, reason::FLUSH),
            kind::TICK => self.tick_due(index),
            kind::NOTICE => self.notice(index),
            kind::PULL => self.pull_due(index),
            kind::TIMER => self.timer_due(index),
            _ => self.daemon_due(),
        }
    }

    /// What a core did has ended.
    #[inline]
    fn core_event(&mut self, c: usize) {
        match self.cores[c].state {
            CoreState::Thread => {
                self.charge(c);
                self.step(c);
            }
            CoreState::Spinning => self.spin_over(c),
            CoreState::AwaitingAcks => {
                self.charge(c);
                self.fetch(c);
            }
            CoreState::Interrupt => self.interrupts_handled(c),
            CoreState::Switching => self.switched(c),
            CoreState::Refilling => self.resume_or_interrupt(c),
            CoreState::EnteringIdle => self.entered_idle(c),
            CoreState::Suspending => self.suspended(c),
            CoreState::Polling => self.poll_over(c),
            CoreState::Resuming => self.resumed(c),
            CoreState::SchedulingIn => self.scheduled_in(c),
            CoreState::LeavingIdle => self.left_idle(c),
            CoreState::Halted | CoreState::Mwait | CoreState::Yielding => unreachable!("states without an end"),
        }
    }

    /// The core does something that ends after `duration`.
    #[inline]
    pub(crate) fn busy(&mut self, c: usize, state: CoreState, account: Account, duration: Ps) {
        let until = self.now + duration;
        let core = &mut self.cores[c];
        core.state = state;
        core.until = until;
        self.books.enter(c, self.now, account);
        self.queue.schedule(core_slot(c, kind::CORE), until);
    }

    /// The core does something until somebody else ends it.
    #[inline]
    pub(crate) fn rest(&mut self, c: usize, state: CoreState, account: Account) {
        self.cores[c].state = state;
        self.cores[c].rest_since = self.now;
        self.books.enter(c, self.now, account);
    }

    /// Distance between two cores as an index.
    #[inline]
    pub(crate) fn apart(&self, a: usize, b: usize) -> usize {
        self.distance[a * self.cores.len() + b] as usize
    }

    /// Whether the core executes guest instructions, so that an exception can reach it.
    pub(crate) fn is_awake(&self, c: usize) -> bool {
        !matches!(
            self.cores[c].state,
            CoreState::Halted
                | CoreState::Mwait
                | CoreState::EnteringIdle
                | CoreState::Suspending
                | CoreState::Resuming
                | CoreState::SchedulingIn
        )
    }

    /// Threads start one after the other on the cores they may use, as a loop of clone(2) would place them.
    pub(crate) fn start(&mut self) {
        let n = self.cores.len();
        for t in 0..self.threads.len() {
            let c =
                self.allowed[t].iter().nth(t % self.allowed[t].len().max(1)).expect("every thread may run somewhere");
            self.threads[t].cpu = c as u32;
            self.enqueue(t as u32, c);
        }
        for c in 0..n {
            self.cores[c].current = NONE;
            self.schedule(c);
        }
        self.start_daemon();
    }
}

impl Core {
    fn new() -> Self {
        Self {
            state: CoreState::Halted,
            current: NONE,
            until: 0,
            run_since: 0,
            slice_start: 0,
            pending: 0,
            handling: 0,
            need_resched: false,
            signalled: false,
            suspended: false,
            tick_stopped: false,
            in_idle_loop: false,
            polled: false,
            rest_since: 0,
            queue: Vec::with_capacity(32),
            min_vruntime: 0,
            sleepers: List::EMPTY,
            idle_since: 0,
            haltpoll: HaltPoll::default(),
            daemon_work: 0,
        }
    }
}
