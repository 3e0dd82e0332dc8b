//! A KVM host as `muster host` sees it: what was found (facts), what is to be said of it (findings) and what may be
//! written (settings).
//!
//! Every fact that a machine may not show is an `Option`; what could not be read is named in [`HostFacts::unreadable`].

use crate::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Everything that the advice rests on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The CPUs that are online.
    pub cpus: CpuSet,
    /// What the CPUs can do: the flags of `/proc/cpuinfo`, Intel's `vmx flags` among them.
    pub flags: Vec<String>,
    /// KVM itself.
    pub kvm: KvmFacts,
    /// The host's clock.
    pub clock: ClockFacts,
    /// How the host backs memory.
    pub pages: PageFacts,
    /// The virtual machines that run, by process number.
    pub vms: Vec<VmFacts>,
    /// The modules of vhost that are loaded (`vhost_net`, `vhost_vsock`).
    pub vhost: Vec<String>,
    /// How many IOMMU groups there are; 0 where no IOMMU translates.
    pub iommu_groups: usize,
    /// The physical functions that can have virtual ones, by address.
    pub devices: Vec<PhysicalFunction>,
    /// Interrupts by number.
    pub interrupts: Vec<Interrupt>,
    /// The vectors of each CPU as the kernel keeps them; empty where it does not show them.
    pub vectors: Vec<CpuVectors>,
    /// What exists and could not be read.
    pub unreadable: Vec<Unreadable>,
}

/// Something that exists and could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// The file, below the root looked at.
    pub path: String,
    /// Why.
    pub why: String,
}

/// KVM: its device and its modules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KvmFacts {
    /// Whether `/dev/kvm` is there.
    pub device: bool,
    /// `kvm` and `kvm_*`, loaded or built in.
    pub modules: Vec<Module>,
}

/// A kernel module and its parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Its name, such as `kvm_intel`.
    pub name: String,
    /// How many users it has; `None` when it is built in and cannot be reloaded.
    pub users: Option<u64>,
    /// Its parameters by name.
    pub parameters: BTreeMap<String, Parameter>,
}

/// A module parameter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// What it reads.
    pub value: String,
    /// Whether the running kernel takes another value; otherwise the module has to be loaded anew.
    pub writable: bool,
}

/// The host's clock source; whether guests can read kvm-clock without an exit hangs on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFacts {
    /// The clock source in use.
    pub current: Option<String>,
    /// The clock sources on offer.
    pub available: Vec<String>,
}

/// How the host backs memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageFacts {
    /// The selected value of `transparent_hugepage/enabled`: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// The selected value of `transparent_hugepage/defrag`.
    pub defrag: Option<String>,
    /// The selected value of `transparent_hugepage/shmem_enabled`.
    pub shmem: Option<String>,
    /// `transparent_hugepage/khugepaged/*`, what is a number.
    pub khugepaged: BTreeMap<String, u64>,
    /// Pools of `/sys/kernel/mm/hugepages`, by size of a page.
    pub pools: Vec<Pool>,
    /// Where hugetlbfs is mounted.
    pub mounts: Vec<String>,
}

/// A pool of huge pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Size of a page, KiB.
    pub page_kib: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages of the pool that nobody uses.
    pub free: u64,
}

/// The programs that run virtual machines on KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vmm {
    /// QEMU.
    Qemu,
    /// Firecracker.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// crosvm.
    Crosvm,
    /// Any other program that holds a VM of KVM.
    Other,
}

impl Vmm {
    /// Its name as its makers write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU",
            Self::Firecracker => "Firecracker",
            Self::CloudHypervisor => "Cloud Hypervisor",
            Self::Crosvm => "crosvm",
            Self::Other => "KVM",
        }
    }
}

/// A virtual machine: one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmFacts {
    /// Its process.
    pub pid: u32,
    /// Its name as its VMM was told it.
    pub name: Option<String>,
    /// Its VMM.
    pub vmm: Vmm,
    /// Those of its vCPUs whose threads are known, by thread number.
    pub vcpus: Vec<VcpuFacts>,
    /// How many vCPUs it has open, where that is shown.
    pub vcpus_open: Option<usize>,
    /// What its memory is made of.
    pub memory: Option<MemoryFacts>,
    /// Whether its vCPUs may halt the physical CPU themselves (QEMU's `-overcommit cpu-pm=on`).
    pub cpu_pm: bool,
    /// Whether it was started without kvm-clock.
    pub no_kvm_clock: bool,
    /// Its paravirtual NICs.
    pub nics: Vec<NicFacts>,
    /// Addresses of host devices assigned to it.
    pub assigned: Vec<String>,
    /// vhost threads that work for it.
    pub vhost_threads: usize,
}

impl VmFacts {
    /// How many vCPUs it has.
    pub fn vcpu_count(&self) -> usize {
        self.vcpus.len().max(self.vcpus_open.unwrap_or(0))
    }
}

impl fmt::Display for VmFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "VM {name} ({}, process {})", self.vmm.name(), self.pid),
            None => write!(f, "{} VM of process {}", self.vmm.name(), self.pid),
        }
    }
}

/// A vCPU: one thread of its VM's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuFacts {
    /// The thread.
    pub tid: u32,
    /// The CPUs that it may run on.
    pub allowed: CpuSet,
    /// How long it ran.
    pub ran_ns: Option<u64>,
    /// How long it waited for a CPU although it could run.
    pub waited_ns: Option<u64>,
}

/// What the memory of a VM's process is made of, KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// All that is resident, hugetlbfs left out.
    pub resident_kib: u64,
    /// Of it anonymous memory in huge pages.
    pub anon_huge_kib: u64,
    /// Of it shared memory.
    pub shmem_kib: u64,
    /// Of it shared memory in huge pages.
    pub shmem_huge_kib: u64,
    /// Of it file memory in huge pages.
    pub file_huge_kib: u64,
    /// Memory of hugetlbfs.
    pub hugetlb_kib: u64,
}

impl MemoryFacts {
    /// All memory there is.
    pub fn total_kib(&self) -> u64 {
        self.resident_kib.saturating_add(self.hugetlb_kib)
    }

    /// The share of memory in huge pages, 0 to 1; none of none.
    pub fn huge_share(&self) -> Option<f64> {
        let huge = [self.anon_huge_kib, self.shmem_huge_kib, self.file_huge_kib, self.hugetlb_kib];
        let huge = huge.into_iter().fold(0, u64::saturating_add);
        (self.total_kib() > 0).then(|| huge as f64 / self.total_kib() as f64)
    }
}

/// A paravirtual NIC as its VMM was told it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicFacts {
    /// Its name.
    pub id: String,
    /// Its back end: `tap`, `user`, `vhost-user`, ...
    pub backend: String,
    /// Pairs of queues.
    pub queues: u64,
    /// Whether the kernel's vhost moves its packets.
    pub vhost: bool,
}

/// A device that can have virtual functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalFunction {
    /// Its address, such as `0000:03:00.0`.
    pub address: String,
    /// Vendor and device, such as `8086:10fb`.
    pub id: String,
    /// What it is, by its PCI class.
    pub class: String,
    /// Its driver.
    pub driver: Option<String>,
    /// Its network interfaces.
    pub interfaces: Vec<String>,
    /// The most virtual functions it can have.
    pub total: u64,
    /// How many it has now.
    pub enabled: u64,
    /// Whether a new virtual function gets a driver of the host.
    pub autoprobe: Option<bool>,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Its virtual functions.
    pub functions: Vec<VirtualFunction>,
}

impl PhysicalFunction {
    /// Whether packets pass through it.
    pub fn is_network(&self) -> bool {
        !self.interfaces.is_empty() || self.class == "Ethernet controller" || self.class == "InfiniBand controller"
    }
}

/// A virtual function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualFunction {
    /// Its address.
    pub address: String,
    /// Its driver.
    pub driver: Option<String>,
    /// Its IOMMU group, and how many devices share it.
    pub group: Option<(u32, usize)>,
}

/// An interrupt that has a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// Its controller, such as `PCI-MSIX-0000:03:00.0`.
    pub chip: String,
    /// What it is for, such as `eth0-TxRx-3`.
    pub action: String,
    /// How often it came.
    pub count: u64,
    /// The CPUs that it may go to.
    pub allowed: Option<CpuSet>,
    /// The CPUs that it does go to.
    pub effective: Option<CpuSet>,
}

/// The interrupt vectors of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuVectors {
    /// The CPU.
    pub cpu: usize,
    /// Vectors in use.
    pub used: u64,
    /// Vectors that are left.
    pub available: u64,
}

/// What an administrator can set, as `muster host apply KNOB` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// EPT or NPT.
    Paging,
    /// 2 MiB backing of guest memory.
    LargePages,
    /// Pause-loop exits.
    Ple,
    /// Halt polling in the host.
    HaltPoll,
    /// The clock source of the host, and the one offered to guests.
    Clock,
    /// vhost for paravirtual NICs.
    Vhost,
    /// Several queues of a paravirtual NIC.
    MultiQueue,
    /// Virtual functions.
    SrIov,
    /// Where interrupts go.
    Interrupts,
    /// How many interrupt vectors are left.
    Vectors,
    /// HLT, MWAIT and PAUSE without an exit.
    CpuPm,
    /// KVM inside guests.
    Nested,
}

impl Knob {
    /// All of them, in the order of findings.
    pub const ALL: [Self; 12] = [
        Self::Paging,
        Self::LargePages,
        Self::Ple,
        Self::HaltPoll,
        Self::CpuPm,
        Self::Clock,
        Self::Vhost,
        Self::MultiQueue,
        Self::SrIov,
        Self::Interrupts,
        Self::Vectors,
        Self::Nested,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paging => "paging",
            Self::LargePages => "large-pages",
            Self::Ple => "ple",
            Self::HaltPoll => "halt-poll",
            Self::Clock => "clock",
            Self::Vhost => "vhost",
            Self::MultiQueue => "multi-queue",
            Self::SrIov => "sr-iov",
            Self::Interrupts => "interrupts",
            Self::Vectors => "vectors",
            Self::CpuPm => "cpu-pm",
            Self::Nested => "nested",
        }
    }
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It costs, and a setting ends that.
    Act,
    /// A setting may pay; the reason says when.
    Consider,
    /// Nothing is to be done.
    Fine,
    /// It could not be found out.
    Unknown,
}

impl Severity {
    /// Its word in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Act => "ACT",
            Self::Consider => "consider",
            Self::Fine => "fine",
            Self::Unknown => "unknown",
        }
    }
}

/// One thing to be said of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub knob: Knob,
    /// How much it matters.
    pub severity: Severity,
    /// What was looked at: a file, a VM, a device.
    pub subject: String,
    /// What was found.
    pub found: String,
    /// Why it matters, or why it does not.
    pub reason: String,
    /// What may be expected of the advice, as its source states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<String>,
    /// The sections and documents that this rests on.
    pub sources: Vec<String>,
    /// What `muster host apply` writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Setting>,
    /// What only a person can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_hand: Option<String>,
}

/// Something to be written on a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Setting {
    /// A file of sysfs or procfs gets a value.
    File {
        /// Its path below the root.
        path: String,
        /// The value.
        value: String,
        /// From when on it holds.
        effect: Effect,
    },
    /// A parameter of a module gets a value.
    Parameter {
        /// The module.
        module: String,
        /// The parameter.
        name: String,
        /// The value.
        value: String,
        /// From when on it holds.
        effect: Effect,
    },
    /// A device gets so many virtual functions, none of them with a driver of the host.
    VirtualFunctions {
        /// The physical function's address.
        device: String,
        /// How many.
        count: u64,
    },
    /// A device gets a driver, and no other one until it is released.
    Driver {
        /// The device's address.
        device: String,
        /// The driver; `None` for whichever the host would choose.
        driver: Option<String>,
    },
}

/// From when on a setting holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// At once, for running guests too.
    AtOnce,
    /// For memory that guests touch from now on; all of it only after a restart.
    NewMemory,
    /// For VMs started from now on.
    NewVms,
    /// At once where the kernel reads it at each use, for new VMs where it is fixed when a VM starts.
    DependsOnKernel,
}

impl Effect {
    /// The effect in words; nothing to say when it is immediate.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::AtOnce => None,
            Self::NewMemory => {
                Some("running guests gain only on memory touched from now on; restart them for all of it")
            }
            Self::NewVms => Some("holds for VMs started from now on; running guests have to be restarted"),
            Self::DependsOnKernel => {
                Some("some kernels fix it when a VM starts: running guests may have to be restarted")
            }
        }
    }
}

impl Setting {
    /// From when on it holds.
    pub fn effect(&self) -> Effect {
        match self {
            Self::File { effect, .. } | Self::Parameter { effect, .. } => *effect,
            Self::VirtualFunctions { .. } | Self::Driver { .. } => Effect::AtOnce,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, value, .. } => write!(f, "{path} = {value}"),
            Self::Parameter { module, name, value, .. } => write!(f, "{module}.{name} = {value}"),
            Self::VirtualFunctions { device, count } => write!(f, "virtual functions of {device} = {count}"),
            Self::Driver { device, driver: Some(driver) } => write!(f, "driver of {device} = {driver}"),
            Self::Driver { device, driver: None } => write!(f, "driver of {device} = the host's choice"),
        }
    }
}

/// What an audit came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostAudit {
    /// Why this is no KVM host; there are no findings then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_host: Option<String>,
    /// The findings, by knob and within a knob by what they are about.
    pub findings: Vec<Finding>,
    /// What exists and could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
}
