//! Import of rt-app's JSON (the workload generator of Linux's scheduler developers, version 1.0) as a workload.
//!
//! What each construct becomes is a table in docs/import.md. Nothing that changes timing is left out silently: it is
//! simulated, or named in a note, or refused. Sources: rt-app's doc/tutorial.txt, and where that is silent
//! src/rt-app_parse_config.c and src/rt-app.c; doc/workgen for what is mended before.

mod events;
mod lenient;
mod notes;

use crate::workload::{Condition, Count, Group, Phase};
use crate::{CpuSet, ModelError, Workload};
use events::{Item, Spot, allowed_events, event_of};
use lenient::{Node, Value};
use notes::Notes;
use std::collections::{BTreeMap, BTreeSet};

/// What fits rt-app's numbers.
const MAX_INT: i64 = i32::MAX as i64;
/// rt-app ends itself when a task is forked more often.
const MAX_FORKS: u64 = 1024;

/// What the file does not say.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// When the program is ended, in place of the file's `duration`.
    pub duration_s: Option<f64>,
    /// Speed at which `mem` writes.
    pub memset_bytes_per_ns: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { duration_s: None, memset_bytes_per_ns: MEMSET_BYTES_PER_NS }
    }
}

/// memset(3) over 4 MiB, rt-app's buffer (docs/import.md says how it was measured).
pub const MEMSET_BYTES_PER_NS: f64 = 28.0;

/// A workload, and what it leaves out.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The workload.
    pub workload: Workload,
    /// What is simulated otherwise or left out, a sentence each.
    pub notes: Vec<String>,
}

/// Whether a text is meant for rt-app rather than in the project's own language.
pub fn is_rtapp(text: &str) -> bool {
    lenient::first_key(text).is_some_and(|key| ["tasks", "global", "resources"].contains(&key.as_str()))
}

/// Reads a file for rt-app; `file` names it in errors and in the workload.
///
/// # Errors
/// On what rt-app would refuse, and on what cannot be simulated: the place, what was found, what is allowed.
pub fn import(text: &str, file: &str, options: &Options) -> Result<Imported, ModelError> {
    let root = lenient::parse(text, file)?;
    let mut importer = Importer::new(file, options);
    importer.check_options()?;
    let sections = importer.sections(&root)?;
    if let Some(global) = sections.global {
        importer.global(global)?;
    }
    if let Some(seconds) = options.duration_s {
        importer.workload.duration_ns = Some((seconds * 1e9).round() as u64);
    }
    importer.tasks(sections.tasks)?;
    let workload = importer.workload;
    let place = format!("{file}, as a workload");
    workload.validate().and_then(|()| workload.check_for(1, 1.0)).map_err(|error| error.within(&place))?;
    Ok(Imported { notes: importer.notes.sentences(options.memset_bytes_per_ns), workload })
}

/// The name of the condition that forked threads of a task wait for.
fn forked(task: &str) -> String {
    format!("fork {task}")
}

struct Sections<'n> {
    global: Option<&'n Node>,
    tasks: &'n Node,
}

/// A fork event.
struct Forked {
    /// Index of the task that does it.
    by: usize,
    /// The task that is forked.
    name: String,
    /// How often each thread does it; `None` without end.
    times: Option<u64>,
    place: String,
}

/// A task that has been read.
struct Task {
    name: String,
    place: String,
    instances: u64,
    cpus: Option<CpuSet>,
    nice: i8,
    phases: Vec<Phase>,
}

/// What a task or a phase says beside its events.
#[derive(Default)]
struct Properties<'n> {
    instance: Option<u64>,
    delay_us: u64,
    loops: Option<i64>,
    cpus: Option<CpuSet>,
    policy: Option<Policy>,
    /// Niceness, or a priority among real-time threads.
    priority: Option<(i64, String, String)>,
    phases: Option<&'n Node>,
}

struct Importer<'a> {
    file: &'a str,
    options: &'a Options,
    workload: Workload,
    notes: Notes,
    forks: Vec<Forked>,
    default_policy: Policy,
    io_device: String,
    mem_buffer: u64,
}

impl<'a> Importer<'a> {
    fn new(file: &'a str, options: &'a Options) -> Self {
        let name = file.rsplit('/').next().unwrap_or(file);
        let workload = Workload {
            name: name.strip_suffix(".json").unwrap_or(name).to_owned(),
            description: "imported from rt-app's JSON".to_owned(),
            sources: vec![name.to_owned()],
            ..Workload::default()
        };
        Self {
            file,
            options,
            workload,
            notes: Notes::default(),
            forks: Vec::new(),
            default_policy: Policy::Other,
            io_device: "/dev/null".to_owned(),
            mem_buffer: 4 << 20,
        }
    }

    fn check_options(&self) -> Result<(), ModelError> {
        let rate = self.options.memset_bytes_per_ns;
        if !(1e-3..=1e6).contains(&rate) {
            return Err(ModelError::new("bytes per ns", rate.to_string(), "0.001 to 1000000"));
        }
        match self.options.duration_s {
            Some(seconds) if !(1e-9..=10_800.0).contains(&seconds) => {
                Err(ModelError::new("duration", format!("{seconds} s"), "above 0, at most 10800 s"))
            }
            _ => Ok(()),
        }
    }

    fn at(&self, node: &Node, path: &str) -> String {
        format!("{}, line {}: {path}", self.file, node.line)
    }

    fn object<'n>(&self, node: &'n Node, path: &str) -> Result<&'n [(String, Node)], ModelError> {
        match &node.value {
            Value::Object(members) => Ok(members),
            _ => Err(ModelError::new(self.at(node, path), node.describe(), "an object")),
        }
    }

    /// An object whose keys each stand there once.
    fn once<'n>(&self, node: &'n Node, path: &str) -> Result<&'n [(String, Node)], ModelError> {
        let members = self.object(node, path)?;
        let mut seen = BTreeSet::new();
        for (key, value) in members.iter().filter(|(key, _)| event_of(key).is_none()) {
            if !seen.insert(key) {
                return Err(ModelError::new(self.at(value, path), format!("`{key}` twice"), "each key once"));
            }
        }
        Ok(members)
    }

    fn sections<'n>(&mut self, root: &'n Node) -> Result<Sections<'n>, ModelError> {
        let (mut global, mut tasks) = (None, None);
        for (key, node) in self.once(root, "the file")? {
            match key.as_str() {
                "global" => global = Some(node),
                "tasks" => tasks = Some(node),
                // Kept for files of old: what is used is created where it is named.
                "resources" => self.notes.log("resources"),
                _ => self.notes.unknown(key),
            }
        }
        let missing = || ModelError::new(self.file, "no `tasks`", "an object `tasks` with an object for each task");
        Ok(Sections { global, tasks: tasks.ok_or_else(missing)? })
    }

    // ---- global ----

    fn global(&mut self, node: &Node) -> Result<(), ModelError> {
        for (key, value) in self.once(node, "global")? {
            let path = format!("global.{key}");
            let place = self.at(value, &path);
            match key.as_str() {
                "duration" => {
                    let seconds = self.signed(value, &place)?;
                    self.workload.duration_ns = (seconds > 0).then_some(seconds as u64 * 1_000_000_000);
                }
                "default_policy" => self.default_policy = self.policy(value, &place, &path)?,
                "calibration" => self.calibration(value, &place)?,
                "io_device" => match &value.value {
                    Value::Text(device) => self.io_device = device.clone(),
                    _ => return Err(ModelError::new(place, value.describe(), "a file's name")),
                },
                "mem_buffer_size" => self.mem_buffer = self.whole(value, &place, 1)?,
                "pi_enabled" if matches!(value.value, Value::Bool(true)) => self.notes.weight(&path),
                "pi_enabled" | "lock_pages" | "logdir" | "log_basename" | "log_size" | "ftrace" | "gnuplot"
                | "cumulative_slack" | "frag" => self.notes.log(key),
                _ => self.notes.unknown(&path),
            }
        }
        Ok(())
    }

    fn calibration(&mut self, node: &Node, place: &str) -> Result<(), ModelError> {
        let on_a_cpu = |text: &str| text.strip_prefix("CPU").is_some_and(|cpu| cpu.parse::<u32>().is_ok());
        match &node.value {
            Value::Int(_) => self.notes.calibration(),
            Value::Text(text) if on_a_cpu(text) => {}
            _ => return Err(ModelError::new(place, node.describe(), "\"CPU0\" and the like, or ns per loop")),
        }
        Ok(())
    }

    /// A policy; others than SCHED_OTHER are noted.
    fn policy(&mut self, node: &Node, place: &str, path: &str) -> Result<Policy, ModelError> {
        const ALL: &str = "SCHED_OTHER, SCHED_IDLE, SCHED_RR, SCHED_FIFO";
        let Value::Text(policy) = &node.value else { return Err(ModelError::new(place, node.describe(), ALL)) };
        match policy.as_str() {
            "SCHED_OTHER" => Ok(Policy::Other),
            "SCHED_IDLE" | "SCHED_RR" | "SCHED_FIFO" => {
                self.notes.weight(path);
                Ok(Policy::Noted)
            }
            "SCHED_DEADLINE" => Err(ModelError::new(place, policy, format!("{ALL}: no budgets are simulated"))),
            _ => Err(ModelError::new(place, node.describe(), ALL)),
        }
    }

    /// The niceness of a task's threads, which a priority is in SCHED_OTHER.
    fn nice(&mut self, properties: &Properties) -> Result<i8, ModelError> {
        let Some((priority, path, place)) = &properties.priority else { return Ok(0) };
        match properties.policy.unwrap_or(self.default_policy) {
            Policy::Other => {
                let nice = i8::try_from(*priority).ok().filter(|nice| (-20..=19).contains(nice));
                nice.ok_or_else(|| ModelError::new(place, priority.to_string(), "-20 to 19 in SCHED_OTHER"))
            }
            Policy::Noted => {
                self.notes.weight(path);
                Ok(0)
            }
        }
    }

    fn signed(&self, node: &Node, place: &str) -> Result<i64, ModelError> {
        match node.value {
            Value::Int(number) if (-MAX_INT..=MAX_INT).contains(&number) => Ok(number),
            _ => Err(ModelError::new(place, node.describe(), format!("a whole number up to {MAX_INT}, -1 for no end"))),
        }
    }

    // ---- tasks ----

    fn tasks(&mut self, node: &Node) -> Result<(), ModelError> {
        let members = self.object(node, "tasks")?;
        if members.is_empty() {
            return Err(ModelError::new(self.at(node, "tasks"), "none", "an object for each task"));
        }
        let mut names = BTreeSet::new();
        let mut tasks = Vec::new();
        for (key, node) in members {
            let name = unused(key, &mut names);
            tasks.push(self.task(key, name, tasks.len(), node)?);
        }
        self.check_barriers(&tasks)?;
        let forked = self.count_forks(&tasks)?;
        for (task, forked_threads) in tasks.into_iter().zip(forked) {
            self.groups(task, forked_threads, &mut names)?;
        }
        Ok(())
    }

    /// Reads a task; `key` is how the file calls it, `name` the same made unique.
    fn task(&mut self, key: &str, name: String, index: usize, node: &Node) -> Result<Task, ModelError> {
        let path = format!("tasks.{name}");
        let properties = self.properties(node, &path, true)?;
        let (mut items, turns) = match properties.phases {
            Some(phases) => {
                let items = self.phases(phases, key, &path, properties.cpus)?;
                (items, properties.loops.map_or(Turns::Endless, Turns::of_task))
            }
            None => (self.events(node, key, &path)?, properties.loops.map_or(Turns::Endless, Turns::of_phase)),
        };
        if items.is_empty() {
            return Err(self.no_events(node, &path));
        }
        let place = self.at(node, &path);
        if !ends(&items) {
            self.check_end(&place)?;
        } else {
            items = match turns {
                Turns::Never => Vec::new(),
                Turns::Times(1) => items,
                Turns::Times(times) => vec![in_loop(place.clone(), Count::Fixed(times), items)],
                Turns::Endless => {
                    self.check_end(&place)?;
                    vec![in_loop(place.clone(), Count::Forever, items)]
                }
            };
        }
        let mut phases = Vec::new();
        if properties.delay_us > 0 {
            phases.push(Phase::SleepUntil { ns: properties.delay_us * 1000 });
        }
        phases.extend(self.nest(items, index, &mut Vec::new(), Some(1))?);
        let nice = self.nice(&properties)?;
        let (instances, cpus) = (properties.instance.unwrap_or(1), properties.cpus);
        Ok(Task { name, place, instances, cpus, nice, phases })
    }

    /// A task without end needs something that ends the program.
    fn check_end(&self, place: &str) -> Result<(), ModelError> {
        if self.workload.duration_ns.is_some() {
            return Ok(());
        }
        let allowed = "a `loop` of the task, a `duration` in `global`, or `muster import --duration SECONDS`";
        Err(ModelError::new(place, "a task without end in a file without `duration`", allowed))
    }

    fn no_events(&self, node: &Node, path: &str) -> ModelError {
        ModelError::new(self.at(node, path), "no event", allowed_events())
    }

    /// The phases of a task one after the other; those that are done once lie open.
    fn phases(&mut self, node: &Node, task: &str, path: &str, cpus: Option<CpuSet>) -> Result<Vec<Spot>, ModelError> {
        let members = self.object(node, &format!("{path}.phases"))?;
        let mut names = BTreeSet::new();
        let mut read = Vec::new();
        for (key, node) in members {
            let path = format!("{path}.phases.{}", unused(key, &mut names));
            let properties = self.properties(node, &path, false)?;
            let events = self.events(node, task, &path)?;
            if events.is_empty() {
                return Err(self.no_events(node, &path));
            }
            read.push((path, node, properties, events));
        }
        // A phase without CPUs of its own goes back to the task's.
        let moves = read.iter().any(|(_, _, properties, _)| properties.cpus.is_some());
        let mut items = Vec::new();
        for (path, node, properties, mut events) in read {
            if !ends(&items) {
                self.notes.never(&path);
                continue;
            }
            let place = self.at(node, &path);
            if moves {
                let affinity = Phase::Affinity { cpus: properties.cpus.or(cpus) };
                events.insert(0, Spot { place: place.clone(), item: Item::Plain(affinity) });
            }
            match properties.loops.map_or(Turns::Times(1), Turns::of_phase) {
                Turns::Times(1) => items.extend(events),
                Turns::Times(times) => items.push(in_loop(place, Count::Fixed(times), events)),
                _ => items.push(in_loop(place, Count::Forever, events)),
            }
        }
        Ok(items)
    }

    fn events(&mut self, node: &Node, task: &str, path: &str) -> Result<Vec<Spot>, ModelError> {
        let mut items = Vec::new();
        let members = self.object(node, path)?;
        let is_old = |key: &str| event_of(key).is_none() || key == "lock_order";
        if members.iter().any(|(key, _)| key == "exec") && members.iter().all(|(key, _)| is_old(key)) {
            let found = "`exec`, of the language before rt-app 1.0";
            return Err(ModelError::new(self.at(node, path), found, allowed_events()));
        }
        for (key, node) in members {
            let Some(event) = event_of(key) else { continue };
            let path = format!("{path}.{key}");
            let place = self.at(node, &path);
            if let Some(item) = self.event(event, key, node, task, &place)? {
                items.push(Spot { place, item });
            }
        }
        Ok(items)
    }

    /// What a task or a phase says beside its events.
    fn properties<'n>(&mut self, node: &'n Node, path: &str, of_task: bool) -> Result<Properties<'n>, ModelError> {
        let mut properties = Properties::default();
        let members = self.once(node, path)?;
        let has_phases = of_task && members.iter().any(|(key, _)| key == "phases");
        for (key, value) in members {
            let path = format!("{path}.{key}");
            let place = self.at(value, &path);
            match key.as_str() {
                "instance" if of_task => properties.instance = Some(self.whole(value, &place, 0)?),
                "delay" if of_task => properties.delay_us = self.signed(value, &place)?.max(0) as u64,
                "phases" if of_task => properties.phases = Some(value),
                "loop" => properties.loops = Some(self.signed(value, &place)?),
                "cpus" => properties.cpus = Some(self.cpus(value, &place)?),
                "policy" => properties.policy = Some(self.policy(value, &place, &path)?),
                "priority" if of_task => properties.priority = Some((self.signed(value, &place)?, path, place)),
                "priority" | "dl-runtime" | "dl-period" | "dl-deadline" => self.notes.weight(&path),
                "util_min" | "util_max" | "nodes_membind" | "taskgroup" => self.notes.placement(&path),
                key if event_of(key).is_some() && !has_phases => {}
                _ => self.notes.unknown(&path),
            }
        }
        Ok(properties)
    }

    fn cpus(&self, node: &Node, place: &str) -> Result<CpuSet, ModelError> {
        let wrong = |found: String| ModelError::new(place, found, "a list of CPU numbers, 0 to 1023");
        let Value::List(cpus) = &node.value else { return Err(wrong(node.describe())) };
        if cpus.is_empty() {
            return Err(wrong("no CPU".to_owned()));
        }
        let mut set = CpuSet::EMPTY;
        for cpu in cpus {
            match cpu.value {
                Value::Int(number @ 0..1024) => set.insert(number as usize),
                _ => return Err(wrong(cpu.describe())),
            }
        }
        Ok(set)
    }

    // ---- threads ----

    /// rt-app counts a barrier's users by how often its name stands in the file.
    fn check_barriers(&self, tasks: &[Task]) -> Result<(), ModelError> {
        for task in tasks {
            let mut seen = BTreeSet::new();
            let mut twice = None;
            crate::workload::visit(&task.phases, &mut |phase| {
                if let Phase::Barrier { barrier } = phase
                    && !seen.insert(barrier)
                {
                    twice = Some(barrier);
                }
            });
            if let Some(barrier) = twice {
                let found = format!("barrier `{barrier}` twice, for which rt-app would wait for ever");
                return Err(ModelError::new(&task.place, found, "a barrier's name once in a task"));
            }
        }
        Ok(())
    }

    /// How many threads of each task are forked, by threads that are forked themselves as well.
    fn count_forks(&mut self, tasks: &[Task]) -> Result<Vec<u64>, ModelError> {
        let by_name: BTreeMap<&str, usize> =
            tasks.iter().enumerate().map(|(i, task)| (task.name.as_str(), i)).collect();
        for fork in &self.forks {
            if !by_name.contains_key(fork.name.as_str()) {
                let names = by_name.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                return Err(ModelError::new(&fork.place, format!("a fork of unknown task `{}`", fork.name), names));
            }
        }
        let mut forked = vec![0u64; tasks.len()];
        // Each round carries the numbers one fork further; more rounds than tasks means a circle.
        for _ in 0..=tasks.len() {
            let mut next = vec![0u64; tasks.len()];
            for fork in &self.forks {
                let threads = tasks[fork.by].instances + forked[fork.by];
                let times = fork.times.unwrap_or(u64::MAX).saturating_mul(threads);
                let of = by_name[fork.name.as_str()];
                next[of] = next[of].saturating_add(times);
                if next[of] > MAX_FORKS {
                    let found = match fork.times {
                        None => format!("a fork of `{}` without end", fork.name),
                        Some(_) => format!("more than {MAX_FORKS} forks of `{}`", fork.name),
                    };
                    return Err(ModelError::new(&fork.place, found, format!("at most {MAX_FORKS}, as in rt-app")));
                }
            }
            if next == forked {
                return Ok(forked);
            }
            forked = next;
        }
        let fork = &self.forks[0];
        Err(ModelError::new(&fork.place, "tasks that fork each other in a circle", "forks that come to an end"))
    }

    /// The threads of a task: those that start with the program, and those that wait to be forked.
    fn groups(&mut self, task: Task, forked_threads: u64, names: &mut BTreeSet<String>) -> Result<(), ModelError> {
        let Task { name, place, instances, cpus, nice, phases } = task;
        let count = |threads: u64| Count::Fixed(threads as u32);
        if forked_threads > 0 {
            let condition = forked(&name);
            let mut barrier = None;
            crate::workload::visit(&phases, &mut |phase| {
                if let Phase::Barrier { .. } = phase {
                    barrier = Some(phase.name());
                }
            });
            if barrier.is_some() {
                return Err(ModelError::new(
                    place,
                    "a barrier in a task that is forked",
                    "barriers in other tasks, as in rt-app",
                ));
            }
            self.notes.fork(&name);
            self.workload.conditions.insert(condition.clone(), Condition { permits: 0 });
            let mut body = vec![Phase::Wait { condition }];
            body.extend(phases.iter().cloned());
            let name = unused(&format!("{name}.forked"), names);
            self.workload.groups.push(Group {
                name,
                count: count(forked_threads),
                cpus,
                nice,
                working_set: None,
                phases: body,
            });
        }
        match instances {
            0 if forked_threads == 0 => self.notes.never(&format!("tasks.{name}")),
            0 => {}
            _ => self.workload.groups.push(Group {
                name,
                count: count(instances),
                cpus,
                nice,
                working_set: None,
                phases,
            }),
        }
        Ok(())
    }
}

/// A scheduling policy.
#[derive(Clone, Copy)]
enum Policy {
    /// SCHED_OTHER.
    Other,
    /// One that is simulated as SCHED_OTHER, which is noted.
    Noted,
}

/// How often something is done.
enum Turns {
    Never,
    Times(u32),
    Endless,
}

impl Turns {
    /// A task's `loop` around its phases: -1 for ever, 0 never.
    fn of_task(loops: i64) -> Self {
        match loops {
            0 => Self::Never,
            1.. => Self::Times(loops as u32),
            _ => Self::Endless,
        }
    }

    /// A phase's `loop`: compared only after the first turn, so that 0 is never met.
    fn of_phase(loops: i64) -> Self {
        if loops > 0 { Self::Times(loops as u32) } else { Self::Endless }
    }
}

fn in_loop(place: String, times: Count, items: Vec<Spot>) -> Spot {
    Spot { place, item: Item::Loop { times, items } }
}

/// Whether what is done comes to an end.
fn ends(items: &[Spot]) -> bool {
    !matches!(items.last(), Some(Spot { item: Item::Loop { times: Count::Forever, .. }, .. }))
}

/// A name that was not there before: the same, or with a number behind it, as workgen does.
fn unused(name: &str, names: &mut BTreeSet<String>) -> String {
    let numbered = (1..).map(|number| format!("{name}{number}"));
    let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !names.contains(name));
    let free = free.expect("one of endlessly many is free");
    names.insert(free.clone());
    free
}
