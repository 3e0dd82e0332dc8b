//! A piece of code that goes through shared objects without being interrupted: how long it takes, and on what.

use super::lines::{Cause, LineId, Lines};
use super::spinlock::SpinLock;
use crate::engine::Ps;
use crate::engine::books::Parts;
use muster_model::Account;

/// What a piece of code takes from `at` on, on its way through shared objects.
#[derive(Debug)]
pub struct Walk {
    /// Where.
    pub pcpu: usize,
    /// Whom its misses are charged to.
    pub cause: Cause,
    /// By when it has come so far.
    pub at: Ps,
    /// What of that went into locks and lines.
    pub parts: Parts,
    /// How long it has waited for locks.
    pub waited: Ps,
}

impl Walk {
    /// A walk that begins at `at`.
    pub fn new(pcpu: usize, cause: Cause, at: Ps) -> Self {
        Self { pcpu, cause, at, parts: Parts::NONE, waited: 0 }
    }

    /// It goes on at `until`, and what is in between belongs to `account`.
    pub fn wait(&mut self, until: Ps, account: Account) {
        self.parts.add(account, until - self.at);
        self.at = until;
    }

    /// It spins until `until` for a lock, or for the line of one that it has.
    pub fn wait_for_lock(&mut self, until: Ps) {
        self.waited += until - self.at;
        let in_vmm = matches!(self.cause, Cause::Vmm | Cause::VmmScheduler);
        self.wait(until, if in_vmm { Account::VmmLock } else { Account::Spin });
    }

    /// Takes a lock, waiting for it if somebody has it.
    pub fn acquire(&mut self, lock: &mut SpinLock, lines: &mut Lines) {
        let waits = lock.is_held(self.at);
        let has_it = lock.acquire(lines, self.pcpu, self.at, self.cause);
        if waits { self.wait_for_lock(has_it) } else { self.wait(has_it, Account::CacheTransfer) }
    }

    /// Releases a lock, which takes longer while others want it.
    pub fn release(&mut self, lock: &mut SpinLock, lines: &mut Lines) {
        let done = lock.release(lines, self.at);
        self.wait_for_lock(done);
    }

    /// Reads a line.
    pub fn read(&mut self, line: LineId, lines: &mut Lines) {
        let there = lines.read(line, self.pcpu, self.at, self.cause);
        self.wait(there, Account::CacheTransfer);
    }

    /// Writes a line.
    pub fn write(&mut self, line: LineId, lines: &mut Lines) {
        let there = lines.write(line, self.pcpu, self.at, self.cause);
        self.wait(there, Account::CacheTransfer);
    }
}
