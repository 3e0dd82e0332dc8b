//! What the window, the gap and directed yield are held to.

use super::*;
use proptest::prelude::*;

fn waits(of: impl IntoIterator<Item = u64>) -> Waits {
    let mut waits = Waits::default();
    of.into_iter().for_each(|cycles| waits.add(cycles));
    waits
}

/// The curve that loops make, each with the distance of its PAUSEs and its exits, over the gaps 2^0 to 2^16.
fn curve(loops: &[(u32, f64)]) -> Vec<ExitRate> {
    let per_second = |gap| loops.iter().filter(|(spacing, _)| *spacing <= gap).map(|(_, exits)| exits).sum();
    (0..=16).map(|power| ExitRate { gap: 1 << power, per_second: per_second(1 << power) }).collect()
}

proptest! {
    /// Against sorting: the window is a power of two, at most 0.5 % are longer, and more are longer than half of it.
    #[test]
    fn the_window_is_the_least_that_few_waits_exceed(
        shapes in proptest::collection::vec((0u32..31, 1usize..400), 1..6), seed: u64
    ) {
        let mut state = seed | 1;
        let mut next = move || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
        let drawn: Vec<u64> = shapes.iter().flat_map(|&(power, count)| vec![power; count])
            .map(|power| next() % (1 << power)).collect();
        let window = u64::from(window(&waits(drawn.iter().copied())).unwrap());
        let longer = |than: u64| drawn.iter().filter(|&&cycles| cycles > than).count() * 1000;
        prop_assert!(window.is_power_of_two());
        prop_assert!(longer(window) <= drawn.len() * 5);
        prop_assert!(window == 1 || longer(window / 2) > drawn.len() * 5);
    }

    /// Whatever the unit of the rates and however far the curve goes on flat beyond, one kind of loop is seen by the gap,
    /// and by the next smaller power of two or the one before it no longer.
    #[test]
    fn a_step_is_found_wherever_it_is(spacing in 2u32..30_000, exits in 1e-3f64..1e9) {
        let gap = beyond(knee(&curve(&[(spacing, exits)])).unwrap()).unwrap();
        prop_assert!(gap.is_power_of_two() && gap > spacing && gap / 4 < spacing, "{gap} for {spacing}");
    }

    /// Loops that pause for other reasons, far apart and rarely, do not draw the gap to them.
    #[test]
    fn a_tail_does_not_move_the_knee(power in 3u32..8, others in proptest::collection::vec((8u32..16, 0.0f64..1.0), 0..6)) {
        let share = 0.15 / others.len().max(1) as f64;
        let mut loops = vec![((1 << power) - 3, 100.0)];
        loops.extend(others.iter().map(|&(power, part)| ((1 << power) + 1, 100.0 * share * part)));
        prop_assert_eq!(knee(&curve(&loops)).unwrap(), 1 << power);
    }

    /// The knee sees at least as much of the rise as the straight line would.
    #[test]
    fn the_knee_lies_on_or_above_the_line(rises in proptest::collection::vec(0.0f64..10.0, 3..20)) {
        let mut sum = 0.0;
        let points = rises.iter().enumerate().map(|(power, rise)| { sum += rise; ExitRate { gap: 1 << power, per_second: sum } });
        let points: Vec<_> = points.collect();
        prop_assume!(points[points.len() - 1].per_second > points[0].per_second);
        let knee = knee(&points).unwrap();
        let at = knee.ilog2() as usize;
        let (first, last) = (points[0].per_second, points[points.len() - 1].per_second);
        let line = first + (last - first) * at as f64 / (points.len() - 1) as f64;
        prop_assert!(points[at].per_second >= line - 1e-6);
    }

    /// The window stays between its bounds, grows by exits only and is back at its base after so many loads.
    #[test]
    fn a_window_stays_within_its_bounds(
        base in 1u32..100_000, grow in 0u32..200_000, shrink in 0u32..200_000, more: u32, history: Vec<bool>
    ) {
        let config = WindowConfig { base, grow, shrink, max: base.saturating_add(more) };
        let mut window = Window::new(&config);
        for exited in history {
            let before = window.cycles();
            if exited { window.exited(&config) } else { window.loaded(&config) }
            let now = window.cycles();
            prop_assert!((config.base..=config.max).contains(&now));
            let follows = if exited { grow == 0 || now >= before } else { now <= before };
            prop_assert!(follows, "{} after {}", now, before);
        }
    }

    /// Nobody yields to itself or to a vCPU that cannot have the lock; a vCPU that spins is taken at most every second time;
    /// and who may hold the lock and does not spin is found within one search.
    #[test]
    fn a_vcpu_gives_way_to_one_that_may_hold_the_lock(
        vcpus in 1usize..12,
        searches in proptest::collection::vec((any::<prop::sample::Index>(), any::<u16>(), any::<bool>()), 1..60)
    ) {
        let mut yields = DirectedYield::new(vcpus);
        let mut spins = vec![false; vcpus];
        let mut taken = vec![false; vcpus];
        for (me, ready, stays) in searches {
            let me = me.index(vcpus);
            let may_hold = |vcpu: usize| ready >> vcpu & 1 == 1;
            let found = yields.on_spin(me, may_hold, |_| Yielded::Yes);
            spins[me] = true;
            let sure = (0..vcpus).any(|vcpu| vcpu != me && may_hold(vcpu) && !spins[vcpu]);
            prop_assert!(found.is_some() || !sure);
            if let Some(found) = found {
                prop_assert!(found != me && may_hold(found));
                prop_assert!(!(spins[found] && taken[found]), "twice in a row although it spins");
            }
            (0..vcpus).for_each(|vcpu| taken[vcpu] = found == Some(vcpu));
            if !stays {
                yields.resumes(me);
                spins[me] = false;
            }
        }
    }
}

#[test]
fn powers_are_told_apart_at_their_ends() {
    let waits = waits([0, 1, 2, 3, 4, 5, 2048, 2049, u64::MAX]);
    assert_eq!(waits.by_power()[..4], [2, 1, 2, 1]);
    assert_eq!((waits.by_power()[11], waits.by_power()[12], waits.by_power()[Waits::POWERS - 1]), (1, 1, 1));
    assert_eq!((waits.longer_than(11), waits.longer_than(0), waits.count()), (2, 7, 9));
}

#[test]
fn what_is_no_curve_is_refused() {
    let some = waits([100]);
    let flat: Vec<ExitRate> = curve(&[]);
    for (curve, wanted) in [
        (vec![], "found 0 gaps"),
        (flat, "allowed: a curve that rises"),
        (vec![ExitRate { gap: 0, per_second: 1.0 }; 3], "gap 0 before 0"),
        (
            vec![
                ExitRate { gap: 1, per_second: f64::NAN },
                ExitRate { gap: 2, per_second: 1.0 },
                ExitRate { gap: 4, per_second: 1.0 },
            ],
            "NaN",
        ),
    ] {
        let error = choose(&some, &curve).unwrap_err().to_string();
        assert!(error.contains("PAUSE exits by gap") && error.contains(wanted), "{error}");
    }
    let error = choose(&Waits::default(), &curve(&[(40, 1.0)])).unwrap_err().to_string();
    assert!(error.contains("lock waits"), "{error}");
}

/// The histories of Linux's own comments: the window doubles with each exit and starts again when the vCPU was away.
#[test]
fn kvms_window_doubles_and_starts_again() {
    let config = WindowConfig { base: 4096, grow: 2, shrink: 0, max: 20_000 };
    let mut window = Window::new(&config);
    let grown: Vec<u32> = (0..4)
        .map(|_| {
            window.exited(&config);
            window.cycles()
        })
        .collect();
    assert_eq!(grown, [8192, 16_384, 20_000, 20_000]);
    window.loaded(&config);
    assert_eq!(window.cycles(), 4096);
    let config = WindowConfig { shrink: 2, grow: 5000, ..config };
    window.exited(&config);
    assert_eq!(window.cycles(), 9096, "no less than the base: it is added");
    window.loaded(&config);
    assert_eq!(window.cycles(), 4548);
    window.loaded(&config);
    assert_eq!(window.cycles(), 4096);
}

#[test]
fn a_search_ends_after_three_pointless_tries() {
    let mut yields = DirectedYield::new(8);
    let mut tried = Vec::new();
    assert_eq!(
        yields.on_spin(
            2,
            |_| true,
            |vcpu| {
                tried.push(vcpu);
                Yielded::Pointless
            }
        ),
        None
    );
    assert_eq!(tried, [1, 3, 4], "from behind the last that was yielded to, itself left out");
    assert_eq!(yields.on_spin(2, |_| true, |vcpu| if vcpu == 4 { Yielded::Yes } else { Yielded::No }), Some(4));
    assert_eq!(yields.on_spin(2, |_| true, |_| Yielded::Yes), Some(5));
}

#[test]
fn recorded_waits_are_checked() {
    let read = |counts: Vec<u64>| Waits::try_from(counts);
    let waits = read(vec![1, 0, 3]).unwrap();
    assert_eq!((waits.count(), waits.longer_than(1)), (4, 3));
    assert_eq!(Vec::from(waits), [1, 0, 3]);
    let many = read(vec![0; 41]).unwrap_err().to_string();
    assert_eq!(many, "lock waits: found 41 counts; allowed: at most 40, one a power of two");
    assert!(read(vec![u64::MAX, 1]).is_err() && read(vec![1 << 51]).is_err());
}
