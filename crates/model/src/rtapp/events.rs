//! A task's events, as rt-app knows them by the beginning of their keys, and how they become phases: locks and unlocks
//! become phases inside each other, the rest is one phase or a few each.

use super::lenient::{Node, Value};
use super::{Forked, Importer, MAX_INT};
use crate::ModelError;
use crate::workload::{Barrier, Count, Duration, Lock, Phase, Timer};

/// The events; a key is the first whose name it begins with (`run2` is a `run`).
const EVENTS: [&str; 17] = [
    "runtime", "run", "sleep", "mem", "iorun", "lock", "unlock", "signal", "broad", "wait", "sync", "barrier", "timer",
    "resume", "suspend", "yield", "fork",
];

/// The event that a key stands for.
pub fn event_of(key: &str) -> Option<&'static str> {
    EVENTS.into_iter().find(|event| key.starts_with(event))
}

/// The events for a message.
pub fn allowed_events() -> String {
    format!("an event: {}", EVENTS.join(", "))
}

/// Something that a task does, and where the file says so.
pub struct Spot {
    pub place: String,
    pub item: Item,
}

/// An event before locks and unlocks have been brought together.
pub enum Item {
    Plain(Phase),
    Lock(String),
    Unlock(String),
    /// `wait`, or `sync` where `signals`.
    Await {
        condvar: String,
        lock: String,
        signals: bool,
    },
    Suspend(String),
    Resume(String),
    Fork(String),
    Loop {
        times: Count,
        items: Vec<Spot>,
    },
}

impl Importer<'_> {
    /// What an event of a task does; `None` for one that does nothing.
    pub(super) fn event(
        &mut self,
        event: &str,
        key: &str,
        node: &Node,
        task: &str,
        place: &str,
    ) -> Result<Option<Item>, ModelError> {
        let ns = |us: u64| us * 1000;
        Ok(Some(match event {
            "run" => {
                let ns = Duration::Fixed(ns(self.whole(node, place, 0)?));
                Item::Plain(Phase::Run { ns, shared: false })
            }
            "runtime" => Item::Plain(Phase::RunFor { ns: ns(self.whole(node, place, 0)?) }),
            "sleep" => Item::Plain(Phase::Sleep { ns: Duration::Fixed(ns(self.whole(node, place, 0)?)) }),
            "mem" => self.memset(node, task, place)?,
            "iorun" => return self.write(node, place),
            "lock" => Item::Lock(self.mutex(self.name(node, place)?)),
            "unlock" => Item::Unlock(self.mutex(self.name(node, place)?)),
            "signal" | "broad" => {
                let condvar = self.condvar(self.name(node, place)?);
                Item::Plain(Phase::Signal { condvar, all: event == "broad" })
            }
            "wait" | "sync" => {
                let condvar = self.member(node, "ref", place)?;
                let lock = self.member(node, "mutex", place)?;
                self.note_other_keys(node, &["ref", "mutex"], place);
                let (condvar, lock) = (self.condvar(condvar), self.mutex(lock));
                Item::Await { condvar, lock, signals: event == "sync" }
            }
            "barrier" => {
                let barrier = self.name(node, place)?;
                self.workload.barriers.insert(barrier.clone(), Barrier::Condvar);
                Item::Plain(Phase::Barrier { barrier })
            }
            "timer" => self.timer(node, task, place)?,
            "resume" => Item::Resume(self.event_name(node, place)?),
            "suspend" if matches!(node.value, Value::Missing) => Item::Suspend(self.resource(task.to_owned())),
            "suspend" => Item::Suspend(self.event_name(node, place)?),
            "yield" => Item::Plain(Phase::Yield {}),
            "fork" => Item::Fork(self.name(node, place)?),
            _ => unreachable!("`{key}` is one of the events"),
        }))
    }

    /// `mem`: writes that many bytes over and over into a buffer.
    fn memset(&mut self, node: &Node, task: &str, place: &str) -> Result<Item, ModelError> {
        let bytes = self.whole(node, place, 0)?;
        self.notes.memset(task);
        let ns = (bytes as f64 / self.options.memset_bytes_per_ns).round() as u64;
        Ok(Item::Plain(Phase::Run { ns: Duration::Fixed(ns), shared: false }))
    }

    /// `iorun`: writes that many bytes to the device, a buffer at a time. The null device takes them all at no cost.
    fn write(&mut self, node: &Node, place: &str) -> Result<Option<Item>, ModelError> {
        let bytes = self.whole(node, place, 0)?;
        if self.io_device != "/dev/null" {
            let found = format!("a write to `{}`", self.io_device);
            return Err(ModelError::new(place, found, "writes to /dev/null (`io_device`): no disk is simulated"));
        }
        let write = Phase::Syscall { ns: Duration::Fixed(0) };
        Ok(match bytes.div_ceil(self.mem_buffer) {
            0 => None,
            1 => Some(Item::Plain(write)),
            times => {
                let times = Count::Fixed(times.min(u64::from(u32::MAX)) as u32);
                Some(Item::Plain(Phase::Loop { times, scaled: false, phases: vec![write] }))
            }
        })
    }

    fn timer(&mut self, node: &Node, task: &str, place: &str) -> Result<Item, ModelError> {
        let name = self.member(node, "ref", place)?;
        self.note_other_keys(node, &["ref", "period", "mode"], place);
        let period = match self.find(node, "period") {
            Some(period) => self.whole(period, &format!("{place}.period"), 0)?,
            None => 0,
        };
        let absolute = match self.find(node, "mode").map(|mode| (&mode.value, mode)) {
            None => false,
            Some((Value::Text(mode), _)) if mode == "relative" || mode == "absolute" => mode == "absolute",
            Some((_, mode)) => {
                let place = format!("{place}.mode");
                return Err(ModelError::new(place, mode.describe(), "\"relative\" or \"absolute\""));
            }
        };
        let shared = !name.starts_with("unique");
        let name = if shared { name } else { format!("{task}.{name}") };
        // One use in absolute mode makes it absolute everywhere.
        self.workload.timers.entry(name.clone()).or_insert(Timer { shared, absolute }).absolute |= absolute;
        Ok(Item::Plain(Phase::Timer { timer: name, period_ns: period * 1000 }))
    }

    fn mutex(&mut self, name: String) -> String {
        self.workload.locks.insert(name.clone(), Lock::Mutex);
        name
    }

    fn condvar(&mut self, name: String) -> String {
        self.workload.condvars.insert(name.clone());
        name
    }

    /// What is suspended on: a condition variable and a mutex of the same name.
    fn resource(&mut self, name: String) -> String {
        let name = self.mutex(name);
        self.condvar(name)
    }

    fn event_name(&mut self, node: &Node, place: &str) -> Result<String, ModelError> {
        let name = self.name(node, place)?;
        Ok(self.resource(name))
    }

    fn name(&self, node: &Node, place: &str) -> Result<String, ModelError> {
        match &node.value {
            Value::Text(name) => Ok(name.clone()),
            _ => Err(ModelError::new(place, node.describe(), "a name in quotes")),
        }
    }

    /// A name in an event's object; rt-app's own default where it is absent.
    fn member(&self, node: &Node, key: &str, place: &str) -> Result<String, ModelError> {
        if !matches!(node.value, Value::Object(_)) {
            return Err(ModelError::new(place, node.describe(), format!("an object with `{key}`")));
        }
        self.find(node, key).map_or(Ok("unknown".to_owned()), |node| self.name(node, &format!("{place}.{key}")))
    }

    fn find<'n>(&self, node: &'n Node, key: &str) -> Option<&'n Node> {
        let Value::Object(members) = &node.value else { return None };
        members.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    fn note_other_keys(&mut self, node: &Node, known: &[&str], place: &str) {
        let Value::Object(members) = &node.value else { return };
        for (key, _) in members.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            self.notes.unknown(&format!("{}.{key}", place.rsplit(": ").next().unwrap_or(place)));
        }
    }

    pub(super) fn whole(&self, node: &Node, place: &str, least: u64) -> Result<u64, ModelError> {
        match node.value {
            Value::Int(number) if (least as i64..=MAX_INT).contains(&number) => Ok(number as u64),
            _ => Err(ModelError::new(place, node.describe(), format!("a whole number, {least} to {MAX_INT}"))),
        }
    }

    /// Puts what is done between a lock and its unlock inside of the lock; `held` are the mutexes held outside.
    /// `repeats` says how often it is all done, `None` without end.
    pub(super) fn nest(
        &mut self,
        items: Vec<Spot>,
        task: usize,
        held: &mut Vec<String>,
        repeats: Option<u64>,
    ) -> Result<Vec<Phase>, ModelError> {
        let outside = held.len();
        // The phases so far, at each depth of locks taken here, and where the lock was taken.
        let mut open: Vec<(Vec<Phase>, String)> = vec![(Vec::new(), String::new())];
        for Spot { place, item } in items {
            let phases = match item {
                Item::Lock(lock) => {
                    take(&lock, held, &place)?;
                    open.push((Vec::new(), place));
                    continue;
                }
                Item::Unlock(lock) => {
                    if held.len() == outside || held.last() != Some(&lock) {
                        let found = format!("an unlock of `{lock}`, which is not the mutex that was locked last");
                        let allowed = "locks inside each other, each unlocked in the phase where it was locked";
                        return Err(ModelError::new(place, found, allowed));
                    }
                    held.pop();
                    let (phases, _) = open.pop().expect("a mutex is held");
                    vec![Phase::Lock { lock, phases }]
                }
                Item::Plain(phase) => vec![phase],
                Item::Await { condvar, lock, signals } => await_phases(condvar, lock, signals, held, &place)?,
                Item::Suspend(name) => {
                    let wait = Phase::Await { condvar: name.clone(), lock: name.clone() };
                    locked(name, wait, held, &place)?
                }
                Item::Resume(name) => {
                    let wake = Phase::Signal { condvar: name.clone(), all: true };
                    locked(name, wake, held, &place)?
                }
                Item::Fork(name) => {
                    let condition = super::forked(&name);
                    self.forks.push(Forked { by: task, name, times: repeats, place });
                    vec![Phase::Wake { condition, count: Count::Fixed(1) }]
                }
                Item::Loop { times, items } => {
                    let repeats = times_over(repeats, times);
                    let phases = self.nest(items, task, held, repeats)?;
                    vec![Phase::Loop { times, scaled: false, phases }]
                }
            };
            open.last_mut().expect("the outermost is always there").0.extend(phases);
        }
        match (open.pop(), held.len() > outside) {
            (Some((_, place)), true) => {
                let found = format!("a lock of `{}` without an unlock", held[held.len() - 1]);
                Err(ModelError::new(place, found, "an unlock further on in the same phase"))
            }
            (phases, _) => Ok(phases.map(|(phases, _)| phases).unwrap_or_default()),
        }
    }
}

/// One phase with a mutex around it.
fn locked(lock: String, phase: Phase, held: &mut Vec<String>, place: &str) -> Result<Vec<Phase>, ModelError> {
    take(&lock, held, place)?;
    held.pop();
    Ok(vec![Phase::Lock { lock, phases: vec![phase] }])
}

/// How often a loop's body is done in all, `None` without end.
fn times_over(repeats: Option<u64>, times: Count) -> Option<u64> {
    match times {
        Count::Forever => None,
        _ => repeats.map(|repeats| repeats.saturating_mul(u64::from(times.resolve(1)))),
    }
}

/// Notes that the thread holds a mutex from here on.
fn take(lock: &str, held: &mut Vec<String>, place: &str) -> Result<(), ModelError> {
    if held.iter().any(|other| other == lock) {
        let found = format!("mutex `{lock}` while the thread holds it, which would wait for itself for ever");
        return Err(ModelError::new(place, found, "a mutex that the thread does not hold"));
    }
    held.push(lock.to_owned());
    Ok(())
}

/// `wait` needs its mutex held; `sync` without it takes it around, as rt-app's tutorial describes it.
fn await_phases(
    condvar: String,
    lock: String,
    signals: bool,
    held: &[String],
    place: &str,
) -> Result<Vec<Phase>, ModelError> {
    let holds = held.contains(&lock);
    if !holds && !signals {
        let found = format!("a wait with mutex `{lock}`, which the thread does not hold");
        return Err(ModelError::new(place, found, format!("\"lock\" : \"{lock}\" before it, \"unlock\" behind it")));
    }
    let mut phases = Vec::new();
    if signals {
        phases.push(Phase::Signal { condvar: condvar.clone(), all: false });
    }
    phases.push(Phase::Await { condvar, lock: lock.clone() });
    Ok(if holds { phases } else { vec![Phase::Lock { lock, phases }] })
}
