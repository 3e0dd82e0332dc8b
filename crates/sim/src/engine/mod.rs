//! Virtual time: the event queue, seeded randomness, and the books of every core.
//!
//! Nothing here knows what an event means.

pub mod books;
pub mod queue;
pub mod random;

/// Virtual time and durations in picoseconds.
pub type Ps = u64;

/// Picoseconds in a nanosecond.
pub const NS: Ps = 1_000;

/// Nanoseconds of a price as picoseconds, rounded.
pub fn from_ns(ns: f64) -> Ps {
    (ns * NS as f64).round() as Ps
}
