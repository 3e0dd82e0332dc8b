//! A study's journal: its finished runs as text, one JSON object a line behind a line that says what they depend on. It is
//! written as runs end, so that who is interrupted loses none of them; whoever reads it may meet a last line that is torn.

use super::summary::RunRecord;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a journal's runs depend on: runs of another header are not taken up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The program, down to its build.
    pub muster: String,
    /// The study.
    pub study: String,
    /// Its seed.
    pub seed: u64,
    /// Its scale.
    pub scale: f64,
    /// The number of cores that it was grown to.
    pub cores: Option<u32>,
}

/// What a text held.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The runs, in the order in which they ended.
    pub runs: Vec<RunRecord>,
    /// So many bytes of the text are whole lines; what follows is torn.
    pub whole_bytes: usize,
}

/// Why a text's runs cannot be taken up.
#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    /// It is no journal.
    NoJournal,
    /// They depend on something else: what, as it was and as it is.
    Other(&'static str, String, String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJournal => write!(f, "it is no journal of a study"),
            Self::Other(what, was, is) => write!(f, "its runs are of another {what} ({was}; this is {is})"),
        }
    }
}

impl Header {
    /// The journal's first line, its end included.
    pub fn line(&self) -> String {
        line(self)
    }

    /// The runs of a journal.
    ///
    /// # Errors
    /// When its first line is not this header.
    pub fn read(&self, text: &str) -> Result<Found, Refused> {
        let mut lines = text.split_inclusive('\n');
        let first = lines.next().unwrap_or_default();
        let header: Self = whole(first).ok_or(Refused::NoJournal)?;
        let differs = [
            ("version", header.muster.clone(), self.muster.clone()),
            ("study", header.study.clone(), self.study.clone()),
            ("seed", header.seed.to_string(), self.seed.to_string()),
            ("scale", header.scale.to_string(), self.scale.to_string()),
            ("number of cores", cores(header.cores), cores(self.cores)),
        ];
        if let Some((what, was, is)) = differs.into_iter().find(|(_, was, is)| was != is) {
            return Err(Refused::Other(what, was, is));
        }
        let mut found = Found { runs: Vec::new(), whole_bytes: first.len() };
        for (text, run) in lines.map_while(|text| Some((text, whole(text)?))) {
            found.whole_bytes += text.len();
            found.runs.push(run);
        }
        Ok(found)
    }
}

/// A run's line, its end included.
pub fn run_line(run: &RunRecord) -> String {
    line(run)
}

fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("records have text keys and finite numbers") + "\n"
}

/// A line that is all there.
fn whole<'t, T: Deserialize<'t>>(line: &'t str) -> Option<T> {
    serde_json::from_str(line.strip_suffix('\n')?).ok()
}

fn cores(cores: Option<u32>) -> String {
    cores.map_or_else(|| "the study's own".to_owned(), |cores| cores.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::summary::RunEnd;
    use super::*;
    use muster_model::study::{Environment, Experiment};

    fn header() -> Header {
        Header { muster: "1".into(), study: "s".into(), seed: 7, scale: 0.1, cores: None }
    }

    fn run(cores: u32) -> RunRecord {
        let experiment = Experiment { scale: 0.1 + 0.2, ..Experiment::new(Environment::Native, cores) };
        RunRecord { experiment, end: RunEnd::GivenUp("no progress".to_owned()) }
    }

    #[test]
    fn whole_lines_are_taken_and_a_torn_one_is_not() {
        let lines = [header().line(), run_line(&run(1)), run_line(&run(2))];
        let text = lines.concat();
        for cut in 0..=text.len() {
            let found = header().read(&text[..cut]);
            if cut < lines[0].len() {
                assert_eq!(found, Err(Refused::NoJournal));
                continue;
            }
            let Found { runs, whole_bytes } = found.unwrap();
            let whole = text[..cut].matches('\n').count();
            assert_eq!(runs, [run(1), run(2)][..whole - 1]);
            assert_eq!(whole_bytes, lines[..whole].concat().len());
        }
    }

    #[test]
    fn runs_of_something_else_are_refused_by_name() {
        for (other, wanted) in [
            (Header { muster: "2".into(), ..header() }, "another version (1; this is 2)"),
            (Header { seed: 8, ..header() }, "another seed (7; this is 8)"),
            (Header { scale: 1.0, ..header() }, "another scale (0.1; this is 1)"),
            (Header { cores: Some(64), ..header() }, "another number of cores (the study's own; this is 64)"),
        ] {
            let refused = other.read(&header().line()).unwrap_err().to_string();
            assert!(refused.ends_with(wanted), "{refused}");
        }
        assert_eq!(header().read("{\"kind\":\"study\"}\n"), Err(Refused::NoJournal));
    }
}
