//! Linear regression, after Phoenix: the line that fits pairs of bytes (x, y) best, from the five sums over all of them.

use super::digest::Digest;
use super::mapreduce::{Splits, parallel};
use super::{Fill, random};
use rand_core::Rng;
use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_add_epi64, _mm_and_si128, _mm_cvtsi128_si64, _mm_madd_epi16, _mm_sad_epu8,
    _mm_set_epi64x, _mm_set1_epi16, _mm_setzero_si128, _mm_srli_epi16, _mm_srli_si128, _mm_unpackhi_epi32,
    _mm_unpacklo_epi32,
};
use std::num::NonZeroUsize;

/// Bytes of a map task: whole pairs.
const GRAIN_BYTES: usize = 1 << 20;
/// Bytes after which the 32-bit sums are emptied: 2^13 steps, each of which adds at most 2 x 255^2, stay below 2^31.
const EMPTY_EVERY: usize = 1 << 17;

/// The sums over all points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// Number of points.
    pub n: u64,
    /// Sum of x.
    pub x: u64,
    /// Sum of y.
    pub y: u64,
    /// Sum of x squared.
    pub xx: u64,
    /// Sum of y squared.
    pub yy: u64,
    /// Sum of x times y.
    pub xy: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.n += other.n;
        self.x += other.x;
        self.y += other.y;
        self.xx += other.xx;
        self.yy += other.yy;
        self.xy += other.xy;
    }

    /// Slope and intercept of the line that fits best; `None` where x is the same everywhere.
    pub fn line(&self) -> Option<(f64, f64)> {
        let [n, x, y, xx, xy] = [self.n, self.x, self.y, self.xx, self.xy].map(|sum| sum as f64);
        let spread = n * xx - x * x;
        (spread != 0.0).then(|| {
            let slope = (n * xy - x * y) / spread;
            (slope, (y - slope * x) / n)
        })
    }
}

/// Fills points around a line: x anywhere, y half of x and some noise.
pub fn fill(seed: u64, _total: u64) -> Fill {
    Box::new(move |index, block| {
        let mut random = random(seed, index);
        let (words, rest) = block.as_chunks_mut::<8>();
        for word in words {
            // Four points at once, as 16-bit numbers: x in the low byte, y in the high one.
            let draw = random.next_u64();
            let x = draw & 0x00FF_00FF_00FF_00FF;
            let y = ((x >> 1) & 0x007F_007F_007F_007F) + ((draw >> 8) & 0x003F_003F_003F_003F);
            *word = (x | (y << 8)).to_le_bytes();
        }
        rest.fill(0);
    })
}

/// The five sums, on so many threads; a byte without a partner at the end is left out.
pub fn regression(input: &[u8], threads: NonZeroUsize) -> Sums {
    let splits = Splits::new(input, GRAIN_BYTES);
    let maps = parallel(threads, |_| {
        let mut sums = Sums::default();
        while let Some(split) = splits.next() {
            // SAFETY: every x86-64 has SSE2.
            split.bytes.chunks(EMPTY_EVERY).for_each(|bytes| sums.add(&unsafe { sum(bytes) }));
        }
        sums
    });
    maps.iter().fold(Sums::default(), |mut sum, map| {
        sum.add(map);
        sum
    })
}

/// The checksum of [`regression`].
pub fn run(input: &[u8], threads: NonZeroUsize) -> u64 {
    let sums = regression(input, threads);
    let mut digest = Digest::new();
    [sums.n, sums.x, sums.y, sums.xx, sums.yy, sums.xy].into_iter().for_each(|sum| digest.word(sum));
    digest.finish()
}

/// The sums of at most [`EMPTY_EVERY`] bytes; every point is a 16-bit lane.
#[target_feature(enable = "sse2")]
fn sum(bytes: &[u8]) -> Sums {
    let (zero, low_byte) = (_mm_setzero_si128(), _mm_set1_epi16(0xFF));
    let [mut x, mut y, mut xx, mut yy, mut xy] = [zero; 5];
    let (steps, rest) = bytes.as_chunks::<16>();
    for step in steps {
        let points = load(step);
        let xs = _mm_and_si128(points, low_byte);
        let ys = _mm_srli_epi16::<8>(points);
        x = _mm_add_epi64(x, _mm_sad_epu8(xs, zero));
        y = _mm_add_epi64(y, _mm_sad_epu8(ys, zero));
        xx = _mm_add_epi32(xx, _mm_madd_epi16(xs, xs));
        yy = _mm_add_epi32(yy, _mm_madd_epi16(ys, ys));
        xy = _mm_add_epi32(xy, _mm_madd_epi16(xs, ys));
    }
    let n = (steps.len() * 8) as u64;
    let mut sums = Sums { n, x: both(x), y: both(y), xx: all(xx), yy: all(yy), xy: all(xy) };
    for [x, y] in rest.as_chunks::<2>().0.iter().map(|point| point.map(u64::from)) {
        sums.add(&Sums { n: 1, x, y, xx: x * x, yy: y * y, xy: x * y });
    }
    sums
}

/// Sixteen bytes as they lie in memory.
#[inline]
#[target_feature(enable = "sse2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    let all = u128::from_le_bytes(*bytes);
    _mm_set_epi64x((all >> 64) as i64, all as i64)
}

/// The sum of two 64-bit lanes.
#[target_feature(enable = "sse2")]
fn both(lanes: __m128i) -> u64 {
    (_mm_cvtsi128_si64(lanes) + _mm_cvtsi128_si64(_mm_srli_si128::<8>(lanes))) as u64
}

/// The sum of four 32-bit lanes, none of them negative.
#[target_feature(enable = "sse2")]
fn all(lanes: __m128i) -> u64 {
    let zero = _mm_setzero_si128();
    both(_mm_add_epi64(_mm_unpacklo_epi32(lanes, zero), _mm_unpackhi_epi32(lanes, zero)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{generate, threads};

    fn simple(input: &[u8]) -> Sums {
        let mut sums = Sums::default();
        for point in input.chunks_exact(2) {
            let (x, y) = (u64::from(point[0]), u64::from(point[1]));
            sums.add(&Sums { n: 1, x, y, xx: x * x, yy: y * y, xy: x * y });
        }
        sums
    }

    #[test]
    fn sums_are_those_of_a_simple_loop() {
        for length in [0, 1, 2, 15, 33, 3_000_001] {
            let input = generate(fill, 5, length);
            for team in [1, 2, 7] {
                assert_eq!(regression(&input, threads(team)), simple(&input), "{length} bytes, {team} threads");
            }
        }
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        let input = vec![255; 2 * EMPTY_EVERY + 18];
        assert_eq!(regression(&input, threads(1)), simple(&input));
    }

    #[test]
    fn the_line_is_the_one_the_points_were_made_around() {
        let (slope, intercept) = regression(&generate(fill, 5, 1 << 20), threads(2)).line().unwrap();
        assert!((slope - 0.5).abs() < 0.01 && (25.0..37.0).contains(&intercept), "{slope} {intercept}");
    }
}
