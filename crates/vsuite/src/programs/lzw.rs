//! A block compressor after Lempel, Ziv and Welch (Welch 1984), as in compress(1): every code written adds the string it
//! stands for and the byte behind it to a dictionary, which begins anew when it is full.
//!
//! No code is kept back for the reader's sake: how many bits a code has, and when the dictionary begins anew, follows
//! from the number of codes so far, which both sides know.

use thiserror::Error;

/// The widest code.
const MAX_BITS: u32 = 16;
/// Codes below this are the bytes themselves.
const BYTES: u32 = 256;
/// Codes after which the dictionary is full.
const FULL: u32 = (1 << MAX_BITS) - BYTES;
/// The encoder's hash table: twice as many slots as there can be codes.
const TABLE_BITS: u32 = MAX_BITS + 1;
/// Ages that a slot can tell apart.
const AGES: u64 = 1 << 24;

/// The bits of a code when so many were written since the dictionary began.
#[inline(always)]
fn width(codes: u32) -> u32 {
    u32::BITS - (BYTES - 1 + codes).leading_zeros()
}

/// The compressed bytes are not what [`Encoder::encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LzwError {
    /// They end too early.
    #[error("the compressed block ends before its last code")]
    Short,
    /// A code stands for nothing yet.
    #[error("code {code} occurs before it stands for anything")]
    Unknown {
        /// The code.
        code: u32,
    },
    /// The last string is longer than the block.
    #[error("the compressed block holds more than {expected} bytes")]
    Long {
        /// The length that was asked for.
        expected: usize,
    },
}

/// Compresses blocks; what it needs to do so is used again for the next block.
pub struct Encoder {
    /// age (24 bits), prefix code and byte (16 + 8), code (16): a slot of another age is empty.
    table: Vec<u64>,
    age: u64,
    out: Vec<u8>,
}

impl Encoder {
    /// An encoder.
    pub fn new() -> Self {
        Self { table: vec![0; 1 << TABLE_BITS], age: 0, out: Vec::new() }
    }

    /// The compressed block. At most twice as long as `block`, and 8 bytes.
    pub fn encode(&mut self, block: &[u8]) -> &[u8] {
        self.out.resize((2 * block.len() + 8).max(self.out.len()), 0);
        let mut bits = BitWriter { out: &mut self.out, at: 0, buffer: 0, held: 0 };
        let Some((first, rest)) = block.split_first() else { return &[] };
        let mut age = next_age(&mut self.age, &mut self.table);
        let (mut prefix, mut codes) = (u32::from(*first), 0);
        for byte in rest {
            match look_up(&mut self.table, age, prefix << 8 | u32::from(*byte), BYTES + codes) {
                Some(code) => prefix = code,
                None => {
                    bits.put(prefix, width(codes));
                    prefix = u32::from(*byte);
                    codes += 1;
                    if codes == FULL {
                        codes = 0;
                        age = next_age(&mut self.age, &mut self.table);
                    }
                }
            }
        }
        bits.put(prefix, width(codes));
        let length = bits.end();
        &self.out[..length]
    }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Empties the table by making all its slots old.
fn next_age(age: &mut u64, table: &mut [u64]) -> u64 {
    *age += 1;
    if *age == AGES {
        table.fill(0);
        *age = 1;
    }
    *age
}

/// The code of a prefix and a byte; where they have none they get `new`.
#[inline(always)]
fn look_up(table: &mut [u64], age: u64, string: u32, new: u32) -> Option<u32> {
    let wanted = age << 24 | u64::from(string);
    let mask = table.len() - 1;
    let mut at = (string.wrapping_mul(0x9E37_79B1) >> (u32::BITS - TABLE_BITS)) as usize & mask;
    loop {
        let slot = table[at];
        if slot >> 16 == wanted {
            return Some(slot as u32 & 0xFFFF);
        }
        if slot >> 40 != age {
            table[at] = wanted << 16 | u64::from(new);
            return None;
        }
        at = (at + 1) & mask;
    }
}

struct BitWriter<'a> {
    out: &'a mut [u8],
    at: usize,
    buffer: u64,
    held: u32,
}

impl BitWriter<'_> {
    /// Adds the lowest `width` bits of `code`, the first code in the lowest bits.
    #[inline(always)]
    fn put(&mut self, code: u32, width: u32) {
        self.buffer |= u64::from(code) << self.held;
        self.held += width;
        if self.held >= 32 {
            self.out[self.at..self.at + 4].copy_from_slice(&(self.buffer as u32).to_le_bytes());
            self.at += 4;
            self.buffer >>= 32;
            self.held -= 32;
        }
    }

    /// Writes what is held and says how many bytes there are in all.
    fn end(self) -> usize {
        let rest = self.held.div_ceil(8) as usize;
        self.out[self.at..self.at + rest].copy_from_slice(&self.buffer.to_le_bytes()[..rest]);
        self.at + rest
    }
}

/// Decompresses blocks; what it needs to do so is used again for the next block.
#[derive(Default)]
pub struct Decoder {
    /// Where in the block the string of each code stands, and how long it is.
    strings: Vec<(u32, u32)>,
    out: Vec<u8>,
}

impl Decoder {
    /// A decoder.
    pub fn new() -> Self {
        Self::default()
    }

    /// The block of `length` bytes that was compressed.
    ///
    /// # Errors
    /// When `compressed` is not what an [`Encoder`] made of so many bytes.
    pub fn decode(&mut self, compressed: &[u8], length: usize) -> Result<&[u8], LzwError> {
        self.out.resize(length.max(self.out.len()), 0);
        self.strings.clear();
        let mut bits = BitReader { bytes: compressed, at: 0 };
        let out = &mut self.out[..length];
        let mut done = 0;
        while done < length {
            if self.strings.len() == FULL as usize {
                self.strings.clear();
            }
            let code = bits.take(width(self.strings.len() as u32)).ok_or(LzwError::Short)?;
            let written = if code < BYTES {
                out[done] = code as u8;
                1
            } else {
                let string = self.strings.get((code - BYTES) as usize).ok_or(LzwError::Unknown { code })?;
                repeat(out, *string, done)?
            };
            // The string that this code adds ends in the byte that comes next.
            self.strings.push((done as u32, written as u32 + 1));
            done += written;
        }
        Ok(out)
    }
}

/// Writes a string that stands in `out` once more at `done`, where it may end in its own first byte.
#[inline(always)]
fn repeat(out: &mut [u8], string: (u32, u32), done: usize) -> Result<usize, LzwError> {
    const SHORT: usize = 16;
    let (from, length) = (string.0 as usize, string.1 as usize);
    if done + length > out.len() {
        return Err(LzwError::Long { expected: out.len() });
    }
    if length <= SHORT && from + SHORT <= done && done + SHORT <= out.len() {
        // Of a fixed length: no call. What is too much is overwritten by the next string.
        out.copy_within(from..from + SHORT, done);
    } else if from + length <= done {
        out.copy_within(from..from + length, done);
    } else {
        (0..length).for_each(|index| out[done + index] = out[from + index]);
    }
    Ok(length)
}

struct BitReader<'a> {
    bytes: &'a [u8],
    /// The next bit.
    at: usize,
}

impl BitReader<'_> {
    /// The next `width` bits (at most 16); `None` behind the end.
    #[inline(always)]
    fn take(&mut self, width: u32) -> Option<u32> {
        let (byte, shift) = (self.at / 8, self.at % 8);
        self.at += width as usize;
        let word = match self.bytes.get(byte..byte + 4) {
            Some(four) => u32::from_le_bytes([four[0], four[1], four[2], four[3]]),
            None if self.at <= self.bytes.len() * 8 => {
                self.bytes[byte..].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
            }
            None => return None,
        };
        Some(word >> shift & ((1 << width) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// LZW with strings and maps, as a textbook has it.
    fn textbook(block: &[u8]) -> Vec<u32> {
        let mut dictionary: std::collections::HashMap<Vec<u8>, u32> = (0..256).map(|b| (vec![b as u8], b)).collect();
        let (mut codes, mut prefix) = (Vec::new(), Vec::new());
        for byte in block {
            prefix.push(*byte);
            if !dictionary.contains_key(&prefix) {
                codes.push(dictionary[&prefix[..prefix.len() - 1]]);
                dictionary.insert(std::mem::replace(&mut prefix, vec![*byte]), BYTES + codes.len() as u32 - 1);
            }
        }
        codes.extend(dictionary.get(&prefix));
        codes
    }

    fn codes_of(compressed: &[u8], count: usize) -> Vec<u32> {
        let mut bits = BitReader { bytes: compressed, at: 0 };
        (0..count).map(|n| bits.take(width(n as u32)).expect("a code")).collect()
    }

    fn round_trip(encoder: &mut Encoder, block: &[u8]) {
        let compressed = encoder.encode(block).to_vec();
        assert!(compressed.len() <= 2 * block.len() + 8);
        assert_eq!(Decoder::new().decode(&compressed, block.len()).unwrap(), block);
    }

    proptest! {
        #[test]
        fn any_block_comes_back(blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 1..4)) {
            // One encoder for all: nothing of a block may be left in the next.
            let mut encoder = Encoder::new();
            blocks.iter().for_each(|block| round_trip(&mut encoder, block));
        }

        #[test]
        fn repetitive_blocks_come_back_and_have_the_textbooks_codes(
            block in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], 0..4000),
        ) {
            let mut encoder = Encoder::new();
            round_trip(&mut encoder, &block);
            let codes = textbook(&block);
            prop_assert_eq!(codes_of(encoder.encode(&block), codes.len()), codes);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), length in 0..2000usize) {
            if let Ok(block) = Decoder::new().decode(&bytes, length) {
                prop_assert_eq!(block.len(), length);
            }
        }
    }

    #[test]
    fn a_full_dictionary_begins_anew() {
        // Every pair of bytes: far more strings than there are codes.
        let block: Vec<u8> = (0..=255u8).flat_map(|a| (0..=255u8).flat_map(move |b| [a, b, b ^ a])).collect();
        let mut encoder = Encoder::new();
        round_trip(&mut encoder, &block.repeat(3));
        round_trip(&mut encoder, &vec![7; 1_000_000]);
        assert!(encoder.encode(&vec![7; 1_000_000]).len() < 4000);
    }

    #[test]
    fn damage_is_an_error() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode(&[], 1), Err(LzwError::Short));
        assert_eq!(decoder.decode(&[b'a', 0xFF, 0xFF], 9), Err(LzwError::Unknown { code: 511 }));
        let compressed = Encoder::new().encode(b"aaaaaaaaaaaaa").to_vec();
        assert_eq!(decoder.decode(&compressed, 5), Err(LzwError::Long { expected: 5 }));
    }
}
