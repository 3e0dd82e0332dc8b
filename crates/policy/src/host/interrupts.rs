//! Where interrupts go, and how many vectors are left for more.

use super::{More, file, finding, fine};
use crate::vectors::SOURCES_PER_VF;
use muster_model::CpuSet;
use muster_model::host::{Effect, Finding, HostFacts, Interrupt, Knob, Severity};
use std::collections::BTreeMap;

/// Of 256 vectors so many are left for devices (section IV.A: "around 200").
pub const USABLE_VECTORS: u64 = 200;
/// From this share on a CPU's vectors run short.
const SHORT: f64 = 0.8;
/// A device whose queues have raised fewer interrupts is not worth a look.
const BUSY: u64 = 100_000;
const AFFINITY_DOCUMENT: &str = "Documentation/core-api/irq/irq-affinity.rst";

pub(super) fn look(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = placement(facts);
    findings.push(vectors(facts));
    findings
}

/// Devices whose queues all interrupt the same CPU.
fn placement(facts: &HostFacts) -> Vec<Finding> {
    let mut devices: BTreeMap<&str, Vec<&Interrupt>> = BTreeMap::new();
    for interrupt in facts.interrupts.iter().filter(|interrupt| interrupt.count > 0) {
        if let Some(device) = device_of(interrupt) {
            devices.entry(device).or_default().push(interrupt);
        }
    }
    let crowded = devices.into_iter().filter_map(|(device, queues)| crowded(facts, device, &queues));
    let findings: Vec<Finding> = crowded.collect();
    if findings.is_empty() && !facts.interrupts.is_empty() {
        let found = format!("{} interrupts", facts.interrupts.len());
        let reason = "no busy device has all its queues on one CPU";
        return vec![fine(Knob::Interrupts, "/proc/interrupts", found, reason).from(AFFINITY_DOCUMENT)];
    }
    findings
}

fn crowded(facts: &HostFacts, device: &str, queues: &[&Interrupt]) -> Option<Finding> {
    let total: u64 = queues.iter().map(|queue| queue.count).fold(0, u64::saturating_add);
    let targets = queues.iter().filter_map(|queue| queue.effective).fold(CpuSet::EMPTY, |all, one| all.union(&one));
    if queues.len() < 2 || total < BUSY || targets.len() != 1 || facts.cpus.len() < 2 {
        return None;
    }
    let numbers: Vec<String> = queues.iter().map(|queue| queue.number.to_string()).collect();
    let found = format!("interrupts {} all go to CPU {targets}, {total} so far", numbers.join(", "));
    let reason = "one CPU serves all its queues: the service of I/O does not scale beyond it";
    let cpus: Vec<usize> = facts.cpus.iter().collect();
    let spread = queues.iter().zip(cpus.iter().cycle()).map(|(queue, cpu)| {
        file(format!("/proc/irq/{}/smp_affinity_list", queue.number), cpu.to_string(), Effect::AtOnce)
    });
    Some(Finding {
        settings: spread.collect(),
        ..finding(Severity::Consider, Knob::Interrupts, device.to_owned(), found, reason)
            .paper("section IV.A")
            .paper("section V.A, Figures 11 and 12")
            .from(AFFINITY_DOCUMENT)
    })
}

/// The device that an interrupt belongs to: the PCI address in its controller's name, else its action without the
/// queue's number.
fn device_of(interrupt: &Interrupt) -> Option<&str> {
    let address =
        interrupt.chip.split_once("MSIX-").or_else(|| interrupt.chip.split_once("MSI-")).map(|(_, rest)| rest);
    if let Some(address) = address.filter(|address| address.contains(':')) {
        return Some(address);
    }
    let (device, queue) = interrupt.action.rsplit_once('-')?;
    queue.bytes().all(|byte| byte.is_ascii_digit()).then_some(device)
}

/// How near each CPU is to having no vector left.
fn vectors(facts: &HostFacts) -> Finding {
    let (source, usage) = usage(facts);
    let Some(&(cpu, used, of)) = usage.iter().max_by_key(|&&(cpu, used, of)| {
        // Shares in thousandths; among equals the first CPU.
        (used * 1000 / of.max(1), std::cmp::Reverse(cpu))
    }) else {
        let reason = "neither the kernel's own count nor the targets of interrupts can be read; root sees them";
        return finding(Severity::Unknown, Knob::Vectors, source, "not shown", reason).paper("section IV.A");
    };
    let left: u64 = usage.iter().map(|(_, used, of)| of.saturating_sub(*used)).sum();
    let found = format!(
        "the fullest, CPU {cpu}, uses {used} of {of}; {left} are left on all CPUs, enough for some {} virtual functions",
        left / SOURCES_PER_VF as u64
    );
    if (used as f64) < SHORT * of as f64 {
        let reason =
            "Linux gives each CPU vectors of its own, so that they add up over CPUs; a virtual function takes about 3";
        return fine(Knob::Vectors, source, found, reason).paper("section IV.A");
    }
    let reason =
        "a CPU without a vector left takes no more interrupts: a device or virtual function more may fail to start";
    finding(Severity::Consider, Knob::Vectors, source, found, reason)
        .gaining("66 virtual functions with one set of vectors for all CPUs; a multiple of that with one for each CPU")
        .paper("section IV.A")
        .from(AFFINITY_DOCUMENT)
        .by_hand("let fewer queues interrupt it (`ethtool -L`), or move some to other CPUs (`muster host apply --irq N=CPUS`)")
}

/// Where the count comes from, and of each CPU its number, vectors used, and vectors there are.
fn usage(facts: &HostFacts) -> (&'static str, Vec<(usize, u64, u64)>) {
    if !facts.vectors.is_empty() {
        let exact = facts.vectors.iter().map(|one| (one.cpu, one.used, one.used.saturating_add(one.available)));
        return ("/sys/kernel/debug/irq/domains/VECTOR", exact.collect());
    }
    let source = "/proc/irq/*/effective_affinity_list";
    if facts.interrupts.iter().all(|interrupt| interrupt.effective.is_none()) {
        return (source, Vec::new());
    }
    let uses = |cpu| facts.interrupts.iter().filter(|one| one.effective.is_some_and(|set| set.contains(cpu))).count();
    (source, facts.cpus.iter().map(|cpu| (cpu, uses(cpu) as u64, USABLE_VECTORS)).collect())
}
