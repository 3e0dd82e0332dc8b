//! What a restoration did.

use serde::Serialize;
use std::path::PathBuf;

/// One journaled thing and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// The thing, and for a restored one its value.
    pub what: String,
    /// Why it was left alone or could not be restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What the restoration of one journal did. Things that were gone or as before are in none of the lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The run whose changes these were.
    pub run: String,
    /// The journal.
    pub journal: PathBuf,
    /// Put back.
    pub restored: Vec<Item>,
    /// Not put back, because somebody else has changed it since.
    pub left_alone: Vec<Item>,
    /// Not put back, because it could not be; kept in the journal.
    pub failed: Vec<Item>,
}

impl Report {
    pub(crate) fn new(run: &str, journal: PathBuf) -> Self {
        Self { run: run.to_owned(), journal, restored: Vec::new(), left_alone: Vec::new(), failed: Vec::new() }
    }

    /// Whether nothing remains to be undone.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }

    pub(crate) fn add(&mut self, what: String, outcome: Outcome) {
        match outcome {
            Outcome::Nothing => {}
            Outcome::Restored => self.restored.push(Item { what, why: None }),
            Outcome::LeftAlone(why) => self.left_alone.push(Item { what, why: Some(why) }),
            Outcome::Failed(why) => self.failed.push(Item { what, why: Some(why) }),
        }
    }
}

/// What became of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is gone, or as it was before.
    Nothing,
    /// It has been put back; in a dry run, it would be.
    Restored,
    /// Somebody else has changed it since.
    LeftAlone(String),
    /// It should be put back and could not be.
    Failed(String),
}

impl From<std::io::Result<Outcome>> for Outcome {
    /// What has vanished needs no undoing.
    fn from(result: std::io::Result<Outcome>) -> Self {
        result.unwrap_or_else(|error| {
            let vanished = [libc::ENOENT, libc::ESRCH, libc::ENODEV].map(Some).contains(&error.raw_os_error());
            if vanished { Self::Nothing } else { Self::Failed(error.to_string()) }
        })
    }
}
