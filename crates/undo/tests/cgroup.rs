//! Cgroups, v1 and v2, on a machine where this test may make some.

mod common;

use common::*;
use muster_undo::{Change, Directory, Journal, Thread};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the cpuset hierarchy (v1) and the unified one (v2) are mounted.
fn mounts() -> (Option<PathBuf>, Option<PathBuf>) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let find = |kind: &str, option: &str| {
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mut matching = fields.filter(|f| f[2] == kind && f[3].split(',').any(|o| option.is_empty() || o == option));
        matching.next().map(|f| PathBuf::from(f[1]))
    };
    (find("cgroup", "cpuset"), find("cgroup2", ""))
}

/// A cgroup made here, and removed at the end whatever happens.
struct Made(PathBuf);

impl Made {
    fn new(test: &str, mount: Option<PathBuf>, name: &str) -> Option<Self> {
        let Some(mount) = mount else {
            eprintln!("SKIPPED: {test}: no such cgroup hierarchy is mounted");
            return None;
        };
        let path = mount.join(format!("{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                eprintln!("SKIPPED: {test}: cannot make a cgroup in {}: {error}", mount.display());
                None
            }
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _may_be_gone = fs::remove_dir(&self.0);
    }
}

fn members(cgroup: &Path, list: &str) -> Vec<u32> {
    let text = fs::read_to_string(cgroup.join(list)).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn v1_members_go_home_thread_by_thread() {
    let test = "v1_members_go_home_thread_by_thread";
    let (mount, _) = mounts();
    let Some(elsewhere) = Made::new(test, mount.clone(), "undo-test-elsewhere") else { return };
    let mount = mount.unwrap();
    let temp = private_directory();
    let journal = Journal::create(Directory::at(temp.path()).unwrap(), "v1").unwrap();
    let ours = mount.join(format!("muster-undo-test-{}", std::process::id()));
    let cgroup = journal.record(&Change::Cgroup { path: ours.clone(), home: mount.clone() }).unwrap();
    fs::create_dir(&ours).unwrap();
    for made in [&ours, &elsewhere.0] {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            fs::write(made.join(file), fs::read(mount.join(file)).unwrap()).unwrap();
        }
    }
    let program = sleeper(5, 2, "v1");
    let pid = program.child.id();
    let stray = *tasks(pid).last().unwrap();
    fs::write(elsewhere.0.join("tasks"), stray.to_string()).unwrap();
    let thread = Thread::of(pid, stray).unwrap();
    journal.record(&Change::Moved { cgroup, thread, home: elsewhere.0.clone() }).unwrap();
    for tid in tasks_of_tree(pid) {
        fs::write(ours.join("tasks"), tid.to_string()).unwrap();
    }
    assert_eq!(members(&ours, "tasks").len(), 15);
    let report = journal.restore();
    assert!(report.is_complete(), "{report:?}");
    assert!(!ours.exists());
    assert_eq!(members(&elsewhere.0, "tasks"), [stray]);
    let at_home = members(&mount, "tasks");
    assert!(tasks_of_tree(pid).iter().filter(|&&tid| tid != stray).all(|tid| at_home.contains(tid)));
    drop(program);
    wait_for("the stray thread's end", || members(&elsewhere.0, "tasks").is_empty());
}

#[test]
fn v2_members_go_home_even_while_they_fork() {
    let test = "v2_members_go_home_even_while_they_fork";
    let (_, mount) = mounts();
    let Some(home) = Made::new(test, mount.clone(), "undo-test-home") else { return };
    let mount = mount.unwrap();
    let temp = private_directory();
    let journal = Journal::create(Directory::at(temp.path()).unwrap(), "v2").unwrap();
    let ours = mount.join(format!("muster-undo-test-{}", std::process::id()));
    journal.record(&Change::Cgroup { path: ours.clone(), home: home.0.clone() }).unwrap();
    fs::create_dir(&ours).unwrap();
    let mut command = std::process::Command::new("bash");
    let mut program = Talker::start(command.args(["-c", "echo ready; while :; do (/bin/true & /bin/true); done"]));
    assert_eq!(program.line(), "ready");
    fs::write(ours.join("cgroup.procs"), program.child.id().to_string()).unwrap();
    wait_for("its children", || members(&ours, "cgroup.procs").len() > 1);
    let report = journal.restore();
    assert!(report.is_complete(), "{report:?}");
    assert!(!ours.exists());
    assert!(members(&home.0, "cgroup.procs").contains(&program.child.id()));
    program.kill();
    wait_for("the end of its children", || members(&home.0, "cgroup.procs").is_empty());
}

#[test]
fn only_cgroups_of_ours_can_be_recorded() {
    let temp = private_directory();
    let journal = Journal::create(Directory::at(temp.path()).unwrap(), "run").unwrap();
    for path in ["/sys/fs/cgroup/system.slice", "muster-relative"] {
        let change = Change::Cgroup { path: path.into(), home: "/sys/fs/cgroup".into() };
        assert!(journal.record(&change).is_err(), "{path}");
    }
    let ordinary = Change::Cgroup { path: temp.path().join("muster-x"), home: temp.path().to_owned() };
    assert!(journal.record(&ordinary).unwrap_err().to_string().contains("not in a cgroup file system"));
}
