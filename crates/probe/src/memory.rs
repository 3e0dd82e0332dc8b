//! What changing an address space costs: mapping, first touch, and TLB shootdowns with company on other CPUs.

use crate::affinity;
use crate::batch::{Effort, batches, tight};
use crate::company;
use crate::error::{ProbeError, Result};
use crate::mapping::{Mapping, Pages, SMALL_PAGE};
use crate::stamp::Stamps;
use muster_model::CpuSet;
use std::hint::black_box;
use std::ptr::null_mut;

/// A change of the address space after which no CPU may use the old translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// munmap of a touched page, company computing.
    Unmap,
    /// mprotect of a touched page to read-only, company computing.
    Protect,
    /// Map, touch and unmap a page, company doing the same.
    Churn,
}

impl Change {
    /// Every change.
    pub const ALL: [Self; 3] = [Self::Unmap, Self::Protect, Self::Churn];

    /// The name in price names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unmap => "munmap",
            Self::Protect => "mprotect",
            Self::Churn => "churn",
        }
    }

    /// What the company does meanwhile.
    fn company(self) -> fn() {
        match self {
            Self::Churn => churn,
            Self::Unmap | Self::Protect => compute,
        }
    }
}

/// Who keeps company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Threads of this process: they share the address space.
    Threads,
    /// Processes of their own: they do not.
    Processes,
}

/// Nanoseconds per change in each batch, on `cpu`, with company on each of `others`.
///
/// # Errors
/// When company cannot be had, or the kernel refuses a mapping.
pub fn change(
    change: Change,
    company: Company,
    cpu: usize,
    others: &CpuSet,
    effort: &Effort,
    stamps: Stamps,
) -> Result<Vec<f64>> {
    let work = || {
        // Whatever else fails later, the kernel grants such a mapping now.
        Page::map()?;
        Ok(match change {
            Change::Churn => tight(effort, stamps, churn),
            Change::Unmap | Change::Protect => batches(effort, |count| timed_changes(change, count, stamps)),
        })
    };
    match company {
        Company::Threads => company::with_threads(cpu, others, change.company(), work),
        Company::Processes => company::with_processes(cpu, others, change.company(), work),
    }
}

/// The sum of `count` changes' times, nanoseconds; mapping and touching before each is not in it.
fn timed_changes(change: Change, count: u64, stamps: Stamps) -> f64 {
    let mut sum_ns = 0.0;
    for _ in 0..count {
        let Ok(page) = Page::map() else { continue };
        page.touch();
        let start = stamps.now();
        if change == Change::Protect {
            page.protect();
            sum_ns += stamps.ns(start, stamps.now());
        } else {
            drop(page);
            sum_ns += stamps.ns(start, stamps.now());
        }
    }
    sum_ns
}

/// Nanoseconds for mapping and unmapping a page that nobody touches, in each batch.
///
/// # Errors
/// When the kernel refuses a mapping.
pub fn map_unmap(cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    affinity::on_cpu(cpu, || {
        Page::map()?;
        Ok(tight(effort, stamps, || drop(Page::map())))
    })
}

/// Nanoseconds for the first touch of a page of the wanted size, in each batch.
///
/// # Errors
/// When the kernel has no memory, or no huge pages to give.
pub fn first_touch(pages: Pages, cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    // Enough pages to hide the stamps, little enough memory for a small guest.
    let count = if pages == Pages::Large { 8 } else { 512 };
    affinity::on_cpu(cpu, || {
        let one_batch = || {
            let mapping = Mapping::private(count * pages.bytes(), pages)?;
            let start = stamps.now();
            mapping.touch(pages.bytes());
            let took_ns = stamps.ns(start, stamps.now());
            if pages == Pages::Large && !mapping.is_large() {
                return Err(no_huge_pages());
            }
            Ok(took_ns / count as f64)
        };
        // The first pages may be new to the guest: then the host has to find memory for them, which is another price.
        (0..2).try_for_each(|_| one_batch().map(drop))?;
        (0..effort.batches).map(|_| one_batch()).collect()
    })
}

/// Why something with huge pages was not measured.
pub fn no_huge_pages() -> ProbeError {
    ProbeError::NotMeasurable(
        "the kernel gave no transparent huge pages (off in /sys/kernel/mm/transparent_hugepage/enabled, or memory is \
         fragmented)"
            .into(),
    )
}

/// A small page mapped alone; the leanest mmap and munmap there is.
struct Page(*mut libc::c_void);

impl Page {
    fn map() -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(null_mut(), SMALL_PAGE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        if start == libc::MAP_FAILED { Err(ProbeError::last("mmap")) } else { Ok(Self(start)) }
    }

    fn touch(&self) {
        // SAFETY: the page is mapped, writable and this value's own; called before `protect` only.
        unsafe { self.0.cast::<u8>().write_volatile(1) };
    }

    fn protect(&self) {
        // SAFETY: the page is this value's own and not written again.
        black_box(unsafe { libc::mprotect(self.0, SMALL_PAGE, libc::PROT_READ) });
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page is this value's own, and nothing points into it.
        unsafe { libc::munmap(self.0, SMALL_PAGE) };
    }
}

/// Maps, touches and unmaps a page: what a program with a small mmap threshold does all day.
fn churn() {
    if let Ok(page) = Page::map() {
        page.touch();
    }
}

/// Runs in user mode for a while.
fn compute() {
    for _ in 0..64 {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_measured_in_both_companies() {
        let cpu = affinity::allowed().unwrap().iter().next().unwrap();
        let stamps = Stamps::new(&crate::machine::platform(&Default::default(), cpu));
        let effort = Effort { batches: 3, batch_ns: 100_000, ..Effort::QUICK };
        for kind in Change::ALL {
            for company in [Company::Threads, Company::Processes] {
                let batches = change(kind, company, cpu, &CpuSet::single(cpu), &effort, stamps).unwrap();
                assert!(batches.len() == 3 && batches.iter().all(|&ns| ns > 0.0), "{kind:?} {company:?} {batches:?}");
            }
        }
    }
}
