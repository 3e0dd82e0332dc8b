//! Results as they are written and read: one JSON document per command, told apart by its `kind`.
//!
//! `muster report` reads any of them; whatever a command measured is in here, so that nothing has to be measured twice.

use crate::{Ledger, Profile};
use serde::{Deserialize, Serialize};

/// Any result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ResultFile {
    /// What `muster probe` measured.
    Probe(Box<Profile>),
    /// What `muster explain` found.
    Explain(Explanation),
    /// What `muster compare` measured.
    Compare(Comparison),
    /// What `muster study` computed.
    Study(StudyResults),
    /// What `muster vsuite` measured.
    Vsuite(SuiteResults),
}

/// What `muster explain` found out about one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The command line, or `--pid N`.
    pub command: String,
    /// Where its time went.
    pub ledger: Ledger,
    /// Rates and counts that the ledger rests on, in reading order.
    pub signals: Vec<Signal>,
    /// What each remedy would give back, best first.
    pub remedies: Vec<Prediction>,
    /// Channels that were read.
    pub channels_used: Vec<String>,
    /// Channels that were missing, and what the answer loses by it.
    pub channels_missing: Vec<String>,
    /// The answer in sentences.
    pub findings: Vec<String>,
    /// What the same program would meet on more vCPUs, simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projection: Option<Box<Projection>>,
}

/// A recorded program, simulated on another number of vCPUs of the same kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// vCPUs, and cores of the machine it is compared with.
    pub vcpus: u32,
    /// So many copies of the program run there.
    pub copies: u32,
    /// Threads of all copies.
    pub threads: u32,
    /// The seed that reproduces it.
    pub seed: u64,
    /// What was assumed, in sentences: how the program and the machine were scaled, what the recording leaves out.
    pub assumptions: Vec<String>,
    /// The same recording, simulated where it was made.
    pub home: HomeCheck,
    /// What it would meet; `None` where the recording does not reproduce what was seen at home.
    pub found: Option<Projected>,
}

/// How well a recording reproduces what was seen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HomeCheck {
    /// vCPUs the program could use.
    pub vcpus: u32,
    /// CPUs it kept busy.
    pub cpu_rate: Checked,
    /// Halts per second of those vCPUs.
    pub halts_per_s: Checked,
    /// The larger of both errors, as a factor less 1.
    pub error: f64,
    /// The error up to which the projection is told.
    pub allowed: f64,
    /// Hand-overs; `None` where they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handovers: Option<HandoverCheck>,
}

/// How often threads were switched in, as it was seen and as it was simulated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HandoverCheck {
    /// Switch-ins per second: the mean, and the least and the most that a stretch of the recorded phase showed.
    pub seen_per_s: Range,
    /// Simulated.
    pub simulated_per_s: f64,
    /// How far that is outside the range seen, as a factor less 1.
    pub error: f64,
    /// The error up to which the projection is told.
    pub allowed: f64,
}

impl HandoverCheck {
    /// Whether the recording hands over as often as the program did.
    pub fn passes(&self) -> bool {
        self.error <= self.allowed
    }
}

impl HomeCheck {
    /// Whether the recording behaves as the program did.
    pub fn passes(&self) -> bool {
        self.error <= self.allowed && self.handovers.is_none_or(|handovers| handovers.passes())
    }
}

/// A value as it was seen and as it was simulated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// Seen.
    pub seen: f64,
    /// Simulated.
    pub simulated: f64,
}

/// What a program would meet on more vCPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Projected {
    /// How many times as fast it is on the machine itself, without a hypervisor.
    pub slowdown: f64,
    /// Transitions of all vCPUs to idle per second.
    pub idle_transitions_per_s: f64,
    /// Share of core time, 0 to 1, that goes into halting and waking.
    pub waking_share: f64,
    /// What remedies give back, relative to the VM without them.
    pub remedies: Vec<ProjectedRemedy>,
}

/// What one remedy gives back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProjectedRemedy {
    /// Its name as `muster run --remedy` takes it.
    pub remedy: String,
    /// The vCPUs that stay in use.
    pub vcpus: u32,
    /// Speed, relative to none.
    pub speed: f64,
    /// CPU time per unit of work, polling included, relative to none.
    pub cpu_per_work: f64,
}

/// One number with a name and a unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// What one remedy is predicted to do to one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The remedy's name as `muster run --remedy` takes it; others are named in words.
    pub remedy: String,
    /// Predicted speed relative to now, with the range it lies in; `None` where nothing can be said.
    pub speed: Option<Range>,
    /// Predicted CPU time per unit of work relative to now.
    pub cpu_per_work: Option<Range>,
    /// Why, in one sentence.
    pub because: String,
    /// The command that applies it.
    pub command: Option<String>,
}

/// A value and the range it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Lower end.
    pub low: f64,
    /// Best guess.
    pub value: f64,
    /// Upper end.
    pub high: f64,
}

/// What `muster compare` measured: alternated runs of the same program under several arms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The program under comparison.
    pub command: String,
    /// What the metric counts (`runs` when each run's time is what is compared). Speeds are in this per second.
    pub metric: String,
    /// The arms in the order in which they were alternated; the first is the baseline.
    pub arms: Vec<Arm>,
    /// What made the result less sure, in sentences; empty on a quiet machine.
    pub notes: Vec<String>,
}

/// One arm of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Its name (`plain`, `auto`, `consolidate` ...).
    pub name: String,
    /// The command that was put before the program; empty for `plain`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<String>,
    /// One entry per round, so that runs with the same index in all arms belong together.
    pub runs: Vec<Run>,
    /// Median speed (units of the metric per second, or 1/time).
    pub median_speed: f64,
    /// Half the distance between the quartiles of the speeds.
    pub spread: f64,
    /// Speed relative to the first arm, with a 95 % confidence interval; `None` for the first arm.
    pub speed_ratio: Option<Range>,
    /// CPU time of the program per unit of work relative to the first arm, likewise.
    pub cpu_ratio: Option<Range>,
    /// CPU time of the whole machine per unit of work relative to the first arm, likewise; polling idle is in it where
    /// cpuidle shows it.
    #[serde(default)]
    pub machine_cpu_ratio: Option<Range>,
    /// What can be said of this arm against the first, in one sentence; `None` for the first arm.
    #[serde(default)]
    pub verdict: Option<String>,
}

/// One run of one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// How long it took.
    pub wall_ns: u64,
    /// Units of work per second, by the metric; 1/time without one.
    pub speed: f64,
    /// CPU time of the program under comparison (a server and its load together), and of the remedy around it.
    pub cpu_ns: u64,
    /// CPU time that everything on the machine used, this program included, polling idle included where it is known.
    pub machine_busy_ns: u64,
    /// Part of `machine_busy_ns` spent polling in idle, where cpuidle shows it.
    #[serde(default)]
    pub polling_ns: Option<u64>,
    /// Entries into idle states that give the CPU up (polling is not one), over all CPUs.
    pub idle_entries: Option<u64>,
    /// Context switches, over all CPUs.
    pub switches: Option<u64>,
    /// CPU time of others, as a share of all CPU time, 0 to 1.
    pub foreign_share: f64,
}

/// All numbers of one study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyResults {
    /// The study's name.
    pub study: String,
    /// The seed that reproduces them.
    pub seed: u64,
    /// The number of cores to which the study was grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// One row per number.
    pub numbers: Vec<StudyNumber>,
    /// Series for plots that no single number of the paper stands beside (a timeline, a curve over cores).
    #[serde(default)]
    pub series: Vec<Series>,
}

/// How a number of a study is judged (DESIGN section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StudyKind {
    /// Free parameters may be fitted to it.
    Calibrated,
    /// What the simulator is judged by.
    Predicted,
    /// The paper contradicts itself: all readings printed, none judged.
    Contested,
    /// The paper's value is kept back.
    Withheld,
}

/// One number of a study, beside the paper's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyNumber {
    /// The study's name.
    pub study: String,
    /// Table or figure, as the paper names it.
    pub figure: String,
    /// Row, as the paper names it.
    pub row: String,
    /// Column, as the paper names it.
    pub column: String,
    /// Unit of both values.
    pub unit: String,
    /// The paper's value; `None` where it is withheld or only drawn.
    pub paper: Option<f64>,
    /// The bound the paper states in words, such as `> 100`, where it gives no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper_bound: Option<String>,
    /// How it is judged.
    pub kind: StudyKind,
    /// What the simulator says; `None` where a run that it rests on never ends.
    pub simulated: Option<f64>,
    /// |ln(simulated / paper)|, or absolute points for shares below 5 %; `None` without a paper's value.
    pub error: Option<f64>,
    /// Whether it is absolute points.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_points: bool,
    /// Why there is no value, or what a mean leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A curve for a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The figure it belongs to.
    pub figure: String,
    /// The curve's name.
    pub name: String,
    /// What the x axis is, with its unit.
    pub x: String,
    /// What the y axis is, with its unit.
    pub y: String,
    /// The points, x ascending.
    pub points: Vec<(f64, f64)>,
}

/// What `muster vsuite` measured: how programs scale over cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteResults {
    /// Where the programs ran: `native`, or `native and VM`.
    pub platform: String,
    /// The virtual machine, where they ran in one too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<SuiteVm>,
    /// How many cores there are.
    pub cores: u32,
    /// The seed that the inputs were generated from.
    pub seed: u64,
    /// The size of the inputs, relative to the paper's.
    pub scale: f64,
    /// One entry a program, number of cores and place.
    pub rows: Vec<SuiteRow>,
    /// Programs that did not run.
    pub skipped: Vec<SuiteSkip>,
}

/// The virtual machine of a suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteVm {
    /// What runs its instructions.
    pub accelerator: Accelerator,
    /// Whether its times are those of a virtual machine on this hardware; an emulator's are not.
    pub is_timing: bool,
    /// The release of the guest's kernel.
    pub kernel: String,
    /// The release of the kernel here.
    pub host_kernel: String,
    /// Why it is not what was to be expected, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What runs a virtual machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// The hardware, by the kernel's KVM.
    Kvm,
    /// QEMU's emulator (Tiny Code Generator).
    Tcg,
}

impl Accelerator {
    /// Its name, as QEMU has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// Where a program ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuitePlace {
    /// On this machine, as it stands.
    #[default]
    Native,
    /// In a virtual machine that muster started.
    Vm,
}

/// A program on some number of cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteRow {
    /// The program's name.
    pub program: String,
    /// Where it ran.
    #[serde(default)]
    pub place: SuitePlace,
    /// On how many cores it ran, with as many threads.
    pub cores: u32,
    /// What tells how fast it is.
    pub measure: SuiteMeasure,
    /// The median of that over the runs.
    pub median: f64,
    /// Half the distance between the quartiles over the median; `None` for a single run.
    pub spread: Option<f64>,
    /// How many times as fast it is as on 1 core in the same place; `None` where that was not measured, and where times
    /// are an emulator's.
    pub speedup: Option<f64>,
    /// How much longer it takes in the VM than natively on as many cores: 0.5 is half as long again. `None` natively, and
    /// where times are an emulator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degradation: Option<f64>,
    /// Share of the CPU time that was spent in the kernel, 0 to 1: the median over the runs.
    pub kernel_share: f64,
    /// Whether the results were those of one thread, natively.
    pub check: SuiteCheck,
    /// The runs.
    pub runs: Vec<SuiteRun>,
}

/// What tells how fast a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuiteMeasure {
    /// The wall time of a run, in seconds: the work is the same on any number of cores.
    Seconds,
    /// A throughput in MB/s that the program states: it works for a fixed time, and more cores do more work.
    MegabytesPerSecond,
}

/// Whether the results of all runs were those of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuiteCheck {
    /// They were.
    Verified,
    /// At least one was not.
    Differs,
    /// The program has no result to compare.
    NoResult,
}

/// One run of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteRun {
    /// What tells how fast it was, in the row's measure.
    pub value: f64,
    /// Wall time of its process, from its start to its end.
    pub wall_ns: u64,
    /// CPU time of its process and the children that it waited for, in user mode.
    pub user_ns: u64,
    /// The same in the kernel.
    pub kernel_ns: u64,
    /// The most memory that one of these processes held, its part of the page cache included.
    pub peak_memory_bytes: u64,
    /// The checksum of its result, 16 hexadecimal digits; `None` for a program without one.
    pub checksum: Option<String>,
}

/// A program that did not run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteSkip {
    /// The program's name.
    pub program: String,
    /// What is missing, with the package that has it.
    pub why: String,
}
