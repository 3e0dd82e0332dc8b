//! Networks and disks: what streams reach by each way to a card, what that costs whom, and that nothing is lost.

mod common;

use muster_model::study::{
    BackEnd, Client, Disk, Environment, Experiment, GuestKernel, Network, Nic, Path, Service, VmDevices, VmSpec,
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
        service: Some(Service { vcpus: 8, memory_mb: 512, back_end, weight: 256 }),
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
    let receive = workload(r#"{"receive":{"bytes":87380}}"#, 60);
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
