//! Xen's credit scheduler as a state machine: which vCPU runs next on a pCPU, and which pCPUs must look again.
//!
//! Source: Xen 4.0 to 4.1, xen/common/sched_credit.c and schedule.c (the version iXen was measured on is 4.0.0). Rules and
//! figures are Xen's, down to their quirks: a vCPU that migrates is boosted as if it woke; a pCPU may stay idle although
//! work waits when two wakers tickle the same idler.
//!
//! Every decision says which shared objects it touches, in order, so that a simulated machine can charge for locks and
//! cache lines, and which pCPUs it *kicks*: they are to call [`Scheduler::schedule`] as soon as they can (Xen raises the
//! schedule soft-interrupt, by IPI if the pCPU is another). The caller keeps the timers: [`Scheduler::tick`] on every pCPU
//! each [`TICK_NS`], [`Scheduler::account`] on one of them each [`PERIOD_NS`], and the slice of [`Next`].

mod account;
mod pick;
mod queue;
#[cfg(test)]
mod tests;

pub use account::Accounting;

pub use crate::domain::{DEFAULT_WEIGHT, DomainId, Share, VcpuId};
pub use muster_model::study::Tickle;
use muster_model::{CpuSet, ModelError, Topology};
use serde::{Deserialize, Serialize};

/// How long a vCPU runs before the pCPU looks for another (CSCHED_MSECS_PER_TSLICE).
pub const SLICE_NS: u64 = 30_000_000;
/// How often a pCPU charges its running vCPU (CSCHED_MSECS_PER_TICK).
pub const TICK_NS: u64 = 10_000_000;
/// How often credits are handed out: every third tick (CSCHED_TICKS_PER_ACCT).
pub const PERIOD_NS: u64 = 3 * TICK_NS;
/// What a running vCPU pays (CSCHED_CREDITS_PER_MSEC).
pub const CREDITS_PER_MS: i64 = 10;
/// What a pCPU yields in an accounting period, and how far a vCPU's credits may go to either side.
pub const CREDITS_PER_PERIOD: i64 = CREDITS_PER_MS * (PERIOD_NS / 1_000_000) as i64;

/// No vCPU: of a pCPU that it runs its idle vCPU.
const NONE: VcpuId = VcpuId::MAX;

/// What a runnable vCPU's place in the queues depends on. The idle vCPU stands below all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Has spent its credits.
    Over,
    /// Has credits.
    Under,
    /// Has just woken, with credits left.
    Boost,
}

/// What the scheduler is told once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The machine; pCPUs are its CPUs `0..pcpus`.
    pub topology: Topology,
    /// How many pCPUs there are.
    pub pcpus: usize,
    /// Who is told of work.
    pub tickle: Tickle,
    /// iXen's remedy `cm` (section 3.3.2): a pCPU with one possible vCPU, which is there already, does not look for others.
    pub lone_skips_balance: bool,
}

/// A shared object that a decision uses. Those of a decision come in the order in which Xen comes by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Waits for the `schedule_lock` of a pCPU; its line also says what runs there.
    Lock(usize),
    /// Tries to take the `schedule_lock` of a pCPU, and gets it or not.
    TryLock {
        /// Whose lock.
        pcpu: usize,
        /// Whether it was free.
        taken: bool,
    },
    /// Releases the `schedule_lock` of a pCPU.
    Unlock(usize),
    /// Reads the run queue of a pCPU.
    PeekQueue(usize),
    /// Changes the run queue of a pCPU.
    ChangeQueue(usize),
    /// Reads the bitmap of idle pCPUs.
    PeekIdlers,
    /// Changes the bitmap of idle pCPUs.
    ChangeIdlers,
    /// Waits for the scheduler's one private lock.
    LockPrivate,
    /// Releases it.
    UnlockPrivate,
    /// Reads how often priorities were recomputed, which lies beside the private lock and the bitmap.
    PeekEpoch,
    /// Changes a vCPU's credits and priority.
    ChangeCredits(VcpuId),
}

/// What a decision entails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The shared objects it used, in order.
    pub touches: &'a [Touch],
    /// The pCPUs that are to call [`Scheduler::schedule`].
    pub kicks: &'a CpuSet,
}

/// What a pCPU does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next<'a> {
    /// The vCPU that runs; `None` for the idle vCPU.
    pub vcpu: Option<VcpuId>,
    /// How long until the pCPU calls [`Scheduler::schedule`] again unless it is kicked; `None`: not before a kick.
    pub slice_ns: Option<u64>,
    /// The vCPU was taken from another pCPU's queue.
    pub migrated: bool,
    /// The shared objects that were used, in order.
    pub touches: &'a [Touch],
    /// The pCPUs that are to call [`Scheduler::schedule`], as the vCPU that ran here has moved to one of them.
    pub kicks: &'a CpuSet,
}

#[derive(Debug, Clone)]
struct Domain {
    share: Share,
    /// vCPUs that earn credits: they were found running by a tick, and have not saved up too many since.
    active: Vec<VcpuId>,
    /// The pCPU at which its youngest vCPU started.
    last_home: Option<usize>,
}

#[derive(Debug, Clone)]
struct Vcpu {
    domain: DomainId,
    affinity: CpuSet,
    /// Where it runs, or in whose queue it waits, or waited last.
    pcpu: usize,
    priority: Priority,
    credit: i64,
    /// While it runs: since when it has not been charged. While it does not: what of that is still open, negative.
    start_ns: i64,
    blocked: bool,
    parked: bool,
    /// It is to leave its pCPU at the next decision there.
    migrating: bool,
    active: bool,
    /// It gives way at the next decision there (CSCHED_FLAG_VCPU_YIELD of Xen 4.1).
    yields: bool,
    queued: bool,
    next: VcpuId,
    previous: VcpuId,
}

#[derive(Debug, Clone)]
struct Pcpu {
    current: VcpuId,
    head: VcpuId,
    tail: VcpuId,
    /// The epoch its queue was sorted in.
    sorted: u64,
    /// The last idler that it told of work.
    last_tickled: usize,
    /// Where [`pick`] went last among this pCPU's neighbours.
    idle_bias: usize,
    /// The pCPUs of its core, itself included.
    core: CpuSet,
    /// The pCPUs of its socket, itself included.
    socket: CpuSet,
    /// How many vCPUs may run here.
    possible: u32,
    /// How many of them run here, wait here, or did last.
    present: u32,
    /// How many vCPUs started here.
    homes: u32,
}

/// The scheduler of one machine. Equal histories of calls give equal decisions.
#[derive(Debug, Clone)]
pub struct Scheduler {
    tickle: Tickle,
    lone_skips_balance: bool,
    pcpus: Vec<Pcpu>,
    vcpus: Vec<Vcpu>,
    domains: Vec<Domain>,
    all: CpuSet,
    idlers: CpuSet,
    /// Domains with active vCPUs, in the order in which they are served.
    active_domains: Vec<DomainId>,
    /// The sum of the active vCPUs' weights.
    weight: i64,
    /// The sum of the active vCPUs' credits after the last accounting.
    balance: i64,
    /// How often priorities were recomputed.
    epoch: u64,
    touches: Vec<Touch>,
    kicks: CpuSet,
}

impl Scheduler {
    /// A scheduler whose pCPUs all idle.
    ///
    /// # Errors
    /// When there is no pCPU, or the topology lacks one of them.
    pub fn new(config: &Config) -> Result<Self, ModelError> {
        let topology = &config.topology;
        let has_all = (0..config.pcpus).all(|pcpu| topology.cpu(pcpu).is_some());
        if config.pcpus == 0 || !has_all {
            let allowed = format!("1 to {}, the machine's CPUs numbered from 0", topology.len());
            return Err(ModelError::new("pcpus", config.pcpus.to_string(), allowed));
        }
        let all = CpuSet::first(config.pcpus);
        Ok(Self {
            tickle: config.tickle,
            lone_skips_balance: config.lone_skips_balance,
            pcpus: (0..config.pcpus).map(|pcpu| Pcpu::new(pcpu, config)).collect(),
            vcpus: Vec::new(),
            domains: Vec::new(),
            all,
            idlers: all,
            active_domains: Vec::new(),
            weight: 0,
            balance: 0,
            epoch: 0,
            touches: Vec::with_capacity(4 * config.pcpus + 16),
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
        self.domains.push(Domain { share, active: Vec::new(), last_home: None });
        self.active_domains.reserve(self.domains.len());
        Ok(self.domains.len() as DomainId - 1)
    }

    /// Adds a blocked vCPU that may run on the pCPUs `affinity`. A domain's first vCPU starts where the fewest did, each
    /// further one on the next pCPU allowed.
    ///
    /// # Errors
    /// When there is no such domain, or `affinity` holds none of the pCPUs.
    pub fn add_vcpu(&mut self, domain: DomainId, affinity: &CpuSet) -> Result<VcpuId, ModelError> {
        let affinity = affinity.intersection(&self.all);
        let domains = self.domains.len();
        let Some(owner) = self.domains.get_mut(domain as usize) else {
            return Err(ModelError::new("domain", domain.to_string(), format!("one of the {domains} that were added")));
        };
        let home = match owner.last_home {
            None => affinity.iter().min_by_key(|&pcpu| self.pcpus[pcpu].homes),
            Some(last) => affinity.next_after(last),
        };
        let home = home.ok_or_else(|| ModelError::new("affinity", "no pCPU", format!("some of {}", self.all)))?;
        owner.last_home = Some(home);
        owner.active.reserve(self.vcpus.len() + 1);
        self.pcpus[home].homes += 1;
        self.pcpus[home].present += 1;
        affinity.iter().for_each(|pcpu| self.pcpus[pcpu].possible += 1);
        self.vcpus.push(Vcpu::new(domain, affinity, home));
        // What an accounting may touch, so that no decision allocates.
        self.touches.clear();
        self.touches.reserve(5 * self.vcpus.len() + 16);
        Ok(self.vcpus.len() as VcpuId - 1)
    }

    /// The vCPU has something to do again; the pCPU `by` wakes it. Nothing happens when it was not blocked.
    pub fn wake(&mut self, vcpu: VcpuId, by: usize) -> Decision<'_> {
        self.begin();
        self.vcpus[vcpu as usize].blocked = false;
        self.make_runnable(vcpu, by);
        self.decision()
    }

    /// The vCPU has nothing to do: it blocks itself if it runs, and is paused by others if it waits.
    pub fn block(&mut self, vcpu: VcpuId) -> Decision<'_> {
        self.begin();
        self.vcpus[vcpu as usize].blocked = true;
        if self.runs(vcpu) {
            // A vCPU that blocks itself takes no lock; its pCPU is on its way into the scheduler.
            self.kicks.insert(self.vcpus[vcpu as usize].pcpu);
        } else {
            self.take_off(vcpu);
        }
        self.decision()
    }

    /// The tick of a pCPU: charges the vCPU that runs, ends its boost, moves it where more is idle, and brings the queue
    /// into order if priorities have changed.
    pub fn tick(&mut self, pcpu: usize, now_ns: u64) -> Decision<'_> {
        self.begin();
        let current = self.pcpus[pcpu].current;
        if current != NONE {
            self.charge_running(current, now_ns);
        }
        self.touches.push(Touch::PeekEpoch);
        if self.pcpus[pcpu].sorted != self.epoch {
            self.pcpus[pcpu].sorted = self.epoch;
            self.touches.extend([Touch::Lock(pcpu), Touch::ChangeQueue(pcpu), Touch::Unlock(pcpu)]);
            self.sort(pcpu);
        }
        self.decision()
    }

    /// Hands out the credits of a period, and recomputes priorities; `by` is the pCPU whose timer it is.
    pub fn account(&mut self, by: usize) -> Accounting<'_> {
        self.begin();
        account::account(self, by)
    }

    /// What the pCPU runs from `now_ns` on. `is_held` says whether another pCPU's `schedule_lock` is taken just now: the
    /// load balancer passes over those.
    pub fn schedule(&mut self, pcpu: usize, now_ns: u64, is_held: impl Fn(usize) -> bool) -> Next<'_> {
        self.begin();
        self.touches.push(Touch::Lock(pcpu));
        let last = self.pcpus[pcpu].current;
        if last != NONE {
            self.burn(last, now_ns);
            self.vcpus[last as usize].start_ns -= now_ns as i64;
            let yields = std::mem::take(&mut self.vcpus[last as usize].yields);
            if self.vcpus[last as usize].is_runnable() {
                if yields { self.insert_behind_one_lower(last) } else { self.insert(last) }
            }
        }
        let (next, migrated) = self.choose(pcpu, is_held);
        self.pcpus[pcpu].current = next;
        self.note_idleness(pcpu, next == NONE);
        if next != NONE {
            self.vcpus[next as usize].start_ns += now_ns as i64;
        }
        self.touches.push(Touch::Unlock(pcpu));
        if last != NONE && self.vcpus[last as usize].migrating {
            self.migrate(last, pcpu);
        }
        let (vcpu, slice_ns) = if next == NONE { (None, None) } else { (Some(next), Some(SLICE_NS)) };
        Next { vcpu, slice_ns, migrated, touches: &self.touches, kicks: &self.kicks }
    }

    /// A vCPU that runs will go behind one of a lower priority, too, at the next decision on its pCPU (Xen 4.1,
    /// `csched_vcpu_yield`). A yield of Xen 4.0 is a decision and no more: the vCPU goes behind its equals.
    pub fn give_way(&mut self, vcpu: VcpuId) {
        self.vcpus[vcpu as usize].yields = self.runs(vcpu);
    }

    /// Whether a vCPU waits for a pCPU.
    pub fn waits(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu as usize].queued
    }

    /// The pCPU `by` has a vCPU that waits run as soon as its priority allows: it goes before its equals, boosted if it has
    /// credits. No such call is in Xen; it is what KVM's directed yield does (kernel/sched/fair.c, `yield_to_task_fair`) in
    /// terms of this scheduler. Nothing happens when it does not wait.
    pub fn run_next(&mut self, vcpu: VcpuId, by: usize) -> Decision<'_> {
        self.begin();
        if self.waits(vcpu) {
            let pcpu = self.vcpus[vcpu as usize].pcpu;
            self.touches.extend([Touch::Lock(pcpu), Touch::ChangeQueue(pcpu)]);
            self.remove(vcpu);
            let v = &mut self.vcpus[vcpu as usize];
            if v.priority == Priority::Under {
                v.priority = Priority::Boost;
            }
            self.insert_first(vcpu);
            self.tell(vcpu, by);
            self.touches.push(Touch::Unlock(pcpu));
        }
        self.decision()
    }

    /// The vCPU that runs on a pCPU; `None` for the idle vCPU.
    pub fn current(&self, pcpu: usize) -> Option<VcpuId> {
        Some(self.pcpus[pcpu].current).filter(|&vcpu| vcpu != NONE)
    }

    /// Where a vCPU runs, or in whose queue it waits, or waited last; before that, where it starts.
    pub fn pcpu_of(&self, vcpu: VcpuId) -> usize {
        self.vcpus[vcpu as usize].pcpu
    }

    /// The vCPUs that wait on a pCPU, the next first.
    pub fn waiting(&self, pcpu: usize) -> impl Iterator<Item = VcpuId> + '_ {
        let known = |vcpu: VcpuId| Some(vcpu).filter(|&vcpu| vcpu != NONE);
        std::iter::successors(known(self.pcpus[pcpu].head), move |&vcpu| known(self.vcpus[vcpu as usize].next))
    }

    /// The pCPUs that idle, as the bitmap says.
    pub fn idlers(&self) -> &CpuSet {
        &self.idlers
    }

    /// A vCPU's priority.
    pub fn priority(&self, vcpu: VcpuId) -> Priority {
        self.vcpus[vcpu as usize].priority
    }

    /// A vCPU's credits.
    pub fn credit(&self, vcpu: VcpuId) -> i64 {
        self.vcpus[vcpu as usize].credit
    }

    /// Whether a vCPU is held back as its domain has used up its cap.
    pub fn is_parked(&self, vcpu: VcpuId) -> bool {
        self.vcpus[vcpu as usize].parked
    }

    fn begin(&mut self) {
        self.touches.clear();
        self.kicks = CpuSet::EMPTY;
    }

    fn decision(&self) -> Decision<'_> {
        Decision { touches: &self.touches, kicks: &self.kicks }
    }

    fn runs(&self, vcpu: VcpuId) -> bool {
        self.pcpus[self.vcpus[vcpu as usize].pcpu].current == vcpu
    }

    /// The best of the pCPU's queue, which it leaves, or what the load balancer finds where that is not urgent.
    fn choose(&mut self, pcpu: usize, is_held: impl Fn(usize) -> bool) -> (VcpuId, bool) {
        self.touches.push(Touch::ChangeQueue(pcpu));
        let head = self.pcpus[pcpu].head;
        let priority = (head != NONE).then(|| self.vcpus[head as usize].priority);
        let Pcpu { possible, present, .. } = self.pcpus[pcpu];
        let is_alone = self.lone_skips_balance && possible <= 1 && present == possible;
        if priority <= Some(Priority::Over)
            && !is_alone
            && let Some(stolen) = self.balance_load(pcpu, priority, is_held)
        {
            return (stolen, true);
        }
        if head != NONE {
            self.remove(head);
        }
        (head, false)
    }

    /// Looks through the queues of the busy pCPUs, the next neighbour first, for a vCPU of a higher priority than `than`.
    fn balance_load(&mut self, pcpu: usize, than: Option<Priority>, is_held: impl Fn(usize) -> bool) -> Option<VcpuId> {
        self.touches.push(Touch::PeekIdlers);
        let mut workers = self.all.difference(&self.idlers);
        workers.remove(pcpu);
        let mut peer = pcpu;
        while let Some(next) = workers.next_after(peer) {
            peer = next;
            workers.remove(peer);
            let taken = !is_held(peer);
            self.touches.push(Touch::TryLock { pcpu: peer, taken });
            if !taken {
                continue;
            }
            let stolen = self.steal(peer, pcpu, than);
            self.touches.push(Touch::Unlock(peer));
            if stolen.is_some() {
                return stolen;
            }
        }
        None
    }

    /// Takes the first vCPU that may run on `pcpu` and is of a higher priority than `than` out of the queue of `peer` -
    /// unless that runs its idle vCPU, and so is about to take it itself.
    fn steal(&mut self, peer: usize, pcpu: usize, than: Option<Priority>) -> Option<VcpuId> {
        if self.pcpus[peer].current == NONE {
            return None;
        }
        self.touches.push(Touch::PeekQueue(peer));
        let more_urgent = |vcpu: &VcpuId| Some(self.vcpus[*vcpu as usize].priority) > than;
        let found = self
            .waiting(peer)
            .take_while(more_urgent)
            .find(|&vcpu| self.vcpus[vcpu as usize].affinity.contains(pcpu))?;
        self.touches.push(Touch::ChangeQueue(peer));
        self.remove(found);
        self.move_to(found, pcpu);
        Some(found)
    }

    fn move_to(&mut self, vcpu: VcpuId, pcpu: usize) {
        let from = std::mem::replace(&mut self.vcpus[vcpu as usize].pcpu, pcpu);
        self.pcpus[from].present -= 1;
        self.pcpus[pcpu].present += 1;
    }

    fn note_idleness(&mut self, pcpu: usize, is_idle: bool) {
        self.touches.push(Touch::PeekIdlers);
        if self.idlers.contains(pcpu) == is_idle {
            return;
        }
        self.touches.push(Touch::ChangeIdlers);
        if is_idle {
            self.idlers.insert(pcpu);
        } else {
            self.idlers.remove(pcpu);
        }
    }

    /// Puts a vCPU that nothing holds back any more into the queue of its pCPU, boosted if it has credits.
    fn make_runnable(&mut self, vcpu: VcpuId, by: usize) {
        let pcpu = self.vcpus[vcpu as usize].pcpu;
        self.touches.push(Touch::Lock(pcpu));
        let v = &mut self.vcpus[vcpu as usize];
        if v.is_runnable() && !v.queued && self.pcpus[pcpu].current != vcpu {
            if v.priority == Priority::Under {
                v.priority = Priority::Boost;
            }
            self.enqueue_and_tell(vcpu, by);
        }
        self.touches.push(Touch::Unlock(pcpu));
    }

    fn enqueue_and_tell(&mut self, vcpu: VcpuId, by: usize) {
        self.touches.push(Touch::ChangeQueue(self.vcpus[vcpu as usize].pcpu));
        self.insert(vcpu);
        self.tell(vcpu, by);
    }

    /// Kicks the pCPU that runs something less urgent, and idlers if it is not idle itself.
    fn tell(&mut self, vcpu: VcpuId, by: usize) {
        let Vcpu { pcpu, priority, affinity, .. } = &self.vcpus[vcpu as usize];
        let current = self.current(*pcpu).map(|current| self.vcpus[current as usize].priority);
        if Some(*priority) > current {
            self.kicks.insert(*pcpu);
        }
        if current.is_none() {
            return;
        }
        self.touches.push(Touch::PeekIdlers);
        let idlers = self.idlers.intersection(affinity);
        match self.tickle {
            Tickle::All => self.kicks = self.kicks.union(&idlers),
            Tickle::One => {
                if let Some(idler) = idlers.next_after(self.pcpus[by].last_tickled) {
                    self.pcpus[by].last_tickled = idler;
                    self.kicks.insert(idler);
                }
            }
        }
    }

    /// Takes a vCPU that may no longer run out of its queue, or has its pCPU do so.
    fn take_off(&mut self, vcpu: VcpuId) {
        let pcpu = self.vcpus[vcpu as usize].pcpu;
        self.touches.push(Touch::Lock(pcpu));
        if self.runs(vcpu) {
            self.kicks.insert(pcpu);
        } else if self.vcpus[vcpu as usize].queued {
            self.touches.push(Touch::ChangeQueue(pcpu));
            self.remove(vcpu);
        }
        self.touches.push(Touch::Unlock(pcpu));
    }

    fn charge_running(&mut self, vcpu: VcpuId, now_ns: u64) {
        self.touches.push(Touch::ChangeCredits(vcpu));
        let v = &mut self.vcpus[vcpu as usize];
        v.priority = v.priority.min(Priority::Under);
        self.burn(vcpu, now_ns);
        if !self.vcpus[vcpu as usize].active {
            self.touches.extend([Touch::LockPrivate, Touch::UnlockPrivate]);
            self.start_earning(vcpu);
            return;
        }
        let pcpu = self.vcpus[vcpu as usize].pcpu;
        if self.pick(vcpu, false) != pcpu {
            self.vcpus[vcpu as usize].migrating = true;
            self.kicks.insert(pcpu);
        }
    }

    /// Takes the credits for the time the vCPU has run, to the nearest; the rest stays open.
    fn burn(&mut self, vcpu: VcpuId, now_ns: u64) {
        const MS: i64 = 1_000_000;
        let vcpu = &mut self.vcpus[vcpu as usize];
        let ran_ns = now_ns as i64 - vcpu.start_ns;
        if ran_ns > 0 {
            let credits = (ran_ns * CREDITS_PER_MS + MS / 2) / MS;
            vcpu.credit -= credits;
            vcpu.start_ns += credits * MS / CREDITS_PER_MS;
        }
    }

    /// The vCPU has left `from`: it goes where more is idle, as if it woke there.
    fn migrate(&mut self, vcpu: VcpuId, from: usize) {
        self.touches.push(Touch::Lock(from));
        let to = self.pick(vcpu, true);
        self.move_to(vcpu, to);
        self.vcpus[vcpu as usize].migrating = false;
        self.touches.push(Touch::Unlock(from));
        self.make_runnable(vcpu, from);
    }
}

impl Vcpu {
    fn new(domain: DomainId, affinity: CpuSet, home: usize) -> Self {
        Self {
            domain,
            affinity,
            pcpu: home,
            priority: Priority::Under,
            credit: 0,
            start_ns: 0,
            blocked: true,
            parked: false,
            migrating: false,
            active: false,
            yields: false,
            queued: false,
            next: NONE,
            previous: NONE,
        }
    }

    fn is_runnable(&self) -> bool {
        !self.blocked && !self.parked && !self.migrating
    }
}

impl Pcpu {
    fn new(pcpu: usize, config: &Config) -> Self {
        let cpu = |number| config.topology.cpu(number).expect("the caller checked that it is there");
        let like = |same: &dyn Fn(usize) -> bool| (0..config.pcpus).filter(|&other| same(other)).collect();
        Self {
            current: NONE,
            head: NONE,
            tail: NONE,
            sorted: 0,
            last_tickled: 0,
            idle_bias: config.pcpus - 1,
            core: like(&|other| cpu(other).core == cpu(pcpu).core),
            socket: like(&|other| cpu(other).socket == cpu(pcpu).socket),
            possible: 0,
            present: 0,
            homes: 0,
        }
    }
}
