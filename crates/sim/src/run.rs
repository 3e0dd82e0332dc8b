//! One simulated run: from an experiment, a profile and a workload to an outcome.

use crate::SimError;
use crate::engine::Ps;
use crate::engine::books::Stretch;
use crate::machine::derive::simulatable;
use crate::machine::prices::Prices;
use crate::workload::program::compile;
use crate::world::{Counters, World};
use muster_model::study::{Environment, Experiment, GuestKernel};
use muster_model::{Account, Amount, CpuSet, Ledger, ModelError, Profile, Topology, Workload};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A run that is ready to go.
#[derive(Debug)]
pub struct Simulation {
    world: World,
    cores: u32,
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// From the start of the first thread to the end of the last.
    pub wall_ps: Ps,
    /// Cores.
    pub cores: u32,
    /// By core and account (in the order of [`Account::ALL`]), core time.
    pub books: Vec<[Ps; Account::ALL.len()]>,
    /// Counts.
    pub counters: Counters,
    /// When the number of active cores changed, and to what; ascending.
    pub active_history: Vec<(Ps, u32)>,
    /// The timeline, if it was asked for.
    pub timeline: Vec<Stretch>,
}

/// What happened in a stretch of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// How long it was.
    pub length_ps: Ps,
    /// By thread, turns of its outermost loops: its progress.
    pub turns: Vec<u64>,
    /// CPU time of its threads, over all cores.
    pub cpu_ps: Ps,
    /// Time in polling idle, over all cores.
    pub polled_ps: Ps,
    /// Core time that goes into halting and waking: the accounts halt+wake, IPI and VMM scheduler.
    pub waking_ps: Ps,
    /// Entries into idle states that halt.
    pub idle_entries: u64,
    /// Threads switched in.
    pub switches: u64,
    /// Events, those before the stretch included.
    pub events: u64,
}

impl Simulation {
    /// Puts the world together; the simulator's prices are derived where the profile has none. With `timeline`, the first so many stretches of core time are kept.
    ///
    /// # Errors
    /// When the machine has too few cores, lacks a price, or the workload does not fit the experiment.
    pub fn new(
        experiment: &Experiment,
        profile: &Profile,
        workload: &Workload,
        timeline: Option<usize>,
    ) -> Result<Self, ModelError> {
        let prices = Prices::new(&*simulatable(profile)?)?;
        Self::with_prices(experiment, profile, prices, workload, timeline)
    }

    /// The same with prices that differ from the profile's.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_prices(
        experiment: &Experiment,
        profile: &Profile,
        prices: Prices,
        workload: &Workload,
        timeline: Option<usize>,
    ) -> Result<Self, ModelError> {
        experiment.validate()?;
        experiment.applied(workload)?;
        simulated_yet(experiment)?;
        let topology = topology(experiment, profile)?;
        let cores = CpuSet::first(experiment.cores as usize);
        for group in &workload.groups {
            if group.cpus.is_some_and(|cpus| cpus.intersection(&cores).is_empty()) {
                let found = format!("CPUs {} on {} cores", group.cpus.unwrap_or(CpuSet::EMPTY), experiment.cores);
                return Err(ModelError::new(format!("groups.{}.cpus", group.name), found, "a CPU of the experiment"));
            }
        }
        let program = compile(workload, &prices, experiment.thread_count(), experiment.scale)?;
        let world = World::new(experiment, &topology, prices, program, timeline);
        Ok(Self { world, cores: experiment.cores })
    }

    /// Runs it.
    ///
    /// # Errors
    /// When the threads deadlock or the run exceeds its limit.
    pub fn run(mut self) -> Result<Outcome, SimError> {
        self.world.run()?;
        let world = self.world;
        Ok(Outcome {
            wall_ps: world.now,
            cores: self.cores,
            books: (0..self.cores as usize).map(|c| *world.books.core(c)).collect(),
            counters: world.counters,
            active_history: world.active_history,
            timeline: world.books.into_timeline(),
        })
    }
}

impl Simulation {
    /// Runs it up to `to`, or until it is over, and tells what happened from `from` on.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn window(mut self, from: Ps, to: Ps) -> Result<Window, SimError> {
        const WAKING: [Account; 3] = [Account::HaltWake, Account::Ipi, Account::VmmScheduler];
        let world = &mut self.world;
        let waking =
            |world: &World| WAKING.iter().map(|&account| world.books.total_until(account, world.now)).sum::<Ps>();
        world.start();
        world.go_on(from)?;
        let (before, waking_before, turns) = (world.totals(), waking(world), world.turns.clone());
        world.go_on(to)?;
        let after = world.totals();
        Ok(Window {
            length_ps: after.now - before.now,
            turns: world.turns.iter().zip(turns).map(|(after, before)| after - before).collect(),
            cpu_ps: after.cpu - before.cpu,
            polled_ps: after.polled - before.polled,
            waking_ps: waking(world) - waking_before,
            idle_entries: after.idle_entries - before.idle_entries,
            switches: after.switches - before.switches,
            events: world.counters.events,
        })
    }
}

/// Xen's environments and the kernels of the iXen study can be described, and not be run.
fn simulated_yet(experiment: &Experiment) -> Result<(), ModelError> {
    let refused = |what: &str, found: &str, allowed: &str| {
        Err(ModelError::new(what, format!("`{found}`, not simulated yet"), allowed))
    };
    match (experiment.environment, experiment.kernel) {
        (Environment::Pv | Environment::Hvm, _) => {
            refused("environment", experiment.environment.name(), "native, virtual")
        }
        (_, Some(GuestKernel::Linux2631)) => refused("kernel", "linux-2.6.31", "none"),
        (_, Some(GuestKernel::Pk)) => refused("kernel", "pk", "none"),
        (Environment::Native | Environment::Virtual, None) => Ok(()),
    }
}

/// The machine's shape, scaled out where the experiment allows it.
fn topology<'a>(experiment: &Experiment, profile: &'a Profile) -> Result<Cow<'a, Topology>, ModelError> {
    let cores = CpuSet::first(experiment.cores as usize);
    if cores.is_subset(&profile.topology.all()) {
        return Ok(Cow::Borrowed(&profile.topology));
    }
    if experiment.scale_out {
        return profile.topology.scaled_out(experiment.cores as usize).map(Cow::Owned);
    }
    let allowed = format!(
        "1 to {}, the cores of `{}`; more with `scale_out = true` or --vcpus",
        profile.topology.len(),
        profile.name
    );
    Err(ModelError::new("cores", experiment.cores.to_string(), allowed))
}

impl Outcome {
    /// Simulated seconds.
    pub fn seconds(&self) -> f64 {
        self.wall_ps as f64 / 1e12
    }

    /// The books as a ledger.
    pub fn ledger(&self) -> Ledger {
        let total = |account: Account| self.books.iter().map(|book| book[account as usize]).sum();
        let accounts: BTreeMap<Account, Amount> =
            Account::ALL.iter().map(|&account| (account, Amount::Exact { time_ps: total(account) })).collect();
        Ledger { wall_ns: self.wall_ps / 1000, cores: self.cores, accounts }
    }

    /// Transitions of cores to idle per second.
    pub fn idle_transitions_per_second(&self) -> f64 {
        self.counters.idle_entries as f64 / self.seconds().max(1e-12)
    }

    /// Mean latency of waking a thread that was blocked on a lock, in microseconds; 0 when there was none.
    pub fn lock_wake_us(&self) -> f64 {
        self.counters.lock_wake_ps as f64 / self.counters.lock_wakes.max(1) as f64 / 1e6
    }

    /// Active cores, averaged over time.
    pub fn mean_active(&self) -> f64 {
        let ends = self.active_history.iter().skip(1).map(|&(time, _)| time).chain([self.wall_ps]);
        let area: f64 =
            self.active_history.iter().zip(ends).map(|(&(from, n), to)| (to - from) as f64 * f64::from(n)).sum();
        area / self.wall_ps.max(1) as f64
    }

    /// Share of the time in which no more than `at_most` cores were active, 0 to 1.
    pub fn active_share(&self, at_most: u32) -> f64 {
        let ends = self.active_history.iter().skip(1).map(|&(time, _)| time).chain([self.wall_ps]);
        let within = self.active_history.iter().zip(ends).filter(|((_, active), _)| *active <= at_most);
        let time: Ps = within.map(|(&(from, _), to)| to - from).sum();
        time as f64 / self.wall_ps.max(1) as f64
    }
}
