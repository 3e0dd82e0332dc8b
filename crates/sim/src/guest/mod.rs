//! The guest's kernel (or, on the machine itself, the kernel): threads, run queues, idle, synchronization, memory.

pub mod idle;
pub mod memory;
pub mod sched;
pub mod sync;
pub mod thread;
