//! Reading the facts: each in its place in sysfs and procfs, none of them needed.

use crate::text;
use crate::tree::Tree;
use crate::{pci, vms};
use muster_model::CpuSet;
use muster_model::host::{ClockFacts, HostFacts, Interrupt, KvmFacts, Module, PageFacts, Parameter, Pool};

/// Where transparent huge pages are set.
pub(crate) const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// Where the clock source is set.
pub(crate) const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0";

/// Reads everything below the root of `tree`.
pub fn read(tree: &Tree) -> HostFacts {
    let mut facts = HostFacts {
        cpus: tree.value("/sys/devices/system/cpu/online").unwrap_or(CpuSet::EMPTY),
        flags: tree.text("/proc/cpuinfo").map(|text| text::cpu_flags(&text)).unwrap_or_default(),
        kvm: kvm(tree),
        clock: clock(tree),
        pages: pages(tree),
        vms: vms::read(tree),
        vhost: modules(tree, |name| name.starts_with("vhost_")),
        iommu_groups: tree.names("/sys/kernel/iommu_groups").len(),
        devices: pci::read(tree),
        interrupts: interrupts(tree),
        vectors: tree.text("/sys/kernel/debug/irq/domains/VECTOR").map(|text| text::vectors(&text)).unwrap_or_default(),
        unreadable: Vec::new(),
    };
    facts.unreadable = tree.unreadable();
    facts
}

/// Names of the loaded modules that `wanted` takes.
fn modules(tree: &Tree, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    tree.names("/sys/module").into_iter().filter(|name| wanted(name)).collect()
}

fn kvm(tree: &Tree) -> KvmFacts {
    let names = modules(tree, |name| name == "kvm" || name.starts_with("kvm_"));
    KvmFacts { device: tree.has("/dev/kvm"), modules: names.into_iter().map(|name| module(tree, name)).collect() }
}

fn module(tree: &Tree, name: String) -> Module {
    let place = format!("/sys/module/{name}");
    let parameters = tree.names(&format!("{place}/parameters")).into_iter().filter_map(|parameter| {
        let path = format!("{place}/parameters/{parameter}");
        Some((parameter, Parameter { value: tree.word(&path)?, writable: tree.is_writable(&path) }))
    });
    Module { parameters: parameters.collect(), users: tree.value(&format!("{place}/refcnt")), name }
}

fn clock(tree: &Tree) -> ClockFacts {
    let available = tree.text(&format!("{CLOCK}/available_clocksource")).unwrap_or_default();
    ClockFacts {
        current: tree.word(&format!("{CLOCK}/current_clocksource")),
        available: available.split_ascii_whitespace().map(str::to_owned).collect(),
    }
}

fn pages(tree: &Tree) -> PageFacts {
    let choice = |name: &str| tree.text(&format!("{THP}/{name}")).map(|text| text::chosen(&text).to_owned());
    let khugepaged = tree.names(&format!("{THP}/khugepaged")).into_iter().filter_map(|name| {
        let number = tree.word(&format!("{THP}/khugepaged/{name}"))?.parse().ok()?;
        Some((name, number))
    });
    let pools = tree.names("/sys/kernel/mm/hugepages").into_iter().filter_map(|name| {
        let page_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| tree.value(&format!("/sys/kernel/mm/hugepages/{name}/{file}"));
        Some(Pool { page_kib, total: number("nr_hugepages")?, free: number("free_hugepages")? })
    });
    let mut pools: Vec<Pool> = pools.collect();
    pools.sort_by_key(|pool| pool.page_kib);
    let mounts = tree.text("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next() == Some("hugetlbfs")).then(|| place.to_owned())
    });
    PageFacts {
        thp: choice("enabled"),
        defrag: choice("defrag"),
        shmem: choice("shmem_enabled"),
        khugepaged: khugepaged.collect(),
        pools,
        mounts: mounts.collect(),
    }
}

fn interrupts(tree: &Tree) -> Vec<Interrupt> {
    let mut interrupts = tree.text("/proc/interrupts").map(|text| text::interrupts(&text)).unwrap_or_default();
    for interrupt in &mut interrupts {
        let targets = |file: &str| {
            let text = tree.word(&format!("/proc/irq/{}/{file}", interrupt.number))?;
            text.parse::<CpuSet>().ok().filter(|set| !set.is_empty())
        };
        interrupt.allowed = targets("smp_affinity_list");
        interrupt.effective = targets("effective_affinity_list");
    }
    interrupts
}
