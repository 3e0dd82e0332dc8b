//! What lies in a guest's memory when it boots: a cpio archive (the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst) of directories, links, files and a few devices. Files have
//! the paths that they have here, and a symbolic link on the way to one stays one.

use crate::SuiteError;
use cpio::newc::{Builder, trailer};
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// File types in a mode (inode(7)).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
/// Bytes of a header, its name and what fills both up, as a bound for what an entry takes beside its content.
const ENTRY_BYTES: u64 = 256;
/// More links one after the other are a circle (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// The kernel's own list (Documentation/admin-guide/devices.txt).
const DEVICES: [(&str, u32, u32); 9] = [
    ("dev/null", 1, 3),
    ("dev/zero", 1, 5),
    ("dev/full", 1, 7),
    ("dev/random", 1, 8),
    ("dev/urandom", 1, 9),
    ("dev/tty", 5, 0),
    ("dev/console", 5, 1),
    ("dev/ttyS0", 4, 64),
    ("dev/ttyS1", 4, 65),
];
const LINKS: [(&str, &str); 4] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
];

/// An entry, by its path without the first slash.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    Link { target: PathBuf },
    File { from: PathBuf, mode: u32, bytes: u64 },
    Data { bytes: Vec<u8> },
    Device { major: u32, minor: u32 },
}

/// What will lie in a guest's memory.
#[derive(Debug, Default)]
pub struct Archive {
    /// In the order of paths: a directory comes before what is in it.
    entries: BTreeMap<PathBuf, Entry>,
}

impl Archive {
    /// Devices, and directories to write into or to mount something on.
    pub fn new() -> Self {
        let mut archive = Self::default();
        for dir in ["dev", "dev/shm", "proc", "sys", "tmp"] {
            let mode = if dir.len() > 4 || dir == "tmp" { 0o1777 } else { 0o755 };
            archive.put(dir, Entry::Directory { mode });
        }
        DEVICES
            .iter()
            .for_each(|(path, major, minor)| archive.put(path, Entry::Device { major: *major, minor: *minor }));
        LINKS.iter().for_each(|(path, target)| archive.put(path, Entry::Link { target: target.into() }));
        archive
    }

    /// Adds the program `from` at the top, without what is not loaded when it runs: symbols and line numbers, most of it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn program(&mut self, name: &str, from: &Path) -> io::Result<()> {
        let bytes = loaded_bytes(from)?;
        self.put(name, Entry::File { from: from.to_owned(), mode: 0o755, bytes });
        Ok(())
    }

    /// Adds a file of this content, and the directories on the way to it.
    pub fn data(&mut self, name: &str, bytes: Vec<u8>) {
        for directory in below_root(Path::new(name)).ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()) {
            self.entries.entry(directory.to_owned()).or_insert(Entry::Directory { mode: 0o755 });
        }
        self.put(name, Entry::Data { bytes });
    }

    /// Adds a directory, empty but for what else is added.
    ///
    /// # Errors
    /// When the way to it cannot be read.
    pub fn directory(&mut self, path: &Path) -> io::Result<()> {
        self.way(path).map(drop)
    }

    /// Adds the file to which a path leads, and the way to it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file(&mut self, path: &Path) -> io::Result<()> {
        let real = self.way(path)?;
        self.add(&real).map(drop)
    }

    /// The same for a file that may not be there.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn file_if_there(&mut self, path: &Path) -> io::Result<()> {
        if path.exists() { self.file(path) } else { Ok(()) }
    }

    /// Adds a file, or a directory with all that is in it; links in it stay as they are.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn tree(&mut self, path: &Path) -> io::Result<()> {
        let mut todo = vec![self.way(path)?];
        while let Some(path) = todo.pop() {
            if self.add(&path)? {
                for entry in fs::read_dir(&path).map_err(|error| about(&path, error))? {
                    todo.push(entry?.path());
                }
            }
        }
        Ok(())
    }

    /// Whether something will lie at this path.
    pub fn has(&self, path: &Path) -> bool {
        self.entries.contains_key(below_root(path))
    }

    /// A bound for its size.
    pub fn bytes(&self) -> u64 {
        let content = |entry: &Entry| match entry {
            Entry::File { bytes, .. } => *bytes,
            Entry::Data { bytes } => bytes.len() as u64,
            Entry::Directory { .. } | Entry::Link { .. } | Entry::Device { .. } => 0,
        };
        self.entries.iter().map(|(path, entry)| ENTRY_BYTES + path.as_os_str().len() as u64 + content(entry)).sum()
    }

    /// Writes it.
    ///
    /// # Errors
    /// When a file cannot be read or has become shorter, a name is not UTF-8, or the archive cannot be written.
    pub fn write<W: Write>(&self, mut out: W) -> io::Result<W> {
        for (number, (path, entry)) in (1..).zip(&self.entries) {
            let name = path.to_str().ok_or_else(|| about(path, io::Error::other("its name is not UTF-8")))?;
            out = write_entry(Builder::new(name).ino(number), entry, out).map_err(|error| about(path, error))?;
        }
        trailer(out)
    }

    fn put(&mut self, path: impl AsRef<Path>, entry: Entry) {
        self.entries.insert(below_root(path.as_ref()).to_owned(), entry);
    }

    /// Adds the directories and links on the way to a path, as they are here, and returns where it leads.
    fn way(&mut self, path: &Path) -> io::Result<PathBuf> {
        let mut links = 0;
        let mut todo: Vec<PathBuf> = parts(path);
        let mut here = PathBuf::from("/");
        while let Some(part) = todo.pop() {
            if part == Path::new("..") {
                here.pop();
                continue;
            }
            here.push(part);
            let found = fs::symlink_metadata(&here).map_err(|error| about(&here, error))?;
            if found.is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(about(path, io::Error::other("its links lead in a circle")));
                }
                let target = fs::read_link(&here)?;
                self.put(&here, Entry::Link { target: target.clone() });
                here.pop();
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                todo.extend(parts(&target));
            } else if found.is_dir() && !self.has(&here) {
                self.put(&here, Entry::Directory { mode: found.permissions().mode() & 0o7777 });
            }
        }
        Ok(here)
    }

    /// Adds what lies at a path, as it is, and says whether it is a directory. What is neither file, directory nor link is
    /// left out.
    fn add(&mut self, path: &Path) -> io::Result<bool> {
        let found = fs::symlink_metadata(path).map_err(|error| about(path, error))?;
        let mode = found.permissions().mode() & 0o7777;
        if found.is_symlink() {
            self.put(path, Entry::Link { target: fs::read_link(path)? });
        } else if found.is_file() {
            self.put(path, Entry::File { from: path.to_owned(), mode, bytes: found.len() });
        } else if found.is_dir() && !self.has(path) {
            self.put(path, Entry::Directory { mode });
        }
        Ok(found.is_dir())
    }
}

fn write_entry<W: Write>(builder: Builder, entry: &Entry, out: W) -> io::Result<W> {
    match entry {
        Entry::Directory { mode } => builder.mode(DIRECTORY | mode).write(out, 0).finish(),
        Entry::Link { target } => {
            let target = target.as_os_str().as_bytes();
            with_content(builder.mode(LINK | 0o777), &mut &*target, target.len() as u64, out)
        }
        Entry::File { from, mode, bytes } => {
            with_content(builder.mode(REGULAR | mode), &mut File::open(from)?, *bytes, out)
        }
        Entry::Data { bytes } => with_content(builder.mode(REGULAR | 0o644), &mut &**bytes, bytes.len() as u64, out),
        Entry::Device { major, minor } => {
            builder.mode(CHARACTER_DEVICE | 0o666).rdev_major(*major).rdev_minor(*minor).write(out, 0).finish()
        }
    }
}

fn with_content<W: Write>(builder: Builder, from: &mut dyn Read, bytes: u64, out: W) -> io::Result<W> {
    let size = u32::try_from(bytes).map_err(|_| io::Error::other("larger than 4 GB, which cpio cannot hold"))?;
    let mut writer = builder.write(out, size);
    if io::copy(&mut from.take(bytes), &mut writer)? < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    writer.finish()
}

/// The names that a path goes through, the first one last.
fn parts(path: &Path) -> Vec<PathBuf> {
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|part| PathBuf::from(part.as_os_str())).rev().collect()
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// How much of an ELF file is needed to run it: up to the end of what its program headers name. A file of another kind
/// is needed whole.
fn loaded_bytes(path: &Path) -> io::Result<u64> {
    const HEADERS_BYTES: u64 = 64 << 10;
    let mut head = Vec::new();
    let file = File::open(path).map_err(|error| about(path, error))?;
    let whole = file.metadata()?.len();
    file.take(HEADERS_BYTES).read_to_end(&mut head)?;
    let end = || {
        let header = FileHeader64::<object::Endianness>::parse(&*head).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &*head).ok()?;
        segments.iter().map(|segment| segment.p_offset(endian).saturating_add(segment.p_filesz(endian))).max()
    };
    Ok(end().map_or(whole, |end| end.min(whole)))
}

/// The shared libraries of a program, and the loader (ldd(1)); none for a static one.
///
/// # Errors
/// When there is no ldd, or one library is not found.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>, SuiteError> {
    let output = Command::new("ldd").arg(program).stdin(Stdio::null()).output();
    let output = output.map_err(SuiteError::system("cannot run `ldd`, which lists the libraries of a program"))?;
    libraries_in(&String::from_utf8_lossy(&output.stdout))
        .map_err(|name| SuiteError::NoVm(format!("a library of muster is not found here: {name}")))
}

/// The paths in the output of ldd; the name of a library that it did not find.
fn libraries_in(output: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in output.lines().map(str::trim) {
        let place = line.split_once(" => ").map_or(line, |(_, place)| place);
        if place.starts_with("not found") {
            return Err(line.to_owned());
        }
        let path = place.split_once(" (0x").map_or(place, |(path, _)| path);
        if path.starts_with('/') {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc;
    use std::os::unix::fs::symlink;

    /// Names, modes and contents of an archive, as another reader sees them.
    fn read(archive: &Archive) -> BTreeMap<String, (u32, Vec<u8>)> {
        let bytes = archive.write(Vec::new()).unwrap();
        assert!(bytes.len() as u64 <= archive.bytes() + ENTRY_BYTES, "{} of {}", bytes.len(), archive.bytes());
        let (mut entries, mut left) = (BTreeMap::new(), &*bytes);
        loop {
            let mut reader = newc::Reader::new(left).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            left = reader.finish().unwrap();
            entries.insert(name, (mode, content));
        }
    }

    #[test]
    fn an_empty_guest_has_devices_and_places_to_write() {
        let entries = read(&Archive::new());
        assert_eq!(entries["dev"].0, 0o040_755);
        assert_eq!((entries["dev/shm"].0, entries["tmp"].0), (0o041_777, 0o041_777));
        assert_eq!(entries["dev/ttyS1"].0, 0o020_666);
        assert_eq!(entries["dev/fd"], (0o120_777, b"/proc/self/fd".to_vec()));
    }

    #[test]
    fn a_file_comes_with_the_links_that_lead_to_it_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("usr/lib/deep")).unwrap();
        fs::write(base.join("usr/lib/lib.so.1.2"), "code").unwrap();
        fs::write(base.join("usr/lib/other"), "other").unwrap();
        symlink("usr/lib", base.join("lib")).unwrap();
        symlink("deep/../lib.so.1.2", base.join("usr/lib/lib.so.1")).unwrap();
        symlink(base.join("lib/lib.so.1"), base.join("absolute")).unwrap();
        symlink("circle", base.join("circle")).unwrap();
        let mut archive = Archive::default();
        archive.file(&base.join("absolute")).unwrap();
        let entries = read(&archive);
        let at = |path: &str| entries.get(below_root(&base.join(path)).to_str().unwrap());
        assert_eq!(at("usr/lib/lib.so.1.2").unwrap().1, b"code");
        assert_eq!(at("lib").unwrap(), &(0o120_777, b"usr/lib".to_vec()));
        assert_eq!(at("usr/lib/lib.so.1").unwrap().1, b"deep/../lib.so.1.2");
        assert!(at("usr/lib/deep").is_some() && at("absolute").is_some() && at("usr/lib/other").is_none());
        assert!(archive.file(&base.join("circle")).unwrap_err().to_string().contains("circle"));
        let missing = archive.file(&base.join("nowhere")).unwrap_err().to_string();
        assert!(missing.contains("nowhere"), "{missing}");
    }

    #[test]
    fn a_tree_comes_whole_and_its_links_stay_links() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("tree/inner")).unwrap();
        fs::write(base.join("tree/inner/file"), [7; 1000]).unwrap();
        symlink("..", base.join("tree/inner/up")).unwrap();
        let mut archive = Archive::default();
        archive.tree(&base.join("tree")).unwrap();
        archive.data("/some/where/request", b"{}".to_vec());
        let entries = read(&archive);
        let inner = below_root(&base.join("tree/inner")).to_str().unwrap().to_owned();
        assert_eq!(entries[&format!("{inner}/file")], (entries[&format!("{inner}/file")].0, vec![7; 1000]));
        assert_eq!(entries[&format!("{inner}/up")].1, b"..");
        assert_eq!(entries["some/where/request"].1, b"{}");
        assert!(archive.has(&base.join("tree/inner/file")) && !archive.has(Path::new("/some/where/else")));
    }

    #[test]
    fn of_a_program_only_what_is_loaded_is_taken() {
        let this = std::env::current_exe().unwrap();
        let (loaded, whole) = (loaded_bytes(&this).unwrap(), fs::metadata(&this).unwrap().len());
        assert!(loaded > 100_000 && loaded < whole, "{loaded} of {whole}");
        let text = tempfile::NamedTempFile::new().unwrap();
        fs::write(text.path(), "no program").unwrap();
        assert_eq!(loaded_bytes(text.path()).unwrap(), 10);
        // It runs.
        let short = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut bytes = fs::read(&this).unwrap();
        bytes.truncate(loaded as usize);
        fs::write(&short, bytes).unwrap();
        fs::set_permissions(&short, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new(&short).arg("--list").stdout(Stdio::null()).status().unwrap().success());
    }

    #[test]
    fn the_libraries_are_what_ldd_says() {
        let output = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries_in(output).unwrap(), expected);
        assert_eq!(libraries_in("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
        let error = libraries_in("\tlibbpf.so.1 => not found\n").unwrap_err();
        assert_eq!(error, "libbpf.so.1 => not found");
        let of_this = libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(of_this.iter().all(|path| path.is_file()), "{of_this:?}");
    }
}
