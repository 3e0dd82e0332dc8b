//! What silicon does and what it costs: the prices of a profile as picoseconds, distances between cores, and how an
//! interrupt reaches a core.

pub mod derive;
pub mod file_prices;
pub mod interrupt;
pub mod lines;
pub mod prices;
pub mod spinlock;
pub mod tlb;
pub mod walk;
