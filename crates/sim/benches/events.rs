//! Events per second on one core: the 16-core worlds of the Gleaner study, those of the iXen study on 32 to 1024 cores, and
//! the queue and the credit scheduler alone.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use muster_model::study::{
    Environment, Experiment, Figure, GuestKernel, GuestMode, Kvm, Paging, PagingKind, VmScheduler, VmSpec,
};
use muster_model::{CpuSet, Profile, Topology, Workload};
use muster_policy::credit::{Config, Scheduler, Share, Tickle};
use muster_sim::Simulation;
use muster_sim::engine::queue::Queue;
use std::hint::black_box;

const MACHINE: &str = include_str!("../../../machines/gleaner-r720.toml");
const FIGURE: &str = include_str!("../../../studies/gleaner/figure-4.toml");
const OCEAN: &str = include_str!("../../../workloads/gleaner/ocean-cp.json");
const DEDUP: &str = include_str!("../../../workloads/gleaner/dedup.json");
const OPTERON: &str = include_str!("../../../machines/ixen-opteron48.toml");
const XEON: &str = include_str!("../../../machines/hardware-acceleration-xeon.toml");
const FORKS: &str = r#"{"name":"forks","address_space":{"areas":20,"resident_pages":300},"groups":[{"name":"server",
    "count":"threads","working_set":{"bytes":600000,"line_ns":10},"phases":[{"loop":{"times":100,"phases":[
    {"fork":{"phases":[{"touch-memory":{"pages":60}},{"run":{"ns":{"exponential":{"mean":100000}}}},{"syscall":{"ns":30000}},
    {"sleep":{"ns":300000}},{"run":{"ns":100000}}]}},{"sleep":{"ns":{"exponential":{"mean":500000}}}}]}}]}]}"#;
const REMEDIES: &str = include_str!("../../../studies/ixen/figure-10.toml");
const VSUITE: [&str; 9] = [
    include_str!("../../../workloads/ixen/gmake.json"),
    include_str!("../../../workloads/ixen/dbench.json"),
    include_str!("../../../workloads/ixen/histogram.json"),
    include_str!("../../../workloads/ixen/wordcount.json"),
    include_str!("../../../workloads/ixen/linear-regression.json"),
    include_str!("../../../workloads/ixen/compress.json"),
    include_str!("../../../workloads/ixen/xml-validation.json"),
    include_str!("../../../workloads/ixen/dedup.json"),
    include_str!("../../../workloads/ixen/streamcluster.json"),
];

fn worlds(criterion: &mut Criterion) {
    let profile = Profile::from_toml(MACHINE, "machine").unwrap();
    let figure = Figure::from_toml(FIGURE, "figure").unwrap();
    let mut group = criterion.benchmark_group("events");
    group.sample_size(10);
    for (name, text) in [("ocean-cp", OCEAN), ("dedup", DEDUP)] {
        let workload = Workload::from_json(text, name).unwrap();
        for configuration in ["native", "virtual", "gleaner"] {
            let mut experiment = figure.experiment(configuration, name).unwrap();
            experiment.scale = 0.25;
            let world = || Simulation::new(&experiment, &profile, &workload, None).unwrap();
            let events = world().run().unwrap().counters.events;
            group.throughput(Throughput::Elements(events));
            group.bench_function(format!("{name}/{configuration}"), |bencher| {
                bencher.iter_batched(world, |world| black_box(world.run().unwrap()), BatchSize::PerIteration);
            });
        }
    }
    shared(&mut group, &profile, &figure);
    group.finish();
}

/// Two VMs of 16 vCPUs each on 16 pCPUs.
fn shared(group: &mut BenchmarkGroup<'_, WallTime>, profile: &Profile, figure: &Figure) {
    let workloads =
        [("ocean-cp", OCEAN), ("dedup", DEDUP)].map(|(name, text)| Workload::from_json(text, name).unwrap());
    let mut experiment = figure.experiment("virtual", "ocean-cp").unwrap();
    let company = VmSpec { repeat: true, ..experiment.all_vms().remove(0) };
    (experiment.scale, experiment.vms) = (0.25, vec![company]);
    let programs: Vec<&Workload> = workloads.iter().collect();
    let world = || Simulation::of_vms(&experiment, profile, &programs, None).unwrap();
    group.throughput(Throughput::Elements(world().run().unwrap().counters.events));
    group.bench_function("ocean-cp beside dedup/virtual", |bencher| {
        bencher.iter_batched(world, |world| black_box(world.run().unwrap()), BatchSize::PerIteration);
    });
}

/// 16 VMs of 4 vCPUs each on 16 pCPUs, and one such VM alone, under each scheduler that lets vCPUs share: an event should take no
/// more than twice as long with many.
fn many_vms(criterion: &mut Criterion) {
    let profile = Profile::from_toml(MACHINE, "machine").unwrap();
    let mut group = criterion.benchmark_group("many VMs");
    group.sample_size(10);
    for (name, text) in [("ocean-cp", OCEAN), ("dedup", DEDUP)] {
        let workload = Workload::from_json(text, name).unwrap();
        for (scheduler, label) in [(VmScheduler::Credit, "credit"), (VmScheduler::Eevdf, "eevdf")] {
            for copies in [1, 16] {
                let experiment = Experiment {
                    pcpus: Some(16),
                    copies,
                    scheduler: Some(scheduler),
                    kvm: (scheduler == VmScheduler::Eevdf).then(Kvm::default),
                    kernel: (scheduler == VmScheduler::Eevdf).then_some(GuestKernel::Linux6),
                    scale: if copies == 1 { 4.0 } else { 0.25 },
                    ..Experiment::new(Environment::Virtual, 4)
                };
                let programs = vec![&workload; copies as usize];
                let world = || Simulation::of_vms(&experiment, &profile, &programs, None).unwrap();
                group.throughput(Throughput::Elements(world().run().unwrap().counters.events));
                group.bench_function(format!("{name}/{label}/{copies} x 4 vCPUs"), |bencher| {
                    bencher.iter_batched(world, |world| black_box(world.run().unwrap()), BatchSize::PerIteration);
                });
            }
        }
    }
    group.finish();
}

/// The nine programs of iXen's Table 2 on HVM, one after the other; and gmake, which halts little, on ever more cores.
fn xen(criterion: &mut Criterion) {
    let profile = Profile::from_toml(OPTERON, "machine").unwrap();
    let figure = Figure::from_toml(REMEDIES, "figure").unwrap();
    let mut group = criterion.benchmark_group("xen");
    group.sample_size(10);
    let all: Vec<Workload> = VSUITE.iter().map(|text| Workload::from_json(text, "workload").unwrap()).collect();
    let mut bench = |name: String, figure: &Figure, configuration: &str, workloads: &[Workload], scale: f64| {
        let mut experiment = figure.experiment(configuration, "workload").unwrap();
        experiment.scale = scale;
        let worlds = || -> Vec<Simulation> {
            workloads.iter().map(|workload| Simulation::new(&experiment, &profile, workload, None).unwrap()).collect()
        };
        let run = |worlds: Vec<Simulation>| -> u64 {
            worlds.into_iter().map(|world| world.run().unwrap().counters.events).sum()
        };
        group.throughput(Throughput::Elements(run(worlds())));
        group.bench_function(name, |bencher| {
            bencher.iter_batched(worlds, |it| black_box(run(it)), BatchSize::PerIteration)
        });
    };
    for configuration in ["hvm", "hvm-vtime"] {
        bench(format!("VSuite on 32 cores/{configuration}"), &figure, configuration, &all, 0.25);
    }
    for cores in [64, 256, 1024] {
        let grown = figure.grown(32, cores);
        bench(
            format!("gmake on {cores} cores/hvm-vtime-idle"),
            &grown,
            "hvm-vtime-idle",
            &all[..1],
            6.4 / f64::from(cores),
        );
    }
    group.finish();
}

/// A server that forks for each request, with a walk at one price and with memory virtualization entry by entry.
fn paging(criterion: &mut Criterion) {
    let mut profile = Profile::from_toml(XEON, "machine").unwrap();
    profile.prices.extend(
        Profile::from_toml(OPTERON, "machine")
            .unwrap()
            .prices
            .into_iter()
            .filter(|(name, _)| name.starts_with("sim.") && !name.starts_with("sim.vmm.shadow")),
    );
    let workload = Workload::from_json(FORKS, "forks").unwrap();
    let mut group = criterion.benchmark_group("paging");
    group.sample_size(10);
    let nested = Paging { mode: GuestMode::Legacy, ..Paging::new(PagingKind::Nested) };
    let shadow = Paging { kind: PagingKind::Shadow, ..nested };
    for (name, paging) in [("one price", None), ("nested", Some(nested)), ("shadow", Some(shadow))] {
        let kernel = Some(GuestKernel::Linux2631);
        let experiment = Experiment { kernel, paging, threads: Some(40), ..Experiment::new(Environment::Hvm, 2) };
        let world = || Simulation::new(&experiment, &profile, &workload, None).unwrap();
        group.throughput(Throughput::Elements(world().run().unwrap().counters.events));
        group.bench_function(name, |bencher| {
            bencher.iter_batched(world, |world| black_box(world.run().unwrap()), BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(1));
    group.bench_function("pop and reschedule, 48 pending", |bencher| {
        let mut queue = Queue::new(64);
        (0..48).for_each(|slot| queue.schedule(slot, u64::from(slot) * 977 % 1000));
        bencher.iter(|| {
            let (time, slot) = queue.pop().unwrap();
            queue.schedule(slot, time + 500 + u64::from(slot) * 131 % 997);
        });
    });
    group.finish();
}

/// One vCPU a pCPU, pinned, as iXen ran them: one of them blocks, its pCPU looks for work, it wakes and runs again.
fn credit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("credit");
    group.throughput(Throughput::Elements(4));
    for (pcpus, remedy) in [(32, false), (32, true), (1024, false), (1024, true)] {
        let mut scheduler = pinned(pcpus, remedy);
        let name = format!("block, schedule, wake, schedule; {pcpus} pCPUs{}", if remedy { ", cm" } else { "" });
        let mut now = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                now += 1000;
                black_box(scheduler.block(0));
                black_box(scheduler.schedule(0, now, |_| false));
                black_box(scheduler.wake(0, 1));
                black_box(scheduler.schedule(0, now, |_| false));
            });
        });
    }
    group.finish();
}

fn pinned(pcpus: usize, lone_skips_balance: bool) -> Scheduler {
    let topology = Topology::regular(pcpus as u32 / 8, 1, 8, 1).unwrap();
    let config = Config { topology, pcpus, tickle: Tickle::One, lone_skips_balance };
    let mut scheduler = Scheduler::new(&config).unwrap();
    let domain = scheduler.add_domain(Share::default()).unwrap();
    for pcpu in 0..pcpus {
        let vcpu = scheduler.add_vcpu(domain, &CpuSet::single(pcpu)).unwrap();
        scheduler.wake(vcpu, pcpu);
        scheduler.schedule(pcpu, 0, |_| false);
    }
    scheduler
}

criterion_group!(benches, paging, worlds, many_vms, xen, queue, credit);
criterion_main!(benches);
