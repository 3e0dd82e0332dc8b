//! `muster undo` as a user meets it.

use assert_cmd::Command;
use muster_undo::{Directory, Journal};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::{contains, diff};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A journal directory, and a file that a run has changed from `000` to `111`.
struct Scene {
    temp: TempDir,
    file: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let file = temp.path().join("file");
        fs::write(&file, "000\n").expect("a file");
        Self { temp, file }
    }

    fn journals(&self) -> PathBuf {
        self.temp.path().join("journals")
    }

    fn change(&self) -> Journal {
        let journal = Journal::create(Directory::at(&self.journals()).expect("a directory"), "run").expect("a journal");
        journal.write_file(&self.file, "111").expect("a change");
        journal
    }

    fn undo(&self) -> Command {
        let mut muster = Command::cargo_bin("muster").expect("cargo builds muster for this test");
        muster.arg("undo").env("MUSTER_JOURNALS", self.journals());
        muster
    }

    fn content(&self) -> String {
        fs::read_to_string(&self.file).expect("the file").trim().to_owned()
    }
}

/// Makes the journal of this living process look like that of a dead one.
fn orphan(journal: &Path) {
    let text = fs::read_to_string(journal).expect("a journal");
    let (header, rest) = text.split_once('\n').expect("a first line");
    let mut header: serde_json::Value = serde_json::from_str(header).expect("JSON");
    header["owner"]["start"] = 1.into();
    fs::write(journal, format!("{header}\n{rest}")).expect("a written journal");
}

#[test]
fn nothing_to_undo_is_said_and_leaves_no_trace() {
    let scene = Scene::new();
    scene.undo().assert().success().stdout(diff("nothing to undo\n"));
    scene.undo().arg("--list").assert().success().stdout(diff("no journals\n"));
    scene.undo().arg("--json").assert().success().stdout(diff("[]\n"));
    assert!(!scene.journals().exists());
}

#[test]
fn what_a_dead_muster_left_is_restored() {
    let scene = Scene::new();
    orphan(scene.change().path());
    scene.undo().arg("--list").assert().success().stdout(contains("run run").and(contains("file")));
    scene.undo().arg("--dry-run").assert().success().stdout(contains("would restore"));
    assert_eq!(scene.content(), "111");
    scene.undo().assert().success().stdout(contains("restored      ").and(contains("file = 000")));
    assert_eq!(scene.content(), "000");
    scene.undo().assert().success().stdout(diff("nothing to undo\n"));
}

#[test]
fn a_running_muster_is_not_disturbed() {
    let scene = Scene::new();
    let journal = scene.change();
    scene.undo().assert().success().stdout(diff("nothing to undo\n"));
    scene.undo().arg("--list").assert().success().stdout(contains("running"));
    assert_eq!(scene.content(), "111");
    assert!(journal.restore().is_complete());
}

#[test]
fn somebody_elses_change_is_left_alone_and_a_failure_exits_1() {
    let scene = Scene::new();
    orphan(scene.change().path());
    let aside = scene.temp.path().join("aside");
    fs::rename(&scene.file, &aside).expect("moved aside");
    symlink(&aside, &scene.file).expect("a link in its place");
    scene.undo().arg("--json").assert().code(1).stdout(contains(r#""failed": ["#));
    fs::remove_file(&scene.file).expect("no link");
    fs::write(&scene.file, "222\n").expect("somebody else's value");
    scene.undo().assert().success().stdout(contains("left alone    ").and(contains("222")));
    assert_eq!(scene.content(), "222");
}

#[test]
fn an_unsafe_directory_is_refused() {
    let scene = Scene::new();
    symlink(scene.temp.path(), scene.journals()).expect("a link");
    scene.undo().assert().code(1).stderr(contains("not safe"));
}
