//! Small worlds whose outcome can be said beforehand, golden runs, and what prices may and may not do.

mod common;

use common::{Case, experiment, r720, run_checked};
use muster_model::study::{Consolidation, Environment, Experiment, IdleKind, Placement, RemoteWake, WakeSignal};
use muster_model::{Account, Workload};
use muster_sim::machine::prices::Prices;
use muster_sim::{Outcome, SimError, Simulation};

fn workload(groups: &str) -> Workload {
    let text = format!(
        r#"{{"name":"w","locks":{{"m":{{"kind":"mutex"}},"s":{{"kind":"spin"}},"b":{{"kind":"spin-then-block","spin_ns":5000}}}},
            "barriers":{{"x":{{"kind":"futex"}},"y":{{"kind":"condvar"}}}},"conditions":{{"c":{{}},"d":{{}}}},"groups":[{groups}]}}"#
    );
    Workload::from_json(&text, "w.json").unwrap()
}

fn run(experiment: &Experiment, workload: &Workload) -> Outcome {
    let (experiment, workload) = (experiment.clone(), workload.clone());
    run_checked(&Case { experiment, profile: r720(), workload, company: Vec::new() }).unwrap()
}

fn total(outcome: &Outcome, account: Account) -> u64 {
    outcome.books.iter().map(|book| book[account as usize]).sum()
}

const PING_PONG: &str = r#"
    {"name":"a","count":1,"cpus":"0","phases":[{"loop":{"times":200,"phases":[
        {"run":{"ns":1000}},{"wake":{"condition":"c"}},{"wait":{"condition":"d"}}]}}]},
    {"name":"b","count":1,"cpus":"1","phases":[{"loop":{"times":200,"phases":[
        {"wait":{"condition":"c"}},{"run":{"ns":1000}},{"wake":{"condition":"d"}}]}}]}"#;

#[test]
fn user_time_is_what_the_program_asked_for() {
    let work =
        workload(r#"{"name":"a","count":"threads","phases":[{"loop":{"times":50,"phases":[{"run":{"ns":70000}}]}}]}"#);
    for environment in [Environment::Native, Environment::Virtual] {
        for threads in [1, 3, 8] {
            let mut experiment = experiment(environment, 4);
            experiment.threads = Some(threads);
            let outcome = run(&experiment, &work);
            assert_eq!(total(&outcome, Account::User), u64::from(threads) * 50 * 70_000_000);
        }
    }
}

#[test]
fn shared_work_is_divided() {
    let work = workload(r#"{"name":"a","count":"threads","phases":[{"run":{"ns":8000000,"shared":true}}]}"#);
    let one = run(&experiment(Environment::Native, 1), &work).wall_ps;
    let eight = run(&experiment(Environment::Native, 8), &work).wall_ps;
    assert!(one > 7 * eight, "{one} {eight}");
}

#[test]
fn an_alternating_pair_gains_from_not_halting_in_a_vm() {
    let pair = workload(PING_PONG);
    let virtual_halt = run(&experiment(Environment::Virtual, 2), &pair);
    let with = |change: &dyn Fn(&mut Experiment)| {
        let mut experiment = experiment(Environment::Virtual, 2);
        change(&mut experiment);
        run(&experiment, &pair)
    };
    let native = run(&experiment(Environment::Native, 2), &pair);
    assert!(native.wall_ps * 2 < virtual_halt.wall_ps);
    assert!(virtual_halt.counters.halt_exits >= 390);
    for idle in [IdleKind::Poll, IdleKind::Mwait, IdleKind::Haltpoll] {
        let outcome = with(&|e| e.idle = idle);
        assert!(outcome.wall_ps * 2 < virtual_halt.wall_ps, "{idle:?}");
        assert!(outcome.counters.halt_exits < 20, "{idle:?}");
    }
    let yielding = with(&|e| e.yielding = true);
    let exception = with(&|e| {
        e.yielding = true;
        e.wake_signal = WakeSignal::Exception;
    });
    assert!(yielding.wall_ps < virtual_halt.wall_ps && exception.wall_ps < yielding.wall_ps);
    assert!(exception.counters.ipis < 10 && exception.counters.exceptions > 390);
}

#[test]
fn a_polling_cpu_needs_the_ipi_only_where_the_kernel_sends_it_always() {
    let pair = workload(PING_PONG);
    let mut polling = experiment(Environment::Virtual, 2);
    polling.idle = IdleKind::Poll;
    assert_eq!(run(&polling, &pair).counters.ipis, 0);
    polling.remote_wake = RemoteWake::Ipi;
    assert!(run(&polling, &pair).counters.ipis > 390);
}

#[test]
fn colocation_keeps_an_unpinned_pair_together_without_ipis() {
    let pair = workload(&PING_PONG.replace(r#""cpus":"0","#, "").replace(r#""cpus":"1","#, ""));
    let spread = run(&experiment(Environment::Virtual, 4), &pair);
    let mut colocated = experiment(Environment::Virtual, 4);
    colocated.wakeup = Placement::Colocate;
    let colocated = run(&colocated, &pair);
    assert!(colocated.wall_ps * 3 < spread.wall_ps, "{} {}", colocated.wall_ps, spread.wall_ps);
    assert!(colocated.counters.ipis < 20);
}

/// Pairs of threads, each pair by itself, that hand over `times` to each other and work `run_ns` each time.
fn pairs_of_threads(pairs: usize, run_ns: u32, times: u32) -> Workload {
    let pair = |n: usize| {
        format!(
            r#"{{"name":"a{n}","count":1,"phases":[{{"loop":{{"times":{times},"phases":[
                {{"run":{{"ns":{run_ns}}}}},{{"wake":{{"condition":"there{n}"}}}},{{"wait":{{"condition":"back{n}"}}}}]}}}}]}},
            {{"name":"b{n}","count":1,"phases":[{{"loop":{{"times":{times},"phases":[
                {{"wait":{{"condition":"there{n}"}}}},{{"run":{{"ns":{run_ns}}}}},{{"wake":{{"condition":"back{n}"}}}}]}}}}]}}"#
        )
    };
    let conditions: Vec<String> = (0..pairs).map(|n| format!(r#""there{n}":{{}},"back{n}":{{}}"#)).collect();
    let groups: Vec<String> = (0..pairs).map(pair).collect();
    let (conditions, groups) = (conditions.join(","), groups.join(","));
    let text = format!(r#"{{"name":"w","conditions":{{{conditions}}},"groups":[{groups}]}}"#);
    Workload::from_json(&text, "w.json").unwrap()
}

fn on_cores(cores: u32, consolidation: Consolidation, workload: &Workload) -> Outcome {
    let mut experiment = experiment(Environment::Virtual, cores);
    experiment.consolidation = consolidation;
    run(&experiment, workload)
}

/// One core is too few for two pairs, and a scheduler that spreads threads wakes halted cores.
#[test]
fn pairs_that_share_a_core_each_beat_both_spreading_and_consolidation() {
    let pairs = pairs_of_threads(2, 4000, 40_000);
    let [spread, consolidated, colocated] = [Consolidation::None, Consolidation::Yielding, Consolidation::Colocate]
        .map(|consolidation| on_cores(4, consolidation, &pairs));
    assert!(colocated.wall_ps * 2 < spread.wall_ps, "{} {}", colocated.wall_ps, spread.wall_ps);
    assert!(colocated.wall_ps < consolidated.wall_ps, "{} {}", colocated.wall_ps, consolidated.wall_ps);
}

/// The controller puts each pair on a core and leaves all cores in use: neither spread nor together on few.
#[test]
fn pairs_on_many_cores_get_a_core_each() {
    let pairs = pairs_of_threads(6, 4000, 40_000);
    let [spread, controlled] =
        [Consolidation::None, Consolidation::Controller].map(|consolidation| on_cores(16, consolidation, &pairs));
    assert!(controlled.wall_ps * 2 < spread.wall_ps, "{} {}", controlled.wall_ps, spread.wall_ps);
    assert_eq!(controlled.active_history.last().map(|(_, cores)| *cores), Some(16));
    assert!(controlled.counters.halt_exits * 10 < spread.counters.halt_exits, "{:?}", controlled.counters);
    assert!(controlled.counters.poll_entries * 10 < controlled.counters.switches, "{:?}", controlled.counters);
}

#[test]
fn gleaners_rule_consolidates_an_idle_program_and_leaves_a_busy_one() {
    let pair = workload(&PING_PONG.replace(r#""cpus":"0","#, "").replace(r#""cpus":"1","#, "").replace("200", "20000"));
    let mut consolidated = experiment(Environment::Virtual, 4);
    consolidated.consolidation = Consolidation::Yielding;
    assert!(run(&consolidated, &pair).mean_active() < 2.5);
    let busy = workload(r#"{"name":"a","count":"threads","phases":[{"run":{"ns":2000000000}}]}"#);
    assert!(run(&consolidated, &busy).mean_active() > 3.9);
}

#[test]
fn every_barrier_holds_everybody() {
    // The slowest thread's work is in front of every barrier: no run can be shorter.
    for barrier in ["x", "y"] {
        let groups = format!(
            r#"{{"name":"fast","count":5,"phases":[{{"loop":{{"times":30,"phases":[{{"run":{{"ns":1000}}}},{{"barrier":{{"barrier":"{barrier}"}}}}]}}}}]}},
               {{"name":"slow","count":1,"phases":[{{"loop":{{"times":30,"phases":[{{"run":{{"ns":90000}}}},{{"barrier":{{"barrier":"{barrier}"}}}}]}}}}]}}"#
        );
        let outcome = run(&experiment(Environment::Native, 6), &workload(&groups));
        assert!(outcome.wall_ps >= 30 * 90_000_000, "{barrier}");
    }
}

#[test]
fn waiting_by_spinning_is_booked_as_spinning() {
    let contended = |lock: &str| {
        workload(&format!(
            r#"{{"name":"a","count":2,"phases":[{{"loop":{{"times":100,"phases":[{{"lock":{{"lock":"{lock}","phases":[{{"run":{{"ns":3000}}}}]}}}}]}}}}]}}"#
        ))
    };
    let native = experiment(Environment::Native, 2);
    let spin = run(&native, &contended("s"));
    assert!(total(&spin, Account::Spin) > 0 && spin.counters.wakeups == 0);
    let both = run(&native, &contended("b"));
    assert!(total(&both, Account::Spin) > 0);
    assert!(run(&native, &contended("m")).counters.wakeups > 0);
}

#[test]
fn unmapping_interrupts_the_cores_that_run_the_process() {
    let groups = r#"{"name":"a","count":"threads","phases":[{"loop":{"times":50,"phases":[{"run":{"ns":20000}},{"unmap":{"pages":1}}]}}]}"#;
    let alone = run(&experiment(Environment::Native, 1), &workload(groups));
    let eight = run(&experiment(Environment::Native, 8), &workload(groups));
    assert_eq!(alone.counters.shootdowns, 0);
    assert!(eight.counters.shootdowns > 100);
    assert!(total(&eight, Account::TlbShootdown) > total(&alone, Account::TlbShootdown));
}

#[test]
fn a_core_that_often_sleeps_still_has_its_ticks() {
    // Some 75 ticks in 300 ms, of which each burst of 3 ms meets one or none.
    let groups = r#"{"name":"a","count":1,"phases":[{"loop":{"times":100,"phases":[{"run":{"ns":3000000}},{"sleep":{"ns":50000}}]}}]}"#;
    let profile = r720();
    let wall = |tick_ps| {
        let mut prices = Prices::new(&profile).unwrap();
        *prices.by_name_mut("sim.kernel.tick").unwrap() = tick_ps;
        let one = experiment(Environment::Native, 1);
        Simulation::with_prices(&one, &profile, prices, &workload(groups), None).unwrap().run().unwrap().wall_ps
    };
    let ticks = (wall(100_000_000) - wall(0)) / 100_000_000;
    assert!((60..90).contains(&ticks), "{ticks}");
}

/// A thread unmaps after the others have gone to sleep for good: the first shootdown still reaches their cores.
#[test]
fn the_first_shootdown_wakes_idle_cores_that_still_hold_the_address_space() {
    let groups = r#"
        {"name":"unmaps","count":1,"cpus":"0","phases":[{"sleep":{"ns":2000000}},{"loop":{"times":50,"phases":[
            {"unmap":{"pages":1}}]}},{"wake":{"condition":"c","count":3}}]},
        {"name":"sleeps","count":3,"cpus":"1-3","phases":[{"wait":{"condition":"c"}}]}"#;
    let with = |yielding| {
        let mut experiment = experiment(Environment::Virtual, 4);
        experiment.yielding = yielding;
        run(&experiment, &workload(groups)).counters
    };
    assert_eq!(with(false).shootdowns, 1);
    assert_eq!(with(true).shootdowns, 0);
    assert!(with(false).halt_exits > with(true).halt_exits + 3);
}

#[test]
fn a_deadlock_and_a_run_without_end_are_reported() {
    let stuck = workload(
        r#"{"name":"a","count":1,"phases":[{"wait":{"condition":"c"}},{"wake":{"condition":"d"}}]},
           {"name":"b","count":1,"phases":[{"loop":{"times":2,"phases":[{"lock":{"lock":"m","phases":[{"sleep":{"ns":5}},{"wait":{"condition":"d"}}]}}]}},
                                           {"wake":{"condition":"c"}},{"wake":{"condition":"d"}}]},
           {"name":"c","count":1,"phases":[{"sleep":{"ns":1000}},{"lock":{"lock":"m","phases":[{"wake":{"condition":"d"}}]}},{"wake":{"condition":"c"}}]}"#,
    );
    for consolidation in [Consolidation::None, Consolidation::Yielding] {
        let mut experiment = experiment(Environment::Virtual, 2);
        experiment.consolidation = consolidation;
        let outcome = Simulation::new(&experiment, &r720(), &stuck, None).unwrap().run();
        assert!(matches!(outcome, Err(SimError::Deadlock { .. })), "{outcome:?}");
    }
    let long = workload(r#"{"name":"a","count":1,"phases":[{"run":{"ns":5000000000}}]}"#);
    let mut short = experiment(Environment::Native, 1);
    short.limit_s = 1.0;
    assert!(matches!(Simulation::new(&short, &r720(), &long, None).unwrap().run(), Err(SimError::Unfinished { .. })));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let profile = r720();
    let refused = |experiment: &Experiment, workload: &Workload, profile: &muster_model::Profile| {
        Simulation::new(experiment, profile, workload, None).unwrap_err().to_string()
    };
    let fine = workload(r#"{"name":"a","count":1,"phases":[]}"#);
    let send = workload(r#"{"name":"a","count":1,"phases":[{"send":{"bytes":1}}]}"#);
    let one = experiment(Environment::Native, 1);
    assert!(refused(&one, &send, &profile).contains("devices: found none for a phase `send`"));
    assert!(refused(&experiment(Environment::Native, 17), &fine, &profile).contains("1 to 16"));
    let pinned = workload(r#"{"name":"a","count":1,"cpus":"5","phases":[]}"#);
    assert!(refused(&one, &pinned, &profile).contains("groups.a.cpus"));
    let mut poor = r720();
    poor.prices.remove("sim.vmm.exit");
    assert!(refused(&one, &fine, &poor).contains("sim.vmm.exit"));
}

/// With threads pinned one a core and no lock stealing, dearer primitives cannot make a run faster: there is no
/// placement and no order of arrival that could change. (Elsewhere they may: a thread that is woken later may find a
/// better place.)
#[test]
fn more_of_a_cost_never_makes_a_pinned_run_faster() {
    // Long runs between the wake-ups: a thread that takes longer to block must not find that it need not block at all.
    let pair = workload(&PING_PONG.replace("\"ns\":1000", "\"ns\":300000"));
    for environment in [Environment::Native, Environment::Virtual] {
        let experiment = experiment(environment, 2);
        let profile = r720();
        let prices = Prices::new(&profile).unwrap();
        let wall = |prices: Prices| {
            Simulation::with_prices(&experiment, &profile, prices, &pair, None).unwrap().run().unwrap().wall_ps
        };
        let base = wall(prices);
        for name in Prices::NAMES {
            let mut dearer = prices;
            let price = dearer.by_name_mut(name).expect("the name is listed");
            *price = *price * 2 + 100_000;
            assert!(wall(dearer) >= base, "{name} in {environment:?}");
        }
    }
}

/// The numbers of a fixed run. A change here is a change of the simulated world and belongs into the commit's message.
#[test]
fn golden_run() {
    let workload = Workload::from_json(include_str!("../../../workloads/gleaner/dedup.json"), "dedup.json").unwrap();
    let mut experiment = experiment(Environment::Virtual, 8);
    experiment.remote_wake = RemoteWake::Ipi;
    experiment.consolidation = Consolidation::Yielding;
    experiment.wakeup = Placement::Colocate;
    experiment.scale = 0.05;
    experiment.seed = 42;
    let outcome = run(&experiment, &workload);
    insta::assert_debug_snapshot!((outcome.wall_ps, outcome.counters, outcome.active_history, outcome.books));
}
