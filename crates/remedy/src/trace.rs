//! What the controller was told and what it decided, a line of JSON each period; the first line is its configuration.

use muster_model::PeriodFacts;
use muster_policy::consolidate::{Config, Decision};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;

/// One period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What the controller was told.
    pub facts: PeriodFacts,
    /// What it decided.
    pub decision: Decision,
    /// What applying the decision took, in nanoseconds.
    pub applied_in_ns: u64,
}

/// Writes a trace.
#[derive(Debug)]
pub struct Writer(BufWriter<File>);

impl Writer {
    /// Begins a trace file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn create(path: &Path, config: &Config) -> io::Result<Self> {
        let mut writer = Self(BufWriter::new(File::create(path)?));
        writer.line(config)?;
        Ok(writer)
    }

    /// Adds one period.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn step(&mut self, step: &Step) -> io::Result<()> {
        self.line(step)
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, value)?;
        self.0.write_all(b"\n")
    }
}

/// Reads a trace; a torn last line, as a kill leaves it, is passed over.
///
/// # Errors
/// When the input cannot be read, or a line is not of a trace: the error names the line.
pub fn read(input: impl BufRead) -> io::Result<(Config, Vec<Step>)> {
    let mut lines = input.lines();
    let first = lines.next().ok_or_else(|| io::Error::other("line 1: a trace begins with its configuration"))??;
    let config = serde_json::from_str(&first).map_err(|error| io::Error::other(format!("line 1: {error}")))?;
    let rest: Vec<String> = lines.collect::<io::Result<_>>()?;
    let mut steps = Vec::with_capacity(rest.len());
    for (index, line) in rest.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(step) => steps.push(step),
            Err(error) if index + 1 == rest.len() && error.is_eof() => break,
            Err(error) => return Err(io::Error::other(format!("line {}: {error}", index + 2))),
        }
    }
    Ok((config, steps))
}
