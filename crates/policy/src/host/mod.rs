//! What is to be said of a KVM host, and what to set on it: facts in, findings out.
//!
//! Gains are quoted as their sources state them, never reckoned for the host at hand. Where a source names none, none
//! is printed.

pub mod asked;
mod clock;
mod interrupts;
mod io;
mod memory;
mod vcpus;

use muster_model::host::{
    Effect, Finding, HostAudit, HostFacts, Knob, Module, Parameter, Setting, Severity, VmFacts, Vmm,
};

/// Modules of KVM that drive the CPU's own virtualization.
pub const HARDWARE_MODULES: [&str; 2] = ["kvm_intel", "kvm_amd"];
/// The paper that the host's knobs come from.
const PAPER: &str = "Hardware Acceleration";

/// Says what there is to say, in the order of [`Knob::ALL`].
pub fn audit(facts: &HostFacts) -> HostAudit {
    if let Some(why) = no_host(facts) {
        return HostAudit { no_host: Some(why), findings: Vec::new(), unreadable: Vec::new() };
    }
    let mut findings = Vec::new();
    for look in [memory::look, vcpus::look, clock::look, io::look, interrupts::look] {
        findings.extend(look(facts));
    }
    findings.extend(nested(facts));
    let place = |knob: Knob| Knob::ALL.iter().position(|other| *other == knob);
    findings.sort_by_key(|finding| place(finding.knob));
    HostAudit { no_host: None, findings, unreadable: facts.unreadable.clone() }
}

/// What an audit advises to write: what costs, or with `knobs` whatever these have to offer. In the order of the
/// findings, nothing twice.
pub fn advised(findings: &[Finding], knobs: &[Knob]) -> Vec<Setting> {
    let wanted = |finding: &&Finding| match knobs {
        [] => finding.severity == Severity::Act,
        named => named.contains(&finding.knob),
    };
    let mut settings: Vec<Setting> = Vec::new();
    for setting in findings.iter().filter(wanted).flat_map(|finding| &finding.settings) {
        if !settings.contains(setting) {
            settings.push(setting.clone());
        }
    }
    settings
}

/// Why this machine is no KVM host.
fn no_host(facts: &HostFacts) -> Option<String> {
    if hardware(facts).is_some() || !facts.vms.is_empty() {
        return None;
    }
    if facts.flags.is_empty() {
        return Some("this is no KVM host that muster knows: /proc/cpuinfo shows no flags of an x86 CPU".to_owned());
    }
    let can = ["vmx", "svm"].into_iter().find(|flag| has_flag(facts, flag));
    let others: Vec<&str> = facts.kvm.modules.iter().map(|module| module.name.as_str()).collect();
    Some(match can {
        Some(flag) => format!(
            "this is no KVM host: its CPUs could be one ({flag}), but neither kvm_intel nor kvm_amd is loaded and no VM runs"
        ),
        None if facts.kvm.device => format!(
            "this is no KVM host: /dev/kvm is there ({}), but the CPUs offer neither VMX nor SVM and no VM runs",
            if others.is_empty() { "by no module".to_owned() } else { others.join(", ") }
        ),
        None => "this is no KVM host: there is no /dev/kvm, and the CPUs offer neither VMX nor SVM".to_owned(),
    })
}

/// KVM inside guests, and this host inside one.
fn nested(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((module, on)) = hardware(facts).and_then(|module| Some((module, switch(module, "nested")?))) {
        let reason = match on {
            true => "guests may run KVM themselves; it costs nothing until they do",
            false => "guests cannot run KVM themselves; the parameter `nested` of the module lets them",
        };
        findings.push(
            fine(Knob::Nested, format!("{}.nested", module.name), yes_no(on), reason)
                .from("Documentation/virt/kvm/x86/nested-vmx.rst"),
        );
    }
    if has_flag(facts, "hypervisor") {
        let reason = "this host is a virtual machine itself: its guests' page walks go through the outer VMM's tables too, and \
                      the gains quoted here were measured on bare metal";
        findings.push(
            fine(Knob::Nested, "the CPUs", "a hypervisor below this one", reason)
                .from("Documentation/virt/kvm/x86/running-nested-guests.rst"),
        );
    }
    findings
}

/// The module that drives the CPU's own virtualization.
fn hardware(facts: &HostFacts) -> Option<&Module> {
    facts.kvm.modules.iter().find(|module| HARDWARE_MODULES.contains(&module.name.as_str()))
}

/// `kvm` itself.
fn core(facts: &HostFacts) -> Option<&Module> {
    facts.kvm.modules.iter().find(|module| module.name == "kvm")
}

fn has_flag(facts: &HostFacts, flag: &str) -> bool {
    facts.flags.iter().any(|other| other == flag)
}

fn text<'a>(module: &'a Module, name: &str) -> Option<&'a str> {
    module.parameters.get(name).map(|Parameter { value, .. }| value.as_str())
}

fn number(module: &Module, name: &str) -> Option<u64> {
    text(module, name)?.parse().ok()
}

/// A parameter that is on or off, as the kernel writes it.
fn switch(module: &Module, name: &str) -> Option<bool> {
    match text(module, name)? {
        "Y" | "y" | "1" => Some(true),
        "N" | "n" | "0" => Some(false),
        _ => None,
    }
}

fn yes_no(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn parameter(module: &Module, name: &str, value: impl Into<String>, effect: Effect) -> Setting {
    Setting::Parameter { module: module.name.clone(), name: name.to_owned(), value: value.into(), effect }
}

fn file(path: impl Into<String>, value: impl Into<String>, effect: Effect) -> Setting {
    Setting::File { path: path.into(), value: value.into(), effect }
}

/// vCPUs of all VMs.
fn vcpus(facts: &HostFacts) -> usize {
    facts.vms.iter().map(VmFacts::vcpu_count).sum()
}

/// Whether there are more vCPUs than CPUs.
fn is_overcommitted(facts: &HostFacts) -> bool {
    vcpus(facts) > facts.cpus.len()
}

/// How many vCPUs share how many CPUs, in words.
fn load(facts: &HostFacts) -> String {
    format!("{} vCPUs on {} CPUs", vcpus(facts), facts.cpus.len())
}

/// What a VMM calls a setting, by VMM; `None` where it is not known.
fn of_vmm(vm: &VmFacts, qemu: &str, firecracker: &str, cloud_hypervisor: &str, crosvm: &str) -> Option<String> {
    let text = match vm.vmm {
        Vmm::Qemu => qemu,
        Vmm::Firecracker => firecracker,
        Vmm::CloudHypervisor => cloud_hypervisor,
        Vmm::Crosvm => crosvm,
        Vmm::Other => "",
    };
    (!text.is_empty()).then(|| text.to_owned())
}

fn finding(
    severity: Severity,
    knob: Knob,
    subject: impl Into<String>,
    found: impl Into<String>,
    reason: impl Into<String>,
) -> Finding {
    Finding {
        knob,
        severity,
        subject: subject.into(),
        found: found.into(),
        reason: reason.into(),
        gain: None,
        sources: Vec::new(),
        settings: Vec::new(),
        by_hand: None,
    }
}

fn fine(knob: Knob, subject: impl Into<String>, found: impl Into<String>, reason: impl Into<String>) -> Finding {
    finding(Severity::Fine, knob, subject, found, reason)
}

/// What is added to a finding.
trait More {
    fn gaining(self, gain: &str) -> Self;
    fn from(self, source: &str) -> Self;
    fn paper(self, place: &str) -> Self;
    fn setting(self, setting: Setting) -> Self;
    fn by_hand(self, what: impl Into<String>) -> Self;
}

impl More for Finding {
    fn gaining(mut self, gain: &str) -> Self {
        self.gain = Some(gain.to_owned());
        self
    }

    fn from(mut self, source: &str) -> Self {
        self.sources.push(source.to_owned());
        self
    }

    fn paper(self, place: &str) -> Self {
        self.from(&format!("{PAPER}, {place}"))
    }

    fn setting(mut self, setting: Setting) -> Self {
        self.settings.push(setting);
        self
    }

    fn by_hand(mut self, what: impl Into<String>) -> Self {
        self.by_hand = Some(what.into());
        self
    }
}

#[cfg(test)]
mod tests;
