//! The live side on a KVM host: facts from sysfs and procfs to the policy, advised settings to actuators.
//!
//! Everything is read and written below a root directory, `/` on a real host, so that a recorded tree can stand in for
//! one. What is to be said of the facts is decided in `muster_policy::host`; what is written is written to the undo
//! journal first.

pub mod facts;
mod pci;
pub mod text;
mod tree;
mod vms;

pub use tree::Tree;

use muster_model::host::HostAudit;

/// Reads the facts below a root and says what there is to say of them. Changes nothing.
pub fn audit(tree: &Tree) -> HostAudit {
    muster_policy::host::audit(&facts::read(tree))
}
