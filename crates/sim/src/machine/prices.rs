//! The prices that the simulated world needs, by name, from a machine profile.

use super::file_prices::FilePrices;
use super::tlb::{Entries, Footprint};
use crate::engine::{Ps, from_ns};
use muster_model::profile::TlbUse;
use muster_model::{Distance, ModelError, Profile};

macro_rules! prices {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// Prices in picoseconds. Each is one mechanism; nothing here is a factor on a program's time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Prices {
            $($(#[$doc])* pub $field: Ps,)*
            /// Moving a cache line from the core at this distance (index by [`Distance`]).
            pub cache_line: [Ps; Distance::ALL.len()],
            /// Moving the lines that a remote wake-up leaves modified on the waker's core.
            pub wake_lines: [Ps; Distance::ALL.len()],
            /// Refilling caches after a thread moved from the core at this distance.
            pub refill: [Ps; Distance::ALL.len()],
            /// What a fault costs on its way to the guest's kernel and back beyond an exception's own price: nothing but
            /// where a VMM passes it on.
            pub fault_entry: Ps,
            /// What sending an event between vCPUs takes under the VMM's lock; nothing but on PV.
            pub event_send: Ps,
            /// Each further copy of a cache line when many read it at once.
            pub line_copy: Ps,
            /// fork(2) of a small process.
            pub fork: Ps,
            /// Calls for files.
            pub files: FilePrices,
        }

        /// What fork takes where the profile does not say: assumed.
        const FORK_NS: f64 = 60_000.0;

        impl Prices {
            /// The names of all prices, for documents and tests.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Takes the prices out of a profile.
            ///
            /// # Errors
            /// When the profile lacks one.
            pub fn new(profile: &Profile) -> Result<Self, ModelError> {
                let by_distance = |prefix: &str| -> Result<[Ps; Distance::ALL.len()], ModelError> {
                    let mut prices = [0; Distance::ALL.len()];
                    for (index, distance) in Distance::ALL.iter().enumerate().skip(1) {
                        prices[index] = from_ns(profile.require_ns(&format!("{prefix}.{}", distance.name()))?);
                    }
                    Ok(prices)
                };
                Ok(Self {
                    $($field: from_ns(profile.require_ns($name)?),)*
                    cache_line: by_distance("sim.cpu.cache-line")?,
                    wake_lines: by_distance("sim.cpu.wake-lines")?,
                    refill: by_distance("sim.cpu.refill")?,
                    fault_entry: 0,
                    event_send: 0,
                    line_copy: from_ns(match profile.price_ns("sim.cpu.line-copy") {
                        Some(ns) => ns,
                        None => profile.require_ns("sim.cpu.cache-line.other-node")?,
                    }),
                    fork: from_ns(profile.price_ns("sim.kernel.fork").unwrap_or(FORK_NS)),
                    files: FilePrices::new(profile),
                })
            }

            /// Every price but those by distance, to be changed by name.
            pub fn by_name_mut(&mut self, name: &str) -> Option<&mut Ps> {
                match name {
                    $($name => Some(&mut self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

prices! {
    /// Leaving C1.
    c1_exit = "sim.cpu.c1-exit",
    /// Writing the interrupt command register.
    ipi_send = "sim.cpu.ipi-send",
    /// From the sender's APIC to the target's interrupt pin.
    ipi_delivery = "sim.cpu.ipi-delivery",
    /// A polling loop noticing a store by another core, beyond the line's transfer.
    poll_notice = "sim.cpu.poll-notice",
    /// Dropping translations on one core, in its interrupt handler.
    tlb_flush = "sim.cpu.tlb-flush",
    /// Entering and leaving the kernel.
    syscall = "sim.kernel.syscall",
    /// From the blocking call to the scheduler: queueing on the futex or lock.
    block = "sim.kernel.block",
    /// Finding and unhashing the first waiter.
    futex_wake = "sim.kernel.futex-wake",
    /// Moving one waiter from one futex to another.
    requeue = "sim.kernel.requeue",
    /// try_to_wake_up for one thread.
    wake_up = "sim.kernel.wake-up",
    /// schedule() and the switch, caches included.
    context_switch = "sim.kernel.context-switch",
    /// From the switch back to user mode in a woken thread.
    return_from_wait = "sim.kernel.return-from-wait",
    /// An interrupt's handler, entry and exit included.
    interrupt = "sim.kernel.interrupt",
    /// A minor fault used as a signal.
    exception = "sim.kernel.exception",
    /// From the scheduler into the idle loop.
    idle_enter = "sim.kernel.idle-enter",
    /// From the idle loop into the scheduler.
    idle_exit = "sim.kernel.idle-exit",
    /// The periodic tick's work.
    tick = "sim.kernel.tick",
    /// Looking for a thread to take over from another run queue.
    balance = "sim.kernel.balance",
    /// Reading the clock in user mode.
    clock_read = "sim.kernel.clock-read",
    /// A minor page fault's work under the mm mutex.
    page_fault = "sim.kernel.page-fault",
    /// mmap's work under the mm mutex.
    map = "sim.kernel.map",
    /// munmap's work under the mm mutex, without the shootdown.
    unmap = "sim.kernel.unmap",
    /// munmap's work per page.
    unmap_page = "sim.kernel.unmap-page",
    /// Leaving the guest.
    vm_exit = "sim.vmm.exit",
    /// Entering the guest.
    vm_entry = "sim.vmm.entry",
    /// Emulating a write to the interrupt command register.
    ipi_emulation = "sim.vmm.ipi-emulation",
    /// Reaching a core that is in the guest with the host's own IPI, beyond `sim.cpu.ipi-delivery`.
    kick_delivery = "sim.vmm.kick-delivery",
    /// The VMM's handling of a host interrupt that took a core out of the guest.
    host_interrupt = "sim.vmm.host-interrupt",
    /// Injecting an interrupt.
    inject = "sim.vmm.inject",
    /// Emulating the end-of-interrupt write.
    eoi = "sim.vmm.eoi",
    /// Emulating a write to the local APIC's timer.
    timer_emulation = "sim.vmm.timer-emulation",
    /// From the HLT exit until the core is given up.
    suspend = "sim.vmm.suspend",
    /// The waker's part of making a suspended vCPU runnable.
    wake_vcpu = "sim.vmm.wake-vcpu",
    /// Leaving the host's idle loop.
    host_idle_exit = "sim.vmm.host-idle-exit",
    /// Switching a core to the vCPU and loading its state.
    schedule_in = "sim.vmm.schedule-in",
    /// From the vCPU's thread running until it is ready to enter the guest.
    unblock = "sim.vmm.unblock",
    /// What the waker still pays once the IPI to a suspended vCPU is on its way, beyond the entry.
    after_send = "sim.vmm.after-send",
    /// A decision of the VMM's scheduler where vCPUs share pCPUs: its locks, queues and credits.
    decision = "sim.vmm.decision",
    /// What a guest context switch costs more in a VM: exits on control registers, refills of nested translations.
    guest_switch = "sim.vmm.guest-switch",
    /// One period of the consolidation daemon.
    remedy_step = "sim.remedy.step",
    /// Changing one thread's affinity.
    remedy_move = "sim.remedy.move",
}

macro_rules! more_prices {
    ($(#[$about:meta])* $prices:ident: $($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $prices {
            $($(#[$doc])* pub $field: Ps,)*
        }

        impl $prices {
            /// Takes the prices out of a profile.
            ///
            /// # Errors
            /// When the profile lacks one.
            pub fn new(profile: &Profile) -> Result<Self, ModelError> {
                Ok(Self { $($field: from_ns(profile.require_ns($name)?),)* })
            }
        }
    };
}

more_prices! {
    /// What Xen charges besides, in picoseconds.
    XenPrices:
    /// A hypercall.
    hypercall = "sim.xen.hypercall",
    /// What Xen adds to a PV guest's system call on its way in.
    bounce = "sim.xen.bounce",
    /// The return of a PV kernel to user mode.
    iret = "sim.xen.iret",
    /// From one of a PV process's two page tables to the other, without refills.
    page_table_switch = "sim.xen.page-table-switch",
    /// A fault or interrupt that Xen passes on to a PV kernel.
    exception_bounce = "sim.xen.exception-bounce",
    /// One page-table entry of a batch.
    mmu_update = "sim.xen.mmu-update",
    /// SCHEDOP_block up to the scheduler.
    block = "sim.xen.block",
    /// Sending an event between vCPUs.
    event_send = "sim.xen.event-send",
    /// An event's upcall into a PV guest.
    event_upcall = "sim.xen.event-upcall",
    /// What the VMM takes to begin a shootdown for a PV guest, besides interrupts and waiting.
    tlb_flush_all = "sim.xen.tlb-flush-all",
    /// Setting a PV guest's timer.
    set_timer = "sim.xen.set-timer",
    /// By how much timers may be late, to be served together (xen/common/timer.c).
    timer_slop = "sim.xen.timer-slop",
    /// To or from the idle vCPU.
    context_switch_idle = "sim.xen.context-switch-idle",
    /// An intercepted port access, up to its handler.
    port_io = "sim.xen.port-io",
    /// Bringing the PM timer up to date.
    pmt_update = "sim.xen.pmt-update",
    /// Taking the PM timer's fresh value.
    pmt_read = "sim.xen.pmt-read",
}

/// What a KVM of today charges besides, in picoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvmPrices {
    /// Each further target of the hypercall that interrupts many.
    pub ipi_target: Ps,
}

impl KvmPrices {
    /// Takes the prices out of a profile.
    ///
    /// # Errors
    /// When the profile lacks one.
    pub fn new(profile: &Profile) -> Result<Self, ModelError> {
        Ok(Self { ipi_target: from_ns(profile.require_ns("sim.kvm.ipi-target")?) })
    }
}

more_prices! {
    /// What shadow paging charges besides the way out of the guest and back, in picoseconds.
    ShadowPrices:
    /// A walk through the guest's tables in software, without a lock.
    walk = "sim.vmm.shadow-walk",
    /// Passing a fault on to the guest.
    inject = "sim.vmm.shadow-inject",
    /// Emulating a write to a table and making its shadow's entry.
    emulate = "sim.vmm.shadow-emulate",
    /// Letting a table go out of sync with its shadow: a snapshot of it, and the right to write it.
    unsync = "sim.vmm.shadow-unsync",
    /// Bringing such a table back: all of its entries are compared with the snapshot.
    resync = "sim.vmm.shadow-resync",
    /// Making an entry of a shadow, and prefetching others.
    fill = "sim.vmm.shadow-fill",
    /// Making a table's shadow, and taking the right to write it from the guest.
    promote = "sim.vmm.shadow-promote",
    /// Loading a page-table base.
    cr3 = "sim.vmm.shadow-cr3",
    /// Dropping a single translation.
    invlpg = "sim.vmm.shadow-invlpg",
}

/// What a reference of a walk through page tables costs that a cache or memory has, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReferencePrices {
    /// The first-level cache.
    pub l1: Ps,
    /// The private cache behind it; what that lacks is asked of the last-level cache and of memory as any other line.
    pub private: Ps,
}

impl ReferencePrices {
    /// Takes them out of a profile.
    ///
    /// # Errors
    /// When the profile lacks one.
    pub fn new(profile: &Profile) -> Result<Self, ModelError> {
        let price = |level| Ok(from_ns(profile.require_ns(level)?));
        Ok(Self { l1: price("cache.l1")?, private: price("cache.l2")? })
    }
}

/// What translations cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkPrices {
    /// A walk through a process's page tables.
    pub native: Ps,
    /// The same through a guest's and the VMM's.
    pub nested: Ps,
    /// A translation that the TLB's second level has.
    pub second_level: Ps,
    /// What a core holds.
    pub entries: Entries,
}

impl WalkPrices {
    /// Takes them out of a profile.
    ///
    /// # Errors
    /// When the profile lacks a price or the size of a TLB.
    pub fn new(profile: &Profile) -> Result<Self, ModelError> {
        let most = |level: u32, holds: TlbUse, page: &str| {
            let tlbs = profile.platform.tlbs.iter();
            let sizes = tlbs.filter(|tlb| tlb.page == page && tlb.holds.covers(holds) && tlb.level <= level);
            sizes.map(|tlb| tlb.entries).max()
        };
        let lacks = || ModelError::new(format!("profile `{}`", profile.name), "no size of a TLB", "`platform.tlbs`");
        // Where it has no entries of their own, large pages take those of small ones.
        let entries = |level, holds, page| most(level, holds, page).or_else(|| most(level, holds, "4k"));
        let both = |level, page| {
            let [code, data] = [TlbUse::Instructions, TlbUse::Data].map(|holds| entries(level, holds, page));
            Ok(Footprint { code: code.ok_or_else(lacks)?, data: data.ok_or_else(lacks)? })
        };
        let level = |level| Ok([both(level, "4k")?, both(level, "2m")?]);
        Ok(Self {
            native: from_ns(profile.require_ns("sim.cpu.page-walk")?),
            nested: from_ns(profile.require_ns("sim.cpu.page-walk-nested")?),
            second_level: from_ns(profile.require_ns("sim.cpu.tlb-l2-hit")?),
            entries: [level(1)?, level(u32::MAX)?],
        })
    }
}

impl Prices {
    /// The prices on Xen; with `pv`, of a paravirtualized guest: where a hardware-assisted one leaves the guest and is
    /// emulated, it calls the VMM or is called back, without an exit.
    pub fn on_xen(self, xen: &XenPrices, pv: bool) -> Self {
        if !pv {
            return self;
        }
        let both_switches = 2 * xen.page_table_switch;
        let fault = xen.exception_bounce + xen.iret + both_switches;
        Self {
            syscall: self.syscall + xen.bounce + xen.iret + both_switches,
            fault_entry: fault,
            page_fault: self.page_fault + xen.hypercall + xen.mmu_update,
            // The tables of the child are pinned, entry by entry.
            fork: self.fork + 2 * xen.hypercall + 512 * xen.mmu_update,
            map: self.map + xen.hypercall,
            unmap: self.unmap + xen.hypercall,
            unmap_page: self.unmap_page + xen.mmu_update,
            exception: self.exception + fault,
            vm_exit: 0,
            vm_entry: 0,
            ipi_emulation: xen.hypercall,
            event_send: xen.event_send,
            inject: xen.event_upcall,
            eoi: xen.iret,
            timer_emulation: xen.hypercall + xen.set_timer,
            suspend: xen.hypercall + xen.block,
            schedule_in: xen.context_switch_idle,
            unblock: 0,
            after_send: 0,
            // A multicall of stack_switch and MMUEXT_NEW_BASEPTR.
            guest_switch: xen.hypercall + 2 * xen.mmu_update,
            ..self
        }
    }
}
