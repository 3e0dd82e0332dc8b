//! The order of the arms within a round.

/// The order of `arms` arms in round `round`: rotated by one every second round and reversed in the odd ones. Two arms
/// run as AB BA BA AB, so that a drift of the machine cancels; with more, every arm takes every place equally often
/// over 2 x `arms` rounds, and follows every neighbour as often as it precedes it.
pub fn order(round: usize, arms: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..arms).map(|place| (place + round / 2) % arms.max(1)).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_arms_alternate() {
        let rounds: Vec<_> = (0..4).map(|round| order(round, 2)).collect();
        assert_eq!(rounds, [[0, 1], [1, 0], [1, 0], [0, 1]]);
    }

    proptest! {
        #[test]
        fn every_round_holds_every_arm_once(round in 0..1000usize, arms in 1..12usize) {
            let mut places = order(round, arms);
            places.sort_unstable();
            prop_assert_eq!(places, (0..arms).collect::<Vec<_>>());
        }

        #[test]
        fn places_and_neighbours_are_balanced(arms in 2..10usize) {
            let mut places = vec![vec![0; arms]; arms];
            let mut after = vec![vec![0; arms]; arms];
            for round in 0..2 * arms {
                let order = order(round, arms);
                order.iter().enumerate().for_each(|(place, &arm)| places[arm][place] += 1);
                order.windows(2).for_each(|pair| after[pair[0]][pair[1]] += 1);
            }
            prop_assert!(places.iter().flatten().all(|&times| times == 2));
            for (a, b) in (0..arms).flat_map(|a| (0..arms).map(move |b| (a, b))) {
                prop_assert_eq!(after[a][b], after[b][a]);
            }
        }
    }
}
