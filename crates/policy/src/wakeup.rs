//! Where a woken thread is put: Linux-like search for an idle CPU, or co-location with its waker.
//!
//! Sources: Linux, kernel/sched/fair.c, `select_task_rq_fair` and `select_idle_sibling`; Gleaner, section 4.

use muster_model::CpuSet;
use muster_model::study::Placement;

/// What the choice rests on.
#[derive(Debug, Clone, Copy)]
pub struct Wakeup<'a> {
    /// The rule.
    pub placement: Placement,
    /// The CPU that wakes.
    pub waker: usize,
    /// The CPU on which the thread ran last.
    pub previous: usize,
    /// The CPUs on which the thread may run; not empty.
    pub allowed: &'a CpuSet,
    /// The CPUs that have nothing to do.
    pub idle: &'a CpuSet,
    /// The CPUs that share the last-level cache of `previous`.
    pub previous_llc: &'a CpuSet,
    /// The CPUs that share the last-level cache of `waker`.
    pub waker_llc: &'a CpuSet,
    /// How many threads are on the waker's CPU, the waker included.
    pub waker_load: u32,
    /// How many threads are on the previous CPU.
    pub previous_load: u32,
}

/// The CPU the woken thread is put on; always one of `allowed`.
///
/// # Panics
/// When `allowed` is empty.
pub fn place(wakeup: &Wakeup<'_>) -> usize {
    let Wakeup { allowed, idle, .. } = *wakeup;
    if wakeup.placement == Placement::Colocate && wakeup.waker_load <= 1 && allowed.contains(wakeup.waker) {
        return wakeup.waker;
    }
    if idle.contains(wakeup.previous) && allowed.contains(wakeup.previous) {
        return wakeup.previous;
    }
    if !idle.is_empty() {
        let idle = idle.intersection(allowed);
        for near in [wakeup.previous_llc, wakeup.waker_llc, &idle] {
            if let Some(cpu) = first_common(&idle, near) {
                return cpu;
            }
        }
    }
    let stays = allowed.contains(wakeup.previous);
    let joins = allowed.contains(wakeup.waker);
    match (stays, joins) {
        (true, true) if wakeup.waker_load < wakeup.previous_load => wakeup.waker,
        (true, _) => wakeup.previous,
        (false, true) => wakeup.waker,
        (false, false) => spread_over(allowed, wakeup.previous),
    }
}

fn first_common(a: &CpuSet, b: &CpuSet) -> Option<usize> {
    a.intersection(b).iter().next()
}

/// The allowed CPU that a thread from a CPU outside of them goes to: threads of different CPUs go to different ones.
fn spread_over(allowed: &CpuSet, from: usize) -> usize {
    let index = from % allowed.len().max(1);
    allowed.iter().nth(index).expect("the caller allows at least one CPU")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn case(placement: Placement, idle: &str, waker_load: u32) -> usize {
        let (allowed, idle) = (set("0-7"), set(idle));
        place(&Wakeup {
            placement,
            waker: 1,
            previous: 5,
            allowed: &allowed,
            idle: &idle,
            previous_llc: &set("4-7"),
            waker_llc: &set("0-3"),
            waker_load,
            previous_load: 2,
        })
    }

    #[test]
    fn the_nearest_idle_cpu_wins() {
        assert_eq!(case(Placement::Spread, "5,6", 1), 5);
        assert_eq!(case(Placement::Spread, "2,6", 1), 6);
        assert_eq!(case(Placement::Spread, "2", 1), 2);
        assert_eq!(case(Placement::Spread, "", 1), 1);
        assert_eq!(case(Placement::Spread, "", 3), 5);
    }

    #[test]
    fn colocation_takes_the_wakers_cpu_unless_somebody_waits_there() {
        assert_eq!(case(Placement::Colocate, "5,6", 1), 1);
        assert_eq!(case(Placement::Colocate, "5,6", 2), 5);
    }

    proptest! {
        #[test]
        fn the_choice_is_allowed_and_idle_if_any_is(
            allowed in proptest::collection::btree_set(0usize..32, 1..8),
            idle in proptest::collection::btree_set(0usize..32, 0..8),
            waker in 0usize..32, previous in 0usize..32, loads in (0u32..4, 0u32..4), colocate: bool,
        ) {
            let allowed: CpuSet = allowed.into_iter().collect();
            let idle: CpuSet = idle.into_iter().collect();
            let placement = if colocate { Placement::Colocate } else { Placement::Spread };
            let chosen = place(&Wakeup {
                placement, waker, previous, allowed: &allowed, idle: &idle,
                previous_llc: &(0..16).collect(), waker_llc: &(16..32).collect(),
                waker_load: loads.0, previous_load: loads.1,
            });
            prop_assert!(allowed.contains(chosen));
            if !colocate && !idle.intersection(&allowed).is_empty() {
                prop_assert!(idle.contains(chosen));
            }
        }
    }
}
