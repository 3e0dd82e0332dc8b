//! The guest's kernel with the modules that a KVM host needs: the distribution's package, downloaded once a checkout into
//! `target/tmp`, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian's kernel for virtual machines has all that is needed: KVM, VFIO, Intel's IOMMU, NVMe, tracepoints, BPF.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Each after those that it needs; what a kernel has built in or does not know is left out.
const MODULES: [&str; 8] = [
    "virt/lib/irqbypass.ko",
    "arch/x86/kvm/kvm.ko",
    "arch/x86/kvm/kvm-amd.ko",
    "drivers/vhost/vhost_iotlb.ko",
    "drivers/vhost/vhost.ko",
    "drivers/net/tun.ko",
    "drivers/net/tap.ko",
    "drivers/vhost/vhost_net.ko",
];
/// These are loaded by what is tested, if modprobe(8) is there to do it.
const LAST_MODULES: [&str; 5] = [
    "drivers/vfio/vfio.ko",
    "drivers/vfio/vfio_virqfd.ko",
    "drivers/vfio/vfio_iommu_type1.ko",
    "drivers/vfio/pci/vfio-pci-core.ko",
    "drivers/vfio/pci/vfio-pci.ko",
];

/// A kernel's image and modules.
pub struct Kernel {
    pub image: PathBuf,
    /// `lib/modules/RELEASE`, relative to [`Kernel::tree`].
    pub place: PathBuf,
    pub tree: PathBuf,
    /// Relative to [`Kernel::place`], each after those that it needs.
    pub modules: Vec<PathBuf>,
    /// How many of them are loaded before anything is tested, where the rest can be loaded by what is.
    pub first: usize,
}

/// The kernel, fetched if it was not yet.
pub fn find() -> Result<Kernel, String> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("muster-rig-kernel");
    if !place.exists() {
        fetch(&place)?;
    }
    in_tree(&place).ok_or_else(|| format!("{} holds no whole kernel; remove it", place.display()))
}

fn in_tree(tree: &Path) -> Option<Kernel> {
    let image = only(&tree.join("boot"), "vmlinuz-")?;
    let place = only(&tree.join("lib/modules"), "")?;
    let is_there = |module: &PathBuf| place.join(module).exists();
    let first = MODULES.iter().map(|module| Path::new("kernel").join(module)).filter(is_there).count();
    let all = MODULES.iter().chain(&LAST_MODULES).map(|module| Path::new("kernel").join(module));
    let modules = all.filter(is_there).collect();
    Some(Kernel { image, first, place: place.strip_prefix(tree).ok()?.to_owned(), tree: tree.to_owned(), modules })
}

fn only(directory: &Path, prefix: &str) -> Option<PathBuf> {
    let mut names = fs::read_dir(directory).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    names.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
}

/// Whoever looks there meanwhile finds all of it or nothing.
fn fetch(place: &Path) -> Result<(), String> {
    let package = package()?;
    let text = |error: std::io::Error| error.to_string();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(text)?;
    run(Command::new("apt-get").args(["download", "-q", &package]).current_dir(&dir))
        .map_err(|why| format!("the kernel's package {package} could not be fetched: {why}"))?;
    let archive = only(dir.path(), "linux-image-").ok_or("apt-get left no package")?;
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).map_err(text)?;
    let member = |module: &&str| format!("./lib/modules/*/kernel/{module}");
    let members: Vec<String> = MODULES.iter().chain(&LAST_MODULES).map(member).collect();
    let script = "dpkg-deb --fsys-tarfile \"$0\" | tar -x -C \"$1\" --wildcards \"${@:2}\"";
    let mut unpack = Command::new("bash");
    unpack.args(["-c", script]).arg(&archive).arg(&tree).arg("./boot/vmlinuz-*").args(&members);
    // tar ends with an error for modules that this kernel does not have; what must be there is looked at instead.
    let why = run(&mut unpack).err().unwrap_or_default();
    in_tree(&tree).ok_or_else(|| format!("{package} could not be unpacked: {why}"))?;
    fs::rename(&tree, place).map_err(text)
}

/// The package with an image on which the one without depends.
fn package() -> Result<String, String> {
    let mut list = Command::new("apt-cache");
    list.args(["depends", "--important", PACKAGE]).env("LC_ALL", "C").stdin(Stdio::null());
    let output = list.output().map_err(|error| format!("no apt-cache to find a kernel with: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let name = names.find(|name| name.starts_with("linux-image-")).map(str::to_owned);
    name.ok_or_else(|| format!("apt-cache knows no package {PACKAGE} (apt-get update?)"))
}

/// Lets depmod(8) write down which module needs which, as modprobe(8) wants it. Where it is not installed, what takes
/// modprobe is left out of the test.
pub fn depend(kernel: &Kernel) -> Result<(), String> {
    let release = kernel.place.file_name().ok_or("a kernel has a release")?;
    let mut depmod = Command::new("depmod");
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    run(depmod.env("PATH", path).arg("-b").arg(&kernel.tree).arg(release)).map_err(|why| format!("depmod: {why}"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(said.trim().lines().last().unwrap_or_default().to_owned()) }
}
