//! The journal of everything changed on this system, and its restoration.
//!
//! The rule: [`Journal::record`] first, change second. What is recorded is put back by the first of these that gets to
//! it: [`Journal::restore`] at an orderly end, the [`guardian`] right after the owner died, [`recover`] at the next
//! start or by `muster undo`. Each value is put back only while it still is one that the run applied: whatever
//! somebody else has set since stays, and the [`Report`] says so.
//!
//! Changes that are meant to outlive their process are kept ([`Journal::keep`]): only who asks for it undoes them.
//!
//! A journal outlives its process, not the kernel: nothing that may be recorded here survives a reboot, so a journal of
//! an earlier boot is dropped, and no write is synced. It reads and writes `/proc`, kernel files, cgroups and the
//! journal directory, and depends on no other crate of the project.

mod change;
mod cpumask;
mod directory;
mod error;
pub mod guardian;
mod identity;
mod journal;
mod pending;
mod recover;
mod report;
mod restore;
pub mod system;

pub use change::{Change, EntryId, Scheduling};
pub use cpumask::CpuMask;
pub use directory::Directory;
pub use error::{Error, Result};
pub use identity::{Process, Thread};
pub use journal::{Journal, RUN_VARIABLE, new_run_id};
pub use pending::reads_as;
pub use recover::{JournalInfo, State, list, preview, recover, undo_about, undo_all};
pub use report::{Item, Report};
