//! Random histories of two runs and of other people on the same files, cut off at a random byte of a journal, against
//! what must be there at the end.

mod common;

use common::{orphan, private_directory};
use muster_undo::{Directory, Journal, recover};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

const FILES: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    /// A run writes a file by its journal.
    Write { run: usize, file: usize, value: u8 },
    /// Somebody else writes it.
    Foreign { file: usize, value: u8 },
    /// A run undoes one of its entries.
    Undo { run: usize, file: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2_usize, 0..FILES, 0..50_u8).prop_map(|(run, file, value)| Step::Write { run, file, value }),
        1 => (0..FILES, 100..150_u8).prop_map(|(file, value)| Step::Foreign { file, value }),
        1 => (0..2_usize, 0..FILES).prop_map(|(run, file)| Step::Undo { run, file }),
    ]
}

/// What the file must read once everything is undone, and who holds it.
struct Expected {
    holder: Option<usize>,
    at_the_end: String,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_as_before_or_as_somebody_else_left_it(
        steps in proptest::collection::vec(step(), 0..40),
        torn in proptest::option::of("\\{\"id\":[0-9]{1,3},\"kind\":\"[a-z]{0,8}"),
    ) {
        let temp = private_directory();
        let journals = temp.path().join("journals");
        let runs: Vec<Journal> =
            ["a", "b"].map(|run| Journal::create(Directory::at(&journals).unwrap(), run).unwrap()).into();
        let paths: Vec<PathBuf> = (0..FILES).map(|file| temp.path().join(file.to_string())).collect();
        let read = |file: usize| fs::read_to_string(&paths[file]).unwrap().trim().to_owned();
        let mut expected = Vec::new();
        for (file, path) in paths.iter().enumerate() {
            // Values of ours, of others and original ones are disjoint: 000..050, 100..150, 200... They are equally long,
            // because kernel files are written without being cut.
            fs::write(path, format!("{}\n", 200 + file)).unwrap();
            expected.push(Expected { holder: None, at_the_end: (200 + file).to_string() });
        }
        let mut entries = BTreeMap::new();
        for step in steps {
            match step {
                Step::Write { run, file, value } => {
                    let held_by_other = expected[file].holder.is_some_and(|holder| holder != run);
                    let outcome = runs[run].write_file(&paths[file], &format!("{value:03}"));
                    prop_assert_eq!(outcome.is_err(), held_by_other);
                    if let Ok(id) = outcome {
                        expected[file].holder = Some(run);
                        entries.insert((run, file), id);
                    }
                }
                Step::Foreign { file, value } => {
                    fs::write(&paths[file], value.to_string()).unwrap();
                    expected[file].at_the_end = value.to_string();
                }
                Step::Undo { run, file } => {
                    if let Some(id) = entries.remove(&(run, file)) {
                        prop_assert!(runs[run].undo(id).unwrap().is_complete());
                        prop_assert_eq!(read(file), expected[file].at_the_end.clone());
                        expected[file].holder = None;
                    }
                }
            }
        }
        for run in &runs {
            if let Some(torn) = &torn {
                let text = fs::read_to_string(run.path()).unwrap();
                fs::write(run.path(), text + torn).unwrap();
            }
            orphan(run.path());
        }
        let reports = recover(&Directory::at(&journals).unwrap()).unwrap();
        prop_assert!(reports.iter().all(|report| report.is_complete()), "{:?}", reports);
        for (file, expected) in expected.iter().enumerate() {
            prop_assert_eq!(read(file), expected.at_the_end.clone(), "file {}", file);
        }
        prop_assert!(fs::read_dir(&journals).unwrap().next().is_none());
    }
}
