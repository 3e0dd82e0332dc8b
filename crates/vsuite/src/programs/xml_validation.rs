//! XML validation, after SPECjvm2008: every thread takes documents, parses them, and validates them against a schema
//! (XSD). Some documents are not valid and some not even well-formed, so that the answer says something.
//!
//! Parser and validator are those of the crate `uppsala`.

use super::digest::Digest;
use super::mapreduce::{Splits, parallel};
use super::text::Vocabulary;
use super::{BLOCK_BYTES, Fill, random};
use rand_core::Rng;
use std::fmt::Write;
use std::num::NonZeroUsize;
use uppsala::XsdValidator;

const SCHEMA: &str = include_str!("order.xsd");
/// A thread takes the documents that begin in so many bytes.
const GRAIN_BYTES: usize = 1 << 16;
/// No document is longer; where less is left of a block, zeros end it.
const LONGEST: usize = 40 << 10;
/// What ends a document: a character that XML does not have.
const END: u8 = 0;

/// What is wrong with a document that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// A quantity of 0, which the schema does not allow.
    Quantity,
    /// The carrier is missing.
    NoCarrier,
    /// An item's end tag is missing: the document is not well-formed.
    Unclosed,
}

/// What was found out about a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Well-formed and valid.
    Valid,
    /// Well-formed, with so many violations of the schema.
    Invalid(usize),
    /// Not well-formed.
    Malformed,
}

/// Fills documents, each ended by a zero byte.
pub fn fill(seed: u64, _total: u64) -> Fill {
    let vocabulary = Vocabulary::new(seed);
    Box::new(move |index, block| {
        let mut at = 0;
        for (document, _) in documents(seed, index, &vocabulary) {
            if at + document.len() >= block.len() {
                break;
            }
            block[at..at + document.len()].copy_from_slice(document.as_bytes());
            at += document.len();
            block[at] = END;
            at += 1;
        }
        block[at..].fill(END);
    })
}

/// The documents of a block, and what is wrong with each.
fn documents(seed: u64, index: u64, vocabulary: &Vocabulary) -> impl Iterator<Item = (String, Flaw)> {
    let mut random = random(seed, index);
    let mut prose = vec![0; BLOCK_BYTES / 4];
    vocabulary.fill(seed, index, &mut prose);
    let mut words = 0;
    let mut room = BLOCK_BYTES;
    std::iter::from_fn(move || {
        let flaw = match random.next_u32() % 16 {
            0 => Flaw::Unclosed,
            1 => Flaw::Quantity,
            2 => Flaw::NoCarrier,
            _ => Flaw::None,
        };
        let mut phrase = |length: usize| {
            words = (words + length) % (prose.len() - 64);
            std::str::from_utf8(&prose[words..words + length]).expect("ASCII").trim()
        };
        let document = order(&mut random, flaw, &mut phrase);
        // A longer one might not fit; the rest of the block stays empty.
        room = room.checked_sub(document.len() + 1).filter(|room| *room >= LONGEST)?;
        Some((document, flaw))
    })
}

/// One order of 8 to 71 items.
fn order<'a>(random: &mut impl Rng, flaw: Flaw, phrase: &mut impl FnMut(usize) -> &'a str) -> String {
    let mut text = String::with_capacity(LONGEST);
    let number = random.next_u64();
    let day = 1 + number % 28;
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<order xmlns=\"urn:muster:order\" number=\"{number}\" \
         placed=\"2011-04-{day:02}T12:{:02}:00Z\">\n",
        number % 60
    );
    address(&mut text, "shipTo", random, phrase);
    if number.is_multiple_of(3) {
        address(&mut text, "billTo", random, phrase);
    }
    if flaw != Flaw::NoCarrier {
        let _ = writeln!(text, "  <carrier>{}</carrier>", ["road", "rail", "air"][number as usize % 3]);
    }
    let items = 8 + (number >> 32) % 64;
    for item in 0..items {
        let draw = random.next_u32();
        let sku: String = (0..3).map(|letter| char::from(b'A' + (draw >> (5 * letter)) as u8 % 26)).collect();
        let is_last = item + 1 == items;
        let quantity = if flaw == Flaw::Quantity && is_last { 0 } else { 1 + draw % 999 };
        let _ = writeln!(
            text,
            "  <item sku=\"{sku}-{:04}\">\n    <title>{}</title>\n    <quantity>{quantity}</quantity>\n    \
             <price>{}.{:02}</price>",
            draw % 10_000,
            phrase(40),
            draw % 5000,
            draw % 100
        );
        let _ = match draw >> 30 {
            0 => writeln!(text, "    <comment>{} &amp; {}</comment>", phrase(50), phrase(30)),
            1 => writeln!(text, "    <shipDate>2011-05-{:02}</shipDate>", 1 + draw % 28),
            _ => Ok(()),
        };
        text.push_str(if flaw == Flaw::Unclosed && is_last { "" } else { "  </item>\n" });
    }
    text.push_str("</order>");
    text
}

fn address<'a>(text: &mut String, tag: &str, random: &mut impl Rng, phrase: &mut impl FnMut(usize) -> &'a str) {
    let zip = random.next_u32() % 100_000;
    let _ = writeln!(
        text,
        "  <{tag} country=\"CN\">\n    <name>{}</name>\n    <street>{}</street>\n    <city>{}</city>\n    \
         <zip>{zip}</zip>\n  </{tag}>",
        phrase(20),
        phrase(30),
        phrase(12)
    );
}

/// The verdict on every document, in their order, on so many threads.
pub fn verdicts(input: &[u8], threads: NonZeroUsize) -> Vec<Verdict> {
    let splits = Splits::new(input, GRAIN_BYTES);
    let mut parts: Vec<(usize, Vec<Verdict>)> = parallel(threads, |_| {
        // A validator each, as SPECjvm2008's threads have.
        let validator = validator();
        let mut parts = Vec::new();
        while let Some(split) = splits.next() {
            let documents = beginning_in(input, split.start, split.start + split.bytes.len());
            parts.push((split.index, documents.map(|document| judge(document, &validator)).collect()));
        }
        parts
    })
    .into_iter()
    .flatten()
    .collect();
    parts.sort_unstable_by_key(|(index, _)| *index);
    parts.into_iter().flat_map(|(_, verdicts)| verdicts).collect()
}

/// The checksum of [`verdicts`].
pub fn run(input: &[u8], threads: NonZeroUsize) -> u64 {
    let mut digest = Digest::new();
    for verdict in verdicts(input, threads) {
        digest.word(match verdict {
            Verdict::Valid => 0,
            Verdict::Invalid(violations) => violations as u64,
            Verdict::Malformed => u64::MAX,
        });
    }
    digest.finish()
}

fn validator() -> XsdValidator {
    let schema = uppsala::parse(SCHEMA).expect("the schema is well-formed");
    XsdValidator::from_schema(&schema).expect("the schema is valid")
}

/// The documents that begin from `start` to before `end`.
fn beginning_in(input: &[u8], start: usize, end: usize) -> impl Iterator<Item = &[u8]> {
    let mut at = start;
    if start > 0 && input[start - 1] != END {
        at += length(&input[start..]);
    }
    std::iter::from_fn(move || {
        at += input[at..end.max(at)].iter().position(|byte| *byte != END)?;
        let document = &input[at..at + length(&input[at..])];
        at += document.len();
        Some(document)
    })
}

/// Bytes up to the end of the document that begins or goes on here.
fn length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == END).unwrap_or(bytes.len())
}

fn judge(document: &[u8], validator: &XsdValidator) -> Verdict {
    let parsed = std::str::from_utf8(document).ok().and_then(|text| uppsala::parse(text).ok());
    match parsed.map(|document| validator.validate(&document).len()) {
        None => Verdict::Malformed,
        Some(0) => Verdict::Valid,
        Some(violations) => Verdict::Invalid(violations),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{generate, threads};

    #[test]
    fn verdicts_are_those_the_documents_were_made_for() {
        let input = generate(fill, 4, 2 * BLOCK_BYTES);
        let vocabulary = Vocabulary::new(4);
        let made: Vec<Flaw> = (0..2).flat_map(|block| documents(4, block, &vocabulary)).map(|(_, flaw)| flaw).collect();
        for flaw in [Flaw::None, Flaw::Quantity, Flaw::NoCarrier, Flaw::Unclosed] {
            assert!(made.contains(&flaw), "{flaw:?} occurs");
        }
        for team in [1, 2, 3, 7] {
            let found = verdicts(&input, threads(team));
            assert_eq!(found.len(), made.len(), "{team} threads");
            for (found, made) in found.iter().zip(&made) {
                let fits = match made {
                    Flaw::None => *found == Verdict::Valid,
                    Flaw::Unclosed => *found == Verdict::Malformed,
                    Flaw::Quantity | Flaw::NoCarrier => matches!(found, Verdict::Invalid(_)),
                };
                assert!(fits, "{made:?} was found {found:?}");
            }
        }
    }

    #[test]
    fn documents_fit_and_are_cut_nowhere() {
        let input = generate(fill, 6, BLOCK_BYTES);
        let documents: Vec<&[u8]> = beginning_in(&input, 0, input.len()).collect();
        assert!(documents.len() > 50 && documents.iter().all(|document| document.ends_with(b"</order>")));
        assert!(documents.iter().all(|document| document.len() <= LONGEST));
    }
}
