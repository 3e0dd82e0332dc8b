//! One program's session: sample, decide, apply, until it ends; then everything is put back.

use crate::cgroup::ProgramCgroup;
use crate::idle::{Idle, guest_halt_poll_ns, may_poll};
use crate::pairs::Pairs;
use crate::placement::{Placement, mask};
use crate::program::Program;
use crate::start;
use crate::{Error, clock, trace};
use muster_model::{CpuSet, PeriodFacts, Topology};
use muster_observe::progress::{Progress, Source};
use muster_observe::sampler::{CgroupPaths, Detail, Sampler, monotonic_ns};
use muster_observe::tree::Tree;
use muster_policy::colocate::WORTHWHILE_VCPUS;
use muster_policy::consolidate::{
    Config, Controller, Decision, IdleMode, Objective, Permitted, Prices, Reason, Wanted,
};
use muster_undo::{Directory, Journal, guardian, new_run_id, recover, system};
use rustix::process::Signal;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{SignalsInfo, exfiltrator::WithOrigin};
use signal_hook::low_level::siginfo::Cause;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// What is done for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Whatever pays, by measurement.
    Auto,
    /// Fewer vCPUs whenever that pays; nothing else.
    Consolidate,
    /// The guest polls before it halts, throughout.
    Poll,
    /// Pause loops keep vCPUs from halting, throughout.
    Awake,
    /// A clock source that is read without leaving the guest, throughout.
    Clock,
    /// Threads that wake each other share a vCPU, each group its own, whenever that pays; nothing else.
    Colocate,
    /// Allocator settings that avoid remapping memory; given to the program at its start.
    Memory,
    /// Nothing: the program is watched and traced only.
    None,
}

/// The program to care for.
#[derive(Debug, Clone)]
pub enum Target {
    /// A command line to start; never empty.
    Command(Vec<OsString>),
    /// A process that runs already, with its descendants.
    Process(u32),
}

/// What to do for which program.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program.
    pub target: Target,
    /// What is done for it.
    pub remedy: Remedy,
    /// What the user wants more of.
    pub objective: Objective,
    /// What waking costs here.
    pub prices: Prices,
    /// The machine's shape.
    pub topology: Topology,
    /// Where the program's own count of its work is kept.
    pub metric: Option<Source>,
    /// Where facts and decisions are written.
    pub trace: Option<PathBuf>,
    /// Goes on until no process of the program is left, not only until its first one ends.
    pub until_all_ended: bool,
    /// What a signal to muster does to a program that it started.
    pub on_signal: OnSignal,
}

/// What SIGINT, SIGTERM and SIGHUP do. A program that was attached to is always left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// They reach the program, as if muster were not there.
    PassOn,
    /// They end the session; the program goes on as it would without.
    Leave,
}

/// A session that has begun.
#[derive(Debug)]
pub struct Started<'a> {
    /// The program's first process.
    pub program: u32,
    /// What could not be done, in sentences.
    pub notes: &'a [String],
}

/// How a session went.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// From the program's start to its end.
    pub wall_ns: u64,
    /// CPU time of muster itself meanwhile.
    pub own_cpu_ns: u64,
    /// How often a decision changed something.
    pub switches: u64,
    /// What those changes took, together.
    pub switching_ns: u64,
    /// Time by setting, by reason of the decision in force.
    pub time_by_setting_ns: BTreeMap<String, u64>,
    /// Units of work that the program counted meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// What could not be done, in sentences.
    pub notes: Vec<String>,
    /// Which remedies could not be tried, and why, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_tried: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let share = 100.0 * self.own_cpu_ns as f64 / self.wall_ns.max(1) as f64;
        writeln!(
            f,
            "muster: {:.2} s; {} changes of setting in {:.1} ms; muster itself used {share:.2} % of one CPU",
            seconds(self.wall_ns),
            self.switches,
            self.switching_ns as f64 / 1e6,
        )?;
        for (setting, &time_ns) in &self.time_by_setting_ns {
            writeln!(f, "muster: {:8.2} s on {setting}", seconds(time_ns))?;
        }
        if let Some(units) = self.progress {
            let rate = units / seconds(self.wall_ns.max(1));
            writeln!(f, "muster: {units} units of work by --metric, {rate:.1} a second")?;
        }
        self.notes.iter().chain(&self.not_tried).try_for_each(|note| writeln!(f, "muster: {note}"))
    }
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The program's exit code; `None` for one that was attached to.
    pub exit_code: Option<u8>,
    /// How it went.
    pub summary: Summary,
}

/// What decides: a controller, or one decision for good.
enum Decider {
    Controller(Box<Controller>),
    Fixed(Decision),
}

/// Period under a fixed decision: there is nothing to react to.
const FIXED_PERIOD_NS: u64 = 100_000_000;
/// The program's processes and threads are looked for this often at most.
const REFRESH_NS: u64 = 20_000_000;
/// Looking for them while nothing is tried may take one part in this many of the time.
const REFRESH_SHARE: u64 = 5000;
/// The same while groups of threads have their seats, which new threads inherit.
const SEATED_REFRESH_SHARE: u64 = 200;

/// Runs or attaches to the program and cares for it until it ends; whatever was changed is put back before this
/// returns. `ready` is called once the program runs and a fixed remedy is in force; its error ends the session.
///
/// # Errors
/// When the program cannot be started or found, or the undo journal cannot be kept. A remedy that fails later is
/// withdrawn and noted in the summary; the program goes on.
pub fn run(options: &Options, ready: impl FnOnce(&Started) -> io::Result<()>) -> Result<Outcome, Error> {
    // Before the journal: from here on only SIGKILL ends this process without putting things back.
    let signals = SignalsInfo::new([SIGINT, SIGTERM, SIGHUP]).map_err(Error::system("catch signals"))?;
    for report in recover(&Directory::standard()?)? {
        tracing::info!(?report, "put back what an earlier run had left");
    }
    let (directory, run) = (Directory::standard()?, new_run_id().map_err(Error::system("read /proc"))?);
    let guardian = guardian::spawn(&directory, &run)?;
    let journal = Journal::create(directory, &run)?;
    let session = Session::begin(options, &journal, guardian.pid(), signals);
    let outcome = session.and_then(|session| session.watch(ready));
    let report = journal.restore();
    if !report.is_complete() {
        tracing::error!(?report, "not everything could be put back; `muster undo` tries again");
    }
    outcome
}

struct Session<'a> {
    journal: &'a Journal,
    program: Program,
    until_all_ended: bool,
    on_signal: OnSignal,
    /// A signal has ended the session.
    left: bool,
    has_metric: bool,
    sampler: Sampler,
    placement: Placement,
    idle: Idle,
    decider: Decider,
    /// What sees who wakes whom, where that may be asked for.
    pairs: Option<Pairs>,
    /// What is in force.
    decision: Decision,
    trace: Option<trace::Writer>,
    signals: SignalsInfo<WithOrigin>,
    summary: Summary,
    refreshed_ns: u64,
    refresh_took_ns: u64,
}

impl<'a> Session<'a> {
    fn begin(
        options: &Options,
        journal: &'a Journal,
        guardian: u32,
        signals: SignalsInfo<WithOrigin>,
    ) -> Result<Self, Error> {
        let allowed = allowed_cpus(&options.target)?;
        let (pairs, not_tried) = match pairs(options.remedy, &allowed) {
            // Only where co-location is all that is to be done, it has to be possible.
            Err(error) if options.remedy == Remedy::Auto => (None, vec![error.to_string()]),
            pairs => (pairs?, Vec::new()),
        };
        let config = config(options, allowed, pairs.is_some());
        let clock_source = (options.remedy == Remedy::Clock).then(better_clock_source).transpose()?;
        let wanted = if options.trace.is_some() { Wanted::Everything } else { Wanted::Signals };
        let decider = decider(options.remedy, &config, wanted)?;
        let trace = options.trace.as_ref().map(|path| {
            trace::Writer::create(path, &config)
                .map_err(|source| Error::Trace { path: path.display().to_string(), source })
        });
        let trace = trace.transpose()?;
        let progress = options.metric.as_ref().map(|source| open(source, &options.target)).transpose()?;
        let counter = options.metric.as_ref().zip(progress.as_ref());
        let counter = counter.and_then(|(source, progress)| progress.path_for_program(source));
        clock_source.map_or(Ok(()), |source| clock::set(journal, &source))?;
        let (program, group) = start_or_attach(options, journal, &allowed, counter)?;
        let cgroup =
            CgroupPaths { cpuacct_v1: group.as_ref().and_then(|group| group.cpuacct()).map(Into::into), unified: None };
        let is_ours = matches!(options.target, Target::Command(_));
        let tree = match group.as_ref().map(ProgramCgroup::procs) {
            Some(procs) => Tree::in_cgroup(program.pid(), procs),
            None => Tree::new(program.pid(), is_ours.then(std::process::id)),
        };
        let mut tree = tree.ok_or(Error::NoProcess(program.pid()))?;
        tree.exclude(guardian);
        let marker = is_ours.then(|| journal.run().to_owned());
        let placement = Placement::new(journal, group, marker, program.pid(), allowed)?;
        Ok(Self {
            journal,
            program,
            until_all_ended: options.until_all_ended,
            on_signal: if is_ours { options.on_signal } else { OnSignal::Leave },
            left: false,
            has_metric: options.metric.is_some(),
            sampler: Sampler::new(tree, allowed, &cgroup, progress),
            placement,
            idle: Idle::untouched(),
            decision: first(&decider, allowed),
            decider,
            pairs,
            trace,
            signals,
            summary: Summary { not_tried, ..Summary::default() },
            refreshed_ns: 0,
            refresh_took_ns: 0,
        })
    }

    /// The session's life, period by period.
    fn watch(mut self, ready: impl FnOnce(&Started) -> io::Result<()>) -> Result<Outcome, Error> {
        let (started_ns, own_cpu_before_ns) = (monotonic_ns(), own_cpu_ns());
        if let Decider::Fixed(decision) = &self.decider {
            let decision = decision.clone();
            self.put_in_force(decision);
        }
        let started = Started { program: self.program.pid(), notes: &self.summary.notes };
        ready(&started).map_err(Error::system("tell the caller that the program is cared for"))?;
        let mut period_began_ns = monotonic_ns();
        while self.goes_on() {
            let ends_ns = period_began_ns + self.decision.next_period_ns;
            let now_ns = monotonic_ns();
            if now_ns < ends_ns {
                self.program.wait(ends_ns - now_ns).map_err(Error::system("wait for the program"))?;
                self.take_signals();
                if monotonic_ns() < ends_ns {
                    continue;
                }
            }
            period_began_ns = self.period(ends_ns)?;
        }
        self.summary.wall_ns = monotonic_ns() - started_ns;
        self.summary.own_cpu_ns = own_cpu_ns() - own_cpu_before_ns;
        self.summary.progress = self.sampler.total_progress();
        if self.has_metric && self.summary.progress.unwrap_or(0.0) == 0.0 {
            self.summary.notes.push("--metric: the count never rose, so that progress was judged without it".into());
        }
        Ok(Outcome { exit_code: self.program.exit_code(), summary: self.summary })
    }

    fn goes_on(&mut self) -> bool {
        if self.left {
            return false;
        }
        let ended = self.program.has_ended();
        if ended && self.until_all_ended {
            self.sampler.tree_mut().refresh();
            return self.sampler.tree().is_alive();
        }
        !ended
    }

    /// Takes in the period that has just ended; returns when the next one began.
    fn period(&mut self, now_ns: u64) -> Result<u64, Error> {
        self.placement.let_go();
        self.refresh(now_ns);
        *self.summary.time_by_setting_ns.entry(setting(&self.decision)).or_default() += self.decision.next_period_ns;
        let detail = match self.decision.wanted {
            Wanted::Handovers | Wanted::Pairs => Detail::Handovers,
            Wanted::Signals => Detail::Signals,
            Wanted::Everything => Detail::Full,
        };
        let facts = self.facts(detail);
        let decision = match &mut self.decider {
            Decider::Controller(controller) => controller.step(&facts),
            Decider::Fixed(decision) => decision.clone(),
        };
        let verdict = match &self.decider {
            Decider::Controller(controller) => controller.verdict().cloned(),
            Decider::Fixed(_) => None,
        };
        let applied_in_ns = self.put_in_force(decision);
        self.open_window();
        if let Some(trace) = &mut self.trace {
            let step = trace::Step { facts, decision: self.decision.clone(), applied_in_ns, verdict };
            trace.step(&step).map_err(|source| Error::Trace { path: "the trace file".into(), source })?;
        }
        Ok(monotonic_ns())
    }

    /// What happened in the period that has just ended.
    fn facts(&mut self, detail: Detail) -> PeriodFacts {
        let seen = self.pairs.as_mut().map_or(Ok(None), |pairs| pairs.close_window(self.sampler.tree()));
        let facts = self.sampler.sample(detail, self.decision.active);
        match seen {
            Ok(pairs) => PeriodFacts { pairs, ..facts },
            Err(error) => {
                self.withdraw(&error);
                facts
            }
        }
    }

    /// Looks at wake-ups in the period that begins now, where that is asked for and affordable.
    fn open_window(&mut self) {
        let Some(pairs) = self.pairs.as_mut().filter(|pairs| pairs.are_affordable()) else { return };
        if self.decision.wanted == Wanted::Pairs {
            self.sampler.tree_mut().refresh();
            if let Err(error) = pairs.open_window(self.sampler.tree()) {
                self.withdraw(&error);
            }
        }
    }

    /// Looks for new processes and threads: before everything is to be told, else at a bounded share of the time.
    fn refresh(&mut self, now_ns: u64) {
        let pause_ns = match self.decision.wanted {
            Wanted::Everything => REFRESH_NS,
            _ if !self.decision.groups.is_empty() => REFRESH_NS.max(self.refresh_took_ns * SEATED_REFRESH_SHARE),
            Wanted::Handovers | Wanted::Pairs | Wanted::Signals => REFRESH_NS.max(self.refresh_took_ns * REFRESH_SHARE),
        };
        if now_ns < self.refreshed_ns + pause_ns {
            return;
        }
        self.refreshed_ns = monotonic_ns();
        self.sampler.tree_mut().refresh();
        if !self.decision.groups.is_empty() {
            let Decision { groups, active, .. } = &self.decision;
            if let Err(error) = self.placement.seat(self.journal, self.sampler.tree(), groups, active) {
                self.withdraw(&error);
            }
        }
        self.refresh_took_ns = monotonic_ns() - self.refreshed_ns;
    }

    /// Puts back what was changed; nothing more is tried.
    fn withdraw(&mut self, error: &Error) {
        self.summary.notes.push(format!("no remedy any more: {error}"));
        let untouched = untouched(self.sampler.allowed());
        let _noted_already = self.apply(&untouched);
        self.decider = Decider::Fixed(untouched.clone());
        self.decision = untouched;
    }

    /// Applies a decision; where that fails nothing more is tried, and what was changed is put back. Returns what it
    /// took in nanoseconds.
    fn put_in_force(&mut self, decision: Decision) -> u64 {
        let changes = decision.active != self.decision.active
            || decision.idle != self.decision.idle
            || decision.groups != self.decision.groups;
        if !changes && !decision.spread {
            self.decision = decision;
            return 0;
        }
        let before_ns = monotonic_ns();
        match self.apply(&decision) {
            Ok(()) => self.decision = decision,
            Err(error) => self.withdraw(&error),
        }
        let took_ns = monotonic_ns() - before_ns;
        self.summary.switches += u64::from(changes);
        self.summary.switching_ns += took_ns;
        took_ns
    }

    fn apply(&mut self, decision: &Decision) -> Result<(), Error> {
        let Decision { active, groups, .. } = decision;
        let (reseats, were_seated) = (*groups != self.decision.groups, !self.decision.groups.is_empty());
        // From seat to seat by way of the whole set: a thread whose mask is neither's would be taken for one with a mask of
        // its own.
        if reseats && groups.is_empty() {
            self.placement.seat(self.journal, self.sampler.tree(), groups, &self.decision.active)?;
        }
        if *active != self.decision.active {
            self.placement.apply(self.journal, self.sampler.tree(), active)?;
            stay_with(active);
        }
        if reseats && !groups.is_empty() {
            self.placement.seat(self.journal, self.sampler.tree(), groups, active)?;
        }
        self.idle.apply(self.journal, decision.idle, active)?;
        if let Some(helper) = self.idle.helper() {
            self.sampler.tree_mut().exclude(helper);
        }
        if decision.spread {
            let last = self.decision.groups.iter().flat_map(|group| group.threads.iter().map(|thread| thread.0));
            let crowd = if were_seated { last.collect() } else { self.sampler.busiest_threads().to_vec() };
            self.placement.spread(self.journal, self.sampler.tree(), &crowd, active)?;
        }
        Ok(())
    }

    /// Ends the session, or passes on what somebody sent to muster; a terminal's signals reach the program by themselves.
    fn take_signals(&mut self) {
        for origin in self.signals.pending() {
            match self.on_signal {
                OnSignal::Leave => self.left = true,
                OnSignal::PassOn if matches!(origin.cause, Cause::Sent(_)) => {
                    self.program.signal(as_signal(origin.signal))
                }
                OnSignal::PassOn => {}
            }
        }
    }
}

fn as_signal(signal: i32) -> Signal {
    match signal {
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    }
}

/// The setting of a decision in words, for the summary.
fn setting(decision: &Decision) -> String {
    let idle = match decision.idle {
        IdleMode::Untouched => "",
        IdleMode::Awake => " awake",
        IdleMode::Poll { .. } => " polling",
    };
    let together = decision.groups.iter().filter(|group| group.threads.len() > 1);
    let seats: BTreeSet<usize> = together.flat_map(|group| group.cpus.iter()).collect();
    match seats.len() {
        0 => format!("vCPUs {}{idle}", decision.active),
        1 => format!("vCPUs {}{idle}, threads that wake each other on one", decision.active),
        seats => format!("vCPUs {}{idle}, threads that wake each other on one of {seats}", decision.active),
    }
}

fn untouched(allowed: CpuSet) -> Decision {
    Decision {
        active: allowed,
        groups: Vec::new(),
        idle: IdleMode::Untouched,
        spread: false,
        next_period_ns: FIXED_PERIOD_NS,
        wanted: Wanted::Signals,
        why: Reason::Watching,
    }
}

/// What is in force at the beginning.
fn first(decider: &Decider, allowed: CpuSet) -> Decision {
    match decider {
        Decider::Controller(controller) => controller.first(),
        Decider::Fixed(_) => untouched(allowed),
    }
}

/// `wanted` is what is to be told under a fixed decision, which needs to know nothing.
fn decider(remedy: Remedy, config: &Config, wanted: Wanted) -> Result<Decider, Error> {
    let fixed = |idle| Decider::Fixed(Decision { idle, wanted, ..untouched(config.allowed) });
    Ok(match remedy {
        Remedy::Auto | Remedy::Consolidate | Remedy::Colocate => {
            Decider::Controller(Box::new(Controller::new(config.clone())))
        }
        Remedy::Poll => {
            check(remedy)?;
            fixed(IdleMode::Poll { limit_ns: muster_policy::consolidate::POLL_LIMIT_NS })
        }
        Remedy::Awake => fixed(IdleMode::Awake),
        Remedy::Clock | Remedy::Memory | Remedy::None => fixed(IdleMode::Untouched),
    })
}

/// What sees who wakes whom, for a remedy that may ask for it.
fn pairs(remedy: Remedy, allowed: &CpuSet) -> Result<Option<Pairs>, Error> {
    let may_ask = match remedy {
        Remedy::Colocate => true,
        Remedy::Auto => allowed.len() >= WORTHWHILE_VCPUS,
        _ => false,
    };
    may_ask.then(Pairs::load).transpose()
}

fn config(options: &Options, allowed: CpuSet, sees_pairs: bool) -> Config {
    let auto = options.remedy == Remedy::Auto;
    Config {
        allowed,
        topology: options.topology.clone(),
        prices: options.prices,
        objective: options.objective,
        permitted: Permitted {
            consolidate: allowed.len() > 1 && (auto || options.remedy == Remedy::Consolidate),
            awake: auto,
            poll: (auto || options.remedy == Remedy::Poll) && may_poll(),
            colocate: allowed.len() > 1 && sees_pairs,
        },
        guest_halt_poll_ns: guest_halt_poll_ns().unwrap_or(0),
    }
}

/// Whether this user can apply `remedy` on this machine.
///
/// # Errors
/// What is missing, and how to give it.
pub fn check(remedy: Remedy) -> Result<(), Error> {
    match remedy {
        Remedy::Poll if !may_poll() => {
            let why =
                "the guest's halt polling can be set by root only, and only where the cpuidle governor is haltpoll";
            Err(Error::NotPermitted { remedy: "poll", why: why.into() })
        }
        Remedy::Colocate => Pairs::load().map(drop),
        Remedy::Clock => better_clock_source().map(drop),
        _ => Ok(()),
    }
}

fn better_clock_source() -> Result<String, Error> {
    clock::better_source().map_err(|why| Error::NotPermitted { remedy: "clock", why })
}

fn allowed_cpus(target: &Target) -> Result<CpuSet, Error> {
    let pid = match target {
        Target::Command(_) => std::process::id(),
        Target::Process(pid) => *pid,
    };
    system::affinity(pid).map(|mask| mask.iter().collect()).map_err(|_| Error::NoProcess(pid))
}

fn start_or_attach(
    options: &Options,
    journal: &Journal,
    allowed: &CpuSet,
    counter: Option<PathBuf>,
) -> Result<(Program, Option<ProgramCgroup>), Error> {
    match &options.target {
        Target::Process(pid) => Ok((Program::attach(*pid)?, None)),
        Target::Command(command) => {
            let group = ProgramCgroup::create(journal, allowed);
            let doors = group.as_ref().map_or(Ok(Vec::new()), ProgramCgroup::doors);
            let doors = doors.map_err(Error::system("open the program's cgroup"))?;
            let environment = start::environment(options.remedy, journal.run(), counter);
            Ok((Program::start(command, &environment, doors)?, group))
        }
    }
}

/// Opens the count of work of `target`.
fn open(source: &Source, target: &Target) -> Result<Progress, Error> {
    if *source == Source::OwnCounter && matches!(target, Target::Process(_)) {
        let why = "a program that runs already cannot be told where to count; allowed with --pid: every other source";
        return Err(Error::Metric { why: format!("counter: {why}") });
    }
    Progress::open(source).map_err(|why| Error::Metric { why: format!("{source}: {why}") })
}

/// Keeps muster itself on the program's vCPUs: waking a vCPU that is busy anyway costs half of waking a halted one.
fn stay_with(active: &CpuSet) {
    let _only_dearer_elsewhere = system::set_affinity(std::process::id(), &mask(active));
}

/// CPU time of this process.
fn own_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
