//! The frame of the MapReduce programs, after Phoenix (Ranger et al., HPCA 2007): the input lies in memory, a team of
//! threads takes splits of it one after another, each into results of its own, which are merged when all are done.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `work` on so many new threads at once and returns what each returned, in their order. The caller waits, as
/// Phoenix' main thread does.
///
/// # Panics
/// When one of the threads does.
pub fn parallel<T: Send>(threads: NonZeroUsize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let team: Vec<_> = (0..threads.get()).map(|id| scope.spawn(move || work(id))).collect();
        team.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Pieces of an input, handed out one after another to whoever asks.
pub struct Splits<'a> {
    input: &'a [u8],
    grain: usize,
    next: AtomicUsize,
}

impl<'a> Splits<'a> {
    /// Pieces of `grain` bytes; the last may be shorter.
    pub fn new(input: &'a [u8], grain: usize) -> Self {
        Self { input, grain, next: AtomicUsize::new(0) }
    }

    /// The next piece: which it is, where it starts in the input, and its bytes.
    pub fn next(&self) -> Option<Split<'a>> {
        // Relaxed: nothing but the number is shared, and the input was there before any thread.
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let start = index.checked_mul(self.grain).filter(|start| *start < self.input.len())?;
        let end = self.input.len().min(start + self.grain);
        Some(Split { index, start, bytes: &self.input[start..end] })
    }
}

/// One piece of an input.
#[derive(Debug, Clone, Copy)]
pub struct Split<'a> {
    /// Which piece it is, counted from 0.
    pub index: usize,
    /// Where it starts in the input, in bytes.
    pub start: usize,
    /// Its bytes.
    pub bytes: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::threads;

    #[test]
    fn every_byte_is_in_one_split_whoever_takes_it() {
        let input: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        let splits = Splits::new(&input, 64);
        let taken = parallel(threads(3), |_| std::iter::from_fn(|| splits.next()).collect::<Vec<_>>());
        let mut taken: Vec<Split<'_>> = taken.into_iter().flatten().collect();
        taken.sort_by_key(|split| split.index);
        assert_eq!(taken.iter().flat_map(|split| split.bytes).copied().collect::<Vec<u8>>(), input);
        assert!(taken.iter().enumerate().all(|(index, split)| (split.index, split.start) == (index, index * 64)));
    }

    #[test]
    fn results_come_in_the_order_of_the_threads() {
        assert_eq!(parallel(threads(5), |id| id * id), [0, 1, 4, 9, 16]);
    }
}
