//! Whether the programs get on. A world can be busy for ever without any thread advancing: interrupts that take longer than
//! their period, threads that spin for a lock whose holder waits. Such a run never ends by itself; it is given up and says
//! what its time went to, which is its result.
//!
//! Nothing is counted as things happen: every so many events all threads are looked at, and compared with how they were.

use crate::SimError;
use crate::engine::books::ACCOUNTS;
use crate::engine::{NS, Ps};
use crate::guest::thread::Mode;
use crate::guest::vm::Vm;
use crate::world::{NONE, World};
use muster_model::Account;
use std::fmt;

/// Looks are so many events apart, a power of 2.
pub(crate) const EVENTS: u64 = 1 << 16;
/// So long and for so many events no thread may advance: 25 ticks of 250 Hz.
const PATIENCE: Ps = 100_000_000 * NS;

/// A run that got nowhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Stall {
    /// For so long no thread had advanced when the run was given up.
    pub length_ps: Ps,
    /// When that was.
    pub until_ps: Ps,
    /// What the time went to that no CPU was idle: a function of the VMM where that is most of it, else the account with
    /// the largest part.
    pub place: String,
    /// How much of it, 0 to 1.
    pub share: f64,
}

impl Stall {
    /// How long it lasted and when it was given up, in seconds.
    pub fn seconds(&self) -> (f64, f64) {
        (self.length_ps as f64 / 1e12, self.until_ps as f64 / 1e12)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress: {:.0} % of the time in {}", self.share * 100.0, self.place)
    }
}

/// How the world was when a thread was last seen to have advanced.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    at: Ps,
    threads: u64,
    booked: [Ps; ACCOUNTS],
    functions: [Ps; FUNCTIONS.len()],
}

/// Functions of the VMM whose time is known.
const FUNCTIONS: [&str; 2] = ["handle_pmt_io", "schedule"];

impl World {
    /// Gives the run up if nobody has advanced for long.
    ///
    /// # Errors
    /// When no thread gets on, or all wait for each other.
    #[cold]
    pub(crate) fn look_for_progress(&mut self) -> Result<(), SimError> {
        let threads = self.state_of_threads();
        let sleeps = self.vms.iter().any(|vm| vm.asleep > 0);
        if threads != self.last_progress.threads || sleeps {
            self.last_progress = self.mark(threads);
            return Ok(());
        }
        if self.now - self.last_progress.at < PATIENCE {
            return Ok(());
        }
        if self.vcpus.iter().any(|vcpu| vcpu.current != NONE || !vcpu.queue.is_empty()) {
            return Err(SimError::NoProgress(self.stall()));
        }
        let will_be_ended = |vm: &Vm| vm.ends.is_some() && !vm.was_ended;
        if self.vms.iter().any(will_be_ended) {
            return Ok(());
        }
        Err(SimError::Deadlock { after_s: self.now as f64 / 1e12, waiting: self.who_waits() })
    }

    /// A number that differs once a thread has advanced: has done an operation, or computed for a while. Spinning is neither.
    fn state_of_threads(&self) -> u64 {
        let mix = |state: u64, value: u64| (state.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.threads.iter().zip(&self.turns).fold(0, |state, (thread, &turns)| {
            let computed = if thread.mode == Mode::Stretch { thread.cpu_ps } else { 0 };
            [u64::from(thread.pc), thread.mode as u64, computed, turns].into_iter().fold(state, mix)
        })
    }

    fn mark(&self, threads: u64) -> Mark {
        let vcpus = self.ledgers.vcpus();
        let booked = Account::ALL.map(|account| vcpus.total_until(0..self.vcpus.len(), account, self.now));
        let timers = self.vms.iter().filter_map(|vm| vm.pm_timer.as_ref());
        let functions = [timers.map(|timer| timer.spent).sum(), self.shared.decisions];
        Mark { at: self.now, threads, booked, functions }
    }

    fn stall(&self) -> Stall {
        let (before, after) = (self.last_progress, self.mark(0));
        // Parts of a stretch go to their accounts when it ends: one that was open then may have had less since.
        let booked = |account: Account| after.booked[account as usize].saturating_sub(before.booked[account as usize]);
        let busy = Account::ALL.into_iter().filter(|&account| account != Account::Idle);
        let all = busy.clone().map(booked).sum::<Ps>().max(1);
        let of_all = |time: Ps| (time as f64 / all as f64).min(1.0);
        let functions = (0..FUNCTIONS.len()).map(|f| (FUNCTIONS[f], of_all(after.functions[f] - before.functions[f])));
        let largest = busy.map(|account| (account.name(), of_all(booked(account))));
        let (place, share) = functions
            .filter(|(_, share)| *share > 0.5)
            .chain(largest.max_by(|a, b| a.1.total_cmp(&b.1)))
            .next()
            .expect("there are accounts");
        Stall { length_ps: self.now - before.at, until_ps: self.now, place: place.to_owned(), share }
    }
}
