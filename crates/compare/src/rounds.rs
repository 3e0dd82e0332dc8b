//! The comparison's course: warm-up, then rounds of one run per arm until there are enough.

use crate::arm::ArmSpec;
use crate::error::CompareError;
use crate::launch::{Output, command, end_tree_on_signal, ending, not_started, shell, tail};
use crate::machine::{Foreign, Snapshot, become_subreaper, left_behind, reap_orphans};
use crate::metric::Metric;
use crate::order::order;
use crate::pair::{Pair, PairReport, Ready};
use crate::summary::{notes_on_runs, summarize};
use muster_model::results::{Comparison, Run};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the machine is watched before it counts as quiet: 25 timer ticks at 100 Hz, so that one tick of somebody
/// else on one CPU of two is 2 %.
const WATCH_FOR: Duration = Duration::from_millis(250);

/// What to compare, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program.
    pub program: Program,
    /// The arms, baseline first; at least two.
    pub arms: Vec<ArmSpec>,
    /// What is compared.
    pub metric: Metric,
    /// What the metric counts, in the user's word.
    pub unit: String,
    /// Counted rounds; at least 1.
    pub rounds: usize,
    /// Rounds before the first counted one.
    pub warmup: usize,
    /// When a machine is quiet, and how long to wait for it.
    pub quiet: Quiet,
    /// Shell command before each run, outside the arm and the measurement.
    pub prepare: Option<String>,
    /// Shell command after each run, likewise.
    pub conclude: Option<String>,
    /// Path under which this very program can be started.
    pub muster: String,
}

/// The program under comparison.
#[derive(Debug, Clone)]
pub enum Program {
    /// A command line.
    Command(Vec<String>),
    /// A server and its load.
    Pair(Pair),
}

/// When a machine is quiet.
#[derive(Debug, Clone, Copy)]
pub struct Quiet {
    /// Others' share of all CPU time up to which a run counts as undisturbed, 0 to 1.
    pub max_foreign: f64,
    /// How long to wait for a quiet machine, over the whole comparison.
    pub max_wait: Duration,
}

/// What happens, for a progress bar and for exports.
#[derive(Debug)]
pub enum Event<'a> {
    /// Others are busy; the comparison waits.
    Waiting(&'a Foreign),
    /// A run begins.
    Begins {
        /// Which arm.
        arm: &'a str,
        /// Which run, in words.
        run: &'a str,
    },
    /// A run is done.
    Ran,
    /// A round will be repeated: others disturbed it.
    Repeats(&'a Foreign),
    /// A round is done: all results so far.
    Round(&'a Comparison),
}

/// Runs the comparison. `on` hears of every event; an error of it ends the comparison.
///
/// # Errors
/// When a run fails, its output lacks the metric, a helper command fails or the system refuses something. Whatever
/// was handed to `on` before stays valid.
pub fn run(plan: &Plan, on: &mut dyn FnMut(Event<'_>) -> Result<(), CompareError>) -> Result<Comparison, CompareError> {
    become_subreaper()?;
    end_tree_on_signal().map_err(CompareError::system("signal handler"))?;
    let scratch = tempfile::tempdir().map_err(CompareError::system("temporary directory"))?;
    let mut course = Course { plan, scratch: scratch.path(), on, log: NoiseLog::default() };
    for round in 0..plan.warmup {
        for arm in order(round, plan.arms.len()) {
            course.one_run(arm, &format!("warm-up {} of {}", round + 1, plan.warmup))?;
        }
    }
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); plan.arms.len()];
    let mut comparison = course.summary(&runs);
    while runs[0].len() < plan.rounds {
        course.wait_for_quiet()?;
        if let Some(round) = course.one_round(runs[0].len())? {
            runs.iter_mut().zip(round).for_each(|(runs, run)| runs.push(run));
            comparison = course.summary(&runs);
            (course.on)(Event::Round(&comparison))?;
        }
    }
    Ok(comparison)
}

struct Course<'a> {
    plan: &'a Plan,
    scratch: &'a Path,
    on: &'a mut dyn FnMut(Event<'_>) -> Result<(), CompareError>,
    log: NoiseLog,
}

/// What others did to the comparison.
#[derive(Debug, Default)]
struct NoiseLog {
    waited: Duration,
    repeated: usize,
    kept_noisy: usize,
    worst: f64,
    culprits: BTreeMap<String, usize>,
    left_behind: Vec<String>,
}

impl Course<'_> {
    /// One run of every arm; `None` when others disturbed it and it is to be repeated.
    fn one_round(&mut self, round: usize) -> Result<Option<Vec<Run>>, CompareError> {
        let mut runs: Vec<Option<Run>> = vec![None; self.plan.arms.len()];
        let mut is_noisy = false;
        for arm in order(round, self.plan.arms.len()) {
            let (run, foreign) = self.one_run(arm, &format!("run {} of {}", round + 1, self.plan.rounds))?;
            runs[arm] = Some(run);
            if foreign.share > self.plan.quiet.max_foreign {
                is_noisy = true;
                self.log.blame(&foreign);
                // Bounded: on a machine that is never quiet the rounds are kept and marked.
                if self.log.repeated < self.plan.rounds.div_ceil(2) {
                    self.log.repeated += 1;
                    (self.on)(Event::Repeats(&foreign))?;
                    return Ok(None);
                }
            }
        }
        self.log.kept_noisy += usize::from(is_noisy);
        Ok(runs.into_iter().collect())
    }

    fn wait_for_quiet(&mut self) -> Result<(), CompareError> {
        let own = std::process::id();
        let began = Instant::now();
        let mut is_first = true;
        loop {
            let before = Snapshot::before(own)?;
            std::thread::sleep(WATCH_FOR);
            let foreign = before.foreign_until(&Snapshot::after(own)?);
            let is_over = self.log.waited + began.elapsed() >= self.plan.quiet.max_wait;
            if foreign.share <= self.plan.quiet.max_foreign || is_over {
                // The first look is no waiting.
                self.log.waited += if is_first { Duration::ZERO } else { began.elapsed() };
                return Ok(());
            }
            is_first = false;
            self.log.blame(&foreign);
            (self.on)(Event::Waiting(&foreign))?;
        }
    }

    fn one_run(&mut self, arm: usize, name: &str) -> Result<(Run, Foreign), CompareError> {
        let spec = &self.plan.arms[arm];
        (self.on)(Event::Begins { arm: &spec.name, run: name })?;
        helper(self.plan.prepare.as_deref())?;
        let measured = self.measured_run(spec, name)?;
        helper(self.plan.conclude.as_deref())?;
        self.log.left_behind = left_behind()?;
        (self.on)(Event::Ran)?;
        Ok(measured)
    }

    /// Runs the program once under `spec`; the run's figures, with its speed, and who disturbed it.
    fn measured_run(&self, spec: &ArmSpec, name: &str) -> Result<(Run, Foreign), CompareError> {
        let failed = |(how, code): (String, u8), tail: String| CompareError::RunFailed {
            arm: spec.name.clone(),
            run: name.to_owned(),
            how,
            code,
            tail,
        };
        let system = |what: &str| CompareError::system(what.to_owned());
        let argv: Vec<String> = spec.prefix.iter().cloned().chain(self.argv()).collect();
        let wants_stdout = !matches!(self.plan.metric, Metric::WallTime);
        let own = std::process::id();
        let before = Snapshot::before(own)?;
        let (mut child, mut output) = Output::spawn(command(&argv), wants_stdout)
            .map_err(|error| failed(not_started(&argv[0], &error), String::new()))?;
        let status = child.wait().map_err(system("wait"))?;
        reap_orphans();
        let after = Snapshot::after(own)?;
        let stderr = output.stderr().map_err(system("output file"))?;
        let report = self.pair_report();
        if let Some(PairReport::NotReady { why }) = report {
            return Err(failed((why, 1), tail(&stderr)));
        }
        if !status.success() {
            return Err(failed(ending(status), tail(&stderr)));
        }
        let (before, after) = match (&self.plan.program, report) {
            (Program::Pair(_), Some(PairReport::Ran { before, after })) => (*before, *after),
            (Program::Pair(_), _) => {
                return Err(failed(("ended without running the load".to_owned(), 1), tail(&stderr)));
            }
            (Program::Command(_), _) => (before, after),
        };
        let mut run = before.run_until(&after);
        let stdout = output.stdout().map_err(system("output file"))?;
        run.speed = self
            .plan
            .metric
            .speed(run.wall_ns, &stdout, &stderr)
            .map_err(|problem| CompareError::NoMetric { arm: spec.name.clone(), run: name.to_owned(), problem })?;
        Ok((run, before.foreign_until(&after)))
    }

    /// The command line behind an arm's prefix.
    fn argv(&self) -> Vec<String> {
        match &self.plan.program {
            Program::Command(argv) => argv.clone(),
            Program::Pair(pair) => {
                let file = |name: &str| self.scratch.join(name).display().to_string();
                let (ready, until) = match &pair.ready {
                    Ready::Output(regex) => ("--ready", regex.to_string()),
                    Ready::Port(port) => ("--ready-port", port.to_string()),
                };
                let root = std::process::id().to_string();
                let words = [
                    (&*self.plan.muster, "compare-pair".to_owned()),
                    ("--server", pair.server.clone()),
                    ("--load", pair.load.clone()),
                    (ready, until),
                    ("--report", file("report.json")),
                    ("--log", file("server.log")),
                    ("--root", root),
                ];
                words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
            }
        }
    }

    /// Takes the report of a pair that has just ended, so that the next one cannot be mistaken for it.
    fn pair_report(&self) -> Option<PairReport> {
        let path = self.scratch.join("report.json");
        let report = serde_json::from_slice(&fs::read(&path).ok()?).ok();
        // Gone or not, a report that cannot be read is none.
        let _ = fs::remove_file(&path);
        report
    }

    fn summary(&self, runs: &[Vec<Run>]) -> Comparison {
        let command = match &self.plan.program {
            Program::Command(argv) => {
                shlex::try_join(argv.iter().map(String::as_str)).unwrap_or_else(|_| argv.join(" "))
            }
            Program::Pair(pair) => format!("{} under {}", pair.server, pair.load),
        };
        let mut notes = self.log.notes(self.plan);
        notes.extend(notes_on_runs(&self.plan.arms, runs));
        Comparison {
            command,
            metric: self.plan.unit.clone(),
            arms: summarize(&self.plan.arms, runs, &self.plan.metric),
            notes,
        }
    }
}

impl NoiseLog {
    fn blame(&mut self, foreign: &Foreign) {
        self.worst = self.worst.max(foreign.share);
        if let Some(name) = &foreign.most {
            *self.culprits.entry(name.clone()).or_default() += 1;
        }
    }

    fn notes(&self, plan: &Plan) -> Vec<String> {
        let culprit = self.culprits.iter().max_by_key(|(_, times)| **times).map(|(name, _)| name.as_str());
        let who = format!(
            "others (mostly {}) used up to {:.0} % of all CPU time",
            culprit.unwrap_or("unknown"),
            self.worst * 100.0
        );
        let limit = plan.quiet.max_foreign * 100.0;
        let mut notes = Vec::new();
        if self.waited >= Duration::from_secs(1) {
            notes.push(format!("Waited {:.0} s for a quiet machine: {who}.", self.waited.as_secs_f64()));
        }
        if self.repeated > 0 {
            notes.push(format!(
                "{} repeated because {who}; up to {limit:.0} % counts as quiet.",
                rounds(self.repeated, "was", "were")
            ));
        }
        if self.kept_noisy > 0 {
            notes.push(format!(
                "{} noisy and kept, of {}: {who}; up to {limit:.0} % counts as quiet.",
                rounds(self.kept_noisy, "is", "are"),
                plan.rounds
            ));
        }
        if !self.left_behind.is_empty() {
            notes.push(format!("Processes are still there after the last run: {}.", self.left_behind.join(", ")));
        }
        notes
    }
}

/// So many rounds, and the verb that agrees.
fn rounds(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 round {one}") } else { format!("{count} rounds {many}") }
}

fn helper(line: Option<&str>) -> Result<(), CompareError> {
    let Some(line) = line else { return Ok(()) };
    let failed = |how: String| CompareError::HelperFailed { command: line.to_owned(), how };
    let (mut child, mut output) =
        Output::spawn(shell(line), false).map_err(|error| failed(format!("could not be started: {error}")))?;
    let status = child.wait().map_err(CompareError::system("wait"))?;
    if status.success() {
        return Ok(());
    }
    let stderr = output.stderr().map_err(CompareError::system("output file"))?;
    Err(failed(format!("{}\n{}", ending(status).0, tail(&stderr)).trim_end().to_owned()))
}
