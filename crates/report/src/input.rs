//! Result files as they lie on disk: JSON documents of any command, one or many in a file, and the one-object-a-line
//! output of `muster study --json`.

use muster_model::Profile;
use muster_model::results::{Comparison, Explanation, ResultFile, Series, StudyNumber, StudyResults, SuiteResults};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::path::Path;
use thiserror::Error;

/// Why a file could not be read.
#[derive(Debug, Error)]
pub enum InputError {
    /// The file is not there, or may not be read.
    #[error("{file}: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a result file.
    #[error("{file}, line {line}: found {found}; allowed: {allowed}")]
    Malformed {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong there.
        found: String,
        /// What may stand there.
        allowed: String,
    },
}

/// One result, whichever command wrote it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Document {
    /// What `muster probe` measured.
    Probe(Box<Profile>),
    /// What `muster explain` found.
    Explain(Explanation),
    /// What `muster compare` measured.
    Compare(Comparison),
    /// What `muster study` computed.
    Study(Study),
    /// What `muster vsuite` measured.
    Vsuite(SuiteResults),
}

/// A study, as a whole or collected from single numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Study {
    /// The study's name.
    #[serde(rename = "study")]
    pub name: String,
    /// The seed that reproduces it, where the file has it.
    pub seed: Option<u64>,
    /// The number of cores to which it was grown.
    pub cores: Option<u32>,
    /// One entry per number.
    pub numbers: Vec<StudyNumber>,
    /// Curves.
    pub series: Vec<Series>,
}

impl From<StudyResults> for Study {
    fn from(results: StudyResults) -> Self {
        let StudyResults { study, seed, cores, numbers, series } = results;
        Self { name: study, seed: Some(seed), cores, numbers, series }
    }
}

/// Reads files in order; single numbers of one study in one file become one study.
///
/// # Errors
/// On the first file that cannot be read or is malformed.
pub fn read_all<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<Document>, InputError> {
    let read = |path: &P| {
        let file = path.as_ref().display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| InputError::Unreadable { file: file.clone(), source })?;
        parse(&text, &file)
    };
    let documents: Vec<Vec<Document>> = paths.iter().map(read).collect::<Result<_, _>>()?;
    Ok(documents.into_iter().flatten().collect())
}

/// The documents as one JSON array.
///
/// # Errors
/// Never in practice: documents hold only what JSON can express.
pub fn to_json(documents: &[Document]) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(documents)
}

/// Reads the text of one file; `file` names it in errors.
///
/// # Errors
/// When the text is not JSON, holds no document, or one that no command writes.
pub fn parse(text: &str, file: &str) -> Result<Vec<Document>, InputError> {
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    loop {
        let from = stream.byte_offset();
        let from = from + text[from..].len() - text[from..].trim_start().len();
        let line = 1 + text[..from].matches('\n').count();
        match stream.next() {
            None => break,
            Some(Err(error)) => return Err(malformed(file, error.line().max(1), &error.to_string())),
            Some(Ok(raw)) => {
                let document = document(raw.get())
                    // A line of 0 means that the error is about the document as a whole.
                    .map_err(|error| malformed(file, line + error.line().saturating_sub(1), &error.to_string()))?;
                add(&mut documents, document);
            }
        }
    }
    if documents.is_empty() {
        return Err(malformed(file, 1, "no document"));
    }
    Ok(documents)
}

/// What tells documents apart: a result file's kind, or that of a single number of a study.
#[derive(Deserialize)]
struct Kind {
    kind: String,
}

enum Part {
    Whole(Document),
    Number(StudyNumber),
}

fn document(text: &str) -> Result<Part, serde_json::Error> {
    // Not through `ResultFile` where it can be helped: a tagged enum is buffered, and its errors have lost their line.
    Ok(match serde_json::from_str::<Kind>(text)?.kind.as_str() {
        "explain" => Part::Whole(Document::Explain(serde_json::from_str(text)?)),
        "compare" => Part::Whole(Document::Compare(serde_json::from_str(text)?)),
        "study" => Part::Whole(Document::Study(serde_json::from_str::<StudyResults>(text)?.into())),
        "vsuite" => Part::Whole(Document::Vsuite(serde_json::from_str(text)?)),
        "calibrated" | "predicted" | "contested" | "withheld" => Part::Number(serde_json::from_str(text)?),
        _ => Part::Whole(match serde_json::from_str::<ResultFile>(text)? {
            ResultFile::Probe(profile) => Document::Probe(profile),
            ResultFile::Explain(explanation) => Document::Explain(explanation),
            ResultFile::Compare(comparison) => Document::Compare(comparison),
            ResultFile::Study(results) => Document::Study(results.into()),
            ResultFile::Vsuite(results) => Document::Vsuite(results),
        }),
    })
}

fn add(documents: &mut Vec<Document>, part: Part) {
    match part {
        Part::Whole(document) => documents.push(document),
        Part::Number(number) => {
            let same = documents.iter_mut().find_map(|document| match document {
                Document::Study(study) if study.seed.is_none() && study.name == number.study => Some(study),
                _ => None,
            });
            match same {
                Some(study) => study.numbers.push(number),
                None => documents.push(Document::Study(Study {
                    name: number.study.clone(),
                    seed: None,
                    cores: None,
                    numbers: vec![number],
                    series: Vec::new(),
                })),
            }
        }
    }
}

fn malformed(file: &str, line: usize, problem: &str) -> InputError {
    // The message ends in a position within the document; the error has the one within the file.
    let found = problem.rsplit_once(" at line ").map_or(problem, |(message, _)| message);
    InputError::Malformed {
        file: file.to_owned(),
        line,
        found: found.to_owned(),
        allowed: "JSON as `muster probe`, `explain`, `compare`, `study` or `vsuite` writes it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: &str = r#"{"study":"gleaner","figure":"Table 1","row":"A","column":"Virtual","unit":"us","paper":6.0,"kind":"calibrated","simulated":6.1,"error":0.0165}"#;

    #[test]
    fn numbers_of_one_study_are_collected() {
        let documents = parse(&format!("{NUMBER}\n{NUMBER}\n"), "n").unwrap();
        let [Document::Study(study)] = &documents[..] else { panic!("{documents:?}") };
        assert_eq!((study.numbers.len(), study.seed), (2, None));
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, line, word) in [
            ("", 1, "no document"),
            ("{\n\"kind\": \"compare\",\n\"command\": 7\n}", 3, "expected a string"),
            ("\n\n{\"kind\": \"nothing\"}", 3, "unknown variant"),
            ("{\"kind\": \"study\"", 1, "EOF"),
            ("{}", 1, "missing field `kind`"),
            ("hello", 1, "expected"),
        ] {
            let message = parse(text, "a.json").unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("a.json, line {line}: ")) && message.contains(word),
                "{text}: {message}"
            );
        }
        let broken_second = format!("{NUMBER}\n{{\"kind\":\"predicted\"}}\n");
        assert!(parse(&broken_second, "n").unwrap_err().to_string().starts_with("n, line 2: found missing field"));
    }
}
