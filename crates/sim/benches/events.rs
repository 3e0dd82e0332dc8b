//! Events per second on one core: the 16-core worlds of the Gleaner study, and the queue alone.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use muster_model::study::Figure;
use muster_model::{Profile, Workload};
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

criterion_group!(benches, worlds, queue);
criterion_main!(benches);
