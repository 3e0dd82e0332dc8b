//! `muster run --service`: the caller gets its prompt back, the program is watched from the background, and however the
//! watch ends, the program is as it was.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Set for everything a test starts, so that it can be found.
const MARK: &str = "MUSTER_SERVICE_TEST";
/// What is waited for must happen within this time; it is judged by what happens, not by when.
const PATIENCE: Duration = Duration::from_secs(20);

/// The processes and journals of one test; whatever is left is ended with it.
struct Scene {
    home: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a temporary directory") }
    }

    fn marked(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env(MARK, self.home.path()).env("MUSTER_JOURNALS", self.home.path().join("journals"));
        command.stdin(Stdio::null());
        command
    }

    fn muster(&self, arguments: &[&str]) -> Command {
        let mut command = self.marked(env!("CARGO_BIN_EXE_muster"));
        command.arg("run").args(arguments);
        command
    }

    /// A daemon that was there before.
    fn daemon(&self) -> Child {
        self.marked("sleep").arg("60").spawn().expect("sleep")
    }

    /// The living processes of this test that are a muster (or are not), and have `word` in their command line.
    fn processes(&self, is_muster: bool, word: &str) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.home.path().display());
        let has_mark = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|all| all.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes()))
        };
        let is_wanted = |pid: &u32| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (program == Path::new(env!("CARGO_BIN_EXE_muster"))) == is_muster
                && String::from_utf8_lossy(&command).contains(word)
        };
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(|pid| has_mark(pid) && is_wanted(pid)).collect()
    }

    fn journals(&self) -> usize {
        fs::read_dir(self.home.path().join("journals")).map_or(0, |entries| entries.count())
    }

    /// Whether nothing of muster's is left: no process, no journal.
    fn is_over(&self) -> bool {
        self.processes(true, "").is_empty() && self.journals() == 0
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        wait_until(|| {
            let left: Vec<u32> = [true, false].iter().flat_map(|&is_muster| self.processes(is_muster, "")).collect();
            left.iter().for_each(|&pid| send(pid, Signal::KILL));
            left.is_empty()
        });
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process number")).expect("a process number");
    let _may_have_ended = kill_process(pid, signal);
}

fn wait_until(mut fact: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if fact() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// The watcher and the program, as the caller was told.
fn told(output: &Output) -> (u32, u32) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let number = |before: &str| text.split_once(before)?.1.split(' ').next()?.parse().ok();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    number("process ").zip(number("watches process ")).unwrap_or_else(|| panic!("no process numbers in {text:?}"))
}

/// `output` reads standard output and standard error to their ends: it returns only if the service holds neither.
fn attach(scene: &Scene, daemon: &Child) -> u32 {
    let pid = daemon.id().to_string();
    let output = scene.muster(&["--service", "--remedy", "awake", "--pid", &pid]).output().expect("muster");
    let (watcher, program) = told(&output);
    assert_eq!(program, daemon.id());
    assert!(scene.processes(true, "").contains(&watcher), "the watcher stays");
    assert_eq!(scene.processes(true, "pause-loops").len(), 1, "its remedy is in force");
    assert_eq!(scene.journals(), 1);
    watcher
}

#[test]
fn a_watch_that_is_ended_leaves_the_daemon_as_it_was() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        let scene = Scene::new();
        let mut daemon = scene.daemon();
        let watcher = attach(&scene, &daemon);
        send(watcher, signal);
        assert!(wait_until(|| scene.is_over()), "{signal:?}: {:?}", scene.processes(true, ""));
        assert!(daemon.try_wait().expect("its state").is_none(), "the daemon goes on");
        daemon.kill().and_then(|()| daemon.wait()).expect("its end");
    }
}

#[test]
fn the_watcher_has_left_its_callers_session_and_folder() {
    let scene = Scene::new();
    let mut daemon = scene.daemon();
    let watcher = attach(&scene, &daemon);
    let stat = fs::read_to_string(format!("/proc/{watcher}/stat")).expect("its stat");
    let session = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(3)?.parse().ok());
    assert_eq!(session, Some(watcher));
    let link = |what: &str| fs::read_link(format!("/proc/{watcher}/{what}")).expect("a link");
    assert_eq!(link("cwd"), Path::new("/"));
    for stream in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(stream), Path::new("/dev/null"), "{stream}");
    }
    daemon.kill().and_then(|()| daemon.wait()).expect("its end");
    assert!(wait_until(|| scene.is_over()), "the watch ends with the daemon");
}

#[test]
fn the_watch_ends_with_the_last_process_of_the_program() {
    let scene = Scene::new();
    let fifo = scene.home.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a FIFO");
    let line = format!("cat {} & exit 0", fifo.display());
    let output = scene.muster(&["--service", "--remedy", "none", "--", "sh", "-c", &line]).output().expect("muster");
    let (watcher, program) = told(&output);
    let ended = || fs::metadata(format!("/proc/{program}")).is_err();
    assert!(wait_until(ended), "the first process ends at once and is waited for");
    assert!(scene.processes(true, "").contains(&watcher), "the watch goes on for its child");
    drop(File::options().write(true).open(&fifo).expect("cat reads it"));
    assert!(wait_until(|| scene.is_over()));
}

#[test]
fn a_started_program_outlives_its_watch() {
    let scene = Scene::new();
    let output = scene.muster(&["--service", "--remedy", "none", "--", "sleep", "60"]).output().expect("muster");
    let (watcher, program) = told(&output);
    send(watcher, Signal::TERM);
    assert!(wait_until(|| scene.is_over()));
    assert_eq!(scene.processes(false, "sleep"), [program]);
}

#[test]
fn output_that_goes_to_a_file_is_kept() {
    let scene = Scene::new();
    let path = scene.home.path().join("out");
    let file = File::create(&path).expect("a file");
    let program = ["--service", "--remedy", "none", "--", "sh", "-c", "cat; echo said"];
    let output = scene.muster(&program).stdout(file).output().expect("muster");
    told(&output);
    assert!(wait_until(|| scene.is_over()));
    assert_eq!(fs::read_to_string(&path).expect("the output"), "said\n");
}

#[test]
fn what_cannot_be_watched_is_said_with_the_right_exit_code() {
    for (arguments, code, sentence) in [
        (vec!["--service", "--", "no-such-program"], 127, "no such program"),
        (vec!["--service", "--", "/"], 126, "cannot run `/`"),
        (vec!["--service", "--pid", "4194304"], 2, "there is no such process"),
        (vec!["--service", "--trace", "/no/such/folder/t", "--", "true"], 2, "/no/such/folder/t"),
        (vec!["--foreground", "--", "true"], 2, "--service"),
    ] {
        let scene = Scene::new();
        let output = scene.muster(&arguments).output().expect("muster");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(sentence) && !text.contains("panicked"), "{arguments:?}: {text}");
        assert!(wait_until(|| scene.is_over()), "{arguments:?}");
    }
}

#[test]
fn in_the_foreground_it_ends_as_the_program_does() {
    let scene = Scene::new();
    let line = ["--service", "--foreground", "--remedy", "none", "--", "sh", "-c", "echo said; exit 3"];
    let output = scene.muster(&line).output().expect("muster");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"said\n"[..]));
    let mut daemon = scene.daemon();
    let pid = daemon.id().to_string();
    let mut muster = scene.muster(&["--service", "--foreground", "--remedy", "awake", "--pid", &pid]);
    let mut muster = muster.spawn().expect("muster");
    assert!(wait_until(|| scene.processes(true, "pause-loops").len() == 1), "its remedy is in force");
    send(muster.id(), Signal::TERM);
    assert_eq!(muster.wait().expect("its status").code(), Some(0), "a signal ends a watch in good order");
    assert!(wait_until(|| scene.is_over()));
    assert!(daemon.try_wait().expect("its state").is_none(), "the daemon goes on");
    daemon.kill().and_then(|()| daemon.wait()).expect("its end");
}
