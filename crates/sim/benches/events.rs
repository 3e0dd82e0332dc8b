//! Events per second on one core: the 16-core worlds of the Gleaner study, and the queue and the credit scheduler alone.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use muster_model::study::{Figure, VmSpec};
use muster_model::{CpuSet, Profile, Topology, Workload};
use muster_policy::credit::{Config, Scheduler, Share, Tickle};
use muster_sim::Simulation;
use muster_sim::engine::queue::Queue;
use std::hint::black_box;

const MACHINE: &str = include_str!("../../../machines/gleaner-r720.toml");
const FIGURE: &str = include_str!("../../../studies/gleaner/figure-4.toml");
const OCEAN: &str = include_str!("../../../workloads/gleaner/ocean-cp.json");
const DEDUP: &str = include_str!("../../../workloads/gleaner/dedup.json");

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

criterion_group!(benches, worlds, queue, credit);
criterion_main!(benches);
