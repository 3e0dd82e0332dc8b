//! All settings of a machine as they are now, file by file, to be compared with what they are later.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a host's settings are. Links among them (a device's driver, its IOMMU group) are part of it.
const ROOTS: [&str; 12] = [
    "/proc/irq",
    "/proc/sys",
    "/sys/bus/pci",
    "/sys/class/net",
    "/sys/devices/pci0000:00",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/iommu_groups",
    "/sys/kernel/mm",
    "/sys/kernel/tracing/instances",
    "/sys/module",
    "/dev/vfio",
];
/// Files that act when read, or in which the kernel keeps its own accounts: no settings.
const LEFT_OUT: [&str; 16] = [
    "uuid",
    "resource",
    "rom",
    "config",
    "vpd",
    "rescan",
    "spurious",
    "ns_last_pid",
    "cgroup.procs",
    "cgroup.threads",
    "full_scans",
    "refcnt",
    // Which of the CPUs that it may go to an interrupt does go to is the kernel's choice.
    "effective_affinity",
    "effective_affinity_list",
    // How many have been made.
    "nr_dying_descendants",
    "runtime_suspended_time",
];
const ACCOUNTS: [&str; 5] = ["stat", "pressure", "current", "peak", "events"];
/// A longer file is compared by its beginning.
const LONGEST: u64 = 4096;

/// A path and what it reads, or where it leads; nothing for what changes by itself.
pub type Snapshot = BTreeMap<PathBuf, Option<String>>;

/// The settings now. What differs between two looks changes by itself.
pub fn settled() -> Snapshot {
    let mut first = look();
    std::thread::sleep(Duration::from_millis(200));
    let mut second = look();
    first.retain(|path, _| second.contains_key(path));
    first.iter_mut().for_each(|(path, content)| {
        *content = content.take().filter(|was| second.remove(path).flatten().as_ref() == Some(was))
    });
    first
}

fn look() -> Snapshot {
    let mut todo: Vec<PathBuf> = ROOTS.iter().map(PathBuf::from).filter(|root| root.exists()).collect();
    let mut found: Snapshot = todo.iter().map(|root| (root.clone(), None)).collect();
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap_or_default();
                found.insert(path, Some(format!("-> {}", target.display())));
            } else if kind.is_dir() && path.ends_with("sections") {
                // Where a module's parts lie in memory.
            } else if kind.is_dir() {
                found.insert(path.clone(), None);
                todo.push(path);
            } else if is_setting(&path) {
                found.insert(path.clone(), Some(content(&path)));
            }
        }
    }
    found
}

fn is_setting(path: &Path) -> bool {
    let is_account =
        path.extension().is_some_and(|end| ACCOUNTS.iter().any(|account| end.to_string_lossy().ends_with(account)));
    !LEFT_OUT.iter().any(|name| path.ends_with(name)) && !is_account && !path.starts_with("/proc/sys/fs")
}

fn content(path: &Path) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    match fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes)) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("({error})"),
    }
}

/// What differs now from a snapshot, a line a file; nothing, when all is as it was. What is new counts only where
/// devices and drivers are, for the kernel makes files of its own elsewhere.
pub fn differences(before: &Snapshot) -> Vec<String> {
    let now = look();
    let changed = before.iter().filter_map(|(path, was)| match (was, now.get(path)) {
        (_, None) => Some(format!("{}: is gone", path.display())),
        (Some(was), Some(Some(is))) if was != is => Some(format!("{}: was {was:?}, is {is:?}", path.display())),
        _ => None,
    });
    let seen = |path: &Path| before.contains_key(path);
    let is_new = |path: &PathBuf| {
        ["/sys/bus/pci", "/sys/kernel/iommu_groups", "/dev/vfio", "/sys/kernel/tracing/instances", "/sys/fs/cgroup"]
            .iter()
            .any(|root| path.starts_with(root))
            && !seen(path)
            && path.parent().is_some_and(seen)
    };
    changed.chain(now.keys().filter(|path| is_new(path)).map(|path| format!("{}: is new", path.display()))).collect()
}
