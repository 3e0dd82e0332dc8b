//! Spin locks that are held for a moment with interrupts off: the VMM's, and those inside a guest kernel's semaphores.
//!
//! Who waits reads the lock word in its own cache. A release takes the word away from all who wait, and each reads it again,
//! one after the other: copies of one line are handed out at the pace of its home (`sim.cpu.line-copy`), while to write it, it
//! has to come from its owner.
//!
//! - *Test-and-test-and-set*, as Xen's until 4.4 (xen/common/spinlock.c): whoever sees it free tries to take it, which takes
//!   it away from all others once more. A hand-over among `k` waiting CPUs moves the line 2k times and more, and holds up the
//!   holder, whose own release has to wait for its turn (Anderson, "The Performance of Spin Lock Alternatives for
//!   Shared-Memory Multiprocessors", 1990, section III).
//! - *Ticket*, as Linux's on x86 from 2.6.25 to 4.1 (arch/x86/include/asm/spinlock.h): the next in line takes it, once its
//!   read has been served; on average half of the others' come before (Boyd-Wickizer et al., "Non-scalable locks are
//!   dangerous", 2012).
//!
//! With a handful of CPUs that is nothing; with 32 it is what such a lock costs.
//!
//! Code that holds such a lock is not interrupted, so that the whole of it can be reckoned when it begins: who takes the lock
//! learns when it will have it, and the others queue behind. They are served in order of arrival; with test-and-set the
//! order is chance. A vCPU that is preempted meanwhile gives the lock back in time all the same.
//!
//! Some hold such a lock for longer, while they wake others. Then it stays open until they release it, and whoever asks
//! meanwhile waits for that (`guest::masked`).

use crate::engine::Ps;
use crate::machine::lines::{Cause, LineId, Lines};
use std::collections::VecDeque;

/// How a spin lock is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Test-and-test-and-set.
    TestAndSet,
    /// In order of tickets.
    Ticket,
}

/// A spin lock.
#[derive(Debug, Clone)]
pub struct SpinLock {
    kind: Kind,
    line: LineId,
    /// When it will be free after all who have asked for it.
    free_at: Ps,
    /// Who had it last.
    last: usize,
    /// When those who wait or hold it get it, in order.
    gets: VecDeque<Ps>,
    /// Until then the line moves among those who tried in vain.
    storm_until: Ps,
    /// It is held beyond `free_at` by somebody who has not said until when.
    is_open: bool,
}

impl SpinLock {
    /// A free lock whose word is `line`, together with whatever else lies there.
    pub fn new(kind: Kind, line: LineId) -> Self {
        Self { kind, line, free_at: 0, last: 0, gets: VecDeque::new(), storm_until: 0, is_open: false }
    }

    /// `cpu` asks for the lock at `at`; when it has it. It has to [`Self::release`] it before anybody else asks.
    pub fn acquire(&mut self, lines: &mut Lines, cpu: usize, at: Ps, cause: Cause) -> Ps {
        debug_assert!(!self.is_open, "a lock is released before the next CPU's turn");
        self.is_open = true;
        let has_it = if at < self.free_at {
            let waiting = self.waiting(at);
            self.queue(lines, cpu, at, waiting as Ps, cause)
        } else {
            // All who waited have had it.
            self.gets.clear();
            lines.write(self.line, cpu, at, cause)
        };
        self.gets.push_back(has_it);
        self.last = cpu;
        has_it
    }

    /// `cpu`, which has waited for a lock that was held over events ([`Self::is_open`]), takes it now that it has been
    /// released, with `others` behind it; when it has it.
    pub fn take_over(&mut self, lines: &mut Lines, cpu: usize, others: usize, cause: Cause) -> Ps {
        debug_assert!(!self.is_open, "a lock is released before the next CPU's turn");
        self.is_open = true;
        let has_it = self.queue(lines, cpu, self.free_at, others as Ps, cause);
        self.gets.push_back(has_it);
        self.last = cpu;
        has_it
    }

    /// It has been released, and `cpu` is next in line, with `others` behind it that look at the same word; when it has it.
    pub fn hand_over(&mut self, lines: &mut Lines, cpu: usize, others: usize) -> Ps {
        debug_assert!(!self.is_open, "a lock is released before the next CPU's turn");
        self.is_open = true;
        // The release, and its own look; of the others', half come before.
        let has_it = self.free_at + 2 * lines.price(self.last, cpu) + others as Ps * lines.copy() / 2;
        lines.hand_over(self.line, cpu, has_it);
        self.last = cpu;
        has_it
    }

    /// Whether somebody has it who has not said until when: who asks now has to wait for the release.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// `cpu` comes behind `others` that wait; when it has the lock.
    fn queue(&mut self, lines: &mut Lines, cpu: usize, at: Ps, others: Ps, cause: Cause) -> Ps {
        let line = lines.price(self.last, cpu);
        let has_it = match self.kind {
            Kind::TestAndSet => {
                // Its own look and attempt, the others' looks in between; then their attempts in vain, each of which takes the
                // line away, and looks again.
                lines.add_misses(cause, 2 + 3 * others);
                let has_it = self.free_at + 2 * line + others * lines.copy();
                self.storm_until = has_it + others * (line + lines.copy());
                has_it
            }
            Kind::Ticket => {
                // It draws its ticket; the release; its own look and, of the others', half.
                lines.add_misses(cause, 3 + others);
                self.free_at.max(at + line) + 2 * line + others * lines.copy() / 2
            }
        };
        lines.hand_over(self.line, cpu, has_it);
        has_it
    }

    /// The holder releases it at `at`; when that is done. It takes longer while others try in vain.
    pub fn release(&mut self, lines: &mut Lines, at: Ps) -> Ps {
        debug_assert!(self.is_open, "nobody holds the lock");
        self.is_open = false;
        self.free_at = at.max(self.storm_until);
        lines.keep_busy(self.line, self.free_at);
        self.free_at
    }

    /// `cpu` has the lock from `at` on for `held`, if it is free and its line is there; whether it is. The same as to acquire
    /// and release it, without the walk.
    #[inline]
    pub fn hold_at_once(&mut self, lines: &mut Lines, cpu: usize, at: Ps, held: Ps) -> bool {
        let is_there = !self.is_held(at) && at + held >= self.storm_until && lines.is_own(self.line, cpu);
        if is_there {
            self.gets.clear();
            self.gets.push_back(at);
            self.last = cpu;
            self.free_at = at + held;
            lines.keep_busy(self.line, self.free_at);
        }
        is_there
    }

    /// `cpu` tries to take the lock at `at`: when it knows, and whether it has it. A failed attempt takes the line, too.
    pub fn try_acquire(&mut self, lines: &mut Lines, cpu: usize, at: Ps, cause: Cause) -> (Ps, bool) {
        if self.is_held(at) {
            return (lines.write(self.line, cpu, at, cause), false);
        }
        (self.acquire(lines, cpu, at, cause), true)
    }

    /// `cpu` waits from `at` on until whoever holds the lock has released it (`spin_barrier`), and looks once more.
    pub fn wait_free(&self, lines: &mut Lines, cpu: usize, at: Ps, cause: Cause) -> Ps {
        lines.read(self.line, cpu, at.max(self.free_at), cause)
    }

    /// The line of its word.
    pub fn line(&self) -> LineId {
        self.line
    }

    /// Whether somebody has it at `at`.
    pub fn is_held(&self, at: Ps) -> bool {
        self.is_open || at < self.free_at
    }

    /// How many wait for it at `at`.
    pub fn waiting(&mut self, at: Ps) -> usize {
        while self.gets.front().is_some_and(|&gets| gets <= at) {
            self.gets.pop_front();
        }
        self.gets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::Topology;
    use proptest::prelude::*;

    const LINE: Ps = 100;
    const HOLD: Ps = 500;

    fn machine(kind: Kind, cpus: usize) -> (Lines, SpinLock) {
        let topology = Topology::regular(1, 1, cpus as u32, 1).unwrap();
        let mut lines = Lines::new(&topology, cpus, [0, LINE, LINE, LINE, LINE], LINE, LINE);
        let lock = SpinLock::new(kind, lines.add());
        (lines, lock)
    }

    fn hold(lines: &mut Lines, lock: &mut SpinLock, cpu: usize, at: Ps) -> (Ps, Ps) {
        let from = lock.acquire(lines, cpu, at, Cause::Vmm);
        (from, lock.release(lines, from + HOLD))
    }

    #[test]
    fn an_uncontended_lock_costs_its_line() {
        let (mut lines, mut lock) = machine(Kind::TestAndSet, 4);
        assert_eq!(hold(&mut lines, &mut lock, 0, 0), (LINE, LINE + HOLD));
        assert_eq!(hold(&mut lines, &mut lock, 0, 10_000), (10_000, 10_000 + HOLD), "the line is still there");
        assert_eq!(hold(&mut lines, &mut lock, 1, 20_000), (20_000 + LINE, 20_000 + LINE + HOLD));
    }

    /// The time in which `cpus` CPUs that ask at once have all had the lock, per CPU.
    fn round(kind: Kind, cpus: usize) -> f64 {
        let (mut lines, mut lock) = machine(kind, cpus);
        let last = (0..cpus).map(|cpu| hold(&mut lines, &mut lock, cpu, 0).1).last().unwrap();
        last as f64 / cpus as f64
    }

    #[test]
    fn a_turn_takes_longer_the_more_wait() {
        let tickets = [1, 2, 4, 8, 16, 32].map(|cpus| round(Kind::Ticket, cpus));
        let turns = [1, 2, 4, 8, 16, 32].map(|cpus| round(Kind::TestAndSet, cpus));
        assert!(turns.is_sorted_by(|a, b| a < b) && tickets.is_sorted_by(|a, b| a < b), "{turns:?} {tickets:?}");
        assert!(tickets[5] < turns[5] / 2.0, "{turns:?} {tickets:?}");
        // Hold and hand-over once the storm outlasts the hold: linear in the number that wait.
        assert!(turns[5] > 1.7 * turns[4] && turns[5] < 2.3 * turns[4], "{turns:?}");
    }

    #[test]
    fn a_try_fails_while_it_is_held_and_a_barrier_ends_when_it_is_free() {
        let (mut lines, mut lock) = machine(Kind::TestAndSet, 4);
        let (from, to) = hold(&mut lines, &mut lock, 0, 0);
        assert!(lock.is_held(from) && !lock.is_held(to));
        let (knows, has_it) = lock.try_acquire(&mut lines, 1, from + 10, Cause::VmmScheduler);
        assert!(!has_it && knows > from);
        assert!(lock.wait_free(&mut lines, 2, from + 10, Cause::Vmm) >= to);
        let (knows, has_it) = lock.try_acquire(&mut lines, 3, to + 1_000, Cause::VmmScheduler);
        assert!(has_it);
        assert_eq!(lock.release(&mut lines, knows + HOLD), knows + HOLD);
    }

    proptest! {
        /// Nothing tells a lock that was held at once from one that was acquired and released.
        #[test]
        fn to_hold_at_once_is_to_acquire_and_release(
            is_ticket: bool,
            asks in proptest::collection::vec((0usize..3, 0u64..2_000, 0u64..2_000), 1..200)
        ) {
            let kind = if is_ticket { Kind::Ticket } else { Kind::TestAndSet };
            let ((mut lines, mut lock), (mut others, mut other)) = (machine(kind, 3), machine(kind, 3));
            let mut at = 0;
            for (cpu, later, held) in asks {
                at += later;
                let from = other.acquire(&mut others, cpu, at, Cause::Vmm);
                let expected = (from, other.release(&mut others, from + held));
                let found = if lock.hold_at_once(&mut lines, cpu, at, held) {
                    (at, at + held)
                } else {
                    let from = lock.acquire(&mut lines, cpu, at, Cause::Vmm);
                    (from, lock.release(&mut lines, from + held))
                };
                prop_assert_eq!(found, expected);
                prop_assert_eq!(lines.misses(), others.misses());
            }
        }

        /// No two CPUs have the lock at the same time, and nobody gets it before asking.
        #[test]
        fn one_at_a_time(
            is_ticket: bool,
            asks in proptest::collection::vec((0usize..32, 0u64..3_000, 0u64..2_000), 1..200)
        ) {
            let (mut lines, mut lock) = machine(if is_ticket { Kind::Ticket } else { Kind::TestAndSet }, 32);
            let (mut at, mut free) = (0, 0);
            for (cpu, later, held) in asks {
                at += later;
                let from = lock.acquire(&mut lines, cpu, at, Cause::Vmm);
                prop_assert!(from >= at && from >= free);
                free = lock.release(&mut lines, from + held);
                prop_assert!(free >= from + held);
            }
        }
    }
}
