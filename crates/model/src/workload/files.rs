//! Files: directories, sets of files in them, and what a thread calls the kernel for with one of them.
//!
//! What matters for scaling is who shares what: a directory or a set of files is one for all threads unless it says `own`, and
//! whatever is below a thread's own directory is its own as well. A directory without `in` is named from the working
//! directory, which all threads share.

use super::{Duration, Phase, Workload, check_duration, known, range};
use crate::ModelError;
use serde::{Deserialize, Serialize};

/// Most files of a set.
pub const MAX_FILES: u64 = 4096;
/// Most pages of a file.
pub const MAX_FILE_PAGES: u64 = 65_536;
/// Most names in a directory.
pub const MAX_NAMES: u64 = 4096;
/// Most directories between the working directory and a file.
pub const MAX_DEPTH: usize = 32;

/// A directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// The directory that it is in; the working directory when absent.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Whether each thread has one of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
    /// Whether a file system is mounted on it: a path that comes by changes over to that one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mounted: bool,
    /// How many names a listing finds in it.
    #[serde(default, skip_serializing_if = "is_0")]
    pub names: u64,
}

/// Files of a kind, of which a phase `file` takes one, each as often as the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// The directory that they are in; the working directory when absent.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Whether each thread has its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
    /// How many there are.
    #[serde(default = "one")]
    pub count: u64,
    /// How long each is, in pages of 4 KiB.
    #[serde(default = "one")]
    pub pages: u64,
}

/// A system call with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileCall {
    /// stat(2) by its path.
    Stat,
    /// stat(2) or open(2) of a name beside it that is not there.
    StatMissing,
    /// stat(2) through the open file.
    Fstat,
    /// statfs(2): what its file system has left.
    Statfs,
    /// open(2).
    Open,
    /// open(2) of a name that is not there yet: an empty file.
    Create,
    /// read(2) of so many pages; all are in the page cache.
    Read(u64),
    /// write(2) of so many pages, from the file's beginning or from where the last write since its creation ended.
    Write(u64),
    /// lseek(2).
    Seek,
    /// close(2).
    Close,
    /// rename(2) to another name in the same directory.
    Rename,
    /// unlink(2) of the file with all its pages.
    Unlink,
    /// opendir(3), readdir(3) to the end and closedir(3) of the directory that it is in.
    List,
}

fn one() -> u64 {
    1
}

fn is_0(names: &u64) -> bool {
    *names == 0
}

/// Where a path leads through, from the working directory on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStep<'a> {
    /// The directory.
    pub name: &'a str,
    /// Whether each thread has one of its own.
    pub own: bool,
}

impl Workload {
    /// The directories that a path to `parent` leads through, the outermost first.
    ///
    /// # Panics
    /// When it names an unknown directory or the directories go round in a circle: validation has found out.
    pub fn path_to(&self, parent: Option<&str>) -> Vec<PathStep<'_>> {
        let mut path = Vec::new();
        let mut next = parent.map(|name| self.directories.get_key_value(name).expect("validation found the name"));
        while let Some((name, directory)) = next {
            assert!(path.len() < MAX_DEPTH, "validation found no circle");
            path.push(PathStep { name, own: directory.own });
            next = directory
                .parent
                .as_ref()
                .map(|name| self.directories.get_key_value(name.as_str()).expect("validation found the name"));
        }
        path.reverse();
        let mut own = false;
        for step in &mut path {
            own |= step.own;
            step.own = own;
        }
        path
    }

    /// Checks directories and sets of files.
    pub(super) fn check_files(&self) -> Result<(), ModelError> {
        for (name, directory) in &self.directories {
            let place = format!("directories.{name}");
            self.check_parent(directory.parent.as_deref(), &place)?;
            range(&format!("{place}.names"), directory.names, 0, MAX_NAMES)?;
            self.check_depth(name, &place)?;
        }
        for (name, files) in &self.files {
            let place = format!("files.{name}");
            self.check_parent(files.parent.as_deref(), &place)?;
            range(&format!("{place}.count"), files.count, 1, MAX_FILES)?;
            range(&format!("{place}.pages"), files.pages, 1, MAX_FILE_PAGES)?;
        }
        Ok(())
    }

    fn check_parent(&self, parent: Option<&str>, place: &str) -> Result<(), ModelError> {
        parent.map_or(Ok(()), |name| known(name, self.directories.keys(), &format!("{place}.in"), "directory"))
    }

    fn check_depth(&self, name: &str, place: &str) -> Result<(), ModelError> {
        let mut at = name;
        for _ in 0..MAX_DEPTH {
            match self.directories.get(at).and_then(|directory| directory.parent.as_deref()) {
                Some(parent) => at = parent,
                None => return Ok(()),
            }
        }
        let found = "a directory inside itself, or too deep";
        Err(ModelError::new(format!("{place}.in"), found, format!("at most {MAX_DEPTH} directories inside each other")))
    }

    /// Checks a phase `file`: calls with an open file come between its opening and its closing.
    pub(super) fn check_calls(
        &self,
        of: &str,
        calls: &[FileCall],
        user_ns: Duration,
        place: &str,
    ) -> Result<(), ModelError> {
        known(of, self.files.keys(), &format!("{place}.of"), "set of files")?;
        check_duration(user_ns, &format!("{place}.user_ns"))?;
        let pages = self.files[of].pages;
        let mut open = false;
        let mut written = 0u64;
        let mut created = false;
        for (index, call) in calls.iter().enumerate() {
            let place = format!("{place}.calls[{index}]");
            let wrong = |found: &str, allowed: &str| Err(ModelError::new(place.as_str(), found, allowed));
            match call {
                FileCall::Open | FileCall::Create if open => {
                    return wrong("a second opening of the file", "one after the file was closed");
                }
                FileCall::Open => (open, created) = (true, false),
                FileCall::Create => (open, created, written) = (true, true, 0),
                FileCall::Read(n) | FileCall::Write(n) => {
                    range(&place, *n, 1, pages)?;
                    if created && matches!(call, FileCall::Write(_)) {
                        written += n;
                        range(&format!("{place}: all writes since `create`"), written, 1, pages)?;
                    }
                }
                FileCall::Rename | FileCall::Unlink | FileCall::Stat | FileCall::StatMissing => {}
                FileCall::Fstat | FileCall::Statfs | FileCall::Seek | FileCall::List | FileCall::Close => {}
            }
            let needs_open = matches!(
                call,
                FileCall::Read(_) | FileCall::Write(_) | FileCall::Seek | FileCall::Fstat | FileCall::Close
            );
            if needs_open && !open {
                return wrong("a call that needs the file open", "one after `open` or `create` and before `close`");
            }
            open &= *call != FileCall::Close;
        }
        if open {
            return Err(ModelError::new(format!("{place}.calls"), "a file that stays open", "`close` at the end"));
        }
        if calls.is_empty() {
            return Err(ModelError::new(format!("{place}.calls"), "none", "at least one call"));
        }
        Ok(())
    }

    /// Whether it calls for files at all.
    pub fn uses_files(&self) -> bool {
        let mut uses = false;
        for group in &self.groups {
            super::visit(&group.phases, &mut |phase| uses |= matches!(phase, Phase::File { .. }));
        }
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(directories: &str, files: &str, phase: &str) -> Result<Workload, ModelError> {
        let text = format!(
            r#"{{"name":"w","directories":{{{directories}}},"files":{{{files}}},
                "groups":[{{"name":"g","count":"threads","phases":[{phase}]}}]}}"#
        );
        Workload::from_json(&text, "w.json")
    }

    const TREE: &str =
        r#""shared":{"mounted":true},"mine":{"in":"shared","own":true,"names":12},"below":{"in":"mine"}"#;

    #[test]
    fn reads_files_and_writes_them_back() {
        let workload = read(
            TREE,
            r#""a":{"in":"below","count":3,"pages":16},"b":{}"#,
            r#"{"file":{"of":"a","calls":["stat","stat-missing","list","create",{"write":9},{"write":7},"seek","fstat",
                {"read":16},"close","open",{"write":16},"close","rename","unlink","statfs"],"user_ns":{"uniform":{"min":1,"max":5}}}},
               {"file":{"of":"b","calls":["stat"]}}"#,
        )
        .unwrap();
        assert_eq!(Workload::from_json(&workload.to_json(), "w.json").unwrap(), workload);
        assert!(workload.uses_files());
        let path = workload.path_to(workload.files["a"].parent.as_deref());
        let path: Vec<_> = path.iter().map(|step| (step.name, step.own)).collect();
        assert_eq!(path, [("shared", false), ("mine", true), ("below", true)]);
        assert!(workload.path_to(None).is_empty());
    }

    #[test]
    fn refuses_what_cannot_be() {
        let a = r#""a":{"in":"mine","pages":4}"#;
        let phase = |calls: &str| format!(r#"{{"file":{{"of":"a","calls":[{calls}]}}}}"#);
        for (directories, files, phase, wanted) in [
            (TREE, a, phase(r#""close""#), "calls[0]: found a call that needs the file open"),
            (TREE, a, phase(r#""open""#), "calls: found a file that stays open; allowed: `close` at the end"),
            (TREE, a, phase(r#""open","open""#), "calls[1]: found a second opening"),
            (TREE, a, phase(r#""open",{"read":5},"close""#), "calls[1]: found 5; allowed: 1 to 4"),
            (TREE, a, phase(r#""create",{"write":3},{"write":2},"close""#), "all writes since `create`: found 5"),
            (TREE, a, phase(""), "calls: found none"),
            (TREE, a, phase(r#""erase""#), "unknown variant `erase`"),
            (TREE, a, r#"{"file":{"of":"z","calls":["stat"]}}"#.into(), "unknown set of files `z`; allowed: `a`"),
            (TREE, a, r#"{"file":{"of":"a","calls":["stat"],"to":1}}"#.into(), "unknown field `to`"),
            (
                TREE,
                a,
                r#"{"file":{"of":"a","calls":["stat"],"user_ns":{"uniform":{"min":2,"max":1}}}}"#.into(),
                "file.user_ns.uniform.max: found 1",
            ),
            (TREE, r#""a":{"in":"nowhere"}"#, phase(r#""stat""#), "files.a.in: found unknown directory `nowhere`"),
            (TREE, r#""a":{"count":0}"#, phase(r#""stat""#), "files.a.count: found 0; allowed: 1 to 4096"),
            (TREE, r#""a":{"pages":0}"#, phase(r#""stat""#), "files.a.pages: found 0"),
            (TREE, r#""a":{"page":1}"#, phase(r#""stat""#), "unknown field `page`"),
            (r#""x":{"in":"y"},"y":{"in":"x"}"#, r#""a":{}"#, phase(r#""stat""#), "a directory inside itself"),
            (r#""x":{"names":5000}"#, r#""a":{}"#, phase(r#""stat""#), "directories.x.names: found 5000"),
        ] {
            let error = read(directories, files, &phase).unwrap_err().to_string();
            assert!(error.starts_with("w.json") && error.contains(wanted), "{wanted}: {error}");
        }
    }
}
