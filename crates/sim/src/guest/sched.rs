//! Run queues: a fair scheduler for each CPU, preemption by tick and by wake-up, balancing by idle CPUs.
//!
//! Every thread has the same weight; a thread's virtual run time is its run time. The parameters are Linux 3.2's for 8
//! or more CPUs (kernel/sched_fair.c: the defaults times 1 + log2(8)). Yielding threads are SCHED_IDLE: they run when
//! nobody else wants the CPU, and the 0.3 % that their weight would claim beside others is left out.

use super::thread::Mode;
use crate::engine::{NS, Ps};
use crate::machine::interrupt::reason;
use crate::world::{CoreState, NONE, TICK, World, core_slot, kind};
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

    /// Charges the core's thread with what it has run.
    #[inline]
    pub(crate) fn charge(&mut self, c: usize) {
        let core = &mut self.cores[c];
        let ran = self.now - core.run_since;
        core.run_since = self.now;
        let thread = &mut self.threads[core.current as usize];
        thread.vruntime += ran;
        if core.queue.is_empty() {
            core.min_vruntime = core.min_vruntime.max(thread.vruntime);
        }
        self.cpu_ps += ran;
        if let Some(window) = &mut self.daemon.window {
            window.ran[core.current as usize] += ran;
        }
    }

    /// The number of threads in run queues changes.
    fn waiting_changes(&mut self, by: i32) {
        self.waiting_ps += Ps::from(self.waiting) * (self.now - self.waiting_since);
        self.waiting_since = self.now;
        self.waiting = self.waiting.wrapping_add_signed(by);
    }

    // ---- queues ----

    /// Puts a thread on a core's queue.
    pub(crate) fn enqueue(&mut self, t: u32, c: usize) {
        self.waiting_changes(1);
        self.threads[t as usize].cpu = c as u32;
        self.cores[c].queue.push(t);
        self.idle.remove(c);
    }

    /// A thread that has slept comes to a core with at most half a latency of credit (GENTLE_FAIR_SLEEPERS).
    pub(crate) fn place_sleeper(&mut self, t: u32, c: usize) {
        self.move_vruntime(t, c);
        let floor = self.cores[c].min_vruntime.saturating_sub(LATENCY / 2);
        let thread = &mut self.threads[t as usize];
        thread.vruntime = thread.vruntime.max(floor);
    }

    /// Virtual run times are relative to their queue's floor.
    fn move_vruntime(&mut self, t: u32, to: usize) {
        let from = self.threads[t as usize].cpu as usize;
        if from != to {
            let thread = &mut self.threads[t as usize];
            let shifted = thread.vruntime + self.cores[to].min_vruntime;
            thread.vruntime = shifted.saturating_sub(self.cores[from].min_vruntime);
        }
    }

    /// Takes the thread with the least virtual run time off a core's queue.
    fn pick(&mut self, c: usize) -> Option<u32> {
        let queue = &self.cores[c].queue;
        let least = |&i: &usize| self.threads[queue[i] as usize].vruntime;
        let index = (0..queue.len()).min_by_key(least)?;
        let t = self.cores[c].queue.swap_remove(index);
        self.waiting_changes(-1);
        let floor = self.threads[t as usize].vruntime;
        self.cores[c].min_vruntime = self.cores[c].min_vruntime.max(floor);
        Some(t)
    }

    /// Takes a thread off the middle of a core's queue.
    pub(crate) fn dequeue(&mut self, c: usize, index: usize) -> u32 {
        self.waiting_changes(-1);
        self.cores[c].queue.remove(index)
    }

    /// Takes a thread that may run on `c` off the longest queue, a near one first.
    pub(crate) fn pull(&mut self, c: usize) -> Option<u32> {
        if self.waiting == 0 || !self.active.contains(c) {
            return None;
        }
        let mut best = None;
        for other in (0..self.cores.len()).filter(|&other| other != c) {
            let queue = &self.cores[other].queue;
            let rank = (queue.len(), self.llc[c].contains(other));
            // A lone thread on its way to a core that is waking up stays there, as in Linux (nr_running > 1).
            let crowded = queue.len() > 1 || self.cores[other].current != NONE;
            if crowded
                && best.is_none_or(|(longest, _, _)| rank > longest)
                && let Some(index) = queue.iter().position(|&t| self.allowed[t as usize].contains(c))
            {
                best = Some((rank, other, index));
            }
        }
        let (_, other, index) = best?;
        let t = self.dequeue(other, index);
        self.move_vruntime(t, c);
        self.threads[t as usize].cpu = c as u32;
        Some(t)
    }

    // ---- switching ----

    /// The core has no thread: the next one, one from elsewhere, or idle.
    pub(crate) fn schedule(&mut self, c: usize) {
        self.cores[c].need_resched = false;
        if let Some(t) = self.pick(c) {
            self.switch_to(c, t, 0);
        } else if let Some(t) = self.pull(c) {
            self.switch_to(c, t, self.prices.balance);
        } else {
            self.go_idle(c);
        }
    }

    pub(crate) fn switch_price(&self) -> Ps {
        self.prices.context_switch + if self.virtualized { self.prices.guest_switch } else { 0 }
    }

    fn switch_to(&mut self, c: usize, t: u32, extra: Ps) {
        self.idle.remove(c);
        self.in_mm.insert(c);
        self.cores[c].current = t;
        self.counters.switches += 1;
        self.busy(c, CoreState::Switching, Account::Kernel, self.switch_price() + extra);
    }

    /// The switch is done; a thread from another core refills its caches first.
    pub(crate) fn switched(&mut self, c: usize) {
        let t = self.cores[c].current;
        if t == NONE {
            return self.switched_to_yielding(c);
        }
        self.cores[c].slice_start = self.now;
        self.start_tick(c);
        let last = std::mem::replace(&mut self.threads[t as usize].ran_on, c as u32);
        if last != NONE && last as usize != c {
            self.counters.migrations += 1;
            let refill = self.prices.refill[self.apart(last as usize, c)];
            return self.busy(c, CoreState::Refilling, Account::CacheTransfer, refill);
        }
        self.resume_or_interrupt(c);
    }

    /// Interrupts that came in while they were off are handled first.
    pub(crate) fn resume_or_interrupt(&mut self, c: usize) {
        if self.cores[c].pending != 0 { self.handle_interrupts(c, false) } else { self.resume(c) }
    }

    /// The core's thread goes on where it was.
    pub(crate) fn resume(&mut self, c: usize) {
        let t = self.cores[c].current;
        let thread = &self.threads[t as usize];
        match thread.mode {
            Mode::Stretch if thread.remaining > 0 => {
                let (account, remaining) = (thread.account, thread.remaining);
                self.cores[c].run_since = self.now;
                self.busy(c, CoreState::Thread, account, remaining);
            }
            Mode::Stretch => self.step(c),
            Mode::Spin => self.spin_on(c, t),
            Mode::Acks => self.await_acks(c),
        }
    }

    /// The core's thread stops for an interrupt.
    pub(crate) fn pause_thread(&mut self, c: usize) {
        self.charge(c);
        let slot = core_slot(c, kind::CORE);
        let timed = self.queue.is_pending(slot);
        self.queue.cancel(slot);
        let left = self.cores[c].until.saturating_sub(self.now);
        let thread = &mut self.threads[self.cores[c].current as usize];
        thread.remaining = match thread.mode {
            Mode::Stretch => left,
            Mode::Spin if timed && !thread.granted => left.max(1),
            Mode::Spin | Mode::Acks => 0,
        };
    }

    /// The core's thread gives way, unless it is still the one to run.
    pub(crate) fn preempt(&mut self, c: usize) {
        self.cores[c].need_resched = false;
        let t = self.cores[c].current;
        if !self.allowed[t as usize].contains(c) {
            self.cores[c].current = NONE;
            self.displace(t, c);
            return self.schedule(c);
        }
        if self.cores[c].queue.is_empty() {
            return self.resume(c);
        }
        self.enqueue(t, c);
        let next = self.pick(c).expect("a thread was just queued");
        self.cores[c].current = NONE;
        if next == t {
            self.cores[c].current = t;
            self.cores[c].slice_start = self.now;
            return self.resume(c);
        }
        self.switch_to(c, next, 0);
    }

    /// Whether a thread that comes to core `c` should run before the one that is there.
    pub(crate) fn should_preempt(&self, c: usize, t: u32) -> bool {
        let core = &self.cores[c];
        let running = matches!(core.state, CoreState::Thread | CoreState::Spinning | CoreState::AwaitingAcks);
        let since = if running { self.now - core.run_since } else { 0 };
        let has = self.threads[core.current as usize].vruntime + since;
        has > self.threads[t as usize].vruntime + WAKEUP_GRANULARITY
    }

    // ---- moving threads ----

    /// A thread leaves a core where it may not run.
    pub(crate) fn displace(&mut self, t: u32, from: usize) {
        let target = self.place(from, t, Placement::Spread);
        self.move_vruntime(t, target);
        self.enqueue(t, target);
        self.rouse(target);
    }

    /// Makes a core look at its queue if it would not by itself.
    pub(crate) fn rouse(&mut self, c: usize) {
        let sleeps = matches!(
            self.cores[c].state,
            CoreState::Halted
                | CoreState::Mwait
                | CoreState::Polling
                | CoreState::Yielding
                | CoreState::EnteringIdle
                | CoreState::Suspending
        );
        if sleeps && !std::mem::replace(&mut self.cores[c].signalled, true) {
            self.deliver(c);
        }
    }

    /// Moves one thread that waits behind another to an idle core, if there is one for it. Whether it did.
    pub(crate) fn push_one(&mut self, c: usize) -> bool {
        if self.idle.is_empty() {
            return false;
        }
        for index in 0..self.cores[c].queue.len() {
            let t = self.cores[c].queue[index];
            let target = self.place(c, t, Placement::Spread);
            if self.idle.contains(target) {
                self.dequeue(c, index);
                self.move_vruntime(t, target);
                self.enqueue(t, target);
                self.rouse(target);
                return true;
            }
        }
        false
    }

    /// A core that is awake and idle looks for waiting threads.
    pub(crate) fn pull_due(&mut self, c: usize) {
        if !matches!(self.cores[c].state, CoreState::Yielding | CoreState::Polling) || self.cores[c].signalled {
            return;
        }
        if let Some(t) = self.pull(c) {
            self.enqueue(t, c);
            self.end_rest(c);
            self.after_idle_interrupt(c);
        }
    }

    // ---- the tick ----

    /// The tick goes on where it would be had it not been stopped (kernel/time/tick-sched.c, `tick_nohz_restart`).
    pub(crate) fn start_tick(&mut self, c: usize) {
        if !self.queue.is_pending(core_slot(c, kind::TICK)) {
            self.queue.schedule(core_slot(c, kind::TICK), (self.now / TICK + 1) * TICK);
        }
    }

    /// A core's tick is due; it goes on as long as the core has a thread.
    pub(crate) fn tick_due(&mut self, c: usize) {
        if self.cores[c].current != NONE {
            self.start_tick(c);
            self.interrupt(c, reason::TICK);
        }
    }

    /// The tick's handler: ends a slice that is over, and sends a waiting thread to an idle core.
    pub(crate) fn tick(&mut self, c: usize) {
        let core = &self.cores[c];
        if core.current == NONE || core.queue.is_empty() {
            return;
        }
        let slice = (LATENCY / (core.queue.len() as Ps + 1)).max(MIN_GRANULARITY);
        if self.now - core.slice_start >= slice {
            self.cores[c].need_resched = true;
        }
        self.push_one(c);
    }

    // ---- timers ----

    /// A thread's sleep is over: its core's timer interrupts.
    pub(crate) fn timer_due(&mut self, t: usize) {
        self.asleep -= 1;
        let c = self.threads[t].cpu as usize;
        let mut sleepers = self.cores[c].sleepers;
        sleepers.push(&mut self.threads, t as u32);
        self.cores[c].sleepers = sleepers;
        self.interrupt(c, reason::TIMER);
    }

    /// The timer's handler wakes the threads as any waker would; what sending an IPI costs it is left out.
    pub(crate) fn wake_sleepers(&mut self, c: usize) {
        loop {
            let mut sleepers = self.cores[c].sleepers;
            let Some(t) = sleepers.pop(&self.threads) else { return };
            self.cores[c].sleepers = sleepers;
            let thread = &mut self.threads[t as usize];
            thread.step = super::thread::Step::Near;
            thread.mode = Mode::Stretch;
            thread.in_kernel = true;
            thread.remaining = 0;
            thread.waits_for = super::thread::WaitFor::Permit(u32::MAX);
            let target = self.place(c, t, self.placement);
            self.place_sleeper(t, target);
            self.enqueue(t, target);
            if target != c {
                self.rouse(target);
            } else if self.cores[c].current != NONE && self.should_preempt(c, t) {
                self.cores[c].need_resched = true;
            }
        }
    }
}
