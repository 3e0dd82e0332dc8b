//! Spinning: kernels' locks under overcommit, pause-loop exits, and what they show of a kernel build.

mod common;

use common::xeon;
use muster_model::study::{Environment, Experiment, GuestKernel, Ple, PleKind, SpinLocks, Yield};
use muster_model::{Account, Workload};
use muster_policy::ple::{self, Setting};
use muster_sim::{Outcome, Simulation};

fn kernel_build() -> Workload {
    let text = include_str!("../../../workloads/ixen/gmake.json");
    Workload::from_json(text, "gmake.json").unwrap()
}

/// So many VMs of so many vCPUs on the 16 hardware threads of the paper's machine, each building a kernel.
fn build(vms: u32, vcpus: u32, kind: PleKind, scale: f64) -> Experiment {
    Experiment {
        kernel: Some(GuestKernel::Linux2631),
        pcpus: Some(16),
        copies: vms,
        ple: Some(Ple::new(kind)),
        scale,
        limit_s: 100.0,
        ..Experiment::new(Environment::Hvm, vcpus)
    }
}

fn run(experiment: &Experiment) -> Outcome {
    let workload = kernel_build();
    let workloads = vec![&workload; experiment.all_vms().len()];
    let outcome = Simulation::of_vms(experiment, &xeon(), &workloads, None).unwrap().run().unwrap();
    let vcpus = outcome.vms.iter().flat_map(|vm| &vm.books);
    for book in outcome.books.iter().chain(vcpus) {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books balance");
    }
    outcome
}

fn total(outcome: &Outcome, account: Account) -> f64 {
    outcome.vms.iter().map(|vm| vm.total_ps(account)).sum::<u64>() as f64
}

/// Section IV.C: 16 vCPUs on 16 pCPUs.
#[test]
fn a_kernel_build_shows_the_window_and_the_gap_of_the_paper() {
    let spins = run(&build(1, 16, PleKind::Off, 0.1)).spins.unwrap();
    assert_eq!(ple::choose(&spins.waits, &spins.exits_by_gap), Ok(Setting { gap: 128, window: 2048 }));
    // A larger gap sees little more; one below the least loop of PAUSE sees nothing.
    let rate = |gap: u32| spins.exits_by_gap.iter().find(|rate| rate.gap == gap).unwrap().per_second;
    assert_eq!(rate(45), 0.0);
    assert!(rate(128) > 0.9 * rate(8192));
    assert!(spins.exits_by_gap.is_sorted_by(|a, b| a.gap < b.gap && a.per_second <= b.per_second));
}

/// Figure 9, without overcommitment.
#[test]
fn pause_loop_exits_change_nothing_where_every_vcpu_runs() {
    let [off, xen, kvm] = [PleKind::Off, PleKind::Xen, PleKind::Kvm].map(|kind| run(&build(1, 4, kind, 0.05)));
    assert_eq!(off.counters.pause_exits, 0);
    for on in [xen, kvm] {
        assert!((on.wall_ps as f64 / off.wall_ps as f64 - 1.0).abs() < 0.005, "{} {}", on.wall_ps, off.wall_ps);
        assert_eq!(on.counters.yields, 0, "nobody waits");
    }
}

/// Figure 9, overcommitted: vCPUs give way that would spin for locks of preempted ones, and the build is the faster for it.
#[test]
fn pause_loop_exits_pay_where_vcpus_are_preempted() {
    let of_seed = |seed: u64, kind: PleKind| run(&Experiment { seed, ..build(16, 4, kind, 0.2) });
    let both: Vec<[Outcome; 2]> =
        (1..=3).map(|seed| [PleKind::Off, PleKind::Xen].map(|kind| of_seed(seed, kind))).collect();
    let sum = |of: &dyn Fn(&Outcome) -> f64, which: usize| both.iter().map(|pair| of(&pair[which])).sum::<f64>();
    let compare = |of: &dyn Fn(&Outcome) -> f64| sum(of, 1) / sum(of, 0);
    let spin = compare(&|outcome| total(outcome, Account::Spin));
    let time = compare(&|outcome| outcome.seconds());
    println!("with PLE {time:.3} of the time, {spin:.3} of the spinning");
    assert!(spin < 0.3, "{spin}");
    assert!(time < 0.98, "{time}");
    for [off, xen] in &both {
        assert!(off.counters.pause_exits == 0 && off.counters.yields == 0);
        assert!(xen.counters.pause_exits > xen.counters.yields && xen.counters.yields > 100);
        for outcome in [off, xen] {
            let spun = outcome.counters.spun_ps as f64;
            assert!(spun > 0.0 && spun <= total(outcome, Account::Spin), "{spun} {}", total(outcome, Account::Spin));
        }
    }
}

#[test]
fn every_policy_and_every_kind_of_lock_gets_all_done() {
    for (kind, yields, locks) in [
        (PleKind::Xen, Yield::BehindEquals, SpinLocks::Queued),
        (PleKind::Kvm, Yield::BehindEquals, SpinLocks::Ticket),
        (PleKind::Kvm, Yield::BehindEquals, SpinLocks::Queued),
    ] {
        let mut experiment = build(5, 4, kind, 0.02);
        experiment.pcpus = Some(6);
        experiment.ple = Some(Ple { yields, gap: 256, window: 1024, ..Ple::new(kind) });
        experiment.spin_locks = Some(locks);
        let outcome = run(&experiment);
        assert!(outcome.vms.iter().all(|vm| vm.runs == 1));
        assert!(outcome.counters.pause_exits > 0);
        assert_eq!(outcome.counters.directed_yields > 0, kind == PleKind::Kvm, "{kind:?}");
    }
}
