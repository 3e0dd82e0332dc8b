//! Whole programs: masks that threads inherit, threads of other masks, programs that keep forking, and daemons.

mod common;

use common::*;
use muster_undo::{Change, CpuMask, Directory, EntryId, Journal, Process, Thread, system};
use std::fs;
use std::process::Command;

fn journal(directory: &std::path::Path, run: &str) -> Journal {
    Journal::create(Directory::at(directory).unwrap(), run).unwrap()
}

fn family(journal: &Journal, marker: Option<&str>, root: Option<Process>, before: &CpuMask) -> EntryId {
    let marker = marker.map(str::to_owned);
    journal.record(&Change::Family { marker, root, cgroups: vec![], before: before.clone() }).unwrap()
}

#[test]
fn a_thread_of_its_own_mask_gets_that_one_back() {
    let Some((wide, narrow)) = wide_and_narrow("a_thread_of_its_own_mask_gets_that_one_back") else { return };
    let pinned: CpuMask = wide.iter().skip(1).take(1).collect();
    let directory = private_directory();
    let program = sleeper(6, 1, "own");
    let pid = program.child.id();
    let threads = tasks_of_tree(pid);
    let last = *threads.iter().find(|&&tid| tid != pid && tasks(pid).contains(&tid)).unwrap();
    system::set_affinity(last, &pinned).unwrap();

    let journal = journal(directory.path(), "own");
    let id = family(&journal, Some("own"), None, &wide);
    let thread = Thread::of(pid, last).unwrap();
    journal.record(&Change::Own { family: id, thread, before: pinned.clone() }).unwrap();
    journal.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
    threads.iter().for_each(|&tid| system::set_affinity(tid, &narrow).unwrap());

    let report = journal.restore();
    assert!(report.is_complete(), "{report:?}");
    for tid in threads {
        let expected = if tid == last { &pinned } else { &wide };
        assert_eq!(system::affinity(tid).unwrap(), *expected, "thread {tid}");
    }
    assert!(!journal.path().exists());
}

#[test]
fn unrecorded_threads_follow_the_first_thread_of_their_process() {
    let Some((wide, narrow)) = wide_and_narrow("unrecorded_threads_follow_the_first_thread") else { return };
    let pinned: CpuMask = wide.iter().skip(1).take(1).collect();
    let directory = private_directory();
    let program = sleeper(4, 1, "first");
    let threads = tasks_of_tree(program.child.id());
    let journal = journal(directory.path(), "first");
    let root = program.process();
    let id = family(&journal, None, Some(root), &wide);
    let first = Thread { pid: root.pid, tid: root.pid, start: root.start };
    journal.record(&Change::Own { family: id, thread: first, before: pinned.clone() }).unwrap();
    journal.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
    threads.iter().for_each(|&tid| system::set_affinity(tid, &narrow).unwrap());
    assert!(journal.restore().is_complete());
    for tid in threads {
        assert_eq!(system::affinity(tid).unwrap(), pinned, "thread {tid}");
    }
}

#[test]
fn a_mask_the_program_set_itself_stays() {
    let Some((wide, narrow)) = wide_and_narrow("a_mask_the_program_set_itself_stays") else { return };
    let later: CpuMask = wide.iter().skip(1).take(1).collect();
    let directory = private_directory();
    let program = sleeper(2, 0, "itself");
    let pid = program.child.id();
    let journal = journal(directory.path(), "itself");
    let id = family(&journal, Some("itself"), None, &wide);
    journal.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
    system::set_affinity(pid, &later).unwrap();
    assert!(journal.restore().restored.is_empty());
    assert_eq!(system::affinity(pid).unwrap(), later);
}

/// Shells that fork short-lived children without pause: each inherits whatever mask its parent has at that moment.
#[test]
fn a_program_that_keeps_forking_is_restored_whole() {
    let Some((wide, narrow)) = wide_and_narrow("a_program_that_keeps_forking_is_restored_whole") else { return };
    let directory = private_directory();
    for round in 0..5 {
        let run = format!("forking-{round}");
        let script = "echo ready; (while read -t 0.001 x; do :; done; while :; do /bin/true; done) & while :; do (/bin/true & /bin/true); done";
        let mut program = Talker::start(Command::new("bash").args(["-c", script]).env("MUSTER_RUN", &run));
        assert_eq!(program.line(), "ready");
        let journal = journal(directory.path(), &run);
        let id = family(&journal, Some(&run), Some(program.process()), &wide);
        journal.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
        system::set_affinity(program.child.id(), &narrow).unwrap();
        wait_for("a child with the narrow mask", || {
            let children = marked(&run).into_iter().filter(|&pid| pid != program.child.id());
            children.into_iter().any(|pid| system::affinity(pid).is_ok_and(|mask| mask == narrow))
        });
        let report = journal.restore();
        assert!(report.is_complete(), "{report:?}");
        for _ in 0..20 {
            for pid in marked(&run) {
                assert!(
                    system::affinity(pid).is_ok_and(|mask| mask == wide) || Process::of(pid).is_err(),
                    "process {pid}"
                );
            }
        }
        program.kill();
        for pid in marked(&run) {
            let _may_have_ended = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap(),
                rustix::process::Signal::KILL,
            );
        }
    }
}

/// The processes that bear `MUSTER_RUN=run`.
fn marked(run: &str) -> Vec<u32> {
    let wanted = format!("MUSTER_RUN={run}");
    let bears = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|all| all.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes()))
    };
    numbers("/proc").into_iter().filter(bears).collect()
}

#[test]
fn a_daemon_without_marker_and_parent_is_known_by_its_record() {
    let Some((wide, narrow)) = wide_and_narrow("a_daemon_without_marker_and_parent") else { return };
    let directory = private_directory();
    let mut starter = Talker::start(Command::new(HELPER).arg("daemon").env("MUSTER_RUN", "daemon"));
    let pid: u32 = starter.line().parse().unwrap();
    starter.child.wait().unwrap();
    wait_for("the daemon's threads", || tasks(pid).len() == 4);
    let narrow_all = || tasks(pid).into_iter().for_each(|tid| system::set_affinity(tid, &narrow).unwrap());
    let masks = || tasks(pid).into_iter().map(|tid| system::affinity(tid).unwrap()).collect::<Vec<_>>();

    let unknown = journal(directory.path(), "unknown");
    let id = family(&unknown, Some("daemon"), None, &wide);
    unknown.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
    narrow_all();
    unknown.restore();
    assert_eq!(masks(), vec![narrow.clone(); 4], "nothing tells that it belongs to the family");

    let known = journal(directory.path(), "known");
    let id = family(&known, Some("daemon"), None, &wide);
    known.record(&Change::Member { family: id, process: Process::of(pid).unwrap() }).unwrap();
    known.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
    known.restore();
    assert_eq!(masks(), vec![wide; 4]);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

#[test]
fn strangers_with_the_same_mask_are_not_touched() {
    let Some((wide, narrow)) = wide_and_narrow("strangers_with_the_same_mask_are_not_touched") else { return };
    let directory = private_directory();
    let ours = sleeper(2, 0, "ours");
    let theirs = sleeper(2, 0, "ours-not");
    let journal = journal(directory.path(), "strangers");
    let id = family(&journal, Some("ours"), None, &wide);
    journal.record(&Change::Applied { family: id, mask: narrow.clone() }).unwrap();
    for program in [&ours, &theirs] {
        tasks(program.child.id()).into_iter().for_each(|tid| system::set_affinity(tid, &narrow).unwrap());
    }
    journal.restore();
    assert!(tasks(ours.child.id()).into_iter().all(|tid| system::affinity(tid).unwrap() == wide));
    assert!(tasks(theirs.child.id()).into_iter().all(|tid| system::affinity(tid).unwrap() == narrow));
}
