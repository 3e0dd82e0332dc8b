//! Spinning: pause-loop exiting as an experiment sets it, and the kind of the guest kernel's spin locks.

use crate::ModelError;
use serde::{Deserialize, Serialize};

/// Who reacts to a guest that spins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PleKind {
    /// Nobody: the hardware does not look.
    Off,
    /// Xen: a fixed window; the vCPU yields its quantum (`do_sched_op_compat(SCHEDOP_yield)` in vmx.c).
    Xen,
    /// KVM: each vCPU's window adapts; the vCPU gives way to one of its VM that may hold the lock (`kvm_vcpu_on_spin`).
    Kvm,
}

/// What Xen's credit scheduler makes of a yield.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Yield {
    /// The vCPU goes behind those of its priority (Xen up to 4.0: a yield is a question to the scheduler and no more).
    BehindEquals,
    /// And behind one of a lower priority (Xen 4.1, `CSCHED_FLAG_VCPU_YIELD`).
    #[default]
    BehindOneLower,
}

/// Pause-loop exiting. With such a table, kernels' spin locks are held over events, and waits for them are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ple {
    /// Who reacts.
    pub kind: PleKind,
    /// PLE_Gap, in cycles of the TSC: PAUSEs further apart are not of one loop.
    #[serde(default = "gap")]
    pub gap: u32,
    /// PLE_Window, in cycles of the TSC: a loop that lasts longer exits. With `kvm`, where it begins.
    #[serde(default = "window")]
    pub window: u32,
    /// `xen`: what a yield is.
    #[serde(default)]
    pub yields: Yield,
    /// `kvm`, `ple_window_grow`.
    #[serde(default = "grow")]
    pub grow: u32,
    /// `kvm`, `ple_window_shrink`.
    #[serde(default)]
    pub shrink: u32,
    /// `kvm`, `ple_window_max`.
    #[serde(default = "window_max")]
    pub window_max: u32,
}

/// How a kernel's spin locks are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpinLocks {
    /// In order of tickets, all looking at one word (Linux from 2.6.25 to 4.1).
    #[default]
    Ticket,
    /// In order of arrival, each looking at a line of its own (MCS; Linux's qspinlock from 4.2 on).
    Queued,
}

/// The paper's.
fn gap() -> u32 {
    128
}
/// The paper's.
fn window() -> u32 {
    2048
}
fn grow() -> u32 {
    2
}
fn window_max() -> u32 {
    u32::MAX
}

impl Ple {
    /// With the paper's gap and window, and KVM's defaults.
    pub fn new(kind: PleKind) -> Self {
        let yields = Yield::default();
        Self { kind, gap: gap(), window: window(), yields, grow: grow(), shrink: 0, window_max: window_max() }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn validate(&self) -> Result<(), ModelError> {
        for (name, value) in [("ple.gap", self.gap), ("ple.window", self.window)] {
            if value == 0 {
                return Err(ModelError::new(name, "0", "1 or more cycles; `kind = \"off\"` for none"));
            }
        }
        if self.window_max < self.window {
            let allowed = format!("`window` ({}) or more", self.window);
            return Err(ModelError::new("ple.window_max", self.window_max.to_string(), allowed));
        }
        Ok(())
    }
}
