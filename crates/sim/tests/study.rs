//! The built-in study: it is well formed, repeats itself, and its ratios do not depend on its length.

mod common;

use muster_model::results::StudyKind;
use muster_model::study::{Environment, Experiment};
use muster_sim::study::Options;
use muster_sim::{Simulation, Study};

const SHORT: Options = Options { seed: 3, jobs: 2, scale: 0.05 };

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
    let two = study.run(&SHORT, &|_, _| {}).unwrap().results;
    let one = study.run(&Options { jobs: 1, ..SHORT }, &|_, _| {}).unwrap().results;
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
    for number in study.run(&SHORT, &|_, _| {}).unwrap().results.numbers {
        let error = number.error.expect("every number of Table 1 is judged");
        assert!(error < 0.1, "{} {}: {} us", number.row, number.column, number.simulated);
    }
}

/// Ratios of times (DESIGN section 4); takes the whole study twice. `cargo test --release -- --ignored` runs it.
#[test]
#[ignore = "a campaign of several ten seconds in a release build"]
fn doubling_the_scale_moves_no_ratio_by_more_than_2_percent() {
    let study = Study::builtin("gleaner").unwrap();
    let at = |scale| study.run(&Options { seed: 1, jobs: 2, scale }, &|_, _| {}).unwrap().results.numbers;
    let factor = |value: f64, unit: &str| if unit == "%" { 1.0 + value / 100.0 } else { value };
    for (once, twice) in at(1.0).iter().zip(at(2.0)) {
        if matches!(once.unit.as_str(), "x" | "%") && !once.column.contains("reduction") && once.figure != "Figure 5" {
            let change = (factor(twice.simulated, &twice.unit) / factor(once.simulated, &once.unit)).ln().abs();
            assert!(
                change < 0.02,
                "{} {} {}: {} and {}",
                once.figure,
                once.row,
                once.column,
                once.simulated,
                twice.simulated
            );
        }
    }
}

/// Every kind of measure of the iXen study can be computed, in a hundredth of its length.
#[test]
fn the_ixen_study_runs() {
    for figure in ["Table 2", "Figure 3", "Figure 4", "Figure 8"] {
        let mut study = Study::builtin("ixen").unwrap();
        study.only(figure).unwrap();
        let run = study.run(&Options { seed: 1, jobs: 2, scale: 0.01 }, &|_, _| {}).unwrap();
        assert!(run.results.numbers.iter().all(|number| number.simulated.is_finite()), "{figure}");
    }
}

const NOTHING: &str = r#"{"name":"w","groups":[{"name":"g","count":1,"phases":[]}]}"#;

#[test]
fn what_cannot_be_run_yet_is_refused() {
    let run = |fields: &str| {
        let text = format!("machine = 'm'\nworkload = 'w'\ncores = 2\n{fields}");
        let experiment = Experiment::from_toml(&text, "e.toml").unwrap();
        Simulation::new(&experiment, &common::opteron(), &common::workload(NOTHING), None).unwrap_err().to_string()
    };
    for (fields, wanted) in [
        ("environment = 'virtual'\nkernel = 'pk'", "found `pk`, not simulated yet; allowed: linux-2.6.31"),
        ("environment = 'pv'\nremedies = ['itlb']", "`itlb` for workload `w`, which declares no `buffers`"),
    ] {
        let error = run(fields);
        assert!(error.contains(wanted), "{error}");
    }
    let experiment = Experiment::new(Environment::Hvm, 2);
    let error =
        Simulation::new(&experiment, &common::r720(), &common::workload(NOTHING), None).unwrap_err().to_string();
    assert_eq!(error, "profile `gleaner-r720`: found no price `sim.xen.hypercall`; allowed: a profile with that price");
}
