//! Results as people read them: terminal tables and one self-contained HTML page.
//!
//! This room turns values of `model::results` into text. It reads no clock and no system, and touches a file only in
//! [`input`], which reads the result files that it is pointed to. Equal input gives equal bytes.

pub mod chart;
pub mod format;
pub mod input;
pub mod judge;
pub mod page;
pub mod table;
