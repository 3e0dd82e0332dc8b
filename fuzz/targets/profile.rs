//! Machine profiles in TOML: any text is read or refused, and what is read survives being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::Profile;

fuzz_target!(|text: &str| {
    if let Ok(profile) = Profile::from_toml(text, "fuzz") {
        assert_eq!(Profile::from_toml(&profile.to_toml(), "written"), Ok(profile));
    }
});
