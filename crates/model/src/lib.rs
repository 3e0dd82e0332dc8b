//! The shared nouns of muster: what a machine is, what a program does, where time went, what a policy may know.
//!
//! This room holds data and its validation only. It never reads a clock, a file or the system; whoever has the
//! text of a file hands it to the parsers here.

pub mod cpuset;
pub mod error;
pub mod facts;
pub mod host;
pub mod ledger;
pub mod profile;
pub mod results;
pub mod rtapp;
pub mod study;
pub mod topology;
pub mod workload;

pub use cpuset::CpuSet;
pub use error::ModelError;
pub use facts::{PeriodFacts, ThreadFacts, ThreadId, ThreadLoad, WakePair, WakeWindow};
pub use ledger::{Account, Amount, Ledger};
pub use profile::{Price, PriceKind, Profile};
pub use topology::{Cpu, Distance, Topology};
pub use workload::Workload;
