//! Histogram, after Phoenix: how often each value of red, green and blue occurs in a bitmap.

use super::digest::Digest;
use super::mapreduce::{Splits, parallel};
use super::{Fill, random};
use crate::SuiteError;
use rand_core::Rng;
use std::num::NonZeroUsize;

/// Bytes of a bitmap's file header and the information header after it (BITMAPFILEHEADER, BITMAPINFOHEADER).
const HEADER_BYTES: usize = 54;
/// Pixels of a row: its bytes are a multiple of 4, so that rows need no padding.
const WIDTH: u32 = 4096;
const PIXEL_BYTES: usize = 3;
/// Bytes of a map task: whole pixels, and few enough that no 32-bit counter can overflow.
const GRAIN_BYTES: usize = 3 << 18;
/// Tables that neighbouring pixels count in: equal neighbours would otherwise wait for each other's sum.
const LANES: usize = 4;

/// How often each value occurs, per channel: blue, green, red, as in the file.
pub type Counts = [[u64; 256]; 3];

/// Fills a bitmap of 24 bits a pixel: soft gradients with noise, each channel its own, as photographs have.
pub fn fill(seed: u64, total: u64) -> Fill {
    Box::new(move |index, block| {
        let mut random = random(seed, index);
        let slope = random.next_u64();
        let (words, rest) = block.as_chunks_mut::<8>();
        for (at, word) in words.iter_mut().enumerate() {
            // The sum of two draws in each byte: values in the middle are more frequent, as under a soft light.
            let draw = random.next_u64();
            let (low, high) = (draw & 0x7F7F_7F7F_7F7F_7F7F, (draw >> 1).rotate_left(24) & 0x7F7F_7F7F_7F7F_7F7F);
            let ramp = slope.rotate_left((at >> 9) as u32) & 0x0101_0101_0101_0101;
            *word = (low + high + ramp).to_le_bytes();
        }
        rest.fill(0x80);
        if index == 0 {
            let header = header(total);
            let length = header.len().min(block.len());
            block[..length].copy_from_slice(&header[..length]);
        }
    })
}

/// The headers of a bitmap of `total` bytes.
fn header(total: u64) -> [u8; HEADER_BYTES] {
    let height = (total - HEADER_BYTES as u64) / (u64::from(WIDTH) * PIXEL_BYTES as u64);
    let mut bytes = [0; HEADER_BYTES];
    bytes[..2].copy_from_slice(b"BM");
    bytes[2..6].copy_from_slice(&(total as u32).to_le_bytes());
    bytes[10..14].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
    bytes[14..18].copy_from_slice(&40u32.to_le_bytes());
    bytes[18..22].copy_from_slice(&WIDTH.to_le_bytes());
    bytes[22..26].copy_from_slice(&(height as u32).to_le_bytes());
    bytes[26..28].copy_from_slice(&1u16.to_le_bytes());
    bytes[28..30].copy_from_slice(&24u16.to_le_bytes());
    bytes
}

/// Counts on so many threads.
///
/// # Errors
/// When the input is no bitmap of 24 bits a pixel.
pub fn histogram(input: &[u8], threads: NonZeroUsize) -> Result<Counts, SuiteError> {
    let splits = Splits::new(pixels(input)?, GRAIN_BYTES);
    let maps = parallel(threads, |_| {
        let mut counts = [[0; 256]; 3];
        while let Some(split) = splits.next() {
            count(split.bytes, &mut counts);
        }
        counts
    });
    Ok(maps.iter().fold([[0; 256]; 3], |mut sum, counts| {
        sum.iter_mut().flatten().zip(counts.iter().flatten()).for_each(|(sum, count)| *sum += count);
        sum
    }))
}

/// The checksum of [`histogram`].
///
/// # Errors
/// As [`histogram`].
pub fn run(input: &[u8], threads: NonZeroUsize) -> Result<u64, SuiteError> {
    let mut digest = Digest::new();
    histogram(input, threads)?.iter().flatten().for_each(|count| digest.word(*count));
    Ok(digest.finish())
}

fn pixels(input: &[u8]) -> Result<&[u8], SuiteError> {
    let wrong = |found: &str| SuiteError::Input { program: "histogram".to_owned(), found: found.to_owned() };
    if input.len() < HEADER_BYTES || &input[..2] != b"BM" {
        return Err(wrong("no bitmap"));
    }
    if input[28..30] != [24, 0] {
        return Err(wrong("a bitmap that has not 24 bits a pixel"));
    }
    let field = |at: usize| u32::from_le_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]]) as usize;
    let (offset, width, height) = (field(10), field(18), field(22));
    let end = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(PIXEL_BYTES)?.checked_add(offset));
    end.and_then(|end| input.get(offset..end)).ok_or_else(|| wrong("a bitmap with fewer pixels than it says"))
}

/// Adds the pixels to the counts.
fn count(bytes: &[u8], counts: &mut Counts) {
    let mut lanes = [[[0u32; 256]; 3]; LANES];
    let (groups, rest) = bytes.as_chunks::<{ PIXEL_BYTES * LANES }>();
    for group in groups {
        for (lane, pixel) in lanes.iter_mut().zip(group.as_chunks::<PIXEL_BYTES>().0) {
            for (table, value) in lane.iter_mut().zip(pixel) {
                table[usize::from(*value)] += 1;
            }
        }
    }
    for pixel in rest.as_chunks::<PIXEL_BYTES>().0 {
        for (table, value) in lanes[0].iter_mut().zip(pixel) {
            table[usize::from(*value)] += 1;
        }
    }
    for lane in &lanes {
        counts.iter_mut().flatten().zip(lane.iter().flatten()).for_each(|(sum, count)| *sum += u64::from(*count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{generate, threads};

    #[test]
    fn counts_what_a_loop_over_the_pixels_counts() {
        let input = generate(fill, 3, 1_300_007);
        let mut expected: Counts = [[0; 256]; 3];
        let row = WIDTH as usize * 3;
        let rows = (input.len() - HEADER_BYTES) / row;
        for pixel in input[HEADER_BYTES..HEADER_BYTES + rows * row].chunks_exact(3) {
            (0..3).for_each(|channel| expected[channel][usize::from(pixel[channel])] += 1);
        }
        for team in [1, 2, 7] {
            assert_eq!(histogram(&input, threads(team)).unwrap(), expected, "{team} threads");
        }
        assert_eq!(expected.map(|channel| channel.iter().sum::<u64>()), [(rows * WIDTH as usize) as u64; 3]);
    }

    #[test]
    fn what_is_no_bitmap_is_refused() {
        for input in [&b"BM"[..], &[0; 100], b""] {
            assert!(run(input, threads(1)).is_err());
        }
    }
}
