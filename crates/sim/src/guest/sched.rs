//! Run queues: a fair scheduler for each CPU, preemption by tick and by wake-up, balancing by idle CPUs.
//!
//! A thread's virtual run time is its run time by its weight. The parameters are Linux 3.2's for 8
//! or more CPUs (kernel/sched_fair.c: the defaults times 1 + log2(8)). Yielding threads are SCHED_IDLE: they run when
//! nobody else wants the CPU, and the 0.3 % that their weight would claim beside others is left out.

use super::thread::Mode;
use crate::engine::books::Cost;
use crate::engine::{NS, Ps};
use crate::guest::vcpu::{Vcpu, VcpuState};
use crate::machine::interrupt::reason;
use crate::world::{NONE, World, kind, slot_of};
use muster_model::Account;
use muster_model::study::Placement;

/// sysctl_sched_latency: every waiting thread runs within this time.
const LATENCY: Ps = 24_000_000 * NS;
/// sysctl_sched_min_granularity: no thread is preempted by the tick before this time.
const MIN_GRANULARITY: Ps = 3_000_000 * NS;
/// sysctl_sched_wakeup_granularity: a woken thread preempts one that has had this much more.
const WAKEUP_GRANULARITY: Ps = 4_000_000 * NS;

impl World {
    // ---- accounting ----

    /// Charges the vCPU's thread with what it has run.
    #[inline]
    pub(crate) fn charge(&mut self, c: usize) {
        let vcpu = &mut self.vcpus[c];
        let ran = self.now - vcpu.run_since;
        vcpu.run_since = self.now;
        let thread = &mut self.threads[vcpu.current as usize];
        thread.cpu_ps += ran;
        thread.vruntime += thread.weighted(ran);
        if vcpu.queue.is_empty() {
            vcpu.min_vruntime = vcpu.min_vruntime.max(thread.vruntime);
        }
    }

    // ---- queues ----

    /// Puts a thread on a vCPU's queue.
    pub(crate) fn enqueue(&mut self, t: u32, c: usize) {
        let vcpu = &mut self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        vm.waiting_changes(self.now, 1);
        vm.idle.remove(c);
        vm.queued.insert(c);
        vcpu.queue.push(t);
        self.threads[t as usize].cpu = c as u32;
    }

    /// A thread that has slept comes to a vCPU with at most half a latency of credit (GENTLE_FAIR_SLEEPERS).
    pub(crate) fn place_sleeper(&mut self, t: u32, c: usize) {
        self.move_vruntime(t, c);
        let floor = self.vcpus[c].min_vruntime.saturating_sub(LATENCY / 2);
        let thread = &mut self.threads[t as usize];
        thread.vruntime = thread.vruntime.max(floor);
    }

    /// Virtual run times are relative to their queue's floor.
    fn move_vruntime(&mut self, t: u32, to: usize) {
        let from = self.threads[t as usize].cpu as usize;
        if from != to {
            let thread = &mut self.threads[t as usize];
            let shifted = thread.vruntime + self.vcpus[to].min_vruntime;
            thread.vruntime = shifted.saturating_sub(self.vcpus[from].min_vruntime);
        }
    }

    /// Takes the thread with the least virtual run time off a vCPU's queue.
    fn pick(&mut self, c: usize) -> Option<u32> {
        let queue = &self.vcpus[c].queue;
        let least = |&i: &usize| self.threads[queue[i] as usize].vruntime;
        let index = (0..queue.len()).min_by_key(least)?;
        let vcpu = &mut self.vcpus[c];
        let t = vcpu.queue.swap_remove(index);
        let vm = &mut self.vms[vcpu.vm as usize];
        vm.waiting_changes(self.now, -1);
        if vcpu.queue.is_empty() {
            vm.queued.remove(c);
        }
        vcpu.min_vruntime = vcpu.min_vruntime.max(self.threads[t as usize].vruntime);
        Some(t)
    }

    /// Takes a thread off the middle of a vCPU's queue.
    pub(crate) fn dequeue(&mut self, c: usize, index: usize) -> u32 {
        let vcpu = &mut self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        vm.waiting_changes(self.now, -1);
        if vcpu.queue.len() == 1 {
            vm.queued.remove(c);
        }
        vcpu.queue.remove(index)
    }

    /// Takes a thread that may run on `c` off the longest queue, a near one first; and whose queue that is.
    pub(crate) fn pull(&mut self, c: usize) -> Option<(u32, usize)> {
        let vm = self.vm(c);
        if vm.waiting == 0 || !vm.active.contains(c) {
            return None;
        }
        let mut best = None;
        let mut unseen = vm.waiting as usize;
        for other in vm.queued.iter() {
            let Vcpu { queue, current, .. } = &self.vcpus[other];
            let rank = (queue.len(), self.llc[c].contains(other));
            // A lone thread on its way to a vCPU that is waking up stays there, as in Linux (nr_running > 1).
            let crowded = queue.len() > 1 || *current != NONE;
            if crowded
                && other != c
                && best.is_none_or(|(longest, _, _)| rank > longest)
                && let Some(index) = queue.iter().position(|&t| self.allowed[t as usize].contains(c))
            {
                best = Some((rank, other, index));
            }
            unseen -= queue.len();
            if unseen == 0 {
                break;
            }
        }
        let (_, other, index) = best?;
        let t = self.dequeue(other, index);
        self.move_vruntime(t, c);
        self.threads[t as usize].cpu = c as u32;
        Some((t, other))
    }

    // ---- switching ----

    /// The vCPU has no thread: the next one, one from elsewhere, or idle.
    pub(crate) fn schedule(&mut self, c: usize) {
        self.vcpus[c].need_resched = false;
        if let Some(t) = self.pick(c) {
            self.switch_to(c, t);
        } else if let Some((t, from)) = self.pull(c) {
            self.switch_to_pulled(c, t, from);
        } else {
            self.go_idle(c);
        }
    }

    /// What a switch takes. Where the VM's paging is simulated, that is where it costs more than natively.
    pub(crate) fn switch_price(&self, c: usize) -> Ps {
        let in_vm = self.virtualized && !self.vm(c).has_paging;
        self.prices.context_switch + if in_vm { self.prices.guest_switch } else { 0 }
    }

    fn switch_to(&mut self, c: usize, t: u32) {
        let Cost { time, parts } = self.begin_switch(c, t);
        let price = self.switch_price(c);
        self.busy_under_own_queue(c, (VcpuState::Switching, Account::Kernel), price, price + time, parts);
    }

    /// Switches to a thread that was found in the queue of `from`.
    fn switch_to_pulled(&mut self, c: usize, t: u32, from: usize) {
        let Cost { time, parts } = self.begin_switch(c, t);
        let price = self.switch_price(c);
        let plan = self.pull_plan(c, from, price);
        let duration = self.prices.balance + price + time;
        self.busy_under(c, (VcpuState::Switching, Account::Kernel), &plan, duration, parts);
    }

    /// The thread becomes the vCPU's; what it takes that its address space is loaded.
    fn begin_switch(&mut self, c: usize, t: u32) -> Cost {
        let loading = if self.paging.is_some() { self.load_space(c, t) } else { Cost::default() };
        let vcpu = &mut self.vcpus[c];
        let vm = &mut self.vms[vcpu.vm as usize];
        vm.idle.remove(c);
        vm.in_mm.insert(c);
        vm.counters.switches += 1;
        vcpu.current = t;
        loading
    }

    /// The switch is done; a thread from another vCPU refills its caches first.
    pub(crate) fn switched(&mut self, c: usize) {
        let t = self.vcpus[c].current;
        if t == NONE {
            return self.switched_to_yielding(c);
        }
        self.vcpus[c].slice_start = self.now;
        self.start_tick(c);
        let last = std::mem::replace(&mut self.threads[t as usize].ran_on, c as u32);
        if last != NONE && last as usize != c {
            self.vm_mut(c).counters.migrations += 1;
            if self.follows_caches_of(c) {
                return self.resume_or_interrupt(c);
            }
            let refill = self.prices.refill[self.apart(last as usize, c)];
            return self.busy(c, VcpuState::Refilling, Account::CacheTransfer, refill);
        }
        self.resume_or_interrupt(c);
    }

    /// Interrupts that came in while they were off are handled first.
    pub(crate) fn resume_or_interrupt(&mut self, c: usize) {
        if self.vcpus[c].pending != 0 { self.handle_interrupts(c, false) } else { self.resume(c) }
    }

    /// The vCPU's thread goes on where it was.
    pub(crate) fn resume(&mut self, c: usize) {
        let t = self.vcpus[c].current;
        let thread = &self.threads[t as usize];
        match thread.mode {
            Mode::Stretch if thread.remaining > 0 => {
                let (account, remaining) = (thread.account, thread.remaining);
                self.vcpus[c].run_since = self.now;
                self.busy(c, VcpuState::Thread, account, remaining);
            }
            Mode::Stretch => self.step(c),
            Mode::Spin => self.spin_on(c, t),
            Mode::Acks => self.await_acks(c),
        }
    }

    /// The vCPU's thread stops for an interrupt.
    pub(crate) fn pause_thread(&mut self, c: usize) {
        self.note_spinning(c);
        let slot = slot_of(c, kind::VCPU);
        let timed = self.queue.is_pending(slot) && !self.vcpus[c].ple_armed;
        self.end_pauses(c);
        self.charge(c);
        self.queue.cancel(slot);
        let left = self.work_left(c, self.vcpus[c].until.saturating_sub(self.now));
        let thread = &mut self.threads[self.vcpus[c].current as usize];
        thread.remaining = match thread.mode {
            Mode::Stretch => left,
            Mode::Spin if timed && !thread.granted => left.max(1),
            Mode::Spin | Mode::Acks => 0,
        };
    }

    /// The vCPU's thread gives way, unless it is still the one to run.
    pub(crate) fn preempt(&mut self, c: usize) {
        self.vcpus[c].need_resched = false;
        let t = self.vcpus[c].current;
        if !self.allowed[t as usize].contains(c) {
            self.vcpus[c].current = NONE;
            self.displace(t, c);
            return self.schedule(c);
        }
        if self.vcpus[c].queue.is_empty() {
            return self.resume(c);
        }
        self.enqueue(t, c);
        let next = self.pick(c).expect("a thread was just queued");
        self.vcpus[c].current = NONE;
        if next == t {
            self.vcpus[c].current = t;
            self.vcpus[c].slice_start = self.now;
            return self.resume(c);
        }
        self.switch_to(c, next);
    }

    /// The core's thread has yielded: the next of the others runs, unless that has had so much more that it would be
    /// unfair (kernel/sched_fair.c, `pick_next_entity` with the skip buddy).
    pub(crate) fn yield_core(&mut self, c: usize) {
        let t = self.vcpus[c].current;
        let least = self.vcpus[c].queue.iter().map(|&other| self.threads[other as usize].vruntime).min();
        let thread = &self.threads[t as usize];
        if least.is_none_or(|least| least > thread.vruntime + thread.weighted(WAKEUP_GRANULARITY)) {
            return self.fetch(c);
        }
        let next = self.pick(c).expect("somebody waits");
        let thread = &mut self.threads[t as usize];
        (thread.step, thread.in_kernel, thread.remaining) = (super::thread::Step::Fetch, false, 0);
        self.vcpus[c].current = NONE;
        self.vcpus[c].need_resched = false;
        self.enqueue(t, c);
        self.switch_to(c, next);
    }

    /// Whether a thread that comes to vCPU `c` should run before the one that is there.
    pub(crate) fn should_preempt(&self, c: usize, t: u32) -> bool {
        let vcpu = &self.vcpus[c];
        let (current, comes) = (&self.threads[vcpu.current as usize], &self.threads[t as usize]);
        let has = current.vruntime + current.weighted(vcpu.uncharged(self.now));
        has > comes.vruntime + comes.weighted(WAKEUP_GRANULARITY)
    }

    // ---- moving threads ----

    /// A thread leaves a vCPU where it may not run.
    pub(crate) fn displace(&mut self, t: u32, from: usize) {
        let target = self.place(from, t, Placement::Spread);
        self.move_vruntime(t, target);
        self.enqueue(t, target);
        self.rouse(from, target);
    }

    /// The vCPU `from` makes `c` look at its queue if that would not by itself; what the IPI costs it is left out.
    pub(crate) fn rouse(&mut self, from: usize, c: usize) {
        let sleeps = matches!(
            self.vcpus[c].state,
            VcpuState::Halted
                | VcpuState::HostPolling
                | VcpuState::Mwait
                | VcpuState::Polling
                | VcpuState::Yielding
                | VcpuState::EnteringIdle
                | VcpuState::Suspending
        );
        if sleeps && !std::mem::replace(&mut self.vcpus[c].signalled, true) {
            self.deliver(from, c);
        }
    }

    /// Moves one thread that waits behind another to an idle vCPU, if there is one for it; to which.
    pub(crate) fn push_one(&mut self, c: usize) -> Option<usize> {
        if self.vm(c).idle.is_empty() {
            return None;
        }
        for index in 0..self.vcpus[c].queue.len() {
            let t = self.vcpus[c].queue[index];
            let target = self.place(c, t, Placement::Spread);
            if self.vm(c).idle.contains(target) {
                self.dequeue(c, index);
                self.move_vruntime(t, target);
                self.enqueue(t, target);
                self.rouse(c, target);
                return Some(target);
            }
        }
        None
    }

    /// A vCPU that is awake and idle looks for waiting threads.
    pub(crate) fn pull_due(&mut self, c: usize) {
        let vcpu = &self.vcpus[c];
        let looks = matches!(vcpu.state, VcpuState::Yielding | VcpuState::Polling);
        if !looks || vcpu.signalled || vcpu.is_stopped() {
            return;
        }
        if let Some((t, _)) = self.pull(c) {
            self.enqueue(t, c);
            self.end_rest(c);
            self.after_idle_interrupt(c);
        }
    }

    // ---- the tick ----

    /// The tick goes on where it would be had it not been stopped (kernel/time/tick-sched.c, `tick_nohz_restart`).
    pub(crate) fn start_tick(&mut self, c: usize) {
        if !self.queue.is_pending(slot_of(c, kind::TICK)) {
            let tick = self.vm(c).kernel.tick;
            let late = self.timer_lateness(c);
            self.queue.schedule(slot_of(c, kind::TICK), (self.now / tick + 1) * tick + late);
        }
    }

    /// A vCPU's tick is due; it goes on as long as the vCPU has a thread, and with some kernels in idle.
    pub(crate) fn tick_due(&mut self, c: usize) {
        if self.vcpus[c].current != NONE || self.vm(c).kernel.ticks_in_idle {
            if !self.vcpus[c].is_stopped() {
                self.start_tick(c);
            }
            self.interrupt(c, reason::TICK);
        }
    }

    /// The tick's handler: ends a slice that is over, and sends a waiting thread to an idle vCPU; to which.
    pub(crate) fn tick(&mut self, c: usize) -> Option<usize> {
        let vcpu = &mut self.vcpus[c];
        if vcpu.current == NONE || vcpu.queue.is_empty() {
            return None;
        }
        let weight = |t: u32| Ps::from(self.threads[t as usize].weight);
        let all = vcpu.queue.iter().map(|&t| weight(t)).sum::<Ps>() + weight(vcpu.current);
        let slice = (LATENCY * weight(vcpu.current) / all).max(MIN_GRANULARITY);
        vcpu.need_resched |= self.now - vcpu.slice_start >= slice;
        self.push_one(c)
    }

    // ---- timers ----

    /// A thread's sleep is over: its vCPU's timer interrupts.
    pub(crate) fn timer_due(&mut self, t: usize) {
        let c = self.threads[t].cpu as usize;
        self.vm_mut(c).asleep -= 1;
        let mut sleepers = self.vcpus[c].sleepers;
        sleepers.push(&mut self.threads, t as u32);
        self.vcpus[c].sleepers = sleepers;
        self.interrupt(c, reason::TIMER);
    }

    /// The timer's handler wakes the threads as any waker would; what sending an IPI costs it is left out.
    pub(crate) fn wake_sleepers(&mut self, c: usize) {
        loop {
            let mut sleepers = self.vcpus[c].sleepers;
            let Some(t) = sleepers.pop(&self.threads) else { return };
            self.vcpus[c].sleepers = sleepers;
            self.wake_in_handler(c, t);
        }
    }

    /// A handler on vCPU `c` wakes a thread; what sending an IPI costs it is left out.
    pub(crate) fn wake_in_handler(&mut self, c: usize, t: u32) {
        let thread = &mut self.threads[t as usize];
        thread.step = super::thread::Step::Near;
        thread.mode = Mode::Stretch;
        thread.in_kernel = true;
        thread.remaining = 0;
        thread.waits_for = super::thread::WaitFor::Permit(u32::MAX);
        let target = self.place(c, t, self.vm(c).placement);
        self.place_sleeper(t, target);
        self.enqueue(t, target);
        if target != c {
            self.rouse(c, target);
        } else if self.vcpus[c].current != NONE && self.should_preempt(c, t) {
            self.vcpus[c].need_resched = true;
        }
    }
}
