//! What happens when muster is killed: with its guardian watching, and without.

mod common;

use common::*;
use muster_undo::{Change, Directory, Process, Thread, recover, system};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

#[test]
fn everything_is_restored_at_once_after_kill_9() {
    let Some((wide, narrow)) = wide_and_narrow("everything_is_restored_at_once_after_kill_9") else { return };
    let directory = private_directory();
    let file = directory.path().join("guest_halt_poll_ns");
    fs::write(&file, "000000\n").unwrap();
    let journals = directory.path().join("journals");
    let program = sleeper(50, 4, "kill-9");
    let mut helper = Command::new("sleep").arg("3600").spawn().unwrap();
    let mut owner = owner(&journals, "kill-9");
    let guard: u32 = owner.say("guard").parse().unwrap();
    record(&mut owner, &Change::File { path: file.clone(), before: "000000".into(), after: "200000".into() });
    record(&mut owner, &Change::Helper { process: Process::of(helper.id()).unwrap() });
    let family = record(
        &mut owner,
        &Change::Family {
            marker: Some("kill-9".into()),
            root: Some(program.process()),
            cgroups: vec![],
            before: wide.clone(),
        },
    );
    record(&mut owner, &Change::Applied { family, mask: narrow.clone() });
    fs::write(&file, "200000\n").unwrap();
    let threads = tasks_of_tree(program.child.id());
    assert_eq!(threads.len(), 250);
    threads.iter().for_each(|&tid| system::set_affinity(tid, &narrow).unwrap());

    owner.kill();
    wait_for("the journal to go", || !journals.join("kill-9.journal").exists());
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "000000");
    for tid in threads {
        assert_eq!(system::affinity(tid).unwrap(), wide, "thread {tid}");
    }
    assert!(!helper.wait().unwrap().success(), "the helper was killed");
    wait_for("the guardian to end", || Process::of(guard).is_err());
}

#[test]
fn a_guardian_is_deaf_and_ends_with_its_owner() {
    let directory = private_directory();
    let mut owner = owner(directory.path(), "orderly");
    let guard: u32 = owner.say("guard").parse().unwrap();
    let guardian = Process::of(guard).unwrap();
    for one in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        signal(guard, one);
    }
    assert!(owner.say("restore").contains(r#""failed":[]"#));
    assert!(guardian.is_alive(), "signals do not end it");
    owner.kill();
    wait_for("the guardian to end", || !guardian.is_alive());
    assert!(!directory.path().join("orderly.journal").exists());
}

#[test]
fn a_guardian_waits_for_a_journal_that_is_not_there_yet() {
    let directory = private_directory();
    let journals = || {
        fs::read_dir(directory.path())
            .unwrap()
            .flatten()
            .any(|it| it.path().extension().is_some_and(|it| it == "journal"))
    };
    let mut owner = Talker::start(Command::new(HELPER).arg("early").arg(directory.path()));
    let guardian = Process::of(owner.line().parse().unwrap()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(guardian.is_alive(), "it waits for its owner");
    assert_eq!(owner.say("go on"), "ready");
    assert!(journals());
    owner.kill();
    wait_for("the journal to go", || !journals());
    wait_for("the guardian to end", || !guardian.is_alive());
}

#[test]
fn a_guardian_removes_a_journal_whose_maker_died_before_it_had_written() {
    let directory = private_directory();
    let mut owner = Talker::start(Command::new(HELPER).arg("early").arg(directory.path()));
    let guardian = Process::of(owner.line().parse().unwrap()).unwrap();
    let run = format!("{}-{}", owner.child.id(), owner.process().start);
    let journal = directory.path().join(format!("{run}.journal"));
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&journal).unwrap();
    owner.kill();
    wait_for("the guardian to end", || !guardian.is_alive());
    assert!(!journal.exists());
}

#[test]
fn without_its_guardian_the_next_start_restores() {
    let Some((wide, narrow)) = wide_and_narrow("without_its_guardian_the_next_start_restores") else { return };
    let directory = private_directory();
    let program = sleeper(3, 0, "other");
    let pid = program.child.id();
    let mut owner = owner(directory.path(), "both-killed");
    let guard: u32 = owner.say("guard").parse().unwrap();
    for tid in tasks(pid) {
        let thread = Thread::of(pid, tid).unwrap();
        record(&mut owner, &Change::Affinity { thread, before: wide.clone(), applied: narrow.clone() });
        system::set_affinity(tid, &narrow).unwrap();
    }
    signal(guard, Signal::KILL);
    owner.kill();
    wait_for("the guardian's death", || Process::of(guard).is_err());
    let reports = recover(&Directory::at(directory.path()).unwrap()).unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].restored.len(), 3, "{reports:?}");
    for tid in tasks(pid) {
        assert_eq!(system::affinity(tid).unwrap(), wide);
    }
    assert!(recover(&Directory::at(directory.path()).unwrap()).unwrap().is_empty());
}

#[test]
fn an_owner_killed_at_any_moment_leaves_nothing() {
    let directory = private_directory();
    let journals = directory.path().join("journals");
    for moment in 0..20_u32 {
        let file = directory.path().join(format!("file-{moment}"));
        fs::write(&file, "before\n").unwrap();
        let mut child = Command::new(HELPER)
            .arg("own")
            .arg(&journals)
            .arg(format!("run-{moment}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let file_name = file.display();
        let line = format!("guard\nwrite {file_name} first-\nwrite {file_name} second\n");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), line.as_bytes()).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(u64::from(moment) * 250));
        child.kill().unwrap();
        child.wait().unwrap();
        // What the guardian leaves, because it was not born yet, the next start finds.
        if journals.exists() {
            recover(&Directory::at(&journals).unwrap()).unwrap();
            wait_for("no journal", || fs::read_dir(&journals).unwrap().next().is_none());
        }
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), "before");
    }
}
