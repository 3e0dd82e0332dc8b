//! Experiments and studies: what is simulated, and which numbers of a paper stand beside it. Data, read from TOML.

use crate::profile::toml_error;
use crate::{ModelError, Workload, cpuset::MAX_CPUS};
use devices::Devices;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

mod devices;
mod figure;
mod grow;
mod guest;
mod kvm;
mod measure;
mod paging;
mod ple;

pub use devices::{BackEnd, Client, Disk, Moderation, Network, Nic, Path, Service, Storage, Vectoring, VmDevices};
pub use figure::{Curve, Figure, LeftOut, NumberSpec, Point, SeriesSpec, Term, Vary};
pub use guest::Guest;
pub use kvm::{Apic, Kvm};
pub use measure::{
    Aggregate, BusyIn, EXIT_REASONS, IdleIn, Measure, MissKind, MissPart, Scale, VMM_FUNCTIONS, error, is_in_points,
};
pub use paging::{Backing, GuestMode, Paging, PagingKind, ShadowSync, TablePlacement};
pub use ple::{Ple, PleKind, SpinLocks, Yield};

/// Where the program runs: on the machine itself, or in a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Environment {
    /// On the machine itself.
    Native,
    /// In a VM of KVM's; with one vCPU per core, each on its own core, unless the experiment says otherwise.
    Virtual,
    /// In a paravirtualized VM with direct paging on Xen (iXen's PVM), each vCPU on its own core.
    Pv,
    /// In a hardware-assisted VM with nested paging on Xen (iXen's HVM), each vCPU on its own core.
    Hvm,
}

impl Environment {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Virtual => "virtual",
            Self::Pv => "pv",
            Self::Hvm => "hvm",
        }
    }

    /// Whether the VMM is Xen as iXen measured it.
    pub fn is_xen(self) -> bool {
        matches!(self, Self::Pv | Self::Hvm)
    }

    /// The remedies that exist there: what `all` stands for, and the alternative to the idle daemon.
    pub fn remedies(self) -> &'static [Remedy] {
        match self {
            Self::Native | Self::Virtual => &[],
            Self::Pv => &[Remedy::Idle, Remedy::Nohlt, Remedy::Itlb, Remedy::All],
            Self::Hvm => &[Remedy::Vtime, Remedy::Idle, Remedy::Nohlt, Remedy::Cm, Remedy::All],
        }
    }
}

/// A remedy of iXen (Table 1 and section 3), where the bottleneck is that it removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remedy {
    /// The PM timer's emulation takes its lock by try-lock; who fails waits for the holder and reads the fresh value
    /// (section 3.1.2). HVM only.
    Vtime,
    /// An idle daemon of the lowest priority keeps each vCPU from halting (section 3.2.2).
    Idle,
    /// HLT is not intercepted (HVM), the block hypercall is not made (PV): the paper's second remedy to the idle
    /// problem.
    Nohlt,
    /// A physical CPU with one vCPU to schedule skips load balancing (section 3.3.2). HVM only.
    Cm,
    /// Buffers start larger, so that fewer of them are remapped (section 3.4.2). PV only, and only for a workload that
    /// declares growing `buffers`.
    Itlb,
    /// iXen: every remedy that exists in the environment and for the workload, `nohlt` excepted.
    All,
}

impl Remedy {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vtime => "vtime",
            Self::Idle => "idle",
            Self::Nohlt => "nohlt",
            Self::Cm => "cm",
            Self::Itlb => "itlb",
            Self::All => "all",
        }
    }
}

/// The kernel in the VM, and on the machine itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GuestKernel {
    /// Linux 2.6.31, iXen's.
    #[serde(rename = "linux-2.6.31")]
    Linux2631,
    /// PK: Linux with the scalability fixes of Boyd-Wickizer et al. (iXen, section 4.2).
    #[serde(rename = "pk")]
    Pk,
    /// Linux 2.6.30, that of the hardware-acceleration paper's guests.
    #[serde(rename = "linux-2.6.30")]
    Linux2630,
    /// A Linux of today, as far as it differs as a guest: it knows KVM's paravirtual features.
    #[serde(rename = "linux-6")]
    Linux6,
    /// Windows Server 2003.
    #[serde(rename = "windows-2003")]
    Windows2003,
}

/// What a CPU does that has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleKind {
    /// Executes HLT: C1 on the machine itself, a VM exit in a VM.
    Halt,
    /// Polls for ever.
    Poll,
    /// Executes MWAIT; in a VM untrapped, so that the core sleeps and the VMM is not told.
    Mwait,
    /// Polls for a while as Linux's haltpoll governor decides, then halts.
    Haltpoll,
}

/// Whether a wake-up of a CPU that polls (or waits in MWAIT) needs an IPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteWake {
    /// A store to the target's flag suffices (Linux from 3.3 within one cache domain; TIF_POLLING_NRFLAG).
    Flag,
    /// Remote wake-ups are queued and announced by an IPI, whatever the target does (Linux 3.2, `ttwu_queue`).
    Ipi,
}

/// Where a woken thread is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On an idle CPU near its last one, as Linux does.
    Spread,
    /// On the waker's CPU if nobody waits there already (Gleaner's IPI-free wake-up by co-location).
    Colocate,
}

/// How a CPU that is awake is told to reschedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WakeSignal {
    /// By a rescheduling IPI.
    Ipi,
    /// By an exception that the VMM does not handle, such as a minor page fault under EPT (Gleaner, section 4). A
    /// CPU that has halted still needs the IPI.
    Exception,
}

/// Who decides how many CPUs are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consolidation {
    /// Nobody: all are.
    None,
    /// Gleaner's rule: thresholds on the CPU time of yielding threads, which also keep active CPUs awake.
    Yielding,
    /// muster's controller, `policy::consolidate`, as in `muster run`.
    Controller,
    /// Nobody: all are, but threads that wake each other share one, as in `muster run --remedy colocate`.
    Colocate,
}

/// Who decides which vCPU runs on which pCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmScheduler {
    /// Nobody: there is one VM, and each of its vCPUs has a pCPU for itself.
    Pinned,
    /// Xen's credit scheduler, `policy::credit`.
    Credit,
    /// Linux's fair scheduler on a KVM host, `policy::eevdf`.
    Eevdf,
}

/// Which idle pCPUs the credit scheduler tells of a vCPU that has become runnable on a busy one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tickle {
    /// One after the other in turn (`tickle_one_idle_cpu`, on by default in Xen 4.1).
    #[default]
    One,
    /// All at which the vCPU may run.
    All,
}

/// Where the vCPUs of a VM may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pin {
    /// Each only on the pCPU of its number within the VM.
    Each,
    /// On every pCPU.
    #[default]
    None,
}

/// What a VM is entitled to where vCPUs share pCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// In relation to the other VMs'.
    #[serde(default = "weight")]
    pub weight: u16,
    /// At most so much CPU time, in per cent of one pCPU; 0 for no limit.
    #[serde(default)]
    pub cap: u16,
    /// Where its vCPUs may run.
    #[serde(default)]
    pub pin: Pin,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: weight(), cap: 0, pin: Pin::None }
    }
}

impl Share {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    fn validate(&self, vcpus: u32, pcpus: u32) -> Result<(), ModelError> {
        if self.weight == 0 {
            return Err(ModelError::new("share.weight", "0", "1 to 65535"));
        }
        if self.pin == Pin::Each && vcpus > pcpus {
            let found = format!("`each` with {vcpus} vCPUs on {pcpus} pCPUs");
            return Err(ModelError::new("share.pin", found, "none, or no more vCPUs than pCPUs"));
        }
        Ok(())
    }
}

/// A VM, and the program that runs in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// File of the workload.
    pub workload: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// How many of them its program may use, the first so many; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u32>,
    /// The workload's thread count; as many as vCPUs when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// What it is entitled to.
    #[serde(default, skip_serializing_if = "Share::is_usual")]
    pub share: Share,
    /// Who decides how many of its vCPUs are active.
    #[serde(default = "no_consolidation")]
    pub consolidation: Consolidation,
    /// Whether its program starts again each time it ends, as company for the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
    /// How its memory is virtualized; as the first one's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paging: Option<Paging>,
    /// The levels of its page tables, where they differ from those of `paging`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<GuestMode>,
    /// Its memory in MiB, where it differs from that of `paging`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// What it has of the machine's devices.
    #[serde(default, skip_serializing_if = "VmDevices::is_none")]
    pub devices: VmDevices,
    /// Its guest, where that differs from the experiment's.
    #[serde(default, skip_serializing_if = "Guest::is_usual")]
    pub guest: Guest,
}

impl VmSpec {
    /// A VM about which nothing more is said.
    pub fn new(workload: String, vcpus: u32) -> Self {
        Self {
            workload,
            vcpus,
            used: None,
            threads: None,
            share: Share::default(),
            consolidation: no_consolidation(),
            repeat: false,
            paging: None,
            mode: None,
            memory_mib: None,
            devices: VmDevices::default(),
            guest: Guest::default(),
        }
    }

    /// The same with the disks behind the first so many.
    fn with_disks_from(mut self, first: u32) -> Self {
        if let Some(storage) = &mut self.devices.storage {
            storage.disks.iter_mut().for_each(|disk| *disk += first);
        }
        self
    }

    /// The workload's thread count.
    pub fn thread_count(&self) -> u32 {
        self.threads.unwrap_or(self.vcpus)
    }

    fn validate(&self, pcpus: u32) -> Result<(), ModelError> {
        if self.vcpus == 0 || self.vcpus as usize > MAX_CPUS {
            return Err(ModelError::new("vcpus", self.vcpus.to_string(), format!("1 to {MAX_CPUS}")));
        }
        if self.used.is_some_and(|used| used == 0 || used > self.vcpus) {
            let found = self.used.unwrap_or(0).to_string();
            return Err(ModelError::new("used", found, format!("1 to `vcpus` ({})", self.vcpus)));
        }
        if self.threads == Some(0) {
            return Err(ModelError::new("threads", "0", "1 or more"));
        }
        self.share.validate(self.vcpus, pcpus)
    }
}

/// One simulated run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// File of the machine profile.
    pub machine: String,
    /// File of the workload.
    pub workload: String,
    /// Native or in a VM.
    pub environment: Environment,
    /// The kernel; that of the Gleaner study (Linux 3.2) when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<GuestKernel>,
    /// Cores in use: the first so many of the machine. In a VM, its vCPUs, with as many pCPUs unless `pcpus` says
    /// otherwise; in `pv` and `hvm`, those that the program uses: see `vcpus`.
    pub cores: u32,
    /// The VM's vCPUs, in `pv` and `hvm`: `cores` or more, each on a core of its own; `cores` when absent. The others
    /// have nothing to do but to tick and to read the clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Whether the machine may be scaled out to that many ([`crate::Topology::scaled_out`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_out: bool,
    /// The workload's thread count; as many as cores when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// What idle CPUs do.
    #[serde(default = "halt")]
    pub idle: IdleKind,
    /// Whether waking a polling CPU needs an IPI.
    #[serde(default = "flag")]
    pub remote_wake: RemoteWake,
    /// Where woken threads are put.
    #[serde(default = "spread")]
    pub wakeup: Placement,
    /// How an awake CPU is told to reschedule.
    #[serde(default = "ipi")]
    pub wake_signal: WakeSignal,
    /// Whether every CPU has a lowest-priority yielding thread (Table 1, setting B). Implied by consolidation by
    /// yielding threads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yielding: bool,
    /// Who decides how many CPUs are active.
    #[serde(default = "no_consolidation")]
    pub consolidation: Consolidation,
    /// iXen's remedies, in `pv` and `hvm`; [`Self::applied`] says which that makes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remedies: BTreeSet<Remedy>,
    /// Seed of every random draw.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Factor on the repetitions of the workload's scaled loops.
    #[serde(default = "unit")]
    pub scale: f64,
    /// Simulated time after which the run is given up, in seconds.
    #[serde(default = "limit")]
    pub limit_s: f64,
    /// pCPUs in use: the first so many of the machine; as many as `cores` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcpus: Option<u32>,
    /// Who decides which vCPU runs where; when absent, `credit` where vCPUs have to share pCPUs, `pinned` elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<VmScheduler>,
    /// Whom the credit scheduler tells of work.
    #[serde(default)]
    pub tickle: Tickle,
    /// Pause-loop exiting; kernels' spin locks are held over events where it is given, or where vCPUs share pCPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ple: Option<Ple>,
    /// How kernels' spin locks are handed over; by tickets when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin_locks: Option<SpinLocks>,
    /// What the VM is entitled to.
    #[serde(default, skip_serializing_if = "Share::is_usual")]
    pub share: Share,
    /// How the VM's memory is virtualized, where that is simulated entry by entry; else a walk has one price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paging: Option<Paging>,
    /// What a KVM of today does beside that of Linux 3.2; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<Kvm>,
    /// Further VMs. Their guests have the settings of the first one's, unless they say otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmSpec>,
    /// How often all these VMs are there, the experiment's own included: a consolidation benchmark's units.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub copies: u32,
    /// The machine's network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// The machine's disks; those of one copy of the VMs where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// The VM that serves them to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// What the VM, or the machine's own program, has of them.
    #[serde(default, skip_serializing_if = "VmDevices::is_none")]
    pub devices: VmDevices,
}

fn halt() -> IdleKind {
    IdleKind::Halt
}
fn flag() -> RemoteWake {
    RemoteWake::Flag
}
fn spread() -> Placement {
    Placement::Spread
}
fn ipi() -> WakeSignal {
    WakeSignal::Ipi
}
fn no_consolidation() -> Consolidation {
    Consolidation::None
}
fn seed() -> u64 {
    1
}
fn unit() -> f64 {
    1.0
}
fn limit() -> f64 {
    3600.0
}
fn weight() -> u16 {
    256
}
fn one() -> u32 {
    1
}
fn is_one(copies: &u32) -> bool {
    *copies == 1
}

impl Experiment {
    /// An experiment that leaves everything else as it is when a file does not mention it.
    pub fn new(environment: Environment, cores: u32) -> Self {
        Self {
            machine: String::new(),
            workload: String::new(),
            environment,
            kernel: None,
            cores,
            vcpus: None,
            scale_out: false,
            threads: None,
            idle: halt(),
            remote_wake: flag(),
            wakeup: spread(),
            wake_signal: ipi(),
            yielding: false,
            consolidation: no_consolidation(),
            remedies: BTreeSet::new(),
            seed: seed(),
            scale: unit(),
            limit_s: limit(),
            pcpus: None,
            scheduler: None,
            tickle: Tickle::One,
            ple: None,
            spin_locks: None,
            share: Share::default(),
            paging: None,
            kvm: None,
            vms: Vec::new(),
            copies: one(),
            nics: Vec::new(),
            disks: Vec::new(),
            service: None,
            devices: VmDevices::default(),
        }
    }

    /// Reads an experiment from TOML; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed TOML, an unknown field or value, or a number out of range.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ModelError> {
        let experiment: Self = toml::from_str(text).map_err(|error| toml_error(text, file, &error))?;
        experiment.validate().map_err(|error| error.within(file))?;
        Ok(experiment)
    }

    /// The workload's thread count.
    pub fn thread_count(&self) -> u32 {
        self.threads.unwrap_or(self.cores)
    }

    /// The VM's vCPUs; on the machine itself, its cores.
    pub fn vcpu_count(&self) -> u32 {
        self.vcpus.unwrap_or(self.cores)
    }

    /// How many pCPUs are in use.
    pub fn pcpus(&self) -> u32 {
        self.pcpus.unwrap_or(self.vcpu_count())
    }

    /// Who decides which vCPU runs on which pCPU.
    pub fn scheduler(&self) -> VmScheduler {
        let shares = self.vm_count() > 1 || self.service.is_some() || self.pcpus() != self.vcpu_count();
        let usual = match self.kvm {
            Some(_) if shares => VmScheduler::Eevdf,
            _ if shares || self.environment.is_xen() => VmScheduler::Credit,
            _ => VmScheduler::Pinned,
        };
        self.scheduler.unwrap_or(usual)
    }

    /// The settings of the experiment's own guest, which are the others' where these say nothing.
    pub fn guest(&self) -> Guest {
        Guest {
            kernel: self.kernel,
            idle: Some(self.idle),
            remote_wake: Some(self.remote_wake),
            wakeup: Some(self.wakeup),
            wake_signal: Some(self.wake_signal),
            yielding: Some(self.yielding),
        }
    }

    fn vm_count(&self) -> usize {
        (1 + self.vms.len()).saturating_mul(self.copies as usize)
    }

    /// All VMs: the experiment's own first, the further ones, and then the copies of them in the same order.
    pub fn all_vms(&self) -> Vec<VmSpec> {
        let alone = self.vm_count() == 1 && self.service.is_none();
        let alone_on_xen = self.environment.is_xen() && alone && self.pcpus() >= self.vcpu_count();
        let first = VmSpec {
            used: Some(self.cores).filter(|&cores| cores != self.vcpu_count()),
            threads: Some(self.thread_count()),
            share: Share { pin: if alone_on_xen { Pin::Each } else { self.share.pin }, ..self.share },
            consolidation: self.consolidation,
            paging: self.paging,
            devices: self.devices.clone(),
            ..VmSpec::new(self.workload.clone(), self.vcpu_count())
        };
        let base = self.guest();
        let others = self.vms.iter().map(|vm| VmSpec { paging: self.paging_of(vm), ..vm.clone() });
        let mut unit: Vec<VmSpec> = std::iter::once(first).chain(others).collect();
        unit.iter_mut().for_each(|vm| vm.guest = vm.guest.or(&base));
        let copy = |copy: u32| unit.iter().map(move |vm| vm.clone().with_disks_from(copy * self.disks.len() as u32));
        (0..self.copies).flat_map(copy).collect()
    }

    /// The disks of all copies.
    pub fn all_disks(&self) -> Vec<Disk> {
        self.disks.iter().cycle().take(self.disks.len() * self.copies as usize).cloned().collect()
    }

    /// How the memory of one of the further VMs is virtualized.
    fn paging_of(&self, vm: &VmSpec) -> Option<Paging> {
        let paging = vm.paging.or(self.paging)?;
        let (mode, memory_mib) = (vm.mode.unwrap_or(paging.mode), vm.memory_mib.unwrap_or(paging.memory_mib));
        Some(Paging { mode, memory_mib, ..paging })
    }

    /// The remedies that are in force for a workload: `all` spelt out.
    ///
    /// # Errors
    /// When one of them does not exist for the workload.
    pub fn applied(&self, workload: &Workload) -> Result<BTreeSet<Remedy>, ModelError> {
        let fits = |remedy: Remedy| remedy != Remedy::Itlb || !workload.buffers.is_empty();
        let there = || self.environment.remedies().iter().copied().filter(|&remedy| fits(remedy));
        if self.remedies.contains(&Remedy::All) {
            return Ok(there().filter(|&remedy| !matches!(remedy, Remedy::All | Remedy::Nohlt)).collect());
        }
        if let Some(remedy) = self.remedies.iter().find(|&&remedy| !fits(remedy)) {
            let found = format!("`{}` for workload `{}`, which declares no `buffers`", remedy.name(), workload.name);
            return Err(ModelError::new("remedies", found, names(there())));
        }
        Ok(self.remedies.clone())
    }

    /// Checks ranges and what excludes each other.
    ///
    /// # Errors
    /// When a number is out of range, or a remedy does not exist in the environment.
    pub fn validate(&self) -> Result<(), ModelError> {
        if self.cores == 0 || self.cores as usize > MAX_CPUS {
            return Err(ModelError::new("cores", self.cores.to_string(), format!("1 to {MAX_CPUS}")));
        }
        if self.threads == Some(0) {
            return Err(ModelError::new("threads", "0", "1 or more"));
        }
        if !(self.scale.is_finite() && self.scale > 0.0 && self.scale <= 1e6) {
            return Err(ModelError::new("scale", self.scale.to_string(), "above 0, at most 1000000"));
        }
        if !(self.limit_s.is_finite() && self.limit_s > 0.0 && self.limit_s <= 1e6) {
            return Err(ModelError::new("limit_s", self.limit_s.to_string(), "above 0, at most 1000000"));
        }
        self.validate_remedies()?;
        self.validate_spinning()?;
        self.validate_vms()
    }

    /// The hardware looks at guests that run without the VMM's help; kernels without simulated locks have none to hand over.
    fn validate_spinning(&self) -> Result<(), ModelError> {
        let Some(ple) = self.ple else {
            return match self.spin_locks {
                Some(SpinLocks::Queued) => Err(ModelError::new(
                    "spin_locks",
                    "queued without `[ple]`",
                    "with a table `[ple]`, `kind = \"off\"` at least",
                )),
                _ => Ok(()),
            };
        };
        ple.validate()?;
        if ple.kind != PleKind::Off && !matches!(self.environment, Environment::Virtual | Environment::Hvm) {
            let found = format!("on in environment `{}`", self.environment.name());
            return Err(ModelError::new("ple.kind", found, "`off`, or environment `virtual` or `hvm`"));
        }
        Ok(())
    }

    fn validate_vms(&self) -> Result<(), ModelError> {
        let pcpus = self.pcpus();
        if pcpus == 0 || pcpus as usize > MAX_CPUS {
            return Err(ModelError::new("pcpus", pcpus.to_string(), format!("1 to {MAX_CPUS}")));
        }
        if self.copies == 0 || self.copies as usize > MAX_CPUS {
            return Err(ModelError::new("copies", self.copies.to_string(), format!("1 to {MAX_CPUS}")));
        }
        self.validate_kvm()?;
        let vms = self.all_vms();
        vms[0].validate(pcpus)?;
        for (number, vm) in self.vms.iter().enumerate() {
            vm.validate(pcpus).map_err(|error| error.within(&format!("vms[{number}]")))?;
        }
        self.validate_paging()?;
        self.validate_devices(&vms)?;
        let service = self.service.as_ref().map_or(0, |vm| vm.vcpus);
        let vcpus: u64 = vms.iter().map(|vm| u64::from(vm.vcpus)).sum::<u64>() + u64::from(service);
        if vcpus > MAX_CPUS as u64 {
            return Err(ModelError::new("vms", format!("{vcpus} vCPUs in all"), format!("at most {MAX_CPUS}")));
        }
        let shares = format!("{} VMs on {pcpus} pCPUs, the first with {} vCPUs", vms.len(), self.vcpu_count());
        match (self.environment, self.scheduler()) {
            (Environment::Native, VmScheduler::Credit | VmScheduler::Eevdf) => {
                let allowed = "`virtual`, `pv` or `hvm` where there is a scheduler, `pcpus` or further VMs";
                Err(ModelError::new("environment", "native", allowed))
            }
            (Environment::Pv | Environment::Hvm, VmScheduler::Eevdf) => {
                let found = format!("eevdf in environment `{}`", self.environment.name());
                Err(ModelError::new("scheduler", found, "`credit` on Xen; `eevdf` with environment `virtual`"))
            }
            (_, VmScheduler::Pinned) if vms.len() > 1 || self.service.is_some() || pcpus != self.vcpu_count() => {
                let allowed = "`scheduler = \"credit\"` or `\"eevdf\"`, or one VM with as many vCPUs as pCPUs";
                Err(ModelError::new("scheduler", format!("pinned with {shares}"), allowed))
            }
            _ => Ok(()),
        }
    }

    fn validate_paging(&self) -> Result<(), ModelError> {
        let own = |paging: Option<Paging>| paging.map_or(Ok(()), |paging| paging.validate(self.environment));
        own(self.paging)?;
        for (number, vm) in self.vms.iter().enumerate() {
            let place = format!("vms[{number}]");
            let paging = self.paging_of(vm);
            if paging.is_none() && (vm.mode.is_some() || vm.memory_mib.is_some()) {
                let found = "neither its own nor the experiment's, but `mode` or `memory_mib`";
                return Err(ModelError::new(format!("{place}.paging"), found, "`paging` there or in the experiment"));
            }
            own(paging).map_err(|error| error.within(&place))?;
        }
        Ok(())
    }

    fn validate_devices(&self, vms: &[VmSpec]) -> Result<(), ModelError> {
        let devices = Devices {
            nics: &self.nics,
            disks: &self.all_disks(),
            service: self.service.as_ref(),
            native: self.environment == Environment::Native,
        };
        let place = |number: usize| match number % (1 + self.vms.len()) {
            0 => "devices".to_owned(),
            number => format!("vms[{}].devices", number - 1),
        };
        devices.validate(vms.iter().enumerate().map(|(number, vm)| (place(number), &vm.devices)))
    }

    fn validate_kvm(&self) -> Result<(), ModelError> {
        let Some(kvm) = &self.kvm else { return Ok(()) };
        if self.environment != Environment::Virtual {
            let found = format!("settings in environment `{}`", self.environment.name());
            return Err(ModelError::new("kvm", found, "environment `virtual`"));
        }
        if self.scheduler() == VmScheduler::Credit {
            return Err(ModelError::new("scheduler", "credit with `[kvm]`", "`pinned` or `eevdf`"));
        }
        kvm.validate()
    }

    fn validate_remedies(&self) -> Result<(), ModelError> {
        let there = self.environment.remedies();
        if let Some(vcpus) = self.vcpus {
            if there.is_empty() {
                let found = format!("{vcpus} in environment `{}`", self.environment.name());
                return Err(ModelError::new("vcpus", found, "with environment `pv` or `hvm` only"));
            }
            if vcpus < self.cores || vcpus as usize > MAX_CPUS {
                return Err(ModelError::new(
                    "vcpus",
                    vcpus.to_string(),
                    format!("`cores` ({}) to {MAX_CPUS}", self.cores),
                ));
            }
        }
        if let Some(remedy) = self.remedies.iter().find(|remedy| !there.contains(remedy)) {
            let found = format!("`{}` in environment `{}`", remedy.name(), self.environment.name());
            return Err(ModelError::new("remedies", found, names(there.iter().copied())));
        }
        let both = |a, b| self.remedies.contains(&a) && self.remedies.contains(&b);
        if self.remedies.contains(&Remedy::All) && self.remedies.len() > 1 {
            return Err(ModelError::new("remedies", "`all` beside others", "`all` alone, or single remedies"));
        }
        if both(Remedy::Idle, Remedy::Nohlt) {
            return Err(ModelError::new(
                "remedies",
                "`idle` and `nohlt`",
                "one of them: both keep vCPUs from blocking",
            ));
        }
        Ok(())
    }
}

/// Remedies as an error lists them.
fn names(remedies: impl Iterator<Item = Remedy>) -> String {
    let names = remedies.map(Remedy::name).collect::<Vec<_>>().join(", ");
    if names.is_empty() { "no remedy there".to_owned() } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::StudyKind;

    const FIGURE: &str = r#"
        figure = "Figure 9"
        [defaults]
        machine = "m.toml"
        cores = 4
        [configurations.native]
        environment = "native"
        [configurations.virtual]
        environment = "virtual"
        idle = "haltpoll"
        [[numbers]]
        row = "a"
        column = "b"
        unit = "%"
        paper = 100
        kind = "predicted"
        workload = "w.json"
        measure = { slowdown = { run = "virtual", baseline = "native" } }
    "#;

    #[test]
    fn a_figure_makes_experiments() {
        let figure = Figure::from_toml(FIGURE, "f.toml").unwrap();
        let experiment = figure.experiment("virtual", "w.json").unwrap();
        assert_eq!(experiment.idle, IdleKind::Haltpoll);
        assert_eq!(experiment.thread_count(), 4);
    }

    #[test]
    fn bad_figures_and_experiments_are_refused() {
        for (from, to, wanted) in [
            ("cores = 4", "cores = 0", "cores: found 0"),
            ("run = \"virtual\"", "run = \"x\"", "unknown configuration `x`"),
            ("idle = \"haltpoll\"", "idle = \"nap\"", "unknown variant `nap`"),
            ("kind = \"predicted\"", "kind = \"withheld\"", "withheld"),
            ("column", "colum", "f.toml, line"),
        ] {
            let error = Figure::from_toml(&FIGURE.replace(from, to), "f.toml").unwrap_err().to_string();
            assert!(error.starts_with("f.toml") && error.contains(wanted), "{error}");
        }
        let error =
            Experiment::from_toml("machine='m'\nworkload='w'\nenvironment='native'\ncores=1\nscale=0.0", "e.toml");
        assert!(error.unwrap_err().to_string().contains("scale"));
    }

    #[test]
    fn pause_loops_are_for_hardware_assisted_guests() {
        let text = "machine='m'\nworkload='w'\nenvironment='hvm'\ncores=4\n[ple]\nkind='xen'\n";
        let ple = Experiment::from_toml(text, "e.toml").unwrap().ple.unwrap();
        assert_eq!((ple.gap, ple.window, ple.yields), (128, 2048, Yield::BehindOneLower));
        for (from, to, wanted) in [
            ("'hvm'", "'pv'", "ple.kind: found on in environment `pv`"),
            ("'hvm'", "'native'", "ple.kind: found on in environment `native`"),
            ("'xen'", "'xen'\nwindow=0", "ple.window: found 0"),
            ("'xen'", "'xen'\ngap=0", "ple.gap: found 0"),
            ("'xen'", "'kvm'\nwindow_max=2047", "ple.window_max: found 2047"),
            ("'xen'", "'esx'", "unknown variant `esx`"),
            ("'xen'", "'xen'\nwindows=1", "unknown field `windows`"),
            ("[ple]\nkind='xen'\n", "spin_locks='queued'", "spin_locks: found queued without"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Experiment::from_toml(&text.replace(from, to), "e.toml").unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(Experiment::from_toml(&text.replace("'hvm'", "'pv'").replace("'xen'", "'off'"), "e.toml").is_ok());
    }

    const SHARED: &str = "machine = 'm'\nworkload = 'w'\nenvironment = 'virtual'\ncores = 4\npcpus = 2\n\
        [[vms]]\nworkload = 'x'\nvcpus = 2\nshare = { weight = 512, pin = 'each' }\nrepeat = true\n";

    #[test]
    fn vms_that_share_pcpus_are_scheduled_by_credit() {
        let experiment = Experiment::from_toml(SHARED, "e.toml").unwrap();
        assert_eq!((experiment.pcpus(), experiment.scheduler()), (2, VmScheduler::Credit));
        let vms = experiment.all_vms();
        assert_eq!((vms[0].vcpus, vms[0].share), (4, Share { weight: 256, cap: 0, pin: Pin::None }));
        assert_eq!((vms[1].thread_count(), vms[1].share.weight, vms[1].share.cap), (2, 512, 0));
        let alone = Experiment::new(Environment::Virtual, 4);
        assert_eq!((alone.pcpus(), alone.scheduler()), (4, VmScheduler::Pinned));
    }

    #[test]
    fn guests_are_as_the_experiment_says_unless_they_say_otherwise() {
        let text = SHARED.replace("pcpus = 2", "pcpus = 2\nkernel = 'linux-6'\nidle = 'poll'");
        let text = text + "guest = { kernel = 'windows-2003', remote_wake = 'ipi' }\n";
        let guests: Vec<Guest> =
            Experiment::from_toml(&text, "e.toml").unwrap().all_vms().iter().map(|vm| vm.guest).collect();
        assert_eq!((guests[0].kernel, guests[1].kernel), (Some(GuestKernel::Linux6), Some(GuestKernel::Windows2003)));
        assert_eq!((guests[1].idle(), guests[1].remote_wake()), (IdleKind::Poll, RemoteWake::Ipi));
        assert_eq!(
            (guests[0].remote_wake(), guests[0].wakeup(), guests[1].yielding()),
            (RemoteWake::Flag, Placement::Spread, false)
        );
    }

    #[test]
    fn kvm_of_today_has_todays_defaults() {
        let text = SHARED.replace("[[vms]]", "kvm = { halt_poll_ns = 0, apic = 'avic' }\n[[vms]]");
        let experiment = Experiment::from_toml(&text, "e.toml").unwrap();
        let kvm = Kvm { halt_poll_ns: 0, apic: Apic::Avic, ..Kvm::default() };
        assert_eq!((experiment.kvm, experiment.scheduler()), (Some(kvm), VmScheduler::Eevdf));
        for (from, to, wanted) in [
            ("'avic'", "'x2apic'", "unknown variant `x2apic`"),
            ("halt_poll_ns = 0", "halt_poll = 0", "unknown field `halt_poll`"),
            ("halt_poll_ns = 0", "halt_poll_ns = 2000000000", "kvm.halt_poll_ns: found 2000000000"),
            ("halt_poll_ns = 0", "host_hz = 24", "kvm.host_hz: found 24; allowed: 100, 250, 300 or 1000"),
            ("'virtual'", "'hvm'", "kvm: found settings in environment `hvm`"),
            ("pcpus = 2", "pcpus = 2\nscheduler = 'credit'", "scheduler: found credit with `[kvm]`"),
        ] {
            let error = Experiment::from_toml(&text.replace(from, to), "e.toml").unwrap_err().to_string();
            assert!(error.starts_with("e.toml") && error.contains(wanted), "{error}");
        }
        let xen = SHARED.replace("'virtual'", "'hvm'\nscheduler = 'eevdf'");
        let error = Experiment::from_toml(&xen, "e.toml").unwrap_err().to_string();
        assert!(error.contains("scheduler: found eevdf in environment `hvm`"), "{error}");
    }

    #[test]
    fn copies_are_of_all_vms_in_their_order() {
        let text = SHARED.replace("pcpus = 2", "pcpus = 2\ncopies = 3");
        let experiment = Experiment::from_toml(&text, "e.toml").unwrap();
        let vcpus: Vec<u32> = experiment.all_vms().iter().map(|vm| vm.vcpus).collect();
        assert_eq!(vcpus, [4, 2, 4, 2, 4, 2]);
        let alone = Experiment { copies: 2, ..Experiment::new(Environment::Hvm, 1) };
        assert_eq!(alone.scheduler(), VmScheduler::Credit);
        assert_eq!(alone.all_vms()[1].share.pin, Pin::None, "two VMs share a core");
    }

    #[test]
    fn vms_that_do_not_fit_are_refused() {
        for (from, to, wanted) in [
            ("'virtual'", "'native'", "environment: found native"),
            ("pcpus = 2", "pcpus = 0", "pcpus: found 0"),
            ("pcpus = 2", "scheduler = 'pinned'", "scheduler: found pinned with 2 VMs"),
            ("pcpus = 2", "share = { pin = 'each' }\npcpus = 2", "share.pin: found `each` with 4 vCPUs on 2 pCPUs"),
            ("vcpus = 2", "vcpus = 0", "vms[0]: vcpus: found 0"),
            ("vcpus = 2", "vcpus = 3", "vms[0]: share.pin: found `each` with 3 vCPUs"),
            ("weight = 512", "weight = 0", "vms[0]: share.weight: found 0"),
            ("weight = 512", "wait = 512", "unknown field `wait`"),
            ("vcpus = 2\n", "vcpus = 2\nthreads = 0\n", "vms[0]: threads: found 0"),
            ("vcpus = 2\nshare = { weight = 512, pin = 'each' }", "vcpus = 1021", "vms: found 1025 vCPUs in all"),
            ("repeat", "repeats", "unknown field `repeats`"),
            ("pcpus = 2", "pcpus = 2\ncopies = 0", "copies: found 0; allowed: 1 to 1024"),
            ("pcpus = 2", "pcpus = 2\ncopies = 200", "vms: found 1200 vCPUs in all; allowed: at most 1024"),
        ] {
            assert!(SHARED.contains(from), "{from}");
            let error = Experiment::from_toml(&SHARED.replace(from, to), "e.toml").unwrap_err().to_string();
            assert!(error.starts_with("e.toml") && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn errors_are_judged_as_the_design_says() {
        assert_eq!(error(583.0, 583.0, Scale::Degradation), Some(0.0));
        assert!((error(100.0, 0.0, Scale::Degradation).unwrap() - 2f64.ln()).abs() < 1e-12);
        assert!((error(-100.0, 50.0, Scale::Removal).unwrap() - 4f64.ln()).abs() < 1e-12);
        assert_eq!(error(4.0, 1.0, Scale::Share), Some(3.0));
        assert!((error(20.0, 10.0, Scale::Share).unwrap() - 2f64.ln()).abs() < 1e-12);
        assert_eq!(error(0.0, 5.0, Scale::Value), None);
    }

    const XEN: &str = r#"
        machine = "m.toml"
        workload = "w.json"
        environment = "hvm"
        kernel = "pk"
        cores = 8
        vcpus = 32
        remedies = ["vtime", "cm"]
    "#;

    fn workload(buffers: &str) -> Workload {
        let text = format!(r#"{{"name":"w",{buffers}"groups":[{{"name":"g","count":1,"phases":[]}}]}}"#);
        Workload::from_json(&text, "w.json").unwrap()
    }

    #[test]
    fn a_vm_has_vcpus_beside_the_programs_cores() {
        let experiment = Experiment::from_toml(XEN, "e.toml").unwrap();
        assert_eq!((experiment.cores, experiment.thread_count(), experiment.vcpu_count()), (8, 8, 32));
        assert_eq!(experiment.kernel, Some(GuestKernel::Pk));
        let plain = Experiment::from_toml(&XEN.replace("vcpus = 32", ""), "e.toml").unwrap();
        assert_eq!(plain.vcpu_count(), 8);
    }

    #[test]
    fn remedies_are_refused_where_they_do_not_exist() {
        for (from, to, wanted) in [
            (
                "\"hvm\"",
                "\"pv\"",
                "e.toml: remedies: found `vtime` in environment `pv`; allowed: idle, nohlt, itlb, all",
            ),
            ("\"cm\"", "\"itlb\"", "remedies: found `itlb` in environment `hvm`; allowed: vtime, idle, nohlt, cm, all"),
            ("\"cm\"", "\"cmm\"", "unknown variant `cmm`"),
            ("\"cm\"", "\"all\"", "`all` beside others"),
            ("[\"vtime\", \"cm\"]", "[\"idle\", \"nohlt\"]", "found `idle` and `nohlt`; allowed: one of them"),
            ("vcpus = 32", "vcpus = 7", "vcpus: found 7; allowed: `cores` (8) to 1024"),
            ("vcpus = 32", "vcpus = 1000000", "vcpus: found 1000000"),
            ("cores = 8", "cores = 1000000", "cores: found 1000000; allowed: 1 to 1024"),
            ("\"pk\"", "\"linux\"", "unknown variant `linux`"),
        ] {
            let error = Experiment::from_toml(&XEN.replace(from, to), "e.toml").unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        for environment in ["native", "virtual"] {
            let text = XEN.replace("hvm", environment);
            let error = Experiment::from_toml(&text, "e.toml").unwrap_err().to_string();
            assert!(error.contains(&format!("vcpus: found 32 in environment `{environment}`")), "{error}");
            let error = Experiment::from_toml(&text.replace("vcpus = 32", ""), "e.toml").unwrap_err().to_string();
            assert!(error.contains("allowed: no remedy there"), "{error}");
        }
    }

    #[test]
    fn itlb_is_for_workloads_with_growing_buffers() {
        let (plain, growing) =
            (workload(""), workload(r#""buffers":{"b":{"count":1,"initial_bytes":1,"larger_bytes":2}},"#));
        let pv = |remedies: &str| {
            let text = XEN.replace("hvm", "pv").replace(r#"["vtime", "cm"]"#, remedies);
            Experiment::from_toml(&text, "e.toml").unwrap()
        };
        let error = pv(r#"["itlb"]"#).applied(&plain).unwrap_err().to_string();
        assert!(error.contains("`itlb` for workload `w`") && error.ends_with("allowed: idle, nohlt, all"), "{error}");
        assert_eq!(pv(r#"["itlb"]"#).applied(&growing).unwrap(), [Remedy::Itlb].into());
        assert_eq!(pv(r#"["all"]"#).applied(&plain).unwrap(), [Remedy::Idle].into());
        assert_eq!(pv(r#"["all"]"#).applied(&growing).unwrap(), [Remedy::Idle, Remedy::Itlb].into());
        let hvm = Experiment::from_toml(&XEN.replace(r#""vtime", "cm""#, r#""all""#), "e.toml").unwrap();
        assert_eq!(hvm.applied(&growing).unwrap(), [Remedy::Vtime, Remedy::Idle, Remedy::Cm].into());
    }

    const COLUMNS: &str = r#"
        figure = "Figure 1"
        programs = ["gmake", "XML validation"]
        workloads = "w/{program}.json"
        cores = [1, 4]
        [defaults]
        machine = "m.toml"
        cores = 32
        [configurations.native]
        environment = "native"
        [configurations.pvm]
        environment = "pv"
        vcpus = 32
        [[columns]]
        column = "PVM, {cores} cores"
        unit = "%"
        kind = "predicted"
        cores = [1, 32]
        measure = { slowdown = { run = "pvm@{cores}", baseline = "native@{cores}" } }
        [columns.rows]
        "XML validation" = "withheld"
        gmake = { paper = 12, kind = "contested" }
        [[columns]]
        column = "kernel"
        unit = "%"
        kind = "calibrated"
        measure = { kernel-share = { run = "native" } }
        [columns.rows]
        gmake = "< 10"
        [[numbers]]
        row = "PVM"
        column = "mean"
        unit = "x"
        kind = "predicted"
        aggregate = "geometric-mean"
        measure = { speedup = { run = "native", baseline = "pvm" } }
        [[series]]
        name = "{program}, PVM"
        curve = { speedup = { baseline = "native@1", runs = ["pvm@*"] } }
    "#;

    #[test]
    fn a_column_is_a_number_a_program() {
        let figure = Figure::from_toml(COLUMNS, "f.toml").unwrap();
        let column = |name: &str| figure.numbers.iter().filter(|n| n.column == name).collect::<Vec<_>>();
        let (one, many) = (column("PVM, 1 cores"), column("PVM, 32 cores"));
        assert_eq!((one.len(), many.len(), column("kernel").len(), figure.numbers.len()), (2, 2, 1, 6));
        assert_eq!((one[0].row.as_str(), one[0].paper, one[0].kind), ("gmake", Some(12.0), StudyKind::Contested));
        assert_eq!((one[1].row.as_str(), one[1].paper, one[1].kind), ("XML validation", None, StudyKind::Withheld));
        let runs: Vec<_> = many[1].runs().collect();
        assert_eq!(runs, [("pvm@32", "w/xml-validation.json"), ("native@32", "w/xml-validation.json")]);
        assert_eq!(figure.experiment("pvm@4", "w").unwrap().cores, 4);
        assert_eq!(column("kernel")[0].paper_bound.as_deref(), Some("< 10"));
        assert_eq!(column("mean")[0].terms.len(), 2);
        let names: Vec<_> = figure.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["gmake, PVM", "XML validation, PVM"]);
        assert_eq!(figure.series[0].curve.runs(), ["native@1", "pvm@1", "pvm@4"]);
    }

    #[test]
    fn a_figure_may_vary_its_copies() {
        let text = r#"
            figure = "Figure 18"
            vary = "copies"
            copies = [1, 4]
            [defaults]
            machine = "m.toml"
            environment = "hvm"
            cores = 2
            pcpus = 16
            [configurations.shadow]
            [[series]]
            name = "shadow"
            workload = "w.json"
            curve = { values = { y = "gain (%)", measure = { gain = { run = "shadow@*", baseline = "shadow@1", of = ["w"] } } } }
        "#;
        let figure = Figure::from_toml(text, "f.toml").unwrap();
        let experiment = figure.experiment("shadow@3", "w.json").unwrap();
        assert_eq!((experiment.cores, experiment.copies, experiment.all_vms().len()), (2, 3, 3));
        let Curve::Values { points, .. } = &figure.series[0].curve else { panic!("{:?}", figure.series) };
        assert_eq!(points.iter().map(|point| point.at).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(figure.series[0].curve.runs(), ["shadow@1", "shadow@1", "shadow@4", "shadow@1"]);
        for (from, to, wanted) in [
            ("copies = [1, 4]", "", "series.shadow: found no run; allowed: runs, or `NAME@*` and `copies`"),
            ("\"copies\"", "\"vms\"", "unknown variant `vms`"),
            ("shadow@1", "shadow@x", "found `shadow@x`; allowed: NAME, or NAME@NUMBER with a number of copies"),
            ("of = [\"w\"]", "off = [\"w\"]", "unexpected keys in table: off"),
        ] {
            let error = Figure::from_toml(&text.replace(from, to), "f.toml").unwrap_err().to_string();
            assert!(error.starts_with("f.toml") && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn bad_columns_are_refused() {
        for (from, to, wanted) in [
            ("gmake = \"< 10\"", "make = \"< 10\"", "columns.kernel: found unknown program `make`"),
            ("gmake = \"< 10\"", "gmake = \"witheld\"", "columns.kernel.rows.gmake: found `\"witheld\"`"),
            ("{ paper = 12,", "{ value = 12,", "rows.gmake: found unknown field `value`"),
            ("\"withheld\"", "{ paper = 1, kind = \"withheld\" }", "a value for a withheld number"),
            ("baseline = \"native@{cores}\"", "base = \"native\"", "measure: found unknown field `base`"),
            ("run = \"native\" }", "run = \"native@x\" }", "found `native@x`"),
            ("run = \"native\" }", "run = \"native@0\" }", "cores: found 0"),
            (
                "kernel-share = { run = \"native\" }",
                "function-share = { run = \"pvm\", function = \"f\" }",
                "unknown function `f`",
            ),
            (
                "kernel-share = { run = \"native\" }",
                "exit-share = { run = \"pvm\", reason = \"nap\" }",
                "unknown reason `nap`; allowed: halt, ipi",
            ),
            ("aggregate = \"geometric-mean\"", "", "neither one program's number nor an aggregate"),
            ("{program}.json", "w.json", "a path with `{program}` in it"),
            ("column = \"PVM, {cores} cores\"", "column = \"PVM\"", "the same row and column twice"),
        ] {
            let error = Figure::from_toml(&COLUMNS.replace(from, to), "f.toml").unwrap_err().to_string();
            assert!(error.starts_with("f.toml") && error.contains(wanted), "{from}: {error}");
        }
    }

    #[test]
    fn aggregates_are_taken_of_factors() {
        let of = |aggregate: Aggregate, scale| aggregate.of(&[0.0, 300.0], scale);
        assert!((of(Aggregate::GeometricMean, Scale::Degradation) - 100.0).abs() < 1e-9);
        assert!((of(Aggregate::ArithmeticMean, Scale::Value) - 150.0).abs() < 1e-9);
        assert_eq!(of(Aggregate::Minimum, Scale::Value), 0.0);
        assert_eq!(of(Aggregate::Maximum, Scale::Value), 300.0);
        assert!((Aggregate::GeometricMean.of(&[50.0, 87.5], Scale::Removal) - 75.0).abs() < 1e-9);
    }
}
