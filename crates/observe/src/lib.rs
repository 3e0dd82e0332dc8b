//! Watches a running program: its processes, their counters, and what they cost.

#[cfg(feature = "bpf")]
pub mod bpf;
pub mod counters;
pub mod interrupts;
pub mod machine;
pub mod sampler;
pub mod states;
pub mod tree;
pub mod usage;
