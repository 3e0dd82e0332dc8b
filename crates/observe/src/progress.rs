//! The program's own count of its work, from wherever its user says it is kept. Reads files, makes one in
//! memory, and sets probes that count.

use crate::calls::Calls;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The environment variable that names the counter file to a program that is started with one.
pub const VARIABLE: &str = "MUSTER_PROGRESS";

/// Size of a counter file made by muster: one word for each of 512 threads, or a cache line for each of 64.
pub const COUNTER_BYTES: usize = 4096;

/// Larger counter files are refused: they are read every few milliseconds.
const LARGEST_BYTES: u64 = 64 << 10;

/// A number must stand within so many bytes.
const TEXT_BYTES: u64 = 4096;

/// Where a count of work is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `counter`: in a counter file that is made for the program, whose path [`VARIABLE`] tells it.
    OwnCounter,
    /// `counter:PATH`: in a counter file: 64-bit words in the machine's byte order, whose sum is the count.
    Counter(PathBuf),
    /// `file:PATH`: the first number in a text.
    Text(PathBuf),
    /// `calls:PROGRAM:FUNCTION`: how often the processes of a program call a function.
    Calls {
        /// The program's file.
        program: PathBuf,
        /// The function's name in its symbol tables.
        function: String,
    },
    /// `usdt:PROGRAM:PROVIDER:NAME`: how often they pass a static probe.
    StaticProbe {
        /// The program's file.
        program: PathBuf,
        /// Who provides the probe.
        provider: String,
        /// Its name.
        name: String,
    },
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "counter" => Ok(Self::OwnCounter),
            Some(("counter", path)) if !path.is_empty() => Ok(Self::Counter(path.into())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::Text(path.into())),
            Some(("calls", place)) => calls(place).ok_or_else(unknown),
            Some(("usdt", place)) => static_probe(place).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}

fn unknown() -> String {
    "allowed: counter, counter:PATH, file:PATH, calls:PROGRAM:FUNCTION, usdt:PROGRAM:PROVIDER:NAME".to_owned()
}

fn calls(place: &str) -> Option<Source> {
    let (program, function) =
        place.rsplit_once(':').filter(|(program, function)| !program.is_empty() && !function.is_empty())?;
    Some(Source::Calls { program: program.into(), function: function.to_owned() })
}

fn static_probe(place: &str) -> Option<Source> {
    let (place, name) = place.rsplit_once(':')?;
    let (program, provider) = place.rsplit_once(':')?;
    let is_whole = [program, provider, name].iter().all(|part| !part.is_empty());
    let (provider, name) = (provider.to_owned(), name.to_owned());
    is_whole.then(|| Source::StaticProbe { program: program.into(), provider, name })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnCounter => write!(f, "counter"),
            Self::Counter(path) => write!(f, "counter:{}", path.display()),
            Self::Text(path) => write!(f, "file:{}", path.display()),
            Self::Calls { program, function } => write!(f, "calls:{}:{function}", program.display()),
            Self::StaticProbe { program, provider, name } => {
                write!(f, "usdt:{}:{provider}:{name}", program.display())
            }
        }
    }
}

/// An open [`Source`].
#[derive(Debug)]
enum Place {
    /// With a buffer of its size.
    Counter(File, Vec<u8>),
    Text(PathBuf),
    Calls(Calls),
}

/// A count of work under watch.
#[derive(Debug)]
pub struct Progress {
    place: Place,
    /// The count from which on work is counted.
    first: Option<f64>,
    /// The count as last read.
    last: Option<f64>,
    /// A bit for each of the last readings, set where the count had risen.
    rises: u16,
}

/// A count that rose in fewer of the last 16 readings is too coarse for what lies between two of them.
const ENOUGH_RISES: u32 = 8;

impl Progress {
    /// Opens a count.
    ///
    /// # Errors
    /// In words: what is wrong with its file. A text that does not exist yet is fine; it may be made later.
    pub fn open(source: &Source) -> Result<Self, String> {
        let (place, first) = match source {
            Source::OwnCounter => {
                let file = make_counter().map_err(|error| format!("cannot make a counter: {error}"))?;
                (Place::Counter(file, vec![0; COUNTER_BYTES]), Some(0.0))
            }
            Source::Counter(path) => {
                let (file, length) = open_counter(path)?;
                (Place::Counter(file, vec![0; length]), None)
            }
            Source::Text(path) => (Place::Text(check_text(path)?), None),
            Source::Calls { program, function } => (Place::Calls(Calls::of_function(program, function)?), Some(0.0)),
            Source::StaticProbe { program, provider, name } => {
                (Place::Calls(Calls::of_static_probe(program, provider, name)?), Some(0.0))
            }
        };
        Ok(Self { place, first, last: None, rises: u16::MAX })
    }

    /// What tells a program, started by this process, where to count; `None` unless the counter was made for it.
    ///
    /// A descriptor's path under /proc is open to all processes of the same user, and gone with this process, however
    /// that ends.
    pub fn path_for_program(&self, source: &Source) -> Option<PathBuf> {
        match (&self.place, source) {
            (Place::Counter(file, _), Source::OwnCounter) => {
                Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into())
            }
            _ => None,
        }
    }

    /// The units of work done so far, as far as they tell something. `None` before the count has risen for the first
    /// time, because a program that does not count yet does not stand still; when there is nothing to be read, as while
    /// a text is being rewritten; and while the count stands still at most readings, because it is too coarse for them. A
    /// count that falls begins anew.
    pub fn read(&mut self) -> Option<f64> {
        let before = self.last;
        let count = self.count();
        if count.is_some() {
            self.rises = self.rises << 1 | u16::from(self.last > before);
        }
        count.filter(|_| self.rises.count_ones() >= ENOUGH_RISES)
    }

    /// The units of work done so far; `None` before the first rise and when there is nothing to be read.
    fn count(&mut self) -> Option<f64> {
        let now = match &mut self.place {
            Place::Counter(file, buffer) => sum(file, buffer),
            Place::Text(path) => text(path).ok().and_then(|text| first_number(&text)),
            Place::Calls(calls) => calls.read().map(|count| count as f64),
        }?;
        let first = *self.first.filter(|&first| first <= now).get_or_insert(now);
        (self.first, self.last) = (Some(first), Some(now));
        (now > first).then_some(now - first)
    }

    /// The units of work done between the first reading and now; `None` when nothing could ever be read.
    pub fn total(&mut self) -> Option<f64> {
        let _the_last_reading_stands = self.count();
        Some(self.last? - self.first?)
    }
}

fn make_counter() -> io::Result<File> {
    let file = memfd_create("muster-progress", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, COUNTER_BYTES as u64)?;
    Ok(file.into())
}

/// The file and its length.
fn open_counter(path: &Path) -> Result<(File, usize), String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let length = metadata.len();
    if !metadata.is_file() {
        return Err("it is no file".to_owned());
    }
    if length == 0 || length % 8 != 0 || length > LARGEST_BYTES {
        return Err(format!("it has {length} bytes; allowed: 8 to {LARGEST_BYTES} in words of 8"));
    }
    Ok((File::open(path).map_err(|error| error.to_string())?, length as usize))
}

/// The sum of the words of a counter file. The kernel copies aligned words whole.
fn sum(file: &File, buffer: &mut [u8]) -> Option<f64> {
    let length = file.read_at(buffer, 0).ok()?;
    let words = buffer[..length].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    Some(words.fold(0, u64::wrapping_add) as f64)
}

/// The absolute path of a text with a number, or of one that is not there yet.
fn check_text(path: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
        Err(error) => return Err(error.to_string()),
        Ok(metadata) if !metadata.is_file() => return Err("it is no file".to_owned()),
        Ok(_) => {}
    }
    let text = text(&path).map_err(|error| error.to_string())?;
    first_number(&text).ok_or_else(|| format!("there is no number in its first {TEXT_BYTES} bytes"))?;
    Ok(path)
}

/// Opened anew each time, so that whoever keeps it may replace it; without waiting, should it be a FIFO by now.
fn text(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    file.take(TEXT_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The first run of decimal digits, with its fraction.
fn first_number(text: &str) -> Option<f64> {
    let rest = &text[text.find(|c: char| c.is_ascii_digit())?..];
    let whole = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let fraction = rest[whole..]
        .strip_prefix('.')
        .map_or(0, |digits| 1 + digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()));
    rest[..whole + fraction].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("muster-progress-{}-{name}", std::process::id()))
    }

    #[test]
    fn sources_are_read_or_refused() {
        assert_eq!("counter".parse(), Ok(Source::OwnCounter));
        assert_eq!("counter:/a:b".parse(), Ok(Source::Counter("/a:b".into())));
        assert_eq!("file:x".parse(), Ok(Source::Text("x".into())));
        let (program, function) = ("/bin/a:b".into(), "f".to_owned());
        assert_eq!("calls:/bin/a:b:f".parse(), Ok(Source::Calls { program, function }));
        let probe = "usdt:/bin/x:y:z".parse::<Source>().unwrap();
        assert!(matches!(&probe, Source::StaticProbe { name, .. } if name == "z"));
        assert_eq!(probe.to_string(), "usdt:/bin/x:y:z");
        for bad in [
            "",
            "calls:f",
            "calls::f",
            "calls:p:",
            "usdt:p:n",
            "usdt:p::n",
            "counter:",
            "file:",
            "file",
            "other:x",
            "/path",
        ] {
            assert!(bad.parse::<Source>().unwrap_err().contains("counter:PATH"), "{bad}");
        }
    }

    #[test]
    fn a_counter_is_the_sum_of_its_words() {
        let mut progress = Progress::open(&Source::OwnCounter).unwrap();
        let path = progress.path_for_program(&Source::OwnCounter).unwrap();
        let program = File::options().write(true).open(path).unwrap();
        assert_eq!(progress.read(), None, "it does not count yet");
        assert_eq!(progress.total(), Some(0.0));
        program.write_all_at(&7_u64.to_ne_bytes(), 0).unwrap();
        program.write_all_at(&5_u64.to_ne_bytes(), COUNTER_BYTES as u64 - 8).unwrap();
        assert_eq!(progress.read(), Some(12.0));
        assert_eq!(progress.total(), Some(12.0));
    }

    /// Judged by a count that moved 15 times a second, a program was held in the slower of two settings.
    #[test]
    fn a_count_that_seldom_moves_tells_nothing() {
        let mut progress = Progress::open(&Source::OwnCounter).unwrap();
        let path = progress.path_for_program(&Source::OwnCounter).unwrap();
        let program = File::options().write(true).open(path).unwrap();
        let mut told = |moves: fn(u64) -> u64, readings: std::ops::Range<u64>| {
            let one = |reading: u64| {
                program.write_all_at(&moves(reading).to_ne_bytes(), 0).unwrap();
                progress.read().is_some()
            };
            readings.map(one).filter(|&is_told| is_told).count()
        };
        assert_eq!(told(|reading| reading, 1..101), 100, "it moves always");
        assert_eq!(told(|reading| 100 + reading / 2, 101..201), 100, "every second time");
        assert!(told(|reading| 200 + reading / 20, 300..316) < 16, "seldom");
        assert_eq!(told(|reading| 200 + reading / 20, 316..400), 0, "seldom, which is known by now");
        assert!(told(|reading| 1000 + reading, 1..17) > 0, "always again");
        assert_eq!(told(|reading| 1000 + reading, 17..101), 84, "always, which is known by now");
    }

    #[test]
    fn a_text_counts_from_where_it_was_found() {
        let path = named("text");
        let mut progress = Progress::open(&Source::Text(path.clone())).unwrap();
        assert_eq!((progress.read(), progress.total()), (None, None), "it is not there yet");
        for (text, read) in [
            ("done: 100\n", None),
            ("done: 100\n", None),
            ("done: 130.5 of 1000\n", Some(30.5)),
            ("", None),
            ("done: 160\n", Some(60.0)),
            ("done: 20\n", None),
            ("done: 25\n", Some(5.0)),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(progress.read(), read, "{text:?}");
        }
        assert_eq!(progress.total(), Some(5.0));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn files_that_cannot_be_counts_are_refused() {
        let path = named("bad");
        std::fs::write(&path, "none").unwrap();
        let refusal = |source: Source| Progress::open(&source).unwrap_err();
        assert!(refusal(Source::Text(path.clone())).contains("no number"));
        assert!(refusal(Source::Counter(path.clone())).contains("4 bytes; allowed: 8 to 65536"));
        assert!(refusal(Source::Counter("/dev/zero".into())).contains("no file"));
        assert!(refusal(Source::Counter("/no/such/file".into())).contains("No such file"));
        assert!(refusal(Source::Text("/".into())).contains("no file"));
        assert!(refusal(Source::Text("/dev/zero".into())).contains("no file"));
        std::fs::remove_file(path).unwrap();
    }

    proptest! {
        #[test]
        fn any_text_has_a_number_or_none(before in "[^0-9]{0,9}", number in 0_u32..u32::MAX, after in "[^0-9]{0,9}") {
            let text = format!("{before}{number}{after}");
            prop_assert_eq!(first_number(&text), Some(f64::from(number)));
            prop_assert_eq!(first_number(&before), None);
        }
    }
}
