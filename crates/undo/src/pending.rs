//! What a journal says is still to be undone: pure bookkeeping, the same for the writer and for whoever reads the
//! journal after its death.

use crate::change::{Change, EntryId, Scheduling};
use crate::{CpuMask, Process, Thread};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Everything to be undone, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pending {
    entries: BTreeMap<EntryId, Entry>,
    index: HashMap<Key, EntryId>,
    next: u64,
}

/// One journaled thing with all that was recorded of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entry {
    File { path: PathBuf, values: Values<String> },
    VirtualFunctions { root: PathBuf, device: String, values: Values<u64> },
    Driver { root: PathBuf, device: String, values: Values<Binding> },
    Module { module: String, before: Option<Parameters>, applied: Vec<Parameters> },
    Affinity { thread: Thread, values: Values<CpuMask> },
    Scheduling { thread: Thread, values: Values<Scheduling> },
    Family(Family),
    Cgroup { path: PathBuf, home: PathBuf, moved: HashMap<Thread, PathBuf> },
    Controller { parent: PathBuf, name: String },
    Helper { process: Process },
}

/// Parameters of a module.
pub(crate) type Parameters = BTreeMap<String, String>;

/// How a PCI device is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binding {
    pub driver: Option<String>,
    /// What `driver_override` reads.
    pub chosen: String,
}

/// What a thing had been, and what muster made of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Values<T> {
    pub original: T,
    pub applied: Vec<T>,
}

/// A program with its inherited masks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Family {
    pub marker: Option<String>,
    pub root: Option<Process>,
    pub cgroups: Vec<PathBuf>,
    pub original: CpuMask,
    pub applied: BTreeSet<CpuMask>,
    pub own: HashMap<Thread, CpuMask>,
    pub members: HashSet<Process>,
}

/// Equality as far as undoing is concerned.
pub(crate) trait Same {
    fn same(&self, other: &Self) -> bool;
}

impl Same for CpuMask {
    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

impl Same for u64 {
    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

impl Same for Binding {
    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

impl Same for Scheduling {
    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

impl Same for String {
    /// Kernel files read otherwise than they were written: `0,1` as `0-1`, `1` as `Y`, `always` as `[always] never`.
    fn same(&self, other: &Self) -> bool {
        let (mine, theirs) = (selected(self), selected(other));
        let boolean = |text: &str| match text {
            "Y" | "y" | "1" => Some(true),
            "N" | "n" | "0" => Some(false),
            _ => None,
        };
        let cpus = |text: &str| text.parse::<CpuMask>().ok();
        mine == theirs
            || boolean(mine).is_some() && boolean(mine) == boolean(theirs)
            || cpus(mine).is_some() && cpus(mine) == cpus(theirs)
    }
}

/// Whether a kernel file that now holds `content` has taken `value`.
pub fn reads_as(content: &str, value: &str) -> bool {
    content.to_owned().same(&value.to_owned())
}

/// The chosen one of `always [madvise] never`, which is also what to write to choose it; any other content as it is,
/// without the blanks around it.
pub(crate) fn selected(content: &str) -> &str {
    let choice = content.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    choice.unwrap_or(content.trim())
}

impl<T: Same + Clone> Values<T> {
    fn is_ours(&self, value: &T) -> bool {
        self.applied.iter().any(|applied| applied.same(value))
    }

    fn is_known(&self, before: &T, applied: &T) -> bool {
        self.is_ours(applied) && (self.is_ours(before) || self.original.same(before))
    }

    fn note(&mut self, before: &T, applied: &T) {
        if !self.is_ours(before) && !self.original.same(before) {
            self.original = before.clone();
        }
        if !self.is_ours(applied) {
            self.applied.push(applied.clone());
        }
    }

    /// What undoing has to do with a thing that now has `current`.
    pub fn judge(&self, current: &T) -> Verdict {
        if self.original.same(current) {
            Verdict::AsBefore
        } else if self.is_ours(current) {
            Verdict::Ours
        } else {
            Verdict::SomebodyElses
        }
    }
}

/// Whose value a thing now has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    AsBefore,
    Ours,
    SomebodyElses,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    File(PathBuf),
    VirtualFunctions(PathBuf, String),
    Driver(PathBuf, String),
    Module(String),
    Affinity(Thread),
    Scheduling(Thread),
    Family(Option<String>, Option<Process>),
    Cgroup(PathBuf),
    Controller(PathBuf, String),
    Helper(Process),
}

impl Key {
    /// None for a change that adds to an entry named by its id.
    fn of(change: &Change) -> Option<Self> {
        Some(match change {
            Change::File { path, .. } => Self::File(path.clone()),
            Change::VirtualFunctions { root, device, .. } => Self::VirtualFunctions(root.clone(), device.clone()),
            Change::Driver { root, device, .. } => Self::Driver(root.clone(), device.clone()),
            Change::Module { module, .. } => Self::Module(module.clone()),
            Change::Affinity { thread, .. } => Self::Affinity(*thread),
            Change::Scheduling { thread, .. } => Self::Scheduling(*thread),
            Change::Family { marker, root, .. } => Self::Family(marker.clone(), *root),
            Change::Cgroup { path, .. } => Self::Cgroup(path.clone()),
            Change::Controller { parent, name } => Self::Controller(parent.clone(), name.clone()),
            Change::Helper { process } => Self::Helper(*process),
            Change::Applied { .. } | Change::Own { .. } | Change::Member { .. } | Change::Moved { .. } => return None,
        })
    }
}

/// Where a change belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is recorded already, word for word.
    Known(EntryId),
    /// It adds to a recorded thing.
    Adds(EntryId),
    /// It is the first change of its thing.
    New(EntryId),
}

impl Pending {
    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (EntryId, &Entry)> {
        self.entries.iter().map(|(&id, entry)| (id, entry))
    }

    pub fn get(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Where `change` belongs; an error when it names an entry that is not there or of another kind.
    pub fn place(&self, change: &Change) -> Result<Place, String> {
        let Some(key) = Key::of(change) else { return self.place_addition(change) };
        let Some(&id) = self.index.get(&key) else { return Ok(Place::New(EntryId(self.next))) };
        let known = match (change, &self.entries[&id]) {
            (Change::File { before, after, .. }, Entry::File { values, .. }) => values.is_known(before, after),
            (Change::VirtualFunctions { before, after, .. }, Entry::VirtualFunctions { values, .. }) => {
                values.is_known(before, after)
            }
            (Change::Driver { before, before_override, after, .. }, Entry::Driver { values, .. }) => {
                values.is_known(&binding(before, before_override), &binding(after, after.as_deref().unwrap_or("")))
            }
            (Change::Module { after, .. }, Entry::Module { applied, .. }) => applied.contains(after),
            (Change::Affinity { before, applied, .. }, Entry::Affinity { values, .. }) => {
                values.is_known(before, applied)
            }
            (Change::Scheduling { before, applied, .. }, Entry::Scheduling { values, .. }) => {
                values.is_known(before, applied)
            }
            _ => true,
        };
        Ok(if known { Place::Known(id) } else { Place::Adds(id) })
    }

    fn place_addition(&self, change: &Change) -> Result<Place, String> {
        let (id, known) = match change {
            Change::Applied { family, mask } => (*family, self.family(*family)?.applied.contains(mask)),
            Change::Own { family, thread, before } => (*family, self.family(*family)?.own.get(thread) == Some(before)),
            Change::Member { family, process } => (*family, self.family(*family)?.members.contains(process)),
            Change::Moved { cgroup, thread, .. } => match self.entries.get(cgroup) {
                Some(Entry::Cgroup { moved, .. }) => (*cgroup, moved.contains_key(thread)),
                _ => return Err(format!("entry {} is no cgroup", cgroup.0)),
            },
            _ => return Err("it names no entry".to_owned()),
        };
        Ok(if known { Place::Known(id) } else { Place::Adds(id) })
    }

    fn family(&self, id: EntryId) -> Result<&Family, String> {
        match self.entries.get(&id) {
            Some(Entry::Family(family)) => Ok(family),
            _ => Err(format!("entry {} is no family", id.0)),
        }
    }

    /// Takes in a change that [`Pending::place`] has placed.
    pub fn apply(&mut self, place: Place, change: Change) {
        match place {
            Place::Known(_) => {}
            Place::Adds(id) => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.add(change);
                }
            }
            Place::New(id) => {
                if let (Some(key), Some(entry)) = (Key::of(&change), Entry::first(change)) {
                    self.index.insert(key, id);
                    self.entries.insert(id, entry);
                    self.next = self.next.max(id.0 + 1);
                }
            }
        }
    }

    /// Takes in a line of a journal that was written by another process.
    pub fn replay(&mut self, id: EntryId, change: Change) -> Result<(), String> {
        let place = match self.place(&change)? {
            Place::New(_) if self.entries.contains_key(&id) => return Err(format!("entry {} is something else", id.0)),
            Place::New(_) => Place::New(id),
            other => other,
        };
        self.apply(place, change);
        Ok(())
    }

    /// Forgets an entry: it is undone.
    pub fn settle(&mut self, id: EntryId) {
        self.entries.remove(&id);
        self.index.retain(|_, indexed| *indexed != id);
        self.next = self.next.max(id.0 + 1);
    }

    /// What stands against recording `change` elsewhere while this journal is not restored, in words.
    pub fn claims(&self, change: &Change) -> Option<String> {
        self.entries.values().find_map(|entry| match (entry, change) {
            (Entry::File { path, .. }, Change::File { path: wanted, .. })
            | (Entry::Cgroup { path, .. }, Change::Cgroup { path: wanted, .. }) => claimed(path, wanted),
            (
                Entry::VirtualFunctions { root, device, .. },
                Change::VirtualFunctions { root: there, device: wanted, .. },
            )
            | (Entry::Driver { root, device, .. }, Change::Driver { root: there, device: wanted, .. }) => {
                ((root, device) == (there, wanted)).then(|| entry.describe())
            }
            (Entry::Module { module, .. }, Change::Module { module: wanted, .. }) => {
                (module == wanted).then(|| entry.describe())
            }
            (Entry::Controller { parent, name }, Change::Controller { parent: wanted, name: wanted_name }) => {
                (name == wanted_name).then(|| claimed(parent, wanted)).flatten()
            }
            (Entry::Family(family), Change::Family { root: Some(root), .. }) => {
                (family.root == Some(*root)).then(|| format!("process {}", root.pid))
            }
            _ => None,
        })
    }
}

fn binding(driver: &Option<String>, chosen: &str) -> Binding {
    Binding { driver: driver.clone(), chosen: chosen.to_owned() }
}

fn claimed(path: &Path, wanted: &Path) -> Option<String> {
    (path == wanted).then(|| path.display().to_string())
}

impl Entry {
    fn first(change: Change) -> Option<Self> {
        Some(match change {
            Change::File { path, before, after } => {
                Self::File { path, values: Values { original: before, applied: vec![after] } }
            }
            // 0 is on the way from one number to another.
            Change::VirtualFunctions { root, device, before, after } => {
                Self::VirtualFunctions { root, device, values: Values { original: before, applied: vec![0, after] } }
            }
            Change::Driver { root, device, before, before_override, after } => {
                let applied = vec![binding(&after, after.as_deref().unwrap_or(""))];
                let original = Binding { driver: before, chosen: before_override };
                Self::Driver { root, device, values: Values { original, applied } }
            }
            Change::Module { module, before, after } => Self::Module { module, before, applied: vec![after] },
            Change::Affinity { thread, before, applied } => {
                Self::Affinity { thread, values: Values { original: before, applied: vec![applied] } }
            }
            Change::Scheduling { thread, before, applied } => {
                Self::Scheduling { thread, values: Values { original: before, applied: vec![applied] } }
            }
            Change::Family { marker, root, cgroups, before } => Self::Family(Family {
                marker,
                root,
                cgroups,
                original: before,
                applied: BTreeSet::new(),
                own: HashMap::new(),
                members: HashSet::new(),
            }),
            Change::Cgroup { path, home } => Self::Cgroup { path, home, moved: HashMap::new() },
            Change::Controller { parent, name } => Self::Controller { parent, name },
            Change::Helper { process } => Self::Helper { process },
            Change::Applied { .. } | Change::Own { .. } | Change::Member { .. } | Change::Moved { .. } => return None,
        })
    }

    fn add(&mut self, change: Change) {
        match (self, change) {
            (Self::File { values, .. }, Change::File { before, after, .. }) => values.note(&before, &after),
            (Self::VirtualFunctions { values, .. }, Change::VirtualFunctions { before, after, .. }) => {
                values.note(&before, &after);
            }
            (Self::Driver { values, .. }, Change::Driver { before, before_override, after, .. }) => {
                values.note(&binding(&before, &before_override), &binding(&after, after.as_deref().unwrap_or("")));
            }
            (Self::Module { applied, .. }, Change::Module { after, .. }) => applied.push(after),
            (Self::Affinity { values, .. }, Change::Affinity { before, applied, .. }) => values.note(&before, &applied),
            (Self::Scheduling { values, .. }, Change::Scheduling { before, applied, .. }) => {
                values.note(&before, &applied);
            }
            (Self::Family(family), Change::Applied { mask, .. }) => {
                family.applied.insert(mask);
            }
            (Self::Family(family), Change::Own { thread, before, .. }) => {
                family.own.insert(thread, before);
            }
            (Self::Family(family), Change::Member { process, .. }) => {
                family.members.insert(process);
            }
            (Self::Cgroup { moved, .. }, Change::Moved { thread, home, .. }) => {
                moved.insert(thread, home);
            }
            _ => {}
        }
    }

    /// The thing in a few words.
    pub fn describe(&self) -> String {
        match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::VirtualFunctions { device, .. } => format!("number of virtual functions of {device}"),
            Self::Driver { device, .. } => format!("driver of {device}"),
            Self::Module { module, before: None, .. } => format!("module {module}, not loaded before"),
            Self::Module { module, .. } => format!("parameters of module {module}"),
            Self::Affinity { thread, .. } => format!("affinity of thread {} of process {}", thread.tid, thread.pid),
            Self::Scheduling { thread, .. } => format!("scheduling of thread {} of process {}", thread.tid, thread.pid),
            Self::Family(family) => match (&family.root, &family.marker) {
                (Some(root), _) => format!("affinity of the program started as process {}", root.pid),
                (None, Some(marker)) => format!("affinity of the program of run {marker}"),
                (None, None) => "affinity of a program".to_owned(),
            },
            Self::Cgroup { path, .. } => format!("cgroup {}", path.display()),
            Self::Controller { parent, name } => format!("controller {name} of {}", parent.display()),
            Self::Helper { process } => format!("helper process {}", process.pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_read_otherwise_than_written() {
        let same = |a: &str, b: &str| a.to_owned().same(&b.to_owned());
        assert!(same("0,1\n", "0-1"));
        assert!(same("always", "[always] madvise never\n"));
        assert!(same("Y\n", "1"));
        assert!(same("", "\n"));
        assert!(!same("0", ""));
        assert!(!same("200000", "0"));
        assert!(!same("madvise", "[always] madvise never\n"));
    }

    #[test]
    fn somebody_elses_value_becomes_the_original() {
        let mut values = Values { original: "0".to_owned(), applied: vec!["200000".to_owned()] };
        values.note(&"200000".into(), &"100000".into());
        assert_eq!(values.original, "0");
        values.note(&"50000".into(), &"100000".into());
        assert_eq!(values.original, "50000");
        assert_eq!(values.judge(&"200000\n".into()), Verdict::Ours);
        assert_eq!(values.judge(&"7".into()), Verdict::SomebodyElses);
    }
}
