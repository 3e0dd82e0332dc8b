//! Ending a helper process.

use super::Mode;
use crate::report::Outcome;
use crate::{Process, Scheduling, system};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a killed process may take to end. It needs CPU time for that, which helpers are the last to get.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kills the process, if it is still the same one.
pub(super) fn undo(process: &Process, mode: Mode) -> io::Result<Outcome> {
    let number = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = number.filter(|_| process.is_alive()) else { return Ok(Outcome::Nothing) };
    if mode == Mode::DryRun {
        return Ok(Outcome::Restored);
    }
    match pidfd_open(pid, PidfdFlags::empty()) {
        // Between the first look and the open its number may have passed on; the descriptor's can no more.
        Ok(_) if !process.is_alive() => return Ok(Outcome::Nothing),
        Ok(pidfd) => pidfd_send_signal(&pidfd, Signal::KILL)?,
        // Linux before 5.3.
        Err(Errno::NOSYS) => kill_process(pid, Signal::KILL)?,
        Err(errno) => return Err(errno.into()),
    }
    hasten(process);
    Ok(Outcome::Restored)
}

/// On a busy machine a thread of class SCHED_IDLE takes seconds to die: gives it the normal class, as far as allowed.
fn hasten(process: &Process) {
    let normal = Scheduling { policy: libc::SCHED_OTHER, priority: 0, nice: 0 };
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid)).into_iter().flatten().flatten();
    for tid in tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()) {
        let _dies_later_otherwise = system::set_scheduling(tid, normal);
    }
}

/// Waits until a killed process has ended; says whether it has.
pub(super) fn has_ended(process: &Process) -> bool {
    let start = Instant::now();
    while process.is_alive() && start.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1));
    }
    !process.is_alive()
}
