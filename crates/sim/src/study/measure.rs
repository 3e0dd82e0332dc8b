//! What measures are computed from: the figures of runs.

use crate::Outcome;
use crate::engine::Ps;
use crate::machine::tlb::Space;
use crate::run::VmOutcome;
use muster_model::study::{BusyIn, IdleIn, Measure, MissKind, MissPart};
use muster_model::{Account, ModelError};
use muster_policy::ple;

/// What a study needs to know of a run. A figure that a run does not have is `None`: it is not simulated yet.
pub trait RunFigures {
    /// Simulated seconds.
    fn seconds(&self) -> f64;
    /// Mean latency of waking a thread that was blocked on a lock, in microseconds.
    fn lock_wake_us(&self) -> f64;
    /// Transitions of cores to idle per second.
    fn idle_transitions_per_second(&self) -> f64;
    /// Share of the time, 0 to 1, in which no more than `at_most` cores were active.
    fn active_share(&self, at_most: u32) -> f64;

    /// Core time spent in a function of the VMM (one of [`muster_model::study::VMM_FUNCTIONS`]) over the core time of
    /// all vCPUs that was not spent halted, 0 to 1.
    fn function_share(&self, _function: &str) -> Option<f64> {
        None
    }
    /// Core time spent in the guest's kernel over the core time that was not spent halted, 0 to 1; spinning in the
    /// kernel is in it.
    fn kernel_share(&self) -> Option<f64> {
        None
    }
    /// Idle time of the cores that the program uses over their time, 0 to 1.
    fn idle_share(&self, _of: IdleIn) -> Option<f64> {
        None
    }
    /// Misses of the run.
    fn misses(&self, _what: MissKind, _of: MissPart) -> Option<f64> {
        None
    }
    /// By VM that runs this workload, in the order of the VMs, what its program gets done in a second: ends of the program, or
    /// turns of its outermost loops where it does not end by itself.
    fn rates(&self, _workload: &str) -> Vec<f64> {
        Vec::new()
    }
    /// Idle periods of pCPUs: by power of two picoseconds from which on they are long, how many, and how long together.
    fn idle_periods(&self) -> Vec<(Ps, u64, Ps)> {
        Vec::new()
    }
    /// CPU time over the length of the run, in hardware threads.
    fn busy_threads(&self, _of: BusyIn) -> Option<f64> {
        None
    }
    /// The same of the VMs with a workload.
    fn busy_threads_of(&self, _workload: &str) -> Option<f64> {
        None
    }
    /// Hardware threads of the machine.
    fn hardware_threads(&self) -> f64 {
        1.0
    }
    /// VM exits with a reason, and how many hardware threads' time they took; `None` stands for all reasons, and for all VMs.
    fn exits(&self, _reason: Option<&str>, _workload: Option<&str>) -> Option<(f64, f64)> {
        None
    }
    /// Payload that came and went over the machine's NICs, in Gb/s.
    fn gigabits_per_second(&self) -> Option<f64> {
        None
    }
    /// Share of the waits for spin locks of guests' kernels that are longer than so many cycles, 0 to 1.
    fn waits_above(&self, _cycles: u64) -> Option<f64> {
        None
    }
    /// The PLE window and gap that `policy::ple` picks after the run, in cycles.
    fn ple(&self) -> Option<(f64, f64)> {
        None
    }
}

impl RunFigures for Outcome {
    fn seconds(&self) -> f64 {
        Outcome::seconds(self)
    }
    fn lock_wake_us(&self) -> f64 {
        Outcome::lock_wake_us(self)
    }
    fn idle_transitions_per_second(&self) -> f64 {
        Outcome::idle_transitions_per_second(self)
    }
    fn active_share(&self, at_most: u32) -> f64 {
        Outcome::active_share(self, at_most)
    }
    fn function_share(&self, function: &str) -> Option<f64> {
        let spent = match function {
            "handle_pmt_io" => self.functions.handle_pmt_io,
            "schedule" => self.functions.schedule,
            _ => return None,
        };
        Some(spent as f64 / self.busy_ps().max(1) as f64)
    }
    fn kernel_share(&self) -> Option<f64> {
        let book = |account: Account| self.books.iter().map(|book| book[account as usize]).sum::<u64>();
        let kernel: u64 = KERNEL.iter().map(|&account| book(account)).sum();
        Some(
            (kernel + self.kernel_spin_ps + self.kernel_walk_ps - self.moved_for_users_ps.min(kernel)) as f64
                / self.busy_ps().max(1) as f64,
        )
    }
    fn idle_share(&self, of: IdleIn) -> Option<f64> {
        let books = &self.books[..self.used.min(self.cores) as usize];
        let time = |accounts: &[Account]| -> u64 {
            books.iter().flat_map(|book| accounts.iter().map(|&account| book[account as usize])).sum()
        };
        let idle = match (of, self.idles_in_vmm) {
            (IdleIn::Daemon, _) => self.vms[0].daemon_ps,
            (IdleIn::Guest, false) | (IdleIn::Vmm, true) => time(&[Account::Idle, Account::HaltWake]),
            (IdleIn::Guest, true) | (IdleIn::Vmm, false) => 0,
        };
        Some(idle as f64 / time(&Account::ALL).max(1) as f64)
    }
    fn misses(&self, what: MissKind, of: MissPart) -> Option<f64> {
        match (what, of) {
            // Without working sets only lines that are objects are known, few of those that miss.
            (MissKind::L2, part) => Some(self.cache_misses.as_ref()?.l2.all[part as usize]),
            (MissKind::Itlb, MissPart::User) => Some(self.itlb_misses[Space::User as usize] as f64),
            (MissKind::Itlb, MissPart::GuestKernel) => Some(self.itlb_misses[Space::Kernel as usize] as f64),
            (MissKind::Itlb, MissPart::Vmm) => Some(self.itlb_misses[Space::Vmm as usize] as f64),
            // Its code is in the VMM's page.
            (MissKind::Itlb, MissPart::VmmScheduler) => Some(0.0),
        }
    }
    fn rates(&self, workload: &str) -> Vec<f64> {
        self.vms_with(workload).map(VmOutcome::rate).collect()
    }
    fn busy_threads_of(&self, workload: &str) -> Option<f64> {
        Some(self.vms_with(workload).map(VmOutcome::cpu_ps).sum::<Ps>() as f64 / self.wall_ps.max(1) as f64)
    }
    fn busy_threads(&self, of: BusyIn) -> Option<f64> {
        let cpu_ps = |is_service: bool| {
            let vms = self.vms.iter().filter(move |vm| vm.workload.is_none() == is_service);
            vms.map(VmOutcome::cpu_ps).sum::<Ps>()
        };
        let busy = match of {
            BusyIn::Machine => self.busy_ps(),
            BusyIn::Service => cpu_ps(true),
            BusyIn::Guests => cpu_ps(false),
        };
        Some(busy as f64 / self.wall_ps.max(1) as f64)
    }
    fn hardware_threads(&self) -> f64 {
        f64::from(self.cores)
    }
    fn idle_periods(&self) -> Vec<(Ps, u64, Ps)> {
        self.idle_periods.buckets().collect()
    }
    fn exits(&self, reason: Option<&str>, workload: Option<&str>) -> Option<(f64, f64)> {
        let vms = self.vms.iter().filter(|vm| workload.is_none_or(|name| vm.workload.as_deref() == Some(name)));
        let exits: Vec<_> =
            vms.flat_map(VmOutcome::exits).filter(|exit| reason.is_none_or(|of| exit.0 == of)).collect();
        let wall = self.wall_ps.max(1) as f64;
        let sum = |of: fn(&(&str, u64, Ps)) -> u64| exits.iter().map(of).sum::<u64>() as f64;
        (!exits.is_empty()).then(|| (sum(|exit| exit.1), sum(|exit| exit.2) / wall))
    }
    fn waits_above(&self, cycles: u64) -> Option<f64> {
        let waits = &self.spins.as_ref()?.waits;
        let power = cycles.checked_ilog2().filter(|&power| 1 << power == cycles)?;
        Some(waits.longer_than(power as usize) as f64 / waits.count().max(1) as f64)
    }
    fn ple(&self) -> Option<(f64, f64)> {
        let spins = self.spins.as_ref()?;
        let setting = ple::choose(&spins.waits, &spins.exits_by_gap).ok()?;
        Some((f64::from(setting.window), f64::from(setting.gap)))
    }
    fn gigabits_per_second(&self) -> Option<f64> {
        let io: Vec<_> = self.vms.iter().filter_map(|vm| vm.io.as_ref()).collect();
        let bytes: u64 = io.iter().map(|io| io.counts.received_bytes + io.counts.sent_bytes).sum();
        (!io.is_empty()).then(|| bytes as f64 * 8e3 / self.wall_ps.max(1) as f64)
    }
}

impl Outcome {
    fn vms_with<'a>(&'a self, workload: &'a str) -> impl Iterator<Item = &'a VmOutcome> {
        self.vms.iter().filter(move |vm| vm.workload.as_deref() == Some(workload))
    }
}

/// Accounts of time in the kernel. A VM's exits are in some of them as well; natively there are none.
const KERNEL: [Account; 5] =
    [Account::Kernel, Account::HaltWake, Account::Ipi, Account::TlbShootdown, Account::CacheTransfer];

/// Why a measure has no value.
#[derive(Debug)]
pub enum NoValue {
    /// A run is not there, or lacks a figure.
    Input(ModelError),
    /// A run that it rests on was given up, as this says.
    GivenUp(String),
}

impl From<ModelError> for NoValue {
    fn from(error: ModelError) -> Self {
        Self::Input(error)
    }
}

/// The value of a measure; `find` gives the figures of the run of a configuration.
///
/// # Errors
/// When `find` fails, or a run lacks a figure. Among several runs of which the fastest counts, one that was given up
/// is the slowest.
pub fn evaluate<'a>(
    measure: &Measure,
    find: &dyn Fn(&str) -> Result<&'a dyn RunFigures, NoValue>,
) -> Result<f64, NoValue> {
    let seconds = |run: &str| Ok::<f64, NoValue>(find(run)?.seconds());
    let slowdown =
        |run: &str, baseline: &str| -> Result<f64, NoValue> { Ok((seconds(run)? / seconds(baseline)? - 1.0) * 100.0) };
    let fastest = |runs: &[String]| -> Result<f64, NoValue> {
        let (mut least, mut last) = (f64::INFINITY, None);
        for run in runs {
            match seconds(run) {
                Ok(seconds) => least = least.min(seconds),
                Err(NoValue::GivenUp(why)) => last = Some(why),
                Err(error) => return Err(error),
            }
        }
        last.filter(|_| least.is_infinite()).map_or(Ok(least), |why| Err(NoValue::GivenUp(why)))
    };
    let misses = |run: &str, what, of: Option<MissPart>| -> Result<f64, NoValue> {
        let parts = of.map_or(MissPart::ALL.to_vec(), |part| vec![part]);
        let run = find(run)?;
        let count = parts.iter().try_fold(0.0, |sum, &part| run.misses(what, part).map(|count| sum + count));
        count.ok_or_else(|| not_simulated(&format!("misses of {what:?}")).into())
    };
    let score_of = |run: &str, of: &[String]| -> Result<f64, NoValue> { Ok(score(find(run)?, of)?) };
    let exits = |run: &str, reason: Option<&str>, of: Option<&str>| -> Result<(f64, f64), NoValue> {
        let name = || reason.map_or("VM exits".to_owned(), |reason| format!("VM exits by {reason}"));
        Ok(find(run)?.exits(reason, of).ok_or_else(|| not_simulated(&name()))?)
    };
    let busy = |run: &str, of: BusyIn| -> Result<f64, NoValue> {
        Ok(find(run)?.busy_threads(of).ok_or_else(|| not_simulated(&format!("CPU time of {of:?}")))?)
    };
    let idle = |run: &str| -> Result<Vec<(Ps, u64, Ps)>, NoValue> {
        let periods = find(run)?.idle_periods();
        if periods.is_empty() { Err(not_simulated("idle periods of pCPUs").into()) } else { Ok(periods) }
    };
    let ple = |run: &str| -> Result<(f64, f64), NoValue> {
        Ok(find(run)?.ple().ok_or_else(|| not_simulated("waits for spin locks"))?)
    };
    Ok(match measure {
        Measure::WakeLatency { run } => find(run)?.lock_wake_us(),
        Measure::IdleTransitions { run } => find(run)?.idle_transitions_per_second(),
        Measure::IdlePeriod { run } => {
            let periods = idle(run)?;
            let count: u64 = periods.iter().map(|&(_, count, _)| count).sum();
            periods.iter().map(|&(_, _, total)| total as f64).sum::<f64>() / count as f64 / 1e6
        }
        Measure::IdleAbove { run, us } => {
            let least = 1 << (us.saturating_mul(1_000_000)).max(1).ilog2();
            let long: f64 =
                idle(run)?.iter().filter(|&&(from, ..)| from >= least).map(|&(.., total)| total as f64).sum();
            let run = find(run)?;
            long / 1e12 / (run.seconds() * run.hardware_threads()) * 100.0
        }
        Measure::Slowdown { run, baseline } => slowdown(run, baseline)?,
        Measure::Speedup { run, baseline } => seconds(baseline)? / seconds(run)?,
        Measure::BestSpeedup { runs, baseline } => seconds(baseline)? / fastest(runs)?,
        Measure::Advantage { run, rivals } => fastest(rivals)? / seconds(run)?,
        Measure::Reduction { from, to, baseline, net } => {
            slowdown(from, baseline)? / slowdown(to, baseline)? - f64::from(*net)
        }
        Measure::ActiveShare { run, at_most } => find(run)?.active_share(*at_most) * 100.0,
        Measure::FunctionShare { run, function } => percent(find(run)?.function_share(function), function)?,
        Measure::KernelShare { run } => percent(find(run)?.kernel_share(), "time in the kernel")?,
        Measure::IdleShare { run, of } => percent(find(run)?.idle_share(*of), &format!("idle time in {of:?}"))?,
        Measure::MissRatio { run, baseline, what, of } => misses(run, *what, *of)? / misses(baseline, *what, None)?,
        Measure::MissShare { run, what, of } => misses(run, *what, Some(*of))? / misses(run, *what, None)? * 100.0,
        Measure::MissReduction { from, to, what, of } => {
            (1.0 - misses(to, *what, *of)? / misses(from, *what, *of)?) * 100.0
        }
        Measure::Gain { run, baseline, over, of } => {
            let more = score_of(run, of)? - score_of(baseline, of)?;
            more / score_of(over.as_ref().unwrap_or(baseline), of)? * 100.0
        }
        Measure::Throughput { run, baseline, of } => score_of(run, of)? / score_of(baseline, of)?,
        Measure::ExitShare { run, reason, of } => {
            exits(run, Some(reason), of.as_deref())?.0 / exits(run, None, of.as_deref())?.0 * 100.0
        }
        Measure::ExitTime { run, reason, of } => {
            let busy = match of {
                Some(of) => {
                    find(run)?.busy_threads_of(of).ok_or_else(|| not_simulated(&format!("CPU time of {of}")))?
                }
                None => busy(run, BusyIn::Machine)?,
            };
            exits(run, Some(reason), of.as_deref())?.1 / busy * 100.0
        }
        Measure::ExitRatio { run, baseline, reason } => {
            exits(run, Some(reason), None)?.0 / exits(baseline, Some(reason), None)?.0
        }
        Measure::Bandwidth { run } => find(run)?.gigabits_per_second().ok_or_else(|| not_simulated("NICs"))?,
        Measure::CpuUse { run, of } => busy(run, *of)? * 100.0,
        Measure::CpuAdded { run, baseline } => busy(run, BusyIn::Machine)? - busy(baseline, BusyIn::Machine)?,
        Measure::Utilization { run } => busy(run, BusyIn::Machine)? / find(run)?.hardware_threads() * 100.0,
        Measure::WaitsAbove { run, cycles } => percent(find(run)?.waits_above(*cycles), "waits for spin locks")?,
        Measure::PleWindow { run } => ple(run)?.0,
        Measure::PleGap { run } => ple(run)?.1,
    })
}

/// The sum over the copies of the geometric mean of what the VMs of each copy get done that run one of these workloads.
fn score(run: &dyn RunFigures, of: &[String]) -> Result<f64, ModelError> {
    let rates: Vec<Vec<f64>> = of.iter().map(|workload| run.rates(workload)).collect();
    let copies = rates.first().map_or(0, Vec::len);
    if of.is_empty() {
        return Err(ModelError::new("of", "no workload", "the names of one or more"));
    }
    if let Some(missing) = of.iter().zip(&rates).find(|(_, rates)| rates.len() != copies || rates.is_empty()) {
        let found = format!("{} VMs with workload `{}`", missing.1.len(), missing.0);
        return Err(ModelError::new("of", found, "the same number of VMs, not 0, for each workload"));
    }
    let mean = |copy: usize| (rates.iter().map(|rates| rates[copy].ln()).sum::<f64>() / of.len().max(1) as f64).exp();
    Ok((0..copies).map(mean).sum())
}

fn percent(share: Option<f64>, name: &str) -> Result<f64, ModelError> {
    share.map(|share| share * 100.0).ok_or_else(|| not_simulated(name))
}

fn not_simulated(what: &str) -> ModelError {
    ModelError::new("not simulated yet", what, "measures of times, wake-ups and active CPUs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A run by hand.
    #[derive(Default)]
    struct Made {
        seconds: f64,
        shares: BTreeMap<String, f64>,
        misses: Option<[f64; 4]>,
        rates: BTreeMap<&'static str, Vec<f64>>,
        idle_periods: Vec<(Ps, u64, Ps)>,
    }

    impl RunFigures for Made {
        fn seconds(&self) -> f64 {
            self.seconds
        }
        fn lock_wake_us(&self) -> f64 {
            5.0
        }
        fn idle_transitions_per_second(&self) -> f64 {
            7.0
        }
        fn active_share(&self, at_most: u32) -> f64 {
            f64::from(at_most) / 8.0
        }
        fn function_share(&self, function: &str) -> Option<f64> {
            self.shares.get(function).copied()
        }
        fn kernel_share(&self) -> Option<f64> {
            self.shares.get("kernel").copied()
        }
        fn idle_share(&self, of: IdleIn) -> Option<f64> {
            self.shares.get(&format!("{of:?}")).copied()
        }
        fn misses(&self, what: MissKind, of: MissPart) -> Option<f64> {
            (what == MissKind::L2).then_some(self.misses?[of as usize])
        }
        fn rates(&self, workload: &str) -> Vec<f64> {
            self.rates.get(workload).cloned().unwrap_or_default()
        }
        fn busy_threads(&self, of: BusyIn) -> Option<f64> {
            self.shares.get(&format!("busy {of:?}")).copied()
        }
        fn hardware_threads(&self) -> f64 {
            8.0
        }
        fn idle_periods(&self) -> Vec<(Ps, u64, Ps)> {
            self.idle_periods.clone()
        }
        fn busy_threads_of(&self, workload: &str) -> Option<f64> {
            (workload == "web").then_some(2.5)
        }
        fn exits(&self, reason: Option<&str>, _: Option<&str>) -> Option<(f64, f64)> {
            let count = *self.shares.get(reason.unwrap_or("all"))?;
            Some((count, count / 10.0))
        }
    }

    /// A run of two copies of two VMs; so many exits are by a reason of four times as many, and five of eight hardware threads
    /// were busy.
    fn units(web: [f64; 2], mail: [f64; 2], exits: f64) -> Made {
        let shares = [("cr3", exits), ("all", 4.0 * exits), ("busy Machine", 5.0), ("busy Service", exits)];
        Made {
            seconds: 2.0,
            rates: [("web", web.to_vec()), ("mail", mail.to_vec()), ("idle", vec![])].into(),
            shares: shares.map(|(name, value)| (name.to_owned(), value)).into(),
            misses: None,
            idle_periods: vec![(1 << 20, 3, 4_000_000), (1 << 30, 1, 1_600_000_000_000)],
        }
    }

    /// The value of a measure over runs that took 1, 2 and 4 seconds, `slow` with all figures.
    fn value(text: &str) -> Result<f64, NoValue> {
        let shares = [("handle_pmt_io", 0.25), ("kernel", 0.5), ("Vmm", 0.125)].map(|(k, v)| (k.to_owned(), v)).into();
        let runs: BTreeMap<&str, Made> = [
            ("fast", Made { seconds: 1.0, misses: Some([1.0, 2.0, 0.0, 0.0]), ..Made::default() }),
            ("half", Made { seconds: 2.0, ..Made::default() }),
            ("slow", Made { seconds: 4.0, shares, misses: Some([1.0, 2.0, 4.0, 5.0]), ..Made::default() }),
            ("twice", units([2.0, 8.0], [8.0, 2.0], 3.0)),
            ("once", units([1.0, 4.0], [1.0, 4.0], 1.0)),
        ]
        .into();
        let measure: Measure = serde_json::from_str(text).unwrap();
        let find = |run: &str| match runs.get(run) {
            Some(run) => Ok(run as &dyn RunFigures),
            None => Err(NoValue::GivenUp("no progress".to_owned())),
        };
        evaluate(&measure, &find)
    }

    #[test]
    fn measures_are_what_they_say() {
        for (text, wanted) in [
            (r#"{"wake-latency":{"run":"fast"}}"#, 5.0),
            (r#"{"idle-transitions":{"run":"fast"}}"#, 7.0),
            (r#"{"active-share":{"run":"fast","at_most":2}}"#, 25.0),
            (r#"{"slowdown":{"run":"slow","baseline":"fast"}}"#, 300.0),
            (r#"{"speedup":{"run":"fast","baseline":"slow"}}"#, 4.0),
            (r#"{"best-speedup":{"runs":["half","fast","slow"],"baseline":"slow"}}"#, 4.0),
            (r#"{"advantage":{"run":"fast","rivals":["slow","half"]}}"#, 2.0),
            (r#"{"advantage":{"run":"slow","rivals":["half"]}}"#, 0.5),
            (r#"{"reduction":{"from":"slow","to":"half","baseline":"fast","net":true}}"#, 2.0),
            (r#"{"function-share":{"run":"slow","function":"handle_pmt_io"}}"#, 25.0),
            (r#"{"kernel-share":{"run":"slow"}}"#, 50.0),
            (r#"{"idle-share":{"run":"slow","of":"vmm"}}"#, 12.5),
            (r#"{"miss-ratio":{"run":"slow","baseline":"fast","what":"l2"}}"#, 4.0),
            (r#"{"miss-ratio":{"run":"slow","baseline":"fast","what":"l2","of":"guest-kernel"}}"#, 2.0 / 3.0),
            (r#"{"miss-share":{"run":"slow","what":"l2","of":"vmm-scheduler"}}"#, 500.0 / 12.0),
            (r#"{"miss-reduction":{"from":"slow","to":"fast","what":"l2"}}"#, 75.0),
            (r#"{"throughput":{"run":"twice","baseline":"once","of":["web","mail"]}}"#, 8.0 / 5.0),
            (r#"{"gain":{"run":"twice","baseline":"once","of":["web","mail"]}}"#, 60.0),
            (r#"{"gain":{"run":"twice","baseline":"once","of":["web"]}}"#, 100.0),
            (r#"{"gain":{"run":"twice","baseline":"once","over":"twice","of":["web"]}}"#, 50.0),
            (r#"{"exit-share":{"run":"twice","reason":"cr3"}}"#, 25.0),
            (r#"{"exit-time":{"run":"twice","reason":"cr3"}}"#, 6.0),
            (r#"{"exit-time":{"run":"twice","reason":"cr3","of":"web"}}"#, 12.0),
            (r#"{"exit-ratio":{"run":"twice","baseline":"once","reason":"cr3"}}"#, 3.0),
            (r#"{"utilization":{"run":"twice"}}"#, 62.5),
            (r#"{"idle-period":{"run":"twice"}}"#, 400_001.0),
            (r#"{"idle-above":{"run":"twice","us":1074}}"#, 10.0),
            (r#"{"idle-above":{"run":"twice","us":1}}"#, 10.000025),
            (r#"{"cpu-use":{"run":"twice"}}"#, 500.0),
            (r#"{"cpu-use":{"run":"twice","of":"service"}}"#, 300.0),
            (r#"{"cpu-added":{"run":"twice","baseline":"once"}}"#, 0.0),
        ] {
            let found = value(text).unwrap();
            assert!((found - wanted).abs() < 1e-9, "{text}: {found}");
        }
    }

    #[test]
    fn a_run_that_was_given_up_has_no_value_but_is_slower_than_any_other() {
        for text in [
            r#"{"slowdown":{"run":"nowhere","baseline":"fast"}}"#,
            r#"{"advantage":{"run":"fast","rivals":["nowhere"]}}"#,
            r#"{"best-speedup":{"runs":["nowhere"],"baseline":"slow"}}"#,
            r#"{"kernel-share":{"run":"nowhere"}}"#,
        ] {
            let Err(NoValue::GivenUp(why)) = value(text) else { panic!("{text}") };
            assert_eq!(why, "no progress");
        }
        let best = value(r#"{"best-speedup":{"runs":["nowhere","half"],"baseline":"slow"}}"#).unwrap();
        assert_eq!(best, 2.0);
    }

    #[test]
    fn a_figure_that_a_run_lacks_is_named() {
        for (text, wanted) in [
            (r#"{"function-share":{"run":"fast","function":"handle_pmt_io"}}"#, "handle_pmt_io"),
            (r#"{"kernel-share":{"run":"fast"}}"#, "time in the kernel"),
            (r#"{"idle-share":{"run":"slow","of":"daemon"}}"#, "idle time in Daemon"),
            (r#"{"miss-ratio":{"run":"slow","baseline":"fast","what":"itlb"}}"#, "misses of Itlb"),
            (r#"{"exit-share":{"run":"twice","reason":"nap"}}"#, "VM exits by nap"),
            (r#"{"bandwidth":{"run":"twice"}}"#, "NICs"),
            (r#"{"idle-period":{"run":"fast"}}"#, "idle periods of pCPUs"),
            (r#"{"ple-window":{"run":"twice"}}"#, "waits for spin locks"),
        ] {
            let NoValue::Input(error) = value(text).unwrap_err() else { panic!("{text}") };
            let error = error.to_string();
            assert!(error.starts_with("not simulated yet: found ") && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_score_needs_each_workload_as_often() {
        let text = r#"{"throughput":{"run":"twice","baseline":"once","of":["web","idle"]}}"#;
        let NoValue::Input(error) = value(text).unwrap_err() else { panic!("{text}") };
        assert!(error.to_string().starts_with("of: found 0 VMs with workload `idle`"), "{error}");
    }
}
