//! What a number of a study is computed from, and how far off it is.

use serde::{Deserialize, Serialize};

/// Functions of Xen that iXen's text names, whose time is told apart.
pub const VMM_FUNCTIONS: [&str; 4] = ["handle_pmt_io", "schedule", "csched_schedule", "csched_load_balance"];

/// Reasons of VM exits: halts, IPIs that are sent, interrupts that come and their ends, writes to the timer, loops of PAUSE,
/// events that paravirtual drivers send; and those of shadow paging: faults that are the guest's own, writes to page
/// tables, faults that the guest is not told of, loads of a page-table base, single translations that are dropped.
pub const EXIT_REASONS: [&str; 11] = [
    "halt",
    "ipi",
    "interrupt",
    "timer",
    "pause",
    "event",
    "guest-fault",
    "write-protect",
    "hidden-fault",
    "cr3",
    "invlpg",
];

/// What misses (iXen, Figures 4 and 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissKind {
    /// The private L2 cache.
    L2,
    /// Both levels of the instruction TLB.
    Itlb,
}

/// Whose misses they are: the parts of a bar in Figures 4 and 7. `Vmm` is without its scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissPart {
    /// The program's.
    User,
    /// The guest kernel's; on the machine itself, the kernel's.
    GuestKernel,
    /// The VMM's, less its vCPU scheduler's.
    Vmm,
    /// The VMM's vCPU scheduler's.
    VmmScheduler,
}

impl MissPart {
    /// All four.
    pub const ALL: [Self; 4] = [Self::User, Self::GuestKernel, Self::Vmm, Self::VmmScheduler];
}

/// Who holds a core that has nothing to do (iXen, Figure 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleIn {
    /// The idle thread of the guest kernel, or of the machine's own.
    Guest,
    /// The VMM's idle vCPU (Xen's idle-VM), the way there and back included.
    Vmm,
    /// The idle daemon.
    Daemon,
}

/// Whose CPU time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusyIn {
    /// Everybody's.
    #[default]
    Machine,
    /// That of the VM which has the devices (Xen's domain 0).
    Service,
    /// That of all other VMs.
    Guests,
}

/// What a number of a study is computed from. Names are those of the study's configurations, `NAME@CORES` with another
/// number of cores.
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
    /// How long pCPUs idle at a time on average, as the VMM sees it, in microseconds.
    IdlePeriod {
        /// The run.
        run: String,
    },
    /// Share of the pCPUs' time that they idle for so long at a time or longer, in per cent.
    IdleAbove {
        /// The run.
        run: String,
        /// How long, in microseconds; taken down to a power of two of picoseconds.
        us: u64,
    },
    /// How much longer than the baseline a run takes, in per cent: time / time of the baseline - 1.
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
    /// How many times as fast as the baseline the fastest of the runs is.
    BestSpeedup {
        /// The runs.
        runs: Vec<String>,
        /// What they are compared with.
        baseline: String,
    },
    /// How many times as fast as the fastest of its rivals a run is: above 1, its remedy helps most.
    Advantage {
        /// The run.
        run: String,
        /// The runs with other remedies.
        rivals: Vec<String>,
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
    /// Share of the cycles that are spent in a function of the VMM, in per cent. Halted cores have no cycles; those of
    /// all vCPUs count, also of those that the program does not use.
    FunctionShare {
        /// The run.
        run: String,
        /// One of [`VMM_FUNCTIONS`].
        function: String,
    },
    /// Share of the cycles that are spent in the guest's kernel (natively: the kernel), in per cent; the rest are the
    /// program's and the VMM's. Halted cores have no cycles.
    KernelShare {
        /// The run.
        run: String,
    },
    /// Share of the time of the cores that the program uses which is idle, in per cent.
    IdleShare {
        /// The run.
        run: String,
        /// Whose idle time.
        of: IdleIn,
    },
    /// Misses of a run beside all misses of the baseline, the same work done: iXen's bars, with native Linux as 1.
    MissRatio {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
        /// What misses.
        what: MissKind,
        /// Whose; everybody's when absent.
        #[serde(default)]
        of: Option<MissPart>,
    },
    /// How many of a run's misses are whose, in per cent.
    MissShare {
        /// The run.
        run: String,
        /// What misses.
        what: MissKind,
        /// Whose.
        of: MissPart,
    },
    /// How many of the misses a remedy takes away, the same work done, in per cent: 1 - misses(to) / misses(from).
    MissReduction {
        /// The run without the remedy.
        from: String,
        /// The run with it.
        to: String,
        /// What misses.
        what: MissKind,
        /// Whose; everybody's when absent.
        #[serde(default)]
        of: Option<MissPart>,
    },
    /// How much more a run gets done in the same time than the baseline, in per cent: (score - score of the baseline) / score
    /// of `over`. A score is the sum over the experiment's copies of the geometric mean of what the VMs of each copy get done
    /// in a second: programs that end, or turns of outermost loops.
    Gain {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
        /// What the difference is divided by; the baseline when absent.
        #[serde(default)]
        over: Option<String>,
        /// Names of the workloads whose VMs count.
        of: Vec<String>,
    },
    /// How many times as much as the baseline a run gets done in the same time: quotient of the scores.
    Throughput {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
        /// Names of the workloads whose VMs count.
        of: Vec<String>,
    },
    /// How many of the VM exits have a reason, in per cent.
    ExitShare {
        /// The run.
        run: String,
        /// The reason.
        reason: String,
        /// Name of the workload in whose VMs; all VMs when absent.
        #[serde(default)]
        of: Option<String>,
    },
    /// How much of the CPU time goes into exits with a reason, in per cent.
    ExitTime {
        /// The run.
        run: String,
        /// The reason.
        reason: String,
        /// Name of the workload in whose VMs; all VMs when absent.
        #[serde(default)]
        of: Option<String>,
    },
    /// Exits with a reason beside those of the baseline, the same work done.
    ExitRatio {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
        /// The reason.
        reason: String,
    },
    /// What comes and goes over the machine's NICs, in Gb/s of payload.
    Bandwidth {
        /// The run.
        run: String,
    },
    /// CPU time, in per cent of one hardware thread.
    CpuUse {
        /// The run.
        run: String,
        /// Whose.
        #[serde(default)]
        of: BusyIn,
    },
    /// CPU time that a run takes more than the baseline, in hardware threads.
    CpuAdded {
        /// The run.
        run: String,
        /// What it is compared with.
        baseline: String,
    },
    /// Share of the machine's CPU time that is used, in per cent.
    Utilization {
        /// The run.
        run: String,
    },
    /// How many of the waits for spin locks of guests' kernels are longer than `cycles`, in per cent.
    WaitsAbove {
        /// The run.
        run: String,
        /// Cycles.
        cycles: u64,
    },
    /// The PLE window that `policy::ple` picks after the run, in cycles.
    PleWindow {
        /// The run.
        run: String,
    },
    /// The PLE gap that it picks, in cycles.
    PleGap {
        /// The run.
        run: String,
    },
}

/// How a value is judged: what the logarithm is taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Of the value.
    Value,
    /// Of the factor 1 + value / 100.
    Degradation,
    /// Of the factor that is left, 1 - value / 100.
    Removal,
    /// Of the value, but by absolute points below 5 %.
    Share,
}

impl Scale {
    /// The value as a factor.
    pub fn factor(self, value: f64) -> f64 {
        match self {
            Self::Value | Self::Share => value,
            Self::Degradation => 1.0 + value / 100.0,
            Self::Removal => 1.0 - value / 100.0,
        }
    }

    /// The value of a factor.
    pub fn value(self, factor: f64) -> f64 {
        match self {
            Self::Value | Self::Share => factor,
            Self::Degradation => (factor - 1.0) * 100.0,
            Self::Removal => (1.0 - factor) * 100.0,
        }
    }
}

/// The names of configurations in a measure, of which we have a reference, exclusive or not.
macro_rules! names_of {
    ($measure:expr) => {
        match $measure {
            Self::WakeLatency { run }
            | Self::IdleTransitions { run }
            | Self::IdlePeriod { run }
            | Self::IdleAbove { run, .. }
            | Self::ActiveShare { run, .. }
            | Self::FunctionShare { run, .. }
            | Self::KernelShare { run }
            | Self::IdleShare { run, .. }
            | Self::MissShare { run, .. }
            | Self::ExitShare { run, .. }
            | Self::ExitTime { run, .. }
            | Self::Bandwidth { run }
            | Self::CpuUse { run, .. }
            | Self::Utilization { run }
            | Self::WaitsAbove { run, .. }
            | Self::PleWindow { run }
            | Self::PleGap { run } => vec![run],
            Self::Slowdown { run, baseline }
            | Self::Speedup { run, baseline }
            | Self::MissRatio { run, baseline, .. }
            | Self::Throughput { run, baseline, .. }
            | Self::ExitRatio { run, baseline, .. }
            | Self::CpuAdded { run, baseline } => vec![run, baseline],
            Self::Gain { run, baseline, over, .. } => [run, baseline].into_iter().chain(over).collect(),
            Self::BestSpeedup { runs, baseline } => std::iter::once(baseline).chain(runs).collect(),
            Self::Advantage { run, rivals } => std::iter::once(run).chain(rivals).collect(),
            Self::Reduction { from, to, baseline, .. } => vec![from, to, baseline],
            Self::MissReduction { from, to, .. } => vec![from, to],
        }
    };
}

impl Measure {
    /// The configurations it names.
    pub fn runs(&self) -> Vec<&str> {
        names_of!(self).into_iter().map(String::as_str).collect()
    }

    /// The same, to be renamed.
    pub(super) fn runs_mut(&mut self) -> Vec<&mut String> {
        names_of!(self)
    }

    /// The same measure where `NAME@*` is NAME with a number.
    pub(super) fn at(&self, number: u32) -> Self {
        let mut measure = self.clone();
        for run in measure.runs_mut() {
            if let Some(name) = run.strip_suffix("@*") {
                *run = format!("{name}@{number}");
            }
        }
        measure
    }

    /// How its values are judged.
    pub fn scale(&self) -> Scale {
        match self {
            Self::Slowdown { .. } | Self::Gain { .. } => Scale::Degradation,
            Self::MissReduction { .. } => Scale::Removal,
            Self::ActiveShare { .. }
            | Self::FunctionShare { .. }
            | Self::KernelShare { .. }
            | Self::IdleShare { .. }
            | Self::MissShare { .. }
            | Self::ExitShare { .. }
            | Self::ExitTime { .. }
            | Self::Utilization { .. }
            | Self::IdleAbove { .. }
            | Self::WaitsAbove { .. } => Scale::Share,
            Self::WakeLatency { .. }
            | Self::IdleTransitions { .. }
            | Self::IdlePeriod { .. }
            | Self::Speedup { .. }
            | Self::BestSpeedup { .. }
            | Self::Advantage { .. }
            | Self::Reduction { .. }
            | Self::MissRatio { .. }
            | Self::Throughput { .. }
            | Self::ExitRatio { .. }
            | Self::Bandwidth { .. }
            | Self::CpuUse { .. }
            | Self::CpuAdded { .. }
            | Self::PleWindow { .. }
            | Self::PleGap { .. } => Scale::Value,
        }
    }
}

/// How the values of several programs become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregate {
    /// The geometric mean, of slowdowns that of the factors.
    GeometricMean,
    /// The arithmetic mean.
    ArithmeticMean,
    /// The least.
    Minimum,
    /// The largest.
    Maximum,
}

impl Aggregate {
    /// One value of several; of none, 0. A geometric mean is that of the factors of `scale`, not a number where one of
    /// them is negative.
    pub fn of(self, values: &[f64], scale: Scale) -> f64 {
        let n = values.len().max(1) as f64;
        match self {
            Self::GeometricMean if values.is_empty() => 0.0,
            Self::GeometricMean => {
                scale.value((values.iter().map(|&value| scale.factor(value).ln()).sum::<f64>() / n).exp())
            }
            Self::ArithmeticMean => values.iter().sum::<f64>() / n,
            Self::Minimum => values.iter().copied().reduce(f64::min).unwrap_or_default(),
            Self::Maximum => values.iter().copied().reduce(f64::max).unwrap_or_default(),
        }
    }
}

/// How far a simulated value is from the paper's (DESIGN section 4): |ln(simulated / paper)| of the factors of `scale`;
/// shares below 5 % by absolute points. `None` where the logarithm does not exist.
pub fn error(simulated: f64, paper: f64, scale: Scale) -> Option<f64> {
    if is_in_points(paper, scale) {
        return Some((simulated - paper).abs());
    }
    let (s, p) = (scale.factor(simulated), scale.factor(paper));
    (s > 0.0 && p > 0.0).then(|| (s / p).ln().abs())
}

/// Whether it is judged by absolute points.
pub fn is_in_points(paper: f64, scale: Scale) -> bool {
    scale == Scale::Share && paper < 5.0
}
