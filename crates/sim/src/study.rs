//! Studies: a paper's tables and figures, simulated. Equal experiments of different figures run once.
//!
//! The built-in studies' files are compiled in; this room opens none.

use crate::run::{Outcome, Simulation};
use crate::{SimError, engine::Ps};
use measure::{RunFigures, evaluate};
use muster_model::results::{Series, StudyKind, StudyNumber, StudyResults};
use muster_model::study::{Curve, Experiment, Figure, NumberSpec, SeriesSpec, VmSpec, error};
use muster_model::{ModelError, Profile, Workload};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

pub mod measure;

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
    /// Events, over all runs.
    pub events: u64,
    /// Simulated time times cores, over all runs, in seconds.
    pub core_seconds: f64,
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
        let mut study =
            Self { name: name.to_owned(), figures: Vec::new(), machines: BTreeMap::new(), workloads: BTreeMap::new() };
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

    /// Simulates every run that a number or curve needs; `done` is called after each with their count and the total.
    ///
    /// # Errors
    /// The first error of any run.
    pub fn run(&self, options: &Options, done: &(dyn Fn(usize, usize) + Sync)) -> Result<StudyRun, SimError> {
        let plan = self.plan(options)?;
        let outcomes = self.simulate(&plan, options.jobs.max(1), done)?;
        let find = |figure: &Figure, run: &str, workload: &str| -> Result<&Outcome, ModelError> {
            let experiment = self.experiment(figure, run, workload, options)?;
            let index = plan.iter().position(|planned| *planned == experiment).expect("the plan has every run");
            Ok(&outcomes[index])
        };
        let mut results =
            StudyResults { study: self.name.clone(), seed: options.seed, numbers: Vec::new(), series: Vec::new() };
        for figure in &self.figures {
            for spec in &figure.numbers {
                let value = value(spec, &|run, workload| find(figure, run, workload))?;
                results.numbers.push(self.number(figure, spec, value));
            }
            for spec in &figure.series {
                results.series.push(series(figure, spec, &|run| find(figure, run, &spec.workload))?);
            }
        }
        Ok(StudyRun {
            results,
            runs: plan.len(),
            events: outcomes.iter().map(|outcome| outcome.counters.events).sum(),
            core_seconds: outcomes.iter().map(|outcome| outcome.seconds() * f64::from(outcome.cores)).sum(),
        })
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
    fn plan(&self, options: &Options) -> Result<Vec<Experiment>, ModelError> {
        let mut plan: Vec<Experiment> = Vec::new();
        for figure in &self.figures {
            let of_numbers = figure.numbers.iter().flat_map(NumberSpec::runs);
            let of_series = figure.series.iter().flat_map(SeriesSpec::runs);
            for (run, workload) in of_numbers.chain(of_series) {
                let experiment = self.experiment(figure, run, workload, options)?;
                if !plan.contains(&experiment) {
                    plan.push(experiment);
                }
            }
        }
        Ok(plan)
    }

    fn simulate(
        &self,
        plan: &[Experiment],
        jobs: usize,
        done: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Vec<Outcome>, SimError> {
        let next = AtomicUsize::new(0);
        let finished = AtomicUsize::new(0);
        let outcomes: Vec<Mutex<Option<Result<Outcome, SimError>>>> = plan.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while let Some((experiment, slot)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                plan.get(index).zip(outcomes.get(index))
            } {
                let outcome = self.simulate_one(experiment);
                *slot.lock().expect("no run panics while it holds its slot") = Some(outcome);
                done(finished.fetch_add(1, Ordering::Relaxed) + 1, plan.len());
            }
        };
        std::thread::scope(|scope| {
            (1..jobs.min(plan.len().max(1))).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        let taken = outcomes.into_iter().map(|slot| slot.into_inner().expect("no run panics while it holds its slot"));
        taken.map(|outcome| outcome.expect("every planned run was taken by a worker")).collect()
    }

    fn simulate_one(&self, experiment: &Experiment) -> Result<Outcome, SimError> {
        let missing = |what: &str, file: &str| ModelError::new(what, format!("`{file}`"), "a file of the study");
        let profile = self.machines.get(&experiment.machine).ok_or_else(|| missing("machine", &experiment.machine))?;
        let workload = |vm: &VmSpec| self.workloads.get(&vm.workload).ok_or_else(|| missing("workload", &vm.workload));
        let workloads = experiment.all_vms().iter().map(workload).collect::<Result<Vec<_>, _>>()?;
        Simulation::of_vms(experiment, profile, &workloads, None)?.run()
    }

    fn number(&self, figure: &Figure, spec: &NumberSpec, value: f64) -> StudyNumber {
        let judged = matches!(spec.kind, StudyKind::Calibrated | StudyKind::Predicted);
        let scale = spec.terms[0].measure.scale();
        StudyNumber {
            study: self.name.clone(),
            figure: figure.figure.clone(),
            row: spec.row.clone(),
            column: spec.column.clone(),
            unit: spec.unit.clone(),
            paper: spec.paper,
            paper_bound: spec.paper_bound.clone(),
            kind: spec.kind,
            simulated: value,
            error: spec.paper.filter(|_| judged).and_then(|paper| error(value, paper, scale)),
        }
    }
}

/// The value of a number: of its one term, or of all of them.
fn value<'a>(
    spec: &NumberSpec,
    find: &dyn Fn(&str, &str) -> Result<&'a Outcome, ModelError>,
) -> Result<f64, ModelError> {
    let mut values = Vec::new();
    for term in &spec.terms {
        let run = |run: &str| find(run, &term.workload).map(|outcome| outcome as &dyn RunFigures);
        values.push(evaluate(&term.measure, &run).map_err(|error| error.within(&spec.row))?);
    }
    Ok(spec.aggregate.map_or(values[0], |aggregate| aggregate.of(&values, spec.terms[0].measure.scale())))
}

fn series<'a>(
    figure: &Figure,
    spec: &SeriesSpec,
    find: &dyn Fn(&str) -> Result<&'a Outcome, ModelError>,
) -> Result<Series, ModelError> {
    let (x, y, points) = match &spec.curve {
        Curve::ActiveCpus { run } => {
            let outcome = find(run)?;
            let end = outcome.active_history.last().map(|&(_, active)| (outcome.wall_ps, active));
            let seconds = |ps: Ps| ps as f64 / 1e12;
            let steps = outcome.active_history.iter().copied().chain(end);
            ("time (s)", "active vCPUs", steps.map(|(at, active)| (seconds(at), f64::from(active))).collect())
        }
        Curve::Speedup { baseline, runs } => {
            let base = find(baseline)?.seconds();
            let point = |run: &String| {
                let cores = figure.experiment(run, &spec.workload)?.cores;
                Ok((f64::from(cores), base / find(run)?.seconds()))
            };
            ("cores", "speedup", runs.iter().map(point).collect::<Result<Vec<_>, ModelError>>()?)
        }
    };
    let (x, y) = (x.to_owned(), y.to_owned());
    Ok(Series { figure: figure.figure.clone(), name: spec.name.clone(), x, y, points })
}
