//! Groups of threads that wake each other, as one setting among others: a mechanical world of pairs and computing threads,
//! and worlds whose facts are told by hand.

use super::{PRICES, SECOND_NS, facts};
use crate::consolidate::*;
use muster_model::{ThreadLoad, WakePair};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ALL: Permitted = Permitted { consolidate: true, awake: true, poll: true, colocate: true };
const GROUPS_ONLY: Permitted = Permitted { consolidate: false, awake: false, poll: false, colocate: true };

fn config(vcpus: usize, permitted: Permitted) -> Config {
    let topology = Topology::regular(1, vcpus.div_ceil(8) as u32, vcpus.min(8) as u32, 1).expect("a machine");
    Config {
        allowed: CpuSet::first(vcpus),
        topology,
        prices: PRICES,
        objective: Objective::Speed,
        permitted,
        guest_halt_poll_ns: 0,
    }
}

/// Pairs of threads (numbers 2n and 2n + 1) that hand over to each other, each side working `WORK_NS`, with a pause after
/// every `BURST`; and threads that compute.
#[derive(Debug, Clone, Copy)]
struct Program {
    pairs: u32,
    computing: u32,
}

const WORK_NS: f64 = 4_000.0;
const BURST: f64 = 100.0;
const PAUSE_NS: f64 = 200_000.0;
const FIRST_COMPUTING: u32 = 10_000;

/// How a pair's wake-ups are, and what its vCPU gives it.
#[derive(Debug, Clone, Copy)]
struct Handover {
    price_ns: f64,
    /// Part of the wake-up in which nobody is charged.
    latent_ns: f64,
}

impl Handover {
    fn of(pair: u32, decision: &Decision) -> Self {
        let is_together = |group: &Group| {
            group.cpus.len() == 1
                && [2 * pair, 2 * pair + 1].iter().all(|&thread| group.threads.contains(&ThreadId(thread)))
        };
        let price_ns = match decision.idle {
            _ if decision.groups.iter().any(is_together) || decision.active.len() == 1 => PRICES.wake_same_cpu_ns,
            IdleMode::Poll { .. } => PRICES.wake_same_cpu_ns,
            IdleMode::Awake => PRICES.wake_awake_ns,
            IdleMode::Untouched => PRICES.wake_halted_ns,
        };
        Self { price_ns, latent_ns: if price_ns == PRICES.wake_halted_ns { 0.5 * price_ns } else { 0.0 } }
    }

    /// Hand-overs a second where no vCPU is short.
    fn rate(self) -> f64 {
        1e9 / (WORK_NS + self.price_ns + self.latent_ns + PAUSE_NS / BURST)
    }

    /// The CPUs that keeps busy.
    fn load(self) -> f64 {
        self.rate() * (WORK_NS + self.price_ns) / 1e9
    }
}

impl Program {
    /// The share of what it could do that each pair gets under `decision`, and each computing thread.
    fn shares(&self, decision: &Decision) -> (Vec<f64>, f64) {
        let mut seats: BTreeMap<usize, f64> = BTreeMap::new();
        let mut seat_of: BTreeMap<u32, usize> = BTreeMap::new();
        for group in &decision.groups {
            let seat = group.cpus.iter().next().expect("a seat");
            for pair in group.threads.iter().filter(|thread| thread.0 % 2 == 0).map(|thread| thread.0 / 2) {
                *seats.entry(seat).or_default() += Handover::of(pair, decision).load();
                seat_of.insert(pair, seat);
            }
        }
        let pairs: f64 = (0..self.pairs).map(|pair| Handover::of(pair, decision).load()).sum();
        let everywhere = (decision.active.len() as f64 / (pairs + f64::from(self.computing))).min(1.0);
        let share = |pair| seat_of.get(&pair).map_or(everywhere, |seat| everywhere.min(1.0 / seats[seat]));
        ((0..self.pairs).map(share).collect(), everywhere)
    }

    fn facts(&self, decision: &Decision, now_ns: u64) -> PeriodFacts {
        let (shares, computing) = self.shares(decision);
        let period_s = decision.next_period_ns as f64 / 1e9;
        let (mut cpu, mut halts, mut polls, mut switches) = (computing * f64::from(self.computing), 0.0, 0.0, 0.0);
        for (pair, share) in (0..).zip(&shares) {
            let handover = Handover::of(pair, decision);
            let rate = share * handover.rate();
            cpu += share * handover.load();
            switches += rate;
            halts += if handover.latent_ns > 0.0 { rate } else { 0.0 };
            polls += if matches!(decision.idle, IdleMode::Poll { .. }) { rate } else { 0.0 };
        }
        let count = |rate: f64| (rate * period_s) as u64;
        // While one of a pair works the vCPU of the other polls.
        let polling = if polls > 0.0 { f64::from(self.pairs) } else { 0.0 };
        PeriodFacts {
            idle_entries: Some(count(halts)),
            poll_entries: Some(count(polls)),
            poll_ns: Some(count(polling * 1e9)),
            cpu_ns: count(cpu * 1e9),
            switches: Some(count(switches)),
            threads: 2 * self.pairs + self.computing,
            ..facts(now_ns, decision.next_period_ns, decision.active, NOTHING)
        }
    }

    /// Who wakes whom under `decision`.
    fn window(&self, decision: &Decision) -> WakeWindow {
        let (shares, computing) = self.shares(decision);
        let count = |rate: f64| (rate * decision.next_period_ns as f64 / 1e9) as u64;
        let (mut pairs, mut threads) = (Vec::new(), Vec::new());
        for (pair, share) in (0..).zip(&shares) {
            let (a, b) = (ThreadId(2 * pair), ThreadId(2 * pair + 1));
            let handover = Handover::of(pair, decision);
            let wakes = count(share * handover.rate() / 2.0);
            let cpu_ns = Some(count(share * handover.load() / 2.0 * 1e9));
            pairs.extend([(a, b), (b, a)].map(|(waker, wakee)| WakePair { waker, wakee, count: wakes }));
            threads.extend([a, b].map(|thread| ThreadLoad { thread, cpu_ns }));
        }
        let alone = |n| ThreadLoad { thread: ThreadId(FIRST_COMPUTING + n), cpu_ns: Some(count(computing * 1e9)) };
        threads.extend((0..self.computing).map(alone));
        WakeWindow { window_ns: decision.next_period_ns, pairs, threads }
    }
}

const NOTHING: super::Behaviour =
    super::Behaviour { cpu: 0.0, halts: 0.0, polls: 0.0, switches: 0.0, io_calls: 0.0, metric: None };

/// A program's life under the controller.
struct Life {
    controller: Controller,
    decision: Decision,
    now_ns: u64,
    /// Whether it can be seen who wakes whom.
    shows_pairs: bool,
    history: Vec<(u64, Decision)>,
}

impl Life {
    fn new(config: Config) -> Self {
        let controller = Controller::new(config);
        let decision = controller.first();
        Self { controller, decision, now_ns: 0, shows_pairs: true, history: Vec::new() }
    }

    fn live(&mut self, for_ns: u64, program: Program) {
        let end_ns = self.now_ns + for_ns;
        while self.now_ns < end_ns {
            self.now_ns += self.decision.next_period_ns;
            let is_seen = self.shows_pairs && self.decision.wanted == Wanted::Pairs;
            let pairs = is_seen.then(|| program.window(&self.decision));
            let facts = PeriodFacts { pairs, ..program.facts(&self.decision, self.now_ns) };
            let next = self.controller.step(&facts);
            self.history.push((self.now_ns, std::mem::replace(&mut self.decision, next)));
        }
    }

    fn groups(&self) -> Vec<Vec<u32>> {
        self.decision.groups.iter().map(|group| group.threads.iter().map(|thread| thread.0).collect()).collect()
    }

    fn seats(&self) -> BTreeSet<usize> {
        self.decision.groups.iter().flat_map(|group| group.cpus.iter()).collect()
    }

    /// When a decision like this was first in force to its end.
    fn first(&self, wanted: impl Fn(&Decision) -> bool) -> Option<u64> {
        self.history.iter().find(|(_, decision)| wanted(decision)).map(|(at_ns, _)| *at_ns)
    }
}

fn pairs_of(count: u32) -> Vec<Vec<u32>> {
    (0..count).map(|pair| vec![2 * pair, 2 * pair + 1]).collect()
}

#[test]
fn pairs_get_a_vcpu_each_on_any_number_of_vcpus() {
    for (vcpus, pairs) in [(8, 3), (16, 6), (128, 32), (128, 63)] {
        for poll in [false, true] {
            let mut life = Life::new(config(vcpus, Permitted { poll, ..ALL }));
            life.live(SECOND_NS, Program { pairs, computing: 0 });
            assert_eq!(life.groups(), pairs_of(pairs), "{vcpus} {poll}: {:?}", life.controller.arm);
            assert_eq!(life.seats().len(), pairs as usize, "{vcpus} {poll}");
            assert_eq!(life.decision.active, CpuSet::first(vcpus), "the others stay in use");
            let held = life.first(|decision| decision.why == Reason::Holding && !decision.groups.is_empty());
            assert!(held.is_some_and(|at_ns| at_ns < SECOND_NS / 5), "{vcpus} {poll}: {held:?}");
        }
    }
}

#[test]
fn computing_threads_are_left_where_they_are() {
    for (vcpus, pairs, computing) in [(8, 2, 3), (16, 4, 8), (128, 20, 64)] {
        let mut life = Life::new(config(vcpus, ALL));
        life.live(2 * SECOND_NS, Program { pairs, computing });
        assert_eq!(life.groups(), pairs_of(pairs), "{vcpus}: {:?}", life.controller.arm);
    }
    let mut life = Life::new(config(16, ALL));
    life.live(2 * SECOND_NS, Program { pairs: 0, computing: 16 });
    assert!(life.first(|decision| decision.wanted == Wanted::Pairs).is_none(), "nobody asks who wakes whom");
}

#[test]
fn groups_follow_the_program() {
    let mut life = Life::new(config(16, ALL));
    life.live(SECOND_NS, Program { pairs: 4, computing: 0 });
    assert_eq!(life.groups(), pairs_of(4));
    let seats = life.seats();
    life.live(2 * SECOND_NS, Program { pairs: 6, computing: 0 });
    assert_eq!(life.groups(), pairs_of(6), "newcomers join");
    assert!(seats.is_subset(&life.seats()), "and move nobody");
    life.live(2 * SECOND_NS, Program { pairs: 3, computing: 0 });
    assert_eq!(life.groups(), pairs_of(3), "who has ended leaves");
    life.history.clear();
    life.live(1, Program { pairs: 0, computing: 16 });
    while !life.decision.groups.is_empty() {
        life.live(1, Program { pairs: 0, computing: 16 });
    }
    assert!(life.decision.spread, "they are pulled apart");
    assert!(life.history.len() <= 2, "and at once: {:?}", life.history);
    life.live(SECOND_NS, Program { pairs: 0, computing: 16 });
    assert_eq!((life.groups(), life.decision.active), (Vec::new(), CpuSet::first(16)));
}

#[test]
fn a_phase_that_comes_back_gets_its_groups_back() {
    let mut life = Life::new(config(16, ALL));
    life.live(SECOND_NS, Program { pairs: 4, computing: 0 });
    for _ in 0..10 {
        life.live(SECOND_NS / 20, Program { pairs: 0, computing: 16 });
        assert_eq!(life.groups(), pairs_of(0));
        life.live(SECOND_NS / 50, Program { pairs: 4, computing: 0 });
        assert_eq!(life.groups(), pairs_of(4), "{:?}", life.controller.state);
    }
}

#[test]
fn other_settings_do_not_wait_for_who_wakes_whom() {
    let is_held = |decision: &Decision| decision.why == Reason::Holding;
    let first_held = |colocate| {
        let mut life = Life::new(config(16, Permitted { colocate, ..ALL }));
        life.shows_pairs = false;
        life.live(SECOND_NS, Program { pairs: 4, computing: 0 });
        (life.first(is_held).expect("polling pays"), life)
    };
    let ((without_ns, _), (with_ns, mut life)) = (first_held(false), first_held(true));
    assert!(with_ns <= without_ns + LOOK_NS, "{with_ns} {without_ns}");
    assert_eq!((life.groups(), life.controller.arm), (Vec::new(), Arm::Poll));
    life.shows_pairs = true;
    life.live(4 * SECOND_NS, Program { pairs: 4, computing: 0 });
    assert_eq!(life.groups(), pairs_of(4), "once it is seen they are tried");
}

#[test]
fn who_wants_short_waits_gets_no_groups() {
    for permitted in [ALL, GROUPS_ONLY] {
        let mut life = Life::new(Config { objective: Objective::Tail, ..config(16, permitted) });
        life.live(2 * SECOND_NS, Program { pairs: 4, computing: 0 });
        assert!(
            life.history.iter().all(|(_, decision)| decision.groups.is_empty() && decision.wanted != Wanted::Pairs)
        );
    }
}

fn any_window() -> impl Strategy<Value = Option<WakeWindow>> {
    let loads = prop::collection::vec(prop::option::of(0u64..10_000_000), 2..40);
    let pairs = prop::collection::vec((0..42u32, 0..40u32, 0u64..2_000), 0..120);
    prop::option::of((loads, pairs).prop_map(|(loads, pairs)| {
        WakeWindow {
            window_ns: LOOK_NS,
            pairs: pairs
                .into_iter()
                .map(|(waker, wakee, count)| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count })
                .collect(),
            threads: (0..).zip(loads).map(|(n, cpu_ns)| ThreadLoad { thread: ThreadId(n), cpu_ns }).collect(),
        }
    }))
}

proptest! {
    /// Whatever it is told, no thread is in two groups and each group has a vCPU of the program; and who may not group
    /// neither asks who wakes whom nor groups.
    #[test]
    fn groups_stay_within_the_programs_limits(
        history in prop::collection::vec((super::any_facts(), any_window()), 1..200),
        vcpus in 1usize..=40,
        colocate in any::<bool>(),
        others in any::<bool>(),
    ) {
        let mut config = config(40, Permitted { consolidate: others, awake: others, poll: others, colocate });
        config.allowed = CpuSet::first(vcpus);
        let (mut controller, mut now_ns) = (Controller::new(config.clone()), 0);
        for ((period_ns, mut facts), pairs) in history {
            now_ns += period_ns;
            facts = PeriodFacts { now_ns, pairs, ..facts };
            let decision = controller.step(&facts);
            let mut seen = BTreeSet::new();
            for group in &decision.groups {
                prop_assert!(group.threads.iter().all(|thread| seen.insert(*thread)));
                prop_assert!(group.cpus.len() == 1 && group.cpus.is_subset(&config.allowed));
            }
            prop_assert!(decision.groups.is_empty() || decision.active == config.allowed);
            prop_assert!(colocate || decision.groups.is_empty() && decision.wanted != Wanted::Pairs);
        }
    }
}

/// What a program of two pairs does in one setting, per second.
#[derive(Debug, Clone, Copy)]
struct Told {
    cpu: f64,
    halts: f64,
    switches: f64,
    io_calls: f64,
}

/// Two pairs that hand over through pipes: spread, and each on one vCPU.
fn ping_pong(together: bool) -> Told {
    match together {
        false => Told { cpu: 1.1, halts: 50e3, switches: 55e3, io_calls: 110e3 },
        true => Told { cpu: 2.0, halts: 200.0, switches: 400e3, io_calls: 800e3 },
    }
}

/// The same on a machine where it loses.
fn loses(together: bool) -> Told {
    match together {
        false => ping_pong(false),
        true => Told { cpu: 2.0, halts: 200.0, switches: 45e3, io_calls: 90e3 },
    }
}

fn computes(together: bool) -> Told {
    Told { cpu: if together { 2.0 } else { 4.0 }, halts: 50.0, switches: 1e3, io_calls: 0.0 }
}

/// A world that lives through a controller's decisions, told by hand.
struct World {
    controller: Controller,
    decision: Decision,
    now_ns: u64,
    asked: u32,
    /// Whether each period that ended was spent in groups, and its length.
    lived: Vec<(bool, u64)>,
}

impl World {
    fn new() -> Self {
        let controller = Controller::new(config(4, GROUPS_ONLY));
        let decision = controller.first();
        Self { controller, decision, now_ns: 0, asked: 0, lived: Vec::new() }
    }

    fn are_together(&self) -> bool {
        self.decision.groups.iter().any(|group| group.threads.len() > 1)
    }

    fn live(&mut self, for_ns: u64, program: impl Fn(bool) -> Told) {
        let end_ns = self.now_ns + for_ns;
        while self.now_ns < end_ns {
            let (together, period_ns) = (self.are_together(), self.decision.next_period_ns);
            let wants_pairs = self.decision.wanted == Wanted::Pairs;
            self.asked += u32::from(wants_pairs);
            self.now_ns += period_ns;
            self.lived.push((together, period_ns));
            let mut facts = told(self.now_ns, period_ns, &program(together));
            let seen = || if facts.idle_entries > Some(0) { &THEIR_WAKES[..] } else { &[] };
            // Every other time the world cannot afford to look.
            facts.pairs = (wants_pairs && self.asked.is_multiple_of(2)).then(|| window(seen()));
            self.decision = self.controller.step(&facts);
            assert_eq!(self.decision.active, self.controller.config.allowed);
        }
    }

    /// The share of the last `for_ns` spent in groups.
    fn share_together(&self, for_ns: u64) -> f64 {
        let mut left_ns = for_ns;
        let recent = self.lived.iter().rev().take_while(|(_, ns)| {
            let is_recent = left_ns > 0;
            left_ns = left_ns.saturating_sub(*ns);
            is_recent
        });
        let (together, all) =
            recent.fold((0, 0), |(together, all), (is, ns)| (together + if *is { *ns } else { 0 }, all + ns));
        together as f64 / all as f64
    }
}

/// Two pairs, which wake each other so often in each direction, over one second.
const THEIR_WAKES: [(u32, u32, u64); 2] = [(1, 2, 20_000), (3, 4, 18_000)];

fn window(wakes: &[(u32, u32, u64)]) -> WakeWindow {
    let pair = |waker, wakee, count| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count };
    WakeWindow {
        window_ns: SECOND_NS,
        pairs: wakes.iter().flat_map(|&(a, b, count)| [pair(a, b, count), pair(b, a, count)]).collect(),
        threads: (1..=4).map(|n| ThreadLoad { thread: ThreadId(n), cpu_ns: Some(275_000_000) }).collect(),
    }
}

fn told(now_ns: u64, period_ns: u64, program: &Told) -> PeriodFacts {
    let Told { cpu, halts, switches, io_calls } = *program;
    let behaviour = super::Behaviour { cpu, halts, switches, io_calls, ..NOTHING };
    PeriodFacts { waiting_ns: None, threads: 4, ..facts(now_ns, period_ns, CpuSet::first(4), behaviour) }
}

#[test]
fn what_pays_is_held_and_looked_at_rarely() {
    let mut world = World::new();
    world.live(SECOND_NS / 5, ping_pong);
    assert!(world.are_together());
    world.live(20 * SECOND_NS, ping_pong);
    assert!(world.share_together(20 * SECOND_NS) > 0.98, "{}", world.share_together(20 * SECOND_NS));
    assert!(world.asked < 60, "{}", world.asked);
}

#[test]
fn what_does_not_pay_is_withdrawn_and_tried_rarely() {
    let mut world = World::new();
    world.live(20 * SECOND_NS, loses);
    assert!(world.share_together(20 * SECOND_NS) < 0.03, "{}", world.share_together(20 * SECOND_NS));
    world.live(10 * SECOND_NS, ping_pong);
    assert!(!world.lived.iter().all(|(together, _)| !together));
    assert!(world.are_together(), "what pays later is found later");
}

/// Two pairs that meet on a vCPU by themselves half of the time, as `muster run --trace` showed them on 2 vCPUs.
fn half_together(together: bool) -> Told {
    match together {
        false => Told { cpu: 1.1, halts: 12e3, switches: 241e3, io_calls: 0.0 },
        true => Told { cpu: 1.41, halts: 0.0, switches: 336e3, io_calls: 0.0 },
    }
}

#[test]
fn wake_ups_that_were_cheap_before_are_charged_too() {
    let mut world = World::new();
    world.live(2 * SECOND_NS, half_together);
    assert!(world.share_together(SECOND_NS) > 0.8, "{}", world.share_together(SECOND_NS));
}

#[test]
fn one_bad_measurement_withdraws_nothing() {
    let mut world = World::new();
    world.live(SECOND_NS, ping_pong);
    let busy_a_moment = |together| if together { loses(true) } else { ping_pong(true) };
    while !matches!(world.controller.state, State::Trying(_)) {
        world.live(1, ping_pong);
    }
    while matches!(world.controller.state, State::Trying(Trial { long: false, .. })) {
        world.live(1, busy_a_moment);
    }
    world.live(SECOND_NS / 10, ping_pong);
    assert!(matches!(world.controller.state, State::Holding(_)), "{:?}", world.controller.state);
}

#[test]
fn a_program_that_computes_is_left_alone() {
    let mut world = World::new();
    world.live(5 * SECOND_NS, computes);
    assert_eq!((world.share_together(5 * SECOND_NS), world.asked), (0.0, 0));
}

#[test]
fn threads_that_want_to_work_at_once_are_let_go_within_two_periods() {
    let mut world = World::new();
    world.live(2 * SECOND_NS, ping_pong);
    assert!(world.are_together());
    let periods = world.lived.len();
    while world.are_together() {
        world.live(1, computes);
    }
    assert!(world.lived.len() <= periods + 2, "{:?}", &world.lived[periods..]);
    world.live(1, computes);
    assert!(world.decision.groups.is_empty(), "kept apart for one period only");
}
