//! One table or figure of a paper: its configurations, numbers and curves, read from TOML.
//!
//! A file may say in one entry what many numbers share (`columns`, `cores`, `programs`); reading spells it out.

use super::measure::{Aggregate, EXIT_REASONS, Measure, VMM_FUNCTIONS};
use super::{Experiment, toml_error};
use crate::ModelError;
use crate::results::StudyKind;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is computed from the runs of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// File of the workload.
    pub workload: String,
    /// What is computed.
    pub measure: Measure,
}

/// A number to compute, and the paper's beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberSpec {
    /// Row, as the paper names it.
    pub row: String,
    /// Column, as the paper names it.
    pub column: String,
    /// Unit.
    pub unit: String,
    /// The paper's value.
    pub paper: Option<f64>,
    /// The bound the paper states in words.
    pub paper_bound: Option<String>,
    /// How it is judged.
    pub kind: StudyKind,
    /// How the terms' values become one; `None` for the value of one term.
    pub aggregate: Option<Aggregate>,
    /// At least one, all with the same measure's [`Measure::scale`].
    pub terms: Vec<Term>,
}

impl NumberSpec {
    /// The configurations it needs, each with the file of the workload.
    pub fn runs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.terms.iter().flat_map(|term| term.measure.runs().into_iter().map(|run| (run, term.workload.as_str())))
    }
}

/// A number of the paper that is not simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Row, as the paper names it.
    pub row: String,
    /// Column, as the paper names it.
    pub column: String,
    /// Unit.
    pub unit: String,
    /// The paper's value.
    pub paper: f64,
    /// Why it is not simulated.
    pub why: String,
}

/// A curve to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesSpec {
    /// The curve's name.
    pub name: String,
    /// File of the workload.
    pub workload: String,
    /// What is drawn.
    pub curve: Curve,
}

impl SeriesSpec {
    /// The configurations it needs, each with the file of the workload.
    pub fn runs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.curve.runs().into_iter().map(|run| (run, self.workload.as_str()))
    }
}

/// What a curve shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Curve {
    /// The number of active CPUs over time, in seconds.
    ActiveCpus {
        /// The run.
        run: String,
    },
    /// How many times as fast as the baseline each run is, over the run's number of cores.
    Speedup {
        /// What they are compared with.
        baseline: String,
        /// The runs.
        runs: Vec<String>,
    },
    /// A measure over what the figure varies.
    Values {
        /// What the measure is called on the axis, with its unit.
        y: String,
        /// In the order in which they are joined.
        points: Vec<Point>,
    },
}

/// A point of a curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Where: the number of what the figure varies.
    pub at: u32,
    /// How high.
    pub measure: Measure,
}

/// What the number in `NAME@NUMBER` says of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vary {
    /// Its cores; in a VM, its vCPUs.
    #[default]
    Cores,
    /// Its copies of all VMs.
    Copies,
}

impl Vary {
    /// The field of the experiment.
    pub fn field(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Copies => "copies",
        }
    }
}

impl Curve {
    /// The configurations it names.
    pub fn runs(&self) -> Vec<&str> {
        match self {
            Self::ActiveCpus { run } => vec![run],
            Self::Speedup { baseline, runs } => std::iter::once(baseline).chain(runs).map(String::as_str).collect(),
            Self::Values { points, .. } => points.iter().flat_map(|point| point.measure.runs()).collect(),
        }
    }
}

/// One table or figure of a paper.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Table, figure or section, as the paper names it.
    pub figure: String,
    /// What is left open or assumed.
    pub notes: Vec<String>,
    /// What `NAME@NUMBER` varies.
    pub vary: Vary,
    /// What all configurations share (fields of [`Experiment`]).
    pub defaults: toml::Table,
    /// By name, what each configuration sets besides.
    pub configurations: BTreeMap<String, toml::Table>,
    /// The numbers, in the file's order.
    pub numbers: Vec<NumberSpec>,
    /// The curves.
    pub series: Vec<SeriesSpec>,
    /// Numbers of the paper that are not simulated.
    pub left_out: Vec<LeftOut>,
}

impl Figure {
    /// Reads a figure from TOML; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed TOML, an unknown field, a configuration or program that is named and not there, a number named
    /// twice, or a withheld number with a value.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ModelError> {
        let written: Written = toml::from_str(text).map_err(|error| toml_error(text, file, &error))?;
        let figure = written.spell_out().map_err(|error| error.within(file))?;
        figure.validate().map_err(|error| error.within(file))?;
        Ok(figure)
    }

    fn validate(&self) -> Result<(), ModelError> {
        let mut seen = BTreeSet::new();
        for number in &self.numbers {
            let place = place(&number.row, &number.column);
            if !seen.insert((&number.row, &number.column)) {
                return Err(ModelError::new(place, "the same row and column twice", "each once"));
            }
            if number.kind == StudyKind::Withheld && (number.paper.is_some() || number.paper_bound.is_some()) {
                return Err(ModelError::new(place, "a value for a withheld number", "no `paper` for kind withheld"));
            }
            if number.terms.iter().any(|term| term.measure.scale() != number.terms[0].measure.scale()) {
                return Err(ModelError::new(place, "measures of several kinds in one number", "measures of one kind"));
            }
            number.terms.iter().try_for_each(|term| known_names(&term.measure, &place))?;
            number.runs().try_for_each(|(run, workload)| self.check_run(run, workload, &place))?;
        }
        for series in &self.series {
            let place = format!("series.{}", series.name);
            series.curve.runs().into_iter().try_for_each(|run| self.check_run(run, &series.workload, &place))?;
        }
        Ok(())
    }

    fn check_run(&self, run: &str, workload: &str, place: &str) -> Result<(), ModelError> {
        self.experiment(run, workload).map(|_| ()).map_err(|error| error.within(place))
    }

    /// The experiment that configuration `run` (`NAME`, or `NAME@NUMBER` with another number of what the figure varies)
    /// makes of a workload.
    ///
    /// # Errors
    /// When the configuration is unknown or the fields do not make an experiment.
    pub fn experiment(&self, run: &str, workload: &str) -> Result<Experiment, ModelError> {
        let (name, number) = run.split_once('@').map_or((run, None), |(name, number)| (name, Some(number)));
        let Some(configuration) = self.configurations.get(name) else {
            let names = self.configurations.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(ModelError::new("run", format!("unknown configuration `{run}`"), names));
        };
        let mut table = self.defaults.clone();
        table.extend(configuration.clone());
        table.insert("workload".into(), workload.into());
        if let Some(number) = number {
            let number: u32 = number.parse().map_err(|_| {
                let allowed = format!("NAME, or NAME@NUMBER with a number of {}", self.vary.field());
                ModelError::new("run", format!("`{run}`"), allowed)
            })?;
            table.insert(self.vary.field().into(), i64::from(number).into());
        }
        let place = || format!("configurations.{name}");
        let experiment: Experiment = table.try_into().map_err(|error: toml::de::Error| {
            ModelError::new(place(), error.message().to_owned(), "the fields of an experiment, docs/sim.md")
        })?;
        experiment.validate().map_err(|error| error.within(&place()))?;
        Ok(experiment)
    }
}

fn place(row: &str, column: &str) -> String {
    format!("numbers.{row}.{column}")
}

fn known_names(measure: &Measure, place: &str) -> Result<(), ModelError> {
    match measure {
        Measure::FunctionShare { function, .. } if !VMM_FUNCTIONS.contains(&function.as_str()) => {
            let found = format!("unknown function `{function}`");
            Err(ModelError::new(format!("{place}.function"), found, VMM_FUNCTIONS.join(", ")))
        }
        Measure::ExitShare { reason, .. } | Measure::ExitTime { reason, .. } | Measure::ExitRatio { reason, .. }
            if !EXIT_REASONS.contains(&reason.as_str()) =>
        {
            let found = format!("unknown reason `{reason}`");
            Err(ModelError::new(format!("{place}.reason"), found, EXIT_REASONS.join(", ")))
        }
        _ => Ok(()),
    }
}

/// A figure as it stands in its file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    figure: String,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    defaults: toml::Table,
    #[serde(default)]
    configurations: BTreeMap<String, toml::Table>,
    /// The programs in the paper's order; rows of `columns` bear their names.
    #[serde(default)]
    programs: Vec<String>,
    /// Where their workloads are: `{program}` stands for the name in small letters with hyphens for spaces. That of a single
    /// program may have any name.
    #[serde(default)]
    workloads: String,
    #[serde(default)]
    vary: Vary,
    /// What `NAME@*` stands for in a curve: the numbers of what is varied.
    #[serde(default, alias = "copies")]
    cores: Vec<u32>,
    #[serde(default)]
    numbers: Vec<WrittenNumber>,
    #[serde(default)]
    columns: Vec<WrittenColumn>,
    #[serde(default)]
    series: Vec<WrittenSeries>,
    #[serde(default)]
    left_out: Vec<LeftOut>,
}

/// One number: of one workload, or aggregated over programs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNumber {
    row: String,
    column: String,
    unit: String,
    paper: Option<f64>,
    paper_bound: Option<String>,
    kind: StudyKind,
    workload: Option<String>,
    aggregate: Option<Aggregate>,
    programs: Option<Vec<String>>,
    measure: Option<Measure>,
    #[serde(default)]
    of: Vec<WrittenTerms>,
}

/// The same measure for several programs, as a part of a number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTerms {
    programs: Vec<String>,
    measure: Measure,
}

/// One number a program; with `cores`, one a program and number of cores.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenColumn {
    /// `{cores}` (or `{copies}`) stands for the number of what is varied, here and in `measure`.
    column: String,
    unit: String,
    kind: StudyKind,
    #[serde(alias = "copies")]
    cores: Option<Vec<u32>>,
    measure: toml::Value,
    /// By program, what the paper says ([`Cell::read`]), or the same for all.
    rows: toml::Value,
}

/// What the paper says of one program in one column.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    paper: Option<f64>,
    /// The bound, in any words.
    bound: Option<String>,
    /// The column's when absent.
    kind: Option<StudyKind>,
}

impl Cell {
    /// A cell as it is written: a number, a word or a table.
    fn read(written: &toml::Value, place: &str) -> Result<Self, ModelError> {
        let refused = |found: String| {
            let allowed = "a number, `withheld`, `drawn`, a bound such as `< 5`, or { paper, bound, kind }";
            ModelError::new(place, found, allowed)
        };
        Ok(match written {
            toml::Value::Integer(paper) => Self { paper: Some(*paper as f64), ..Self::default() },
            toml::Value::Float(paper) => Self { paper: Some(*paper), ..Self::default() },
            toml::Value::String(word) if word == "drawn" => Self::default(),
            toml::Value::String(word) if word == "withheld" => {
                Self { kind: Some(StudyKind::Withheld), ..Self::default() }
            }
            toml::Value::String(bound) if bound.starts_with(['<', '>']) => {
                Self { bound: Some(bound.clone()), ..Self::default() }
            }
            toml::Value::Table(table) => {
                table.clone().try_into().map_err(|error: toml::de::Error| refused(error.message().to_owned()))?
            }
            other => return Err(refused(format!("`{other}`"))),
        })
    }
}

/// One curve of a workload, or one a program (`{program}` in its name).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSeries {
    name: String,
    workload: Option<String>,
    programs: Option<Vec<String>>,
    curve: WrittenCurve,
}

/// A curve as it stands in its file; `NAME@*` is NAME with each of the file's numbers.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum WrittenCurve {
    ActiveCpus { run: String },
    Speedup { baseline: String, runs: Vec<String> },
    Values { y: String, measure: Measure },
}

impl Written {
    fn spell_out(self) -> Result<Figure, ModelError> {
        let mut numbers = Vec::new();
        for number in &self.numbers {
            numbers.push(self.number(number)?);
        }
        for column in &self.columns {
            self.column(column, &mut numbers)?;
        }
        let mut series = Vec::new();
        for written in &self.series {
            self.series(written, &mut series)?;
        }
        let Self { figure, notes, vary, defaults, configurations, left_out, .. } = self;
        Ok(Figure { figure, notes, vary, defaults, configurations, numbers, series, left_out })
    }

    /// The file of a program's workload.
    fn workload(&self, program: &str, place: &str) -> Result<String, ModelError> {
        if !self.programs.iter().any(|known| known == program) {
            let names =
                if self.programs.is_empty() { "none: `programs` is empty".into() } else { self.programs.join(", ") };
            return Err(ModelError::new(place, format!("unknown program `{program}`"), names));
        }
        if self.programs.len() > 1 && !self.workloads.contains("{program}") {
            return Err(ModelError::new("workloads", format!("`{}`", self.workloads), "a path with `{program}` in it"));
        }
        Ok(self.workloads.replace("{program}", &program.to_lowercase().replace(' ', "-")))
    }

    fn terms(&self, programs: &[String], measure: &Measure, place: &str) -> Result<Vec<Term>, ModelError> {
        let term = |program: &String| {
            self.workload(program, place).map(|workload| Term { workload, measure: measure.clone() })
        };
        programs.iter().map(term).collect()
    }

    fn number(&self, written: &WrittenNumber) -> Result<NumberSpec, ModelError> {
        let place = place(&written.row, &written.column);
        let terms = match (&written.workload, written.aggregate, &written.measure, written.of.is_empty()) {
            (Some(workload), None, Some(measure), true) if written.programs.is_none() => {
                vec![Term { workload: workload.clone(), measure: measure.clone() }]
            }
            (None, Some(_), Some(measure), true) => {
                self.terms(written.programs.as_ref().unwrap_or(&self.programs), measure, &place)?
            }
            (None, Some(_), None, false) if written.programs.is_none() => {
                let parts = written.of.iter().map(|part| self.terms(&part.programs, &part.measure, &place));
                parts.collect::<Result<Vec<_>, _>>()?.concat()
            }
            _ => Vec::new(),
        };
        if terms.is_empty() {
            let allowed = "`workload` and `measure`; or `aggregate` with `measure` (and `programs`) or with `of`";
            return Err(ModelError::new(place, "neither one program's number nor an aggregate", allowed));
        }
        Ok(NumberSpec {
            row: written.row.clone(),
            column: written.column.clone(),
            unit: written.unit.clone(),
            paper: written.paper,
            paper_bound: written.paper_bound.clone(),
            kind: written.kind,
            aggregate: written.aggregate,
            terms,
        })
    }

    /// A column's cells, in the order of the programs.
    fn cells(&self, rows: &toml::Value, place: &str) -> Result<Vec<(&String, Cell)>, ModelError> {
        let cell = |program, written| Ok((program, Cell::read(written, &format!("{place}.rows.{program}"))?));
        let toml::Value::Table(rows) = rows else {
            return self.programs.iter().map(|program| cell(program, rows)).collect();
        };
        rows.keys().try_for_each(|program| self.workload(program, place).map(|_| ()))?;
        self.programs.iter().filter_map(|program| rows.get(program).map(|written| cell(program, written))).collect()
    }

    fn column(&self, written: &WrittenColumn, numbers: &mut Vec<NumberSpec>) -> Result<(), ModelError> {
        let place = format!("columns.{}", written.column);
        let cells = self.cells(&written.rows, &place)?;
        for cores in written.cores.as_ref().map_or(vec![None], |cores| cores.iter().map(|&n| Some(n)).collect()) {
            let measure: Measure =
                with_cores(&written.measure, cores).try_into().map_err(|error: toml::de::Error| {
                    ModelError::new(
                        format!("{place}.measure"),
                        error.message().to_owned(),
                        "a measure of docs/study.md",
                    )
                })?;
            for (program, cell) in &cells {
                numbers.push(NumberSpec {
                    row: (*program).clone(),
                    column: named(&written.column, cores),
                    unit: written.unit.clone(),
                    paper: cell.paper,
                    paper_bound: cell.bound.clone(),
                    kind: cell.kind.unwrap_or(written.kind),
                    aggregate: None,
                    terms: vec![Term { workload: self.workload(program, &place)?, measure: measure.clone() }],
                });
            }
        }
        Ok(())
    }

    fn series(&self, written: &WrittenSeries, series: &mut Vec<SeriesSpec>) -> Result<(), ModelError> {
        let place = format!("series.{}", written.name);
        let curve = self.curve(&written.curve, &place)?;
        if let Some(workload) = &written.workload {
            series.push(SeriesSpec { name: written.name.clone(), workload: workload.clone(), curve });
            return Ok(());
        }
        for program in written.programs.as_ref().unwrap_or(&self.programs) {
            let workload = self.workload(program, &place)?;
            series.push(SeriesSpec {
                name: written.name.replace("{program}", program),
                workload,
                curve: curve.clone(),
            });
        }
        Ok(())
    }

    fn curve(&self, written: &WrittenCurve, place: &str) -> Result<Curve, ModelError> {
        let some = |is_empty: bool, curve: Curve| {
            let allowed = || format!("runs, or `NAME@*` and `{}` at the top of the file", self.vary.field());
            if is_empty { Err(ModelError::new(place, "no run", allowed())) } else { Ok(curve) }
        };
        match written {
            WrittenCurve::ActiveCpus { run } => Ok(Curve::ActiveCpus { run: run.clone() }),
            WrittenCurve::Speedup { baseline, runs } => {
                let runs: Vec<String> = runs.iter().flat_map(|run| self.on_all_numbers(run)).collect();
                some(runs.is_empty(), Curve::Speedup { baseline: baseline.clone(), runs })
            }
            WrittenCurve::Values { y, measure } => {
                let point = |&at: &u32| Point { at, measure: measure.at(at) };
                let points: Vec<Point> = self.cores.iter().map(point).collect();
                some(points.is_empty(), Curve::Values { y: y.clone(), points })
            }
        }
    }

    /// `NAME@*` with each number; any other run as it is.
    fn on_all_numbers(&self, run: &str) -> Vec<String> {
        match run.strip_suffix("@*") {
            Some(name) => self.cores.iter().map(|cores| format!("{name}@{cores}")).collect(),
            None => vec![run.to_owned()],
        }
    }
}

fn named(text: &str, number: Option<u32>) -> String {
    let Some(number) = number.map(|number| number.to_string()) else { return text.to_owned() };
    text.replace("{cores}", &number).replace("{copies}", &number)
}

/// A value with `{cores}` (or `{copies}`) replaced in all its texts.
fn with_cores(value: &toml::Value, cores: Option<u32>) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(named(text, cores)),
        toml::Value::Array(values) => values.iter().map(|value| with_cores(value, cores)).collect::<Vec<_>>().into(),
        toml::Value::Table(table) => {
            toml::Value::Table(table.iter().map(|(key, value)| (key.clone(), with_cores(value, cores))).collect())
        }
        other => other.clone(),
    }
}
