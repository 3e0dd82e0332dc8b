//! The books: each picosecond of each core goes to exactly one account.

use super::Ps;
use muster_model::Account;
use std::ops::Range;

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

/// Parts of a stretch that belong to other accounts than the rest of it: how long each is. They come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    len: u8,
    accounts: [Account; PARTS],
    times: [Ps; PARTS],
}

/// More accounts than this no single stretch is divided over.
const PARTS: usize = 6;

impl Default for Parts {
    fn default() -> Self {
        Self::NONE
    }
}

impl Parts {
    /// No parts.
    pub const NONE: Self = Self { len: 0, accounts: [Account::User; PARTS], times: [0; PARTS] };

    /// So much more for an account.
    ///
    /// # Panics
    /// When there are more accounts than a stretch is divided over.
    #[inline]
    pub fn add(&mut self, account: Account, time: Ps) {
        if time == 0 {
            return;
        }
        let len = usize::from(self.len);
        match self.accounts[..len].iter().position(|&there| there == account) {
            Some(part) => self.times[part] += time,
            None => {
                (self.accounts[len], self.times[len]) = (account, time);
                self.len += 1;
            }
        }
    }

    /// All of the other's parts as well.
    #[inline]
    pub fn add_all(&mut self, other: &Self) {
        other.iter().for_each(|(account, time)| self.add(account, time));
    }

    /// What they take together.
    pub fn total(&self) -> Ps {
        self.times.iter().sum()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn iter(&self) -> impl Iterator<Item = (Account, Ps)> + '_ {
        self.accounts.iter().copied().zip(self.times.iter().copied()).take(usize::from(self.len))
    }
}

/// How long something takes, and what of that belongs to other accounts than the rest of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// All of it.
    pub time: Ps,
    /// Parts of it.
    pub parts: Parts,
}

impl From<Ps> for Cost {
    /// A cost that is all of one kind.
    fn from(time: Ps) -> Self {
        Self { time, parts: Parts::NONE }
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.parts.add_all(&other.parts);
    }
}

/// All cores' books. A core is always in one account; entering another closes the stretch in the last one.
#[derive(Debug)]
pub struct Books {
    cores: Vec<Book>,
    /// Parts of the open stretches.
    parts: Vec<Parts>,
    timeline: Option<Timeline>,
}

#[derive(Debug, Clone)]
struct Book {
    /// The stretch that is open: since when, in which account, and whether it has parts.
    since: Ps,
    account: Account,
    divided: bool,
    /// There is more to its end than a sum: it has parts, or is kept.
    is_special: bool,
    booked: [Ps; ACCOUNTS],
}

impl Book {
    fn new(is_kept: bool) -> Self {
        Self { since: 0, account: Account::Idle, divided: false, is_special: is_kept, booked: [0; ACCOUNTS] }
    }
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
            cores: vec![Book::new(timeline.is_some()); cores],
            parts: vec![Parts::NONE; cores],
            timeline: timeline.map(|limit| Timeline { stretches: Vec::new(), limit }),
        }
    }

    /// From `now` on the core's time goes to `account`.
    #[inline]
    pub fn enter(&mut self, core: usize, now: Ps, account: Account) {
        if self.cores[core].is_special {
            self.end_special(core, now);
        }
        let book = &mut self.cores[core];
        book.booked[book.account as usize] += now - book.since;
        (book.since, book.account) = (now, account);
    }

    #[inline(never)]
    fn end_special(&mut self, core: usize, now: Ps) {
        if self.cores[core].divided {
            self.book_parts(core, now);
        }
        self.book_until(core, now);
    }

    /// Parts of the stretch that has just begun belong to other accounts. What it turns out to be too short for is left
    /// out.
    #[inline]
    pub fn divide(&mut self, core: usize, parts: &Parts) {
        if parts.is_empty() {
            return;
        }
        self.cores[core].is_special = true;
        if std::mem::replace(&mut self.cores[core].divided, true) {
            self.parts[core].add_all(parts);
        } else {
            self.parts[core] = *parts;
        }
    }

    fn book_parts(&mut self, core: usize, now: Ps) {
        let rest = self.cores[core].account;
        let parts = self.parts[core];
        for (account, time) in parts.iter() {
            let book = &mut self.cores[core];
            book.account = account;
            let until = (book.since + time).min(now);
            self.book_until(core, until);
        }
        let book = &mut self.cores[core];
        (book.account, book.divided, book.is_special) = (rest, false, self.timeline.is_some());
    }

    /// Books the open stretch up to `until`, where it goes on.
    fn book_until(&mut self, core: usize, until: Ps) {
        let book = &mut self.cores[core];
        let since = std::mem::replace(&mut book.since, until);
        book.booked[book.account as usize] += until - since;
        if let Some(timeline) = &mut self.timeline {
            let account = book.account;
            timeline.keep(Stretch { core: core as u32, account, from_ps: since, to_ps: until });
        }
    }

    /// Closes every stretch at `now`.
    pub fn close(&mut self, now: Ps) {
        for core in 0..self.cores.len() {
            self.enter(core, now, self.cores[core].account);
        }
    }

    /// What one core's time up to its last entry went to.
    pub fn core(&self, core: usize) -> &[Ps; ACCOUNTS] {
        &self.cores[core].booked
    }

    /// The sum of an account over some cores, up to `now`.
    pub fn total_until(&self, cores: Range<usize>, account: Account, now: Ps) -> Ps {
        cores.map(|core| self.cores[core].booked[account as usize] + self.open(core, account, now)).sum()
    }

    /// What an account has had by `now` of the stretch that is open, whose parts come first.
    fn open(&self, core: usize, account: Account, now: Ps) -> Ps {
        let book = &self.cores[core];
        let (mut left, mut of_account) = (now - book.since, 0);
        let parts = if book.divided { &self.parts[core] } else { &Parts::NONE };
        for (part, time) in parts.iter() {
            let time = time.min(left);
            left -= time;
            of_account += if part == account { time } else { 0 };
        }
        of_account + if book.account == account { left } else { 0 }
    }

    /// The account that a core is in.
    pub fn account(&self, core: usize) -> Account {
        self.cores[core].account
    }

    /// The stretches that were kept, in order of their ends.
    pub fn into_timeline(self) -> Vec<Stretch> {
        self.timeline.map(|timeline| timeline.stretches).unwrap_or_default()
    }
}

/// The books of vCPUs and those of pCPUs. While each vCPU has a pCPU of its own they are the same, and kept once.
///
/// A vCPU's time off its pCPU is idle or stolen; what the VMM does on a pCPU on nobody's behalf is in that one's books only.
#[derive(Debug)]
pub struct Ledgers {
    vcpus: Books,
    /// `None` while they are the vCPUs'.
    pcpus: Option<Books>,
}

impl Ledgers {
    /// Books of so many CPUs which are both. With `timeline` the first so many stretches are kept.
    pub fn common(cpus: usize, timeline: Option<usize>) -> Self {
        Self { vcpus: Books::new(cpus, timeline), pcpus: None }
    }

    /// Books of vCPUs that share pCPUs; the timeline is the pCPUs'.
    pub fn apart(vcpus: usize, pcpus: usize, timeline: Option<usize>) -> Self {
        Self { vcpus: Books::new(vcpus, None), pcpus: Some(Books::new(pcpus, timeline)) }
    }

    /// From `now` on the time of a vCPU and of the pCPU that it is on goes to `account`.
    #[inline]
    pub fn enter(&mut self, vcpu: usize, pcpu: usize, now: Ps, account: Account) {
        self.vcpus.enter(vcpu, now, account);
        if let Some(pcpus) = &mut self.pcpus {
            pcpus.enter(pcpu, now, account);
        }
    }

    /// Parts of the stretch that a vCPU has just begun belong to other accounts.
    #[inline]
    pub fn divide(&mut self, vcpu: usize, pcpu: usize, parts: &Parts) {
        self.vcpus.divide(vcpu, parts);
        if let Some(pcpus) = &mut self.pcpus {
            pcpus.divide(pcpu, parts);
        }
    }

    /// The same for a stretch that the VMM has just begun on a pCPU, on behalf of the vCPU there, if there is one.
    #[inline]
    pub fn divide_pcpu(&mut self, pcpu: usize, vcpu: Option<usize>, parts: &Parts) {
        match (&mut self.pcpus, vcpu) {
            (None, _) => self.vcpus.divide(pcpu, parts),
            (Some(pcpus), vcpu) => {
                pcpus.divide(pcpu, parts);
                vcpu.iter().for_each(|&vcpu| self.vcpus.divide(vcpu, parts));
            }
        }
    }

    /// From `now` on the time of a vCPU goes to `account`, unless it is its pCPU's.
    #[inline]
    pub fn enter_vcpu(&mut self, vcpu: usize, now: Ps, account: Account) {
        if self.pcpus.is_some() {
            self.vcpus.enter(vcpu, now, account);
        }
    }

    /// From `now` on the time of a pCPU goes to `account`.
    #[inline]
    pub fn enter_pcpu(&mut self, pcpu: usize, now: Ps, account: Account) {
        self.pcpus.as_mut().unwrap_or(&mut self.vcpus).enter(pcpu, now, account);
    }

    /// Closes every stretch at `now`.
    pub fn close(&mut self, now: Ps) {
        self.vcpus.close(now);
        if let Some(pcpus) = &mut self.pcpus {
            pcpus.close(now);
        }
    }

    /// The account that a vCPU is in.
    pub fn account(&self, vcpu: usize) -> Account {
        self.vcpus.account(vcpu)
    }

    /// The vCPUs' books.
    pub fn vcpus(&self) -> &Books {
        &self.vcpus
    }

    /// The pCPUs' books.
    pub fn pcpus(&self) -> &Books {
        self.pcpus.as_ref().unwrap_or(&self.vcpus)
    }

    /// The pCPUs' stretches that were kept, in order of their ends.
    pub fn into_timeline(self) -> Vec<Stretch> {
        self.pcpus.unwrap_or(self.vcpus).into_timeline()
    }
}

impl Timeline {
    fn keep(&mut self, stretch: Stretch) {
        if stretch.from_ps < stretch.to_ps && self.stretches.len() < self.limit {
            self.stretches.push(stretch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(books: &Books, account: Account) -> Ps {
        books.core(0)[account as usize]
    }

    #[test]
    fn a_stretch_is_divided_and_the_books_balance() {
        let mut books = Books::new(1, Some(10));
        books.enter(0, 100, Account::Kernel);
        let mut parts = Parts::NONE;
        parts.add(Account::ClockEmulation, 30);
        parts.add(Account::VmmLock, 50);
        parts.add(Account::ClockEmulation, 10);
        parts.add(Account::Steal, 0);
        assert_eq!(parts.total(), 90);
        books.divide(0, &parts);
        books.enter(0, 250, Account::User);
        books.close(300);
        let booked = [Account::Idle, Account::Kernel, Account::ClockEmulation, Account::VmmLock, Account::User]
            .map(|account| book(&books, account));
        assert_eq!(booked, [100, 60, 40, 50, 50]);
        let kept: Vec<Ps> = books.into_timeline().iter().map(|stretch| stretch.to_ps).collect();
        assert_eq!(kept, [100, 140, 190, 250, 300]);
    }

    #[test]
    fn a_stretch_that_ends_early_has_its_first_parts() {
        let mut books = Books::new(1, None);
        books.enter(0, 0, Account::Kernel);
        let mut parts = Parts::NONE;
        parts.add(Account::PageWalk, 30);
        parts.add(Account::VmmLock, 50);
        books.divide(0, &parts);
        let until =
            |now| [Account::PageWalk, Account::VmmLock, Account::Kernel].map(|a| books.total_until(0..1, a, now));
        assert_eq!(
            (until(20), until(40), until(90)),
            ([20, 0, 0], [30, 10, 0], [30, 50, 10]),
            "what has been had stays"
        );
        books.enter(0, 40, Account::User);
        books.close(50);
        assert_eq!(
            [Account::PageWalk, Account::VmmLock, Account::Kernel, Account::User].map(|a| book(&books, a)),
            [30, 10, 0, 10]
        );
    }
}
