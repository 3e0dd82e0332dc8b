//! Where a study's finished runs lie until it is over: `FILE.runs` beside the results file, or a file in the user's cache
//! directory. What stands there is the business of [`muster_sim::study::journal`].

use muster_sim::study::journal::{Found, Header, run_line};
use muster_sim::study::summary::RunRecord;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::UNIX_EPOCH;

/// The file, while it can be written.
pub(super) struct Saved {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl Saved {
    /// The file that goes with `out` and this header, and the runs that are there. What prevents that is told; the study
    /// then goes on without.
    pub(super) fn open(out: Option<&Path>, header: &Header) -> (Self, Vec<RunRecord>) {
        let none = |path: PathBuf| (Self { path, file: Mutex::new(None) }, Vec::new());
        let Some(path) = path(out, header) else { return none(PathBuf::new()) };
        match take_up(&path, header) {
            Ok((file, runs)) => (Self { path, file: Mutex::new(Some(file)) }, runs),
            Err(error) => {
                eprintln!("runs are not saved as they end: {}: {error}", path.display());
                none(path)
            }
        }
    }

    /// Writes a run down; what prevents that is told once.
    pub(super) fn keep(&self, run: &RunRecord) -> Option<String> {
        let mut file = self.file.lock().expect("nobody panics while writing");
        // One write a line: a kill leaves whole lines, and at most one that is torn.
        let written = file.as_mut()?.write_all(run_line(run).as_bytes());
        let error = written.err()?;
        *file = None;
        Some(format!("no further runs are saved: cannot write {}: {error}", self.path.display()))
    }

    /// The study is over.
    pub(super) fn remove(self) {
        if self.file.into_inner().expect("nobody panics while writing").is_some() {
            // What stays is taken up or replaced by the next study.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What tells builds of this program apart: when its file was made, and how long it is.
pub(super) fn build() -> String {
    let metadata = std::env::current_exe().and_then(std::fs::metadata);
    let made =
        |metadata: &std::fs::Metadata| Some(metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos());
    match metadata {
        Ok(metadata) => format!("{:x}-{:x}", made(&metadata).unwrap_or(0), metadata.len()),
        Err(_) => "unknown".to_owned(),
    }
}

fn path(out: Option<&Path>, header: &Header) -> Option<PathBuf> {
    if let Some(out) = out {
        let mut name = out.as_os_str().to_owned();
        name.push(".runs");
        return Some(name.into());
    }
    let Header { study, seed, scale, cores, .. } = header;
    let cores = cores.map_or_else(String::new, |cores| format!("-cores-{cores}"));
    let name = format!("study-{study}{cores}-seed-{seed}-scale-{scale}.runs");
    muster_probe::store::directory().map(|directory| directory.join(name))
}

/// Opens the file for this process alone, with the runs that are in it; begins it anew where they are of another study.
fn take_up(path: &Path, header: &Header) -> io::Result<(File, Vec<RunRecord>)> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another muster is at work on it"),
        TryLockError::Error(error) => error,
    })?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = match std::str::from_utf8(&text) {
        Ok(whole) => whole,
        Err(torn) => std::str::from_utf8(&text[..torn.valid_up_to()]).unwrap_or_default(),
    };
    let found = match header.read(text) {
        Ok(found) => found,
        Err(refused) => {
            if !text.is_empty() {
                eprintln!("{} is not taken up: {refused}", path.display());
            }
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(header.line().as_bytes())?;
            return Ok((file, Vec::new()));
        }
    };
    let Found { runs, whole_bytes } = found;
    if !runs.is_empty() {
        eprintln!("{} runs are taken up from {}", runs.len(), path.display());
    }
    file.set_len(whole_bytes as u64)?;
    file.seek(SeekFrom::End(0))?;
    Ok((file, runs))
}
