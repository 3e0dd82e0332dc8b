//! Company for a measurement: threads or processes that run on other CPUs meanwhile.
//!
//! Processes are children of this one; they die with the thread that started them and are reaped before it goes on.

use crate::affinity;
use crate::error::{ProbeError, Result};
use crate::mapping::Mapping;
use muster_model::CpuSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Runs `work` on a thread on each of `cpus`, started together; the results in CPU order.
///
/// # Errors
/// When a thread cannot be started or confined, and those of `work`; the other threads still finish.
pub fn on_all<T: Send>(cpus: &CpuSet, work: impl Fn() -> Result<T> + Sync) -> Result<Vec<T>> {
    let (ready, go) = (AtomicUsize::new(0), AtomicBool::new(false));
    let on_one = |cpu| {
        let pinned = affinity::pin(cpu);
        ready.fetch_add(1, AcqRel);
        wait_until(|| go.load(Acquire));
        pinned.and_then(|()| work())
    };
    std::thread::scope(|scope| {
        let start = |cpu| {
            let on_one = &on_one;
            std::thread::Builder::new()
                .spawn_scoped(scope, move || on_one(cpu))
                .map_err(|source| ProbeError::Call { call: "clone (starting a thread)", source })
        };
        let threads: Vec<_> = cpus.iter().map(start).collect();
        let started = threads.iter().flatten().count();
        wait_until(|| ready.load(Acquire) == started);
        go.store(true, Release);
        let results: Vec<Result<T>> = threads.into_iter().map(|thread| affinity::finish(thread?)).collect();
        results.into_iter().collect()
    })
}

/// Runs `work` on `cpu` while a thread of this process on each of `others` repeats `deed`.
///
/// # Errors
/// When a thread cannot be started or confined, and those of `work`.
pub fn with_threads<T: Send>(
    cpu: usize,
    others: &CpuSet,
    deed: fn(),
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let (running, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let keep_doing = || {
        running.fetch_add(1, AcqRel);
        while !stop.load(Relaxed) {
            deed();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let companions: Result<Vec<_>> =
            others.iter().map(|other| affinity::spawn_on(scope, other, keep_doing)).collect();
        let outcome = companions.map(|companions| {
            // One that could not be confined has ended without running.
            let ended = || companions.iter().filter(|thread| thread.is_finished()).count();
            wait_until(|| running.load(Acquire) + ended() >= others.len());
            let result = affinity::on_cpu(cpu, work);
            (companions, result)
        });
        stop.store(true, Relaxed);
        let (companions, result) = outcome?;
        companions.into_iter().try_for_each(affinity::finish)?;
        result
    })
}

/// Runs `work` on `cpu` while a process of its own on each of `others` repeats `deed`. In the child, `deed` may only make
/// system calls and touch its own memory (fork(2): the parent has threads).
///
/// # Errors
/// When a process cannot be started or confined, and those of `work`.
pub fn with_processes<T: Send>(
    cpu: usize,
    others: &CpuSet,
    deed: fn(),
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    // Shared with the children: how many of them run, and how many could not be confined.
    let shared = Mapping::shared(4096)?;
    let (running, failed) = shared.as_counters();
    let children: Result<Vec<Child>> = others.iter().map(|other| Child::start(other, running, failed, deed)).collect();
    let children = children?;
    wait_until(|| running.load(Acquire) + failed.load(Acquire) >= others.len());
    if failed.load(Acquire) > 0 {
        return Err(ProbeError::NotMeasurable(format!("a process could not be confined to one of the CPUs {others}")));
    }
    let result = affinity::on_cpu(cpu, work);
    drop(children);
    result
}

/// A child process; killed and reaped when dropped.
struct Child(libc::pid_t);

impl Child {
    fn start(cpu: usize, running: &AtomicUsize, failed: &AtomicUsize, deed: fn()) -> Result<Self> {
        // SAFETY: the child makes only system calls, touches memory shared with the parent and runs `deed`, which by
        // contract does the same; it never returns from this function.
        match unsafe { libc::fork() } {
            -1 => Err(ProbeError::last("fork")),
            0 => live_on(cpu, running, failed, deed),
            pid => Ok(Self(pid)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the process is this one's own child and not yet reaped, so the number is still its.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            while libc::waitpid(self.0, std::ptr::null_mut(), 0) == -1
                && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
            {}
        }
    }
}

/// The life of a child: never returns, ends when killed.
fn live_on(cpu: usize, running: &AtomicUsize, failed: &AtomicUsize, deed: fn()) -> ! {
    // SAFETY: plain numbers; the child dies when the thread that started it does.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let count = if affinity::pin(cpu).is_ok() { running } else { failed };
    count.fetch_add(1, AcqRel);
    loop {
        deed();
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::spin_loop;

    fn one_allowed() -> usize {
        affinity::allowed().unwrap().iter().next().unwrap()
    }

    #[test]
    fn all_cpus_work_and_answer_in_order() {
        let allowed = affinity::allowed().unwrap();
        let next = AtomicUsize::new(0);
        let mut answers = on_all(&allowed, || Ok(next.fetch_add(1, Relaxed))).unwrap();
        answers.sort_unstable();
        assert_eq!(answers, (0..allowed.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_not_a_hang() {
        let nowhere = CpuSet::single(muster_model::cpuset::MAX_CPUS - 1);
        if affinity::allowed().unwrap().is_subset(&nowhere) {
            eprintln!("SKIPPED: a_cpu_that_is_not_there_is_an_error_not_a_hang: this machine has that CPU");
            return;
        }
        assert!(on_all(&nowhere, || Ok(())).is_err());
        assert!(with_threads(one_allowed(), &nowhere, spin_loop, || Ok(())).is_err());
        assert!(with_processes(one_allowed(), &nowhere, spin_loop, || Ok(())).is_err());
    }

    #[test]
    fn company_ends_with_the_work() {
        let cpu = one_allowed();
        let company = CpuSet::single(cpu);
        assert_eq!(with_threads(cpu, &company, spin_loop, || Ok(1)).unwrap(), 1);
        assert_eq!(with_processes(cpu, &company, spin_loop, || Ok(2)).unwrap(), 2);
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let shared = Mapping::shared(4096).unwrap();
        let (running, failed) = shared.as_counters();
        let child = Child::start(one_allowed(), running, failed, spin_loop).unwrap();
        let pid = child.0;
        wait_until(|| running.load(Acquire) == 1);
        drop(child);
        // SAFETY: signal 0 only asks whether the process exists.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
    }
}
