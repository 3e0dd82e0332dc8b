//! A CPU as a guest's kernel sees it. In a VM it is a vCPU, which runs on a pCPU while the VMM lets it; natively there is
//! no VMM and it *is* the core of the same number.

use super::thread::{List, Thread};
use crate::engine::Ps;
use crate::world::NONE;
use muster_model::Account;
use muster_policy::halt_poll;
use muster_policy::idle::HaltPoll;

/// What a vCPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VcpuState {
    /// Runs a stretch of its thread.
    Thread,
    /// Its thread spins for a lock.
    Spinning,
    /// Its thread waits for other vCPUs to drop translations.
    AwaitingAcks,
    /// Its thread spins, interrupts off, for a lock that is held over events.
    Masked,
    /// Has a spin lock of its kernel, interrupts off.
    Locking,
    /// Spins for one, interrupts off.
    Queueing,
    /// Handles interrupts.
    Interrupt,
    /// Switches to its thread, or to the yielding thread when it has none.
    Switching,
    /// Refills caches for a thread that came from another vCPU.
    Refilling,
    /// On the way from the scheduler to the idle instruction.
    EnteringIdle,
    /// The VMM takes it off its pCPU.
    Suspending,
    /// Has executed HLT, and the host polls for its wake-up.
    HostPolling,
    /// Has executed HLT: natively the core is in C1, in a VM the vCPU is off its pCPU.
    Halted,
    /// In MWAIT.
    Mwait,
    /// Polls.
    Polling,
    /// Runs the yielding thread.
    Yielding,
    /// Leaves C1 or MWAIT.
    Resuming,
    /// Was halted, and the VMM is putting it back on a pCPU.
    SchedulingIn,
    /// On the way from the idle loop to the scheduler.
    LeavingIdle,
}

/// A guest's CPU.
#[derive(Debug)]
pub struct Vcpu {
    /// What it does.
    pub state: VcpuState,
    /// Its VM.
    pub vm: u16,
    /// The pCPU on which it is, or was last.
    pub pcpu: u32,
    /// Its thread, or [`NONE`].
    pub current: u32,
    /// When what it does ends.
    pub until: Ps,
    /// Since when its thread has run without being charged.
    pub run_since: Ps,
    /// Since when it has had this thread.
    pub slice_start: Ps,
    /// Reasons of interrupts that have arrived and are not handled.
    pub pending: u8,
    /// Reasons that are being handled.
    pub handling: u8,
    /// Clock reads that their handlers still make.
    pub clock_reads: u32,
    /// The thread should give way at the next return to user mode.
    pub need_resched: bool,
    /// A rescheduling signal is on its way.
    pub signalled: bool,
    /// The tick was stopped on the way into idle and has to be started again.
    pub tick_stopped: bool,
    /// It is between go_idle and the scheduler, and not in the yielding thread.
    pub in_idle_loop: bool,
    /// Its halt polling found nothing this time.
    pub polled: bool,
    /// Since when it rests in its present state.
    pub rest_since: Ps,
    /// Threads that wait for it.
    pub queue: Vec<u32>,
    /// Floor of its threads' virtual run times.
    pub min_vruntime: Ps,
    /// Threads whose sleep ended and whose timer interrupt is not handled yet.
    pub sleepers: List,
    /// Since when it has been idle.
    pub idle_since: Ps,
    /// Its halt polling.
    pub haltpoll: HaltPoll,
    /// Work of the daemon that is due here.
    pub daemon_work: Ps,
    /// Since when it is stopped in the middle of something, [`Ps::MAX`] while it is not.
    pub stopped_at: Ps,
    /// What is then left of what it does, if that has an end.
    pub left: Option<Ps>,
    /// The account that its time then goes to again.
    pub account: Account,
    /// It is in a call of the VMM's that is not interrupted there.
    pub in_call: bool,
    /// How long the host polls when it halts.
    pub host_poll: halt_poll::HaltPoll,
    /// When it has executed HLT last.
    pub halted_at: Ps,
    /// When the host began to poll for it.
    pub polled_from: Ps,
    /// It drops its translations when it comes back to a pCPU.
    pub flush_at_entry: bool,
    /// The IPI that it is writing exits.
    pub ipi_exits: bool,
    /// Stopped while it waits for a lock, it has halted until that is its.
    pub pv_halted: bool,
    /// While it is in a plan: this is not its thread's.
    pub is_aside: bool,
    /// The event that is pending is the end of the hardware's patience with a loop of PAUSE.
    pub ple_armed: bool,
}

impl Vcpu {
    /// A vCPU of a VM, off its pCPU and without anything to do.
    pub(crate) fn new(vm: usize, pcpu: usize) -> Self {
        Self {
            state: VcpuState::Halted,
            vm: vm as u16,
            pcpu: pcpu as u32,
            current: NONE,
            until: 0,
            run_since: 0,
            slice_start: 0,
            pending: 0,
            handling: 0,
            clock_reads: 0,
            need_resched: false,
            signalled: false,
            tick_stopped: false,
            in_idle_loop: false,
            polled: false,
            rest_since: 0,
            queue: Vec::with_capacity(32),
            min_vruntime: 0,
            sleepers: List::EMPTY,
            idle_since: 0,
            haltpoll: HaltPoll::default(),
            daemon_work: 0,
            stopped_at: Ps::MAX,
            left: None,
            account: Account::Idle,
            in_call: false,
            host_poll: halt_poll::HaltPoll::default(),
            halted_at: 0,
            polled_from: 0,
            flush_at_entry: false,
            ipi_exits: false,
            pv_halted: false,
            is_aside: false,
            ple_armed: false,
        }
    }

    /// Whether the VMM has stopped it in the middle of something.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped_at != Ps::MAX
    }

    /// For how long its thread has run without being charged.
    pub(crate) fn uncharged(&self, now: Ps) -> Ps {
        if self.runs_a_thread() { now.min(self.stopped_at) - self.run_since } else { 0 }
    }

    /// Whether it runs a thread of the program, or would if it were not stopped.
    pub(crate) fn runs_a_thread(&self) -> bool {
        match self.state {
            VcpuState::Thread | VcpuState::Spinning | VcpuState::AwaitingAcks | VcpuState::Masked => true,
            VcpuState::Locking | VcpuState::Queueing => !self.is_aside,
            _ => false,
        }
    }

    /// Whether it is in its kernel, or was when it was stopped.
    pub(crate) fn is_in_kernel(&self, threads: &[Thread]) -> bool {
        match self.state {
            VcpuState::Thread | VcpuState::Spinning => threads[self.current as usize].in_kernel,
            _ => true,
        }
    }
}
