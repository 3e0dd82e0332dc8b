//! One child process: started, waited for, its output kept.

use crate::machine;
use rustix::process::{Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Only this much of an output's end is searched and shown.
const MAX_OUTPUT_BYTES: u64 = 8 << 20;
/// Lines of standard error that an error message shows.
const TAIL_LINES: usize = 10;

/// A command in which the child dies with the process that started it: a comparison that is killed must not leave a
/// program running under a remedy.
pub fn command<S: AsRef<OsStr>>(argv: &[S]) -> Command {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::null());
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; this is one prctl(2).
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
    command
}

/// A shell command line as [`command`].
pub fn shell(line: &str) -> Command {
    command(&["sh", "-c", line])
}

/// Ends everything below this process when it is told to end (SIGHUP, SIGINT, SIGTERM): a program of several processes
/// would otherwise be left with half of them, waiting for the other half for ever.
///
/// # Errors
/// When the handler or its thread cannot be made.
pub fn end_tree_on_signal() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for pid in machine::descendants().unwrap_or_default() {
                // A process that has ended meanwhile needs no signal.
                let _ = kill_process(pid, Signal::TERM);
            }
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// A child's output in unnamed temporary files. Files, not pipes: somebody would have to wake up to empty a pipe, on
/// the machine that is being measured.
pub struct Output {
    stdout: Option<File>,
    stderr: File,
}

impl Output {
    /// Starts `command` with its output going here; standard output goes nowhere unless it is wanted.
    ///
    /// # Errors
    /// When a file cannot be made or the program cannot be started.
    pub fn spawn(mut command: Command, wants_stdout: bool) -> io::Result<(Child, Self)> {
        let stderr = tempfile::tempfile()?;
        let stdout = wants_stdout.then(tempfile::tempfile).transpose()?;
        let sink = stdout.as_ref().map(File::try_clone).transpose()?;
        command.stdout(sink.map_or_else(Stdio::null, Stdio::from)).stderr(stderr.try_clone()?);
        Ok((command.spawn()?, Self { stdout, stderr }))
    }

    /// What was written to standard output so far; empty where it was not wanted.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn stdout(&mut self) -> io::Result<String> {
        self.stdout.as_mut().map_or(Ok(String::new()), read_end)
    }

    /// What was written to standard error so far.
    ///
    /// # Errors
    /// As [`Self::stdout`].
    pub fn stderr(&mut self) -> io::Result<String> {
        read_end(&mut self.stderr)
    }
}

fn read_end(file: &mut File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_OUTPUT_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a text, each set in by two blanks.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    last.iter().map(|line| format!("  {}", line.trim_end())).collect::<Vec<_>>().join("\n")
}

/// How a child ended, in words, and the exit code that a shell would report for it.
pub fn ending(status: ExitStatus) -> (String, u8) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (format!("ended with exit code {code}"), code as u8),
        (None, Some(signal)) => (format!("was killed by signal {signal}"), 128u8.wrapping_add(signal as u8)),
        (None, None) => ("ended in an unknown way".to_owned(), 1),
    }
}

/// The same for a program that could not be started: 127 when there is none, 126 when it is not allowed to run.
pub fn not_started(program: &str, error: &io::Error) -> (String, u8) {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    (format!("`{program}` could not be started: {error}"), code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_ending_are_kept() {
        let (mut child, mut output) = Output::spawn(shell("echo out; echo err >&2; exit 3"), true).unwrap();
        assert_eq!(ending(child.wait().unwrap()), ("ended with exit code 3".to_owned(), 3));
        assert_eq!((output.stdout().unwrap().as_str(), output.stderr().unwrap().as_str()), ("out\n", "err\n"));
    }

    #[test]
    fn a_signal_and_a_missing_program_are_told_apart() {
        let (mut child, _) = Output::spawn(shell("kill -9 $$"), false).unwrap();
        assert_eq!(ending(child.wait().unwrap()).1, 137);
        let Err(error) = Output::spawn(command(&["/nonexistent/program"]), false) else { panic!("it started") };
        assert_eq!(not_started("program", &error).1, 127);
    }

    #[test]
    fn tails_are_short() {
        let text: String = (0..50).map(|line| format!("line {line}\n\n")).collect();
        assert_eq!(tail(&text).lines().count(), TAIL_LINES);
        assert!(tail(&text).ends_with("  line 49"));
    }
}
