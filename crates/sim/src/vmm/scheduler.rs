//! Who decides which vCPU runs on which pCPU.

use muster_model::study::{Experiment, Pin, Share, VmScheduler, VmSpec};
use muster_model::{CpuSet, ModelError, Topology};
use muster_policy::credit;

/// The VMM's scheduler.
#[derive(Debug, Default)]
pub enum VmmScheduler {
    /// One VM, each of whose vCPUs has the pCPU of its number for itself: there is nothing to decide.
    #[default]
    Pinned,
    /// Xen's credit scheduler; its vCPUs and domains have the world's numbers.
    Credit(Box<credit::Scheduler>),
}

impl VmmScheduler {
    /// The scheduler of an experiment, which knows all its VMs; with `lone_skips_balance` iXen's remedy `cm` is in force.
    ///
    /// # Errors
    /// When a VM may run nowhere.
    pub(crate) fn new(
        experiment: &Experiment,
        topology: &Topology,
        vms: &[VmSpec],
        lone_skips_balance: bool,
    ) -> Result<Self, ModelError> {
        if experiment.scheduler() == VmScheduler::Pinned {
            return Ok(Self::Pinned);
        }
        let pcpus = experiment.pcpus() as usize;
        let mut scheduler = credit::Scheduler::new(&credit::Config {
            topology: topology.clone(),
            pcpus,
            tickle: experiment.tickle,
            lone_skips_balance,
        })?;
        for vm in vms {
            let Share { weight, cap, pin } = vm.share;
            let domain = scheduler.add_domain(credit::Share { weight, cap })?;
            for index in 0..vm.vcpus as usize {
                let anywhere = CpuSet::first(pcpus);
                let affinity = if pin == Pin::Each { CpuSet::single(index) } else { anywhere };
                scheduler.add_vcpu(domain, &affinity)?;
            }
        }
        Ok(Self::Credit(Box::new(scheduler)))
    }

    /// Whether vCPUs share pCPUs.
    #[inline]
    pub(crate) fn is_credit(&self) -> bool {
        matches!(self, Self::Credit(_))
    }

    /// The pCPU at which a vCPU starts.
    pub(crate) fn home(&self, c: usize) -> usize {
        match self {
            Self::Pinned => c,
            Self::Credit(scheduler) => scheduler.pcpu_of(c as u32),
        }
    }
}
