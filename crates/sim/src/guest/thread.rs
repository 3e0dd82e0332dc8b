//! Threads: what one is doing, and the steps it takes from one operation of its program to the next.

use crate::engine::{NS, Ps};
use crate::guest::vcpu::VcpuState;
use crate::io::IoStep;
use crate::machine::lines::Cause;
use crate::machine::walk::Walk;
use crate::workload::program::{LOOP_DEPTH, Op};
use crate::world::{NONE, World, kind, slot_of};
use muster_model::Account;
use muster_model::workload::RUN_FOR_PIECE_NS;

/// Weight by niceness from -20 (kernel/sched.c, `prio_to_weight`): a step is 10 % of the CPU.
const WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121, 2501,
    1991, 1586, 1277, NICE_0, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];
const NICE_0: u32 = 1024;

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
    /// A condition variable.
    Condvar(u32),
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
    /// The VMM has the lock of the VM's event channels, to notify the target.
    EventsLocked(u32),
    /// The event has been sent.
    EventSent,
    /// A semaphore's count is to be changed.
    Count(u32),
    /// The VMM has made the target's vCPU runnable.
    VcpuWoken(u32),
    /// Back in the guest (or past the register write): the next thread to wake.
    WakeNext,
    /// The system call that sleeps has reached the scheduler.
    Sleep(u32),
    /// The one that sleeps until [`Thread::until`] has.
    SleepUntil,
    /// The system call that yields has reached the scheduler.
    Yield,
    /// The system call that changes its CPUs is done.
    Affinity(u32),
    /// The shootdown's interrupts have been sent.
    FlushSent,
    /// The clock was read; so many reads are left.
    ReadClock(u32),
    /// The next operation of a system call, whoever else wants the CPU.
    InCall,
    /// A call gives a lock back and goes on.
    Unlock,
    /// Something with devices.
    Io(IoStep),
}

/// What a woken thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The next operation.
    Fetch,
    /// Tries to take the mutex it was waiting for.
    Retry(u32),
}

/// How a thread that has a vCPU, or waits for one, was last running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A stretch with an end.
    Stretch,
    /// Spinning for a lock.
    Spin,
    /// Waiting for other vCPUs to drop translations.
    Acks,
}

/// A thread.
#[derive(Debug, Clone)]
pub struct Thread {
    /// Its first operation.
    pub start: u32,
    /// Its next operation.
    pub pc: u32,
    /// Its vCPU: where it runs, waits or ran last.
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
    /// The vCPU on which it ran last, where its caches are warm.
    pub ran_on: u32,
    /// The lock it spins for is its own now.
    pub granted: bool,
    /// What is left of its present stretch while it does not run.
    pub remaining: Ps,
    /// CPU time that it has been charged with.
    pub cpu_ps: Ps,
    /// Virtual run time.
    pub vruntime: Ps,
    /// Its weight: what its share of a CPU is in proportion to.
    pub weight: u32,
    /// When its present waking call began.
    pub call_start: Ps,
    /// When the call began that woke it.
    pub woken_from: Ps,
    /// The vCPU that woke it.
    pub waker_cpu: u32,
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
    /// When it began to compute for a time that the clock says.
    pub since: Option<Ps>,
    /// The time up to which it sleeps.
    pub until: Ps,
    /// When its program began.
    pub begun: Ps,
    /// Where its timers begin.
    pub origin: Ps,
    /// The condition variable has been signalled while it was on its way to blocking.
    pub signalled: bool,
    /// The semaphore whose own lock it holds while it wakes others, or [`NONE`].
    pub counts: u32,
    /// Pages that it has unmapped and not freed yet.
    pub unfreed: u32,
}

impl Thread {
    /// A thread at the start of its program.
    pub fn new(pc: u32, nice: i8) -> Self {
        Self {
            start: pc,
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
            cpu_ps: 0,
            vruntime: 0,
            weight: WEIGHTS[(nice + 20) as usize],
            call_start: 0,
            woken_from: 0,
            waker_cpu: NONE,
            after: After::Fetch,
            waits_for: WaitFor::Mutex(0),
            generation: 0,
            shares: false,
            wakes: List::EMPTY,
            then: Step::Fetch,
            since: None,
            until: 0,
            begun: 0,
            origin: 0,
            signalled: false,
            counts: NONE,
            unfreed: 0,
        }
    }

    /// The thread at the start of its program again, where it ran last and with the run time it has had.
    pub fn restart(&mut self, now: Ps) {
        let Self { cpu, ran_on, cpu_ps, vruntime, weight, .. } = *self;
        *self = Self { cpu, ran_on, cpu_ps, vruntime, weight, begun: now, origin: now, ..Self::new(self.start, 0) };
    }

    /// Run time as virtual run time: a heavy thread's goes by slowly (`calc_delta_fair`).
    #[inline]
    pub fn weighted(&self, ran: Ps) -> Ps {
        if self.weight == NICE_0 { ran } else { ran * Ps::from(NICE_0) / Ps::from(self.weight) }
    }
}

impl World {
    /// The vCPU's thread runs a stretch, after which `step` follows.
    #[inline]
    pub(crate) fn stretch(&mut self, c: usize, duration: Ps, account: Account, in_kernel: bool, step: Step) {
        self.stretch_with_waits(c, duration, 0, account, in_kernel, step);
    }

    /// The same; `waits` of `duration` are waits for others.
    #[inline]
    fn stretch_with_waits(&mut self, c: usize, duration: Ps, waits: Ps, account: Account, in_kernel: bool, step: Step) {
        let fetching = self.fetch_in_stretch(c, in_kernel, duration);
        let thread = &mut self.threads[self.vcpus[c].current as usize];
        thread.step = step;
        thread.mode = Mode::Stretch;
        thread.account = account;
        thread.in_kernel = in_kernel;
        thread.remaining = 0;
        self.vcpus[c].run_since = self.now;
        self.work(c, VcpuState::Thread, account, duration - waits, waits + fetching.total());
        self.kernel_walks += fetching.walking * Ps::from(in_kernel);
        self.book_fetching(c, fetching);
    }

    /// A stretch in the kernel on the program's behalf.
    #[inline]
    pub(crate) fn in_kernel(&mut self, c: usize, duration: Ps, step: Step) {
        self.stretch(c, duration, Account::Kernel, true, step);
    }

    /// A piece of the guest kernel's code on vCPU `c` that begins now.
    #[inline]
    pub(crate) fn kernel_walk(&self, c: usize) -> Walk {
        Walk::new(self.vcpus[c].pcpu as usize, Cause::Guest, self.now)
    }

    /// The same as a stretch of the vCPU's thread.
    #[inline]
    pub(crate) fn walk_in_kernel(&mut self, c: usize, walk: &Walk, step: Step) {
        self.kernel_spin += walk.waited;
        let waits = walk.parts.total();
        self.stretch_with_waits(c, walk.at - self.now, waits, Account::Kernel, true, step);
        self.ledgers.divide(c, walk.pcpu, &walk.parts);
    }

    /// The vCPU's thread has ended a stretch.
    #[inline]
    pub(crate) fn step(&mut self, c: usize) {
        let t = self.vcpus[c].current;
        match self.threads[t as usize].step {
            Step::Fetch => self.fetch(c),
            Step::Block(what) => self.block_unless_passed(c, t, what),
            Step::Woken => self.fetch_lines(c, t),
            Step::Near => self.in_kernel(c, self.prices.return_from_wait, Step::Returned),
            Step::Returned => self.returned(c, t),
            Step::Collect(source) => self.collect(c, t, source),
            Step::Wake => self.wake_one(c, t),
            Step::IpiWritten(target) => self.ipi_written(c, target as usize),
            Step::EventsLocked(target) => self.notify(c, target as usize),
            Step::EventSent => self.unlock_events(c),
            Step::Count(lock) => self.count(c, lock),
            Step::VcpuWoken(target) => self.send_reschedule(c, target as usize),
            Step::WakeNext => self.wake_next(c, t),
            Step::Sleep(duration) => {
                let duration = self.random[t as usize].duration(self.durations[duration as usize]);
                self.sleep_until(c, t, self.now + duration);
            }
            Step::SleepUntil => self.sleep_until(c, t, self.threads[t as usize].until.max(self.now)),
            Step::Yield => self.yield_core(c),
            Step::Affinity(cpus) => self.move_to(c, t, cpus),
            Step::FlushSent => self.await_flushes(c, t),
            Step::ReadClock(times) => self.reads_clock(c, times),
            Step::InCall => self.proceed(c, true),
            Step::Unlock => self.unlock(c),
            Step::Io(step) => self.io_step(c, t, step),
        }
    }

    /// The vCPU's thread goes on with its program until something takes time.
    #[inline]
    pub(crate) fn fetch(&mut self, c: usize) {
        self.proceed(c, false);
    }

    /// The same; `in_call`: in the middle of a system call, which does not leave its CPU to others.
    pub(crate) fn proceed(&mut self, c: usize, mut in_call: bool) {
        let t = self.vcpus[c].current as usize;
        self.threads[t].in_kernel = false;
        self.threads[t].step = Step::Fetch;
        self.threads[t].mode = Mode::Stretch;
        loop {
            if self.vcpus[c].need_resched && !in_call {
                self.threads[t].remaining = 0;
                return self.preempt(c);
            }
            if self.paging.as_ref().is_some_and(|paging| paging.has_exits(t)) {
                return self.next_exit(c, t, in_call);
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
                Op::Count(lock) => return self.count(c, lock),
                Op::CountAtomically(lock) => return self.count_atomically(c, lock),
                Op::Call => {
                    self.enter_kernel(c);
                    in_call = true;
                }
                Op::Touch(touch) => return self.touch(c, touch),
                Op::Return => in_call = false,
                Op::Pick(count) => self.pick_file(t, count),
                Op::TakePicked(lock) => {
                    let lock = lock + self.picked[t];
                    if !self.try_acquire(lock) {
                        return self.contend(c, t as u32, lock);
                    }
                }
                Op::GivePicked(lock) => {
                    if self.release(c, t as u32, lock + self.picked[t], Step::Fetch) {
                        return;
                    }
                }
                Op::Forever { depth, to } => {
                    self.turns[t] += u64::from(depth == 0);
                    self.threads[t].pc = to;
                }
                Op::RunFor(lasts) => {
                    if self.run_for(c, t, lasts) {
                        return;
                    }
                }
                Op::SleepUntil(after) => {
                    let until = self.threads[t].begun + after;
                    self.threads[t].origin = until;
                    if until > self.now {
                        return self.start_sleep(c, t, until);
                    }
                }
                Op::Timer { timer, period } => return self.advance_timer(c, t, timer, period),
                Op::Yield => return self.in_kernel(c, self.prices.syscall, Step::Yield),
                Op::Affinity(cpus) => {
                    if self.pinned[t] != self.cpu_sets[cpus as usize] {
                        return self.in_kernel(c, self.prices.syscall, Step::Affinity(cpus));
                    }
                }
                Op::Await { condvar, lock } => return self.await_signal(c, t as u32, condvar, lock),
                Op::Signal { condvar, all } => {
                    if self.signal_condvar(c, t as u32, condvar, all) {
                        return;
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
                    self.enter_kernel(c);
                    return self.in_kernel(c, self.prices.syscall + work, Step::Fetch);
                }
                Op::Kernel(duration) => return self.in_kernel(c, duration, Step::Fetch),
                Op::Enter(duration) => {
                    self.enter_kernel(c);
                    return self.in_kernel(c, duration, Step::Fetch);
                }
                Op::Fork { work, exec } => {
                    self.fork_space(c, t, Some(exec).filter(|&exec| exec != NONE));
                    self.enter_kernel(c);
                    return self.in_kernel(c, work, Step::Fetch);
                }
                Op::EndChild => self.end_child(c, t),
                Op::MapPage { is_new } => self.map_page(c, t, is_new),
                Op::PageMapped => self.page_mapped(c, t),
                Op::UnmapPages(pages) => self.unmap_pages(c, t, pages),
                Op::Clock(times) => return self.reads_clock(c, times),
                Op::Shootdown => return self.shoot_down(c),
                Op::TakePage { work, enters } => return self.take_page(c, work, enters),
                Op::FreePages(pages) => return self.free_pages(c, pages),
                Op::Stream(lines) => self.streams(t, lines),
                Op::Receive(bytes) => return self.receive(c, t as u32, bytes),
                Op::Send(bytes) => return self.send(c, t as u32, bytes),
                Op::ReadDisk(bytes) => return self.disk(c, t as u32, bytes, false),
                Op::WriteDisk(bytes) => return self.disk(c, t as u32, bytes, true),
                Op::Serve(back_end) => return self.serve(c, back_end),
                Op::Sleep(duration) => {
                    let price = self.prices.syscall + self.prices.block;
                    return self.in_kernel(c, price, Step::Sleep(duration));
                }
                Op::Fill { buffer, bytes, past } => {
                    let spec = &self.buffers[buffer as usize];
                    if !self.heaps[t].fill(buffer as usize, spec, u64::from(bytes)) {
                        self.threads[t].pc = past;
                    }
                }
                Op::Grow { buffer, depth, past } => match self.heaps[t].next_piece(buffer as usize) {
                    Some(pages) => self.loops[t * LOOP_DEPTH + depth as usize] = pages as u32,
                    None => self.threads[t].pc = past,
                },
                Op::Allocate { bytes, depth, past } => match self.heaps[t].allocate(u64::from(bytes)) {
                    0 => self.threads[t].pc = past,
                    pages => self.loops[t * LOOP_DEPTH + depth as usize] = pages as u32,
                },
                Op::Jump { to } => self.threads[t].pc = to,
                Op::Exit => return self.exit(c),
            }
        }
    }

    /// The core's thread reads the clock: all at once in user mode, or where that takes the VMM, one by one.
    fn reads_clock(&mut self, c: usize, times: u32) {
        if self.vm(c).pm_timer.is_none() {
            let reading = self.prices.clock_read.saturating_mul(Ps::from(times));
            return self.stretch(c, reading, Account::User, false, Step::Fetch);
        }
        if times == 0 {
            return self.fetch(c);
        }
        let (reading, parts) = self.read_clock(c);
        self.stretch(c, self.prices.syscall + reading, Account::Kernel, true, Step::ReadClock(times - 1));
        self.ledgers.divide(c, self.vcpus[c].pcpu as usize, &parts);
    }

    fn exit(&mut self, c: usize) {
        self.vcpus[c].current = NONE;
        let vm = self.vm_mut(c);
        vm.live -= 1;
        if vm.live == 0 {
            self.program_over(c);
        }
        self.schedule(c);
    }

    /// Computes a piece, and more of them until the clock says that so long has passed; whether there was one left.
    fn run_for(&mut self, c: usize, t: usize, lasts: Ps) -> bool {
        let thread = &mut self.threads[t];
        let over = thread.since.is_some_and(|since| self.now - since >= lasts);
        if over {
            thread.since = None;
        } else {
            thread.since.get_or_insert(self.now);
            thread.pc -= 1;
            let piece = RUN_FOR_PIECE_NS * NS + self.prices.clock_read;
            self.stretch(c, piece, Account::User, false, Step::Fetch);
        }
        !over
    }

    /// A timer goes on by a period, and the thread sleeps until then; a thread that comes late finds out by the clock.
    fn advance_timer(&mut self, c: usize, t: usize, timer: u32, period: Ps) {
        let (now, origin) = (self.now, self.threads[t].origin);
        let kind = self.timers[timer as usize];
        let next = self.timer_next.entry((timer, if kind.shared { 0 } else { t as u32 })).or_insert(origin);
        let until = *next + period;
        let late = until <= now;
        *next = if late && !kind.absolute { now } else { until };
        if late {
            return self.stretch(c, self.prices.clock_read, Account::User, false, Step::Fetch);
        }
        self.start_sleep(c, t, until);
    }

    fn start_sleep(&mut self, c: usize, t: usize, until: Ps) {
        self.threads[t].until = until;
        self.in_kernel(c, self.prices.syscall + self.prices.block, Step::SleepUntil);
    }

    /// The thread may run elsewhere from now on; it leaves its core if it has to.
    fn move_to(&mut self, c: usize, t: u32, cpus: u32) {
        self.pinned[t as usize] = self.cpu_sets[cpus as usize];
        let active = self.vm(c).active;
        self.allow(t, &active);
        self.vcpus[c].need_resched |= !self.allowed[t as usize].contains(c);
        self.fetch(c);
    }

    fn sleep_until(&mut self, c: usize, t: u32, until: Ps) {
        self.queue.schedule(slot_of(t as usize, kind::TIMER), until);
        self.vm_mut(c).asleep += 1;
        let thread = &mut self.threads[t as usize];
        thread.after = After::Fetch;
        self.vcpus[c].current = NONE;
        self.schedule(c);
    }

    /// First stretch of a woken thread: the lines that the waker wrote come over.
    fn fetch_lines(&mut self, c: usize, t: u32) {
        let waker = self.threads[t as usize].waker_cpu;
        if waker == NONE || waker as usize == c {
            return self.in_kernel(c, self.prices.return_from_wait, Step::Returned);
        }
        let distance = self.apart(waker as usize, c);
        self.count_wake_lines(distance);
        let lines = self.prices.wake_lines[distance];
        self.stretch(c, lines, Account::CacheTransfer, true, Step::Near);
    }

    fn returned(&mut self, c: usize, t: u32) {
        let thread = &self.threads[t as usize];
        if matches!(thread.waits_for, WaitFor::Mutex(_) | WaitFor::KernelMutex(_)) {
            let counters = &mut self.vms[self.vcpus[c].vm as usize].counters;
            counters.lock_wakes += 1;
            counters.lock_wake_ps += self.now - thread.woken_from;
        }
        match thread.after {
            After::Fetch => self.fetch(c),
            After::Retry(lock) => self.retry(c, t, lock),
        }
    }

    fn ended(&self, thread: &Thread) -> bool {
        thread.pc > thread.start && self.ops[thread.pc as usize - 1] == Op::Exit
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
