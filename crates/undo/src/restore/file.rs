//! Undoing a written kernel file.

use super::Mode;
use crate::pending::{Values, Verdict, selected};
use crate::report::Outcome;
use rustix::fs::fstatfs;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Magic numbers (statfs(2)) of the file systems whose files are the kernel's own: sysfs, proc, cgroup, cgroup2,
/// debugfs, tracefs, configfs.
const KERNEL_FILE_SYSTEMS: [u64; 7] =
    [0x6265_6572, 0x9fa0, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0x6265_6570];

pub(super) fn undo(path: &Path, values: &Values<String>, mode: Mode) -> io::Result<Outcome> {
    let current = fs::read_to_string(path)?;
    match values.judge(&current) {
        Verdict::AsBefore => {
            // Killed while a recorded file got its content back.
            if mode == Mode::Apply && current != values.original && !is_the_kernels(&open(path)?)? {
                put_back(path, &values.original)?;
            }
            Ok(Outcome::Nothing)
        }
        Verdict::SomebodyElses => {
            let why = format!("it now reads `{}`, which this run did not write", current.trim());
            Ok(Outcome::LeftAlone(why))
        }
        Verdict::Ours if mode == Mode::DryRun => Ok(Outcome::Restored),
        Verdict::Ours => {
            put_back(path, &values.original)?;
            let now = fs::read_to_string(path)?;
            Ok(match values.judge(&now) {
                Verdict::AsBefore => Outcome::Restored,
                _ => {
                    let original = selected(&values.original);
                    Outcome::Failed(format!("`{original}` was written, but it reads `{}`", now.trim()))
                }
            })
        }
    }
}

/// Writes a value with one write, as kernel files ask; an empty value as an empty line. Never makes or empties a file,
/// and never follows a symbolic link in the last part of the path.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    put(&open(path)?, &format!("{}\n", value.trim()))
}

/// Gives a file the content that it had.
pub(crate) fn put_back(path: &Path, original: &str) -> io::Result<()> {
    let file = open(path)?;
    if is_the_kernels(&file)? { put(&file, &format!("{}\n", selected(original))) } else { put(&file, original) }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// A file of a recorded tree gets blank lines up to its earlier length with the same write, and is cut then: at no moment
/// does it hold part of one value and part of another.
fn put(mut file: &File, content: &str) -> io::Result<()> {
    if is_the_kernels(file)? {
        return file.write_all(content.as_bytes());
    }
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    file.write_all(format!("{content}{}", "\n".repeat(length.saturating_sub(content.len()))).as_bytes())?;
    if content.len() < length { file.set_len(content.len() as u64) } else { Ok(()) }
}

fn is_the_kernels(file: &File) -> io::Result<bool> {
    Ok(KERNEL_FILE_SYSTEMS.contains(&(fstatfs(file)?.f_type as u64)))
}
