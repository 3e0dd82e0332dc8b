//! How many threads of the program are runnable, looked at now and then: the state letter of every thread
//! (proc_pid_stat(5)). A thread is runnable from the moment it is woken, so what no look finds runnable waited for the
//! outside: a timer, a disk, a network, a person.

use crate::sampler::monotonic_ns;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Looks cost at most this share of one CPU.
const BUDGET: f64 = 0.005;
/// More threads than this are not looked at: the looks would come too far apart to tell anything.
const MAX_THREADS: usize = 128;
/// Time between two looks at the closest.
const CLOSEST_NS: u64 = 7_000_000;

/// What the looks found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Looks {
    /// How often it was looked.
    pub looks: u64,
    /// How many of those found no thread runnable.
    pub none: u64,
    /// How many found two or more.
    pub several: u64,
}

impl Looks {
    /// The looks since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self { looks: self.looks - before.looks, none: self.none - before.none, several: self.several - before.several }
    }

    /// Share of the time in which no thread was runnable; `None` without a look.
    pub fn outside(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.none as f64 / self.looks as f64)
    }

    /// Share of the time in which two or more threads were runnable; `None` without a look.
    pub fn together(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.several as f64 / self.looks as f64)
    }
}

/// Looks at the states of a program's threads.
#[derive(Debug, Default)]
pub struct StateLooks {
    files: HashMap<u32, File>,
    found: Looks,
    due_ns: u64,
}

impl StateLooks {
    /// Looks if it is time, and says when to come again. `threads` is asked for only if it is time.
    pub fn look(&mut self, threads: impl Iterator<Item = u32>) -> u64 {
        let begin_ns = monotonic_ns();
        if begin_ns < self.due_ns {
            return self.due_ns;
        }
        let threads: Vec<u32> = threads.take(MAX_THREADS + 1).collect();
        if threads.len() <= MAX_THREADS {
            // Threads that hand over to each other can each be asleep when it is looked at: nobody means nobody twice.
            let runnable = match self.runnable(&threads) {
                0 => self.runnable(&threads),
                some => some,
            };
            self.found.looks += 1;
            self.found.none += u64::from(runnable == 0);
            self.found.several += u64::from(runnable > 1);
        }
        let now_ns = monotonic_ns();
        let pause_ns = ((now_ns - begin_ns) as f64 / BUDGET) as u64;
        // Uneven pauses do not fall in step with a program's own timers.
        let jitter_ns = now_ns % (CLOSEST_NS / 2);
        self.due_ns = now_ns + pause_ns.max(CLOSEST_NS) + jitter_ns;
        self.due_ns
    }

    /// What was found so far.
    pub fn found(&self) -> Looks {
        self.found
    }

    fn runnable(&mut self, threads: &[u32]) -> usize {
        let mut files = HashMap::with_capacity(threads.len());
        let mut runnable = 0;
        for &tid in threads {
            let known = self.files.remove(&tid);
            let Some(file) = known.or_else(|| File::open(format!("/proc/{tid}/stat")).ok()) else { continue };
            let mut text = [0u8; 128];
            if let Ok(length) = file.read_at(&mut text, 0) {
                runnable += usize::from(state(&text[..length]) == Some(b'R'));
                files.insert(tid, file);
            }
        }
        self.files = files;
        runnable
    }
}

/// The state letter in the beginning of a stat line; the command name in parentheses has at most 64 bytes.
fn state(text: &[u8]) -> Option<u8> {
    let end = text.iter().take(96).rposition(|&byte| byte == b')')?;
    text.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_state_behind_any_name() {
        assert_eq!(state(b"12 (a b) c) R 1 2"), Some(b'R'));
        assert_eq!(state(b"12 (x) S"), Some(b'S'));
        assert_eq!(state(b"12 (x"), None);
        assert_eq!(state(b"12 (x)"), None);
    }

    #[test]
    fn this_thread_runs_while_it_looks() {
        let mut looks = StateLooks::default();
        // SAFETY: gettid takes nothing and cannot fail.
        let me = unsafe { libc::gettid() } as u32;
        let due_ns = looks.look([me].into_iter());
        assert!(due_ns > monotonic_ns());
        assert_eq!(looks.found(), Looks { looks: 1, none: 0, several: 0 });
        looks.look([me].into_iter());
        assert_eq!(looks.found().looks, 1, "not due yet");
    }

    #[test]
    fn shares_are_of_the_looks() {
        let looks = Looks { looks: 100, none: 20, several: 50 };
        assert_eq!((looks.outside(), looks.together()), (Some(0.2), Some(0.5)));
        assert_eq!(Looks::default().outside(), None);
        assert_eq!(looks.since(&Looks { looks: 60, none: 20, several: 10 }), Looks { looks: 40, none: 0, several: 40 });
    }
}
