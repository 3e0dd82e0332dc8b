//! Spinning as the hardware and the VMM see it: loops of PAUSE, pause-loop exits, and what the VMM does then.
//!
//! A loop of PAUSE in ring 0 that lasts longer than PLE_Window, no two of its PAUSEs further apart than PLE_Gap, leaves the guest
//! (Intel SDM, volume 3). Xen then yields the vCPU's quantum; KVM lets the window grow and gives way to a vCPU of the same VM
//! that may hold the lock (`policy::ple`). What is counted besides, whoever reacts: how long kernels' spin locks are
//! waited for, and how many exits each gap would make.
//!
//! How far apart PAUSEs are, is in the loops of Linux 2.6.30:
//! - a spin lock's (arch/x86/include/asm/spinlock.h, `__ticket_spin_lock`): compare, PAUSE, load: the least that a loop can be,
//!   `sim.cpu.pause-loop`;
//! - a mutex's (kernel/sched.c, `mutex_spin_on_owner`) also looks at the owner, its run queue and whether to give way;
//! - a shootdown's (arch/x86/kernel/tlb_64.c, `native_flush_tlb_others`) looks through a mask of CPUs each time.
//!
//! Where the word that a loop reads is written elsewhere, the next read has to wait for its line, and PAUSEs are further
//! apart for once: with a smaller gap that begins a new loop. A sibling on the core makes loops slower as it does everything.
//! Left out: delay loops (`delay_tsc`), which no workload here comes by, and the polling idle loop.

use crate::engine::books::Cost;
use crate::engine::{Ps, from_ns};
use crate::guest::kernel_locks::{LockId, Underway};
use crate::guest::vcpu::VcpuState;
use crate::vmm::pcpu::{PcpuState, RunState, softirq};
use crate::world::{World, kind, slot_of};
use muster_model::study::{Experiment, GuestKernel, Pin, Ple, PleKind, SpinLocks, Yield};
use muster_model::{Account, Distance, ModelError, Profile};
use muster_policy::ple::{DirectedYield, ExitRate, Waits, Window, WindowConfig, Yielded};
use std::collections::VecDeque;
use std::ops::Range;

/// A loop of PAUSE in a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseLoop {
    /// For a spin lock.
    SpinLock,
    /// For a mutex whose owner runs.
    Mutex,
    /// For other vCPUs' acknowledgements of a shootdown.
    Acks,
}

impl PauseLoop {
    /// What one turn takes longer than the least loop, in cycles: three loads from the first-level cache; a call that
    /// searches a word of memory. Assumed.
    fn more_cycles(self) -> f64 {
        match self {
            Self::SpinLock => 0.0,
            Self::Mutex | Self::Acks => 12.0,
        }
    }
}

const LOOPS: usize = 3;
/// A line's ways by distance, its own CPU left out: each makes loops longer apart for once.
const WAYS: usize = Distance::ALL.len() - 1;

/// A loop under way.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    is_on: bool,
    /// [`PauseLoop`] and whether a sibling is awake, as an index.
    class: usize,
    /// Between two PAUSEs.
    spacing: Ps,
    begun: Ps,
    /// Since when it has been one loop to a gap that bridges no line's way, ways up to the first distance, and so on.
    since: [Ps; WAYS + 1],
}

/// What is known about spinning, and who reacts to it.
#[derive(Debug)]
pub struct Spinning {
    ple: Ple,
    is_queued: bool,
    /// A cycle of the TSC, in picoseconds.
    cycle: f64,
    /// What the least loop takes a turn.
    pause_loop: Ps,
    gap: Ps,
    /// Lines' ways by distance.
    ways: [Ps; WAYS],
    /// By lock of run queues and zones, the vCPUs that wait.
    queues: Vec<VecDeque<u32>>,
    vcpus: usize,
    /// By vCPU.
    pub(crate) underway: Vec<Underway>,
    runs: Vec<Run>,
    /// When each asked for the lock that its thread spins for.
    asked: Vec<Ps>,
    windows: Vec<Window>,
    /// By vCPU, how long it has spun for the lock that it waits for, and when it halts.
    pub(crate) spun: Vec<Ps>,
    patience: Vec<Ps>,
    /// By VM, its first vCPU and whom it yields to.
    directed: Vec<(usize, DirectedYield)>,
    waits: Waits,
    /// Exits by loop and by the farthest way that they bridge.
    exits: [[u64; WAYS + 1]; 2 * LOOPS],
    /// By loop, the distance of its PAUSEs.
    spacings: [Ps; 2 * LOOPS],
}

/// What a run showed of spinning.
#[derive(Debug, Clone, PartialEq)]
pub struct Spins {
    /// Waits for spin locks of guests' kernels, in cycles: from asking to having it, whether or not somebody had it.
    pub waits: Waits,
    /// PAUSE exits per second that each gap makes, with the experiment's window; gaps four to a power of two.
    pub exits_by_gap: Vec<ExitRate>,
}

/// The window and gap that are counted with where an experiment says nothing.
const SILENT: PleKind = PleKind::Off;

impl Spinning {
    /// For a world whose experiment looks at spinning, or whose vCPUs share pCPUs under kernels with simulated locks.
    ///
    /// # Errors
    /// When the profile does not say how long a cycle is, and a loop of PAUSE, and the experiment asks for them.
    pub(crate) fn of(
        experiment: &Experiment,
        profile: &Profile,
        world: &World,
    ) -> Result<Option<Box<Self>>, ModelError> {
        let has_locks = !world.run_queue_locks.is_empty() || world.allocator.is_some();
        let specs = experiment.all_vms();
        let shares = world.scheduler.decides() && (specs.len() > 1 || specs[0].share.pin != Pin::Each);
        if experiment.ple.is_none() && !(shares && has_locks) {
            return Ok(None);
        }
        let vms: Vec<_> = world.vms.iter().map(|vm| vm.vcpus.clone()).collect();
        let zones = world.allocator.as_ref().map_or(0, |allocator| allocator.zones());
        Self::new(experiment, profile, &vms, &world.prices.cache_line, zones).map(Some)
    }

    fn new(
        experiment: &Experiment,
        profile: &Profile,
        vms: &[Range<usize>],
        ways: &[Ps; Distance::ALL.len()],
        zones: usize,
    ) -> Result<Box<Self>, ModelError> {
        let price = |name: &str, usual: f64| match experiment.ple {
            Some(_) => profile.require_ns(name),
            None => Ok(profile.price_ns(name).unwrap_or(usual)),
        };
        let cycle = price("sim.cpu.cycle", 0.4)? * 1e3;
        let pause_loop = from_ns(price("sim.cpu.pause-loop", 20.0)?);
        let ple = experiment.ple.unwrap_or(Ple::new(SILENT));
        let vcpus = vms.iter().map(|vm| vm.end).max().unwrap_or(0);
        let config = window_config(&ple);
        let mut spinning = Self {
            ple,
            is_queued: experiment.spin_locks.unwrap_or(usual_locks(experiment)) == SpinLocks::Queued,
            cycle,
            pause_loop,
            gap: (f64::from(ple.gap) * cycle) as Ps,
            ways: std::array::from_fn(|way| ways[way + 1]),
            queues: vec![VecDeque::new(); vcpus + 2 * zones],
            vcpus,
            underway: vec![Underway::new(); vcpus],
            runs: vec![Run::default(); vcpus],
            asked: vec![0; vcpus],
            windows: vec![Window::new(&config); vcpus],
            spun: vec![0; vcpus],
            patience: vec![Ps::MAX; vcpus],
            directed: vms.iter().map(|vm| (vm.start, DirectedYield::new(vm.len()))).collect(),
            waits: Waits::default(),
            exits: [[0; WAYS + 1]; 2 * LOOPS],
            spacings: [0; 2 * LOOPS],
        };
        spinning.ways.sort_unstable();
        Ok(spinning.into())
    }

    /// Whether kernels' locks are queued ones, whose waiters look at lines of their own.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued
    }

    fn index_of(&self, lock: LockId) -> usize {
        match lock {
            LockId::Queue(c) => c as usize,
            LockId::Zone(zone) => self.vcpus + 2 * zone as usize,
            LockId::Lru(zone) => self.vcpus + 2 * zone as usize + 1,
        }
    }

    /// The vCPUs that wait for a lock.
    pub(crate) fn queue(&mut self, lock: LockId) -> &mut VecDeque<u32> {
        let index = self.index_of(lock);
        &mut self.queues[index]
    }

    /// The same, to be looked at.
    pub(crate) fn queue_of(&self, lock: LockId) -> &VecDeque<u32> {
        &self.queues[self.index_of(lock)]
    }

    /// How many of those that wait behind read the word when it is handed over.
    pub(crate) fn looks_of(&self, waiting: usize) -> usize {
        if self.is_queued { 0 } else { waiting }
    }

    fn window(&self, c: usize) -> Ps {
        let cycles = if self.ple.kind == PleKind::Kvm { self.windows[c].cycles() } else { self.ple.window };
        (f64::from(cycles) * self.cycle) as Ps
    }

    /// Whether the hardware sees a loop as one, and takes the vCPU out of the guest when it lasts.
    fn sees(&self, spacing: Ps) -> bool {
        self.ple.kind != PleKind::Off && spacing <= self.gap
    }

    /// Ends the loops that are none to gaps which bridge `ways` ways or fewer.
    fn close(&mut self, c: usize, now: Ps, ways: usize, next: Ps) {
        let window = f64::from(self.ple.window) * self.cycle;
        let run = &mut self.runs[c];
        for way in 0..=ways {
            let lasted = now.saturating_sub(run.since[way]);
            self.exits[run.class][way] += (lasted as f64 / window) as u64;
            run.since[way] = next;
        }
    }

    /// What a run of `wall` showed.
    pub fn spins(&self, wall: Ps) -> Spins {
        let seconds = (wall as f64 / 1e12).max(1e-12);
        let mut gaps: Vec<u32> = (12..=52).map(|quarter| (f64::from(quarter) / 4.0).exp2().round() as u32).collect();
        gaps.dedup();
        let rate = |gap: u32| {
            let gap_ps = (f64::from(gap) * self.cycle) as Ps;
            let of_loop = |class: usize| {
                let spacing = self.spacings[class];
                let bridged = self.ways.iter().filter(|&&way| spacing + way <= gap_ps).count();
                if spacing <= gap_ps { self.exits[class][bridged] } else { 0 }
            };
            ExitRate { gap, per_second: (0..2 * LOOPS).map(of_loop).sum::<u64>() as f64 / seconds }
        };
        Spins { waits: self.waits.clone(), exits_by_gap: gaps.into_iter().map(rate).collect() }
    }
}

/// Linux has queued locks from 4.2 on.
fn usual_locks(experiment: &Experiment) -> SpinLocks {
    match experiment.kernel {
        Some(GuestKernel::Linux6) => SpinLocks::Queued,
        _ => SpinLocks::Ticket,
    }
}

fn window_config(ple: &Ple) -> WindowConfig {
    WindowConfig { base: ple.window, grow: ple.grow, shrink: ple.shrink, max: ple.window_max }
}

impl World {
    pub(crate) fn spinning_mut(&mut self) -> &mut Spinning {
        self.spinning.as_mut().expect("only what goes over events asks")
    }

    // ---- waits ----

    /// A spin lock of a guest's kernel was waited for so long.
    pub(crate) fn note_lock_wait(&mut self, waited: Ps) {
        if let Some(spinning) = &mut self.spinning {
            spinning.waits.add((waited as f64 / spinning.cycle) as u64);
        }
    }

    /// The vCPU's thread asks for a spin lock that it will wait for.
    pub(crate) fn note_asking(&mut self, c: usize) {
        let now = self.now;
        if let Some(spinning) = &mut self.spinning {
            spinning.asked[c] = now;
        }
    }

    /// It has it.
    pub(crate) fn note_asked(&mut self, c: usize) {
        if let Some(spinning) = &self.spinning {
            self.note_lock_wait(self.now - spinning.asked[c]);
        }
    }

    // ---- loops ----

    /// The vCPU begins a loop of PAUSE, and will leave the guest when that lasts.
    pub(crate) fn begin_pauses(&mut self, c: usize, which: PauseLoop) {
        let Some(spinning) = &self.spinning else { return };
        let turn = spinning.pause_loop + (which.more_cycles() * spinning.cycle) as Ps;
        let spacing = self.vmm_lasts(self.vcpus[c].pcpu as usize, turn);
        let class = 2 * which as usize + usize::from(spacing > turn);
        let now = self.now;
        let spinning = self.spinning_mut();
        spinning.runs[c] = Run { is_on: true, class, spacing, begun: now, since: [now; WAYS + 1] };
        spinning.spacings[class] = spacing;
        let sees = spinning.sees(spacing);
        let patience = self.patience(c, which, spacing);
        let spinning = self.spinning_mut();
        spinning.patience[c] =
            if patience == Ps::MAX { Ps::MAX } else { now + patience.saturating_sub(spinning.spun[c]) };
        if sees || patience < Ps::MAX {
            self.arm(c, now);
        }
    }

    /// The vCPU's loop, which began at `since`, will last too long then, or its own patience is over.
    fn arm(&mut self, c: usize, since: Ps) {
        let now = self.now;
        let spinning = self.spinning_mut();
        let sees = spinning.sees(spinning.runs[c].spacing);
        let exits = if sees { since + spinning.window(c) } else { Ps::MAX };
        let until = exits.min(spinning.patience[c]).max(now);
        self.vcpus[c].ple_armed = true;
        self.vcpus[c].until = until;
        self.queue.schedule(slot_of(c, kind::VCPU), until);
    }

    /// What a vCPU looks at has been written by the CPU `by`: it pauses for once until the line is there.
    pub(crate) fn disturb_pauses(&mut self, c: usize, by: usize) {
        let now = self.now;
        let pcpu = self.vcpus[c].pcpu as usize;
        let line = self.shared.lines.price(by, pcpu);
        let spinning = self.spinning_mut();
        let run = spinning.runs[c];
        if !run.is_on || line == 0 {
            return;
        }
        // To gaps that bridge fewer ways than this one.
        let ways = spinning.ways.iter().filter(|&&way| way < line).count();
        spinning.close(c, now, ways, now + line);
        let is_new_loop = spinning.sees(run.spacing) && !spinning.sees(run.spacing + line);
        if is_new_loop && self.vcpus[c].ple_armed {
            self.arm(c, now + line);
        }
    }

    /// The vCPU's loop ends, if it is in one.
    pub(crate) fn end_pauses(&mut self, c: usize) {
        let now = self.now;
        self.vcpus[c].ple_armed = false;
        if let Some(spinning) = &mut self.spinning
            && spinning.runs[c].is_on
        {
            spinning.close(c, now, WAYS, now);
            spinning.runs[c].is_on = false;
            spinning.spun[c] += now - spinning.runs[c].begun;
            if spinning.runs[c].class / 2 == PauseLoop::SpinLock as usize {
                let spun = now - self.vcpus[c].run_since;
                self.vm_mut(c).counters.spun_ps += spun;
                if self.vcpus[c].state == VcpuState::Queueing {
                    self.kernel_spin += spun;
                }
            }
        }
    }

    // ---- exits ----

    /// The vCPU has spun for too long: the VMM has its pCPU, and looks for what else to run there.
    pub(crate) fn pause_exit(&mut self, c: usize) {
        if self.now >= self.spinning_mut().patience[c] {
            return self.pv_halt(c);
        }
        let p = self.vcpus[c].pcpu as usize;
        let exit = self.prices.vm_exit;
        self.stop_vcpu(c);
        self.vm_mut(c).counters.pause_exits += 1;
        let spinning = self.spinning_mut();
        let ple = spinning.ple;
        let yields = match ple.kind {
            PleKind::Off => unreachable!("nobody looks"),
            PleKind::Xen => {
                if ple.yields == Yield::BehindOneLower {
                    self.scheduler.give_way(c);
                }
                Some(Cost::default())
            }
            PleKind::Kvm => {
                spinning.windows[c].exited(&window_config(&ple));
                self.yield_directed(c)
            }
        };
        let mut cost = Cost::from(exit);
        if let Some(yielding) = yields {
            cost += yielding;
            self.pcpus[p].yields = true;
            self.pcpus[p].softirqs |= softirq::SCHEDULE;
        }
        self.in_vmm(p, PcpuState::Vmm, Account::VmmScheduler, cost);
    }

    /// A vCPU that has spun gives way to one of its VM that may hold the lock; what that takes. Where there is none it goes on.
    fn yield_directed(&mut self, c: usize) -> Option<Cost> {
        let vm = self.vcpus[c].vm as usize;
        let (first, mut directed) = std::mem::take(&mut self.spinning_mut().directed[vm]);
        // Preempted in its kernel, where alone it can hold such a lock.
        let may_hold = |vcpu: usize| {
            let vcpu = &self.vcpus[first + vcpu];
            vcpu.is_stopped() && vcpu.is_in_kernel(&self.threads)
        };
        let waits = |vcpu: usize| match self.run_state(first + vcpu) {
            _ if !self.scheduler.decides() => Yielded::Pointless,
            RunState::Runnable => Yielded::Yes,
            RunState::Running | RunState::Blocked => Yielded::No,
        };
        let found = directed.on_spin(c - first, may_hold, waits);
        self.spinning_mut().directed[vm] = (first, directed);
        let target = first + found?;
        self.vms[vm].counters.directed_yields += 1;
        Some(self.yield_to(c, target))
    }

    /// A vCPU comes onto a pCPU again.
    pub(crate) fn note_loaded(&mut self, c: usize) {
        if let Some(spinning) = &mut self.spinning
            && spinning.ple.kind == PleKind::Kvm
        {
            let config = window_config(&spinning.ple);
            spinning.windows[c].loaded(&config);
        }
    }

    /// A vCPU that was stopped goes on.
    pub(crate) fn note_resumed(&mut self, c: usize) {
        let vm = self.vcpus[c].vm as usize;
        if let Some(spinning) = &mut self.spinning
            && spinning.ple.kind == PleKind::Kvm
        {
            let (first, directed) = &mut spinning.directed[vm];
            directed.resumes(c - *first);
        }
    }
}
