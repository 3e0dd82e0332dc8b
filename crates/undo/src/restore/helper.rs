//! Ending a helper process.

use super::Mode;
use crate::Process;
use crate::report::Outcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::io;

/// How long the kernel may take to end a killed process.
const DEATH: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

pub(super) fn undo(process: &Process, mode: Mode) -> io::Result<Outcome> {
    let number = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = number.filter(|_| process.is_alive()) else { return Ok(Outcome::Nothing) };
    if mode == Mode::DryRun {
        return Ok(Outcome::Restored);
    }
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        // Linux before 5.3.
        Err(Errno::NOSYS) => return Ok(kill_process(pid, Signal::KILL).map(|()| Outcome::Restored)?),
        Err(errno) => return Err(errno.into()),
    };
    // Between the first look and the open its number may have passed on; the descriptor's can no more.
    if !process.is_alive() {
        return Ok(Outcome::Nothing);
    }
    pidfd_send_signal(&pidfd, Signal::KILL)?;
    match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&DEATH))? {
        0 => Ok(Outcome::Failed("it was killed and has not ended yet".to_owned())),
        _ => Ok(Outcome::Restored),
    }
}
