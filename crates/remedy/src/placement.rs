//! Restricts a program to a set of vCPUs: through its own cgroup where it has one, else by every thread's affinity.
//! Within that set it seats groups of threads on vCPUs of their own, by affinity.

use crate::Error;
use crate::cgroup::ProgramCgroup;
use muster_model::CpuSet;
use muster_observe::tree::{self, Tree};
use muster_policy::consolidate::Group;
use muster_undo::{Change, CpuMask, EntryId, Journal, Process, Thread, system};
use std::collections::{HashMap, HashSet};

/// A scan of threads is repeated until it finds nothing to change, at most this often: a program that starts threads
/// faster than this sets masks catches up at the next decision.
const SCANS: usize = 4;

/// How a program is kept on a set of vCPUs, and what that has changed.
#[derive(Debug)]
pub struct Placement {
    group: Option<ProgramCgroup>,
    family: EntryId,
    before: CpuSet,
    applied: Vec<CpuSet>,
    /// Masks of threads that had one of their own.
    own: HashMap<Thread, CpuSet>,
    /// Threads pinned to be spread, and what they may use again.
    pinned: Vec<(u32, CpuSet)>,
    /// Threads that have a seat, by number, and the mask they got for it.
    seated: HashMap<u32, (Thread, CpuSet)>,
    /// Threads whose mask is what was found or set; another one later on is not inherited but their own.
    standing: HashSet<u32>,
}

impl Placement {
    /// Prepares for the program that begins with process `root`, whose threads have the mask `before`.
    pub fn new(
        journal: &Journal,
        group: Option<ProgramCgroup>,
        marker: Option<String>,
        root: u32,
        before: CpuSet,
    ) -> Result<Self, Error> {
        let root = Process::of(root).map_err(|_| Error::NoProcess(root))?;
        let cgroups = group.iter().map(ProgramCgroup::folder).collect();
        let family = journal.record(&Change::Family { marker, root: Some(root), cgroups, before: mask(&before) })?;
        Ok(Self {
            group,
            family,
            before,
            applied: Vec::new(),
            own: HashMap::new(),
            pinned: Vec::new(),
            seated: HashMap::new(),
            standing: HashSet::new(),
        })
    }

    /// Restricts the program to `active`.
    pub fn apply(&mut self, journal: &Journal, tree: &Tree, active: &CpuSet) -> Result<(), Error> {
        match &self.group {
            Some(group) => group.set_cpus(active).map_err(Error::system("restrict the program's cpuset")),
            None => self.apply_to_threads(journal, tree, active),
        }
    }

    fn apply_to_threads(&mut self, journal: &Journal, tree: &Tree, active: &CpuSet) -> Result<(), Error> {
        self.record_applied(journal, active)?;
        self.record_members(journal, tree)?;
        for _ in 0..SCANS {
            let mut changed = false;
            for process in tree.processes() {
                for tid in tree::threads(process.id) {
                    changed |= self.apply_to(journal, process.id, tid, active)?;
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Sets one thread's mask; false when it has it already, is gone, or is not to be touched.
    fn apply_to(&mut self, journal: &Journal, pid: u32, tid: u32, active: &CpuSet) -> Result<bool, Error> {
        let Ok(current) = system::affinity(tid).map(|mask| mask.iter().collect::<CpuSet>()) else { return Ok(false) };
        if current == *active {
            return Ok(false);
        }
        let target = if current == self.before || self.applied.contains(&current) {
            match Thread::of(pid, tid).ok().and_then(|thread| self.own.get(&thread)) {
                Some(own) => within(own, active),
                None => *active,
            }
        } else {
            let Ok(thread) = Thread::of(pid, tid) else { return Ok(false) };
            let target = within(&current, active);
            if target != current {
                journal.record(&Change::Own { family: self.family, thread, before: mask(&current) })?;
                self.own.insert(thread, current);
                self.record_applied(journal, &target)?;
            }
            target
        };
        Ok(target != current && system::set_affinity(tid, &mask(&target)).is_ok())
    }

    fn record_applied(&mut self, journal: &Journal, target: &CpuSet) -> Result<(), Error> {
        if *target != self.before && !self.applied.contains(target) {
            journal.record(&Change::Applied { family: self.family, mask: mask(target) })?;
            self.applied.push(*target);
        }
        Ok(())
    }

    fn record_members(&self, journal: &Journal, tree: &Tree) -> Result<(), Error> {
        for process in tree.processes() {
            let member = Process { pid: process.id, start: process.start_ticks };
            journal.record(&Change::Member { family: self.family, process: member })?;
        }
        Ok(())
    }

    /// Spreads the threads `crowd`, busiest first, over `active` by pinning each until [`Placement::let_go`]: left to
    /// itself the kernel keeps threads that wake each other on one vCPU long after they may use more. Threads with a
    /// mask of their own are left alone.
    pub fn spread(&mut self, journal: &Journal, tree: &Tree, crowd: &[u32], active: &CpuSet) -> Result<(), Error> {
        self.let_go();
        self.record_members(journal, tree)?;
        let everywhere = mask(active);
        let seats: Vec<usize> = active.iter().collect();
        for (&tid, &cpu) in crowd.iter().zip(seats.iter().cycle()) {
            let seat = CpuSet::single(cpu);
            if system::affinity(tid).is_ok_and(|own| own == everywhere) {
                self.record_applied(journal, &seat)?;
                if system::set_affinity(tid, &mask(&seat)).is_ok() {
                    self.pinned.push((tid, *active));
                }
            }
        }
        Ok(())
    }

    /// Seats the threads of `groups` on their vCPUs and gives every other thread `active`; no groups: all get it back.
    /// A thread that has a mask of its own stays within it. Also to be called when new threads were found: they have
    /// inherited the seat of the thread that started them.
    pub fn seat(&mut self, journal: &Journal, tree: &Tree, groups: &[Group], active: &CpuSet) -> Result<(), Error> {
        let seats: HashMap<u32, &CpuSet> =
            groups.iter().flat_map(|group| group.threads.iter().map(|thread| (thread.0, &group.cpus))).collect();
        if seats.is_empty() && self.seated.is_empty() {
            return Ok(());
        }
        self.record_members(journal, tree)?;
        for _ in 0..SCANS {
            let (mut changed, mut seen) = (false, HashSet::new());
            for process in tree.processes() {
                for tid in tree::threads(process.id) {
                    seen.insert(tid);
                    changed |= self.seat_one(journal, process.id, tid, seats.get(&tid).copied(), active)?;
                }
            }
            // A later thread may get the number of one that has ended.
            self.seated.retain(|tid, _| seen.contains(tid));
            self.standing.retain(|tid| seen.contains(tid));
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Gives one thread its seat, or the whole set; false where nothing was to be done.
    fn seat_one(
        &mut self,
        journal: &Journal,
        pid: u32,
        tid: u32,
        seat: Option<&CpuSet>,
        active: &CpuSet,
    ) -> Result<bool, Error> {
        let Ok(current) = system::affinity(tid).map(|mask| mask.iter().collect::<CpuSet>()) else { return Ok(false) };
        let had = self.seated.get(&tid).copied();
        if seat.is_none() && had.is_none() && current == *active {
            self.standing.insert(tid);
            return Ok(false);
        }
        let Ok(thread) = Thread::of(pid, tid) else { return Ok(false) };
        let had = had.filter(|(owner, _)| *owner == thread).map(|(_, mask)| mask);
        let inherits = had.is_none() && !self.standing.contains(&tid) && self.applied.contains(&current);
        let is_ours = current == self.before || had == Some(current) || inherits;
        if !is_ours && self.own.get(&thread) != Some(&current) {
            journal.record(&Change::Own { family: self.family, thread, before: mask(&current) })?;
            self.own.insert(thread, current);
        }
        let whole = self.own.get(&thread).copied().unwrap_or(*active);
        let target = seat.map_or(whole, |seat| within(&whole, seat));
        match seat {
            Some(_) => self.seated.insert(tid, (thread, target)).is_some(),
            None => self.seated.remove(&tid).is_some(),
        };
        self.standing.insert(tid);
        if target == current {
            return Ok(false);
        }
        self.record_applied(journal, &target)?;
        Ok(system::set_affinity(tid, &mask(&target)).is_ok())
    }

    /// Gives the threads that were spread the whole set back.
    pub fn let_go(&mut self) {
        for (tid, active) in self.pinned.drain(..) {
            let _ended_meanwhile = system::set_affinity(tid, &mask(&active));
        }
    }
}

/// A thread's own mask cut to `active`; its own mask where nothing would be left.
fn within(own: &CpuSet, active: &CpuSet) -> CpuSet {
    let cut = own.intersection(active);
    if cut.is_empty() { *own } else { cut }
}

/// A set of vCPUs as the journal writes it.
pub fn mask(set: &CpuSet) -> CpuMask {
    set.iter().collect()
}
