//! Watches a running program: its processes, their counters, and what they cost.

#[cfg_attr(not(feature = "bpf"), path = "no_bpf.rs")]
pub mod bpf;
mod calls;
pub mod counters;
pub mod interrupts;
pub mod ledger;
pub mod machine;
pub mod pairs;
pub mod prices;
pub mod program;
pub mod progress;
pub mod sampler;
pub mod signals;
pub mod states;
pub mod tree;
pub mod usage;
pub mod wakes;
pub mod watch;
