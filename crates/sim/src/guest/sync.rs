//! Synchronization: futex mutexes, kernel mutexes, spin locks, barriers, conditions, and the waking call.
//!
//! A mutex has the three states of the futex algorithm (0 free, 1 taken, 2 taken and somebody may wait): a release in
//! state 2 is a system call even if nobody waits any more. A woken thread competes with newcomers and takes the mutex
//! in state 2. A kernel mutex is handed over in order of arrival, as Linux 3.2's rw-semaphore; readers of the
//! mm semaphore (page faults) that wait next to each other are woken together. Sources:
//! Drepper, Futexes Are Tricky, section 5; glibc 2.15 nptl; Linux 3.2 lib/rwsem.c.

use super::masked::OpenLock;
use super::thread::{After, List, Mode, Source, Step, WaitFor};
use crate::engine::books::Cost;
use crate::engine::{NS, Ps};
use crate::guest::vcpu::VcpuState;
use crate::machine::interrupt::reason;
use crate::machine::lines::Cause;
use crate::machine::spinlock::Kind;
use crate::vmm::pcpu::RunState;
use crate::vmm::ple::PauseLoop;
use crate::workload::program::Op;
use crate::world::{NONE, World, kind, slot_of};
use muster_model::study::{Placement, RemoteWake, WakeSignal};
use muster_model::workload;
use muster_model::{Account, CpuSet};
use muster_policy::wakeup::{Wakeup, place};

/// The futex word of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// 0: nobody has it.
    Free,
    /// 1: somebody has it.
    Taken,
    /// 2: somebody has it and somebody may wait in the kernel.
    Contended,
}

/// A lock.
#[derive(Debug, Clone)]
pub struct Lock {
    kind: workload::Lock,
    word: Word,
    /// Threads that share it; 0 while it is free or one thread has it alone.
    readers: u32,
    /// Threads that spin, in order of arrival.
    spinners: List,
    /// Threads that are blocked, in order of arrival.
    blocked: List,
    /// The spin lock that a semaphore's count lies under, once it was used.
    pub(crate) count: Option<OpenLock>,
    /// Whether it is the kernel's own: who spins for it does so there.
    pub(crate) in_kernel: bool,
    /// How many spin for it there, in order of their tickets.
    tickets: u32,
}

/// What is done under a semaphore's own spin lock, a handful of instructions: assumed.
const UNDER_COUNT: Ps = 20 * NS;

/// An atomic instruction on a line that is there: assumed.
const ATOMIC: Ps = 10 * NS;

impl Lock {
    /// A free lock.
    pub fn new(kind: workload::Lock) -> Self {
        Self {
            kind,
            word: Word::Free,
            readers: 0,
            spinners: List::EMPTY,
            blocked: List::EMPTY,
            count: None,
            in_kernel: false,
            tickets: 0,
        }
    }

    /// Whether another reader may have a kernel lock: no writer has it and nobody waits.
    fn can_be_shared(&self) -> bool {
        self.word == Word::Free || (self.readers > 0 && self.blocked.is_empty())
    }
}

/// A barrier.
#[derive(Debug, Clone)]
pub struct Barrier {
    parties: u32,
    /// The lock that is its mutex.
    mutex: u32,
    arrived: u32,
    generation: u32,
    blocked: List,
}

impl Barrier {
    /// A barrier for so many threads.
    pub fn new(parties: u32, mutex: u32) -> Self {
        Self { parties, mutex, arrived: 0, generation: 0, blocked: List::EMPTY }
    }

    /// One more has arrived; whether it was the last.
    fn arrive(&mut self) -> bool {
        self.arrived += 1;
        let last = self.arrived == self.parties;
        if last {
            self.arrived = 0;
            self.generation = self.generation.wrapping_add(1);
        }
        last
    }
}

/// A counting condition.
#[derive(Debug, Clone)]
pub struct Condition {
    /// Permits at the start.
    initial: u64,
    permits: u64,
    blocked: List,
    /// Threads that found no permit and are on their way to blocking.
    coming: u32,
}

impl Condition {
    /// A condition with permits.
    pub fn new(permits: u64) -> Self {
        Self { initial: permits, permits, blocked: List::EMPTY, coming: 0 }
    }

    /// As it was at the start, when its program starts again.
    pub fn restart(&mut self) {
        self.permits = self.initial;
    }

    /// Takes a permit if there is one.
    pub fn take(&mut self) -> bool {
        let has = self.permits > 0;
        self.permits -= u64::from(has);
        has
    }
}

/// A condition variable.
#[derive(Debug, Clone)]
pub struct Condvar {
    /// Threads that wait and are on their way to blocking, in order of arrival.
    coming: List,
    /// Threads that are blocked, in order of arrival.
    blocked: List,
}

impl Default for Condvar {
    /// One that nobody waits for.
    fn default() -> Self {
        Self { coming: List::EMPTY, blocked: List::EMPTY }
    }
}

/// How a CPU is told that a thread waits for it.
enum Signal {
    None,
    Ipi,
    Exception,
}

impl World {
    // ---- locks ----

    /// The core's thread is about to change a semaphore's count, under the spin lock that this lies under.
    pub(crate) fn count(&mut self, c: usize, l: u32) {
        if self.waits_for_count(c, l) {
            return;
        }
        let wakes = self.will_wake(c, l);
        let mut walk = self.kernel_walk(c);
        let lines = &mut self.shared.lines;
        let count = self.locks[l as usize].count.get_or_insert_with(|| OpenLock::new(Kind::Ticket, lines.add()));
        walk.acquire(&mut count.lock, lines);
        let took = walk.at - self.now;
        walk.at += UNDER_COUNT;
        if wakes {
            self.threads[self.vcpus[c].current as usize].counts = l;
        } else {
            walk.release(&mut count.lock, lines);
        }
        self.note_lock_wait(took);
        self.walk_in_kernel(c, &walk, Step::Fetch);
    }

    /// Whether the core's thread is about to give back a semaphore that others wait for. It wakes them before it releases
    /// the semaphore's own lock (lib/rwsem-spinlock.c, `__rwsem_do_wake`).
    fn will_wake(&self, c: usize, l: u32) -> bool {
        let lock = &self.locks[l as usize];
        let pc = self.threads[self.vcpus[c].current as usize].pc;
        !lock.blocked.is_empty()
            && match self.ops[pc as usize] {
                Op::Release(of) => of == l,
                Op::Unshare(of) => of == l && lock.readers == 1,
                _ => false,
            }
    }

    /// The same where the count is changed atomically: only its line comes, unless the thread will have to queue or to wake
    /// others. Then it goes through the semaphore's own lock after all, which lies beside the count (lib/rwsem.c,
    /// `rwsem_down_failed_common` and `rwsem_wake`).
    pub(crate) fn count_atomically(&mut self, c: usize, l: u32) {
        if self.will_wake(c, l) || self.will_queue(c, l) {
            return self.count(c, l);
        }
        let mut walk = self.kernel_walk(c);
        let lines = &mut self.shared.lines;
        let count = self.locks[l as usize].count.get_or_insert_with(|| OpenLock::new(Kind::Ticket, lines.add()));
        walk.write(count.lock.line(), lines);
        walk.at += ATOMIC;
        self.walk_in_kernel(c, &walk, Step::Fetch);
    }

    /// Whether the core's thread is about to ask for a semaphore that it cannot have.
    fn will_queue(&self, c: usize, l: u32) -> bool {
        let lock = &self.locks[l as usize];
        match self.ops[self.threads[self.vcpus[c].current as usize].pc as usize] {
            Op::Acquire(of) => of == l && lock.word != Word::Free,
            Op::Share(of) => of == l && !lock.can_be_shared(),
            _ => false,
        }
    }

    /// The fast path: takes a free lock.
    #[inline]
    pub(crate) fn try_acquire(&mut self, l: u32) -> bool {
        let lock = &mut self.locks[l as usize];
        if lock.word != Word::Free {
            return false;
        }
        lock.word = Word::Taken;
        true
    }

    /// Takes a kernel lock together with other readers, if no writer has it and nobody waits.
    pub(crate) fn try_share(&mut self, l: u32) -> bool {
        let lock = &mut self.locks[l as usize];
        let may = lock.can_be_shared();
        if may {
            lock.word = Word::Taken;
            lock.readers += 1;
        }
        may
    }

    /// Gives back a shared kernel lock; the last reader hands it over. Whether that takes time.
    pub(crate) fn release_shared(&mut self, c: usize, t: u32, l: u32) -> bool {
        let lock = &mut self.locks[l as usize];
        lock.readers -= 1;
        lock.readers == 0 && self.hand_over(c, t, l, Step::Fetch)
    }

    /// A kernel lock goes to the first waiter, or to all readers that wait in front of the next writer.
    fn hand_over(&mut self, c: usize, t: u32, l: u32, then: Step) -> bool {
        if self.locks[l as usize].blocked.is_empty() {
            self.locks[l as usize].word = Word::Free;
            self.release_count(t);
            return false;
        }
        loop {
            let first = self.locks[l as usize].blocked.first();
            if first == NONE {
                break;
            }
            let shares = self.threads[first as usize].shares;
            let lock = &mut self.locks[l as usize];
            let alone = lock.readers == 0;
            if !shares && !alone {
                break;
            }
            lock.readers += u32::from(shares);
            lock.blocked.pop(&self.threads);
            self.add_to_wakes(t, first);
            if !shares {
                break;
            }
        }
        self.call(c, t, 0, Source::Listed, then);
        true
    }

    /// The lock is taken: spin or block, as its kind says.
    pub(crate) fn contend(&mut self, c: usize, t: u32, l: u32) {
        match self.locks[l as usize].kind {
            workload::Lock::Mutex => {
                let price = self.prices.syscall + self.prices.block;
                self.wait(c, t, price, WaitFor::Mutex(l), After::Retry(l));
            }
            workload::Lock::KernelMutex => {
                self.wait(c, t, self.prices.block, WaitFor::KernelMutex(l), After::Fetch);
            }
            workload::Lock::Spin => self.spin(c, t, l, None),
            workload::Lock::SpinThenBlock { spin_ns } => self.spin(c, t, l, Some(spin_ns * crate::engine::NS)),
        }
    }

    pub(crate) fn spin(&mut self, c: usize, t: u32, l: u32, timeout: Option<Ps>) {
        self.spin_as(c, t, l, timeout, false);
    }

    fn spin_as(&mut self, c: usize, t: u32, l: u32, timeout: Option<Ps>, in_kernel: bool) {
        self.locks[l as usize].spinners.push(&mut self.threads, t);
        let thread = &mut self.threads[t as usize];
        thread.mode = Mode::Spin;
        thread.in_kernel = in_kernel;
        thread.granted = false;
        thread.waits_for = WaitFor::Mutex(l);
        thread.remaining = timeout.unwrap_or(0);
        self.spin_on(c, t);
    }

    /// Whether somebody has a lock.
    pub(crate) fn is_taken(&self, l: u32) -> bool {
        self.locks[l as usize].word != Word::Free
    }

    /// The vCPU's thread draws a ticket for a spin lock of the kernel, and spins without giving way to others.
    pub(crate) fn spin_in_kernel(&mut self, c: usize, t: u32, l: u32) {
        let lock = &mut self.locks[l as usize];
        // It draws its ticket, sees the release, and, of the others', half come before it (`machine::spinlock`).
        self.shared.lines.add_misses(Cause::Guest, 3 + u64::from(lock.tickets));
        lock.tickets += 1;
        self.disturb_spinners(c, l);
        self.note_asking(c);
        self.spin_as(c, t, l, None, true);
    }

    /// A spin lock of the kernel goes to the next in line. That takes longer the more wait, as each reads the word again.
    pub(crate) fn hand_on(&mut self, c: usize, l: u32) {
        let lock = &mut self.locks[l as usize];
        let Some(next) = lock.spinners.pop(&self.threads) else {
            lock.word = Word::Free;
            return;
        };
        lock.tickets -= 1;
        let waiting = lock.tickets as usize;
        let others = self.spinning.as_ref().map_or(waiting, |spinning| spinning.looks_of(waiting)) as Ps;
        let line = self.prices.cache_line[self.apart(c, self.threads[next as usize].cpu as usize)];
        self.disturb_spinners(c, l);
        self.grant(next, 2 * line + others * self.shared.lines.copy() / 2);
    }

    /// vCPU `c` writes the word of a spin lock of the kernel: all who look at it read it again.
    fn disturb_spinners(&mut self, c: usize, l: u32) {
        if self.spinning.as_ref().is_none_or(|spinning| spinning.is_queued()) {
            return;
        }
        let by = self.vcpus[c].pcpu as usize;
        let mut t = self.locks[l as usize].spinners.first();
        while t != NONE {
            let thread = &self.threads[t as usize];
            let cpu = thread.cpu as usize;
            t = thread.next;
            self.disturb_pauses(cpu, by);
        }
    }

    /// The vCPU's thread spins (again): to the end of its timeout if it has one.
    pub(crate) fn spin_on(&mut self, c: usize, t: u32) {
        let thread = &self.threads[t as usize];
        self.vcpus[c].run_since = self.now;
        if thread.granted {
            self.busy(c, VcpuState::Spinning, Account::Spin, 0);
        } else if thread.remaining > 0 {
            self.busy(c, VcpuState::Spinning, Account::Spin, thread.remaining);
        } else {
            self.rest(c, VcpuState::Spinning, Account::Spin);
            self.pause_in_kernel(c, t);
        }
    }

    /// A thread that spins in the kernel does so for a spin lock inside of a call for files, or for a mutex.
    fn pause_in_kernel(&mut self, c: usize, t: u32) {
        let thread = &self.threads[t as usize];
        let WaitFor::Mutex(l) = thread.waits_for else { unreachable!("only locks are spun for") };
        if self.locks[l as usize].in_kernel {
            self.begin_pauses(c, if thread.in_kernel { PauseLoop::SpinLock } else { PauseLoop::Mutex });
        }
    }

    /// The vCPU's thread stops spinning, if it does, for an interrupt or for good.
    pub(crate) fn note_spinning(&mut self, c: usize) {
        let thread = &self.threads[self.vcpus[c].current as usize];
        if let (Mode::Spin, WaitFor::Mutex(l)) = (thread.mode, thread.waits_for)
            && self.locks[l as usize].in_kernel
        {
            self.kernel_spin += self.now - self.vcpus[c].run_since;
        }
    }

    /// The spinning thread has got the lock, or its timeout has come.
    pub(crate) fn spin_over(&mut self, c: usize) {
        self.note_spinning(c);
        self.end_pauses(c);
        self.charge(c);
        let t = self.vcpus[c].current;
        let thread = &mut self.threads[t as usize];
        let WaitFor::Mutex(l) = thread.waits_for else { unreachable!("only locks are spun for") };
        if std::mem::take(&mut thread.granted) {
            thread.remaining = 0;
            if self.locks[l as usize].in_kernel {
                return self.granted_in_kernel(c);
            }
            return self.fetch(c);
        }
        self.locks[l as usize].spinners.remove(&mut self.threads, t);
        let price = self.prices.syscall + self.prices.block;
        self.wait(c, t, price, WaitFor::Mutex(l), After::Retry(l));
    }

    /// A woken thread is back in user mode and tries again, leaving the mark that somebody may wait.
    pub(crate) fn retry(&mut self, c: usize, t: u32, l: u32) {
        let lock = &mut self.locks[l as usize];
        if lock.word == Word::Free {
            lock.word = Word::Contended;
            return self.fetch(c);
        }
        let price = self.prices.syscall + self.prices.block;
        self.wait(c, t, price, WaitFor::Mutex(l), After::Retry(l));
    }

    /// Gives a lock back. Whether that takes time: then `then` follows by itself.
    pub(crate) fn release(&mut self, c: usize, t: u32, l: u32, then: Step) -> bool {
        let lock = &mut self.locks[l as usize];
        if let Some(next) = lock.spinners.pop(&self.threads) {
            // The line goes to the first spinner; if that one has been preempted, the lock waits for it.
            lock.word = if lock.blocked.is_empty() { Word::Taken } else { Word::Contended };
            let line = self.prices.cache_line[self.apart(c, self.threads[next as usize].cpu as usize)];
            self.grant(next, line);
            return false;
        }
        if lock.kind == workload::Lock::KernelMutex {
            return self.hand_over(c, t, l, then);
        }
        let contended = lock.word == Word::Contended;
        lock.word = Word::Free;
        if contended {
            self.call(c, t, self.prices.syscall + self.prices.futex_wake, Source::Mutex(l), then);
        }
        contended
    }

    /// A spinning thread is given its lock, and learns it after `price`.
    fn grant(&mut self, t: u32, price: Ps) {
        self.threads[t as usize].granted = true;
        let c = self.threads[t as usize].cpu as usize;
        let vcpu = &self.vcpus[c];
        if vcpu.current == t && vcpu.state == VcpuState::Spinning && !vcpu.is_stopped() {
            self.shared.lines.add_misses(Cause::User, 1);
            self.vcpus[c].ple_armed = false;
            self.queue.schedule(slot_of(c, kind::VCPU), self.now + price);
        }
    }

    // ---- waiting ----

    /// The vCPU's thread is on its way to blocking.
    pub(crate) fn wait(&mut self, c: usize, t: u32, price: Ps, what: WaitFor, after: After) {
        let thread = &mut self.threads[t as usize];
        thread.waits_for = what;
        thread.after = after;
        if let WaitFor::Permit(condition) = what {
            self.conditions[condition as usize].coming += 1;
        }
        self.in_kernel(c, price, Step::Block(what));
    }

    /// At the point of no return the kernel looks once more; then the thread leaves its vCPU.
    pub(crate) fn block_unless_passed(&mut self, c: usize, t: u32, what: WaitFor) {
        let generation = self.threads[t as usize].generation;
        let passed = match what {
            WaitFor::Mutex(l) => {
                let lock = &mut self.locks[l as usize];
                let free = lock.word == Word::Free;
                lock.word = Word::Contended;
                if free {
                    return self.fetch(c);
                }
                lock.blocked.push(&mut self.threads, t);
                false
            }
            WaitFor::KernelMutex(l) => {
                let got = if self.threads[t as usize].shares { self.try_share(l) } else { self.try_acquire(l) };
                if !got {
                    self.locks[l as usize].blocked.push(&mut self.threads, t);
                }
                got
            }
            WaitFor::Permit(condition) => {
                let condition = &mut self.conditions[condition as usize];
                condition.coming -= 1;
                let has = condition.take();
                if !has {
                    condition.blocked.push(&mut self.threads, t);
                }
                has
            }
            WaitFor::Condvar(v) => {
                let signalled = std::mem::take(&mut self.threads[t as usize].signalled);
                if !signalled {
                    let condvar = &mut self.condvars[v as usize];
                    condvar.coming.remove(&mut self.threads, t);
                    condvar.blocked.push(&mut self.threads, t);
                }
                signalled
            }
            WaitFor::Barrier(b) | WaitFor::Broadcast(b) => {
                let barrier = &mut self.barriers[b as usize];
                let over = barrier.generation != generation;
                if !over {
                    barrier.blocked.push(&mut self.threads, t);
                }
                over
            }
        };
        if !passed {
            self.vcpus[c].current = NONE;
            return self.schedule(c);
        }
        match self.threads[t as usize].after {
            After::Fetch => self.fetch(c),
            After::Retry(lock) => self.retry(c, t, lock),
        }
    }

    // ---- barriers and conditions ----

    /// Arrives at a futex barrier.
    pub(crate) fn arrive(&mut self, c: usize, t: u32, b: u32) {
        self.threads[t as usize].generation = self.barriers[b as usize].generation;
        if self.barriers[b as usize].arrive() {
            self.call(c, t, self.prices.syscall + self.prices.futex_wake, Source::Barrier(b), Step::Fetch);
        } else {
            self.wait(c, t, self.prices.syscall + self.prices.block, WaitFor::Barrier(b), After::Fetch);
        }
    }

    /// Arrives at a condition-variable barrier, holding its mutex: the last one broadcasts, the others release the
    /// mutex, wait, and take it again.
    pub(crate) fn arrive_holding(&mut self, c: usize, t: u32, b: u32) {
        self.threads[t as usize].generation = self.barriers[b as usize].generation;
        if self.barriers[b as usize].arrive() {
            let others = Ps::from(self.barriers[b as usize].parties - 1);
            let price = self.prices.syscall + self.prices.futex_wake + self.prices.requeue * others;
            return self.call(c, t, price, Source::Broadcast(b), Step::Fetch);
        }
        let mutex = self.mutex_of(b);
        let wait = Step::Block(WaitFor::Broadcast(b));
        if !self.release(c, t, mutex, wait) {
            self.wait_for_broadcast(c, t, b);
        }
    }

    fn wait_for_broadcast(&mut self, c: usize, t: u32, b: u32) {
        let after = After::Retry(self.mutex_of(b));
        self.wait(c, t, self.prices.syscall + self.prices.block, WaitFor::Broadcast(b), after);
    }

    fn mutex_of(&self, b: u32) -> u32 {
        self.barriers[b as usize].mutex
    }

    /// Gives permits; a system call only if somebody waits or is about to. Whether it takes time.
    pub(crate) fn give(&mut self, c: usize, t: u32, condition: u32, count: u32) -> bool {
        let waiting = &mut self.conditions[condition as usize];
        if waiting.blocked.is_empty() && waiting.coming == 0 {
            waiting.permits += u64::from(count);
            return false;
        }
        let price = self.prices.syscall + self.prices.futex_wake;
        self.call(c, t, price, Source::Condition { condition, count }, Step::Fetch);
        true
    }

    // ---- condition variables ----

    /// Queues for a condition variable, releases the mutex, blocks, and takes the mutex again.
    pub(crate) fn await_signal(&mut self, c: usize, t: u32, v: u32, mutex: u32) {
        self.condvars[v as usize].coming.push(&mut self.threads, t);
        self.threads[t as usize].after = After::Retry(mutex);
        if !self.release(c, t, mutex, Step::Block(WaitFor::Condvar(v))) {
            self.wait_for_signal(c, t, v);
        }
    }

    fn wait_for_signal(&mut self, c: usize, t: u32, v: u32) {
        let after = self.threads[t as usize].after;
        self.wait(c, t, self.prices.syscall + self.prices.block, WaitFor::Condvar(v), after);
    }

    /// Wakes the first who waits; of all, the others move to the mutex, where each wakes the next as it leaves
    /// (FUTEX_CMP_REQUEUE, as glibc up to 2.24). No system call where nobody waits. Whether it takes time.
    pub(crate) fn signal_condvar(&mut self, c: usize, t: u32, v: u32, all: bool) -> bool {
        let first = self.condvars[v as usize].blocked.pop(&self.threads);
        let mut noticed = false;
        while (all || (first.is_none() && !noticed))
            && let Some(coming) = self.condvars[v as usize].coming.pop(&self.threads)
        {
            self.threads[coming as usize].signalled = true;
            noticed = true;
        }
        if let Some(first) = first {
            self.add_to_wakes(t, first);
        } else if !noticed {
            return false;
        }
        let mut price = self.prices.syscall + self.prices.futex_wake;
        while all && let Some(next) = self.condvars[v as usize].blocked.pop(&self.threads) {
            self.requeue_behind(t, first, next);
            price += self.prices.requeue;
        }
        self.call(c, t, price, Source::Listed, Step::Fetch);
        true
    }

    /// The mutex's state stays: whoever was woken first marks that somebody may wait. Who waits with another mutex is woken
    /// as well.
    fn requeue_behind(&mut self, t: u32, first: Option<u32>, next: u32) {
        let after = self.threads[next as usize].after;
        let same = first.is_some_and(|first| self.threads[first as usize].after == after);
        let After::Retry(mutex) = after else { unreachable!("it takes its mutex again") };
        if !same {
            return self.add_to_wakes(t, next);
        }
        self.threads[next as usize].waits_for = WaitFor::Mutex(mutex);
        self.locks[mutex as usize].blocked.push(&mut self.threads, next);
    }

    // ---- the waking call ----

    /// Starts a call that wakes threads; `then` follows when all are awake.
    fn call(&mut self, c: usize, t: u32, price: Ps, source: Source, then: Step) {
        let thread = &mut self.threads[t as usize];
        thread.call_start = self.now;
        thread.then = then;
        self.in_kernel(c, price, Step::Collect(source));
    }

    /// The call has found whom it wakes.
    pub(crate) fn collect(&mut self, c: usize, t: u32, source: Source) {
        match source {
            Source::Listed => {}
            Source::Mutex(l) => self.collect_some(t, 1, |world| &mut world.locks[l as usize].blocked),
            Source::Condition { condition, count } => {
                let state = &mut self.conditions[condition as usize];
                state.permits += u64::from(count);
                while !self.conditions[condition as usize].blocked.is_empty()
                    && self.conditions[condition as usize].take()
                {
                    self.collect_some(t, 1, |world| &mut world.conditions[condition as usize].blocked);
                }
            }
            Source::Barrier(b) => self.collect_generation(t, b, u32::MAX),
            Source::Broadcast(b) => {
                self.collect_generation(t, b, 1);
                self.requeue(b);
            }
        }
        self.wake_next(c, t);
    }

    fn collect_some(&mut self, t: u32, count: u32, list: impl Fn(&mut Self) -> &mut List) {
        for _ in 0..count {
            let mut from = *list(self);
            let Some(next) = from.pop(&self.threads) else { break };
            *list(self) = from;
            self.add_to_wakes(t, next);
        }
    }

    fn add_to_wakes(&mut self, t: u32, next: u32) {
        let mut wakes = self.threads[t as usize].wakes;
        wakes.push(&mut self.threads, next);
        self.threads[t as usize].wakes = wakes;
    }

    /// Waiters of the generation that is over; those of the next one may have queued behind them already.
    fn collect_generation(&mut self, t: u32, b: u32, most: u32) {
        for _ in 0..most {
            let Some(next) = self.next_of_last_generation(b) else { break };
            self.add_to_wakes(t, next);
        }
    }

    fn next_of_last_generation(&mut self, b: u32) -> Option<u32> {
        let barrier = &mut self.barriers[b as usize];
        let first = barrier.blocked.first();
        if first == NONE || self.threads[first as usize].generation == barrier.generation {
            return None;
        }
        barrier.blocked.pop(&self.threads)
    }

    /// FUTEX_CMP_REQUEUE: the other waiters of the condition variable now wait for its mutex.
    fn requeue(&mut self, b: u32) {
        let mutex = self.mutex_of(b);
        while let Some(next) = self.next_of_last_generation(b) {
            self.threads[next as usize].waits_for = WaitFor::Mutex(mutex);
            let lock = &mut self.locks[mutex as usize];
            lock.blocked.push(&mut self.threads, next);
            lock.word = Word::Contended;
        }
    }

    /// The next thread to wake, or the end of the call.
    pub(crate) fn wake_next(&mut self, c: usize, t: u32) {
        if !self.threads[t as usize].wakes.is_empty() {
            return self.start_wake_up(c, t);
        }
        match self.threads[t as usize].then {
            Step::Block(WaitFor::Broadcast(b)) => self.wait_for_broadcast(c, t, b),
            Step::Block(WaitFor::Condvar(v)) => self.wait_for_signal(c, t, v),
            _ => {
                self.release_count(t);
                self.fetch(c)
            }
        }
    }

    /// try_to_wake_up: chooses a CPU, puts the thread there, and tells the CPU if it has to be told.
    pub(crate) fn wake_one(&mut self, c: usize, t: u32) {
        let mut wakes = self.threads[t as usize].wakes;
        let w = wakes.pop(&self.threads).expect("the call checked that somebody is left");
        self.threads[t as usize].wakes = wakes;
        let start = self.threads[t as usize].call_start;
        let woken = &mut self.threads[w as usize];
        woken.step = Step::Woken;
        woken.mode = Mode::Stretch;
        woken.in_kernel = true;
        woken.remaining = 0;
        woken.woken_from = start;
        woken.waker_cpu = c as u32;
        let vm = &mut self.vms[self.vcpus[c].vm as usize];
        vm.counters.wakeups += 1;
        if let Some(window) = &mut vm.daemon.window {
            *window.pairs.entry((t, w)).or_default() += 1;
        }
        let placement = vm.placement;
        let target = self.place(c, w, placement);
        self.place_sleeper(w, target);
        self.enqueue(w, target);
        if target == c {
            if self.should_preempt(c, w) {
                self.vcpus[c].need_resched = true;
            } else {
                self.offer(w);
            }
            return self.wake_next(c, t);
        }
        match self.signal(c, target, w) {
            Signal::None => self.wake_next(c, t),
            Signal::Exception => {
                self.vm_mut(c).counters.exceptions += 1;
                let line = self.prices.cache_line[self.apart(c, target)];
                self.shared.lines.add_misses(Cause::Guest, 1);
                self.queue.schedule(slot_of(target, kind::RESCHEDULE), self.now + line);
                self.stretch(c, line, Account::CacheTransfer, true, Step::WakeNext);
            }
            Signal::Ipi => {
                let exits = self.ipi_exits(target);
                let counters = &mut self.vm_mut(c).counters;
                counters.ipis += 1;
                counters.ipi_exits += u64::from(exits);
                self.vcpus[c].ipi_exits = exits;
                let p = self.vcpus[c].pcpu as usize;
                let price = self.ipi_send_price(exits);
                let price = price + self.vmm_fetches_in_guest(p, price).total();
                self.stretch(c, price, Account::Ipi, true, Step::IpiWritten(target as u32));
            }
        }
    }

    /// Where a woken or displaced thread goes.
    pub(crate) fn place(&self, from: usize, t: u32, placement: Placement) -> usize {
        let previous = self.threads[t as usize].cpu as usize;
        place(&Wakeup {
            placement,
            waker: from,
            previous,
            allowed: &self.allowed[t as usize],
            idle: &self.vm(from).idle,
            previous_llc: &self.llc[previous],
            waker_llc: &self.llc[from],
            waker_load: self.load(from),
            previous_load: self.load(previous),
        })
    }

    fn load(&self, c: usize) -> u32 {
        self.vcpus[c].queue.len() as u32 + u32::from(self.vcpus[c].current != NONE)
    }

    /// Whether and how vCPU `c` tells `target` that thread `w` has been put on its queue.
    fn signal(&mut self, c: usize, target: usize, w: u32) -> Signal {
        let flag = self.vm(c).remote_wake == RemoteWake::Flag;
        match self.vcpus[target].state {
            VcpuState::Polling | VcpuState::Mwait if flag => {
                let line = self.prices.cache_line[self.apart(c, target)] + self.prices.poll_notice;
                self.shared.lines.add_misses(Cause::Guest, 1);
                if !self.queue.is_pending(slot_of(target, kind::NOTICE)) {
                    self.queue.schedule(slot_of(target, kind::NOTICE), self.now + line);
                }
                Signal::None
            }
            VcpuState::Resuming | VcpuState::SchedulingIn | VcpuState::LeavingIdle => Signal::None,
            VcpuState::Polling
            | VcpuState::Mwait
            | VcpuState::HostPolling
            | VcpuState::Halted
            | VcpuState::EnteringIdle
            | VcpuState::Suspending => self.once(target, Signal::Ipi),
            VcpuState::Yielding => self.once_awake(target),
            // On its way to the yielding thread or back from an interrupt in idle: it looks at its queue by itself.
            _ if self.vcpus[target].current == NONE => Signal::None,
            _ if self.should_preempt(target, w) => {
                self.vcpus[target].need_resched = true;
                self.once_awake(target)
            }
            _ => {
                self.offer(w);
                Signal::None
            }
        }
    }

    fn once_awake(&mut self, target: usize) -> Signal {
        let exception = self.vm(target).wake_signal == WakeSignal::Exception;
        self.once(target, if exception { Signal::Exception } else { Signal::Ipi })
    }

    /// A CPU that has been told is not told again before it has looked.
    fn once(&mut self, target: usize, signal: Signal) -> Signal {
        if std::mem::replace(&mut self.vcpus[target].signalled, true) { Signal::None } else { signal }
    }

    /// The register write is done: an IPI to a suspended vCPU makes the VMM wake it first.
    pub(crate) fn ipi_written(&mut self, c: usize, target: usize) {
        if self.vm(c).events.is_some() {
            self.lock_events(c, target as u32);
        } else {
            self.notify(c, target);
        }
    }

    /// The VMM passes an interrupt on, waking the vCPU first if that is suspended.
    pub(crate) fn notify(&mut self, c: usize, target: usize) {
        if self.virtualized && self.vcpus[target].state == VcpuState::Halted {
            let price = self.prices.wake_vcpu;
            self.stretch(c, price, Account::VmmScheduler, true, Step::VcpuWoken(target as u32));
        } else {
            self.send_reschedule(c, target);
        }
    }

    /// The interrupt is on its way; the sender goes back into the guest.
    pub(crate) fn send_reschedule(&mut self, c: usize, target: usize) {
        let woke_vcpu = self.vcpus[target].state == VcpuState::Halted;
        let decision = self.deliver(c, target);
        if self.virtualized && (self.vcpus[c].ipi_exits || woke_vcpu || decision.time > 0) {
            let price = decision.time + self.prices.vm_entry + if woke_vcpu { self.prices.after_send } else { 0 };
            let step = if self.vm(c).events.is_some() { Step::EventSent } else { Step::WakeNext };
            self.stretch(c, price, Account::Ipi, true, step);
            self.divide_pcpu(self.vcpus[c].pcpu as usize, &decision.parts);
        } else {
            let t = self.vcpus[c].current;
            self.wake_next(c, t);
        }
    }

    /// A vCPU sends a rescheduling interrupt to another; what the VMM's scheduler takes for it.
    pub(crate) fn deliver(&mut self, from: usize, target: usize) -> Cost {
        if self.scheduler.decides() && self.run_state(target) != RunState::Running {
            return self.post(target, reason::RESCHEDULE, self.vcpus[from].pcpu as usize);
        }
        let slot = slot_of(target, kind::RESCHEDULE);
        if !self.queue.is_pending(slot) {
            let reach = match self.vcpus[target].state {
                VcpuState::HostPolling => self.prices.cache_line[self.apart(from, target)] + self.prices.poll_notice,
                _ => self.prices.ipi_delivery,
            };
            self.queue.schedule(slot, self.now + reach);
        }
        Cost::default()
    }

    /// A thread waits behind another: a vCPU that is awake and idle will find it when it looks.
    fn offer(&mut self, t: u32) {
        let idle = &self.vm(self.threads[t as usize].cpu as usize).idle;
        if idle.is_empty() {
            return;
        }
        let candidates: CpuSet = idle.intersection(&self.allowed[t as usize]);
        let awake = |c: &usize| matches!(self.vcpus[*c].state, VcpuState::Yielding | VcpuState::Polling);
        let found = candidates.iter().filter(|&c| !self.queue.is_pending(slot_of(c, kind::PULL))).find(awake);
        if let Some(c) = found {
            self.queue.schedule(slot_of(c, kind::PULL), self.now + self.prices.balance);
        }
    }
}
