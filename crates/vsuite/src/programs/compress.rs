//! Compress, after SPECjvm2008: every thread takes blocks, compresses and decompresses them, and looks whether they came
//! back.

use super::digest::Digest;
use super::lzw::{Decoder, Encoder};
use super::mapreduce::{Splits, parallel};
use super::text::Vocabulary;
use super::{Fill, random};
use crate::SuiteError;
use rand_core::Rng;
use std::num::NonZeroUsize;

/// Bytes that are compressed at a time.
const BLOCK_BYTES: usize = 1 << 18;
/// One in so many blocks of the input is a table of numbers, the others are text.
const TABLE_EVERY: u64 = 4;

/// Fills text, and tables of records.
pub fn fill(seed: u64, _total: u64) -> Fill {
    let vocabulary = Vocabulary::new(seed);
    Box::new(move |index, block| {
        if index % TABLE_EVERY == TABLE_EVERY - 1 {
            fill_table(seed, index, block);
        } else {
            vocabulary.fill(seed, index, block);
        }
    })
}

/// Records of 16 bytes: a running number, a small draw, zeros.
fn fill_table(seed: u64, index: u64, block: &mut [u8]) {
    let mut random = random(seed, index);
    let (records, rest) = block.as_chunks_mut::<16>();
    for (number, record) in records.iter_mut().enumerate() {
        *record = (number as u128 | u128::from(random.next_u32() >> 20) << 48).to_le_bytes();
    }
    rest.fill(0);
}

/// Compresses on so many threads and checks that every block comes back. The checksum is that of all compressed blocks in
/// their order.
///
/// # Errors
/// When a block did not come back: a bug.
pub fn run(input: &[u8], threads: NonZeroUsize) -> Result<u64, SuiteError> {
    let splits = Splits::new(input, BLOCK_BYTES);
    let parts = parallel(threads, |_| {
        let (mut encoder, mut decoder, mut sums) = (Encoder::new(), Decoder::new(), Vec::new());
        while let Some(split) = splits.next() {
            let compressed = encoder.encode(split.bytes);
            match decoder.decode(compressed, split.bytes.len()) {
                Ok(back) if back == split.bytes => {}
                Ok(_) => return Err(broken(split.index, "came back changed")),
                Err(error) => return Err(broken(split.index, &error.to_string())),
            }
            let mut digest = Digest::new();
            digest.bytes(compressed);
            sums.push((split.index, digest.finish()));
        }
        Ok(sums)
    });
    super::in_order(parts)
}

fn broken(block: usize, how: &str) -> SuiteError {
    SuiteError::Input { program: "compress".to_owned(), found: format!("block {block} that {how}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{generate, threads};

    #[test]
    fn the_checksum_is_that_of_the_blocks_one_by_one() {
        let input = generate(fill, 2, 4 * super::super::BLOCK_BYTES + 777);
        let mut expected = Digest::new();
        for block in input.chunks(BLOCK_BYTES) {
            let mut digest = Digest::new();
            digest.bytes(Encoder::new().encode(block));
            expected.word(digest.finish());
        }
        for team in [1, 2, 3, 7] {
            assert_eq!(run(&input, threads(team)).unwrap(), expected.finish(), "{team} threads");
        }
    }

    #[test]
    fn text_and_tables_shrink() {
        let input = generate(fill, 2, 4 * super::super::BLOCK_BYTES);
        for block in input.chunks(super::super::BLOCK_BYTES) {
            let length = Encoder::new().encode(block).len();
            assert!(length * 10 < block.len() * 6, "{length} of {}", block.len());
        }
    }
}
