//! Journals that other processes left behind: listing them, and undoing those whose owner is dead.

use crate::change::EntryId;
use crate::directory::Directory;
use crate::journal::{Header, Line, VERSION};
use crate::pending::Pending;
use crate::report::{Outcome, Report};
use crate::{Error, Process, Result, restore};
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long another restorer of the same journal is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whose a journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its muster runs; nobody else touches it.
    Running,
    /// Its muster is dead: to be undone.
    Abandoned,
    /// Its changes were to stay: undone only when asked for.
    Kept,
    /// It is of an earlier boot: nothing of it is left to be undone.
    EarlierBoot,
    /// Its process numbers belong to another PID namespace (another container): only a muster there can undo it.
    OtherNamespace,
}

/// A journal and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JournalInfo {
    /// The run.
    pub run: String,
    /// The file.
    pub journal: PathBuf,
    /// The process that wrote it.
    pub owner: Process,
    /// What its changes are about.
    pub about: Option<String>,
    /// Whose it is now.
    pub state: State,
    /// What is to be undone, in words, oldest first.
    pub changes: Vec<String>,
}

/// A journal as read from its file.
pub(crate) struct Stored {
    file: File,
    pub header: Header,
    pub pending: Pending,
    /// Numbers of lines that could not be understood.
    unreadable: Vec<usize>,
    ends_torn: bool,
    kept: bool,
}

impl Stored {
    /// Reads the journal of `run`; none when there is none, or when its maker died before it had written anything.
    pub fn load(directory: &Directory, run: &str) -> Result<Option<Self>> {
        let Some(mut file) = directory.open(run)? else { return Ok(None) };
        let path = directory.journal_path(run);
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(Error::io("read", &path))?;
        let ends_torn = text.last().is_some_and(|&byte| byte != b'\n');
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let Some(first) = lines.next() else { return Ok(None) };
        let malformed = |why: String| Error::Malformed { path: path.clone(), why };
        let header: Header = serde_json::from_slice(first).map_err(|error| malformed(format!("line 1: {error}")))?;
        if header.muster_journal != VERSION {
            let found = header.muster_journal;
            return Err(malformed(format!(
                "it has version {found}, this muster knows {VERSION}; use the one that wrote it"
            )));
        }
        let mut stored =
            Self { file, header, pending: Pending::default(), unreadable: Vec::new(), ends_torn, kept: false };
        for (number, line) in lines.enumerate() {
            if stored.take_in(line).is_err() {
                stored.unreadable.push(number + 2);
            }
        }
        Ok(Some(stored))
    }

    fn take_in(&mut self, line: &[u8]) -> std::result::Result<(), String> {
        match serde_json::from_slice(line).map_err(|error| error.to_string())? {
            Line::Change { id, change } => self.pending.replay(id, change)?,
            Line::Settled { settled } => settled.into_iter().for_each(|id| self.pending.settle(id)),
            Line::Kept { kept } => self.kept = kept,
        }
        Ok(())
    }

    pub fn state(&self) -> State {
        match Header::of_this_process(&self.header.run) {
            Ok(here) if here.boot != self.header.boot => State::EarlierBoot,
            Ok(here) if here.pid_namespace != self.header.pid_namespace => State::OtherNamespace,
            _ if self.kept => State::Kept,
            _ if self.header.owner.is_alive() => State::Running,
            _ => State::Abandoned,
        }
    }

    fn undo(&self, report: &mut Report, mode: restore::Mode) -> Vec<EntryId> {
        for number in &self.unreadable {
            let why = "it cannot be read, so what it changed is unknown; remove the journal once you have seen to it";
            report.add(format!("line {number} of the journal"), Outcome::Failed(why.to_owned()));
        }
        restore::everything(&self.pending, mode, report)
    }

    fn note_settled(&mut self, settled: Vec<EntryId>) -> std::io::Result<()> {
        let mut text = if self.ends_torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut text, &Line::Settled { settled })?;
        text.push(b'\n');
        self.file.write_all(&text)
    }
}

/// The journals in `directory`.
///
/// # Errors
/// When the directory or one of the journals cannot be read.
pub fn list(directory: &Directory) -> Result<Vec<JournalInfo>> {
    let mut infos = Vec::new();
    for run in directory.runs()? {
        let Some(stored) = Stored::load(directory, &run)? else { continue };
        infos.push(JournalInfo {
            journal: directory.journal_path(&run),
            owner: stored.header.owner,
            about: stored.header.about.clone(),
            state: stored.state(),
            changes: stored.pending.iter().map(|(_, entry)| entry.describe()).collect(),
            run,
        });
    }
    Ok(infos)
}

/// Undoes what dead musters left: every journal whose owner is dead is restored, and removed unless something failed.
/// The reports say what was done; journals without anything to say are not among them.
///
/// # Errors
/// When the directory cannot be read. What is wrong with a single journal is in its report.
pub fn recover(directory: &Directory) -> Result<Vec<Report>> {
    each(directory, &directory.runs()?, Scope::Abandoned, restore::Mode::Apply)
}

/// The same, and undoes what was to stay ([`crate::Journal::keep`]), the latest first.
///
/// # Errors
/// As [`recover`].
pub fn undo_all(directory: &Directory) -> Result<Vec<Report>> {
    each(directory, &latest_first(directory, |_| true)?, Scope::KeptToo, restore::Mode::Apply)
}

/// The same for the changes that are about `about`, and no others.
///
/// # Errors
/// As [`recover`].
pub fn undo_about(directory: &Directory, about: &str) -> Result<Vec<Report>> {
    each(directory, &latest_first(directory, is_about(about))?, Scope::KeptToo, restore::Mode::Apply)
}

/// What [`undo_all`], or with `about` what [`undo_about`] would do; changes nothing.
///
/// # Errors
/// When the directory cannot be read.
pub fn preview(directory: &Directory, about: Option<&str>) -> Result<Vec<Report>> {
    let runs = match about {
        Some(about) => latest_first(directory, is_about(about))?,
        None => latest_first(directory, |_| true)?,
    };
    each(directory, &runs, Scope::KeptToo, restore::Mode::DryRun)
}

/// Which journals are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Abandoned,
    KeptToo,
}

fn is_about(about: &str) -> impl Fn(&Header) -> bool {
    move |header| header.about.as_deref() == Some(about)
}

/// The runs that are `wanted`, the latest first: a later one may rest on what an earlier one made. One whose journal
/// cannot be read counts as wanted, so that it is reported, and comes last.
fn latest_first(directory: &Directory, wanted: impl Fn(&Header) -> bool) -> Result<Vec<String>> {
    let runs = directory.runs()?.into_iter().filter_map(|run| match Stored::load(directory, &run) {
        Ok(Some(stored)) => wanted(&stored.header).then_some((stored.header.owner.start, run)),
        Ok(None) | Err(_) => Some((0, run)),
    });
    let mut runs: Vec<(u64, String)> = runs.collect();
    runs.sort_by_key(|(start, _)| std::cmp::Reverse(*start));
    Ok(runs.into_iter().map(|(_, run)| run).collect())
}

fn each(directory: &Directory, runs: &[String], scope: Scope, mode: restore::Mode) -> Result<Vec<Report>> {
    let reports = runs.iter().map(|run| {
        recover_one(directory, run, scope, mode).unwrap_or_else(|error| {
            let mut report = Report::new(run, directory.journal_path(run));
            report.add("the journal".to_owned(), Outcome::Failed(error.to_string()));
            Some(report)
        })
    });
    Ok(reports.flatten().collect())
}

/// Restores the journal of `run` if its owner is dead and `scope` takes it; none when there was nothing to do.
pub(crate) fn recover_one(
    directory: &Directory,
    run: &str,
    scope: Scope,
    mode: restore::Mode,
) -> Result<Option<Report>> {
    let Some(file) = directory.open(run)? else { return Ok(None) };
    let path = directory.journal_path(run);
    lock_patiently(&file).map_err(Error::errno("lock", &path))?;
    // Whoever held the lock before may have restored and removed it.
    if fstat(&file).map_err(Error::errno("examine", &path))?.st_nlink == 0 {
        return Ok(None);
    }
    let Some(mut stored) = Stored::load(directory, run)? else { return remove_unwritten(directory, run, mode) };
    let mut report = Report::new(run, path);
    match stored.state() {
        State::Running | State::OtherNamespace => return Ok(None),
        State::Kept if scope == Scope::Abandoned => return Ok(None),
        State::EarlierBoot if mode == restore::Mode::Apply => return directory.remove(run).map(|()| None),
        State::EarlierBoot => return Ok(None),
        State::Abandoned | State::Kept => {}
    }
    let settled = stored.undo(&mut report, mode);
    if mode == restore::Mode::Apply {
        if report.is_complete() {
            directory.remove(run)?;
        } else {
            stored.note_settled(settled).map_err(Error::io("write", directory.journal_path(run)))?;
        }
    }
    Ok(Some(report))
}

/// A journal without its first line: its maker died while making it, and has changed nothing.
fn remove_unwritten(directory: &Directory, run: &str, mode: restore::Mode) -> Result<Option<Report>> {
    let _lock = directory.lock()?;
    if mode == restore::Mode::Apply && Stored::load(directory, run)?.is_none() {
        directory.remove(run)?;
    }
    Ok(None)
}

fn lock_patiently(file: &File) -> rustix::io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
}
