//! The iXen study holds every number of the paper, each once and in the right kind. The lists below were made by hand
//! from the paper's text; the set was complete before the first comparison and does not grow (DESIGN section 4).

use muster_model::Workload;
use muster_model::results::StudyKind::{self, Calibrated, Contested, Predicted, Withheld};
use muster_model::study::{Figure, NumberSpec, Remedy};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn figures() -> Vec<Figure> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root().join("studies/ixen")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        Figure::from_toml(&text, &path.to_string_lossy()).unwrap_or_else(|error| panic!("{error}"))
    };
    files.iter().map(read).collect()
}

/// Figure, kind and column, and by row the paper's values.
type Column = (&'static str, StudyKind, &'static str, &'static [(&'static str, f64)]);

const VALUES: &[Column] = &[
    ("Abstract", Contested, "performance improvement, minimum", &[("iXen", 1.1)]),
    ("Abstract", Contested, "performance improvement, maximum", &[("iXen", 9.42)]),
    ("Section 1", Predicted, "performance degradation, geometric mean", &[("PVM", 2.82), ("HVM", 2.14)]),
    ("Section 1", Predicted, "performance degradation, minimum", &[("PVM", 1.02), ("HVM", 1.12)]),
    ("Section 1", Contested, "performance degradation, maximum", &[("PVM", 11.76), ("HVM", 9.0)]),
    ("Section 1", Contested, "performance improvement, maximum", &[("iXen PVM", 16.30), ("iXen HVM", 6.18)]),
    (
        "Section 2.3",
        Calibrated,
        "native, time in the kernel, 1 core",
        &[
            ("dbench", 80.0),
            ("histogram", 18.0),
            ("wordcount", 17.0),
            ("linear regression", 20.0),
            ("dedup", 38.0),
            ("streamcluster", 32.0),
        ],
    ),
    (
        "Section 2.3",
        Calibrated,
        "native, time in the kernel, 32 cores",
        &[("histogram", 95.0), ("wordcount", 46.0), ("linear regression", 96.0), ("dedup", 85.0)],
    ),
    (
        "Figure 1",
        Calibrated,
        "PVM, 1 core",
        &[
            ("gmake", 12.0),
            ("dbench", 59.0),
            ("histogram", 24.0),
            ("wordcount", 6.0),
            ("XML-validation", 7.0),
            ("dedup", 19.0),
            ("streamcluster", 22.0),
        ],
    ),
    (
        "Figure 1",
        Calibrated,
        "HVM, 1 core",
        &[
            ("gmake", 13.0),
            ("dbench", 18.0),
            ("histogram", 21.0),
            ("wordcount", 34.0),
            ("compress", 14.0),
            ("XML-validation", 20.0),
            ("dedup", 16.0),
            ("streamcluster", 14.0),
        ],
    ),
    (
        "Figure 1",
        Predicted,
        "PVM, 32 cores",
        &[("gmake", 18.0), ("dbench", 11.0), ("histogram", 382.0), ("XML-validation", 180.0), ("dedup", 371.0)],
    ),
    (
        "Figure 1",
        Predicted,
        "HVM, 32 cores",
        &[("dbench", 26.0), ("histogram", 345.0), ("wordcount", 1088.0), ("compress", 25.0), ("streamcluster", 434.0)],
    ),
    ("Figure 1", Predicted, "PVM, 4 cores", &[("linear regression", 164.0)]),
    ("Figure 1", Predicted, "PVM, 8 cores", &[("linear regression", 741.0)]),
    ("Figure 1", Predicted, "HVM, 8 cores", &[("linear regression", 46.0)]),
    (
        "Table 2",
        Predicted,
        "8 cores, Xen",
        &[
            ("gmake", 57.47),
            ("dbench", 31.45),
            ("histogram", 43.27),
            ("linear regression", 7.13),
            ("compress", 26.55),
            ("XML-validation", 22.46),
            ("dedup", 70.96),
        ],
    ),
    (
        "Table 2",
        Predicted,
        "8 cores, iXen",
        &[
            ("gmake", 0.70),
            ("dbench", 0.88),
            ("histogram", 1.64),
            ("linear regression", 0.82),
            ("compress", 0.47),
            ("XML-validation", 0.54),
            ("dedup", 13.28),
        ],
    ),
    (
        "Table 2",
        Predicted,
        "32 cores, Xen",
        &[
            ("gmake", 32.56),
            ("dbench", 9.93),
            ("histogram", 36.44),
            ("wordcount", 55.24),
            ("linear regression", 19.49),
            ("XML-validation", 13.14),
        ],
    ),
    (
        "Table 2",
        Predicted,
        "32 cores, iXen",
        &[
            ("gmake", 0.97),
            ("dbench", 0.37),
            ("histogram", 0.63),
            ("wordcount", 1.75),
            ("linear regression", 0.01),
            ("XML-validation", 0.36),
        ],
    ),
    ("Table 2", Contested, "8 cores, Xen", &[("streamcluster", 43.27)]),
    ("Table 2", Contested, "8 cores, iXen", &[("streamcluster", 9.26)]),
    ("Table 2", Contested, "32 cores, Xen", &[("streamcluster", 36.44)]),
    ("Table 2", Contested, "32 cores, iXen", &[("streamcluster", 36.44)]),
    ("Section 3.2.4", Predicted, "performance improvement, geometric mean", &[("iXen PVM + idle", 3.47)]),
    ("Section 3.2.4", Predicted, "performance improvement, minimum", &[("iXen PVM + idle", 1.13)]),
    ("Section 3.2.4", Predicted, "performance improvement, maximum", &[("iXen PVM + idle", 8.14)]),
    ("Section 3.3.3", Predicted, "performance improvement, geometric mean", &[("iXen HVM + cm, five programs", 4.2)]),
    ("Section 3.3.3", Predicted, "performance improvement, minimum", &[("iXen HVM + cm, five programs", 2.4)]),
    ("Section 3.3.3", Predicted, "performance improvement, maximum", &[("iXen HVM + cm, five programs", 8.0)]),
    ("Section 3.3.3", Contested, "performance improvement, geometric mean", &[("iXen HVM + cm, four programs", 4.2)]),
    ("Figure 8", Predicted, "performance improvement", &[("histogram", 16.58), ("linear regression", 7.79)]),
    ("Figure 8", Predicted, "iTLB misses, reduction", &[("histogram", 31.91), ("linear regression", 24.61)]),
    (
        "Figure 8",
        Predicted,
        "iTLB misses in the guest kernel, reduction",
        &[("histogram", 45.53), ("linear regression", 39.13)],
    ),
    ("Section 4", Predicted, "performance improvement, geometric mean", &[("iXen PVM", 2.33), ("iXen HVM", 1.65)]),
    ("Section 4", Predicted, "performance improvement, minimum", &[("iXen HVM", 1.20)]),
    ("Section 4", Contested, "performance improvement, minimum", &[("iXen PVM", 1.0)]),
    ("Section 4", Contested, "performance improvement, maximum", &[("iXen PVM", 8.44), ("iXen HVM", 3.78)]),
    ("Section 4.2", Predicted, "improvement over Linux 2.6.31, average", &[("native Linux with PK", 1.31)]),
    ("Section 4.2", Predicted, "improvement over Linux 2.6.31, minimum", &[("native Linux with PK", 1.00)]),
    ("Section 4.2", Predicted, "improvement over Linux 2.6.31, maximum", &[("native Linux with PK", 2.49)]),
    ("Section 4.2", Contested, "improvement over Linux 2.6.31, arithmetic mean", &[("native Linux with PK", 1.31)]),
    ("Section 4.2", Predicted, "performance degradation, average", &[("Xen HVM with PK", 2.89)]),
    ("Section 4.2", Predicted, "performance degradation, minimum", &[("Xen HVM with PK", 1.26)]),
    ("Section 4.2", Predicted, "performance degradation, maximum", &[("Xen HVM with PK", 7.25)]),
    ("Section 4.2", Contested, "performance degradation, arithmetic mean", &[("Xen HVM with PK", 2.89)]),
    (
        "Section 4.2",
        Predicted,
        "performance improvement, average",
        &[("iXen HVM + vtime with PK", 1.18), ("iXen HVM with PK", 1.88)],
    ),
    (
        "Section 4.2",
        Predicted,
        "performance improvement, minimum",
        &[("iXen HVM + vtime with PK", 1.07), ("iXen HVM with PK", 1.16)],
    ),
    (
        "Section 4.2",
        Predicted,
        "performance improvement, maximum",
        &[("iXen HVM + vtime with PK", 1.27), ("iXen HVM with PK", 3.57)],
    ),
    (
        "Section 4.2",
        Contested,
        "performance improvement, arithmetic mean",
        &[("iXen HVM + vtime with PK", 1.18), ("iXen HVM with PK", 1.88)],
    ),
];

/// Figure, column, rows: what the paper keeps back.
const KEPT_BACK: &[(&str, &str, &[&str])] = &[
    ("Figure 1", "PVM, 32 cores", &["wordcount", "streamcluster"]),
    ("Figure 1", "HVM, 32 cores", &["gmake", "XML-validation", "dedup"]),
    ("Table 2", "8 cores, Xen", &["wordcount"]),
    ("Table 2", "8 cores, iXen", &["wordcount"]),
    ("Table 2", "32 cores, Xen", &["compress", "dedup"]),
    ("Table 2", "32 cores, iXen", &["compress", "dedup"]),
    ("Section 3.1.3", "performance improvement, geometric mean", &["iXen HVM + vtime"]),
    ("Section 3.1.3", "performance improvement, minimum", &["iXen HVM + vtime"]),
    ("Section 3.1.3", "performance improvement, maximum", &["iXen HVM + vtime"]),
    ("Section 3.2.4", "performance improvement, geometric mean", &["iXen HVM + idle"]),
    ("Section 3.2.4", "performance improvement, minimum", &["iXen HVM + idle"]),
    ("Section 3.2.4", "performance improvement, maximum", &["iXen HVM + idle"]),
];

/// Figure, kind, column, row, bound: those with a figure in them.
const BOUNDS: &[(&str, StudyKind, &str, &str, &str)] = &[
    ("Section 2.3", Calibrated, "native, time in the kernel, 1 core", "gmake", "< 10"),
    ("Section 2.3", Calibrated, "native, time in the kernel, 1 core", "compress", "< 5"),
    ("Section 2.3", Calibrated, "native, time in the kernel, 1 core", "XML-validation", "< 10"),
    ("Section 2.3", Calibrated, "native, time in the kernel, 32 cores", "compress", "< 5"),
    ("Section 2.3", Calibrated, "native, time in the kernel, 32 cores", "XML-validation", "< 10"),
    ("Section 2.3", Calibrated, "native, speed on 32 cores over that on 24", "XML-validation", "<= 1"),
    ("Figure 1", Calibrated, "PVM, 1 core", "compress", "< 3"),
    ("Figure 1", Predicted, "PVM, 32 cores", "compress", "< 3"),
    ("Figure 1", Predicted, "HVM, 4 cores", "linear regression", "<= 46"),
    ("Figure 1", Predicted, "HVM, 16 cores", "linear regression", "<= 46"),
    ("Figure 1", Predicted, "HVM, 24 cores", "linear regression", "<= 46"),
    ("Figure 1", Predicted, "HVM, 32 cores", "linear regression", "<= 46"),
    ("Figure 9", Predicted, "gain of idle, 32 cores", "gmake", "<= 1"),
    ("Figure 9", Predicted, "gain of idle, 32 cores", "compress", "<= 1"),
    ("Figure 10", Predicted, "gain of vtime, 8 cores", "dbench", "<= 1"),
    ("Figure 10", Predicted, "gain of vtime, 16 cores", "dbench", "<= 1"),
    ("Figure 10", Predicted, "gain of idle on vtime, 16 cores", "linear regression", "<= 1"),
    ("Figure 10", Predicted, "gain of cm on vtime and idle, 16 cores", "linear regression", "<= 1"),
    ("Figure 10", Predicted, "gain of idle on vtime, 8 cores", "streamcluster", "<= 1"),
    ("Figure 10", Predicted, "gain of idle on vtime, 16 cores", "streamcluster", "<= 1"),
];

type Key = (String, String, String);

fn key(figure: &str, column: &str, row: &str) -> Key {
    (figure.into(), column.into(), row.into())
}

fn all(figures: &[Figure]) -> Vec<(Key, &NumberSpec)> {
    let of = |figure: &'_ Figure, number: &NumberSpec| key(&figure.figure, &number.column, &number.row);
    figures.iter().flat_map(|figure| figure.numbers.iter().map(move |n| (of(figure, n), n))).collect()
}

#[test]
fn every_value_of_the_paper_is_there_once_and_no_other() {
    let mut wanted = BTreeMap::new();
    for (figure, kind, column, rows) in VALUES {
        for (row, value) in *rows {
            let twice = wanted.insert(key(figure, column, row), (*kind, *value));
            assert!(twice.is_none(), "{figure} {column} {row} is listed twice");
        }
    }
    let figures = figures();
    let mut found = BTreeMap::new();
    for (key, number) in all(&figures) {
        if let Some(paper) = number.paper {
            assert!(found.insert(key.clone(), (number.kind, paper)).is_none(), "{key:?} is there twice");
        }
    }
    for (key, value) in &wanted {
        assert_eq!(found.get(key), Some(value), "{key:?}");
    }
    let more: Vec<_> = found.keys().filter(|key| !wanted.contains_key(key)).collect();
    assert!(more.is_empty(), "not in the list: {more:?}");
}

#[test]
fn what_is_kept_back_is_there_without_a_reference() {
    let wanted: BTreeSet<Key> =
        KEPT_BACK.iter().flat_map(|(figure, column, rows)| rows.iter().map(|row| key(figure, column, row))).collect();
    let figures = figures();
    let numbers = all(&figures);
    let withheld = numbers.iter().filter(|(_, number)| number.kind == Withheld);
    let found: BTreeSet<Key> = withheld.clone().map(|(key, _)| key.clone()).collect();
    assert_eq!(found, wanted);
    assert_eq!(withheld.clone().count(), wanted.len());
    for (key, number) in withheld {
        assert!(number.paper.is_none() && number.paper_bound.is_none(), "{key:?}");
    }
}

#[test]
fn bounds_are_there_in_their_kinds() {
    let figures = figures();
    let numbers = all(&figures);
    for (figure, kind, column, row, bound) in BOUNDS {
        let key = key(figure, column, row);
        let there: Vec<_> = numbers.iter().filter(|(other, _)| *other == key).map(|(_, number)| number).collect();
        assert_eq!(there.len(), 1, "{key:?}");
        assert_eq!((there[0].kind, there[0].paper_bound.as_deref()), (*kind, Some(*bound)), "{key:?}");
    }
}

#[test]
fn only_native_behaviour_and_single_core_overheads_are_calibrated() {
    let figures = figures();
    for (key, number) in all(&figures) {
        let column = number.column.as_str();
        let native = number.runs().all(|(run, _)| run == "native@1" || run == "native@32");
        let single_core = number.runs().all(|(run, _)| run.ends_with("@1"));
        let may = match key.0.as_str() {
            "Section 2.3" => {
                (native && column.contains("time in the kernel")) || column.contains("speed on 32 cores over")
            }
            "Figure 1" => single_core,
            _ => false,
        };
        let stated = number.paper.is_some() || number.paper_bound.is_some();
        assert_eq!(number.kind == Calibrated, may && stated, "{key:?}");
    }
}

#[test]
fn what_is_not_simulated_is_named() {
    let figures = figures();
    let left_out: Vec<(&str, f64)> =
        figures.iter().flat_map(|f| f.left_out.iter().map(|l| (f.figure.as_str(), l.paper))).collect();
    let table_3 = [128.0, 161.8, 413.0, 333.0, 145.0, 447.7, 50.0, 30.0];
    assert_eq!(left_out, table_3.map(|value| ("Table 3", value)));
}

#[test]
fn every_run_has_a_workload_for_which_its_remedies_exist() {
    let mut with_buffers = BTreeSet::new();
    for figure in figures() {
        let of_numbers = figure.numbers.iter().flat_map(NumberSpec::runs);
        for (run, file) in of_numbers.chain(figure.series.iter().flat_map(|series| series.runs())) {
            let experiment = figure.experiment(run, file).unwrap();
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let workload = Workload::from_json(&text, file).unwrap_or_else(|error| panic!("{error}"));
            let applied = experiment.applied(&workload).unwrap_or_else(|error| panic!("{run}, {file}: {error}"));
            assert!(!applied.contains(&Remedy::All) && root().join(&experiment.machine).exists());
            if applied.contains(&Remedy::Itlb) {
                with_buffers.insert(workload.name);
            }
        }
    }
    assert_eq!(with_buffers, ["histogram", "linear regression"].map(String::from).into());
}

#[test]
fn workloads_fit_every_number_of_threads() {
    for entry in std::fs::read_dir(root().join("workloads/ixen")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let workload = Workload::from_json(&text, &path.to_string_lossy()).unwrap_or_else(|error| panic!("{error}"));
        assert!(!workload.sources.is_empty(), "{}: no sources", workload.name);
        for threads in [1, 4, 8, 16, 24, 32, 64, 256, 1024] {
            for scale in [0.1, 1.0, 2.0] {
                workload.check_for(threads, scale).unwrap_or_else(|error| panic!("{threads} threads: {error}"));
            }
        }
    }
}
