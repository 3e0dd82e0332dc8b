//! What the controller was told and what it decided, a line of JSON each period; the first line is its configuration.

use muster_model::PeriodFacts;
use muster_policy::consolidate::{Config, Decision, Verdict};
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
    /// What the trial came to that this decision concludes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::{CpuSet, Topology};
    use muster_policy::consolidate::{Arm, Controller, Objective, Permitted, Prices, Scored, Yardstick};

    fn config() -> Config {
        Config {
            allowed: CpuSet::first(2),
            topology: Topology::regular(1, 1, 2, 1).expect("two CPUs are a machine"),
            prices: Prices::NONE,
            objective: Objective::Speed,
            permitted: Permitted { consolidate: true, awake: false, poll: false, colocate: false },
            guest_halt_poll_ns: 0,
        }
    }

    #[test]
    fn a_verdict_is_read_back_and_traces_from_before_there_were_any_still_read() {
        let decision = Controller::new(config()).first();
        let scores = vec![Scored { arm: Arm::Base, score: 1.5 }, Scored { arm: Arm::Narrow { vcpus: 1 }, score: 2.0 }];
        let verdict = Verdict { yardstick: Yardstick::IoBytes, scores, winner: Arm::Narrow { vcpus: 1 } };
        let facts = r#"{"now_ns":1,"period_ns":1,"active":"0-1","cpu_ns":1,"threads":2}"#;
        let facts: PeriodFacts = serde_json::from_str(facts).expect("what is not told is not known");
        let with = Step { facts, decision, applied_in_ns: 0, verdict: Some(verdict) };
        let without = Step { verdict: None, ..with.clone() };
        let lines = [&with, &without].map(|step| serde_json::to_string(step).expect("a step is JSON"));
        assert!(!lines[1].contains("verdict"), "a line of before: {}", lines[1]);
        let text = [serde_json::to_string(&config()).expect("so is a configuration"), lines.join("\n")].join("\n");
        let (_, steps) = read(text.as_bytes()).expect("a whole trace");
        assert_eq!(steps, [with, without]);
    }
}
