//! A session in the background: the caller goes on as soon as the program is cared for.
//!
//! The process forks while it has one thread. Its child gets a session of its own and does everything else, so that the
//! journal and the guardian know the process that stays; its parent waits until the child is ready or has failed, and
//! ends with the same exit code.

use crate::Error;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, WaitStatus, chdir, setsid, waitpid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdout};
use std::fs::read_dir;
use std::io;

/// Which of the two processes goes on after [`detach`].
#[derive(Debug)]
pub enum Side {
    /// The one that was started: all is done, this is its exit code.
    Caller(u8),
    /// The one that stays.
    Service(Background),
}

/// Forks; to be called before any thread is started.
///
/// # Errors
/// When the system refuses, or there is another thread already.
pub fn detach() -> Result<Side, Error> {
    let system = Error::system("go into the background");
    if read_dir("/proc/self/task").map_err(&system)?.count() != 1 {
        return Err(system(io::Error::other("a thread has been started already")));
    }
    let (said, say) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| system(errno.into()))?;
    // SAFETY: with a single thread nobody holds a lock that the child would find taken for ever.
    match unsafe { libc::fork() } {
        0 => {
            drop(said);
            Background::begin(say).map(Side::Service).map_err(|errno| system(errno.into()))
        }
        number => {
            drop(say);
            let child = Pid::from_raw(number.max(0)).ok_or_else(|| system(io::Error::last_os_error()))?;
            await_child(child, &said).map(Side::Caller).map_err(|errno| system(errno.into()))
        }
    }
}

/// Success once the child says that it is ready, its exit code if it ends before.
fn await_child(child: Pid, said: &OwnedFd) -> Result<u8, Errno> {
    if rustix::io::retry_on_intr(|| read(said, &mut [0_u8; 1]))? == 1 {
        return Ok(0);
    }
    let ended = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    Ok(ended.map_or(1, |(_, status)| exit_code(status)))
}

/// The exit code as a shell gives it (128 + signal).
pub(crate) fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0));
    code as u8
}

/// The process that stays, as long as its caller still waits for it.
#[derive(Debug)]
pub struct Background {
    /// The caller's standard error.
    stderr: OwnedFd,
    say: OwnedFd,
}

impl Background {
    /// Leaves the caller's session. Standard input is empty from here on; standard output and standard error are
    /// discarded unless they are files: a terminal is the caller's, and whoever reads a pipe to its end would wait for
    /// as long as the service lives.
    fn begin(say: OwnedFd) -> Result<Self, Errno> {
        setsid()?;
        let kept = fcntl_dupfd_cloexec(stderr(), 3)?;
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let is_file =
            |fd: BorrowedFd| fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        dup2_stdin(&null)?;
        if !is_file(stdout()) {
            dup2_stdout(&null)?;
        }
        if !is_file(stderr()) {
            dup2_stderr(&null)?;
        }
        Ok(Self { stderr: kept, say })
    }

    /// Tells the person at the caller's terminal `text`, and lets the caller go. Holds no folder from here on.
    ///
    /// # Errors
    /// When there is no caller any more: then nobody knows of this service.
    pub fn ready(self, text: &str) -> io::Result<()> {
        let _nobody_reads_it = write(&self.stderr, format!("{text}\n").as_bytes());
        chdir("/")?;
        write(&self.say, b"1")?;
        Ok(())
    }

    /// Gives this process the caller's standard error back, to say there why it ends.
    pub fn failed(self) {
        let _stays_discarded = dup2_stderr(&self.stderr);
    }
}
