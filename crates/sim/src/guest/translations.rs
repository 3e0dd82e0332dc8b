//! When a core's translations go, and what it costs to have them again.
//!
//! Natively and under nested paging the program's pages are not global and the kernel's are, in pages of 2 MiB: an unmap drops
//! the program's, and nothing drops the kernel's. Under direct paging (Xen's PV on x86-64) both are in ring 3 with page tables of
//! their own: the program's pages are global, the kernel's are not and of 4 KiB, so that each system call begins without any, and
//! an unmap drops both (iXen, section 3.4.1). The VMM's own pages are global and of 2 MiB; only such an unmap drops them.

use super::kernel::Footprints;
use crate::engine::Ps;
use crate::machine::prices::WalkPrices;
use crate::machine::tlb::{Footprint, Layout, PageSize, Pages, Space, Tlb};
use crate::world::World;
use muster_model::study::Environment;
use muster_model::{ModelError, Profile};

/// What Xen goes through between an exit or a call and the way back: one large page of code, its heap and the data of its
/// pCPU. Assumed; its text is mapped by large pages (xen/arch/x86/x86_64/mm.c).
const VMM: Footprint = Footprint { code: 1, data: 2 };

/// What translations cost in an environment, and how often they were missing.
#[derive(Debug, Clone, Copy)]
pub struct Walks {
    price: Ps,
    /// Of the VMM's own pages.
    vmm_price: Ps,
    second_level: Ps,
    layout: Layout,
    /// The kernel has page tables of its own.
    apart: bool,
    /// Instruction TLB misses of both levels by [`Space`].
    pub code_misses: [u64; 3],
}

impl Walks {
    /// What they cost on a machine.
    ///
    /// # Errors
    /// When its profile does not say.
    pub fn new(profile: &Profile, environment: Environment, pages: Footprints) -> Result<Self, ModelError> {
        let prices = WalkPrices::new(profile)?;
        let apart = environment == Environment::Pv;
        let small = |footprint| Pages { footprint, size: PageSize::Small };
        let large = |footprint| Pages { footprint, size: PageSize::Large };
        let kernel = if apart { small(pages.kernel) } else { large(pages.large_kernel) };
        let spaces = [small(pages.user), kernel, large(VMM)];
        Ok(Self {
            price: if environment == Environment::Hvm { prices.nested } else { prices.native },
            vmm_price: prices.native,
            second_level: prices.second_level,
            layout: Layout::new(spaces, prices.entries),
            apart,
            code_misses: [0; 3],
        })
    }

    /// Whether a program comes into its kernel by way of the VMM.
    pub(crate) fn by_vmm(&self) -> bool {
        self.apart
    }

    /// What code of `space` that runs for `time` on a core looks for in the second level and in page tables.
    #[inline]
    fn run(&mut self, tlb: &mut Tlb, space: Space, time: Ps) -> Ps {
        let misses = tlb.run(space, &self.layout, time);
        self.code_misses[space as usize] += u64::from(misses.walks.code);
        let price = if space == Space::Vmm { self.vmm_price } else { self.price };
        Ps::from(misses.walks.code + misses.walks.data) * price + Ps::from(misses.second_level) * self.second_level
    }
}

impl World {
    /// What a stretch of `time` on vCPU `c`, in the kernel or not, walks page tables for. A paravirtualized kernel is
    /// entered by way of the VMM.
    #[inline]
    pub(crate) fn walk_tables(&mut self, c: usize, in_kernel: bool, time: Ps) -> Ps {
        if self.paging.is_some()
            && let Some(walking) = self.walk_entries(c, in_kernel, time)
        {
            return walking;
        }
        let Some(walks) = &mut self.walks else { return 0 };
        let pcpu = &mut self.pcpus[self.vcpus[c].pcpu as usize];
        let space = if in_kernel { Space::Kernel } else { Space::User };
        let mut by_vmm = 0;
        if std::mem::replace(&mut pcpu.space, space) != space && in_kernel && walks.apart {
            pcpu.tlb.flush(Space::Kernel);
            by_vmm = walks.run(&mut pcpu.tlb, Space::Vmm, time);
        }
        by_vmm + walks.run(&mut pcpu.tlb, space, time)
    }

    /// The same of the VMM's own code on a pCPU.
    #[inline]
    pub(crate) fn walk_vmm_tables(&mut self, p: usize, time: Ps) -> Ps {
        if self.paging.is_some() {
            return self.walk_vmm_entries(p, time);
        }
        let Some(walks) = &mut self.walks else { return 0 };
        walks.run(&mut self.pcpus[p].tlb, Space::Vmm, time)
    }

    /// vCPU `c` comes into the kernel from user mode, however short the time there was.
    pub(crate) fn enter_kernel(&mut self, c: usize) {
        self.pcpus[self.vcpus[c].pcpu as usize].space = Space::User;
    }

    /// A shootdown has come to vCPU `c`.
    pub(crate) fn drop_translations(&mut self, c: usize) {
        if self.paging.is_some() {
            self.drop_process(c);
        }
        let Some(walks) = &self.walks else { return };
        let tlb = &mut self.pcpus[self.vcpus[c].pcpu as usize].tlb;
        tlb.flush(Space::User);
        if walks.apart {
            tlb.flush(Space::Kernel);
            tlb.flush(Space::Vmm);
        }
    }
}
