//! The journal file: what is in it, what happens to it, and whom it is safe from.

mod common;

use common::*;
use muster_undo::{
    Change, Directory, Error, Journal, Process, Scheduling, State, Thread, list, preview, recover, system,
};
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

fn directory(path: &Path) -> Directory {
    Directory::at(path).unwrap()
}

fn journal(path: &Path, run: &str) -> Journal {
    Journal::create(directory(path), run).unwrap()
}

fn file_with(path: &Path, content: &str) -> PathBuf {
    fs::write(path, content).unwrap();
    path.to_owned()
}

fn content(path: &Path) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_file_goes_back_to_what_it_was_first() {
    let temp = private_directory();
    let file = file_with(&temp.path().join("file"), "000000\n");
    let journal = journal(&temp.path().join("journals"), "run");
    let first = journal.write_file(&file, "200000").unwrap();
    assert_eq!(journal.write_file(&file, "100000").unwrap(), first);
    let length = fs::metadata(journal.path()).unwrap().len();
    for value in ["200000", "100000", "200000"] {
        journal.write_file(&file, value).unwrap();
    }
    assert_eq!(fs::metadata(journal.path()).unwrap().len(), length, "a known value costs no line");
    let report = journal.restore();
    assert_eq!(content(&file), "000000");
    assert_eq!(report.restored.len(), 1);
    assert!(!journal.path().exists());
    assert!(matches!(journal.write_file(&file, "1"), Err(Error::Refused { .. })), "a restored journal is closed");
}

#[test]
fn somebody_elses_later_change_is_left_alone() {
    let temp = private_directory();
    let file = file_with(&temp.path().join("file"), "0");
    let journal = journal(&temp.path().join("journals"), "run");
    journal.write_file(&file, "200000").unwrap();
    fs::write(&file, "50000").unwrap();
    let report = journal.restore();
    assert_eq!(content(&file), "50000");
    assert!(report.left_alone[0].why.as_ref().unwrap().contains("50000"), "{report:?}");
    assert!(!journal.path().exists());
}

#[test]
fn one_entry_can_be_undone_while_the_run_goes_on() {
    let temp = private_directory();
    let (a, b) = (file_with(&temp.path().join("a"), "01"), file_with(&temp.path().join("b"), "02"));
    let journal = journal(&temp.path().join("journals"), "run");
    let id = journal.write_file(&a, "10").unwrap();
    journal.write_file(&b, "20").unwrap();
    assert_eq!(journal.undo(id).unwrap().restored.len(), 1);
    assert_eq!((content(&a), content(&b)), ("01".into(), "20".into()));
    fs::write(&a, "10").unwrap();
    orphan(journal.path());
    recover(&directory(&temp.path().join("journals"))).unwrap();
    assert_eq!((content(&a), content(&b)), ("10".into(), "02".into()), "what was undone is settled");
}

#[test]
fn a_torn_last_line_was_never_acted_upon() {
    let temp = private_directory();
    let file = file_with(&temp.path().join("file"), "0");
    let journals = temp.path().join("journals");
    let journal = journal(&journals, "run");
    journal.write_file(&file, "1").unwrap();
    append(journal.path(), r#"{"id":7,"kind":"file","path":"/proc/sys/vm/"#);
    orphan(journal.path());
    let reports = recover(&directory(&journals)).unwrap();
    assert!(reports[0].is_complete(), "{reports:?}");
    assert_eq!(content(&file), "0");
    assert!(!journal.path().exists());
}

#[test]
fn an_unreadable_line_is_told_and_does_not_keep_the_rest_from_being_restored() {
    let temp = private_directory();
    let (a, b) = (file_with(&temp.path().join("a"), "a"), file_with(&temp.path().join("b"), "b"));
    let journals = temp.path().join("journals");
    let journal = journal(&journals, "run");
    journal.write_file(&a, "A").unwrap();
    append(journal.path(), "{\"id\":9,\"kind\":\"something of the future\"}\n");
    journal.write_file(&b, "B").unwrap();
    append(journal.path(), "{\"id\":1");
    orphan(journal.path());
    let reports = recover(&directory(&journals)).unwrap();
    assert_eq!((content(&a), content(&b)), ("a".into(), "b".into()));
    assert!(reports[0].failed[0].what.contains("line 3"), "{reports:?}");
    assert!(journal.path().exists());
    let again = recover(&directory(&journals)).unwrap();
    assert!(again[0].restored.is_empty() && !again[0].failed.is_empty(), "{again:?}");
}

#[test]
fn what_fails_stays_and_is_tried_again() {
    let temp = private_directory();
    let (good, bad) = (file_with(&temp.path().join("good"), "0"), file_with(&temp.path().join("bad"), "0"));
    let journals = temp.path().join("journals");
    let journal = journal(&journals, "run");
    journal.write_file(&good, "1").unwrap();
    journal.write_file(&bad, "1").unwrap();
    // A symbolic link in its place is not followed.
    let aside = temp.path().join("aside");
    fs::rename(&bad, &aside).unwrap();
    symlink(&aside, &bad).unwrap();
    orphan(journal.path());
    let reports = recover(&directory(&journals)).unwrap();
    assert_eq!((reports[0].restored.len(), reports[0].failed.len()), (1, 1), "{reports:?}");
    assert_eq!((content(&good), content(&aside)), ("0".into(), "1".into()));
    fs::rename(&aside, &bad).unwrap();
    let reports = recover(&directory(&journals)).unwrap();
    assert_eq!((reports[0].restored.len(), reports[0].failed.len()), (1, 0), "{reports:?}");
    assert_eq!(content(&bad), "0");
    assert!(!journal.path().exists());
}

#[test]
fn reused_numbers_are_not_mistaken_for_the_journaled_ones() {
    let Some((wide, narrow)) = wide_and_narrow("reused_numbers_are_not_mistaken") else { return };
    let temp = private_directory();
    let program = sleeper(1, 0, "reused");
    let process = program.process();
    let earlier = Process { start: process.start - 1, ..process };
    let thread = Thread { pid: earlier.pid, tid: earlier.pid, start: earlier.start };
    let journal = journal(temp.path(), "run");
    journal.record(&Change::Helper { process: earlier }).unwrap();
    journal.record(&Change::Affinity { thread, before: wide.clone(), applied: narrow.clone() }).unwrap();
    let family = Change::Family { marker: None, root: Some(earlier), cgroups: vec![], before: wide };
    let family = journal.record(&family).unwrap();
    journal.record(&Change::Member { family, process: earlier }).unwrap();
    journal.record(&Change::Applied { family, mask: narrow.clone() }).unwrap();
    system::set_affinity(process.pid, &narrow).unwrap();
    let report = journal.restore();
    assert!(report.restored.is_empty() && report.is_complete(), "{report:?}");
    assert!(process.is_alive());
    assert_eq!(system::affinity(process.pid).unwrap(), narrow);
}

#[test]
fn a_helper_is_killed() {
    let temp = private_directory();
    let mut helper = Command::new("sleep").arg("3600").spawn().unwrap();
    let journal = journal(temp.path(), "run");
    journal.record(&Change::Helper { process: Process::of(helper.id()).unwrap() }).unwrap();
    assert_eq!(journal.restore().restored.len(), 1);
    assert!(!helper.wait().unwrap().success());
}

#[test]
fn scheduling_is_put_back() {
    let temp = private_directory();
    let program = sleeper(1, 0, "scheduling");
    let pid = program.child.id();
    let before = system::scheduling(pid).unwrap();
    let applied = Scheduling { policy: libc::SCHED_BATCH, ..before };
    let journal = journal(temp.path(), "run");
    let thread = Thread::of(pid, pid).unwrap();
    journal.record(&Change::Scheduling { thread, before, applied }).unwrap();
    system::set_scheduling(pid, applied).unwrap();
    assert_eq!(journal.restore().restored.len(), 1);
    assert_eq!(system::scheduling(pid).unwrap(), before);
}

#[test]
fn a_thing_that_another_run_holds_is_refused() {
    let temp = private_directory();
    let file = file_with(&temp.path().join("file"), "0");
    let journals = temp.path().join("journals");
    let first = journal(&journals, "first");
    let second = journal(&journals, "second");
    first.write_file(&file, "1").unwrap();
    let error = second.write_file(&file, "2").unwrap_err();
    assert!(matches!(&error, Error::Claimed { by, .. } if by.contains("running muster")), "{error}");
    assert_eq!(content(&file), "1");
    orphan(first.path());
    let error = second.write_file(&file, "2").unwrap_err();
    assert!(matches!(&error, Error::Claimed { by, .. } if by.contains("muster undo")), "{error}");
    recover(&directory(&journals)).unwrap();
    second.write_file(&file, "2").unwrap();
    second.restore();
    assert_eq!(content(&file), "0");
}

#[test]
fn a_running_owner_is_left_in_peace_and_an_earlier_boot_forgotten() {
    let temp = private_directory();
    let file = file_with(&temp.path().join("file"), "0");
    let journals = temp.path().join("journals");
    let journal = journal(&journals, "run");
    journal.write_file(&file, "1").unwrap();
    assert!(recover(&directory(&journals)).unwrap().is_empty());
    let listed = list(&directory(&journals)).unwrap();
    assert_eq!((listed[0].state, listed[0].changes.len()), (State::Running, 1));

    let text = fs::read_to_string(journal.path()).unwrap();
    let boot = content(Path::new("/proc/sys/kernel/random/boot_id"));
    fs::write(journal.path(), text.replace(&boot, "an-earlier-one")).unwrap();
    orphan(journal.path());
    assert_eq!(list(&directory(&journals)).unwrap()[0].state, State::EarlierBoot);
    assert!(recover(&directory(&journals)).unwrap().is_empty());
    assert!(!journal.path().exists());
    assert_eq!(content(&file), "1");
}

#[test]
fn a_preview_changes_nothing() {
    let temp = private_directory();
    let file = file_with(&temp.path().join("file"), "0");
    let journals = temp.path().join("journals");
    let journal = journal(&journals, "run");
    journal.write_file(&file, "1").unwrap();
    orphan(journal.path());
    assert_eq!(preview(&directory(&journals), None).unwrap()[0].restored.len(), 1);
    assert_eq!(content(&file), "1");
    assert_eq!(recover(&directory(&journals)).unwrap()[0].restored.len(), 1);
    assert_eq!(content(&file), "0");
}

#[test]
fn a_journal_whose_maker_died_before_the_first_line_is_swept_away() {
    let temp = private_directory();
    let journals = directory(temp.path());
    fs::write(temp.path().join("empty.journal"), "").unwrap();
    fs::write(temp.path().join("torn.journal"), r#"{"muster_jou"#).unwrap();
    assert!(list(&journals).unwrap().is_empty());
    assert!(recover(&journals).unwrap().is_empty());
    assert!(fs::read_dir(temp.path()).unwrap().next().is_none());
}

#[test]
fn unsafe_directories_and_files_are_refused() {
    let temp = private_directory();
    let refused = |path: &Path| matches!(Directory::at(path), Err(Error::Unsafe { .. }));
    let open = temp.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o750)).unwrap();
    assert!(refused(&open));
    let safe = temp.path().join("safe");
    let journals = directory(&safe);
    symlink(&safe, temp.path().join("link")).unwrap();
    assert!(refused(&temp.path().join("link")));
    assert!(refused(&file_with(&temp.path().join("file"), "")));

    let elsewhere = file_with(&temp.path().join("elsewhere"), "{}\n");
    symlink(&elsewhere, safe.join("link.journal")).unwrap();
    assert!(!recover(&journals).unwrap()[0].is_complete());
    fs::remove_file(safe.join("link.journal")).unwrap();

    let foreign = safe.join("foreign.journal");
    fs::write(&foreign, "{}\n").unwrap();
    match std::os::unix::fs::chown(&foreign, Some(65534), None) {
        Ok(()) => {
            let report = &recover(&journals).unwrap()[0];
            assert!(report.failed[0].why.as_ref().unwrap().contains("65534"), "{report:?}");
        }
        Err(error) => eprintln!("SKIPPED: a journal of another user: cannot make one: {error}"),
    }
}

#[test]
fn malformed_run_ids_and_paths_are_refused() {
    let temp = private_directory();
    for run in ["", "../x", "a b", "a/b", &"x".repeat(65)] {
        assert!(matches!(Journal::create(directory(temp.path()), run), Err(Error::Refused { .. })), "{run}");
    }
    let journal = journal(temp.path(), "run");
    assert!(Journal::create(directory(temp.path()), "run").is_err(), "a run id is used once");
    let relative = Change::File { path: "etc/passwd".into(), before: String::new(), after: String::new() };
    assert!(journal.record(&relative).is_err());
    let nobody = Change::Family { marker: None, root: None, cgroups: vec![], before: mask("0") };
    assert!(journal.record(&nobody).is_err());
}
