//! A kernel for the guest: the one that was named, else one of the distribution's. An installed one is taken as it is;
//! where none is, as in a container, its package is downloaded by apt-get and the image taken out of it, into the user's
//! cache. Nothing is installed, and no kernel of this machine changes.

use super::qemu::run_to_end;
use crate::SuiteError;
use crate::platform::Native;
use crate::store::Store;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where distributions install kernels.
const BOOT: &str = "/boot";
/// Packages that depend on the newest small kernel: Debian's, Ubuntu's.
const PACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-virtual"];
/// A download that takes longer is given up.
const FETCH_LIMIT: Duration = Duration::from_secs(600);
/// Where and what the header of an x86 kernel says (Documentation/arch/x86/boot.rst).
const MAGIC_AT: u64 = 0x202;
const MAGIC: &[u8; 4] = b"HdrS";

/// The image to boot.
///
/// # Errors
/// When what was named is no kernel, or there is none and none can be fetched.
pub fn find(named: Option<&Path>, native: &Native, store: &Store) -> Result<PathBuf, SuiteError> {
    if let Some(path) = named {
        return match is_kernel(path) {
            Ok(true) => Ok(path.to_owned()),
            Ok(false) => Err(wrong(path, "which is no kernel")),
            Err(error) => Err(wrong(path, &format!("which cannot be read: {error}"))),
        };
    }
    let running = Path::new(BOOT).join(format!("vmlinuz-{}", rustix::system::uname().release().to_string_lossy()));
    if is_kernel(&running).unwrap_or(false) {
        return Ok(running);
    }
    let cache = cache_dir();
    let dirs = [Some(PathBuf::from(BOOT)), cache.clone()];
    match dirs.iter().flatten().find_map(|dir| newest(dir)) {
        Some(kernel) => Ok(kernel),
        None => fetch(cache.as_deref(), native, store),
    }
}

fn wrong(path: &Path, what: &str) -> SuiteError {
    let allowed = "an x86 kernel image (vmlinuz)";
    SuiteError::bad_input("--kernel", format!("{}, {what}", path.display()), allowed)
}

fn is_kernel(path: &Path) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    match File::open(path)?.read_exact_at(&mut magic, MAGIC_AT) {
        Ok(()) => Ok(magic == *MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The newest kernel in a directory that may be read, by its version.
fn newest(dir: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let kernels = names.filter(|name| name.starts_with("vmlinuz-") && is_kernel(&dir.join(name)).unwrap_or(false));
    let version = |name: &String| -> Vec<u32> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    kernels.max_by_key(version).map(|name| dir.join(name))
}

/// `$XDG_CACHE_HOME/muster`, as the XDG Base Directory Specification has it.
fn cache_dir() -> Option<PathBuf> {
    let is_absolute = |path: &PathBuf| path.is_absolute();
    let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(is_absolute);
    let usual = || env::home_dir().filter(is_absolute).map(|home| home.join(".cache"));
    own.or_else(usual).map(|base| base.join("muster"))
}

/// Downloads the newest kernel's package and puts its image into the cache.
fn fetch(cache: Option<&Path>, native: &Native, store: &Store) -> Result<PathBuf, SuiteError> {
    let none = |why: &str| {
        let advice = "install a kernel package, or name an image by --kernel";
        SuiteError::NoVm(format!("no kernel: none in {BOOT} that may be read, and {why}; {advice}"))
    };
    let cache = cache.ok_or_else(|| none("no home directory to fetch one into"))?;
    let package = PACKAGES.iter().find_map(|package| newest_of(package));
    let package = package.ok_or_else(|| none("apt-get knows no package of one (apt-get update?)"))?;
    let dir = store.fresh_dir("kernel")?;
    let mut download = Command::new("apt-get");
    download.args(["download", "-q", &package]).current_dir(&dir);
    run_to_end(&mut download, native, FETCH_LIMIT)
        .map_err(|why| none(&format!("{package} could not be fetched: {why}")))?;
    unpack(&dir, native).map_err(|why| none(&format!("{package} could not be unpacked: {why}")))?;
    let image = newest(&dir.join("boot")).ok_or_else(|| none(&format!("{package} holds none")))?;
    let kept = keep(&image, cache).map_err(SuiteError::system(format!("cannot write into {}", cache.display())))?;
    store.discard(&dir)?;
    Ok(kept)
}

/// The package with an image on which a package without one depends.
fn newest_of(package: &str) -> Option<String> {
    let output = Command::new("apt-cache")
        .args(["depends", "--important", package])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    image_package(&String::from_utf8_lossy(&output.stdout))
}

fn image_package(depends: &str) -> Option<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with("linux-image-")).map(str::to_owned)
}

/// Takes the image out of the package in a directory; the modules, ten times as large, stay in it.
fn unpack(dir: &Path, native: &Native) -> Result<(), String> {
    let is_package = |path: &PathBuf| path.extension() == Some(OsStr::new("deb"));
    let entries = fs::read_dir(dir).map_err(|error| error.to_string())?;
    let package = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_package);
    let package = package.ok_or("apt-get left nothing")?;
    let unpacking = Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&package).stdout(Stdio::piped()).spawn();
    let mut unpacking = unpacking.map_err(|error| format!("dpkg-deb: {error}"))?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--wildcards", "./boot/vmlinuz-*"]).current_dir(dir);
    tar.stdin(unpacking.stdout.take().expect("it was asked for"));
    let outcome = run_to_end(&mut tar, native, FETCH_LIMIT);
    let unpacked = unpacking.wait().map_err(|error| error.to_string())?;
    outcome?;
    if unpacked.success() { Ok(()) } else { Err("dpkg-deb failed".to_owned()) }
}

/// Copies an image under its name; whoever looks there meanwhile finds all of it or nothing.
fn keep(image: &Path, cache: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(cache)?;
    let mut copy = tempfile::NamedTempFile::new_in(cache)?;
    io::copy(&mut File::open(image)?, &mut copy)?;
    let place = cache.join(image.file_name().expect("an image has a name"));
    copy.persist(&place)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_kernel(path: &Path) {
        let mut bytes = vec![0; 0x300];
        bytes[MAGIC_AT as usize..][..4].copy_from_slice(MAGIC);
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn the_newest_kernel_is_taken_and_what_is_none_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(newest(dir.path()), None);
        assert_eq!(newest(&dir.path().join("nowhere")), None);
        fs::write(dir.path().join("vmlinuz-7.0"), "short").unwrap();
        fs::write(dir.path().join("config-9.0"), "").unwrap();
        for name in ["vmlinuz-6.9.0-1-amd64", "vmlinuz-6.12.0-1-amd64"] {
            write_kernel(&dir.path().join(name));
        }
        assert_eq!(newest(dir.path()), Some(dir.path().join("vmlinuz-6.12.0-1-amd64")));
        let kept = keep(&dir.path().join("vmlinuz-6.9.0-1-amd64"), &dir.path().join("cache/muster")).unwrap();
        assert!(is_kernel(&kept).unwrap() && kept.ends_with("cache/muster/vmlinuz-6.9.0-1-amd64"));
        assert_eq!(fs::read_dir(dir.path().join("cache/muster")).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_named_file_that_is_no_kernel_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(Some(dir.path()), false).unwrap();
        let native = Native::new().unwrap();
        let file = dir.path().join("vmlinuz");
        fs::write(&file, "no kernel").unwrap();
        let message = find(Some(&file), &native, &store).unwrap_err().to_string();
        let expected = format!("--kernel: found {}, which is no kernel; allowed: an x86 kernel", file.display());
        assert!(message.starts_with(&expected), "{message}");
        let message = find(Some(Path::new("/nowhere/vmlinuz")), &native, &store).unwrap_err().to_string();
        assert!(message.contains("/nowhere/vmlinuz, which cannot be read: No such file"), "{message}");
        write_kernel(&file);
        assert_eq!(find(Some(&file), &native, &store).unwrap(), file);
    }

    #[test]
    fn the_package_with_the_image_is_what_the_other_depends_on() {
        let debian = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(image_package(debian).unwrap(), "linux-image-6.1.0-56-cloud-amd64");
        let ubuntu = "linux-image-virtual\n  Depends: linux-base\n  Depends: linux-image-6.8.0-90-generic\n";
        assert_eq!(image_package(ubuntu).unwrap(), "linux-image-6.8.0-90-generic");
        assert_eq!(image_package(""), None);
    }
}
