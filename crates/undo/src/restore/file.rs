//! Undoing a written kernel file.

use super::Mode;
use crate::pending::{Values, Verdict, selected};
use crate::report::Outcome;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub(super) fn undo(path: &Path, values: &Values<String>, mode: Mode) -> io::Result<Outcome> {
    let current = fs::read_to_string(path)?;
    match values.judge(&current) {
        Verdict::AsBefore => Ok(Outcome::Nothing),
        Verdict::SomebodyElses => {
            let why = format!("it now reads `{}`, which this run did not write", current.trim());
            Ok(Outcome::LeftAlone(why))
        }
        Verdict::Ours if mode == Mode::DryRun => Ok(Outcome::Restored),
        Verdict::Ours => {
            let original = selected(&values.original);
            write(path, original)?;
            let now = fs::read_to_string(path)?;
            Ok(match values.judge(&now) {
                Verdict::AsBefore => Outcome::Restored,
                _ => Outcome::Failed(format!("`{original}` was written, but it reads `{}`", now.trim())),
            })
        }
    }
}

/// Writes a value with one write, as kernel files ask; an empty value as an empty line. Never makes, shortens or
/// empties a file, and never follows a symbolic link in the last part of the path.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    file.write_all(format!("{}\n", value.trim()).as_bytes())
}
