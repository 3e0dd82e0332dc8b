//! `muster compare` as a user meets it: arms that run programs for real, exports, failures, bad input.

use assert_cmd::Command;
use muster_model::results::{Comparison, ResultFile};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use std::fs;
use std::path::Path;

/// A comparison that does not wait for a quiet machine: these tests are about what is done, not how fast.
fn compare(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.args(["compare", "--max-wait", "0", "--max-foreign", "100"]).args(args);
    command
}

fn comparison(path: &Path) -> Comparison {
    let text = fs::read_to_string(path).expect("the export is there");
    match serde_json::from_str(&text).expect("the export is a result file") {
        ResultFile::Compare(comparison) => comparison,
        other => panic!("not a comparison: {other:?}"),
    }
}

#[test]
fn a_custom_arm_is_compared_and_exported() {
    let directory = tempfile::tempdir().expect("a directory");
    let [json, csv, markdown] = ["a.json", "a.csv", "a.md"].map(|name| directory.path().join(name));
    compare(&["--arm", "one=taskset -c 0", "--runs", "2", "--warmup", "1"])
        .args(["--metric", "speed ([0-9.]+)", "--metric-name", "widgets"])
        .arg("--export-json")
        .arg(&json)
        .arg("--export-csv")
        .arg(&csv)
        .arg("--export-markdown")
        .arg(&markdown)
        // The speed is the number of CPUs that the arm allows.
        .args(["--", "sh", "-c", "echo progress speed 7; echo speed $(nproc)"])
        .assert()
        .success()
        .stdout(contains("plain").and(contains("widgets/s")).and(contains("Student")));
    let comparison = comparison(&json);
    let arms: Vec<_> = comparison.arms.iter().map(|arm| (arm.name.as_str(), arm.runs.len())).collect();
    assert_eq!(arms, [("plain", 2), ("one", 2)]);
    assert_eq!(comparison.arms[1].median_speed, 1.0);
    assert!(comparison.arms.iter().flat_map(|arm| &arm.runs).all(|run| run.cpu_ns > 0 && run.wall_ns > 0));
    assert_eq!(fs::read_to_string(csv).expect("CSV").lines().count(), 3);
    assert!(fs::read_to_string(markdown).expect("Markdown").contains("| `one` | 2 |"));
}

#[test]
fn a_tree_is_charged_with_children_that_nobody_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("a.json");
    // The middle shell ends at once, so that the worker is an orphan; the outer one waits for its output to close.
    let worker = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let program = format!("echo $(sh -c '({worker}; echo done) &')");
    compare(&["--arm", "same=env", "--runs", "1", "--warmup", "0", "--export-json"])
        .arg(&json)
        .args(["--", "sh", "-c", &program])
        .assert()
        .success();
    let cpu_ns = comparison(&json).arms[0].runs[0].cpu_ns;
    // The loop alone is 100,000 iterations of several instructions of a shell: far more than starting three shells.
    assert!(cpu_ns > 10_000_000, "{cpu_ns} ns");
}

#[test]
fn a_server_and_its_load_run_under_the_arm_and_the_server_is_stopped() {
    let directory = tempfile::tempdir().expect("a directory");
    let (json, pids) = (directory.path().join("a.json"), directory.path().join("pids"));
    let server = format!("echo $$ >> {}; nproc; echo ready; sleep 600 & wait", pids.display());
    compare(&["--arm", "one=taskset -c 0", "--runs", "1", "--warmup", "0", "--ready", "^ready$"])
        .args(["--server", &server, "--load", "echo speed $(nproc)", "--metric", "speed ([0-9]+)"])
        .arg("--export-json")
        .arg(&json)
        .assert()
        .success();
    assert_eq!(comparison(&json).arms[1].median_speed, 1.0);
    let pids = fs::read_to_string(pids).expect("both servers ran");
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        assert!(!Path::new("/proc").join(pid).exists(), "server {pid} is still there");
    }
}

#[test]
fn a_server_that_does_not_get_ready_is_named_with_its_words() {
    compare(&["--arm", "same=env", "--warmup", "0", "--ready", "never"])
        .args(["--server", "echo cannot bind >&2; exit 3", "--load", "true"])
        .assert()
        .code(1)
        .stderr(contains("arm `plain`").and(contains("exit code 3 before it was ready")).and(contains("cannot bind")));
}

#[test]
fn a_failing_run_ends_the_comparison_and_keeps_what_was_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let (json, count) = (directory.path().join("a.json"), directory.path().join("count"));
    // The fifth run fails: in the third round of two arms.
    let program = format!(
        "echo x >> {0}; [ $(wc -l < {0}) -lt 5 ] || {{ echo broken pipe dream >&2; exit 9; }}",
        count.display()
    );
    compare(&["--arm", "same=env", "--runs", "4", "--warmup", "0", "--export-json"])
        .arg(&json)
        .args(["--", "sh", "-c", &program])
        .assert()
        .code(9)
        .stderr(contains("run 3 of 4").and(contains("exit code 9")).and(contains("broken pipe dream")));
    assert_eq!(comparison(&json).arms[0].runs.len(), 2);
}

#[test]
fn json_goes_to_standard_output() {
    let output = compare(&["--arm", "same=env", "--runs", "1", "--warmup", "0", "--json", "--", "true"])
        .output()
        .expect("it runs");
    let parsed: ResultFile = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert!(matches!(parsed, ResultFile::Compare(comparison) if comparison.metric == "runs"));
}

#[test]
fn bad_input_exits_2_and_says_what_is_allowed() {
    for (args, words) in [
        (&["--runs", "0", "--", "true"][..], "1 to 10000"),
        (&["--arm", "fast", "--", "true"], "found `fast`; allowed: plain, auto"),
        (&["--metric", "(", "--", "true"], "--metric"),
        (&["--metric", "x", "--", "true"], "0 capture groups"),
        (&["--arm", "same=env", "--metric", "never=(.)", "--", "true"], "does not occur"),
        (&["--max-wait=-1", "--", "true"], "--max-wait"),
        (&["--server", "a", "--load", "b"], "--ready"),
        (&["--ready", "[", "--server", "a", "--load", "b"], "--ready"),
        (&["--export-json", "/proc/no/file", "--", "true"], "can be written"),
        (&[], "<CMD>"),
    ] {
        compare(args).assert().code(2).stderr(contains(words));
    }
}

#[test]
fn a_program_that_is_not_there_exits_127() {
    compare(&["--", "/nonexistent/program"]).assert().code(127).stderr(contains("/nonexistent/program"));
}
