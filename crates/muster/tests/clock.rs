//! `muster run --remedy clock`: another clock source while the program runs, the one found afterwards.
//!
//! Few machines offer a source that leaves the guest, so that one test switches the machine it runs on where it can, and
//! another has files of its own in the place of the kernel's, in a mount namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";
/// Sources that leave the guest.
const DEAR: [&str; 2] = ["acpi_pm", "hpet"];
/// What is waited for must happen within this time; it is judged by what happens, not by when.
const PATIENCE: Duration = Duration::from_secs(20);

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// `prefix muster run --remedy clock -- sh -c script`.
fn muster(home: &TempDir, prefix: &[&str], script: &str) -> Command {
    let words =
        [prefix, &[env!("CARGO_BIN_EXE_muster"), "run", "--remedy", "clock", "--", "sh", "-c", script]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("MUSTER_JOURNALS", home.path().join("journals")).stdin(Stdio::null());
    command
}

fn show() -> String {
    format!("cat {FOLDER}/current_clocksource")
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn journals(home: &TempDir) -> usize {
    fs::read_dir(home.path().join("journals")).map_or(0, |entries| entries.count())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Files that stand for the kernel's in a mount namespace: `hpet` in use, `offered` on offer. The names are chosen so
/// that what is written covers what was there, as the kernel's files have it.
struct Stage {
    home: TempDir,
}

impl Stage {
    /// None, with the reason said, where there can be no such namespace.
    fn set(offered: &str) -> Option<Self> {
        let possible = Command::new("unshare").args(["--mount", "true"]).output();
        if !is_root() || !possible.is_ok_and(|output| output.status.success()) || !Path::new(FOLDER).is_dir() {
            eprintln!("SKIPPED: a test of --remedy clock: it takes root, unshare(1) and {FOLDER}");
            return None;
        }
        let stage = Self { home: home() };
        fs::create_dir(stage.folder()).expect("a folder");
        fs::write(stage.current(), "hpet\n").expect("a file");
        fs::write(stage.folder().join("available_clocksource"), offered).expect("a file");
        Some(stage)
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("clocksource0")
    }

    fn current(&self) -> PathBuf {
        self.folder().join("current_clocksource")
    }

    fn muster(&self, script: &str) -> Command {
        let line = format!("mount --bind {} {FOLDER} && exec \"$@\"", self.folder().display());
        muster(&self.home, &["unshare", "--mount", "sh", "-c", &line, "sh"], script)
    }
}

#[test]
fn a_dear_source_is_replaced_while_the_program_runs() {
    let Some(stage) = Stage::set("tsc hpet acpi_pm \n") else { return };
    let output = stage.muster(&show()).output().expect("muster");
    assert_eq!(said(&output), (Some(0), "tsc".into(), String::new()));
    assert_eq!((read(stage.current()), journals(&stage.home)), ("hpet".into(), 0));
}

#[test]
fn a_killed_muster_leaves_the_source_it_found() {
    let Some(stage) = Stage::set("tsc hpet \n") else { return };
    let output = stage.muster("kill -9 $PPID").output().expect("muster");
    assert_eq!(output.status.code(), None, "it was killed");
    let start = Instant::now();
    while (read(stage.current()), journals(&stage.home)) != ("hpet".to_owned(), 0) {
        assert!(
            start.elapsed() < PATIENCE,
            "{} is left, and {} journals",
            read(stage.current()),
            journals(&stage.home)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_source_that_somebody_else_has_set_stays() {
    let Some(stage) = Stage::set("tsc hpet \n") else { return };
    let output = stage.muster(&format!("echo jiffies > {FOLDER}/current_clocksource")).output().expect("muster");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!((read(stage.current()), journals(&stage.home)), ("jiffies".into(), 0));
}

#[test]
fn without_a_better_source_it_is_refused_in_one_sentence() {
    let Some(stage) = Stage::set("hpet acpi_pm \n") else { return };
    let (code, out, text) = said(&stage.muster("echo started").output().expect("muster"));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(text.contains("offers none that is read without leaving the guest: hpet, acpi_pm"), "{text}");
}

#[test]
fn without_root_it_is_refused_in_one_sentence() {
    let Some(stage) = Stage::set("tsc hpet \n") else { return };
    let everybody = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("a mode");
    everybody(stage.home.path());
    let nobody = "exec setpriv --reuid=65534 --regid=65534 --clear-groups env --unset=XDG_RUNTIME_DIR \"$@\"";
    let line = format!("mount --bind {} {FOLDER} && {nobody}", stage.folder().display());
    let mut command = muster(&stage.home, &["unshare", "--mount", "sh", "-c", &line, "sh"], "echo started");
    let (code, out, text) = said(&command.output().expect("muster"));
    assert_eq!((code, out.as_str()), (Some(2), ""), "{text}");
    assert!(text.contains("only root may set the clock source from hpet to tsc"), "{text}");
}

#[test]
fn a_good_source_is_left_as_it_is() {
    let now = read(Path::new(FOLDER).join("current_clocksource"));
    if DEAR.contains(&now.as_str()) || now.is_empty() {
        eprintln!("SKIPPED: a_good_source_is_left_as_it_is: the clock source here is `{now}`");
        return;
    }
    let home = home();
    let (code, out, text) = said(&muster(&home, &["env"], "echo started").output().expect("muster"));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(text.contains(&format!("the clock source is {now} already")), "{text}");
    assert_eq!(journals(&home), 0);
}

/// Puts the machine's clock source back, whatever happens to the test.
struct PutBack(String);

impl Drop for PutBack {
    fn drop(&mut self) {
        let _the_test_has_failed_anyway = fs::write(Path::new(FOLDER).join("current_clocksource"), &self.0);
    }
}

#[test]
fn the_machine_at_hand_is_switched_and_switched_back() {
    let file = Path::new(FOLDER).join("current_clocksource");
    let offered = read(Path::new(FOLDER).join("available_clocksource"));
    let dear = offered.split(' ').find(|source| DEAR.contains(source));
    let good = offered.split(' ').find(|source| !DEAR.contains(source));
    let (Some(dear), Some(good), true) = (dear, good, is_root()) else {
        eprintln!(
            "SKIPPED: the_machine_at_hand_is_switched_and_switched_back: it takes root and acpi_pm or hpet beside a good source; on offer: {offered}"
        );
        return;
    };
    let before = PutBack(read(&file));
    fs::write(&file, dear).expect("root may");
    assert_eq!(read(&file), dear);
    let home = home();
    let output = muster(&home, &["env"], &show()).output().expect("muster");
    assert_eq!(said(&output), (Some(0), good.into(), String::new()));
    assert_eq!((read(&file), journals(&home)), (dear.into(), 0));
    drop(before);
}
