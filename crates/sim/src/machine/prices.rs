//! The prices that the simulated world needs, by name, from a machine profile.

use crate::engine::{Ps, from_ns};
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
        }

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
    /// What a guest context switch costs more in a VM: exits on control registers, refills of nested translations.
    guest_switch = "sim.vmm.guest-switch",
    /// One period of the consolidation daemon.
    remedy_step = "sim.remedy.step",
    /// Changing one thread's affinity.
    remedy_move = "sim.remedy.move",
}
