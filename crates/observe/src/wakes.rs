//! What was seen of wake-ups, whoever saw it: plain sums, and the windows in which they were taken.

use muster_model::{ThreadId, ThreadLoad, WakePair, WakeWindow};
use std::collections::BTreeMap;

/// Wake-ups of one kind: how many, and the time from the wake-up until the thread ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    /// How many threads ran after such a wake-up.
    pub count: u64,
    /// Sum of their waits.
    pub sum_ns: u64,
}

impl Latency {
    /// The mean wait; `None` where there was none.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }
}

/// Sums over the time in which the tracepoints were attached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Tracepoints passed, those of other programs included.
    pub events: u64,
    /// Wake-ups of the program's threads.
    pub wakes: u64,
    /// Woken and run on the waker's CPU.
    pub same_cpu: Latency,
    /// Woken on another CPU, which was idle.
    pub idle_cpu: Latency,
    /// Woken on another CPU, which ran something else.
    pub busy_cpu: Latency,
    /// How many threads had slept 2^i to 2^(i+1) us before they were woken; the first holds all below 2 us.
    pub slept_log2_us: Vec<u64>,
}

impl Totals {
    /// The sleep that half of all wake-ups ended, in microseconds, to a factor of two; `None` where none was seen.
    pub fn median_sleep_us(&self) -> Option<f64> {
        let total: u64 = self.slept_log2_us.iter().sum();
        let mut passed = 0;
        let bucket = self.slept_log2_us.iter().position(|count| {
            passed += count;
            total > 0 && 2 * passed >= total
        })?;
        Some(1.5 * 2f64.powi(bucket as i32))
    }
}

/// What was seen of a program's wake-ups in a share of its time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WakesSeen {
    /// Sums over the time in which the tracepoints were attached.
    pub totals: Totals,
    /// Who woke whom in that time, most frequent first, and what CPU time each thread took.
    pub window: WakeWindow,
    /// What the observation took per tracepoint.
    pub price_ns: Option<f64>,
}

/// Sums over windows.
#[derive(Debug, Clone, Default)]
pub struct WindowSums {
    window_ns: u64,
    pairs: BTreeMap<(ThreadId, ThreadId), u64>,
    threads: BTreeMap<ThreadId, Option<u64>>,
}

impl WindowSums {
    /// Adds a window. What a thread took is known while it was known in any window that saw it.
    pub fn add(&mut self, window: &WakeWindow) {
        self.window_ns += window.window_ns;
        for pair in &window.pairs {
            *self.pairs.entry((pair.waker, pair.wakee)).or_default() += pair.count;
        }
        for load in &window.threads {
            let sum = self.threads.entry(load.thread).or_default();
            *sum = load.cpu_ns.map(|more_ns| sum.unwrap_or(0) + more_ns).or(*sum);
        }
    }

    /// All windows as one.
    pub fn window(&self) -> WakeWindow {
        let pair = |(&(waker, wakee), &count): (&(ThreadId, ThreadId), &u64)| WakePair { waker, wakee, count };
        let mut pairs: Vec<WakePair> = self.pairs.iter().map(pair).collect();
        pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.count), pair.waker, pair.wakee));
        let threads = self.threads.iter().map(|(&thread, &cpu_ns)| ThreadLoad { thread, cpu_ns }).collect();
        WakeWindow { window_ns: self.window_ns, pairs, threads }
    }
}

/// For how long tracepoints are attached, and how often: `window_ns` of every `period_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Attached.
    pub window_ns: u64,
    /// From one beginning to the next; attached all the time where it is no longer than the window.
    pub period_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_add_up() {
        let window = |loads: &[(u32, Option<u64>)], pairs: &[(u32, u32, u64)]| WakeWindow {
            window_ns: 10,
            pairs: pairs
                .iter()
                .map(|&(waker, wakee, count)| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count })
                .collect(),
            threads: loads.iter().map(|&(thread, cpu_ns)| ThreadLoad { thread: ThreadId(thread), cpu_ns }).collect(),
        };
        let mut sums = WindowSums::default();
        sums.add(&window(&[(1, Some(5)), (2, None)], &[(1, 2, 3)]));
        sums.add(&window(&[(1, Some(4)), (2, None), (3, Some(1))], &[(1, 2, 3), (2, 1, 9)]));
        let wanted = window(&[(1, Some(9)), (2, None), (3, Some(1))], &[(2, 1, 9), (1, 2, 6)]);
        assert_eq!(sums.window(), WakeWindow { window_ns: 20, ..wanted });
    }

    #[test]
    fn median_sleep_is_read_off_the_buckets() {
        let totals = |slept: &[u64]| Totals { slept_log2_us: slept.to_vec(), ..Totals::default() };
        assert_eq!(totals(&[]).median_sleep_us(), None);
        assert_eq!(totals(&[0, 0]).median_sleep_us(), None);
        assert_eq!(totals(&[5]).median_sleep_us(), Some(1.5));
        assert_eq!(totals(&[1, 1, 0, 9, 1]).median_sleep_us(), Some(12.0));
        assert_eq!(Latency { count: 4, sum_ns: 10 }.mean_ns(), Some(2.5));
        assert_eq!(Latency::default().mean_ns(), None);
    }
}
