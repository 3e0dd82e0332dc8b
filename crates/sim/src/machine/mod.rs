//! What silicon does and what it costs: the prices of a profile as picoseconds, distances between cores, what caches and
//! TLBs hold, and how an interrupt reaches a core.

pub mod cache;
pub mod derive;
pub mod disk;
pub mod file_prices;
pub mod interrupt;
pub mod io_prices;
pub mod lines;
pub mod nic;
pub mod prices;
pub mod spinlock;
pub mod tlb;
pub mod walk;
