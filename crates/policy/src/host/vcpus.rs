//! vCPUs that spin, halt and wait: pause-loop exits, halt polling, and HLT, MWAIT and PAUSE without an exit.

use super::{More, core, finding, fine, hardware, has_flag, is_overcommitted, load, number, of_vmm, parameter, yes_no};
use muster_model::host::{Effect, Finding, HostFacts, Knob, Module, Severity, VmFacts};

/// What `virt/kvm/kvm_main.c` starts with on x86.
const HALT_POLL_NS: u64 = 200_000;
/// Above this a halted vCPU polls longer than a trip through the scheduler could ever cost.
const LONG_HALT_POLL_NS: u64 = 500_000;
/// A vCPU that waited for its CPU for more than this share of its time shares it.
const SHARES: f64 = 0.05;
const POLL_DOCUMENT: &str = "Documentation/virt/kvm/halt-polling.rst";

pub(super) fn look(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(module) = hardware(facts) {
        findings.push(spinning(facts, module));
        findings.extend(fixed_window(module));
    }
    if let Some(module) = core(facts) {
        findings.extend(polling(facts, module));
    }
    findings.extend(facts.vms.iter().map(|vm| idling(facts, vm)));
    findings
}

/// The names by which a module knows pause-loop exits, and what the kernel starts with.
struct Names {
    gap: &'static str,
    window: &'static str,
    flag: &'static str,
    default_gap: &'static str,
    default_window: &'static str,
}

impl Names {
    fn of(module: &Module) -> Self {
        match module.name.as_str() {
            "kvm_intel" => {
                Self { gap: "ple_gap", window: "ple_window", flag: "ple", default_gap: "128", default_window: "4096" }
            }
            _ => Self {
                gap: "pause_filter_thresh",
                window: "pause_filter_count",
                flag: "pausefilter",
                default_gap: "128",
                default_window: "3000",
            },
        }
    }

    /// Whether spinning vCPUs exit. On Intel a gap of 0 switches that off, on AMD a count of 0.
    fn are_on(&self, module: &Module) -> Option<bool> {
        let switch = if module.name == "kvm_intel" { self.gap } else { self.window };
        number(module, switch).map(|value| value > 0)
    }
}

fn spinning(facts: &HostFacts, module: &Module) -> Finding {
    let names = Names::of(module);
    let subject = format!("{}.{} and {}", module.name, names.gap, names.window);
    let value = |name| number(module, name).map_or("not shown".to_owned(), |value| value.to_string());
    let found = format!("gap {}, window {}; {}", value(names.gap), value(names.window), load(facts));
    let Some(on) = names.are_on(module) else {
        let reason = "the module does not show the parameters: whether spinning vCPUs exit is not known";
        return finding(Severity::Unknown, Knob::Ple, subject, found, reason).paper("section III.A");
    };
    match (on, is_overcommitted(facts)) {
        (true, overcommitted) => {
            let reason = match overcommitted {
                true => {
                    "a vCPU that spins for longer than the window gives way to others; `muster host ple` says which window \
                         your own locks call for"
                }
                false => "harmless while every vCPU finds a CPU: it does not help then",
            };
            fine(Knob::Ple, subject, found, reason).paper("sections III.A and IV.C").paper("section V.A, Figure 9")
        }
        (false, false) => {
            let reason = "off, and that costs nothing while there are no more vCPUs than CPUs: PLE does not help then";
            fine(Knob::Ple, subject, found, reason).paper("section V.A, Figure 9")
        }
        (false, true) => {
            let reason = "vCPUs that spin for a lock burn the time of the very vCPU that holds it";
            let finding = finding(Severity::Act, Knob::Ple, subject, found, reason)
                .gaining("14 % (Kernel Build, 16 VMs with 64 vCPUs in all), only while overcommitted")
                .paper("section IV.C")
                .paper("section V.A, Figure 9")
                .from("arch/x86/kvm/vmx/vmx.c and svm/svm.c, defaults of the parameters");
            if !has_flag(facts, names.flag) {
                return finding.by_hand(format!("the CPUs do not show the flag `{}`", names.flag));
            }
            let defaults = [(names.gap, names.default_gap), (names.window, names.default_window)];
            let missing = defaults.into_iter().filter(|(name, _)| number(module, name) == Some(0));
            missing
                .fold(finding, |finding, (name, value)| finding.setting(parameter(module, name, value, Effect::NewVms)))
        }
    }
}

/// A window that never grows makes a vCPU exit again and again although nobody waits.
fn fixed_window(module: &Module) -> Option<Finding> {
    let names = Names::of(module);
    let grow = format!("{}_grow", names.window);
    let fixed = number(module, &grow)? == 0;
    (names.are_on(module)? && fixed).then(|| {
        let reason = "the window never grows, so that a vCPU whose spinning is no preemption keeps exiting; 2, the kernel's own \
                      setting, doubles it at each exit";
        finding(Severity::Consider, Knob::Ple, format!("{}.{grow}", module.name), "0", reason)
            .from("arch/x86/kvm/x86.h, __grow_ple_window")
            .setting(parameter(module, &grow, "2", Effect::NewVms))
    })
}

fn polling(facts: &HostFacts, module: &Module) -> Vec<Finding> {
    let Some(ns) = number(module, "halt_poll_ns") else { return Vec::new() };
    let (subject, found) = ("kvm.halt_poll_ns", format!("{ns} ns; {}", load(facts)));
    let main =
        match ns {
            0 if is_overcommitted(facts) => {
                let reason = "off: a halted vCPU gives its CPU away at once, which is right while others wait for it";
                fine(Knob::HaltPoll, subject, found, reason).from(POLL_DOCUMENT)
            }
            0 => {
                let reason =
                    "every halt of a guest goes through the host's scheduler, although no other vCPU waits for the CPU";
                finding(Severity::Act, Knob::HaltPoll, subject, found, reason)
                    .gaining("\"on the order of a few micro-seconds\" a wake-up, at the price of CPU time")
                    .from(POLL_DOCUMENT)
                    .from("Gleaner, section 2")
                    .setting(parameter(module, "halt_poll_ns", HALT_POLL_NS.to_string(), Effect::DependsOnKernel))
            }
            ns if ns > LONG_HALT_POLL_NS => {
                let reason =
                    "a halted vCPU may poll for longer than halting and waking could cost: busy CPUs that do nothing";
                finding(Severity::Consider, Knob::HaltPoll, subject, found, reason)
                    .from(POLL_DOCUMENT)
                    .setting(parameter(module, "halt_poll_ns", HALT_POLL_NS.to_string(), Effect::DependsOnKernel))
            }
            _ => fine(Knob::HaltPoll, subject, found, "a halted vCPU polls for a while before its CPU is given away")
                .from(POLL_DOCUMENT),
        };
    let mut findings = vec![main];
    if ns > 0 && number(module, "halt_poll_ns_grow") == Some(0) {
        let reason = "the time to poll never grows from where it starts, so that `halt_poll_ns` has no effect";
        findings.push(
            finding(Severity::Consider, Knob::HaltPoll, "kvm.halt_poll_ns_grow", "0", reason)
                .from(POLL_DOCUMENT)
                .setting(parameter(module, "halt_poll_ns_grow", "2", Effect::AtOnce)),
        );
    }
    findings
}

/// HLT, MWAIT and PAUSE without an exit pay on a CPU that nobody else wants, and only there.
fn idling(facts: &HostFacts, vm: &VmFacts) -> Finding {
    let subject = vm.to_string();
    let dedicated = shared_because(facts, vm);
    let found =
        format!("cpu-pm {}, {}", yes_no(vm.cpu_pm), dedicated.as_deref().unwrap_or("every vCPU has a CPU of its own"));
    let warning = "it pays only on CPUs that belong to the vCPU alone: the guest keeps them while it idles and spins";
    match (vm.cpu_pm, dedicated.is_none()) {
        (true, true) => {
            let reason = "HLT, MWAIT and PAUSE stay in the guest: no exits for idling, and no pause-loop exits";
            fine(Knob::CpuPm, subject, found, reason).from("iXen, section 3.2.2").from("Gleaner, section 3")
        }
        (true, false) => {
            let reason = "a vCPU that idles keeps its CPU from the others, and pause-loop exits are off for it";
            finding(Severity::Act, Knob::CpuPm, subject, found, reason)
                .from("iXen, section 3.2.2")
                .from("Documentation/virt/kvm/api.rst, KVM_CAP_X86_DISABLE_EXITS")
                .by_hand("restart it without `-overcommit cpu-pm=on`, or give each of its vCPUs a CPU of its own")
        }
        (false, true) => {
            let reason = format!("each halt leaves the guest although nobody waits for the CPU; {warning}");
            let finding = finding(Severity::Consider, Knob::CpuPm, subject, found, reason)
                .gaining(
                    "not stated for this remedy; waking a halted vCPU took 37 us, 363 % more than an idle core (Gleaner), and \
                     keeping vCPUs awake by a daemon made six programs 3.47 times as fast under Xen's PVM (iXen)",
                )
                .from("iXen, section 3.2.2")
                .from("Gleaner, sections 2 and 3")
                .from("Documentation/virt/kvm/api.rst, KVM_CAP_X86_DISABLE_EXITS");
            match of_vmm(vm, "restart it with `-overcommit cpu-pm=on`", "", "", "") {
                Some(what) => finding.by_hand(what),
                None => finding,
            }
        }
        (false, false) => {
            let reason = "a vCPU that idles leaves its CPU to others";
            fine(Knob::CpuPm, subject, found, reason).from("iXen, section 3.2.2")
        }
    }
}

/// Why the VM's vCPUs do not have a CPU each to themselves, in words.
fn shared_because(facts: &HostFacts, vm: &VmFacts) -> Option<String> {
    if vm.vcpus.is_empty() || vm.vcpus.len() < vm.vcpu_count() {
        return Some("which of its threads are vCPUs is not shown".to_owned());
    }
    let loose = vm.vcpus.iter().filter(|vcpu| vcpu.allowed.intersection(&facts.cpus).len() != 1).count();
    if loose > 0 {
        return Some(format!("{loose} of {} vCPUs are not pinned to one CPU", vm.vcpus.len()));
    }
    let everybody = facts.vms.iter().flat_map(|other| other.vcpus.iter().map(move |vcpu| (other.pid, vcpu)));
    for vcpu in &vm.vcpus {
        let rival = everybody
            .clone()
            .find(|(pid, other)| (*pid, other.tid) != (vm.pid, vcpu.tid) && !other.allowed.is_disjoint(&vcpu.allowed));
        if let Some((pid, _)) = rival {
            return Some(format!("CPU {} is also for a vCPU of process {pid}", vcpu.allowed));
        }
    }
    let waits = vm.vcpus.iter().find_map(|vcpu| {
        let (ran, waited) = (vcpu.ran_ns? as f64, vcpu.waited_ns? as f64);
        (waited > SHARES * (ran + waited)).then(|| (vcpu, waited / (ran + waited)))
    });
    waits.map(|(vcpu, share)| {
        format!("other work runs on CPU {}: its vCPU waited {:.0} % of its time", vcpu.allowed, share * 100.0)
    })
}
