//! `muster import`, and rt-app's files in `muster sim`: on small files, and on rt-app's own examples where they are.

use assert_cmd::Command;
use muster_model::rtapp::{Options, import};
use muster_model::study::Experiment;
use muster_model::{Account, Profile};
use muster_sim::Simulation;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const EXPERIMENT: &str = "machine = 'm.toml'\nworkload = 'r.json'\nenvironment = 'virtual'\ncores = 2\n";
const RTAPP: &str = r#"{
    /* three turns of work and a period */
    "tasks" : { "t" : { "loop" : 3, "util_min" : 5, "run" : 1000, "timer" : { "ref" : "unique", "period" : 10000 } } }
}"#;

fn muster() -> Command {
    Command::new(env!("CARGO_BIN_EXE_muster"))
}

fn machine() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/gleaner-r720.toml")
}

fn folder(rtapp: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::copy(machine(), dir.path().join("m.toml")).unwrap();
    fs::write(dir.path().join("e.toml"), EXPERIMENT).unwrap();
    fs::write(dir.path().join("r.json"), rtapp).unwrap();
    dir
}

#[test]
fn a_file_for_rt_app_is_simulated_as_it_is_or_as_what_it_was_imported_to() {
    let dir = folder(RTAPP);
    let file = |name: &str| dir.path().join(name);
    let sim = |args: &[&str]| muster().current_dir(dir.path()).args(["sim", "e.toml"]).args(args).output().unwrap();
    let as_it_is = sim(&[]);
    assert!(String::from_utf8_lossy(&as_it_is.stdout).contains("simulated time        0.0300"), "{as_it_is:?}");
    assert!(String::from_utf8_lossy(&as_it_is.stderr).contains("tasks.t.util_min: not simulated"));
    muster().arg("import").arg(file("r.json")).arg("--out").arg(file("w.json")).assert().success().stdout("");
    fs::remove_file(file("r.json")).unwrap();
    let imported = sim(&["--workload", "w.json"]);
    assert_eq!(imported.stdout, as_it_is.stdout);
    assert!(imported.stderr.is_empty());
    let report: serde_json::Value = serde_json::from_slice(&sim(&["--workload", "w.json", "--json"]).stdout).unwrap();
    assert_eq!((&report["turns"]["t"], &report["deadlocked"]), (&3.into(), &false.into()));
}

#[test]
fn the_workload_is_printed_and_the_notes_beside_it() {
    let dir = folder(RTAPP);
    let file = dir.path().join("r.json");
    let output = muster().arg("import").arg(&file).output().unwrap();
    let workload: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(workload["groups"][0]["name"], "t");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("muster: tasks.t.util_min: not simulated"));
    let output = muster().arg("import").arg(&file).args(["--json", "--duration", "0.5"]).output().unwrap();
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["workload"]["duration_ns"], 500_000_000);
    assert_eq!(object["notes"].as_array().unwrap().len(), 1);
    assert!(output.stderr.is_empty());
}

#[test]
fn what_cannot_be_imported_exits_2_and_names_the_place() {
    let wrong = RTAPP.replace("1000,", "\"much\",");
    let dir = folder(&wrong);
    let place = contains("r.json, line 3: tasks.t.run: found \"much\"");
    muster().current_dir(dir.path()).args(["import", "r.json"]).assert().code(2).stderr(place.clone());
    muster().current_dir(dir.path()).args(["sim", "e.toml"]).assert().code(2).stderr(place);
    muster().args(["import", "no-such-file"]).assert().code(2).stderr(contains("no-such-file"));
    for (option, value) in [("--duration", "0"), ("--duration", "nan"), ("--memset-bytes-per-ns", "0")] {
        let dir = folder(RTAPP);
        let refused = contains("allowed").and(contains("found"));
        muster().current_dir(dir.path()).args(["import", "r.json", option, value]).assert().code(2).stderr(refused);
    }
}

#[test]
fn a_program_that_waits_for_itself_says_so() {
    let lost = r#"{ "tasks" : {
        "early" : { "loop" : 1, "resume" : "late" },
        "late" : { "loop" : 1, "run" : 5000, "suspend" } },
        "global" : { "duration" : 1 } }"#;
    let dir = folder(lost);
    let said = contains("every thread waited for another one").and(contains("simulated time        1.000000"));
    muster().current_dir(dir.path()).args(["sim", "e.toml"]).assert().success().stdout(said);
}

/// Where distributions put rt-app's examples; `MUSTER_RTAPP_EXAMPLES` names another folder.
const EXAMPLES: &str = "/usr/share/doc/rt-app";

/// Those of the package that are not files of rt-app 1.0 for themselves, and why they are refused.
const REFUSED: [(&str, &str); 7] = [
    ("examples/merge/global.json", "no `tasks`"),
    ("examples/merge/resources.json", "no `tasks`"),
    ("examples/merge/thread0.json", "before rt-app 1.0"),
    ("examples/merge/thread1.json", "before rt-app 1.0"),
    ("examples/merge/thread2.json", "before rt-app 1.0"),
    ("examples/merge/thread3.json", "before rt-app 1.0"),
    ("taskset.json", "before rt-app 1.0"),
];

#[test]
fn rt_apps_own_examples_are_imported_and_simulated() {
    let other = std::env::var_os("MUSTER_RTAPP_EXAMPLES");
    let folder = other.as_ref().map_or(Path::new(EXAMPLES), Path::new);
    let files = json_files(folder);
    if files.is_empty() {
        eprintln!("SKIPPED: rt_apps_own_examples_are_imported_and_simulated: no examples in {}", folder.display());
        return;
    }
    let profile = Profile::from_toml(&fs::read_to_string(machine()).unwrap(), "m.toml").unwrap();
    for file in &files {
        let name = file.strip_prefix(folder).unwrap().to_str().unwrap();
        let expected = REFUSED.iter().find(|(refused, _)| other.is_none() && *refused == name);
        match (simulate(file, &profile), expected) {
            (Ok(said), None) => println!("{name}: {said}"),
            (Err(error), Some((_, why))) => assert!(error.contains(why), "{name}: {error}"),
            (Err(error), None) if other.is_some() => println!("{name}: REFUSED: {error}"),
            (result, expected) => panic!("{name}: {result:?}, expected {expected:?}"),
        }
    }
    assert!(other.is_some() || files.len() >= REFUSED.len() + 10, "{files:?}");
}

/// All files with JSON below a folder, in order.
fn json_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let below = |path: PathBuf| if path.is_dir() { json_files(&path) } else { vec![path] };
    paths.into_iter().flat_map(below).filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect()
}

/// Imports a file and simulates its first two seconds natively and in a VM; what came out in short.
fn simulate(file: &Path, profile: &Profile) -> Result<String, String> {
    const LONGEST_NS: u64 = 2_000_000_000;
    let text = fs::read_to_string(file).unwrap();
    let name = file.display().to_string();
    // Some of them are to be ended by hand.
    let ended = Options { duration_s: Some(2.0), ..Options::default() };
    let as_it_is = import(&text, &name, &Options::default());
    let endless = as_it_is.as_ref().is_err_and(|error| error.found.contains("a task without end"));
    let mut imported = if endless { import(&text, &name, &ended) } else { as_it_is }.map_err(|e| e.to_string())?;
    imported.workload.duration_ns = imported.workload.duration_ns.map(|ns| ns.min(LONGEST_NS));
    let mut said = format!("{} groups", imported.workload.groups.len());
    for environment in ["native", "virtual"] {
        let text = format!("machine = ''\nworkload = ''\nenvironment = '{environment}'\ncores = 4\n");
        let experiment = Experiment::from_toml(&text, "e.toml").unwrap();
        let simulation = Simulation::new(&experiment, profile, &imported.workload, None).map_err(|e| e.to_string())?;
        let outcome = simulation.run().map_err(|error| error.to_string())?;
        let user: u64 = outcome.books.iter().map(|book| book[Account::User as usize]).sum();
        assert!(user > 0, "{name} computes nothing");
        if let Some(ns) = imported.workload.duration_ns {
            assert!(outcome.wall_ps <= ns * 1000, "{name} goes on behind its end");
        }
        let stuck = if outcome.deadlocked { ", all wait" } else { "" };
        said += &format!("; {environment} {:.3} s, {:.3} s user{stuck}", outcome.seconds(), user as f64 / 1e12);
    }
    if endless {
        said += "; ended by --duration";
    }
    Ok(said)
}
