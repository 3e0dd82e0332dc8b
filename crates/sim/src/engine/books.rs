//! The books: each picosecond of each core goes to exactly one account.

use super::Ps;
use muster_model::Account;

/// How many accounts there are.
pub const ACCOUNTS: usize = Account::ALL.len();

/// A stretch of one core's time in one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The core.
    pub core: u32,
    /// What its time was booked to.
    pub account: Account,
    /// From when.
    pub from_ps: Ps,
    /// Until when.
    pub to_ps: Ps,
}

/// All cores' books. A core is always in one account; entering another closes the stretch in the last one.
#[derive(Debug)]
pub struct Books {
    open: Vec<(Ps, Account)>,
    booked: Vec<[Ps; ACCOUNTS]>,
    timeline: Option<Timeline>,
}

#[derive(Debug)]
struct Timeline {
    stretches: Vec<Stretch>,
    limit: usize,
}

impl Books {
    /// Books of `cores` cores, all idle at time 0. With `timeline` the first so many stretches are kept.
    pub fn new(cores: usize, timeline: Option<usize>) -> Self {
        Self {
            open: vec![(0, Account::Idle); cores],
            booked: vec![[0; ACCOUNTS]; cores],
            timeline: timeline.map(|limit| Timeline { stretches: Vec::new(), limit }),
        }
    }

    /// From `now` on the core's time goes to `account`.
    #[inline]
    pub fn enter(&mut self, core: usize, now: Ps, account: Account) {
        let (since, last) = self.open[core];
        self.booked[core][last as usize] += now - since;
        self.open[core] = (now, account);
        if let Some(timeline) = &mut self.timeline {
            timeline.keep(Stretch { core: core as u32, account: last, from_ps: since, to_ps: now });
        }
    }

    /// Closes every stretch at `now`.
    pub fn close(&mut self, now: Ps) {
        for core in 0..self.open.len() {
            let account = self.open[core].1;
            self.enter(core, now, account);
        }
    }

    /// What one core's time up to its last entry went to.
    pub fn core(&self, core: usize) -> &[Ps; ACCOUNTS] {
        &self.booked[core]
    }

    /// The sum of an account over all cores, up to `now`.
    pub fn total_until(&self, account: Account, now: Ps) -> Ps {
        let open: Ps = self.open.iter().filter(|(_, a)| *a == account).map(|(since, _)| now - since).sum();
        open + self.booked.iter().map(|booked| booked[account as usize]).sum::<Ps>()
    }

    /// The stretches that were kept, in order of their ends.
    pub fn into_timeline(self) -> Vec<Stretch> {
        self.timeline.map(|timeline| timeline.stretches).unwrap_or_default()
    }
}

impl Timeline {
    fn keep(&mut self, stretch: Stretch) {
        if stretch.from_ps < stretch.to_ps && self.stretches.len() < self.limit {
            self.stretches.push(stretch);
        }
    }
}
