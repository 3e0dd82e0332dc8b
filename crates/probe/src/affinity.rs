//! Where threads run: the CPUs this process may use, and threads pinned to one of them.

use crate::error::{ProbeError, Result};
use muster_model::{CpuSet, cpuset::MAX_CPUS};
use rustix::thread::{self, sched_getaffinity, sched_setaffinity};
use std::thread::Scope;

/// The CPUs the calling thread may use.
///
/// # Errors
/// When the kernel refuses to say.
pub fn allowed() -> Result<CpuSet> {
    let mask = sched_getaffinity(None).map_err(ProbeError::call("sched_getaffinity"))?;
    Ok((0..MAX_CPUS.min(thread::CpuSet::MAX_CPU)).filter(|&cpu| mask.is_set(cpu)).collect())
}

/// Confines the calling thread to `cpu`.
///
/// # Errors
/// When this process may not use the CPU, or it is gone.
pub fn pin(cpu: usize) -> Result<()> {
    let mut mask = thread::CpuSet::new();
    mask.set(cpu);
    sched_setaffinity(None, &mask).map_err(ProbeError::call("sched_setaffinity"))
}

/// Runs `work` on a thread of its own, confined to `cpu`, and waits for it.
///
/// # Errors
/// When the thread cannot be pinned, and those of `work`.
pub fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| finish(spawn_on(scope, cpu, work)?))
}

/// Starts `work` on a thread of its own, confined to `cpu`.
///
/// # Errors
/// When no thread can be started.
pub fn spawn_on<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    cpu: usize,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> Result<std::thread::ScopedJoinHandle<'scope, Result<T>>> {
    let pinned = move || pin(cpu).and_then(|()| work());
    std::thread::Builder::new()
        .spawn_scoped(scope, pinned)
        .map_err(|source| ProbeError::Call { call: "clone (starting a thread)", source })
}

/// The result of a thread started with [`spawn_on`]; a panic goes on in the caller.
///
/// # Errors
/// Those of the thread.
pub fn finish<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes the calling thread run only when nobody else wants the CPU (sched(7), SCHED_IDLE).
///
/// The kernel's autogroups put a session's threads into one scheduling group; the policy ranks threads inside the group
/// only. Callers therefore use it among threads of one process.
///
/// # Errors
/// When the kernel refuses.
pub fn lowest_priority() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `parameters`, which lives until it returns.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) } {
        0 => Ok(()),
        _ => Err(ProbeError::last("sched_setscheduler(SCHED_IDLE)")),
    }
}
