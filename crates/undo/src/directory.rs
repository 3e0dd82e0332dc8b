//! Where journals live: a directory that only its user can write to, checked each time it is opened, because what is
//! read from it is acted upon, by root too.

use crate::{Error, Result};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, mkdirat, openat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const EXTENSION: &str = ".journal";

/// An open journal directory.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// The user's own, at [`Directory::standard_path`], made where it is missing.
    ///
    /// # Errors
    /// As [`Directory::at`].
    pub fn standard() -> Result<Self> {
        Self::at(&Self::standard_path())
    }

    /// `$MUSTER_JOURNALS` where set; `/run/muster` for root; `$XDG_RUNTIME_DIR/muster`, else `/tmp/muster-UID`, for
    /// everybody else.
    pub fn standard_path() -> PathBuf {
        let uid = rustix::process::geteuid();
        let set = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = set("MUSTER_JOURNALS") {
            path
        } else if uid.is_root() {
            PathBuf::from("/run/muster")
        } else if let Some(runtime) = set("XDG_RUNTIME_DIR") {
            runtime.join("muster")
        } else {
            PathBuf::from(format!("/tmp/muster-{}", uid.as_raw()))
        }
    }

    /// The directory at `path`, made where it is missing (its parents are not).
    ///
    /// # Errors
    /// When it cannot be made, or is not a directory of this user's that nobody else may enter.
    pub fn at(path: &Path) -> Result<Self> {
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::errno("make the journal directory", path)(errno)),
        }
        Self::existing(path)?.ok_or_else(|| Error::errno("open the journal directory", path)(Errno::NOENT))
    }

    /// The directory at `path`; none where there is none.
    ///
    /// # Errors
    /// When it is not a directory of this user's that nobody else may enter.
    pub fn existing(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(unsafe_because(path, "it is no directory, or a symbolic link".into()));
            }
            Err(errno) => return Err(Error::errno("open the journal directory", path)(errno)),
        };
        let stat = fstat(&fd).map_err(Error::errno("examine", path))?;
        check_owner(path, &stat)?;
        if stat.st_mode & 0o077 != 0 {
            let mode = stat.st_mode & 0o777;
            return Err(unsafe_because(path, format!("its mode is {mode:03o}; others may have no access (chmod 700)")));
        }
        Ok(Some(Self { fd, path: path.to_owned() }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Run ids of the journals in it, sorted.
    pub(crate) fn runs(&self) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.path).map_err(Error::io("list", &self.path))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut runs: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(EXTENSION)?.to_owned())).collect();
        runs.sort();
        Ok(runs)
    }

    /// Path of a run's journal.
    pub(crate) fn journal_path(&self, run: &str) -> PathBuf {
        self.path.join(format!("{run}{EXTENSION}"))
    }

    /// Makes a run's journal, which must not exist yet.
    pub(crate) fn create(&self, run: &str) -> Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, format!("{run}{EXTENSION}"), flags, Mode::RUSR | Mode::WUSR);
        fd.map(File::from).map_err(Error::errno("make", self.journal_path(run)))
    }

    /// Opens a run's journal; none when there is none.
    pub(crate) fn open(&self, run: &str) -> Result<Option<File>> {
        let path = self.journal_path(run);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = match openat(&self.fd, format!("{run}{EXTENSION}"), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(unsafe_because(&path, "it is a symbolic link".into())),
            Err(errno) => return Err(Error::errno("open", path)(errno)),
        };
        let stat = fstat(&fd).map_err(Error::errno("examine", &path))?;
        check_owner(&path, &stat)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(unsafe_because(&path, "it is no regular file".into()));
        }
        Ok(Some(File::from(fd)))
    }

    /// Removes a run's journal; that it is gone already is no error.
    pub(crate) fn remove(&self, run: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, format!("{run}{EXTENSION}"), rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::errno("remove", self.journal_path(run))(errno)),
        }
    }

    /// Excludes every other user of this directory until the returned handle is dropped.
    pub(crate) fn lock(&self) -> Result<OwnedFd> {
        // A description of its own: flock(2) belongs to the open file description, not to the process.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(&self.fd, ".", flags, Mode::empty()).map_err(Error::errno("open", &self.path))?;
        flock(&own, FlockOperation::LockExclusive).map_err(Error::errno("lock", &self.path))?;
        Ok(own)
    }
}

fn check_owner(path: &Path, stat: &Stat) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid == own {
        return Ok(());
    }
    Err(unsafe_because(path, format!("it belongs to user {}; only one of user {own} is allowed", stat.st_uid)))
}

fn unsafe_because(path: &Path, why: String) -> Error {
    Error::Unsafe { path: path.to_owned(), why }
}
