//! Where a stream is cut: where its content says so, so that what is the same is cut the same wherever it stands. A
//! rolling hash over the last 52 bytes decides (gear hash: Xia et al., "Ddelta", Performance Evaluation 79, 2014).

use crate::programs::digest::splitmix;

/// A fragment's length before its end is looked for (PARSEC: ANCHOR_JUMP).
const FRAGMENT_BYTES: usize = 2 << 20;
/// The shortest chunk but the last of a fragment.
const SHORTEST: usize = 1 << 10;
/// The longest chunk.
pub const LONGEST: usize = 64 << 10;
/// A chunk ends where so many high bits of the hash are 0: once in 4096 bytes.
const BITS: u32 = 12;

/// A random number for each byte.
static GEAR: [u64; 256] = {
    let mut gear = [0; 256];
    let mut byte = 0;
    while byte < gear.len() {
        gear[byte] = splitmix(byte as u64);
        byte += 1;
    }
    gear
};

/// Large fragments of a stream.
pub fn coarse(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = input;
    std::iter::from_fn(move || {
        let skip = FRAGMENT_BYTES.min(rest.len());
        let (fragment, behind) = rest.split_at(skip + end(&rest[skip..]));
        rest = behind;
        (!fragment.is_empty()).then_some(fragment)
    })
}

/// Chunks of a fragment.
pub fn fine(fragment: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = fragment;
    std::iter::from_fn(move || {
        let (chunk, behind) = rest.split_at(end(rest));
        rest = behind;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// The length of the first chunk.
fn end(bytes: &[u8]) -> usize {
    if bytes.len() <= SHORTEST {
        return bytes.len();
    }
    let longest = LONGEST.min(bytes.len());
    let mut hash = 0u64;
    // The hash has forgotten what is more than 64 - BITS bytes back.
    for (index, byte) in bytes[SHORTEST - (64 - BITS as usize)..longest].iter().enumerate() {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if hash >> (64 - BITS) == 0 && index >= 64 - BITS as usize {
            return SHORTEST - (64 - BITS as usize) + index + 1;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::random;
    use rand_core::Rng;

    fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        random(seed, 0).fill_bytes(&mut noise);
        noise
    }

    #[test]
    fn nothing_is_lost_and_lengths_are_within_their_limits() {
        let input = noise(1, 5_000_000);
        let fragments: Vec<&[u8]> = coarse(&input).collect();
        assert_eq!(fragments.concat(), input);
        let chunks: Vec<&[u8]> = fragments.iter().flat_map(|fragment| fine(fragment)).collect();
        assert_eq!(chunks.concat(), input);
        let mean = input.len() / chunks.len();
        assert!((4000..6500).contains(&mean), "{mean}");
        assert!(chunks.iter().all(|chunk| chunk.len() <= LONGEST));
        assert!(fine(&input[..2_000_000]).filter(|chunk| chunk.len() < SHORTEST).count() <= 1);
        assert_eq!(coarse(&[]).count() + fine(&[]).count(), 0);
        assert!(fine(&vec![0; 1 << 20]).all(|chunk| chunk.len() <= LONGEST));
    }

    #[test]
    fn an_inserted_byte_moves_few_cuts() {
        let input = noise(2, 1 << 20);
        let moved = [&[7], &input[..]].concat();
        let before: std::collections::HashSet<&[u8]> = fine(&input).collect();
        let same = fine(&moved).filter(|chunk| before.contains(chunk)).count();
        assert!(same + 3 >= before.len(), "{same} of {}", before.len());
    }
}
