//! Who decides which vCPU runs on which pCPU.

use crate::engine::{NS, Ps};
use muster_model::study::{Experiment, Kvm, Pin, Share, VmScheduler, VmSpec};
use muster_model::{CpuSet, ModelError, Topology};
use muster_policy::credit::{self, Decision};
use muster_policy::eevdf;

/// The VMM's scheduler.
#[derive(Debug, Default)]
pub enum VmmScheduler {
    /// One VM, each of whose vCPUs has the pCPU of its number for itself: there is nothing to decide.
    #[default]
    Pinned,
    /// Xen's credit scheduler; its vCPUs and domains have the world's numbers.
    Credit(Box<credit::Scheduler>),
    /// Linux's fair scheduler; the same.
    Eevdf(Box<eevdf::Scheduler>),
}

/// What a pCPU runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    /// `None`: it idles.
    pub vcpu: Option<u32>,
    /// How long until it looks again by itself, if it does.
    pub slice_ns: Option<u64>,
}

const UNASKED: &str = "pinned vCPUs need no decision";

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
        let (pcpus, topology) = (experiment.pcpus() as usize, topology.clone());
        let affinity =
            |pin: Pin, index: usize| if pin == Pin::Each { CpuSet::single(index) } else { CpuSet::first(pcpus) };
        match experiment.scheduler() {
            VmScheduler::Pinned => Ok(Self::Pinned),
            VmScheduler::Credit => {
                let tickle = experiment.tickle;
                let config = credit::Config { topology, pcpus, tickle, lone_skips_balance };
                let mut scheduler = credit::Scheduler::new(&config)?;
                for vm in vms {
                    let Share { weight, cap, pin } = vm.share;
                    let domain = scheduler.add_domain(credit::Share { weight, cap })?;
                    for index in 0..vm.vcpus as usize {
                        scheduler.add_vcpu(domain, &affinity(pin, index))?;
                    }
                }
                Ok(Self::Credit(Box::new(scheduler)))
            }
            VmScheduler::Eevdf => {
                let kvm = experiment.kvm.unwrap_or(Kvm::PLAIN);
                let tick_ns = 1_000_000_000 / u64::from(kvm.host_hz);
                let mut scheduler = eevdf::Scheduler::new(&eevdf::Config { topology, pcpus, tick_ns })?;
                for vm in vms {
                    let Share { weight, cap, pin } = vm.share;
                    let domain = scheduler.add_domain(eevdf::Share { weight, cap })?;
                    for index in 0..vm.vcpus as usize {
                        scheduler.add_vcpu(domain, &affinity(pin, index))?;
                    }
                }
                Ok(Self::Eevdf(Box::new(scheduler)))
            }
        }
    }

    /// Whether it decides anything: vCPUs may share pCPUs.
    #[inline]
    pub(crate) fn decides(&self) -> bool {
        !matches!(self, Self::Pinned)
    }

    /// A vCPU that runs gives way to others once.
    pub(crate) fn give_way(&mut self, c: usize) {
        if let Self::Credit(scheduler) = self {
            scheduler.give_way(c as u32);
        }
    }

    /// The pCPU on which a vCPU is, waits or was last; at first, where it starts.
    pub(crate) fn home(&self, c: usize) -> usize {
        match self {
            Self::Pinned => c,
            Self::Credit(scheduler) => scheduler.pcpu_of(c as u32),
            Self::Eevdf(scheduler) => scheduler.pcpu_of(c as u32),
        }
    }

    /// Whether nobody waits behind the vCPU on a pCPU, as far as the scheduler tells.
    pub(crate) fn is_alone(&self, p: usize) -> bool {
        match self {
            Self::Pinned => true,
            Self::Credit(scheduler) => scheduler.waiting(p).next().is_none(),
            Self::Eevdf(scheduler) => scheduler.is_alone(p),
        }
    }

    /// The period of its tick on a pCPU that runs something.
    pub(crate) fn tick_period(&self) -> Ps {
        match self {
            Self::Pinned | Self::Credit(_) => credit::TICK_NS * NS,
            Self::Eevdf(scheduler) => scheduler.tick_ns() * NS,
        }
    }

    /// How often entitlements are renewed: credits for all VMs at once, or each VM's quota.
    pub(crate) fn period(&self) -> Ps {
        match self {
            Self::Pinned | Self::Credit(_) => credit::PERIOD_NS * NS,
            Self::Eevdf(_) => eevdf::PERIOD_NS * NS,
        }
    }

    // ---- questions: which shared objects they touch, and which pCPUs are to look ----

    /// The vCPU has something to do; the pCPU `by` says so.
    pub(crate) fn wake(&mut self, c: usize, by: usize, now_ns: u64) -> Decision<'_> {
        match self {
            Self::Pinned => unreachable!("{UNASKED}"),
            Self::Credit(scheduler) => scheduler.wake(c as u32, by),
            Self::Eevdf(scheduler) => unshared(scheduler.wake(c as u32, by, now_ns)),
        }
    }

    /// The vCPU, which runs, has nothing to do.
    pub(crate) fn block(&mut self, c: usize, now_ns: u64) -> Decision<'_> {
        match self {
            Self::Pinned => unreachable!("{UNASKED}"),
            Self::Credit(scheduler) => scheduler.block(c as u32),
            Self::Eevdf(scheduler) => unshared(scheduler.block(c as u32, now_ns)),
        }
    }

    /// The vCPU `from`, which runs on the pCPU `by`, gives way to `to`, which waits.
    pub(crate) fn yield_to(&mut self, from: usize, to: usize, by: usize, now_ns: u64) -> Decision<'_> {
        match self {
            Self::Pinned => unreachable!("{UNASKED}"),
            Self::Credit(scheduler) => scheduler.run_next(to as u32, by),
            Self::Eevdf(scheduler) => {
                unshared(scheduler.yield_to(from as u32, to as u32, now_ns).unwrap_or(&CpuSet::EMPTY))
            }
        }
    }

    /// The tick of a pCPU.
    pub(crate) fn tick(&mut self, p: usize, now_ns: u64) -> Decision<'_> {
        match self {
            Self::Pinned => unreachable!("{UNASKED}"),
            Self::Credit(scheduler) => scheduler.tick(p, now_ns),
            Self::Eevdf(scheduler) => unshared(scheduler.tick(p, now_ns)),
        }
    }

    /// Credits are handed out, on the pCPU `by`; nothing under Linux's scheduler.
    pub(crate) fn account(&mut self, by: usize) -> Decision<'_> {
        match self {
            Self::Credit(scheduler) => {
                let done = scheduler.account(by);
                Decision { touches: done.touches, kicks: done.kicks }
            }
            Self::Pinned | Self::Eevdf(_) => unshared(&CpuSet::EMPTY),
        }
    }

    /// A VM's quota is renewed; nothing under Xen's scheduler.
    pub(crate) fn refill(&mut self, vm: usize, now_ns: u64) -> Decision<'_> {
        match self {
            Self::Eevdf(scheduler) => unshared(scheduler.refill(vm as u32, now_ns)),
            Self::Pinned | Self::Credit(_) => unshared(&CpuSet::EMPTY),
        }
    }

    /// What a pCPU runs next; `is_held` says whose `schedule_lock` is taken.
    pub(crate) fn schedule(&mut self, p: usize, now_ns: u64, is_held: impl Fn(usize) -> bool) -> (Next, Decision<'_>) {
        match self {
            Self::Pinned => unreachable!("{UNASKED}"),
            Self::Credit(scheduler) => {
                let credit::Next { vcpu, slice_ns, touches, kicks, .. } = scheduler.schedule(p, now_ns, is_held);
                (Next { vcpu, slice_ns }, Decision { touches, kicks })
            }
            Self::Eevdf(scheduler) => {
                let eevdf::Next { vcpu, kicks, .. } = scheduler.schedule(p, now_ns);
                (Next { vcpu, slice_ns: None }, unshared(kicks))
            }
        }
    }
}

/// A decision whose locks and lines are part of the prices of what it is taken for.
fn unshared(kicks: &CpuSet) -> Decision<'_> {
    Decision { touches: &[], kicks }
}
