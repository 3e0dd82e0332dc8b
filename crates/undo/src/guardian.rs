//! A process that outlives its muster by one restoration: the answer to `kill -9`.
//!
//! It is muster's own program, started again as `muster guard --journal FILE` in a session of its own and deaf to the
//! signals that end musters. It sleeps in poll(2) until its owner is dead, restores the journal if it is still there,
//! and ends. It is started before there is a journal: else a kill in between would leave one that nobody watches. Should it
//! be killed as well, the next start of muster restores, or `muster undo`.

use crate::directory::Directory;
use crate::journal::RUN_VARIABLE;
use crate::recover::{Scope, State, Stored, recover_one};
use crate::report::Report;
use crate::restore::Mode;
use crate::{Error, Process, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Signals that end a muster and must not end its guardian.
const DEAF_TO: [i32; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];

/// A running guardian. Dropping this does not end it: it ends right after its owner.
#[derive(Debug)]
pub struct Guardian {
    child: Child,
}

impl Guardian {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Starts the guardian of the journal that run `run` of this process has or will have in `directory`: this same program
/// with the arguments `guard --journal FILE`, which must call [`watch`]. A run whose id is not of the form of
/// [`crate::new_run_id`] must have its journal already.
///
/// # Errors
/// When the process cannot be started.
pub fn spawn(directory: &Directory, run: &str) -> Result<Guardian> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("muster").arg("guard").arg("--journal").arg(directory.journal_path(run));
    // The pipe whose write end only muster holds: its end is muster's end. No member of an outer muster's family.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).current_dir("/").env_remove(RUN_VARIABLE);
    // SAFETY: setsid(2) and signal(2) are async-signal-safe, and nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            for signal in DEAF_TO {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    Ok(Guardian { child: command.spawn().map_err(Error::io("start", "/proc/self/exe"))? })
}

/// The guardian's whole life: waits until the owner of the journal at `path` is dead and restores it. Nothing when the
/// owner had already done so.
///
/// # Errors
/// When the journal is not one, or is not safe to act upon.
pub fn watch(path: &Path) -> Result<Option<Report>> {
    let malformed = |why: &str| Error::Malformed { path: path.to_owned(), why: why.to_owned() };
    let run = path.file_stem().and_then(|stem| stem.to_str()).ok_or_else(|| malformed("its name is no run id"))?;
    let parent = path.parent().ok_or_else(|| malformed("it has no directory"))?;
    // The journal may not be there yet; its owner is.
    if let Some(owner) = owner_of(run) {
        wait_for_end(owner);
    }
    let Some(directory) = Directory::existing(parent)? else { return Ok(None) };
    if let Some(stored) = Stored::load(&directory, run)?
        && stored.state() == State::Running
    {
        wait_for_end(stored.header.owner);
    }
    recover_one(&directory, run, Scope::Abandoned, Mode::Apply)
}

/// The process that [`crate::new_run_id`] made this id for.
fn owner_of(run: &str) -> Option<Process> {
    let (pid, start) = run.split_once('-')?;
    Some(Process { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

/// Returns once `owner` is dead.
fn wait_for_end(owner: Process) {
    if let Some(pidfd) =
        i32::try_from(owner.pid).ok().and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    {
        while owner.is_alive() && poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None) != Ok(1) {}
    } else {
        // Without pidfds (Linux before 5.3): the pipe ends when its only other end does.
        let mut nothing = Vec::new();
        let _ended_either_way = std::io::stdin().read_to_end(&mut nothing);
    }
    // A process is seen alive until it is a zombie, which may be a moment after its files are closed.
    while owner.is_alive() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
