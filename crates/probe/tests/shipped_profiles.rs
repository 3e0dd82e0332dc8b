//! Every profile in machines/ is one: it parses, each price has a known name and a source, and round-trips.

use muster_model::Profile;
use muster_model::profile::PriceKind;
use std::path::Path;

fn shipped() -> Vec<(String, Profile)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let files = std::fs::read_dir(&directory).expect("machines/ exists").map(|entry| entry.unwrap().path());
    let profiles = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    profiles
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            (name.clone(), Profile::from_toml(&text, &name).unwrap_or_else(|error| panic!("{error}")))
        })
        .collect()
}

#[test]
fn every_shipped_profile_is_sound() {
    for (file, profile) in shipped() {
        assert_eq!(profile.name, file, "a profile is called as its file");
        assert!(!profile.description.is_empty(), "{file}");
        assert_eq!(profile.unknown_prices().collect::<Vec<_>>(), Vec::<&str>::new(), "{file}");
        for (name, price) in &profile.prices {
            assert!(!price.source.is_empty(), "{file}: {name} has no source");
            assert!(price.kind == PriceKind::Measured || price.spread_ns.is_none(), "{file}: {name}");
        }
        assert_eq!(Profile::from_toml(&profile.to_toml(), &file).unwrap(), profile);
    }
}

#[test]
fn the_machines_of_all_five_papers_are_there() {
    let shapes: Vec<(String, usize)> = shipped().into_iter().map(|(name, it)| (name, it.topology.len())).collect();
    for (name, cpus) in [
        ("gleaner-r720", 16),
        ("ixen-opteron48", 48),
        ("hardware-acceleration-xeon", 16),
        ("cerberus-opteron48", 48),
        ("cerberus-xeon16", 16),
        ("cache-aware-q6600", 4),
        ("kvm-guest-2vcpu", 2),
    ] {
        assert!(shapes.contains(&(name.to_owned(), cpus)), "{name} with {cpus} CPUs is not in machines/: {shapes:?}");
    }
}
