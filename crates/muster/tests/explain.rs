//! `muster explain` as a user meets it: real programs, real refusals, the shape of its JSON.

use assert_cmd::Command;
use muster_model::results::{Explanation, ResultFile};
use muster_model::{Account, Amount};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::{contains, is_empty};

fn explain() -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.arg("explain");
    command
}

/// Two processes that hand a byte back and forth: blocks, wakes, ends by itself.
const PING_PONG: &str = "import os
a, b = os.pipe(), os.pipe()
if os.fork() == 0:
    for _ in range(20000): os.read(a[0], 1); os.write(b[1], b'x')
    os._exit(0)
for _ in range(20000): os.write(a[1], b'x'); os.read(b[0], 1)
os.wait()";

fn parse(json: &[u8]) -> Explanation {
    match serde_json::from_slice(json) {
        Ok(ResultFile::Explain(explanation)) => explanation,
        other => panic!("not an explanation: {other:?}"),
    }
}

fn is_missing(program: &str) -> bool {
    let found = std::process::Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: explain: {program} is not installed");
    }
    !found
}

#[test]
fn json_holds_every_account_remedy_and_a_sentence() {
    if is_missing("python3") {
        return;
    }
    let output = explain().args(["--json", "--", "python3", "-c", PING_PONG]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let explanation = parse(&output.stdout);
    let accounts: Vec<Account> = explanation.ledger.accounts.keys().copied().collect();
    assert_eq!(accounts, Account::ALL);
    let mut remedies: Vec<&str> = explanation.remedies.iter().map(|remedy| remedy.remedy.as_str()).collect();
    remedies.sort_unstable();
    assert_eq!(remedies, ["awake", "clock", "colocate", "consolidate", "memory", "poll"]);
    assert!(!explanation.findings.is_empty() && !explanation.channels_used.is_empty());
    for account in [Account::VmmScheduler, Account::VmmLock, Account::PageWalk, Account::CacheTransfer] {
        let amount = &explanation.ledger.accounts[&account];
        assert!(matches!(amount, Amount::NotObservable { reason } if !reason.is_empty()), "{account:?}: {amount:?}");
    }
    let signal = |name: &str| explanation.signals.iter().find(|signal| signal.name == name).map(|signal| signal.value);
    assert!(signal("CPU rate of the program").unwrap() > 0.0);
    assert!(signal("switch-ins").is_some_and(|rate| rate > 0.0), "{:?}", explanation.signals);
}

#[test]
fn a_recording_is_checked_projected_and_can_be_simulated() {
    if is_missing("python3") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/kvm-guest-2vcpu.toml");
    let workload = file("w.json");
    let output = explain()
        .args(["--json", "--project", "4", "--profile", machine, "--save-workload"])
        .arg(&workload)
        .args(["--", "python3", "-c", PING_PONG])
        .output()
        .unwrap();
    let projection = parse(&output.stdout).projection.expect("the profile can be simulated");
    assert!(projection.home.cpu_rate.seen > 0.0 && projection.home.cpu_rate.simulated > 0.0, "{projection:?}");
    assert!(projection.threads >= projection.copies && projection.vcpus == 4, "{projection:?}");
    assert_eq!(projection.found.is_some(), projection.home.error <= projection.home.allowed, "{projection:?}");
    std::fs::copy(machine, file("m.toml")).unwrap();
    std::fs::write(
        file("e.toml"),
        "machine = 'm.toml'\nworkload = 'w.json'\nenvironment = 'virtual'\ncores = 2\nscale = 0.02\n",
    )
    .unwrap();
    let mut sim = Command::cargo_bin("muster").unwrap();
    sim.arg("sim").arg(file("e.toml")).args(["--vcpus", "8"]).assert().success().stdout(contains("on 8 cores"));
}

#[test]
fn nothing_is_projected_where_nothing_was_asked_for_or_done() {
    let output = explain().args(["--json", "--no-bpf", "--no-project", "--", "sleep", "0.3"]).output().unwrap();
    let explanation = parse(&output.stdout);
    assert!(explanation.projection.is_none());
    assert!(explanation.channels_missing.iter().all(|missing| !missing.starts_with("projection")));
    // Long enough that starting up, on a busy machine, is next to nothing.
    let output = explain().args(["--json", "--no-bpf", "--", "sleep", "2"]).output().unwrap();
    let explanation = parse(&output.stdout);
    assert!(explanation.projection.is_none());
    assert!(explanation.channels_missing.iter().any(|missing| missing.starts_with("projection to 16 vCPUs")));
}

#[test]
fn the_program_keeps_its_output_and_exit_code() {
    explain()
        .args(["--no-bpf", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])
        .assert()
        .code(7)
        .stdout("out\n")
        .stderr(contains("err").and(contains("Where the time went")).and(contains("--no-bpf")));
    explain()
        .args(["--json", "--no-bpf", "--", "sh", "-c", "echo out; kill -TERM $$"])
        .assert()
        .code(143)
        .stdout(contains("\"kind\": \"explain\"").and(contains("out\n").not()))
        .stderr(contains("out\n"));
}

#[test]
fn attaches_to_a_running_program_and_leaves_it_running() {
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("explained.json");
    let pid = sleeper.id().to_string();
    let mut command = explain();
    command.args(["--pid", &pid, "--duration", "0.3", "--out"]).arg(&file);
    command.assert().success().stderr(contains("Waking is not the problem"));
    assert!(sleeper.try_wait().unwrap().is_none(), "the program goes on");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(parse(&std::fs::read(file).unwrap()).command, format!("--pid {pid}"));
}

#[test]
fn a_duration_ends_the_watch_and_not_the_program() {
    explain().args(["--duration", "0.2", "--", "sh", "-c", "sleep 0.6; exit 3"]).assert().code(3);
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken.toml");
    std::fs::write(&broken, "name = 7\n").unwrap();
    let broken = broken.to_str().unwrap();
    let cases: [(&[&str], &str); 13] = [
        (&[], "CMD"),
        (&["--pid", "4000000000"], "--pid: no process"),
        (&["--pid", "x"], "invalid value"),
        (&["--pid", "1", "--", "true"], "cannot be used with"),
        (&["--duration", "0", "--", "true"], "0.1 to 31536000"),
        (&["--profile", "/no/such/file", "--", "true"], "--profile: cannot read /no/such/file"),
        (&["--profile", broken, "--", "true"], "broken.toml, line 1"),
        (&["--out", "/no/such/folder/x", "--", "true"], "--out: cannot write"),
        (&["--save-workload", "/no/such/folder/x", "--", "true"], "--save-workload: cannot write"),
        (&["--project", "0", "--", "true"], "1..=1024"),
        (&["--project", "1025", "--", "true"], "1..=1024"),
        (&["--project", "8", "--no-project", "--", "true"], "cannot be used with"),
        (&["--no-such-option"], "--no-such-option"),
    ];
    for (arguments, sentence) in cases {
        explain().args(arguments).assert().code(2).stdout(is_empty()).stderr(contains(sentence));
    }
}

#[test]
fn a_program_that_cannot_be_run_is_127_or_126() {
    explain().args(["--", "/no/such/program"]).assert().code(127).stderr(contains("/no/such/program"));
    explain().args(["--", "/"]).assert().code(126).stderr(contains("cannot run /"));
}
