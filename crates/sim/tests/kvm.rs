//! KVM hosts of today: Linux's scheduler, caps, halt polling, paravirtual flushes and IPIs, interrupts without exits, guests with
//! kernels of their own.

mod common;

use common::{Case, experiment, r720, run_checked};
use muster_model::study::{Apic, Environment, Experiment, Guest, GuestKernel, Kvm, Pin, Share, VmScheduler, VmSpec};
use muster_model::{Account, Workload};
use muster_sim::Outcome;

fn workload(groups: &str) -> Workload {
    let text = format!(
        r#"{{"name":"w","locks":{{"s":{{"kind":"spin"}}}},"conditions":{{"c":{{}},"d":{{}}}},"groups":[{groups}]}}"#
    );
    Workload::from_json(&text, "w.json").unwrap()
}

/// Every thread computes for `times` times 10 ms.
fn busy(times: u32) -> Workload {
    let phases = format!(r#"[{{"loop":{{"times":{times},"phases":[{{"run":{{"ns":10000000}}}}]}}}}]"#);
    workload(&format!(r#"{{"name":"busy","count":"threads","phases":{phases}}}"#))
}

/// Two threads that wake each other in turn, with 20 us between.
fn ping_pong() -> Workload {
    workload(
        r#"{"name":"a","count":1,"cpus":"0","phases":[{"loop":{"times":2000,"phases":[
               {"wake":{"condition":"c"}},{"wait":{"condition":"d"}},{"run":{"ns":20000}}]}}]},
           {"name":"b","count":1,"cpus":"1","phases":[{"loop":{"times":2000,"phases":[
               {"wait":{"condition":"c"}},{"run":{"ns":20000}},{"wake":{"condition":"d"}}]}}]}"#,
    )
}

/// One thread unmaps while the others compute.
fn unmaps() -> Workload {
    workload(
        r#"{"name":"computes","count":"threads","phases":[{"run":{"ns":400000000}}]},
           {"name":"unmaps","count":1,"phases":[{"loop":{"times":200,"phases":[
               {"run":{"ns":500000}},{"unmap":{"pages":1}}]}}]}"#,
    )
}

/// A VM of `cores` vCPUs on `pcpus` pCPUs under Linux's scheduler, whose guest knows KVM.
fn host(cores: u32, pcpus: u32, kvm: Kvm) -> Experiment {
    Experiment {
        pcpus: Some(pcpus),
        scheduler: Some(VmScheduler::Eevdf),
        kvm: Some(kvm),
        kernel: Some(GuestKernel::Linux6),
        ..experiment(Environment::Virtual, cores)
    }
}

/// Company that never ends.
fn company(vcpus: u32) -> VmSpec {
    VmSpec { repeat: true, threads: Some(vcpus), ..VmSpec::new(String::new(), vcpus) }
}

fn run(experiment: &Experiment, workload: &Workload, company: &[Workload]) -> Outcome {
    let (experiment, workload, company) = (experiment.clone(), workload.clone(), company.to_vec());
    run_checked(&Case { experiment, profile: r720(), workload, company }).unwrap()
}

fn assert_close(found: f64, wanted: f64, tolerance: f64) {
    assert!((found / wanted - 1.0).abs() < tolerance, "{found} for {wanted}");
}

#[test]
fn cpu_time_is_shared_in_proportion_to_weights() {
    for (pin, pcpus, tolerance) in [(Pin::Each, 4, 0.05), (Pin::None, 4, 0.1), (Pin::None, 2, 0.1)] {
        let mut experiment = host(4, pcpus, Kvm::default());
        experiment.share.pin = if pcpus == 4 { pin } else { Pin::None };
        experiment.vms = vec![VmSpec { share: Share { weight: 512, cap: 0, pin: experiment.share.pin }, ..company(4) }];
        let outcome = run(&experiment, &busy(100), &[busy(100)]);
        let [one, two] = [0, 1].map(|vm| outcome.vms[vm].cpu_ps() as f64);
        assert_close(two / one, 2.0, tolerance);
        // Nobody idles while somebody waits, and the VMM takes little.
        assert_close(one + two, outcome.wall_ps as f64 * f64::from(pcpus), 0.02);
    }
}

#[test]
fn a_cap_holds_on_an_idle_machine() {
    for (cap, vcpus) in [(50, 1), (100, 4), (250, 4)] {
        let mut experiment = host(vcpus, 4, Kvm::default());
        experiment.share.cap = cap;
        let outcome = run(&experiment, &busy(100), &[]);
        let got = outcome.vms[0].cpu_ps() as f64 / outcome.wall_ps as f64;
        assert_close(got, f64::from(cap) / 100.0, 0.05);
        assert!(outcome.vms[0].total_ps(Account::Steal) > outcome.wall_ps / 4, "it is held back");
    }
}

#[test]
fn a_vcpu_alone_on_its_pcpu_loses_nothing_but_ticks() {
    let outcome = run(&host(4, 4, Kvm::default()), &busy(50), &[]);
    assert!(outcome.vms[0].total_ps(Account::Steal) < outcome.wall_ps / 1000);
    let pinned = run(&experiment(Environment::Virtual, 4), &busy(50), &[]);
    assert_close(outcome.wall_ps as f64, pinned.wall_ps as f64, 0.01);
}

/// The host polls for a vCPU that is soon woken again, and does not halt it; not where another vCPU waits for the pCPU.
#[test]
fn halt_polling_saves_the_halt_where_nobody_else_wants_the_pcpu() {
    let plain = Kvm { halt_poll_ns: 0, ..Kvm::default() };
    let (polling, halting) =
        (run(&host(2, 2, Kvm::default()), &ping_pong(), &[]), run(&host(2, 2, plain), &ping_pong(), &[]));
    assert!(polling.counters.host_poll_hits > 3500, "{}", polling.counters.host_poll_hits);
    assert_eq!((halting.counters.host_polls, halting.counters.host_poll_hits), (0, 0));
    assert!(polling.wall_ps * 10 < halting.wall_ps * 9, "{} and {}", polling.wall_ps, halting.wall_ps);
    assert!(polling.scheduling.switches * 10 < halting.scheduling.switches);
    let mut crowded = host(2, 2, Kvm::default());
    crowded.vms = vec![company(2)];
    let crowded = run(&crowded, &ping_pong(), &[busy(10)]);
    let polls = crowded.vms[0].counters.host_polls;
    assert!(polls * 20 < crowded.vms[0].counters.halt_exits, "{polls} of {}", crowded.vms[0].counters.halt_exits);
    // Pinned vCPUs as well.
    let pinned = Experiment { scheduler: None, pcpus: None, ..host(2, 2, Kvm::default()) };
    assert!(run(&pinned, &ping_pong(), &[]).counters.host_poll_hits > 3500);
}

/// A shootdown does not wait for vCPUs that are off their pCPUs, if guest and host know how.
#[test]
fn deferred_flushes_do_not_wait_for_preempted_vcpus() {
    let time = |pv_tlb_flush, kernel| {
        let mut crowded = host(4, 4, Kvm { pv_tlb_flush, ..Kvm::default() });
        crowded.kernel = kernel;
        crowded.vms = vec![company(4)];
        let outcome = run(&crowded, &unmaps(), &[busy(1000)]);
        let vm = &outcome.vms[0];
        (vm.total_ps(Account::TlbShootdown) / vm.counters.shootdowns, vm.counters.deferred_flushes)
    };
    let (with, without) = (time(true, Some(GuestKernel::Linux6)), time(false, Some(GuestKernel::Linux6)));
    assert!(with.0 * 10 < without.0, "{with:?} {without:?}");
    assert!(with.1 > 10 && without.1 == 0, "{with:?} {without:?}");
    assert_eq!(time(true, None), time(false, None), "Linux 3.2 does not know how");
}

#[test]
fn one_call_interrupts_all() {
    let exits = |pv_ipi| {
        let outcome = run(&host(16, 16, Kvm { pv_ipi, halt_poll_ns: 0, ..Kvm::default() }), &unmaps(), &[]);
        let Some(exits) = outcome.counters.ipi_exits.checked_sub(outcome.counters.ipis) else { panic!("{outcome:?}") };
        exits as f64 / outcome.counters.shootdowns as f64
    };
    assert_close(exits(true), 1.0, 0.01);
    assert!(exits(false) > 13.0, "{}", exits(false));
}

#[test]
fn hardware_that_delivers_interrupts_saves_exits() {
    let exits = |apic| {
        let kvm = Kvm { apic, halt_poll_ns: 0, pv_ipi: false, ..Kvm::default() };
        let counters = run(&host(4, 4, kvm), &unmaps(), &[]).counters;
        (counters.interrupt_exits, counters.ipi_exits)
    };
    let [emulated, posted, avic] = [Apic::Emulated, Apic::Posted, Apic::Avic].map(exits);
    assert!(posted.0 * 2 < emulated.0, "{emulated:?} {posted:?}");
    assert!(avic.1 * 5 < posted.1, "{posted:?} {avic:?}");
    assert_close(avic.0 as f64, posted.0 as f64, 0.05);
}

/// Threads that wake each other on all vCPUs at once contend for run queues, whose locks' holders are preempted: who waits for long
/// halts and leaves its pCPU to others, the holder among them.
#[test]
fn waiters_for_a_preempted_lock_holder_halt() {
    let wakes = workload(
        r#"{"name":"gives","count":"threads","phases":[{"loop":{"times":3000,"phases":[
               {"run":{"ns":{"exponential":{"mean":9000}}}},{"wake":{"condition":"c"}},{"touch-memory":{"pages":20}},{"unmap":{"pages":20}}]}}]},
           {"name":"takes","count":"threads","phases":[{"loop":{"times":3000,"phases":[
               {"wait":{"condition":"c"}},{"run":{"ns":{"exponential":{"mean":9000}}}}]}}]}"#,
    );
    let run = |pv_unhalt| {
        let mut crowded = host(8, 8, Kvm { pv_unhalt, ..Kvm::default() });
        crowded.vms = vec![company(8), company(8)];
        run(&crowded, &wakes, &[busy(1000), busy(1000)])
    };
    let (with, without) = (run(true), run(false));
    assert!(with.vms[0].counters.lock_halts > 2, "{}", with.vms[0].counters.lock_halts);
    assert_eq!(without.vms[0].counters.lock_halts, 0);
    let spun = |outcome: &Outcome| outcome.vms[0].counters.spun_ps;
    assert!(spun(&with) * 2 < spun(&without), "{} {}", spun(&with), spun(&without));
}

/// Windows ticks 64 times a second whatever it does; Linux does not when it has nothing to do.
#[test]
fn every_vm_has_a_kernel_of_its_own() {
    let sleeper = workload(r#"{"name":"sleeps","count":1,"phases":[{"sleep":{"ns":2000000000}}]}"#);
    let mut experiment = host(1, 2, Kvm::default());
    let guest = |kernel| Guest { kernel: Some(kernel), ..Guest::default() };
    let vm = |kernel| VmSpec { guest: guest(kernel), ..VmSpec::new(String::new(), 1) };
    experiment.vms = vec![vm(GuestKernel::Windows2003), vm(GuestKernel::Linux6)];
    let outcome = run(&experiment, &busy(200), &[sleeper.clone(), sleeper]);
    let halts = |vm: usize| outcome.vms[vm].counters.halt_exits as f64;
    assert_close(halts(1), 128.0, 0.05);
    assert!(halts(2) < 5.0, "{}", halts(2));
}
