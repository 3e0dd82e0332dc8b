//! The hardware-acceleration study holds every number of the paper's evaluation, each once and in the right kind. The list
//! below was made by hand from the paper's text; the set was complete before the first comparison and does not grow (DESIGN
//! section 4).

use muster_model::Workload;
use muster_model::results::StudyKind::{self, Calibrated, Contested, Predicted, Withheld};
use muster_model::study::Figure;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn figures() -> Vec<Figure> {
    let folder = root().join("studies/hardware-acceleration");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        Figure::from_toml(&text, &path.to_string_lossy()).unwrap_or_else(|error| panic!("{error}"))
    };
    files.iter().map(read).collect()
}

/// Figure, row, kind and the paper's value.
type Value = (&'static str, &'static str, StudyKind, f64);

const VALUES: &[Value] = &[
    ("Section IV.C", "waits for spin locks", Predicted, 0.5),
    ("Section IV.C", "PLE_Window", Predicted, 2048.0),
    ("Section IV.C", "PLE_Gap", Predicted, 128.0),
    ("Figure 6", "Kernel Build", Calibrated, 50.0),
    ("Figure 6", "Kernel Build", Calibrated, 12.5),
    ("Figure 6", "Kernel Build", Predicted, 18.7),
    ("Figure 7", "Kernel Build", Calibrated, 24.0),
    ("Figure 7", "Kernel Build", Predicted, 2.0),
    ("Figure 8", "Kernel Build", Predicted, 8.17),
    ("Figure 9", "Kernel Build", Predicted, 14.0),
    ("Figure 9", "Kernel Build", Predicted, 0.0),
    ("Figure 10", "SPECjbb", Predicted, 8.0),
    ("Figure 10", "SPECjbb", Predicted, 0.0),
    ("Figure 10", "WebBench", Predicted, 14.0),
    ("Figure 10", "WebBench", Predicted, 3.0),
    ("Figures 11 to 13", "Netperf", Calibrated, 3.6),
    ("Figures 11 to 13", "Netperf", Calibrated, 9.48),
    ("Figures 11 to 13", "Netperf", Predicted, 9.48),
    ("Figures 11 to 13", "Netperf", Predicted, 9.48),
    ("Figures 11 to 13", "Netperf", Predicted, 0.88),
    ("Figures 15 to 17", "vConsolidate", Predicted, 29.0),
    ("Figures 15 to 17", "vConsolidate", Predicted, 3.0),
    ("Figures 15 to 17", "vConsolidate", Predicted, 28.0),
    ("Figures 15 to 17", "vConsolidate", Predicted, 24.0),
    ("Figures 15 to 17", "vConsolidate", Predicted, 1.5),
    ("Figures 15 to 17", "SPECjbb, SysBench, LoadSim", Predicted, 14.0),
    ("Figures 15 to 17", "vConsolidate", Calibrated, 95.0),
    ("Figures 15 to 17", "vConsolidate", Calibrated, 38.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 58.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 23.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 95.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 75.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 94.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 3.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 99.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 2.25),
    ("Figures 18 to 21", "vConsolidate", Predicted, 1.49),
    ("Figures 18 to 21", "vConsolidate", Predicted, 3.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 8.0),
    ("Figures 18 to 21", "vConsolidate", Predicted, 2.73),
    ("Figures 18 to 21", "vConsolidate", Predicted, 1.77),
    ("Figures 18 to 21", "vConsolidate", Contested, 28.0),
];

/// Withheld numbers by figure.
const WITHHELD: &[(&str, usize)] = &[("Figure 8", 1), ("Figures 15 to 17", 1), ("Figures 18 to 21", 2)];

#[test]
fn every_number_of_the_paper_is_there() {
    let key =
        |(figure, row, kind, paper): (&str, &str, StudyKind, f64)| format!("{figure} | {row} | {kind:?} | {paper}");
    let mut wanted: Vec<String> = VALUES.iter().copied().map(key).collect();
    let mut found = Vec::new();
    for figure in figures() {
        for number in &figure.numbers {
            found.extend(number.paper.map(|paper| key((&figure.figure, &number.row, number.kind, paper))));
        }
    }
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
}

#[test]
fn what_is_withheld_has_no_value() {
    for figure in figures() {
        let withheld = figure.numbers.iter().filter(|number| number.kind == Withheld);
        let wanted = WITHHELD.iter().find(|(name, _)| *name == figure.figure).map_or(0, |&(_, count)| count);
        assert_eq!(withheld.inspect(|number| assert_eq!(number.paper, None)).count(), wanted, "{}", figure.figure);
    }
}

/// Every workload that is named is there, and runs as long as those of its experiment, so that turns can be compared.
#[test]
fn workloads_are_there_and_end_together() {
    for figure in figures() {
        for (run, workload) in figure.numbers.iter().flat_map(|number| number.runs()) {
            let experiment = figure.experiment(run, workload).unwrap();
            let durations: BTreeSet<Option<u64>> = (experiment.all_vms().iter())
                .map(|vm| {
                    let text = std::fs::read_to_string(root().join(&vm.workload)).unwrap();
                    Workload::from_json(&text, &vm.workload).unwrap_or_else(|error| panic!("{error}")).duration_ns
                })
                .collect();
            assert!(durations.len() == 1 && !durations.contains(&None), "{}, {run}: {durations:?}", figure.figure);
        }
    }
}
