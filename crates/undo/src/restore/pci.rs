//! Virtual functions and drivers of PCI devices, in sysfs (Documentation/ABI/testing/sysfs-bus-pci).

use super::Mode;
use super::file::{put_back, write};
use crate::pending::{Binding, Values, Verdict};
use crate::report::Outcome;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// An address is a name in a directory, so that nothing else may be in it.
pub(crate) fn check(device: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    match !device.is_empty() && device.chars().all(allowed) && !device.starts_with('.') {
        true => Ok(()),
        false => Err(format!("`{device}` is no PCI address: DDDD:BB:DD.F in hexadecimal is expected")),
    }
}

pub(super) fn undo_functions(root: &Path, device: &str, values: &Values<u64>, mode: Mode) -> io::Result<Outcome> {
    let current = count(root, device)?;
    match values.judge(&current) {
        Verdict::AsBefore => Ok(Outcome::Nothing),
        Verdict::SomebodyElses => Ok(Outcome::LeftAlone(format!("it now has {current}, which this run did not set"))),
        Verdict::Ours => {
            if let Some(why) = functions_in_use(root, device) {
                return Ok(Outcome::Failed(why));
            }
            if mode == Mode::Apply {
                set_count(root, device, values.original)?;
            }
            Ok(Outcome::Restored)
        }
    }
}

pub(super) fn undo_driver(root: &Path, device: &str, values: &Values<Binding>, mode: Mode) -> io::Result<Outcome> {
    let current = Binding { driver: driver(root, device), chosen: override_of(root, device)? };
    let original = &values.original;
    if current == *original {
        return Ok(Outcome::Nothing);
    }
    // On the way from one driver to another it has none; without a wish for one it may have got any.
    let ours = |binding: &Binding| {
        current.driver.is_none()
            || current.driver == original.driver
            || binding.driver.is_none()
            || current.driver == binding.driver
    };
    if !values.applied.iter().any(ours) {
        let name = current.driver.unwrap_or_default();
        return Ok(Outcome::LeftAlone(format!("its driver now is {name}, which this run did not set")));
    }
    if let Some(why) = in_use(root, device) {
        return Ok(Outcome::Failed(why));
    }
    if mode == Mode::DryRun {
        return Ok(Outcome::Restored);
    }
    put_back(&place(root, device).join("driver_override"), kernel_override(root, &original.chosen))?;
    rebind(root, device, original.driver.as_deref())?;
    let now = driver(root, device);
    Ok(match now == original.driver {
        true => Outcome::Restored,
        false => Outcome::Failed(format!("its driver is {}", now.as_deref().unwrap_or("none"))),
    })
}

/// An empty choice reads `(null)` and is written as an empty line; a recorded file gets what it held.
fn kernel_override<'a>(root: &Path, chosen: &'a str) -> &'a str {
    if root == Path::new("/") && chosen.trim() == "(null)" { "" } else { chosen }
}

fn place(root: &Path, device: &str) -> PathBuf {
    root.join("sys/bus/pci/devices").join(device)
}

/// How many virtual functions a device has.
pub(crate) fn count(root: &Path, device: &str) -> io::Result<u64> {
    let text = fs::read_to_string(place(root, device).join("sriov_numvfs"))?;
    text.trim().parse().map_err(|_| io::Error::other(format!("sriov_numvfs reads `{}`", text.trim())))
}

/// Gives a device `wanted` virtual functions. From one number to another leads only 0 (drivers/pci/iov.c).
pub(crate) fn set_count(root: &Path, device: &str, wanted: u64) -> io::Result<()> {
    let path = place(root, device).join("sriov_numvfs");
    let current = count(root, device)?;
    if current != wanted && current != 0 {
        write(&path, "0")?;
    }
    if count(root, device)? != wanted {
        write(&path, &wanted.to_string())?;
    }
    match count(root, device)? {
        now if now == wanted => Ok(()),
        now => Err(io::Error::other(format!("{wanted} was written to {}, but it reads {now}", path.display()))),
    }
}

/// The driver of a device.
pub(crate) fn driver(root: &Path, device: &str) -> Option<String> {
    let link = fs::read_link(place(root, device).join("driver")).ok()?;
    link.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// What a device's `driver_override` reads.
pub(crate) fn override_of(root: &Path, device: &str) -> io::Result<String> {
    fs::read_to_string(place(root, device).join("driver_override"))
}

/// Gives a device the driver `wanted` and no other one; none leaves the choice to the kernel.
pub(crate) fn bind(root: &Path, device: &str, wanted: Option<&str>) -> io::Result<()> {
    write(&place(root, device).join("driver_override"), wanted.unwrap_or(""))?;
    let current = driver(root, device);
    if wanted.is_none() || current.as_deref() != wanted {
        if let Some(current) = &current {
            write(&root.join("sys/bus/pci/drivers").join(current).join("unbind"), device)?;
        }
        write(&root.join("sys/bus/pci/drivers_probe"), device)?;
    }
    let now = driver(root, device);
    match wanted.is_none() || now.as_deref() == wanted {
        true => Ok(()),
        false => {
            let (wanted, now) = (wanted.unwrap_or_default(), now.as_deref().unwrap_or("none"));
            Err(io::Error::other(format!("{device} was to get driver {wanted}, but its driver is {now}")))
        }
    }
}

/// Takes a device from its driver and gives it to `wanted`.
fn rebind(root: &Path, device: &str, wanted: Option<&str>) -> io::Result<()> {
    let current = driver(root, device);
    if current.as_deref() == wanted {
        return Ok(());
    }
    let drivers = root.join("sys/bus/pci/drivers");
    if let Some(current) = current {
        write(&drivers.join(current).join("unbind"), device)?;
    }
    wanted.map_or(Ok(()), |wanted| write(&drivers.join(wanted).join("bind"), device))
}

/// Why the virtual functions of a device cannot be taken away, in words. The kernel would wait for the guests that use
/// them, for ever if need be.
pub(crate) fn functions_in_use(root: &Path, device: &str) -> Option<String> {
    let entries = fs::read_dir(place(root, device)).ok()?;
    let links = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_name().to_str().filter(|name| name.starts_with("virtfn"))?;
        let link = fs::read_link(entry.path()).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    });
    let mut functions: Vec<String> = links.collect();
    functions.sort();
    functions.iter().find_map(|function| in_use(root, function))
}

/// Why a device cannot be taken from its driver: a process has it open through VFIO.
pub(crate) fn in_use(root: &Path, device: &str) -> Option<String> {
    let names = vfio_names(root, device);
    if names.is_empty() {
        return None;
    }
    let processes = fs::read_dir(root.join("proc")).ok()?.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path().join("fd")))
    });
    let holds = |files: PathBuf| {
        let targets =
            fs::read_dir(files).into_iter().flatten().flatten().filter_map(|file| fs::read_link(file.path()).ok());
        targets.into_iter().any(|target| names.contains(&target))
    };
    let user = processes.into_iter().find_map(|(pid, files)| holds(files).then_some(pid))?;
    Some(format!("{device} is in use by process {user}: stop its VM, or take the device from it, first"))
}

/// The device files of a device that VFIO drives: its group's, and its own.
fn vfio_names(root: &Path, device: &str) -> Vec<PathBuf> {
    if driver(root, device).as_deref() != Some("vfio-pci") {
        return Vec::new();
    }
    let group = fs::read_link(place(root, device).join("iommu_group")).ok();
    let group = group.and_then(|link| Some(Path::new("/dev/vfio").join(link.file_name()?)));
    let own = fs::read_dir(place(root, device).join("vfio-dev")).into_iter().flatten().flatten();
    group.into_iter().chain(own.map(|entry| Path::new("/dev/vfio/devices").join(entry.file_name()))).collect()
}
