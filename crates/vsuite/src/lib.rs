//! VSuite: the nine programs by which Song, Chen and Zang ("Characterizing the Performance and Scalability of Many-core
//! Applications on Virtualized Platforms", 2011, section 2.3) tell what keeps programs from scaling in virtual machines.
//! Seven are our own, with the threads of the originals; `make` and `dbench` are the real ones.
//!
//! [`run`] makes inputs, runs programs over a list of core counts, each run in a process of its own, and compares their
//! results with those of one thread. Where the processes run, natively or in a virtual machine ([`vm`]), is a
//! [`Platform`]'s business.

mod catalog;
mod error;
mod external;
mod platform;
pub mod programs;
mod store;
mod suite;
pub mod vm;

pub use catalog::{Program, run_one};
pub use error::SuiteError;
pub use platform::{Finished, Job, Native, Platform};
pub use suite::{Event, Plan, run, usual_cores};
pub use vm::{VmPlan, guest::run_guest};
