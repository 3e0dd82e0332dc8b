//! The guest's kernel (or, on the machine itself, the kernel): threads, run queues, idle, synchronization, memory.

pub mod address_space;
pub mod allocator;
pub mod files;
pub mod heap;
pub mod idle;
pub mod kernel;
pub mod kernel_locks;
pub mod masked;
pub mod memory;
pub mod network;
pub mod run_queue_lock;
pub mod sched;
pub mod storage;
pub mod sync;
pub mod thread;
pub mod translations;
pub mod vcpu;
pub mod vm;
