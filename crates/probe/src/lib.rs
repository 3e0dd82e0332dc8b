//! Measures what this (virtual) machine charges for each primitive, and writes it down as a machine profile.
//!
//! May touch: the clock, /proc and /sys (reading only), threads and child processes of its own. It changes nothing on the
//! system, needs no privilege, and uses only the CPUs it was allowed.

mod affinity;
mod batch;
mod chase;
mod clocks;
mod company;
mod error;
pub mod machine;
mod mapping;
mod memory;
mod plan;
mod process;
pub mod reading;
mod stamp;
pub mod store;
mod transfer;
mod wake;

pub use error::{ProbeError, Result};

use batch::Effort;
use machine::Root;
use muster_model::Profile;

/// How much time a probe may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Under a minute.
    Full,
    /// Under ten seconds, with more spread.
    Quick,
}

/// How far a probe is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Steps done.
    pub done: usize,
    /// Steps in all.
    pub total: usize,
    /// What is measured now.
    pub now: &'a str,
}

/// Measures everything this process may measure; `tell` is called before each step.
///
/// What cannot be measured is left out and named in the profile's notes.
///
/// # Errors
/// When the machine's CPUs cannot be found out. A step that fails is a note, not an error.
pub fn probe(depth: Depth, mut tell: impl FnMut(Progress)) -> Result<Profile> {
    let effort = match depth {
        Depth::Full => Effort::FULL,
        Depth::Quick => Effort::QUICK,
    };
    let bench = plan::Bench::new(effort)?;
    let steps = plan::everything(&bench);
    Ok(plan::carry_out(&bench, steps, &mut tell))
}

/// Measures only what handing over through a futex costs, waking and the lines that move, in well under 300 ms: for
/// commands that find no profile.
///
/// # Errors
/// As [`probe`].
pub fn quick_handover_prices() -> Result<Profile> {
    let bench = plan::Bench::new(Effort::HANDOVERS_ONLY)?;
    let steps = plan::handovers_only(&bench);
    Ok(plan::carry_out(&bench, steps, &mut |_| ()))
}

/// What this machine is, without a price: takes a few milliseconds.
///
/// # Errors
/// As [`probe`].
pub fn describe() -> Result<Profile> {
    let allowed = affinity::allowed()?;
    let root = Root::default();
    let topology = machine::topology(&root, &allowed)?;
    let platform = machine::platform(&root, allowed.iter().next().unwrap_or(0));
    Ok(plan::unpriced(platform, topology))
}

/// The stored profile if it still holds on this machine, else [`quick_handover_prices`]. A stored file that cannot be read
/// is treated as absent: the next `muster probe` replaces it.
///
/// # Errors
/// As [`probe`].
pub fn stored_or_quick() -> Result<Profile> {
    let now = describe()?;
    let stored = store::path().and_then(|path| store::load(&path).ok().flatten());
    stored.filter(|stored| store::still_holds(stored, &now)).map_or_else(quick_handover_prices, Ok)
}
