//! What the whole-world tests share: the R720's profile, and random experiments.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use muster_model::study::{
    Apic, BackEnd, Backing, Client, Consolidation, Disk, Environment, Experiment, GuestKernel, GuestMode, IdleKind,
    Kvm, Moderation, Network, Nic, Paging, PagingKind, Path, Pin, Placement, Ple, PleKind, Remedy, RemoteWake, Service,
    ShadowSync, Share, SpinLocks, Storage, TablePlacement, Tickle, Vectoring, VmDevices, VmScheduler, VmSpec,
    WakeSignal, Yield,
};
use muster_model::workload::{Duration, Group, WorkingSet};
use muster_model::{Account, Profile, Topology, Workload};
use muster_sim::{Outcome, SimError, Simulation};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The R720 of the Gleaner paper.
pub fn r720() -> Profile {
    let text = include_str!("../../../../machines/gleaner-r720.toml");
    Profile::from_toml(text, "machines/gleaner-r720.toml").unwrap()
}

/// The 48 Opterons of the iXen paper.
pub fn opteron() -> Profile {
    let text = include_str!("../../../../machines/ixen-opteron48.toml");
    Profile::from_toml(text, "machines/ixen-opteron48.toml").unwrap()
}

/// The Xeons of the hardware-acceleration paper. What their profile does not say is as on the Opterons.
pub fn xeon() -> Profile {
    let text = include_str!("../../../../machines/hardware-acceleration-xeon.toml");
    let mut profile = Profile::from_toml(text, "machines/hardware-acceleration-xeon.toml").unwrap();
    let opteron = opteron();
    let (same_llc, other_node) =
        (profile.prices["cache-transfer.same-llc"].clone(), profile.prices["cache-transfer.other-node"].clone());
    for (name, price) in [
        ("same-llc", &same_llc),
        ("smt-sibling", &profile.prices["cache.l2"].clone()),
        ("other-llc", &other_node),
        ("other-node", &other_node),
    ] {
        profile.prices.entry(format!("sim.cpu.cache-line.{name}")).or_insert(price.clone());
    }
    for (name, price) in &opteron.prices {
        profile.prices.entry(name.clone()).or_insert(price.clone());
    }
    if profile.platform.tlbs.is_empty() {
        profile.platform.tlbs = opteron.platform.tlbs;
    }
    profile
}

/// A run on them under Linux 2.6.31, in a VM of 32 vCPUs if it is one, whose books balance.
pub fn run_2_6_31(workload: &Workload, environment: Environment, cores: u32, remedies: &[Remedy]) -> Outcome {
    let is_vm = environment != Environment::Native;
    let experiment = Experiment {
        kernel: Some(GuestKernel::Linux2631),
        vcpus: is_vm.then_some(32),
        remedies: remedies.iter().copied().collect(),
        limit_s: 60.0,
        ..Experiment::new(environment, cores)
    };
    let outcome = Simulation::new(&experiment, &opteron(), workload, None).unwrap().run().unwrap();
    for book in &outcome.books {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books of every pCPU balance");
    }
    outcome
}

/// A workload of a test's own.
pub fn workload(text: &str) -> Workload {
    Workload::from_json(text, "test.json").unwrap()
}

/// A plain experiment on `cores` cores.
pub fn experiment(environment: Environment, cores: u32) -> Experiment {
    Experiment { limit_s: 600.0, ..Experiment::new(environment, cores) }
}

/// A random machine, program and remedies, and the programs of further VMs.
pub struct Case {
    pub experiment: Experiment,
    pub profile: Profile,
    pub workload: Workload,
    pub company: Vec<Workload>,
}

/// The case of a seed.
pub fn case(seed: u64) -> Case {
    let mut draw = Draw(Xoshiro256PlusPlus::seed_from_u64(seed));
    let shapes = [(1, 1, 1, 1), (1, 1, 2, 1), (1, 1, 4, 2), (2, 1, 3, 1), (2, 2, 2, 2), (2, 1, 8, 1)];
    let (sockets, llcs, cores, smt) = shapes[draw.below(6)];
    let mut profile = r720();
    profile.topology = Topology::regular(sockets, llcs, cores, smt).unwrap();
    let most = profile.topology.len();
    let mut experiment = experiment(Environment::Native, draw.below(most) as u32 + 1);
    experiment.environment = [Environment::Native, Environment::Virtual][draw.below(2)];
    experiment.idle = [IdleKind::Halt, IdleKind::Poll, IdleKind::Mwait, IdleKind::Haltpoll][draw.below(4)];
    experiment.remote_wake = [RemoteWake::Flag, RemoteWake::Ipi][draw.below(2)];
    experiment.wakeup = [Placement::Spread, Placement::Colocate][draw.below(2)];
    experiment.wake_signal = [WakeSignal::Ipi, WakeSignal::Exception][draw.below(2)];
    experiment.consolidation =
        [Consolidation::None, Consolidation::Yielding, Consolidation::Controller, Consolidation::Colocate]
            [draw.below(4)];
    experiment.yielding = draw.below(4) == 0;
    experiment.threads = Some(draw.below(12) as u32 + 1);
    experiment.seed = seed;
    let workload = random_workload(&mut draw);
    let mut case = Case { experiment, profile, workload, company: Vec::new() };
    if case.experiment.environment == Environment::Virtual && draw.below(2) == 0 {
        share(&mut case, &mut draw);
    } else if draw.below(3) == 0 {
        on_xen(&mut case, &mut draw);
    }
    // From numbers of their own: a seed's machine and program stay what they were.
    let mut sizes = Draw(Xoshiro256PlusPlus::seed_from_u64(!seed));
    if sizes.below(2) == 0 {
        with_working_sets(&mut case, &mut sizes);
    }
    if smt > 1 && sizes.below(2) == 0 {
        with_siblings(&mut case.profile, &mut sizes);
    }
    let mut devices = Draw(Xoshiro256PlusPlus::seed_from_u64(seed.rotate_left(17) ^ 0x10));
    if devices.below(3) == 0 {
        with_devices(&mut case, &mut devices);
    }
    let mut spins = Draw(Xoshiro256PlusPlus::seed_from_u64(seed.rotate_left(32) ^ 0x51));
    if case.experiment.environment == Environment::Virtual && spins.below(2) == 0 {
        with_spinning(&mut case, &mut spins);
    }
    // Again from numbers of their own.
    let mut paging = Draw(Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(3)));
    if paging.below(3) == 0 {
        with_paging(&mut case, &mut paging);
    }
    case
}

/// Gives the guests a kernel whose locks are simulated, on hardware that looks at loops of PAUSE.
fn with_spinning(case: &mut Case, draw: &mut Draw) {
    // Whatever the case asks for besides is priced as it was.
    for (name, price) in xeon().prices {
        case.profile.prices.entry(name).or_insert(price);
    }
    if case.profile.platform.tlbs.is_empty() {
        case.profile.platform.tlbs = xeon().platform.tlbs;
    }
    let experiment = &mut case.experiment;
    if experiment.kvm.is_none() {
        experiment.environment = Environment::Hvm;
        experiment.kernel = Some([GuestKernel::Linux2631, GuestKernel::Pk][draw.below(2)]);
    }
    let kind = [PleKind::Off, PleKind::Xen, PleKind::Kvm][draw.below(3)];
    let yields = [Yield::BehindEquals, Yield::BehindOneLower][draw.below(2)];
    let (gap, window) = ([32, 128, 1024][draw.below(3)], [64, 2048, 1 << 20][draw.below(3)]);
    let (grow, shrink) = ([0, 2, 5000][draw.below(3)], [0, 2, 5000][draw.below(3)]);
    let window_max = window << draw.below(8);
    experiment.ple = (draw.below(4) > 0).then_some(Ple { kind, gap, window, yields, grow, shrink, window_max });
    if experiment.ple.is_some() {
        experiment.spin_locks = Some([SpinLocks::Ticket, SpinLocks::Queued][draw.below(2)]);
    }
}

/// Gives the machine cards, disks and a service VM, and its VMs programs that use them.
fn with_devices(case: &mut Case, draw: &mut Draw) {
    let native = case.experiment.environment == Environment::Native;
    let moderation = [Moderation::Adaptive, Moderation::PerSecond(50_000)][draw.below(2)];
    let queues = [None, Some(1), Some(3)][draw.below(3)];
    let nic = Nic { moderation, queues, line_gbps: [0.1, 1.0, 9.48][draw.below(3)], ..Nic::default() };
    case.experiment.nics = vec![Nic { receive_batch: 8, ..nic.clone() }, nic];
    case.experiment.disks = vec![Disk { queue_depth: 2, ..Disk::default() }; 1 + draw.below(2)];
    if !native {
        let back_end = [BackEnd::Single, BackEnd::Multi][draw.below(2)];
        let vcpus = 1 + draw.below(4) as u32;
        case.experiment.service =
            Some(Service { vcpus, memory_mb: 512, back_end, weight: 256, vectoring: Vectoring::Hybrid });
        case.experiment.scheduler = None;
    }
    let alone = case.company.is_empty();
    let disks = case.experiment.disks.len();
    let (devices, group) = random_devices(draw, native, alone, disks);
    case.experiment.devices = devices;
    case.workload.groups.extend(group);
    for (vm, workload) in case.experiment.vms.iter_mut().zip(&mut case.company) {
        let (devices, group) = random_devices(draw, native, alone, disks);
        vm.devices = devices;
        workload.groups.extend(group);
    }
}

/// What a VM has of them, and a group of threads that uses it.
fn random_devices(draw: &mut Draw, native: bool, alone: bool, disks: usize) -> (VmDevices, Vec<Group>) {
    let path = |draw: &mut Draw| if native { Path::Native } else { [Path::Pv, Path::Vf][draw.below(2)] };
    let connections = 1 + draw.below(5) as u32;
    let window_bytes = [1_000, 20_000, 262_144][draw.below(3)];
    let think_ns = Duration::Exponential { mean: [0, 50_000][draw.below(2)] };
    let (client, network) = match draw.below(3) {
        0 => (Client::StreamIn { connections, window_bytes }, r#"{"receive":{"bytes":30000}},"#),
        1 => (Client::StreamOut { connections, window_bytes }, r#"{"send":{"bytes":100000}},"#),
        _ => {
            let request_bytes = [1, 3_000, 200_000][draw.below(3)];
            let client = Client::Requests { connections, request_bytes, think_ns };
            (client, r#"{"receive":{"bytes":700}},{"run":{"ns":2000}},{"send":{"bytes":70000}},"#)
        }
    };
    let (to_card, nic) = (path(draw), draw.below(2) as u32);
    let mut devices = VmDevices { network: Some(Network { path: to_card, nic, client }), storage: None };
    let mut storage = "";
    if draw.below(2) == 0 {
        let path = if alone { path(draw) } else { Path::Pv };
        devices.storage = Some(Storage { path, disks: (0..disks as u32).collect() });
        storage = r#"{"read-disk":{"bytes":100000}},{"write-disk":{"bytes":4096}},"#;
    }
    let (count, times) = (1 + draw.below(4), 1 + draw.below(6));
    let text = format!(
        r#"{{"name":"io","groups":[{{"name":"io","count":{count},"phases":[{{"loop":{{"times":{times},"phases":[
            {network}{storage}{{"run":{{"ns":1000}}}}]}}}}]}}]}}"#
    );
    (devices, workload(&text).groups)
}

/// Hardware threads of a core slow each other down.
fn with_siblings(profile: &mut Profile, draw: &mut Draw) {
    let mut price = opteron().prices["memory.latency"].clone();
    for (name, ns) in [("alone-on-core", 1_000.0), ("beside-sibling", [1_000.0, 1_300.0, 2_500.0][draw.below(3)])] {
        price.ns = ns;
        profile.prices.insert(format!("sim.cpu.{name}"), price.clone());
    }
}

/// Gives VMs page tables that are simulated entry by entry, and the machine what that takes.
fn with_paging(case: &mut Case, draw: &mut Draw) {
    if !matches!(case.experiment.environment, Environment::Virtual | Environment::Hvm) {
        return;
    }
    let text = include_str!("../../../../machines/hardware-acceleration-xeon.toml");
    let Profile { platform, prices, .. } =
        Profile::from_toml(text, "machines/hardware-acceleration-xeon.toml").unwrap();
    (case.profile.platform.caches, case.profile.platform.tlbs) = (platform.caches, platform.tlbs);
    case.profile.platform.walk_caches = platform.walk_caches;
    let taken =
        |name: &str| name.starts_with("cache.l") || name.starts_with("sim.vmm.shadow") || name == "memory.latency";
    case.profile.prices.extend(prices.into_iter().filter(|(name, _)| taken(name)));
    let mut paging = || {
        let kind = [PagingKind::Shadow, PagingKind::Nested][draw.below(2)];
        let is_shadow = kind == PagingKind::Shadow;
        Paging {
            mode: [GuestMode::Legacy, GuestMode::Pae, GuestMode::Long][draw.below(3)],
            backing: if is_shadow { Backing::Small } else { [Backing::Small, Backing::Large][draw.below(2)] },
            tables: if is_shadow {
                TablePlacement::Allocated
            } else {
                [TablePlacement::Allocated, TablePlacement::Confined][draw.below(2)]
            },
            sync: if is_shadow { [ShadowSync::Trap, ShadowSync::Lazy][draw.below(2)] } else { ShadowSync::Trap },
            ..Paging::new(kind)
        }
    };
    case.experiment.paging = Some(paging());
    case.experiment.vms.iter_mut().for_each(|vm| vm.paging = Some(paging()));
}

/// Gives the machine caches, and some groups of threads working sets that fit them or do not.
fn with_working_sets(case: &mut Case, draw: &mut Draw) {
    let Profile { platform, prices, .. } = opteron();
    case.profile.platform.caches = platform.caches;
    for name in ["cache.l3", "memory.latency"] {
        case.profile.prices.insert(name.to_owned(), prices[name].clone());
    }
    let workloads = std::iter::once(&mut case.workload).chain(&mut case.company);
    for group in workloads.flat_map(|workload| &mut workload.groups) {
        let bytes = [64, 40_000, 600_000, 3 << 20, 1 << 28][draw.below(5)];
        let shared_bytes = [0, bytes / 3, bytes][draw.below(3)];
        let (line_ns, written_percent) = ([1, 20, 300][draw.below(3)], [0, 10, 100][draw.below(3)]);
        let set = WorkingSet { bytes, shared_bytes, line_ns, written_percent };
        group.working_set = (draw.below(4) > 0).then_some(set);
    }
}

/// Moves the case to Xen, or natively to the same machine and kernel.
fn on_xen(case: &mut Case, draw: &mut Draw) {
    let experiment = &mut case.experiment;
    case.profile = Profile { topology: case.profile.topology.clone(), ..opteron() };
    experiment.kernel = Some([GuestKernel::Linux2631, GuestKernel::Pk][draw.below(2)]);
    experiment.environment = [Environment::Native, Environment::Pv, Environment::Hvm][draw.below(3)];
    // Such kernels' calls for files are simulated.
    case.workload = Workload::from_json(&program(draw, true), "random.json").unwrap();
    if !experiment.environment.is_xen() {
        return;
    }
    experiment.vcpus =
        Some(experiment.cores + draw.below(case.profile.topology.len() - experiment.cores as usize + 1) as u32);
    let there = experiment.environment.remedies().iter().copied();
    let drawn: Vec<Remedy> = there.filter(|&remedy| remedy != Remedy::Itlb && draw.below(3) == 0).collect();
    experiment.remedies = match drawn.contains(&Remedy::All) {
        true => [Remedy::All].into(),
        false => drawn.into_iter().collect(),
    };
    if experiment.remedies.contains(&Remedy::Idle) {
        experiment.remedies.remove(&Remedy::Nohlt);
    }
}

fn random_workload(draw: &mut Draw) -> Workload {
    Workload::from_json(&program(draw, false), "random.json").unwrap()
}

/// Up to three VMs with any number of vCPUs on any number of pCPUs.
fn share(case: &mut Case, draw: &mut Draw) {
    let most = case.profile.topology.len();
    let pcpus = draw.below(most) as u32 + 1;
    let experiment = &mut case.experiment;
    experiment.pcpus = Some(pcpus);
    experiment.scheduler = Some(VmScheduler::Credit);
    experiment.tickle = [Tickle::One, Tickle::All][draw.below(2)];
    experiment.share = vm_share(draw, experiment.cores, pcpus);
    for _ in 0..draw.below(3) {
        let vcpus = draw.below(most) as u32 + 1;
        let consolidation = [Consolidation::None, Consolidation::Yielding, Consolidation::Controller][draw.below(3)];
        let share = vm_share(draw, vcpus, pcpus);
        let threads = Some(draw.below(12) as u32 + 1);
        let repeat = draw.below(2) == 0;
        experiment.vms.push(VmSpec { threads, share, consolidation, repeat, ..VmSpec::new(String::new(), vcpus) });
        case.company.push(random_workload(draw));
    }
}

/// Puts a VM of KVM's, or several, on a KVM of today, with guests of different kinds.
fn on_kvm(case: &mut Case, draw: &mut Draw) {
    let experiment = &mut case.experiment;
    if experiment.environment != Environment::Virtual {
        return;
    }
    if draw.below(4) > 0 {
        experiment.kvm = Some(Kvm {
            halt_poll_ns: [0, 20_000, 200_000, 1_000_000][draw.below(4)],
            halt_poll_ns_grow: draw.below(4) as u64,
            halt_poll_ns_grow_start: [0, 10_000][draw.below(2)],
            halt_poll_ns_shrink: draw.below(3) as u64,
            pv_unhalt: draw.below(3) > 0,
            pv_tlb_flush: draw.below(2) == 0,
            pv_ipi: draw.below(2) == 0,
            apic: [Apic::Emulated, Apic::Posted, Apic::Avic][draw.below(3)],
            host_hz: [100, 250, 1000][draw.below(3)],
        });
    }
    if experiment.scheduler == Some(VmScheduler::Credit) && (experiment.kvm.is_some() || draw.below(3) > 0) {
        experiment.scheduler = Some(VmScheduler::Eevdf);
    }
    let mut kernel = || [None, Some(GuestKernel::Linux6), Some(GuestKernel::Windows2003)][draw.below(3)];
    experiment.kernel = kernel();
    experiment.vms.iter_mut().for_each(|vm| vm.guest.kernel = kernel());
    for vm in &mut experiment.vms {
        let guest = &mut vm.guest;
        guest.idle = [None, Some(IdleKind::Halt), Some(IdleKind::Poll), Some(IdleKind::Haltpoll)][draw.below(4)];
        guest.remote_wake = [None, Some(RemoteWake::Flag), Some(RemoteWake::Ipi)][draw.below(3)];
        guest.wakeup = [None, Some(Placement::Spread), Some(Placement::Colocate)][draw.below(3)];
        guest.yielding = [None, Some(true), Some(false)][draw.below(3)];
    }
}

fn vm_share(draw: &mut Draw, vcpus: u32, pcpus: u32) -> Share {
    let (weight, cap) = ([64, 256, 256, 1024][draw.below(4)], [0, 0, 40, 150][draw.below(4)]);
    let pin = if vcpus <= pcpus && draw.below(2) == 0 { Pin::Each } else { Pin::None };
    Share { weight, cap, pin }
}

struct Draw(Xoshiro256PlusPlus);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }
}

/// Two or three groups of random phases, which share locks, barriers and a condition with permits enough.
fn program(draw: &mut Draw, files: bool) -> String {
    let lock_kinds = [
        r#"{"kind":"mutex"}"#,
        r#"{"kind":"kernel-mutex"}"#,
        r#"{"kind":"spin"}"#,
        r#"{"kind":"spin-then-block","spin_ns":4000}"#,
    ];
    let barrier = [r#"{"kind":"futex"}"#, r#"{"kind":"condvar"}"#][draw.below(2)];
    let locks = (0..2).map(|i| format!(r#""l{i}":{}"#, lock_kinds[draw.below(4)])).collect::<Vec<_>>().join(",");
    let times = draw.below(20) + 2;
    let barriers_everywhere = draw.below(2) == 0;
    let groups = (0..draw.below(2) + 2).map(|g| {
        let count = if g == 0 { r#""threads""#.to_owned() } else { (draw.below(4) + 1).to_string() };
        let mut phases: Vec<String> = (0..draw.below(5) + 1).map(|_| phase(draw, files)).collect();
        if barriers_everywhere {
            phases.push(r#"{"barrier":{"barrier":"b"}}"#.to_owned());
        }
        // Give before taking: permits always suffice.
        phases.push(r#"{"wake":{"condition":"c","count":2}}"#.to_owned());
        phases.push(r#"{"wait":{"condition":"c"}}"#.to_owned());
        let phases = phases.join(",");
        let nice = [0, 0, -7, 12][draw.below(4)];
        format!(r#"{{"name":"g{g}","count":{count},"nice":{nice},"phases":[{{"loop":{{"times":{times},"phases":[{phases}]}}}}]}}"#)
    });
    let groups = groups.collect::<Vec<_>>().join(",");
    let journaled = draw.below(3) == 0;
    let (ends, endless) = if draw.below(3) == 0 { endless(draw, files) } else { (String::new(), String::new()) };
    format!(
        r#"{{"name":"random","locks":{{{locks},"m":{{"kind":"mutex"}}}},"barriers":{{"b":{barrier}}},"conditions":{{"c":{{}}}},
            "condvars":["v"],"timers":{{"own":{{}},"all":{{"shared":true,"absolute":true}}}},{ends}"journaled":{journaled},
            "directories":{{"top":{{"mounted":true,"names":5}},"own":{{"in":"top","own":true,"names":3}},"below":{{"in":"own"}}}},
            "files":{{"everybodys":{{"in":"top","pages":9}},"many":{{"in":"top","count":7,"pages":9}},"mine":{{"in":"below","pages":9}},
            "here":{{"own":true,"pages":9}}}},"groups":[{groups}{endless}]}}"#
    )
}

/// An end to the program, and two groups that go on until then: some wait to be signalled, others signal.
fn endless(draw: &mut Draw, files: bool) -> (String, String) {
    let ends = format!(r#""duration_ns":{},"#, [50_000, 3_000_000, 40_000_000][draw.below(3)]);
    let all = draw.below(2) == 0;
    let (waiters, wakers, run, period) =
        (draw.below(4) + 1, draw.below(2) + 1, phase(draw, files), draw.below(90_000) + 1);
    let groups = format!(
        r#",{{"name":"waiters","count":{waiters},"phases":[{{"loop":{{"times":"forever","phases":[
            {{"lock":{{"lock":"m","phases":[{{"await":{{"condvar":"v","lock":"m"}}}},{run}]}}}}]}}}}]}},
           {{"name":"wakers","count":{wakers},"phases":[{{"loop":{{"times":"forever","phases":[
            {{"timer":{{"timer":"all","period_ns":{period}}}}},{{"signal":{{"condvar":"v","all":{all}}}}}]}}}}]}}"#
    );
    (ends, groups)
}

fn phase(draw: &mut Draw, files: bool) -> String {
    let ns = [0, 100, 3_000, 50_000, 2_000_000][draw.below(5)];
    match draw.below(if files { 19 } else { 13 }) {
        13..=17 => file(draw),
        18 => format!(
            r#"{{"fork":{{"phases":[{},{{"run":{{"ns":{ns}}}}},{},{{"touch-memory":{{"pages":9}}}},{{"unmap":{{"pages":9}}}}]}}}}"#,
            file(draw),
            file(draw)
        ),
        4 if files && ns == 0 => r#"{"touch-memory":{"pages":3,"cached":true}}"#.to_owned(),
        4 if files && ns == 100 => r#"{"touch-memory":{"pages":50}},{"unmap":{"pages":40}}"#.to_owned(),
        0 | 1 => format!(r#"{{"run":{{"ns":{{"exponential":{{"mean":{ns}}}}}}}}}"#),
        2 => format!(r#"{{"lock":{{"lock":"l0","phases":[{{"run":{{"ns":{}}}}}]}}}}"#, ns.min(50_000)),
        3 => r#"{"lock":{"lock":"l0","phases":[{"lock":{"lock":"l1","phases":[{"run":{"ns":500}}]}}]}}"#.to_owned(),
        4 => r#"{"touch-memory":{"pages":3}}"#.to_owned(),
        5 => r#"{"map":{"pages":4}},{"unmap":{"pages":4}}"#.to_owned(),
        6 => format!(r#"{{"syscall":{{"ns":{}}}}}"#, ns.min(50_000)),
        7 => format!(r#"{{"sleep":{{"ns":{ns}}}}}"#),
        8 => format!(r#"{{"run-for":{{"ns":{ns}}}}}"#),
        9 => format!(r#"{{"timer":{{"timer":"own","period_ns":{ns}}}}}"#),
        10 => r#"{"yield":{}}"#.to_owned(),
        11 => r#"{"affinity":{"cpus":"0"}},{"run":{"ns":700}},{"affinity":{}}"#.to_owned(),
        _ => r#"{"read-clock":{"times":5}}"#.to_owned(),
    }
}

/// Calls for a file of a random set: some before it is open, some while it is, some after.
fn file(draw: &mut Draw) -> String {
    let of = ["everybodys", "many", "mine", "here"][draw.below(4)];
    let closed = [r#""stat""#, r#""stat-missing""#, r#""list""#, r#""statfs""#, r#""rename""#, r#""unlink""#];
    let opened = [r#"{"read":3}"#, r#"{"write":2}"#, r#""seek""#, r#""fstat""#, r#""stat""#];
    let some = |draw: &mut Draw, of: &[&str], most: usize| -> Vec<String> {
        (0..draw.below(most)).map(|_| of[draw.below(of.len())].to_owned()).collect()
    };
    let mut calls = some(draw, &closed, 3);
    if draw.below(3) > 0 || calls.is_empty() {
        calls.push([r#""open""#, r#""create""#][draw.below(2)].to_owned());
        calls.extend(some(draw, &opened, 4));
        calls.push(r#""close""#.to_owned());
        calls.extend(some(draw, &closed, 3));
    }
    let user_ns = [0, 400][draw.below(2)];
    format!(r#"{{"file":{{"of":"{of}","calls":[{}],"user_ns":{user_ns}}}}}"#, calls.join(","))
}

/// Runs a case and checks what must hold of every run.
pub fn run_checked(case: &Case) -> Result<Outcome, String> {
    let workloads: Vec<&Workload> = std::iter::once(&case.workload).chain(&case.company).collect();
    let simulation =
        Simulation::of_vms(&case.experiment, &case.profile, &workloads, None).map_err(|e| e.to_string())?;
    let outcome = simulation.run().map_err(|error: SimError| error.to_string())?;
    check_books(case, &outcome)?;
    check_misses(&workloads, &outcome)?;
    for (number, (vm, spec)) in outcome.vms.iter().zip(case.experiment.all_vms()).enumerate() {
        if !spec.repeat && vm.runs != 1 {
            return Err(format!("the program of VM {number} ended {} times", vm.runs));
        }
        if vm.active_history.iter().any(|&(_, n)| n == 0 || n > spec.vcpus) {
            return Err(format!("the number of active vCPUs of VM {number} left its range"));
        }
    }
    Ok(outcome)
}

fn check_misses(workloads: &[&Workload], outcome: &Outcome) -> Result<(), String> {
    let follows = workloads.iter().flat_map(|workload| &workload.groups).any(|group| group.working_set.is_some());
    // Page tables are working sets, too.
    let follows = follows || outcome.paging.is_some();
    let Some(misses) = &outcome.cache_misses else {
        return if follows { Err("no cache is followed".to_owned()) } else { Ok(()) };
    };
    for (level, misses) in [("L2", misses.l2), ("LLC", misses.llc)] {
        for (cause, &all) in misses.all.iter().enumerate() {
            let (again, swept) = (misses.coherence[cause], misses.conflict[cause]);
            let is_count = |count: f64| count.is_finite() && count >= 0.0;
            if !follows || !is_count(again) || !is_count(swept) || again + swept > all * (1.0 + 1e-9) + 1e-3 {
                return Err(format!(
                    "{level} misses of cause {cause}: {all}, {again} written elsewhere, {swept} displaced"
                ));
            }
        }
    }
    let last: f64 = misses.llc.all.iter().sum();
    if last > misses.l2.all.iter().sum::<f64>() * (1.0 + 1e-9) + 1e-3 {
        return Err(format!("the last-level caches miss more than is asked of them: {last}"));
    }
    Ok(())
}

fn check_books(case: &Case, outcome: &Outcome) -> Result<(), String> {
    let vcpus = outcome.vms.iter().flat_map(|vm| &vm.books);
    for (who, book) in outcome.books.iter().map(|book| ("core", book)).chain(vcpus.map(|book| ("vCPU", book))) {
        let booked: u64 = book.iter().sum();
        if booked != outcome.wall_ps {
            return Err(format!("a {who} has {booked} ps booked of {}", outcome.wall_ps));
        }
    }
    let on_cores = |account: Account| outcome.books.iter().map(|book| book[account as usize]).sum::<u64>();
    let of_vms =
        |account: Account| outcome.vms.iter().flat_map(|vm| &vm.books).map(|book| book[account as usize]).sum::<u64>();
    // The VMM's own work, and vCPUs that are off, are on one side only.
    let one_sided = [Account::HaltWake, Account::VmmScheduler, Account::Steal, Account::Idle];
    for account in Account::ALL.into_iter().filter(|account| !one_sided.contains(account)) {
        // Among it what it spends on locks, lines and translations.
        let in_part = [Account::CacheTransfer, Account::VmmLock, Account::PageWalk].contains(&account);
        if on_cores(account) != of_vms(account) && !(in_part && on_cores(account) > of_vms(account)) {
            return Err(format!("{}: {} ps on cores, {} of VMs", account.name(), on_cores(account), of_vms(account)));
        }
    }
    if on_cores(Account::Steal) > 0 {
        return Err("a core is stolen from itself".to_owned());
    }
    if case.experiment.scheduler() == VmScheduler::Pinned && of_vms(Account::Steal) > 0 {
        return Err("time is stolen from vCPUs that have a core each".to_owned());
    }
    let native = case.experiment.environment == Environment::Native;
    if native && (on_cores(Account::VmmScheduler) > 0 || outcome.counters.halt_exits > 0) {
        return Err("a native run has time in the VMM".to_owned());
    }
    Ok(())
}
