//! Who a process or thread is: its number together with its start time, which a later user of the same number cannot
//! share (proc_pid_stat(5), field 22, in clock ticks since boot).

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

/// A process, proof against reuse of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start: u64,
}

/// A thread, proof against reuse of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Thread {
    /// The process it belongs to (its thread group).
    pub pid: u32,
    /// Its number.
    pub tid: u32,
    /// When it started, in clock ticks since boot; it differs from the start of its process.
    pub start: u64,
}

/// What `/proc/PID/stat` says about who a task is.
pub(crate) struct Stat {
    pub parent: u32,
    pub start: u64,
    /// A zombie or already dead: it runs no more and changes nothing.
    pub ended: bool,
}

impl Process {
    /// The process now using number `pid`.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, start: Stat::read(format!("/proc/{pid}/stat"))?.start })
    }

    /// The calling process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn this() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Whether any thread of this very process still runs; a zombie does not. In a process that is being killed the
    /// first thread can be a zombie while another one still finishes a system call.
    pub fn is_alive(&self) -> bool {
        let Ok(stat) = Stat::read(format!("/proc/{}/stat", self.pid)) else { return false };
        stat.start == self.start && (!stat.ended || self.has_living_threads())
    }

    fn has_living_threads(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        tasks.map(|task| task.path().join("stat")).any(|path| Stat::read(path).is_ok_and(|stat| !stat.ended))
    }
}

impl Thread {
    /// The thread now using number `tid` in process `pid`.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: u32, tid: u32) -> io::Result<Self> {
        Ok(Self { pid, tid, start: Stat::read(format!("/proc/{pid}/task/{tid}/stat"))?.start })
    }

    /// Whether this very thread still runs; a zombie does not.
    pub fn is_alive(&self) -> bool {
        Stat::read(format!("/proc/{}/task/{}/stat", self.pid, self.tid))
            .is_ok_and(|stat| stat.start == self.start && !stat.ended)
    }
}

impl Stat {
    pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        let text = fs::read(&path)?;
        Self::parse(&String::from_utf8_lossy(&text))
            .ok_or_else(|| io::Error::other(format!("{} is not a task's stat", path.as_ref().display())))
    }

    /// Field 2 is the command in parentheses and may itself hold blanks and parentheses, so fields count from the last
    /// closing one.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            parent: field(4)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
            ended: matches!(field(3)?, "Z" | "X" | "x"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_may_hold_anything() {
        let stat = Stat::parse("7 (a) Z 1 (b)) S 3 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 9876 0 0\n").unwrap();
        assert_eq!((stat.parent, stat.start, stat.ended), (3, 9876, false));
        assert!(Stat::parse("7 (a) Z 3").is_none());
    }

    #[test]
    fn another_start_time_is_another_process() {
        let this = Process::this().unwrap();
        assert!(this.is_alive());
        assert!(!Process { start: this.start + 1, ..this }.is_alive());
    }
}
