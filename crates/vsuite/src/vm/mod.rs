//! The same programs in a virtual machine: QEMU, with KVM where that runs a kernel, else with its emulator.
//!
//! Every run boots a guest of its own, which has N vCPUs, memory and two serial lines, and no other device. Whatever the
//! run needs lies in the guest's memory: an initramfs with this very muster, the libraries it needs, the input, and for
//! make and dbench the files of their Debian packages ([`archive`], [`packages`]). muster is also the guest's first
//! process: it runs the job as natively and writes what came out to the second serial line ([`guest`]).
//!
//! Why not share the host's files (virtio-9p, virtiofs): that needs kernel modules which smaller kernels lack (Debian's
//! cloud kernel has no 9p), and the first access to each file would go through the host, which a native run, whose input
//! lies in memory too, does not pay. This way any kernel of a distribution will do, without modules, and a guest can
//! reach nothing of the host.
//!
//! Archive, console and results are files without names (memfd_create(2)): nothing can be left behind.

pub mod archive;
pub mod guest;
mod kernel;
mod packages;
mod qemu;

use crate::SuiteError;
use crate::platform::{Finished, Job, Native, Platform};
use crate::store::Store;
use crate::suite::Event;
use archive::Archive;
use guest::{Message, Request};
use muster_model::results::{Accelerator, SuitePlace, SuiteVm};
use packages::Packages;
pub use qemu::MAX_CORES;
use qemu::{Guest, Qemu};
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A virtual machine that is wanted.
#[derive(Debug, Clone, Default)]
pub struct VmPlan {
    /// What is to run its instructions; KVM where that works, else the emulator, when absent.
    pub accelerator: Option<Accelerator>,
    /// The kernel's image; the distribution's, when absent.
    pub kernel: Option<PathBuf>,
}

/// A first guest that was not ready for so long is not going to be: KVM takes a second or two, the emulator five.
const KVM_TRY_LIMIT: Duration = Duration::from_secs(15);
const TCG_TRY_LIMIT: Duration = Duration::from_secs(120);
/// The same for a guest with a job: two gigabytes of input have to be unpacked first.
const BOOT_LIMIT: Duration = Duration::from_secs(900);
/// A run that takes longer is given up.
const RUN_LIMIT: Duration = Duration::from_secs(4 * 3600);
/// What the kernel, its page tables and a program's own memory take, and what they take more for each vCPU.
const BASE_BYTES: u64 = 512 << 20;
const VCPU_BYTES: u64 = 32 << 20;
/// A larger archive may not lie below the first hole in the guest's addresses, where it has to.
const MAX_ARCHIVE_BYTES: u64 = 5 << 29;
/// Where muster lies in a guest.
const INIT: &str = "/init";

/// A virtual machine in which jobs can run.
pub struct Vm<'a> {
    native: &'a Native,
    qemu: Qemu,
    runner: PathBuf,
    libraries: Vec<PathBuf>,
    packages: Packages,
    description: SuiteVm,
}

impl<'a> Vm<'a> {
    /// Finds QEMU and a kernel, and boots it once: with KVM, and where that does not work and was not asked for, with
    /// the emulator. The runner is this program, by a path that stays the same.
    ///
    /// # Errors
    /// When something is missing, with what can be done about it, or the kernel does not boot.
    pub fn start(
        plan: &VmPlan,
        native: &'a Native,
        runner: &[String; 2],
        store: &Store,
        tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>,
    ) -> Result<Self, SuiteError> {
        let program = qemu::find()?;
        tell(Event::Waits("looking for a kernel for the VM"))?;
        let kernel = kernel::find(plan.kernel.as_deref(), native, store)?;
        let (accelerator, note) = match plan.accelerator {
            Some(accelerator) => (accelerator, None),
            None => match qemu::why_no_kvm() {
                None => (Accelerator::Kvm, None),
                Some(why) => (Accelerator::Tcg, Some(why)),
            },
        };
        let runner = PathBuf::from(&runner[0]);
        let mut vm = Self {
            native,
            qemu: Qemu { program, kernel, accelerator },
            libraries: archive::libraries(&runner)?,
            runner,
            packages: Packages::default(),
            description: SuiteVm {
                accelerator,
                is_timing: false,
                kernel: String::new(),
                host_kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                note,
            },
        };
        vm.try_out(plan.accelerator.is_none(), tell)?;
        tell(Event::HasVm(&vm.description))?;
        Ok(vm)
    }

    /// What it is.
    pub fn description(&self) -> &SuiteVm {
        &self.description
    }

    /// Boots once, without a job; falls back to the emulator where it may.
    fn try_out(
        &mut self,
        may_fall_back: bool,
        tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>,
    ) -> Result<(), SuiteError> {
        tell(Event::Waits(&format!("booting a VM to try it out ({})", self.qemu.accelerator.name())))?;
        match self.boot_once() {
            Ok(kernel) => {
                self.description.accelerator = self.qemu.accelerator;
                self.description.is_timing = self.qemu.accelerator == Accelerator::Kvm;
                self.description.kernel = kernel;
                Ok(())
            }
            Err(SuiteError::RunFailed { how, .. }) if may_fall_back && self.qemu.accelerator == Accelerator::Kvm => {
                self.qemu.accelerator = Accelerator::Tcg;
                self.description.note = Some(format!("/dev/kvm is there, but a try {how}"));
                self.try_out(false, tell)
            }
            Err(error) => Err(SuiteError::NoVm(error.to_string())),
        }
    }

    /// The release of the kernel that a guest says it runs.
    fn boot_once(&self) -> Result<String, SuiteError> {
        let job = Job { program: "the first guest".to_owned(), cores: 1, ..Job::default() };
        let limit = match self.qemu.accelerator {
            Accelerator::Kvm => KVM_TRY_LIMIT,
            Accelerator::Tcg => TCG_TRY_LIMIT,
        };
        let messages = self.boot(&job, &Request { job: None }, limit)?;
        let kernel = messages.into_iter().find_map(|message| match message {
            Message::Ready { kernel } => Some(kernel),
            _ => None,
        });
        kernel.ok_or_else(|| SuiteError::run_failed(&job, "said nothing", ""))
    }

    /// Boots a guest for a request and returns what it said.
    fn boot(&self, job: &Job, request: &Request, boot_limit: Duration) -> Result<Vec<Message>, SuiteError> {
        let composed = self.archive(job, request).map_err(SuiteError::system("cannot put a guest's files together"))?;
        let written = job.needs.iter().map(|path| size_of(path)).sum();
        let memory_bytes = memory_for(composed.bytes(), written, job.cores);
        check_room(job, composed.bytes(), memory_bytes)?;
        let archive = memory_file("initramfs")
            .and_then(|file| composed.write(BufWriter::with_capacity(1 << 20, file)))
            .and_then(|writer| writer.into_inner().map_err(io::IntoInnerError::into_error))
            .map_err(SuiteError::system("cannot write a guest's files"))?;
        let guest = Guest { job, memory_bytes, archive: &archive, boot_limit, run_limit: RUN_LIMIT };
        self.qemu.run(&guest, self.native)
    }

    fn archive(&self, job: &Job, request: &Request) -> io::Result<Archive> {
        let mut archive = Archive::new();
        archive.program(INIT, &self.runner)?;
        for library in &self.libraries {
            archive.file(library)?;
        }
        archive.file_if_there(Path::new("/etc/ld.so.cache"))?;
        self.packages.add(&job.packages, &mut archive)?;
        for path in &job.needs {
            archive.tree(path)?;
        }
        if !job.dir.as_os_str().is_empty() {
            archive.directory(&job.dir)?;
        }
        archive.data(guest::REQUEST, serde_json::to_vec(request).map_err(io::Error::from)?);
        Ok(archive)
    }

    /// The job, as the guest is to run it.
    fn translated(&self, job: &Job) -> Job {
        let mut job = job.clone();
        if Path::new(&job.argv[0]) == self.runner {
            job.argv[0] = INIT.into();
        }
        job.env.extend(std::env::var_os("PATH").map(|path| ("PATH".into(), path)));
        job
    }
}

impl Platform for Vm<'_> {
    fn place(&self) -> SuitePlace {
        SuitePlace::Vm
    }

    fn is_timing(&self) -> bool {
        self.description.is_timing
    }

    fn lacks(&self, job: &Job) -> Option<String> {
        self.packages.lacks(&job.packages).map(|why| format!("left out in the VM: {why}"))
    }

    /// Boots a guest on the first so many CPUs that this process may use, and runs the job in it.
    fn run(&self, job: &Job) -> Result<Finished, SuiteError> {
        let messages = self.boot(job, &Request { job: Some(self.translated(job)) }, BOOT_LIMIT)?;
        match messages.into_iter().last() {
            Some(Message::Finished(finished)) => Ok(finished),
            Some(Message::Failed { how, tail }) => Err(SuiteError::run_failed(job, format!("in the VM {how}"), tail)),
            Some(Message::Ready { .. }) | None => Err(SuiteError::run_failed(job, "said nothing in the VM", "")),
        }
    }
}

/// The memory of a guest, in bytes, whole MiB. Its root file system may hold half of it (tmpfs(5)), and has to hold the
/// archive and what the program writes, at most as much as it reads; while it is unpacked, the archive is there twice.
fn memory_for(archive_bytes: u64, written_bytes: u64, cores: usize) -> u64 {
    let bytes = 2 * (archive_bytes + written_bytes) + BASE_BYTES + VCPU_BYTES * cores as u64;
    bytes.next_multiple_of(1 << 20)
}

/// Refuses a guest that is larger than what is free here, or than what it can boot from.
fn check_room(job: &Job, archive_bytes: u64, memory_bytes: u64) -> Result<(), SuiteError> {
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    if archive_bytes > MAX_ARCHIVE_BYTES {
        let found = format!("{}, whose files for the VM have {}", job.program, gigabytes(archive_bytes));
        let allowed = format!("a smaller scale: at most {}", gigabytes(MAX_ARCHIVE_BYTES));
        return Err(SuiteError::bad_input("--scale", found, allowed));
    }
    let available = available_bytes().map_err(SuiteError::system("cannot tell how much memory is free"))?;
    if archive_bytes + memory_bytes > available {
        let needed = gigabytes(archive_bytes + memory_bytes);
        let found = format!("{}, whose VM of {} vCPUs needs {needed} of memory", job.program, job.cores);
        let allowed = format!("a smaller scale: there are {} available", gigabytes(available));
        return Err(SuiteError::bad_input("--scale", found, allowed));
    }
    Ok(())
}

/// What new programs may take without swapping (proc_meminfo(5), MemAvailable).
fn available_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))
}

/// The bytes of a file, or of all files in a directory.
fn size_of(path: &Path) -> u64 {
    let Ok(found) = fs::symlink_metadata(path) else { return 0 };
    if !found.is_dir() {
        return found.len();
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size_of(&entry.path())).sum()
}

/// A file that has no name and is gone when nobody has it open.
fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_guests_memory_holds_its_files_and_what_is_written() {
        for (archive, written, cores) in [(30 << 20, 0, 1), (2_040_000_000, 2_000_000_000, 32), (1, 1, 255)] {
            let bytes = memory_for(archive, written, cores);
            assert_eq!(bytes % (1 << 20), 0);
            assert!(bytes / 2 >= archive + written && bytes >= 2 * (archive + written) + BASE_BYTES, "{bytes}");
        }
        assert!(memory_for(1, 1, 64) > memory_for(1, 1, 1));
    }

    #[test]
    fn a_guest_that_does_not_fit_is_refused_with_what_would() {
        let job = Job { program: "dedup".to_owned(), cores: 2, ..Job::default() };
        check_room(&job, 1 << 20, 1 << 20).unwrap();
        let message = check_room(&job, MAX_ARCHIVE_BYTES + 1, 1 << 20).unwrap_err().to_string();
        let expected =
            "--scale: found dedup, whose files for the VM have 2.7 GB; allowed: a smaller scale: at most 2.7 GB";
        assert_eq!(message, expected);
        let message = check_room(&job, 1 << 20, 1 << 50).unwrap_err().to_string();
        assert!(
            message.contains("dedup, whose VM of 2 vCPUs needs 1125899.9 GB of memory; allowed: a smaller"),
            "{message}"
        );
    }

    #[test]
    fn a_tree_is_as_large_as_its_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        fs::write(dir.path().join("inner/a"), [0; 100]).unwrap();
        fs::write(dir.path().join("b"), [0; 11]).unwrap();
        assert_eq!((size_of(dir.path()), size_of(&dir.path().join("b")), size_of(Path::new("/nowhere"))), (111, 11, 0));
    }
}
