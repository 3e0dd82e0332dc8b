//! The program under care: started here or attached to, waited for, and sent the signals muster gets.

use crate::Error;
use crate::service::exit_code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, wait};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A running program.
#[derive(Debug)]
pub struct Program {
    pid: Pid,
    pidfd: OwnedFd,
    ours: bool,
    ended: bool,
    exit_code: Option<u8>,
}

impl Program {
    /// Starts `command` with the environment variables `extra`, as a member of the cgroups behind `doors`.
    ///
    /// Orphans among its descendants become children of this process (prctl(2), PR_SET_CHILD_SUBREAPER), so that none
    /// is lost from sight.
    pub fn start(command: &[OsString], extra: &[(&str, String)], mut doors: Vec<File>) -> Result<Self, Error> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|errno| Error::System {
            what: "become the reaper of the program's orphans",
            source: errno.into(),
        })?;
        let (name, arguments) = command.split_first().expect("the command line asks for a program");
        let mut builder = Command::new(name);
        builder.args(arguments).envs(extra.iter().map(|(key, value)| (key, value)));
        // SAFETY: write(2) on open descriptors is async-signal-safe, and nothing is allocated.
        unsafe {
            builder.pre_exec(move || doors.iter_mut().try_for_each(|door| door.write_all(b"0")));
        }
        let child = builder.spawn().map_err(|source| not_started(name, source))?;
        Self::watch(child.id(), true)
    }

    /// Attaches to a process that runs already.
    pub fn attach(pid: u32) -> Result<Self, Error> {
        Self::watch(pid, false)
    }

    fn watch(pid: u32, ours: bool) -> Result<Self, Error> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::NoProcess(pid))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|_| Error::NoProcess(pid))?;
        Ok(Self { pid: number, pidfd, ours, ended: false, exit_code: None })
    }

    /// Its first process.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// Waits up to `timeout_ns` for its first process to end, less when a signal arrives; for the whole time once it
    /// has been seen to have ended.
    pub fn wait(&self, timeout_ns: u64) -> io::Result<()> {
        let timeout =
            Timespec { tv_sec: (timeout_ns / 1_000_000_000) as i64, tv_nsec: (timeout_ns % 1_000_000_000) as i64 };
        // The pidfd of an ended process is ready for ever.
        let awaited = if self.ended { PollFlags::empty() } else { PollFlags::IN };
        match poll(&mut [PollFd::new(&self.pidfd.as_fd(), awaited)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reaps what has ended; true once the first process has.
    pub fn has_ended(&mut self) -> bool {
        if !self.ours {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let gone = poll(&mut [PollFd::new(&self.pidfd.as_fd(), PollFlags::IN)], Some(&at_once));
            self.ended |= gone.is_ok_and(|ready| ready > 0);
            return self.ended;
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid {
                self.exit_code = Some(exit_code(status));
                self.ended = true;
            }
        }
        self.ended
    }

    /// The exit code as a shell gives it (128 + signal); `None` for a program that was attached to.
    pub fn exit_code(&self) -> Option<u8> {
        self.exit_code
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ended_meanwhile = kill_process(self.pid, signal);
    }
}

fn not_started(name: &OsString, source: io::Error) -> Error {
    let command = name.to_string_lossy().into_owned();
    match source.kind() {
        io::ErrorKind::NotFound => Error::NotFound { command },
        _ => Error::NotRunnable { command, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// The descendants of an ended process are watched in the same periods, not as fast as the CPU can.
    #[test]
    fn waiting_goes_on_after_the_first_process() {
        let mut child = Command::new("true").spawn().expect("a process");
        let mut program = Program::attach(child.id()).expect("it is there until it is waited for");
        program.wait(u64::MAX >> 1).expect("its end");
        assert!(program.has_ended());
        let before = Instant::now();
        program.wait(20_000_000).expect("a pause");
        assert!(before.elapsed() >= Duration::from_millis(20));
        child.wait().expect("its status");
    }
}
