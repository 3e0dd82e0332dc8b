//! What `muster sim` says of VM exits, of walks through page tables and of spinning.

use muster_policy::ple::{self, Waits};
use muster_sim::paging::PagingOutcome;
use muster_sim::run::VmOutcome;
use muster_sim::vmm::ple::Spins;
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

/// Waits for spin locks, and what `policy::ple` makes of them.
#[derive(Serialize)]
pub(super) struct SpinReport {
    waits: u64,
    /// In per cent, by the power of two cycles that they exceed.
    longer_than: BTreeMap<u64, f64>,
    /// `PLE_Window` and `PLE_Gap` that `policy::ple` picks, in cycles; none where it cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<ple::Setting>,
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

/// Waits for spin locks.
pub(super) fn spinning(spins: &Spins) -> SpinReport {
    let waits = spins.waits.count();
    let share = |power: usize| (1 << power, spins.waits.longer_than(power) as f64 / waits.max(1) as f64 * 100.0);
    SpinReport {
        waits,
        longer_than: (0..Waits::POWERS).map(share).take_while(|&(_, share)| share > 0.0).collect(),
        chosen: ple::choose(&spins.waits, &spins.exits_by_gap).ok(),
    }
}

impl SpinReport {
    /// One line.
    pub(super) fn line(&self) -> String {
        let over = |cycles: u64| self.longer_than.get(&cycles).copied().unwrap_or_default();
        let chosen = self.chosen.map_or_else(String::new, |setting| {
            format!("; PLE window {}, gap {} by policy::ple", setting.window, setting.gap)
        });
        format!(
            "spin lock waits       {}, {:.2} % longer than 2048 cycles, {:.2} % than 32768{chosen}\n",
            self.waits,
            over(2048),
            over(32_768)
        )
    }
}
