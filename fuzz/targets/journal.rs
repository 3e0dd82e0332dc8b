//! Undo journals: whatever follows a valid first line, listing the journal neither panics nor fails as a whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_undo::{Directory, Journal};
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;

struct Place {
    directory: PathBuf,
    journal: PathBuf,
    first_line: Vec<u8>,
    /// Removed at the end.
    _home: TempDir,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let home = tempfile::tempdir().expect("a temporary directory");
    let directory = home.path().join("journals");
    let journal =
        Journal::create(Directory::at(&directory).expect("a directory of our own"), "fuzz").expect("a new journal");
    let path = journal.path().to_owned();
    let first_line = std::fs::read(&path).expect("a journal's first line");
    Place { directory, journal: path, first_line, _home: home }
});

fuzz_target!(|lines: &[u8]| {
    let text = [PLACE.first_line.as_slice(), lines].concat();
    std::fs::write(&PLACE.journal, text).expect("the journal is ours");
    let directory = Directory::at(&PLACE.directory).expect("a directory of our own");
    let journals = muster_undo::list(&directory).expect("bad lines do not spoil the list");
    assert_eq!(journals.len(), 1);
});
