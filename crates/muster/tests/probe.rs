//! `muster probe` as a user meets it: every expected price, refusals before a minute is spent, and what it keeps.

use assert_cmd::Command;
use muster_model::Profile;
use muster_model::profile::{PriceKind, names};
use muster_model::results::ResultFile;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use std::path::Path;

fn probe(cache: &Path) -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.arg("probe").env("XDG_CACHE_HOME", cache);
    command
}

/// The names a machine with these CPUs must show, whatever else it may lack.
fn expected(profile: &Profile) -> Vec<String> {
    let mut expected: Vec<String> =
        [names::SYSCALL, "thread.create", "process.fork", "process.fork-exec", "process.spawn", "memory.map-unmap"]
            .map(String::from)
            .into();
    expected.extend(names::WAKE_CHANNELS.map(names::wake_same_cpu));
    expected.extend(names::TLB_OPERATIONS.map(|operation| names::tlb_threads(operation, 0)));
    expected.extend([names::first_touch("4k"), names::chase("4k", 16), names::chase("4k", 1024)]);
    let paths = names::CLOCK_PATHS.into_iter().filter(|path| cfg!(target_arch = "x86_64") || *path != "rdtsc");
    expected.extend(paths.map(|path| names::clock(path, "alone")));
    let confined = profile.notes.iter().any(|note| note.starts_with("confined"));
    if profile.topology.len() > 1 && !confined {
        let cpus: Vec<usize> = profile.topology.all().iter().collect();
        for &other in &cpus[1..] {
            let distance = profile.topology.distance(cpus[0], other).expect("both CPUs exist");
            for channel in names::WAKE_CHANNELS {
                expected.extend(["awake", "halted", "parked"].map(|setting| names::wake(channel, setting, distance)));
                expected.push(names::waker(channel, "halted", distance));
            }
            expected.push(names::cache_transfer(distance));
        }
        expected.extend(names::TLB_OPERATIONS.map(|operation| names::tlb_threads(operation, cpus.len() - 1)));
        expected.extend(names::TLB_OPERATIONS.map(|operation| names::tlb_processes(operation, cpus.len() - 1)));
        expected.push(names::clock("monotonic", "all-cpus"));
    }
    expected
}

#[test]
fn a_quick_probe_finds_every_price_and_keeps_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("machine.toml");
    let output = probe(dir.path()).args(["--quick", "--json", "--out"]).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ResultFile::Probe(profile) = serde_json::from_slice(&output.stdout).unwrap() else {
        panic!("not the result of a probe");
    };
    for name in expected(&profile) {
        assert!(profile.prices.contains_key(&name), "{name} is missing; notes: {:#?}", profile.notes);
    }
    for (name, price) in &profile.prices {
        assert!(names::is_known(name), "{name}");
        assert!(price.ns.is_finite() && price.ns > 0.0 && price.kind == PriceKind::Measured, "{name}: {price:?}");
    }
    let written = Profile::from_toml(&std::fs::read_to_string(&out).unwrap(), "machine.toml").unwrap();
    assert_eq!(written, *profile);
    let kept = dir.path().join("muster/profile.toml");
    if profile.notes.iter().any(|note| note.starts_with("confined")) {
        assert!(!kept.exists(), "what a confined process saw is not the machine");
    } else {
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), std::fs::read_to_string(&out).unwrap());
    }
}

#[test]
fn on_one_cpu_the_rest_is_said_to_be_not_measurable() {
    if std::process::Command::new("taskset").arg("--version").output().is_err() {
        eprintln!("SKIPPED: on_one_cpu_the_rest_is_said_to_be_not_measurable: no taskset");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let allowed = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let first: String = allowed.chars().take_while(char::is_ascii_digit).collect();
    let mut command = Command::new("taskset");
    command.args(["-c", &first]).arg(assert_cmd::cargo::cargo_bin!("muster")).args(["probe", "--quick", "--json"]);
    let output = command.env("XDG_CACHE_HOME", dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ResultFile::Probe(profile) = serde_json::from_slice(&output.stdout).unwrap() else {
        panic!("not the result of a probe");
    };
    let wakes: Vec<&String> = profile.prices.keys().filter(|name| name.starts_with("wake.")).collect();
    assert_eq!(wakes, ["wake.futex.same-cpu", "wake.pipe.same-cpu", "wake.signal.same-cpu"]);
    assert!(profile.notes.iter().any(|note| note.contains("not measurable")), "{:#?}", profile.notes);
    assert!(!dir.path().join("muster").exists(), "what a confined process saw is not the machine");
}

#[test]
fn an_out_file_that_cannot_be_written_is_refused_before_measuring() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("no/such/directory/machine.toml");
    let refused = |file: &Path| probe(dir.path()).arg("--out").arg(file).assert().code(2).stdout("");
    refused(&nowhere).stderr(contains("machine.toml").and(contains("allowed:")));
    refused(dir.path()).stderr(contains("allowed:"));
    assert!(!dir.path().join("muster").exists());
}

#[test]
fn unknown_options_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    probe(dir.path()).arg("--slow").assert().code(2).stderr(contains("--slow"));
}
