//! Phases compiled to a flat list of small operations, names resolved to numbers.

use crate::engine::Ps;
use crate::machine::prices::Prices;
use muster_model::workload::{self, Duration, Lock, Phase, Workload, repetitions};
use muster_model::{CpuSet, ModelError};

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
    /// Reads the clock; all reads of the phase at once.
    Clock(Ps),
    /// Sleeps for a duration.
    Sleep(u32),
    /// Takes a lock.
    Acquire(u32),
    /// Gives it back.
    Release(u32),
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
    /// The thread ends.
    Exit,
}

/// A barrier with its threads counted.
#[derive(Debug, Clone, Copy)]
pub struct BarrierSpec {
    /// Threads that take part.
    pub parties: u32,
}

/// A compiled workload.
#[derive(Debug)]
pub struct Program {
    /// All groups' operations, one after the other.
    pub ops: Vec<Op>,
    /// Durations that operations name.
    pub durations: Vec<Duration>,
    /// First operation and CPUs of each thread.
    pub threads: Vec<(u32, Option<CpuSet>)>,
    /// Locks: those of the workload, the mutexes of its barriers, and last the process's mm mutex.
    pub locks: Vec<Lock>,
    /// Barriers.
    pub barriers: Vec<BarrierSpec>,
    /// Permits of each condition at the start.
    pub permits: Vec<u64>,
}

struct Compiler<'a> {
    workload: &'a Workload,
    prices: &'a Prices,
    threads: u32,
    group_count: u32,
    scale: f64,
    depth: usize,
    program: Program,
}

/// Compiles a workload for a thread count.
///
/// # Errors
/// When counts do not work out, loops nest too deeply, or a phase cannot be simulated yet.
pub fn compile(workload: &Workload, prices: &Prices, threads: u32, scale: f64) -> Result<Program, ModelError> {
    workload.check_for(threads, scale)?;
    let mut locks: Vec<Lock> = workload.locks.values().copied().collect();
    locks.extend(workload.barriers.values().map(|_| Lock::Mutex));
    locks.push(Lock::KernelMutex);
    let barriers = workload.barriers.keys().map(|name| parties(workload, name, threads)).collect();
    let permits = workload.conditions.values().map(|condition| condition.permits).collect();
    let program = Program { ops: Vec::new(), durations: Vec::new(), threads: Vec::new(), locks, barriers, permits };
    let mut compiler = Compiler { workload, prices, threads, group_count: 0, scale, depth: 0, program };
    for group in &workload.groups {
        compiler.group_count = group.count.resolve(compiler.threads);
        let start = compiler.program.ops.len() as u32;
        compiler.phases(&group.phases, &format!("groups.{}", group.name))?;
        compiler.program.ops.push(Op::Exit);
        for _ in 0..compiler.group_count {
            compiler.program.threads.push((start, group.cpus));
        }
    }
    Ok(compiler.program)
}

fn parties(workload: &Workload, barrier: &str, threads: u32) -> BarrierSpec {
    let uses = |phases: &[Phase]| uses_barrier(phases, barrier);
    let groups = workload.groups.iter().filter(|group| uses(&group.phases));
    BarrierSpec { parties: groups.map(|group| group.count.resolve(threads)).sum() }
}

fn uses_barrier(phases: &[Phase], name: &str) -> bool {
    phases.iter().any(|phase| match phase {
        Phase::Barrier { barrier } => barrier == name,
        Phase::Lock { phases, .. } | Phase::Loop { phases, .. } | Phase::Fork { phases } => uses_barrier(phases, name),
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
            Phase::ReadClock { times } => self.emit(Op::Clock(self.prices.clock_read.saturating_mul(*times))),
            Phase::Lock { lock, phases } => {
                let lock = index(self.workload.locks.keys(), lock);
                self.emit(Op::Acquire(lock));
                self.phases(phases, place)?;
                self.emit(Op::Release(lock));
            }
            Phase::Barrier { barrier } => self.barrier(barrier),
            Phase::Wait { condition } => self.emit(Op::Wait(index(self.workload.conditions.keys(), condition))),
            Phase::Wake { condition, count } => {
                let condition = index(self.workload.conditions.keys(), condition);
                self.emit(Op::Give { condition, count: count.resolve(self.threads) });
            }
            Phase::TouchMemory { pages } => {
                let mm = self.program.locks.len() as u32 - 1;
                let fault = [Op::Share(mm), Op::Kernel(self.prices.page_fault), Op::Unshare(mm)];
                self.repeat(clamp(*pages), place, |this| {
                    fault.iter().for_each(|&op| this.emit(op));
                    Ok(())
                })?;
            }
            Phase::Map { .. } => self.with_mm(&[Op::Kernel(self.prices.syscall + self.prices.map)]),
            Phase::Unmap { pages } => {
                let pages = self.prices.unmap_page.saturating_mul(*pages);
                self.with_mm(&[Op::Kernel(self.prices.syscall + self.prices.unmap + pages), Op::Shootdown]);
            }
            Phase::Loop { times, scaled, phases } => {
                let times = clamp(repetitions(*times, self.threads, *scaled, self.scale));
                self.repeat(times, place, |this| this.phases(phases, place))?;
            }
            Phase::Send { .. } | Phase::Receive { .. } | Phase::ReadDisk { .. } | Phase::Fork { .. } => {
                let found = format!("a phase `{}`, which the simulator cannot simulate yet", phase.name());
                let allowed =
                    "run, lock, barrier, wait, wake, touch-memory, map, unmap, read-clock, syscall, sleep, loop";
                return Err(ModelError::new(place, found, allowed));
            }
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

    fn with_mm(&mut self, ops: &[Op]) {
        let mm = self.program.locks.len() as u32 - 1;
        self.emit(Op::Acquire(mm));
        ops.iter().for_each(|&op| self.emit(op));
        self.emit(Op::Release(mm));
    }

    fn repeat(
        &mut self,
        times: u32,
        place: &str,
        body: impl FnOnce(&mut Self) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        if self.depth == LOOP_DEPTH {
            return Err(ModelError::new(place, "loops nested deeper", format!("at most {LOOP_DEPTH} nested loops")));
        }
        let depth = self.depth as u8;
        self.depth += 1;
        self.emit(Op::Loop { depth, times });
        let to = self.program.ops.len() as u32;
        body(self)?;
        self.emit(Op::Again { depth, to });
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
