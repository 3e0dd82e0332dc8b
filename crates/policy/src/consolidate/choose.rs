//! Which settings are worth a trial, and which of those tried is best.

use super::rates::{Rates, Scale, Yardstick};
use super::{Config, Objective};
use crate::colocate;
use crate::predict::{WakeSignals, awake_gain, consolidation_gain, poll_gain};
use muster_model::CpuSet;
use serde::{Deserialize, Serialize};

/// A setting that can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// What muster found.
    Base,
    /// The program on so many vCPUs.
    Narrow {
        /// How many.
        vcpus: u32,
    },
    /// All vCPUs, kept from halting by pause loops.
    Awake,
    /// All vCPUs, polling before they halt.
    Poll,
    /// All vCPUs; threads that wake each other share one, each group its own.
    Grouped,
}

impl Arm {
    /// Whether the program gets fewer vCPUs than it may use.
    pub fn is_narrow(self) -> bool {
        matches!(self, Self::Narrow { .. })
    }

    /// Whether threads that wake each other are kept on the same vCPU.
    pub fn keeps_together(self) -> bool {
        matches!(self, Self::Narrow { .. } | Self::Grouped)
    }
}

/// How long idle vCPUs poll when muster makes them poll: Linux's own default (Documentation/virt/guest-halt-polling.rst).
pub const POLL_LIMIT_NS: u64 = 200_000;

/// A predicted speed from which a trial is worth its cost.
const WORTH_TRYING: f64 = 1.2;
/// The same for polling, which is hardly ever slower while it is tried, and gives more than predicted where wake-ups
/// follow upon each other (pgbench with four clients: predicted 1.03, measured 1.17).
const POLLING_WORTH_TRYING: f64 = 1.02;
/// The same for groups at best, once it is seen who wakes whom: a part of the program stays as it was found.
const GROUPS_WORTH_TRYING: f64 = 1.1;
/// A predicted CPU time per work from which a trial is worth its cost where cost is the objective.
const CHEAP_ENOUGH: f64 = 0.8;
/// Under polling idle the idle signals promise nothing; hand-overs this frequent are worth a look.
const POLLS_WORTH_TRYING: f64 = 5_000.0;
/// The same for halts.
const HALTS_WORTH_TRYING: f64 = 2_000.0;
/// From this share of its CPU time on, handing over may be what a program under polling idle is about.
const MUCH_HANDOVER: f64 = 0.2;
/// Up to this CPU rate a program under polling idle may be one whose threads work in turn.
const IN_TURN: f64 = 1.15;
/// A setting that moves threads or takes vCPU time must be better than the one found by this factor to be preferred.
const CLEARLY_BETTER: f64 = 1.05;
/// A program that uses this many CPUs in a wide setting for each vCPU of a narrow one (a part of it is waking) does things
/// side by side that do not fit there, which its counts need not follow...
const SIDE_BY_SIDE: f64 = 1.3;
/// ...so that those few vCPUs have to look much better (a Python process pool moved 1.1 times the bytes while it did 0.87
/// times the tasks).
const DOUBT: f64 = 0.8;
/// Settings this close in speed count as equal, and the cheaper one wins.
const ABOUT_EQUAL: f64 = 0.97;
/// Settings this close in speed are measured again, for longer.
const CLOSE: f64 = 0.9;
/// A held program that uses this share of its vCPUs may need more of them.
const FULL: f64 = 0.9;
/// A held program that would use less than this share of fewer vCPUs may do with fewer.
const ROOMY: f64 = 0.7;
/// Threads of a program that is switched this often while it fills its vCPUs may contend.
const CONTENDED_SWITCHES: f64 = 1_000.0;
/// Idle entries below this rate are the machine's own.
const HALTS_FLOOR: f64 = 1_000.0;

/// The settings worth a trial, given what the program does under the wide setting `under`; wide ones first, because
/// threads that were kept together stay together for a while. Groups need a closer look ([`worth_grouping`]).
pub fn candidates(config: &Config, under: Arm, rates: &Rates) -> Vec<Arm> {
    let mut arms = Vec::new();
    if under == Arm::Base && config.objective != Objective::Cost && rates.halts > HALTS_FLOOR {
        arms.extend(not_halting(config, rates));
    }
    if let Some(vcpus) = worth_narrowing(config, under, rates) {
        arms.push(Arm::Narrow { vcpus });
        // The prediction takes all work to fit together; where there is room, the trial also sees what it does not.
        arms.extend(narrow(config, 2 * vcpus));
    }
    arms
}

/// What a program whose threads are kept together by `arm` may need instead by now: the wide setting it came from, one
/// that keeps vCPUs from halting, or a vCPU more or less.
pub fn instead_of_together(config: &Config, arm: Arm, floor: Arm, rates: &Rates) -> Vec<Arm> {
    let awake = permitted_not_halting(config).filter(|_| floor == Arm::Base && config.objective != Objective::Cost);
    // Polling is hardly ever slower than the setting found, so one of the two is enough.
    let wide = if awake == Some(Arm::Poll) { None } else { Some(floor) };
    let mut arms: Vec<Arm> = [wide, awake].into_iter().flatten().collect();
    if let Arm::Narrow { vcpus } = arm {
        let is_full = rates.cpu > FULL * f64::from(vcpus);
        let has_room = vcpus > 1 && rates.cpu < ROOMY * f64::from(vcpus - 1);
        arms.extend(is_full.then(|| narrow(config, vcpus + 1)).flatten());
        arms.extend(has_room.then_some(Arm::Narrow { vcpus: vcpus - 1 }));
    }
    arms
}

/// Whether it may pay to keep the share `inside` of the wake-ups on their waker's vCPU while all stay in use, as the rates
/// under the wide setting `under` show. Who wants short waits is served by vCPUs that do not halt, not by threads that wait
/// for each other.
pub fn worth_grouping(config: &Config, under: Arm, rates: &Rates, inside: f64) -> bool {
    let gain = || colocate::gain(&[(1.0, signals(config, rates))], &config.prices, inside);
    let is_promising = || match under {
        Arm::Base => rates.halts > HALTS_FLOOR && gain().is_some_and(|gain| gain.speed.high > GROUPS_WORTH_TRYING),
        Arm::Poll => polls_much(rates) && inside * rates.waking_share(under, &config.prices, false) > MUCH_HANDOVER,
        _ => false,
    };
    config.permitted.colocate && config.objective != Objective::Tail && config.allowed.len() > 1 && is_promising()
}

/// Whether vCPUs poll so often that their halts do not tell how often they wait for each other.
fn polls_much(rates: &Rates) -> bool {
    rates.polls > POLLS_WORTH_TRYING && rates.polls > rates.halts
}

/// `vcpus` of the program's vCPUs, if that is fewer than all.
fn narrow(config: &Config, vcpus: u32) -> Option<Arm> {
    (vcpus < config.allowed.len() as u32).then_some(Arm::Narrow { vcpus })
}

fn worth_narrowing(config: &Config, under: Arm, rates: &Rates) -> Option<u32> {
    if !config.permitted.consolidate || config.objective == Objective::Tail {
        return None;
    }
    if polls_much(rates) {
        // Threads that spin before they block seem to work side by side, and do little but hand over.
        let may_be_in_turn = rates.cpu <= IN_TURN || rates.handover_share(&config.prices) > MUCH_HANDOVER;
        return may_be_in_turn.then_some(1).filter(|_| config.allowed.len() > 1);
    }
    if under == Arm::Base && may_contend(config, rates) {
        return Some(config.allowed.len() as u32 / 2);
    }
    if under != Arm::Base || rates.halts < HALTS_FLOOR {
        return None;
    }
    let gain = consolidation_gain(&signals(config, rates), &config.prices)?;
    let is_faster = gain.speed.value > WORTH_TRYING || (is_in_turn(rates) && gain.vcpus == 1);
    let is_cheaper =
        config.objective == Objective::Cost && gain.cpu_per_work.value < CHEAP_ENOUGH && gain.speed.value > 1.0;
    (is_faster || is_cheaper).then_some(gain.vcpus)
}

/// Whether threads that fill all their vCPUs may do so contending for a lock. Some such programs gain on fewer vCPUs, others
/// lose half (sysbench mutex, stress-ng futex): only the program's own count tells, so that without one nothing is tried.
fn may_contend(config: &Config, rates: &Rates) -> bool {
    let vcpus = config.allowed.len();
    let blocks = rates.switches.is_some_and(|switches| switches > CONTENDED_SWITCHES);
    vcpus > 1 && rates.has_metric() && blocks && rates.cpu > FULL * vcpus as f64
}

/// Polling where the guest can be told to, else pause loops; neither where it polls already, which serves better than
/// pause loops do, unless the last halt counts.
fn permitted_not_halting(config: &Config) -> Option<Arm> {
    let polls_already = config.guest_halt_poll_ns > 0;
    if config.permitted.poll && !polls_already {
        return Some(Arm::Poll);
    }
    (config.permitted.awake && (!polls_already || config.objective == Objective::Tail)).then_some(Arm::Awake)
}

/// The setting that keeps vCPUs from halting, if the program has enough of that to gain.
fn not_halting(config: &Config, rates: &Rates) -> Option<Arm> {
    let arm = permitted_not_halting(config)?;
    let signals = signals(config, rates);
    let gain = match arm {
        Arm::Poll => poll_gain(&signals, &config.prices, POLL_LIMIT_NS)?,
        _ => awake_gain(&signals, &config.prices)?,
    };
    let worth = match (config.objective, arm) {
        (Objective::Tail, _) => 1.0,
        (_, Arm::Poll) => POLLING_WORTH_TRYING,
        _ => WORTH_TRYING,
    };
    (gain.speed.value > worth || is_in_turn(rates)).then_some(arm)
}

/// Whether the program's threads may work in turn and wait for each other's wake-ups: then waking may cost it far more
/// than the probe measured, and a trial is cheap.
fn is_in_turn(rates: &Rates) -> bool {
    rates.cpu <= IN_TURN && rates.halts > HALTS_WORTH_TRYING
}

fn signals(config: &Config, rates: &Rates) -> WakeSignals {
    WakeSignals {
        vcpus: config.allowed.len() as u32,
        cpu_rate: rates.cpu,
        user_rate: None,
        halts_per_s: rates.halts,
        polling_rate: rates.polling,
        blocks_per_s: rates.switches,
        waiting_rate: None,
        outside: None,
        io_calls_per_s: rates.io_calls,
        io_bytes_per_s: rates.io_bytes,
        faults_per_s: None,
    }
}

/// The best of the measured arms that `may` win; `None` when there is none. Of those about equal in speed, the cheapest.
pub fn best(config: &Config, measured: &[(Arm, Rates)], may: impl Fn(Arm) -> bool) -> Option<Arm> {
    let scored: Vec<_> = scored(config, measured).into_iter().filter(|(arm, ..)| may(*arm)).collect();
    let about_best = within(&scored, ABOUT_EQUAL);
    let cost = |rates: &Rates, score: f64| (rates.cpu + rates.polling) / score.max(1e-9);
    about_best.min_by(|a, b| cost(&a.1, a.2).total_cmp(&cost(&b.1, b.2))).map(|(arm, ..)| *arm)
}

/// The arms among which a little noise could turn the verdict.
pub fn close_to_best(config: &Config, measured: &[(Arm, Rates)]) -> Vec<Arm> {
    within(&scored(config, measured), CLOSE).map(|(arm, ..)| *arm).collect()
}

/// The scored arms that reach this share of the best score.
fn within(scored: &[(Arm, Rates, f64)], share: f64) -> impl Iterator<Item = &(Arm, Rates, f64)> {
    let top = scored.iter().map(|(_, _, score)| *score).fold(0.0, f64::max);
    scored.iter().filter(move |(_, _, score)| *score >= share * top)
}

/// Each measured arm's score by the yardstick that suits all, weighed by what a wrong verdict would cost.
fn scored(config: &Config, measured: &[(Arm, Rates)]) -> Vec<(Arm, Rates, f64)> {
    let scale = Scale::of(config.objective, measured, &config.prices);
    // Polling moves no thread: a verdict for it that is wrong costs next to nothing.
    let is_risky = |(arm, _): &(Arm, Rates)| !matches!(arm, Arm::Base | Arm::Poll);
    let at_stake = if measured.iter().any(is_risky) { CLEARLY_BETTER } else { 1.0 };
    let side_by_side = measured.iter().filter(|(arm, _)| !arm.is_narrow()).map(|(_, r)| r.cpu).fold(0.0, f64::max);
    let may_not_fit = |vcpus: u32| side_by_side > SIDE_BY_SIDE * f64::from(vcpus);
    let weigh = |&(arm, rates): &(Arm, Rates)| {
        let bonus = match arm {
            Arm::Base => at_stake,
            Arm::Narrow { vcpus } if scale.yardstick != Yardstick::Metric && may_not_fit(vcpus) => DOUBT,
            _ => 1.0,
        };
        (arm, rates, bonus * scale.score(arm, &rates))
    };
    measured.iter().map(weigh).collect()
}

/// Which `count` vCPUs: as many as possible from one last-level-cache domain, the highest numbers, because devices
/// interrupt the lowest.
pub fn vcpus(config: &Config, count: u32) -> CpuSet {
    let domain = |cpu: usize| config.topology.llc_domain(cpu).intersection(&config.allowed);
    let mut order: Vec<usize> = config.allowed.iter().collect();
    // Largest domain first, domains apart, then the highest number.
    order.sort_by_key(|&cpu| {
        let domain = domain(cpu);
        (std::cmp::Reverse(domain.len()), domain.iter().next(), std::cmp::Reverse(cpu))
    });
    order.into_iter().take(count.max(1) as usize).collect()
}
