//! The virtual machines that run: processes that hold a VM of KVM.

use crate::text::{self, CommandLine};
use crate::tree::Tree;
use muster_model::host::{MemoryFacts, VcpuFacts, VmFacts, Vmm};

pub(crate) fn read(tree: &Tree) -> Vec<VmFacts> {
    let pids: Vec<u32> = tree.names("/proc").iter().filter_map(|name| name.parse().ok()).collect();
    let mut vms: Vec<VmFacts> = pids.iter().filter_map(|&pid| vm(tree, pid)).collect();
    // Before Linux 6.4 vhost's threads are kernel threads of their own, named after the process they work for.
    for comm in pids.iter().filter_map(|pid| tree.word(&format!("/proc/{pid}/comm"))) {
        let owner = comm.strip_prefix("vhost-").and_then(|owner| owner.parse().ok());
        if let Some(vm) = vms.iter_mut().find(|vm| Some(vm.pid) == owner) {
            vm.vhost_threads += 1;
        }
    }
    vms
}

/// The VM of process `pid`. Where its files are shown, it is one if it holds a VM; else if it looks like a VMM and has
/// threads that are named as vCPUs.
fn vm(tree: &Tree, pid: u32) -> Option<VmFacts> {
    let place = format!("/proc/{pid}");
    let comm = tree.word(&format!("{place}/comm"))?;
    let arguments = tree.bytes(&format!("{place}/cmdline")).map(|bytes| text::arguments(&bytes)).unwrap_or_default();
    let exe = tree.link_name(&format!("{place}/exe"));
    let known = [Some(comm.as_str()), exe.as_deref(), arguments.first().and_then(|name| name.rsplit('/').next())]
        .into_iter()
        .flatten()
        .find_map(vmm_by_name);
    let open = open_in_kvm(tree, pid);
    if open.as_ref().map_or(known.is_none(), |open| open.vms == 0) {
        return None;
    }
    let threads = vcpu_threads(tree, pid);
    if open.is_none() && threads.is_empty() {
        return None;
    }
    let vmm = known.unwrap_or(Vmm::Other);
    let CommandLine { name, cpu_pm, no_kvm_clock, nics, assigned } = match vmm {
        Vmm::Qemu => text::qemu(&arguments),
        Vmm::CloudHypervisor => text::cloud_hypervisor(&arguments),
        Vmm::Firecracker => text::firecracker(&arguments),
        Vmm::Crosvm | Vmm::Other => CommandLine::default(),
    };
    let vhost = format!("vhost-{pid}");
    let vhost_threads = thread_names(tree, pid).filter(|(tid, comm)| *tid != pid && *comm == vhost).count();
    Some(VmFacts {
        pid,
        name,
        vmm,
        vcpus: threads,
        vcpus_open: open.map(|open| open.vcpus),
        memory: memory(tree, pid),
        cpu_pm,
        no_kvm_clock,
        nics,
        assigned,
        vhost_threads,
    })
}

/// The VMM that a program of this name is; names of threads and processes are cut to 15 bytes.
fn vmm_by_name(name: &str) -> Option<Vmm> {
    match name {
        name if name.starts_with("qemu-system") || name.starts_with("qemu-kvm") || name == "kvm" => Some(Vmm::Qemu),
        name if name.starts_with("firecracker") => Some(Vmm::Firecracker),
        name if name.starts_with("cloud-hyperviso") => Some(Vmm::CloudHypervisor),
        name if name.starts_with("crosvm") => Some(Vmm::Crosvm),
        _ => None,
    }
}

/// What a process holds of KVM.
struct Open {
    vms: usize,
    vcpus: usize,
}

/// `None` where the process does not show its files to this user.
fn open_in_kvm(tree: &Tree, pid: u32) -> Option<Open> {
    let place = format!("/proc/{pid}/fd");
    let names = tree.list(&place).ok()?;
    let mut open = Open { vms: 0, vcpus: 0 };
    for target in names.iter().filter_map(|name| tree.link(&format!("{place}/{name}"))) {
        open.vms += usize::from(target == "anon_inode:kvm-vm");
        open.vcpus += usize::from(target.starts_with("anon_inode:kvm-vcpu"));
    }
    Some(open)
}

fn thread_names(tree: &Tree, pid: u32) -> impl Iterator<Item = (u32, String)> {
    let place = format!("/proc/{pid}/task");
    let threads: Vec<u32> = tree.names(&place).iter().filter_map(|name| name.parse().ok()).collect();
    threads.into_iter().filter_map(move |tid| Some((tid, tree.word(&format!("{place}/{tid}/comm"))?)))
}

fn vcpu_threads(tree: &Tree, pid: u32) -> Vec<VcpuFacts> {
    let vcpus = thread_names(tree, pid).filter(|(_, comm)| text::is_vcpu(comm));
    vcpus
        .filter_map(|(tid, _)| {
            let place = format!("/proc/{pid}/task/{tid}");
            let status = tree.text(&format!("{place}/status"))?;
            let times = tree.text(&format!("{place}/schedstat")).unwrap_or_default();
            let mut times = times.split_ascii_whitespace().map(|number| number.parse().ok());
            Some(VcpuFacts {
                tid,
                allowed: text::status_field(&status, "Cpus_allowed_list")?.parse().ok()?,
                ran_ns: times.next().flatten(),
                waited_ns: times.next().flatten(),
            })
        })
        .collect()
}

fn memory(tree: &Tree, pid: u32) -> Option<MemoryFacts> {
    let rollup = format!("/proc/{pid}/smaps_rollup");
    let smaps = if tree.has(&rollup) { rollup } else { format!("/proc/{pid}/smaps") };
    let memory = text::memory(&tree.text(&smaps)?)?;
    let status = tree.text(&format!("/proc/{pid}/status")).unwrap_or_default();
    let shared =
        text::status_field(&status, "RssShmem").and_then(|value| value.strip_suffix("kB")?.trim().parse().ok());
    Some(MemoryFacts { shmem_kib: shared.unwrap_or(0), ..memory })
}
