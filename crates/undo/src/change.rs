//! What can be recorded: the kinds of change, and what of each is needed to undo it.

use crate::{CpuMask, Process, Thread};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One journaled thing: a file, a thread, a family, a cgroup, a helper. All changes of the same thing share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryId(pub(crate) u64);

/// How the kernel schedules a thread (sched(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scheduling {
    /// `SCHED_OTHER`, `SCHED_IDLE`, ...
    pub policy: i32,
    /// Real-time priority; 0 under the normal policies.
    pub priority: i32,
    /// Nice value, -20 to 19.
    pub nice: i32,
}

/// A change about to be made.
///
/// Recording the same thing again with another applied value adds that value; the original stays the first one seen,
/// unless the new `before` is no value of ours: then somebody else has set it since, and it becomes the original.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Change {
    /// A kernel file (sysfs, procfs, cgroupfs; one whose content does not survive a reboot, and that takes a value as
    /// one write at its start) is about to be written.
    /// Exclusive: only one live journal may hold a path.
    File {
        /// Absolute path.
        path: PathBuf,
        /// What it reads now.
        before: String,
        /// What is about to be written.
        after: String,
    },
    /// The number of virtual functions of a PCI device is about to be set, by way of 0 where there are some already.
    /// Exclusive by device.
    VirtualFunctions {
        /// The directory with `sys` and `proc` in it.
        root: PathBuf,
        /// The device's address, such as `0000:03:00.0`.
        device: String,
        /// How many it has now.
        before: u64,
        /// How many it is about to have.
        after: u64,
    },
    /// A PCI device is about to get another driver, by `driver_override`.
    /// Exclusive by device.
    Driver {
        /// The directory with `sys` and `proc` in it.
        root: PathBuf,
        /// The device's address.
        device: String,
        /// Its driver now.
        before: Option<String>,
        /// What its `driver_override` reads now.
        before_override: String,
        /// The driver about to be set; none for whichever the kernel finds.
        after: Option<String>,
    },
    /// A kernel module is about to be loaded, or loaded anew with other parameters, on the running system.
    /// Exclusive by module.
    Module {
        /// Its name.
        module: String,
        /// Its parameters as they are now; none where it is not loaded.
        before: Option<BTreeMap<String, String>>,
        /// Those that change, as they are about to be.
        after: BTreeMap<String, String>,
    },
    /// One thread's affinity, outside any family.
    Affinity {
        /// The thread.
        thread: Thread,
        /// Its mask now.
        before: CpuMask,
        /// The mask about to be set.
        applied: CpuMask,
    },
    /// One thread's scheduling policy, priority or nice value.
    Scheduling {
        /// The thread.
        thread: Thread,
        /// As it is scheduled now.
        before: Scheduling,
        /// As it is about to be.
        applied: Scheduling,
    },
    /// A program whose threads are about to get narrower masks, which threads and processes started later inherit.
    /// A process belongs to it that bears `MUSTER_RUN=<marker>` in its environment, or is `root` or a recorded
    /// [`Change::Member`], or lives in one of `cgroups`, or descends from one that belongs to it.
    /// Exclusive by `root`: only one live journal may hold a program.
    Family {
        /// Value of the environment variable `MUSTER_RUN`; none when the program was attached to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        marker: Option<String>,
        /// The first process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<Process>,
        /// Cgroup directories in which only the program's processes live.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cgroups: Vec<PathBuf>,
        /// The mask its threads had, unless a [`Change::Own`] says otherwise.
        before: CpuMask,
    },
    /// A mask that is about to be set on threads of a family; written once per distinct mask.
    Applied {
        /// The family.
        family: EntryId,
        /// The mask.
        mask: CpuMask,
    },
    /// A thread of a family whose mask was not the family's; to be recorded before the thread gets an applied one.
    /// Unrecorded threads of the same process, and its children, are taken to have had the mask of the first thread.
    Own {
        /// The family.
        family: EntryId,
        /// The thread.
        thread: Thread,
        /// Its mask now.
        before: CpuMask,
    },
    /// A process of a family, recorded because nothing else may tell later: programs that set their title overwrite
    /// the environment that `/proc` shows (PostgreSQL, nginx, Redis), and daemons leave their parent.
    Member {
        /// The family.
        family: EntryId,
        /// The process.
        process: Process,
    },
    /// A cgroup is about to be made. When it is undone, living members go to their homes, and it is removed.
    /// Exclusive: only one live journal may hold a path.
    Cgroup {
        /// Its directory; the last part starts with `muster-`.
        path: PathBuf,
        /// The directory, in the same hierarchy, where its members go.
        home: PathBuf,
    },
    /// A thread (cgroup v1) or process (v2) is about to be moved into a cgroup of ours from elsewhere than its home.
    Moved {
        /// The cgroup.
        cgroup: EntryId,
        /// The thread; of a process its first one.
        thread: Thread,
        /// The directory it comes from and goes back to.
        home: PathBuf,
    },
    /// A controller is about to be enabled for the children of a cgroup (v2, `cgroup.subtree_control`).
    /// Exclusive: only one live journal may hold it.
    Controller {
        /// Directory of the parent.
        parent: PathBuf,
        /// Its name, such as `cpuset`.
        name: String,
    },
    /// A process of muster's own that does nothing but keep a CPU busy; when undone it gets SIGKILL.
    /// To be recorded between its fork and its first real work: let it wait on a pipe until then, and end at its end.
    Helper {
        /// The process.
        process: Process,
    },
}
