//! Dedup, after PARSEC (Bienia et al., PACT 2008): compresses a stream by leaving out what was there before. A pipeline of
//! five stages, connected by queues: *fragment* cuts the stream coarsely (one thread), *refine* cuts the fragments where
//! their content says so, *deduplicate* looks each chunk's SHA-1 up in a table that all share, *compress* deflates
//! chunks that are new, *write* puts everything in order into a file (one thread). The three stages in the middle have
//! as many threads as cores were asked for, each: most wait for a queue most of the time.

mod archive;
mod chunking;
mod queue;

pub use archive::restore;

use super::digest::splitmix;
use super::text::Vocabulary;
use super::{Fill, random};
use crate::SuiteError;
use archive::Writer;
use flate2::{Compress, Compression, FlushCompress, Status};
use queue::Queue;
use rand_core::Rng;
use sha1::{Digest as _, Sha1};
use std::collections::HashSet;
use std::fs::File;
use std::io::BufWriter;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

/// So many threads of a stage share a queue (PARSEC: MAX_THREADS_PER_QUEUE).
const THREADS_PER_QUEUE: usize = 4;
/// Items that are taken and given at a time (PARSEC: ITEM_PER_FETCH).
const BATCH: usize = 20;
/// Items that a queue holds; whoever adds to a full one waits.
const QUEUE_ITEMS: usize = 1024;
/// Parts of the table of known chunks, each with a lock of its own.
const SHARDS: usize = 1024;

/// A chunk's SHA-1.
type Name = [u8; 20];

/// Fills segments of text and of noise; every other one is from a pool and occurs again and again, as in the copies of
/// files that a backup holds.
pub fn fill(seed: u64, total: u64) -> Fill {
    const SHORTEST: u64 = 8 << 10;
    const LONGEST: u64 = 56 << 10;
    let vocabulary = Vocabulary::new(seed);
    let pool = (total / (8 * LONGEST)).max(4);
    Box::new(move |index, block| {
        let mut random = random(seed, index);
        let mut rest = block;
        while !rest.is_empty() {
            let draw = random.next_u64();
            let id = if draw.is_multiple_of(2) { (draw >> 1) % pool } else { draw };
            let length = (SHORTEST + splitmix(id) % (LONGEST - SHORTEST)) as usize;
            let (segment, behind) = rest.split_at_mut(length.min(rest.len()));
            fill_segment(seed, id, &vocabulary, segment);
            rest = behind;
        }
    })
}

/// The segment `id`, which may be cut: two thirds of them are text, the others cannot be compressed.
fn fill_segment(seed: u64, id: u64, vocabulary: &Vocabulary, segment: &mut [u8]) {
    if splitmix(id).is_multiple_of(3) {
        random(seed, id).fill_bytes(segment);
    } else {
        vocabulary.fill(seed, id, segment);
    }
}

/// Compresses `input` into the file `output`, with so many threads in each stage that has more than one; returns the
/// archive's checksum.
///
/// # Errors
/// When the output cannot be written.
pub fn run(input: &[u8], threads: NonZeroUsize, output: &Path) -> Result<u64, SuiteError> {
    let failed = |error| SuiteError::system(format!("cannot write {}", output.display()))(error);
    let file = File::create(output).map_err(failed)?;
    pipeline(input, threads, BufWriter::with_capacity(1 << 20, file)).map_err(failed)
}

/// A piece of the stream on its way: which fragment, which chunk in it.
struct Piece<'a> {
    place: Place,
    bytes: &'a [u8],
}

/// Where a chunk belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    fragment: u32,
    chunk: u32,
    /// Whether the fragment ends with it.
    is_last: bool,
}

/// A chunk that knows its name.
struct Named<'a> {
    piece: Piece<'a>,
    name: Name,
}

/// A chunk that is ready to be written.
struct Done {
    place: Place,
    name: Name,
    /// Its length in the stream.
    length: u32,
    /// The deflated bytes, when it was the first of its name that got to the table.
    deflated: Option<Box<[u8]>>,
}

/// The queues between stages. A stage's threads are in groups, and each group has its queue.
struct Queues<'a> {
    fragments: Vec<Queue<Piece<'a>>>,
    chunks: Vec<Queue<Piece<'a>>>,
    fresh: Vec<Queue<Named<'a>>>,
    done: Queue<Done>,
}

fn pipeline(input: &[u8], threads: NonZeroUsize, output: impl std::io::Write + Send) -> std::io::Result<u64> {
    let team = threads.get();
    let groups = team.div_ceil(THREADS_PER_QUEUE);
    let members = |group: usize| THREADS_PER_QUEUE.min(team - group * THREADS_PER_QUEUE);
    let queues = Queues {
        fragments: (0..groups).map(|_| Queue::new(QUEUE_ITEMS, 1)).collect(),
        chunks: (0..groups).map(|group| Queue::new(QUEUE_ITEMS, members(group))).collect(),
        fresh: (0..groups).map(|group| Queue::new(QUEUE_ITEMS, members(group))).collect(),
        // Both who deduplicates and who compresses adds to it.
        done: Queue::new(QUEUE_ITEMS, 2 * team),
    };
    let known: Vec<Mutex<HashSet<Name>>> = (0..SHARDS).map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        scope.spawn(|| fragment(input, &queues.fragments));
        for id in 0..team {
            let group = id / THREADS_PER_QUEUE;
            let (queues, known) = (&queues, &known);
            scope.spawn(move || refine(&queues.fragments[group], &queues.chunks[group]));
            scope.spawn(move || deduplicate(&queues.chunks[group], known, &queues.fresh[group], &queues.done));
            scope.spawn(move || compress(&queues.fresh[group], &queues.done));
        }
        let writer = scope.spawn(|| write(&queues.done, output));
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn fragment<'a>(input: &'a [u8], out: &[Queue<Piece<'a>>]) {
    for (number, bytes) in chunking::coarse(input).enumerate() {
        let place = Place { fragment: number as u32, chunk: 0, is_last: false };
        out[number % out.len()].push_all(&mut vec![Piece { place, bytes }]);
    }
    out.iter().for_each(Queue::leave);
}

fn refine<'a>(from: &Queue<Piece<'a>>, out: &Queue<Piece<'a>>) {
    let (mut fragments, mut chunks) = (Vec::new(), Vec::with_capacity(BATCH));
    // Fragments are large: one at a time, so that the others of the group get theirs.
    while from.pop(&mut fragments, 1) {
        for Piece { place, bytes } in fragments.drain(..) {
            let mut pieces = chunking::fine(bytes).enumerate().peekable();
            while let Some((number, bytes)) = pieces.next() {
                let place = Place { chunk: number as u32, is_last: pieces.peek().is_none(), ..place };
                chunks.push(Piece { place, bytes });
                if chunks.len() == BATCH {
                    out.push_all(&mut chunks);
                }
            }
        }
        out.push_all(&mut chunks);
    }
    out.leave();
}

fn deduplicate<'a>(
    from: &Queue<Piece<'a>>,
    known: &[Mutex<HashSet<Name>>],
    fresh: &Queue<Named<'a>>,
    done: &Queue<Done>,
) {
    let (mut pieces, mut new, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    while from.pop(&mut pieces, BATCH) {
        for piece in pieces.drain(..) {
            let name: Name = Sha1::digest(piece.bytes).into();
            let shard = usize::from(u16::from_le_bytes([name[0], name[1]])) % known.len();
            if known[shard].lock().expect("nobody panics with it").insert(name) {
                new.push(Named { piece, name });
            } else {
                let length = piece.bytes.len() as u32;
                seen.push(Done { place: piece.place, name, length, deflated: None });
            }
        }
        fresh.push_all(&mut new);
        done.push_all(&mut seen);
    }
    fresh.leave();
    done.leave();
}

fn compress(from: &Queue<Named<'_>>, out: &Queue<Done>) {
    let mut deflater = Compress::new(Compression::default(), false);
    let (mut chunks, mut ready, mut buffer) = (Vec::new(), Vec::with_capacity(BATCH), Vec::new());
    while from.pop(&mut chunks, BATCH) {
        for Named { piece, name } in chunks.drain(..) {
            let deflated = Some(deflate(&mut deflater, piece.bytes, &mut buffer).into());
            ready.push(Done { place: piece.place, name, length: piece.bytes.len() as u32, deflated });
        }
        out.push_all(&mut ready);
    }
    out.leave();
}

/// The deflated bytes (RFC 1951), in a buffer that is used again.
fn deflate<'b>(deflater: &mut Compress, bytes: &[u8], buffer: &'b mut Vec<u8>) -> &'b [u8] {
    deflater.reset();
    buffer.clear();
    // What cannot be compressed is stored: 5 bytes for each 16 KiB and a few at the end.
    buffer.reserve(bytes.len() + bytes.len() / 1024 + 64);
    let status = deflater.compress_vec(bytes, buffer, FlushCompress::Finish);
    assert!(matches!(status, Ok(Status::StreamEnd)), "the buffer takes any chunk: {status:?}");
    buffer
}

fn write(from: &Queue<Done>, output: impl std::io::Write) -> std::io::Result<u64> {
    let mut writer = Writer::new(output);
    let (mut items, mut outcome) = (Vec::new(), Ok(()));
    // Goes on taking after an error: whoever adds would otherwise wait for ever.
    while from.pop(&mut items, BATCH) {
        for item in items.drain(..) {
            outcome = outcome.and_then(|()| writer.add(item));
        }
    }
    outcome?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{BLOCK_BYTES, generate, threads};
    use proptest::prelude::*;

    fn archive(input: &[u8], team: usize) -> (Vec<u8>, u64) {
        let mut bytes = Vec::new();
        let sum = pipeline(input, threads(team), &mut bytes).expect("memory takes everything");
        (bytes, sum)
    }

    #[test]
    fn the_archive_restores_the_input_and_is_the_same_on_any_number_of_threads() {
        let input = generate(fill, 8, 6 * BLOCK_BYTES + 12_345);
        let (one, sum) = archive(&input, 1);
        assert_eq!(restore(&one).unwrap(), input);
        for team in [2, 3, 7] {
            assert_eq!(archive(&input, team), (one.clone(), sum), "{team} threads");
        }
    }

    #[test]
    fn what_was_there_before_is_left_out() {
        let input = generate(fill, 8, 4 * BLOCK_BYTES);
        let (once, _) = archive(&input, 2);
        let (twice, _) = archive(&input.repeat(2), 2);
        assert!(once.len() * 10 < input.len() * 8, "{} of {}", once.len(), input.len());
        assert!(twice.len() * 10 < once.len() * 11, "{} and {}", once.len(), twice.len());
    }

    #[test]
    fn an_output_that_cannot_be_written_is_an_error() {
        struct Full;
        impl std::io::Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let input = generate(fill, 8, 3 * BLOCK_BYTES);
        assert!(pipeline(&input, threads(2), Full).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_input_comes_back(parts in proptest::collection::vec((any::<u8>(), 0..20_000usize), 0..12), team in 1..4usize) {
            let input: Vec<u8> = parts.iter().flat_map(|(byte, length)| std::iter::repeat_n(*byte, *length)).collect();
            prop_assert_eq!(restore(&archive(&input, team).0).unwrap(), input);
        }
    }
}
