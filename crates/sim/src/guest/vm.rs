//! A virtual machine, or natively the machine itself, as far as its guest kernel goes: its settings, its vCPUs and
//! threads, and what it counts. vCPUs, threads, locks, barriers and conditions of all VMs lie in the world's flat arrays;
//! a VM's are next to each other, and sets of vCPUs are sets over all of them.

use super::kernel::Kernel;
use super::masked::OpenLock;
use crate::engine::Ps;
use crate::remedy::Daemon;
use crate::vmm::pm_timer::PmTimer;
use crate::world::NONE;
use muster_model::CpuSet;
use muster_model::study::{Consolidation, IdleKind, Placement, Remedy, RemoteWake, VmSpec, WakeSignal};
use muster_policy::idle::HaltPollConfig;
use std::collections::BTreeSet;
use std::ops::Range;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        /// Counts over the whole run.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl std::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Queue pops that changed a state.
    events: u64,
    /// Entries into idle states that halt.
    idle_entries: u64,
    /// Entries into polling idle.
    poll_entries: u64,
    /// Threads switched in.
    switches: u64,
    /// Threads that moved to another vCPU.
    migrations: u64,
    /// Rescheduling IPIs.
    ipis: u64,
    /// Rescheduling exceptions in place of IPIs.
    exceptions: u64,
    /// Threads woken.
    wakeups: u64,
    /// VM exits by HLT.
    halt_exits: u64,
    /// VM exits by writes to the interrupt command register.
    ipi_exits: u64,
    /// VM exits by interrupts that take a vCPU out of the guest, and by ends of interrupts.
    interrupt_exits: u64,
    /// VM exits by writes to the timer.
    timer_exits: u64,
    /// Halts during which the host polled.
    host_polls: u64,
    /// Those that ended while it did.
    host_poll_hits: u64,
    /// Translations dropped at a vCPU's return to a pCPU and not by an interrupt.
    deferred_flushes: u64,
    /// Halts of waiters for a spin lock of the kernel.
    lock_halts: u64,
    /// VM exits by loops of PAUSE.
    pause_exits: u64,
    /// Those after which another vCPU ran.
    yields: u64,
    /// Those that gave way to a vCPU of the same VM.
    directed_yields: u64,
    /// On-CPU time of spinning for spin locks of the kernel, where that goes over events.
    spun_ps: Ps,
    /// TLB shootdowns with at least one other vCPU.
    shootdowns: u64,
    /// Wake-ups of threads blocked on a lock that were timed.
    lock_wakes: u64,
    /// The sum of their latencies.
    lock_wake_ps: Ps,
}

/// What belongs to one guest.
#[derive(Debug)]
pub struct Vm {
    /// Its vCPUs.
    pub vcpus: Range<usize>,
    /// Its threads.
    pub threads: Range<usize>,
    /// Its program's conditions.
    pub(crate) conditions: Range<usize>,
    /// Its program's timers.
    pub(crate) timers: Range<u32>,
    /// By thread, its CPUs at the start.
    pub(crate) pinned: Vec<CpuSet>,
    /// When its program is ended from outside; one that repeats itself is not.
    pub(crate) ends: Option<Ps>,
    /// Whether it has been.
    pub(crate) was_ended: bool,
    /// Whether its program starts again when it ends.
    pub(crate) repeat: bool,
    /// How often its program has ended.
    pub runs: u32,
    /// When it did so last.
    pub ended_at: Ps,
    pub(crate) kernel: Kernel,
    /// Whether it serves the other VMs' devices.
    pub(crate) is_service: bool,
    /// By how much its timers may be late.
    pub(crate) timer_slop: Option<Ps>,
    /// Its clock, where reading that takes the VMM.
    pub(crate) pm_timer: Option<PmTimer>,
    /// The VMM's lock of its event channels, where it sends events in place of IPIs.
    pub(crate) events: Option<OpenLock>,
    /// What the VMM takes to begin a shootdown for it, where it asks the VMM for that.
    pub(crate) flush_call: Option<Ps>,
    /// Whether its paging is simulated entry by entry.
    pub(crate) has_paging: bool,
    pub(crate) idle_kind: IdleKind,
    pub(crate) haltpoll: HaltPollConfig,
    pub(crate) remote_wake: RemoteWake,
    pub(crate) placement: Placement,
    pub(crate) wake_signal: WakeSignal,
    /// Whether active vCPUs have yielding threads.
    pub(crate) yielding: bool,
    /// Threads that have not ended.
    pub(crate) live: u32,
    /// Threads that sleep on a timer.
    pub(crate) asleep: u32,
    /// Threads that wait for a device or a back end.
    pub(crate) device_waits: u32,
    /// vCPUs that have nothing to do.
    pub(crate) idle: CpuSet,
    /// vCPUs that threads may use.
    pub(crate) active: CpuSet,
    /// vCPUs that hold the process's address space, lazily or in use.
    pub(crate) in_mm: CpuSet,
    /// vCPUs that have not dropped their translations yet, and the thread that waits for them.
    pub(crate) flushes_left: u32,
    pub(crate) flusher: u32,
    /// vCPUs with threads in their run queues, and how many threads those are.
    pub(crate) queued: CpuSet,
    pub(crate) waiting: u32,
    pub(crate) waiting_since: Ps,
    pub(crate) waiting_ps: Ps,
    pub(crate) yielded_ps: Ps,
    pub(crate) polled_ps: Ps,
    /// Its counts; events are the world's.
    pub counters: Counters,
    pub(crate) daemon: Daemon,
    /// When the number of active vCPUs changed, and to what.
    pub active_history: Vec<(Ps, u32)>,
}

impl Vm {
    /// A guest with these vCPUs, which are all in use, threads and conditions.
    pub(crate) fn new(
        spec: &VmSpec,
        remedies: &BTreeSet<Remedy>,
        vcpus: Range<usize>,
        threads: Range<usize>,
        conditions: Range<usize>,
        daemon: Daemon,
    ) -> Self {
        let active: CpuSet = vcpus.clone().collect();
        // A HLT that is not intercepted leaves the core asleep in the guest, as an untrapped MWAIT does; only an IPI ends it.
        let (idle_kind, remote_wake) = match remedies.contains(&Remedy::Nohlt) {
            true => (IdleKind::Mwait, RemoteWake::Ipi),
            false => (spec.guest.idle(), spec.guest.remote_wake()),
        };
        Self {
            kernel: Kernel::of(spec.guest.kernel),
            is_service: false,
            timer_slop: None,
            pm_timer: None,
            events: None,
            flush_call: None,
            has_paging: spec.paging.is_some(),
            conditions,
            timers: 0..0,
            pinned: Vec::new(),
            ends: None,
            was_ended: false,
            repeat: spec.repeat,
            runs: 0,
            ended_at: 0,
            idle_kind,
            haltpoll: HaltPollConfig::default(),
            remote_wake,
            placement: spec.guest.wakeup(),
            wake_signal: spec.guest.wake_signal(),
            yielding: spec.guest.yielding()
                || spec.consolidation == Consolidation::Yielding
                || remedies.contains(&Remedy::Idle),
            live: threads.len() as u32,
            asleep: 0,
            device_waits: 0,
            idle: CpuSet::EMPTY,
            active,
            in_mm: CpuSet::EMPTY,
            flushes_left: 0,
            flusher: NONE,
            queued: CpuSet::EMPTY,
            waiting: 0,
            waiting_since: 0,
            waiting_ps: 0,
            yielded_ps: 0,
            polled_ps: 0,
            counters: Counters::default(),
            daemon,
            active_history: vec![(0, vcpus.len() as u32)],
            vcpus,
            threads,
        }
    }

    /// Clock reads of a timer interrupt's handler that take the VMM.
    pub(crate) fn emulated_reads_per_tick(&self) -> u32 {
        if self.pm_timer.is_some() { self.kernel.reads_per_tick } else { 0 }
    }

    /// The number of threads in run queues changes.
    pub(crate) fn waiting_changes(&mut self, now: Ps, by: i32) {
        self.waiting_ps += Ps::from(self.waiting) * (now - self.waiting_since);
        self.waiting_since = now;
        self.waiting = self.waiting.wrapping_add_signed(by);
    }
}

/// CPUs numbered within the VM of these vCPUs, as the world numbers them; those that it has not are left out.
pub(crate) fn of_vm(vcpus: &Range<usize>, cpus: &CpuSet) -> CpuSet {
    cpus.iter().map(|cpu| cpu + vcpus.start).filter(|c| vcpus.contains(c)).collect()
}
