//! The seven programs that are our own: how their input is made, and what they do with it on so many threads.

pub mod compress;
pub mod dedup;
pub mod digest;
pub mod histogram;
pub mod linear_regression;
pub mod lzw;
pub mod mapreduce;
pub mod streamcluster;
pub mod text;
pub mod wordcount;
pub mod xml_validation;

use crate::SuiteError;
use digest::{Digest, splitmix};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// Makes one block of an input: which block it is, and its bytes. Blocks are made in any order and on any thread.
pub type Fill = Box<dyn Fn(u64, &mut [u8]) + Send + Sync>;

/// Bytes of every block of an input but the last.
pub const BLOCK_BYTES: usize = 1 << 20;

/// The random numbers of block `index` of the input that belongs to `seed`.
fn random(seed: u64, index: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(splitmix(seed) ^ splitmix(!index))
}

/// One checksum of the checksums of pieces, which threads made in any order.
fn in_order(parts: Vec<Result<Vec<(usize, u64)>, SuiteError>>) -> Result<u64, SuiteError> {
    let parts: Vec<Vec<(usize, u64)>> = parts.into_iter().collect::<Result<_, _>>()?;
    let mut sums: Vec<(usize, u64)> = parts.into_iter().flatten().collect();
    sums.sort_unstable();
    let mut digest = Digest::new();
    sums.iter().for_each(|(_, sum)| digest.word(*sum));
    Ok(digest.finish())
}

#[cfg(test)]
fn threads(count: usize) -> std::num::NonZeroUsize {
    std::num::NonZeroUsize::new(count).expect("a test needs a thread")
}

/// An input of so many bytes, in memory.
#[cfg(test)]
fn generate(filler: fn(u64, u64) -> Fill, seed: u64, bytes: usize) -> Vec<u8> {
    let fill = filler(seed, bytes as u64);
    let mut input = vec![0; bytes];
    input.chunks_mut(BLOCK_BYTES).enumerate().for_each(|(index, block)| fill(index as u64, block));
    input
}
