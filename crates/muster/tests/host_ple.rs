//! `muster host ple` as a user meets it: windows out of recorded waits, bad input, what is missing.

use assert_cmd::Command;
use predicates::str::{contains, starts_with};
use std::fs;
use std::path::{Path, PathBuf};

fn ple() -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.args(["host", "ple"]);
    command
}

/// Recorded on a 2-vCPU KVM guest, Linux 6.18, 2.3 GHz: `hackbench -g 4 -l 3000` for 10 s, and a few shells for 8 s.
const HACKBENCH: [u64; 22] =
    [0, 0, 0, 0, 0, 0, 0, 0, 36, 9326, 3689, 3909, 3292, 1077, 1609, 1428, 7237, 638, 148, 30, 9, 3];
const SHELLS: [u64; 22] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 35, 75, 87, 23, 2, 15, 186, 21, 2, 2, 1, 1];

fn record(dir: &Path, name: &str, spinlocks: &[u64]) -> PathBuf {
    let waits = serde_json::json!({
        "watched_ns": 10_000_000_000u64, "tsc_hz": 2_299_998_007u64, "pause_cycles": 53.19,
        "spinlocks": spinlocks, "rwlocks": [], "mutexes": [], "lost": 0,
    });
    let path = dir.join(name);
    let text = serde_json::json!({ "side": "guest", "waits": waits, "window": null, "certainty": null }).to_string();
    fs::write(&path, text).expect("the record is written");
    path
}

#[test]
fn recorded_waits_tell_a_window_where_there_are_enough() {
    let dir = tempfile::tempdir().expect("a directory");
    let [many, few] = [("many", &HACKBENCH), ("few", &SHELLS)].map(|(name, waits)| record(dir.path(), name, waits));
    ple()
        .arg("--from")
        .arg(&many)
        .assert()
        .success()
        .stdout(contains("window   262,144 cycles: 0.13 % of 32,431 waits"));
    let told = ple().arg("--from").arg(&few).assert().success().get_output().stdout.clone();
    let told = String::from_utf8(told).expect("text");
    assert!(told.contains("window   not told: 455 waits are too few") && !told.contains("ple_window="), "{told}");
    let both = ple().arg("--json").arg("--from").args([&many, &few]).assert().success().get_output().stdout.clone();
    let both: serde_json::Value = serde_json::from_slice(&both).expect("JSON");
    assert_eq!((both["window"].as_u64(), both["waits"]["spinlocks"][9].as_u64()), (Some(262_144), Some(9331)));
}

#[test]
fn bad_input_is_one_clear_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let none = dir.path().join("none");
    ple()
        .arg("--from")
        .arg(&none)
        .assert()
        .code(2)
        .stderr(starts_with("muster: --from: "))
        .stderr(contains("No such file"));
    let odd = record(dir.path(), "odd", &[0; 41]);
    ple().arg("--from").arg(&odd).assert().code(2).stderr(contains("found 41 counts; allowed: at most 40"));
    let text = dir.path().join("text");
    fs::write(&text, "no JSON").expect("a file is written");
    ple()
        .arg("--from")
        .arg(&text)
        .assert()
        .code(2)
        .stderr(contains("allowed: what `muster host ple --side guest --json`"));
    ple().args(["--seconds", "0"]).assert().code(2).stderr(contains("0 is not in 1..=86400"));
    ple().args(["--side", "moon"]).assert().code(2);
}

#[test]
fn what_is_no_host_says_so() {
    if ["kvm_intel", "kvm_amd"].iter().any(|module| Path::new("/sys/module").join(module).exists()) {
        return eprintln!("SKIPPED: what_is_no_host_says_so: this is a KVM host");
    }
    let expected = "muster: this is no KVM host: neither kvm_intel nor kvm_amd is loaded\n";
    ple().args(["--side", "host", "--seconds", "1"]).assert().code(1).stderr(expected);
}
