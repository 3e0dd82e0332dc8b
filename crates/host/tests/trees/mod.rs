//! Recorded trees of sysfs and procfs, and what makes files of them.
//!
//! A tree is a text, a line an entry: `PATH = CONTENT` is a file (`\n`, `\t` and `\0` in it are escapes; a newline ends
//! it), `r PATH = CONTENT` one that is read-only, `PATH -> TARGET` a symbolic link, `PATH/` a directory; `#` starts a
//! comment.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An Intel host with eight CPUs, two VMs of QEMU with twelve vCPUs, and an 82599.
pub const INTEL: &str = include_str!("intel.tree");
/// An AMD host with four CPUs, one VM of Firecracker with its own CPUs and one of Cloud Hypervisor.
pub const AMD: &str = include_str!("amd.tree");
/// A machine without KVM.
pub const NO_KVM: &str = include_str!("no-kvm.tree");

/// Files that act when they are written and hold nothing: reading them back says nothing.
const TRIGGERS: [&str; 3] = ["bind", "unbind", "drivers_probe"];

/// Makes the files of a tree in a directory of their own.
pub fn make(tree: &str) -> TempDir {
    let root = tempfile::tempdir().expect("a directory for a tree");
    for line in tree.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        entry(root.path(), line);
    }
    root
}

fn entry(root: &Path, line: &str) {
    let place = |path: &str| {
        let place = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().expect("a path has a parent")).expect("directories of a tree");
        place
    };
    if let Some((path, target)) = line.split_once(" -> ") {
        symlink(target, place(path)).expect("a link of a tree");
    } else if let Some((path, content)) = line.split_once(" = ") {
        let (path, mode) = path.strip_prefix("r ").map_or((path, 0o644), |path| (path, 0o444));
        let content = content.replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "\0");
        fs::write(place(path), content + "\n").expect("a file of a tree");
        fs::set_permissions(place(path), Permissions::from_mode(mode)).expect("the mode of a file of a tree");
    } else {
        let path = line.strip_suffix('/').unwrap_or_else(|| panic!("no entry of a tree: {line}"));
        fs::create_dir_all(place(path)).expect("a directory of a tree");
    }
}

/// A tree with other lines in the place of those for the same paths, and more lines behind it.
pub fn with(tree: &str, lines: &[&str]) -> String {
    let path = |line: &str| {
        let end = [" = ", " -> "].iter().filter_map(|mark| line.find(mark)).min().unwrap_or(line.len());
        line[..end].trim_start_matches("r ").trim_end_matches('/').to_owned()
    };
    let replaced: Vec<String> = lines.iter().map(|line| path(line)).collect();
    let kept = tree.lines().filter(|line| line.starts_with('#') || !replaced.contains(&path(line)));
    kept.chain(lines.iter().copied()).map(|line| format!("{line}\n")).collect()
}

/// What every file below `root` holds and where every link leads, triggers left out.
pub fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    collect(root, &mut all);
    all
}

fn collect(folder: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).expect("a readable tree") {
        let entry = entry.expect("a readable tree");
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind of file"));
        if kind.is_dir() {
            all.insert(path.clone(), b"directory".to_vec());
            collect(&path, all);
        } else if kind.is_symlink() {
            all.insert(path.clone(), fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes());
        } else if !TRIGGERS.iter().any(|trigger| entry.file_name() == *trigger) {
            all.insert(path.clone(), fs::read(&path).expect("a readable file"));
        }
    }
}
