//! `muster sim` and `muster study` on good and bad input.

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const EXPERIMENT: &str = "machine = 'm.toml'\nworkload = 'w.json'\nenvironment = 'virtual'\ncores = 2\n";
const WORKLOAD: &str = r#"{"name":"w","groups":[{"name":"g","count":"threads","phases":[{"run":{"ns":1000000}}]}]}"#;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn muster() -> Command {
    Command::new(env!("CARGO_BIN_EXE_muster"))
}

fn world(experiment: &str, workload: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/gleaner-r720.toml");
    fs::copy(machine, dir.path().join("m.toml")).unwrap();
    fs::write(dir.path().join("e.toml"), experiment).unwrap();
    fs::write(dir.path().join("w.json"), workload).unwrap();
    dir
}

#[test]
fn sim_prints_a_ledger_and_writes_a_timeline() {
    let dir = world(EXPERIMENT, WORKLOAD);
    let file = dir.path().join("e.toml");
    let trace = dir.path().join("trace.json");
    muster().arg("sim").arg(&file).assert().success().stdout(contains("user")).stdout(contains("simulated time"));
    let output = muster().arg("sim").arg(&file).arg("--json").arg("--timeline").arg(&trace).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["wall_s"].as_f64().unwrap() >= 0.001);
    let events: serde_json::Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(events.as_array().unwrap().len() > 2);
}

#[test]
fn a_measured_machine_is_simulated_and_scaled_out() {
    let dir = world(EXPERIMENT, WORKLOAD);
    let measured = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/kvm-guest-2vcpu.toml");
    fs::copy(measured, dir.path().join("m.toml")).unwrap();
    let file = dir.path().join("e.toml");
    muster().arg("sim").arg(&file).assert().success().stdout(contains("on 2 cores"));
    muster().arg("sim").arg(&file).args(["--vcpus", "64"]).assert().success().stdout(contains("on 64 cores"));
    for wrong in ["0", "1025"] {
        muster().arg("sim").arg(&file).args(["--vcpus", wrong]).assert().code(2).stderr(contains("1 to 1024"));
    }
    fs::write(&file, EXPERIMENT.replace("cores = 2", "cores = 3")).unwrap();
    muster().arg("sim").arg(&file).assert().code(2).stderr(contains("1 to 2").and(contains("--vcpus")));
    fs::write(&file, EXPERIMENT.replace("cores = 2", "cores = 3\nscale_out = true")).unwrap();
    muster().arg("sim").arg(&file).assert().success();
    let unpriced = "name = 'x'\n[topology]\ncores_per_llc = 2\n";
    fs::write(dir.path().join("m.toml"), unpriced).unwrap();
    muster().arg("sim").arg(&file).assert().code(2).stderr(contains("wake.futex").and(contains("muster probe")));
}

#[test]
fn several_vms_get_a_ledger_each() {
    let vms = "pcpus = 1\n[[vms]]\nworkload = 'w.json'\nvcpus = 1\nrepeat = true\n";
    let dir = world(&format!("{EXPERIMENT}{vms}"), WORKLOAD);
    let file = dir.path().join("e.toml");
    let pages = contains("on 1 core:").and(contains("VM 0: w.json")).and(contains("VM 1: w.json"));
    muster().arg("sim").arg(&file).assert().success().stdout(pages.and(contains("stolen")));
    let output = muster().arg("sim").arg(&file).arg("--json").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let vms = report["vms"].as_array().unwrap();
    assert_eq!((vms.len(), vms[0]["runs"].as_u64()), (2, Some(1)));
    assert!(vms[0]["steal_s"].as_f64().unwrap() > 0.0);
    fs::write(&file, format!("{EXPERIMENT}{}", vms_of("missing.json"))).unwrap();
    muster().arg("sim").arg(&file).assert().code(2).stderr(contains("missing.json"));
    fs::write(&file, format!("{EXPERIMENT}scheduler = 'pinned'\n{}", vms_of("w.json"))).unwrap();
    muster().arg("sim").arg(&file).assert().code(2).stderr(contains("pinned with 2 VMs"));
}

fn vms_of(workload: &str) -> String {
    format!("[[vms]]\nworkload = '{workload}'\nvcpus = 1\n")
}

#[test]
fn bad_input_exits_2_and_says_what_is_allowed() {
    let cases = [
        (EXPERIMENT.replace("cores = 2", "cores = 0"), WORKLOAD.to_owned(), "cores: found 0"),
        (EXPERIMENT.replace("cores = 2", "cores = 99"), WORKLOAD.to_owned(), "1 to 16"),
        (EXPERIMENT.replace("virtual", "cloud"), WORKLOAD.to_owned(), "unknown variant `cloud`"),
        (EXPERIMENT.replace("w.json", "missing.json"), WORKLOAD.to_owned(), "missing.json"),
        (EXPERIMENT.to_owned(), WORKLOAD.replace("\"threads\"", "0"), "0 threads"),
        (EXPERIMENT.to_owned(), WORKLOAD.replace("run", "walk"), "unknown variant `walk`"),
        (EXPERIMENT.to_owned(), through("{\"bytes\":64}"), "found 0 sizes of caches; allowed: two levels or more"),
        (EXPERIMENT.to_owned(), through("{\"bytes\":0}"), "groups.g.working_set.bytes: found 0"),
        (EXPERIMENT.to_owned(), WORKLOAD.replace("{\"ns\":1000000}", "{\"ns\":-1}"), "nanoseconds"),
        (EXPERIMENT.to_owned(), "{".to_owned(), "w.json, line 1"),
    ];
    for (experiment, workload, wanted) in cases {
        let dir = world(&experiment, &workload);
        muster().arg("sim").arg(dir.path().join("e.toml")).assert().code(2).stderr(contains(wanted));
    }
}

/// The workload with a working set.
fn through(working_set: &str) -> String {
    WORKLOAD.replace("\"phases\"", &format!("\"working_set\":{working_set},\"phases\""))
}

#[test]
fn cache_misses_are_printed_where_a_working_set_is_stated() {
    let dir = world(
        "machine = 'machines/ixen-opteron48.toml'\nworkload = 'w.json'\nenvironment = 'native'\ncores = 2\n",
        &through("{\"bytes\":64000}"),
    );
    let sim = |json: &[&str]| {
        muster().current_dir(ROOT).arg("sim").arg(dir.path().join("e.toml")).args(json).assert().success()
    };
    sim(&[])
        .stdout(contains("L2 misses             user 2000, kernel").and(contains("last-level misses     user 2000")));
    let report: serde_json::Value = serde_json::from_slice(&sim(&["--json"]).get_output().stdout).unwrap();
    assert_eq!(report["cache_misses"]["l2"]["user"]["all"], 2000);
    assert_eq!(report["cache_misses"]["llc"]["vmm"]["all"], 0);
}

#[test]
fn study_refuses_unknown_names() {
    muster().args(["study", "cerberus"]).assert().code(2).stderr(contains("gleaner"));
    muster().args(["study", "gleaner", "--only", "Figure 9"]).assert().code(2).stderr(contains("Figure 4"));
    muster().args(["study", "gleaner", "--scale", "0"]).assert().code(2).stderr(contains("above 0"));
    for cores in ["0", "31", "1000000"] {
        let wanted = format!("--cores: found {cores}; allowed: 32, as many as the study has, to 1024");
        muster().args(["study", "ixen", "--cores", cores]).assert().code(2).stderr(contains(wanted));
    }
}

#[test]
fn study_prints_one_object_a_number() {
    let args = ["study", "gleaner", "--only", "Table 1", "--scale", "0.02", "--json"];
    let output = muster().args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 6);
    for line in text.lines() {
        let number: serde_json::Value = serde_json::from_str(line).unwrap();
        let fields = ["study", "figure", "row", "column", "unit", "paper", "kind", "simulated", "error"];
        assert_eq!(number.as_object().unwrap().len(), fields.len());
        assert!(fields.iter().all(|field| number.get(field).is_some()), "{line}");
    }
}

/// Killed part way, and torn: the rest is simulated, and the numbers are those of a study in one go.
#[test]
fn a_killed_study_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (out, runs) = (dir.path().join("r.json"), dir.path().join("r.json.runs"));
    let study = |seed: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_muster"));
        command.args(["study", "ixen", "--only", "Table 2", "--scale", "0.02", "--jobs", "1", "--seed", seed]);
        command.args(["--json", "--out"]).arg(&out).env("XDG_CACHE_HOME", dir.path());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command
    };
    let lines = || std::fs::read_to_string(&runs).unwrap_or_default().lines().count();
    let mut killed = study("1").spawn().unwrap();
    while lines() < 5 {
        assert!(killed.try_wait().unwrap().is_none(), "it was over before five lines were there");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let whole = lines() - 1;
    let text = std::fs::read(&runs).unwrap();
    std::fs::write(&runs, &text[..text.len() - 7]).unwrap();
    let resumed = study("1").output().unwrap();
    let told = String::from_utf8(resumed.stderr).unwrap();
    assert!(told.contains(&format!("{} runs are taken up from ", whole - 1)), "{told}");
    assert!(resumed.status.success() && out.exists() && !runs.exists());
    let fresh = study("1").output().unwrap();
    assert!(!String::from_utf8(fresh.stderr).unwrap().contains("taken up"));
    assert_eq!(resumed.stdout, fresh.stdout);
    std::fs::write(&runs, &text).unwrap();
    let other = study("2").output().unwrap();
    let told = String::from_utf8(other.stderr).unwrap();
    assert!(
        other.status.success() && told.contains("is not taken up: its runs are of another seed (1; this is 2)"),
        "{told}"
    );
}
