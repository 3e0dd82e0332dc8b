//! A thread's heap as the C library keeps it: memory from the kernel that grows by whole pages, and buffers in it.
//!
//! glibc gives threads heaps of their own (malloc/arena.c). A new one has 132 KiB that can be used (`new_heap` with the default
//! M_TOP_PAD); when what is left does not do, `grow_heap` makes just so many pages more accessible by mprotect(2), which
//! takes the mm semaphore for writing and, up to Linux 3.6, ends with a shootdown (mm/mprotect.c, `change_protection`).
//! Nothing is given back. The time that malloc(3) takes besides is the program's.

use muster_model::workload::Buffer;

/// A page.
const PAGE_BYTES: u64 = 4096;
/// What a new heap has, in pages.
const FIRST_PAGES: u64 = 33;
/// What an allocation takes beside what was asked for, and what it is rounded up to (`MALLOC_ALIGNMENT`).
const HEADER_BYTES: u64 = 8;
const ALIGNMENT_BYTES: u64 = 16;

/// A thread's heap.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    free_bytes: u64,
    is_there: bool,
    /// By kind of buffer.
    pieces: Vec<Piece>,
}

/// The present pieces of a thread's buffers of a kind.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    size_bytes: u64,
    free_bytes: u64,
    /// Buffers that have not got theirs yet.
    missing: u64,
}

impl Heap {
    /// Adds to each buffer of a kind; whether new pieces are needed for that.
    pub fn fill(&mut self, kind: usize, buffer: &Buffer, bytes: u64) -> bool {
        if self.pieces.len() <= kind {
            self.pieces.resize(kind + 1, Piece::default());
        }
        let piece = &mut self.pieces[kind];
        if piece.free_bytes >= bytes {
            piece.free_bytes -= bytes;
            return false;
        }
        let size_bytes = if piece.size_bytes == 0 { buffer.initial_bytes } else { 2 * piece.size_bytes };
        let size_bytes = size_bytes.max(bytes);
        *piece = Piece { size_bytes, free_bytes: size_bytes - bytes, missing: buffer.count };
        true
    }

    /// Allocates pieces for buffers of a kind that lack theirs until the heap has to grow: by how many pages. `None` when all
    /// have theirs.
    pub fn next_piece(&mut self, kind: usize) -> Option<u64> {
        while self.pieces[kind].missing > 0 {
            self.pieces[kind].missing -= 1;
            let pages = self.allocate(self.pieces[kind].size_bytes);
            if pages > 0 {
                return Some(pages);
            }
        }
        None
    }

    /// Allocates; by how many pages the heap has to grow for that.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let needs = (bytes + HEADER_BYTES).next_multiple_of(ALIGNMENT_BYTES);
        if needs <= self.free_bytes {
            self.free_bytes -= needs;
            return 0;
        }
        let first = if std::mem::replace(&mut self.is_there, true) { 0 } else { FIRST_PAGES };
        let pages = (needs - self.free_bytes).div_ceil(PAGE_BYTES).max(first);
        self.free_bytes = self.free_bytes + pages * PAGE_BYTES - needs;
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_heap_grows_by_the_pages_that_it_lacks() {
        let mut heap = Heap::default();
        assert_eq!(heap.allocate(1000), FIRST_PAGES);
        let left = FIRST_PAGES * PAGE_BYTES - 1008;
        assert_eq!(heap.allocate(left - 16), 0);
        assert_eq!(heap.allocate(100), 1);
        assert_eq!(heap.allocate(10_000), 2);
    }

    #[test]
    fn buffers_go_on_in_pieces_of_twice_the_size() {
        let buffer = Buffer { count: 3, initial_bytes: 100, larger_bytes: 1000 };
        let mut heap = Heap::default();
        let grown: Vec<bool> = (0..10).map(|_| heap.fill(0, &buffer, 40)).collect();
        // 2 entries fit into 100 bytes, 5 into 200, and so on.
        assert_eq!(grown, [true, false, true, false, false, false, false, true, false, false]);
        assert_eq!(heap.next_piece(0), Some(FIRST_PAGES));
        assert_eq!(heap.next_piece(0), None, "all three fit");
    }

    proptest! {
        /// What was asked for always fits into the pages that there are, and no page is there in vain.
        #[test]
        fn pages_are_enough_and_not_too_many(sizes in proptest::collection::vec(1u64..20_000, 1..200)) {
            let mut heap = Heap::default();
            let mut pages = 0;
            for &size in &sizes {
                pages += heap.allocate(size);
            }
            let used: u64 = sizes.iter().map(|size| (size + HEADER_BYTES).next_multiple_of(ALIGNMENT_BYTES)).sum();
            prop_assert_eq!(heap.free_bytes, pages * PAGE_BYTES - used);
            prop_assert!(pages == FIRST_PAGES || heap.free_bytes < PAGE_BYTES);
        }
    }
}
