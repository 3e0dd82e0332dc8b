//! The checksum of a result: equal results have equal ones on every machine; not made to withstand anybody.

/// A running checksum of 64 bits over words and bytes. Word after word goes through a multiplication by an odd constant
/// and a rotation, so that their order counts; the end through a finaliser (splitmix64).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Digest {
    /// The checksum of nothing.
    pub const fn new() -> Self {
        Self(FACTOR)
    }

    /// Adds one word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(FACTOR).rotate_left(29);
    }

    /// Adds bytes; where the pieces of a whole are cut makes a difference.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
        self.word(bytes.len() as u64);
    }

    /// The checksum.
    pub fn finish(self) -> u64 {
        splitmix(self.0)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of `x`.
pub const fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(FACTOR);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> u64 {
        let mut digest = Digest::new();
        digest.bytes(bytes);
        digest.finish()
    }

    #[test]
    fn order_length_and_every_byte_count() {
        let texts: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"abcdefgh", b"abcdefgi", b"abcdefghi", b"ihgfedcba"];
        for (index, a) in texts.iter().enumerate() {
            assert!(texts[index + 1..].iter().all(|b| of(a) != of(b)), "{a:?}");
        }
    }
}
