//! QEMU's command line for the host, and the watch over it.

use super::guest::{END, MODULES, SETTINGS, lifetime};
use super::kernel::{self, Kernel};
use muster_vsuite::vm::archive::{Archive, libraries};
use std::env;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "qemu-system-x86_64";
/// A guest switches itself off; one that has not done so this long after hangs.
const GRACE: Duration = Duration::from_secs(60);
/// Intel's IOMMU beside an AMD processor: Debian's small kernel lacks the driver for AMD's. The NVMe device is the one with
/// VFs in QEMU 7.2.
const MACHINE: [[&str; 2]; 12] = [
    ["-machine", "q35,accel=tcg,kernel-irqchip=split"],
    ["-cpu", CPU],
    ["-smp", "2"],
    ["-m", "1G"],
    ["-display", "none"],
    ["-monitor", "none"],
    ["-device", "intel-iommu,intremap=on"],
    ["-device", "pcie-root-port,id=root,slot=1"],
    ["-device", "nvme-subsys,id=subsystem"],
    ["-device", NVME],
    ["-drive", "driver=null-co,size=1M,if=none,id=disk"],
    ["-device", "nvme-ns,drive=disk,bus=nvme"],
];
/// What the emulator lacks of this processor is taken away, and pause filtering added against its advice: it ignores the
/// filter and exits on every PAUSE, which is what a test needs.
const CPU: &str = "EPYC-v3,+svm,+pause-filter,+pfthreshold,-rdseed,-sha-ni,-fxsr-opt,-misalignsse,-3dnowprefetch,-osvw,\
                   -topoext,-perfctr-core,-clzero,-xsaveerptr,-ibpb,-nrip-save,-xsavec,-xsaves,x-force-features=on";
const NVME: &str = "nvme,serial=rig,id=nvme,bus=root,subsys=subsystem,sriov_max_vfs=4,sriov_vq_flexible=8,\
                    sriov_vi_flexible=4,max_ioqpairs=10,msix_qsize=9";
/// What the kernel is told; behind `--` what its first process is told, which is this test.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 panic=-1 no_timer_check intel_iommu=on rdinit=/init -- guest --exact --ignored --nocapture";

/// QEMU, or why there is none.
pub fn find_qemu() -> Result<PathBuf, String> {
    let dirs = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&dirs).map(|dir| dir.join(PROGRAM)).find(|path| path.is_file());
    found.ok_or_else(|| format!("`{PROGRAM}` is not installed (package qemu-system-x86)"))
}

/// A child that does not outlive this.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots the guest, lets it play all scenes, and returns what it said; with its console where it said no end.
pub fn boot(kernel: &Kernel, qemu: &Path) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(text)?;
    let [archive, console, said, errors] = ["initramfs", "console", "said", "errors"].map(|name| dir.path().join(name));
    compose(kernel, &archive).map_err(|error| format!("the guest's files cannot be put together: {error}"))?;
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(qemu).args(MACHINE.as_flattened()).args(["-nodefaults", "-no-reboot"]);
    command.arg("-serial").arg(format!("file:{}", console.display()));
    command.arg("-serial").arg(format!("file:{}", said.display()));
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&archive).args(["-append", KERNEL_ARGUMENTS]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors).map_err(text)?);
    let mut child = Held(command.spawn().map_err(|error| format!("QEMU cannot be started: {error}"))?);
    let (start, limit) = (Instant::now(), lifetime(&settings()) + GRACE);
    while child.0.try_wait().map_err(text)?.is_none() && start.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = fs::read_to_string(&said).unwrap_or_default();
    if !said.contains(END) || env::var_os("MUSTER_RIG_CONSOLE").is_some() {
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        eprintln!("QEMU:\n{}the guest's console:\n{}", read(&errors), read(&console));
    }
    eprintln!("the guest, in {:.0} s:\n{said}", start.elapsed().as_secs_f64());
    Ok(said)
}

fn compose(kernel: &Kernel, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut archive = Archive::new();
    let (this, muster) = (env::current_exe()?, PathBuf::from(env!("CARGO_BIN_EXE_muster")));
    archive.program("/init", &this)?;
    archive.program("/muster", &muster)?;
    for library in libraries(&this)?.iter().chain(&libraries(&muster)?) {
        archive.file(library)?;
    }
    archive.file_if_there(Path::new("/etc/ld.so.cache"))?;
    let has_modprobe = add_modprobe(kernel, &mut archive);
    if let Err(why) = &has_modprobe {
        eprintln!("SKIPPED: loading modules anew: {why}");
    }
    let loaded_before = if has_modprobe.is_ok() { kernel.first } else { kernel.modules.len() };
    let mut names = String::new();
    for (number, module) in kernel.modules.iter().enumerate() {
        let path = in_guest(&kernel.place.join(module));
        archive.data(&path, fs::read(kernel.tree.join(&kernel.place).join(module))?);
        if number < loaded_before {
            names += &(path + "\n");
        }
    }
    archive.data(MODULES, names.into_bytes());
    // What the guest is to be told, which has no environment of its own.
    archive.data(SETTINGS, settings().into_bytes());
    archive.write(BufWriter::with_capacity(1 << 20, File::create(to)?))?;
    Ok(())
}

fn settings() -> String {
    env::var("MUSTER_KILLS").unwrap_or_default()
}

/// modprobe(8) and what it wants to know.
fn add_modprobe(kernel: &Kernel, archive: &mut Archive) -> Result<(), String> {
    let program = ["/usr/sbin/modprobe", "/sbin/modprobe"].map(Path::new).into_iter().find(|path| path.exists());
    let program = program.ok_or("modprobe is not installed (package kmod)")?;
    kernel::depend(kernel)?;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    // Both are kmod(8) by other names.
    archive.file(program).map_err(|error| text(&error))?;
    archive.file_if_there(&program.with_file_name("rmmod")).map_err(|error| text(&error))?;
    for library in libraries(program).map_err(|error| text(&error))? {
        archive.file(&library).map_err(|error| text(&error))?;
    }
    for entry in fs::read_dir(kernel.tree.join(&kernel.place)).map_err(|error| text(&error))?.flatten() {
        if entry.path().is_file() {
            let name = in_guest(&kernel.place.join(entry.file_name()));
            archive.data(&name, fs::read(entry.path()).map_err(|error| text(&error))?);
        }
    }
    Ok(())
}

/// Where a file below `lib` lies in the guest, whose /lib is a link where this machine's is.
fn in_guest(path: &Path) -> String {
    let usr = if Path::new("/lib").is_symlink() { "/usr/" } else { "/" };
    format!("{usr}{}", path.display())
}
