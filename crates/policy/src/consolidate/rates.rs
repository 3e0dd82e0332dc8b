//! What a stretch of periods looked like, as rates per second, and how two stretches compare.

use super::{Arm, FULL, Objective, PHASE_FACTOR, Prices};
use muster_model::PeriodFacts;
use serde::{Deserialize, Serialize};

/// Rates per second of wall time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// CPUs the program kept busy.
    pub cpu: f64,
    /// CPUs that polled in the guest's idle loop.
    pub polling: f64,
    /// Entries into halting idle.
    pub halts: f64,
    /// Entries into polling idle.
    pub polls: f64,
    /// Switch-ins of the program's threads.
    pub switches: Option<f64>,
    /// Threads that were runnable without running, on average.
    pub waiting: Option<f64>,
    /// Read and write system calls.
    pub io_calls: Option<f64>,
    /// Bytes those calls moved.
    pub io_bytes: Option<f64>,
    /// The program's own count of work.
    pub metric: Option<f64>,
}

/// Below this many read and write calls per second they say nothing about progress.
const IO_CALLS_FLOOR: f64 = 1_000.0;

/// Below this many units a second a program's own count says nothing about a stretch of a few milliseconds.
const METRIC_FLOOR: f64 = 2_000.0;

/// Read and write calls count as progress when there are at least this many per switch-in.
const IO_CALLS_PER_SWITCH: f64 = 0.25;

/// Up to this CPU rate a program hardly does two things at once, so that it may be judged by its hand-overs.
const SEQUENTIAL: f64 = 1.15;

/// A program whose waking takes this share of its CPU time in one arm does little else there.
const NOTHING_ELSE: f64 = 0.7;

/// In a program, waking may cost this share more or less than it did the probe.
const PRICE_ERROR: f64 = 0.5;
/// Threads may spin about so long before they block.
const SPIN_NS: f64 = 1_000.0;
/// The same work may take this share more or less CPU time in another arm: a vCPU whose SMT sibling polls is slower, and so
/// are two whose caches the work moves between (pgbench with one client: 12 us on one vCPU, 15 to 23 us over two that
/// poll). Where a queue fills up, hand-overs differ eightfold and more.
const PACE_ERROR: f64 = 0.3;

/// Fewer hand-overs per second than this are as good as none.
const HANDOVERS_FLOOR: f64 = 2_000.0;

impl Rates {
    /// The rates of one period.
    pub fn of(facts: &PeriodFacts) -> Self {
        let rate = |count: Option<u64>| count.map(|count| facts.per_second(count));
        Self {
            cpu: facts.cpu_rate(),
            polling: facts.poll_ns.unwrap_or(0) as f64 / facts.period_ns.max(1) as f64,
            halts: rate(facts.idle_entries).unwrap_or(0.0),
            polls: rate(facts.poll_entries).unwrap_or(0.0),
            switches: rate(facts.switches),
            waiting: facts.waiting_ns.map(|waiting_ns| waiting_ns as f64 / facts.period_ns.max(1) as f64),
            io_calls: rate(facts.io_calls),
            io_bytes: rate(facts.io_bytes),
            metric: facts.progress.map(|count| count * 1e9 / facts.period_ns.max(1) as f64),
        }
    }

    /// Whether the program's own count moves often enough to judge a few milliseconds by.
    pub fn has_metric(&self) -> bool {
        self.metric.is_some_and(|metric| metric >= METRIC_FLOOR)
    }

    /// Whether read and write calls follow this program's work.
    fn does_io(&self) -> bool {
        let calls = self.io_calls.unwrap_or(0.0);
        self.io_bytes.is_some()
            && calls > IO_CALLS_FLOOR
            && calls > IO_CALLS_PER_SWITCH * self.switches.unwrap_or(f64::INFINITY)
    }

    /// What waking costs a second under `arm`, in nanoseconds: each wake-up at the price of the state its vCPU was in. A
    /// switch-in that no idle vCPU took in met one that was awake, or was no wake-up at all: it is not charged, and on few
    /// vCPUs nothing else is. Groups are made of such wake-ups; `beside_groups` all arms are charged for them alike.
    fn waking_ns(&self, arm: Arm, prices: &Prices, beside_groups: bool) -> f64 {
        let switches = self.switches.unwrap_or(0.0);
        let polled_ns = prices.wake_same_cpu_ns + prices.handover_lines_ns;
        let idle_ns = || self.halts * prices.wake_halted_ns + self.polls * polled_ns;
        match arm {
            Arm::Awake => switches * prices.wake_awake_ns,
            _ if beside_groups => idle_ns() + self.found_awake() * prices.wake_same_cpu_ns,
            Arm::Narrow { .. } => switches * prices.wake_same_cpu_ns,
            Arm::Base | Arm::Poll | Arm::Grouped => idle_ns(),
        }
    }

    /// Switch-ins that no idle vCPU took in.
    fn found_awake(&self) -> f64 {
        (self.switches.unwrap_or(0.0) - self.halts - self.polls).max(0.0)
    }

    /// What waking costs as a share of the CPU time; above 1 where it costs the program less than the probe.
    pub fn waking_share(&self, arm: Arm, prices: &Prices, beside_groups: bool) -> f64 {
        self.waking_ns(arm, prices, beside_groups) / 1e9 / self.cpu.max(0.01)
    }

    /// How long a thread waits from being woken until it runs under `arm`, on average, in nanoseconds: the wake-up
    /// itself, and the wait behind others. `None` where nobody was switched in.
    fn delay_ns(&self, arm: Arm, prices: &Prices) -> Option<f64> {
        let switches = self.switches.filter(|&switches| switches >= 1.0)?;
        // Under pause loops everybody found a vCPU awake, and is priced already.
        let found_awake = if arm == Arm::Awake { 0.0 } else { self.found_awake() };
        let waking_ns = self.waking_ns(arm, prices, false) + found_awake * prices.wake_awake_ns;
        Some(((waking_ns + self.waiting? * 1e9) / switches).max(1.0))
    }

    /// Share of the CPU time that hand-overs take, each at the price of waking on the same vCPU.
    pub fn handover_share(&self, prices: &Prices) -> f64 {
        self.waking_share(Arm::Narrow { vcpus: 1 }, prices, false)
    }

    /// Whether threads that handed over to each other as `accepted` says now fill the `vcpus` they have.
    pub fn is_crowded(&self, accepted: Option<&Self>, vcpus: f64) -> bool {
        let before = accepted.and_then(|accepted| accepted.switches).unwrap_or(0.0);
        let fewer_switches = self.switches.is_some_and(|switches| switches * PHASE_FACTOR < before);
        fewer_switches && self.cpu > FULL * vcpus
    }

    /// Whether one of the two, both under `arm`, looks like another phase of the program: much more or much less CPU
    /// time or hand-overs. Among threads kept together hand-overs show as switches, else as idle entries.
    pub fn differs_from(&self, other: &Self, arm: Arm, factor: f64) -> bool {
        let apart = |a: f64, b: f64, floor: f64| {
            let (a, b) = (a.max(floor), b.max(floor));
            a > b * factor || b > a * factor
        };
        let handovers = |rates: &Self| match (arm.keeps_together(), rates.switches) {
            (true, Some(switches)) => switches,
            _ => rates.halts + rates.polls,
        };
        apart(self.cpu, other.cpu, 0.1) || apart(handovers(self), handovers(other), HANDOVERS_FLOOR)
    }
}

/// By which count two stretches are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Yardstick {
    /// The program's own count.
    Metric,
    /// Bytes read and written. Calls would not do: one that finds nothing to read counts as much as one that does.
    IoBytes,
    /// Switch-ins: hand-overs between threads that work in turn.
    Handovers,
    /// CPU time less the price of waking.
    Work,
    /// How long woken threads wait, the less the better.
    Delay,
}

/// How the arms of a trial are compared: by which count, and at which prices.
#[derive(Debug)]
pub struct Scale<'a> {
    /// The count.
    pub yardstick: Yardstick,
    prices: &'a Prices,
    /// Whether groups are among the arms.
    beside_groups: bool,
}

impl<'a> Scale<'a> {
    /// The scale that suits all of `measured`.
    pub fn of(objective: Objective, measured: &[(Arm, Rates)], prices: &'a Prices) -> Self {
        let beside_groups = measured.iter().any(|(arm, _)| *arm == Arm::Grouped);
        let scale = Self { yardstick: Yardstick::Work, prices, beside_groups };
        Self { yardstick: scale.most_trustworthy(objective, measured), ..scale }
    }

    /// The most trustworthy count that all stretches have: the program's own; else bytes, where every arm shows that
    /// calls follow the work; else hand-overs, where each may carry the same work, and no arm does two things at once or
    /// one shows that the program does nothing else (what it does at once is to spin); else an estimate of work. Whoever
    /// wants short waits has them measured, where they can be.
    fn most_trustworthy(&self, objective: Objective, measured: &[(Arm, Rates)]) -> Yardstick {
        let all = |has: fn(&Rates) -> bool| measured.iter().all(|(_, rates)| has(rates));
        if objective == Objective::Tail
            && measured.iter().all(|(arm, rates)| rates.delay_ns(*arm, self.prices).is_some())
        {
            Yardstick::Delay
        } else if all(Rates::has_metric) {
            Yardstick::Metric
        } else if all(Rates::does_io) {
            Yardstick::IoBytes
        } else if (all(|rates| rates.cpu <= SEQUENTIAL) || self.hands_over_only(measured))
            && self.handovers_carry_alike(measured)
        {
            Yardstick::Handovers
        } else {
            Yardstick::Work
        }
    }

    fn hands_over_only(&self, measured: &[(Arm, Rates)]) -> bool {
        let share = |(arm, rates): &(Arm, Rates)| rates.waking_share(*arm, self.prices, self.beside_groups);
        measured.iter().any(|arm| share(arm) > NOTHING_ELSE)
    }

    /// Whether a hand-over may stand for the same work in all arms: where a queue fills up, one carries more.
    fn handovers_carry_alike(&self, measured: &[(Arm, Rates)]) -> bool {
        let each = || measured.iter().map(|(arm, rates)| self.work_per_handover_ns(*arm, rates));
        let least = each().try_fold(f64::MIN, |least, range| Some(least.max(range?.0)));
        let most = each().try_fold(f64::MAX, |most, range| Some(most.min(range?.1)));
        least.zip(most).is_some_and(|(least, most)| least <= most)
    }

    /// The least and the most CPU time, in nanoseconds, that may lie between two hand-overs under `arm` besides waking.
    fn work_per_handover_ns(&self, arm: Arm, rates: &Rates) -> Option<(f64, f64)> {
        let switches = rates.switches.filter(|&switches| switches >= 1.0)?;
        let waking_ns = self.waking_ns(arm, rates) / switches;
        let rest_ns = rates.cpu * 1e9 / switches - waking_ns;
        // Less than nothing: in this program waking takes less CPU time than it does the probe.
        let work_ns = if self.beside_groups { rest_ns.max(0.0) } else { rest_ns };
        let error_ns = PRICE_ERROR * waking_ns + SPIN_NS + PACE_ERROR * work_ns.max(0.0);
        Some((work_ns - error_ns, work_ns + error_ns))
    }

    fn waking_ns(&self, arm: Arm, rates: &Rates) -> f64 {
        rates.waking_ns(arm, self.prices, self.beside_groups)
    }

    /// How good a stretch was: work per second, or how short waits were; comparable between stretches of one program
    /// only. An estimate of work is the CPU rate less what waking costs.
    pub fn score(&self, arm: Arm, rates: &Rates) -> f64 {
        match self.yardstick {
            Yardstick::Metric => rates.metric.unwrap_or(0.0),
            Yardstick::IoBytes => rates.io_bytes.unwrap_or(0.0),
            Yardstick::Handovers => rates.switches.unwrap_or(0.0),
            Yardstick::Work => (rates.cpu - self.waking_ns(arm, rates) / 1e9).max(0.01),
            Yardstick::Delay => rates.delay_ns(arm, self.prices).map_or(0.0, f64::recip),
        }
    }
}
