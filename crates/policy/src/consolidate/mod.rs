//! How many vCPUs a program should use, which, which of its threads together, and what its idle vCPUs should do (Gleaner,
//! sections 4 and 5).
//!
//! The controller watches the program in the setting it found. When the idle signals and the measured prices promise a
//! gain, it tries the promising settings one after the other for a few milliseconds each, compares what was done in
//! them, and holds the best. Before it tries groups it looks who wakes whom; where that cannot be seen by now, the trial
//! goes on without them. It lets go at once when the program enters another phase, tries again rarely otherwise, and
//! backs off exponentially when nothing was gained.

mod choose;
mod rates;
#[cfg(test)]
mod tests;
mod verdict;

pub use choose::{Arm, POLL_LIMIT_NS, candidates};
pub use rates::{Rates, Yardstick};
pub use verdict::{Scored, Verdict};

use crate::colocate::Colocation;
use choose::{best, instead_of_together, worth_grouping};
use muster_model::profile::names;
use muster_model::{CpuSet, Distance, PeriodFacts, Profile, ThreadId, Topology, WakeWindow};
use serde::{Deserialize, Serialize};

/// What the user wants more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Work per second.
    Speed,
    /// Work per CPU second, at no loss of work per second.
    Cost,
    /// Short waits: keep vCPUs from halting.
    Tail,
}

/// Which remedies the world at hand can apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permitted {
    /// Restricting the program to fewer vCPUs.
    pub consolidate: bool,
    /// Keeping idle vCPUs busy with lowest-priority pause loops.
    pub awake: bool,
    /// Setting the guest's halt polling.
    pub poll: bool,
    /// Placing threads that wake each other on one vCPU while the others stay in use.
    pub colocate: bool,
}

/// Measured prices the predictions rest on, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// Waking a thread on the waker's own vCPU (Table 1, A).
    pub wake_same_cpu_ns: f64,
    /// Waking a thread on another vCPU that is awake (Table 1, B).
    pub wake_awake_ns: f64,
    /// Waking a thread on another vCPU that has halted (Table 1, C).
    pub wake_halted_ns: f64,
    /// What a hand-over to a vCPU that is awake costs beside waking: the lines that follow the work to its caches.
    #[serde(default)]
    pub handover_lines_ns: f64,
}

/// Cache lines that move in a hand-over between two vCPUs: memcached, nginx, redis and pgbench with one client took 2.2
/// to 2.4 us more CPU time for one between two vCPUs that poll than for one on a single vCPU, where moving a line takes 62 ns
/// (2-vCPU guest, 4 traces each).
const HANDOVER_LINES: f64 = 36.0;

impl Prices {
    /// A machine on which nothing is known to be gained by waking elsewhere.
    pub const NONE: Self =
        Self { wake_same_cpu_ns: 0.0, wake_awake_ns: 0.0, wake_halted_ns: 0.0, handover_lines_ns: 0.0 };

    /// The prices of waking through a futex in `profile`, at the nearest distance it holds; `None` where it lacks them,
    /// as that of a machine with one vCPU does.
    pub fn from_profile(profile: &Profile) -> Option<Self> {
        let nearest = [Distance::SameLlc, Distance::SmtSibling, Distance::OtherLlc, Distance::OtherNode];
        let remote =
            |setting: &str| nearest.iter().find_map(|&far| profile.price_ns(&names::wake("futex", setting, far)));
        Some(Self {
            wake_same_cpu_ns: profile.price_ns(&names::wake_same_cpu("futex"))?,
            wake_awake_ns: remote("awake")?,
            wake_halted_ns: remote("halted").or_else(|| remote("parked"))?,
            handover_lines_ns: nearest
                .iter()
                .find_map(|&far| profile.price_ns(&names::cache_transfer(far)))
                .map_or(0.0, |line_ns| HANDOVER_LINES * line_ns),
        })
    }
}

/// What the controller is told once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The vCPUs the program may use at most (its limits before muster came).
    pub allowed: CpuSet,
    /// The machine's shape.
    pub topology: Topology,
    /// What waking costs here.
    pub prices: Prices,
    /// What the user wants more of.
    pub objective: Objective,
    /// What can be done here.
    pub permitted: Permitted,
    /// The guest's halt polling as muster found it; 0 where idle vCPUs halt at once.
    pub guest_halt_poll_ns: u64,
}

/// What idle vCPUs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleMode {
    /// What they did before muster came.
    Untouched,
    /// Lowest-priority pause loops keep them from halting.
    Awake,
    /// The guest polls up to `limit_ns` before it halts.
    Poll {
        /// `guest_halt_poll_ns`.
        limit_ns: u64,
    },
}

/// Threads that belong together, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The threads.
    pub threads: Vec<ThreadId>,
    /// The vCPUs they may use.
    pub cpus: CpuSet,
}

/// How much the next period's facts should tell; what a world gets for nothing it may always tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// CPU time and hand-overs.
    Handovers,
    /// The same and who wakes whom, where that can be seen by now.
    Pairs,
    /// The same and idle entries.
    Signals,
    /// Everything, counted since the last time everything was wanted.
    Everything,
}

/// What to do until the next period ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The vCPUs the program's threads may run on; a subset of [`Config::allowed`], never empty.
    pub active: CpuSet,
    /// Threads to be placed more narrowly than `active`, where pairs are known.
    pub groups: Vec<Group>,
    /// What idle vCPUs of `active` do.
    pub idle: IdleMode,
    /// Whether threads that were kept together, those of the last groups or else the program's busiest, are to be kept
    /// apart on `active` for this period: a scheduler leaves threads that wake each other together for tens of
    /// milliseconds after they may use more vCPUs.
    pub spread: bool,
    /// Length of the next period.
    pub next_period_ns: u64,
    /// What the next facts should tell.
    pub wanted: Wanted,
    /// Why, for traces and people.
    pub why: Reason,
}

/// Why a decision was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nothing to gain is in sight.
    Watching,
    /// A setting was just applied and has to take effect.
    Settling,
    /// A setting is being measured.
    Measuring,
    /// It is to be seen who wakes whom.
    Looking,
    /// A setting pays and is kept.
    Holding,
    /// The program entered another phase: back to the wide setting.
    PhaseChanged,
    /// No setting was better than the one found.
    NothingGained,
}

/// Period while something may change soon: a remedy reacts to a clear signal within two of these.
const PERIOD_NS: u64 = 4_000_000;
/// Period while things have been as they are for a while.
const CALM_PERIOD_NS: u64 = 8_000_000;
/// Period while a signal is being confirmed.
const CONFIRM_NS: u64 = 2_000_000;
/// So many uneventful periods make a calm one.
const CALM_AFTER: u32 = 64;
/// Time a setting gets to take effect before it is measured.
const SETTLE_NS: u64 = 1_000_000;
/// Time for which a setting is measured.
const MEASURE_NS: u64 = 5_000_000;
/// The same in a second round, among arms that came out close.
const LONG_MEASURE_NS: u64 = 20_000_000;
/// Period in which it is to be seen who wakes whom.
const LOOK_NS: u64 = 10_000_000;
/// While groups are held, it is looked this often.
const LOOK_EVERY_NS: u64 = 1_000_000_000;
/// First and longest time for which a verdict stands before it is looked at again.
const HOLD_NS: (u64, u64) = (100_000_000, 3_200_000_000);
/// A program that changed its phase in this time is watched as closely as it can be.
const RESTLESS_NS: u64 = 1_000_000_000;
/// A verdict that is older is no guide to a phase that looks the same.
const MEMORY_NS: u64 = 10_000_000_000;
/// Another phase: CPU time or hand-overs changed by more than this factor.
const PHASE_FACTOR: f64 = 2.5;
/// So many periods on end make a change that nothing else explains a lasting one: a host that takes a vCPU away for a
/// moment looks like another phase too.
const LASTING: u32 = 4;
/// Another phase that ends within this time was none.
const FALSE_ALARM_NS: u64 = 25_000_000;
/// So many false alarms are remembered: each makes [`PHASE_FACTOR`] count once more.
const MOST_ALARMS: u32 = 3;
/// Threads that hand over for less than this share of their CPU time do something else.
const FEW_HANDOVERS: f64 = 0.05;
/// A program that fills its vCPUs to this share may be held back by having no more of them.
const FULL: f64 = 0.85;

/// A trial of several arms, the one in force first.
#[derive(Debug, Clone, Default)]
struct Trial {
    measured: Vec<(Arm, Rates)>,
    /// Arms still to be measured, the next one last; not known before the arm in force was measured.
    pending: Option<Vec<Arm>>,
    step: Step,
    /// Whether it was seen who wakes whom.
    is_seen: bool,
    /// Whether this is the second round.
    long: bool,
}

/// What a period of a trial is for.
#[derive(Debug, Clone, Copy, Default)]
enum Step {
    #[default]
    Settle,
    Measure,
    Look,
}

/// An arm in force since it was found to be best.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// The first period tells another kind of count.
    first: bool,
    accepted: Option<Rates>,
    until_ns: u64,
    /// So many periods on end looked like another phase.
    changed: u32,
    /// Whether the period that ends next may tell who wakes whom.
    looking: bool,
}

#[derive(Debug, Clone)]
enum State {
    Watching { calm: u32, quiet_until_ns: u64, at_verdict: Option<Rates> },
    Trying(Trial),
    Holding(Hold),
}

/// The controller: one per program.
#[derive(Debug, Clone)]
pub struct Controller {
    config: Config,
    state: State,
    arm: Arm,
    /// The wide arm to fall back to: the setting found, or one that keeps vCPUs awake and proved better.
    floor: Arm,
    /// The groups as last formed, in force or not, and when that was.
    colocation: Colocation,
    looked_ns: u64,
    /// Whether the last trial went without groups because it could not be seen who wakes whom.
    unseen: bool,
    hold_ns: u64,
    /// The last winner that keeps threads together and when it won.
    learned: Option<(Arm, u64)>,
    /// When the program was last seen to enter another phase.
    phase_changed_ns: Option<u64>,
    /// How often lately another phase turned out to be none: its signals swing by themselves.
    false_alarms: u32,
    /// Of the trial that the last step concluded.
    verdict: Option<Verdict>,
}

impl Controller {
    /// A controller that has seen nothing yet and has changed nothing.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::watching(0),
            arm: Arm::Base,
            floor: Arm::Base,
            colocation: Colocation::default(),
            looked_ns: 0,
            unseen: false,
            hold_ns: HOLD_NS.0,
            learned: None,
            phase_changed_ns: None,
            false_alarms: 0,
            verdict: None,
        }
    }

    /// What to do until the first period ends: nothing, and then tell.
    pub fn first(&self) -> Decision {
        self.decide(PERIOD_NS, Wanted::Everything, Reason::Watching)
    }

    /// Takes in one period and decides the next.
    pub fn step(&mut self, facts: &PeriodFacts) -> Decision {
        self.verdict = None;
        let rates = Rates::of(facts);
        match std::mem::replace(&mut self.state, State::watching(0)) {
            State::Watching { calm, quiet_until_ns, at_verdict } => {
                self.watch(facts, rates, calm, quiet_until_ns, at_verdict)
            }
            State::Trying(trial) => self.measure(facts, rates, trial),
            State::Holding(hold) => self.hold(facts, rates, hold),
        }
    }

    /// What the trial came to that the last step concluded; `None` if it concluded none.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// In the wide setting: is there a reason to try something?
    fn watch(
        &mut self,
        facts: &PeriodFacts,
        rates: Rates,
        calm: u32,
        quiet_until_ns: u64,
        at_verdict: Option<Rates>,
    ) -> Decision {
        let arms = self.promising(self.floor, &rates);
        let another_phase = at_verdict.is_some_and(|verdict| self.is_another_phase(&rates, &verdict));
        if another_phase {
            self.hold_ns = HOLD_NS.0;
        }
        let quiet = facts.now_ns < quiet_until_ns && !another_phase;
        if arms.is_empty() || quiet {
            let calm = (calm + 1).min(CALM_AFTER);
            self.state = State::Watching { calm, quiet_until_ns, at_verdict };
            let period_ns = match calm {
                _ if self.is_restless(facts.now_ns) => CONFIRM_NS,
                0..CALM_AFTER => PERIOD_NS,
                _ => CALM_PERIOD_NS,
            };
            return self.decide(period_ns, Wanted::Signals, Reason::Watching);
        }
        match self.remembered(facts.now_ns, &arms) {
            Some(arm) => self.go_back_to(arm, facts.now_ns),
            None => self.measure_in_force(),
        }
    }

    /// What may be better than the wide arm `under`, groups included.
    fn promising(&self, under: Arm, rates: &Rates) -> Vec<Arm> {
        let mut arms = candidates(&self.config, under, rates);
        arms.extend(worth_grouping(&self.config, self.arm, rates, 1.0).then_some(Arm::Grouped));
        arms
    }

    /// An arm that keeps threads together, won not long ago, and is promising again.
    fn remembered(&self, now_ns: u64, arms: &[Arm]) -> Option<Arm> {
        self.learned.filter(|(arm, at_ns)| now_ns - at_ns < MEMORY_NS && arms.contains(arm)).map(|(arm, _)| arm)
    }

    /// Holds an arm again that was let go for another phase, and learns from it whether that was one.
    fn go_back_to(&mut self, arm: Arm, now_ns: u64) -> Decision {
        let was_none = self.phase_changed_ns.is_some_and(|at_ns| now_ns - at_ns < FALSE_ALARM_NS);
        self.false_alarms = if was_none { (self.false_alarms + 1).min(MOST_ALARMS) } else { 0 };
        self.enter_hold(arm, now_ns)
    }

    /// Begins a trial; which arms follow the one in force is decided by what it does while it is measured.
    fn measure_in_force(&mut self) -> Decision {
        self.state = State::Trying(Trial::default());
        self.decide(SETTLE_NS, Wanted::Everything, Reason::Settling)
    }

    fn measure(&mut self, facts: &PeriodFacts, rates: Rates, mut trial: Trial) -> Decision {
        match trial.step {
            Step::Settle => {
                let measure_ns = if trial.long { LONG_MEASURE_NS } else { MEASURE_NS };
                self.state = State::Trying(Trial { step: Step::Measure, ..trial });
                return self.decide(measure_ns, Wanted::Everything, Reason::Measuring);
            }
            Step::Measure => {
                trial.measured.push((self.arm, rates));
                trial.pending.get_or_insert_with(|| self.alternatives(&rates));
                if self.may_group(&trial, &rates) {
                    return self.look(trial);
                }
            }
            Step::Look => self.see(facts, &rates, &mut trial),
        }
        match trial.pending.as_mut().and_then(Vec::pop) {
            Some(arm) => self.try_next(arm, trial),
            None if trial.measured.len() > 1 => self.next_round(facts, &trial),
            None if trial.is_seen => self.conclude(facts, &trial.measured),
            None => self.nothing_to_try(facts.now_ns),
        }
    }

    /// Whether groups may be promising, given the rates in the setting found that were just measured. In other settings
    /// the threads of a group take more than in that one: they hand over to each other faster.
    fn may_group(&self, trial: &Trial, rates: &Rates) -> bool {
        let is_new = !trial.long && !trial.measured.iter().any(|(arm, _)| *arm == Arm::Grouped);
        is_new && self.arm == Arm::Base && worth_grouping(&self.config, self.arm, rates, 1.0)
    }

    /// Asks who wakes whom.
    fn look(&mut self, trial: Trial) -> Decision {
        self.state = State::Trying(Trial { step: Step::Look, ..trial });
        self.decide(LOOK_NS, Wanted::Pairs, Reason::Looking)
    }

    /// Takes in who wakes whom, if that was to be seen; promising groups are tried after the wide arms.
    fn see(&mut self, facts: &PeriodFacts, rates: &Rates, trial: &mut Trial) {
        self.unseen = facts.pairs.is_none();
        let Some(window) = &facts.pairs else { return };
        trial.is_seen = true;
        let inside = self.regroup(facts.now_ns, window, rates.cpu);
        let is_promising = |(arm, rates): &(Arm, Rates)| worth_grouping(&self.config, *arm, rates, inside);
        if inside > 0.0 && trial.measured.iter().any(is_promising) {
            let pending = trial.pending.get_or_insert_default();
            let narrow = pending.iter().take_while(|arm| arm.is_narrow()).count();
            pending.insert(narrow, Arm::Grouped);
        }
    }

    fn regroup(&mut self, now_ns: u64, window: &WakeWindow, cpu_rate: f64) -> f64 {
        self.looked_ns = now_ns;
        self.colocation.regroup(window, cpu_rate, &self.config.allowed, &self.config.topology)
    }

    /// Measures arms again that a little noise could have put in another order, and an arm that stood for a while with the
    /// one that would overturn it; else, and the second time, the verdict. Where phases are short, a second round would not
    /// end in the phase in which it began.
    fn next_round(&mut self, facts: &PeriodFacts, trial: &Trial) -> Decision {
        let mut close = if trial.long || self.is_restless(facts.now_ns) {
            Vec::new()
        } else {
            choose::close_to_best(&self.config, &trial.measured)
        };
        close.extend(self.overturned(trial).filter(|arm| !close.is_empty() && !close.contains(arm)));
        if close.len() < 2 {
            return self.conclude(facts, &trial.measured);
        }
        // The arm in force needs no change; of the others the wide ones come first.
        close.sort_by_key(|&arm| (arm != self.arm, arm.keeps_together()));
        close.reverse();
        let next = close.pop().unwrap_or(self.arm);
        self.try_next(next, Trial { pending: Some(close), long: true, ..Trial::default() })
    }

    /// The arm that was in force before the trial, if it had stood for a while: a moment in which the program or the
    /// host paused must not undo that. Groups always count as such.
    fn overturned(&self, trial: &Trial) -> Option<Arm> {
        let (before, _) = *trial.measured.first()?;
        (before == Arm::Grouped || self.hold_ns > HOLD_NS.0).then_some(before)
    }

    /// Applies the next arm of a trial.
    fn try_next(&mut self, arm: Arm, trial: Trial) -> Decision {
        self.state = State::Trying(Trial { step: Step::Settle, ..trial });
        self.change_to(arm, SETTLE_NS, Reason::Settling)
    }

    /// Puts another arm in force. Threads that were kept together and no longer are, are pulled apart.
    fn change_to(&mut self, arm: Arm, next_period_ns: u64, why: Reason) -> Decision {
        let spread = self.arm.keeps_together() && !arm.keeps_together();
        self.arm = arm;
        Decision { spread, ..self.decide(next_period_ns, Wanted::Everything, why) }
    }

    /// A closer look showed that there is nothing to compare the arm in force with.
    fn nothing_to_try(&mut self, now_ns: u64) -> Decision {
        if self.arm != Arm::Base {
            return self.enter_hold(self.arm, now_ns);
        }
        self.state = State::watching(0);
        self.decide(PERIOD_NS, Wanted::Signals, Reason::Watching)
    }

    /// All arms were measured: hold the best, or go back and leave the program alone for a while.
    fn conclude(&mut self, facts: &PeriodFacts, measured: &[(Arm, Rates)]) -> Decision {
        let winner = best(&self.config, measured, |_| true).unwrap_or(Arm::Base);
        self.floor = best(&self.config, measured, |arm| !arm.keeps_together()).unwrap_or(self.floor);
        let rates = measured.iter().find(|(arm, _)| *arm == winner).map(|(_, rates)| *rates);
        self.learned = winner.keeps_together().then_some((winner, facts.now_ns));
        self.verdict = Some(Verdict::new(&self.config, measured, winner));
        if winner == Arm::Base { self.back_off(facts.now_ns, rates) } else { self.enter_hold(winner, facts.now_ns) }
    }

    fn back_off(&mut self, now_ns: u64, at_verdict: Option<Rates>) -> Decision {
        self.state = State::Watching { calm: 0, quiet_until_ns: now_ns + self.hold_ns, at_verdict };
        self.hold_ns = (self.hold_ns * 2).min(HOLD_NS.1);
        Decision { wanted: Wanted::Signals, ..self.change_to(Arm::Base, PERIOD_NS, Reason::NothingGained) }
    }

    fn enter_hold(&mut self, arm: Arm, now_ns: u64) -> Decision {
        self.state = State::holding(now_ns + self.hold_ns);
        self.change_to(arm, PERIOD_NS, Reason::Holding)
    }

    /// While an arm is held: is the program still the one it was accepted for?
    fn hold(&mut self, facts: &PeriodFacts, rates: Rates, mut hold: Hold) -> Decision {
        if let Some(window) = facts.pairs.as_ref().filter(|_| hold.looking) {
            // What a period under observation shows is compared with nothing.
            return self.look_after_groups(facts.now_ns, window, rates.cpu, hold);
        }
        let differs = hold.accepted.is_some_and(|accepted| self.is_another_phase(&rates, &accepted));
        if differs && self.is_crowded(&rates, hold.accepted) {
            // A fall of hand-overs to few is clear at once; one to fewer may be a hiccup.
            if hold.changed > 0 || rates.handover_share(&self.config.prices) < FEW_HANDOVERS {
                return self.release(facts.now_ns);
            }
            self.state = State::Holding(Hold { first: false, changed: 1, looking: false, ..hold });
            return self.decide(CONFIRM_NS, Wanted::Handovers, Reason::Holding);
        }
        if differs && let Some(arm) = self.remembered(facts.now_ns, &self.promising(self.arm, &rates)) {
            return self.go_back_to(arm, facts.now_ns);
        }
        hold.changed = if differs { hold.changed + 1 } else { 0 };
        if hold.changed >= LASTING || facts.now_ns >= hold.until_ns {
            self.hold_ns = if hold.changed >= LASTING { HOLD_NS.0 } else { (self.hold_ns * 2).min(HOLD_NS.1) };
            return self.look_again(facts.now_ns, rates);
        }
        // The first period of a hold told everything; what is compared from now on are signals.
        hold.accepted = hold.accepted.or((!hold.first).then_some(rates));
        hold.first = false;
        self.keep(facts.now_ns, hold)
    }

    /// Holds on for another period.
    fn keep(&mut self, now_ns: u64, hold: Hold) -> Decision {
        let looking = self.arm == Arm::Grouped && now_ns >= self.looked_ns + LOOK_EVERY_NS;
        self.state = State::Holding(Hold { looking, ..hold });
        let (period_ns, wanted) = match self.arm {
            _ if looking => (LOOK_NS, Wanted::Pairs),
            arm if arm.keeps_together() => (self.period_ns(now_ns), Wanted::Handovers),
            _ => (self.period_ns(now_ns), Wanted::Signals),
        };
        self.decide(period_ns, wanted, Reason::Holding)
    }

    /// Takes in who wakes whom by now: threads join the groups in force and leave them.
    fn look_after_groups(&mut self, now_ns: u64, window: &WakeWindow, cpu_rate: f64, hold: Hold) -> Decision {
        let before = self.colocation.groups().to_vec();
        self.regroup(now_ns, window, cpu_rate);
        if self.colocation.groups().is_empty() {
            self.learned = None;
            return self.release(now_ns);
        }
        let are_the_same = self.colocation.groups() == before;
        self.keep(now_ns, if are_the_same { hold } else { Hold { accepted: None, changed: 0, ..hold } })
    }

    /// Whether `rates` look like another phase than `before`, both under the arm in force. Where such changes proved to
    /// be none, only larger ones count.
    fn is_another_phase(&self, rates: &Rates, before: &Rates) -> bool {
        rates.differs_from(before, self.arm, PHASE_FACTOR.powi(1 + self.false_alarms as i32))
    }

    /// Whether threads that used to hand over to each other now fill the few vCPUs they have.
    fn is_crowded(&self, rates: &Rates, accepted: Option<Rates>) -> bool {
        let vcpus = match self.arm {
            Arm::Narrow { vcpus } => f64::from(vcpus),
            Arm::Grouped => self.colocation.seats().len() as f64,
            Arm::Base | Arm::Awake | Arm::Poll => return false,
        };
        rates.is_crowded(accepted.as_ref(), vcpus)
    }

    /// Long periods for what has stood for long, short ones where the next phase is near.
    fn period_ns(&self, now_ns: u64) -> u64 {
        if self.hold_ns > 2 * HOLD_NS.0 {
            CALM_PERIOD_NS
        } else if !self.arm.keeps_together() && self.is_restless(now_ns) {
            CONFIRM_NS
        } else {
            PERIOD_NS
        }
    }

    /// Whether the program changed its phase not long ago.
    fn is_restless(&self, now_ns: u64) -> bool {
        self.phase_changed_ns.is_some_and(|at_ns| now_ns - at_ns < RESTLESS_NS)
    }

    /// Gives the program its wide setting back at once.
    fn release(&mut self, now_ns: u64) -> Decision {
        self.hold_ns = HOLD_NS.0;
        self.phase_changed_ns = Some(now_ns);
        self.state = match self.floor {
            Arm::Base => State::watching(0),
            _ => State::holding(now_ns + self.hold_ns),
        };
        self.change_to(self.floor, PERIOD_NS, Reason::PhaseChanged)
    }

    /// A verdict has stood long enough: measure again, if there is something to compare it with.
    fn look_again(&mut self, now_ns: u64, rates: Rates) -> Decision {
        if self.alternatives(&rates).is_empty() { self.enter_hold(self.arm, now_ns) } else { self.measure_in_force() }
    }

    /// What may be better than the arm in force, under which the program has these rates; the first to be tried last.
    fn alternatives(&self, rates: &Rates) -> Vec<Arm> {
        let mut arms = match self.arm {
            Arm::Narrow { .. } | Arm::Grouped => instead_of_together(&self.config, self.arm, self.floor, rates),
            // Pause loops hide what the program would do without them.
            Arm::Awake => vec![Arm::Base],
            arm => candidates(&self.config, arm, rates),
        };
        if self.unseen && self.arm != Arm::Base && !arms.contains(&Arm::Base) {
            // There it can be looked who wakes whom.
            arms.insert(0, Arm::Base);
        }
        arms.reverse();
        arms
    }

    fn decide(&self, next_period_ns: u64, wanted: Wanted, why: Reason) -> Decision {
        let config = &self.config;
        let (active, idle) = match self.arm {
            Arm::Base | Arm::Grouped => (config.allowed, IdleMode::Untouched),
            Arm::Narrow { vcpus } => (choose::vcpus(config, vcpus), IdleMode::Untouched),
            Arm::Awake => (config.allowed, IdleMode::Awake),
            Arm::Poll => (config.allowed, IdleMode::Poll { limit_ns: choose::POLL_LIMIT_NS }),
        };
        let groups = if self.arm == Arm::Grouped { self.colocation.groups().to_vec() } else { Vec::new() };
        Decision { active, groups, idle, spread: false, next_period_ns, wanted, why }
    }
}

impl State {
    fn watching(quiet_until_ns: u64) -> Self {
        Self::Watching { calm: 0, quiet_until_ns, at_verdict: None }
    }

    fn holding(until_ns: u64) -> Self {
        Self::Holding(Hold { first: true, accepted: None, until_ns, changed: 0, looking: false })
    }
}
