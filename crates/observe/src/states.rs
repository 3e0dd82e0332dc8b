//! How many threads of the program are runnable, looked at now and then: the state letter of every thread
//! (proc_pid_stat(5)). A thread is runnable from the moment it is woken, so what no look finds runnable waited for the
//! outside: a timer, a disk, a network, a person.

use crate::sampler::monotonic_ns;
use crate::tree::Tree;
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
    /// Looks if it is time, and says when to come again. Before a look `tree` is refreshed: a script's processes live
    /// for milliseconds.
    pub fn look(&mut self, tree: &mut Tree) -> u64 {
        let begin_ns = monotonic_ns();
        if begin_ns < self.due_ns {
            return self.due_ns;
        }
        // Threads that hand over to each other can each be asleep when it is looked at: nobody means nobody twice.
        let runnable = match self.runnable(tree) {
            Some(0) => self.runnable(tree),
            some => some,
        };
        if let Some(runnable) = runnable {
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

    /// How many threads are runnable; `None` when they are too many to look at.
    fn runnable(&mut self, tree: &mut Tree) -> Option<usize> {
        tree.refresh();
        let threads: Vec<u32> = tree.threads().take(MAX_THREADS + 1).collect();
        if threads.len() > MAX_THREADS {
            return None;
        }
        let mut files = HashMap::with_capacity(threads.len());
        let mut runnable = 0;
        for tid in threads {
            let known = self.files.remove(&tid);
            let Some(file) = known.or_else(|| File::open(format!("/proc/{tid}/stat")).ok()) else { continue };
            let mut text = [0u8; 128];
            if let Ok(length) = file.read_at(&mut text, 0) {
                runnable += usize::from(state(&text[..length]) == Some(b'R'));
                files.insert(tid, file);
            }
        }
        self.files = files;
        Some(runnable)
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
    fn this_process_runs_while_it_looks() {
        let mut looks = StateLooks::default();
        let mut tree = Tree::new(std::process::id(), None).unwrap();
        let due_ns = looks.look(&mut tree);
        assert!(due_ns > monotonic_ns());
        let found = looks.found();
        assert_eq!((found.looks, found.none), (1, 0));
        looks.look(&mut tree);
        assert_eq!(looks.found(), found, "not due yet");
    }

    #[test]
    fn shares_are_of_the_looks() {
        let looks = Looks { looks: 100, none: 20, several: 50 };
        assert_eq!((looks.outside(), looks.together()), (Some(0.2), Some(0.5)));
        assert_eq!(Looks::default().outside(), None);
        assert_eq!(looks.since(&Looks { looks: 60, none: 20, several: 10 }), Looks { looks: 40, none: 0, several: 40 });
    }
}
