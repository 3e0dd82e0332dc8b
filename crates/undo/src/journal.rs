//! The journal file: one JSON object a line, the first one saying whose it is, each further one a change or a list of
//! entries that are undone. Lines are appended whole; a torn last line is a change that was not made.

use crate::change::{Change, EntryId};
use crate::directory::Directory;
use crate::pending::{Entry, Pending, Place};
use crate::recover::{State, Stored};
use crate::report::Report;
use crate::restore::{module, pci};
use crate::{Error, Process, Result, restore};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Environment variable whose value, the run id, marks the processes of a run.
pub const RUN_VARIABLE: &str = "MUSTER_RUN";

/// Version of the format; a journal of another version is left to the muster that wrote it.
pub(crate) const VERSION: u32 = 1;

/// First line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub muster_journal: u32,
    pub run: String,
    pub owner: Process,
    /// The boot this is about (`/proc/sys/kernel/random/boot_id`); no recorded change survives it.
    pub boot: String,
    /// The PID namespace its process numbers belong to.
    pub pid_namespace: String,
    /// What the changes are about, for whoever undoes only some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

/// Any further line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Change {
        id: EntryId,
        #[serde(flatten)]
        change: Change,
    },
    Settled {
        settled: Vec<EntryId>,
    },
    Kept {
        kept: bool,
    },
}

/// The journal of this process: what it has changed and not yet put back.
///
/// It is not restored when dropped: say [`Journal::restore`] at every orderly end, and let the [`crate::guardian`] see
/// to the others.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    run: String,
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    length_bytes: u64,
    pending: Pending,
    /// Restored or kept: nothing may be recorded any more.
    closed: bool,
}

/// A run id that no other run of this boot has: the process's number and start time.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn new_run_id() -> io::Result<String> {
    Process::this().map(|this| format!("{}-{}", this.pid, this.start))
}

impl Header {
    pub fn of_this_process(run: &str) -> io::Result<Self> {
        Ok(Self {
            muster_journal: VERSION,
            run: run.to_owned(),
            owner: Process::this()?,
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            pid_namespace: fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned(),
            about: None,
        })
    }
}

impl Journal {
    /// Starts the journal of run `run` (letters, digits, `-` and `_`, at most 64; see [`new_run_id`]).
    ///
    /// # Errors
    /// When the directory cannot be written, `/proc` cannot be read, or the run id is malformed or in use.
    pub fn create(directory: Directory, run: &str) -> Result<Self> {
        Self::create_about(directory, run, None)
    }

    /// The same for changes that are about `about`, see [`crate::undo_about`].
    ///
    /// # Errors
    /// As [`Journal::create`].
    pub fn create_about(directory: Directory, run: &str, about: Option<&str>) -> Result<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if run.is_empty() || run.len() > 64 || !run.chars().all(allowed) {
            let why = "a run id has 1 to 64 letters, digits, `-` and `_`".to_owned();
            return Err(Error::Refused { what: format!("run `{run}`"), why });
        }
        let mut header = Header::of_this_process(run).map_err(Error::io("read", "/proc"))?;
        header.about = about.map(str::to_owned);
        let path = directory.journal_path(run);
        // Under the lock, so that nobody takes the still empty file for an abandoned one.
        let lock = directory.lock()?;
        let mut inner =
            Inner { file: directory.create(run)?, length_bytes: 0, pending: Pending::default(), closed: false };
        inner.append(&header).map_err(Error::io("write", &path))?;
        drop(lock);
        Ok(Self { run: run.to_owned(), path, inner: Mutex::new(inner), directory })
    }

    /// The run's id: the value of [`RUN_VARIABLE`] for the processes it starts.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Where the journal is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records `change`, which may be made once this has returned. What is recorded already costs no write.
    ///
    /// # Errors
    /// When the change is not to be made: it could not be written, not be undone ([`Error::Refused`]), or another
    /// journal holds the same file, cgroup or program ([`Error::Claimed`]).
    pub fn record(&self, change: &Change) -> Result<EntryId> {
        let mut inner = self.inner();
        let refused = |why| Error::Refused { what: restore::name(change), why };
        if inner.closed {
            return Err(refused("the journal has been restored or kept, and is closed".to_owned()));
        }
        let place = inner.pending.place(change).map_err(refused)?;
        let id = match place {
            Place::Known(id) => return Ok(id),
            Place::Adds(id) => {
                self.append_change(&mut inner, id, change)?;
                id
            }
            Place::New(id) => {
                restore::check(change).map_err(|why| Error::Refused { what: restore::name(change), why })?;
                let exclusive = matches!(
                    change,
                    Change::File { .. }
                        | Change::VirtualFunctions { .. }
                        | Change::Driver { .. }
                        | Change::Module { .. }
                        | Change::Family { .. }
                        | Change::Cgroup { .. }
                        | Change::Controller { .. }
                );
                let claim = exclusive.then(|| self.claim(change)).transpose()?;
                self.append_change(&mut inner, id, change)?;
                drop(claim);
                id
            }
        };
        inner.pending.apply(place, change.clone());
        Ok(id)
    }

    /// Records and writes a kernel file: `value` into `path`, which now reads something else.
    ///
    /// # Errors
    /// As [`Journal::record`], and when the file cannot be read or written.
    pub fn write_file(&self, path: &Path, value: &str) -> Result<EntryId> {
        let before = fs::read_to_string(path).map_err(Error::io("read", path))?;
        let id = self.record(&Change::File { path: path.to_owned(), before, after: value.to_owned() })?;
        restore::write_kernel_file(path, value).map_err(Error::io("write", path))?;
        Ok(id)
    }

    /// Records and sets the number of virtual functions of the PCI device `device` below `root`.
    ///
    /// # Errors
    /// As [`Journal::record`]; when a guest uses one of those there are; when the kernel does not do it.
    pub fn set_virtual_functions(&self, root: &Path, device: &str, count: u64) -> Result<EntryId> {
        let failed = |error| Error::Device { device: device.to_owned(), source: error };
        let before = pci::count(root, device).map_err(failed)?;
        let (root_path, name) = (root.to_owned(), device.to_owned());
        let id = self.record(&Change::VirtualFunctions { root: root_path, device: name, before, after: count })?;
        if let Some(why) = pci::functions_in_use(root, device) {
            return Err(Error::Refused { what: format!("a change of the virtual functions of {device}"), why });
        }
        pci::set_count(root, device, count).map_err(failed)?;
        Ok(id)
    }

    /// Records and changes the driver of the PCI device `device` below `root`; none leaves the choice to the kernel.
    ///
    /// # Errors
    /// As [`Journal::record`]; when a guest uses the device; when the kernel does not do it.
    pub fn bind(&self, root: &Path, device: &str, driver: Option<&str>) -> Result<EntryId> {
        let failed = |error| Error::Device { device: device.to_owned(), source: error };
        let id = self.record(&Change::Driver {
            root: root.to_owned(),
            device: device.to_owned(),
            before: pci::driver(root, device),
            before_override: pci::override_of(root, device).map_err(failed)?,
            after: driver.map(str::to_owned),
        })?;
        if let Some(why) = pci::in_use(root, device) {
            return Err(Error::Refused { what: format!("another driver for {device}"), why });
        }
        pci::bind(root, device, driver).map_err(failed)?;
        Ok(id)
    }

    /// Records and loads the kernel module `module` with these parameters, anew where it is loaded already; its other ones
    /// stay as they are.
    ///
    /// # Errors
    /// As [`Journal::record`], and when rmmod(8) or modprobe(8) does not do it, for example because the module is in use.
    pub fn load_module(&self, module: &str, parameters: &BTreeMap<String, String>) -> Result<EntryId> {
        let failed = |error| Error::Module { module: module.to_owned(), source: error };
        module::check(module).map_err(|why| Error::Refused { what: format!("module {module}"), why })?;
        let before = module::is_loaded(module).then(|| module::all_parameters(module)).transpose().map_err(failed)?;
        let others = before.clone().unwrap_or_default();
        let id = self.record(&Change::Module { module: module.to_owned(), before, after: parameters.clone() })?;
        module::reload(module, parameters, &others).map_err(failed)?;
        Ok(id)
    }

    /// Ends the journal without undoing it: from now on its changes are meant to stay, also after the end of this
    /// process, until somebody asks for [`crate::undo_all`] or [`crate::undo_about`]. Until this returns they are undone
    /// like any others once this process is dead.
    ///
    /// # Errors
    /// When the journal cannot be written: then nothing is kept.
    pub fn keep(&self) -> Result<()> {
        let mut inner = self.inner();
        inner.append(&Line::Kept { kept: true }).map_err(Error::io("write", &self.path))?;
        inner.closed = true;
        Ok(())
    }

    /// Notes that an entry is undone, by other means than this crate.
    ///
    /// # Errors
    /// When the journal cannot be written; the entry then stays.
    pub fn settle(&self, id: EntryId) -> Result<()> {
        let mut inner = self.inner();
        inner.append(&Line::Settled { settled: vec![id] }).map_err(Error::io("write", &self.path))?;
        inner.pending.settle(id);
        Ok(())
    }

    /// Undoes one entry now; the journal goes on.
    ///
    /// # Errors
    /// When the journal cannot be written. What could not be undone is in the report, and stays recorded.
    pub fn undo(&self, id: EntryId) -> Result<Report> {
        let mut report = Report::new(&self.run, self.path.clone());
        let entry: Option<Entry> = self.inner().pending.get(id).cloned();
        if let Some(entry) = entry {
            restore::entry(&entry, restore::Mode::Apply, &mut report);
            if report.is_complete() {
                self.settle(id)?;
            }
        }
        Ok(report)
    }

    /// Undoes everything, newest first, and removes the journal unless something failed. Nothing can be recorded any
    /// more afterwards. Whatever applies remedies must have stopped.
    pub fn restore(&self) -> Report {
        let mut inner = self.inner();
        inner.closed = true;
        let mut report = Report::new(&self.run, self.path.clone());
        let settled = restore::everything(&inner.pending, restore::Mode::Apply, &mut report);
        settled.iter().for_each(|&id| inner.pending.settle(id));
        if report.is_complete() {
            if let Err(error) = self.directory.remove(&self.run) {
                report.add("the journal".to_owned(), crate::report::Outcome::Failed(error.to_string()));
            }
        } else if let Err(error) = inner.append(&Line::Settled { settled }) {
            // Harmless: undoing again finds those things as they were before.
            report.add("the journal".to_owned(), crate::report::Outcome::Failed(error.to_string()));
        }
        report
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append_change(&self, inner: &mut Inner, id: EntryId, change: &Change) -> Result<()> {
        inner.append(&Line::Change { id, change: change.clone() }).map_err(Error::io("write", &self.path))
    }

    /// Makes sure that no other journal here holds the thing, and keeps it so until the handle is dropped.
    fn claim(&self, change: &Change) -> Result<std::os::fd::OwnedFd> {
        let lock = self.directory.lock()?;
        for run in self.directory.runs()?.iter().filter(|run| **run != self.run) {
            let Some(stored) = Stored::load(&self.directory, run)? else { continue };
            let state = stored.state();
            if matches!(state, State::EarlierBoot) {
                continue;
            }
            if let Some(what) = stored.pending.claims(change) {
                let by = match state {
                    State::Running => format!("a running muster, process {}", stored.header.owner.pid),
                    State::Kept => format!("run {run}, whose changes were to stay: undo it first by `muster undo`"),
                    _ => format!("run {run}, which did not end well: run `muster undo`"),
                };
                return Err(Error::Claimed { what, by });
            }
        }
        Ok(lock)
    }
}

impl Inner {
    /// Appends one line with one write; what was written of it is taken back when that fails.
    fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if let Err(error) = self.file.write_all(&text) {
            self.file.set_len(self.length_bytes)?;
            return Err(error);
        }
        self.length_bytes += text.len() as u64;
        Ok(())
    }
}
