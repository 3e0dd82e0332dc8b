//! Xen's environments: what they cost, and what iXen's remedies take away. What is asserted are directions and orders of
//! magnitude that follow from the mechanisms; the paper's numbers are the study's business.

mod common;

use common::{opteron, run_2_6_31 as run, workload};
use muster_model::study::{Environment, Experiment, GuestKernel, Remedy};
use muster_model::{Account, Workload};
use muster_sim::{Outcome, SimError, Simulation};

/// Threads that compute for 50 ms each, a millisecond at a time.
fn computing() -> Workload {
    workload(
        r#"{"name": "computing", "groups": [{"name": "all", "count": "threads", "phases": [
        {"loop": {"times": 50, "phases": [{"run": {"ns": 1000000}}]}}]}]}"#,
    )
}

/// Threads that meet at a barrier after 100 us.
fn meeting() -> Workload {
    workload(
        r#"{"name": "meeting", "barriers": {"b": {"kind": "futex"}}, "groups": [{"name": "all", "count": "threads", "phases": [
        {"loop": {"times": 300, "phases": [{"run": {"ns": {"uniform": {"min": 80000, "max": 120000}}}}, {"barrier": {"barrier": "b"}}]}}]}]}"#,
    )
}

/// One thread that makes short system calls.
fn calling() -> Workload {
    workload(
        r#"{"name": "calling", "groups": [{"name": "one", "count": 1, "phases": [
        {"loop": {"times": 20000, "phases": [{"run": {"ns": 1000}}, {"syscall": {"ns": 1000}}]}}]}]}"#,
    )
}

/// Threads that touch pages.
fn faulting() -> Workload {
    workload(
        r#"{"name": "faulting", "groups": [{"name": "all", "count": "threads", "phases": [
        {"loop": {"times": 200, "phases": [{"touch-memory": {"pages": 4}}, {"run": {"ns": 50000}}]}}]}]}"#,
    )
}

fn pmt_share(outcome: &Outcome) -> f64 {
    outcome.functions.handle_pmt_io as f64 / outcome.busy_ps() as f64
}

fn slowdown(vm: &Outcome, native: &Outcome) -> f64 {
    vm.seconds() / native.seconds() - 1.0
}

#[test]
fn vcpus_that_idle_hold_up_those_that_work_where_all_read_the_pm_timer() {
    let work = computing();
    let native = run(&work, Environment::Native, 8, &[]);
    let plain = [1, 8, 32].map(|cores| run(&work, Environment::Hvm, cores, &[]));
    assert!(plain.iter().all(|vm| slowdown(vm, &native) > 0.05), "every one waits");
    // Halted cores have no cycles: the fewer work, the larger is the part of those that only read the clock.
    let shares = [&plain[0], &plain[1], &plain[2]].map(pmt_share);
    assert!(shares.is_sorted_by(|a, b| a > b) && shares[2] > 0.05, "{shares:?}");
    let tried = run(&work, Environment::Hvm, 8, &[Remedy::Vtime]);
    assert!(pmt_share(&tried) < shares[1] / 20.0 && slowdown(&tried, &native) < 0.03, "{}", pmt_share(&tried));
    let pv = run(&work, Environment::Pv, 8, &[]);
    assert!(slowdown(&pv, &native) < 0.03 && pv.functions.handle_pmt_io == 0, "PV has a clock of its own");
}

#[test]
fn waking_a_halted_vcpu_costs_and_not_halting_saves_it() {
    let work = meeting();
    let native = run(&work, Environment::Native, 16, &[]);
    for (environment, base) in [(Environment::Pv, &[][..]), (Environment::Hvm, &[Remedy::Vtime])] {
        let plain = run(&work, environment, 16, base);
        for remedy in [Remedy::Idle, Remedy::Nohlt] {
            let remedies: Vec<Remedy> = base.iter().copied().chain([remedy]).collect();
            let remedied = run(&work, environment, 16, &remedies);
            assert!(slowdown(&remedied, &native) < slowdown(&plain, &native), "{environment:?} {remedy:?}");
            assert_eq!(remedied.counters.halt_exits, 0, "{environment:?} {remedy:?}");
        }
    }
}

#[test]
fn a_pcpu_with_one_vcpu_need_not_look_for_others() {
    let work = meeting();
    let plain = run(&work, Environment::Hvm, 32, &[Remedy::Vtime]);
    let remedied = run(&work, Environment::Hvm, 32, &[Remedy::Vtime, Remedy::Cm]);
    assert!(
        remedied.functions.schedule * 2 < plain.functions.schedule,
        "{:?} {:?}",
        remedied.functions,
        plain.functions
    );
    assert!(remedied.line_misses[3] * 2 < plain.line_misses[3]);
}

#[test]
fn a_paravirtualized_kernel_begins_each_call_without_translations() {
    let work = calling();
    let [native, pv, hvm] = [Environment::Native, Environment::Pv, Environment::Hvm].map(|environment| {
        run(
            &work,
            environment,
            1,
            &[if environment == Environment::Hvm { Remedy::Vtime } else { Remedy::Idle }]
                [..usize::from(environment != Environment::Native)],
        )
    });
    assert!(
        slowdown(&pv, &native) > 0.3 && slowdown(&hvm, &native) < 0.05,
        "{} {}",
        slowdown(&pv, &native),
        slowdown(&hvm, &native)
    );
    assert!(
        pv.itlb_misses[1] >= 20_000 * 8 && native.itlb_misses[1] < 10,
        "{:?} {:?}",
        pv.itlb_misses,
        native.itlb_misses
    );
    let walks = |outcome: &Outcome| outcome.books.iter().map(|book| book[Account::PageWalk as usize]).sum::<u64>();
    assert!(walks(&pv) > 100 * walks(&native));
}

#[test]
fn page_faults_meet_at_the_semaphores_lock() {
    let work = faulting();
    let per_core = [1, 8, 32].map(|cores| run(&work, Environment::Native, cores, &[]).seconds());
    assert!(per_core[1] < 1.5 * per_core[0] && per_core[2] > 2.0 * per_core[1], "{per_core:?}");
}

#[test]
fn a_machine_that_is_too_small_is_named_by_what_asked_for_more() {
    let experiment = Experiment { vcpus: Some(64), ..Experiment::new(Environment::Hvm, 8) };
    let error = Simulation::new(&experiment, &opteron(), &computing(), None).unwrap_err().to_string();
    assert!(error.starts_with("vcpus: found 64; allowed: 1 to 48"), "{error}");
}

/// What starting the vCPUs takes the scheduler is nobody's time: a pCPU's way out of C1 is booked as that and nothing else.
#[test]
fn a_decision_that_nobody_pays_for_is_booked_to_nobody() {
    let work =
        workload(r#"{"name": "short", "groups": [{"name": "one", "count": 1, "phases": [{"run": {"ns": 1000000}}]}]}"#);
    let experiment = Experiment { kernel: Some(GuestKernel::Linux2631), ..Experiment::new(Environment::Hvm, 1) };
    let outcome = Simulation::new(&experiment, &opteron(), &work, None).unwrap().run().unwrap();
    let price_ns = |name: &str| opteron().require_ns(name).unwrap();
    let out_of_c1 = ["sim.cpu.c1-exit", "sim.vmm.host-interrupt", "sim.vmm.host-idle-exit"].map(price_ns);
    assert_eq!(outcome.books[0][Account::HaltWake as usize] as f64, 1000.0 * out_of_c1.iter().sum::<f64>());
}

/// Threads whose heaps grow all the time, so that each waits for the others' changes of the address space.
fn growing() -> Workload {
    workload(
        r#"{"name": "growing", "groups": [{"name": "all", "count": "threads", "phases": [
        {"loop": {"times": 200, "phases": [{"allocate": {"bytes": 4080}}, {"run": {"ns": 20000}}]}}]}]}"#,
    )
}

#[test]
fn who_wakes_others_holds_them_up_and_on_pv_the_vmms_lock_does() {
    let native = run(&growing(), Environment::Native, 32, &[]);
    assert!(native.counters.shootdowns > 0 && native.counters.wakeups > 1_000);
    let took =
        |outcome: &Outcome, account: Account| outcome.books.iter().map(|book| book[account as usize]).sum::<u64>();
    assert!(took(&native, Account::Spin) > 0, "threads spin for the semaphore's lock while its holder wakes others");
    let pv = run(&growing(), Environment::Pv, 32, &[]);
    assert!(took(&pv, Account::VmmLock) > took(&native, Account::VmmLock), "events are sent under one lock");
    assert!(pv.wall_ps > native.wall_ps);
    let idle = run(&growing(), Environment::Pv, 32, &[Remedy::Idle]);
    assert!(idle.wall_ps < pv.wall_ps, "a vCPU that does not block need not be woken by the VMM");
}

/// A lock that is handed over more slowly than ticks come, on 128 vCPUs; with `vtime` nobody queues.
#[test]
fn a_run_that_gets_nowhere_is_given_up_and_says_on_what() {
    let experiment = |remedies: &[Remedy]| Experiment {
        kernel: Some(GuestKernel::Linux2631),
        scale_out: true,
        remedies: remedies.iter().copied().collect(),
        ..Experiment::new(Environment::Hvm, 128)
    };
    let run = |remedies| Simulation::new(&experiment(remedies), &opteron(), &computing(), None).unwrap().run();
    let Err(SimError::NoProgress(stall)) = run(&[]) else { panic!("it ends") };
    assert!(stall.place == "handle_pmt_io" && stall.share > 0.9 && stall.until_ps < 10_000_000_000_000, "{stall:?}");
    assert!(run(&[Remedy::Vtime]).unwrap().seconds() < 1.0);
}

/// Threads that all wait for each other while ticks go on.
#[test]
fn a_deadlock_under_ticks_is_found() {
    let waits = r#"{"name": "waits", "locks": {"m": {"kind": "mutex"}}, "conditions": {"c": {}}, "groups": [
        {"name": "holder", "count": 1, "phases": [{"lock": {"lock": "m", "phases": [{"wait": {"condition": "c"}}]}}]},
        {"name": "waker", "count": 1, "phases": [{"run": {"ns": 1000000}}, {"lock": {"lock": "m", "phases": []}}, {"wake": {"condition": "c", "count": 1}}]}]}"#;
    let experiment = Experiment { kernel: Some(GuestKernel::Linux2631), ..Experiment::new(Environment::Native, 2) };
    let result = Simulation::new(&experiment, &opteron(), &workload(waits), None).unwrap().run();
    assert!(matches!(result, Err(SimError::Deadlock { after_s, .. }) if after_s < 300.0), "{result:?}");
}

/// A thread that spins for a lock whose holder waits for it.
#[test]
fn spinning_is_no_progress_and_sleeping_no_lack_of_it() {
    let text = |what: &str| {
        format!(
            r#"{{"name": "w", "locks": {{"s": {{"kind": "spin"}}}}, "conditions": {{"c": {{}}}}, "groups": [
            {{"name": "holder", "count": 1, "phases": [{{"lock": {{"lock": "s", "phases": [{what}]}}}}]}},
            {{"name": "spinner", "count": 1, "phases": [{{"run": {{"ns": 1000000}}}}, {{"lock": {{"lock": "s", "phases": []}}}}, {{"wake": {{"condition": "c", "count": 1}}}}]}}]}}"#
        )
    };
    let run = |what: &str| {
        let experiment = Experiment { limit_s: 2000.0, ..Experiment::new(Environment::Native, 2) };
        Simulation::new(&experiment, &opteron(), &workload(&text(what)), None).unwrap().run()
    };
    let stuck = run(r#"{"wait": {"condition": "c"}}"#);
    let Err(SimError::NoProgress(stall)) = stuck else { panic!("{stuck:?}") };
    assert_eq!((stall.place.as_str(), stall.share > 0.9), ("spin", true), "{stall:?}");
    assert!(run(r#"{"sleep": {"ns": 1000000000000}}"#).unwrap().seconds() > 999.0);
}
