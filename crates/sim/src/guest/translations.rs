//! When a core's translations go, and what it costs to have them again.
//!
//! Natively and under nested paging the program's pages are not global and the kernel's are, in pages of 2 MiB: an unmap drops
//! the program's, and nothing drops the kernel's. Under direct paging (Xen's PV on x86-64) both are in ring 3 with page tables of
//! their own: the program's pages are global, the kernel's are not and of 4 KiB, so that each system call begins without any, and
//! an unmap drops both (iXen, section 3.4.1).

use super::kernel::Footprints;
use crate::engine::Ps;
use crate::machine::prices::WalkPrices;
use crate::machine::tlb::{Entries, Footprint, Space};
use crate::world::World;
use muster_model::study::Environment;
use muster_model::{ModelError, Profile};

/// What translations cost in an environment, and how often they were missing.
#[derive(Debug, Clone, Copy)]
pub struct Walks {
    price: Ps,
    entries: Entries,
    kernel: Footprint,
    user: Footprint,
    /// The kernel has page tables of its own.
    apart: bool,
    /// Instruction TLB misses by [`Space`].
    pub code_misses: [u64; 2],
}

impl Walks {
    /// What they cost on a machine.
    ///
    /// # Errors
    /// When its profile does not say.
    pub fn new(profile: &Profile, environment: Environment, pages: Footprints) -> Result<Self, ModelError> {
        let prices = WalkPrices::new(profile)?;
        let apart = environment == Environment::Pv;
        Ok(Self {
            price: if environment == Environment::Hvm { prices.nested } else { prices.native },
            entries: prices.entries,
            kernel: if apart { pages.kernel } else { pages.large_kernel },
            user: pages.user,
            apart,
            code_misses: [0; 2],
        })
    }
}

impl World {
    /// What a stretch of `time` on vCPU `c`, in the kernel or not, walks page tables for.
    #[inline]
    pub(crate) fn walk_tables(&mut self, c: usize, in_kernel: bool, time: Ps) -> Ps {
        let Some(walks) = &mut self.walks else { return 0 };
        let pcpu = &mut self.pcpus[self.vcpus[c].pcpu as usize];
        let space = if in_kernel { Space::Kernel } else { Space::User };
        if std::mem::replace(&mut pcpu.space, space) != space && in_kernel && walks.apart {
            pcpu.tlb.flush(Space::Kernel);
        }
        let pages = if in_kernel { walks.kernel } else { walks.user };
        let misses = pcpu.tlb.run(space, pages, walks.entries, time);
        walks.code_misses[space as usize] += u64::from(misses.code);
        Ps::from(misses.code + misses.data) * walks.price
    }

    /// vCPU `c` comes into the kernel from user mode, however short the time there was.
    pub(crate) fn enter_kernel(&mut self, c: usize) {
        self.pcpus[self.vcpus[c].pcpu as usize].space = Space::User;
    }

    /// A shootdown has come to vCPU `c`.
    pub(crate) fn drop_translations(&mut self, c: usize) {
        let Some(walks) = &self.walks else { return };
        let tlb = &mut self.pcpus[self.vcpus[c].pcpu as usize].tlb;
        tlb.flush(Space::User);
        if walks.apart {
            tlb.flush(Space::Kernel);
        }
    }
}
