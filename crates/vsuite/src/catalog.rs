//! The nine programs: their names, how large their inputs are, and how our own are run.

use crate::SuiteError;
use crate::programs::{Fill, compress, dedup, histogram, linear_regression, streamcluster, wordcount, xml_validation};
use std::fmt;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;

/// A program of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The real `make`: compiles a C tree, or the kernel.
    Make,
    /// The real `dbench`: what a file server does to its disk.
    Dbench,
    /// Phoenix' histogram.
    Histogram,
    /// Phoenix' wordcount.
    Wordcount,
    /// Phoenix' linear regression.
    LinearRegression,
    /// SPECjvm2008's compress.
    Compress,
    /// SPECjvm2008's XML validation.
    XmlValidation,
    /// PARSEC's dedup.
    Dedup,
    /// PARSEC's streamcluster.
    Streamcluster,
}

/// No input is smaller: a few documents, a few map tasks.
const LEAST_BYTES: u64 = 256 << 10;

/// How the input of one of our own programs is made.
pub struct Recipe {
    /// Bytes at scale 1.
    pub full_bytes: u64,
    /// Makes the blocks: from the seed and the bytes of the whole.
    pub fill: fn(u64, u64) -> Fill,
    /// Whether it writes a file as large as its input at most.
    pub writes: bool,
}

impl Recipe {
    /// The bytes of the input at a scale.
    pub fn bytes(&self, scale: f64) -> u64 {
        ((self.full_bytes as f64 * scale) as u64).max(LEAST_BYTES)
    }
}

impl Program {
    /// All, in the paper's order.
    pub const ALL: [Self; 9] = [
        Self::Make,
        Self::Dbench,
        Self::Histogram,
        Self::Wordcount,
        Self::LinearRegression,
        Self::Compress,
        Self::XmlValidation,
        Self::Dedup,
        Self::Streamcluster,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Make => "make",
            Self::Dbench => "dbench",
            Self::Histogram => "histogram",
            Self::Wordcount => "wordcount",
            Self::LinearRegression => "linear-regression",
            Self::Compress => "compress",
            Self::XmlValidation => "xml-validation",
            Self::Dedup => "dedup",
            Self::Streamcluster => "streamcluster",
        }
    }

    /// How its input is made; `None` for the external programs. The sizes at scale 1 are the paper's (section 2.3), those
    /// of compress and XML validation, which it does not state, our own.
    pub fn recipe(self) -> Option<Recipe> {
        let recipe = |full_bytes, fill| Some(Recipe { full_bytes, fill, writes: false });
        match self {
            Self::Make | Self::Dbench => None,
            Self::Histogram => recipe(2_000_000_000, histogram::fill),
            Self::Wordcount => recipe(2_000_000_000, wordcount::fill),
            Self::LinearRegression => recipe(2_000_000_000, linear_regression::fill),
            Self::Compress => recipe(500_000_000, compress::fill),
            Self::XmlValidation => recipe(250_000_000, xml_validation::fill),
            Self::Dedup => Some(Recipe { full_bytes: 2_000_000_000, fill: dedup::fill, writes: true }),
            Self::Streamcluster => recipe(256_000_000, streamcluster::fill),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Program {
    type Err = SuiteError;

    fn from_str(name: &str) -> Result<Self, SuiteError> {
        Self::ALL.into_iter().find(|program| program.name() == name).ok_or_else(|| {
            SuiteError::bad_input("--programs", format!("`{name}`"), Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// The body of a measured process: runs one of our own programs over the file `input` and returns the checksum of its
/// result. Only dedup writes `output`.
///
/// # Errors
/// When the program is an external one, the input cannot be read or is not its own, or the output cannot be written.
pub fn run_one(program: Program, threads: NonZeroUsize, input: &Path, output: &Path) -> Result<u64, SuiteError> {
    let input = Mapping::of(input)?;
    let bytes = input.bytes();
    match program {
        Program::Make | Program::Dbench => {
            Err(SuiteError::bad_input("--program", program.name(), "a program that is muster's own"))
        }
        Program::Histogram => histogram::run(bytes, threads),
        Program::Wordcount => Ok(wordcount::run(bytes, threads)),
        Program::LinearRegression => Ok(linear_regression::run(bytes, threads)),
        Program::Compress => compress::run(bytes, threads),
        Program::XmlValidation => Ok(xml_validation::run(bytes, threads)),
        Program::Dedup => dedup::run(bytes, threads, output),
        Program::Streamcluster => streamcluster::run(bytes, threads),
    }
}

/// A file in memory (mmap(2)), page by page as it is touched: the page faults are part of what is measured.
struct Mapping {
    start: *mut std::ffi::c_void,
    length: usize,
}

impl Mapping {
    fn of(path: &Path) -> Result<Self, SuiteError> {
        let failed = || SuiteError::system(format!("cannot map {}", path.display()));
        let file = File::open(path).map_err(failed())?;
        let length = file.metadata().map_err(failed())?.len() as usize;
        let (read, private) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that Rust knows.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, read, private, &file, 0) };
        Ok(Self { start: start.map_err(std::io::Error::from).map_err(failed())?, length })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes and lives as long as `self`. The files are written once, under another
        // name, and never changed after.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is `self`'s own, and no slice of it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert!(unmapped.is_ok(), "the mapping was there");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_found_by_its_name_and_no_other() {
        for program in Program::ALL {
            assert_eq!(program.name().parse::<Program>().unwrap(), program);
        }
        let message = "gmake".parse::<Program>().unwrap_err().to_string();
        assert!(message.contains("`gmake`") && message.contains("make, dbench, histogram"), "{message}");
    }
}
