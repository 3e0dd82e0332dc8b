//! Result files in JSON, as `muster report` reads them: any text is read or refused, and what is read can be written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::results::ResultFile;

fuzz_target!(|text: &str| {
    if let Ok(result) = serde_json::from_str::<ResultFile>(text) {
        serde_json::to_string(&result).expect("a result holds only what JSON can express");
    }
});
