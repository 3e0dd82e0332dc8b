//! What commands without a profile rely on: the prices of handing over alone, and the machine's description.

use muster_model::Distance;
use muster_model::profile::names;
use std::time::Instant;

#[test]
fn wake_prices_are_there_without_a_profile() {
    let start = Instant::now();
    let profile = muster_probe::quick_handover_prices().unwrap();
    eprintln!("quick_handover_prices took {:?}", start.elapsed());
    assert!(profile.price_ns(&names::wake_same_cpu("futex")).is_some_and(|ns| ns > 0.0), "{:?}", profile.notes);
    let belongs = |name: &String| name.contains(".futex.") || name.starts_with("cache-transfer.");
    assert!(profile.prices.keys().all(belongs), "{:?}", profile.prices.keys());
    let confined = profile.notes.iter().any(|note| note.starts_with("confined"));
    let distances = Distance::ALL[1..].iter();
    let far = distances.filter(|&&it| profile.price_ns(&names::wake("futex", "halted", it)).is_some()).count();
    assert!(confined || profile.topology.len() == 1 || far > 0, "{:?}", profile.notes);
    let lines = Distance::ALL[1..].iter().filter(|&&it| profile.price_ns(&names::cache_transfer(it)).is_some()).count();
    assert!(confined || profile.topology.len() == 1 || lines > 0, "{:?}", profile.notes);
    assert!(muster_probe::store::still_holds(&profile, &muster_probe::describe().unwrap()));
}
