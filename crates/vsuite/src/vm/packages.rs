//! The files of Debian packages, with those of all packages that they depend on: what a guest needs to run a program of
//! the distribution's. Read from the package manager's own lists; nothing is installed.

use super::archive::Archive;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

/// No program of the suite reads these.
const NOT_NEEDED: [&str; 6] =
    ["/usr/share/doc/", "/usr/share/man/", "/usr/share/info/", "/usr/share/locale/", "/usr/share/lintian/", "/boot/"];
/// Where update-alternatives(1) keeps which program a general name (`cc`, `awk`) stands for: no package lists these.
const ALTERNATIVES: &str = "/etc/alternatives";
const COMMANDS: &str = "/usr/bin";

/// Names of users and groups, which some programs look up.
const NAMES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// Lists of files, read once for each set of packages.
#[derive(Debug, Default)]
pub struct Packages {
    known: RefCell<HashMap<Vec<String>, Rc<Vec<PathBuf>>>>,
}

impl Packages {
    /// Why the files of these packages cannot be told, if so: the first of them has to be installed.
    pub fn lacks(&self, packages: &[String]) -> Option<String> {
        let first = packages.first()?;
        let files = self.files(packages);
        let is_installed = installed(&packages[..1]).is_ok_and(|found| !found.is_empty());
        if is_installed && files.is_ok_and(|files| !files.is_empty()) {
            return None;
        }
        Some(format!("{first} was not installed as a Debian package, and its files cannot be told otherwise"))
    }

    /// Adds the files of these packages and of those they depend on.
    ///
    /// # Errors
    /// When the package manager cannot be asked, or a file cannot be read.
    pub fn add(&self, packages: &[String], archive: &mut Archive) -> io::Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        for file in self.files(packages)?.iter().map(PathBuf::as_path).chain(NAMES.map(Path::new)) {
            // A link that leads nowhere, or what an administrator has removed.
            archive.file_if_there(file)?;
        }
        for command in alternatives()? {
            if fs::canonicalize(&command).is_ok_and(|real| archive.has(&real)) {
                archive.file(&command)?;
            }
        }
        Ok(())
    }

    fn files(&self, packages: &[String]) -> io::Result<Rc<Vec<PathBuf>>> {
        if let Some(files) = self.known.borrow().get(packages) {
            return Ok(files.clone());
        }
        let depends = ["depends", "--recurse", "--installed", "--no-recommends", "--no-suggests", "--no-conflicts"];
        let more = ["--no-breaks", "--no-replaces", "--no-enhances"];
        let installed = installed(packages)?;
        if installed.is_empty() {
            return Ok(Rc::default());
        }
        let closure = ask("apt-cache", depends.into_iter().chain(more).chain(installed.iter().map(String::as_str)))?;
        let listed = ask("dpkg-query", ["-L"].into_iter().chain(names_in(&closure)))?;
        let files = Rc::new(files_in(&listed));
        self.known.borrow_mut().insert(packages.to_vec(), files.clone());
        Ok(files)
    }
}

/// Those of these packages that are installed.
fn installed(packages: &[String]) -> io::Result<Vec<String>> {
    let format = ["-W", "-f", "${Package} ${db:Status-Status}\n"];
    let output = ask("dpkg-query", format.into_iter().chain(packages.iter().map(String::as_str)))?;
    Ok(output.lines().filter_map(|line| line.strip_suffix(" installed")).map(str::to_owned).collect())
}

/// What a command prints; of packages that it does not know it complains, and goes on.
fn ask<'a>(command: &str, args: impl IntoIterator<Item = &'a str>) -> io::Result<String> {
    let output = Command::new(command).args(args).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The packages in the output of `apt-cache depends --recurse`: the lines that are not indented. `<name>` is virtual.
fn names_in(output: &str) -> BTreeSet<&str> {
    output.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_alphanumeric())).collect()
}

/// The files in the output of `dpkg-query -L`, which also has directories, empty lines and remarks.
fn files_in(output: &str) -> Vec<PathBuf> {
    let is_needed = |path: &&str| path.starts_with('/') && !NOT_NEEDED.iter().any(|prefix| path.starts_with(prefix));
    let is_file = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir());
    let paths: BTreeSet<PathBuf> = output.lines().filter(is_needed).map(PathBuf::from).filter(is_file).collect();
    paths.into_iter().collect()
}

/// The commands whose names stand for another one.
fn alternatives() -> io::Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(ALTERNATIVES) else { return Ok(Vec::new()) };
    let commands = entries.map(|entry| Ok(Path::new(COMMANDS).join(entry?.file_name())));
    let commands: Vec<PathBuf> = commands.collect::<io::Result<_>>()?;
    Ok(commands.into_iter().filter(|command| command.is_symlink()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_and_files_are_read_as_the_package_manager_prints_them() {
        let depends =
            "make\n  Depends: libc6\n  PreDepends: <x>\n<c-compiler>\n    gcc\nlibc6\nlibstdc++6\n |Depends: a\n";
        assert_eq!(names_in(depends).into_iter().collect::<Vec<_>>(), ["libc6", "libstdc++6", "make"]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let listed = format!(
            "/.\n/usr\n{0}\n{0}\n\n/nowhere/at/all\n/usr/share/doc/make\nlocally diverted to: {0}.x\n",
            file.display()
        );
        assert_eq!(files_in(&listed), [file]);
    }

    #[test]
    fn a_program_without_a_package_is_lacked_by_name() {
        let packages = Packages::default();
        assert_eq!(packages.lacks(&[]), None);
        let why = packages.lacks(&["no-such-package-anywhere".to_owned()]).unwrap();
        assert!(why.starts_with("no-such-package-anywhere was not installed as a Debian package"), "{why}");
    }

    #[test]
    fn the_shell_comes_with_what_it_needs() {
        let shell = ["dash".to_owned()];
        let packages = Packages::default();
        if let Some(why) = packages.lacks(&shell) {
            eprintln!("SKIPPED: the_shell_comes_with_what_it_needs: {why}");
            return;
        }
        let mut archive = Archive::new();
        packages.add(&shell, &mut archive).unwrap();
        let real = fs::canonicalize("/bin/sh").unwrap();
        assert!(archive.has(&real) || archive.has(Path::new("/bin/dash")), "{}", real.display());
        assert!(!archive.has(Path::new("/usr/share/doc/dash/copyright")));
    }
}
