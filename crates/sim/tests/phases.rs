//! Timers, condition variables, yielding, affinity and programs that are ended: worlds whose outcome can be said before.

mod common;

use common::{Case, experiment, r720, run_checked};
use muster_model::study::Environment;
use muster_model::workload::Lock;
use muster_model::{Account, Workload};
use muster_sim::Outcome;

const MS: u64 = 1_000_000_000;

/// A program of `head` (its fields beside name and groups, each with a comma behind it) and groups.
fn program(head: &str, groups: &str) -> Workload {
    let text = format!(
        r#"{{"name":"w","locks":{{"m":{{"kind":"mutex"}}}},"condvars":["c","d"],{head}
            "timers":{{"own":{{}},"late":{{"absolute":true}},"all":{{"shared":true}}}},"groups":[{groups}]}}"#
    );
    Workload::from_json(&text, "w.json").unwrap()
}

fn run_on(environment: Environment, cores: u32, workload: &Workload) -> Outcome {
    let experiment = experiment(environment, cores);
    run_checked(&Case { experiment, profile: r720(), workload: workload.clone(), company: Vec::new() }).unwrap()
}

/// Runs it natively and in a VM, on so many cores.
fn run(cores: u32, workload: &Workload) -> [Outcome; 2] {
    [Environment::Native, Environment::Virtual].map(|environment| run_on(environment, cores, workload))
}

/// Whether a run took that long, and at most 1 % more for what the machine charges.
fn took(outcome: &Outcome, ms: u64) -> bool {
    (ms * MS..=ms * MS + ms * MS / 100).contains(&outcome.wall_ps)
}

#[test]
fn a_timer_that_was_missed_starts_anew_and_an_absolute_one_catches_up() {
    // Due at 20, 40, 60 (missed: the third run ends at 75), then 95 and 115, or 80 (missed) and 100.
    for (timer, ms) in [("own", 115), ("late", 100)] {
        let phases: Vec<String> = [10, 10, 35, 10, 5]
            .map(|run| {
                format!(
                    r#"{{"run":{{"ns":{}}}}},{{"timer":{{"timer":"{timer}","period_ns":20000000}}}}"#,
                    run * 1_000_000
                )
            })
            .into();
        let work = program("", &format!(r#"{{"name":"a","count":1,"phases":[{}]}}"#, phases.join(",")));
        for outcome in run(1, &work) {
            assert!(took(&outcome, ms), "{timer}: {}", outcome.wall_ps);
        }
    }
}

#[test]
fn threads_have_their_own_timers_unless_they_share_one() {
    for (timer, ms) in [("own", 100), ("all", 200)] {
        let work = program(
            "",
            &format!(
                r#"{{"name":"a","count":2,"phases":[{{"loop":{{"times":10,"phases":[
                    {{"timer":{{"timer":"{timer}","period_ns":10000000}}}}]}}}}]}}"#
            ),
        );
        for outcome in run(2, &work) {
            assert!(took(&outcome, ms), "{timer}: {}", outcome.wall_ps);
        }
    }
}

#[test]
fn timers_begin_where_the_thread_was_told_to_start() {
    let work = program(
        "",
        r#"{"name":"a","count":1,"phases":[{"sleep-until":{"ns":50000000}},{"run":{"ns":15000000}},
            {"timer":{"timer":"own","period_ns":20000000}},{"sleep-until":{"ns":60000000}}]}"#,
    );
    for outcome in run(1, &work) {
        assert!(took(&outcome, 70), "{}", outcome.wall_ps);
    }
}

#[test]
fn running_for_a_time_ends_by_the_clock_even_where_the_cpu_is_shared() {
    let two =
        |phase: &str| program("", &format!(r#"{{"name":"a","count":2,"phases":[{{"{phase}":{{"ns":100000000}}}}]}}"#));
    for (by_clock, by_work) in run(1, &two("run-for")).iter().zip(run(1, &two("run"))) {
        // Both look at the clock again when they next have the CPU: within a slice of 12 ms.
        assert!((100 * MS..115 * MS).contains(&by_clock.wall_ps), "{}", by_clock.wall_ps);
        assert!(by_work.wall_ps >= 200 * MS);
    }
    // Four pieces of 32 us are the least that takes 100 us; one is computed in any case.
    for (ns, pieces) in [(100_000, 4), (0, 1)] {
        let work = program("", &format!(r#"{{"name":"a","count":1,"phases":[{{"run-for":{{"ns":{ns}}}}}]}}"#));
        for outcome in run(1, &work) {
            let user = outcome.books[0][Account::User as usize];
            assert!((pieces * 32_000_000..pieces * 33_000_000).contains(&user), "{user}");
        }
    }
}

#[test]
fn yielding_lets_the_other_run_and_costs_no_switch_when_there_is_none() {
    let threads = |count: u32, between: &str| {
        program(
            "",
            &format!(
                r#"{{"name":"a","count":{count},"phases":[{{"loop":{{"times":200,"phases":[
                    {{"run":{{"ns":10000}}}}{between}]}}}}]}}"#
            ),
        )
    };
    let yielding = r#",{"yield":{}}"#;
    for (with, without) in run(1, &threads(2, yielding)).iter().zip(run(1, &threads(2, ""))) {
        assert!(with.counters.switches > 300, "{}", with.counters.switches);
        assert!(without.counters.switches < 10, "{}", without.counters.switches);
    }
    for outcome in run(1, &threads(1, yielding)) {
        assert!(outcome.counters.switches < 5, "{}", outcome.counters.switches);
    }
}

#[test]
fn a_nicer_thread_gets_its_smaller_share() {
    let done = |nice: [i8; 2]| {
        let group = |name: &str, nice: i8| {
            format!(
                r#"{{"name":"{name}","count":1,"nice":{nice},"phases":[{{"loop":{{"times":"forever","phases":[
                    {{"run":{{"ns":100000}}}}]}}}}]}}"#
            )
        };
        let groups = format!("{},{}", group("a", nice[0]), group("b", nice[1]));
        let outcomes = run(1, &program(r#""duration_ns":5000000000,"#, &groups));
        outcomes.map(|outcome| outcome.vms[0].turns[0] as f64 / outcome.vms[0].turns[1] as f64)
    };
    // By the kernel's weights: 1024 to 1024, 3121 to 335, 335 to 3121.
    for (nice, ratio) in [([0, 0], 1.0), ([-5, 5], 9.32), ([5, -5], 0.107)] {
        for got in done(nice) {
            assert!((got / ratio - 1.0).abs() < 0.1, "{nice:?}: {got}");
        }
    }
}

#[test]
fn a_light_thread_that_wakes_waits_longer_for_a_heavy_one() {
    // One sleeps and runs a little, the other computes: how often the first gets round tells how soon it gets the CPU.
    let turns = |nice: i8| {
        let groups = format!(
            r#"{{"name":"wakes","count":1,"nice":{nice},"phases":[{{"loop":{{"times":"forever","phases":[
                {{"run":{{"ns":3000000}}}},{{"sleep":{{"ns":1000000}}}}]}}}}]}},
               {{"name":"computes","count":1,"phases":[{{"loop":{{"times":"forever","phases":[{{"run":{{"ns":1000000}}}}]}}}}]}}"#
        );
        run_on(Environment::Native, 1, &program(r#""duration_ns":2000000000,"#, &groups)).vms[0].turns[0]
    };
    let (heavy, same, light) = (turns(-15), turns(0), turns(15));
    assert!(heavy > 400 && heavy > same && same > 2 * light, "{heavy} {same} {light}");
}

#[test]
fn a_signal_that_nobody_waits_for_is_lost() {
    let work = |signal_at_ms: u32| {
        program(
            r#""duration_ns":20000000,"#,
            &format!(
                r#"{{"name":"early","count":1,"phases":[{{"sleep-until":{{"ns":{}}}}},{{"signal":{{"condvar":"c"}}}}]}},
                   {{"name":"late","count":1,"phases":[{{"sleep-until":{{"ns":5000000}}}},
                    {{"lock":{{"lock":"m","phases":[{{"await":{{"condvar":"c","lock":"m"}}}}]}}}}]}}"#,
                signal_at_ms * 1_000_000
            ),
        )
    };
    for outcome in run(2, &work(1)) {
        assert!(outcome.deadlocked);
        assert_eq!(outcome.wall_ps, 20 * MS);
    }
    for outcome in run(2, &work(9)) {
        assert!(!outcome.deadlocked && took(&outcome, 9), "{}", outcome.wall_ps);
    }
}

#[test]
fn one_signal_wakes_one_and_a_broadcast_all_of_whom_each_gets_the_mutex_in_turn() {
    let work = |all: bool| {
        program(
            r#""duration_ns":100000000,"#,
            &format!(
                r#"{{"name":"waiters","count":6,"phases":[{{"lock":{{"lock":"m","phases":[
                    {{"await":{{"condvar":"c","lock":"m"}}}},{{"run":{{"ns":2000000}}}}]}}}}]}},
                   {{"name":"waker","count":1,"phases":[{{"sleep":{{"ns":4000000}}}},
                    {{"lock":{{"lock":"m","phases":[{{"signal":{{"condvar":"c","all":{all}}}}}]}}}}]}}"#
            ),
        )
    };
    for cores in [1, 3, 8] {
        for outcome in run(cores, &work(true)) {
            assert!(!outcome.deadlocked);
            assert!((16 * MS..18 * MS).contains(&outcome.wall_ps), "{}", outcome.wall_ps);
            let user: u64 = outcome.books.iter().map(|book| book[Account::User as usize]).sum();
            assert_eq!(user, 12 * MS);
        }
        for outcome in run(cores, &work(false)) {
            assert!(outcome.deadlocked && outcome.wall_ps == 100 * MS);
            let user: u64 = outcome.books.iter().map(|book| book[Account::User as usize]).sum();
            assert_eq!(user, 2 * MS);
        }
    }
}

#[test]
fn a_broadcast_reaches_those_who_wait_with_another_mutex() {
    let waiter = |lock: &str| {
        format!(
            r#"{{"name":"with {lock}","count":2,"phases":[{{"lock":{{"lock":"{lock}","phases":[
                {{"await":{{"condvar":"c","lock":"{lock}"}}}}]}}}}]}}"#
        )
    };
    let waker =
        r#"{"name":"waker","count":1,"phases":[{"sleep":{"ns":4000000}},{"signal":{"condvar":"c","all":true}}]}"#;
    let mut work = program(r#""duration_ns":9000000,"#, &format!("{},{waker}", waiter("m")));
    work.locks.insert("n".to_owned(), Lock::Mutex);
    let work = work.to_json().replace(r#""groups": ["#, &format!(r#""groups": [{},"#, waiter("n")));
    for outcome in run(2, &Workload::from_json(&work, "w.json").unwrap()) {
        assert!(!outcome.deadlocked && (4 * MS..5 * MS).contains(&outcome.wall_ps), "{}", outcome.wall_ps);
    }
}

#[test]
fn a_signal_reaches_who_has_given_up_the_mutex_but_sleeps_not_yet() {
    // Each signals while it holds the mutex that the other gave up by waiting: none can be lost.
    let work = program(
        "",
        r#"{"name":"first","count":1,"phases":[{"sleep":{"ns":1000000}},{"lock":{"lock":"m","phases":[
                {"loop":{"times":3000,"phases":[{"signal":{"condvar":"c"}},{"run":{"ns":{"uniform":{"min":0,"max":9000}}}},
                    {"await":{"condvar":"d","lock":"m"}}]}}]}}]},
           {"name":"second","count":1,"phases":[{"lock":{"lock":"m","phases":[
                {"loop":{"times":3000,"phases":[{"await":{"condvar":"c","lock":"m"}},
                    {"run":{"ns":{"uniform":{"min":0,"max":9000}}}},{"signal":{"condvar":"d"}}]}}]}}]}"#,
    );
    for cores in [1, 2] {
        for outcome in run(cores, &work) {
            assert!(outcome.counters.wakeups >= 3000, "{}", outcome.counters.wakeups);
        }
    }
}

#[test]
fn an_endless_program_is_ended_to_the_picosecond() {
    let work = program(
        r#""duration_ns":12345678,"#,
        r#"{"name":"a","count":3,"phases":[{"loop":{"times":"forever","phases":[{"run":{"ns":1000}},{"sleep":{"ns":70000}}]}}]},
           {"name":"b","count":1,"phases":[{"run":{"ns":5}}]}"#,
    );
    for outcome in run(2, &work) {
        assert_eq!(outcome.wall_ps, 12_345_678_000);
        assert!(!outcome.deadlocked && outcome.counters.switches > 300);
    }
    let mut half = experiment(Environment::Native, 2);
    half.scale = 0.5;
    let outcome =
        run_checked(&Case { experiment: half, profile: r720(), workload: work, company: Vec::new() }).unwrap();
    assert_eq!(outcome.wall_ps, 6_172_839_000);
}

#[test]
fn a_thread_runs_where_it_was_told_to() {
    let work = program(
        "",
        r#"{"name":"a","count":1,"cpus":"2","phases":[
            {"affinity":{"cpus":"0"}},{"run":{"ns":1000000}},{"affinity":{"cpus":"0"}},{"run":{"ns":2000000}},
            {"affinity":{"cpus":"1"}},{"run":{"ns":5000000}},{"affinity":{}},{"run":{"ns":7000000}}]}"#,
    );
    for outcome in run(3, &work) {
        let user: Vec<u64> = outcome.books.iter().map(|book| book[Account::User as usize]).collect();
        assert_eq!(user, [3 * MS, 12 * MS, 0]);
        assert_eq!(outcome.counters.migrations, 2);
    }
}
