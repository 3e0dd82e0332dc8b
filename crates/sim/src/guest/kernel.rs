//! What tells one guest kernel from another: its tick, and how often it reads the clock.

use super::files::FileKernel;
use crate::engine::{NS, Ps};
use crate::machine::tlb::Footprint;
use muster_model::study::GuestKernel;

/// A guest kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// The period of the tick, which comes at the same time on all CPUs (no kernel from 2.6.36 to 3.4 skews it).
    pub tick: Ps,
    /// Whether the tick goes on while a CPU idles.
    pub ticks_in_idle: bool,
    /// Whether a semaphore's count lies under a spin lock of its own, which everybody takes who takes or gives back the
    /// semaphore, shared or not (lib/rwsem-spinlock.c; x86-64 had it until 2.6.33); else the count is changed atomically.
    pub semaphores_have_locks: bool,
    /// Whether an atomic change of a semaphore's count moves the count's line, and whoever has to queue for it or to wake others
    /// goes through a lock after all (lib/rwsem.c); else that is in the prices of what takes it.
    pub semaphore_counts_bounce: bool,
    /// Whether run queues lie under spin locks whose lines move (`guest::run_queue_lock`); else these are in the prices of what
    /// takes them.
    pub run_queues_have_locks: bool,
    /// The same of the page allocator's (`guest::allocator`).
    pub zones_have_locks: bool,
    /// How it keeps track of files, where that is simulated.
    pub files: Option<FileKernel>,
    /// The pages that a system call or fault goes through, and the program between two of them, where translations are
    /// followed.
    pub footprints: Option<Footprints>,
    /// Clock reads of a tick: those of the timer interrupt's handler.
    pub reads_per_tick: u32,
    /// Whether its clock is the TSC even where the VMM offers another, so that no read takes the VMM.
    pub reads_tsc: bool,
    /// Whether it knows KVM's paravirtual TLB flushes and IPIs.
    pub knows_kvm: bool,
}

/// Footprints of a kernel and the programs on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprints {
    /// The kernel's in pages of 4 KiB.
    pub kernel: Footprint,
    /// The kernel's where it maps itself by pages of 2 MiB.
    pub large_kernel: Footprint,
    /// A program's.
    pub user: Footprint,
}

impl Kernel {
    /// A guest's kernel; Linux 3.2 unless it is another.
    pub fn of(kernel: Option<GuestKernel>) -> Self {
        match kernel {
            None => Self::LINUX_3_2,
            Some(GuestKernel::Linux2631) => Self::LINUX_2_6_31,
            Some(GuestKernel::Pk) => Self::PK,
            Some(GuestKernel::Linux2630) => Self::LINUX_2_6_30,
            Some(GuestKernel::Linux6) => Self::LINUX_6,
            Some(GuestKernel::Windows2003) => Self::WINDOWS_2003,
        }
    }

    /// Linux 3.2 as Ubuntu 12.04's server kernel has it: 250 Hz (CONFIG_HZ), no tick in idle (CONFIG_NO_HZ). What its clock
    /// reads cost is part of the prices of tick and idle.
    pub const LINUX_3_2: Self = Self {
        tick: 4_000_000 * NS,
        ticks_in_idle: false,
        semaphores_have_locks: false,
        semaphore_counts_bounce: false,
        run_queues_have_locks: false,
        zones_have_locks: false,
        files: None,
        footprints: None,
        reads_per_tick: 0,
        reads_tsc: false,
        knows_kvm: false,
    };

    /// A Linux of today as a guest: 250 Hz and no tick in idle, as Debian's and Ubuntu's kernels are configured. Its fair scheduler
    /// is taken to be 3.2's. Its run queues and zones lie under locks.
    pub const LINUX_6: Self = Self {
        knows_kvm: true,
        reads_tsc: true,
        run_queues_have_locks: true,
        zones_have_locks: true,
        ..Self::LINUX_3_2
    };

    /// Windows Server 2003: its clock interrupt comes 64 times a second whatever a CPU does (the multiprocessor HAL runs the
    /// real-time clock at that rate), and its idle loop halts. Its dispatcher is taken to be Linux 3.2's scheduler: such VMs have one
    /// vCPU here. Its clock is the time that the interrupt has left in memory, read without the VMM.
    pub const WINDOWS_2003: Self =
        Self { tick: 15_625_000 * NS, ticks_in_idle: true, reads_tsc: true, ..Self::LINUX_3_2 };

    /// Linux 2.6.31 as iXen used it. Idle vCPUs go on reading the clock (iXen, section 3.1), so their ticks go on. A tick
    /// with high-resolution timers reads the clock three times: kernel/hrtimer.c, `hrtimer_interrupt`;
    /// kernel/time/tick-sched.c, `tick_sched_timer`; kernel/time/tick-oneshot.c, `tick_dev_program_event`. Assumed: 250
    /// Hz, as Debian's kernels have (CONFIG_HZ); its ticks are not skewed here, as they are by `tick_setup_sched_timer`
    /// (docs/papers/ixen.md says why).
    pub const LINUX_2_6_31: Self = Self {
        tick: 4_000_000 * NS,
        ticks_in_idle: true,
        semaphores_have_locks: true,
        semaphore_counts_bounce: false,
        run_queues_have_locks: true,
        zones_have_locks: true,
        files: Some(FileKernel::LINUX_2_6_31),
        footprints: Some(Footprints {
            kernel: Footprint { code: 8, data: 12 },
            large_kernel: Footprint { code: 1, data: 3 },
            user: Footprint { code: 20, data: 60 },
        }),
        reads_per_tick: 3,
        reads_tsc: false,
        knows_kvm: false,
    };

    /// Linux 2.6.30 as the hardware-acceleration paper's guests have it, RHEL 5 with that kernel: what it shares is as in 2.6.31; its
    /// clock is the TSC, and the tick stops in idle (CONFIG_NO_HZ). Assumed: 1000 Hz, as RHEL 5's kernel and the kernel's own
    /// defconfig have. A 32-bit one changes a semaphore's count atomically, unlike this one.
    pub const LINUX_2_6_30: Self =
        Self { tick: 1_000_000 * NS, ticks_in_idle: false, reads_tsc: true, ..Self::LINUX_2_6_31 };

    /// PK: Linux 2.6.35-rc5 with the changes of Boyd-Wickizer et al., "An Analysis of Linux Scalability to Many Cores", OSDI 2010;
    /// those to the network and to super-pages are left out, since nothing here uses either. From 2.6.34 on x86-64 changes
    /// a semaphore's count atomically. Ticks, clock reads and footprints: taken to be those of 2.6.31.
    pub const PK: Self = Self {
        semaphores_have_locks: false,
        semaphore_counts_bounce: true,
        files: Some(FileKernel::PK),
        ..Self::LINUX_2_6_31
    };
}
