//! What a KVM host shows: any text is read as far as it is understood.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_host::text;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    text::cpu_flags(&text);
    text::chosen(&text);
    text::vectors(&text);
    text::status_field(&text, "Cpus_allowed_list");
    text::is_vcpu(&text);
    if let Some(memory) = text::memory(&text) {
        assert!(memory.huge_share().is_none_or(|share| share >= 0.0));
    }
    for interrupt in text::interrupts(&text) {
        assert!(interrupt.allowed.is_none());
    }
    let arguments = text::arguments(bytes);
    text::qemu(&arguments);
    text::cloud_hypervisor(&arguments);
    text::firecracker(&arguments);
});
