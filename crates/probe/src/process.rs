//! What the kernel charges for a system call, a context switch, a thread and a process.

use crate::affinity;
use crate::batch::{Effort, batches, tight};
use crate::error::{ProbeError, Result};
use crate::stamp::Stamps;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// The program that fork and exec start: it exists everywhere and does nothing.
const NOTHING: &std::ffi::CStr = c"/bin/true";

/// Nanoseconds per getppid in each batch.
///
/// # Errors
/// When the thread cannot be confined.
pub fn system_call(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    affinity::on_cpu(cpu, || {
        Ok(tight(effort, stamps, || {
            // SAFETY: the call takes nothing and cannot fail; it goes past the C library.
            black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        }))
    })
}

/// Nanoseconds per switch between two threads that yield to each other on one CPU, in each batch; the sched_yield call
/// is in it.
///
/// # Errors
/// When a thread cannot be confined, or yielding did not make the kernel switch.
pub fn context_switch(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    let (stop, yields_of_other) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut yields, mut others) = (0u64, 0u64);
    let measured = std::thread::scope(|scope| {
        let other = affinity::spawn_on(scope, cpu, || {
            while !stop.load(Relaxed) {
                std::thread::yield_now();
                yields_of_other.fetch_add(1, Relaxed);
            }
            Ok(())
        })?;
        let measured = affinity::on_cpu(cpu, || {
            Ok(batches(effort, |count| {
                let (start, before) = (stamps.now(), yields_of_other.load(Relaxed));
                for _ in 0..count {
                    std::thread::yield_now();
                }
                others += yields_of_other.load(Relaxed) - before;
                yields += count;
                // Each round goes to the other thread and back: two switches.
                stamps.ns(start, stamps.now()) / 2.0
            }))
        });
        stop.store(true, Relaxed);
        affinity::finish(other)?;
        measured
    })?;
    let share = others as f64 / yields.max(1) as f64;
    if (0.8..=1.25).contains(&share) {
        Ok(measured)
    } else {
        let text = format!("of two threads that yield to each other one yielded {share:.2} times as often");
        Err(ProbeError::NotMeasurable(text))
    }
}

/// Nanoseconds for starting a thread and waiting for its end, in each batch.
///
/// # Errors
/// When a thread cannot be confined.
pub fn thread(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    affinity::on_cpu(cpu, || {
        repeat(effort, stamps, || {
            let thread = std::thread::Builder::new().spawn(|| ());
            let thread = thread.map_err(|source| ProbeError::Call { call: "clone (starting a thread)", source })?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(())
        })
    })
}

/// Nanoseconds for a fork whose child ends at once, waited for, in each batch.
///
/// # Errors
/// When the process may not fork.
pub fn fork(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    affinity::on_cpu(cpu, || repeat(effort, stamps, || fork_and_wait(|| 0)))
}

/// Nanoseconds for fork, exec of a program that does nothing, and wait, in each batch.
///
/// # Errors
/// When the process may not fork, or the program cannot be run.
pub fn fork_exec(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    affinity::on_cpu(cpu, || {
        let arguments = [NOTHING.as_ptr(), std::ptr::null()];
        repeat(effort, stamps, || {
            fork_and_wait(|| {
                // SAFETY: the path and the argument list are terminated and outlive the call.
                unsafe { libc::execv(NOTHING.as_ptr(), arguments.as_ptr()) };
                127
            })
        })
    })
}

/// Nanoseconds for posix_spawn of the same program, and wait, in each batch: the standard library's way.
///
/// # Errors
/// When the program cannot be run.
pub fn spawn(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    affinity::on_cpu(cpu, || {
        repeat(effort, stamps, || {
            let mut command = Command::new(NOTHING.to_string_lossy().as_ref());
            let status = command.stdin(Stdio::null()).status();
            let status = status.map_err(|source| ProbeError::Call { call: "posix_spawn (/bin/true)", source })?;
            if status.success() { Ok(()) } else { Err(child_failed()) }
        })
    })
}

/// Batches of an operation that may fail; the first failure ends the measurement.
fn repeat(effort: &Effort, stamps: Stamps, mut operation: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut failure = None;
    let measured = tight(effort, stamps, || {
        if failure.is_none() {
            failure = operation().err();
        }
    });
    failure.map_or(Ok(measured), Err)
}

/// Forks, ends the child with what `child` says there, and waits for it. `child` may only make system calls.
fn fork_and_wait(child: impl FnOnce() -> i32) -> Result<()> {
    // SAFETY: by contract the child only makes system calls until it ends, and it ends here.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(ProbeError::last("fork")),
        // SAFETY: `_exit` runs nothing of the parent's.
        0 => unsafe { libc::_exit(child()) },
        pid => pid,
    };
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the call to write; the child is this process's own.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return if status == 0 { Ok(()) } else { Err(child_failed()) };
        }
        let source = std::io::Error::last_os_error();
        if source.kind() != std::io::ErrorKind::Interrupted {
            return Err(ProbeError::Call { call: "waitpid", source });
        }
    }
}

fn child_failed() -> ProbeError {
    ProbeError::NotMeasurable(format!("{} could not be run, or failed", NOTHING.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_and_threads_are_measured() {
        let cpu = affinity::allowed().unwrap().iter().next().unwrap();
        let stamps = Stamps::new(&crate::machine::platform(&Default::default(), cpu));
        let effort = Effort { batches: 3, batch_ns: 100_000, ..Effort::QUICK };
        for measure in [system_call, thread, fork, fork_exec, spawn] {
            let batches = measure(cpu, &effort, stamps).unwrap();
            assert!(batches.len() == 3 && batches.iter().all(|&ns| ns > 0.0), "{batches:?}");
        }
    }
}
