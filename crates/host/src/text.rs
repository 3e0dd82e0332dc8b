//! The formats of procfs, debugfs and VMMs' command lines: any text is read as far as it is understood.

use muster_model::host::{CpuVectors, Interrupt, MemoryFacts, NicFacts};
use std::collections::BTreeMap;

/// The flags of the first CPU in `/proc/cpuinfo`, `vmx flags` among them, in alphabetical order.
pub fn cpu_flags(cpuinfo: &str) -> Vec<String> {
    let of = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key));
        line.and_then(|line| line.split_once(':')).map(|(_, flags)| flags).unwrap_or_default()
    };
    let mut flags: Vec<String> = of("flags")
        .split_ascii_whitespace()
        .chain(of("vmx flags").split_ascii_whitespace())
        .map(str::to_owned)
        .collect();
    flags.sort();
    flags.dedup();
    flags
}

/// The chosen word of `always [madvise] never`; a text without brackets as it is.
pub fn chosen(text: &str) -> &str {
    let choice = text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    choice.unwrap_or(text.trim())
}

/// The numbered lines of `/proc/interrupts`; targets are left open.
pub fn interrupts(text: &str) -> Vec<Interrupt> {
    let mut lines = text.lines();
    let cpus = lines.next().map_or(0, |header| header.split_ascii_whitespace().count());
    lines.filter_map(|line| interrupt(line, cpus)).collect()
}

fn interrupt(line: &str, cpus: usize) -> Option<Interrupt> {
    let (number, rest) = line.split_once(':')?;
    let number = number.trim().parse().ok()?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let counts = words.iter().take(cpus).map_while(|word| word.parse::<u64>().ok());
    let (count, columns) = counts.fold((0u64, 0), |(sum, columns), one| (sum.saturating_add(one), columns + 1));
    let mut names = words.into_iter().skip(columns);
    let chip = names.next().unwrap_or_default().to_owned();
    // The number of the interrupt at its controller, and how it is triggered.
    let _pin = names.next();
    Some(Interrupt { number, chip, action: names.collect::<Vec<_>>().join(" "), count, allowed: None, effective: None })
}

/// The table of `/sys/kernel/debug/irq/domains/VECTOR` (kernel/irq/matrix.c): CPU, available, managed, of these
/// allocated, allocated, vectors.
pub fn vectors(text: &str) -> Vec<CpuVectors> {
    let rows = text.lines().skip_while(|line| !line.contains("| CPU |")).skip(1);
    rows.filter_map(|row| {
        let mut columns = row.split_ascii_whitespace();
        let cpu = columns.next()?.parse().ok()?;
        let available = columns.next()?.parse().ok()?;
        let used = columns.nth(2)?.parse().ok()?;
        Some(CpuVectors { cpu, used, available })
    })
    .collect()
}

/// The sums of `/proc/PID/smaps` or `smaps_rollup`; shared memory is left open.
pub fn memory(smaps: &str) -> Option<MemoryFacts> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (key, value) in smaps.lines().filter_map(|line| line.split_once(':')) {
        if let Some(kib) = value.trim().strip_suffix("kB").and_then(|number| number.trim().parse::<u64>().ok()) {
            let sum = sums.entry(key).or_default();
            *sum = sum.saturating_add(kib);
        }
    }
    let of = |key| sums.get(key).copied();
    Some(MemoryFacts {
        resident_kib: of("Rss")?,
        anon_huge_kib: of("AnonHugePages").unwrap_or(0),
        shmem_kib: 0,
        shmem_huge_kib: of("ShmemPmdMapped").unwrap_or(0),
        file_huge_kib: of("FilePmdMapped").unwrap_or(0),
        hugetlb_kib: of("Shared_Hugetlb").unwrap_or(0).saturating_add(of("Private_Hugetlb").unwrap_or(0)),
    })
}

/// A field of a `/proc/PID/status` file, such as `RssShmem`.
pub fn status_field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim))
}

/// Whether a thread of this name is a vCPU: QEMU, Firecracker, Cloud Hypervisor and crosvm name them so.
pub fn is_vcpu(comm: &str) -> bool {
    let numbered = |prefix: &str, suffix: &str| {
        let number = comm.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    numbered("CPU ", "/KVM") || numbered("fc_vcpu ", "") || numbered("vcpu", "") || numbered("crosvm_vcpu", "")
}

/// The arguments of a `/proc/PID/cmdline`.
pub fn arguments(cmdline: &[u8]) -> Vec<String> {
    let mut arguments: Vec<String> =
        cmdline.split(|&byte| byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect();
    if arguments.last().is_some_and(String::is_empty) {
        arguments.pop();
    }
    arguments
}

/// What the command line of a VMM says of its VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// Its name.
    pub name: Option<String>,
    /// HLT, MWAIT and PAUSE stay in the guest.
    pub cpu_pm: bool,
    /// The guest is offered no kvm-clock.
    pub no_kvm_clock: bool,
    /// Its paravirtual NICs.
    pub nics: Vec<NicFacts>,
    /// Addresses of host devices assigned to it.
    pub assigned: Vec<String>,
}

/// Reads the arguments of QEMU (qemu(1)).
pub fn qemu(arguments: &[String]) -> CommandLine {
    let mut found = CommandLine::default();
    for (option, value) in arguments.iter().zip(arguments.iter().skip(1)) {
        let option = option.strip_prefix("--").or_else(|| option.strip_prefix('-')).unwrap_or_default();
        let keys = keys(value);
        let is = |key: &str, wanted: &str| keys.get(key).is_some_and(|value| value == wanted);
        match option {
            "name" => found.name = keys.get("guest").or_else(|| keys.get("")).cloned(),
            "overcommit" if is("cpu-pm", "on") => found.cpu_pm = true,
            "cpu" if is("kvmclock", "off") || is("kvm", "off") || keys.contains_key("-kvmclock") => {
                found.no_kvm_clock = true;
            }
            "netdev" => found.nics.push(qemu_nic(&keys, keys.get("type").or_else(|| keys.get("")))),
            "nic" if !is("", "none") => found.nics.push(qemu_nic(&keys, keys.get("type").or_else(|| keys.get("")))),
            "device" if is("driver", "vfio-pci") || is("", "vfio-pci") => {
                found.assigned.extend(keys.get("host").map(|address| full_address(address)));
            }
            _ => {}
        }
    }
    found
}

fn qemu_nic(keys: &BTreeMap<String, String>, backend: Option<&String>) -> NicFacts {
    // libvirt opens the queues itself and hands them over: one descriptor each.
    let handed = keys.get("fds").map(|fds| fds.split(':').count() as u64);
    let queues = keys.get("queues").and_then(|queues| queues.parse().ok()).or(handed).unwrap_or(1);
    NicFacts {
        id: keys.get("id").cloned().unwrap_or_else(|| "unnamed".to_owned()),
        backend: backend.cloned().unwrap_or_default(),
        queues,
        vhost: keys.get("vhost").is_some_and(|value| value == "on" || value == "true") || keys.contains_key("vhostfd"),
    }
}

/// `03:10.0` as `0000:03:10.0`.
fn full_address(address: &str) -> String {
    if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() }
}

/// Reads the arguments of Cloud Hypervisor.
pub fn cloud_hypervisor(arguments: &[String]) -> CommandLine {
    let mut found = CommandLine::default();
    let mut option = "";
    for argument in arguments {
        if let Some(name) = argument.strip_prefix("--") {
            option = name;
            continue;
        }
        let keys = keys(argument);
        match option {
            "net" => {
                let vhost_user = keys.get("vhost_user").is_some_and(|value| value == "true" || value == "on");
                // It counts receiving and sending queues apart.
                let queues =
                    keys.get("num_queues").and_then(|count| count.parse::<u64>().ok()).map_or(1, |count| count / 2);
                let id = ["id", "tap"].into_iter().find_map(|key| keys.get(key).cloned());
                found.nics.push(NicFacts {
                    id: id.unwrap_or_else(|| "unnamed".to_owned()),
                    // Its own threads move the packets of a tap device: there is no vhost to switch on.
                    backend: if vhost_user { "vhost-user" } else { "built-in" }.to_owned(),
                    queues,
                    vhost: false,
                });
            }
            "device" => {
                found.assigned.extend(keys.get("path").and_then(|path| path.rsplit('/').next()).map(str::to_owned))
            }
            _ => {}
        }
    }
    found
}

/// Reads the arguments of Firecracker.
pub fn firecracker(arguments: &[String]) -> CommandLine {
    let name = arguments.iter().zip(arguments.iter().skip(1)).find(|(option, _)| *option == "--id");
    CommandLine { name: name.map(|(_, name)| name.clone()), ..CommandLine::default() }
}

/// `tap,id=n0,queues=4` or the same as JSON; what has no key is at the empty one, switches (`-kvmclock`) at their own.
fn keys(value: &str) -> BTreeMap<String, String> {
    if let Ok(serde_json::Value::Object(object)) = serde_json::from_str(value) {
        let plain = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        return object.into_iter().map(|(key, value)| (key, plain(value))).collect();
    }
    // A comma in a value is written twice (qemu(1)).
    let parts = value.split(',').enumerate();
    parts
        .map(|(index, part)| match part.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None if index == 0 => (String::new(), part.to_owned()),
            None => (part.to_owned(), String::new()),
        })
        .collect()
}
