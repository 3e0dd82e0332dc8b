//! Every decision muster takes, as pure state machines: facts in, decisions out.
//!
//! No clock, no file, no system, no randomness: the simulated and the live world drive the same types, and a recorded
//! run replays to the same decisions.

pub mod advice;
pub mod colocate;
pub mod consolidate;
pub mod credit;
pub mod domain;
pub mod eevdf;
pub mod halt_poll;
pub mod host;
pub mod idle;
pub mod io;
pub mod ple;
pub mod predict;
pub mod record;
pub mod vectors;
pub mod wakeup;
pub mod yielding;
