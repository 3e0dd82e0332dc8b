//! The program's own cgroups in the v1 `cpuset` and `cpuacct` hierarchies.
//!
//! A v1 hierarchy per controller can be joined without leaving anything else. In the v2 hierarchy a group of its own
//! would take the program out of the limits it runs under (cgroups(7), "no internal processes"), so there the affinity
//! of every thread is set instead.

use muster_model::CpuSet;
use muster_undo::{Change, Journal};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Folders made for one program, and open files that a new process joins them by.
#[derive(Debug)]
pub struct ProgramCgroup {
    cpuset: PathBuf,
    cpus: File,
    cpuacct: Option<PathBuf>,
}

impl ProgramCgroup {
    /// Makes the folders, journaled; `None` where there is no v1 cpuset hierarchy that this user may use.
    pub fn create(journal: &Journal, allowed: &CpuSet) -> Option<Self> {
        let cpuset = make(journal, "cpuset")?;
        let mems = fs::read_to_string(cpuset.parent()?.join("cpuset.effective_mems")).ok()?;
        fs::write(cpuset.join("cpuset.mems"), mems.trim()).ok()?;
        let cpus = OpenOptions::new().write(true).open(cpuset.join("cpuset.cpus")).ok()?;
        let group = Self { cpuset, cpus, cpuacct: make(journal, "cpuacct") };
        group.set_cpus(allowed).ok()?;
        Some(group)
    }

    /// Restricts the program to `cpus`.
    pub fn set_cpus(&self, cpus: &CpuSet) -> io::Result<()> {
        (&self.cpus).write_all(cpus.to_string().as_bytes())
    }

    /// Where its CPU time is accounted for.
    pub fn cpuacct(&self) -> Option<&Path> {
        self.cpuacct.as_deref()
    }

    /// Where only its processes live.
    pub fn folder(&self) -> PathBuf {
        self.cpuset.clone()
    }

    /// The list of its processes.
    pub fn procs(&self) -> PathBuf {
        self.cpuset.join("cgroup.procs")
    }

    /// Files into which a process writes `0` to join.
    pub fn doors(&self) -> io::Result<Vec<File>> {
        let open = |folder: &PathBuf| OpenOptions::new().write(true).open(folder.join("cgroup.procs"));
        std::iter::once(&self.cpuset).chain(&self.cpuacct).map(open).collect()
    }
}

/// A cgroup for pause loops, in which the kernel runs them only when nothing else wants the CPU (`cpu.idle`, v1 `cpu`).
pub fn idle_group(journal: &Journal) -> Option<File> {
    let folder = make(journal, "cpu")?;
    fs::write(folder.join("cpu.idle"), "1").ok()?;
    OpenOptions::new().write(true).open(folder.join("cgroup.procs")).ok()
}

/// Makes `muster-RUN` under this process's own group in a v1 hierarchy.
fn make(journal: &Journal, controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let home = own_group(&mounts, &groups, controller)?;
    let path = home.join(format!("muster-{}", journal.run()));
    // Whoever may not make it would only leave a line in the journal.
    rustix::fs::access(&home, rustix::fs::Access::WRITE_OK).ok()?;
    journal.record(&Change::Cgroup { path: path.clone(), home }).ok()?;
    fs::create_dir(&path).ok()?;
    Some(path)
}

/// The folder of this process's group in the v1 hierarchy of `controller`, from the texts of `/proc/self/mountinfo`
/// (proc_pid_mountinfo(5)) and `/proc/self/cgroup` (cgroups(7)).
fn own_group(mounts: &str, groups: &str, controller: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut kind = right.split(' ');
        let is_v1 = kind.next()? == "cgroup";
        let has = kind.nth(1)?.split(',').any(|option| option == controller);
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        (is_v1 && has).then_some((root, point))
    })?;
    let own = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next()?;
        names.split(',').any(|name| name == controller).then(|| fields.next())?
    })?;
    let (root, point) = mount;
    let below = own.strip_prefix(root.trim_end_matches('/'))?;
    Some(Path::new(point).join(below.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_own_group() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      32 24 0:28 /outer /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
        let groups = "3:cpuset:/outer/inner\n2:cpu,cpuacct:/\n0::/user\n";
        assert_eq!(own_group(mounts, groups, "cpuset"), Some("/sys/fs/cgroup/cpuset/inner".into()));
        assert_eq!(own_group(mounts, groups, "cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(own_group(mounts, groups, "memory"), None);
        assert_eq!(own_group("", "", "cpuset"), None);
    }
}
