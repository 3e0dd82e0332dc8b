//! Which processes and threads belong to the program under watch. Reads /proc only.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// A process or thread that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Process or thread number.
    pub id: u32,
    /// Start time in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start_ticks: u64,
}

/// What `/proc/PID/stat` says of a process or thread, as far as it is needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// State letter.
    pub state: u8,
    /// Parent process.
    pub parent: u32,
    /// Minor page faults.
    pub minor_faults: u64,
    /// Minor page faults of children that were waited for.
    pub minor_faults_of_children: u64,
    /// User-mode CPU time in clock ticks.
    pub user_ticks: u64,
    /// Kernel-mode CPU time in clock ticks.
    pub system_ticks: u64,
    /// User-mode CPU time of children that were waited for, in clock ticks.
    pub user_ticks_of_children: u64,
    /// Kernel-mode CPU time of children that were waited for, in clock ticks.
    pub system_ticks_of_children: u64,
    /// Live threads.
    pub threads: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Resident memory in pages.
    pub resident_pages: u64,
}

impl Stat {
    /// Parses the text of `/proc/PID/stat` (proc_pid_stat(5)); the command name in parentheses may hold anything.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = &text[text.rfind(')')? + 1..];
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: number(1)? as u32,
            minor_faults: number(7)?,
            minor_faults_of_children: number(8)?,
            user_ticks: number(11)?,
            system_ticks: number(12)?,
            user_ticks_of_children: number(13)?,
            system_ticks_of_children: number(14)?,
            threads: number(17)? as u32,
            start_ticks: number(19)?,
            resident_pages: number(21)?,
        })
    }

    /// Reads the stat of a process; `None` when it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Whether the process has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// A process of the program and its threads, as of the last refresh.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    start_ticks: u64,
    threads: Vec<u32>,
}

/// The processes of a program: its root and all descendants, also those whose parents have ended.
#[derive(Debug, Clone)]
pub struct Tree {
    root: Identity,
    /// A process whose orphaned descendants were given to `reaper` by the kernel (PR_SET_CHILD_SUBREAPER, prctl(2)).
    reaper: Option<u32>,
    not_ours: Vec<u32>,
    members: BTreeMap<u32, Member>,
    cgroup_procs: Option<PathBuf>,
}

impl Tree {
    /// The tree under process `root`; `None` when there is no such process. With `reaper`, its other children count
    /// as descendants too, except those named by [`Tree::exclude`].
    pub fn new(root: u32, reaper: Option<u32>) -> Option<Self> {
        let start_ticks = Stat::of(root)?.start_ticks;
        let mut tree = Self {
            root: Identity { id: root, start_ticks },
            reaper,
            not_ours: Vec::new(),
            members: BTreeMap::from([(root, Member { start_ticks, threads: vec![root] })]),
            cgroup_procs: None,
        };
        tree.refresh();
        Some(tree)
    }

    /// The tree of everything in a cgroup, whose `cgroup.procs` is `procs`; `root` is the program's first process.
    pub fn in_cgroup(root: u32, procs: PathBuf) -> Option<Self> {
        let mut tree = Self::new(root, None)?;
        tree.cgroup_procs = Some(procs);
        tree.refresh();
        Some(tree)
    }

    /// Leaves a child of the reaper out (a helper of muster's own).
    pub fn exclude(&mut self, pid: u32) {
        self.not_ours.push(pid);
        self.members.remove(&pid);
    }

    /// The process the program began with.
    pub fn root(&self) -> Identity {
        self.root
    }

    /// The processes found at the last refresh.
    pub fn processes(&self) -> impl Iterator<Item = Identity> + '_ {
        self.members.iter().map(|(&id, member)| Identity { id, start_ticks: member.start_ticks })
    }

    /// The threads found at the last refresh, of all processes.
    pub fn threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.values().flat_map(|member| member.threads.iter().copied())
    }

    /// Looks again; costs a few microseconds per process and one read per thread.
    pub fn refresh(&mut self) {
        let mut found = BTreeMap::new();
        let mut pending: Vec<u32> = match &self.cgroup_procs {
            Some(procs) => list(&fs::read_to_string(procs).unwrap_or_default()),
            None => self.members.keys().copied().chain(self.reaper.into_iter().flat_map(reaped_by)).collect(),
        };
        while let Some(pid) = pending.pop() {
            if found.contains_key(&pid) || self.not_ours.contains(&pid) {
                continue;
            }
            let Some(stat) = Stat::of(pid).filter(|stat| !stat.is_dead()) else { continue };
            let is_known = self.members.get(&pid).is_some_and(|known| known.start_ticks == stat.start_ticks);
            let is_ours = is_known || self.cgroup_procs.is_some() || self.is_descendant(stat.parent, &found);
            if !is_ours {
                continue;
            }
            let threads = threads(pid);
            if self.cgroup_procs.is_none() {
                pending.extend(threads.iter().flat_map(|&tid| children(pid, tid)));
            }
            found.insert(pid, Member { start_ticks: stat.start_ticks, threads });
        }
        self.members = found;
    }

    fn is_descendant(&self, parent: u32, found: &BTreeMap<u32, Member>) -> bool {
        found.contains_key(&parent) || self.reaper == Some(parent)
    }

    /// Whether any process of the program was alive at the last refresh.
    pub fn is_alive(&self) -> bool {
        !self.members.is_empty()
    }
}

/// The threads of a process, ascending; empty when it is gone.
pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut threads: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

/// The children of one thread (proc_tid_children(5)).
fn children(pid: u32, tid: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).map(|text| list(&text)).unwrap_or_default()
}

/// The children of every thread of `pid`.
fn reaped_by(pid: u32) -> Vec<u32> {
    threads(pid).into_iter().flat_map(|tid| children(pid, tid)).collect()
}

fn list(text: &str) -> Vec<u32> {
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn stat_survives_any_command_name() {
        let text = "1 (a) b (c)) S 7 8 9 0 -1 4194560 10 11 12 13 14 15 16 17 20 0 3 0 99 1 77 9";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.minor_faults, stat.user_ticks, stat.system_ticks), (7, 10, 14, 15));
        assert_eq!((stat.threads, stat.start_ticks, stat.state), (3, 99, b'S'));
        assert_eq!((stat.user_ticks_of_children, stat.system_ticks_of_children), (16, 17));
        assert_eq!((stat.minor_faults_of_children, stat.resident_pages), (11, 77));
        for broken in ["", ")", "1 (x", "1 (x) S 1 2"] {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn follows_grandchildren() {
        let mut child = Command::new("sh").args(["-c", "sh -c 'sleep 30; true' & wait"]).spawn().unwrap();
        let mut tree = Tree::new(child.id(), None).unwrap();
        for _ in 0..200 {
            tree.refresh();
            if tree.processes().count() == 3 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let members: Vec<Identity> = tree.processes().collect();
        assert_eq!(members.len(), 3);
        for member in &members {
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(member.id as i32).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
        }
        child.wait().unwrap();
        tree.refresh();
        assert!(tree.processes().all(|member| member.id != child.id()));
    }
}
