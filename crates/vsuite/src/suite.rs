//! The suite: which programs run how often on how many cores, and what comes out.

use crate::SuiteError;
use crate::catalog::{Program, Recipe};
use crate::external::{dbench::Dbench, make::Make};
use crate::platform::{Finished, Job, Native, Platform};
use crate::store::Store;
use crate::vm::{self, Vm, VmPlan};
use muster_model::results::{
    SuiteCheck, SuiteMeasure, SuitePlace, SuiteResults, SuiteRow, SuiteRun, SuiteSkip, SuiteVm,
};
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
    /// The virtual machine in which everything is run too.
    pub vm: Option<VmPlan>,
}

/// The most runs of a program.
const MAX_RUNS: usize = 10_000;

/// What happens while a suite runs.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Something takes its time.
    Waits(&'a str),
    /// The virtual machine runs.
    HasVm(&'a SuiteVm),
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
    /// All runs of a program ended, or it cannot run.
    Measured {
        /// The program.
        program: Program,
        /// All results so far.
        results: &'a SuiteResults,
    },
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
        if let Some(asked) = self.cores.iter().find(|asked| self.vm.is_some() && **asked > vm::MAX_CORES) {
            let allowed = format!("1 to {} with --vm: QEMU's machine has no more vCPUs", vm::MAX_CORES);
            return Err(SuiteError::bad_input("--cores", asked.to_string(), allowed));
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

/// Measures every program on every number of cores, natively and in the VM that was asked for. The runs of a program go
/// through the numbers of cores and the places round by round, so that whatever drifts moves all of them.
///
/// # Errors
/// When the plan is impossible, a run fails, or the system refuses something; events told what was measured until then.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>) -> Result<SuiteResults, SuiteError> {
    let native = Native::new()?;
    plan.check(native.cores())?;
    let store = Store::new(plan.dir.as_deref(), plan.keep)?;
    store.check_room(plan.largest())?;
    let start = |wanted| Vm::start(wanted, &native, &plan.runner, &store, tell);
    let vm = plan.vm.as_ref().map(start).transpose()?;
    let mut places: Vec<&dyn Platform> = vec![&native];
    places.extend(vm.as_ref().map(|vm| vm as &dyn Platform));
    let mut results = SuiteResults {
        platform: if vm.is_some() { "native and VM" } else { "native" }.to_owned(),
        vm: vm.as_ref().map(|vm| vm.description().clone()),
        cores: native.cores() as u32,
        seed: plan.seed,
        scale: plan.scale,
        rows: Vec::new(),
        skipped: Vec::new(),
    };
    for program in &plan.programs {
        tell(Event::Prepares(*program))?;
        match prepare(plan, *program, &store)? {
            Prepared::Missing(why) => skip(*program, why, &mut results, tell)?,
            Prepared::Ready(ready) => {
                let mut bench =
                    Bench { plan, program: *program, ready: &*ready, store: &store, places: places.clone() };
                if let Some(why) = bench.leave_out()? {
                    skip(*program, why, &mut results, tell)?;
                }
                results.rows.extend(bench.rows(tell)?);
                ready.discard(&store)?;
            }
        }
        tell(Event::Measured { program: *program, results: &results })?;
    }
    Ok(results)
}

fn skip(
    program: Program,
    why: String,
    results: &mut SuiteResults,
    tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>,
) -> Result<(), SuiteError> {
    let skip = SuiteSkip { program: program.name().to_owned(), why };
    tell(Event::Skipped(&skip))?;
    results.skipped.push(skip);
    Ok(())
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
        let (program, needs) = (self.program.name().to_owned(), vec![self.input.clone()]);
        Ok(Job { program, argv, dir: store.scratch(""), cores, needs, ..Job::default() })
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
    places: Vec<&'a dyn Platform>,
}

impl Bench<'_> {
    /// Leaves out the place that cannot run this program, and says why.
    fn leave_out(&mut self) -> Result<Option<String>, SuiteError> {
        let job = self.ready.job(self.store, 1)?;
        let mut why = None;
        self.places.retain(|place| {
            let lacks = place.lacks(&job);
            why = why.take().or(lacks.clone());
            lacks.is_none()
        });
        Ok(why)
    }

    fn rows(&self, tell: &mut dyn FnMut(Event<'_>) -> Result<(), SuiteError>) -> Result<Vec<SuiteRow>, SuiteError> {
        let (program, cores) = (self.program, &self.plan.cores);
        let reference = match self.ready.measure() {
            // One thread says what the result should be, and warms everything up.
            SuiteMeasure::Seconds => {
                tell(Event::Begins { program, cores: 1, run: "reference" })?;
                self.run(self.places[0], 1)?.checksum
            }
            SuiteMeasure::MegabytesPerSecond => None,
        };
        let mut runs = vec![vec![Vec::with_capacity(self.plan.runs); cores.len()]; self.places.len()];
        for round in 1..=self.plan.runs {
            for (index, cores) in cores.iter().enumerate() {
                for (place, runs) in self.places.iter().zip(&mut runs) {
                    // An emulator's second run says nothing that its first did not.
                    if round == 1 || place.is_timing() {
                        let name = run_name(round, self.plan.runs, place.place());
                        tell(Event::Begins { program, cores: *cores, run: &name })?;
                        runs[index].push(self.run(*place, *cores)?);
                    }
                    tell(Event::Ran)?;
                }
            }
        }
        let table = |(place, runs): (&&dyn Platform, _)| {
            let sample = Sample { program, place: place.place(), is_timing: place.is_timing() };
            sample.rows(self.ready.measure(), cores, runs, reference.as_deref())
        };
        let mut tables: Vec<_> = self.places.iter().zip(runs).map(table).collect();
        if let ([_, place], [native, vm]) = (&self.places[..], &mut tables[..])
            && place.is_timing()
        {
            degrade(native, vm);
        }
        Ok((0..cores.len()).flat_map(|index| tables.iter().map(move |rows| rows[index].clone())).collect())
    }

    fn run(&self, place: &dyn Platform, cores: usize) -> Result<SuiteRun, SuiteError> {
        let finished = place.run(&self.ready.job(self.store, cores)?)?;
        let Reading { value, checksum } = self.ready.read(self.store, &finished)?;
        let Finished { wall_ns, user_ns, kernel_ns, peak_memory_bytes, .. } = finished;
        Ok(SuiteRun { value, wall_ns, user_ns, kernel_ns, peak_memory_bytes, checksum })
    }
}

fn run_name(round: usize, runs: usize, place: SuitePlace) -> String {
    let place = match place {
        SuitePlace::Native => "",
        SuitePlace::Vm => ", in the VM",
    };
    format!("run {round} of {runs}{place}")
}

/// The runs of a program in one place.
struct Sample {
    program: Program,
    place: SuitePlace,
    is_timing: bool,
}

impl Sample {
    /// A row for each number of cores.
    fn rows(
        &self,
        measure: SuiteMeasure,
        cores: &[usize],
        runs: Vec<Vec<SuiteRun>>,
        reference: Option<&str>,
    ) -> Vec<SuiteRow> {
        let median = |runs: &[SuiteRun], of: fn(&SuiteRun) -> f64| {
            muster_stats::median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let one = cores.iter().position(|cores| *cores == 1).filter(|_| self.is_timing);
        let one = one.map(|index| median(&runs[index], |run| run.value));
        let row = |(cores, runs): (&usize, Vec<SuiteRun>)| {
            let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
            let value = median(&runs, |run| run.value);
            SuiteRow {
                program: self.program.name().to_owned(),
                place: self.place,
                cores: *cores as u32,
                measure,
                median: value,
                spread: muster_stats::half_iqr(&values).filter(|_| values.len() > 1).map(|spread| spread / value),
                speedup: one.map(|one| times_as_fast(measure, value, one)),
                degradation: None,
                kernel_share: median(&runs, |run| run.kernel_ns as f64 / (run.user_ns + run.kernel_ns).max(1) as f64),
                check: check(&runs, reference),
                runs,
            }
        };
        cores.iter().zip(runs).map(row).collect()
    }
}

/// How many times as fast a program is that measures `value` as one that measures `other`.
fn times_as_fast(measure: SuiteMeasure, value: f64, other: f64) -> f64 {
    match measure {
        SuiteMeasure::Seconds => other / value,
        SuiteMeasure::MegabytesPerSecond => value / other,
    }
}

/// Says of each row of the VM what it loses against the native one of as many cores.
fn degrade(native: &[SuiteRow], vm: &mut [SuiteRow]) {
    for (native, vm) in native.iter().zip(vm) {
        vm.degradation = Some(times_as_fast(vm.measure, native.median, vm.median) - 1.0);
    }
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
            vm: None,
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
    fn a_vm_of_more_cores_than_qemu_has_is_refused() {
        let plan = Plan { cores: vec![2, 256], ..plan() };
        assert!(plan.check(512).is_ok(), "natively");
        let error = Plan { vm: Some(VmPlan::default()), ..plan }.check(512).unwrap_err().to_string();
        assert_eq!(error, "--cores: found 256; allowed: 1 to 255 with --vm: QEMU's machine has no more vCPUs");
    }

    #[test]
    fn usual_numbers_of_cores_end_in_all() {
        for (all, usual) in [(1, &[1][..]), (2, &[1, 2]), (6, &[1, 2, 4, 6]), (8, &[1, 2, 4, 8])] {
            assert_eq!(usual_cores(all), usual);
        }
    }

    #[test]
    fn degradation_is_how_much_longer_it_takes_whatever_is_measured() {
        let table = |measure, value| {
            let sample = Sample { program: Program::Dbench, place: SuitePlace::Vm, is_timing: true };
            sample.rows(measure, &[2], vec![vec![run_of(value, 1, "a")]], None)
        };
        for (measure, native, vm) in [(SuiteMeasure::Seconds, 2.0, 3.0), (SuiteMeasure::MegabytesPerSecond, 3.0, 2.0)] {
            let mut rows = table(measure, vm);
            degrade(&table(measure, native), &mut rows);
            assert_eq!(rows[0].degradation, Some(0.5));
        }
    }

    #[test]
    fn rows_hold_medians_speedups_and_the_check() {
        let runs = vec![
            vec![run_of(4.0, 10, "a"), run_of(2.0, 30, "a"), run_of(3.0, 20, "a")],
            vec![run_of(1.5, 50, "a"), run_of(1.5, 50, "b"), run_of(1.5, 50, "a")],
        ];
        let sample = |is_timing| Sample { program: Program::Dedup, place: SuitePlace::Vm, is_timing };
        let rows_of = |cores: &[usize], measure| sample(true).rows(measure, cores, runs.clone(), Some("a"));
        let [one, two] = &rows_of(&[1, 2], SuiteMeasure::Seconds)[..] else { panic!("two rows") };
        assert_eq!((one.median, one.speedup, one.kernel_share), (3.0, Some(1.0), 0.2));
        assert_eq!((one.check, two.check), (SuiteCheck::Verified, SuiteCheck::Differs));
        assert_eq!((two.speedup, two.spread), (Some(2.0), Some(0.0)));
        assert!((one.spread.unwrap() - 0.5 / 3.0).abs() < 1e-9);
        assert_eq!(rows_of(&[1, 2], SuiteMeasure::MegabytesPerSecond)[1].speedup, Some(0.5));
        let single = |is_timing| {
            sample(is_timing).rows(SuiteMeasure::Seconds, &[1], vec![vec![run_of(4.0, 10, "a")]], Some("a"))
        };
        assert_eq!((single(true)[0].spread, single(true)[0].speedup), (None, Some(1.0)), "one run has no spread");
        assert_eq!(single(false)[0].speedup, None, "an emulator's times are none");
        assert_eq!(rows_of(&[2, 4], SuiteMeasure::Seconds)[1].speedup, None, "1 core was not measured");
    }
}
