//! What `muster sim` says of VM exits and of walks through page tables.

use muster_sim::paging::PagingOutcome;
use muster_sim::run::VmOutcome;
use serde::Serialize;
use std::collections::BTreeMap;

/// Exits for one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct ExitReport {
    count: u64,
    /// What they took, where that is told apart.
    #[serde(skip_serializing_if = "is_no_time")]
    time_s: f64,
}

fn is_no_time(time_s: &f64) -> bool {
    *time_s == 0.0
}

/// Walks of programs and of guests' kernels.
#[derive(Serialize)]
pub(super) struct WalkReport {
    program_misses: u64,
    kernel_misses: u64,
    /// References to the guest's tables.
    guest_references: u64,
    /// References to the VMM's.
    nested_references: u64,
    time_s: f64,
}

/// Exits of some VMs by reason: the four that every VM may have, and others that there were.
pub(super) fn exits(vms: &[VmOutcome]) -> BTreeMap<&'static str, ExitReport> {
    let mut exits: BTreeMap<&'static str, ExitReport> =
        ["halt", "ipi", "interrupt", "timer"].map(|reason| (reason, ExitReport::default())).into();
    for (reason, count, time_ps) in vms.iter().flat_map(VmOutcome::exits).filter(|&(_, count, _)| count > 0) {
        let exit = exits.entry(reason).or_default();
        exit.count += count;
        exit.time_s += time_ps as f64 / 1e12;
    }
    exits
}

/// One line of them.
pub(super) fn line(exits: &BTreeMap<&'static str, ExitReport>) -> String {
    let one = |(reason, exit): (&&str, &ExitReport)| match exit.time_s {
        0.0 => format!("{reason} {}", exit.count),
        time_s => format!("{reason} {} ({time_s:.4} s)", exit.count),
    };
    exits.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Walks through page tables.
pub(super) fn walks(paging: &PagingOutcome) -> WalkReport {
    let count = |count: f64| count.round() as u64;
    let [program_misses, kernel_misses] = paging.walks.misses.map(count);
    let [guest_references, nested_references] = paging.walks.references.map(count);
    let time_s = paging.walks.time_ps as f64 / 1e12;
    WalkReport { program_misses, kernel_misses, guest_references, nested_references, time_s }
}

impl WalkReport {
    /// One line.
    pub(super) fn line(&self) -> String {
        format!(
            "page walks            {} of programs, {} of kernels; {} references to guests' tables, {} to the VMM's; {:.4} s\n",
            self.program_misses, self.kernel_misses, self.guest_references, self.nested_references, self.time_s
        )
    }
}
