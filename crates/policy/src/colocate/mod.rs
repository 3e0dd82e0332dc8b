//! Which threads share a vCPU because they wake each other (Gleaner, section 4: IPI-free wake-up by co-location).
//!
//! The controller watches the program as it was found. When its vCPUs halt often enough, it asks who wakes whom, forms
//! groups of threads that wake each other and together take no more than one vCPU can give, and gives each group a vCPU
//! of its own. It compares both settings by the yardsticks of [`crate::consolidate`], keeps the groups while they pay,
//! lets go at once when their threads want to work at the same time, and looks again rarely.

mod groups;
mod seats;
#[cfg(test)]
mod tests;

use crate::consolidate::{
    Arm, Config, Decision, Group, IdleMode, LASTING, PHASE_FACTOR, Prices, Rates, Reason, Wanted, best, score,
    yardstick,
};
use crate::predict::{Gain, WakeSignals, awake_gain_over};
use groups::{Company, Memory};
use muster_model::{CpuSet, PeriodFacts, ThreadId, WakeWindow};

/// Period while nothing is under way.
const PERIOD_NS: u64 = 8_000_000;
/// Period while a signal is being confirmed.
const CONFIRM_NS: u64 = 2_000_000;
/// Period in which it is to be seen who wakes whom.
const WINDOW_NS: u64 = 10_000_000;
/// Time for which the threads of a group are kept apart before they are left to the scheduler again: it would leave
/// them together for tens of milliseconds.
const APART_NS: u64 = 1_000_000;
/// Time a setting gets to take effect before it is measured.
const SETTLE_NS: u64 = 2_000_000;
/// Time for which a setting is measured.
const MEASURE_NS: u64 = 10_000_000;
/// The same in a second round, for settings that came out close, or where what is held came out worse.
const LONG_MEASURE_NS: u64 = 40_000_000;
/// Scores that differ by less than this factor are measured again for longer.
const CLOSE: f64 = 1.25;
/// First and longest time for which a verdict stands before it is looked at again.
const HOLD_NS: (u64, u64) = (200_000_000, 6_400_000_000);
/// While groups are held, it is looked this often who wakes whom.
const LOOK_NS: u64 = 1_000_000_000;
/// Halts per second below which they are the machine's own.
const HALTS_FLOOR: f64 = 1_000.0;
/// A predicted speed, at best, from which a trial is worth its cost.
const WORTH_TRYING: f64 = 1.1;

/// Groups of threads that wake each other, as `window` shows them in a program that keeps `cpu_rate` CPUs busy; none
/// takes more than one vCPU can give. Ordered by first thread; see [`gain`] for what putting each on a vCPU would do.
pub fn groups(window: &WakeWindow, cpu_rate: f64) -> Vec<Vec<ThreadId>> {
    Company::of(window, cpu_rate).clusters(&[]).into_iter().map(|cluster| cluster.threads).collect()
}

/// The share of all wake-ups in `window`, 0 to 1, whose waker and wakee are in one of `groups`.
pub fn share_inside(window: &WakeWindow, groups: &[Vec<ThreadId>]) -> f64 {
    Company::of(window, 0.0).share_inside(groups.iter().map(Vec::as_slice))
}

/// What it would do to keep `inside` of the wake-ups on their waker's vCPU: lengths of periods and signals in them.
/// No group is larger than a vCPU, so that no work waits for other work that was done at the same time before.
pub fn gain(periods: &[(f64, WakeSignals)], prices: &Prices, inside: f64) -> Option<Gain> {
    let mixed = inside * prices.wake_same_cpu_ns + (1.0 - inside) * prices.wake_halted_ns;
    awake_gain_over(periods, &Prices { wake_awake_ns: mixed, ..*prices })
}

/// One step of a trial, a period each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Threads of a group on different vCPUs.
    Apart,
    /// The groups in force (`true`) or not: until that has taken effect.
    Settle(bool),
    /// The same, measured.
    Measure(bool),
}

/// A trial that begins with threads left to the scheduler, and one that begins with groups; last step first.
const FIRST_ROUND: [Act; 4] = [Act::Measure(true), Act::Settle(true), Act::Measure(false), Act::Settle(false)];
const NEXT_ROUND: [Act; 5] =
    [Act::Measure(false), Act::Settle(false), Act::Apart, Act::Measure(true), Act::Settle(true)];

#[derive(Debug, Clone)]
enum State {
    Watching { clear: u32, quiet_until_ns: u64, at_verdict: Option<Rates> },
    Asking,
    Trying(Trial),
    Holding(Hold),
}

/// Both settings in turn.
#[derive(Debug, Clone)]
struct Trial {
    now: Act,
    /// Last step first.
    pending: Vec<Act>,
    measured: Vec<(Arm, Rates)>,
    /// Whether groups were held before.
    held: bool,
    /// Whether this is the second round.
    long: bool,
}

/// Groups in force since they were found to pay.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// The first period tells another kind of count.
    first: bool,
    accepted: Option<Rates>,
    until_ns: u64,
    /// When to look who wakes whom; asked for since then.
    look_ns: u64,
    asking: bool,
    changed: u32,
}

/// The controller: one per program.
#[derive(Debug, Clone)]
pub struct Controller {
    config: Config,
    state: State,
    /// The groups as last formed, in force or not.
    groups: Vec<Group>,
    memory: Memory,
    hold_ns: u64,
}

impl Controller {
    /// A controller that has seen nothing yet and has changed nothing. Of `config` it needs all but the idle settings.
    pub fn new(config: Config) -> Self {
        Self { config, state: State::watching(0), groups: Vec::new(), memory: Memory::default(), hold_ns: HOLD_NS.0 }
    }

    /// What to do until the first period ends: nothing, and then tell.
    pub fn first(&self) -> Decision {
        self.found(PERIOD_NS, Wanted::Everything, Reason::Watching)
    }

    /// Whether the facts of the period that begins now should tell who wakes whom. A world that cannot afford it yet
    /// is asked again.
    pub fn wants_pairs(&self) -> bool {
        matches!(self.state, State::Asking | State::Holding(Hold { asking: true, .. }))
    }

    /// Takes in one period and decides the next.
    pub fn step(&mut self, facts: &PeriodFacts) -> Decision {
        let rates = Rates::of(facts);
        match std::mem::replace(&mut self.state, State::watching(0)) {
            State::Watching { clear, quiet_until_ns, at_verdict } => {
                self.watch(facts, rates, clear, quiet_until_ns, at_verdict)
            }
            State::Asking => self.ask(facts, rates),
            State::Trying(mut trial) => {
                match trial.now {
                    Act::Measure(true) => trial.measured.push((self.arm(), rates)),
                    Act::Measure(false) => trial.measured.push((Arm::Base, rates)),
                    Act::Apart | Act::Settle(_) => {}
                }
                self.next_act(facts, trial)
            }
            State::Holding(hold) => self.hold(facts, rates, hold),
        }
    }

    /// As it was found: is there a reason to ask who wakes whom?
    fn watch(
        &mut self,
        facts: &PeriodFacts,
        rates: Rates,
        clear: u32,
        quiet_until_ns: u64,
        at_verdict: Option<Rates>,
    ) -> Decision {
        let another_phase = at_verdict.is_some_and(|verdict| rates.differs_from(&verdict, Arm::Base, PHASE_FACTOR));
        if another_phase {
            self.hold_ns = HOLD_NS.0;
        }
        let is_quiet = facts.now_ns < quiet_until_ns && !another_phase;
        if is_quiet || !self.is_promising(facts, 1.0) {
            self.state = State::Watching { clear: 0, quiet_until_ns, at_verdict };
            return self.found(PERIOD_NS, Wanted::Signals, Reason::Watching);
        }
        if clear == 0 {
            self.state = State::Watching { clear: 1, quiet_until_ns, at_verdict };
            return self.found(CONFIRM_NS, Wanted::Everything, Reason::Watching);
        }
        self.state = State::Asking;
        self.found(WINDOW_NS, Wanted::Everything, Reason::Watching)
    }

    /// Whether it may pay to keep a share of the wake-ups on their waker's vCPU.
    fn is_promising(&self, facts: &PeriodFacts, inside: f64) -> bool {
        let Some(signals) = WakeSignals::of(facts).filter(|signals| signals.halts_per_s > HALTS_FLOOR) else {
            return false;
        };
        self.config.permitted.colocate
            && gain(&[(1.0, signals)], &self.config.prices, inside).is_some_and(|gain| gain.speed.high > WORTH_TRYING)
    }

    fn ask(&mut self, facts: &PeriodFacts, rates: Rates) -> Decision {
        let Some(window) = &facts.pairs else {
            if !self.is_promising(facts, 1.0) {
                return self.found(PERIOD_NS, Wanted::Signals, Reason::Watching);
            }
            self.state = State::Asking;
            return self.found(WINDOW_NS, Wanted::Everything, Reason::Watching);
        };
        let inside = self.regroup(window, rates.cpu);
        if self.groups.is_empty() || !self.is_promising(facts, inside) {
            return self.back_off(facts.now_ns, Some(rates), false);
        }
        self.start_round(facts, false, false, false)
    }

    /// Forms the groups anew; the share of wake-ups inside.
    fn regroup(&mut self, window: &WakeWindow, cpu_rate: f64) -> f64 {
        let company = Company::of(window, cpu_rate);
        let in_force: Vec<Vec<ThreadId>> = self.groups.iter().map(|group| group.threads.clone()).collect();
        let left = self.memory.still_together(&company, &in_force);
        let clusters = company.clusters(&left);
        self.groups = seats::seat(&company, &clusters, &self.groups, &self.config.allowed, &self.config.topology);
        company.share_inside(self.groups.iter().map(|group| group.threads.as_slice()))
    }

    fn start_round(&mut self, facts: &PeriodFacts, held: bool, long: bool, are_together: bool) -> Decision {
        let pending = if are_together { NEXT_ROUND.to_vec() } else { FIRST_ROUND.to_vec() };
        self.next_act(facts, Trial { now: Act::Apart, pending, measured: Vec::new(), held, long })
    }

    /// The next step of a trial, or its verdict.
    fn next_act(&mut self, facts: &PeriodFacts, mut trial: Trial) -> Decision {
        let Some(now) = trial.pending.pop() else { return self.conclude(facts, &trial) };
        let measure_ns = if trial.long { LONG_MEASURE_NS } else { MEASURE_NS };
        self.state = State::Trying(Trial { now, ..trial });
        match now {
            Act::Apart => self.with(self.apart(), APART_NS, Wanted::Signals, Reason::Settling),
            Act::Settle(true) => self.with(self.groups.clone(), SETTLE_NS, Wanted::Everything, Reason::Settling),
            Act::Settle(false) => self.found(SETTLE_NS, Wanted::Everything, Reason::Settling),
            Act::Measure(true) => self.with(self.groups.clone(), measure_ns, Wanted::Everything, Reason::Measuring),
            Act::Measure(false) => self.found(measure_ns, Wanted::Everything, Reason::Measuring),
        }
    }

    fn conclude(&mut self, facts: &PeriodFacts, trial: &Trial) -> Decision {
        let measured: Vec<(Arm, Rates)> = trial.measured.iter().copied().map(with_local_wakes).collect();
        let are_together = trial.now == Act::Measure(true);
        let pays = best(&self.config, &measured, |_| true).is_some_and(Arm::is_narrow);
        if !trial.long && (self.is_close(&measured) || trial.held && !pays) {
            return self.start_round(facts, trial.held, true, are_together);
        }
        if pays {
            return self.enter_hold(facts.now_ns);
        }
        let as_found = trial.measured.iter().find(|(arm, _)| *arm == Arm::Base).map(|(_, rates)| *rates);
        self.back_off(facts.now_ns, as_found, are_together)
    }

    /// Whether a little noise could turn the verdict.
    fn is_close(&self, measured: &[(Arm, Rates)]) -> bool {
        let by = yardstick(self.config.objective, measured, &self.config.prices);
        let scores = || measured.iter().map(|(arm, rates)| score(by, *arm, rates, &self.config.prices));
        scores().fold(0.0, f64::max) < CLOSE * scores().fold(f64::INFINITY, f64::min)
    }

    fn enter_hold(&mut self, now_ns: u64) -> Decision {
        let (until_ns, look_ns) = (now_ns + self.hold_ns, now_ns + LOOK_NS);
        self.keep(Hold { first: true, accepted: None, until_ns, look_ns, asking: false, changed: 0 })
    }

    fn keep(&mut self, hold: Hold) -> Decision {
        self.state = State::Holding(hold);
        let (period_ns, wanted) = match hold {
            Hold { first: true, .. } => (PERIOD_NS, Wanted::Everything),
            Hold { asking: true, .. } => (WINDOW_NS, Wanted::Handovers),
            _ => (PERIOD_NS, Wanted::Handovers),
        };
        self.with(self.groups.clone(), period_ns, wanted, Reason::Holding)
    }

    /// While groups are held: do they still belong together, and is the program still the one they were accepted for?
    fn hold(&mut self, facts: &PeriodFacts, rates: Rates, mut hold: Hold) -> Decision {
        if let Some(window) = facts.pairs.as_ref().filter(|_| hold.asking) {
            // What a period under observation shows is compared with nothing.
            return self.look(facts.now_ns, window, rates.cpu, hold);
        }
        let differs = hold.accepted.is_some_and(|accepted| rates.differs_from(&accepted, self.arm(), PHASE_FACTOR));
        if differs && self.is_crowded(&rates, hold.accepted) {
            self.hold_ns = HOLD_NS.0;
            return self.release(Reason::PhaseChanged, State::watching(0));
        }
        hold.changed = if differs { hold.changed + 1 } else { 0 };
        if hold.changed >= LASTING || facts.now_ns >= hold.until_ns {
            self.hold_ns = if differs { HOLD_NS.0 } else { (self.hold_ns * 2).min(HOLD_NS.1) };
            return self.start_round(facts, true, false, true);
        }
        // The first period of a hold told everything; what is compared from now on are signals.
        hold.accepted = hold.accepted.or((!hold.first).then_some(rates));
        hold.asking = !hold.first && facts.now_ns >= hold.look_ns;
        hold.first = false;
        self.keep(hold)
    }

    /// Takes in who wakes whom by now.
    fn look(&mut self, now_ns: u64, window: &WakeWindow, cpu_rate: f64, mut hold: Hold) -> Decision {
        let before = self.groups.clone();
        self.regroup(window, cpu_rate);
        if self.groups.is_empty() {
            self.groups = before;
            let state = State::watching(now_ns + HOLD_NS.0);
            let decision = self.release(Reason::PhaseChanged, state);
            self.groups.clear();
            return decision;
        }
        hold = Hold { look_ns: now_ns + LOOK_NS, asking: false, ..hold };
        if self.groups != before {
            hold = Hold { first: true, accepted: None, changed: 0, ..hold };
        }
        self.keep(hold)
    }

    /// Whether threads that used to hand over to each other now fill the vCPUs of their groups.
    fn is_crowded(&self, rates: &Rates, accepted: Option<Rates>) -> bool {
        rates.is_crowded(accepted.as_ref(), self.seats().len() as f64)
    }

    fn back_off(&mut self, now_ns: u64, at_verdict: Option<Rates>, are_together: bool) -> Decision {
        let state = State::Watching { clear: 0, quiet_until_ns: now_ns + self.hold_ns, at_verdict };
        self.hold_ns = (self.hold_ns * 2).min(HOLD_NS.1);
        if are_together {
            return self.release(Reason::NothingGained, state);
        }
        self.state = state;
        self.found(PERIOD_NS, Wanted::Signals, Reason::NothingGained)
    }

    /// Pulls the groups apart for a moment; from the next period on the threads are left to the scheduler.
    fn release(&mut self, why: Reason, next: State) -> Decision {
        self.state = next;
        self.with(self.apart(), APART_NS, Wanted::Signals, why)
    }

    /// Every thread of the groups on a vCPU of its own, as far as there are vCPUs.
    fn apart(&self) -> Vec<Group> {
        let cpus: Vec<usize> = self.config.allowed.iter().collect();
        let seats = |group: &Group| group.cpus.iter().next().and_then(|seat| cpus.iter().position(|&cpu| cpu == seat));
        let alone =
            |thread: ThreadId, at: usize| Group { threads: vec![thread], cpus: CpuSet::single(cpus[at % cpus.len()]) };
        self.groups
            .iter()
            .flat_map(|group| (seats(group).unwrap_or(0)..).zip(&group.threads).map(|(at, &thread)| alone(thread, at)))
            .collect()
    }

    /// The vCPUs of the groups.
    fn seats(&self) -> CpuSet {
        self.groups.iter().fold(CpuSet::EMPTY, |all, group| all.union(&group.cpus))
    }

    /// The groups as the yardsticks know a setting in which wake-ups stay on their vCPU.
    fn arm(&self) -> Arm {
        Arm::Narrow { vcpus: self.seats().len() as u32 }
    }

    fn found(&self, next_period_ns: u64, wanted: Wanted, why: Reason) -> Decision {
        self.with(Vec::new(), next_period_ns, wanted, why)
    }

    fn with(&self, groups: Vec<Group>, next_period_ns: u64, wanted: Wanted, why: Reason) -> Decision {
        let (active, idle) = (self.config.allowed, IdleMode::Untouched);
        Decision { active, groups, idle, spread: false, next_period_ns, wanted, why }
    }
}

/// As they were found, some threads that wake each other meet on a vCPU by themselves. Such a wake-up costs as much as
/// one of a polling vCPU, and the yardstick of work is to charge it so.
fn with_local_wakes((arm, rates): (Arm, Rates)) -> (Arm, Rates) {
    let others = rates.switches.unwrap_or(0.0) - rates.halts - rates.polls;
    let polls = rates.polls + if arm == Arm::Base { others.max(0.0) } else { 0.0 };
    (arm, Rates { polls, ..rates })
}

impl State {
    fn watching(quiet_until_ns: u64) -> Self {
        Self::Watching { clear: 0, quiet_until_ns, at_verdict: None }
    }
}
