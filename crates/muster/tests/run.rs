//! `muster run` as a user meets it: the program's own behaviour is kept, bad input is refused, decisions replay.

use assert_cmd::Command;
use muster_policy::consolidate::Controller;
use muster_remedy::trace;
use predicates::prelude::*;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use tempfile::TempDir;

/// Runs with journals and profile cache of its own.
fn muster(home: &TempDir) -> Command {
    let journals = home.path().join("journals");
    let mut command = Command::cargo_bin("muster").expect("the binary is built with the tests");
    command.env("MUSTER_JOURNALS", journals).env("XDG_CACHE_HOME", home.path());
    command
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn the_program_keeps_its_output_input_and_exit_code() {
    let home = home();
    muster(&home)
        .args(["run", "--", "sh", "-c", "cat; echo done; exit 7"])
        .write_stdin("given ")
        .assert()
        .code(7)
        .stdout("given done\n");
}

#[test]
fn a_signal_shows_as_in_a_shell() {
    let home = home();
    muster(&home).args(["run", "--", "sh", "-c", "kill -TERM $$"]).assert().code(128 + 15);
}

#[test]
fn what_cannot_be_run_is_said_in_one_sentence() {
    let home = home();
    for (arguments, code, sentence) in [
        (vec!["run", "--", "no-such-program"], 127, "no such program"),
        (vec!["run", "--", "/"], 126, "cannot run `/`"),
        (vec!["run", "--pid", "4194304"], 2, "there is no such process"),
        (vec!["run", "--pid", "0"], 2, "there is no such process"),
        (vec!["run"], 2, "required"),
        (vec!["run", "--remedy", "magic", "--", "true"], 2, "possible values"),
        (vec!["run", "--trace", "/no/such/folder/t", "--", "true"], 2, "/no/such/folder/t"),
    ] {
        let refusal = predicate::str::contains(sentence).and(predicate::str::contains("panicked").not());
        muster(&home).args(&arguments).assert().code(code).stderr(refusal);
    }
}

/// Where who wakes whom cannot be seen, co-location is refused in one sentence that says what is missing.
#[test]
fn colocation_is_refused_where_wake_ups_cannot_be_seen() {
    let home = home();
    let missing = if cfg!(feature = "bpf") {
        if !rustix::process::geteuid().is_root() || Command::new("setpriv").arg("--version").ok().is_err() {
            return eprintln!("SKIPPED: colocation_is_refused_where_wake_ups_cannot_be_seen: takes root and setpriv");
        }
        "it takes root"
    } else {
        "built without BPF"
    };
    let muster = env!("CARGO_BIN_EXE_muster");
    for arguments in
        [vec!["run", "--remedy", "colocate", "--", "true"], vec!["compare", "--arm", "colocate", "--", "true"]]
    {
        let mut command = match cfg!(feature = "bpf") {
            // Root without the capabilities that BPF takes.
            true => Command::new("setpriv"),
            false => Command::new(muster),
        };
        if cfg!(feature = "bpf") {
            command.args(["--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-bpf,-perfmon,-sys_admin", muster]);
        }
        command.env("MUSTER_JOURNALS", home.path().join("journals")).env("XDG_CACHE_HOME", home.path());
        let refusal = predicate::str::contains("colocate").and(predicate::str::contains(missing));
        let is_one_line = predicate::function(|text: &str| text.trim().lines().count() == 1);
        command.args(&arguments).assert().code(2).stderr(refusal.and(is_one_line));
    }
}

#[test]
fn one_muster_is_enough_for_a_program() {
    let home = home();
    muster(&home)
        .env("MUSTER_RUN", "1-2")
        .args(["run", "--", "true"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("inside"));
}

#[test]
fn every_remedy_that_needs_nothing_leaves_the_result_alone() {
    let home = home();
    for remedy in ["auto", "consolidate", "awake", "memory", "none"] {
        muster(&home).args(["run", "--remedy", remedy, "--", "echo", "same"]).assert().success().stdout("same\n");
    }
}

#[test]
fn the_summary_is_one_json_object() {
    let home = home();
    let output = muster(&home).args(["run", "--json", "--", "sleep", "0.2"]).output().expect("it runs");
    let summary: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON on standard error");
    for field in ["wall_ns", "own_cpu_ns", "switches", "switching_ns", "time_by_setting_ns", "notes"] {
        assert!(summary.get(field).is_some(), "{field} is missing in {summary}");
    }
}

/// Two threads of a program that hand over to each other all the time, and what was decided for them, decided again.
#[test]
fn a_recorded_run_replays_to_the_same_decisions() {
    let home = home();
    let file = home.path().join("trace");
    let ping_pong = "import os,threading,time\n\
                     a,b=os.pipe(),os.pipe()\n\
                     end=time.time()+1\n\
                     def echo():\n\
                     \twhile os.read(a[0],1)!=b'e': os.write(b[1],b'x')\n\
                     t=threading.Thread(target=echo);t.start()\n\
                     while time.time()<end: os.write(a[1],b'x');os.read(b[0],1)\n\
                     os.write(a[1],b'e');t.join()\n";
    if Command::new("python3").arg("--version").ok().is_err() {
        eprintln!("SKIPPED: a_recorded_run_replays_to_the_same_decisions: python3 is not installed");
        return;
    }
    muster(&home).args(["run", "--trace"]).arg(&file).args(["--", "python3", "-c", ping_pong]).assert().success();
    replays(&file);
}

#[test]
fn a_recorded_run_of_colocation_replays_too() {
    let home = home();
    let file = home.path().join("trace");
    let ping_pong = "import os,time\n\
                     a,b=os.pipe(),os.pipe()\n\
                     if os.fork()==0:\n\
                     \twhile os.read(a[0],1)!=b'e': os.write(b[1],b'x')\n\
                     \tos._exit(0)\n\
                     end=time.time()+1\n\
                     while time.time()<end: os.write(a[1],b'x');os.read(b[0],1)\n\
                     os.write(a[1],b'e');os.wait()\n";
    let mut command = muster(&home);
    let output =
        command.args(["run", "--remedy", "colocate", "--trace"]).arg(&file).args(["--", "python3", "-c", ping_pong]);
    let output = output.output().expect("muster starts");
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return eprintln!("SKIPPED: a_recorded_run_of_colocation_replays_too: {why}");
    }
    replays(&file);
}

/// Asserts that the decisions in a trace follow from its facts.
fn replays(file: &Path) {
    let recorded = BufReader::new(File::open(file).expect("a trace was written"));
    let (config, steps) = trace::read(recorded).expect("the trace can be read");
    assert!(steps.len() > 20, "{}: {} periods in a second", file.display(), steps.len());
    let mut controller = Controller::new(config);
    for (index, step) in steps.iter().enumerate() {
        assert_eq!(controller.step(&step.facts), step.decision, "{}: period {index}", file.display());
        assert_eq!(controller.verdict(), step.verdict.as_ref(), "{}: period {index}", file.display());
    }
}
