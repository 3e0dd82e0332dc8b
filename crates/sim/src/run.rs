//! One simulated run: from an experiment, a profile and a workload to an outcome.

use crate::SimError;
use crate::engine::Ps;
use crate::engine::books::Stretch;
use crate::guest::kernel::Kernel;
use crate::guest::translations::Walks;
use crate::guest::vm::Counters;
use crate::io::{IoOutcome, back_ends};
use crate::machine::derive::simulatable;
use crate::machine::lines::Cause;
use crate::machine::prices::{KvmPrices, Prices, XenPrices};
use crate::machine::smt::Smt;
use crate::paging::{self, Guest, Machine, Paging, PagingOutcome};
use crate::vmm::idle_periods::IdlePeriods;
use crate::vmm::pcpu::Scheduling;
use crate::vmm::ple::{Spinning, Spins};
use crate::vmm::shadow::Exit;
use crate::working_sets::{CacheMisses, WorkingSets};
use crate::workload::program::{Program, compile};
use crate::world::World;
use muster_model::study::{BackEnd, Client, Environment, Experiment, IdleKind, Remedy, Share, VmSpec};
use muster_model::{Account, Amount, CpuSet, Ledger, ModelError, Profile, Topology, Workload};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Over all VMs.
const MAX_THREADS_IN_ALL: usize = 1 << 16;

/// A run that is ready to go.
#[derive(Debug)]
pub struct Simulation {
    world: World,
    cores: u32,
    used: u32,
    /// By VM, the name of its workload; a service VM, which is the last, has none.
    names: Vec<Option<String>>,
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// From the start of the first thread to the end of the last, or of the program.
    pub wall_ps: Ps,
    /// Cores.
    pub cores: u32,
    /// By core and account (in the order of [`Account::ALL`]), core time.
    pub books: Vec<[Ps; Account::ALL.len()]>,
    /// Counts.
    pub counters: Counters,
    /// Where Xen's time went, by function.
    pub functions: VmmFunctions,
    /// Instruction TLB misses of programs, of guests' kernels and of the VMM, where translations are followed.
    pub itlb_misses: [u64; 3],
    /// How long guests' kernels have spun for locks inside semaphores.
    pub kernel_spin_ps: Ps,
    /// How long they have walked page tables.
    pub kernel_walk_ps: Ps,
    /// Cache lines that moved or were not there, by cause (in the order of [`Cause::ALL`]); those that are objects in the
    /// simulated world.
    pub line_misses: [u64; Cause::ALL.len()],
    /// What spinning showed, where it is followed: with `[ple]`, and where vCPUs share pCPUs under a kernel with simulated locks.
    pub spins: Option<Spins>,
    /// What caches missed, where a workload states what it goes through.
    pub cache_misses: Option<CacheMisses>,
    /// How long programs have waited for lines of theirs from other CPUs' caches.
    pub moved_for_users_ps: Ps,
    /// What memory virtualization did in all VMs, where it is simulated entry by entry.
    pub paging: Option<PagingOutcome>,
    /// Cores that the program (of the first VM) may use: the first so many.
    pub used: u32,
    /// Whether cores that have nothing to do are idle in the VMM, and not in the kernel that the program runs on.
    pub idles_in_vmm: bool,
    /// When the number of active cores (in a VM: vCPUs of the first one) changed, and to what; ascending.
    pub active_history: Vec<(Ps, u32)>,
    /// What the VMM's scheduler did.
    pub scheduling: Scheduling,
    /// For how long pCPUs had nothing to run at a time, as the VMM sees it.
    pub idle_periods: IdlePeriods,
    /// By VM, the experiment's own first, the service VM last; natively the machine itself.
    pub vms: Vec<VmOutcome>,
    /// At its end every thread (of the first VM) waited for another one: only what ended the program got it out of that.
    pub deadlocked: bool,
    /// The timeline, if it was asked for.
    pub timeline: Vec<Stretch>,
}

/// Core time in functions of Xen that iXen's text names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VmmFunctions {
    /// Reads of the PM timer, from the lock on.
    pub handle_pmt_io: Ps,
    /// Decisions of the vCPU scheduler, load balancing included.
    pub schedule: Ps,
}

/// What a run gave one VM.
#[derive(Debug, Clone, PartialEq)]
pub struct VmOutcome {
    /// The name of its workload; none of a service VM's.
    pub workload: Option<String>,
    /// Whether its program was ended from outside.
    pub was_ended: bool,
    /// From the start of its program to its end, the last end where it repeats itself; 0 when it never ended.
    pub wall_ps: Ps,
    /// How often its program has ended.
    pub runs: u32,
    /// By vCPU and account, time up to the end of the run.
    pub books: Vec<[Ps; Account::ALL.len()]>,
    /// Counts; without events.
    pub counters: Counters,
    /// Time of its yielding threads or idle daemons, over all vCPUs.
    pub daemon_ps: Ps,
    /// What memory virtualization did, where it is simulated entry by entry.
    pub paging: Option<PagingOutcome>,
    /// By thread, turns of its outermost loops.
    pub turns: Vec<u64>,
    /// When the number of its active vCPUs changed, and to what; ascending.
    pub active_history: Vec<(Ps, u32)>,
    /// What it did with devices, in a world that has some.
    pub io: Option<IoOutcome>,
}

impl VmOutcome {
    fn new(world: &World, number: usize, workload: &Option<String>) -> Self {
        let vm = &world.vms[number];
        Self {
            workload: workload.clone(),
            was_ended: vm.was_ended,
            io: world.io.as_ref().map(|io| io.outcome(number)),
            paging: world.paging.as_ref().and_then(|paging| paging.outcome(number)),
            wall_ps: vm.ended_at,
            runs: vm.runs,
            books: vm.vcpus.clone().map(|c| *world.ledgers.vcpus().core(c)).collect(),
            counters: vm.counters,
            daemon_ps: vm.yielded_ps,
            turns: world.turns[vm.threads.clone()].to_vec(),
            active_history: vm.active_history.clone(),
        }
    }

    /// What its program gets done in a second: its ends; where it was ended from outside, turns of its threads' outermost
    /// loops.
    pub fn rate(&self) -> f64 {
        let done = if self.was_ended { self.turns.iter().sum::<u64>() } else { u64::from(self.runs) };
        done as f64 / (self.wall_ps.max(1) as f64 / 1e12)
    }

    /// VM exits by reason: how many, and how long they took where that is told apart.
    pub fn exits(&self) -> Vec<(&'static str, u64, Ps)> {
        let Counters { halt_exits, ipi_exits, interrupt_exits, timer_exits, pause_exits, .. } = self.counters;
        let events = self.io.as_ref().map_or(0, |io| io.counts.notifications);
        let mut exits = vec![
            ("halt", halt_exits, 0),
            ("ipi", ipi_exits, 0),
            ("interrupt", interrupt_exits, 0),
            ("timer", timer_exits, 0),
            ("pause", pause_exits, 0),
            ("event", events, 0),
        ];
        let of_paging = self.paging.map(|paging| paging.exits).unwrap_or_default();
        exits.extend(
            Exit::ALL.map(|exit| (exit.name(), of_paging.count[exit as usize], of_paging.time_ps[exit as usize])),
        );
        exits
    }

    /// The time that went to an account, over all vCPUs.
    pub fn total_ps(&self, account: Account) -> Ps {
        self.books.iter().map(|book| book[account as usize]).sum()
    }

    /// Time on pCPUs, over all vCPUs: all that is neither stolen nor idle.
    pub fn cpu_ps(&self) -> Ps {
        let off = [Account::Steal, Account::Idle];
        Account::ALL.into_iter().filter(|account| !off.contains(account)).map(|account| self.total_ps(account)).sum()
    }

    /// The vCPUs' books of a run of `wall_ps` as a ledger.
    pub fn ledger(&self, wall_ps: Ps) -> Ledger {
        ledger(&self.books, wall_ps)
    }
}

/// Books as a ledger.
fn ledger(books: &[[Ps; Account::ALL.len()]], wall_ps: Ps) -> Ledger {
    let total = |account: Account| books.iter().map(|book| book[account as usize]).sum();
    let accounts: BTreeMap<Account, Amount> =
        Account::ALL.iter().map(|&account| (account, Amount::Exact { time_ps: total(account) })).collect();
    Ledger { wall_ns: wall_ps / 1000, cores: books.len() as u32, accounts }
}

/// Whether a workload's groups have vCPUs to run on.
fn fits(workload: &Workload, vcpus: u32) -> Result<(), ModelError> {
    let cores = CpuSet::first(vcpus as usize);
    for (place, cpus) in workload.cpu_sets() {
        if cpus.intersection(&cores).is_empty() {
            let found = format!("CPUs {cpus} on {vcpus} cores");
            return Err(ModelError::new(place, found, "a CPU of the experiment"));
        }
    }
    Ok(())
}

/// Whether a VM has the devices that its program uses.
fn has_devices(spec: &VmSpec, program: &Program) -> Result<(), ModelError> {
    let (receives, sends, stores) = program.needs();
    let client = spec.devices.network.as_ref().map(|network| &network.client);
    let lacks =
        |phase: &str, allowed: &str| Err(ModelError::new("devices", format!("none for a phase `{phase}`"), allowed));
    match client {
        None if receives => lacks("receive", "a `network`"),
        None if sends => lacks("send", "a `network`"),
        Some(Client::StreamOut { .. }) if receives => lacks("receive", "a client that sends"),
        _ if stores && spec.devices.storage.is_none() => lacks("read-disk or write-disk", "a `storage`"),
        _ => Ok(()),
    }
}

/// The service VM of an experiment, and the threads that are its back ends.
fn service_vm(experiment: &Experiment) -> Option<(VmSpec, Program, BTreeSet<Remedy>)> {
    let service = experiment.service.as_ref()?;
    let jobs = back_ends(service, &experiment.all_vms());
    let spec = VmSpec {
        threads: Some(jobs.len() as u32),
        share: Share { weight: service.weight, ..Share::default() },
        repeat: true,
        ..VmSpec::new(String::new(), service.vcpus)
    };
    // Threads that are one for each vCPU are bound to it; a tasklet runs where it was raised.
    let bound = |b: usize| (service.back_end == BackEnd::Multi && b < service.vcpus as usize).then_some(b);
    Some((spec, Program::of_service(jobs.len(), bound), BTreeSet::new()))
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
        Self::of_vms(experiment, profile, &[workload], timeline)
    }

    /// The same with several VMs; `workloads` are theirs, the experiment's own first.
    ///
    /// # Errors
    /// As [`Self::new`], and when the workloads are not as many as the VMs.
    pub fn of_vms(
        experiment: &Experiment,
        profile: &Profile,
        workloads: &[&Workload],
        timeline: Option<usize>,
    ) -> Result<Self, ModelError> {
        let prices = Prices::new(&*simulatable(profile)?)?;
        Self::assemble(experiment, profile, prices, None, workloads, timeline)
    }

    /// As [`Self::new`] with a kernel that differs from the experiment's in how semaphores and calls for files are done, which is
    /// settled when the program is compiled.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_kernel(
        experiment: &Experiment,
        profile: &Profile,
        kernel: &Kernel,
        workload: &Workload,
    ) -> Result<Self, ModelError> {
        let prices = Prices::new(&*simulatable(profile)?)?;
        Self::assemble(experiment, profile, prices, Some(kernel), &[workload], None)
    }

    /// As [`Self::new`] with prices that differ from the profile's.
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
        Self::assemble(experiment, profile, prices, None, &[workload], timeline)
    }

    fn assemble(
        experiment: &Experiment,
        profile: &Profile,
        prices: Prices,
        kernel: Option<&Kernel>,
        workloads: &[&Workload],
        timeline: Option<usize>,
    ) -> Result<Self, ModelError> {
        experiment.validate()?;
        let xen = experiment.environment.is_xen().then(|| XenPrices::new(profile)).transpose()?;
        let pv = experiment.environment == Environment::Pv;
        let prices = xen.map_or(prices, |xen| prices.on_xen(&xen, pv));
        let topology = topology(experiment, profile)?;
        let specs = experiment.all_vms();
        let has_paging = specs.iter().any(|spec| spec.paging.is_some());
        if specs.len() != workloads.len() {
            let found = format!("{} workloads for {} VMs", workloads.len(), specs.len());
            return Err(ModelError::new("vms", found, "one each"));
        }
        let kernel_of = |spec: &VmSpec| kernel.copied().unwrap_or_else(|| Kernel::of(spec.guest.kernel));
        // A VM whose paging is simulated walks at no fixed price.
        let pages = specs.iter().filter(|spec| spec.paging.is_none()).find_map(|spec| kernel_of(spec).footprints);
        let walks = pages.map(|pages| Walks::new(profile, experiment.environment, pages)).transpose()?;
        let program = |(spec, workload): (VmSpec, &&Workload)| {
            let kernel = &kernel_of(&spec);
            fits(workload, spec.vcpus)?;
            let remedies = experiment.applied(workload)?;
            let larger = remedies.contains(&Remedy::Itlb);
            let program = compile(workload, &prices, kernel, larger, spec.thread_count(), experiment.scale)?;
            has_devices(&spec, &program)?;
            Ok((spec, program, remedies))
        };
        let mut vms = specs.into_iter().zip(workloads).map(program).collect::<Result<Vec<_>, ModelError>>()?;
        vms.extend(service_vm(experiment));
        let specs: Vec<VmSpec> = vms.iter().map(|(spec, ..)| spec.clone()).collect();
        let threads: usize = vms.iter().map(|(_, program, _)| program.threads.len()).sum();
        if threads > MAX_THREADS_IN_ALL {
            let allowed = format!("at most {MAX_THREADS_IN_ALL}");
            return Err(ModelError::new("vms", format!("{threads} threads in all"), allowed));
        }
        let pcpus = experiment.pcpus() as usize;
        let programs = vms.iter().map(|(spec, program, _)| (spec.vcpus, program));
        let mut sets = WorkingSets::of(profile, &topology, pcpus, prices.cache_line, programs, has_paging)?;
        let guest = |(spec, program, _): &(VmSpec, Program, _)| Guest::new(spec, program, kernel_of(spec).footprints);
        let guests: Vec<Guest> = vms.iter().map(guest).collect();
        let mut world = World::new(experiment, &topology, prices, xen.as_ref(), walks, vms, timeline)?;
        let machine = Machine { profile, prices: &prices, pcpus };
        let caches = sets.as_mut().map(|sets| sets.caches());
        let paging = Paging::of(&machine, &guests, caches, &mut world.shared.lines)?;
        world.working_sets = sets;
        world.paging = paging;
        if experiment.kvm.is_some() {
            world.kvm_prices = KvmPrices::new(&*simulatable(profile)?)?;
        }
        world.smt = Smt::new(profile, &topology, pcpus)?;
        world.spinning = Spinning::of(experiment, profile, &world)?;
        world.add_devices(experiment, profile, &topology, &specs)?;
        let name = |vm: usize| workloads.get(vm).map(|workload| workload.name.clone());
        let names = (0..specs.len()).map(name).collect();
        Ok(Self { world, cores: experiment.pcpus(), used: experiment.cores, names })
    }

    /// Runs it.
    ///
    /// # Errors
    /// When the threads deadlock, none gets on, or the run exceeds its limit.
    pub fn run(mut self) -> Result<Outcome, SimError> {
        self.world.run()?;
        let world = self.world;
        Ok(Outcome {
            wall_ps: world.now,
            cores: self.cores,
            books: (0..self.cores as usize).map(|p| *world.ledgers.pcpus().core(p)).collect(),
            counters: world.counters(),
            functions: VmmFunctions {
                handle_pmt_io: world.vms.iter().filter_map(|vm| vm.pm_timer.as_ref()).map(|timer| timer.spent).sum(),
                schedule: world.shared.decisions,
            },
            itlb_misses: world.walks.map_or([0; 3], |walks| walks.code_misses),
            kernel_spin_ps: world.kernel_spin,
            kernel_walk_ps: world.kernel_walks,
            line_misses: *world.shared.lines.misses(),
            spins: world.spinning.as_ref().map(|spinning| spinning.spins(world.now)),
            cache_misses: world.working_sets.as_ref().map(|sets| sets.misses(world.shared.lines.misses())),
            moved_for_users_ps: world.working_sets.as_ref().map_or(0, |sets| sets.moved_for_users()),
            paging: paging::all(0..world.vms.len(), world.paging.as_deref()),
            used: self.used,
            idles_in_vmm: world.virtualized && world.vms[0].idle_kind != IdleKind::Mwait,
            active_history: world.vms[0].active_history.clone(),
            scheduling: world.scheduling,
            vms: self.names.iter().enumerate().map(|(vm, name)| VmOutcome::new(&world, vm, name)).collect(),
            idle_periods: world.idle_periods,
            deadlocked: world.nothing_can_happen(0),
            timeline: world.ledgers.into_timeline(),
        })
    }
}

#[cfg(test)]
impl Simulation {
    /// Its world, to be looked into from event to event.
    pub(crate) fn into_world(self) -> World {
        self.world
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
        let waking = |world: &World| {
            WAKING
                .iter()
                .map(|&account| world.ledgers.vcpus().total_until(0..world.vcpus.len(), account, world.now))
                .sum::<Ps>()
        };
        world.start();
        world.go_on(from)?;
        let (before, waking_before, turns) = (world.totals(0), waking(world), world.turns.clone());
        world.go_on(to)?;
        let after = world.totals(0);
        Ok(Window {
            length_ps: after.now - before.now,
            turns: world.turns.iter().zip(turns).map(|(after, before)| after - before).collect(),
            cpu_ps: after.cpu - before.cpu,
            polled_ps: after.polled - before.polled,
            waking_ps: waking(world) - waking_before,
            idle_entries: after.idle_entries - before.idle_entries,
            switches: after.switches - before.switches,
            events: world.events,
        })
    }
}

/// The machine's shape, scaled out where the experiment allows it.
fn topology<'a>(experiment: &Experiment, profile: &'a Profile) -> Result<Cow<'a, Topology>, ModelError> {
    let cores = CpuSet::first(experiment.pcpus() as usize);
    if cores.is_subset(&profile.topology.all()) {
        return Ok(Cow::Borrowed(&profile.topology));
    }
    if experiment.scale_out {
        return profile.topology.scaled_out(experiment.pcpus() as usize).map(Cow::Owned);
    }
    let allowed = format!(
        "1 to {}, the cores of `{}`; more with `scale_out = true` or --vcpus",
        profile.topology.len(),
        profile.name
    );
    let field = match (experiment.pcpus, experiment.vcpus) {
        (Some(_), _) => "pcpus",
        (None, Some(_)) => "vcpus",
        (None, None) => "cores",
    };
    Err(ModelError::new(field, experiment.pcpus().to_string(), allowed))
}

impl Outcome {
    /// Simulated seconds.
    pub fn seconds(&self) -> f64 {
        self.wall_ps as f64 / 1e12
    }

    /// The cores' books as a ledger.
    pub fn ledger(&self) -> Ledger {
        ledger(&self.books, self.wall_ps)
    }

    /// Core time that was not spent halted, over all cores.
    pub fn busy_ps(&self) -> Ps {
        self.books.iter().map(|book| book.iter().sum::<Ps>() - book[Account::Idle as usize]).sum()
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
        active_share(&self.active_history, self.wall_ps, at_most)
    }
}

/// The same of a history, up to `wall_ps`.
pub(crate) fn active_share(history: &[(Ps, u32)], wall_ps: Ps, at_most: u32) -> f64 {
    let ends = history.iter().skip(1).map(|&(time, _)| time).chain([wall_ps]);
    let within = history.iter().zip(ends).filter(|((_, active), _)| *active <= at_most);
    let time: Ps = within.map(|(&(from, _), to)| to - from).sum();
    time as f64 / wall_ps.max(1) as f64
}
