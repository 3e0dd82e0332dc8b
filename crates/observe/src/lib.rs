//! Watches a running program: its processes, their counters, and what they cost.

pub mod sampler;
pub mod tree;
