//! The kernel's CPU list format: any text is read or refused, and what is read comes back as it was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::CpuSet;

fuzz_target!(|text: &str| {
    if let Ok(set) = text.parse::<CpuSet>() {
        assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set));
        assert_eq!(set.iter().count(), set.len());
    }
});
