//! A root directory with `proc`, `sys` and `dev` in it: the running system's, or a recorded one.

use crate::error::{Error, Result};
use muster_model::host::Unreadable;
use std::cell::RefCell;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A root directory. What it does not hold is absent, not an error; what it holds and does not show is noted.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    unreadable: RefCell<Vec<Unreadable>>,
}

impl Tree {
    /// The tree below `root`.
    ///
    /// # Errors
    /// [`Error::Root`] when `root` is no directory, or has neither `proc` nor `sys`.
    pub fn at(root: &Path) -> Result<Self> {
        let refused = |why: String| Error::Root { path: root.to_owned(), why };
        // Absolute, because the journal of changes is read from elsewhere.
        let root = root.canonicalize().map_err(|error| refused(error.to_string()))?;
        if !["proc", "sys"].iter().any(|name| root.join(name).is_dir()) {
            return Err(refused("a directory with `proc` or `sys` in it is expected".to_owned()));
        }
        Ok(Self { root, unreadable: RefCell::new(Vec::new()) })
    }

    /// Whether this is the running system.
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where the file `path` of the tree is; `path` starts with `/`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// What could not be read so far, each file once.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        let mut all = self.unreadable.borrow().clone();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all.dedup();
        all
    }

    /// What a file holds; `None` where it is not there, cannot be read, or is no text.
    pub fn text(&self, path: &str) -> Option<String> {
        self.bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What a file holds, without the blanks around it.
    pub fn word(&self, path: &str) -> Option<String> {
        self.text(path).map(|text| text.trim().to_owned())
    }

    /// What a file holds, read as a value; what is no such value is noted.
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        let word = self.word(path)?;
        let value = word.parse().ok();
        if value.is_none() {
            self.note(path, format!("`{word}` was not expected there"));
        }
        value
    }

    /// What a file holds, as it is.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        self.noted(path, fs::read(self.path(path)))
    }

    /// The names in a directory, sorted: numbers by value, before other names.
    pub fn names(&self, path: &str) -> Vec<String> {
        self.noted(path, self.list(path)).unwrap_or_default()
    }

    /// The same, noting nothing: `Err` where it cannot be read.
    pub fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.path(path))?;
        let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_by_cached_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        Ok(names)
    }

    /// The last part of where a symbolic link leads.
    pub fn link_name(&self, path: &str) -> Option<String> {
        self.link(path)?.rsplit('/').next().map(str::to_owned)
    }

    /// Where a symbolic link leads, as it is written.
    pub fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok().map(|target| target.to_string_lossy().into_owned())
    }

    /// Whether a file is there.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether the owner of a file may write it: in sysfs, whether anybody may.
    pub fn is_writable(&self, path: &str) -> bool {
        fs::metadata(self.path(path)).is_ok_and(|data| data.permissions().mode() & 0o200 != 0)
    }

    fn noted<T>(&self, path: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                // A process that has ended meanwhile is no more than that.
                let absent = error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(3);
                if !absent {
                    self.note(path, error.kind().to_string());
                }
                None
            }
        }
    }

    fn note(&self, path: &str, why: String) {
        self.unreadable.borrow_mut().push(Unreadable { path: path.to_owned(), why });
    }
}
