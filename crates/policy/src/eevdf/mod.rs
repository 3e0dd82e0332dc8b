//! Linux's fair scheduler as a KVM host has it for vCPU threads, as a state machine: which vCPU runs next on a pCPU, and which
//! pCPUs must look again.
//!
//! Source: Linux 6.6, kernel/sched/fair.c and features.h: *earliest eligible virtual deadline first* with lag kept over sleep
//! (PLACE_LAG) and slices run to parity (RUN_TO_PARITY); wake-ups placed by `select_task_rq_fair`; idle pCPUs that pull,
//! periodic balancing; CFS bandwidth control. Each domain (VM) is a control group with `cpu.weight` and `cpu.max`, directly
//! below the root; its vCPUs have nice 0 within it.
//!
//! Where it departs from the source: loads are numbers of runnable vCPUs by weight at the moment, not averages that decay
//! (PELT); `wake_wide`, idle-scan limits, NUMA balancing and misfit capacity are left out; runtime that a pCPU gives back is
//! handed to throttled ones at once and not after 5 ms. A buddy (the target of a yield) goes first if it is eligible: the
//! rule of 6.12 (PICK_BUDDY), since 6.6 sets buddies and ignores them (NEXT_BUDDY is off).
//!
//! The caller keeps the timers: [`Scheduler::tick`] on every pCPU that runs something, each tick of the host's kernel, and
//! [`Scheduler::refill`] for every domain with a cap each [`PERIOD_NS`]; and has each pCPU that a decision *kicks* call
//! [`Scheduler::schedule`] as soon as it can.

mod balance;
mod bandwidth;
mod queue;
#[cfg(test)]
mod tests;

pub use crate::domain::{DEFAULT_WEIGHT, DomainId, Share, VcpuId};
use muster_model::{CpuSet, ModelError, Topology};
use queue::{Entity, Id, NICE_0, Queue};
use serde::{Deserialize, Serialize};

pub use bandwidth::{PERIOD_NS, RUNTIME_SLICE_NS};

/// What a vCPU asks for at a time on one pCPU (sysctl_sched_base_slice).
pub const BASE_SLICE_NS: u64 = 750_000;

/// No vCPU.
const NONE: VcpuId = VcpuId::MAX;

/// What the scheduler is told once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The machine; pCPUs are its CPUs `0..pcpus`.
    pub topology: Topology,
    /// How many pCPUs there are.
    pub pcpus: usize,
    /// The period of the host's tick.
    pub tick_ns: u64,
}

/// What a pCPU does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next<'a> {
    /// The vCPU that runs; `None`: it idles, without ticks.
    pub vcpu: Option<VcpuId>,
    /// It was pulled from another pCPU's queue.
    pub migrated: bool,
    /// The pCPUs that are to call [`Scheduler::schedule`].
    pub kicks: &'a CpuSet,
}

#[derive(Debug, Clone)]
struct Domain {
    /// What its groups weigh together.
    shares: u64,
    /// CPU time in a period; `None` for no limit.
    quota_ns: Option<u64>,
    /// What is left of it and with no pCPU.
    pool_ns: u64,
    /// The pCPUs on which it is throttled.
    throttled: CpuSet,
    /// Its runnable vCPUs on all pCPUs.
    runnable: u64,
}

/// A domain on one pCPU.
#[derive(Debug, Clone)]
struct Group {
    /// On the pCPU's root queue.
    entity: Id,
    queue: Queue,
    /// What it may still run before it asks the domain's pool; negative: what it has run too much.
    runtime_ns: i64,
    is_throttled: bool,
}

#[derive(Debug, Clone)]
struct Vcpu {
    domain: DomainId,
    affinity: CpuSet,
    /// Where it runs or waits, or did last.
    pcpu: usize,
    entity: Id,
    is_blocked: bool,
    /// It has never run.
    is_new: bool,
    /// When it left its pCPU last.
    ran_until_ns: u64,
}

#[derive(Debug, Clone)]
struct Pcpu {
    root: Queue,
    current: VcpuId,
    /// Up to when the current vCPU is charged.
    charged_ns: u64,
    /// It is to look for another at the end of the tick.
    must_resched: bool,
    /// Runnable vCPUs here that are not throttled, the running one included.
    runnable: usize,
    /// When it balances next within its cache domain and over the machine.
    balances_ns: [u64; 2],
    /// The pCPUs of its core, itself included.
    core: CpuSet,
    /// Those of its last-level cache.
    llc: CpuSet,
}

/// The scheduler of one machine. Equal histories of calls give equal decisions.
#[derive(Debug, Clone)]
pub struct Scheduler {
    slice_ns: u64,
    tick_ns: u64,
    pcpus: Vec<Pcpu>,
    vcpus: Vec<Vcpu>,
    domains: Vec<Domain>,
    /// By domain and pCPU.
    groups: Vec<Group>,
    entities: Vec<Entity>,
    all: CpuSet,
    /// pCPUs that idle and have nothing on its way.
    idlers: CpuSet,
    /// pCPUs with more than one vCPU to run.
    crowded: CpuSet,
    has_smt: bool,
    kicks: CpuSet,
}

impl Scheduler {
    /// A scheduler whose pCPUs all idle.
    ///
    /// # Errors
    /// When there is no pCPU, the topology lacks one of them, or the tick has no length.
    pub fn new(config: &Config) -> Result<Self, ModelError> {
        let topology = &config.topology;
        let has_all = (0..config.pcpus).all(|pcpu| topology.cpu(pcpu).is_some());
        if config.pcpus == 0 || !has_all {
            let allowed = format!("1 to {}, the machine's CPUs numbered from 0", topology.len());
            return Err(ModelError::new("pcpus", config.pcpus.to_string(), allowed));
        }
        if config.tick_ns == 0 {
            return Err(ModelError::new("tick_ns", "0", "1 or more"));
        }
        let all = CpuSet::first(config.pcpus);
        let pcpus: Vec<Pcpu> = (0..config.pcpus).map(|pcpu| Pcpu::new(pcpu, config)).collect();
        Ok(Self {
            slice_ns: slice_ns(config.pcpus),
            tick_ns: config.tick_ns,
            has_smt: pcpus.iter().any(|pcpu| pcpu.core.len() > 1),
            pcpus,
            vcpus: Vec::new(),
            domains: Vec::new(),
            groups: Vec::new(),
            entities: Vec::new(),
            all,
            idlers: all,
            crowded: CpuSet::EMPTY,
            kicks: CpuSet::EMPTY,
        })
    }

    /// Adds a domain without vCPUs.
    ///
    /// # Errors
    /// When its weight is 0.
    pub fn add_domain(&mut self, share: Share) -> Result<DomainId, ModelError> {
        if share.weight == 0 {
            return Err(ModelError::new("weight", "0", "1 to 65535"));
        }
        let shares = u64::from(share.weight) * NICE_0 / u64::from(DEFAULT_WEIGHT);
        let quota_ns = (share.cap > 0).then(|| u64::from(share.cap) * PERIOD_NS / 100);
        let throttled = CpuSet::EMPTY;
        let pool_ns = quota_ns.unwrap_or(0);
        self.domains.push(Domain { shares, quota_ns, pool_ns, throttled, runnable: 0 });
        for _ in 0..self.pcpus.len() {
            let entity = self.add_entity(self.groups.len() as u32, shares);
            self.groups.push(Group { entity, queue: Queue::new(), runtime_ns: 0, is_throttled: false });
        }
        Ok(self.domains.len() as DomainId - 1)
    }

    /// Adds a blocked vCPU that may run on the pCPUs `affinity`. They start on the allowed pCPUs in turn.
    ///
    /// # Errors
    /// When there is no such domain, or `affinity` holds none of the pCPUs.
    pub fn add_vcpu(&mut self, domain: DomainId, affinity: &CpuSet) -> Result<VcpuId, ModelError> {
        let affinity = affinity.intersection(&self.all);
        if domain as usize >= self.domains.len() {
            let allowed = format!("one of the {} that were added", self.domains.len());
            return Err(ModelError::new("domain", domain.to_string(), allowed));
        }
        let last = self.vcpus.last().map_or(self.pcpus.len() - 1, |vcpu| vcpu.pcpu);
        let home = affinity.next_after(last);
        let pcpu = home.ok_or_else(|| ModelError::new("affinity", "no pCPU", format!("some of {}", self.all)))?;
        let id = self.vcpus.len() as VcpuId;
        let entity = self.add_entity(id, NICE_0);
        self.vcpus.push(Vcpu { domain, affinity, pcpu, entity, is_blocked: true, is_new: true, ran_until_ns: 0 });
        Ok(id)
    }

    fn add_entity(&mut self, owner: u32, weight: u64) -> Id {
        self.entities.push(Entity::new(owner, weight));
        self.entities.len() as Id - 1
    }

    /// The vCPU has something to do again; the pCPU `by` wakes it. Nothing happens when it was not blocked.
    pub fn wake(&mut self, vcpu: VcpuId, by: usize, now_ns: u64) -> &CpuSet {
        self.kicks = CpuSet::EMPTY;
        if std::mem::replace(&mut self.vcpus[vcpu as usize].is_blocked, false) {
            self.vcpus[vcpu as usize].pcpu = self.select(vcpu, by);
            self.enqueue(vcpu, now_ns);
            self.check_preemption(vcpu);
        }
        &self.kicks
    }

    /// The vCPU has nothing to do; if it runs, its pCPU is on its way into [`Self::schedule`].
    pub fn block(&mut self, vcpu: VcpuId, now_ns: u64) -> &CpuSet {
        self.kicks = CpuSet::EMPTY;
        if self.is_runnable(vcpu) {
            let pcpu = self.vcpus[vcpu as usize].pcpu;
            if self.pcpus[pcpu].current == vcpu {
                self.kicks.insert(pcpu);
            }
            self.dequeue(vcpu, now_ns);
            self.vcpus[vcpu as usize].is_blocked = true;
        }
        &self.kicks
    }

    /// The tick of a pCPU that runs something: charges the vCPU, ends a slice that is over, has an idle pCPU look where vCPUs
    /// wait, and balances when it is time.
    pub fn tick(&mut self, pcpu: usize, now_ns: u64) -> &CpuSet {
        self.kicks = CpuSet::EMPTY;
        self.charge(pcpu, now_ns);
        self.update_weight(pcpu);
        self.offer_to_idle(pcpu);
        self.balance(pcpu, now_ns);
        if std::mem::take(&mut self.pcpus[pcpu].must_resched) {
            self.kicks.insert(pcpu);
        }
        &self.kicks
    }

    /// What the pCPU runs from `now_ns` on.
    pub fn schedule(&mut self, pcpu: usize, now_ns: u64) -> Next<'_> {
        self.kicks = CpuSet::EMPTY;
        self.charge(pcpu, now_ns);
        self.pcpus[pcpu].must_resched = false;
        let mut migrated = false;
        let next = loop {
            match self.pick(pcpu) {
                Some(next) if self.may_run(next) => break next,
                Some(next) => self.throttle(self.group_of(next), pcpu),
                None if !migrated && self.pull(pcpu, now_ns) => migrated = true,
                None => break NONE,
            }
        };
        self.run(pcpu, next, now_ns);
        Next { vcpu: Some(next).filter(|&next| next != NONE), migrated, kicks: &self.kicks }
    }

    /// The vCPU `from` gives the rest of its turn to `to` (`yield_to`): that one is next on its pCPU if it is owed time there,
    /// and `from` asks for its next slice later. `None`: `to` does not wait for a pCPU.
    pub fn yield_to(&mut self, from: VcpuId, to: VcpuId, now_ns: u64) -> Option<&CpuSet> {
        self.kicks = CpuSet::EMPTY;
        let (by, on) = (self.vcpus[from as usize].pcpu, self.vcpus[to as usize].pcpu);
        let waits = self.is_runnable(to) && self.pcpus[on].current != to;
        let target = self.group_of(to);
        if !waits || self.groups[target].is_throttled {
            return None;
        }
        self.groups[target].queue.set_buddy(self.vcpus[to as usize].entity);
        self.pcpus[on].root.set_buddy(self.groups[target].entity);
        self.charge(by, now_ns);
        if self.pcpus[by].runnable > 1 && self.is_runnable(from) {
            let own = self.group_of(from);
            self.groups[own].queue.defer(&mut self.entities, self.vcpus[from as usize].entity, self.slice_ns);
        }
        self.kicks.insert(by);
        self.kicks.insert(on);
        Some(&self.kicks)
    }

    // ---- what is known ----

    /// The vCPU that runs on a pCPU; `None`: it idles.
    pub fn current(&self, pcpu: usize) -> Option<VcpuId> {
        Some(self.pcpus[pcpu].current).filter(|&vcpu| vcpu != NONE)
    }

    /// Where a vCPU runs or waits, or did last; before that, where it starts.
    pub fn pcpu_of(&self, vcpu: VcpuId) -> usize {
        self.vcpus[vcpu as usize].pcpu
    }

    /// How many vCPUs a pCPU has to run, throttled ones excepted (`nr_running`).
    pub fn runnable(&self, pcpu: usize) -> usize {
        self.pcpus[pcpu].runnable
    }

    /// The pCPUs that idle and have nothing on its way.
    pub fn idlers(&self) -> &CpuSet {
        &self.idlers
    }

    /// Whether a vCPU has something to do.
    pub fn is_runnable(&self, vcpu: VcpuId) -> bool {
        !self.vcpus[vcpu as usize].is_blocked
    }

    /// Whether a vCPU is held back as its domain has used up its cap.
    pub fn is_throttled(&self, vcpu: VcpuId) -> bool {
        self.is_runnable(vcpu) && self.groups[self.group_of(vcpu)].is_throttled
    }

    /// The time in nanoseconds that a runnable vCPU is owed by the others of its domain on its pCPU.
    pub fn owed_ns(&self, vcpu: VcpuId) -> i64 {
        self.groups[self.group_of(vcpu)].queue.owed_ns(&self.entities, self.vcpus[vcpu as usize].entity)
    }

    /// The time in nanoseconds that a vCPU's domain is owed on its pCPU by the others; `None` while it is throttled.
    pub fn domain_owed_ns(&self, vcpu: VcpuId) -> Option<i64> {
        let group = &self.groups[self.group_of(vcpu)];
        let root = &self.pcpus[self.vcpus[vcpu as usize].pcpu].root;
        (!group.is_throttled).then(|| root.owed_ns(&self.entities, group.entity))
    }

    /// What a vCPU asks for at a time.
    pub fn slice_ns(&self) -> u64 {
        self.slice_ns
    }

    // ---- queues ----

    fn group_at(&self, domain: DomainId, pcpu: usize) -> usize {
        domain as usize * self.pcpus.len() + pcpu
    }

    fn group_of(&self, vcpu: VcpuId) -> usize {
        let Vcpu { domain, pcpu, .. } = self.vcpus[vcpu as usize];
        self.group_at(domain, pcpu)
    }

    /// Lag is kept up to so much.
    fn lag_limit_ns(&self) -> u64 {
        (2 * self.slice_ns).max(self.tick_ns)
    }

    /// What a domain weighs on a pCPU: its shares by the part of its vCPUs that is there (`calc_group_shares`).
    fn group_weight(&self, domain: DomainId, here: usize) -> u64 {
        let Domain { shares, runnable, .. } = self.domains[domain as usize];
        (shares * here as u64 / runnable.max(1)).clamp(2, shares)
    }

    /// Puts a vCPU on the queue of its pCPU.
    fn enqueue(&mut self, vcpu: VcpuId, now_ns: u64) {
        let Vcpu { domain, pcpu, entity, is_new, .. } = self.vcpus[vcpu as usize];
        self.charge(pcpu, now_ns);
        self.vcpus[vcpu as usize].is_new = false;
        self.domains[domain as usize].runnable += 1;
        let at = self.group_at(domain, pcpu);
        let group = &mut self.groups[at];
        group.queue.place(&mut self.entities, entity, self.slice_ns, is_new);
        if group.is_throttled {
            return;
        }
        self.pcpus[pcpu].runnable += 1;
        self.note(pcpu);
        let (here, entity) = (self.groups[at].queue.len(), self.groups[at].entity);
        let weight = self.group_weight(domain, here);
        let root = &mut self.pcpus[pcpu].root;
        root.reweight(&mut self.entities, entity, weight);
        if here == 1 {
            root.place(&mut self.entities, entity, self.slice_ns, false);
            // One that runs there already finds out by itself (`check_enqueue_throttle`).
            if !self.has_runtime(at) {
                self.throttle(at, pcpu);
            }
        }
    }

    /// Takes a vCPU off the queue of its pCPU.
    fn dequeue(&mut self, vcpu: VcpuId, now_ns: u64) {
        let Vcpu { domain, pcpu, entity, .. } = self.vcpus[vcpu as usize];
        self.charge(pcpu, now_ns);
        self.domains[domain as usize].runnable -= 1;
        let (at, limit) = (self.group_at(domain, pcpu), self.lag_limit_ns());
        self.groups[at].queue.remove(&mut self.entities, entity, limit);
        if self.groups[at].is_throttled {
            return;
        }
        self.pcpus[pcpu].runnable -= 1;
        let (here, entity) = (self.groups[at].queue.len(), self.groups[at].entity);
        if here == 0 {
            self.pcpus[pcpu].root.remove(&mut self.entities, entity, limit);
            self.give_back(at, now_ns);
        } else {
            let weight = self.group_weight(domain, here);
            self.pcpus[pcpu].root.reweight(&mut self.entities, entity, weight);
        }
        self.note(pcpu);
    }

    /// Whether the pCPU idles or is crowded, after the number of its vCPUs has changed.
    fn note(&mut self, pcpu: usize) {
        let Pcpu { runnable, current, .. } = self.pcpus[pcpu];
        if runnable > 1 {
            self.crowded.insert(pcpu)
        } else {
            self.crowded.remove(pcpu)
        }
        if runnable == 0 && current == NONE { self.idlers.insert(pcpu) } else { self.idlers.remove(pcpu) }
    }

    /// Charges the vCPU that runs on a pCPU, and its domain, up to `now_ns` (`update_curr`).
    fn charge(&mut self, pcpu: usize, now_ns: u64) {
        let current = self.pcpus[pcpu].current;
        let ran_ns = now_ns - std::mem::replace(&mut self.pcpus[pcpu].charged_ns, now_ns);
        if current == NONE || ran_ns == 0 || !self.is_runnable(current) {
            return;
        }
        let at = self.group_of(current);
        let entity = self.vcpus[current as usize].entity;
        let Group { queue, is_throttled, .. } = &mut self.groups[at];
        let mut is_over = queue.advance(&mut self.entities, entity, ran_ns, self.slice_ns) && queue.len() > 1;
        if !*is_throttled {
            let (root, entity) = (&mut self.pcpus[pcpu].root, self.groups[at].entity);
            is_over |= root.advance(&mut self.entities, entity, ran_ns, self.slice_ns) && root.len() > 1;
        }
        is_over |= !self.use_runtime(at, ran_ns);
        self.pcpus[pcpu].must_resched |= is_over;
    }

    /// A domain's weight on a pCPU follows where its vCPUs are (`update_cfs_group`).
    fn update_weight(&mut self, pcpu: usize) {
        let current = self.pcpus[pcpu].current;
        if current == NONE || !self.is_runnable(current) {
            return;
        }
        let at = self.group_of(current);
        let Group { entity, ref queue, is_throttled, .. } = self.groups[at];
        if !is_throttled {
            let weight = self.group_weight(self.vcpus[current as usize].domain, queue.len());
            self.pcpus[pcpu].root.reweight(&mut self.entities, entity, weight);
        }
    }

    // ---- who is next ----

    /// The next domain's next vCPU.
    fn pick(&self, pcpu: usize) -> Option<VcpuId> {
        let group = self.pcpus[pcpu].root.pick(&self.entities)?;
        let group = &self.groups[self.entities[group as usize].owner as usize];
        let vcpu = group.queue.pick(&self.entities).expect("a domain on a root queue has vCPUs");
        Some(self.entities[vcpu as usize].owner)
    }

    /// Puts a vCPU, or the idle task, on a pCPU.
    fn run(&mut self, pcpu: usize, next: VcpuId, now_ns: u64) {
        let last = std::mem::replace(&mut self.pcpus[pcpu].current, next);
        if last != next && last != NONE {
            self.vcpus[last as usize].ran_until_ns = now_ns;
            let domain = self.vcpus[last as usize].domain;
            let at = self.group_at(domain, pcpu);
            self.groups[at].queue.leave_current();
        }
        if next == NONE {
            self.pcpus[pcpu].root.leave_current();
        } else {
            let at = self.group_of(next);
            self.groups[at].queue.set_current(self.vcpus[next as usize].entity);
            self.pcpus[pcpu].root.set_current(self.groups[at].entity);
        }
        self.note(pcpu);
    }

    /// Kicks the pCPU of a vCPU that has come there if it idles or should run that one now (`check_preempt_wakeup`).
    fn check_preemption(&mut self, vcpu: VcpuId) {
        let (pcpu, at) = (self.vcpus[vcpu as usize].pcpu, self.group_of(vcpu));
        let Group { entity, ref queue, is_throttled, .. } = self.groups[at];
        let current = self.pcpus[pcpu].current;
        let preempts = if is_throttled {
            false
        } else if current == NONE || !self.is_runnable(current) {
            true
        } else if self.group_of(current) == at {
            queue.pick(&self.entities) == Some(self.vcpus[vcpu as usize].entity)
        } else {
            self.pcpus[pcpu].root.pick(&self.entities) == Some(entity)
        };
        if preempts {
            self.kicks.insert(pcpu);
        }
    }
}

/// What a vCPU asks for at a time on a machine of so many pCPUs (`update_sysctl`: SCHED_TUNABLESCALING_LOG, at most 8).
pub fn slice_ns(pcpus: usize) -> u64 {
    BASE_SLICE_NS * u64::from(1 + pcpus.clamp(1, 8).ilog2())
}

impl Pcpu {
    fn new(pcpu: usize, config: &Config) -> Self {
        let cpu = |number| config.topology.cpu(number).expect("the caller checked that it is there");
        let like = |same: &dyn Fn(usize) -> bool| (0..config.pcpus).filter(|&other| same(other)).collect();
        Self {
            root: Queue::new(),
            current: NONE,
            charged_ns: 0,
            must_resched: false,
            runnable: 0,
            // Not all at once, or each would undo what another has just done.
            balances_ns: [pcpu as u64 * balance::PERIOD_NS; 2],
            core: like(&|other| cpu(other).core == cpu(pcpu).core),
            llc: like(&|other| cpu(other).llc == cpu(pcpu).llc),
        }
    }
}
