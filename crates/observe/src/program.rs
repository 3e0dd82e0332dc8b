//! Starts a program unchanged and waits for it, with what the kernel charged to it. Signals that end muster go on to the
//! program; those of the terminal reach it anyway.

use crate::usage::Usage;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Where the program's standard output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Where muster's goes.
    Inherited,
    /// To muster's standard error, so that muster's standard output holds its own result only.
    ToStandardError,
}

/// A program that muster started.
#[derive(Debug)]
pub struct Program {
    child: Child,
}

/// How a program ended, and what it and all descendants that were waited for had used.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What the kernel charged (getrusage(2)).
    pub usage: Usage,
}

impl Program {
    /// Starts `argv[0]` with the rest as its arguments.
    ///
    /// # Errors
    /// When the program cannot be run.
    ///
    /// # Panics
    /// When `argv` is empty.
    pub fn start(argv: &[OsString], output: Output) -> io::Result<Self> {
        // A handler, not SIG_IGN: what is ignored stays ignored in the program.
        for signal in [SIGINT, SIGQUIT] {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        }
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]);
        if output == Output::ToStandardError {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        let child = command.spawn()?;
        let pid = child.id() as libc::pid_t;
        for signal in [SIGTERM, SIGHUP] {
            let pass_on = move || {
                // SAFETY: kill is async-signal-safe and takes plain numbers. The process is ours until it is waited
                // for, so that its number names no other.
                unsafe { libc::kill(pid, signal) };
            };
            // SAFETY: the handler calls kill only.
            unsafe { signal_hook::low_level::register(signal, pass_on)? };
        }
        Ok(Self { child })
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When somebody else waited for it.
    pub fn wait(self) -> io::Result<Ended> {
        let mut status = 0;
        // SAFETY: rusage is plain numbers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: both pointers are to live, writable values of the right types.
            let waited = unsafe { libc::wait4(self.child.id() as libc::pid_t, &mut status, 0, &mut usage) };
            if waited > 0 {
                return Ok(Ended { status: ExitStatus::from_raw(status), usage: charged(&usage) });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Sets `stop` when muster is asked to end, instead of ending it.
///
/// # Errors
/// When the handlers cannot be set.
pub fn stop_on_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
}

fn charged(usage: &libc::rusage) -> Usage {
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    let user_ns = ns(usage.ru_utime);
    Usage { cpu_ns: user_ns + ns(usage.ru_stime), user_ns, minor_faults: usage.ru_minflt as u64, refaults: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn charges_descendants_and_keeps_the_exit_code() {
        let script = "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; exit 7";
        let ended = Program::start(&argv(&["sh", "-c", script]), Output::Inherited).unwrap().wait().unwrap();
        assert_eq!(ended.status.code(), Some(7));
        assert!(ended.usage.cpu_ns > 0 && ended.usage.minor_faults > 0, "{ended:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = Program::start(&argv(&["/no/such/program"]), Output::ToStandardError).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
