//! Writing settings: all or none, through the undo journal, each verified after it was written.
//!
//! The journal is an ordinary one until the last step is done; only then its changes are kept. So whoever is killed on
//! the way leaves a journal that the guardian, the next start of muster, or `muster undo` puts back.

use crate::error::{Error, Result};
use crate::pci::{DEVICES, functions_of};
use crate::tree::Tree;
use muster_model::host::{HostFacts, Module, Setting};
use muster_undo::{Directory, Journal, guardian, new_run_id, reads_as, recover};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One write, or what the kernel needs several for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A file gets a value.
    Write {
        /// Its path below the root.
        path: String,
        /// The value.
        value: String,
    },
    /// A module is loaded, anew where it is loaded already.
    Load {
        /// The module.
        module: String,
        /// Its parameters.
        parameters: BTreeMap<String, String>,
    },
    /// A device gets so many virtual functions.
    Functions {
        /// The device's address.
        device: String,
        /// How many.
        count: u64,
    },
    /// A virtual function gets a driver; a physical one stands for all those it has by then.
    Bind {
        /// The device's address.
        device: String,
        /// The driver; none leaves the choice to the host.
        driver: Option<String>,
    },
}

/// What is to be done, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// Settings that hold already, in words.
    pub already: Vec<String>,
    /// Advised settings that cannot be had here, and why.
    pub cannot: Vec<String>,
    /// What has to be known of it.
    pub notes: Vec<String>,
}

/// A change that was, or in a dry run would be, made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Made {
    /// What was changed.
    pub what: String,
    /// What it was before.
    pub before: String,
    /// What it is now.
    pub after: String,
}

/// What the settings come to on this host: what holds already is left out, parameters that a running module does not
/// take become one loading of it, and what a step needs comes before it. Of the `advised` ones those that cannot be had
/// here are left out too, and named.
///
/// # Errors
/// [`Error::Request`] when one of those `asked` for cannot be had here.
pub fn plan(tree: &Tree, facts: &HostFacts, advised: &[Setting], asked: &[Setting]) -> Result<Plan> {
    let mut plan = Plan::default();
    for (setting, is_asked) in advised.iter().map(|one| (one, false)).chain(asked.iter().map(|one| (one, true))) {
        let already = plan.already.len();
        match plan.add(tree, facts, setting) {
            Err(Error::Request(why)) if !is_asked => {
                plan.cannot.push(why);
                continue;
            }
            added => added?,
        }
        if let Some(note) = setting.effect().note().filter(|_| plan.already.len() == already) {
            plan.notes.push(format!("{setting}: {note}"));
        }
    }
    Ok(plan)
}

impl Plan {
    fn add(&mut self, tree: &Tree, facts: &HostFacts, setting: &Setting) -> Result<()> {
        match setting {
            Setting::File { path, value, .. } => self.write(tree, path.clone(), value),
            Setting::Parameter { module, name, value, .. } => self.parameter(tree, facts, module, name, value),
            Setting::VirtualFunctions { device, count } => self.functions(tree, device, *count),
            Setting::Driver { device, driver } => self.driver(tree, device, driver.as_deref()),
        }
    }

    fn write(&mut self, tree: &Tree, path: String, value: &str) -> Result<()> {
        let Some(content) = tree.text(&path) else {
            return Err(Error::Request(format!("{path} cannot be set: it is not there, or not readable")));
        };
        match reads_as(&content, value) {
            true => self.already.push(format!("{path} = {value}")),
            false => self.steps.push(Step::Write { path, value: value.to_owned() }),
        }
        Ok(())
    }

    fn parameter(&mut self, tree: &Tree, facts: &HostFacts, module: &str, name: &str, value: &str) -> Result<()> {
        let path = format!("/sys/module/{module}/parameters/{name}");
        let found = facts.kvm.modules.iter().find(|found| found.name == module);
        let parameter = found.and_then(|found| Some((found, found.parameters.get(name)?)));
        let Some((found, parameter)) = parameter else {
            return Err(Error::Request(format!("{path} cannot be set: it is not there, or not readable")));
        };
        if parameter.writable || reads_as(&parameter.value, value) {
            return self.write(tree, path, value);
        }
        reloadable(tree, facts, found, name, value)?;
        let same = |step: &&mut Step| matches!(step, Step::Load { module: other, .. } if other == module);
        if let Some(Step::Load { parameters, .. }) = self.steps.iter_mut().find(same) {
            parameters.insert(name.to_owned(), value.to_owned());
        } else {
            let parameters = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            self.steps.push(Step::Load { module: module.to_owned(), parameters });
        }
        Ok(())
    }

    /// New virtual functions get no driver of the host: the next step, or a VMM, gives them theirs.
    fn functions(&mut self, tree: &Tree, device: &str, count: u64) -> Result<()> {
        let place = format!("{DEVICES}/{device}");
        if tree.value::<u64>(&format!("{place}/sriov_numvfs")) == Some(count) {
            self.already.push(format!("{count} virtual functions of {device}"));
            return Ok(());
        }
        let autoprobe = format!("{place}/sriov_drivers_autoprobe");
        if count > 0 && tree.word(&autoprobe).as_deref() == Some("1") {
            self.write(tree, autoprobe, "0")?;
        }
        self.steps.push(Step::Functions { device: device.to_owned(), count });
        Ok(())
    }

    fn driver(&mut self, tree: &Tree, device: &str, driver: Option<&str>) -> Result<()> {
        let made =
            |step: &Step| matches!(step, Step::Functions { device: other, count } if other == device && *count > 0);
        if functions_of(tree, device).is_some_and(|functions| functions.is_empty()) && !self.steps.iter().any(made) {
            return Err(Error::Request(format!("{device} has no virtual functions; `--vfs {device}=N` makes some")));
        }
        if let Some(driver) = driver {
            let load = Step::Load { module: driver.to_owned(), parameters: BTreeMap::new() };
            if !tree.has(&format!("/sys/bus/pci/drivers/{driver}")) && !self.steps.contains(&load) {
                if !tree.is_live() {
                    return Err(Error::Request(format!("driver {driver} is not loaded in the tree")));
                }
                self.steps.push(load);
            }
            let current = tree.link_name(&format!("{DEVICES}/{device}/driver"));
            let chosen = tree.word(&format!("{DEVICES}/{device}/driver_override"));
            if current.as_deref() == Some(driver) && chosen.as_deref() == Some(driver) {
                self.already.push(format!("{device} has driver {driver}"));
                return Ok(());
            }
        }
        self.steps.push(Step::Bind { device: device.to_owned(), driver: driver.map(str::to_owned) });
        Ok(())
    }
}

/// Whether a module can be loaded anew with another value of a parameter.
fn reloadable(tree: &Tree, facts: &HostFacts, module: &Module, name: &str, value: &str) -> Result<()> {
    let Module { name: module, users, .. } = module;
    let persistent =
        format!("`options {module} {name}={value}` in /etc/modprobe.d holds from the next time it is loaded");
    let why = match users {
        _ if !tree.is_live() => "only the running system can load a module anew".to_owned(),
        None => format!("{module} is built into the kernel; boot with `{module}.{name}={value}`"),
        Some(0) => return Ok(()),
        Some(users) => format!(
            "{module} is fixed while it is in use ({users} users, {} VMs): stop the VMs first; {persistent}",
            facts.vms.len()
        ),
    };
    Err(Error::Request(format!("{module}.{name} takes a value only when the module is loaded, and {why}")))
}

impl Step {
    /// The files that it writes, as far as they are known beforehand.
    fn writes(&self) -> Vec<String> {
        match self {
            Self::Write { path, .. } => vec![path.clone()],
            Self::Load { .. } => Vec::new(),
            Self::Functions { device, .. } => vec![format!("{DEVICES}/{device}/sriov_numvfs")],
            Self::Bind { .. } => vec!["/sys/bus/pci/drivers_probe".to_owned()],
        }
    }

    /// The change in words, with what there is now.
    fn preview(&self, tree: &Tree) -> Made {
        let (what, before, after) = match self {
            Self::Write { path, value } => {
                let now = tree.text(path).unwrap_or_default();
                (path.clone(), crate::text::chosen(&now).to_owned(), value.clone())
            }
            Self::Load { module, parameters } => {
                let now =
                    |name: &String| tree.word(&format!("/sys/module/{}/parameters/{name}", module.replace('-', "_")));
                let before = parameters.keys().map(|name| format!("{name}={}", now(name).unwrap_or_default()));
                let loaded = tree.has(&format!("/sys/module/{}", module.replace('-', "_")));
                let before = if loaded { before.collect::<Vec<_>>().join(" ") } else { "not loaded".to_owned() };
                let after = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
                let after = if after.is_empty() { "loaded".to_owned() } else { after.join(" ") };
                (format!("module {module}"), before, after)
            }
            Self::Functions { device, count } => {
                let now = tree.word(&format!("{DEVICES}/{device}/sriov_numvfs")).unwrap_or_default();
                (format!("virtual functions of {device}"), now, count.to_string())
            }
            Self::Bind { device, driver } => {
                let now = tree.link_name(&format!("{DEVICES}/{device}/driver")).unwrap_or_else(|| "none".to_owned());
                let after = driver.clone().unwrap_or_else(|| "the host's choice".to_owned());
                (format!("driver of {device}"), now, after)
            }
        };
        Made { what, before, after }
    }
}

/// What a plan would change. Changes nothing.
pub fn preview(tree: &Tree, plan: &Plan) -> Vec<Made> {
    plan.steps.iter().flat_map(|step| expanded(tree, step)).map(|step| step.preview(tree)).collect()
}

/// Carries out a plan, all of it or nothing, and keeps what it changed until it is asked to be undone.
///
/// # Errors
/// [`Error::NotPermitted`] before anything was changed; [`Error::Undone`] when a step failed or a signal came.
pub fn carry_out(tree: &Tree, plan: &Plan) -> Result<Vec<Made>> {
    check_permitted(tree, plan)?;
    if plan.steps.is_empty() {
        return Ok(Vec::new());
    }
    let ended = Ended::watch()?;
    // What an earlier muster left must not be taken for this machine's own.
    for report in recover(&Directory::standard()?)? {
        if !report.is_complete() {
            return Err(Error::Request(format!(
                "run {} left changes that cannot be undone: see `muster undo`",
                report.run
            )));
        }
    }
    let directory = Directory::standard()?;
    let run = new_run_id().map_err(|source| Error::Io { doing: "tell this process from others", source })?;
    let _guardian = guardian::spawn(&directory, &run)?;
    let journal = Journal::create_about(directory, &run, Some(&crate::about(tree)))?;
    let made = all_steps(tree, plan, &journal, &ended).and_then(|made| Ok(journal.keep().map(|()| made)?));
    made.map_err(|cause| Error::Undone { cause: Box::new(cause), report: Box::new(journal.restore()) })
}

fn all_steps(tree: &Tree, plan: &Plan, journal: &Journal, ended: &Ended) -> Result<Vec<Made>> {
    let mut made = Vec::new();
    for step in plan.steps.iter() {
        for step in expanded(tree, step) {
            ended.check()?;
            let change = step.preview(tree);
            one_step(tree, &step, journal)?;
            made.push(change);
        }
    }
    // A signal during the last step is one all the same.
    ended.check()?;
    Ok(made)
}

/// A physical function stands for the virtual ones that it has by now.
fn expanded(tree: &Tree, step: &Step) -> Vec<Step> {
    let Step::Bind { device, driver } = step else { return vec![step.clone()] };
    let Some(functions) = functions_of(tree, device) else { return vec![step.clone()] };
    functions.into_iter().map(|device| Step::Bind { device, driver: driver.clone() }).collect()
}

fn one_step(tree: &Tree, step: &Step, journal: &Journal) -> Result<()> {
    let root = tree.path("/");
    match step {
        Step::Write { path, value } => {
            journal.write_file(&tree.path(path), value)?;
            let reads = tree.text(path).unwrap_or_default();
            if !reads_as(&reads, value) {
                return Err(Error::NotTaken {
                    path: path.clone(),
                    value: value.clone(),
                    reads: reads.trim().to_owned(),
                });
            }
        }
        Step::Load { module, parameters } => {
            journal.load_module(module, parameters)?;
        }
        Step::Functions { device, count } => {
            journal.set_virtual_functions(&root, device, *count)?;
        }
        Step::Bind { device, driver } => {
            journal.bind(&root, device, driver.as_deref())?;
        }
    }
    Ok(())
}

/// Everything that this user may not write, before anything is written.
fn check_permitted(tree: &Tree, plan: &Plan) -> Result<()> {
    let mut refused: BTreeSet<String> = BTreeSet::new();
    for path in plan.steps.iter().flat_map(Step::writes) {
        if accessat(CWD, tree.path(&path), Access::WRITE_OK, AtFlags::EACCESS).is_err() {
            refused.insert(format!("writing {path}"));
        }
    }
    if !rustix::process::geteuid().is_root() {
        for step in &plan.steps {
            if let Step::Load { module, .. } = step {
                refused.insert(format!("loading {module} (CAP_SYS_MODULE)"));
            }
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Error::NotPermitted { what: refused.into_iter().collect::<Vec<_>>().join(", ") }),
    }
}

/// The signals that end a muster: seen between two steps.
struct Ended(Arc<AtomicUsize>);

impl Ended {
    fn watch() -> Result<Self> {
        let last = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), signal as usize)
                .map_err(|source| Error::Io { doing: "watch for signals", source })?;
        }
        Ok(Self(last))
    }

    fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::Signal(signal as i32)),
        }
    }
}
