//! The suite: which programs run how often on how many cores, and what comes out.

use crate::SuiteError;
use crate::catalog::{Program, Recipe};
use crate::external::{dbench::Dbench, make::Make};
use crate::platform::{Finished, Job, Platform};
use crate::store::Store;
use muster_model::results::{SuiteCheck, SuiteMeasure, SuiteResults, SuiteRow, SuiteRun, SuiteSkip};
use std::path::PathBuf;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The programs, in this order.
    pub programs: Vec<Program>,
    /// On how many cores, each with as many threads.
    pub cores: Vec<usize>,
    /// Measured runs of each program on each number of cores.
    pub runs: usize,
    /// The size of the inputs, relative to the paper's.
    pub scale: f64,
    /// What the inputs are generated from.
    pub seed: u64,
    /// Where inputs and outputs lie; memory where there is such a file system, when absent.
    pub dir: Option<PathBuf>,
    /// Whether inputs stay for the next time.
    pub keep: bool,
    /// The command that runs one of our own programs: `muster` and the name of its hidden command.
    pub runner: [String; 2],
}

/// The most runs of a program.
const MAX_RUNS: usize = 10_000;

/// What happens while a suite runs.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// The input of a program is made.
    Prepares(Program),
    /// A program cannot run here.
    Skipped(&'a SuiteSkip),
    /// A run begins.
    Begins {
        /// The program.
        program: Program,
        /// On how many cores.
        cores: usize,
        /// Which run, in words.
        run: &'a str,
    },
    /// A measured run ended.
    Ran,
    /// All runs of a program ended: all results so far.
    Measured(&'a SuiteResults),
}

/// What a run said.
pub(crate) struct Reading {
    pub value: f64,
    pub checksum: Option<String>,
}

/// A program whose input is there.
pub(crate) trait Ready {
    /// What tells how fast it is.
    fn measure(&self) -> SuiteMeasure;

    /// Makes everything ready for a run on so many cores and says what is to be run.
    fn job(&self, store: &Store, cores: usize) -> Result<Job, SuiteError>;

    /// Reads what a run left, and cleans up after it.
    fn read(&self, store: &Store, finished: &Finished) -> Result<Reading, SuiteError>;

    /// Removes the input.
    fn discard(&self, store: &Store) -> Result<(), SuiteError>;
}

/// A program, or what is missing for it.
pub(crate) enum Prepared {
    Ready(Box<dyn Ready>),
    Missing(String),
}

impl Plan {
    /// Refuses what cannot be measured on a platform of so many cores.
    ///
    /// # Errors
    /// Names the option, what was found and what is allowed.
    pub fn check(&self, cores: usize) -> Result<(), SuiteError> {
        let is_within = |asked: &&usize| !(1..=cores).contains(*asked);
        if let Some(asked) = self.cores.iter().find(is_within) {
            let there = if cores == 1 { "there is 1 core".to_owned() } else { format!("there are {cores} cores") };
            return Err(SuiteError::bad_input("--cores", asked.to_string(), format!("1 to {cores}: {there} here")));
        }
        if self.cores.is_empty() || self.programs.is_empty() {
            return Err(SuiteError::bad_input("--cores and --programs", "an empty list", "at least one of each"));
        }
        if !(1..=MAX_RUNS).contains(&self.runs) {
            return Err(SuiteError::bad_input("--runs", self.runs.to_string(), format!("1 to {MAX_RUNS}")));
        }
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            let allowed = "a number above 0, up to 1: the paper's sizes";
            return Err(SuiteError::bad_input("--scale", self.scale.to_string(), allowed));
        }
        Ok(())
    }

    fn largest(&self) -> u64 {
        let need = |recipe: Recipe| recipe.bytes(self.scale) * if recipe.writes { 2 } else { 1 };
        self.programs.iter().filter_map(|program| program.recipe()).map(need).max().unwrap_or(0)
    }
}

/// The numbers of cores that are measured when none are asked for: powers of two, and all there are.
pub fn usual_cores(all: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |cores: &usize| cores.checked_mul(2));
    powers.take_while(|cores| *cores < all).chain([all]).collect()
}

/// Measures every program on every number of cores. The runs of a program go through the numbers of cores round by round,
/// so that whatever drifts moves all of them.
///
/// # Errors
/// When the plan is impossible, a run fails, or the system refuses something; events told what was measured until then.
pub fn run(
    plan: &Plan,
    platform: &dyn Platform,
    tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>,
) -> Result<SuiteResults, SuiteError> {
    plan.check(platform.cores())?;
    let store = Store::new(plan.dir.as_deref(), plan.keep)?;
    store.check_room(plan.largest())?;
    let mut results = SuiteResults {
        platform: platform.name().to_owned(),
        cores: platform.cores() as u32,
        seed: plan.seed,
        scale: plan.scale,
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    for program in &plan.programs {
        tell(Event::Prepares(*program))?;
        match prepare(plan, *program, &store)? {
            Prepared::Missing(why) => {
                let skip = SuiteSkip { program: program.name().to_owned(), why };
                tell(Event::Skipped(&skip))?;
                results.skipped.push(skip);
            }
            Prepared::Ready(ready) => {
                let bench = Bench { plan, program: *program, ready: &*ready, store: &store, platform };
                results.rows.extend(bench.rows(tell)?);
                ready.discard(&store)?;
            }
        }
        tell(Event::Measured(&results))?;
    }
    Ok(results)
}

fn prepare(plan: &Plan, program: Program, store: &Store) -> Result<Prepared, SuiteError> {
    match (program, program.recipe()) {
        (Program::Make, _) => Make::prepare(plan.scale, plan.seed, store),
        (_, None) => Ok(Dbench::prepare(plan.scale)),
        (_, Some(recipe)) => {
            let bytes = recipe.bytes(plan.scale);
            let input = store.input(program.name(), plan.seed, bytes, &(recipe.fill)(plan.seed, bytes))?;
            Ok(Prepared::Ready(Box::new(Own { program, input, runner: plan.runner.clone() })))
        }
    }
}

/// One of our own programs.
struct Own {
    program: Program,
    input: PathBuf,
    runner: [String; 2],
}

impl Ready for Own {
    fn measure(&self) -> SuiteMeasure {
        SuiteMeasure::Seconds
    }

    fn job(&self, store: &Store, cores: usize) -> Result<Job, SuiteError> {
        let mut argv: Vec<_> = self.runner.iter().map(Into::into).collect();
        argv.extend(["--program", self.program.name(), "--threads", &cores.to_string()].map(Into::into));
        argv.extend(["--input".into(), self.input.clone().into(), "--output".into(), store.scratch("output").into()]);
        Ok(Job { program: self.program.name(), argv, dir: store.scratch(""), cores })
    }

    fn read(&self, store: &Store, finished: &Finished) -> Result<Reading, SuiteError> {
        store.discard(&store.scratch("output"))?;
        let checksum = Some(finished.stdout.trim().to_owned());
        Ok(Reading { value: finished.wall_ns as f64 / 1e9, checksum })
    }

    fn discard(&self, store: &Store) -> Result<(), SuiteError> {
        store.discard(&self.input)
    }
}

/// A program that is being measured.
struct Bench<'a> {
    plan: &'a Plan,
    program: Program,
    ready: &'a dyn Ready,
    store: &'a Store,
    platform: &'a dyn Platform,
}

impl Bench<'_> {
    fn rows(&self, tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>) -> Result<Vec<SuiteRow>, SuiteError> {
        let (program, cores) = (self.program, &self.plan.cores);
        let reference = match self.ready.measure() {
            // One thread says what the result should be, and warms everything up.
            SuiteMeasure::Seconds => {
                tell(Event::Begins { program, cores: 1, run: "reference" })?;
                self.run(1)?.checksum
            }
            SuiteMeasure::MegabytesPerSecond => None,
        };
        let mut runs = vec![Vec::with_capacity(self.plan.runs); cores.len()];
        for round in 1..=self.plan.runs {
            let name = format!("run {round} of {}", self.plan.runs);
            for (cores, runs) in cores.iter().zip(&mut runs) {
                tell(Event::Begins { program, cores: *cores, run: &name })?;
                runs.push(self.run(*cores)?);
                tell(Event::Ran)?;
            }
        }
        Ok(rows(self.program, self.ready.measure(), cores, runs, reference.as_deref()))
    }

    fn run(&self, cores: usize) -> Result<SuiteRun, SuiteError> {
        let finished = self.platform.run(&self.ready.job(self.store, cores)?)?;
        let Reading { value, checksum } = self.ready.read(self.store, &finished)?;
        let Finished { wall_ns, user_ns, kernel_ns, peak_memory_bytes, .. } = finished;
        Ok(SuiteRun { value, wall_ns, user_ns, kernel_ns, peak_memory_bytes, checksum })
    }
}

/// A row for each number of cores.
fn rows(
    program: Program,
    measure: SuiteMeasure,
    cores: &[usize],
    runs: Vec<Vec<SuiteRun>>,
    reference: Option<&str>,
) -> Vec<SuiteRow> {
    let median = |runs: &[SuiteRun], of: fn(&SuiteRun) -> f64| {
        muster_stats::median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let one = cores.iter().position(|cores| *cores == 1).map(|index| median(&runs[index], |run| run.value));
    let speedup = |value: f64, one: f64| match measure {
        SuiteMeasure::Seconds => one / value,
        SuiteMeasure::MegabytesPerSecond => value / one,
    };
    let row = |(cores, runs): (&usize, Vec<SuiteRun>)| {
        let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
        let value = median(&runs, |run| run.value);
        SuiteRow {
            program: program.name().to_owned(),
            cores: *cores as u32,
            measure,
            median: value,
            spread: muster_stats::half_iqr(&values).filter(|_| values.len() > 1).map(|spread| spread / value),
            speedup: one.map(|one| speedup(value, one)),
            kernel_share: median(&runs, |run| run.kernel_ns as f64 / (run.user_ns + run.kernel_ns).max(1) as f64),
            check: check(&runs, reference),
            runs,
        }
    };
    cores.iter().zip(runs).map(row).collect()
}

fn check(runs: &[SuiteRun], reference: Option<&str>) -> SuiteCheck {
    match reference {
        None => SuiteCheck::NoResult,
        Some(sum) if runs.iter().all(|run| run.checksum.as_deref() == Some(sum)) => SuiteCheck::Verified,
        Some(_) => SuiteCheck::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            programs: vec![Program::Histogram],
            cores: vec![1, 2],
            runs: 3,
            scale: 0.05,
            seed: 1,
            dir: None,
            keep: false,
            runner: ["muster".to_owned(), "vsuite-run".to_owned()],
        }
    }

    fn run_of(value: f64, kernel_ns: u64, checksum: &str) -> SuiteRun {
        let (wall_ns, user_ns) = ((value * 1e9) as u64, 100 - kernel_ns);
        SuiteRun { value, wall_ns, user_ns, kernel_ns, peak_memory_bytes: 1, checksum: Some(checksum.to_owned()) }
    }

    #[test]
    fn impossible_plans_are_refused_by_name() {
        type Break = fn(&mut Plan);
        let cases: [(Break, &str); 8] = [
            (|plan| plan.cores = vec![1, 0], "--cores: found 0; allowed: 1 to 4: there are 4 cores here"),
            (|plan| plan.cores = vec![1_000_000], "--cores: found 1000000; allowed: 1 to 4: there are 4 cores here"),
            (|plan| plan.cores.clear(), "--cores and --programs"),
            (|plan| plan.runs = 0, "--runs: found 0"),
            (|plan| plan.scale = 0.0, "--scale: found 0; allowed: a number above 0, up to 1"),
            (|plan| plan.scale = -1.0, "--scale: found -1"),
            (|plan| plan.scale = f64::NAN, "--scale: found NaN"),
            (|plan| plan.scale = 1.5, "--scale: found 1.5"),
        ];
        assert!(plan().check(4).is_ok());
        for (change, message) in cases {
            let mut plan = plan();
            change(&mut plan);
            let error = plan.check(4).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn usual_numbers_of_cores_end_in_all() {
        for (all, usual) in [(1, &[1][..]), (2, &[1, 2]), (6, &[1, 2, 4, 6]), (8, &[1, 2, 4, 8])] {
            assert_eq!(usual_cores(all), usual);
        }
    }

    #[test]
    fn rows_hold_medians_speedups_and_the_check() {
        let runs = vec![
            vec![run_of(4.0, 10, "a"), run_of(2.0, 30, "a"), run_of(3.0, 20, "a")],
            vec![run_of(1.5, 50, "a"), run_of(1.5, 50, "b"), run_of(1.5, 50, "a")],
        ];
        let rows_of = |cores: &[usize], measure| rows(Program::Dedup, measure, cores, runs.clone(), Some("a"));
        let [one, two] = &rows_of(&[1, 2], SuiteMeasure::Seconds)[..] else { panic!("two rows") };
        assert_eq!((one.median, one.speedup, one.kernel_share), (3.0, Some(1.0), 0.2));
        assert_eq!((one.check, two.check), (SuiteCheck::Verified, SuiteCheck::Differs));
        assert_eq!((two.speedup, two.spread), (Some(2.0), Some(0.0)));
        assert!((one.spread.unwrap() - 0.5 / 3.0).abs() < 1e-9);
        assert_eq!(rows_of(&[1, 2], SuiteMeasure::MegabytesPerSecond)[1].speedup, Some(0.5));
        let single = rows(Program::Dedup, SuiteMeasure::Seconds, &[1], vec![vec![run_of(4.0, 10, "a")]], Some("a"));
        assert_eq!(single[0].spread, None, "one run has no spread");
        assert_eq!(rows_of(&[2, 4], SuiteMeasure::Seconds)[1].speedup, None, "1 core was not measured");
    }
}
