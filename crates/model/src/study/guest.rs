//! What one guest does differently from the experiment's.

use super::{GuestKernel, IdleKind, Placement, RemoteWake, WakeSignal};
use serde::{Deserialize, Serialize};

/// A guest's settings. What is absent is as in the experiment; of [`super::Experiment::all_vms`] nothing but the kernel is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct Guest {
    /// Its kernel; that of the Gleaner study (Linux 3.2) when the experiment names none either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<GuestKernel>,
    /// What its idle vCPUs do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleKind>,
    /// Whether waking one that polls needs an IPI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_wake: Option<RemoteWake>,
    /// Where woken threads are put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup: Option<Placement>,
    /// How an awake vCPU is told to reschedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_signal: Option<WakeSignal>,
    /// Whether every vCPU has a lowest-priority yielding thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yielding: Option<bool>,
}

impl Guest {
    /// These settings, and those of `base` where there are none.
    pub fn or(&self, base: &Self) -> Self {
        Self {
            kernel: self.kernel.or(base.kernel),
            idle: self.idle.or(base.idle),
            remote_wake: self.remote_wake.or(base.remote_wake),
            wakeup: self.wakeup.or(base.wakeup),
            wake_signal: self.wake_signal.or(base.wake_signal),
            yielding: self.yielding.or(base.yielding),
        }
    }

    /// What idle vCPUs do; they halt unless something else is said.
    pub fn idle(&self) -> IdleKind {
        self.idle.unwrap_or(IdleKind::Halt)
    }

    /// Whether waking a vCPU that polls needs an IPI; not unless it is said.
    pub fn remote_wake(&self) -> RemoteWake {
        self.remote_wake.unwrap_or(RemoteWake::Flag)
    }

    /// Where woken threads are put; spread unless something else is said.
    pub fn wakeup(&self) -> Placement {
        self.wakeup.unwrap_or(Placement::Spread)
    }

    /// How an awake vCPU is told to reschedule; by an IPI unless something else is said.
    pub fn wake_signal(&self) -> WakeSignal {
        self.wake_signal.unwrap_or(WakeSignal::Ipi)
    }

    /// Whether every vCPU has a yielding thread; not unless it is said.
    pub fn yielding(&self) -> bool {
        self.yielding.unwrap_or(false)
    }

    pub(super) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}
