//! Memory virtualization in whole worlds: shadow and nested paging, small and large backing, confined page tables.

mod common;

use common::{opteron, workload};
use muster_model::study::{
    Backing, Environment, Experiment, GuestKernel, GuestMode, Paging, PagingKind, ShadowSync, TablePlacement,
};
use muster_model::{Profile, Workload};
use muster_sim::{Outcome, Simulation};

/// The Opterons' prices with the caches, TLBs and shadows of the Xeon.
fn machine() -> Profile {
    let text = include_str!("../../../machines/hardware-acceleration-xeon.toml");
    let xeon = Profile::from_toml(text, "machine").unwrap();
    let mut profile = opteron();
    (profile.platform.tlbs, profile.platform.caches) = (xeon.platform.tlbs, xeon.platform.caches);
    profile.platform.walk_caches = xeon.platform.walk_caches;
    let taken =
        |name: &str| name.starts_with("cache.l") || name.starts_with("sim.vmm.shadow") || name == "memory.latency";
    profile.prices.extend(xeon.prices.into_iter().filter(|(name, _)| taken(name)));
    profile
}

const SHADOW: Paging = Paging {
    kind: PagingKind::Shadow,
    backing: Backing::Small,
    mode: GuestMode::Legacy,
    tables: TablePlacement::Allocated,
    sync: ShadowSync::Trap,
    memory_mib: 1536,
};
const LAZY: Paging = Paging { sync: ShadowSync::Lazy, ..SHADOW };
const NESTED: Paging = Paging { kind: PagingKind::Nested, ..SHADOW };
const LARGE: Paging = Paging { backing: Backing::Large, ..NESTED };
const CONFINED: Paging = Paging { tables: TablePlacement::Confined, ..LARGE };

#[allow(dead_code)]
fn run(workload: &Workload, vcpus: u32, paging: Paging) -> Outcome {
    let experiment = Experiment {
        kernel: Some(GuestKernel::Linux2631),
        paging: Some(paging),
        limit_s: 60.0,
        ..Experiment::new(Environment::Hvm, vcpus)
    };
    let outcome = Simulation::new(&experiment, &machine(), workload, None).unwrap().run().unwrap();
    for book in &outcome.books {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books of every pCPU balance");
    }
    outcome
}

/// Compilers that are forked and executed, fault and end; one at a time on each vCPU.
fn build(jobs: u32) -> Workload {
    workload(&format!(
        r#"{{"name":"build","address_space":{{"data_pages":200}},"groups":[{{"name":"make","count":"threads",
        "working_set":{{"bytes":1500000,"line_ns":10}},"phases":[{{"loop":{{"times":{jobs},"phases":[
            {{"run":{{"ns":200000}}}},
            {{"fork":{{"exec":{{"code_pages":80,"data_pages":120,"heap_bytes":6000000,"heap_ns":600}},"phases":[
                {{"loop":{{"times":40,"phases":[{{"touch-memory":{{"pages":25}}}},{{"run":{{"ns":600000}}}},
                {{"syscall":{{"ns":20000}}}}]}}}},{{"unmap":{{"pages":300}}}}]}}}}]}}}}]}}]}}"#
    ))
}

/// A server that forks for each request.
fn web(requests: u32) -> Workload {
    workload(&format!(
        r#"{{"name":"web","address_space":{{"code_pages":60,"data_pages":120,"resident_pages":300}},
        "groups":[{{"name":"server","count":"threads","working_set":{{"bytes":600000,"line_ns":10}},
        "phases":[{{"loop":{{"times":{requests},"phases":[{{"syscall":{{"ns":10000}}}},
        {{"fork":{{"phases":[{{"touch-memory":{{"pages":60}}}},{{"run":{{"ns":{{"exponential":{{"mean":100000}}}}}}}},
        {{"syscall":{{"ns":30000}}}},{{"sleep":{{"ns":{{"exponential":{{"mean":300000}}}}}}}},
        {{"touch-memory":{{"pages":40}}}},
        {{"run":{{"ns":{{"exponential":{{"mean":300000}}}}}}}}]}}}}]}}}}]}}]}}"#
    ))
}

/// A heap that is taken once and gone through for ever.
fn java() -> Workload {
    workload(
        r#"{"name":"java","address_space":{"code_pages":150,"data_pages":100,"heap_bytes":536870912,"heap_ns":250},
        "groups":[{"name":"warehouse","count":"threads","working_set":{"bytes":30000000,"line_ns":20},
        "phases":[{"loop":{"times":400,"phases":[{"run":{"ns":500000}},{"syscall":{"ns":2000}}]}}]}]}"#,
    )
}

fn show(name: &str, outcome: &Outcome) {
    let paging = outcome.paging.unwrap();
    let cycles = outcome.busy_ps() as f64;
    println!(
        "{name:10} {:9.3} ms, walks {:5.2} %, misses {:?}, references per miss {:.2} + {:.2}; exits {:?} {:.1} % (lock {:.1} %)",
        outcome.wall_ps as f64 / 1e9,
        paging.walks.time_ps as f64 / cycles * 100.0,
        paging.walks.misses.map(|n| n as u64),
        paging.walks.references[0] / (paging.walks.misses[0] + paging.walks.misses[1]),
        paging.walks.references[1] / (paging.walks.misses[0] + paging.walks.misses[1]),
        paging.exits.count,
        paging.exits.time_ps.iter().sum::<u64>() as f64 / cycles * 100.0,
        paging.exits.waited_ps as f64 / cycles * 100.0,
    );
}

#[test]
#[ignore]
fn look() {
    for (name, w, vcpus, threads) in [
        ("build-1", build(3), 1u32, 1u32),
        ("build-4", build(3), 4, 4),
        ("build-16", build(3), 16, 16),
        ("web", web(300), 2, 40),
        ("java", java(), 2, 2),
    ] {
        for (kind, paging) in
            [("shadow", SHADOW), ("lazy", LAZY), ("nested", NESTED), ("large", LARGE), ("confined", CONFINED)]
        {
            let mode = if name == "java" { GuestMode::Long } else { GuestMode::Legacy };
            let experiment = Experiment {
                kernel: Some(GuestKernel::Linux2631),
                paging: Some(Paging { mode, ..paging }),
                threads: Some(threads),
                ..Experiment::new(Environment::Hvm, vcpus)
            };
            let began = std::time::Instant::now();
            let outcome = Simulation::new(&experiment, &machine(), &w, None).unwrap().run().unwrap();
            show(&format!("{name} {kind}"), &outcome);
            println!(
                "      {} events, {:.2} M/s",
                outcome.counters.events,
                outcome.counters.events as f64 / began.elapsed().as_secs_f64() / 1e6
            );
        }
    }
}
