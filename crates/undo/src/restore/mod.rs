//! Undoing: each kind of change in a file of its own, and the order among them.

mod cgroup;
mod family;
mod file;
mod helper;
pub(crate) mod module;
pub(crate) mod pci;
mod thread;

use crate::change::{Change, EntryId};
use crate::pending::{Entry, Pending};
use crate::report::{Outcome, Report};
pub(crate) use file::write as write_kernel_file;
use std::path::Path;

/// Whether to undo, or only to say what would be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Apply,
    DryRun,
}

/// Undoes all of `pending`: by rank, and within a rank newest first. Returns the entries that need no more undoing.
pub(crate) fn everything(pending: &Pending, mode: Mode, report: &mut Report) -> Vec<EntryId> {
    let mut order: Vec<(EntryId, &Entry)> = pending.iter().rev().collect();
    order.sort_by_key(|(_, entry)| rank(entry));
    let mut settled = Vec::new();
    for (id, one) in order {
        let failed = report.failed.len();
        entry(one, mode, report);
        if report.failed.len() == failed {
            settled.push(id);
        }
    }
    if mode == Mode::Apply {
        await_helpers(pending, &mut settled, report);
    }
    settled
}

/// The killed helpers have now left the cgroups that kept CPU time from them: sees to it that they end.
fn await_helpers(pending: &Pending, settled: &mut Vec<EntryId>, report: &mut Report) {
    settled.retain(|&id| match pending.get(id) {
        Some(one @ Entry::Helper { process }) if !helper::has_ended(process) => {
            report.add(one.describe(), Outcome::Failed("it was killed and has not ended yet".to_owned()));
            false
        }
        _ => true,
    });
}

/// Helpers first: they take CPU time and live in cgroups. Affinities last: a thread that leaves a cpuset gets a new
/// mask from the kernel.
fn rank(entry: &Entry) -> u32 {
    match entry {
        Entry::Helper { .. } => 0,
        Entry::Cgroup { .. } => 1,
        Entry::Controller { .. } => 2,
        // Newest first among them: a virtual function loses its driver before it goes, and goes before its kind of driver.
        Entry::File { .. } | Entry::VirtualFunctions { .. } | Entry::Driver { .. } | Entry::Module { .. } => 3,
        Entry::Scheduling { .. } => 4,
        Entry::Affinity { .. } => 5,
        Entry::Family(_) => 6,
    }
}

/// Undoes one entry.
pub(crate) fn entry(entry: &Entry, mode: Mode, report: &mut Report) {
    let outcome: Outcome = match entry {
        Entry::Family(members) => return family::undo(entry, members, mode, report),
        Entry::File { path, values } => file::undo(path, values, mode).into(),
        Entry::VirtualFunctions { root, device, values } => pci::undo_functions(root, device, values, mode).into(),
        Entry::Driver { root, device, values } => pci::undo_driver(root, device, values, mode).into(),
        Entry::Module { module, before, applied } => module::undo(module, before.as_ref(), applied, mode).into(),
        Entry::Affinity { thread, values } => thread::undo_affinity(thread, values, mode).into(),
        Entry::Scheduling { thread, values } => thread::undo_scheduling(thread, values, mode).into(),
        Entry::Cgroup { path, home, moved } => cgroup::undo(path, home, moved, mode).into(),
        Entry::Controller { parent, name } => cgroup::undo_controller(parent, name, mode).into(),
        Entry::Helper { process } => helper::undo(process, mode).into(),
    };
    let value = match entry {
        Entry::File { values, .. } if outcome == Outcome::Restored => format!(" = {}", values.original.trim()),
        Entry::VirtualFunctions { values, .. } if outcome == Outcome::Restored => format!(" = {}", values.original),
        _ => String::new(),
    };
    report.add(entry.describe() + &value, outcome);
}

/// Whether a change can be undone safely; if not, why.
pub(crate) fn check(change: &Change) -> Result<(), String> {
    let absolute = |path: &Path| match path.is_absolute() {
        true => Ok(()),
        false => Err(format!("{} is not an absolute path", path.display())),
    };
    match change {
        Change::File { path, .. } => absolute(path),
        Change::VirtualFunctions { root, device, .. } | Change::Driver { root, device, .. } => {
            absolute(root).and_then(|()| pci::check(device))
        }
        Change::Module { module, .. } => module::check(module),
        Change::Cgroup { path, home } => absolute(path).and(absolute(home)).and_then(|()| cgroup::check(path, home)),
        Change::Controller { parent, .. } => absolute(parent).and_then(|()| cgroup::check_controller(parent)),
        Change::Family { marker: None, root: None, cgroups, .. } if cgroups.is_empty() => {
            Err("nothing says which processes belong to it: a marker, a root or a cgroup is needed".to_owned())
        }
        Change::Scheduling { before, .. } if before.policy == libc::SCHED_DEADLINE => {
            Err("the thread runs under SCHED_DEADLINE, whose parameters are not kept".to_owned())
        }
        _ => Ok(()),
    }
}

/// A change in a few words, for errors.
pub(crate) fn name(change: &Change) -> String {
    match change {
        Change::File { path, .. } => format!("a change of {}", path.display()),
        Change::VirtualFunctions { device, .. } => format!("the number of virtual functions of {device}"),
        Change::Driver { device, .. } => format!("the driver of {device}"),
        Change::Module { module, .. } => format!("module {module}"),
        Change::Affinity { thread, .. } => format!("the affinity of thread {}", thread.tid),
        Change::Scheduling { thread, .. } => format!("the scheduling of thread {}", thread.tid),
        Change::Family { .. } => "the affinity of a program".to_owned(),
        Change::Applied { mask, .. } => format!("the mask {mask}"),
        Change::Own { thread, .. } => format!("the own mask of thread {}", thread.tid),
        Change::Member { process, .. } => format!("process {}", process.pid),
        Change::Cgroup { path, .. } => format!("cgroup {}", path.display()),
        Change::Moved { thread, .. } => format!("the home of thread {}", thread.tid),
        Change::Controller { parent, name } => format!("controller {name} of {}", parent.display()),
        Change::Helper { process } => format!("helper process {}", process.pid),
    }
}
