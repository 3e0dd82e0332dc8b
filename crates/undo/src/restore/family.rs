//! Undoing the masks of a whole program: every living thread of the family that has an applied mask gets its own back.
//!
//! Threads and processes are created meanwhile, and inherit the mask of a creator that has not been visited yet. So the
//! task list is read again until nothing is left to change. A clone(2) copies the mask long before its task can be
//! seen (a fork of many gigabytes takes 100 ms), so the last looks come some time after the last change.

use super::Mode;
use crate::identity::Stat;
use crate::pending::{Entry, Family};
use crate::report::{Outcome, Report};
use crate::{CpuMask, Process, RUN_VARIABLE, Thread, system};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::thread::sleep;
use std::time::Duration;

/// Pauses before the looks that follow a look at which nothing was left to change; any change starts over.
const CALM: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(120)];
/// A program that creates threads faster than they can be given their masks ends the looking.
const MAX_LOOKS: u32 = 200;
/// A thread still at an applied mask after so many settings is held there by a cpuset.
const MAX_SETTINGS: u32 = 3;

pub(super) fn undo(entry: &Entry, family: &Family, mode: Mode, report: &mut Report) {
    let online = system::online_cpus().unwrap_or_else(|| (0..CpuMask::MAX_CPUS).collect());
    let mut restorer = Restorer { family, online, settings: HashMap::new(), failures: HashMap::new() };
    let outcome = match mode {
        Mode::DryRun => restorer.narrowed().map(|threads| threads.len()).map(|count| (count, true)),
        Mode::Apply => restorer.until_calm(),
    };
    let what = entry.describe();
    match outcome {
        Err(error) => report.add(what.clone(), Outcome::Failed(error.to_string())),
        Ok((count, calm)) => {
            if count > 0 {
                report.add(format!("{what}: {}", threads(count)), Outcome::Restored);
            }
            if !calm {
                let why = "it creates threads faster than they can be restored; run `muster undo` again";
                report.add(what.clone(), Outcome::Failed(why.to_owned()));
            }
        }
    }
    for (thread, why) in &restorer.failures {
        report.add(format!("{what}: thread {}", thread.tid), why.clone());
    }
}

fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

struct Restorer<'a> {
    family: &'a Family,
    online: CpuMask,
    settings: HashMap<Thread, u32>,
    failures: HashMap<Thread, Outcome>,
}

impl Restorer<'_> {
    /// Looks and sets until nothing is left; says how many threads were set, and whether an end was reached.
    fn until_calm(&mut self) -> io::Result<(usize, bool)> {
        // Where nothing had to be changed, nothing is on its way either, and a second look is enough.
        let mut pauses = CALM[..1].iter();
        for _ in 0..MAX_LOOKS {
            if self.look()? > 0 {
                pauses = CALM.iter();
            } else if let Some(pause) = pauses.next() {
                sleep(*pause);
            } else {
                return Ok((self.restored(), true));
            }
        }
        Ok((self.restored(), false))
    }

    fn restored(&self) -> usize {
        self.settings.keys().filter(|thread| !self.failures.contains_key(thread)).count()
    }

    /// One pass over all tasks; says how many threads got another mask.
    fn look(&mut self) -> io::Result<usize> {
        let mut changed = 0;
        for (thread, original) in self.narrowed()? {
            if self.failures.contains_key(&thread) {
                continue;
            }
            let settings = self.settings.entry(thread).or_default();
            *settings += 1;
            if *settings > MAX_SETTINGS {
                let why = format!("its cpuset does not let it have {original}");
                self.failures.insert(thread, Outcome::LeftAlone(why));
                continue;
            }
            match system::give_back_affinity(thread.tid, &original, &self.online) {
                Ok(()) => changed += 1,
                Err(error) => match Outcome::from(Err(error)) {
                    Outcome::Nothing => {
                        self.settings.remove(&thread);
                    }
                    failure => {
                        self.failures.insert(thread, failure);
                    }
                },
            }
        }
        Ok(changed)
    }

    /// The family's threads that have an applied mask other than their own, with their own.
    fn narrowed(&self) -> io::Result<Vec<(Thread, CpuMask)>> {
        let mut census = Census::new(self.family);
        let mut narrowed = Vec::new();
        // The masks are looked at first: reading one costs 0.3 us, telling a family's process far more.
        for pid in numbers("/proc")? {
            for tid in numbers(&format!("/proc/{pid}/task")).unwrap_or_default() {
                let Ok(mask) = system::affinity(tid) else { continue };
                if !self.family.applied.contains(&mask) || !census.has(pid) {
                    continue;
                }
                let Ok(thread) = Thread::of(pid, tid) else { continue };
                let original = census.original(&thread);
                if *original != mask {
                    narrowed.push((thread, original.clone()));
                }
            }
        }
        Ok(narrowed)
    }
}

fn numbers(directory: &str) -> io::Result<Vec<u32>> {
    Ok(fs::read_dir(directory)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Which processes belong to the family, as far as asked in one pass.
struct Census<'a> {
    family: &'a Family,
    in_cgroups: HashSet<u32>,
    known: HashMap<u32, Option<Kin>>,
}

/// A process of the family.
#[derive(Clone, Copy)]
struct Kin {
    process: Process,
    parent: u32,
}

impl<'a> Census<'a> {
    fn new(family: &'a Family) -> Self {
        let lists = family.cgroups.iter().filter_map(|cgroup| fs::read_to_string(cgroup.join("cgroup.procs")).ok());
        let in_cgroups = lists.flat_map(|list| list.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>());
        Self { family, in_cgroups: in_cgroups.collect(), known: HashMap::new() }
    }

    fn has(&mut self, pid: u32) -> bool {
        self.kin(pid).is_some()
    }

    /// The process `pid` if it belongs to the family: by itself, or because its parent does.
    fn kin(&mut self, pid: u32) -> Option<Kin> {
        if let Some(&known) = self.known.get(&pid) {
            return known;
        }
        // Also ends a walk in circles, which reuse of numbers could make.
        self.known.insert(pid, None);
        let stat = Stat::read(format!("/proc/{pid}/stat")).ok().filter(|_| pid > 1)?;
        let process = Process { pid, start: stat.start };
        let belongs = self.family.root == Some(process)
            || self.family.members.contains(&process)
            || self.in_cgroups.contains(&pid)
            || self.bears_marker(pid)
            || self.has(stat.parent);
        let kin = belongs.then_some(Kin { process, parent: stat.parent });
        self.known.insert(pid, kin);
        kin
    }

    fn bears_marker(&self, pid: u32) -> bool {
        let Some(marker) = &self.family.marker else { return false };
        let wanted = format!("{RUN_VARIABLE}={marker}");
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes()))
    }

    /// The mask the thread had: its own, else that of its process's first thread, else that of the nearest ancestor's,
    /// else the family's.
    fn original(&mut self, thread: &Thread) -> &'a CpuMask {
        if let Some(own) = self.family.own.get(thread) {
            return own;
        }
        let mut pid = thread.pid;
        let mut seen = HashSet::new();
        while let Some(kin) = self.kin(pid).filter(|_| seen.insert(pid)) {
            let first = Thread { pid, tid: pid, start: kin.process.start };
            if let Some(own) = self.family.own.get(&first) {
                return own;
            }
            pid = kin.parent;
        }
        &self.family.original
    }
}
