//! Groups and seats by table and by random histories.

use super::groups::{JOIN_LOAD, STAY_LOAD};
use super::*;
use muster_model::{ThreadLoad, WakePair};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The vCPUs a program may use, of which machine.
#[derive(Debug, Clone)]
struct Setting {
    allowed: CpuSet,
    topology: Topology,
}

impl Setting {
    fn all_of(topology: Topology) -> Self {
        Self { allowed: topology.all(), topology }
    }

    fn regroup(&self, colocation: &mut Colocation, window: &WakeWindow, cpu_rate: f64) {
        colocation.regroup(window, cpu_rate, &self.allowed, &self.topology);
    }
}

fn two_vcpus() -> Setting {
    Setting::all_of(Topology::regular(1, 1, 2, 1).expect("two CPUs are a machine"))
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

fn regrouped(setting: Setting, windows: &[(WakeWindow, f64)]) -> Colocation {
    let mut colocation = Colocation::default();
    windows.iter().for_each(|(window, cpu_rate)| setting.regroup(&mut colocation, window, *cpu_rate));
    colocation
}

fn seats(colocation: &Colocation) -> Vec<(Vec<u32>, String)> {
    let seat = |group: &Group| (group.threads.iter().map(|thread| thread.0).collect(), group.cpus.to_string());
    colocation.groups.iter().map(seat).collect()
}

#[test]
fn groups_are_spread_over_cache_domains_and_stay() {
    let machine = Topology::regular(1, 2, 4, 1).expect("eight CPUs");
    let loads: Vec<(u32, f64)> = (1..=8).map(|thread| (thread, 0.2)).collect();
    let pairs = [(1, 2, 9_000), (3, 4, 8_000), (5, 6, 7_000), (7, 8, 6_000)];
    let first = (window(&loads, &pairs), rate(&loads));
    let colocation = regrouped(Setting::all_of(machine.clone()), std::slice::from_ref(&first));
    let domains: Vec<CpuSet> =
        colocation.groups.iter().map(|group| machine.llc_domain(group.cpus.iter().next().unwrap())).collect();
    let in_first = domains.iter().filter(|domain| domain.contains(0)).count();
    assert_eq!((domains.len(), in_first), (4, 2), "{domains:?}");
    let more_loads: Vec<(u32, f64)> = (1..=10).map(|thread| (thread, 0.2)).collect();
    let more = (window(&more_loads, &[pairs.as_slice(), &[(9, 10, 30_000)]].concat()), rate(&more_loads));
    let grown = regrouped(Setting::all_of(machine), &[first, more]);
    assert_eq!(seats(&grown)[..4], seats(&colocation)[..], "a newcomer, however busy, moves nobody");
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
fn settings() -> impl Strategy<Value = Setting> {
    (machines(), proptest::collection::vec(any::<bool>(), 128)).prop_map(|(machine, chosen)| {
        let some: CpuSet = machine.all().iter().filter(|&cpu| chosen[cpu]).collect();
        Setting { allowed: if some.is_empty() { CpuSet::single(0) } else { some }, topology: machine }
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
        setting in settings(),
        history in (2u32..300).prop_flat_map(|threads| proptest::collection::vec(random_window(threads), 1..5)),
    ) {
        let (mut colocation, mut twin) = (Colocation::default(), Colocation::default());
        for (window, cpu_rate) in &history {
            let before: BTreeSet<ThreadId> = colocation.groups.iter().flat_map(|group| group.threads.clone()).collect();
            setting.regroup(&mut colocation, window, *cpu_rate);
            setting.regroup(&mut twin, window, *cpu_rate);
            prop_assert_eq!(&colocation.groups, &twin.groups);
            let mut seen = BTreeSet::new();
            for group in &colocation.groups {
                prop_assert!(group.threads.len() > 1 && group.threads.iter().all(|&thread| seen.insert(thread)));
                prop_assert!(group.cpus.len() == 1 && group.cpus.is_subset(&setting.allowed));
                let is_new = !group.threads.iter().any(|thread| before.contains(thread));
                let bound = if is_new { JOIN_LOAD } else { STAY_LOAD };
                prop_assert!(known_load(group, window) <= bound + 1e-9, "{:?}", group);
            }
        }
    }

    #[test]
    fn the_same_again_changes_nothing(
        setting in settings(), (window, cpu_rate) in (2u32..300).prop_flat_map(random_window),
    ) {
        let mut colocation = Colocation::default();
        setting.regroup(&mut colocation, &window, cpu_rate);
        let (first, mut loads) = (colocation.groups.clone(), BTreeMap::new());
        for group in &first {
            *loads.entry(group.cpus.to_string()).or_insert(0.0) += known_load(group, &window);
        }
        prop_assert!(loads.values().all(|&load| load <= JOIN_LOAD + 1e-9), "{:?}", loads);
        for _ in 0..5 {
            setting.regroup(&mut colocation, &window, cpu_rate);
            prop_assert_eq!(&colocation.groups, &first);
        }
    }
}
