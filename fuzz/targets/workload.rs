//! Workloads in JSON: any text is read or refused, what is read survives being written, and any thread count and scale
//! is checked without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::workload::Workload;

fuzz_target!(|text: &str| {
    if let Ok(workload) = Workload::from_json(text, "fuzz") {
        assert_eq!(Workload::from_json(&workload.to_json(), "written"), Ok(workload.clone()));
        for threads in [1, 16, u32::MAX] {
            for scale in [1e-6, 1.0, 1e6] {
                let _ = workload.check_for(threads, scale);
            }
        }
    }
});
