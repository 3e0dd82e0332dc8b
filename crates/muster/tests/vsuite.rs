//! `muster vsuite` as a user meets it: programs that run for real on tiny inputs, results, bad input.

use assert_cmd::Command;
use muster_model::results::{ResultFile, SuiteCheck, SuiteResults};
use predicates::str::{contains, starts_with};
use std::fs;
use std::path::Path;

/// Our own programs, which need nothing installed.
const OWN: &str = "histogram,wordcount,linear-regression,compress,xml-validation,dedup,streamcluster";

fn vsuite(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.args(["vsuite", "--scale", "0.001", "--runs", "1", "--dir"]).arg(dir).args(args);
    command
}

fn results(text: &str) -> SuiteResults {
    match serde_json::from_str(text).expect("a result file") {
        ResultFile::Vsuite(results) => results,
        other => panic!("no suite: {other:?}"),
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).expect("the directory is there").next().is_none()
}

#[test]
fn our_programs_run_are_verified_and_leave_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = tempfile::NamedTempFile::new().expect("a file");
    let asserted = vsuite(dir.path(), &["--cores", "1", "--programs", OWN, "--json", "--out"]).arg(out.path()).assert();
    let printed = results(&String::from_utf8_lossy(&asserted.success().get_output().stdout));
    assert_eq!(printed.rows.iter().map(|row| row.program.as_str()).collect::<Vec<_>>().join(","), OWN);
    for row in &printed.rows {
        assert_eq!((row.cores, row.speedup, row.check), (1, Some(1.0), SuiteCheck::Verified), "{row:?}");
        let [run] = &row.runs[..] else { panic!("one run: {row:?}") };
        assert!(run.value > 0.0 && run.wall_ns > 0 && run.peak_memory_bytes > 0, "{row:?}");
        assert_eq!(run.checksum.as_ref().map(String::len), Some(16));
    }
    assert_eq!(results(&fs::read_to_string(out.path()).expect("the results are written")), printed);
    assert!(is_empty(dir.path()));
}

#[test]
fn equal_seeds_give_equal_results_and_kept_inputs_are_used_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let checksum = |seed: &str| {
        let args = ["--cores", "1", "--programs", "linear-regression", "--json", "--keep", "--seed", seed];
        let output = vsuite(dir.path(), &args).output().expect("muster runs").stdout;
        results(&String::from_utf8_lossy(&output)).rows[0].runs[0].checksum.clone().expect("a checksum")
    };
    let first = checksum("1");
    let kept = || fs::read_dir(dir.path().join("muster-vsuite")).expect("the inputs are kept").count();
    assert_eq!((checksum("1"), kept()), (first.clone(), 1));
    assert_ne!(checksum("2"), first);
    assert_eq!(kept(), 2);
}

#[test]
fn external_programs_run_or_are_skipped_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    // As on a machine where neither is installed.
    vsuite(dir.path(), &["--cores", "1", "--programs", "make,dbench"])
        .env("PATH", dir.path())
        .assert()
        .code(1)
        .stderr(contains("SKIPPED: make: `make` is not installed (package make)"))
        .stderr(contains("SKIPPED: dbench: `dbench` is not installed (package dbench)"));
    let output =
        vsuite(dir.path(), &["--cores", "1", "--programs", "make,dbench", "--json"]).output().expect("it runs");
    let found = results(&String::from_utf8_lossy(&output.stdout));
    for skip in &found.skipped {
        eprintln!("SKIPPED: external_programs_run_or_are_skipped_by_name: {}: {}", skip.program, skip.why);
    }
    assert_eq!(found.rows.len() + found.skipped.len(), 2);
    for row in &found.rows {
        let expected = if row.program == "make" { SuiteCheck::Verified } else { SuiteCheck::NoResult };
        assert!(row.check == expected && row.median > 0.0, "{row:?}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn bad_input_is_one_clear_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = file.path().to_str().expect("a path");
    for (args, message) in [
        (&["--programs", "gmake"][..], "muster: --programs: found `gmake`; allowed: make, dbench, histogram"),
        (&["--cores", "0"], "muster: --cores: found 0; allowed: 1 to "),
        (&["--cores", "1,1000000"], "muster: --cores: found 1000000; allowed: 1 to "),
        (&["--scale", "0"], "muster: --scale: found 0; allowed: a number above 0"),
        (&["--scale", "-0.5"], "muster: --scale: found -0.5"),
        (&["--runs", "0"], "muster: --runs: found 0; allowed: 1 to 10000"),
        (&["--dir", file], "muster: --dir: found "),
        (&["--dir", "/proc/nowhere"], "muster: --dir: found /proc/nowhere, which cannot be written"),
        (&["--out", "/nowhere/file"], "muster: --out: cannot write to /nowhere/file"),
    ] {
        let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
        let asserted = command.arg("vsuite").args(args).assert().code(2).stderr(starts_with(message));
        let lines = String::from_utf8_lossy(&asserted.get_output().stderr).lines().count();
        assert_eq!(lines, 1, "{args:?}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn a_suite_that_is_told_to_end_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("muster"))
        .args(["vsuite", "--programs", "streamcluster", "--scale", "0.5", "--cores", "1", "--dir"])
        .arg(dir.path())
        .spawn()
        .expect("muster starts");
    let begun = std::time::Instant::now();
    // The input is made, or a run has begun.
    while is_empty(dir.path()) && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + 15));
    assert!(is_empty(dir.path()));
}
