//! The archive: the chunks of the stream in order, each as its deflated bytes where it occurs first, later as the number
//! of that occurrence. What is in it does not depend on which thread found a chunk first.
//!
//! A record is a word of 32 bits and what follows it: `length` of a new chunk with the highest bit set, the length of its
//! deflated bytes (32 bits) and these; or the number of a chunk that was new before. All numbers are little-endian.

use super::{Done, Name, Place};
use crate::programs::digest::Digest;
use flate2::{Decompress, FlushDecompress, Status};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use thiserror::Error;

const NEW: u32 = 1 << 31;

/// Puts chunks, which come in any order, in order into a file.
pub struct Writer<W> {
    out: W,
    digest: Digest,
    /// Chunks that came before their turn.
    early: BTreeMap<(u32, u32), (Name, u32, bool)>,
    /// Deflated bytes that were not written yet.
    deflated: HashMap<Name, Box<[u8]>>,
    /// Chunks that were written, and their numbers.
    written: HashMap<Name, u32>,
    /// Whose turn it is: fragment and chunk.
    next: (u32, u32),
}

impl<W: Write> Writer<W> {
    /// A writer of an empty archive.
    pub fn new(out: W) -> Self {
        Self {
            out,
            digest: Digest::new(),
            early: BTreeMap::new(),
            deflated: HashMap::new(),
            written: HashMap::new(),
            next: (0, 0),
        }
    }

    /// Takes a chunk, and writes all whose turn it is now.
    ///
    /// # Errors
    /// When the output does not take them.
    pub fn add(&mut self, done: Done) -> io::Result<()> {
        let Place { fragment, chunk, is_last } = done.place;
        if let Some(bytes) = done.deflated {
            self.deflated.insert(done.name, bytes);
        }
        self.early.insert((fragment, chunk), (done.name, done.length, is_last));
        while let Some((name, length, is_last)) = self.early.get(&self.next).copied() {
            if !self.write(name, length)? {
                break;
            }
            self.early.remove(&self.next);
            self.next = if is_last { (self.next.0 + 1, 0) } else { (self.next.0, self.next.1 + 1) };
        }
        Ok(())
    }

    /// Writes a chunk; `false` when its deflated bytes are still on their way.
    fn write(&mut self, name: Name, length: u32) -> io::Result<bool> {
        if let Some(number) = self.written.get(&name) {
            self.digest.word(u64::from(*number));
            self.out.write_all(&number.to_le_bytes())?;
            return Ok(true);
        }
        let Some(bytes) = self.deflated.remove(&name) else { return Ok(false) };
        self.written.insert(name, self.written.len() as u32);
        self.digest.bytes(&bytes);
        self.out.write_all(&(length | NEW).to_le_bytes())?;
        self.out.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.out.write_all(&bytes)?;
        Ok(true)
    }

    /// Ends the archive and returns its checksum.
    ///
    /// # Errors
    /// When the output does not take the rest.
    pub fn finish(mut self) -> io::Result<u64> {
        assert!(self.early.is_empty() && self.deflated.is_empty(), "every chunk had its turn");
        self.out.flush()?;
        Ok(self.digest.finish())
    }
}

/// The bytes are no archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the archive is damaged at byte {at}")]
pub struct ArchiveError {
    /// Where.
    pub at: usize,
}

/// The stream that an archive was made of.
///
/// # Errors
/// When the bytes are no whole archive.
pub fn restore(archive: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    let (mut stream, mut chunks) = (Vec::new(), Vec::<std::ops::Range<usize>>::new());
    let mut at = 0;
    while at < archive.len() {
        let damaged = ArchiveError { at };
        let word = word(archive, &mut at).ok_or(damaged)?;
        if word & NEW == 0 {
            stream.extend_from_within(chunks.get(word as usize).ok_or(damaged)?.clone());
            continue;
        }
        let length = word as usize & !(NEW as usize);
        let packed = self::word(archive, &mut at).ok_or(damaged)? as usize;
        let bytes = archive.get(at..at + packed).ok_or(damaged)?;
        at += packed;
        chunks.push(stream.len()..stream.len() + length);
        stream.extend_from_slice(&inflate(bytes, length).ok_or(damaged)?);
    }
    Ok(stream)
}

fn word(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let word = bytes.get(*at..*at + 4)?;
    *at += 4;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

fn inflate(bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut chunk = Vec::with_capacity(length.min(super::chunking::LONGEST) + 1);
    let status = Decompress::new(false).decompress_vec(bytes, &mut chunk, FlushDecompress::Finish).ok()?;
    (status == Status::StreamEnd && chunk.len() == length).then_some(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn done(place: (u32, u32, bool), name: u8, deflated: Option<&[u8]>) -> Done {
        let (fragment, chunk, is_last) = place;
        Done {
            place: Place { fragment, chunk, is_last },
            name: [name; 20],
            length: 3,
            deflated: deflated.map(Into::into),
        }
    }

    #[test]
    fn the_first_in_the_stream_is_written_whole_whoever_was_first_at_the_table() {
        let mut orders: Vec<Vec<u8>> = Vec::new();
        // The table saw the second occurrence of 1 first: its bytes come with place (1, 0).
        let items =
            || [done((0, 0, false), 1, None), done((0, 1, true), 2, Some(b"b")), done((1, 0, true), 1, Some(b"a"))];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
            let mut out = Vec::new();
            let mut writer = Writer::new(&mut out);
            let mut items = items().map(Some);
            order.iter().for_each(|index: &usize| writer.add(items[*index].take().unwrap()).unwrap());
            writer.finish().unwrap();
            orders.push(out);
        }
        let expected =
            [&[3, 0, 0, 0x80, 1, 0, 0, 0, b'a'][..], &[3, 0, 0, 0x80, 1, 0, 0, 0, b'b'], &[0, 0, 0, 0]].concat();
        assert!(orders.iter().all(|order| *order == expected), "{orders:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_restored_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = restore(&bytes);
        }
    }
}
