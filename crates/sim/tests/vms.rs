//! Several VMs on one machine: shares, caps, lock holders that are preempted, wake-ups that must not get lost.

mod common;

use common::{Case, experiment, r720, run_checked};
use muster_model::study::{Environment, Experiment, IdleKind, Pin, Share, VmScheduler, VmSpec};
use muster_model::{Account, Topology, Workload};
use muster_sim::{Outcome, Simulation};

fn workload(groups: &str) -> Workload {
    let text = format!(
        r#"{{"name":"w","locks":{{"m":{{"kind":"mutex"}},"s":{{"kind":"spin"}}}},"barriers":{{"b":{{"kind":"condvar"}}}},
            "conditions":{{"c":{{}},"d":{{}}}},"timers":{{"t":{{}}}},"duration_ns":1000000000,"groups":[{groups}]}}"#
    );
    Workload { duration_ns: None, ..Workload::from_json(&text, "w.json").unwrap() }
}

/// Every thread computes for `times` times 10 ms.
fn busy(times: u32) -> Workload {
    let phases = format!(r#"[{{"loop":{{"times":{times},"phases":[{{"run":{{"ns":10000000}}}}]}}}}]"#);
    workload(&format!(r#"{{"name":"busy","count":"threads","phases":{phases}}}"#))
}

/// A VM of `cores` vCPUs on `pcpus` pCPUs under the credit scheduler.
fn shared(cores: u32, pcpus: u32) -> Experiment {
    let scheduler = Some(VmScheduler::Credit);
    Experiment { pcpus: Some(pcpus), scheduler, ..experiment(Environment::Virtual, cores) }
}

/// Company that never ends.
fn company(vcpus: u32) -> VmSpec {
    VmSpec { vcpus, repeat: true, ..shared(vcpus, vcpus).all_vms().remove(0) }
}

fn run(experiment: &Experiment, workload: &Workload, company: &[Workload]) -> Outcome {
    let (experiment, workload, company) = (experiment.clone(), workload.clone(), company.to_vec());
    run_checked(&Case { experiment, profile: r720(), workload, company }).unwrap()
}

fn total(outcome: &Outcome, vm: usize, account: Account) -> f64 {
    outcome.vms[vm].total_ps(account) as f64
}

fn assert_close(found: f64, wanted: f64, tolerance: f64) {
    assert!((found / wanted - 1.0).abs() < tolerance, "{found} for {wanted}");
}

#[test]
fn cpu_time_is_shared_in_proportion_to_weights() {
    for (pin, pcpus) in [(Pin::None, 4), (Pin::Each, 4), (Pin::None, 2)] {
        let mut experiment = shared(4, pcpus);
        experiment.share.pin = pin;
        experiment.vms = vec![VmSpec { share: Share { weight: 512, cap: 0, pin }, ..company(4) }];
        let outcome = run(&experiment, &busy(100), &[busy(100)]);
        let [one, two] = [0, 1].map(|vm| outcome.vms[vm].cpu_ps() as f64);
        assert_close(two / one, 2.0, 0.05);
        // Nobody idles while somebody waits, and the VMM takes little.
        assert_close(one + two, outcome.wall_ps as f64 * f64::from(pcpus), 0.02);
        assert!(outcome.vms[1].runs > 0);
    }
}

#[test]
fn a_cap_holds_on_an_idle_machine() {
    for (cap, vcpus) in [(50, 1), (100, 4), (150, 4)] {
        let mut experiment = shared(vcpus, 4);
        experiment.share.cap = cap;
        let outcome = run(&experiment, &busy(100), &[]);
        let got = outcome.vms[0].cpu_ps() as f64 / outcome.wall_ps as f64;
        assert_close(got, f64::from(cap) / 100.0, 0.05);
        let idle: u64 = outcome.books.iter().map(|book| book[Account::Idle as usize]).sum();
        assert!(idle > outcome.wall_ps * 2, "nobody else wants the machine");
    }
}

#[test]
fn a_vcpu_alone_on_its_pcpu_loses_nothing_but_ticks() {
    let outcome = run(&shared(4, 4), &busy(50), &[]);
    assert!(total(&outcome, 0, Account::Steal) < 0.001 * outcome.wall_ps as f64);
    let pinned = run(&experiment(Environment::Virtual, 4), &busy(50), &[]);
    assert_close(outcome.wall_ps as f64, pinned.wall_ps as f64, 0.01);
}

/// A vCPU is preempted in the middle of a critical section: until it is back, those that are not preempted spin.
#[test]
fn a_preempted_lock_holder_makes_the_others_spin() {
    let contended = workload(
        r#"{"name":"a","count":"threads","phases":[{"loop":{"times":20000,"phases":[
            {"run":{"ns":20000}},{"lock":{"lock":"s","phases":[{"run":{"ns":2000}}]}}]}}]}"#,
    );
    let alone = run(&shared(4, 4), &contended, &[]);
    let mut crowded = shared(4, 4);
    // Two busy vCPUs on four pCPUs: there is always somebody who runs, and often one who does not.
    crowded.vms = vec![company(2)];
    let crowded = run(&crowded, &contended, &[busy(1)]);
    let share = |outcome: &Outcome| total(outcome, 0, Account::Spin) / outcome.vms[0].cpu_ps() as f64;
    assert!(share(&crowded) > 3.0 * share(&alone), "{} and {}", share(&crowded), share(&alone));
    assert!(total(&crowded, 0, Account::Steal) > 0.1 * crowded.wall_ps as f64);
    assert!(crowded.scheduling.preemptions > 20 && alone.scheduling.preemptions == 0);
    // What the threads were to compute, they computed: no more, no less.
    assert_eq!(total(&crowded, 0, Account::User), total(&alone, 0, Account::User));
}

/// A vCPU that is off its pCPU drops its translations when it is back; who unmaps waits for that.
#[test]
fn a_shootdown_waits_for_preempted_vcpus() {
    let unmaps = workload(
        r#"{"name":"computes","count":3,"phases":[{"run":{"ns":1000000000}}]},
           {"name":"unmaps","count":1,"phases":[{"loop":{"times":500,"phases":[
               {"run":{"ns":500000}},{"unmap":{"pages":1}}]}}]}"#,
    );
    let alone = run(&shared(4, 4), &unmaps, &[]);
    let mut crowded = shared(4, 4);
    crowded.vms = vec![company(3)];
    let crowded = run(&crowded, &unmaps, &[busy(1000)]);
    let per_shootdown =
        |outcome: &Outcome| total(outcome, 0, Account::TlbShootdown) / outcome.counters.shootdowns as f64;
    let [alone, crowded] = [&alone, &crowded].map(per_shootdown);
    assert!(crowded > 10.0 * alone, "{alone} and {crowded}");
}

/// Every kind of idling, of waking and of waiting, with fewer pCPUs than vCPUs and company on them: a wake-up that got
/// lost would be a deadlock.
#[test]
fn no_wake_up_is_lost_where_vcpus_share_pcpus() {
    let hand_over = workload(
        r#"{"name":"a","count":2,"phases":[{"loop":{"times":300,"phases":[
               {"run":{"ns":30000}},{"wake":{"condition":"c"}},{"wait":{"condition":"d"}},{"sleep":{"ns":1000}}]}}]},
           {"name":"b","count":2,"phases":[{"loop":{"times":300,"phases":[
               {"wait":{"condition":"c"}},{"unmap":{"pages":1}},{"wake":{"condition":"d"}}]}}]},
           {"name":"x","count":4,"phases":[{"loop":{"times":100,"phases":[
               {"lock":{"lock":"m","phases":[{"run":{"ns":5000}}]}},{"barrier":{"barrier":"b"}}]}}]}"#,
    );
    for idle in [IdleKind::Halt, IdleKind::Poll, IdleKind::Mwait, IdleKind::Haltpoll] {
        for yielding in [false, true] {
            let mut experiment = shared(8, 2);
            (experiment.idle, experiment.yielding) = (idle, yielding);
            experiment.vms = vec![company(3)];
            let outcome = run(&experiment, &hand_over, &[busy(1)]);
            assert_eq!(outcome.vms[0].turns.iter().sum::<u64>(), 4 * 300 + 4 * 100, "{idle:?}");
        }
    }
}

/// A thread on vCPU 0 hands over to one on vCPU 1 `times` times, after `work`.
fn hand_over(times: u32, work: &str) -> Workload {
    workload(&format!(
        r#"{{"name":"a","count":1,"cpus":"0","phases":[{{"loop":{{"times":{times},"phases":[
               {work},{{"wake":{{"condition":"c"}}}},{{"wait":{{"condition":"d"}}}}]}}}}]}},
           {{"name":"b","count":1,"cpus":"1","phases":[{{"loop":{{"times":{times},"phases":[
               {{"wait":{{"condition":"c"}}}},{{"run":{{"ns":5000}}}},{{"wake":{{"condition":"d"}}}}]}}}}]}}"#
    ))
}

fn wall_of(idle: IdleKind, workload: &Workload, others: &[VmSpec]) -> u64 {
    let mut experiment = shared(2, 2);
    (experiment.share.pin, experiment.idle, experiment.vms) = (Pin::Each, idle, others.to_vec());
    run(&experiment, workload, &vec![busy(1000); others.len()]).wall_ps
}

/// A vCPU that has credits left is boosted when it wakes: it does not wait for the end of a slice of 30 ms.
#[test]
fn a_woken_vcpu_preempts_company_that_computes() {
    let pair = hand_over(5000, r#"{"run":{"ns":5000}}"#);
    let alone = wall_of(IdleKind::Halt, &pair, &[]);
    let crowded = wall_of(IdleKind::Halt, &pair, &[company(2)]);
    assert!(alone < crowded && crowded < 3 * alone, "{alone} and {crowded}");
}

/// An interrupt for a vCPU that polled until it was preempted is not seen before it has its pCPU back.
#[test]
fn a_preempted_vcpu_sees_an_interrupt_late() {
    let pair = hand_over(200, r#"{"sleep":{"ns":2000000}}"#);
    let company = [VmSpec { share: Share { pin: Pin::Each, ..Share::default() }, ..company(2) }];
    let [halting, polling] = [IdleKind::Halt, IdleKind::Poll].map(|idle| wall_of(idle, &pair, &company));
    assert!(polling * 2 > halting * 3, "{halting} and {polling}");
}

#[test]
fn a_run_ends_with_the_last_program_that_does_not_repeat_itself() {
    let mut experiment = shared(2, 4);
    experiment.vms = vec![VmSpec { repeat: false, ..company(2) }, company(1)];
    let outcome = run(&experiment, &busy(2), &[busy(20), busy(1)]);
    let [first, second, third] = &outcome.vms[..] else { panic!("three VMs") };
    assert_eq!((first.runs, second.runs), (1, 1));
    assert!(first.wall_ps * 5 < second.wall_ps && second.wall_ps == outcome.wall_ps);
    assert!(third.runs > 10 && third.wall_ps <= outcome.wall_ps);
}

#[test]
fn a_program_that_is_ended_goes_on_as_a_load_for_others() {
    let endless =
        workload(r#"{"name":"a","count":1,"phases":[{"loop":{"times":"forever","phases":[{"run":{"ns":1000000}}]}}]}"#);
    let ended = Workload { duration_ns: Some(7_000_000), ..endless.clone() };
    let mut experiment = shared(1, 1);
    experiment.vms = vec![VmSpec { repeat: false, ..company(1) }];
    let outcome = run(&experiment, &busy(10), std::slice::from_ref(&ended));
    assert_eq!((outcome.vms[1].wall_ps, outcome.vms[1].runs), (7_000_000_000, 1));
    // The other one's 100 ms take twice as long: half of the machine stays taken.
    assert_close(outcome.wall_ps as f64, 200e9, 0.1);
    // One that repeats itself is not ended at all.
    experiment.vms = vec![company(1)];
    let outcome = run(&experiment, &busy(10), &[ended]);
    assert_eq!(outcome.vms[1].runs, 0);
}

#[test]
fn a_program_that_starts_again_has_its_timers_and_cpus_from_the_start() {
    // Sleeps until 3 ms, runs, and sleeps to the timer's next period: 5 ms a run, the second half of it elsewhere.
    let paced = workload(
        r#"{"name":"a","count":1,"cpus":"0","phases":[{"sleep-until":{"ns":3000000}},{"run":{"ns":500000}},
            {"affinity":{"cpus":"1"}},{"run":{"ns":500000}},{"timer":{"timer":"t","period_ns":2000000}}]}"#,
    );
    let mut experiment = shared(1, 4);
    experiment.vms = vec![company(2)];
    let outcome = run(&experiment, &busy(10), &[paced]);
    assert!((18..=20).contains(&outcome.vms[1].runs), "{}", outcome.vms[1].runs);
    let [first, second] = [0, 1].map(|c| outcome.vms[1].books[c][Account::User as usize] as f64);
    assert_close(first, second, 0.1);
}

/// The largest machine, all of it in use: numbers within a VM and within the world are not the same.
#[test]
fn vcpus_of_a_late_vm_have_their_own_numbers() {
    let mut profile = r720();
    profile.topology = Topology::regular(2, 1, 16, 1).unwrap();
    let last = r#"{"name":"a","count":2,"cpus":"30-31","phases":[{"run":{"ns":2000000}},{"unmap":{"pages":1}}]}"#;
    for pin in [Pin::None, Pin::Each] {
        let mut experiment = shared(992, 32);
        experiment.vms = vec![VmSpec { share: Share { pin, ..Share::default() }, repeat: false, ..company(32) }];
        experiment.threads = Some(1);
        let case = Case { experiment, profile: profile.clone(), workload: busy(1), company: vec![workload(last)] };
        let outcome = run_checked(&case).unwrap();
        let worked = |vcpu: usize| outcome.vms[1].books[vcpu][Account::User as usize] > 0;
        assert_eq!((0..32).filter(|&vcpu| worked(vcpu)).collect::<Vec<_>>(), [30, 31]);
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let mut experiment = shared(1, 1);
    experiment.vms = vec![company(1)];
    let refused = |workloads: &[&Workload]| Simulation::of_vms(&experiment, &r720(), workloads, None).unwrap_err();
    assert!(refused(&[&busy(1)]).to_string().contains("1 workloads for 2 VMs"));
    let elsewhere = workload(r#"{"name":"a","count":1,"cpus":"1","phases":[]}"#);
    assert!(refused(&[&busy(1), &elsewhere]).to_string().contains("CPUs 1 on 1 cores"));
    let mut crowd = shared(1, 1);
    crowd.vms = vec![VmSpec { threads: Some(4096), ..company(1) }; 16];
    let busy = busy(1);
    let error = Simulation::of_vms(&crowd, &r720(), &[&busy; 17], None).unwrap_err().to_string();
    assert!(error.contains("65537 threads in all"), "{error}");
}
