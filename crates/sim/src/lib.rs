//! The simulated world: a machine, a VMM, a guest kernel and a program, in virtual time.
//!
//! Equal inputs give equal results, byte for byte, on any machine. The decisions are those of `muster-policy`, which
//! also drives the live world. This room reads no file and no clock; whoever has the texts hands them in.

pub mod engine;
pub mod error;
pub mod guest;
pub mod io;
pub mod machine;
pub mod paging;
pub mod progress;
pub mod project;
pub mod remedy;
pub mod run;
pub mod study;
pub mod timeline;
pub mod vmm;
pub mod working_sets;
pub mod workload;
pub mod world;

pub use error::SimError;
pub use run::{Outcome, Simulation};
pub use study::Study;
