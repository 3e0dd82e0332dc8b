//! What kind of machine this is: reads /proc and /sys under a root directory, so that tests can hand in any machine.
//!
//! Only reads. Whatever a kernel does not tell is left empty; nothing here needs root.

use crate::error::Result;
use muster_model::profile::{Cache, Platform};
use muster_model::{Cpu, CpuSet, Topology};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SYSTEM_CPU: &str = "sys/devices/system/cpu";

/// A file tree that looks like the root of a Linux system.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// The tree under `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A file's text without the line end; `None` when it cannot be read.
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.0.join(path)).ok().map(|text| text.trim_end().to_owned())
    }

    fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    fn cpus(&self, path: impl AsRef<Path>) -> Option<CpuSet> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; empty when it cannot be read.
    fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join(path)) else { return Vec::new() };
        let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// The CPUs that are online and what they share. Where the kernel tells nothing, `known` (the CPUs this process may
/// use) stand side by side behind one cache.
///
/// # Errors
/// When there is no CPU at all.
pub fn topology(root: &Root, known: &CpuSet) -> Result<Topology> {
    let told = root.cpus(format!("{SYSTEM_CPU}/online")).filter(|online| !online.is_empty());
    let online = told.unwrap_or(*known);
    let nodes = numa_nodes(root);
    let shares: Vec<(usize, Cpu)> = online.iter().map(|cpu| (cpu, shared_by(root, cpu, &online, &nodes))).collect();
    let cores = dense(shares.iter().map(|(_, cpu)| cpu.core));
    let llcs = dense(shares.iter().map(|(_, cpu)| cpu.llc));
    let mut cpus = vec![None; shares.last().map_or(0, |(number, _)| number + 1)];
    for (number, cpu) in shares {
        cpus[number] = Some(Cpu { core: cores[&cpu.core], llc: llcs[&cpu.llc], ..cpu });
    }
    Ok(Topology::new(cpus)?)
}

/// What one CPU shares, its core and cache domain named by their lowest online CPU.
fn shared_by(root: &Root, cpu: usize, online: &CpuSet, nodes: &[(u32, CpuSet)]) -> Cpu {
    let place = format!("{SYSTEM_CPU}/cpu{cpu}");
    let lowest = |set: Option<CpuSet>| {
        set.map(|set| set.intersection(online)).and_then(|set| set.iter().next()).unwrap_or(cpu) as u32
    };
    // core_cpus_list replaced thread_siblings_list in Linux 5.3 (Documentation/admin-guide/cputopology.rst).
    let siblings = ["core_cpus_list", "thread_siblings_list"];
    let core = lowest(siblings.iter().find_map(|name| root.cpus(format!("{place}/topology/{name}"))));
    let socket = root.number(format!("{place}/topology/physical_package_id")).unwrap_or(0);
    let node = nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map_or(0, |&(node, _)| node);
    let last_level = cache_indexes(root, cpu).into_iter().max_by_key(|(cache, _)| cache.level);
    // A kernel that knows no caches: what a socket holds is taken to share one.
    let llc = last_level.map_or_else(|| package(root, cpu), |(_, shared)| Some(shared));
    Cpu { core, llc: lowest(llc.or(Some(*online))), node, socket }
}

fn package(root: &Root, cpu: usize) -> Option<CpuSet> {
    let names = ["package_cpus_list", "core_siblings_list"];
    names.iter().find_map(|name| root.cpus(format!("{SYSTEM_CPU}/cpu{cpu}/topology/{name}")))
}

fn numa_nodes(root: &Root) -> Vec<(u32, CpuSet)> {
    let place = "sys/devices/system/node";
    let numbered = root.names(place).into_iter().filter_map(|name| {
        let node = name.strip_prefix("node")?.parse().ok()?;
        Some((node, root.cpus(format!("{place}/{name}/cpulist"))?))
    });
    numbered.collect()
}

/// Group names made small: 0, 1, 2 ... in ascending order.
fn dense(names: impl Iterator<Item = u32>) -> BTreeMap<u32, u32> {
    let distinct: std::collections::BTreeSet<u32> = names.collect();
    distinct.into_iter().zip(0..).collect()
}

/// The data and unified caches of a CPU, each with the CPUs that share it.
fn cache_indexes(root: &Root, cpu: usize) -> Vec<(Cache, CpuSet)> {
    let place = format!("{SYSTEM_CPU}/cpu{cpu}/cache");
    let read = |name: &String| {
        let kind = root.text(format!("{place}/{name}/type"))?;
        let level = root.number(format!("{place}/{name}/level"))?;
        let shared = root.cpus(format!("{place}/{name}/shared_cpu_list"))?;
        let size_bytes = root.text(format!("{place}/{name}/size")).and_then(|size| size_bytes(&size)).unwrap_or(0);
        (kind != "Instruction").then_some((Cache { level, size_bytes, shared_by: shared.len() as u32 }, shared))
    };
    root.names(&place).iter().filter_map(read).collect()
}

/// A size as sysfs writes it (`48K`, `32M`, `512`), in bytes.
fn size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (digits, text.as_bytes()[digits.len()]),
        None => (text, b' '),
    };
    let shift = match unit {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// What kind of machine it is. `cpu` is whose caches are described.
pub fn platform(root: &Root, cpu: usize) -> Platform {
    let or_none = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "none".into());
    let governors = ["current_governor", "current_governor_ro"];
    let governor = or_none(governors.iter().find_map(|name| root.text(format!("{SYSTEM_CPU}/cpuidle/{name}"))));
    let haltpoll_parameters = haltpoll_parameters(root);
    let poll = haltpoll_parameters.get("guest_halt_poll_ns").and_then(|text| text.parse().ok());
    let clocks = "sys/devices/system/clocksource/clocksource0";
    let clock_sources = root.text(format!("{clocks}/available_clocksource")).unwrap_or_default();
    let thp = root.text("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let mut caches: Vec<Cache> = cache_indexes(root, cpu).into_iter().map(|(cache, _)| cache).collect();
    caches.sort_by_key(|cache| cache.level);
    let cpuinfo = root.text("proc/cpuinfo").unwrap_or_default();
    Platform {
        cpu: cpu_model(&cpuinfo),
        kernel: root.text("proc/sys/kernel/osrelease").unwrap_or_default(),
        hypervisor: hypervisor(root, &cpuinfo),
        cpuidle_driver: or_none(root.text(format!("{SYSTEM_CPU}/cpuidle/current_driver"))),
        guest_halt_poll_ns: poll.filter(|_| governor == "haltpoll"),
        cpuidle_governor: governor,
        haltpoll_parameters,
        clock_source: root.text(format!("{clocks}/current_clocksource")).unwrap_or_default(),
        clock_sources: clock_sources.split_whitespace().map(str::to_owned).collect(),
        memory_bytes: root.text("proc/meminfo").as_deref().and_then(memory_bytes),
        transparent_huge_pages: chosen(&thp).unwrap_or("never").to_owned(),
        huge_pages_2m: root.number("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
        steal_share: CpuTimes::read(root).and_then(|times| times.steal_share()),
        mitigations: mitigations(root),
        caches,
        tlbs: Vec::new(),
        walk_caches: Vec::new(),
    }
}

fn haltpoll_parameters(root: &Root) -> BTreeMap<String, String> {
    let place = "sys/module/haltpoll/parameters";
    let read = |name: String| root.text(format!("{place}/{name}")).map(|value| (name, value));
    root.names(place).into_iter().filter_map(read).collect()
}

/// Vulnerabilities this machine does something about, or is open to; those it does not have are left out.
fn mitigations(root: &Root) -> BTreeMap<String, String> {
    let place = format!("{SYSTEM_CPU}/vulnerabilities");
    let read = |name: String| root.text(format!("{place}/{name}")).map(|state| (name, state));
    root.names(&place).into_iter().filter_map(read).filter(|(_, state)| state != "Not affected").collect()
}

/// The model name in /proc/cpuinfo.
fn cpu_model(cpuinfo: &str) -> String {
    let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_owned());
    let keys = ["model name", "Model", "cpu model", "Processor"];
    let line = keys.iter().find_map(|key| cpuinfo.lines().find(|line| line.starts_with(key)));
    line.and_then(value).unwrap_or_default()
}

/// The choice in brackets of a sysfs text such as `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(choice, _)| choice)
}

/// MemTotal of /proc/meminfo, in bytes.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The hypervisor: by the CPU's own word on the live system, else by what the tree says.
fn hypervisor(root: &Root, cpuinfo: &str) -> String {
    if root.0 == Path::new("/")
        && let Some(signature) = hypervisor_signature()
    {
        return hypervisor_name(&signature);
    }
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let is_guest = flags.split_whitespace().any(|flag| flag == "hypervisor");
    let told = root.text("sys/hypervisor/type").filter(|text| !text.is_empty());
    told.unwrap_or_else(|| if is_guest { "unknown" } else { "none" }.into())
}

/// The twelve letters a hypervisor signs with, CPUID leaf 0x4000_0000; `None` where the CPU has no hypervisor bit.
#[cfg(target_arch = "x86_64")]
fn hypervisor_signature() -> Option<[u8; 12]> {
    use std::arch::x86_64::__cpuid;
    let has_hypervisor = __cpuid(1).ecx & (1 << 31) != 0;
    has_hypervisor.then(|| {
        let leaf = __cpuid(0x4000_0000);
        let mut signature = [0; 12];
        for (bytes, register) in signature.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
            bytes.copy_from_slice(&register.to_le_bytes());
        }
        signature
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor_signature() -> Option<[u8; 12]> {
    None
}

/// The hypervisor's usual name for its signature; an unknown signature stands for itself.
fn hypervisor_name(signature: &[u8; 12]) -> String {
    match signature {
        b"KVMKVMKVM\0\0\0" => "kvm".into(),
        b"XenVMMXenVMM" => "xen".into(),
        b"VMwareVMware" => "vmware".into(),
        b"Microsoft Hv" => "hyperv".into(),
        b"TCGTCGTCGTCG" => "qemu-tcg".into(),
        b"bhyve bhyve " => "bhyve".into(),
        b"VBoxVBoxVBox" => "virtualbox".into(),
        b"ACRNACRNACRN" => "acrn".into(),
        other => String::from_utf8_lossy(other).trim_matches(['\0', ' ']).to_owned(),
    }
}

/// The machine's CPU time since boot, in ticks of 1/100 s (proc_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    /// Time in which CPUs did something, polling idle not included.
    pub busy: u64,
    /// Time in which they had nothing to do.
    pub idle: u64,
    /// Time in which the host ran somebody else.
    pub steal: u64,
}

impl CpuTimes {
    /// The counters of now; `None` where there is no /proc/stat.
    pub fn read(root: &Root) -> Option<Self> {
        Self::parse(&root.text("proc/stat")?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
        let busy = [user, nice, system, irq, softirq].iter().fold(0u64, |sum, &part| sum.saturating_add(part));
        Some(Self { busy, idle: idle.saturating_add(iowait), steal })
    }

    /// Steal as a share of all time, 0 to 1, to six digits; `None` before the first tick.
    pub fn steal_share(&self) -> Option<f64> {
        let total = self.busy as f64 + self.idle as f64 + self.steal as f64;
        (total > 0.0).then(|| (self.steal as f64 / total * 1e6).round() / 1e6)
    }

    /// The counters since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// How often a CPU entered idle since boot (Documentation/admin-guide/pm/cpuidle.rst, `usage`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleEntries {
    /// Into the polling state, where the CPU stays awake.
    pub polling: u64,
    /// Into any other state.
    pub halting: u64,
}

impl IdleEntries {
    /// The counters of now; `None` where the machine has no cpuidle driver.
    pub fn read(root: &Root, cpu: usize) -> Option<Self> {
        let place = format!("{SYSTEM_CPU}/cpu{cpu}/cpuidle");
        let mut entries = Self::default();
        let states = root.names(&place);
        for state in states.iter().filter(|name| name.starts_with("state")) {
            let usage: u64 = root.number(format!("{place}/{state}/usage"))?;
            let is_poll = root.text(format!("{place}/{state}/name")).is_some_and(|name| name == "POLL");
            *(if is_poll { &mut entries.polling } else { &mut entries.halting }) += usage;
        }
        (!states.is_empty()).then_some(entries)
    }

    /// The entries since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            polling: self.polling.saturating_sub(earlier.polling),
            halting: self.halting.saturating_sub(earlier.halting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::Distance;
    use proptest::prelude::*;
    use tempfile::TempDir;

    /// A tree of files given as (path, text).
    fn tree(files: &[(String, String)]) -> (TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let root = Root::new(dir.path());
        (dir, root)
    }

    fn file(path: impl Into<String>, text: impl Into<String>) -> (String, String) {
        (path.into(), text.into())
    }

    /// Two sockets, each one node with one L3, of two cores with two threads; Linux numbers first threads first.
    fn two_sockets() -> Vec<(String, String)> {
        let mut files = vec![file("sys/devices/system/cpu/online", "0-7")];
        for cpu in 0..8usize {
            let (core, socket) = (cpu % 4, cpu % 4 / 2);
            let place = format!("sys/devices/system/cpu/cpu{cpu}");
            let socket_cpus = if socket == 0 { "0-1,4-5" } else { "2-3,6-7" };
            let siblings = format!("{core},{}", core + 4);
            files.push(file(format!("{place}/topology/core_cpus_list"), &siblings));
            files.push(file(format!("{place}/topology/physical_package_id"), socket.to_string()));
            for (index, level, kind, size, shared) in [
                (0, "1", "Data", "32K", siblings.as_str()),
                (1, "1", "Instruction", "32K", &siblings),
                (2, "2", "Unified", "256K", &siblings),
                (3, "3", "Unified", "20480K", socket_cpus),
            ] {
                let place = format!("{place}/cache/index{index}");
                files.push(file(format!("{place}/level"), level));
                files.push(file(format!("{place}/type"), kind));
                files.push(file(format!("{place}/size"), size));
                files.push(file(format!("{place}/shared_cpu_list"), shared));
            }
        }
        files.push(file("sys/devices/system/node/node0/cpulist", "0-1,4-5"));
        files.push(file("sys/devices/system/node/node1/cpulist", "2-3,6-7"));
        files
    }

    #[test]
    fn a_machine_of_two_sockets_with_smt() {
        let (_dir, root) = tree(&two_sockets());
        let machine = topology(&root, &CpuSet::single(0)).unwrap();
        assert_eq!(machine, Topology::regular(2, 1, 2, 2).unwrap());
        assert_eq!(machine.distance(1, 5), Some(Distance::SmtSibling));
        assert_eq!(machine.distance(0, 1), Some(Distance::SameLlc));
        assert_eq!(machine.distance(0, 2), Some(Distance::OtherNode));
        let caches = platform(&root, 0).caches;
        assert_eq!(caches.iter().map(|cache| cache.size_bytes >> 10).collect::<Vec<_>>(), [32, 256, 20480]);
        assert_eq!(caches.iter().map(|cache| cache.shared_by).collect::<Vec<_>>(), [2, 2, 4]);
    }

    #[test]
    fn gaps_in_cpu_numbers_stay_gaps() {
        let mut files = two_sockets();
        files[0] = file("sys/devices/system/cpu/online", "1,3,6-7");
        let (_dir, root) = tree(&files);
        let machine = topology(&root, &CpuSet::EMPTY).unwrap();
        assert_eq!(machine.all(), "1,3,6-7".parse().unwrap());
        assert_eq!(machine.cpu(0), None);
        assert_eq!(machine.distance(3, 7), Some(Distance::SmtSibling));
        assert_eq!(machine.distance(6, 7), Some(Distance::SameLlc));
        assert_eq!(machine.distance(1, 6), Some(Distance::OtherNode));
        let cores: Vec<u32> = machine.all().iter().map(|cpu| machine.cpu(cpu).unwrap().core).collect();
        assert_eq!(cores, [0, 1, 2, 1], "an offline sibling names no core");
    }

    #[test]
    fn a_kernel_that_tells_nothing_leaves_the_allowed_cpus() {
        let (_dir, root) = tree(&[]);
        let known: CpuSet = "2,5".parse().unwrap();
        let machine = topology(&root, &known).unwrap();
        assert_eq!(machine.all(), known);
        assert_eq!(machine.distance(2, 5), Some(Distance::SameLlc));
        assert!(topology(&root, &CpuSet::EMPTY).is_err());
        let platform = platform(&root, 2);
        assert_eq!((platform.cpuidle_driver.as_str(), platform.cpuidle_governor.as_str()), ("none", "none"));
        assert_eq!((platform.hypervisor.as_str(), platform.guest_halt_poll_ns), ("none", None));
        assert_eq!(IdleEntries::read(&root, 2), None);
        assert_eq!(CpuTimes::read(&root), None);
    }

    #[test]
    fn without_caches_a_socket_is_one_domain() {
        let mut files = vec![file("sys/devices/system/cpu/online", "0-3")];
        for cpu in 0..4 {
            let place = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            files.push(file(format!("{place}/thread_siblings_list"), cpu.to_string()));
            files.push(file(format!("{place}/core_siblings_list"), if cpu < 2 { "0-1" } else { "2-3" }));
            files.push(file(format!("{place}/physical_package_id"), if cpu < 2 { "0" } else { "1" }));
        }
        let (_dir, root) = tree(&files);
        let machine = topology(&root, &CpuSet::EMPTY).unwrap();
        assert_eq!(machine.distance(0, 1), Some(Distance::SameLlc));
        assert_eq!(machine.distance(1, 2), Some(Distance::OtherLlc));
    }

    fn guest(governor: &str) -> Platform {
        let (_dir, root) = tree(&[
            file("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU @ 2.4GHz\nflags\t\t: fpu hypervisor tsc"),
            file("proc/sys/kernel/osrelease", "6.18.0"),
            file("proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB"),
            file("proc/stat", "cpu  10 0 10 60 0 0 0 20 0 0\ncpu0 1 2 3"),
            file("sys/devices/system/cpu/cpuidle/current_driver", "haltpoll"),
            file("sys/devices/system/cpu/cpuidle/current_governor", governor),
            file("sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000"),
            file("sys/module/haltpoll/parameters/guest_halt_poll_allow_shrink", "Y"),
            file("sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock"),
            file("sys/devices/system/clocksource/clocksource0/available_clocksource", "kvm-clock tsc acpi_pm "),
            file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7"),
            file("sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI"),
            file("sys/devices/system/cpu/vulnerabilities/srbds", "Not affected"),
        ]);
        platform(&root, 0)
    }

    #[test]
    fn a_polling_guest_is_described() {
        let platform = guest("haltpoll");
        assert_eq!(platform.cpu, "A CPU @ 2.4GHz");
        assert_eq!(platform.guest_halt_poll_ns, Some(200_000));
        assert_eq!(platform.haltpoll_parameters["guest_halt_poll_allow_shrink"], "Y");
        assert_eq!(platform.hypervisor, "unknown");
        assert_eq!(platform.clock_sources, ["kvm-clock", "tsc", "acpi_pm"]);
        assert_eq!(platform.transparent_huge_pages, "madvise");
        assert_eq!((platform.huge_pages_2m, platform.memory_bytes), (Some(7), Some(2 << 20)));
        assert_eq!(platform.steal_share, Some(0.2));
        assert_eq!(platform.mitigations.into_iter().collect::<Vec<_>>(), [file("meltdown", "Mitigation: PTI")]);
    }

    #[test]
    fn the_haltpoll_parameter_means_nothing_under_another_governor() {
        assert_eq!(guest("menu").guest_halt_poll_ns, None);
    }

    #[test]
    fn idle_entries_tell_polling_from_halting() {
        let place = "sys/devices/system/cpu/cpu3/cpuidle";
        let state = |number: u32, name: &str, usage: &str| {
            [file(format!("{place}/state{number}/name"), name), file(format!("{place}/state{number}/usage"), usage)]
        };
        let files = [state(0, "POLL", "5"), state(1, "C1", "7"), state(2, "C6", "11")].concat();
        let (_dir, root) = tree(&files);
        let entries = IdleEntries::read(&root, 3).unwrap();
        assert_eq!(entries, IdleEntries { polling: 5, halting: 18 });
        assert_eq!(entries.since(&IdleEntries { polling: 1, halting: 20 }), IdleEntries { polling: 4, halting: 0 });
    }

    #[test]
    fn hypervisors_sign_with_twelve_letters() {
        assert_eq!(hypervisor_name(b"KVMKVMKVM\0\0\0"), "kvm");
        assert_eq!(hypervisor_name(b"XenVMMXenVMM"), "xen");
        assert_eq!(hypervisor_name(b"SomethingNew"), "SomethingNew");
    }

    #[test]
    fn sizes_of_sysfs() {
        assert_eq!(
            [size_bytes("48K"), size_bytes("32M"), size_bytes("512")].map(Option::unwrap),
            [48 << 10, 32 << 20, 512]
        );
        assert_eq!((size_bytes("K"), size_bytes(""), size_bytes("99999999999999999999G")), (None, None, None));
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_left_out(text in "\\PC{0,60}") {
            let _ = (size_bytes(&text), chosen(&text), memory_bytes(&text), cpu_model(&text), CpuTimes::parse(&text));
            let _ = memory_bytes(&format!("MemTotal:{text}kB"));
            let _ = CpuTimes::parse(&format!("cpu {text}"));
        }
    }

    #[test]
    fn this_machine_describes_itself() {
        let allowed = crate::affinity::allowed().unwrap();
        let machine = topology(&Root::default(), &allowed).unwrap();
        assert!(allowed.is_subset(&machine.all()), "{allowed} of {}", machine.all());
    }
}
