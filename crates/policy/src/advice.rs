//! What would help a program: one prediction per remedy, best first, and the answer in sentences.

use crate::colocate;
use crate::consolidate::{POLL_LIMIT_NS, Prices};
use crate::predict::{Gain, WakeSignals, awake_gain_over, consolidation_gain_over, poll_gain_over};
use muster_model::results::{Prediction, Range};
use muster_model::{ThreadId, WakeWindow};

/// Everything the advice rests on. Rates are per second of wall time.
#[derive(Debug, Clone, PartialEq)]
pub struct Situation<'a> {
    /// Lengths of periods, and the signals in them.
    pub periods: &'a [(f64, WakeSignals)],
    /// What waking costs; `None` on a machine where that cannot be told.
    pub prices: Option<Prices>,
    /// Wake-ups of idle vCPUs that were seen in the program itself, and their mean latency.
    pub idle_wakes: Option<(u64, f64)>,
    /// The guest's halt polling; `None` where it has no haltpoll.
    pub guest_halt_poll_ns: Option<u64>,
    /// Who woke whom, where that was seen.
    pub wakes: Option<&'a WakeWindow>,
    /// The clock.
    pub clock: Clock,
    /// Memory that is given back and taken again.
    pub churn: Churn,
    /// CPUs that other programs kept busy, and that the hypervisor gave to others.
    pub disturbance: Disturbance,
    /// How the program is named to `muster run`: `-- CMD` or `--pid N`.
    pub target: &'a str,
}

/// What else went on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Disturbance {
    /// CPUs that other programs of this guest kept busy.
    pub others_rate: f64,
    /// vCPUs' worth of time that the hypervisor ran something else while a vCPU wanted to run.
    pub steal_rate: f64,
}

/// How the guest reads the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// The clock source.
    pub source: String,
    /// Whether reading it leaves the guest (iXen, section 3.1).
    pub leaves_guest: bool,
    /// A source on offer that is read without leaving the guest.
    pub better: Option<String>,
}

/// Memory that is given back to the kernel and taken again (iXen, section 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Churn {
    /// Page faults per second on memory that the process had before.
    pub refaults_per_s: f64,
    /// TLB shootdowns received per second.
    pub shootdowns_per_s: f64,
    /// What touching a page for the first time costs.
    pub first_touch_ns: Option<f64>,
    /// What a shootdown costs.
    pub shootdown_ns: Option<f64>,
}

/// A gain in speed or cost below this is not worth a command.
const WORTH_IT: f64 = 1.05;
/// Halts below this rate are the machine's own timers.
const FEW_HALTS: f64 = 500.0;
/// Other programs or steal above this rate, in CPUs, change what is measured.
const QUIET: f64 = 0.1;
/// From this share of the vCPUs' time in polling idle, the guest polls in earnest.
const POLLS: f64 = 0.05;
/// So many wake-ups give a mean worth having.
const ENOUGH_WAKES: u64 = 200;
/// A wake-up in a program costs up to this many times what it costs the probe.
const FAR_ABOVE: f64 = 4.0;

/// One prediction per remedy, best first; remedies of which nothing can be said come last.
pub fn advise(situation: &Situation) -> Vec<Prediction> {
    let mut advice = vec![
        consolidate(situation),
        poll(situation),
        awake(situation),
        colocate(situation),
        clock(situation),
        memory(situation),
    ];
    let worth = |prediction: &Prediction| prediction.speed.map_or(0.0, |speed| speed.value);
    advice.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    advice
}

/// Means over all periods: vCPUs, CPU rate, halts per second and polling rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Means {
    /// vCPUs the program may use.
    pub vcpus: u32,
    /// CPUs it keeps busy.
    pub cpu_rate: f64,
    /// Halts per second.
    pub halts_per_s: f64,
    /// CPUs that poll in the idle loop.
    pub polling_rate: f64,
}

impl Means {
    /// The means; `None` without a period.
    pub fn of(periods: &[(f64, WakeSignals)]) -> Option<Self> {
        let all: f64 = periods.iter().map(|(length, _)| length).sum();
        let mean =
            |rate: fn(&WakeSignals) -> f64| periods.iter().map(|(length, s)| length * rate(s)).sum::<f64>() / all;
        (all > 0.0).then(|| Self {
            vcpus: periods.iter().map(|(_, signals)| signals.vcpus).max().unwrap_or(1),
            cpu_rate: mean(|signals| signals.cpu_rate),
            halts_per_s: mean(|signals| signals.halts_per_s),
            polling_rate: mean(|signals| signals.polling_rate),
        })
    }

    fn polls(&self) -> bool {
        self.polling_rate > POLLS * f64::from(self.vcpus)
    }
}

/// A prediction without numbers, and why.
fn silent(remedy: &str, because: &str) -> Prediction {
    Prediction {
        remedy: remedy.to_owned(),
        speed: None,
        cpu_per_work: None,
        because: because.to_owned(),
        command: None,
    }
}

/// What the signals must hold for a prediction about waking: prices and means, or the reason why there is none.
fn basis(situation: &Situation) -> Result<(Prices, Means), &'static str> {
    let prices = prices(situation).ok_or("what waking a thread costs here is not known: run `muster probe`")?;
    let means = Means::of(situation.periods).ok_or("halts were not counted (no cpuidle driver, or too short a run)")?;
    if means.vcpus < 2 {
        Err("the program may use one vCPU only, so no other vCPU is woken")
    } else {
        Ok((prices, means))
    }
}

/// The prices, with that of a halted vCPU as it is in the program itself where it was seen often enough: its caches are
/// colder than the probe's, and the host is as busy as it is. A mean far above the probe's is that of a few long waits.
pub fn prices(situation: &Situation) -> Option<Prices> {
    let probed = situation.prices?;
    let halts = probed.wake_halted_ns;
    let seen = situation.idle_wakes.filter(|(count, _)| *count >= ENOUGH_WAKES && halts > 0.0);
    Some(Prices {
        wake_halted_ns: seen.map_or(halts, |(_, mean_ns)| mean_ns.clamp(halts, FAR_ABOVE * halts)),
        ..probed
    })
}

fn numbers(remedy: &str, gain: Gain, because: String, command: Option<String>) -> Prediction {
    Prediction {
        remedy: remedy.to_owned(),
        speed: Some(gain.speed),
        cpu_per_work: Some(gain.cpu_per_work),
        because,
        command,
    }
}

fn is_worth_it(gain: &Gain) -> bool {
    let cheaper = gain.cpu_per_work.value < 1.0 / WORTH_IT && gain.speed.value > 1.0 / WORTH_IT;
    gain.speed.value > WORTH_IT || cheaper
}

fn consolidate(situation: &Situation) -> Prediction {
    let (prices, means) = match basis(situation) {
        Ok(basis) => basis,
        Err(why) => return silent("consolidate", why),
    };
    let Some(gain) = consolidation_gain_over(situation.periods, &prices) else {
        return silent(
            "consolidate",
            "all vCPUs are busy, and its threads block each other, or are in the kernel for longer than what is seen of them explains: they may contend for a lock, and nothing tells whether fewer vCPUs would help; `muster compare` can",
        );
    };
    let on = if gain.vcpus == 1 { "one vCPU".to_owned() } else { format!("{} vCPUs", gain.vcpus) };
    let because = if gain.speed.value > WORTH_IT {
        format!(
            "on {on} a wake-up costs {} instead of {}, {:.0} times a second, and the work fits",
            us(prices.wake_same_cpu_ns),
            us(prices.wake_halted_ns),
            means.halts_per_s
        )
    } else if gain.speed.value < 1.0 / WORTH_IT && means.cpu_rate < f64::from(gain.vcpus) {
        format!("while it runs, its threads work at the same time, which {on} cannot give")
    } else if gain.speed.value < 1.0 / WORTH_IT {
        format!("it keeps {:.2} vCPUs busy, more than {on} can give", means.cpu_rate)
    } else {
        format!("{:.0} wake-ups a second cost it little", means.halts_per_s)
    };
    let command = is_worth_it(&gain).then(|| format!("muster run --remedy consolidate {}", situation.target));
    numbers("consolidate", gain, because, command)
}

fn poll(situation: &Situation) -> Prediction {
    let (prices, means) = match basis(situation) {
        Ok(basis) => basis,
        Err(why) => return silent("poll", why),
    };
    match situation.guest_halt_poll_ns {
        None => return silent("poll", "the guest has no haltpoll (CONFIG_HALTPOLL_CPUIDLE)"),
        Some(limit_ns) if limit_ns > 0 => {
            let nothing = Range { low: 1.0, value: 1.0, high: 1.0 };
            return Prediction {
                speed: Some(nothing),
                cpu_per_work: Some(nothing),
                ..silent("poll", &format!("the guest polls up to {} already", us(limit_ns as f64)))
            };
        }
        Some(_) => {}
    }
    let Some(gain) = poll_gain_over(situation.periods, &prices, POLL_LIMIT_NS) else {
        return silent("poll", "the signals of this run are no numbers");
    };
    let because = if means.halts_per_s < FEW_HALTS {
        "its vCPUs hardly ever halt".to_owned()
    } else {
        "a vCPU that polls is woken without an IPI; it takes root, and burns a vCPU while it waits".to_owned()
    };
    let command = is_worth_it(&gain).then(|| format!("sudo muster run --remedy poll {}", situation.target));
    numbers("poll", gain, because, command)
}

fn awake(situation: &Situation) -> Prediction {
    let (prices, means) = match basis(situation) {
        Ok(basis) => basis,
        Err(why) => return silent("awake", why),
    };
    let Some(gain) = awake_gain_over(situation.periods, &prices) else {
        return silent("awake", "the signals of this run are no numbers");
    };
    let because = if means.halts_per_s < FEW_HALTS {
        "its vCPUs hardly ever halt".to_owned()
    } else {
        format!("a wake-up still takes an IPI ({}), and every vCPU is busy all the time", us(prices.wake_awake_ns))
    };
    let command = (gain.speed.value > WORTH_IT).then(|| format!("muster run --remedy awake {}", situation.target));
    numbers("awake", gain, because, command)
}

fn colocate(situation: &Situation) -> Prediction {
    let (prices, means) = match basis(situation) {
        Ok(basis) => basis,
        Err(why) => return silent("colocate", why),
    };
    let Some(window) = situation.wakes.filter(|window| !window.pairs.is_empty()) else {
        return silent("colocate", "who wakes whom was not seen (it takes BPF)");
    };
    let groups = colocate::groups(window, means.cpu_rate);
    match groups.len() {
        0 => silent("colocate", "no threads wake each other often that would fit on one vCPU together"),
        1 => silent("colocate", "only one group of threads wake each other: consolidation is the remedy"),
        _ => colocate_groups(situation, &prices, window, &groups),
    }
}

/// Each group on a vCPU of its own.
fn colocate_groups(
    situation: &Situation,
    prices: &Prices,
    window: &WakeWindow,
    groups: &[Vec<ThreadId>],
) -> Prediction {
    let inside = colocate::share_inside(window, groups);
    let Some(gain) = colocate::gain(situation.periods, prices, inside) else {
        return silent("colocate", "the signals of this run are no numbers");
    };
    let because = format!(
        "{} groups of threads wake each other, and each fits on one vCPU; {:.0} % of wake-ups stay inside; it takes root",
        groups.len(),
        100.0 * inside
    );
    let command =
        (gain.speed.value > WORTH_IT).then(|| format!("sudo muster run --remedy colocate {}", situation.target));
    Prediction { speed: Some(gain.speed), command, ..silent("colocate", &because) }
}

fn clock(situation: &Situation) -> Prediction {
    let Clock { source, leaves_guest, better } = &situation.clock;
    if !leaves_guest {
        let nothing = Some(Range { low: 1.0, value: 1.0, high: 1.0 });
        let because = format!("the clock source {source} is read without leaving the guest");
        return Prediction { speed: nothing, cpu_per_work: nothing, ..silent("clock", &because) };
    }
    let instead = match better {
        Some(better) => format!("{better} is read without leaving the guest"),
        None => "the kernel offers no source that is read without leaving the guest".to_owned(),
    };
    let because = format!(
        "each reading of clock source {source} is a system call and an exit to the VMM, which serves one vCPU at a time; {instead}; how often the program reads the clock is not seen"
    );
    let command = better.as_ref().map(|_| format!("sudo muster run --remedy clock {}", situation.target));
    Prediction { command, ..silent("clock", &because) }
}

fn memory(situation: &Situation) -> Prediction {
    let churn = &situation.churn;
    let Some(means) = Means::of(situation.periods) else {
        return silent("memory", "the run was too short to tell");
    };
    let Some(first_touch_ns) = churn.first_touch_ns else {
        return silent("memory", "what a page fault costs here is not known: run `muster probe`");
    };
    let faults = churn.refaults_per_s * first_touch_ns / 1e9;
    let shootdowns = churn.shootdowns_per_s * churn.shootdown_ns.unwrap_or(0.0) / 1e9;
    let most = ((faults + shootdowns) / means.cpu_rate.max(1e-9)).min(0.9);
    // That memory is taken again does not prove that the allocator could have kept it: anything from none to all.
    let gain = |saved: f64| 1.0 / (1.0 - saved);
    let speed = Range { low: 1.0, value: gain(most / 2.0), high: gain(most) };
    let cpu = Range { low: 1.0 - most, value: 1.0 - most / 2.0, high: 1.0 };
    let because = format!(
        "it takes back {:.0} pages a second that it had given away, and {:.0} TLB shootdowns a second arrive: {:.0} % of its CPU time",
        churn.refaults_per_s,
        churn.shootdowns_per_s,
        100.0 * most
    );
    let command = (speed.value > WORTH_IT).then(|| format!("muster run --remedy memory {}", situation.target));
    Prediction { speed: Some(speed), cpu_per_work: Some(cpu), command, ..silent("memory", &because) }
}

/// The answer in sentences, the most important first. `advice` is that of [`advise`].
pub fn findings(situation: &Situation, advice: &[Prediction]) -> Vec<String> {
    let mut sentences = Vec::new();
    if let (Some(means), Some(prices)) = (Means::of(situation.periods), prices(situation)) {
        sentences.push(about_waking(&means, &prices));
    }
    sentences.push(about_remedies(advice));
    let Disturbance { others_rate, steal_rate } = situation.disturbance;
    if others_rate > QUIET || steal_rate > QUIET {
        sentences.push(format!(
            "The machine was not quiet: other programs kept {others_rate:.2} CPUs busy, and {steal_rate:.2} were stolen by the host; halts are the whole machine's, so trust the numbers less."
        ));
    }
    if situation.clock.leaves_guest {
        sentences.push(format!(
            "The clock source is {}: every reading of the clock leaves the guest, and the VMM serves the readers one by one.",
            situation.clock.source
        ));
    }
    sentences
}

fn about_waking(means: &Means, prices: &Prices) -> String {
    let share = waking_share(means, prices);
    if means.polls() {
        return format!(
            "Waking is not the problem: idle vCPUs of this guest poll ({:.2} of {} vCPUs at any time) and are woken without an IPI.",
            means.polling_rate, means.vcpus
        );
    }
    if means.halts_per_s < FEW_HALTS || share < 0.05 {
        return format!(
            "Waking is not the problem: vCPUs halt {:.0} times a second, which costs {:.0} % of the time.",
            means.halts_per_s,
            100.0 * share
        );
    }
    format!(
        "{:.0} % of the wall time of this program is spent waking halted vCPUs: {:.0} times a second, at {} each.",
        100.0 * share,
        means.halts_per_s,
        us(prices.wake_halted_ns)
    )
}

/// The share of the program's wall time, 0 to 1, in which it waits for halted vCPUs to wake: of each of its concurrent
/// chains of work, all that halting adds to a wake-up on the same vCPU. Halts are the whole machine's: no more of them are
/// the program's than its CPU time can have paid for.
pub fn waking_share(means: &Means, prices: &Prices) -> f64 {
    let added_ns = (prices.wake_halted_ns - prices.wake_same_cpu_ns).max(0.0);
    let all = means.halts_per_s * added_ns / 1e9 / means.cpu_rate.max(1.0);
    all.min(means.cpu_rate / CHARGED_OF_WAKING).min(1.0)
}

/// At least this part of what waking a halted vCPU takes is charged to the program as CPU time: the least
/// [`crate::predict::HALT_COST`] over the longest wake-up, which takes 1.5 measured latencies.
const CHARGED_OF_WAKING: f64 = 0.5;

fn about_remedies(advice: &[Prediction]) -> String {
    let helpful = |prediction: &&Prediction| {
        prediction.command.is_some() && prediction.speed.is_some_and(|s| s.low > 1.0 || s.value > WORTH_IT)
    };
    let fastest = advice.iter().find(helpful);
    let cost = |prediction: &Prediction| prediction.cpu_per_work.map_or(1.0, |cpu| cpu.value);
    let cheapest = advice.iter().filter(helpful).min_by(|a, b| cost(a).total_cmp(&cost(b)));
    let describe = |prediction: &Prediction| {
        let speed = prediction.speed.map_or(1.0, |speed| speed.value);
        let cpu =
            prediction.cpu_per_work.map(|cpu| format!(" at {:.2} of the CPU time", cpu.value)).unwrap_or_default();
        format!("`{}` would make it about {speed:.1} times as fast{cpu}", prediction.remedy)
    };
    match (fastest, cheapest) {
        (Some(fastest), Some(cheapest)) if fastest.remedy != cheapest.remedy => {
            format!("{}; {}.", describe(fastest), describe(cheapest))
        }
        (Some(fastest), _) => format!("{}.", describe(fastest)),
        (None, _) => "No remedy of muster is predicted to make it faster: leave it alone.".to_owned(),
    }
}

fn us(ns: f64) -> String {
    format!("{:.1} us", ns / 1e3)
}

/// For how long to attach tracepoints, and how often: `window_ns` of every `period_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duty {
    /// Attached.
    pub window_ns: u64,
    /// From one beginning to the next.
    pub period_ns: u64,
}

/// Tracepoints may take this share of one CPU: a third of the promised 3 %, because the price that the kernel keeps
/// leaves out the way into a BPF program and the caches it takes, and attaching itself interrupts every vCPU.
const OBSERVATION_BUDGET: f64 = 0.01;
/// Attached at most this share of the time: more would not tell more.
const MOST: f64 = 0.2;
const USUAL_PERIOD_NS: f64 = 500e6;
const SHORTEST_WINDOW_NS: f64 = 5e6;
const LONGEST_PERIOD_NS: f64 = 10e9;

/// The duty cycle for tracepoints that pass `events_per_s` times a second at `price_ns` each. Windows shorten as the
/// events grow dearer, then come further apart.
pub fn duty(events_per_s: f64, price_ns: f64) -> Duty {
    let cost = events_per_s.max(0.0) * price_ns.max(0.0) / 1e9;
    let share = if cost > 0.0 { (OBSERVATION_BUDGET / cost).min(MOST) } else { MOST };
    let window = (share * USUAL_PERIOD_NS).max(SHORTEST_WINDOW_NS);
    Duty { window_ns: window as u64, period_ns: (window / share).min(LONGEST_PERIOD_NS) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::{ThreadLoad, WakePair};

    const PRICES: Prices =
        Prices { wake_same_cpu_ns: 1_700.0, wake_awake_ns: 15_700.0, wake_halted_ns: 22_500.0, handover_lines_ns: 0.0 };

    fn signals(cpu_rate: f64, halts_per_s: f64) -> WakeSignals {
        WakeSignals {
            vcpus: 2,
            cpu_rate,
            user_rate: Some(0.05),
            halts_per_s,
            polling_rate: 0.0,
            blocks_per_s: Some(halts_per_s),
            waiting_rate: Some(0.0),
            outside: None,
            io_calls_per_s: None,
            io_bytes_per_s: None,
            faults_per_s: None,
        }
    }

    fn situation(periods: &[(f64, WakeSignals)]) -> Situation<'_> {
        Situation {
            periods,
            prices: Some(PRICES),
            idle_wakes: None,
            guest_halt_poll_ns: Some(0),
            wakes: None,
            clock: Clock { source: "tsc".into(), leaves_guest: false, better: None },
            churn: Churn { first_touch_ns: Some(500.0), ..Churn::default() },
            disturbance: Disturbance::default(),
            target: "-- prog",
        }
    }

    fn of<'a>(advice: &'a [Prediction], remedy: &str) -> &'a Prediction {
        advice.iter().find(|prediction| prediction.remedy == remedy).unwrap()
    }

    #[test]
    fn a_program_that_wakes_gets_commands_and_a_sentence() {
        let periods = [(1.0, signals(0.8, 30e3))];
        let situation = situation(&periods);
        let advice = advise(&situation);
        assert_eq!(advice.len(), 6);
        assert_eq!(of(&advice, "consolidate").command.as_deref(), Some("muster run --remedy consolidate -- prog"));
        assert_eq!(of(&advice, "poll").command.as_deref(), Some("sudo muster run --remedy poll -- prog"));
        let findings = findings(&situation, &advice);
        assert!(
            findings[0].starts_with("62 % of the wall time of this program is spent waking halted vCPUs"),
            "{findings:?}"
        );
        assert!(findings[1].contains("`consolidate`"), "{findings:?}");
    }

    #[test]
    fn a_program_that_computes_is_left_alone() {
        let periods = [(1.0, signals(1.95, 100.0))];
        let situation = situation(&periods);
        let advice = advise(&situation);
        assert!(of(&advice, "consolidate").speed.unwrap().value < 0.6);
        assert!(advice.iter().all(|prediction| prediction.command.is_none()), "{advice:?}");
        let findings = findings(&situation, &advice);
        assert!(findings[0].starts_with("Waking is not the problem"), "{findings:?}");
        assert!(findings[1].contains("leave it alone"), "{findings:?}");
        assert_eq!(findings.len(), 2);
        let disturbance = Disturbance { others_rate: 0.8, steal_rate: 0.0 };
        let noisy = Situation { disturbance, ..situation };
        assert!(super::findings(&noisy, &advice)[2].contains("not quiet"));
    }

    #[test]
    fn halts_of_others_are_not_the_programs() {
        let periods = [(1.0, WakeSignals { blocks_per_s: Some(0.0), ..signals(0.0, 21_084.0) })];
        let disturbance = Disturbance { others_rate: 0.87, steal_rate: 0.0 };
        let situation = Situation { disturbance, ..situation(&periods) };
        let findings = findings(&situation, &advise(&situation));
        assert!(
            findings[0].starts_with("Waking is not the problem") && findings[0].contains("costs 0 %"),
            "{findings:?}"
        );
    }

    #[test]
    fn on_a_guest_that_polls_waking_is_not_the_problem() {
        let periods = [(1.0, WakeSignals { polling_rate: 0.9, ..signals(1.0, 40.0) })];
        let situation = Situation { guest_halt_poll_ns: Some(200_000), ..situation(&periods) };
        let advice = advise(&situation);
        assert_eq!(of(&advice, "poll").speed.unwrap().value, 1.0);
        let findings = findings(&situation, &advice);
        assert!(findings[0].contains("Waking is not the problem") && findings[0].contains("poll"), "{findings:?}");
    }

    #[test]
    fn silence_has_a_reason() {
        let contended = WakeSignals { blocks_per_s: Some(6e3), waiting_rate: Some(1.5), ..signals(1.97, 139.0) };
        let periods = [(1.0, contended)];
        let advice = advise(&situation(&periods));
        let prediction = of(&advice, "consolidate");
        assert!(prediction.speed.is_none() && prediction.because.contains("contend for a lock"), "{prediction:?}");
        let unpriced = advise(&Situation { prices: None, ..situation(&periods) });
        assert!(of(&unpriced, "awake").because.contains("muster probe"));
        let nothing = advise(&situation(&[]));
        assert!(nothing.iter().filter(|p| p.remedy != "clock").all(|p| p.speed.is_none() && !p.because.is_empty()));
        let single = [(1.0, WakeSignals { vcpus: 1, ..signals(0.5, 10.0) })];
        assert!(of(&advise(&situation(&single)), "consolidate").because.contains("one vCPU"));
        let old_guest = advise(&Situation { guest_halt_poll_ns: None, ..situation(&periods) });
        assert!(of(&old_guest, "poll").because.contains("no haltpoll"));
    }

    #[test]
    fn what_a_wake_up_costs_in_the_program_counts() {
        let periods = [(1.0, signals(0.7, 10e3))];
        let halted_ns = |idle_wakes| prices(&Situation { idle_wakes, ..situation(&periods) }).unwrap().wake_halted_ns;
        assert_eq!(halted_ns(None), 22_500.0);
        assert_eq!(halted_ns(Some((10, 60_000.0))), 22_500.0, "too few");
        assert_eq!(halted_ns(Some((1000, 60_000.0))), 60_000.0);
        assert_eq!(halted_ns(Some((1000, 5e9))), 90_000.0);
        let speed =
            |idle_wakes| of(&advise(&Situation { idle_wakes, ..situation(&periods) }), "consolidate").speed.unwrap();
        assert!(speed(Some((1000, 60_000.0))).value > 1.5 * speed(None).value);
    }

    #[test]
    fn an_emulated_clock_is_named_with_its_remedy() {
        let periods = [(1.0, signals(0.5, 10.0))];
        let clock = Clock { source: "acpi_pm".into(), leaves_guest: true, better: Some("tsc".into()) };
        let situation = Situation { clock, ..situation(&periods) };
        let advice = advise(&situation);
        assert_eq!(of(&advice, "clock").command.as_deref(), Some("sudo muster run --remedy clock -- prog"));
        assert!(findings(&situation, &advice).iter().any(|sentence| sentence.contains("acpi_pm")));
    }

    #[test]
    fn churn_is_worth_what_its_faults_cost() {
        let periods = [(1.0, signals(1.0, 10.0))];
        let churn = Churn {
            refaults_per_s: 400e3,
            shootdowns_per_s: 10e3,
            first_touch_ns: Some(500.0),
            shootdown_ns: Some(5_000.0),
        };
        let advice = advise(&Situation { churn, ..situation(&periods) });
        let memory = of(&advice, "memory");
        let speed = memory.speed.unwrap();
        assert!((speed.high - 1.333).abs() < 0.01 && speed.low == 1.0 && memory.command.is_some(), "{memory:?}");
    }

    #[test]
    fn groups_of_threads_that_wake_each_other_get_a_command() {
        let pair = |waker, wakee, count| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count };
        let pairs = [pair(1, 2, 100), pair(2, 1, 100), pair(3, 4, 80), pair(4, 3, 80), pair(2, 3, 2), pair(0, 5, 50)];
        let load = |thread| ThreadLoad { thread: ThreadId(thread), cpu_ns: Some(3_000_000) };
        let window = |pairs: &[WakePair]| WakeWindow {
            window_ns: 10_000_000,
            pairs: pairs.to_vec(),
            threads: (1..=5).map(load).collect(),
        };
        let periods = [(1.0, WakeSignals { vcpus: 4, ..signals(1.6, 60e3) })];
        let advised = |pairs: &[WakePair]| {
            let window = window(pairs);
            of(&advise(&Situation { wakes: Some(&window), ..situation(&periods) }), "colocate").clone()
        };
        let two = advised(&pairs);
        assert!(two.speed.unwrap().value > 1.2 && two.because.contains("2 groups"), "{two:?}");
        assert_eq!(two.command.as_deref(), Some("sudo muster run --remedy colocate -- prog"));
        assert!(advised(&pairs[..2]).because.contains("one group"));
        assert!(advised(&pairs[5..]).because.contains("no threads wake each other"));
    }

    #[test]
    fn the_duty_cycle_keeps_to_its_budget() {
        for events_per_s in [0.0, 1e3, 1e5, 1e6, 1e7] {
            for price_ns in [0.0, 50.0, 500.0] {
                let duty = duty(events_per_s, price_ns);
                let share = duty.window_ns as f64 / duty.period_ns as f64;
                let cost = share * events_per_s * price_ns / 1e9;
                let at_limit = duty.period_ns as f64 >= LONGEST_PERIOD_NS - 1.0;
                assert!(cost <= OBSERVATION_BUDGET * 1.001 || at_limit, "{events_per_s} {price_ns}: {duty:?}");
                assert!(share <= MOST + 1e-9 && duty.window_ns >= SHORTEST_WINDOW_NS as u64);
            }
        }
    }
}
