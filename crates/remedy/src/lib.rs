//! The live side inside a VM: facts of a running program go to the policy, its decisions to actuators.
//!
//! It changes affinities, cgroups, the guest's halt polling and its clock source, each through the undo
//! journal, and starts pause loops; for a service it forks. It decides nothing: what to do comes from `muster_policy`.

mod cgroup;
mod clock;
mod error;
pub mod idle;
mod pairs;
pub mod pause;
mod placement;
mod program;
mod service;
mod session;
mod start;
pub mod trace;

pub use error::Error;
pub use muster_observe::progress::Source;
pub use muster_undo::RUN_VARIABLE;
pub use service::{Background, Side, detach};
pub use session::{OnSignal, Options, Outcome, Remedy, Started, Summary, Target, check, run};
