//! The virtual PM timer: a VM's clock where its guest has none that it can read without the VMM (iXen, section 3.1).
//!
//! Each read is an intercepted port access, whose handler, `handle_pmt_io`, brings the VM's one virtual time up to date under
//! a lock. With the remedy `vtime` who fails to take the lock waits until its holder has released it, and takes the time
//! that that one has left (Figure 2).

use crate::engine::Ps;
use crate::machine::lines::{LineId, Lines};
use crate::machine::spinlock::{Kind, SpinLock};
use crate::machine::walk::Walk;
use muster_model::Account;

/// What a read costs besides its lock and lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmTimerPrices {
    /// Out of the guest, to the port's handler, and back.
    pub intercept: Ps,
    /// Bringing the time up to date, under the lock.
    pub update: Ps,
    /// Taking the time that is there.
    pub read: Ps,
}

/// A VM's virtual time.
#[derive(Debug, Clone)]
pub struct PmTimer {
    lock: SpinLock,
    time: LineId,
    /// The VM's platform time, under a lock of its own in the same line (xen/arch/x86/hvm/vpt.c, `hvm_get_guest_time`).
    platform_time: LineId,
    tries_lock: bool,
    prices: PmTimerPrices,
    /// Time in `handle_pmt_io`, over all vCPUs.
    pub spent: Ps,
    /// Reads.
    pub reads: u64,
}

impl PmTimer {
    /// A timer; with `tries_lock` as the remedy `vtime` has it.
    pub fn new(lines: &mut Lines, prices: PmTimerPrices, tries_lock: bool) -> Self {
        Self {
            lock: SpinLock::new(Kind::TestAndSet, lines.add()),
            time: lines.add(),
            platform_time: lines.add(),
            tries_lock,
            prices,
            spent: 0,
            reads: 0,
        }
    }

    /// One read.
    pub fn read(&mut self, lines: &mut Lines, walk: &mut Walk) {
        self.reads += 1;
        walk.wait(walk.at + self.prices.intercept, Account::ClockEmulation);
        let entered = walk.at;
        if self.tries_lock {
            self.try_update(lines, walk)
        } else {
            self.update(lines, walk)
        }
        self.spent += walk.at - entered;
    }

    fn update(&mut self, lines: &mut Lines, walk: &mut Walk) {
        walk.acquire(&mut self.lock, lines);
        self.update_locked(lines, walk);
    }

    fn try_update(&mut self, lines: &mut Lines, walk: &mut Walk) {
        let (knows, has_it) = self.lock.try_acquire(lines, walk.pcpu, walk.at, walk.cause);
        if has_it {
            walk.wait(knows, Account::CacheTransfer);
            return self.update_locked(lines, walk);
        }
        let free = self.lock.wait_free(lines, walk.pcpu, knows, walk.cause);
        walk.wait_for_lock(free);
        walk.read(self.time, lines);
        walk.wait(walk.at + self.prices.read, Account::ClockEmulation);
    }

    fn update_locked(&mut self, lines: &mut Lines, walk: &mut Walk) {
        walk.write(self.time, lines);
        walk.write(self.platform_time, lines);
        walk.wait(walk.at + self.prices.update, Account::ClockEmulation);
        walk.release(&mut self.lock, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::machine::lines::Cause;
    use muster_model::Topology;

    const PRICES: PmTimerPrices = PmTimerPrices { intercept: 1_200_000, update: 120_000, read: 20_000 };

    /// The mean time of a read when `cpus` of 48 CPUs read at once, as at a tick, a hundred times.
    fn read_ps(cpus: usize, tries_lock: bool) -> Ps {
        let topology = Topology::regular(8, 1, 6, 1).unwrap();
        let mut lines = Lines::new(&topology, 48, [0, 0, 47_000, 226_000, 226_000], 113_000, 90_000);
        let mut timer = PmTimer::new(&mut lines, PRICES, tries_lock);
        let mut took = 0;
        for tick in 1..=100 {
            for pcpu in 0..cpus {
                let mut walk = Walk::new(pcpu, Cause::Vmm, tick * 1_000_000_000);
                timer.read(&mut lines, &mut walk);
                assert_eq!(walk.parts.total(), walk.at - tick * 1_000_000_000, "all of it is booked");
                took += walk.at - tick * 1_000_000_000;
            }
        }
        took / (100 * cpus as Ps)
    }

    #[test]
    fn contention_grows_faster_than_the_readers_and_a_try_ends_it() {
        let lock = [1, 8, 16, 32].map(|cpus| read_ps(cpus, false) - PRICES.intercept);
        let tried = [1, 8, 16, 32].map(|cpus| read_ps(cpus, true) - PRICES.intercept);
        println!("ps in handle_pmt_io at 1, 8, 16, 32 CPUs: lock {lock:?}, try-lock {tried:?}");
        assert!(lock[3] > 3 * lock[2] && lock[2] > 3 * lock[1], "{lock:?}");
        assert!(tried[3] * 5 < lock[3] && tried[0] == lock[0], "{lock:?} {tried:?}");
    }
}
