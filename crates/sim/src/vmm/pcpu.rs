//! pCPUs: which vCPU each runs, and what the VMM does there before, between and after.
//!
//! An interrupt of the host takes a pCPU out of the guest or out of C1 into the VMM, which first does what is pending
//! there (its *soft interrupts*, as Xen calls them: wake vCPUs, charge and hand out credits, schedule), and then enters
//! the guest of whatever vCPU is on the pCPU, or idles. The scheduler is asked in one place and is either of two.
//!
//! Natively nothing of this happens: a vCPU is the core itself.

use super::scheduler::{Next, VmmScheduler};
use super::shared::Shared;
use crate::engine::books::{Cost, Parts};
use crate::engine::{NS, Ps};
use crate::guest::vcpu::VcpuState;
use crate::machine::interrupt::reason;
use crate::machine::lines::Cause;
use crate::machine::tlb::{Space, Tlb};
use crate::machine::walk::Walk;
use crate::world::{NONE, World, kind, slot_of};
use muster_model::workload::Duration;
use muster_model::{Account, CpuSet};
use muster_policy::credit::{self, Decision, Touch};

/// What a pCPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcpuState {
    /// It is its vCPU's, exits on that one's behalf included.
    Guest,
    /// Runs the VMM's idle vCPU: it is in C1.
    Idle,
    /// Leaves C1 for an interrupt of the host.
    Waking,
    /// Is in the VMM: at an interrupt of the host, deciding, switching.
    Vmm,
    /// Refills its caches for a vCPU that came from another pCPU.
    Refilling,
}

/// Work that the VMM does before it enters a guest; a pCPU's is a set of these bits.
pub mod softirq {
    /// Wake the vCPUs for which an interrupt has come in.
    pub const WAKE: u8 = 1;
    /// The scheduler's tick.
    pub const TICK: u8 = 2;
    /// Hand out credits.
    pub const ACCOUNT: u8 = 4;
    /// Look for what to run.
    pub const SCHEDULE: u8 = 8;
    /// The vCPU that is there has halted while it waits for a lock.
    pub const BLOCK: u8 = 16;
}

/// A vCPU as the VMM sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// On a pCPU; the VMM may be at work there.
    Running,
    /// Preempted, or woken and not back yet.
    Runnable,
    /// Halted.
    Blocked,
}

/// What the VMM's scheduler did over the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Questions put to it: wake-ups, blocks, ticks, accountings, and what to run; none where vCPUs are pinned.
    pub decisions: u64,
    /// Interrupts with which one pCPU told another to schedule.
    pub kicks: u64,
    /// vCPUs put on a pCPU.
    pub switches: u64,
    /// vCPUs taken off one though they could have gone on.
    pub preemptions: u64,
    /// vCPUs put on another pCPU than the last.
    pub migrations: u64,
}

/// A core of the machine as the VMM sees it.
#[derive(Debug)]
pub struct Pcpu {
    /// What it does.
    pub state: PcpuState,
    /// The vCPU that is on it, or [`NONE`].
    pub current: u32,
    /// What the VMM has to do here.
    pub softirqs: u8,
    /// Halted vCPUs for which an interrupt has come in here.
    pub woken: Vec<u32>,
    /// What refilling caches will take.
    pub refill: Ps,
    /// The translations it holds.
    pub tlb: Tlb,
    /// Whose code ran last.
    pub space: Space,
    /// Since when it idles, if it does.
    pub idle_since: Ps,
    /// The vCPU that is on it gives it up, if anybody else wants it.
    pub yields: bool,
}

impl Pcpu {
    /// A pCPU that runs a vCPU.
    pub(crate) fn with_vcpu(c: usize) -> Self {
        Self { state: PcpuState::Guest, current: c as u32, ..Self::idle() }
    }

    /// A pCPU that idles.
    pub(crate) fn idle() -> Self {
        Self {
            state: PcpuState::Idle,
            current: NONE,
            softirqs: 0,
            woken: Vec::new(),
            refill: 0,
            tlb: Tlb::default(),
            space: Space::Kernel,
            idle_since: 0,
            yields: false,
        }
    }
}

impl World {
    // ---- vCPUs that come and go ----

    /// What a vCPU does as the VMM sees it.
    pub(crate) fn run_state(&self, c: usize) -> RunState {
        let vcpu = &self.vcpus[c];
        if self.pcpus[vcpu.pcpu as usize].current == c as u32 {
            RunState::Running
        } else if vcpu.state == VcpuState::Halted || vcpu.pv_halted {
            RunState::Blocked
        } else {
            RunState::Runnable
        }
    }

    /// The vCPU has nothing to do and leaves its pCPU.
    pub(crate) fn block_vcpu(&mut self, c: usize) {
        let vcpu = &mut self.vcpus[c];
        vcpu.state = VcpuState::Halted;
        vcpu.rest_since = self.now;
        let p = vcpu.pcpu as usize;
        self.ledgers.enter_vcpu(c, self.now, Account::Idle);
        self.pcpus[p].state = PcpuState::Vmm;
        self.pcpus[p].softirqs |= softirq::SCHEDULE;
        if self.scheduler.decides() {
            self.block_in_scheduler(c, p);
        }
        self.do_softirqs(p);
    }

    /// The scheduler hears that the vCPU on a pCPU has nothing to do; what that takes.
    pub(super) fn block_in_scheduler(&mut self, c: usize, p: usize) -> Cost {
        let now_ns = self.now / NS;
        self.decide(p, |scheduler, _| scheduler.block(c, now_ns))
    }

    /// An interrupt for a halted vCPU comes to the pCPU on which that was last.
    pub(crate) fn wake_by_interrupt(&mut self, c: usize) {
        let p = self.unhalt(c);
        if self.scheduler.decides() {
            self.pcpus[p].woken.push(c as u32);
            self.host_interrupt(p, softirq::WAKE);
        } else {
            self.host_interrupt(p, softirq::SCHEDULE);
        }
    }

    /// The pCPU `by` sends an interrupt to a vCPU that is on no pCPU: it is posted, and a halted vCPU is woken. What the
    /// VMM's scheduler takes for that.
    pub(crate) fn post(&mut self, c: usize, bits: u8, by: usize) -> Cost {
        self.vcpus[c].pending |= bits;
        // One that has halted for a lock has its interrupts off.
        if self.run_state(c) != RunState::Blocked || self.vcpus[c].pv_halted {
            return Cost::default();
        }
        self.unhalt(c);
        self.wake_vcpu(c, by)
    }

    /// A halted vCPU waits for a pCPU from now on; where it was last.
    fn unhalt(&mut self, c: usize) -> usize {
        self.note_halt(c);
        self.vcpus[c].state = VcpuState::SchedulingIn;
        self.ledgers.enter_vcpu(c, self.now, Account::Steal);
        self.vcpus[c].pcpu as usize
    }

    /// All vCPUs start, as if each had got its start-up interrupt. Where spinning is followed and they share pCPUs under credit
    /// they come one by one within a turn of all of them: a machine has not started its VMs all at once, and a VM whose
    /// vCPUs take their turns in step on all pCPUs never waits for one of its own that is preempted. The service VM has been
    /// there before all others.
    pub(crate) fn start_vcpus(&mut self) {
        let turns = self.vcpus.len().div_ceil(self.pcpus.len()) as u64;
        let follows = self.spinning.is_some() && self.vms.len() > 1;
        let apart = turns > 1 && follows && matches!(self.scheduler, VmmScheduler::Credit(_));
        let turn = turns * credit::SLICE_NS;
        for c in 0..self.vcpus.len() {
            if apart && !self.vm(c).is_service {
                let later = self.timer_random[c].duration(Duration::Uniform { min: 0, max: turn });
                self.queue.schedule(slot_of(c, kind::RESCHEDULE), later);
                continue;
            }
            let p = self.unhalt(c);
            self.vcpus[c].pending = reason::RESCHEDULE;
            self.wake_vcpu(c, p);
        }
        let (period, shared) = (self.scheduler.period(), matches!(self.scheduler, VmmScheduler::Credit(_)));
        let timers = if shared { 1 } else { self.vms.len() };
        (0..timers).for_each(|vm| self.queue.schedule(slot_of(vm, kind::ACCOUNT), period));
    }

    // ---- into the VMM and out of it ----

    /// An interrupt of the host comes to a pCPU, which has to do `softirqs`.
    pub(crate) fn host_interrupt(&mut self, p: usize, softirqs: u8) {
        self.pcpus[p].softirqs |= softirqs;
        match self.pcpus[p].state {
            PcpuState::Idle => {
                self.idle_periods.add(self.now - self.pcpus[p].idle_since);
                let price = self.prices.c1_exit + self.prices.host_interrupt + self.prices.host_idle_exit;
                self.in_vmm(p, PcpuState::Waking, Account::HaltWake, price.into());
            }
            PcpuState::Guest => self.leave_guest(p),
            // It looks again before it enters a guest.
            PcpuState::Waking | PcpuState::Vmm | PcpuState::Refilling => {}
        }
    }

    fn leave_guest(&mut self, p: usize) {
        let c = self.pcpus[p].current as usize;
        if self.vcpus[c].in_call {
            // It looks again at the end of the call.
            return;
        }
        let wakes = match self.vcpus[c].state {
            VcpuState::HostPolling => return self.interrupt_host_poll(p, c),
            // It is in the VMM on its own behalf, which looks again when it is done.
            VcpuState::Suspending | VcpuState::SchedulingIn => return,
            VcpuState::Mwait => self.prices.c1_exit,
            _ => 0,
        };
        self.stop_vcpu(c);
        self.vm_mut(c).counters.interrupt_exits += 1;
        let price = wakes + self.prices.vm_exit + self.prices.host_interrupt;
        self.in_vmm(p, PcpuState::Vmm, Account::VmmScheduler, price.into());
    }

    /// The VMM does something on a pCPU.
    pub(super) fn in_vmm(&mut self, p: usize, state: PcpuState, account: Account, mut cost: Cost) {
        if state != PcpuState::Refilling {
            self.vmm_fetches(p, Cause::Vmm, cost.time).add_to(&mut cost);
        }
        self.note_awake(p, true);
        let waits = cost.parts.total();
        let lasts = self.vmm_lasts(p, cost.time - waits) + waits;
        let pcpu = &mut self.pcpus[p];
        pcpu.state = state;
        self.ledgers.enter_pcpu(p, self.now, account);
        if pcpu.current != NONE {
            self.ledgers.enter_vcpu(pcpu.current as usize, self.now, account);
        }
        self.queue.schedule(slot_of(p, kind::PCPU), self.now + lasts);
        self.divide_pcpu(p, &cost.parts);
    }

    /// Parts of the stretch that has just begun on a pCPU belong to other accounts.
    pub(crate) fn divide_pcpu(&mut self, p: usize, parts: &Parts) {
        let vcpu = Some(self.pcpus[p].current).filter(|&vcpu| vcpu != NONE);
        self.ledgers.divide_pcpu(p, vcpu.map(|vcpu| vcpu as usize), parts);
    }

    /// What the VMM did on a pCPU is done.
    pub(crate) fn vmm_over(&mut self, p: usize) {
        let pcpu = &mut self.pcpus[p];
        if pcpu.softirqs != 0 {
            return self.do_softirqs(p);
        }
        if pcpu.current == NONE {
            pcpu.state = PcpuState::Idle;
            pcpu.idle_since = self.now;
            self.note_awake(p, false);
            return self.ledgers.enter_pcpu(p, self.now, Account::Idle);
        }
        let refill = std::mem::take(&mut pcpu.refill);
        if refill > 0 {
            return self.in_vmm(p, PcpuState::Refilling, Account::CacheTransfer, refill.into());
        }
        pcpu.state = PcpuState::Guest;
        let c = pcpu.current as usize;
        if self.vcpus[c].is_stopped() { self.continue_vcpu(c) } else { self.handle_interrupts(c, true) }
    }

    /// The VMM does what is pending on a pCPU.
    pub(crate) fn do_softirqs(&mut self, p: usize) {
        let pcpu = &mut self.pcpus[p];
        pcpu.state = PcpuState::Vmm;
        let mut bits = std::mem::take(&mut pcpu.softirqs);
        let mut cost = Cost::default();
        if bits != softirq::SCHEDULE {
            cost += self.ask_scheduler(p, bits);
            // That may have raised it.
            bits |= std::mem::take(&mut self.pcpus[p].softirqs);
        }
        if bits & softirq::SCHEDULE != 0 {
            cost += self.schedule_pcpu(p);
        }
        cost.time += self.entry_price(p);
        if cost.time == 0 { self.vmm_over(p) } else { self.in_vmm(p, PcpuState::Vmm, Account::VmmScheduler, cost) }
    }

    /// What a pCPU has to do for the scheduler before it looks for what to run; what that takes.
    fn ask_scheduler(&mut self, p: usize, softirqs: u8) -> Cost {
        let mut cost = Cost::default();
        if softirqs & softirq::BLOCK != 0 {
            cost += self.pv_block(p);
        }
        if softirqs & softirq::WAKE != 0 {
            let mut woken = std::mem::take(&mut self.pcpus[p].woken);
            woken.drain(..).for_each(|c| cost += self.wake_vcpu(c as usize, p));
            self.pcpus[p].woken = woken;
        }
        if softirqs & softirq::TICK != 0 {
            cost += self.tick_scheduler(p);
        }
        if softirqs & softirq::ACCOUNT != 0 {
            cost += self.decide(p, |scheduler, _| scheduler.account(p));
        }
        cost
    }

    /// The scheduler's tick on a pCPU.
    pub(super) fn tick_scheduler(&mut self, p: usize) -> Cost {
        let now_ns = self.now / NS;
        self.decide(p, |scheduler, _| scheduler.tick(p, now_ns))
    }

    /// A vCPU that was stopped enters the guest again; with interrupts pending, their handler pays for that.
    fn entry_price(&self, p: usize) -> Ps {
        let Some(vcpu) = self.vcpus.get(self.pcpus[p].current as usize) else { return 0 };
        if vcpu.is_stopped() && vcpu.pending == 0 { self.prices.vm_entry } else { 0 }
    }

    // ---- decisions ----

    /// The VMM makes a vCPU runnable; what that costs the pCPU `by`, which does it.
    pub(super) fn wake_vcpu(&mut self, c: usize, by: usize) -> Cost {
        let now_ns = self.now / NS;
        let cost = self.decide(by, |scheduler, _| scheduler.wake(c, by, now_ns));
        self.end_poll_before(c);
        cost
    }

    /// vCPU `c` gives way to `target`, which is to run as soon as it can; what that takes.
    pub(super) fn yield_to(&mut self, c: usize, target: usize) -> Cost {
        let (p, now_ns) = (self.vcpus[c].pcpu as usize, self.now / NS);
        self.decide(p, |scheduler, _| scheduler.yield_to(c, target, p, now_ns))
    }

    /// Decides what a pCPU runs from now on, and switches to it; what that takes.
    fn schedule_pcpu(&mut self, p: usize) -> Cost {
        let (next, mut cost) = match self.scheduler {
            VmmScheduler::Credit(_) | VmmScheduler::Eevdf(_) => self.next_vcpu(p),
            VmmScheduler::Pinned if self.vcpus[p].state == VcpuState::Halted || self.vcpus[p].pv_halted => {
                (NONE, Cost::default())
            }
            VmmScheduler::Pinned => (p as u32, Cost::default()),
        };
        let last = std::mem::replace(&mut self.pcpus[p].current, next);
        let yields = std::mem::take(&mut self.pcpus[p].yields);
        if next == last {
            return cost;
        }
        if let Some(left) = self.vcpus.get(last as usize)
            && left.state != VcpuState::Halted
            && !left.pv_halted
        {
            self.scheduling.preemptions += 1;
            self.vms[left.vm as usize].counters.yields += u64::from(yields);
            self.ledgers.enter_vcpu(last as usize, self.now, Account::Steal);
        }
        if next != NONE {
            self.note_loaded(next as usize);
        }
        let Some(vcpu) = self.vcpus.get_mut(next as usize) else { return cost };
        let from = std::mem::replace(&mut vcpu.pcpu, p as u32) as usize;
        self.scheduling.switches += 1;
        self.scheduling.migrations += u64::from(from != p);
        let unblock = if vcpu.state == VcpuState::SchedulingIn { self.prices.unblock } else { 0 };
        let is_followed = from == p || self.follows_caches_of(next as usize);
        self.pcpus[p].refill = if is_followed { 0 } else { self.prices.refill[self.between(from, p)] };
        cost.time += self.prices.schedule_in + unblock + self.flush_at_entry(next as usize);
        cost
    }

    /// The vCPU that the scheduler wants on a pCPU, or [`NONE`], and what the decision costs.
    fn next_vcpu(&mut self, p: usize) -> (u32, Cost) {
        let now = self.now;
        let mut next = Next { vcpu: None, slice_ns: None };
        let cost = self.decide(p, |scheduler, shared| {
            let (chosen, decision) = scheduler.schedule(p, now / NS, |other| shared.is_scheduling(other, now));
            next = chosen;
            decision
        });
        self.set_timers(p, &next);
        (next.vcpu.unwrap_or(NONE), cost)
    }

    /// The slice and the tick of a pCPU that runs something; an idle one has neither.
    fn set_timers(&mut self, p: usize, next: &Next) {
        let (slice, tick) = (slot_of(p, kind::SLICE), slot_of(p, kind::HOST_TICK));
        match next.slice_ns {
            Some(slice_ns) => self.queue.schedule(slice, self.now + slice_ns * NS),
            None => self.queue.cancel(slice),
        }
        if next.vcpu.is_none() {
            self.queue.cancel(tick);
        } else if !self.queue.is_pending(tick) {
            let period = self.scheduler.tick_period();
            self.queue.schedule(tick, (self.now / period + 1) * period);
        }
    }

    /// The scheduler's tick of a pCPU is due.
    pub(crate) fn host_tick_due(&mut self, p: usize) {
        self.queue.schedule(slot_of(p, kind::HOST_TICK), self.now + self.scheduler.tick_period());
        self.host_interrupt(p, softirq::TICK);
    }

    /// Credits are to be handed out, by the first pCPU, or a VM's quota is renewed: what that timer takes is left out.
    pub(crate) fn account_due(&mut self, vm: usize) {
        self.queue.schedule(slot_of(vm, kind::ACCOUNT), self.now + self.scheduler.period());
        if let VmmScheduler::Credit(_) = self.scheduler {
            self.stuck = (0..self.vms.len()).any(|vm| self.nothing_can_happen(vm));
            return self.host_interrupt(0, softirq::ACCOUNT);
        }
        self.stuck |= self.nothing_can_happen(vm);
        let now_ns = self.now / NS;
        self.decide(0, |scheduler, _| scheduler.refill(vm, now_ns));
    }

    /// Has the pCPU `by` ask the scheduler something, and does what follows; what that takes.
    fn decide(
        &mut self,
        by: usize,
        question: impl for<'a> FnOnce(&'a mut VmmScheduler, &Shared) -> Decision<'a>,
    ) -> Cost {
        let mut scheduler = std::mem::take(&mut self.scheduler);
        let Decision { touches, kicks } = question(&mut scheduler, &self.shared);
        self.scheduling.decisions += 1;
        let mut cost = self.charge_touches(by, touches);
        cost.time += self.kick(by, kicks);
        self.scheduler = scheduler;
        cost
    }

    /// What a decision and the shared objects that it touches cost the pCPU that takes it.
    fn charge_touches(&mut self, pcpu: usize, touches: &[Touch]) -> Cost {
        if touches.is_empty() {
            return Cost::default();
        }
        let mut walk = Walk::new(pcpu, Cause::VmmScheduler, self.now);
        self.shared.touch(touches, self.prices.decision, &mut walk);
        let mut cost = Cost { time: walk.at - self.now, parts: walk.parts };
        self.vmm_fetches(pcpu, Cause::VmmScheduler, self.prices.decision).add_to(&mut cost);
        cost
    }

    /// Tells pCPUs to schedule; what sending the interrupts takes.
    fn kick(&mut self, by: usize, kicks: &CpuSet) -> Ps {
        let mut price = 0;
        for p in kicks.iter() {
            let slot = slot_of(p, kind::KICK);
            if p != by {
                self.scheduling.kicks += 1;
                price += self.prices.ipi_send;
                if !self.queue.is_pending(slot) {
                    let in_guest = self.pcpus[p].state == PcpuState::Guest;
                    let reach = self.prices.ipi_delivery + if in_guest { self.prices.kick_delivery } else { 0 };
                    self.queue.schedule(slot, self.now + price + reach);
                }
            } else if matches!(self.pcpus[p].state, PcpuState::Guest | PcpuState::Idle) {
                // It is not in the VMM, where it would look by itself; a vCPU finishes the step that it is in first.
                self.queue.schedule(slot, self.now);
            } else {
                self.pcpus[p].softirqs |= softirq::SCHEDULE;
            }
        }
        price
    }
}
