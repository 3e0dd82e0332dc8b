//! Windows in which BPF sees who of a program wakes whom, with the CPU time that each thread takes meanwhile.
//!
//! Needs root. Reads `/proc/TID/schedstat`; attaches and detaches raw tracepoints.

use crate::bpf::{BpfError, RunTimes, WakeTracer};
use crate::sampler::monotonic_ns;
use crate::tree::Tree;
use crate::wakes::Totals;
use muster_model::{ThreadId, ThreadLoad, WakeWindow};
use std::collections::BTreeMap;
use std::fs;

/// In so many windows the price of a tracepoint is measured: a program that has just begun is colder than it will be.
const CALIBRATED_WINDOWS: u32 = 4;
/// Of so many threads the CPU time is read; that of others is not known. One takes some microseconds.
const MAX_LOADS: usize = 512;

/// Looks at a program's wake-ups, one window after the other.
#[derive(Debug)]
pub struct PairWatch {
    tracer: WakeTracer,
    calibration: Option<RunTimes>,
    windows_opened: u32,
    open: Option<Open>,
    attached_ns: u64,
}

/// A window in which the tracepoints are attached.
#[derive(Debug)]
struct Open {
    since_ns: u64,
    /// The CPU time of each thread so far.
    cpu_ns: BTreeMap<u32, Option<u64>>,
}

impl PairWatch {
    /// Loads the BPF program; nothing is attached yet.
    ///
    /// # Errors
    /// Without root, in a muster built without BPF, or where the kernel refuses the program.
    pub fn load() -> Result<Self, BpfError> {
        let tracer = WakeTracer::load()?;
        Ok(Self { tracer, calibration: None, windows_opened: 0, open: None, attached_ns: 0 })
    }

    /// Whether a window is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens a window on the processes of `tree`.
    ///
    /// # Errors
    /// When there are more processes than can be watched, or the kernel refuses a tracepoint.
    pub fn open(&mut self, tree: &Tree) -> Result<(), BpfError> {
        if self.windows_opened < CALIBRATED_WINDOWS {
            self.calibration = RunTimes::keep();
        }
        self.tracer.watch(tree.processes().map(|process| process.id))?;
        self.tracer.attach()?;
        self.windows_opened += 1;
        self.open = Some(Open { since_ns: monotonic_ns(), cpu_ns: cpu_times(tree) });
        Ok(())
    }

    /// Closes the window, if one is open, and says what was seen in it.
    pub fn close(&mut self, tree: &Tree) -> Option<WakeWindow> {
        let before = self.open.take()?;
        // Both readings of CPU time come as late after their end of the window, so that they are as far apart.
        let window_ns = monotonic_ns() - before.since_ns;
        let threads = loads(&before.cpu_ns, &cpu_times(tree));
        self.tracer.detach();
        self.calibration = None;
        self.attached_ns += window_ns;
        Some(WakeWindow { window_ns, pairs: self.tracer.take_pairs(), threads })
    }

    /// For how long tracepoints were attached in all windows that are closed.
    pub fn attached_ns(&self) -> u64 {
        self.attached_ns
    }

    /// Sums over all windows.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn totals(&self) -> Result<Totals, BpfError> {
        self.tracer.totals()
    }

    /// How many tracepoints pass per second, over all windows so far, so that a program which begins slowly is not
    /// watched too closely; and what one takes in nanoseconds.
    ///
    /// # Errors
    /// When the sums cannot be read.
    pub fn rate_and_price(&self) -> Result<(f64, f64), BpfError> {
        let per_second = self.totals()?.events as f64 * 1e9 / self.attached_ns.max(1) as f64;
        Ok((per_second, self.price_ns().unwrap_or(0.0)))
    }

    /// What one tracepoint takes in nanoseconds, where the kernel tells.
    pub fn price_ns(&self) -> Option<f64> {
        self.tracer.price_ns()
    }
}

/// The CPU time of the threads of `tree`, as far as it is read and known.
fn cpu_times(tree: &Tree) -> BTreeMap<u32, Option<u64>> {
    tree.threads().enumerate().map(|(index, tid)| (tid, (index < MAX_LOADS).then(|| cpu_ns(tid)).flatten())).collect()
}

/// CPU time of a thread: the first number of its `schedstat` (Documentation/scheduler/sched-stats.rst).
fn cpu_ns(tid: u32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// What each thread took between two readings; those that were not there at one of them are listed without.
fn loads(before: &BTreeMap<u32, Option<u64>>, after: &BTreeMap<u32, Option<u64>>) -> Vec<ThreadLoad> {
    let mut loads: BTreeMap<u32, Option<u64>> = before.keys().map(|&tid| (tid, None)).collect();
    for (&tid, after) in after {
        let taken = || Some(after.as_ref()?.saturating_sub((*before.get(&tid)?)?));
        loads.insert(tid, taken());
    }
    loads.into_iter().map(|(tid, cpu_ns)| ThreadLoad { thread: ThreadId(tid), cpu_ns }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_what_was_taken_between_two_readings() {
        let before = BTreeMap::from([(1, Some(100)), (2, Some(50)), (3, None)]);
        let after = BTreeMap::from([(1, Some(160)), (3, Some(9)), (4, Some(7))]);
        let loads: Vec<_> = loads(&before, &after).iter().map(|load| (load.thread.0, load.cpu_ns)).collect();
        assert_eq!(loads, [(1, Some(60)), (2, None), (3, None), (4, None)]);
    }

    #[test]
    fn a_window_shows_who_wakes_whom_and_who_works() {
        let mut watch = match PairWatch::load() {
            Ok(watch) => watch,
            Err(error) => return eprintln!("SKIPPED: a_window_shows_who_wakes_whom_and_who_works: {error}"),
        };
        let (to, from) = std::sync::mpsc::channel::<u32>();
        let (back, answer) = std::sync::mpsc::channel();
        let echo = std::thread::spawn(move || from.iter().for_each(|n| back.send(n).unwrap()));
        let mut tree = Tree::new(std::process::id(), None).unwrap();
        let pass = |times| {
            for n in 0..times {
                to.send(n).unwrap();
                answer.recv().unwrap();
            }
        };
        pass(1);
        tree.refresh();
        assert_eq!(watch.close(&tree), None, "none is open");
        let windows = [2_000, 0].map(|times| {
            watch.open(&tree).unwrap();
            pass(times);
            watch.close(&tree).unwrap()
        });
        drop(to);
        echo.join().unwrap();
        let count = |window: &WakeWindow| window.pairs.iter().map(|pair| pair.count).sum::<u64>();
        let [busy, quiet] = &windows;
        assert!(busy.window_ns > 0 && count(busy) > 100, "{busy:?}");
        assert!(count(quiet) < count(busy) / 2, "each window counts for itself: {quiet:?}");
        assert!(busy.threads.iter().any(|load| load.cpu_ns > Some(0)), "{busy:?}");
        let (per_second, _) = watch.rate_and_price().unwrap();
        assert!(per_second > 0.0 && watch.attached_ns() >= busy.window_ns);
    }
}
