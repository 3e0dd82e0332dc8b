//! Undoing a cgroup, v1 or v2 (cgroups(7)): its living members go home, then it is removed.

use super::Mode;
use crate::Thread;
use crate::report::Outcome;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Every cgroup of ours is named so, and no other one is ever removed.
const PREFIX: &str = "muster-";
/// Members may fork while they are being moved, and dying ones stay until they are dead, so moving and removing go on
/// until both are done, or this has passed.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);

/// The version of the cgroup hierarchy that `path` is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

fn version(path: &Path) -> io::Result<Option<Version>> {
    Ok(match rustix::fs::statfs(path)?.f_type {
        libc::CGROUP_SUPER_MAGIC => Some(Version::V1),
        libc::CGROUP2_SUPER_MAGIC => Some(Version::V2),
        _ => None,
    })
}

/// Whether the cgroup to be made at `path` can be undone.
pub(super) fn check(path: &Path, home: &Path) -> Result<(), String> {
    if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) {
        return Err(format!("its name must start with `{PREFIX}`"));
    }
    let parent = path.parent().ok_or("it has no parent")?;
    for directory in [parent, home] {
        match version(directory) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(format!("{} is not in a cgroup file system", directory.display())),
            Err(error) => return Err(format!("{}: {error}", directory.display())),
        }
    }
    Ok(())
}

pub(super) fn check_controller(parent: &Path) -> Result<(), String> {
    match version(parent) {
        Ok(Some(Version::V2)) => Ok(()),
        Ok(_) => Err(format!("{} is not in a cgroup v2 file system", parent.display())),
        Err(error) => Err(format!("{}: {error}", parent.display())),
    }
}

pub(super) fn undo(path: &Path, home: &Path, moved: &HashMap<Thread, PathBuf>, mode: Mode) -> io::Result<Outcome> {
    let Some(version) = version(path)? else {
        return Ok(Outcome::LeftAlone("it is not in a cgroup file system any more".to_owned()));
    };
    if mode == Mode::DryRun {
        return Ok(Outcome::Restored);
    }
    // Dying takes CPU time, which an idle group (`cpu.idle`) on a busy machine gets next to none of.
    let _where_it_is_one = fs::write(path.join("cpu.idle"), "0");
    let start = Instant::now();
    let mut why = String::new();
    while start.elapsed() < PATIENCE {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(Outcome::Restored),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
        match send_home(path, home, moved, version) {
            Ok(0) => {
                if let Some(child) = children(path)?.first() {
                    let why = format!("it has a cgroup that muster did not make: {}", child.display());
                    return Ok(Outcome::Failed(why));
                }
            }
            // The kernel takes the order to move a dying member and leaves it where it is.
            Ok(count) => why = format!("{count} members are still dying"),
            Err(error) => why = error.to_string(),
        }
        sleep(PAUSE);
    }
    Ok(Outcome::Failed(format!("its members could not be moved away: {why}")))
}

/// Moves each member to the directory it came from, or to `home`; says how many.
fn send_home(path: &Path, home: &Path, moved: &HashMap<Thread, PathBuf>, version: Version) -> io::Result<usize> {
    let (list, members) = members(path, version)?;
    let homes: HashMap<u32, &PathBuf> =
        moved.iter().filter(|(thread, _)| thread.is_alive()).map(|(thread, home)| (thread.tid, home)).collect();
    let mut count = 0;
    for member in members {
        let target = existing(homes.get(&member).map_or(home, |home| home.as_path()));
        match fs::write(target.join(list), member.to_string()) {
            Ok(()) => count += 1,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => count += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// The members, and the file that they are moved through: single threads in v1 and in threaded cgroups of v2.
fn members(path: &Path, version: Version) -> io::Result<(&'static str, Vec<u32>)> {
    let list = |name| numbers(&path.join(name)).map(|members| (name, members));
    match version {
        Version::V1 => list("tasks"),
        Version::V2 => match list("cgroup.procs") {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => list("cgroup.threads"),
            other => other,
        },
    }
}

fn numbers(path: &Path) -> io::Result<Vec<u32>> {
    Ok(fs::read_to_string(path)?.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// `home`, or where it has been removed the nearest ancestor that is left.
fn existing(home: &Path) -> &Path {
    home.ancestors().find(|directory| directory.is_dir()).unwrap_or(home)
}

fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.path())).filter(|child| child.is_dir()).collect())
}

/// Disables a controller for the children of `parent`, unless one of them has come to use it.
pub(super) fn undo_controller(parent: &Path, name: &str, mode: Mode) -> io::Result<Outcome> {
    let control = parent.join("cgroup.subtree_control");
    if !fs::read_to_string(&control)?.split_ascii_whitespace().any(|enabled| enabled == name) {
        return Ok(Outcome::Nothing);
    }
    let limited =
        |child: &PathBuf| fs::read_to_string(child.join("cpuset.cpus")).is_ok_and(|cpus| !cpus.trim().is_empty());
    if let Some(user) = children(parent)?.into_iter().find(|child| name == "cpuset" && limited(child)) {
        return Ok(Outcome::LeftAlone(format!("{} uses it now", user.display())));
    }
    if mode == Mode::DryRun {
        return Ok(Outcome::Restored);
    }
    match super::write_kernel_file(&control, &format!("-{name}")) {
        Ok(()) => Ok(Outcome::Restored),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Ok(Outcome::LeftAlone("a child cgroup passes it on to its own children".to_owned()))
        }
        Err(error) => Err(error),
    }
}
