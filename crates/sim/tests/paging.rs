//! Memory virtualization in whole worlds: shadow and nested paging, small and large backing, confined page tables.

mod common;

use common::{opteron, workload};
use muster_model::study::{
    Backing, Environment, Experiment, GuestKernel, GuestMode, Paging, PagingKind, ShadowSync, TablePlacement, VmSpec,
};
use muster_model::{Account, Profile, Workload};
use muster_sim::vmm::shadow::Exit;
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

fn run(workload: &Workload, vcpus: u32, threads: u32, paging: Paging) -> Outcome {
    let experiment = Experiment {
        kernel: Some(GuestKernel::Linux2631),
        paging: Some(paging),
        threads: Some(threads),
        limit_s: 60.0,
        ..Experiment::new(Environment::Hvm, vcpus)
    };
    let outcome = Simulation::new(&experiment, &machine(), workload, None).unwrap().run().unwrap();
    for book in &outcome.books {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books of every pCPU balance");
    }
    outcome
}

fn exits(outcome: &Outcome, exit: Exit) -> u64 {
    outcome.paging.unwrap().exits.count[exit as usize]
}

fn all_exits(outcome: &Outcome) -> u64 {
    outcome.paging.unwrap().exits.count.iter().sum()
}

/// Share of the busy time that a part of it takes.
fn share(outcome: &Outcome, part: u64) -> f64 {
    part as f64 / outcome.busy_ps() as f64
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
        r#"{{"name":"web","address_space":{{"code_pages":60,"data_pages":120,"areas":40,"resident_pages":300}},
        "groups":[{{"name":"server","count":"threads","working_set":{{"bytes":600000,"line_ns":10}},
        "phases":[{{"loop":{{"times":{requests},"phases":[{{"syscall":{{"ns":10000}}}},
        {{"fork":{{"phases":[{{"touch-memory":{{"pages":60}}}},{{"run":{{"ns":{{"exponential":{{"mean":100000}}}}}}}},
        {{"syscall":{{"ns":30000}}}},{{"sleep":{{"ns":{{"exponential":{{"mean":300000}}}}}}}},
        {{"touch-memory":{{"pages":40}}}},
        {{"run":{{"ns":{{"exponential":{{"mean":300000}}}}}}}}]}}}},
        {{"sleep":{{"ns":{{"exponential":{{"mean":500000}}}}}}}}]}}}}]}}]}}"#
    ))
}

/// Many requests at a time, each with a child that takes pages and waits; what they free is mixed.
fn crowd() -> Workload {
    workload(
        r#"{"name":"crowd","address_space":{"code_pages":60,"data_pages":120,"areas":40},
        "groups":[{"name":"server","count":"threads","phases":[{"loop":{"times":8,"phases":[
        {"fork":{"phases":[{"touch-memory":{"pages":150}},{"sleep":{"ns":{"exponential":{"mean":6000000}}}},
        {"touch-memory":{"pages":150}},{"run":{"ns":100000}},{"sleep":{"ns":{"exponential":{"mean":6000000}}}},
        {"run":{"ns":100000}}]}},{"sleep":{"ns":{"exponential":{"mean":3000000}}}}]}}]}]}"#,
    )
}

/// A heap that is taken once and gone through for ever.
fn java() -> Workload {
    workload(
        r#"{"name":"java","address_space":{"code_pages":150,"data_pages":100,"heap_bytes":536870912,"heap_ns":250},
        "groups":[{"name":"warehouse","count":"threads","working_set":{"bytes":30000000,"line_ns":20},
        "phases":[{"loop":{"times":400,"phases":[{"run":{"ns":500000}},{"syscall":{"ns":2000}}]}}]}]}"#,
    )
}

#[test]
fn half_of_the_exits_of_a_build_are_writes_to_page_tables() {
    let outcome = run(&build(2), 1, 1, SHADOW);
    let writes = exits(&outcome, Exit::WriteProtect) as f64 / all_exits(&outcome) as f64;
    assert!((0.4..0.6).contains(&writes), "{writes}: a fault of the guest's own, and a write to its table");
    // A page that was mapped by an emulated write needs no hidden fault.
    assert!(exits(&outcome, Exit::HiddenFault) < exits(&outcome, Exit::GuestFault) / 10);
    // Where tables go out of sync it is the other way about.
    let lazy = run(&build(2), 1, 1, LAZY);
    assert!(exits(&lazy, Exit::WriteProtect) < exits(&lazy, Exit::GuestFault) / 10);
    assert!(exits(&lazy, Exit::HiddenFault) > exits(&lazy, Exit::GuestFault) * 9 / 10);
    let nested = run(&build(2), 1, 1, NESTED);
    assert_eq!(all_exits(&nested), 0);
    assert!(nested.wall_ps < outcome.wall_ps && nested.wall_ps < lazy.wall_ps);
}

#[test]
fn the_lock_of_the_shadow_costs_more_the_more_vcpus_there_are() {
    let waits = |vcpus| {
        let outcome = run(&build(2), vcpus, vcpus, SHADOW);
        share(&outcome, outcome.books.iter().map(|book| book[Account::VmmLock as usize]).sum())
    };
    let [one, four, sixteen] = [1, 4, 16].map(waits);
    assert!(one < 0.001 && four > 2.0 * one && sixteen > 3.0 * four, "{one} {four} {sixteen}");
}

#[test]
fn fork_makes_most_of_a_forking_servers_exits() {
    let outcome = run(&web(100), 2, 20, SHADOW);
    assert!(exits(&outcome, Exit::WriteProtect) > exits(&outcome, Exit::GuestFault));
    assert!(exits(&outcome, Exit::Cr3) > 0 && exits(&outcome, Exit::Invlpg) > 0);
    let [nested, large] = [NESTED, LARGE].map(|paging| run(&web(100), 2, 20, paging));
    assert!(large.busy_ps() < nested.busy_ps() && nested.busy_ps() < outcome.busy_ps());
}

#[test]
fn a_heap_that_no_tlb_covers_is_dearer_in_two_dimensions_and_large_backing_helps() {
    let [shadow, nested, large] =
        [SHADOW, NESTED, LARGE].map(|paging| run(&java(), 2, 2, Paging { mode: GuestMode::Long, ..paging }));
    let walks = |outcome: &Outcome| outcome.paging.unwrap().walks;
    assert!(walks(&nested).time_ps > walks(&shadow).time_ps && walks(&nested).time_ps > walks(&large).time_ps);
    assert!(walks(&nested).references[1] > walks(&large).references[1] && walks(&shadow).references[1] == 0.0);
    assert!(shadow.busy_ps() < nested.busy_ps() && large.busy_ps() < nested.busy_ps());
    assert!(all_exits(&shadow) < 100, "its tables stay as they are: {}", all_exits(&shadow));
}

#[test]
fn confined_tables_gain_where_processes_come_and_go_and_not_where_nothing_does() {
    let references = |workload: &Workload, threads, paging| {
        let walks = run(workload, 2, threads, paging).paging.unwrap().walks;
        (walks.references[0] + walks.references[1]) / (walks.misses[0] + walks.misses[1])
    };
    let gain = |workload: &Workload, threads| {
        references(workload, threads, LARGE) / references(workload, threads, CONFINED) - 1.0
    };
    let (web, java) = (gain(&crowd(), 100), gain(&java(), 2));
    println!("references saved: {web:.4} by the server, {java:.4} by java");
    assert!(web > 0.005 && java.abs() < 0.001, "{web} {java}");
}

#[test]
fn vms_of_both_kinds_share_a_machine() {
    let mut experiment = Experiment {
        kernel: Some(GuestKernel::Linux2631),
        paging: Some(NESTED),
        threads: Some(4),
        pcpus: Some(2),
        ..Experiment::new(Environment::Hvm, 2)
    };
    let company = |paging| VmSpec { threads: Some(4), paging: Some(paging), ..VmSpec::new(String::new(), 2) };
    experiment.vms = vec![company(SHADOW), company(LAZY)];
    let (web, build) = (web(30), build(1));
    let outcome = Simulation::of_vms(&experiment, &machine(), &[&web, &web, &build], None).unwrap().run().unwrap();
    let count = |vm: usize| outcome.vms[vm].paging.unwrap().exits.count.iter().sum::<u64>();
    assert!(count(0) == 0 && count(1) > 1000 && count(2) > 1000);
    assert!(outcome.vms.iter().all(|vm| vm.paging.unwrap().walks.misses[0] > 0.0));
    for (book, paging) in outcome.books.iter().zip([1, 2]) {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "pCPU {paging}");
    }
}

#[test]
fn runs_repeat_themselves_and_bad_memory_is_refused() {
    let twice = [(), ()].map(|()| run(&web(20), 2, 8, SHADOW));
    assert_eq!(twice[0], twice[1]);
    let experiment =
        Experiment { paging: Some(Paging { memory_mib: 64, ..NESTED }), ..Experiment::new(Environment::Hvm, 1) };
    let error = Simulation::new(&experiment, &machine(), &java(), None).unwrap_err().to_string();
    assert!(error.contains("address_space") && error.contains("memory_mib"), "{error}");
}
