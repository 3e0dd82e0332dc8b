//! Two-dimensional paging, and large pages below it.

use super::{More, file, finding, fine, hardware, has_flag, of_vmm, parameter, switch, yes_no};
use muster_model::host::{Effect, Finding, HostFacts, Knob, Module, PageFacts, Severity, VmFacts, Vmm};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const THP_DOCUMENT: &str = "Documentation/admin-guide/mm/transhuge.rst";
const LARGE_PAGES_GAIN: &str = "2 % (Kernel Build, UP guest), 3 % (vConsolidate, 1 CSU), 8 % (SPECjbb), 14 % (WebBench), all on \
                                top of EPT";
/// A VM with less of its memory in huge pages than this has something to gain.
const MOSTLY: f64 = 0.5;

pub(super) fn look(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(module) = hardware(facts) {
        findings.push(paging(facts, module));
        findings.extend(unrestricted(facts, module));
    }
    findings.extend(host_pages(facts));
    findings.extend(facts.vms.iter().map(|vm| vm_pages(vm, &facts.pages)));
    findings.extend(idle_pools(facts));
    findings
}

/// EPT or NPT: without it page-table updates of guests are trapped and emulated.
fn paging(facts: &HostFacts, module: &Module) -> Finding {
    let name = if module.name == "kvm_intel" { "ept" } else { "npt" };
    let subject = format!("{}.{name}", module.name);
    let Some(on) = switch(module, name) else {
        let reason = "the module does not show the parameter: whether guests' page tables are shadowed is not known";
        return finding(Severity::Unknown, Knob::Paging, subject, "not shown", reason).paper("section III.B");
    };
    if on {
        let reason = "the hardware walks guest and host page tables; no page-table update leaves the guest";
        return fine(Knob::Paging, subject, "on", reason).paper("section III.B");
    }
    let shadow = "shadow paging: every page-table update of a guest exits, under one lock a VM, so that it does not scale \
                  beyond 4 vCPUs";
    let found = finding(Severity::Act, Knob::Paging, subject, yes_no(on), shadow)
        .paper("section V.A, Figures 6 to 8")
        .paper("section V.B, Figures 15 to 18");
    match has_flag(facts, name) {
        true => found
            .gaining("24 % (Kernel Build, UP guest), 8.17 times one vCPU's speed with 16, up to 49 % (vConsolidate)")
            .setting(parameter(module, name, "1", Effect::NewVms)),
        false => {
            found.by_hand(format!("the CPUs do not show the flag `{name}`: another machine, or the outer VMM, has to"))
        }
    }
}

/// Unrestricted guests need EPT, and spare the emulation of real mode.
fn unrestricted(facts: &HostFacts, module: &Module) -> Option<Finding> {
    let on = switch(module, "unrestricted_guest")?;
    (!on && switch(module, "ept") == Some(true) && has_flag(facts, "unrestricted_guest")).then(|| {
        let reason =
            "guests' code without paging, such as firmware and boot loaders, is emulated; running guests are past it";
        finding(Severity::Consider, Knob::Paging, format!("{}.unrestricted_guest", module.name), "off", reason)
            .from("Documentation/admin-guide/kernel-parameters.txt, kvm-intel.unrestricted_guest")
            .setting(parameter(module, "unrestricted_guest", "1", Effect::NewVms))
    })
}

/// What the host is willing to do about large pages.
fn host_pages(facts: &HostFacts) -> Vec<Finding> {
    let pages = &facts.pages;
    let subject = format!("{THP}/enabled");
    let Some(enabled) = &pages.thp else {
        let reason = "the kernel shows no transparent huge pages; guests get large pages from hugetlbfs only";
        return vec![finding(Severity::Unknown, Knob::LargePages, subject, "not shown", reason).from(THP_DOCUMENT)];
    };
    if enabled == "never" {
        let reason = "guest memory gets 4 KiB pages unless it comes from hugetlbfs: one level more in every EPT walk, and a \
                      TLB entry covers 4 KiB instead of 2 MiB";
        return vec![
            finding(Severity::Act, Knob::LargePages, subject, enabled, reason)
                .gaining(LARGE_PAGES_GAIN)
                .paper("section IV.B")
                .paper("section V.A, Figures 7 and 10")
                .from(THP_DOCUMENT)
                .setting(file(format!("{THP}/enabled"), "madvise", Effect::NewMemory)),
        ];
    }
    let reason = match enabled.as_str() {
        "madvise" => "VMMs that ask for them get large pages; QEMU does",
        _ => "whatever memory can be large, is",
    };
    let mut findings = vec![fine(Knob::LargePages, subject, enabled, reason).paper("section IV.B").from(THP_DOCUMENT)];
    if pages.defrag.as_deref() == Some("never") {
        let reason = "a fault takes a large page only if one is free already, and memory gets fragmented; `madvise` lets the \
                      kernel make room for guest memory";
        findings.push(
            finding(Severity::Consider, Knob::LargePages, format!("{THP}/defrag"), "never", reason)
                .from(THP_DOCUMENT)
                .setting(file(format!("{THP}/defrag"), "madvise", Effect::NewMemory)),
        );
    }
    if pages.khugepaged.get("defrag") == Some(&0) {
        let reason = "khugepaged makes no room for the large pages that it could put in the place of small ones";
        findings.push(
            finding(Severity::Consider, Knob::LargePages, format!("{THP}/khugepaged/defrag"), "0", reason)
                .from(THP_DOCUMENT)
                .setting(file(format!("{THP}/khugepaged/defrag"), "1", Effect::AtOnce)),
        );
    }
    findings.extend(shared_memory(facts));
    findings
}

/// VMs whose memory is shared (vhost-user, virtiofs) depend on a setting of its own.
fn shared_memory(facts: &HostFacts) -> Option<Finding> {
    let shared =
        |vm: &&VmFacts| vm.memory.is_some_and(|memory| memory.shmem_kib as f64 > MOSTLY * memory.total_kib() as f64);
    let count = facts.vms.iter().filter(shared).count();
    let setting = facts.pages.shmem.as_deref().filter(|value| ["never", "deny"].contains(value))?;
    (count > 0).then(|| {
        let reason = format!("the memory of {count} of the VMs is shared, and shared memory is given no large pages");
        finding(Severity::Consider, Knob::LargePages, format!("{THP}/shmem_enabled"), setting, reason)
            .gaining(LARGE_PAGES_GAIN)
            .paper("section IV.B")
            .from(THP_DOCUMENT)
            .setting(file(format!("{THP}/shmem_enabled"), "advise", Effect::NewMemory))
    })
}

/// How much of a VM's memory is in large pages.
fn vm_pages(vm: &VmFacts, pages: &PageFacts) -> Finding {
    let subject = vm.to_string();
    let Some((memory, share)) = vm.memory.and_then(|memory| Some((memory, memory.huge_share()?))) else {
        let reason = "its memory is not shown to this user; root sees it";
        return finding(Severity::Unknown, Knob::LargePages, subject, "memory not shown", reason)
            .from("proc_pid_smaps(5)");
    };
    let found = format!("{:.0} % of {} MiB in large pages", share * 100.0, memory.total_kib() / 1024);
    if share >= MOSTLY {
        let kind = if memory.hugetlb_kib > 0 { "by hugetlbfs" } else { "transparently" };
        return fine(Knob::LargePages, subject, found, format!("most of its memory is backed by large pages, {kind}"))
            .paper("section IV.B");
    }
    let reason = match (pages.thp.as_deref(), vm.vmm) {
        (Some("never"), _) => "the host gives none, see transparent_hugepage/enabled",
        (Some("madvise"), Vmm::Qemu) => {
            "it may ask for them, so memory was fragmented when the guest touched it, the guest has touched little, or the \
             memory was set up otherwise"
        }
        (Some("madvise"), _) => "it has to ask for them; as it was started, it seems not to",
        _ => "memory was fragmented when the guest touched it, or the guest has touched little of it",
    };
    let finding = finding(Severity::Consider, Knob::LargePages, subject, found, reason)
        .gaining(LARGE_PAGES_GAIN)
        .paper("section IV.B")
        .paper("section V.A, Figures 7 and 10")
        .from("Documentation/admin-guide/mm/hugetlbpage.rst");
    match of_vmm(
        vm,
        "restart it with memory from hugetlbfs: -object memory-backend-memfd,id=ram,size=...,hugetlb=on,prealloc=on \
         -machine memory-backend=ram",
        "restart it with \"huge_pages\": \"2M\" in its machine configuration",
        "restart it with --memory size=...,hugepages=on",
        "restart it with --hugepages",
    ) {
        Some(what) => finding.by_hand(what),
        None => finding,
    }
}

/// Huge pages that were set aside and that nobody takes.
fn idle_pools(facts: &HostFacts) -> Vec<Finding> {
    let idle = facts.pages.pools.iter().filter(|pool| pool.total > 0 && pool.free == pool.total);
    idle.map(|pool| {
        let mounts = &facts.pages.mounts;
        let place = if mounts.is_empty() {
            "hugetlbfs is not mounted".to_owned()
        } else {
            format!("mounted at {}", mounts.join(", "))
        };
        let found = format!("{} pages of {} KiB set aside, all of them free", pool.total, pool.page_kib);
        let reason = format!("memory that neither a VM nor anybody else can use ({place})");
        finding(
            Severity::Consider,
            Knob::LargePages,
            format!("/sys/kernel/mm/hugepages/hugepages-{}kB", pool.page_kib),
            found,
            reason,
        )
        .from("Documentation/admin-guide/mm/hugetlbpage.rst")
        .by_hand(match pool.page_kib {
            2048 => "give it to VMs, or give it back by `muster host apply --set nr_hugepages=0`",
            _ => "give it to VMs, or give it back by writing 0 to its nr_hugepages",
        })
    })
    .collect()
}
