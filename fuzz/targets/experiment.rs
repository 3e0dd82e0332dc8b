//! Experiments in TOML: any text is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::study::Experiment;

fuzz_target!(|text: &str| {
    if let Ok(experiment) = Experiment::from_toml(text, "fuzz") {
        assert!(experiment.thread_count() > 0);
    }
});
