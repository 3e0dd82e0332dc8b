//! The built-in study: it is well formed, repeats itself, and its ratios do not depend on its length.

mod common;

use muster_model::results::{StudyKind, StudyNumber};
use muster_model::study::{Environment, Experiment};
use muster_sim::study::{Options, Progress};
use muster_sim::{Simulation, Study};
use std::sync::Mutex;

const SHORT: Options = Options { seed: 3, jobs: 2, scale: 0.05 };

fn simulated(number: &StudyNumber) -> f64 {
    number.simulated.expect("none of these runs gets nowhere")
}

#[test]
fn names_every_result_of_the_issue() {
    let study = Study::builtin("gleaner").unwrap();
    let figures: Vec<&str> = study.figures.iter().map(|figure| figure.figure.as_str()).collect();
    assert_eq!(figures, ["Table 1", "Figure 1", "Figure 2", "Figure 4", "Figure 5"]);
    let numbers = || study.figures.iter().flat_map(|figure| figure.numbers.iter().map(move |n| (&figure.figure, n)));
    let calibrated = numbers().filter(|(_, n)| n.kind == StudyKind::Calibrated);
    assert!(calibrated.map(|(figure, _)| figure).all(|figure| figure == "Table 1" || figure == "Figure 2"));
    assert!(numbers().all(|(_, n)| n.kind != StudyKind::Withheld || n.paper.is_none()));
    assert_eq!(numbers().filter(|(_, n)| n.kind == StudyKind::Withheld).count(), 1);
}

#[test]
fn the_same_seed_gives_the_same_numbers_on_any_number_of_jobs() {
    let mut study = Study::builtin("gleaner").unwrap();
    study.only("figure-2").unwrap();
    let two = study.run(&SHORT).unwrap().results;
    let one = study.run(&Options { jobs: 1, ..SHORT }).unwrap().results;
    assert_eq!(two, one);
    assert_eq!(two.numbers.len(), 6);
}

#[test]
fn unknown_studies_and_figures_are_refused() {
    assert!(Study::builtin("cerberus").unwrap_err().to_string().contains("gleaner"));
    let error = Study::builtin("gleaner").unwrap().only("Figure 9").unwrap_err().to_string();
    assert!(error.contains("Figure 4"), "{error}");
}

#[test]
fn table_1_is_within_a_tenth_of_the_paper() {
    let mut study = Study::builtin("gleaner").unwrap();
    study.only("Table 1").unwrap();
    for number in study.run(&SHORT).unwrap().results.numbers {
        let error = number.error.expect("every number of Table 1 is judged");
        assert!(error < 0.1, "{} {}: {} us", number.row, number.column, simulated(&number));
    }
}

/// Ratios of times (DESIGN section 4); takes the whole study twice. `cargo test --release -- --ignored` runs it.
#[test]
#[ignore = "a campaign of several ten seconds in a release build"]
fn doubling_the_scale_moves_no_ratio_by_more_than_2_percent() {
    let study = Study::builtin("gleaner").unwrap();
    let at = |scale| study.run(&Options { seed: 1, jobs: 2, scale }).unwrap().results.numbers;
    let factor = |value: f64, unit: &str| if unit == "%" { 1.0 + value / 100.0 } else { value };
    for (once, twice) in at(1.0).into_iter().zip(at(2.0)) {
        if matches!(once.unit.as_str(), "x" | "%") && !once.column.contains("reduction") && once.figure != "Figure 5" {
            let [before, after] = [&once, &twice].map(simulated);
            let change = (factor(after, &twice.unit) / factor(before, &once.unit)).ln().abs();
            assert!(change < 0.02, "{} {} {}: {before} and {after}", once.figure, once.row, once.column);
        }
    }
}

/// Calls for files need a kernel whose locks for them are known.
#[test]
fn files_are_refused_under_linux_3_2() {
    let files = r#"{"name":"w","files":{"a":{}},"groups":[{"name":"g","count":1,"phases":[{"file":{"of":"a","calls":["stat"]}}]}]}"#;
    let experiment = Experiment::new(Environment::Native, 2);
    let error = Simulation::new(&experiment, &common::r720(), &common::workload(files), None).unwrap_err().to_string();
    assert!(error.starts_with("groups.g.phases[0].file: found `file` under a kernel"), "{error}");
    assert!(error.contains("linux-2.6.31") && error.contains("pk"), "{error}");
}

/// Every kind of measure of the iXen study can be computed, in a hundredth of its length.
#[test]
fn the_ixen_study_runs() {
    for figure in ["Table 2", "Figure 3", "Figure 4", "Figure 8", "Section 4.2"] {
        let mut study = Study::builtin("ixen").unwrap();
        study.only(figure).unwrap();
        let run = study.run(&Options { seed: 1, jobs: 2, scale: 0.01 }).unwrap();
        assert!(run.results.numbers.iter().all(|number| simulated(number).is_finite()), "{figure}");
    }
}

/// On 128 cores the PM timer's lock is handed over more slowly than ticks come: nothing gets on, which the numbers say.
#[test]
fn a_grown_study_says_which_runs_get_nowhere() {
    let mut study = Study::builtin("ixen").unwrap();
    study.grow(128).unwrap();
    study.only("Table 2").unwrap();
    let results = study.run(&Options { seed: 1, jobs: 2, scale: 0.005 }).unwrap().results;
    assert_eq!(results.cores, Some(128));
    assert!(results.numbers.iter().all(|number| number.paper.is_none() && number.kind == StudyKind::Predicted));
    let of = |column: &str| results.numbers.iter().filter(|n| n.column == column).collect::<Vec<_>>();
    let (xen, ixen) = (of("128 cores, Xen"), of("128 cores, iXen"));
    assert_eq!((xen.len(), ixen.len(), of("32 cores, Xen").len()), (9, 9, 0));
    for number in xen {
        let note = number.note.as_deref().unwrap_or_default();
        assert!(number.simulated.is_none() && note.ends_with(" % of the time in handle_pmt_io"), "{number:?}");
    }
    assert!(ixen.iter().all(|number| number.simulated.is_some_and(|share| share < 50.0)), "{ixen:?}");
}

#[test]
fn a_study_grows_to_what_a_machine_can_have() {
    for (name, own) in [("ixen", 32), ("gleaner", 16)] {
        let mut study = Study::builtin(name).unwrap();
        for wrong in [0, own - 1, 1025, 1_000_000] {
            let error = study.grow(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("--cores: found {wrong}; allowed: {own}, as many as the study has, to 1024"));
        }
        study.grow(own).unwrap();
        assert_eq!(study.figures, Study::builtin(name).unwrap().figures);
        study.grow(1024).unwrap();
        assert_eq!(study.cores(), Some(1024));
    }
}

#[test]
fn a_resumed_study_gives_what_it_gives_in_one_go() {
    let mut study = Study::builtin("gleaner").unwrap();
    study.only("Table 1").unwrap();
    let records = Mutex::new(Vec::new());
    let keep = |progress: Progress<'_>| records.lock().unwrap().extend(progress.ended.cloned());
    let whole = study.resume(&SHORT, &[], &keep).unwrap();
    let mut records = records.into_inner().unwrap();
    assert_eq!(records.len(), whole.runs);
    records.truncate(2);
    let rest = study.resume(&SHORT, &records, &|_| {}).unwrap();
    assert_eq!((rest.results, rest.runs), (whole.results, whole.runs - 2));
}

const NOTHING: &str = r#"{"name":"w","groups":[{"name":"g","count":1,"phases":[]}]}"#;

#[test]
fn what_cannot_be_run_yet_is_refused() {
    let text = "machine = 'm'\nworkload = 'w'\ncores = 2\nenvironment = 'pv'\nremedies = ['itlb']";
    let experiment = Experiment::from_toml(text, "e.toml").unwrap();
    let refused = Simulation::new(&experiment, &common::opteron(), &common::workload(NOTHING), None);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("`itlb` for workload `w`, which declares no `buffers`"), "{error}");
    let experiment = Experiment::new(Environment::Hvm, 2);
    let error =
        Simulation::new(&experiment, &common::r720(), &common::workload(NOTHING), None).unwrap_err().to_string();
    assert_eq!(error, "profile `gleaner-r720`: found no price `sim.xen.hypercall`; allowed: a profile with that price");
}
