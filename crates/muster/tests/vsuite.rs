//! `muster vsuite` as a user meets it: programs that run for real on tiny inputs, results, bad input.

use assert_cmd::Command;
use muster_model::results::{Accelerator, ResultFile, SuiteCheck, SuitePlace, SuiteResults, SuiteRow};
use predicates::str::{contains, starts_with};
use std::fs;
use std::path::Path;

/// Our own programs, which need nothing installed.
const OWN: &str = "histogram,wordcount,linear-regression,compress,xml-validation,dedup,streamcluster";

fn vsuite(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.args(["vsuite", "--scale", "0.001", "--runs", "1", "--dir"]).arg(dir).args(args);
    // A kernel for guests is fetched once a checkout, and nothing is left in anybody's home.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
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
        (&["--vm", "--cores", "1,1000000"], "muster: --cores: found 1000000; allowed: 1 to "),
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

/// Whether a guest can be booted at all; says why not, as a skipped test does.
fn has_vm(test: &str, stderr: &str) -> bool {
    let why = stderr.lines().find_map(|line| line.strip_prefix("muster: --vm: "));
    // Whatever else goes wrong is muster's fault.
    let is_missing =
        |why: &&str| why.contains("is not installed") || why.starts_with("no kernel") || why.starts_with("works on");
    if let Some(why) = why.filter(is_missing) {
        eprintln!("SKIPPED: {test}: {why}");
        return false;
    }
    true
}

#[test]
fn a_guest_runs_programs_with_the_same_results() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--vm", "--accel", "tcg", "--cores", "2", "--programs", "make,wordcount", "--json"];
    let output = vsuite(dir.path(), &args).output().expect("muster runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !has_vm("a_guest_runs_programs_with_the_same_results", &stderr) {
        return;
    }
    let found = results(&String::from_utf8_lossy(&output.stdout));
    let vm = found.vm.as_ref().expect("there was a VM");
    assert!(vm.accelerator == Accelerator::Tcg && !vm.is_timing && vm.kernel.contains('.'), "{vm:?}");
    for skip in &found.skipped {
        eprintln!("SKIPPED: a_guest_runs_programs_with_the_same_results: {}: {}", skip.program, skip.why);
    }
    let guests: Vec<&SuiteRow> = found.rows.iter().filter(|row| row.place == SuitePlace::Vm).collect();
    assert!(guests.iter().any(|row| row.program == "wordcount"), "{stderr}");
    for row in guests {
        let native = found.rows.iter().find(|other| other.program == row.program && other.place == SuitePlace::Native);
        assert_eq!(row.runs[0].checksum, native.expect("it ran natively too").runs[0].checksum);
        assert_eq!((row.check, row.speedup, row.degradation), (SuiteCheck::Verified, None, None), "{row:?}");
        assert!(row.cores == 2 && row.runs[0].user_ns > 0 && row.runs[0].peak_memory_bytes > 0, "{row:?}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn what_a_guest_lacks_is_one_clear_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let muster = |args: &[&str]| vsuite(dir.path(), args);
    muster(&["--accel", "tcg"]).assert().code(2).stderr(contains("--vm"));
    muster(&["--vm", "--accel", "xen"]).assert().code(2).stderr(contains("[possible values: kvm, tcg]"));
    // As on a machine without QEMU.
    muster(&["--vm", "--cores", "1"])
        .env("PATH", dir.path())
        .assert()
        .code(1)
        .stderr("muster: --vm: `qemu-system-x86_64` is not installed (package qemu-system-x86)\n");
    let mut guest = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    guest.arg("vsuite-guest").assert().code(2).stderr(contains("only as the first process of a virtual machine"));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    let output = muster(&["--vm", "--cores", "1", "--kernel", path]).output().expect("muster runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if has_vm("what_a_guest_lacks_is_one_clear_error", &stderr) {
        assert!(
            stderr.starts_with(&format!("muster: --kernel: found {path}, which is no kernel; allowed")),
            "{stderr}"
        );
        assert_eq!(output.status.code(), Some(2));
    }
    assert!(is_empty(dir.path()));
}

/// The QEMU that a process started, if it runs.
fn guest_of(parent: u32) -> Option<i32> {
    let pids = fs::read_dir("/proc").expect("there is /proc").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).find(|pid| {
        // proc_pid_stat(5): `pid (command) state parent ...`.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((command, rest)) = stat.rsplit_once(')') else { return false };
        let mut words = rest.split_whitespace();
        command.contains("(qemu") && words.next() != Some("Z") && words.next() == Some(&parent.to_string())
    })
}

#[test]
fn a_suite_that_is_told_to_end_takes_its_guest_along() {
    const NAME: &str = "a_suite_that_is_told_to_end_takes_its_guest_along";
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("muster"))
        .args(["vsuite", "--vm", "--accel", "tcg", "--programs", "streamcluster", "--cores", "1", "--dir"])
        .arg(dir.path())
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("muster starts");
    let begun = std::time::Instant::now();
    let guest = loop {
        if child.try_wait().expect("it can be asked").is_some() || begun.elapsed().as_secs() > 300 {
            break None;
        }
        if let Some(guest) = guest_of(child.id()) {
            break Some(guest);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let told = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !has_vm(NAME, &stderr) {
        return;
    }
    let guest = guest.unwrap_or_else(|| panic!("no guest was started: {stderr}"));
    told.expect("it ran");
    assert_eq!(output.status.code(), Some(128 + 2), "{stderr}");
    // It was told to end before muster ended; whoever inherits it may take its time to notice that it is dead.
    let is_gone = || {
        let stat = fs::read_to_string(format!("/proc/{guest}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z")
    };
    let told = std::time::Instant::now();
    while !is_gone() {
        assert!(told.elapsed().as_secs() < 60, "QEMU runs on");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(is_empty(dir.path()));
}
