//! Groups and seats by table and by random histories, and the controller against small worlds.

use super::groups::{JOIN_LOAD, STAY_LOAD};
use super::*;
use crate::consolidate::{Objective, Permitted};
use muster_model::{ThreadLoad, Topology, WakePair};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PRICES: Prices =
    Prices { wake_same_cpu_ns: 1_700.0, wake_awake_ns: 15_700.0, wake_halted_ns: 22_500.0, handover_lines_ns: 0.0 };

fn config(topology: Topology) -> Config {
    Config {
        allowed: topology.all(),
        topology,
        prices: PRICES,
        objective: Objective::Speed,
        permitted: Permitted { consolidate: false, awake: false, poll: false, colocate: true },
        guest_halt_poll_ns: 0,
    }
}

fn two_vcpus() -> Config {
    config(Topology::regular(1, 1, 2, 1).expect("two CPUs are a machine"))
}

/// A window of one second: threads with their loads, pairs with their wake-ups in each direction.
fn window(loads: &[(u32, f64)], pairs: &[(u32, u32, u64)]) -> WakeWindow {
    let load = |&(thread, load): &(u32, f64)| ThreadLoad { thread: ThreadId(thread), cpu_ns: known(load) };
    let pair = |waker, wakee, count| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count };
    WakeWindow {
        window_ns: 1_000_000_000,
        pairs: pairs.iter().flat_map(|&(a, b, count)| [pair(a, b, count), pair(b, a, count)]).collect(),
        threads: loads.iter().map(load).collect(),
    }
}

/// A load that is no number is not known.
fn known(load: f64) -> Option<u64> {
    load.is_finite().then_some((load * 1e9) as u64)
}

fn rate(loads: &[(u32, f64)]) -> f64 {
    loads.iter().map(|(_, load)| load).sum()
}

fn ids(groups: &[Vec<ThreadId>]) -> Vec<Vec<u32>> {
    groups.iter().map(|group| group.iter().map(|thread| thread.0).collect()).collect()
}

const TWO_PAIRS: [(u32, f64); 4] = [(1, 0.3), (2, 0.3), (3, 0.25), (4, 0.25)];
const THEIR_WAKES: [(u32, u32, u64); 3] = [(1, 2, 20_000), (3, 4, 18_000), (2, 3, 20)];

/// A name, loads, pairs, and the groups they make.
type Case = (&'static str, Vec<(u32, f64)>, Vec<(u32, u32, u64)>, Vec<Vec<u32>>);

#[test]
fn threads_that_wake_each_other_belong_together() {
    let cases: [Case; 6] = [
        ("two pairs", TWO_PAIRS.into(), THEIR_WAKES.into(), vec![vec![1, 2], vec![3, 4]]),
        ("too busy for one vCPU", vec![(1, 0.6), (2, 0.5)], vec![(1, 2, 20_000)], vec![]),
        (
            "a chain is cut where its vCPU is full, at its rarest wake-ups",
            vec![(1, 0.4), (2, 0.4), (3, 0.4), (4, 0.4)],
            vec![(1, 2, 5_000), (2, 3, 3_000), (3, 4, 4_000)],
            vec![vec![1, 2], vec![3, 4]],
        ),
        ("rare wake-ups bind nobody", vec![(1, 0.1), (2, 0.1)], vec![(1, 2, 50)], vec![]),
        ("others are not the program's", vec![(1, 0.1)], vec![(1, 2, 9_000), (0, 1, 9_000)], vec![]),
        (
            "one that wakes many",
            vec![(1, 0.2), (2, 0.1), (3, 0.1), (4, 0.1)],
            vec![(1, 2, 900), (1, 3, 800), (1, 4, 700)],
            vec![vec![1, 2, 3, 4]],
        ),
    ];
    for (name, loads, pairs, wanted) in cases {
        assert_eq!(ids(&groups(&window(&loads, &pairs), rate(&loads))), wanted, "{name}");
    }
}

#[test]
fn a_thread_of_unknown_load_may_take_all_that_nobody_else_took() {
    let loads = [(1, 0.2), (2, f64::NAN)];
    let window = window(&loads, &[(1, 2, 10_000)]);
    assert_eq!(ids(&groups(&window, 0.8)), [[1, 2]]);
    assert!(groups(&window, 1.2).is_empty(), "0.2 known and up to 1.0 unknown are too much");
}

#[test]
fn most_wake_ups_of_two_pairs_are_inside() {
    let window = window(&TWO_PAIRS, &THEIR_WAKES);
    let inside = share_inside(&window, &groups(&window, rate(&TWO_PAIRS)));
    assert!(inside > 0.99 && inside <= 1.0, "{inside}");
}

/// A controller whose groups are formed from windows, without trials.
fn regrouped(config: Config, windows: &[(WakeWindow, f64)]) -> Controller {
    let mut controller = Controller::new(config);
    windows.iter().for_each(|(window, cpu_rate)| _ = controller.regroup(window, *cpu_rate));
    controller
}

fn seats(controller: &Controller) -> Vec<(Vec<u32>, String)> {
    let seat = |group: &Group| (group.threads.iter().map(|thread| thread.0).collect(), group.cpus.to_string());
    controller.groups.iter().map(seat).collect()
}

#[test]
fn groups_are_spread_over_cache_domains_and_stay() {
    let machine = Topology::regular(1, 2, 4, 1).expect("eight CPUs");
    let loads: Vec<(u32, f64)> = (1..=8).map(|thread| (thread, 0.2)).collect();
    let pairs = [(1, 2, 9_000), (3, 4, 8_000), (5, 6, 7_000), (7, 8, 6_000)];
    let first = (window(&loads, &pairs), rate(&loads));
    let controller = regrouped(config(machine.clone()), std::slice::from_ref(&first));
    let domains: Vec<CpuSet> =
        controller.groups.iter().map(|group| machine.llc_domain(group.cpus.iter().next().unwrap())).collect();
    let in_first = domains.iter().filter(|domain| domain.contains(0)).count();
    assert_eq!((domains.len(), in_first), (4, 2), "{domains:?}");
    let more_loads: Vec<(u32, f64)> = (1..=10).map(|thread| (thread, 0.2)).collect();
    let more = (window(&more_loads, &[pairs.as_slice(), &[(9, 10, 30_000)]].concat()), rate(&more_loads));
    let grown = regrouped(config(machine), &[first, more]);
    assert_eq!(seats(&grown)[..4], seats(&controller)[..], "a newcomer, however busy, moves nobody");
    assert_eq!(grown.groups.len(), 5);
}

#[test]
fn a_silent_thread_keeps_its_place_for_two_windows() {
    let awake = (window(&TWO_PAIRS, &THEIR_WAKES), 1.1);
    let asleep = (window(&[(1, 0.3), (2, 0.3), (3, 0.0), (4, 0.0)], &THEIR_WAKES[..1]), 0.6);
    for (windows, left) in [(1, 2), (2, 2), (3, 1)] {
        let mut history = vec![awake.clone()];
        history.extend(std::iter::repeat_n(asleep.clone(), windows));
        assert_eq!(regrouped(two_vcpus(), &history).groups.len(), left, "after {windows} silent windows");
    }
    let history = [awake.clone(), asleep.clone(), awake.clone(), asleep.clone(), asleep];
    assert_eq!(regrouped(two_vcpus(), &history).groups.len(), 2, "what it did in between counts");
}

#[test]
fn threads_that_end_or_turn_to_work_of_their_own_leave_at_once() {
    let awake = (window(&TWO_PAIRS, &THEIR_WAKES), 1.1);
    let ended = (window(&TWO_PAIRS[..3], &THEIR_WAKES[..1]), 0.9);
    let busy = (window(&[(1, 0.3), (2, 0.3), (3, 0.6), (4, 0.4)], &THEIR_WAKES[..1]), 1.6);
    for window in [ended, busy] {
        let after = regrouped(two_vcpus(), &[awake.clone(), window]);
        assert_eq!(after.groups.len(), 1, "{:?}", after.groups);
    }
}

#[test]
fn a_group_that_fills_its_vcpu_stays_and_takes_nobody_in() {
    let awake = (window(&TWO_PAIRS, &THEIR_WAKES), 1.1);
    let together = [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5), (5, 0.1)];
    let full = (window(&together, &[(1, 2, 90_000), (3, 4, 90_000), (4, 5, 20_000)]), 2.1);
    let before = regrouped(two_vcpus(), std::slice::from_ref(&awake));
    assert_eq!(seats(&regrouped(two_vcpus(), &[awake, full])), seats(&before));
}

fn machines() -> impl Strategy<Value = Topology> {
    prop_oneof![Just((1, 1, 2, 1)), Just((1, 2, 4, 1)), Just((2, 4, 8, 2)), Just((1, 3, 1, 2))]
        .prop_map(|(sockets, llcs, cores, threads)| Topology::regular(sockets, llcs, cores, threads).unwrap())
}

/// Some of the CPUs of a machine, at least one.
fn settings() -> impl Strategy<Value = Config> {
    (machines(), proptest::collection::vec(any::<bool>(), 128)).prop_map(|(machine, chosen)| {
        let mut config = config(machine);
        let some: CpuSet = config.allowed.iter().filter(|&cpu| chosen[cpu]).collect();
        config.allowed = if some.is_empty() { CpuSet::single(0) } else { some };
        config
    })
}

fn random_window(threads: u32) -> impl Strategy<Value = (WakeWindow, f64)> {
    let loads = proptest::collection::vec(proptest::option::of(0u64..10_000_000), threads as usize);
    let pairs = proptest::collection::vec((0..threads + 2, 0..threads, 0u64..2_000), 0..4 * threads as usize);
    (loads, pairs, 0.0..130.0f64, 0..threads).prop_map(move |(loads, pairs, cpu_rate, ended)| {
        let load = |(thread, cpu_ns)| ThreadLoad { thread: ThreadId(thread), cpu_ns };
        let pair = |(waker, wakee, count)| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count };
        let window = WakeWindow {
            window_ns: 10_000_000,
            pairs: pairs.into_iter().map(pair).collect(),
            threads: (0..).zip(loads).map(load).filter(|load| load.thread.0 != ended).collect(),
        };
        (window, cpu_rate)
    })
}

/// What the threads of a group are known to have taken.
fn known_load(group: &Group, window: &WakeWindow) -> f64 {
    let loads: BTreeMap<ThreadId, Option<u64>> = window.threads.iter().map(|load| (load.thread, load.cpu_ns)).collect();
    let ns: u64 = group.threads.iter().filter_map(|thread| loads[thread]).sum();
    ns as f64 / window.window_ns as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn groups_keep_their_bounds_over_any_history(
        config in settings(),
        history in (2u32..300).prop_flat_map(|threads| proptest::collection::vec(random_window(threads), 1..5)),
    ) {
        let mut controller = Controller::new(config.clone());
        let mut twin = Controller::new(config.clone());
        for (window, cpu_rate) in &history {
            let before: BTreeSet<ThreadId> = controller.groups.iter().flat_map(|group| group.threads.clone()).collect();
            controller.regroup(window, *cpu_rate);
            twin.regroup(window, *cpu_rate);
            prop_assert_eq!(&controller.groups, &twin.groups);
            let mut seen = BTreeSet::new();
            for group in &controller.groups {
                prop_assert!(group.threads.len() > 1 && group.threads.iter().all(|&thread| seen.insert(thread)));
                prop_assert!(group.cpus.len() == 1 && group.cpus.is_subset(&config.allowed));
                let is_new = !group.threads.iter().any(|thread| before.contains(thread));
                let bound = if is_new { JOIN_LOAD } else { STAY_LOAD };
                prop_assert!(known_load(group, window) <= bound + 1e-9, "{:?}", group);
            }
        }
    }

    #[test]
    fn the_same_again_changes_nothing(
        config in settings(), (window, cpu_rate) in (2u32..300).prop_flat_map(random_window),
    ) {
        let mut controller = Controller::new(config);
        controller.regroup(&window, cpu_rate);
        let (first, mut loads) = (controller.groups.clone(), BTreeMap::new());
        for group in &first {
            *loads.entry(group.cpus.to_string()).or_insert(0.0) += known_load(group, &window);
        }
        prop_assert!(loads.values().all(|&load| load <= JOIN_LOAD + 1e-9), "{:?}", loads);
        for _ in 0..5 {
            controller.regroup(&window, cpu_rate);
            prop_assert_eq!(&controller.groups, &first);
        }
    }
}

/// What a program of two pairs does in one setting, per second.
#[derive(Debug, Clone, Copy)]
struct Behaviour {
    cpu: f64,
    halts: f64,
    switches: f64,
    io_calls: f64,
}

/// Two pairs that hand over through pipes: spread, and each on one vCPU.
fn ping_pong(together: bool) -> Behaviour {
    match together {
        false => Behaviour { cpu: 1.1, halts: 50e3, switches: 55e3, io_calls: 110e3 },
        true => Behaviour { cpu: 2.0, halts: 200.0, switches: 400e3, io_calls: 800e3 },
    }
}

/// The same on a machine where it loses.
fn loses(together: bool) -> Behaviour {
    match together {
        false => ping_pong(false),
        true => Behaviour { cpu: 2.0, halts: 200.0, switches: 45e3, io_calls: 90e3 },
    }
}

fn computes(together: bool) -> Behaviour {
    Behaviour { cpu: if together { 2.0 } else { 4.0 }, halts: 50.0, switches: 1e3, io_calls: 0.0 }
}

/// A world that lives through a controller's decisions.
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
        let controller = Controller::new(config(Topology::regular(1, 1, 4, 1).expect("four CPUs")));
        let decision = controller.first();
        Self { controller, decision, now_ns: 0, asked: 0, lived: Vec::new() }
    }

    fn are_together(&self) -> bool {
        self.decision.groups.iter().any(|group| group.threads.len() > 1)
    }

    fn live(&mut self, for_ns: u64, program: impl Fn(bool) -> Behaviour) {
        let end_ns = self.now_ns + for_ns;
        while self.now_ns < end_ns {
            let (together, period_ns) = (self.are_together(), self.decision.next_period_ns);
            let wants_pairs = self.controller.wants_pairs();
            self.asked += u32::from(wants_pairs);
            self.now_ns += period_ns;
            self.lived.push((together, period_ns));
            let mut facts = facts(self.now_ns, period_ns, &program(together));
            let seen = || if facts.idle_entries > Some(0) { &THEIR_WAKES[..] } else { &[] };
            // Every other time the world cannot afford to look.
            facts.pairs = (wants_pairs && self.asked.is_multiple_of(2)).then(|| window(&TWO_PAIRS, seen()));
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

fn facts(now_ns: u64, period_ns: u64, program: &Behaviour) -> PeriodFacts {
    let count = |rate: f64| (rate * period_ns as f64 / 1e9) as u64;
    PeriodFacts {
        now_ns,
        period_ns,
        active: CpuSet::first(4),
        cpu_ns: count(program.cpu * 1e9),
        user_ns: None,
        foreign_ns: None,
        idle_entries: Some(count(program.halts)),
        idle_ns: None,
        poll_entries: None,
        poll_ns: None,
        waiting_ns: None,
        switches: Some(count(program.switches)),
        io_calls: Some(count(program.io_calls)),
        io_bytes: Some(count(program.io_calls)),
        progress: None,
        threads: 4,
        pairs: None,
    }
}

const SECOND_NS: u64 = 1_000_000_000;

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
fn half_together(together: bool) -> Behaviour {
    match together {
        false => Behaviour { cpu: 1.1, halts: 12e3, switches: 241e3, io_calls: 0.0 },
        true => Behaviour { cpu: 1.41, halts: 0.0, switches: 336e3, io_calls: 0.0 },
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
    while !matches!(world.controller.state, State::Trying(Trial { held: true, long: false, .. })) {
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
