//! What idle vCPUs do: the guest's halt polling, and pause loops that keep vCPUs from halting.

use crate::{Error, cgroup, pause};
use muster_model::CpuSet;
use muster_policy::consolidate::IdleMode;
use muster_undo::{Change, Journal, Process};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin};

/// haltpoll's polling limit in nanoseconds (Documentation/virt/guest-halt-polling.rst).
const POLL_LIMIT: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// The guest's polling limit now; `None` where the guest has no haltpoll.
pub fn guest_halt_poll_ns() -> Option<u64> {
    fs::read_to_string(POLL_LIMIT).ok()?.trim().parse().ok()
}

/// Whether this user may set the guest's polling, and haltpoll is what governs its idle vCPUs.
pub fn may_poll() -> bool {
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_governor").unwrap_or_default();
    governor.trim() == "haltpoll" && rustix::fs::access(POLL_LIMIT, rustix::fs::Access::WRITE_OK).is_ok()
}

/// The idle mode in force, and what it takes to change it.
#[derive(Debug)]
pub struct Idle {
    mode: IdleMode,
    poll_before: Option<u64>,
    loops: Option<PauseLoops>,
}

impl Idle {
    /// Nothing changed yet.
    pub fn untouched() -> Self {
        Self { mode: IdleMode::Untouched, poll_before: guest_halt_poll_ns(), loops: None }
    }

    /// Puts `mode` in force on `active`.
    pub fn apply(&mut self, journal: &Journal, mode: IdleMode, active: &CpuSet) -> Result<(), Error> {
        if mode == self.mode {
            return Ok(());
        }
        if let IdleMode::Poll { limit_ns } = mode {
            journal.write_file(Path::new(POLL_LIMIT), &limit_ns.to_string())?;
        } else if let (IdleMode::Poll { .. }, Some(before)) = (self.mode, self.poll_before) {
            journal.write_file(Path::new(POLL_LIMIT), &before.to_string())?;
        }
        match (mode, &mut self.loops) {
            (IdleMode::Awake, Some(loops)) => loops.switch(true)?,
            (IdleMode::Awake, none) => none.insert(PauseLoops::start(journal, active)?).switch(true)?,
            (_, Some(loops)) => loops.switch(false)?,
            (_, None) => {}
        }
        self.mode = mode;
        Ok(())
    }

    /// The process of the pause loops, if there is one.
    pub fn helper(&self) -> Option<u32> {
        self.loops.as_ref().map(|loops| loops.child.id())
    }
}

/// Pause loops in a process of their own; it ends with its orders, and the journal ends it should it be slow to.
#[derive(Debug)]
struct PauseLoops {
    child: Child,
    orders: ChildStdin,
}

impl PauseLoops {
    fn start(journal: &Journal, cpus: &CpuSet) -> Result<Self, Error> {
        let door = cgroup::idle_group(journal);
        let mut child = pause::command(cpus, door).spawn().map_err(Error::system("start the pause loops"))?;
        let orders = child.stdin.take().expect("its standard input is a pipe");
        let process = Process::of(child.id()).map_err(Error::system("start the pause loops"))?;
        journal.record(&Change::Helper { process })?;
        Ok(Self { child, orders })
    }

    fn switch(&mut self, on: bool) -> Result<(), Error> {
        let order = if on { pause::ON } else { pause::OFF };
        self.orders.write_all(&[order]).map_err(Error::system("switch the pause loops"))
    }
}
