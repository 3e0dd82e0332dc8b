//! Random machines, programs and remedies from a seed; every invariant must hold. `MUSTER_SWARM_SEEDS=N` runs N seeds.

mod common;

use common::{case, run_checked};

#[test]
fn every_invariant_holds_for_random_worlds() {
    let seeds = std::env::var("MUSTER_SWARM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300u64);
    for seed in 0..seeds {
        if let Err(error) = run_checked(&case(seed)) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    for seed in 0..40 {
        let (first, second) = (run_checked(&case(seed)).unwrap(), run_checked(&case(seed)).unwrap());
        assert_eq!(first, second, "seed {seed}");
    }
}
