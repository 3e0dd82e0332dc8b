//! The live side on a KVM host: facts from sysfs and procfs to the policy, advised settings to actuators.
//!
//! Everything is read and written below a root directory, `/` on a real host, so that a recorded tree can stand in for
//! one. What is to be said of the facts is decided in `muster_policy::host`; what is written is written to the undo
//! journal first.

pub mod apply;
pub mod error;
pub mod facts;
mod pci;
pub mod ple;
pub mod text;
mod tree;
mod vms;

pub use error::{Error, Result};
pub use tree::Tree;

use muster_model::host::{HostAudit, Knob, Setting};
use muster_policy::host::asked::{self, Asked};
use muster_undo::{Directory, Report};

/// Reads the facts below a root and says what there is to say of them. Changes nothing.
pub fn audit(tree: &Tree) -> HostAudit {
    muster_policy::host::audit(&facts::read(tree))
}

/// The settings that are advised, or that the named knobs have to offer, and those asked for by value, as a plan. With
/// values and no knobs only the values.
///
/// # Errors
/// [`Error::Request`] when this is no KVM host, or when one of the settings cannot be had here.
pub fn plan(tree: &Tree, knobs: &[Knob], values: &[Asked]) -> Result<apply::Plan> {
    let facts = facts::read(tree);
    let audit = muster_policy::host::audit(&facts);
    if let Some(why) = audit.no_host.filter(|_| values.is_empty()) {
        return Err(Error::Request(why));
    }
    let resolved = values.iter().map(|value| asked::resolve(&facts, value).map_err(Error::Request));
    let resolved = resolved.collect::<Result<Vec<Setting>>>()?;
    let advised = match (knobs, values) {
        ([], [_, ..]) => Vec::new(),
        (knobs, _) => muster_policy::host::advised(&audit.findings, knobs),
    };
    apply::plan(tree, &facts, &advised, &resolved)
}

/// Undoes what was applied below a root; with `dry_run` only says what that would be.
///
/// # Errors
/// When the journals cannot be read.
pub fn undo(tree: &Tree, dry_run: bool) -> Result<Vec<Report>> {
    let Some(directory) = Directory::existing(&Directory::standard_path())? else { return Ok(Vec::new()) };
    let about = about(tree);
    Ok(match dry_run {
        true => muster_undo::preview(&directory, Some(&about))?,
        false => muster_undo::undo_about(&directory, &about)?,
    })
}

/// What the journals of a root's changes say they are about.
fn about(tree: &Tree) -> String {
    format!("host {}", tree.path("/").display())
}
