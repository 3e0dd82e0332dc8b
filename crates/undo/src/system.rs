//! The system calls behind what can be journaled: affinity, scheduling policy and nice value of a thread.

use crate::{CpuMask, Scheduling};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io;

/// The CPUs that thread `tid` may run on (sched_getaffinity(2)).
///
/// # Errors
/// `ESRCH` when there is no such thread.
pub fn affinity(tid: u32) -> io::Result<CpuMask> {
    let set = sched_getaffinity(Some(pid_of(tid)?))?;
    Ok((0..CpuMask::MAX_CPUS).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Restricts thread `tid` to `mask` (sched_setaffinity(2)).
///
/// # Errors
/// `ESRCH` when there is no such thread, `EPERM` when it is somebody else's, `EINVAL` when its cpuset has none of the
/// CPUs.
pub fn set_affinity(tid: u32, mask: &CpuMask) -> io::Result<()> {
    let mut set = CpuSet::new();
    mask.iter().for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(Some(pid_of(tid)?), &set)?)
}

/// Gives thread `tid` back the affinity `mask` that it had before.
///
/// Where that was every CPU online, all bits are set: the kernel remembers the mask asked for (since Linux 6.2), and a
/// thread that never asked for one must also get the CPUs that come online or into its cpuset later.
pub(crate) fn give_back_affinity(tid: u32, mask: &CpuMask, online: &CpuMask) -> io::Result<()> {
    if online.is_subset(mask) { set_affinity(tid, &(0..CpuMask::MAX_CPUS).collect()) } else { set_affinity(tid, mask) }
}

/// The CPUs that are online; empty where sysfs does not say.
pub(crate) fn online_cpus() -> Option<CpuMask> {
    fs::read_to_string("/sys/devices/system/cpu/online").ok()?.parse().ok()
}

/// The scheduling policy, real-time priority and nice value of thread `tid` (sched(7)).
///
/// # Errors
/// `ESRCH` when there is no such thread.
pub fn scheduling(tid: u32) -> io::Result<Scheduling> {
    let pid = pid_of(tid)?.as_raw_nonzero().get();
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call takes a number and returns one.
    let policy = check(unsafe { libc::sched_getscheduler(pid) })?;
    // SAFETY: `param` is a valid, writable sched_param for the length of the call.
    check(unsafe { libc::sched_getparam(pid, &raw mut param) })?;
    let nice = rustix::process::getpriority_process(Some(pid_of(tid)?))?;
    Ok(Scheduling { policy, priority: param.sched_priority, nice })
}

/// Sets the scheduling policy, real-time priority and nice value of thread `tid`.
///
/// # Errors
/// `ESRCH` when there is no such thread; `EPERM` where raising it needs `CAP_SYS_NICE` or a higher `RLIMIT_NICE`;
/// `EINVAL` for `SCHED_DEADLINE`, which needs parameters that are not kept here.
pub fn set_scheduling(tid: u32, to: Scheduling) -> io::Result<()> {
    let pid = pid_of(tid)?.as_raw_nonzero().get();
    let param = libc::sched_param { sched_priority: to.priority };
    // SAFETY: `param` is a valid sched_param for the length of the call.
    check(unsafe { libc::sched_setscheduler(pid, to.policy, &raw const param) })?;
    Ok(rustix::process::setpriority_process(Some(pid_of(tid)?), to.nice)?)
}

fn pid_of(number: u32) -> io::Result<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
