//! Anonymous memory, mapped for a measurement and unmapped after it.

use crate::error::{ProbeError, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;

/// Size of a small page, bytes.
pub const SMALL_PAGE: usize = 4 << 10;
/// Size of a large page, bytes.
pub const LARGE_PAGE: usize = 2 << 20;

/// Page size wanted for a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB.
    Small,
    /// 2 MiB, transparently.
    Large,
}

impl Pages {
    /// The name in price names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "4k",
            Self::Large => "2m",
        }
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Small => SMALL_PAGE,
            Self::Large => LARGE_PAGE,
        }
    }
}

/// An anonymous mapping, zeroed, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// What was mapped, and how long it is.
    whole: (*mut c_void, usize),
    /// The part to use: aligned to its page size.
    start: *mut u8,
    len: usize,
}

// SAFETY: a mapping is memory that belongs to this value alone.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Private memory of at least `bytes`, in pages of the wanted size; not touched yet.
    ///
    /// # Errors
    /// When the kernel has no memory, or no transparent huge pages where they are wanted.
    pub fn private(bytes: usize, pages: Pages) -> Result<Self> {
        let len = bytes.next_multiple_of(pages.bytes());
        let spare = if pages == Pages::Large { LARGE_PAGE } else { 0 };
        let mut mapping = Self::map(len + spare, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        let offset = mapping.start.align_offset(pages.bytes());
        // SAFETY: `offset` is below the spare length that was mapped for it (0 for small pages).
        mapping.start = unsafe { mapping.start.add(offset) };
        mapping.len = len;
        let advice = if pages == Pages::Large { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is this mapping's own.
        let advised = unsafe { madvise(mapping.start.cast(), len, advice) };
        match (advised, pages) {
            (Err(errno), Pages::Large) => Err(ProbeError::call("madvise(MADV_HUGEPAGE)")(errno)),
            // A kernel without huge pages gives small ones anyway.
            _ => Ok(mapping),
        }
    }

    /// Memory shared with child processes.
    ///
    /// # Errors
    /// When the kernel has no memory.
    pub fn shared(bytes: usize) -> Result<Self> {
        Self::map(bytes, MapFlags::SHARED)
    }

    fn map(bytes: usize, flags: MapFlags) -> Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(ProbeError::call("mmap"))?;
        Ok(Self { whole: (start, bytes), start: start.cast(), len: bytes })
    }

    /// Usable length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes a byte to every page of `stride` bytes.
    pub fn touch(&self, stride: usize) {
        for offset in (0..self.len).step_by(stride) {
            // SAFETY: the offset lies inside the mapping, which is writable and nobody else's.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// The memory as machine words, zeroed where never written.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is page-aligned, readable, writable, zero-initialized and borrowed for the slice's life.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len / size_of::<u64>()) }
    }

    /// Two counters on cache lines of their own, for memory shared with child processes.
    pub fn as_counters(&self) -> (&AtomicUsize, &AtomicUsize) {
        let counters = self.start.cast::<AtomicUsize>();
        // SAFETY: the mapping is at least a page, aligned and zeroed; atomics may be shared, also between processes.
        unsafe { (&*counters, &*counters.add(32)) }
    }

    /// Whether the kernel backs (nearly) all of it with large pages, by /proc/self/smaps (proc_pid_smaps(5)).
    pub fn is_large(&self) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        huge_bytes(&smaps, self.start as usize, self.len) * 10 >= self.len * 9
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrowed from it can be left.
        let unmapped = unsafe { munmap(self.whole.0, self.whole.1) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Bytes in huge pages within `start..start + len`, by the text of /proc/PID/smaps. A mapping may be split into several
/// areas; an area that reaches past the range counts whole, but never for more than the range.
fn huge_bytes(smaps: &str, start: usize, len: usize) -> usize {
    let mut is_inside = false;
    let mut sum = 0usize;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((low, high)) = first.split_once('-') {
            let area = usize::from_str_radix(low, 16).ok().zip(usize::from_str_radix(high, 16).ok());
            is_inside = area.is_some_and(|(low, high)| low < start.saturating_add(len) && start < high);
        } else if is_inside && first == "AnonHugePages:" {
            let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
            sum = sum.saturating_add(kib.saturating_mul(1024));
        }
    }
    sum.min(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
Size:                  8 kB
AnonHugePages:         4 kB
3000-9000 rw-p 00000000 00:00 0
AnonHugePages:        16 kB
f000-ff00 rw-p 00000000 00:00 0
AnonHugePages:        64 kB
";

    #[test]
    fn huge_pages_are_summed_over_the_areas_of_a_range() {
        assert_eq!(huge_bytes(SMAPS, 0x1000, 0x8000), 20 << 10);
        assert_eq!(huge_bytes(SMAPS, 0x3000, 0x6000), 16 << 10);
        assert_eq!(huge_bytes(SMAPS, 0x9000, 0x1000), 0);
    }

    proptest! {
        #[test]
        fn any_smaps_is_read(text in "\\PC{0,80}", start in any::<usize>(), len in any::<usize>()) {
            prop_assert!(huge_bytes(&text, start, len) <= len);
        }
    }

    #[test]
    fn mappings_are_zeroed_aligned_and_writable() {
        let mut small = Mapping::private(3 * SMALL_PAGE, Pages::Small).unwrap();
        assert!(small.words().iter().all(|&word| word == 0));
        small.touch(SMALL_PAGE);
        assert_eq!(small.words().iter().filter(|&&word| word != 0).count(), 3);
        match Mapping::private(1, Pages::Large) {
            Ok(large) => assert_eq!((large.start as usize % LARGE_PAGE, large.len()), (0, LARGE_PAGE)),
            Err(error) => eprintln!("SKIPPED: large half of mappings_are_zeroed_aligned_and_writable: {error}"),
        }
    }
}
