//! Files for rt-app: any text is read or refused, and what is imported is a workload that survives being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::Workload;
use muster_model::rtapp::{Options, import, is_rtapp};

fuzz_target!(|text: &str| {
    let _ = is_rtapp(text);
    if let Ok(imported) = import(text, "fuzz", &Options::default()) {
        assert_eq!(Workload::from_json(&imported.workload.to_json(), "written"), Ok(imported.workload));
    }
});
