//! Which finding applies when: a host in good order, and one thing changed at a time.

use super::asked::{Asked, names, resolve};
use super::{advised, audit};
use muster_model::CpuSet;
use muster_model::host::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn module(name: &str, parameters: &[(&str, &str)]) -> Module {
    let parameter = |value: &str| Parameter { value: value.to_owned(), writable: name == "kvm" };
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), parameter(value)));
    Module { name: name.to_owned(), users: Some(0), parameters: parameters.collect() }
}

fn vm(pid: u32, cpus: &[usize]) -> VmFacts {
    let vcpu = |(index, &cpu): (usize, &usize)| VcpuFacts {
        tid: pid + 1 + index as u32,
        allowed: CpuSet::single(cpu),
        ran_ns: Some(1_000_000),
        waited_ns: Some(0),
    };
    VmFacts {
        pid,
        name: None,
        vmm: Vmm::Qemu,
        vcpus: cpus.iter().enumerate().map(vcpu).collect(),
        vcpus_open: Some(cpus.len()),
        memory: Some(MemoryFacts { resident_kib: 1000, anon_huge_kib: 900, ..MemoryFacts::default() }),
        cpu_pm: true,
        no_kvm_clock: false,
        nics: vec![NicFacts { id: "n".to_owned(), backend: "tap".to_owned(), queues: 2, vhost: true }],
        assigned: Vec::new(),
        vhost_threads: 2,
    }
}

fn device() -> PhysicalFunction {
    let function = |address: &str, group| VirtualFunction {
        address: address.to_owned(),
        driver: Some("vfio-pci".to_owned()),
        group: Some((group, 1)),
    };
    PhysicalFunction {
        address: "0000:03:00.0".to_owned(),
        id: "8086:10fb".to_owned(),
        class: "Ethernet controller".to_owned(),
        driver: Some("ixgbe".to_owned()),
        interfaces: vec!["eth0".to_owned()],
        total: 63,
        enabled: 2,
        autoprobe: Some(true),
        node: None,
        functions: vec![function("0000:03:10.0", 1), function("0000:03:10.2", 2)],
    }
}

fn interrupt(number: u32, cpu: usize) -> Interrupt {
    Interrupt {
        number,
        chip: "PCI-MSIX-0000:03:00.0".to_owned(),
        action: format!("eth0-{number}"),
        count: 90_000,
        allowed: None,
        effective: Some(CpuSet::single(cpu)),
    }
}

/// A host of which nothing is to be said but that it is fine.
fn good() -> HostFacts {
    let intel = [
        ("ept", "Y"),
        ("unrestricted_guest", "Y"),
        ("nested", "Y"),
        ("ple_gap", "128"),
        ("ple_window", "4096"),
        ("ple_window_grow", "2"),
    ];
    HostFacts {
        cpus: CpuSet::first(4),
        flags: ["vmx", "ept", "ple", "unrestricted_guest", "constant_tsc", "nonstop_tsc"].map(str::to_owned).to_vec(),
        kvm: KvmFacts {
            device: true,
            modules: vec![
                module("kvm", &[("halt_poll_ns", "200000"), ("halt_poll_ns_grow", "2")]),
                module("kvm_intel", &intel),
            ],
        },
        clock: ClockFacts { current: Some("tsc".to_owned()), available: vec!["tsc".to_owned(), "hpet".to_owned()] },
        pages: PageFacts {
            thp: Some("madvise".to_owned()),
            defrag: Some("madvise".to_owned()),
            shmem: Some("never".to_owned()),
            khugepaged: BTreeMap::from([("defrag".to_owned(), 1)]),
            pools: Vec::new(),
            mounts: Vec::new(),
        },
        vms: vec![vm(100, &[0, 1]), vm(200, &[2, 3])],
        vhost: vec!["vhost_net".to_owned()],
        iommu_groups: 9,
        devices: vec![device()],
        interrupts: vec![interrupt(40, 0), interrupt(41, 1)],
        vectors: vec![CpuVectors { cpu: 0, used: 10, available: 190 }],
        unreadable: Vec::new(),
    }
}

fn set(facts: &mut HostFacts, name: &str, value: &str) {
    let module = facts.kvm.modules.iter_mut().find(|module| module.parameters.contains_key(name)).expect("a parameter");
    module.parameters.insert(name.to_owned(), Parameter { value: value.to_owned(), writable: false });
}

fn amd(facts: &mut HostFacts) {
    facts.flags = ["svm", "npt", "pausefilter", "constant_tsc"].map(str::to_owned).to_vec();
    let parameters = [("npt", "1"), ("nested", "1"), ("pause_filter_thresh", "128"), ("pause_filter_count", "3000")];
    facts.kvm.modules[1] = module("kvm_amd", &parameters);
}

fn overcommitted(facts: &mut HostFacts) {
    facts.vms.push(VmFacts { cpu_pm: false, ..vm(300, &[0]) });
    for vm in &mut facts.vms {
        vm.cpu_pm = false;
        vm.vcpus.iter_mut().for_each(|vcpu| vcpu.allowed = CpuSet::first(4));
    }
}

#[test]
fn nothing_is_to_be_done_on_a_host_in_good_order() {
    let audit = audit(&good());
    let loud: Vec<_> = audit.findings.iter().filter(|finding| finding.severity != Severity::Fine).collect();
    assert!(loud.is_empty(), "{loud:#?}");
    let order: Vec<_> =
        audit.findings.iter().map(|finding| Knob::ALL.iter().position(|knob| *knob == finding.knob)).collect();
    assert!(order.is_sorted());
    assert!(advised(&audit.findings, &[]).is_empty());
}

/// What is changed on the good host, and the one loud finding that must come of it: its knob, severity and settings.
type Case = (&'static str, fn(&mut HostFacts), Knob, Severity, &'static [&'static str]);

const CASES: &[Case] = &[
    ("EPT off", |f| set(f, "ept", "N"), Knob::Paging, Severity::Act, &["kvm_intel.ept = 1"]),
    (
        "EPT off on CPUs without it",
        |f| {
            set(f, "ept", "N");
            f.flags.retain(|flag| flag != "ept");
        },
        Knob::Paging,
        Severity::Act,
        &[],
    ),
    (
        "NPT off",
        |f| {
            amd(f);
            set(f, "npt", "0");
        },
        Knob::Paging,
        Severity::Act,
        &["kvm_amd.npt = 1"],
    ),
    (
        "unrestricted guests off",
        |f| set(f, "unrestricted_guest", "N"),
        Knob::Paging,
        Severity::Consider,
        &["kvm_intel.unrestricted_guest = 1"],
    ),
    (
        "no large pages",
        |f| f.pages.thp = Some("never".to_owned()),
        Knob::LargePages,
        Severity::Act,
        &["/sys/kernel/mm/transparent_hugepage/enabled = madvise"],
    ),
    (
        "no compaction for large pages",
        |f| f.pages.defrag = Some("never".to_owned()),
        Knob::LargePages,
        Severity::Consider,
        &["/sys/kernel/mm/transparent_hugepage/defrag = madvise"],
    ),
    (
        "shared memory without large pages",
        |f| {
            f.vms[0].memory =
                Some(MemoryFacts { resident_kib: 1000, shmem_kib: 900, shmem_huge_kib: 800, ..MemoryFacts::default() })
        },
        Knob::LargePages,
        Severity::Consider,
        &["/sys/kernel/mm/transparent_hugepage/shmem_enabled = advise"],
    ),
    (
        "a VM in small pages",
        |f| f.vms[0].memory = Some(MemoryFacts { resident_kib: 1000, anon_huge_kib: 499, ..MemoryFacts::default() }),
        Knob::LargePages,
        Severity::Consider,
        &[],
    ),
    ("a VM whose memory is hidden", |f| f.vms[0].memory = None, Knob::LargePages, Severity::Unknown, &[]),
    (
        "a pool that nobody uses",
        |f| f.pages.pools.push(Pool { page_kib: 2048, total: 5, free: 5 }),
        Knob::LargePages,
        Severity::Consider,
        &[],
    ),
    (
        "PLE off while overcommitted",
        |f| {
            overcommitted(f);
            set(f, "ple_gap", "0");
        },
        Knob::Ple,
        Severity::Act,
        &["kvm_intel.ple_gap = 128"],
    ),
    (
        "PLE off while overcommitted, on AMD",
        |f| {
            amd(f);
            overcommitted(f);
            set(f, "pause_filter_count", "0");
        },
        Knob::Ple,
        Severity::Act,
        &["kvm_amd.pause_filter_count = 3000"],
    ),
    (
        "a window that never grows",
        |f| set(f, "ple_window_grow", "0"),
        Knob::Ple,
        Severity::Consider,
        &["kvm_intel.ple_window_grow = 2"],
    ),
    ("no halt polling", |f| set(f, "halt_poll_ns", "0"), Knob::HaltPoll, Severity::Act, &["kvm.halt_poll_ns = 200000"]),
    (
        "long halt polling",
        |f| set(f, "halt_poll_ns", "2000000"),
        Knob::HaltPoll,
        Severity::Consider,
        &["kvm.halt_poll_ns = 200000"],
    ),
    (
        "halt polling that never starts",
        |f| set(f, "halt_poll_ns_grow", "0"),
        Knob::HaltPoll,
        Severity::Consider,
        &["kvm.halt_poll_ns_grow = 2"],
    ),
    (
        "cpu-pm on a CPU that is not pinned",
        |f| f.vms[0].vcpus[0].allowed = CpuSet::first(2),
        Knob::CpuPm,
        Severity::Act,
        &[],
    ),
    ("cpu-pm beside other work", |f| f.vms[0].vcpus[0].waited_ns = Some(100_000), Knob::CpuPm, Severity::Act, &[]),
    ("cpu-pm off on CPUs of one's own", |f| f.vms[0].cpu_pm = false, Knob::CpuPm, Severity::Consider, &[]),
    (
        "the HPET as clock",
        |f| f.clock.current = Some("hpet".to_owned()),
        Knob::Clock,
        Severity::Act,
        &["/sys/devices/system/clocksource/clocksource0/current_clocksource = tsc"],
    ),
    (
        "the HPET as clock, and no TSC on offer",
        |f| f.clock = ClockFacts { current: Some("hpet".to_owned()), available: vec!["hpet".to_owned()] },
        Knob::Clock,
        Severity::Consider,
        &[],
    ),
    ("no kvm-clock", |f| f.vms[0].no_kvm_clock = true, Knob::Clock, Severity::Consider, &[]),
    ("no vhost", |f| f.vms[0].nics[0].vhost = false, Knob::Vhost, Severity::Act, &[]),
    ("one queue", |f| f.vms[0].nics[0].queues = 1, Knob::MultiQueue, Severity::Consider, &[]),
    (
        "no virtual functions yet",
        |f| {
            f.devices[0].enabled = 0;
            f.devices[0].functions.clear();
        },
        Knob::SrIov,
        Severity::Consider,
        &["virtual functions of 0000:03:00.0 = 2"],
    ),
    ("no IOMMU", |f| f.iommu_groups = 0, Knob::SrIov, Severity::Consider, &[]),
    (
        "a virtual function of the host's",
        |f| f.devices[0].functions[1].driver = Some("ixgbevf".to_owned()),
        Knob::SrIov,
        Severity::Consider,
        &["driver of 0000:03:10.2 = vfio-pci"],
    ),
    (
        "virtual functions in one group",
        |f| f.devices[0].functions[1].group = Some((1, 2)),
        Knob::SrIov,
        Severity::Consider,
        &[],
    ),
    (
        "queues on one CPU",
        |f| f.interrupts[1].effective = Some(CpuSet::single(0)),
        Knob::Interrupts,
        Severity::Consider,
        &["/proc/irq/40/smp_affinity_list = 0", "/proc/irq/41/smp_affinity_list = 1"],
    ),
    ("few vectors left", |f| f.vectors[0].used = 760, Knob::Vectors, Severity::Consider, &[]),
    (
        "no vectors shown",
        |f| {
            f.vectors.clear();
            f.interrupts.iter_mut().for_each(|interrupt| interrupt.effective = None);
        },
        Knob::Vectors,
        Severity::Unknown,
        &[],
    ),
];

#[test]
fn one_change_makes_one_finding() {
    for (name, change, knob, severity, settings) in CASES {
        let mut facts = good();
        change(&mut facts);
        let findings = audit(&facts).findings;
        let loud: Vec<_> = findings.iter().filter(|finding| finding.severity != Severity::Fine).collect();
        let [one] = loud[..] else { panic!("{name}: {loud:#?}") };
        assert_eq!((one.knob, one.severity), (*knob, *severity), "{name}");
        let told: Vec<String> = one.settings.iter().map(ToString::to_string).collect();
        assert_eq!(told, *settings, "{name}");
        assert!(!one.sources.is_empty() && !one.reason.is_empty(), "{name}");
        let expected = if *severity == Severity::Act { one.settings.clone() } else { Vec::new() };
        assert_eq!(advised(&findings, &[]), expected, "{name}: only what costs is advised unasked");
        assert_eq!(advised(&findings, &[*knob]), one.settings, "{name}: a named knob sets what there is to consider");
    }
}

#[test]
fn ple_is_praised_only_where_it_helps() {
    let mut facts = good();
    set(&mut facts, "ple_gap", "0");
    let ple =
        |facts: &HostFacts| audit(facts).findings.into_iter().find(|one| one.knob == Knob::Ple).expect("a finding");
    assert_eq!((ple(&facts).severity, ple(&facts).gain), (Severity::Fine, None));
    overcommitted(&mut facts);
    assert!(ple(&facts).gain.expect("a gain").contains("14 %"));
}

fn asked_set(name: &str, value: &str) -> Asked {
    Asked::Set { name: name.to_owned(), value: value.to_owned() }
}

#[test]
fn settings_are_asked_for_by_name() {
    let facts = good();
    let told = |asked: Asked| resolve(&facts, &asked).map(|setting| setting.to_string());
    let text = |text: &str| text.to_owned();
    for (asked, expected) in [
        (asked_set("ple_window", "2048"), "kvm_intel.ple_window = 2048"),
        (asked_set("kvm_intel.ple_window", "2048"), "kvm_intel.ple_window = 2048"),
        (asked_set("halt_poll_ns", "0"), "kvm.halt_poll_ns = 0"),
        (asked_set("thp", "always"), "/sys/kernel/mm/transparent_hugepage/enabled = always"),
        (Asked::Functions { device: text("eth0"), count: 63 }, "virtual functions of 0000:03:00.0 = 63"),
        (Asked::Bind { device: text("03:10.2"), driver: text("vfio-pci") }, "driver of 0000:03:10.2 = vfio-pci"),
        (Asked::Release { device: text("0000:03:00.0") }, "driver of 0000:03:00.0 = the host's choice"),
        (Asked::Interrupt { number: 41, cpus: CpuSet::first(2) }, "/proc/irq/41/smp_affinity_list = 0-1"),
    ] {
        assert_eq!(told(asked), Ok(expected.to_owned()));
    }
    for (asked, expected) in [
        (asked_set("ple", "1"), "allowed: ept"),
        (asked_set("pause_filter_count", "1"), "no loaded module"),
        (asked_set("kvm_amd.ple_window", "1"), "no loaded module"),
        (asked_set("ple_window", "4294967296"), "0 to 4294967295"),
        (asked_set("ple_window", "-1"), "0 to 4294967295"),
        (asked_set("ept", "yes"), "0 and 1"),
        (asked_set("thp", "0"), "always, madvise, never"),
        (Asked::Functions { device: text("eth0"), count: 64 }, "0 to 63"),
        (Asked::Functions { device: text("eth1"), count: 1 }, "allowed: 0000:03:00.0"),
        (Asked::Bind { device: text("0000:04:00.0"), driver: text("vfio-pci") }, "neither"),
        (Asked::Bind { device: text("eth0"), driver: text("../x") }, "no name of a driver"),
        (Asked::Interrupt { number: 7, cpus: CpuSet::first(1) }, "no interrupt 7"),
        (Asked::Interrupt { number: 41, cpus: CpuSet::single(9) }, "online: 0-3"),
    ] {
        let refused = told(asked).expect_err(expected);
        assert!(refused.contains(expected) && !refused.contains('\n'), "{refused}");
    }
}

proptest! {
    #[test]
    fn a_request_is_met_or_refused(name in "[a-z_.]{0,20}", known in any::<prop::sample::Index>(), value in "\\PC{0,12}") {
        let facts = good();
        let all: Vec<_> = names().collect();
        for name in [name.as_str(), all[known.index(all.len())]] {
            match resolve(&facts, &asked_set(name, &value)) {
                Ok(setting) => prop_assert!(setting.to_string().ends_with(value.as_str())),
                Err(why) => prop_assert!(!why.is_empty()),
            }
        }
    }

    /// Whatever a module shows as its parameters, the advice is for another value than there is.
    #[test]
    fn advice_is_for_another_value(gap in 0u32..3, window in 0u32..3, grow in 0u32..3, poll in 0u32..3, more in 0usize..3) {
        let mut facts = good();
        let value = |pick: u32, values: [&str; 3]| values[pick as usize].to_owned();
        set(&mut facts, "ple_gap", &value(gap, ["0", "128", "x"]));
        set(&mut facts, "ple_window", &value(window, ["0", "4096", ""]));
        set(&mut facts, "ple_window_grow", &value(grow, ["0", "1", "2"]));
        set(&mut facts, "halt_poll_ns", &value(poll, ["0", "200000", "9999999999"]));
        (0..more).for_each(|_| overcommitted(&mut facts));
        for finding in audit(&facts).findings {
            for setting in finding.settings {
                if let Setting::Parameter { module, name, value, .. } = setting {
                    let module = facts.kvm.modules.iter().find(|found| found.name == module).expect("a loaded module");
                    prop_assert_ne!(&module.parameters[&name].value, &value);
                }
            }
        }
    }
}
