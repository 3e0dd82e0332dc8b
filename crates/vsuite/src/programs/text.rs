//! Text as people write it, as far as it matters here: few words are frequent and many are rare (Zipf), frequent words
//! are short, sentences begin with a capital letter.

use super::digest::splitmix;
use super::random;
use rand_core::Rng;

/// Words of the vocabulary.
const WORDS: usize = 1 << 15;
/// A word's slot: its letters, then its length.
const SLOT: usize = 16;
const LONGEST: usize = SLOT - 1;
/// Draws that the table of frequencies tells apart.
const DRAWS: usize = 1 << 16;

/// A vocabulary and how frequent its words are.
pub struct Vocabulary {
    slots: Vec<[u8; SLOT]>,
    /// The word for each possible draw: a word stands here as often as it is frequent.
    table: Vec<u16>,
}

impl Vocabulary {
    /// The vocabulary that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        let slots = (0..WORDS).map(|rank| word(splitmix(seed ^ ((rank as u64) << 20)), rank)).collect();
        Self { slots, table: zipf() }
    }

    /// Fills `block` with text; block `index` of a file whose text belongs to `seed`. The block ends in a line's end.
    pub fn fill(&self, seed: u64, index: u64, block: &mut [u8]) {
        let mut random = random(seed, index);
        let (mut at, mut capital) = (0, true);
        // Every word is stored as a whole slot; the next one overwrites what it has too much.
        while at + SLOT + 2 <= block.len() {
            let (mut words, mut gaps) = (random.next_u64(), random.next_u32());
            for _ in 0..4.min((block.len() - at) / (SLOT + 2)) {
                let slot = &self.slots[usize::from(self.table[words as usize % DRAWS])];
                block[at..at + SLOT].copy_from_slice(slot);
                block[at] -= if capital { b'a' - b'A' } else { 0 };
                at += usize::from(slot[LONGEST]);
                let (gap, width) = match gaps % 16 {
                    0 => (b".\n", 2),
                    1 => (b", ", 2),
                    _ => (b"  ", 1),
                };
                block[at..at + 2].copy_from_slice(gap);
                at += width;
                capital = gap == b".\n";
                (words, gaps) = (words >> 16, gaps >> 4);
            }
        }
        block[at..].fill(b' ');
        if let Some(last) = block.last_mut() {
            *last = b'\n';
        }
    }
}

/// The word of a rank: syllables, more of them for rarer words.
fn word(mut draw: u64, rank: usize) -> [u8; SLOT] {
    const CONSONANTS: &[u8] = b"tnshrdlcmwfgypbvkjxz";
    const VOWELS: &[u8] = b"eaoiu";
    let syllables = match rank {
        0..32 => 1,
        32..1024 => 2,
        1024..8192 => 3,
        _ => 4,
    };
    let mut slot = [b' '; SLOT];
    let mut length = 0;
    let mut push = |letters: &[u8], many: u64| {
        slot[length] = letters[(draw % many) as usize % letters.len()];
        draw = splitmix(draw);
        length += 1;
    };
    for syllable in 0..syllables {
        push(CONSONANTS, 37);
        push(VOWELS, 7);
        if syllable % 2 == 0 {
            push(CONSONANTS, 29);
        }
    }
    slot[LONGEST] = length as u8;
    slot
}

/// Zipf's law with exponent 1 over the words, in whole draws; the rarest words have one draw each or share none.
fn zipf() -> Vec<u16> {
    let total: f64 = (1..=WORDS).map(|rank| 1.0 / rank as f64).sum();
    let mut table = Vec::with_capacity(DRAWS);
    let mut cumulated = 0.0;
    for rank in 0..WORDS {
        cumulated += 1.0 / (rank + 1) as f64 / total;
        let until = (cumulated * DRAWS as f64).round() as usize;
        table.resize(until.clamp(table.len(), DRAWS), rank as u16);
    }
    table.resize(DRAWS, 0);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, bytes: usize) -> String {
        let mut block = vec![0; bytes];
        Vocabulary::new(seed).fill(seed, 0, &mut block);
        String::from_utf8(block).expect("ASCII")
    }

    #[test]
    fn frequent_words_are_few_and_rare_words_are_many() {
        let text = text(1, 1 << 20).to_lowercase();
        let mut counts = std::collections::HashMap::new();
        text.split(|c: char| !c.is_ascii_lowercase())
            .filter(|word| !word.is_empty())
            .for_each(|word| *counts.entry(word).or_insert(0usize) += 1);
        let mut sorted: Vec<usize> = counts.values().copied().collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let all: usize = sorted.iter().sum();
        assert!(sorted.len() > 10_000, "{} words", sorted.len());
        assert!((all / 20..all / 5).contains(&sorted[0]), "{} of {all}", sorted[0]);
    }

    #[test]
    fn blocks_of_any_length_end_in_a_line() {
        for bytes in [1, 2, 17, 18, 19, 40, 1000] {
            assert!(text(9, bytes).ends_with('\n'), "{bytes}");
        }
        assert_ne!(text(9, 100), text(10, 100));
    }
}
