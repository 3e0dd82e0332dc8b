//! The interpreter's view of a workload: phases compiled to flat operations.

pub mod program;
