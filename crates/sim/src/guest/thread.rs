//! Threads: what one is doing, and the steps it takes from one operation of its program to the next.

use crate::engine::Ps;
use crate::workload::program::{LOOP_DEPTH, Op};
use crate::world::{CoreState, NONE, World, core_slot, kind};
use muster_model::Account;

/// A list of threads, linked through [`Thread::next`]; a thread is in one list at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
}

impl List {
    /// The empty list.
    pub const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The first thread, or [`NONE`].
    pub fn first(&self) -> u32 {
        self.head
    }

    /// Appends a thread.
    pub fn push(&mut self, threads: &mut [Thread], t: u32) {
        threads[t as usize].next = NONE;
        if self.head == NONE {
            self.head = t;
        } else {
            threads[self.tail as usize].next = t;
        }
        self.tail = t;
    }

    /// Takes out the first thread.
    pub fn pop(&mut self, threads: &[Thread]) -> Option<u32> {
        let t = self.head;
        if t == NONE {
            return None;
        }
        self.head = threads[t as usize].next;
        Some(t)
    }

    /// Takes out a thread from anywhere; walks the list.
    pub fn remove(&mut self, threads: &mut [Thread], t: u32) {
        let mut kept = Self::EMPTY;
        let mut at = self.head;
        while at != NONE {
            let next = threads[at as usize].next;
            if at != t {
                kept.push(threads, at);
            }
            at = next;
        }
        *self = kept;
    }
}

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// A mutex, or a spin-then-block lock after its spinning.
    Mutex(u32),
    /// A kernel mutex.
    KernelMutex(u32),
    /// A condition's permit.
    Permit(u32),
    /// A futex barrier.
    Barrier(u32),
    /// A condition-variable barrier.
    Broadcast(u32),
}

/// Whom a waking call wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// One waiter of a mutex.
    Mutex(u32),
    /// Whoever was put on the thread's own list already.
    Listed,
    /// Waiters of a condition, who get `count` permits.
    Condition {
        /// Condition.
        condition: u32,
        /// Permits.
        count: u32,
    },
    /// Everybody at a futex barrier.
    Barrier(u32),
    /// One waiter of a condition-variable barrier; the others move to its mutex.
    Broadcast(u32),
}

/// What happens when a thread's present stretch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next operation.
    Fetch,
    /// It is queued: block, unless what it waits for has come.
    Block(WaitFor),
    /// It runs for the first time after being woken.
    Woken,
    /// The lines that its waker left elsewhere have come.
    Near,
    /// It is back in user mode after being woken.
    Returned,
    /// The waking call has found its waiters.
    Collect(Source),
    /// One thread's wake-up is done.
    Wake,
    /// The write to the interrupt command register has been emulated, or done.
    IpiWritten(u32),
    /// The VMM has made the target's vCPU runnable.
    VcpuWoken(u32),
    /// Back in the guest (or past the register write): the next thread to wake.
    WakeNext,
    /// The system call that sleeps has reached the scheduler.
    Sleep(u32),
    /// The shootdown's interrupts have been sent.
    FlushSent,
}

/// What a woken thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The next operation.
    Fetch,
    /// Tries to take the mutex it was waiting for.
    Retry(u32),
}

/// How a thread that has a core, or waits for one, was last running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A stretch with an end.
    Stretch,
    /// Spinning for a lock.
    Spin,
    /// Waiting for other cores to drop translations.
    Acks,
}

/// A thread.
#[derive(Debug, Clone)]
pub struct Thread {
    /// Its next operation.
    pub pc: u32,
    /// Its core: where it runs, waits or ran last.
    pub cpu: u32,
    /// The next thread of the list it is in.
    pub next: u32,
    /// What happens when its present stretch ends.
    pub step: Step,
    /// How it runs.
    pub mode: Mode,
    /// Account of its present stretch.
    pub account: Account,
    /// Whether it is in the kernel, where it is not preempted.
    pub in_kernel: bool,
    /// The core on which it ran last, where its caches are warm.
    pub ran_on: u32,
    /// The lock it spins for is its own now.
    pub granted: bool,
    /// What is left of its present stretch while it does not run.
    pub remaining: Ps,
    /// Virtual run time (all threads have the same weight).
    pub vruntime: Ps,
    /// When its present waking call began.
    pub call_start: Ps,
    /// When the call began that woke it.
    pub woken_from: Ps,
    /// The core that woke it.
    pub waker_core: u32,
    /// What it does once it is awake.
    pub after: After,
    /// What it waits or last waited for.
    pub waits_for: WaitFor,
    /// The generation of the barrier it waits at.
    pub generation: u32,
    /// It waits for a kernel lock to share it with other readers.
    pub shares: bool,
    /// Threads it is about to wake.
    pub wakes: List,
    /// What it does after its waking call.
    pub then: Step,
}

impl Thread {
    /// A thread at the start of its program.
    pub fn new(pc: u32) -> Self {
        Self {
            pc,
            cpu: 0,
            next: NONE,
            step: Step::Fetch,
            mode: Mode::Stretch,
            account: Account::User,
            in_kernel: false,
            ran_on: NONE,
            granted: false,
            remaining: 0,
            vruntime: 0,
            call_start: 0,
            woken_from: 0,
            waker_core: NONE,
            after: After::Fetch,
            waits_for: WaitFor::Mutex(0),
            generation: 0,
            shares: false,
            wakes: List::EMPTY,
            then: Step::Fetch,
        }
    }
}

impl World {
    /// The core's thread runs a stretch, after which `step` follows.
    #[inline]
    pub(crate) fn stretch(&mut self, c: usize, duration: Ps, account: Account, in_kernel: bool, step: Step) {
        let thread = &mut self.threads[self.cores[c].current as usize];
        thread.step = step;
        thread.mode = Mode::Stretch;
        thread.account = account;
        thread.in_kernel = in_kernel;
        thread.remaining = 0;
        self.cores[c].run_since = self.now;
        self.busy(c, CoreState::Thread, account, duration);
    }

    /// A stretch in the kernel on the program's behalf.
    #[inline]
    pub(crate) fn in_kernel(&mut self, c: usize, duration: Ps, step: Step) {
        self.stretch(c, duration, Account::Kernel, true, step);
    }

    /// The core's thread has ended a stretch.
    #[inline]
    pub(crate) fn step(&mut self, c: usize) {
        let t = self.cores[c].current;
        match self.threads[t as usize].step {
            Step::Fetch => self.fetch(c),
            Step::Block(what) => self.block_unless_passed(c, t, what),
            Step::Woken => self.fetch_lines(c, t),
            Step::Near => self.in_kernel(c, self.prices.return_from_wait, Step::Returned),
            Step::Returned => self.returned(c, t),
            Step::Collect(source) => self.collect(c, t, source),
            Step::Wake => self.wake_one(c, t),
            Step::IpiWritten(target) => self.ipi_written(c, target as usize),
            Step::VcpuWoken(target) => self.send_reschedule(c, target as usize),
            Step::WakeNext => self.wake_next(c, t),
            Step::Sleep(duration) => self.sleep(c, t, duration),
            Step::FlushSent => self.await_flushes(c, t),
        }
    }

    /// The core's thread goes on with its program until something takes time.
    pub(crate) fn fetch(&mut self, c: usize) {
        let t = self.cores[c].current as usize;
        self.threads[t].in_kernel = false;
        self.threads[t].step = Step::Fetch;
        self.threads[t].mode = Mode::Stretch;
        loop {
            if self.cores[c].need_resched {
                self.threads[t].remaining = 0;
                return self.preempt(c);
            }
            let op = self.ops[self.threads[t].pc as usize];
            self.threads[t].pc += 1;
            match op {
                Op::Run(duration) => {
                    let duration = self.random[t].duration(self.durations[duration as usize]);
                    return self.stretch(c, duration, Account::User, false, Step::Fetch);
                }
                Op::Loop { depth, times } => self.loops[t * LOOP_DEPTH + depth as usize] = times,
                Op::Again { depth, to } => {
                    self.turns[t] += u64::from(depth == 0);
                    let left = &mut self.loops[t * LOOP_DEPTH + depth as usize];
                    *left -= 1;
                    if *left > 0 {
                        self.threads[t].pc = to;
                    }
                }
                Op::Share(lock) => {
                    if !self.try_share(lock) {
                        self.threads[t].shares = true;
                        return self.contend(c, t as u32, lock);
                    }
                }
                Op::Unshare(lock) => {
                    if self.release_shared(c, t as u32, lock) {
                        return;
                    }
                }
                Op::Acquire(lock) => {
                    self.threads[t].shares = false;
                    if !self.try_acquire(lock) {
                        return self.contend(c, t as u32, lock);
                    }
                }
                Op::Release(lock) => {
                    if self.release(c, t as u32, lock, Step::Fetch) {
                        return;
                    }
                }
                Op::Arrive(barrier) => return self.arrive(c, t as u32, barrier),
                Op::ArriveHolding(barrier) => return self.arrive_holding(c, t as u32, barrier),
                Op::Wait(condition) => {
                    if !self.conditions[condition as usize].take() {
                        let price = self.prices.syscall + self.prices.block;
                        return self.wait(c, t as u32, price, WaitFor::Permit(condition), After::Fetch);
                    }
                }
                Op::Give { condition, count } => {
                    if self.give(c, t as u32, condition, count) {
                        return;
                    }
                }
                Op::Syscall(duration) => {
                    let work = self.random[t].duration(self.durations[duration as usize]);
                    return self.in_kernel(c, self.prices.syscall + work, Step::Fetch);
                }
                Op::Kernel(duration) => return self.in_kernel(c, duration, Step::Fetch),
                Op::Clock(duration) => return self.stretch(c, duration, Account::User, false, Step::Fetch),
                Op::Shootdown => return self.shoot_down(c),
                Op::Sleep(duration) => {
                    let price = self.prices.syscall + self.prices.block;
                    return self.in_kernel(c, price, Step::Sleep(duration));
                }
                Op::Exit => return self.exit(c),
            }
        }
    }

    fn exit(&mut self, c: usize) {
        self.live -= 1;
        self.cores[c].current = NONE;
        self.schedule(c);
    }

    fn sleep(&mut self, c: usize, t: u32, duration: u32) {
        let duration = self.random[t as usize].duration(self.durations[duration as usize]);
        self.queue.schedule(core_slot(t as usize, kind::TIMER), self.now + duration);
        self.asleep += 1;
        let thread = &mut self.threads[t as usize];
        thread.after = After::Fetch;
        self.cores[c].current = NONE;
        self.schedule(c);
    }

    /// First stretch of a woken thread: the lines that the waker wrote come over.
    fn fetch_lines(&mut self, c: usize, t: u32) {
        let waker = self.threads[t as usize].waker_core;
        if waker == NONE || waker as usize == c {
            return self.in_kernel(c, self.prices.return_from_wait, Step::Returned);
        }
        let lines = self.prices.wake_lines[self.apart(waker as usize, c)];
        self.stretch(c, lines, Account::CacheTransfer, true, Step::Near);
    }

    fn returned(&mut self, c: usize, t: u32) {
        let thread = &mut self.threads[t as usize];
        if matches!(thread.waits_for, WaitFor::Mutex(_) | WaitFor::KernelMutex(_)) {
            self.counters.lock_wakes += 1;
            self.counters.lock_wake_ps += self.now - thread.woken_from;
        }
        match thread.after {
            After::Fetch => self.fetch(c),
            After::Retry(lock) => self.retry(c, t, lock),
        }
    }

    fn ended(&self, thread: &Thread) -> bool {
        thread.pc > 0 && self.ops[thread.pc as usize - 1] == Op::Exit
    }

    /// Who waits for what, for the report of a deadlock.
    pub(crate) fn who_waits(&self) -> String {
        let waits: Vec<String> = (self.threads.iter().enumerate())
            .filter(|(_, thread)| !self.ended(thread))
            .take(8)
            .map(|(t, thread)| format!("thread {t} for {:?}", thread.waits_for))
            .collect();
        waits.join(", ")
    }
}
