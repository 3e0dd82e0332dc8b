//! What host schedulers of VMs share: how vCPUs and domains are numbered, and what a domain is entitled to.

use serde::{Deserialize, Serialize};

/// A domain's weight unless it is given another; Linux's `cpu.weight` 100.
pub const DEFAULT_WEIGHT: u16 = 256;

/// A vCPU, numbered over all domains in the order in which they were added.
pub type VcpuId = u32;
/// A domain (a VM), numbered in the order in which they were added.
pub type DomainId = u32;

/// What a domain is entitled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// In relation to that of the other domains; at least 1.
    pub weight: u16,
    /// At most so much, in per cent of one pCPU; 0 for no limit. Linux's `cpu.max` of so many milliseconds in 100.
    pub cap: u16,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, cap: 0 }
    }
}
