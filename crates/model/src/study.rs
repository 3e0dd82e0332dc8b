//! Experiments and studies: what is simulated, and which numbers of a paper stand beside it. Data, read from TOML.

use crate::profile::toml_error;
use crate::results::StudyKind;
use crate::{ModelError, cpuset::MAX_CPUS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Whether the program runs on the machine itself or in a VM with one vCPU per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Environment {
    /// On the machine itself.
    Native,
    /// In a VM with one vCPU per core, each on its own core.
    Virtual,
}

/// What a CPU does that has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleKind {
    /// Executes HLT: C1 on the machine itself, a VM exit in a VM.
    Halt,
    /// Polls for ever.
    Poll,
    /// Executes MWAIT; in a VM untrapped, so that the core sleeps and the VMM is not told.
    Mwait,
    /// Polls for a while as Linux's haltpoll governor decides, then halts.
    Haltpoll,
}

/// Whether a wake-up of a CPU that polls (or waits in MWAIT) needs an IPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteWake {
    /// A store to the target's flag suffices (Linux from 3.3 within one cache domain; TIF_POLLING_NRFLAG).
    Flag,
    /// Remote wake-ups are queued and announced by an IPI, whatever the target does (Linux 3.2, `ttwu_queue`).
    Ipi,
}

/// Where a woken thread is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On an idle CPU near its last one, as Linux does.
    Spread,
    /// On the waker's CPU if nobody waits there already (Gleaner's IPI-free wake-up by co-location).
    Colocate,
}

/// How a CPU that is awake is told to reschedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WakeSignal {
    /// By a rescheduling IPI.
    Ipi,
    /// By an exception that the VMM does not handle, such as a minor page fault under EPT (Gleaner, section 4). A
    /// CPU that has halted still needs the IPI.
    Exception,
}

/// Who decides how many CPUs are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consolidation {
    /// Nobody: all are.
    None,
    /// Gleaner's rule: thresholds on the CPU time of yielding threads, which also keep active CPUs awake.
    Yielding,
    /// muster's controller, `policy::consolidate`, as in `muster run`.
    Controller,
    /// Nobody: all are, but threads that wake each other share one, as in `muster run --remedy colocate`.
    Colocate,
}

/// One simulated run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// File of the machine profile.
    pub machine: String,
    /// File of the workload.
    pub workload: String,
    /// Native or in a VM.
    pub environment: Environment,
    /// Cores in use: the first so many of the machine.
    pub cores: u32,
    /// Whether the machine may be scaled out to that many ([`crate::Topology::scaled_out`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scale_out: bool,
    /// The workload's thread count; as many as cores when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// What idle CPUs do.
    #[serde(default = "halt")]
    pub idle: IdleKind,
    /// Whether waking a polling CPU needs an IPI.
    #[serde(default = "flag")]
    pub remote_wake: RemoteWake,
    /// Where woken threads are put.
    #[serde(default = "spread")]
    pub wakeup: Placement,
    /// How an awake CPU is told to reschedule.
    #[serde(default = "ipi")]
    pub wake_signal: WakeSignal,
    /// Whether every CPU has a lowest-priority yielding thread (Table 1, setting B). Implied by consolidation by
    /// yielding threads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yielding: bool,
    /// Who decides how many CPUs are active.
    #[serde(default = "no_consolidation")]
    pub consolidation: Consolidation,
    /// Seed of every random draw.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Factor on the repetitions of the workload's scaled loops.
    #[serde(default = "unit")]
    pub scale: f64,
    /// Simulated time after which the run is given up, in seconds.
    #[serde(default = "limit")]
    pub limit_s: f64,
}

fn halt() -> IdleKind {
    IdleKind::Halt
}
fn flag() -> RemoteWake {
    RemoteWake::Flag
}
fn spread() -> Placement {
    Placement::Spread
}
fn ipi() -> WakeSignal {
    WakeSignal::Ipi
}
fn no_consolidation() -> Consolidation {
    Consolidation::None
}
fn seed() -> u64 {
    1
}
fn unit() -> f64 {
    1.0
}
fn limit() -> f64 {
    3600.0
}

impl Experiment {
    /// Reads an experiment from TOML; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed TOML, an unknown field or value, or a number out of range.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ModelError> {
        let experiment: Self = toml::from_str(text).map_err(|error| toml_error(text, file, &error))?;
        experiment.validate().map_err(|error| error.within(file))?;
        Ok(experiment)
    }

    /// The workload's thread count.
    pub fn thread_count(&self) -> u32 {
        self.threads.unwrap_or(self.cores)
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn validate(&self) -> Result<(), ModelError> {
        if self.cores == 0 || self.cores as usize > MAX_CPUS {
            return Err(ModelError::new("cores", self.cores.to_string(), format!("1 to {MAX_CPUS}")));
        }
        if self.threads == Some(0) {
            return Err(ModelError::new("threads", "0", "1 or more"));
        }
        if !(self.scale.is_finite() && self.scale > 0.0 && self.scale <= 1e6) {
            return Err(ModelError::new("scale", self.scale.to_string(), "above 0, at most 1000000"));
        }
        if !(self.limit_s.is_finite() && self.limit_s > 0.0 && self.limit_s <= 1e6) {
            return Err(ModelError::new("limit_s", self.limit_s.to_string(), "above 0, at most 1000000"));
        }
        Ok(())
    }
}

/// What a number of a study is computed from. Names are those of the study's configurations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Measure {
    /// Mean time from the start of the waking call until the woken thread is back in user mode, in microseconds.
    WakeLatency {
        /// The run.
        run: String,
    },
    /// Transitions of CPUs to idle per second.
    IdleTransitions {
        /// The run.
        run: String,
    },
    /// How much longer than the baseline a run takes, in per cent.
    Slowdown {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
    },
    /// How many times as fast as the baseline a run is.
    Speedup {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
    },
    /// By how many times `from`'s slowdown exceeds `to`'s: slowdown(from) / slowdown(to), less 1 if `net`.
    Reduction {
        /// The run without the remedy.
        from: String,
        /// The run with it.
        to: String,
        /// What both are compared with.
        baseline: String,
        /// Whether the reduction is the part taken away, (from - to) / to, instead of the quotient.
        net: bool,
    },
    /// Share of the time in which no more than `at_most` CPUs are active, in per cent.
    ActiveShare {
        /// The run.
        run: String,
        /// The number of CPUs.
        at_most: u32,
    },
}

impl Measure {
    /// The configurations it names.
    pub fn runs(&self) -> Vec<&str> {
        match self {
            Self::WakeLatency { run } | Self::IdleTransitions { run } | Self::ActiveShare { run, .. } => vec![run],
            Self::Slowdown { run, baseline } | Self::Speedup { run, baseline } => vec![run, baseline],
            Self::Reduction { from, to, baseline, .. } => vec![from, to, baseline],
        }
    }

    /// Whether the value is a percentage that is judged as the factor 1 + value / 100.
    pub fn is_degradation(&self) -> bool {
        matches!(self, Self::Slowdown { .. })
    }

    /// Whether the value is a share.
    pub fn is_share(&self) -> bool {
        matches!(self, Self::ActiveShare { .. })
    }
}

/// A number to compute, and the paper's beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberSpec {
    /// Row, as the paper names it.
    pub row: String,
    /// Column, as the paper names it.
    pub column: String,
    /// Unit.
    pub unit: String,
    /// The paper's value.
    #[serde(default)]
    pub paper: Option<f64>,
    /// The bound the paper states in words.
    #[serde(default)]
    pub paper_bound: Option<String>,
    /// How it is judged.
    pub kind: StudyKind,
    /// File of the workload.
    pub workload: String,
    /// What is computed.
    pub measure: Measure,
}

/// A curve to draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesSpec {
    /// The curve's name.
    pub name: String,
    /// File of the workload.
    pub workload: String,
    /// What is drawn.
    pub curve: Curve,
}

/// What a curve shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
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
}

impl Curve {
    /// The configurations it names.
    pub fn runs(&self) -> Vec<&str> {
        match self {
            Self::ActiveCpus { run } => vec![run],
            Self::Speedup { baseline, runs } => std::iter::once(baseline).chain(runs).map(String::as_str).collect(),
        }
    }
}

/// One table or figure of a paper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Table or figure, as the paper names it.
    pub figure: String,
    /// What is left open or assumed.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What all configurations share (fields of [`Experiment`]).
    pub defaults: toml::Table,
    /// By name, what each configuration sets besides.
    pub configurations: BTreeMap<String, toml::Table>,
    /// The numbers.
    #[serde(default)]
    pub numbers: Vec<NumberSpec>,
    /// The curves.
    #[serde(default)]
    pub series: Vec<SeriesSpec>,
}

impl Figure {
    /// Reads a figure from TOML; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed TOML, an unknown field, a configuration that is named and not there, a number named twice, or a
    /// withheld number with a value.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ModelError> {
        let figure: Self = toml::from_str(text).map_err(|error| toml_error(text, file, &error))?;
        figure.validate().map_err(|error| error.within(file))?;
        Ok(figure)
    }

    fn validate(&self) -> Result<(), ModelError> {
        let mut seen = BTreeSet::new();
        for number in &self.numbers {
            let place = format!("numbers.{}.{}", number.row, number.column);
            if !seen.insert((&number.row, &number.column)) {
                return Err(ModelError::new(place, "the same row and column twice", "each once"));
            }
            if number.kind == StudyKind::Withheld && number.paper.is_some() {
                return Err(ModelError::new(place, "a value for a withheld number", "no `paper` for kind withheld"));
            }
            number.measure.runs().into_iter().try_for_each(|run| self.known(run, &place))?;
        }
        for series in &self.series {
            let place = format!("series.{}", series.name);
            series.curve.runs().into_iter().try_for_each(|run| self.known(run, &place))?;
        }
        for (name, number) in self.numbers.iter().map(|n| (n.row.as_str(), n)) {
            for run in number.measure.runs() {
                self.experiment(run, &number.workload).map_err(|error| error.within(&format!("numbers.{name}")))?;
            }
        }
        Ok(())
    }

    fn known(&self, run: &str, place: &str) -> Result<(), ModelError> {
        if self.configurations.contains_key(run) {
            return Ok(());
        }
        let names = self.configurations.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(ModelError::new(place, format!("unknown configuration `{run}`"), names))
    }

    /// The experiment that configuration `name` makes of a workload.
    ///
    /// # Errors
    /// When the configuration is unknown or the fields do not make an experiment.
    pub fn experiment(&self, name: &str, workload: &str) -> Result<Experiment, ModelError> {
        self.known(name, &self.figure)?;
        let mut table = self.defaults.clone();
        table.extend(self.configurations[name].clone());
        table.insert("workload".into(), workload.into());
        let experiment: Experiment = table.try_into().map_err(|error: toml::de::Error| {
            let allowed = "the fields of an experiment, docs/study.md";
            ModelError::new(format!("configurations.{name}"), error.message().to_owned(), allowed)
        })?;
        experiment.validate().map_err(|error| error.within(&format!("configurations.{name}")))?;
        Ok(experiment)
    }
}

/// How far a simulated value is from the paper's (DESIGN section 4): |ln(simulated / paper)| on values and on factors
/// 1 + degradation; shares below 5 % by absolute points. `None` where the logarithm does not exist.
pub fn error(simulated: f64, paper: f64, degradation: bool, share: bool) -> Option<f64> {
    let (s, p) = if degradation { (1.0 + simulated / 100.0, 1.0 + paper / 100.0) } else { (simulated, paper) };
    if share && paper < 5.0 {
        return Some((simulated - paper).abs());
    }
    (s > 0.0 && p > 0.0).then(|| (s / p).ln().abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: &str = r#"
        figure = "Figure 9"
        [defaults]
        machine = "m.toml"
        cores = 4
        [configurations.native]
        environment = "native"
        [configurations.virtual]
        environment = "virtual"
        idle = "haltpoll"
        [[numbers]]
        row = "a"
        column = "b"
        unit = "%"
        paper = 100
        kind = "predicted"
        workload = "w.json"
        measure = { slowdown = { run = "virtual", baseline = "native" } }
    "#;

    #[test]
    fn a_figure_makes_experiments() {
        let figure = Figure::from_toml(FIGURE, "f.toml").unwrap();
        let experiment = figure.experiment("virtual", "w.json").unwrap();
        assert_eq!(experiment.idle, IdleKind::Haltpoll);
        assert_eq!(experiment.thread_count(), 4);
    }

    #[test]
    fn bad_figures_and_experiments_are_refused() {
        for (from, to, wanted) in [
            ("cores = 4", "cores = 0", "cores: found 0"),
            ("run = \"virtual\"", "run = \"x\"", "unknown configuration `x`"),
            ("idle = \"haltpoll\"", "idle = \"nap\"", "unknown variant `nap`"),
            ("kind = \"predicted\"", "kind = \"withheld\"", "withheld"),
            ("column", "colum", "f.toml, line"),
        ] {
            let error = Figure::from_toml(&FIGURE.replace(from, to), "f.toml").unwrap_err().to_string();
            assert!(error.starts_with("f.toml") && error.contains(wanted), "{error}");
        }
        let error =
            Experiment::from_toml("machine='m'\nworkload='w'\nenvironment='native'\ncores=1\nscale=0.0", "e.toml");
        assert!(error.unwrap_err().to_string().contains("scale"));
    }

    #[test]
    fn errors_are_judged_as_the_design_says() {
        assert_eq!(error(583.0, 583.0, true, false), Some(0.0));
        assert!((error(100.0, 0.0, true, false).unwrap() - 2f64.ln()).abs() < 1e-12);
        assert_eq!(error(4.0, 1.0, false, true), Some(3.0));
        assert_eq!(error(0.0, 5.0, false, false), None);
    }
}
