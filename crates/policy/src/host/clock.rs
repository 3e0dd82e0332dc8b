//! The clock: the host's own, which decides whether guests may read theirs without an exit, and what guests are offered.

use super::{More, file, finding, fine, has_flag, of_vmm};
use muster_model::host::{Effect, Finding, HostFacts, Knob, Severity, VmFacts};

const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const DOCUMENT: &str = "Documentation/virt/kvm/x86/timekeeping.rst";
const GAIN: &str = "not stated for KVM; the emulated timer that guests read instead took 36.44 % of histogram's cycles on 32 \
                    cores of Xen (iXen)";

pub(super) fn look(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = vec![host_clock(facts)];
    findings.extend(facts.vms.iter().filter(|vm| vm.no_kvm_clock).map(offered));
    findings
}

fn host_clock(facts: &HostFacts) -> Finding {
    let Some(current) = &facts.clock.current else {
        let reason = "without it nothing can be said of the guests' kvm-clock";
        return finding(Severity::Unknown, Knob::Clock, CURRENT, "not shown", reason).from(DOCUMENT);
    };
    let steady = ["constant_tsc", "nonstop_tsc"].into_iter().filter(|flag| has_flag(facts, flag)).collect::<Vec<_>>();
    let flags = if steady.is_empty() { "no constant TSC".to_owned() } else { steady.join(", ") };
    let found = format!("{current} ({flags})");
    if current == "tsc" {
        let reason = "KVM derives the guests' kvm-clock from the TSC alone (master clock): they read it without a call or an exit";
        return fine(Knob::Clock, CURRENT, found, reason).from(DOCUMENT);
    }
    let reason = "KVM keeps its master clock only while the host's own clock is the TSC: guests' kvm-clock is not marked \
                  stable, and each reading becomes a system call";
    if facts.clock.available.iter().any(|source| source == "tsc") {
        return finding(Severity::Act, Knob::Clock, CURRENT, found, reason)
            .gaining(GAIN)
            .from(DOCUMENT)
            .from("iXen, section 3.1")
            .setting(file(CURRENT, "tsc", Effect::AtOnce));
    }
    finding(Severity::Consider, Knob::Clock, CURRENT, found, reason)
        .gaining(GAIN)
        .from(DOCUMENT)
        .from("iXen, section 3.1")
        .by_hand("the kernel does not offer `tsc`: its messages at boot say why it distrusts it")
}

fn offered(vm: &VmFacts) -> Finding {
    let reason = "started without kvm-clock: unless its TSC is good enough for it, the guest reads an emulated timer, at one exit \
                  a reading";
    let finding = finding(Severity::Consider, Knob::Clock, vm.to_string(), "no kvm-clock", reason)
        .gaining(GAIN)
        .from(DOCUMENT)
        .from("iXen, section 3.1");
    match of_vmm(vm, "restart it without `-kvmclock`, `kvmclock=off` and `kvm=off` behind `-cpu`", "", "", "") {
        Some(what) => finding.by_hand(what),
        None => finding,
    }
}
