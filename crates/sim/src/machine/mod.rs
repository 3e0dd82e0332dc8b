//! What silicon does and what it costs: the prices of a profile as picoseconds, distances between cores, what caches and
//! TLBs hold, and how an interrupt reaches a core.

pub mod cache;
pub mod derive;
pub mod disk;
pub mod file_prices;
pub mod interrupt;
pub mod io_prices;
pub mod ioapic;
pub mod lines;
pub mod lru_tlb;
pub mod nic;
pub mod page_tables;
pub mod prices;
pub mod smt;
pub mod spinlock;
pub mod tlb;
pub mod walk;
