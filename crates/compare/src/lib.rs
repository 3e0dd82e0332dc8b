//! Alternated, paired runs of one program under several arms: what was gained, and how sure that is.
//!
//! [`run`] is the whole of it: rounds of one run per arm, in an order that cancels drift, on a machine that it waits
//! for to fall quiet; the figures of each run come from [`machine`], the summary from [`summary`]. It starts processes,
//! reads /proc and cpuidle, and writes temporary files only. It expects to be the only one in its process that starts
//! children: it reaps orphans of the programs it runs.

pub mod arm;
pub mod error;
pub mod export;
pub mod launch;
pub mod machine;
pub mod metric;
pub mod order;
pub mod pair;
mod rounds;
pub mod summary;

pub use arm::ArmSpec;
pub use error::CompareError;
pub use metric::Metric;
pub use rounds::{Event, Plan, Program, Quiet, run};
