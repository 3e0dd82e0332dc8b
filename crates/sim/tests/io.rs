//! Networks and disks: what streams reach by each way to a card, what that costs whom, and that nothing is lost.

mod common;

use muster_model::study::{
    BackEnd, Client, Disk, Environment, Experiment, GuestKernel, Moderation, Network, Nic, Path, Service, Storage,
    Vectoring, VmDevices, VmSpec,
};
use muster_model::{Profile, Workload};
use muster_sim::{Outcome, Simulation};

/// The paper's machine. What its profile lacks of the simulator's prices is taken from that of another Xen host.
fn xeon() -> Profile {
    let text = include_str!("../../../machines/hardware-acceleration-xeon.toml");
    let mut profile = Profile::from_toml(text, "machines/hardware-acceleration-xeon.toml").unwrap();
    let other = common::opteron();
    for (name, price) in other.prices.into_iter().filter(|(name, _)| name.starts_with("sim.")) {
        profile.prices.entry(name).or_insert(price);
    }
    if profile.platform.tlbs.is_empty() {
        profile.platform.tlbs = other.platform.tlbs;
    }
    profile
}

fn workload(phases: &str, ms: u64) -> Workload {
    let text = format!(
        r#"{{"name":"w","duration_ns":{},"groups":[{{"name":"g","count":"threads","phases":[{{"loop":{{"times":"forever","phases":[{phases}]}}}}]}}]}}"#,
        ms * 1_000_000
    );
    Workload::from_json(&text, "w.json").unwrap()
}

/// A guest of one vCPU for each of `guests`, with the machine of Table I and the service VM of the micro-benchmarks.
fn guests(devices: &VmDevices, guests: usize, back_end: BackEnd) -> Experiment {
    let mut experiment = Experiment {
        kernel: Some(GuestKernel::Linux2631),
        pcpus: Some(16),
        limit_s: 60.0,
        nics: vec![Nic::default()],
        disks: vec![Disk::default()],
        service: Some(Service { vcpus: 8, memory_mb: 512, back_end, weight: 256, vectoring: Vectoring::Hybrid }),
        devices: devices.clone(),
        ..Experiment::new(Environment::Hvm, 1)
    };
    let company = VmSpec { repeat: true, ..experiment.all_vms().remove(0) };
    experiment.vms = vec![company; guests - 1];
    experiment
}

fn network(path: Path, client: Client) -> VmDevices {
    VmDevices { network: Some(Network { path, nic: 0, client }), storage: None }
}

fn stream_in() -> Client {
    Client::StreamIn { connections: 1, window_bytes: 262_144 }
}

fn run(experiment: &Experiment, workload: &Workload) -> Outcome {
    let workloads = vec![workload; experiment.all_vms().len()];
    let outcome = Simulation::of_vms(experiment, &xeon(), &workloads, None).unwrap().run().unwrap();
    let vcpus = outcome.vms.iter().flat_map(|vm| &vm.books);
    for book in outcome.books.iter().chain(vcpus) {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books balance");
    }
    outcome
}

/// Gb/s, and per cent of a hardware thread: of the guests, of the service VM, of the VMM besides.
#[derive(Debug)]
struct Netperf {
    gbps: f64,
    guests: f64,
    service: f64,
    vmm: f64,
}

impl Netperf {
    fn of(outcome: &Outcome, guests: usize) -> Self {
        let percent = |ps: u64| 100.0 * ps as f64 / outcome.wall_ps as f64;
        let bytes: u64 = outcome.vms[..guests].iter().map(|vm| vm.io.as_ref().unwrap().counts.received_bytes).sum();
        let of_guests = percent(outcome.vms[..guests].iter().map(|vm| vm.cpu_ps()).sum());
        let service = percent(outcome.vms[guests..].iter().map(|vm| vm.cpu_ps()).sum());
        Self {
            gbps: bytes as f64 * 8.0 / (outcome.wall_ps as f64 / 1e3),
            guests: of_guests,
            service,
            vmm: percent(outcome.busy_ps()) - of_guests - service,
        }
    }

    fn all(&self) -> f64 {
        self.guests + self.service + self.vmm
    }
}

/// netperf's TCP_STREAM towards so many guests.
fn netperf(path: Path, back_end: BackEnd, count: usize) -> Netperf {
    let receive = workload(r#"{"receive":{"bytes":87380}}"#, 300);
    Netperf::of(&run(&guests(&network(path, stream_in()), count, back_end), &receive), count)
}

#[test]
#[ignore = "prints a curve; slow"]
fn netperf_curves() {
    for (name, path, back_end, counts) in [
        ("PV, one thread", Path::Pv, BackEnd::Single, &[1, 2, 5, 10, 20][..]),
        ("PV, a thread for each vCPU", Path::Pv, BackEnd::Multi, &[1, 2, 5, 10, 20]),
        ("SR-IOV", Path::Vf, BackEnd::Multi, &[1, 2, 10, 20, 40, 60]),
    ] {
        for &count in counts {
            let started = std::time::Instant::now();
            let found = netperf(path, back_end, count);
            println!(
                "{name}, {count} VMs: {:.2} Gb/s; {:.0} % in all: guests {:.0}, service VM {:.0}, VMM {:.0} ({:?})",
                found.gbps,
                found.all(),
                found.guests,
                found.service,
                found.vmm,
                started.elapsed()
            );
        }
    }
}

/// The line rate of the card in Gb/s of payload.
const LINE: f64 = 9.48;

#[test]
fn one_back_end_saturates_a_thread_and_more_reach_the_line_rate() {
    let [single, multi] = [BackEnd::Single, BackEnd::Multi].map(|back_end| netperf(Path::Pv, back_end, 10));
    assert!((single.gbps / 3.6 - 1.0).abs() < 0.05, "{single:?}");
    let more = netperf(Path::Pv, BackEnd::Single, 20);
    assert!((more.gbps / single.gbps - 1.0).abs() < 0.1, "more VMs get no more: {single:?} {more:?}");
    assert!(multi.gbps > 0.98 * LINE && multi.all() > 700.0, "{multi:?}");
}

#[test]
fn virtual_functions_hold_the_line_rate_for_less() {
    let [ten, sixty] = [10, 60].map(|count| netperf(Path::Vf, BackEnd::Multi, count));
    assert!(ten.gbps > 0.98 * LINE && sixty.gbps > 0.98 * LINE, "{ten:?} {sixty:?}");
    let pv = netperf(Path::Pv, BackEnd::Multi, 10);
    assert!(2.0 * ten.all() < pv.all(), "{ten:?} {pv:?}");
    assert!(sixty.all() > ten.all() && sixty.all() < pv.all(), "each interrupts by itself: {ten:?} {sixty:?}");
}

/// A web server: as many threads as connections, and clients that think.
fn requests(think_us: u64) -> Client {
    let think_ns = muster_model::workload::Duration::Exponential { mean: think_us * 1000 };
    Client::Requests { connections: 8, request_bytes: 300, think_ns }
}

const SERVER: &str = r#"{"receive":{"bytes":300}},{"run":{"ns":20000}},{"send":{"bytes":20000}}"#;

#[test]
fn every_request_is_answered_and_waits_for_what_lies_between() {
    let answered = |path: Path, think_us: u64| {
        let mut experiment = guests(&network(path, requests(think_us)), 1, BackEnd::Multi);
        (experiment.cores, experiment.threads) = (2, Some(8));
        experiment.nics[0].moderation = Moderation::PerSecond(50_000);
        let io = run(&experiment, &workload(SERVER, 300)).vms[0].io.clone().unwrap();
        let (counts, latency) = (io.counts, io.latency);
        assert_eq!(latency.count(), counts.requests);
        assert!(counts.sent_bytes >= 20_000 * counts.requests && counts.sent_bytes <= 20_000 * (counts.requests + 8));
        assert!(counts.received_bytes >= 300 * counts.requests, "{counts:?}");
        assert!(latency.percentile(95) >= latency.percentile(50) && latency.mean() > 0);
        (counts, latency)
    };
    for path in [Path::Pv, Path::Vf] {
        let (few, busy) = (answered(path, 5_000), answered(path, 0));
        // Eight clients, each with a request every 5 ms and a bit.
        assert!((400..=530).contains(&few.0.requests), "{:?}", few.0);
        let means = (few.1.mean(), busy.1.mean());
        assert!(busy.0.requests > 10 * few.0.requests && means.1 > means.0, "{:?} {:?} {means:?}", few.0, busy.0);
        assert_eq!(few.0.notifications > 0, path == Path::Pv, "only a front end has somebody to tell");
    }
    let [pv, vf] = [Path::Pv, Path::Vf].map(|path| answered(path, 5_000).1.mean());
    assert!(pv > vf, "the service VM lies between: {pv} {vf}");
}

#[test]
fn the_machine_itself_needs_nobody_between() {
    let mut experiment = Experiment {
        nics: vec![Nic::default()],
        kernel: Some(GuestKernel::Linux2631),
        limit_s: 60.0,
        devices: network(Path::Native, Client::StreamIn { connections: 8, window_bytes: 262_144 }),
        ..Experiment::new(Environment::Native, 8)
    };
    let receive = workload(r#"{"receive":{"bytes":87380}}"#, 300);
    let native = Netperf::of(&run(&experiment, &receive), 1);
    assert!(native.gbps > 0.98 * LINE, "{native:?}");
    let vf = netperf(Path::Vf, BackEnd::Multi, 8);
    assert!(native.all() < vf.all(), "no exits: {native:?} {vf:?}");
    experiment.devices.network.as_mut().unwrap().client = Client::StreamOut { connections: 8, window_bytes: 262_144 };
    let out = run(&experiment, &workload(r#"{"send":{"bytes":65536}}"#, 300));
    let sent = out.vms[0].io.as_ref().unwrap().counts.sent_bytes as f64 * 8.0 / (out.wall_ps as f64 / 1e3);
    assert!(sent > 0.98 * LINE && out.busy_ps() < 8 * out.wall_ps, "{sent}");
}

#[test]
fn what_a_near_cpu_has_copied_is_copied_faster() {
    let guest_ns = |profile: &Profile| {
        let experiment = guests(&network(Path::Pv, stream_in()), 1, BackEnd::Multi);
        let receive = workload(r#"{"receive":{"bytes":87380}}"#, 300);
        let outcome = Simulation::of_vms(&experiment, profile, &[&receive], None).unwrap().run().unwrap();
        let bytes = outcome.vms[0].io.as_ref().unwrap().counts.received_bytes;
        outcome.vms[0].cpu_ps() as f64 / bytes as f64
    };
    let near = xeon();
    let mut tiny = xeon();
    tiny.platform.caches.iter_mut().filter(|cache| cache.level == 3).for_each(|cache| cache.size_bytes = 1 << 14);
    assert!(guest_ns(&near) < 0.95 * guest_ns(&tiny), "{} {}", guest_ns(&near), guest_ns(&tiny));
}

#[test]
fn disks_do_what_they_can_and_pv_adds_its_way() {
    let reads = |path: Path, threads: u32, phase: &str| {
        let storage = Some(Storage { path, disks: vec![0] });
        let devices = VmDevices { network: None, storage };
        let mut experiment = guests(&devices, 1, BackEnd::Multi);
        (experiment.cores, experiment.threads) = (4, Some(threads));
        if path == Path::Native {
            (experiment.environment, experiment.service, experiment.pcpus) = (Environment::Native, None, None);
        }
        let outcome = run(&experiment, &workload(phase, 1000));
        let io = outcome.vms[0].io.clone().unwrap();
        let done = (io.counts.disk_reads + io.counts.disk_writes) as f64 / (outcome.wall_ps as f64 / 1e12);
        (done, io.disk_latency.mean() as f64 / 1e6)
    };
    let read = r#"{"read-disk":{"bytes":4096}}"#;
    let [native, vf, pv] = [Path::Native, Path::Vf, Path::Pv].map(|path| reads(path, 1, read).1);
    assert!(native > 75.0 && native < 85.0, "one read alone: {native} us");
    assert!(native < vf && vf < pv && pv < 150.0, "{native} {vf} {pv}");
    let (iops, _) = reads(Path::Native, 64, read);
    assert!((iops / 35_000.0 - 1.0).abs() < 0.03, "{iops}");
    let (iops, _) = reads(Path::Pv, 16, r#"{"write-disk":{"bytes":4096}}"#);
    assert!((iops / 3_300.0 - 1.0).abs() < 0.03, "{iops}");
    let (large, _) = reads(Path::Pv, 4, r#"{"read-disk":{"bytes":1000000}}"#);
    assert!((large / 250.0 - 1.0).abs() < 0.1, "{large} MB/s");
}

#[test]
fn a_program_without_the_device_that_it_uses_is_refused() {
    let plain = guests(&VmDevices::default(), 1, BackEnd::Multi);
    let out = guests(&network(Path::Pv, Client::StreamOut { connections: 1, window_bytes: 1 }), 1, BackEnd::Multi);
    for (experiment, phase, wanted) in [
        (&plain, r#"{"receive":{"bytes":1}}"#, "none for a phase `receive`; allowed: a `network`"),
        (&plain, r#"{"send":{"bytes":1}}"#, "none for a phase `send`"),
        (&plain, r#"{"write-disk":{"bytes":1}}"#, "allowed: a `storage`"),
        (&out, r#"{"receive":{"bytes":1}}"#, "allowed: a client that sends"),
    ] {
        let error = Simulation::new(experiment, &xeon(), &workload(phase, 1), None).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn vectors_run_out_where_they_are_the_same_on_all_pcpus() {
    let build = |count: usize, vectoring: Vectoring| {
        let mut experiment = guests(&network(Path::Vf, stream_in()), count, BackEnd::Multi);
        experiment.nics[0].virtual_functions = 128;
        experiment.nics[0].queues = Some(1);
        experiment.disks.clear();
        experiment.service.as_mut().unwrap().vectoring = vectoring;
        let receive = workload(r#"{"receive":{"bytes":87380}}"#, 1);
        let workloads = vec![&receive; count];
        Simulation::of_vms(&experiment, &xeon(), &workloads, None).map(|_| ()).map_err(|error| error.to_string())
    };
    // 66 functions with three sources each and the physical function's queue: 199 of 200.
    assert_eq!(build(66, Vectoring::Global), Ok(()));
    let error = build(67, Vectoring::Global).unwrap_err();
    assert!(error.contains("200"), "{error}");
    for vectoring in [Vectoring::PerPcpu, Vectoring::Hybrid] {
        assert_eq!(build(100, vectoring), Ok(()));
    }
}
