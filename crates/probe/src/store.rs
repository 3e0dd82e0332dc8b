//! Where the last profile of this machine is kept, so that other commands need not measure again.
//!
//! `$XDG_CACHE_HOME/muster/profile.toml`, by default `~/.cache/muster/profile.toml` (XDG Base Directory
//! Specification). A profile counts only while the machine is still the one it was taken on.

use muster_model::{ModelError, Profile};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The file of the last profile; `None` without a home.
pub fn path() -> Option<PathBuf> {
    path_from(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

/// The directory in which that is, where other things that can be made again may lie too; `None` without a home.
pub fn directory() -> Option<PathBuf> {
    path()?.parent().map(Path::to_owned)
}

/// The specification asks that a relative path be ignored.
fn path_from(cache_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = cache_home.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")))?;
    Some(base.join("muster").join("profile.toml"))
}

/// Reads a profile from a file; `None` when there is no such file.
///
/// # Errors
/// When the file cannot be read, or is no profile.
pub fn load(path: &Path) -> Result<Option<Profile>, ModelError> {
    match fs::read_to_string(path) {
        Ok(text) => Profile::from_toml(&text, &path.display().to_string()).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(ModelError::new(path.display().to_string(), error.to_string(), "a machine profile that can be read"))
        }
    }
}

/// Writes a profile in one step: a reader sees the old one or the new one. Makes the directories above it.
///
/// # Errors
/// Those of the file system.
pub fn save(profile: &Profile, path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let unfinished = path.with_extension(format!("toml.{}", std::process::id()));
    fs::write(&unfinished, profile.to_toml())?;
    fs::rename(&unfinished, path).inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

/// Whether a profile's prices still hold on a machine that now describes itself as `now` (prices not regarded).
///
/// What changes the price of waking or of reading the clock must be equal: CPU, kernel, hypervisor, idle handling, clock
/// source, shape.
pub fn still_holds(stored: &Profile, now: &Profile) -> bool {
    let essence = |profile: &Profile| {
        let platform = profile.platform.clone();
        let idle = (platform.cpuidle_driver, platform.cpuidle_governor, platform.guest_halt_poll_ns);
        (platform.cpu, platform.kernel, platform.hypervisor, idle, platform.clock_source, profile.topology.clone())
    };
    essence(stored) == essence(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::Topology;
    use muster_model::profile::Platform;

    fn profile() -> Profile {
        Profile {
            name: "a".into(),
            description: String::new(),
            platform: Platform { clock_source: "tsc".into(), guest_halt_poll_ns: Some(0), ..Platform::default() },
            topology: Topology::regular(1, 1, 2, 1).unwrap(),
            prices: Default::default(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_cache_is_where_the_specification_says() {
        let path = |cache: Option<&str>, home: Option<&str>| path_from(cache.map(Into::into), home.map(Into::into));
        assert_eq!(path(Some("/c"), Some("/h")), Some("/c/muster/profile.toml".into()));
        assert_eq!(path(None, Some("/h")), Some("/h/.cache/muster/profile.toml".into()));
        assert_eq!(path(Some("c"), Some("/h")), Some("/h/.cache/muster/profile.toml".into()));
        assert_eq!(path(Some(""), None), None);
    }

    #[test]
    fn a_saved_profile_is_loaded_and_a_broken_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep").join("profile.toml");
        assert_eq!(load(&path).unwrap(), None);
        save(&profile(), &path).unwrap();
        assert_eq!(load(&path).unwrap(), Some(profile()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing unfinished is left");
        fs::write(&path, "name = 3").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("profile.toml, line 1"));
        assert!(load(dir.path()).is_err());
    }

    #[test]
    fn a_profile_holds_until_the_machine_changes() {
        assert!(still_holds(&profile(), &Profile { name: "b".into(), ..profile() }));
        let mut polls = profile();
        polls.platform.guest_halt_poll_ns = Some(200_000);
        assert!(!still_holds(&profile(), &polls));
        assert!(!still_holds(&profile(), &Profile { topology: Topology::regular(1, 1, 4, 1).unwrap(), ..profile() }));
    }
}
