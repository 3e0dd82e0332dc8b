//! Wordcount, after Phoenix: how often each word occurs in a text, capital letters or not. Map tasks count into hash
//! tables, one for each reduce task; reduce tasks add the tables of all threads up; the sorted results are merged pair
//! by pair, by half as many threads each time.

use super::Fill;
use super::digest::Digest;
use super::mapreduce::{Splits, parallel};
use super::text::Vocabulary;
use std::arch::x86_64::{
    __m128i, _mm_add_epi8, _mm_cmplt_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
};
use std::cmp::Ordering;
use std::num::NonZeroUsize;
use std::sync::Mutex;

/// Bytes of a map task, give or take a word.
const GRAIN_BYTES: usize = 1 << 20;
/// Slots of a new table: it grows as words come, as Phoenix' buffers do.
const FIRST_SLOTS: usize = 256;
/// The bit that tells small letters from capital ones, in eight letters.
const SMALL: u64 = 0x2020_2020_2020_2020;

/// A word as it first stood in the text, and how often it occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word<'a> {
    /// Its letters.
    pub letters: &'a [u8],
    /// How often it occurs.
    pub count: u64,
}

/// Fills text.
pub fn fill(seed: u64, _total: u64) -> Fill {
    let vocabulary = Vocabulary::new(seed);
    Box::new(move |index, block| vocabulary.fill(seed, index, block))
}

/// Every word of the input (ASCII letters, as many as follow each other), the most frequent first, equally frequent ones
/// by letter; on so many threads.
pub fn wordcount(input: &[u8], threads: NonZeroUsize) -> Vec<Word<'_>> {
    let splits = Splits::new(input, GRAIN_BYTES);
    let maps = parallel(threads, |_| {
        let mut tables: Vec<Table<'_>> = (0..threads.get()).map(|_| Table::new()).collect();
        while let Some(split) = splits.next() {
            let (start, end) = whole_words(input, split.start, split.start + split.bytes.len());
            // SAFETY: every x86-64 has SSE2.
            unsafe { count(input, start, end, &mut tables) };
        }
        tables
    });
    // Each reduce task takes its own column of the tables.
    let columns: Vec<Mutex<Vec<Table<'_>>>> = transpose(maps).into_iter().map(Mutex::new).collect();
    let sorted = parallel(threads, |id| {
        let column = std::mem::take(&mut *columns[id].lock().expect("nobody panics with it"));
        reduce(column)
    });
    merge_all(sorted)
}

/// The checksum of [`wordcount`].
pub fn run(input: &[u8], threads: NonZeroUsize) -> u64 {
    let mut digest = Digest::new();
    let mut small = Vec::new();
    for word in wordcount(input, threads) {
        small.clear();
        small.extend(word.letters.iter().map(u8::to_ascii_lowercase));
        digest.bytes(&small);
        digest.word(word.count);
    }
    digest.finish()
}

/// The piece from `start` to `end` without the word that began before it, with the rest of the word that ends behind it.
fn whole_words(input: &[u8], start: usize, end: usize) -> (usize, usize) {
    let after_word = |at: usize| {
        let is_inside = at > 0 && at < input.len() && input[at - 1].is_ascii_alphabetic();
        let rest = if is_inside { &input[at..] } else { &[] };
        at + rest.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(rest.len())
    };
    (after_word(start), after_word(end))
}

/// Counts the words between `start` and `end`, where no word is cut.
#[target_feature(enable = "sse2")]
fn count<'a>(input: &'a [u8], start: usize, end: usize, tables: &mut [Table<'a>]) {
    let mut word_start = None;
    let mut take = |from: usize, to: usize| {
        let key = Key::of(input, from, to);
        // The upper half of the hash chooses the table, the lower half the slot.
        let table = ((key.hash >> 32) * tables.len() as u64) >> 32;
        tables[table as usize].add(key, 1);
    };
    let (blocks, rest) = input[start..end].as_chunks::<64>();
    let mut at = start;
    for block in blocks {
        let letters = letters(block);
        // A bit where a letter follows another character or the other way round.
        let mut edges = letters ^ (letters << 1 | u64::from(word_start.is_some()));
        while edges != 0 {
            let edge = at + edges.trailing_zeros() as usize;
            edges &= edges - 1;
            match word_start.take() {
                Some(from) => take(from, edge),
                None => word_start = Some(edge),
            }
        }
        at += 64;
    }
    for (offset, byte) in rest.iter().enumerate() {
        match (byte.is_ascii_alphabetic(), word_start) {
            (true, None) => word_start = Some(at + offset),
            (false, Some(from)) => {
                take(from, at + offset);
                word_start = None;
            }
            _ => {}
        }
    }
    if let Some(from) = word_start {
        take(from, end);
    }
}

/// Which of 64 bytes are ASCII letters, the first in the lowest bit.
#[inline]
#[target_feature(enable = "sse2")]
fn letters(block: &[u8; 64]) -> u64 {
    let parts = block.as_chunks::<16>().0;
    parts.iter().enumerate().fold(0, |mask, (index, part)| mask | u64::from(letters_of_16(part)) << (16 * index))
}

#[inline]
#[target_feature(enable = "sse2")]
fn letters_of_16(part: &[u8; 16]) -> u16 {
    let all = u128::from_le_bytes(*part);
    let bytes: __m128i = _mm_set_epi64x((all >> 64) as i64, all as i64);
    let small = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
    // Moved so that a..z are the 26 smallest signed bytes: SSE2 compares signed ones only.
    let moved = _mm_add_epi8(small, _mm_set1_epi8((128 - b'a') as i8));
    _mm_movemask_epi8(_mm_cmplt_epi8(moved, _mm_set1_epi8(-128 + 26))) as u16
}

/// A word, ready to be looked up.
#[derive(Clone, Copy)]
struct Key<'a> {
    hash: u64,
    /// The first eight letters, small, zeros behind them.
    head: u64,
    letters: &'a [u8],
}

impl<'a> Key<'a> {
    #[inline(always)]
    fn of(input: &'a [u8], from: usize, to: usize) -> Self {
        let letters = &input[from..to];
        let head = match input.get(from..from + 8) {
            // Eight bytes at once; what is behind a shorter word is cut off.
            Some(eight) if letters.len() < 8 => {
                let mask = (1 << (8 * letters.len())) - 1;
                (u64::from_le_bytes(eight.try_into().expect("eight bytes")) | SMALL) & mask
            }
            _ => small_word(letters),
        };
        Self::new(head, letters)
    }

    #[inline(always)]
    fn new(head: u64, letters: &'a [u8]) -> Self {
        let mut hash = fold(head ^ letters.len() as u64);
        if letters.len() > 8 {
            hash = letters[8..].chunks(8).fold(hash, |hash, chunk| fold(hash ^ small_word(chunk)));
        }
        Self { hash, head, letters }
    }

    #[inline(always)]
    fn is_word(&self, slot: &Slot<'_>) -> bool {
        slot.head == self.head
            && slot.letters.len() == self.letters.len()
            && (self.letters.len() <= 8 || self.letters[8..].eq_ignore_ascii_case(&slot.letters[8..]))
    }
}

/// Up to eight letters as a number, small, zeros behind them.
#[inline(always)]
fn small_word(letters: &[u8]) -> u64 {
    let mut word = [0; 8];
    let length = letters.len().min(8);
    word[..length].copy_from_slice(&letters[..length]);
    let mask = if length == 8 { u64::MAX } else { (1 << (8 * length)) - 1 };
    u64::from_le_bytes(word) | (SMALL & mask)
}

/// Multiplies to 128 bits and folds: each half of the result depends on all of `x`.
#[inline(always)]
fn fold(x: u64) -> u64 {
    let product = u128::from(x ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    product as u64 ^ (product >> 64) as u64
}

#[derive(Clone, Copy)]
struct Slot<'a> {
    head: u64,
    letters: &'a [u8],
    /// 0 where the slot is empty.
    count: u64,
}

/// A hash table with open addressing, at most half full.
struct Table<'a> {
    slots: Vec<Slot<'a>>,
    words: usize,
}

impl<'a> Table<'a> {
    fn new() -> Self {
        Self { slots: vec![Slot { head: 0, letters: &[], count: 0 }; FIRST_SLOTS], words: 0 }
    }

    #[inline(always)]
    fn add(&mut self, key: Key<'a>, count: u64) {
        let mask = self.slots.len() - 1;
        let mut at = key.hash as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.count == 0 {
                *slot = Slot { head: key.head, letters: key.letters, count };
                self.words += 1;
                if self.words * 2 > self.slots.len() {
                    self.grow();
                }
                return;
            }
            if key.is_word(slot) {
                slot.count += count;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = vec![Slot { head: 0, letters: &[][..], count: 0 }; self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, doubled);
        self.words = 0;
        old.iter()
            .filter(|slot| slot.count > 0)
            .for_each(|slot| self.add(Key::new(slot.head, slot.letters), slot.count));
    }
}

/// Column `p` of the rows.
fn transpose<T>(rows: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let mut columns: Vec<Vec<T>> = rows.first().map_or(Vec::new(), |row| row.iter().map(|_| Vec::new()).collect());
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, item)| column.push(item));
    }
    columns
}

/// Adds the tables up and sorts the words.
fn reduce(tables: Vec<Table<'_>>) -> Vec<Word<'_>> {
    let mut tables = tables.into_iter();
    let Some(mut sum) = tables.next() else { return Vec::new() };
    for table in tables {
        for slot in table.slots.iter().filter(|slot| slot.count > 0) {
            sum.add(Key::new(slot.head, slot.letters), slot.count);
        }
    }
    let is_word = |slot: &&Slot<'_>| slot.count > 0;
    let mut words: Vec<Word<'_>> =
        sum.slots.iter().filter(is_word).map(|slot| Word { letters: slot.letters, count: slot.count }).collect();
    words.sort_unstable_by(order);
    words
}

fn order(a: &Word<'_>, b: &Word<'_>) -> Ordering {
    let small = |word: &Word<'_>| word.letters.iter().map(u8::to_ascii_lowercase).collect::<Vec<u8>>();
    b.count.cmp(&a.count).then_with(|| small(a).cmp(&small(b)))
}

/// Merges sorted lists, each pair on a thread of its own, until one is left.
fn merge_all(mut lists: Vec<Vec<Word<'_>>>) -> Vec<Word<'_>> {
    while lists.len() > 1 {
        let half = NonZeroUsize::new(lists.len().div_ceil(2)).expect("lists are there");
        let pair = |id: usize| (&lists[2 * id][..], lists.get(2 * id + 1).map_or(&[][..], |list| &list[..]));
        lists = parallel(half, |id| {
            let (left, right) = pair(id);
            merge(left, right)
        });
    }
    lists.pop().unwrap_or_default()
}

fn merge<'a>(mut left: &[Word<'a>], mut right: &[Word<'a>]) -> Vec<Word<'a>> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some((first, others)), Some((second, more))) = (left.split_first(), right.split_first()) {
        if order(first, second) == Ordering::Greater {
            merged.push(*second);
            right = more;
        } else {
            merged.push(*first);
            left = others;
        }
    }
    merged.extend_from_slice(left);
    merged.extend_from_slice(right);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{generate, threads};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn simple(input: &[u8]) -> Vec<(String, u64)> {
        let mut counts = BTreeMap::new();
        for word in input.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| !word.is_empty()) {
            *counts.entry(String::from_utf8_lossy(word).to_lowercase()).or_insert(0) += 1;
        }
        let mut words: Vec<(String, u64)> = counts.into_iter().collect();
        words.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        words
    }

    fn ours(input: &[u8], team: usize) -> Vec<(String, u64)> {
        let text = |word: &Word<'_>| (String::from_utf8_lossy(word.letters).to_lowercase(), word.count);
        wordcount(input, threads(team)).iter().map(text).collect()
    }

    #[test]
    fn counts_what_a_map_of_strings_counts() {
        // Longer than two map tasks, so that a word is cut between them.
        let input = generate(fill, 11, 2_100_000);
        let expected = simple(&input);
        for team in [1, 2, 3, 7] {
            assert_eq!(ours(&input, team), expected, "{team} threads");
        }
    }

    #[test]
    fn a_word_longer_than_a_map_task_is_one_word() {
        let mut input = vec![b'x'; 3 * GRAIN_BYTES + 5];
        input[7] = b' ';
        assert_eq!(ours(&input, 3), simple(&input));
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_alike(input in proptest::collection::vec(any::<u8>(), 0..400), team in 1..5usize) {
            prop_assert_eq!(ours(&input, team), simple(&input));
        }

        #[test]
        fn any_words_are_counted_alike(input in "([aAbB]{1,3} |[a-zA-Z]{7,20}[ .@`{\\[]){0,60}") {
            prop_assert_eq!(ours(input.as_bytes(), 2), simple(input.as_bytes()));
        }
    }
}
