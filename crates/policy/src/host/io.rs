//! Packets: the kernel's vhost, several queues, and virtual functions.

use super::{More, finding, fine, of_vmm};
use muster_model::host::{Finding, HostFacts, Knob, NicFacts, PhysicalFunction, Setting, Severity, VmFacts};

const SRIOV_DOCUMENT: &str = "Documentation/PCI/pci-iov-howto.rst";
/// A driver by which a device is passed to a guest.
pub(super) const PASSED_BY: &str = "vfio-pci";

pub(super) fn look(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for vm in &facts.vms {
        findings.extend(vhost(vm, &facts.vhost));
        findings.extend(vm.nics.iter().filter_map(|nic| queues(vm, nic)));
    }
    findings.extend(facts.devices.iter().map(|device| virtual_functions(facts, device)));
    findings
}

/// Who moves the packets of a VM's paravirtual NICs.
fn vhost(vm: &VmFacts, modules: &[String]) -> Option<Finding> {
    if vm.nics.is_empty() {
        return None;
    }
    let subject = vm.to_string();
    let slow: Vec<&NicFacts> = vm.nics.iter().filter(|nic| nic.backend == "tap" && !nic.vhost).collect();
    if slow.is_empty() {
        let found = format!("{} NIC(s), {} vhost thread(s)", vm.nics.len(), vm.vhost_threads);
        let reason = match vm.nics.iter().any(|nic| nic.vhost) {
            true => "the kernel's vhost threads move its packets",
            false => "its packets are moved outside the kernel",
        };
        return Some(fine(Knob::Vhost, subject, found, reason).from("vhost_net(4), qemu(1) -netdev tap"));
    }
    let names: Vec<&str> = slow.iter().map(|nic| nic.id.as_str()).collect();
    let load = if modules.iter().any(|module| module == "vhost_net") { "" } else { "load vhost_net, and " };
    let reason =
        "the VMM's own thread copies each packet through system calls; vhost does it in the kernel, in a thread a NIC";
    Some(
        finding(Severity::Act, Knob::Vhost, subject, format!("no vhost for {}", names.join(", ")), reason)
            .gaining(
                "not stated; a single-threaded back end is full at 3.6 Gb/s, a multi-threaded one reaches 9.48 Gb/s",
            )
            .paper("section V.A, Figures 11 and 12")
            .by_hand(format!("{load}restart it with `vhost=on` behind `-netdev tap`")),
    )
}

/// One queue is one thread's worth of packets.
fn queues(vm: &VmFacts, nic: &NicFacts) -> Option<Finding> {
    let subject = format!("{vm}, NIC {}", nic.id);
    if vm.vcpu_count() < 2 || nic.backend == "user" {
        return None;
    }
    let found = format!("{} queue pair(s) for {} vCPUs", nic.queues, vm.vcpu_count());
    if nic.queues > 1 {
        let reason = "several threads of the back end share its packets";
        return Some(fine(Knob::MultiQueue, subject, found, reason).paper("section V.A, Figure 12"));
    }
    let pairs = vm.vcpu_count();
    let reason = "all its packets pass through one thread of the back end, which one full CPU bounds";
    let finding = finding(Severity::Consider, Knob::MultiQueue, subject, found, reason)
        .gaining(
            "3.6 Gb/s with one thread, the line rate of 9.48 Gb/s with several (10 VMs, for more than 700 % of a CPU)",
        )
        .paper("section V.A, Figures 11 and 12");
    let qemu = format!(
        "restart it with `queues={pairs}` behind `-netdev` and `mq=on,vectors={}` behind `-device virtio-net-pci`",
        2 * pairs + 2
    );
    let cloud_hypervisor = format!("restart it with `num_queues={}` behind `--net`", 2 * pairs);
    Some(match of_vmm(vm, &qemu, "", &cloud_hypervisor, "") {
        Some(what) => finding.by_hand(what),
        None => finding,
    })
}

fn virtual_functions(facts: &HostFacts, device: &PhysicalFunction) -> Finding {
    let names = if device.interfaces.is_empty() { device.class.clone() } else { device.interfaces.join(", ") };
    let subject = format!("{} ({names}, {})", device.address, device.driver.as_deref().unwrap_or("no driver"));
    let passed = device.functions.iter().filter(|function| function.driver.as_deref() == Some(PASSED_BY)).count();
    let found = format!("{} of {} virtual functions, {passed} of them by {PASSED_BY}", device.enabled, device.total);
    if facts.iommu_groups == 0 {
        let reason = "without an IOMMU a virtual function cannot be given to a guest: its DMA would reach all memory";
        return finding(Severity::Consider, Knob::SrIov, subject, found, reason)
            .paper("section III.C")
            .from("Documentation/driver-api/vfio.rst")
            .by_hand("switch the IOMMU on in the firmware, and boot with `intel_iommu=on` (Intel) or without `amd_iommu=off`");
    }
    if device.enabled > 0 {
        return existing_functions(device, subject, found);
    }
    let by_hand = format!("`muster host apply --vfs {}=N` makes N of them for guests to come", device.address);
    if !device.is_network() {
        let reason = "a guest with a virtual function of its own needs no back end for it";
        return finding(Severity::Consider, Knob::SrIov, subject, found, reason)
            .gaining("not stated for this kind of device")
            .paper("section III.C")
            .from(SRIOV_DOCUMENT)
            .by_hand(by_hand);
    }
    let wanted = facts.vms.iter().filter(|vm| !vm.nics.is_empty() && vm.assigned.is_empty()).count() as u64;
    let reason = "a guest with a virtual function of its own needs no back end to copy its packets; a VM that has one cannot be \
                  migrated live without more ado, and with idle CPUs a paravirtual NIC is slightly ahead (1.5 % at 1 CSU)";
    let finding = finding(Severity::Consider, Knob::SrIov, subject, found, reason)
        .gaining(
            "an additional 28 % (vConsolidate, 4 CSUs); 9.48 Gb/s instead of 3.6 Gb/s with a single-threaded back end, and 60 \
             VMs for 0.88 of a CPU more than 10",
        )
        .paper("sections III.C and IV.A")
        .paper("section V.A, Figure 13")
        .paper("section V.B, Figure 18")
        .from(SRIOV_DOCUMENT);
    match wanted.min(device.total) {
        0 => finding.by_hand(by_hand),
        count => finding.setting(Setting::VirtualFunctions { device: device.address.clone(), count }),
    }
}

/// Whether the virtual functions that exist can be given to guests.
fn existing_functions(device: &PhysicalFunction, subject: String, found: String) -> Finding {
    let shared: Vec<&str> = device
        .functions
        .iter()
        .filter(|function| function.group.is_some_and(|(_, size)| size > 1))
        .map(|function| function.address.as_str())
        .collect();
    if !shared.is_empty() {
        let reason = format!(
            "{} share(s) its IOMMU group with others, and can only be passed together with them",
            shared.join(", ")
        );
        return finding(Severity::Consider, Knob::SrIov, subject, found, reason)
            .from("Documentation/driver-api/vfio.rst, groups")
            .by_hand("use a slot whose bridge isolates functions (ACS)");
    }
    let unbound = device.functions.iter().filter(|function| function.driver.as_deref() != Some(PASSED_BY));
    let settings: Vec<Setting> = unbound
        .map(|function| Setting::Driver { device: function.address.clone(), driver: Some(PASSED_BY.to_owned()) })
        .collect();
    if settings.is_empty() {
        let reason = "every virtual function can be given to a guest";
        return fine(Knob::SrIov, subject, found, reason).paper("section III.C").from(SRIOV_DOCUMENT);
    }
    let reason = "those with a driver of the host are network interfaces of the host, and cannot be given to a guest until they are \
                  bound to vfio-pci";
    Finding { settings, ..finding(Severity::Consider, Knob::SrIov, subject, found, reason) }
        .paper("section III.C")
        .from("Documentation/driver-api/vfio.rst")
}
