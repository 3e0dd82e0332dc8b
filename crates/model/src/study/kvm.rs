//! What a KVM of today does beside what the one of the Gleaner paper did (Linux 3.2): `[kvm]` of an experiment.

use crate::ModelError;
use serde::{Deserialize, Serialize};

/// How the local APICs of vCPUs are virtualized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Apic {
    /// By software: an interrupt takes a running vCPU out of the guest, its end exits, sending one exits.
    Emulated,
    /// Posted interrupts (Intel's APICv): a running vCPU gets interrupts of other vCPUs without an exit, and no end of an
    /// interrupt exits.
    #[default]
    Posted,
    /// AVIC (AMD), IPI virtualization (Intel): besides, an interrupt for a vCPU that runs is sent without an exit.
    Avic,
}

/// KVM's settings, with today's defaults. Without `[kvm]` an experiment has none of it: that is the KVM of Linux 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kvm {
    /// The module's `halt_poll_ns`: how long at most the host polls for a vCPU that has halted; 0 for not at all.
    pub halt_poll_ns: u64,
    /// `halt_poll_ns_grow`: factor on the window when it was too short; 0: it does not grow.
    pub halt_poll_ns_grow: u64,
    /// `halt_poll_ns_grow_start`: the first window.
    pub halt_poll_ns_grow_start: u64,
    /// `halt_poll_ns_shrink`: divisor of the window when a halt was longer than the longest; 0 shrinks to nothing.
    pub halt_poll_ns_shrink: u64,
    /// KVM_FEATURE_PV_UNHALT: a vCPU that waits for long for a spin lock of its kernel halts, and is kicked when it has it.
    pub pv_unhalt: bool,
    /// KVM_FEATURE_PV_TLB_FLUSH: a vCPU that is off its pCPU is not interrupted by a TLB shootdown, and drops its translations
    /// when it comes back.
    pub pv_tlb_flush: bool,
    /// KVM_FEATURE_PV_SEND_IPI: one hypercall interrupts many vCPUs.
    pub pv_ipi: bool,
    /// How APICs are virtualized.
    pub apic: Apic,
    /// Ticks of the host's kernel in a second (CONFIG_HZ).
    pub host_hz: u32,
}

impl Default for Kvm {
    fn default() -> Self {
        Self {
            halt_poll_ns: 200_000,
            halt_poll_ns_grow: 2,
            halt_poll_ns_grow_start: 10_000,
            halt_poll_ns_shrink: 2,
            pv_unhalt: true,
            pv_tlb_flush: true,
            pv_ipi: true,
            apic: Apic::Posted,
            host_hz: 250,
        }
    }
}

impl Kvm {
    /// The KVM of Linux 3.2, on a host with the same tick.
    pub const PLAIN: Self = Self {
        halt_poll_ns: 0,
        halt_poll_ns_grow: 0,
        halt_poll_ns_grow_start: 0,
        halt_poll_ns_shrink: 0,
        pv_unhalt: false,
        pv_tlb_flush: false,
        pv_ipi: false,
        apic: Apic::Emulated,
        host_hz: 250,
    };

    pub(super) fn validate(&self) -> Result<(), ModelError> {
        const SECOND: u64 = 1_000_000_000;
        for (field, found) in [
            ("kvm.halt_poll_ns", self.halt_poll_ns),
            ("kvm.halt_poll_ns_grow", self.halt_poll_ns_grow),
            ("kvm.halt_poll_ns_grow_start", self.halt_poll_ns_grow_start),
            ("kvm.halt_poll_ns_shrink", self.halt_poll_ns_shrink),
        ] {
            if found > SECOND {
                return Err(ModelError::new(field, found.to_string(), "at most 1000000000"));
            }
        }
        if ![100, 250, 300, 1000].contains(&self.host_hz) {
            return Err(ModelError::new("kvm.host_hz", self.host_hz.to_string(), "100, 250, 300 or 1000"));
        }
        Ok(())
    }
}
