//! Studies: a paper's tables and figures, simulated. Equal experiments of different figures run once.
//!
//! The built-in studies' files are compiled in; this room opens none.

use crate::run::Simulation;
use crate::{SimError, engine::Ps};
use measure::{NoValue, RunFigures};
use muster_model::cpuset::MAX_CPUS;
use muster_model::results::{Series, StudyKind, StudyNumber, StudyResults};
use muster_model::study::{Curve, Experiment, Figure, NumberSpec, SeriesSpec, VmSpec, error, is_in_points};
use muster_model::{ModelError, Profile, Workload};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use summary::{RunEnd, RunRecord, RunSummary};

pub mod journal;
pub mod measure;
pub mod summary;

macro_rules! file {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../", $path)))
    };
}

/// A built-in study: name, figures, and the machines and workloads they name.
struct Builtin {
    name: &'static str,
    figures: &'static [(&'static str, &'static str)],
    machines: &'static [(&'static str, &'static str)],
    workloads: &'static [(&'static str, &'static str)],
}

const BUILTIN: &[Builtin] = &[
    Builtin {
        name: "gleaner",
        figures: &[
            file!("studies/gleaner/table-1.toml"),
            file!("studies/gleaner/figure-1.toml"),
            file!("studies/gleaner/figure-2.toml"),
            file!("studies/gleaner/figure-4.toml"),
            file!("studies/gleaner/figure-5.toml"),
        ],
        machines: &[file!("machines/gleaner-r720.toml")],
        workloads: &[
            file!("workloads/gleaner/wake-same-core.json"),
            file!("workloads/gleaner/wake-other-core.json"),
            file!("workloads/gleaner/blackscholes.json"),
            file!("workloads/gleaner/swaptions.json"),
            file!("workloads/gleaner/facesim.json"),
            file!("workloads/gleaner/ocean-cp.json"),
            file!("workloads/gleaner/ocean-ncp.json"),
            file!("workloads/gleaner/dedup.json"),
        ],
    },
    Builtin {
        name: "sharing",
        figures: &[file!("studies/sharing/credit.toml"), file!("studies/sharing/eevdf.toml")],
        machines: &[file!("machines/gleaner-r720.toml")],
        workloads: &[
            file!("workloads/gleaner/blackscholes.json"),
            file!("workloads/gleaner/swaptions.json"),
            file!("workloads/gleaner/facesim.json"),
            file!("workloads/gleaner/ocean-cp.json"),
            file!("workloads/gleaner/dedup.json"),
        ],
    },
    Builtin {
        name: "ixen",
        figures: &[
            file!("studies/ixen/abstract.toml"),
            file!("studies/ixen/figure-1.toml"),
            file!("studies/ixen/figure-10.toml"),
            file!("studies/ixen/figure-3.toml"),
            file!("studies/ixen/figure-4.toml"),
            file!("studies/ixen/figure-7.toml"),
            file!("studies/ixen/figure-8.toml"),
            file!("studies/ixen/figure-9.toml"),
            file!("studies/ixen/section-1.toml"),
            file!("studies/ixen/section-2.3.toml"),
            file!("studies/ixen/section-3.1.3.toml"),
            file!("studies/ixen/section-3.2.4.toml"),
            file!("studies/ixen/section-3.3.3.toml"),
            file!("studies/ixen/section-4.toml"),
            file!("studies/ixen/section-4.2.toml"),
            file!("studies/ixen/table-2.toml"),
            file!("studies/ixen/table-3.toml"),
        ],
        machines: &[file!("machines/ixen-opteron48.toml")],
        workloads: &[
            file!("workloads/ixen/compress.json"),
            file!("workloads/ixen/dbench.json"),
            file!("workloads/ixen/dedup.json"),
            file!("workloads/ixen/gmake.json"),
            file!("workloads/ixen/histogram.json"),
            file!("workloads/ixen/linear-regression.json"),
            file!("workloads/ixen/streamcluster.json"),
            file!("workloads/ixen/wordcount.json"),
            file!("workloads/ixen/xml-validation.json"),
        ],
    },
    Builtin {
        name: "hardware-acceleration",
        figures: &[
            file!("studies/hardware-acceleration/section-iv-c.toml"),
            file!("studies/hardware-acceleration/figure-6.toml"),
            file!("studies/hardware-acceleration/figure-7.toml"),
            file!("studies/hardware-acceleration/figure-8.toml"),
            file!("studies/hardware-acceleration/figure-9.toml"),
            file!("studies/hardware-acceleration/figure-10.toml"),
            file!("studies/hardware-acceleration/figure-11.toml"),
            file!("studies/hardware-acceleration/figure-15.toml"),
            file!("studies/hardware-acceleration/figure-18.toml"),
        ],
        machines: &[file!("machines/hardware-acceleration-xeon.toml")],
        workloads: &[
            file!("workloads/hardware-acceleration/idle.json"),
            file!("workloads/hardware-acceleration/kernel-build.json"),
            file!("workloads/hardware-acceleration/loadsim.json"),
            file!("workloads/hardware-acceleration/netperf.json"),
            file!("workloads/hardware-acceleration/specjbb-half.json"),
            file!("workloads/hardware-acceleration/specjbb.json"),
            file!("workloads/hardware-acceleration/sysbench.json"),
            file!("workloads/hardware-acceleration/webbench.json"),
        ],
    },
];

/// A study that is ready to run.
#[derive(Debug, Clone)]
pub struct Study {
    /// Its name.
    pub name: String,
    /// Its tables and figures.
    pub figures: Vec<Figure>,
    machines: BTreeMap<String, Profile>,
    workloads: BTreeMap<String, Workload>,
    cores: Option<u32>,
}

/// How to run it.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Seed of every run.
    pub seed: u64,
    /// Threads to spread the runs over.
    pub jobs: usize,
    /// Factor on every experiment's scale.
    pub scale: f64,
}

/// What a study gave.
#[derive(Debug, Clone)]
pub struct StudyRun {
    /// The numbers and curves.
    pub results: StudyResults,
    /// Runs that were simulated.
    pub runs: usize,
    /// Events, over these.
    pub events: u64,
    /// Simulated time times cores, over these, in seconds.
    pub core_seconds: f64,
}

/// How far a study has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Runs that are done, those that were there included.
    pub done: usize,
    /// Runs in all.
    pub total: usize,
    /// The run that has just ended; `None` at the beginning.
    pub ended: Option<&'a RunRecord>,
}

impl Study {
    /// The names of the built-in studies.
    pub fn names() -> Vec<&'static str> {
        BUILTIN.iter().map(|study| study.name).collect()
    }

    /// A built-in study.
    ///
    /// # Errors
    /// When there is none of that name, or one of its files is malformed.
    pub fn builtin(name: &str) -> Result<Self, ModelError> {
        let Some(builtin) = BUILTIN.iter().find(|study| study.name == name) else {
            return Err(ModelError::new("study", format!("`{name}`"), Self::names().join(", ")));
        };
        let read = |files: &[(&str, &str)]| -> Vec<(String, String)> {
            files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect()
        };
        let mut study = Self {
            name: name.to_owned(),
            figures: Vec::new(),
            machines: BTreeMap::new(),
            workloads: BTreeMap::new(),
            cores: None,
        };
        for (path, text) in read(builtin.figures) {
            study.figures.push(Figure::from_toml(&text, &path)?);
        }
        for (path, text) in read(builtin.machines) {
            study.machines.insert(path.clone(), Profile::from_toml(&text, &path)?);
        }
        for (path, text) in read(builtin.workloads) {
            study.workloads.insert(path.clone(), Workload::from_json(&text, &path)?);
        }
        Ok(study)
    }

    /// Keeps one table or figure; case, spaces and hyphens do not matter.
    ///
    /// # Errors
    /// When the study has none of that name.
    pub fn only(&mut self, figure: &str) -> Result<(), ModelError> {
        let plain = |name: &str| name.to_lowercase().replace([' ', '-', '_'], "");
        let names = self.figures.iter().map(|f| f.figure.clone()).collect::<Vec<_>>().join(", ");
        self.figures.retain(|f| plain(&f.figure) == plain(figure));
        if self.figures.is_empty() {
            return Err(ModelError::new("figure", format!("`{figure}`"), names));
        }
        Ok(())
    }

    /// Has `cores` cores wherever the study's largest machine or VM has as many as it has.
    ///
    /// # Errors
    /// When the study has more, or no machine can have so many.
    pub fn grow(&mut self, cores: u32) -> Result<(), ModelError> {
        let own = self.figures.iter().map(Figure::largest).max().unwrap_or(1);
        if cores < own || cores as usize > MAX_CPUS {
            let allowed = format!("{own}, as many as the study has, to {MAX_CPUS}");
            return Err(ModelError::new("--cores", cores.to_string(), allowed));
        }
        if cores == own {
            return Ok(());
        }
        self.cores = Some(cores);
        for figure in self.figures.iter_mut().filter(|figure| figure.largest() == own) {
            *figure = figure.grown(own, cores);
        }
        Ok(())
    }

    /// The number of cores that the study was grown to.
    pub fn cores(&self) -> Option<u32> {
        self.cores
    }

    /// Simulates every run that a number or curve needs.
    ///
    /// # Errors
    /// The first error of any run.
    pub fn run(&self, options: &Options) -> Result<StudyRun, SimError> {
        self.resume(options, &[], &|_| {})
    }

    /// Simulates every such run that is not among those `there`; `report` is called at the beginning and when a run ends.
    ///
    /// # Errors
    /// The first error of any run.
    pub fn resume(
        &self,
        options: &Options,
        there: &[RunRecord],
        report: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<StudyRun, SimError> {
        let plan = self.plan(options)?;
        let had: BTreeMap<String, &RunEnd> = there.iter().map(|run| (key(&run.experiment), &run.end)).collect();
        let (mut ends, mut left) = (BTreeMap::new(), Vec::new());
        for (index, experiment) in plan.experiments.iter().enumerate() {
            match had.get(&key(experiment)) {
                Some(&end) => drop(ends.insert(index, end.clone())),
                None => left.push((index, experiment)),
            }
        }
        let simulated = self.simulate(&left, options.jobs.max(1), ends.len(), report)?;
        let summaries = || simulated.iter().filter_map(|record| record.summary());
        let (events, core_seconds) = (
            summaries().map(|summary| summary.events).sum(),
            summaries().map(|summary| summary.seconds() * f64::from(summary.cores)).sum(),
        );
        let runs = left.len();
        ends.extend(left.iter().map(|&(index, _)| index).zip(simulated.into_iter().map(|record| record.end)));
        let ends: Vec<RunEnd> = ends.into_values().collect();
        Ok(StudyRun { results: self.evaluate(&plan, &ends, options)?, runs, events, core_seconds })
    }

    /// The numbers and curves of how the planned runs ended.
    fn evaluate(&self, plan: &Plan<'_>, ends: &[RunEnd], options: &Options) -> Result<StudyResults, ModelError> {
        let (mut numbers, mut curves) = (Vec::new(), Vec::new());
        for (f, figure) in self.figures.iter().enumerate() {
            let find = |run: &str, workload: &str| match &ends[plan.index[&(f, run, workload)]] {
                RunEnd::Ended(summary) => Ok(&**summary),
                RunEnd::GivenUp(why) => Err(NoValue::GivenUp(why.clone())),
            };
            for spec in &figure.numbers {
                numbers.push(self.number(figure, spec, value(spec, &find)?));
            }
            for spec in &figure.series {
                curves.push(series(figure, spec, &|run| find(run, &spec.workload))?);
            }
        }
        Ok(StudyResults { study: self.name.clone(), seed: options.seed, cores: self.cores, numbers, series: curves })
    }

    fn experiment(
        &self,
        figure: &Figure,
        run: &str,
        workload: &str,
        options: &Options,
    ) -> Result<Experiment, ModelError> {
        let mut experiment = figure.experiment(run, workload)?;
        if let Some(workload) = self.workloads.get(workload) {
            experiment.remedies = experiment.applied(workload)?;
        }
        experiment.seed = options.seed;
        experiment.scale *= options.scale;
        Ok(experiment)
    }

    /// Every experiment once.
    fn plan(&self, options: &Options) -> Result<Plan<'_>, ModelError> {
        let mut plan = Plan { experiments: Vec::new(), index: BTreeMap::new() };
        let mut planned: BTreeMap<String, usize> = BTreeMap::new();
        for (f, figure) in self.figures.iter().enumerate() {
            let of_numbers = figure.numbers.iter().flat_map(NumberSpec::runs);
            let of_series = figure.series.iter().flat_map(SeriesSpec::runs);
            for (run, workload) in of_numbers.chain(of_series) {
                if plan.index.contains_key(&(f, run, workload)) {
                    continue;
                }
                let experiment = self.experiment(figure, run, workload, options)?;
                let index = *planned.entry(key(&experiment)).or_insert(plan.experiments.len());
                if index == plan.experiments.len() {
                    plan.experiments.push(experiment);
                }
                plan.index.insert((f, run, workload), index);
            }
        }
        Ok(plan)
    }

    /// Runs `left`, in whatever order the jobs come to them; how each ended, in their order. `before` are done already.
    fn simulate(
        &self,
        left: &[(usize, &Experiment)],
        jobs: usize,
        before: usize,
        report: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Vec<RunRecord>, SimError> {
        let total = before + left.len();
        report(Progress { done: before, total, ended: None });
        let next = AtomicUsize::new(0);
        let finished = AtomicUsize::new(before);
        let records: Vec<Mutex<Option<Result<RunRecord, SimError>>>> = left.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while let Some(((_, experiment), slot)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                left.get(index).zip(records.get(index))
            } {
                let record = self.simulate_one(experiment);
                let done = finished.fetch_add(1, Ordering::Relaxed) + 1;
                report(Progress { done, total, ended: record.as_ref().ok() });
                *slot.lock().expect("no run panics while it holds its slot") = Some(record);
            }
        };
        std::thread::scope(|scope| {
            (1..jobs.min(left.len().max(1))).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        let taken = records.into_iter().map(|slot| slot.into_inner().expect("no run panics while it holds its slot"));
        taken.map(|record| record.expect("every planned run was taken by a worker")).collect()
    }

    fn simulate_one(&self, experiment: &Experiment) -> Result<RunRecord, SimError> {
        let missing = |what: &str, file: &str| ModelError::new(what, format!("`{file}`"), "a file of the study");
        let profile = self.machines.get(&experiment.machine).ok_or_else(|| missing("machine", &experiment.machine))?;
        let workload = |vm: &VmSpec| self.workloads.get(&vm.workload).ok_or_else(|| missing("workload", &vm.workload));
        let workloads = experiment.all_vms().iter().map(workload).collect::<Result<Vec<_>, _>>()?;
        let end = match Simulation::of_vms(experiment, profile, &workloads, None)?.run() {
            Ok(outcome) => RunEnd::Ended(Box::new(RunSummary::of(&outcome))),
            Err(SimError::NoProgress(stall)) => RunEnd::GivenUp(stall.to_string()),
            Err(SimError::Unfinished { limit_s }) => RunEnd::GivenUp(format!("not over after {limit_s} s")),
            Err(error) => return Err(error),
        };
        Ok(RunRecord { experiment: experiment.clone(), end })
    }

    fn number(&self, figure: &Figure, spec: &NumberSpec, value: Value) -> StudyNumber {
        let judged = matches!(spec.kind, StudyKind::Calibrated | StudyKind::Predicted) && value.is_whole;
        let scale = spec.terms[0].measure.scale();
        let beside = |paper: f64| value.simulated.and_then(|simulated| error(simulated, paper, scale));
        StudyNumber {
            study: self.name.clone(),
            figure: figure.figure.clone(),
            row: spec.row.clone(),
            column: spec.column.clone(),
            unit: spec.unit.clone(),
            paper: spec.paper,
            paper_bound: spec.paper_bound.clone(),
            kind: spec.kind,
            simulated: value.simulated,
            error: spec.paper.filter(|_| judged).and_then(beside),
            in_points: judged && spec.paper.is_some_and(|paper| is_in_points(paper, scale)),
            note: value.note,
        }
    }
}

/// The runs of a study.
struct Plan<'a> {
    experiments: Vec<Experiment>,
    /// By figure, configuration and workload.
    index: BTreeMap<(usize, &'a str, &'a str), usize>,
}

/// What tells experiments apart.
fn key(experiment: &Experiment) -> String {
    serde_json::to_string(experiment).expect("an experiment is numbers and names")
}

/// The value of a number.
struct Value {
    simulated: Option<f64>,
    /// Whether nothing is left out of it.
    is_whole: bool,
    note: Option<String>,
}

/// The value of a number: of its one term, or of all of them that have one.
fn value<'a>(
    spec: &NumberSpec,
    find: &dyn Fn(&str, &str) -> Result<&'a RunSummary, NoValue>,
) -> Result<Value, ModelError> {
    let (mut values, mut given_up) = (Vec::new(), Vec::new());
    for term in &spec.terms {
        let run = |run: &str| find(run, &term.workload).map(|summary| summary as &dyn RunFigures);
        match measure::evaluate(&term.measure, &run) {
            Ok(value) => values.push(value),
            Err(NoValue::GivenUp(why)) => given_up.push((program(&term.workload), why)),
            Err(NoValue::Input(error)) => return Err(error.within(&spec.row)),
        }
    }
    let all = |values: &[f64]| {
        spec.aggregate.map_or(values[0], |aggregate| aggregate.of(values, spec.terms[0].measure.scale()))
    };
    let note = match (&given_up[..], values.is_empty()) {
        ([], _) => None,
        ([(_, why), ..], true) => Some(why.clone()),
        (left_out, false) => {
            let names: Vec<String> = left_out.iter().map(|(name, why)| format!("{name} ({why})")).collect();
            Some(format!("without {}", names.join(", ")))
        }
    };
    Ok(Value { simulated: (!values.is_empty()).then(|| all(&values)), is_whole: given_up.is_empty(), note })
}

/// The name of a workload's file, without its place.
fn program(workload: &str) -> &str {
    let name = workload.rsplit('/').next().unwrap_or(workload);
    name.strip_suffix(".json").unwrap_or(name)
}

/// A curve; without the runs that were given up.
fn series<'a>(
    figure: &Figure,
    spec: &SeriesSpec,
    find: &dyn Fn(&str) -> Result<&'a RunSummary, NoValue>,
) -> Result<Series, ModelError> {
    let there = |run: &str| match find(run) {
        Ok(summary) => Ok(Some(summary)),
        Err(NoValue::GivenUp(_)) => Ok(None),
        Err(NoValue::Input(error)) => Err(error),
    };
    let (x, y, points) = match &spec.curve {
        Curve::ActiveCpus { run } => {
            let seconds = |ps: Ps| ps as f64 / 1e12;
            let steps = |summary: &RunSummary| {
                let history = &summary.active_history;
                let end = history.last().map(|&(_, active)| (summary.wall_ps, active));
                let steps = history.iter().copied().chain(end);
                steps.map(|(at, active)| (seconds(at), f64::from(active))).collect()
            };
            ("time (s)", "active vCPUs", there(run)?.map(steps).unwrap_or_default())
        }
        Curve::Speedup { baseline, runs } => {
            let base = there(baseline)?.map(RunFigures::seconds);
            let mut points = Vec::new();
            for run in runs {
                if let (Some(base), Some(summary)) = (base, there(run)?) {
                    let cores = figure.experiment(run, &spec.workload)?.cores;
                    points.push((f64::from(cores), base / summary.seconds()));
                }
            }
            ("cores", "speedup", points)
        }
        Curve::Values { y, points: of } => {
            let run = |run: &str| find(run).map(|summary| summary as &dyn RunFigures);
            let mut points = Vec::new();
            for point in of {
                match measure::evaluate(&point.measure, &run) {
                    Ok(value) => points.push((f64::from(point.at), value)),
                    Err(NoValue::GivenUp(_)) => {}
                    Err(NoValue::Input(error)) => return Err(error),
                }
            }
            (figure.vary.field(), y.as_str(), points)
        }
    };
    let (x, y) = (x.to_owned(), y.to_owned());
    Ok(Series { figure: figure.figure.clone(), name: spec.name.clone(), x, y, points })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::study::{Aggregate, Environment, Measure, Term};

    #[test]
    fn a_mean_says_what_it_leaves_out_and_is_not_judged() {
        let text = r#"{"name":"p","groups":[{"name":"g","count":1,"phases":[{"run":{"ns":1000}}]}]}"#;
        let workload = Workload::from_json(text, "p.json").unwrap();
        let (file, text) = BUILTIN[0].machines[0];
        let profile = Profile::from_toml(text, file).unwrap();
        let run = Simulation::new(&Experiment::new(Environment::Native, 1), &profile, &workload, None).unwrap();
        let summary = RunSummary::of(&run.run().unwrap());
        let find = |_: &str, workload: &str| match workload {
            "w/ends.json" => Ok(&summary),
            _ => Err(NoValue::GivenUp("no progress".to_owned())),
        };
        let number = |workloads: &[&str]| {
            let measure = Measure::Speedup { run: "a".to_owned(), baseline: "b".to_owned() };
            let term = |&workload: &&str| Term { workload: workload.to_owned(), measure: measure.clone() };
            let spec = NumberSpec {
                row: "r".to_owned(),
                column: "c".to_owned(),
                unit: "x".to_owned(),
                paper: Some(2.0),
                paper_bound: None,
                kind: StudyKind::Predicted,
                aggregate: Some(Aggregate::GeometricMean),
                terms: workloads.iter().map(term).collect(),
            };
            value(&spec, &find).unwrap()
        };
        let whole = number(&["w/ends.json"]);
        assert_eq!((whole.simulated, whole.is_whole, whole.note), (Some(1.0), true, None));
        let part = number(&["w/gmake.json", "w/ends.json"]);
        assert_eq!((part.simulated, part.is_whole), (Some(1.0), false));
        assert_eq!(part.note.unwrap(), "without gmake (no progress)");
        let none = number(&["w/gmake.json"]);
        assert_eq!((none.simulated, none.note.unwrap().as_str()), (None, "no progress"));
    }
}
