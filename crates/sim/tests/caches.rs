//! Caches by working set in whole worlds: who misses what, where lines come from, and that nothing is charged twice.

mod common;

use common::{r720, run_2_6_31 as run, workload};
use muster_model::study::{Environment, Experiment, Remedy};
use muster_model::{Account, Workload};
use muster_sim::working_sets::CacheMisses;
use muster_sim::{Outcome, Simulation};

fn misses(outcome: &Outcome) -> &CacheMisses {
    outcome.cache_misses.as_ref().unwrap()
}

/// Threads that go through `bytes` each, `shared_bytes` of them together, for 20 ms.
fn going_through(bytes: u64, shared_bytes: u64, written_percent: u64) -> Workload {
    workload(&format!(
        r#"{{"name": "w", "groups": [{{"name": "all", "count": "threads",
        "working_set": {{"bytes": {bytes}, "shared_bytes": {shared_bytes}, "written_percent": {written_percent}}},
        "phases": [{{"loop": {{"times": 200, "phases": [{{"run": {{"ns": 100000}}}}]}}}}]}}]}}"#
    ))
}

fn user_seconds(outcome: &Outcome) -> f64 {
    outcome.books.iter().map(|book| book[Account::User as usize]).sum::<u64>() as f64 / 1e12
}

#[test]
fn a_set_that_fits_costs_its_fetching_and_a_larger_one_all_the_time() {
    let [small, llc, memory] =
        [256 << 10, 3 << 20, 1 << 28].map(|bytes| run(&going_through(bytes, 0, 0), Environment::Native, 1, &[]));
    // 4096 lines from memory, and what five ticks displace.
    assert!((4096.0..4200.0).contains(&misses(&small).l2.all[0]), "{:?}", misses(&small));
    assert!(user_seconds(&small) < 0.0206);
    // Five of six lines are not in the private cache, and come from the last-level cache.
    let found = misses(&llc);
    assert!((0.8..0.84).contains(&(found.l2.all[0] / 1e6)), "{found:?}");
    assert!((49e3..50e3).contains(&found.llc.all[0]), "each line once: {found:?}");
    let longer = user_seconds(&llc) - 0.020;
    assert!(
        (longer / (found.l2.all[0] * 23.3e-9 + found.llc.all[0] * (113.0 - 23.3) * 1e-9) - 1.0).abs() < 0.01,
        "{longer}"
    );
    assert!(user_seconds(&memory) > 0.020 * (1.0 + 0.9 * 113.0 / 20.0));
}

#[test]
fn what_states_no_working_set_is_not_followed() {
    let plain = workload(
        r#"{"name": "w", "groups": [{"name": "all", "count": "threads", "phases": [{"run": {"ns": 1000000}}]}]}"#,
    );
    assert_eq!(run(&plain, Environment::Hvm, 4, &[]).cache_misses, None);
}

#[test]
fn threads_that_share_a_last_level_cache_displace_each_other() {
    let work = going_through(2 << 20, 0, 0);
    let per_thread =
        [1, 6].map(|cores| misses(&run(&work, Environment::Native, cores, &[])).llc.all[0] / f64::from(cores));
    assert!(per_thread[1] > 3.0 * per_thread[0], "{per_thread:?}");
    let together = going_through(2 << 20, 2 << 20, 0);
    let shared = misses(&run(&together, Environment::Native, 6, &[])).llc.all[0] / 6.0;
    assert!(shared < per_thread[0], "{shared} {per_thread:?}");
}

#[test]
fn what_is_written_together_moves_between_domains() {
    let of = |cores, written| run(&going_through(128 << 10, 128 << 10, written), Environment::Native, cores, &[]);
    let (read, near, far) = (of(12, 0), of(6, 20), of(12, 20));
    let coherence = |outcome: &Outcome| misses(outcome).llc.coherence[0];
    assert_eq!(coherence(&read), 0.0);
    assert_eq!(coherence(&near), 0.0, "it stays in one last-level cache");
    assert!(misses(&near).l2.coherence[0] > 1e5, "but moves between private ones");
    assert!(coherence(&far) > 1e5);
    assert!(far.moved_for_users_ps > near.moved_for_users_ps && read.moved_for_users_ps < near.moved_for_users_ps / 10);
}

/// One thread that goes through 128 KiB on two CPUs of one domain, or of two, in turn.
fn moving(working_set: &str, far: u32) -> Workload {
    workload(&format!(
        r#"{{"name": "w", "groups": [{{"name": "one", "count": 1, {working_set} "phases": [{{"loop": {{"times": 100, "phases": [
        {{"affinity": {{"cpus": "0"}}}}, {{"run": {{"ns": 100000}}}},
        {{"affinity": {{"cpus": "{far}"}}}}, {{"run": {{"ns": 100000}}}}]}}}}]}}]}}"#
    ))
}

#[test]
fn a_thread_that_moves_pays_by_where_its_lines_are_and_not_twice() {
    let set = r#""working_set": {"bytes": 131072, "written_percent": 100},"#;
    let [plain_near, plain_far] = [1, 7].map(|far| run(&moving("", far), Environment::Native, 8, &[]));
    let [near, far] = [1, 7].map(|far| run(&moving(set, far), Environment::Native, 8, &[]));
    let moved = |outcome: &Outcome| outcome.books.iter().map(|book| book[Account::CacheTransfer as usize]).sum::<u64>();
    assert_eq!(near.counters.migrations, plain_near.counters.migrations);
    // Without a set each move costs its price; with one, 2048 lines that the other CPU has written.
    let moves = plain_far.counters.migrations as f64;
    assert!((moved(&plain_far) as f64 / moves / 9e6 - 1.0).abs() < 0.3, "{}", moved(&plain_far));
    // (What an interrupt in the middle of fetching leaves over is booked as the program's.)
    let fetched = far.moved_for_users_ps as f64 / moves;
    assert!((fetched / (2048.0 * 226e3) - 1.0).abs() < 0.01, "{fetched}");
    assert!(moved(&near) < moved(&far) / 3 && moved(&near) > moved(&plain_near));
    assert_eq!(far.counters.shootdowns, 0);
}

#[test]
fn pages_that_are_new_are_gone_through_once() {
    let work = workload(
        r#"{"name": "w", "groups": [{"name": "one", "count": 1, "working_set": {"bytes": 64}, "phases": [
        {"loop": {"times": 100, "phases": [{"touch-memory": {"pages": 16}}, {"run": {"ns": 10000}}]}}]}]}"#,
    );
    let native = run(&work, Environment::Native, 1, &[]);
    let lines = 100.0 * 16.0 * 64.0;
    assert!((misses(&native).l2.all[0] / lines - 1.0).abs() < 0.001, "{:?}", misses(&native));
    assert!((user_seconds(&native) - (0.001 + lines * 12.8e-9)).abs() < 2e-5, "{}", user_seconds(&native));
    assert!(misses(&native).l2.conflict[1] > 0.0, "they displace the kernel's lines");
}

/// Threads that meet at a barrier.
fn meeting() -> Workload {
    workload(
        r#"{"name": "w", "barriers": {"b": {"kind": "futex"}}, "groups": [{"name": "all", "count": "threads",
        "working_set": {"bytes": 262144}, "phases": [
        {"loop": {"times": 200, "phases": [{"run": {"ns": {"uniform": {"min": 80000, "max": 120000}}}}, {"barrier": {"barrier": "b"}}]}}]}]}"#,
    )
}

#[test]
fn misses_are_told_apart_by_who_misses() {
    let work = meeting();
    let native = run(&work, Environment::Native, 32, &[]);
    let plain = run(&work, Environment::Hvm, 32, &[Remedy::Vtime]);
    let cm = run(&work, Environment::Hvm, 32, &[Remedy::Vtime, Remedy::Cm]);
    let all = |outcome: &Outcome| misses(outcome).l2.all;
    assert!(all(&native)[0] > 0.0 && all(&native)[1] > 0.0 && all(&native)[2..] == [0.0; 2], "{:?}", all(&native));
    assert!(all(&plain)[2] > 0.0 && all(&plain)[3] > all(&plain)[2], "{:?}", all(&plain));
    assert!(all(&cm)[3] < all(&plain)[3] / 2.0, "{:?} {:?}", all(&cm), all(&plain));
}

#[test]
fn an_unmap_on_pv_drops_the_vmms_translations_as_well() {
    let work = workload(
        r#"{"name": "w", "groups": [{"name": "one", "count": 1, "phases": [
        {"loop": {"times": 500, "phases": [{"map": {"pages": 2}}, {"unmap": {"pages": 2}}, {"run": {"ns": 10000}}]}}]}]}"#,
    );
    let [pv, hvm] =
        [Environment::Pv, Environment::Hvm].map(|environment| run(&work, environment, 1, &[]).itlb_misses[2]);
    assert!(pv >= 500 && hvm < 100, "{pv} {hvm}");
}

#[test]
fn a_machine_that_does_not_say_what_caches_it_has_is_refused() {
    let experiment = Experiment::new(Environment::Native, 2);
    let new = Simulation::new(&experiment, &r720(), &going_through(4096, 0, 0), None);
    let error = new.unwrap_err().to_string();
    let wanted = "profile `gleaner-r720`: found 0 sizes of caches; allowed: two levels or more in `platform.caches`";
    assert!(error.starts_with(wanted), "{error}");
}
