//! What the tests share: programs that end with the test, an owner that can be killed, and short waits for facts.
#![allow(dead_code, missing_docs)]

use muster_undo::{Change, CpuMask, EntryId, Process, system};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub const HELPER: &str = env!("CARGO_BIN_EXE_undo-test-owner");

/// A child that speaks lines; killed and reaped when dropped.
pub struct Talker {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talker {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn say(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.line()
    }

    pub fn process(&self) -> Process {
        Process::of(self.child.id()).unwrap()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _may_have_ended = self.child.kill();
        let _may_have_been_reaped = self.child.wait();
    }
}

/// An owner of the journal `run` in `directory`.
pub fn owner(directory: &Path, run: &str) -> Talker {
    let mut owner = Talker::start(Command::new(HELPER).arg("own").arg(directory).arg(run));
    assert_eq!(owner.line(), "ready");
    owner
}

pub fn record(owner: &mut Talker, change: &Change) -> EntryId {
    let answer = owner.say(&format!("record {}", serde_json::to_string(change).unwrap()));
    serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}"))
}

/// A program of `threads` threads in each of `1 + processes` processes, with `MUSTER_RUN` set to `marker`.
pub fn sleeper(threads: usize, processes: usize, marker: &str) -> Talker {
    let mut command = Command::new(HELPER);
    command.args(["sleep", &threads.to_string(), &processes.to_string()]).env("MUSTER_RUN", marker);
    let mut program = Talker::start(&mut command);
    assert_eq!(program.line(), "ready");
    let all_there = || tasks_of_tree(program.child.id()).len() == threads * (processes + 1);
    wait_for("all threads of the sleeper", all_there);
    program
}

pub fn tasks(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// All threads of a process and of its children.
pub fn tasks_of_tree(pid: u32) -> Vec<u32> {
    let children = |tid: &u32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let mut all = tasks(pid);
    let below: Vec<u32> = all
        .iter()
        .flat_map(|tid| children(tid).split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    all.extend(below.into_iter().flat_map(tasks));
    all
}

pub fn numbers(directory: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Waits for a fact as long as it takes (a test run that hangs here for a minute has failed).
pub fn wait_for(what: &str, fact: impl Fn() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < Duration::from_secs(60), "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A temporary directory that nobody else may enter.
pub fn private_directory() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

pub fn mask(list: &str) -> CpuMask {
    list.parse().unwrap()
}

/// The mask of this process and one narrower; none, loudly, on a machine of one CPU.
pub fn wide_and_narrow(test: &str) -> Option<(CpuMask, CpuMask)> {
    let wide = system::affinity(std::process::id()).unwrap();
    let narrow: CpuMask = wide.iter().take(1).collect();
    if narrow == wide {
        eprintln!("SKIPPED: {test}: this process may run on one CPU only");
        return None;
    }
    Some((wide, narrow))
}

/// Makes the journal of a living process look like that of a dead one.
pub fn orphan(journal: &Path) {
    let text = fs::read_to_string(journal).unwrap();
    let (header, rest) = text.split_once('\n').unwrap();
    let mut header: serde_json::Value = serde_json::from_str(header).unwrap();
    header["owner"]["start"] = 1.into();
    fs::write(journal, format!("{header}\n{rest}")).unwrap();
}
