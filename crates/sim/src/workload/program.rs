//! Phases compiled to a flat list of small operations, names resolved to numbers.

use crate::engine::{NS, Ps, from_ns};
use crate::guest::files::{FileKernel, ObjectSpec, Touch};
use crate::guest::kernel::Kernel;
use crate::machine::file_prices::FilePrices;
use crate::machine::prices::Prices;
use crate::working_sets::PAGE_LINES;
use crate::world::NONE;
use muster_model::workload::{
    self, AddressSpace, Buffer, Count, Duration, Lock, Phase, Timer, WorkingSet, Workload, repetitions,
};
use muster_model::{CpuSet, ModelError};
use std::collections::BTreeMap;
use std::ops::Range;

mod calls;

use calls::Layout;

/// Deepest nesting of loops.
pub const LOOP_DEPTH: usize = 16;

/// One operation of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Computes for a duration.
    Run(u32),
    /// A system call of a duration.
    Syscall(u32),
    /// Work inside the kernel.
    Kernel(Ps),
    /// The same, at its beginning: the thread comes from user mode.
    Enter(Ps),
    /// Reads the clock so often.
    Clock(u32),
    /// Computes until the clock says that so long has passed.
    RunFor(Ps),
    /// Sleeps for a duration.
    Sleep(u32),
    /// Sleeps until a time, where the thread's timers begin.
    SleepUntil(Ps),
    /// Moves a timer on and sleeps until then.
    Timer {
        /// Timer.
        timer: u32,
        /// Its period.
        period: Ps,
    },
    /// Lets others go first.
    Yield,
    /// Runs on one of [`Program::cpus`] from here on.
    Affinity(u32),
    /// Takes a lock.
    Acquire(u32),
    /// Gives it back.
    Release(u32),
    /// Changes a kernel lock's count under the spin lock that it lies under.
    Count(u32),
    /// Changes a kernel lock's count atomically.
    CountAtomically(u32),
    /// A system call for a file begins: from here on up to [`Op::Return`] the thread keeps its CPU.
    Call,
    /// One of [`Program::touches`], and those behind it that come within a moment.
    Touch(u32),
    /// A system call ends, or looks whether others want the CPU.
    Return,
    /// Picks one of so many files.
    Pick(u32),
    /// Takes the lock of the file that was picked; the first file's is this one.
    TakePicked(u32),
    /// Gives it back.
    GivePicked(u32),
    /// Takes a kernel lock to share it with other readers.
    Share(u32),
    /// Gives it back.
    Unshare(u32),
    /// Arrives at a futex barrier.
    Arrive(u32),
    /// Arrives at a condition-variable barrier whose mutex the thread holds.
    ArriveHolding(u32),
    /// Takes a permit.
    Wait(u32),
    /// Gives permits.
    Give {
        /// Condition.
        condition: u32,
        /// How many.
        count: u32,
    },
    /// Releases the mutex and waits to be signalled.
    Await {
        /// Condition variable.
        condvar: u32,
        /// Mutex, which the thread holds.
        lock: u32,
    },
    /// Wakes one who waits for a condition variable, or all.
    Signal {
        /// Condition variable.
        condvar: u32,
        /// Whether all.
        all: bool,
    },
    /// Makes the other cores drop translations.
    Shootdown,
    /// Starts a loop of `times` repetitions.
    Loop {
        /// Nesting depth.
        depth: u8,
        /// Repetitions.
        times: u32,
    },
    /// Goes back to `to` while repetitions are left.
    Again {
        /// Nesting depth.
        depth: u8,
        /// First operation of the body.
        to: u32,
    },
    /// Goes back to `to` for ever.
    Forever {
        /// Nesting depth.
        depth: u8,
        /// First operation of the body.
        to: u32,
    },
    /// Adds to the thread's buffers of a kind; on to `past` while they are not full.
    Fill {
        /// Kind of buffer.
        buffer: u32,
        /// How many bytes come into each.
        bytes: u32,
        /// Where it goes on then.
        past: u32,
    },
    /// Allocates what these buffers lack until the heap has to grow, by so many pages, which a loop of this depth
    /// touches; on to `past` when they lack nothing.
    Grow {
        /// Kind of buffer.
        buffer: u32,
        /// Nesting depth.
        depth: u8,
        /// Where it goes on then.
        past: u32,
    },
    /// Allocates; on to `past` unless the heap has to grow, as above.
    Allocate {
        /// How many bytes.
        bytes: u32,
        /// Nesting depth.
        depth: u8,
        /// Where it goes on then.
        past: u32,
    },
    /// Goes on elsewhere.
    Jump {
        /// Where.
        to: u32,
    },
    /// Kernel work of a page fault that needs a new page; `enters`: at its beginning.
    TakePage {
        /// How long.
        work: Ps,
        /// Whether the thread comes from user mode.
        enters: bool,
    },
    /// Frees so many pages that have been unmapped.
    FreePages(u32),
    /// The thread's process is copied, and its child runs in its place.
    Fork {
        /// How long that takes.
        work: Ps,
        /// What the child executes, of [`Program::execs`], or [`NONE`].
        exec: u32,
    },
    /// The child is over, and its parent goes on.
    EndChild,
    /// A page fault begins.
    MapPage {
        /// It takes new memory, and is not a page of a file that is in memory already.
        is_new: bool,
    },
    /// It is over, and the thread comes to the page again.
    PageMapped,
    /// So many pages' entries are taken out of the page tables.
    UnmapPages(u32),
    /// So many lines of memory that is new to the thread will be gone through.
    Stream(u32),
    /// Receives so many bytes.
    Receive(u64),
    /// Sends so many bytes.
    Send(u64),
    /// Reads so many bytes from a disk.
    ReadDisk(u64),
    /// Writes so many.
    WriteDisk(u64),
    /// Does the work of a back end, for ever.
    Serve(u32),
    /// The thread ends.
    Exit,
}

/// Where a program's parts lie in the arrays of a world that holds several programs.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    /// Its first operation.
    pub ops: u32,
    /// Its first duration.
    pub durations: u32,
    /// Its first lock.
    pub locks: u32,
    /// Its first barrier.
    pub barriers: u32,
    /// Its first condition.
    pub conditions: u32,
    /// Its first condition variable.
    pub condvars: u32,
    /// Its first timer.
    pub timers: u32,
    /// Its first set of CPUs.
    pub cpus: u32,
    /// Its first kind of buffer.
    pub buffers: u32,
    /// Its first program to be executed.
    pub execs: u32,
    /// Its first touch.
    pub touches: u32,
    /// Its first object.
    pub objects: u32,
}

impl Op {
    /// The operation with everything it names moved behind what is there already.
    pub fn behind(self, base: &Base) -> Self {
        match self {
            Self::Run(duration) => Self::Run(duration + base.durations),
            Self::Syscall(duration) => Self::Syscall(duration + base.durations),
            Self::Sleep(duration) => Self::Sleep(duration + base.durations),
            Self::Acquire(lock) => Self::Acquire(lock + base.locks),
            Self::Release(lock) => Self::Release(lock + base.locks),
            Self::Count(lock) => Self::Count(lock + base.locks),
            Self::CountAtomically(lock) => Self::CountAtomically(lock + base.locks),
            Self::Touch(touch) => Self::Touch(touch + base.touches),
            Self::TakePicked(lock) => Self::TakePicked(lock + base.locks),
            Self::GivePicked(lock) => Self::GivePicked(lock + base.locks),
            Self::Share(lock) => Self::Share(lock + base.locks),
            Self::Unshare(lock) => Self::Unshare(lock + base.locks),
            Self::Arrive(barrier) => Self::Arrive(barrier + base.barriers),
            Self::ArriveHolding(barrier) => Self::ArriveHolding(barrier + base.barriers),
            Self::Wait(condition) => Self::Wait(condition + base.conditions),
            Self::Give { condition, count } => Self::Give { condition: condition + base.conditions, count },
            Self::Timer { timer, period } => Self::Timer { timer: timer + base.timers, period },
            Self::Affinity(cpus) => Self::Affinity(cpus + base.cpus),
            Self::Await { condvar, lock } => Self::Await { condvar: condvar + base.condvars, lock: lock + base.locks },
            Self::Signal { condvar, all } => Self::Signal { condvar: condvar + base.condvars, all },
            Self::Again { depth, to } => Self::Again { depth, to: to + base.ops },
            Self::Forever { depth, to } => Self::Forever { depth, to: to + base.ops },
            Self::Fill { buffer, bytes, past } => {
                Self::Fill { buffer: buffer + base.buffers, bytes, past: past + base.ops }
            }
            Self::Grow { buffer, depth, past } => {
                Self::Grow { buffer: buffer + base.buffers, depth, past: past + base.ops }
            }
            Self::Allocate { bytes, depth, past } => Self::Allocate { bytes, depth, past: past + base.ops },
            Self::Jump { to } => Self::Jump { to: to + base.ops },
            Self::Kernel(_) | Self::Enter(_) | Self::Clock(_) | Self::Shootdown | Self::Loop { .. } | Self::Exit => {
                self
            }
            Self::RunFor(_) | Self::SleepUntil(_) | Self::Yield | Self::Stream(_) => self,
            Self::Fork { work, exec } if exec != NONE => Self::Fork { work, exec: exec + base.execs },
            Self::Fork { .. } | Self::EndChild | Self::MapPage { .. } | Self::PageMapped | Self::UnmapPages(_) => self,
            Self::TakePage { .. } | Self::FreePages(_) => self,
            Self::Call | Self::Return | Self::Pick(_) => self,
            Self::Receive(_) | Self::Send(_) | Self::ReadDisk(_) | Self::WriteDisk(_) | Self::Serve(_) => self,
        }
    }
}

/// A barrier with its threads counted.
#[derive(Debug, Clone, Copy)]
pub struct BarrierSpec {
    /// Threads that take part.
    pub parties: u32,
    /// The lock that is its mutex.
    pub mutex: u32,
}

/// How a thread starts.
#[derive(Debug, Clone, Copy)]
pub struct ThreadSpec {
    /// First operation.
    pub start: u32,
    /// Its CPUs; all when absent.
    pub cpus: Option<CpuSet>,
    /// Its niceness.
    pub nice: i8,
    /// What it goes through; threads that start at the same operation share the shared part.
    pub working_set: Option<WorkingSet>,
}

/// A compiled workload.
#[derive(Debug)]
pub struct Program {
    /// All groups' operations, one after the other.
    pub ops: Vec<Op>,
    /// Durations that operations name.
    pub durations: Vec<Duration>,
    /// The threads.
    pub threads: Vec<ThreadSpec>,
    /// Locks: those of the workload, the mutexes of its barriers, those of its files, and last the process's mm mutex.
    pub locks: Vec<Lock>,
    /// Which of them are those of files, inside the kernel.
    pub kernel_locks: Range<u32>,
    /// What calls for files do.
    pub touches: Vec<Touch>,
    /// What they touch.
    pub objects: Vec<ObjectSpec>,
    /// Barriers.
    pub barriers: Vec<BarrierSpec>,
    /// Permits of each condition at the start.
    pub permits: Vec<u64>,
    /// How many condition variables.
    pub condvars: usize,
    /// Timers.
    pub timers: Vec<Timer>,
    /// CPUs that operations name; all when absent.
    pub cpus: Vec<Option<CpuSet>>,
    /// Kinds of buffers, as large at the start as the remedies in force have them.
    pub buffers: Vec<Buffer>,
    /// What pages its process goes through.
    pub address_space: Option<AddressSpace>,
    /// What child processes execute: the pages that those go through.
    pub execs: Vec<AddressSpace>,
    /// When it is ended from outside.
    pub ends: Option<Ps>,
}

impl Program {
    /// A service VM's: a thread for each back end, on the CPU it is bound to.
    pub fn of_service(back_ends: usize, cpu_of: impl Fn(usize) -> Option<usize>) -> Self {
        let thread =
            |b: usize| ThreadSpec { start: b as u32, cpus: cpu_of(b).map(CpuSet::single), nice: 0, working_set: None };
        Self {
            ops: (0..back_ends as u32).map(Op::Serve).collect(),
            durations: Vec::new(),
            threads: (0..back_ends).map(thread).collect(),
            locks: vec![Lock::KernelMutex],
            kernel_locks: 0..0,
            touches: Vec::new(),
            objects: Vec::new(),
            barriers: Vec::new(),
            permits: Vec::new(),
            condvars: 0,
            timers: Vec::new(),
            cpus: Vec::new(),
            buffers: Vec::new(),
            address_space: None,
            execs: Vec::new(),
            ends: None,
        }
    }

    /// What of devices it needs: a network to receive from, one to send to, disks.
    pub fn needs(&self) -> (bool, bool, bool) {
        let any = |is: fn(&Op) -> bool| self.ops.iter().any(is);
        (
            any(|op| matches!(op, Op::Receive(_))),
            any(|op| matches!(op, Op::Send(_))),
            any(|op| matches!(op, Op::ReadDisk(_) | Op::WriteDisk(_))),
        )
    }
}

struct Compiler<'a> {
    workload: &'a Workload,
    prices: &'a Prices,
    kernel: &'a Kernel,
    threads: u32,
    group_count: u32,
    scale: f64,
    depth: usize,
    /// In a child process, which has an address space of its own. Its parent waits for it, so that it runs in that one's
    /// place.
    in_child: bool,
    /// What is new to it is followed into caches.
    streams: bool,
    /// Where files are, if there are any that the kernel can be called for.
    layout: Option<Layout>,
    of_files: FileKernel,
    file_prices: FilePrices,
    /// Of the call that is being compiled.
    pending: Vec<Touch>,
    known_touches: BTreeMap<Touch, u32>,
    program: Program,
}

/// Compiles a workload for a thread count.
///
/// # Errors
/// When counts do not work out, loops nest too deeply, or a phase cannot be simulated yet.
pub fn compile(
    workload: &Workload,
    prices: &Prices,
    kernel: &Kernel,
    larger_buffers: bool,
    threads: u32,
    scale: f64,
) -> Result<Program, ModelError> {
    workload.check_for(threads, scale)?;
    let mut locks: Vec<Lock> = workload.locks.values().copied().collect();
    locks.extend(workload.barriers.values().map(|_| Lock::Mutex));
    let of_files = kernel.files.filter(|_| workload.uses_files());
    let kernels = locks.len() as u32;
    let laid_out = of_files.map(|_| Layout::new(workload, kernels)).transpose()?;
    let (layout, objects, count) = laid_out.map_or((None, Vec::new(), 0), |(a, b, c)| (Some(a), b, c));
    let kernel_locks = kernels..kernels + count;
    locks.extend(kernel_locks.clone().map(|_| Lock::Spin));
    locks.push(Lock::KernelMutex);
    let mutexes = workload.locks.len() as u32..;
    let barriers = workload.barriers.keys().zip(mutexes);
    let barriers =
        barriers.map(|(name, mutex)| BarrierSpec { parties: parties(workload, name, threads), mutex }).collect();
    let start = |buffer: Buffer| match larger_buffers {
        true => Buffer { initial_bytes: buffer.larger_bytes, ..buffer },
        false => buffer,
    };
    let permits = workload.conditions.values().map(|condition| condition.permits).collect();
    let program = Program {
        ops: Vec::new(),
        durations: Vec::new(),
        threads: Vec::new(),
        locks,
        kernel_locks,
        touches: Vec::new(),
        objects,
        barriers,
        permits,
        condvars: workload.condvars.len(),
        timers: workload.timers.values().copied().collect(),
        cpus: Vec::new(),
        buffers: workload.buffers.values().map(|&buffer| start(buffer)).collect(),
        address_space: workload.address_space,
        execs: Vec::new(),
        ends: workload.duration_ns.map(|ns| from_ns(ns as f64 * scale).max(1)),
    };
    let mut compiler = Compiler {
        workload,
        prices,
        kernel,
        threads,
        group_count: 0,
        scale,
        depth: 0,
        in_child: false,
        streams: false,
        layout,
        of_files: of_files.unwrap_or_default(),
        file_prices: prices.files,
        pending: Vec::new(),
        known_touches: BTreeMap::new(),
        program,
    };
    for group in &workload.groups {
        compiler.group_count = group.count.resolve(compiler.threads);
        compiler.streams = group.working_set.is_some();
        let start = compiler.program.ops.len() as u32;
        compiler.phases(&group.phases, &format!("groups.{}", group.name))?;
        compiler.program.ops.push(Op::Exit);
        for _ in 0..compiler.group_count {
            compiler.program.threads.push(ThreadSpec {
                start,
                cpus: group.cpus,
                nice: group.nice,
                working_set: group.working_set,
            });
        }
    }
    Ok(compiler.program)
}

fn parties(workload: &Workload, barrier: &str, threads: u32) -> u32 {
    let uses = |phases: &[Phase]| uses_barrier(phases, barrier);
    let groups = workload.groups.iter().filter(|group| uses(&group.phases));
    groups.map(|group| group.count.resolve(threads)).sum()
}

fn uses_barrier(phases: &[Phase], name: &str) -> bool {
    phases.iter().any(|phase| match phase {
        Phase::Barrier { barrier } => barrier == name,
        Phase::Lock { phases, .. } | Phase::Loop { phases, .. } | Phase::Fork { phases, .. } => {
            uses_barrier(phases, name)
        }
        _ => false,
    })
}

fn index<'k>(mut keys: impl Iterator<Item = &'k String>, name: &str) -> u32 {
    keys.position(|key| key == name).expect("validation found the name") as u32
}

impl Compiler<'_> {
    fn phases(&mut self, phases: &[Phase], place: &str) -> Result<(), ModelError> {
        for (number, phase) in phases.iter().enumerate() {
            self.phase(phase, &format!("{place}.phases[{number}].{}", phase.name()))?;
        }
        Ok(())
    }

    fn phase(&mut self, phase: &Phase, place: &str) -> Result<(), ModelError> {
        match phase {
            Phase::Run { ns, shared } => {
                let op = Op::Run(self.duration(if *shared { self.share(*ns) } else { *ns }));
                self.emit(op);
            }
            Phase::Syscall { ns } => {
                let op = Op::Syscall(self.duration(*ns));
                self.emit(op);
            }
            Phase::Sleep { ns } => {
                let op = Op::Sleep(self.duration(*ns));
                self.emit(op);
            }
            Phase::File { of, calls, user_ns } => self.file(of, calls, *user_ns, place)?,
            Phase::ReadClock { times } => self.emit(Op::Clock(clamp(*times))),
            Phase::RunFor { ns } => self.emit(Op::RunFor(ns * NS)),
            Phase::SleepUntil { ns } => self.emit(Op::SleepUntil(ns * NS)),
            Phase::Timer { timer, period_ns } => {
                let timer = index(self.workload.timers.keys(), timer);
                self.emit(Op::Timer { timer, period: period_ns * NS });
            }
            Phase::Yield {} => self.emit(Op::Yield),
            Phase::Affinity { cpus } => {
                self.program.cpus.push(*cpus);
                self.emit(Op::Affinity(self.program.cpus.len() as u32 - 1));
            }
            Phase::Lock { lock, phases } => {
                let lock = index(self.workload.locks.keys(), lock);
                self.take(lock);
                self.phases(phases, place)?;
                self.give_back(lock);
            }
            Phase::Barrier { barrier } => self.barrier(barrier),
            Phase::Wait { condition } => self.emit(Op::Wait(index(self.workload.conditions.keys(), condition))),
            Phase::Wake { condition, count } => {
                let condition = index(self.workload.conditions.keys(), condition);
                self.emit(Op::Give { condition, count: count.resolve(self.threads) });
            }
            Phase::Await { condvar, lock } => {
                let condvar = index(self.workload.condvars.iter(), condvar);
                self.emit(Op::Await { condvar, lock: index(self.workload.locks.keys(), lock) });
            }
            Phase::Signal { condvar, all } => {
                self.emit(Op::Signal { condvar: index(self.workload.condvars.iter(), condvar), all: *all });
            }
            Phase::TouchMemory { pages, cached } => self.touch(*pages, *cached, place)?,
            Phase::Fill { buffer, bytes } => self.fill(buffer, clamp(*bytes), place)?,
            Phase::Allocate { bytes } => self.allocate(clamp(*bytes), place)?,
            Phase::Map { .. } => self.call_with_mm(&[Op::Kernel(self.prices.map)]),
            Phase::Unmap { pages } if self.kernel.zones_have_locks => {
                let free = Op::FreePages(clamp(*pages));
                let unmap = Op::UnmapPages(clamp(*pages));
                self.call_with_mm(&[unmap, Op::Kernel(self.prices.unmap), Op::Shootdown, free]);
            }
            Phase::Unmap { pages } => {
                let unmap = Op::UnmapPages(clamp(*pages));
                let pages = self.prices.unmap_page.saturating_mul(*pages);
                self.call_with_mm(&[unmap, Op::Kernel(self.prices.unmap + pages), Op::Shootdown]);
            }
            Phase::Loop { times: Count::Forever, phases, .. } => {
                self.nested(place, |this, depth| {
                    let to = this.program.ops.len() as u32;
                    this.phases(phases, place)?;
                    this.emit(Op::Forever { depth, to });
                    Ok(())
                })?;
            }
            Phase::Loop { times, scaled, phases } => {
                let times = clamp(repetitions(*times, self.threads, *scaled, self.scale));
                self.repeat(times, place, |this| this.phases(phases, place))?;
            }
            Phase::Fork { phases, exec } => {
                let exec = exec.map_or(NONE, |exec| {
                    self.program.execs.push(exec);
                    self.program.execs.len() as u32 - 1
                });
                self.emit(Op::Fork { work: self.prices.syscall + self.prices.fork, exec });
                let of_parent = std::mem::replace(&mut self.in_child, true);
                self.phases(phases, place)?;
                self.in_child = of_parent;
                self.emit(Op::EndChild);
            }
            Phase::Send { bytes } => self.emit(Op::Send(*bytes)),
            Phase::Receive { bytes } => self.emit(Op::Receive(*bytes)),
            Phase::ReadDisk { bytes } => self.emit(Op::ReadDisk(*bytes)),
            Phase::WriteDisk { bytes } => self.emit(Op::WriteDisk(*bytes)),
        }
        Ok(())
    }

    fn barrier(&mut self, name: &str) {
        let barrier = index(self.workload.barriers.keys(), name);
        match self.workload.barriers[name] {
            workload::Barrier::Futex => self.emit(Op::Arrive(barrier)),
            workload::Barrier::Condvar => {
                let lock = self.workload.locks.len() as u32 + barrier;
                self.emit(Op::Acquire(lock));
                self.emit(Op::ArriveHolding(barrier));
                self.emit(Op::Release(lock));
            }
        }
    }

    fn touch(&mut self, pages: u64, cached: bool, place: &str) -> Result<(), ModelError> {
        self.repeat(clamp(pages), place, |this| {
            this.fault(cached);
            if this.streams {
                this.emit(Op::Stream(PAGE_LINES));
            }
            Ok(())
        })
    }

    /// Buffers fill; when they are full, a new piece is allocated for each.
    fn fill(&mut self, buffer: &str, bytes: u32, place: &str) -> Result<(), ModelError> {
        let buffer = index(self.workload.buffers.keys(), buffer);
        let fill = self.next_op();
        self.emit(Op::Fill { buffer, bytes, past: 0 });
        self.nested(place, |this, depth| {
            let grow = this.next_op();
            this.emit(Op::Grow { buffer, depth, past: 0 });
            this.grow_heap(depth);
            this.emit(Op::Jump { to: grow });
            let past = this.next_op();
            this.program.ops[fill as usize] = Op::Fill { buffer, bytes, past };
            this.program.ops[grow as usize] = Op::Grow { buffer, depth, past };
            Ok(())
        })
    }

    fn allocate(&mut self, bytes: u32, place: &str) -> Result<(), ModelError> {
        self.nested(place, |this, depth| {
            let allocate = this.next_op();
            this.emit(Op::Allocate { bytes, depth, past: 0 });
            this.grow_heap(depth);
            let past = this.next_op();
            this.program.ops[allocate as usize] = Op::Allocate { bytes, depth, past };
            Ok(())
        })
    }

    /// The heap grows (mprotect(2)) by so many pages as the loop of this depth has been told, which are touched.
    fn grow_heap(&mut self, depth: u8) {
        self.call_with_mm(&[Op::Kernel(self.prices.map), Op::Shootdown]);
        let to = self.next_op();
        self.fault(false);
        self.emit(Op::Again { depth, to });
    }

    fn next_op(&self) -> u32 {
        self.program.ops.len() as u32
    }

    /// A page fault; the page is new, or one of a file that the page cache has.
    fn fault(&mut self, cached: bool) {
        let mm = self.program.locks.len() as u32 - 1;
        let takes_page = self.kernel.zones_have_locks && !cached;
        if self.in_child {
            let work = self.prices.fault_entry + self.prices.page_fault;
            self.emit(Op::MapPage { is_new: !cached });
            self.emit(if takes_page { Op::TakePage { work, enters: true } } else { Op::Enter(work) });
            return self.emit(Op::PageMapped);
        }
        let work = self.prices.page_fault;
        let work = if takes_page { Op::TakePage { work, enters: false } } else { Op::Kernel(work) };
        if self.prices.fault_entry > 0 {
            self.emit(Op::Enter(self.prices.fault_entry));
        }
        self.count(mm);
        self.emit(Op::Share(mm));
        self.emit(Op::MapPage { is_new: !cached });
        self.emit(work);
        self.count(mm);
        self.emit(Op::Unshare(mm));
        self.emit(Op::PageMapped);
    }

    /// A system call that does `ops` under the mm semaphore.
    fn call_with_mm(&mut self, ops: &[Op]) {
        let mm = self.program.locks.len() as u32 - 1;
        self.emit(Op::Enter(self.prices.syscall));
        if self.in_child {
            // Nobody else has this address space.
            let alone = ops.iter().filter(|&&op| op != Op::Shootdown);
            return alone.for_each(|&op| self.emit(op));
        }
        self.take(mm);
        ops.iter().for_each(|&op| self.emit(op));
        self.give_back(mm);
    }

    fn take(&mut self, lock: u32) {
        self.count(lock);
        self.emit(Op::Acquire(lock));
    }

    fn give_back(&mut self, lock: u32) {
        self.count(lock);
        self.emit(Op::Release(lock));
    }

    /// A semaphore's count is about to change.
    fn count(&mut self, lock: u32) {
        let is_semaphore = self.program.locks[lock as usize] == Lock::KernelMutex;
        if is_semaphore && self.kernel.semaphores_have_locks {
            self.emit(Op::Count(lock));
        } else if is_semaphore && self.kernel.semaphore_counts_bounce {
            self.emit(Op::CountAtomically(lock));
        }
    }

    fn repeat(
        &mut self,
        times: u32,
        place: &str,
        body: impl FnOnce(&mut Self) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        self.nested(place, |this, depth| {
            this.emit(Op::Loop { depth, times });
            let to = this.program.ops.len() as u32;
            body(this)?;
            this.emit(Op::Again { depth, to });
            Ok(())
        })
    }

    /// One loop deeper.
    fn nested(
        &mut self,
        place: &str,
        body: impl FnOnce(&mut Self, u8) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        if self.depth == LOOP_DEPTH {
            return Err(ModelError::new(place, "loops nested deeper", format!("at most {LOOP_DEPTH} nested loops")));
        }
        self.depth += 1;
        body(self, self.depth as u8 - 1)?;
        self.depth -= 1;
        Ok(())
    }

    fn emit(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    fn duration(&mut self, duration: Duration) -> u32 {
        self.program.durations.push(duration);
        self.program.durations.len() as u32 - 1
    }

    /// One thread's part of work that the group's threads share.
    fn share(&self, whole: Duration) -> Duration {
        let part = |ns: u64| ns / u64::from(self.group_count.max(1));
        match whole {
            Duration::Fixed(ns) => Duration::Fixed(part(ns)),
            Duration::Uniform { min, max } => Duration::Uniform { min: part(min), max: part(max) },
            Duration::Exponential { mean } => Duration::Exponential { mean: part(mean) },
        }
    }
}

fn clamp(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
