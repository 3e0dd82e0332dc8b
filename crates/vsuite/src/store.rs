//! Where inputs and outputs lie: a directory that the user chooses, on a memory file system where there is one, as in the
//! paper (section 2.1). What is kept is kept under its own name; everything else lies in a directory of this process,
//! which goes away when the suite ends or is told to end.

use crate::SuiteError;
use crate::platform;
use crate::programs::mapreduce::parallel;
use crate::programs::{BLOCK_BYTES, Fill};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts up when a generator changes what it makes: kept inputs of another version are not used.
const VERSION: u32 = 1;
const MEMORY: &str = "/dev/shm";

/// The directory.
pub struct Store {
    kept: PathBuf,
    own: PathBuf,
    keep: bool,
    signals: Handle,
}

impl Store {
    /// A store below `dir`, or where the system has room for temporary files.
    ///
    /// # Errors
    /// When the directory cannot be made or written.
    pub fn new(dir: Option<&Path>, keep: bool) -> Result<Self, SuiteError> {
        let candidates = match dir {
            Some(dir) => vec![dir.to_owned()],
            None => vec![PathBuf::from(MEMORY), std::env::temp_dir()],
        };
        let mut refused = None;
        for base in candidates {
            let kept = base.join("muster-vsuite");
            let own = kept.join(format!("run-{}", std::process::id()));
            match fs::create_dir_all(&own) {
                Ok(()) => return Ok(Self { signals: remove_on_signal(own.clone())?, kept, own, keep }),
                Err(error) => refused = Some((base, error)),
            }
        }
        let (base, error) = refused.expect("there was a candidate");
        let found = format!("{}, which cannot be written: {error}", base.display());
        Err(SuiteError::bad_input("--dir", found, "a directory that you may write to"))
    }

    /// Refuses inputs for which there is no room.
    ///
    /// # Errors
    /// When fewer than `bytes` are free.
    pub fn check_room(&self, bytes: u64) -> Result<(), SuiteError> {
        let room = rustix::fs::statvfs(&self.own).map_err(SuiteError::system("cannot tell the free space"))?;
        let free = room.f_bavail * room.f_frsize;
        if bytes <= free {
            return Ok(());
        }
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        Err(SuiteError::bad_input(
            "--dir",
            format!("{}, which has {:.1} GB free", self.kept.display(), gigabytes(free)),
            format!("one with {:.1} GB free, or a smaller --scale", gigabytes(bytes)),
        ))
    }

    /// A path for something that is gone when the suite ends.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }

    /// A new empty directory of this name, in place of one that may have been there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn fresh_dir(&self, name: &str) -> Result<PathBuf, SuiteError> {
        let path = self.scratch(name);
        let made = remove(&path).and_then(|()| fs::create_dir(&path));
        made.map_err(SuiteError::system(format!("cannot make {}", path.display())))?;
        Ok(path)
    }

    /// The input `name` of so many bytes: one that was kept, or a new one, made on so many threads.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn input(&self, name: &str, seed: u64, bytes: u64, fill: &Fill) -> Result<PathBuf, SuiteError> {
        let file = format!("{name}-v{VERSION}-seed{seed}-{bytes}");
        let kept = self.kept.join(&file);
        if fs::metadata(&kept).is_ok_and(|found| found.len() == bytes) {
            return Ok(kept);
        }
        let new = self.own.join(&file);
        write(&new, bytes, fill).map_err(SuiteError::system(format!("cannot write {}", new.display())))?;
        if !self.keep {
            return Ok(new);
        }
        fs::rename(&new, &kept).map_err(SuiteError::system(format!("cannot keep {}", kept.display())))?;
        Ok(kept)
    }

    /// Removes a file or directory of this suite; what is kept stays.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn discard(&self, path: &Path) -> Result<(), SuiteError> {
        if !path.starts_with(&self.own) {
            return Ok(());
        }
        remove(path).map_err(SuiteError::system(format!("cannot remove {}", path.display())))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.signals.close();
        // Whatever cannot be removed now was named when it failed first; the outer directory stays when others use it.
        let _ = fs::remove_dir_all(&self.own);
        let _ = fs::remove_dir(&self.kept);
    }
}

/// Ends the measured process and removes the directory when this process is told to end.
fn remove_on_signal(own: PathBuf) -> Result<Handle, SuiteError> {
    let failed = || SuiteError::system("cannot handle signals");
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed())?;
    let handle = signals.handle();
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            platform::end_measured();
            let _ = fs::remove_dir_all(&own);
            if let Some(kept) = own.parent() {
                let _ = fs::remove_dir(kept);
            }
            std::process::exit(128 + signal);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed())?;
    Ok(handle)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Writes a file block by block, on all CPUs.
fn write(path: &Path, bytes: u64, fill: &Fill) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(bytes)?;
    let next = AtomicU64::new(0);
    let outcome = Mutex::new(Ok(()));
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    parallel(threads, |_| {
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let start = index * BLOCK_BYTES as u64;
            if start >= bytes {
                return;
            }
            let block = &mut block[..BLOCK_BYTES.min((bytes - start) as usize)];
            fill(index, block);
            if let Err(error) = file.write_all_at(block, start) {
                next.store(u64::MAX / BLOCK_BYTES as u64 / 2, Ordering::Relaxed);
                *outcome.lock().expect("nobody panics with it") = Err(error);
            }
        }
    });
    outcome.into_inner().expect("nobody panics with it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> Fill {
        Box::new(|index, block| block.fill(index as u8 + 1))
    }

    #[test]
    fn inputs_are_made_once_and_gone_at_the_end_unless_kept() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = BLOCK_BYTES as u64 + 10;
        let store = Store::new(Some(dir.path()), false).unwrap();
        let path = store.input("a", 1, bytes, &counting()).unwrap();
        let made = fs::read(&path).unwrap();
        assert_eq!((made.len() as u64, made[0], made[BLOCK_BYTES]), (bytes, 1, 2));
        drop(store);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");

        let store = Store::new(Some(dir.path()), true).unwrap();
        let kept = store.input("a", 1, bytes, &counting()).unwrap();
        store.discard(&kept).unwrap();
        drop(store);
        let store = Store::new(Some(dir.path()), false).unwrap();
        assert_eq!(store.input("a", 1, bytes, &counting()).unwrap(), kept, "what was kept is used");
        assert_ne!(store.input("a", 2, bytes, &counting()).unwrap(), kept, "another seed, another input");
        drop(store);
        assert_eq!(fs::read(&kept).unwrap(), made);
    }

    #[test]
    fn a_directory_that_cannot_be_written_and_one_without_room_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let Err(error) = Store::new(Some(file.path()), false) else { panic!("a file is no directory") };
        assert!(error.to_string().starts_with("--dir: found"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(Some(dir.path()), false).unwrap();
        let error = store.check_room(u64::MAX).unwrap_err();
        assert!(error.to_string().contains("GB free"), "{error}");
        store.check_room(1).unwrap();
    }
}
