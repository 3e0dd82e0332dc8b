//! Undoing one thread's affinity or scheduling.

use super::Mode;
use crate::pending::{Same, Values, Verdict};
use crate::report::Outcome;
use crate::{CpuMask, Scheduling, Thread, system};
use std::fmt::Debug;
use std::io;

pub(super) fn undo_affinity(thread: &Thread, values: &Values<CpuMask>, mode: Mode) -> io::Result<Outcome> {
    let online = system::online_cpus().unwrap_or_else(|| (0..CpuMask::MAX_CPUS).collect());
    undo(thread, values, mode, system::affinity, |tid, mask| system::give_back_affinity(tid, mask, &online))
}

pub(super) fn undo_scheduling(thread: &Thread, values: &Values<Scheduling>, mode: Mode) -> io::Result<Outcome> {
    undo(thread, values, mode, system::scheduling, |tid, &to| system::set_scheduling(tid, to))
}

fn undo<T: Same + Clone + Debug>(
    thread: &Thread,
    values: &Values<T>,
    mode: Mode,
    get: impl Fn(u32) -> io::Result<T>,
    set: impl Fn(u32, &T) -> io::Result<()>,
) -> io::Result<Outcome> {
    if !thread.is_alive() {
        return Ok(Outcome::Nothing);
    }
    let current = get(thread.tid)?;
    match values.judge(&current) {
        Verdict::AsBefore => Ok(Outcome::Nothing),
        Verdict::SomebodyElses => Ok(Outcome::LeftAlone(format!("it now is {current:?}, which this run did not set"))),
        Verdict::Ours => {
            if mode == Mode::Apply {
                set(thread.tid, &values.original)?;
            }
            Ok(Outcome::Restored)
        }
    }
}
