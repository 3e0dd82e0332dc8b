//! A program that was watched, as a workload: who runs for how long, who wakes whom, who waits for the outside. Pure.
//!
//! A thread's life is cut into cycles, from one wake-up to the next: it waits for another thread or sleeps (waits for
//! the outside), runs, and wakes others. A *round* is a stretch of time in which every pair of threads wakes each other
//! a whole number of times, so that a round gives as many permits as it takes and can be repeated for ever.
//!
//! What is recorded as running is the thread's CPU time less what the simulator charges by itself for waking and
//! blocking ([`Overheads`]). How many threads work at the same time follows from Little's law: the mean number of threads
//! that run, wait for a vCPU or are on their way to one is the number of hand-overs in flight, and as many permits are
//! there at the start (never fewer than keep the round from getting stuck).
//!
//! Left out: locks that are taken without blocking, page faults and the sharing of caches; they are in the running time
//! as it was measured. So a recording says what a program does at its present size, not how contention grows.

use muster_model::results::Range;
use muster_model::workload::{Condition, Count, Duration, Group, MAX_THREADS, Phase};
use muster_model::{ThreadFacts, ThreadId, WakePair, Workload};
use std::collections::{BTreeMap, BTreeSet};

/// What was seen of a program in a stretch of time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stretch {
    /// How long it was.
    pub wall_ns: u64,
    /// CPU time of the program.
    pub cpu_ns: u64,
    /// Part of that in user mode.
    pub user_ns: u64,
    /// Halts of the vCPUs it may use.
    pub halts: u64,
    /// How often it was looked whether a thread is runnable, and how often none was.
    pub looks: (u64, u64),
    /// What each of its threads did.
    pub threads: Vec<ThreadFacts>,
}

/// What a program did most of the time.
#[derive(Debug, Clone, PartialEq)]
pub struct MainPhase {
    /// The stretches that belong to it, put together.
    pub seen: Stretch,
    /// Its share of the time, 0 to 1.
    pub share: f64,
    /// Switch-ins per second: the mean, and the least and the most of its stretches; `None` where no thread was seen.
    pub switches_per_s: Option<Range>,
}

/// What a program did most of the time: the stretches that are most alike in CPU rate and halts. A program starts up,
/// and ends; some change what they do. `None` without a stretch.
pub fn main_phase(stretches: &[Stretch]) -> Option<MainPhase> {
    let alike = |a: &Stretch, b: &Stretch| {
        let rates = |count: fn(&Stretch) -> u64| [a, b].map(|s| count(s) as f64 / s.wall_ns.max(1) as f64);
        let close = |[a, b]: [f64; 2], least: f64| a.max(b).max(least) <= ABOUT_AS_OFTEN * a.min(b).max(least);
        close(rates(|s| s.cpu_ns), 0.1) && close(rates(|s| s.halts), HAND_OVERS / 1e9)
    };
    let weight = |pivot: &Stretch| stretches.iter().filter(|s| alike(pivot, s)).map(|s| s.wall_ns).sum::<u64>();
    // The first of equals, so that the answer does not depend on anything else.
    let pivot = stretches.iter().rev().max_by_key(|pivot| weight(pivot))?;
    let mut seen = Stretch::default();
    stretches.iter().filter(|s| alike(pivot, s)).for_each(|stretch| seen.add(stretch));
    let all: u64 = stretches.iter().map(|s| s.wall_ns).sum();
    let share = seen.wall_ns as f64 / all.max(1) as f64;
    Some(MainPhase { switches_per_s: switches_per_s(stretches.iter().filter(|s| alike(pivot, s))), seen, share })
}

/// Of stretches in which threads were seen: in the last one of a program that ended, none are left.
fn switches_per_s<'a>(stretches: impl Iterator<Item = &'a Stretch>) -> Option<Range> {
    let counts = stretches.filter(|stretch| !stretch.threads.is_empty()).map(|stretch| {
        let switches: u64 = stretch.threads.iter().map(|thread| thread.switches).sum();
        (switches as f64 * 1e9, stretch.wall_ns.max(1) as f64)
    });
    let counts: Vec<(f64, f64)> = counts.collect();
    let rates = || counts.iter().map(|(switches, wall_ns)| switches / wall_ns);
    let (switches, wall_ns) = counts.iter().fold((0.0, 0.0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let value = switches / wall_ns;
    (wall_ns > 0.0).then(|| Range { low: rates().fold(value, f64::min), value, high: rates().fold(value, f64::max) })
}

impl Stretch {
    fn add(&mut self, more: &Self) {
        self.wall_ns += more.wall_ns;
        self.cpu_ns += more.cpu_ns;
        self.user_ns += more.user_ns;
        self.halts += more.halts;
        self.looks = (self.looks.0 + more.looks.0, self.looks.1 + more.looks.1);
        for thread in &more.threads {
            match self.threads.binary_search_by_key(&thread.id, |known| known.id) {
                Ok(at) => {
                    let known = &mut self.threads[at];
                    known.cpu_ns += thread.cpu_ns;
                    known.waiting_ns += thread.waiting_ns;
                    known.switches += thread.switches;
                }
                Err(at) => self.threads.insert(at, *thread),
            }
        }
    }

    /// CPUs that the program kept busy.
    pub fn cpu_rate(&self) -> f64 {
        self.cpu_ns as f64 / self.wall_ns.max(1) as f64
    }

    /// Halts per second.
    pub fn halts_per_s(&self) -> f64 {
        self.halts as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// Share of the time in which no thread was runnable; `None` without a look.
    pub fn outside(&self) -> Option<f64> {
        (self.looks.0 > 0).then(|| self.looks.1 as f64 / self.looks.0 as f64)
    }
}

/// What was seen of a program.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What to call it.
    pub name: &'a str,
    /// What it did most of the time.
    pub main: &'a Stretch,
    /// That phase's share of the time, 0 to 1.
    pub share: f64,
    /// Who woke whom, and for how long that was watched; `None` without BPF.
    pub wakes: Option<(&'a [WakePair], u64)>,
}

/// What a simulated machine charges a thread by itself, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overheads {
    /// The waker, for a thread whose CPU has halted.
    pub wake_halted_ns: f64,
    /// The waker, for a thread whose CPU is awake.
    pub wake_queued_ns: f64,
    /// A thread that blocks, and is back in user mode after it was woken.
    pub block_ns: f64,
    /// Entering and leaving the kernel.
    pub syscall_ns: f64,
    /// From the end of the waker's part until the woken thread runs on a CPU that had halted.
    pub transit_ns: f64,
}

/// A recorded program.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// One second of it; every group is one loop.
    pub workload: Workload,
    /// By group, the CPU time that one thread's turn of the loop took when it was seen, in nanoseconds.
    pub turn_cpu_ns: Vec<f64>,
    /// What the recording rests on and leaves out, in sentences.
    pub notes: Vec<String>,
}

/// A thread below this share of a CPU, and below [`FEW_WAKES`], is left out.
const NEGLIGIBLE_CPU: f64 = 0.005;
/// Wake-ups per second.
const FEW_WAKES: f64 = 100.0;
/// A waker that causes less than this share of a thread's wake-ups belongs to the outside.
const RARE: f64 = 0.05;
/// A round has at most so many wake-ups of the busiest pair.
const MOST_PER_ROUND: u32 = 32;
/// Rates that are whole numbers to this share are whole numbers.
const ROUNDING: f64 = 0.03;
/// Tracepoints that were attached for less tell too little.
const SHORTEST_WINDOW_NS: u64 = 10_000_000;
/// Without BPF: threads that are switched in from this rate on, about as often as each other, hand over to each other.
const HAND_OVERS: f64 = 500.0;
/// How far the rate in BPF's windows may be from that of the main phase.
const MOST_SCALE: f64 = 2.0;
/// How far apart the rates of such threads, or of stretches of one phase, may be.
const ABOUT_AS_OFTEN: f64 = 1.25;
/// A thread that neither waits for others nor wakes them runs for at least and at most so long at a time.
const CHUNK_NS: f64 = 1e6;
const LONGEST_CHUNK_NS: f64 = 10e6;
/// Least running time of a cycle.
const SHORTEST_RUN_NS: f64 = 50.0;
/// CPU time of threads that lived too briefly to be told apart, from this share of a CPU on, is recorded as their own.
const REST: f64 = 0.05;
/// From this share of wake-ups that meet a halted vCPU on, that is the rule.
const MOSTLY: f64 = 0.5;
/// A main phase with a smaller share of the time is not the whole story.
const MOST_OF_THE_TIME: f64 = 0.75;
/// Running time below this share of a cycle's CPU time is within the error of what waking takes.
const TOO_LITTLE: f64 = 0.1;
/// The recorded time.
const RECORDED_NS: f64 = 1e9;

/// One thread in the making; rates are per second.
#[derive(Debug, Clone)]
struct Thread {
    id: ThreadId,
    cpu: f64,
    waiting: f64,
    switches: f64,
    /// By the index of its waker, wake-ups.
    woken_by: BTreeMap<usize, f64>,
    /// Wake-ups by the outside.
    outside: f64,
}

/// Whole numbers of wake-ups per round.
#[derive(Debug, Clone)]
struct Round {
    ns: f64,
    /// By waker and wakee.
    pairs: BTreeMap<(usize, usize), u32>,
    /// By thread, wake-ups from outside.
    outside: Vec<u32>,
}

/// The recording of what was seen; `None` when it did next to nothing.
pub fn record(seen: &Seen, overheads: &Overheads) -> Option<Recording> {
    let cpu = seen.main.cpu_rate();
    if seen.main.wall_ns == 0 || cpu <= NEGLIGIBLE_CPU {
        return None;
    }
    let mut notes = Vec::new();
    if seen.share < MOST_OF_THE_TIME {
        notes.push(format!(
            "the program changes what it does: what is recorded took {:.0} % of the time",
            100.0 * seen.share
        ));
    }
    let mut threads = threads(seen, &mut notes);
    let met_awake = merge_awake(seen, &mut threads, &mut notes);
    let round = Round::of(&threads);
    let components = components(threads.len(), &round);
    let scribe =
        Scribe { seen, overheads, threads: &threads, round: &round, halted: halted_share(seen, &threads), met_awake };
    let permits = scribe.permits(&components);
    let mut workload = Workload {
        name: seen.name.to_owned(),
        description: format!("{} recorded threads, {cpu:.2} CPUs", threads.len()),
        sources: vec!["recorded by muster explain: docs/explain.md".to_owned()],
        ..Workload::default()
    };
    let mut turn_cpu_ns = Vec::new();
    for (t, &permits) in permits.iter().enumerate() {
        turn_cpu_ns.push(scribe.turn_cpu_ns(t));
        workload.groups.push(scribe.group(t, components.iter().any(|c| c.contains(&t) && scribe.in_flight(c) > 1)));
        if round.waits(t) > 0 {
            workload.conditions.insert(condition(t), Condition { permits: u64::from(permits) });
        }
    }
    if (0..threads.len()).any(|t| scribe.only_wakes(t)) {
        notes.push("what its threads do between wake-ups is too short to be told from waking: what remedies give back is at most this".to_owned());
    }
    let known: f64 = threads.iter().map(|thread| thread.cpu).sum();
    if let Some(rest) = rest(cpu - known, &mut notes) {
        turn_cpu_ns.push(LONGEST_CHUNK_NS);
        workload.groups.push(rest);
    }
    (!workload.groups.is_empty()).then_some(Recording { workload, turn_cpu_ns, notes })
}

/// So many times the same program, each with threads and conditions of its own (weak scaling).
///
/// `None` when that makes more threads than a workload may have.
pub fn copies(workload: &Workload, copies: u32) -> Option<Workload> {
    let threads: u64 = workload.groups.iter().map(|group| u64::from(group.count.resolve(1))).sum();
    if threads * u64::from(copies) > MAX_THREADS {
        return None;
    }
    let mut all = Workload { conditions: BTreeMap::new(), groups: Vec::new(), ..workload.clone() };
    for copy in 1..=copies {
        for (name, condition) in &workload.conditions {
            all.conditions.insert(format!("{name}.{copy}"), *condition);
        }
        for group in &workload.groups {
            let phases = renamed(&group.phases, copy);
            all.groups.push(Group { name: format!("{}.{copy}", group.name), phases, ..group.clone() });
        }
    }
    Some(all)
}

/// The phases of one copy.
fn renamed(phases: &[Phase], copy: u32) -> Vec<Phase> {
    let rename = |phase: &Phase| match phase.clone() {
        Phase::Wait { condition } => Phase::Wait { condition: format!("{condition}.{copy}") },
        Phase::Wake { condition, count } => Phase::Wake { condition: format!("{condition}.{copy}"), count },
        Phase::Loop { times, scaled, phases } => Phase::Loop { times, scaled, phases: renamed(&phases, copy) },
        other => other,
    };
    phases.iter().map(rename).collect()
}

// ---- threads and their wake-ups ----

fn threads(seen: &Seen, notes: &mut Vec<String>) -> Vec<Thread> {
    let wall_ns = seen.main.wall_ns as f64;
    let per_s = |count: u64| count as f64 * 1e9 / wall_ns;
    let counts = |t: &&ThreadFacts| t.cpu_ns as f64 / wall_ns > NEGLIGIBLE_CPU || per_s(t.switches) > FEW_WAKES;
    let kept: Vec<&ThreadFacts> = seen.main.threads.iter().filter(counts).collect();
    let mut threads: Vec<Thread> = kept
        .iter()
        .map(|t| Thread {
            id: t.id,
            cpu: t.cpu_ns as f64 / wall_ns,
            waiting: t.waiting_ns as f64 / wall_ns,
            switches: per_s(t.switches),
            woken_by: BTreeMap::new(),
            outside: 0.0,
        })
        .collect();
    match seen.wakes.filter(|(_, attached_ns)| *attached_ns >= SHORTEST_WINDOW_NS) {
        Some((pairs, attached_ns)) => wakes_as_seen(&mut threads, pairs, attached_ns),
        None => {
            notes.push("who wakes whom was not seen: threads that block about as often as each other were taken to hand over to each other".to_owned());
            wakes_as_guessed(&mut threads, seen.main.outside());
        }
    }
    threads
}

fn wakes_as_seen(threads: &mut [Thread], pairs: &[WakePair], attached_ns: u64) {
    let index: BTreeMap<ThreadId, usize> = threads.iter().enumerate().map(|(t, thread)| (thread.id, t)).collect();
    let counted: u64 = pairs.iter().filter(|pair| index.contains_key(&pair.wakee)).map(|pair| pair.count).sum();
    let in_windows = counted as f64 * 1e9 / attached_ns as f64;
    // Windows are a part of the time; where a switch-in is a wake-up, as a rule, the whole main phase is known.
    let whole = threads.iter().map(|thread| thread.switches).sum::<f64>() / in_windows.max(1e-9);
    let scale = if (1.0 / MOST_SCALE..=MOST_SCALE).contains(&whole) { whole } else { 1.0 };
    for (t, thread) in threads.iter_mut().enumerate() {
        let of_thread = || pairs.iter().filter(|pair| pair.wakee == thread.id);
        let all: u64 = of_thread().map(|pair| pair.count).sum();
        let rate = scale * all as f64 * 1e9 / attached_ns as f64;
        for pair in of_thread() {
            let share = pair.count as f64 / all.max(1) as f64;
            match index.get(&pair.waker).filter(|waker| **waker != t && share >= RARE) {
                Some(&waker) => *thread.woken_by.entry(waker).or_default() += share * rate,
                None => thread.outside += share * rate,
            }
        }
    }
}

/// Threads with about the same rate are a ring; others wait for the outside.
fn wakes_as_guessed(threads: &mut [Thread], outside: Option<f64>) {
    let switches: Vec<f64> = threads.iter().map(|thread| thread.switches).collect();
    let mut frequent: Vec<usize> = (0..threads.len()).filter(|&t| switches[t] >= HAND_OVERS).collect();
    frequent.sort_by(|&a, &b| switches[b].total_cmp(&switches[a]));
    let rings = frequent.chunk_by(|&a, &b| switches[a] <= ABOUT_AS_OFTEN * switches[b]);
    let mut in_ring = BTreeSet::new();
    for ring in rings.filter(|ring| ring.len() > 1 && outside.unwrap_or(0.0) < 0.5) {
        let rate = ring.iter().map(|&t| switches[t]).sum::<f64>() / ring.len() as f64;
        for (position, &t) in ring.iter().enumerate() {
            threads[t].woken_by.insert(ring[(position + 1) % ring.len()], rate);
            in_ring.insert(t);
        }
    }
    for t in (0..threads.len()).filter(|t| !in_ring.contains(t)) {
        // A thread that hardly ever lacks a vCPU is switched out by others, not by waiting.
        let idle = 1.0 - threads[t].cpu - threads[t].waiting;
        threads[t].outside = if idle > REST { switches[t] } else { 0.0 };
    }
}

/// Where most hand-overs meet a halted vCPU, the others came so soon that the vCPU was still awake, which takes no more
/// than the calls: they become a part of the running time. How many of them there are for each that stays.
fn merge_awake(seen: &Seen, threads: &mut [Thread], notes: &mut Vec<String>) -> f64 {
    let halted = halted_share(seen, threads);
    if !(MOSTLY..0.99).contains(&halted) {
        return 0.0;
    }
    for thread in threads {
        thread.woken_by.values_mut().for_each(|rate| *rate *= halted);
        thread.outside *= halted;
    }
    if halted < MOST_OF_THE_TIME {
        notes.push(format!(
            "{:.0} % of hand-overs met a vCPU that was awake: they are recorded as running",
            100.0 * (1.0 - halted)
        ));
    }
    1.0 / halted - 1.0
}

/// The share of wake-ups that meet a halted vCPU.
fn halted_share(seen: &Seen, threads: &[Thread]) -> f64 {
    let wakes: f64 = threads.iter().map(|thread| thread.outside + thread.woken_by.values().sum::<f64>()).sum();
    if wakes > 0.0 { (seen.main.halts_per_s() / wakes).clamp(0.0, 1.0) } else { 0.0 }
}

// ---- rounds ----

impl Round {
    /// The shortest round that makes all rates whole, or the one that comes nearest.
    fn of(threads: &[Thread]) -> Self {
        let all =
            || threads.iter().enumerate().flat_map(|(t, thread)| thread.woken_by.iter().map(move |(&w, &r)| (w, t, r)));
        let highest = all().map(|(_, _, rate)| rate).chain(threads.iter().map(|t| t.outside)).fold(0.0, f64::max);
        if highest <= 0.0 {
            return Self { ns: CHUNK_NS, pairs: BTreeMap::new(), outside: vec![0; threads.len()] };
        }
        let of = |most: u32| {
            let whole = |rate: f64| (rate * f64::from(most) / highest).round() as u32;
            let pairs: BTreeMap<_, u32> =
                all().map(|(w, t, rate)| ((w, t), whole(rate))).filter(|(_, n)| *n > 0).collect();
            let outside: Vec<u32> = threads.iter().map(|thread| whole(thread.outside)).collect();
            // So long that all wake-ups together have their rate.
            let wakes = pairs.values().chain(&outside).sum::<u32>();
            let rates = all().map(|(_, _, rate)| rate).sum::<f64>() + threads.iter().map(|t| t.outside).sum::<f64>();
            Self { ns: f64::from(wakes) * 1e9 / rates, pairs, outside }
        };
        let wrong = |round: &Self| {
            let seconds = round.ns / 1e9;
            let pairs = all().map(|(w, t, rate)| (f64::from(round.pair(w, t)) - rate * seconds).abs());
            let outside =
                threads.iter().enumerate().map(|(t, it)| (f64::from(round.outside[t]) - it.outside * seconds).abs());
            pairs.chain(outside).sum::<f64>()
                / f64::from(round.pairs.values().chain(&round.outside).sum::<u32>().max(1))
        };
        let rounds: Vec<Self> = (1..=MOST_PER_ROUND).map(of).collect();
        let good = rounds.iter().position(|round| wrong(round) <= ROUNDING);
        let best = || (0..rounds.len()).min_by(|&a, &b| wrong(&rounds[a]).total_cmp(&wrong(&rounds[b]))).unwrap_or(0);
        rounds[good.unwrap_or_else(best)].clone()
    }

    fn pair(&self, waker: usize, wakee: usize) -> u32 {
        self.pairs.get(&(waker, wakee)).copied().unwrap_or(0)
    }

    /// How often a thread waits for others.
    fn waits(&self, t: usize) -> u32 {
        self.pairs.iter().filter(|((_, wakee), _)| *wakee == t).map(|(_, n)| n).sum()
    }

    /// Whom a thread wakes, and how often.
    fn wakes(&self, t: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.pairs.iter().filter(move |((waker, _), _)| *waker == t).map(|(&(_, wakee), &n)| (wakee, n))
    }

    fn cycles(&self, t: usize) -> u32 {
        (self.waits(t) + self.outside[t]).max(1)
    }

    /// Of `n` occurrences spread evenly over the cycles of thread `t`, the first ones as early as that allows, those that
    /// fall on cycle `i`.
    fn share(&self, t: usize, i: u32, n: u32) -> std::ops::Range<usize> {
        let passed = |i: u32| (u64::from(i) * u64::from(n)).div_ceil(u64::from(self.cycles(t))) as usize;
        passed(i)..passed(i + 1)
    }

    /// Whether a thread sleeps before its cycle `i`; it waits for others otherwise, if it waits at all.
    fn sleeps(&self, t: usize, i: u32) -> bool {
        !self.share(t, i, self.outside[t]).is_empty()
    }

    /// Whom thread `t` wakes in a round, those that it wakes often and those that it wakes rarely evenly mixed.
    fn sequence(&self, t: usize) -> Vec<usize> {
        let mut wakes: Vec<(f64, usize)> = self
            .wakes(t)
            .flat_map(|(wakee, n)| (0..n).map(move |i| ((f64::from(i) + 0.5) / f64::from(n), wakee)))
            .collect();
        wakes.sort_by(|a, b| a.0.total_cmp(&b.0));
        wakes.into_iter().map(|(_, wakee)| wakee).collect()
    }
}

/// Threads that wake each other, directly or through others; only those of two or more.
fn components(threads: usize, round: &Round) -> Vec<BTreeSet<usize>> {
    let mut of: Vec<usize> = (0..threads).collect();
    for &(a, b) in round.pairs.keys() {
        let (into, from) = (of[a], of[b]);
        of.iter_mut().filter(|component| **component == from).for_each(|component| *component = into);
    }
    let members = |component: usize| (0..threads).filter(|&t| of[t] == component).collect::<BTreeSet<usize>>();
    (0..threads).map(members).filter(|members| members.len() > 1).collect()
}

// ---- writing it down ----

struct Scribe<'a> {
    seen: &'a Seen<'a>,
    overheads: &'a Overheads,
    threads: &'a [Thread],
    round: &'a Round,
    /// Share of wake-ups that meet a halted vCPU.
    halted: f64,
    /// Hand-overs that are recorded as running, for each that is not.
    met_awake: f64,
}

fn condition(t: usize) -> String {
    format!("thread-{}", t + 1)
}

impl Scribe<'_> {
    /// Mean number of threads of a component that run, wait for a vCPU or are on their way to one (Little's law).
    fn in_flight(&self, component: &BTreeSet<usize>) -> u32 {
        let of = |&t: &usize| {
            let thread = &self.threads[t];
            let wakes: f64 = thread.woken_by.values().sum();
            thread.cpu + thread.waiting + wakes * self.halted * self.overheads.transit_ns / 1e9
        };
        component.iter().map(of).sum::<f64>().round() as u32
    }

    /// Permits at the start, by thread.
    fn permits(&self, components: &[BTreeSet<usize>]) -> Vec<u32> {
        let mut permits = self.least_permits();
        for component in components {
            // Whoever sleeps or never waits brings a hand-over of its own into the component.
            let starts_itself = |&t: &usize| self.round.outside[t] > 0 || self.round.waits(t) == 0;
            let there: u32 = component.iter().map(|t| permits[*t] + u32::from(starts_itself(t))).sum();
            let mut waiting: Vec<usize> = component.iter().copied().filter(|&t| self.round.waits(t) > 0).collect();
            waiting.sort_by(|&a, &b| self.run_ns(b).total_cmp(&self.run_ns(a)));
            let more = self.in_flight(component).saturating_sub(there) as usize;
            waiting.iter().cycle().take(if waiting.is_empty() { 0 } else { more }).for_each(|&t| permits[t] += 1);
        }
        permits
    }

    /// The permits without which a round would get stuck: it is played through, and whoever is stuck gets one. Each
    /// condition has one thread that waits for it, so that the order of play does not matter.
    fn least_permits(&self) -> Vec<u32> {
        let n = self.threads.len();
        let (mut permits, mut marks, mut done) = (vec![0; n], vec![0u32; n], vec![0; n]);
        let sequences: Vec<Vec<usize>> = (0..n).map(|t| self.round.sequence(t)).collect();
        loop {
            let mut moved = false;
            for t in 0..n {
                while done[t] < self.round.cycles(t) {
                    let waits = self.round.waits(t) > 0 && !self.round.sleeps(t, done[t]);
                    if waits && marks[t] == 0 {
                        break;
                    }
                    marks[t] -= u32::from(waits);
                    let woken = self.round.share(t, done[t], sequences[t].len() as u32);
                    sequences[t][woken].iter().for_each(|&wakee| marks[wakee] += 1);
                    done[t] += 1;
                    moved = true;
                }
            }
            let left = |t: &usize| self.round.cycles(*t) - done[*t];
            let Some(stuck) = (0..n).max_by_key(|t| (left(t), std::cmp::Reverse(*t))).filter(|t| left(t) > 0) else {
                return permits;
            };
            if !moved {
                permits[stuck] += 1;
                marks[stuck] += 1;
            }
        }
    }

    /// What a thread runs in one cycle, without what the simulator charges by itself.
    fn run_ns(&self, t: usize) -> f64 {
        let cycles = f64::from(self.round.cycles(t));
        let blocks = self.round.waits(t) + self.round.outside[t];
        let wakes: u32 = self.round.wakes(t).map(|(_, n)| n).sum();
        let (to_halted, queued) = (self.overheads.wake_halted_ns, self.overheads.wake_queued_ns);
        let wake_ns = self.halted * to_halted + (1.0 - self.halted) * queued;
        let charged = f64::from(blocks) * self.overheads.block_ns + f64::from(wakes) * wake_ns;
        let merged_ns = self.met_awake * f64::from(blocks) * (self.overheads.block_ns + queued) / cycles;
        ((self.threads[t].cpu * self.round.ns - charged) / cycles).max(merged_ns).max(SHORTEST_RUN_NS)
    }

    /// Whether a thread that hands over has so little CPU time beyond waking that how little cannot be told.
    fn only_wakes(&self, t: usize) -> bool {
        let of_all = self.threads[t].cpu * self.round.ns / f64::from(self.round.cycles(t));
        self.round.waits(t) > 0 && self.run_ns(t) < TOO_LITTLE * of_all
    }

    /// How long a thread that waits for the outside sleeps each time.
    fn sleep_ns(&self, t: usize) -> f64 {
        let thread = &self.threads[t];
        let times = f64::from(self.round.outside[t].max(1));
        let idle = (1.0 - thread.cpu - thread.waiting).max(0.0);
        let all: u32 = self.round.outside.iter().sum();
        // A thread that also waits for others: the time in which nobody was runnable, shared by all who wait for the
        // outside.
        let share = match self.round.waits(t) {
            0 => idle / times,
            _ => idle.min(self.seen.main.outside().unwrap_or(0.0)) / f64::from(all.max(1)),
        };
        (share * self.round.ns - self.overheads.transit_ns).max(1e3)
    }

    /// One thread; `varies` draws its times instead of repeating them.
    fn group(&self, t: usize, varies: bool) -> Group {
        let (round_ns, body) =
            if self.computes(t) { self.computing(t) } else { (self.round.ns, self.cycles(t, varies)) };
        let times = Count::Fixed((RECORDED_NS / round_ns).ceil() as u32);
        Group {
            name: condition(t),
            count: Count::Fixed(1),
            cpus: None,
            nice: 0,
            working_set: None,
            phases: vec![Phase::Loop { times, scaled: true, phases: body }],
        }
    }

    /// Whether a thread neither blocks nor wakes.
    fn computes(&self, t: usize) -> bool {
        self.round.waits(t) + self.round.outside[t] + self.round.wakes(t).count() as u32 == 0
    }

    /// A thread that computes runs between two of its switch-ins, if those are not too rare to be simulated.
    fn chunk_ns(&self, t: usize) -> f64 {
        let thread = &self.threads[t];
        (thread.cpu * 1e9 / thread.switches.max(1e-3)).clamp(CHUNK_NS, LONGEST_CHUNK_NS)
    }

    fn turn_cpu_ns(&self, t: usize) -> f64 {
        if self.computes(t) { self.chunk_ns(t) } else { self.threads[t].cpu * self.round.ns }
    }

    /// A thread that neither blocks nor wakes: how long one turn takes, and what it is.
    fn computing(&self, t: usize) -> (f64, Vec<Phase>) {
        let thread = &self.threads[t];
        busy(self.chunk_ns(t), thread.cpu, (1.0 - thread.cpu - thread.waiting).max(0.0))
    }

    fn cycles(&self, t: usize, varies: bool) -> Vec<Phase> {
        let waits = self.round.waits(t) > 0;
        let sequence = self.round.sequence(t);
        let cycle = |i: u32| {
            let mut phases = Vec::new();
            if self.round.sleeps(t, i) {
                phases.push(Phase::Sleep { ns: Duration::Exponential { mean: self.sleep_ns(t) as u64 } });
            } else if waits {
                phases.push(Phase::Wait { condition: condition(t) });
            }
            phases.extend(self.running(t, varies));
            let wake = |&wakee: &usize| Phase::Wake { condition: condition(wakee), count: Count::Fixed(1) };
            phases.extend(sequence[self.round.share(t, i, sequence.len() as u32)].iter().map(wake));
            phases
        };
        (0..self.round.cycles(t)).flat_map(cycle).collect()
    }

    /// A cycle's running, in user mode and in the kernel as the whole program's time is split.
    fn running(&self, t: usize, varies: bool) -> Vec<Phase> {
        let run_ns = self.run_ns(t);
        let of_all = self.threads[t].cpu * self.round.ns / f64::from(self.round.cycles(t));
        let user_share = self.seen.main.user_ns as f64 / self.seen.main.cpu_ns.max(1) as f64;
        // Waking and blocking, which are charged elsewhere, are the kernel's.
        let user_ns = (user_share * of_all).clamp(SHORTEST_RUN_NS.min(run_ns), run_ns);
        let drawn =
            |ns: f64| if varies { Duration::Exponential { mean: ns as u64 } } else { Duration::Fixed(ns as u64) };
        let kernel_ns = run_ns - user_ns - self.overheads.syscall_ns;
        if kernel_ns < 1.0 {
            return vec![Phase::Run { ns: drawn(run_ns), shared: false }];
        }
        vec![Phase::Run { ns: drawn(user_ns), shared: false }, Phase::Syscall { ns: drawn(kernel_ns) }]
    }
}

/// A turn of a thread that computes for a share `cpu` of the time and is away for a share `away`.
fn busy(chunk_ns: f64, cpu: f64, away: f64) -> (f64, Vec<Phase>) {
    let mut phases = vec![Phase::Run { ns: Duration::Fixed(chunk_ns as u64), shared: false }];
    if away <= REST {
        return (chunk_ns / cpu.clamp(REST, 1.0), phases);
    }
    let sleep_ns = chunk_ns * away / cpu.max(1e-3);
    phases.push(Phase::Sleep { ns: Duration::Exponential { mean: sleep_ns as u64 } });
    (chunk_ns / cpu.max(1e-3), phases)
}

/// The CPU time of threads that were not told apart.
fn rest(cpu: f64, notes: &mut Vec<String>) -> Option<Group> {
    if cpu < REST {
        return None;
    }
    notes.push(format!(
        "{cpu:.2} CPUs were used by threads that lived too briefly to be told apart: they are recorded as computing"
    ));
    let count = cpu.ceil();
    let (turn_ns, phases) = busy(LONGEST_CHUNK_NS, cpu / count, 1.0 - cpu / count);
    let times = Count::Fixed((RECORDED_NS / turn_ns).ceil() as u32);
    Some(Group {
        name: "short-lived".to_owned(),
        count: Count::Fixed(count as u32),
        cpus: None,
        nice: 0,
        working_set: None,
        phases: vec![Phase::Loop { times, scaled: true, phases }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OVERHEADS: Overheads = Overheads {
        wake_halted_ns: 13_000.0,
        wake_queued_ns: 1_000.0,
        block_ns: 1_000.0,
        syscall_ns: 100.0,
        transit_ns: 8_000.0,
    };
    const SECOND: u64 = 1_000_000_000;

    fn thread(id: u32, cpu: f64, switches: u64) -> ThreadFacts {
        ThreadFacts { id: ThreadId(id), cpu_ns: (cpu * 1e9) as u64, waiting_ns: 0, switches }
    }

    fn pair(waker: u32, wakee: u32, count: u64) -> WakePair {
        WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count }
    }

    /// A second of a program.
    fn second(threads: &[ThreadFacts], halts: u64, outside: f64) -> Stretch {
        let cpu_ns = threads.iter().map(|thread| thread.cpu_ns).sum();
        let looks = (1_000, (1_000.0 * outside) as u64);
        Stretch { wall_ns: SECOND, cpu_ns, user_ns: cpu_ns / 4, halts, looks, threads: threads.to_vec() }
    }

    /// A program of which BPF saw a tenth of a second.
    fn seen<'a>(main: &'a Stretch, pairs: &'a [WakePair]) -> Seen<'a> {
        Seen { name: "prog", main, share: 1.0, wakes: Some((pairs, SECOND / 10)) }
    }

    fn recorded(seen: &Seen) -> Workload {
        let workload = record(seen, &OVERHEADS).unwrap().workload;
        let read = Workload::from_json(&workload.to_json(), "recorded").unwrap();
        read.check_for(1, 1.0).unwrap();
        assert_eq!(read, workload);
        workload
    }

    fn body(group: &Group) -> &[Phase] {
        match &group.phases[..] {
            [Phase::Loop { phases, scaled: true, .. }] => phases,
            other => panic!("not one loop: {other:?}"),
        }
    }

    fn permits(workload: &Workload) -> Vec<u64> {
        workload.conditions.values().map(|condition| condition.permits).collect()
    }

    fn named(phases: &[Phase]) -> Vec<&'static str> {
        phases.iter().map(Phase::name).collect()
    }

    #[test]
    fn two_threads_that_hand_over_are_a_chain_with_one_hand_over_in_flight() {
        // 40,000 hops a second, each 20 us of CPU time: 14 us of that are charged by the simulator.
        let threads = [thread(7, 0.4, 20_000), thread(9, 0.4, 20_000)];
        let pairs = [pair(7, 9, 1_900), pair(9, 7, 2_000)];
        let workload = recorded(&seen(&second(&threads, 40_000, 0.0), &pairs));
        assert_eq!(permits(&workload).iter().sum::<u64>(), 1);
        let only_wake = [thread(7, 0.29, 20_000), thread(9, 0.29, 20_000)];
        let short = record(&seen(&second(&only_wake, 40_000, 0.0), &pairs), &OVERHEADS).unwrap();
        assert!(short.notes.iter().any(|note| note.contains("at most")), "{:?}", short.notes);
        for (group, other) in [(0, "thread-2"), (1, "thread-1")] {
            let phases = body(&workload.groups[group]);
            assert_eq!(named(phases), ["wait", "run", "syscall", "wake"]);
            assert_eq!(phases[3], Phase::Wake { condition: other.into(), count: Count::Fixed(1) });
            assert_eq!(phases[1], Phase::Run { ns: Duration::Fixed(5_000), shared: false });
            assert_eq!(phases[2], Phase::Syscall { ns: Duration::Fixed(900) });
        }
    }

    #[test]
    fn threads_that_are_both_busy_have_two_hand_overs_in_flight() {
        let threads = [thread(1, 0.9, 5_000), thread(2, 0.95, 5_000)];
        let pairs = [pair(1, 2, 500), pair(2, 1, 500)];
        let workload = recorded(&seen(&second(&threads, 6_000, 0.0), &pairs));
        assert_eq!(permits(&workload).iter().sum::<u64>(), 2);
        assert!(matches!(body(&workload.groups[0])[1], Phase::Run { ns: Duration::Exponential { .. }, .. }));
    }

    #[test]
    fn independent_threads_compute() {
        let threads = [thread(1, 0.99, 150), thread(2, 0.97, 120), thread(3, 0.001, 3)];
        let workload = recorded(&seen(&second(&threads, 20, 0.0), &[pair(0, 1, 1)]));
        assert!(workload.conditions.is_empty());
        assert_eq!(workload.groups.len(), 2, "the third does next to nothing");
        assert_eq!(named(body(&workload.groups[1])), ["run"]);
        let half = [thread(1, 0.5, 10)];
        let workload = recorded(&seen(&second(&half, 20, 0.5), &[]));
        assert_eq!(named(body(&workload.groups[0])), ["run", "sleep"]);
    }

    #[test]
    fn a_server_waits_for_the_outside_and_its_worker_for_the_server() {
        let threads = [thread(1, 0.2, 4_000), thread(2, 0.1, 4_000)];
        let pairs = [pair(0, 1, 390), pair(77, 1, 10), pair(1, 2, 400)];
        let workload = recorded(&seen(&second(&threads, 8_000, 0.6), &pairs));
        assert_eq!(named(body(&workload.groups[0])), ["sleep", "run", "syscall", "wake"]);
        assert_eq!(named(body(&workload.groups[1]))[0], "wait");
        assert_eq!(permits(&workload), [0], "the outside starts every round");
        // 250 us a cycle, of which 50 us of CPU time; the timer's way to the vCPU is the simulator's.
        let Phase::Sleep { ns: Duration::Exponential { mean } } = body(&workload.groups[0])[0] else { panic!() };
        assert_eq!(mean, 200_000 - 8_000);
    }

    #[test]
    fn unequal_rates_make_a_round_of_several_cycles() {
        let threads = [thread(1, 0.3, 9_000), thread(2, 0.1, 6_000), thread(3, 0.1, 3_000)];
        let pairs = [pair(1, 2, 600), pair(2, 1, 600), pair(1, 3, 300), pair(3, 1, 300)];
        let workload = recorded(&seen(&second(&threads, 18_000, 0.0), &pairs));
        let waits = |group: usize| named(body(&workload.groups[group])).iter().filter(|name| **name == "wait").count();
        assert_eq!([waits(0), waits(1), waits(2)], [3, 2, 1]);
        assert_eq!(permits(&workload).iter().sum::<u64>(), 1);
    }

    #[test]
    fn without_bpf_threads_of_one_rate_are_a_ring_and_that_is_said() {
        let threads = [thread(1, 0.3, 9_000), thread(2, 0.3, 9_500), thread(3, 0.05, 50)];
        let main = second(&threads, 18_000, 0.0);
        let blind = Seen { wakes: None, ..seen(&main, &[]) };
        let recording = record(&blind, &OVERHEADS).unwrap();
        assert_eq!(recording.workload.conditions.len(), 2);
        assert!(recording.notes[0].contains("was not seen"), "{:?}", recording.notes);
        let waiting = second(&threads, 18_000, 0.8);
        assert!(recorded(&Seen { main: &waiting, ..blind }).conditions.is_empty(), "most of the time is spent outside");
    }

    #[test]
    fn short_lived_threads_are_not_forgotten() {
        let threads = [thread(1, 0.1, 10)];
        let all = Stretch { cpu_ns: 19 * SECOND / 10, ..second(&threads, 20, 0.0) };
        let recording = record(&seen(&all, &[]), &OVERHEADS).unwrap();
        assert_eq!(recording.workload.groups[1].count, Count::Fixed(2));
        assert!(recording.notes.iter().any(|note| note.contains("1.80 CPUs")), "{:?}", recording.notes);
        let idle = Stretch { cpu_ns: 1_000, ..second(&[], 0, 1.0) };
        assert_eq!(record(&seen(&idle, &[]), &OVERHEADS), None);
        assert_eq!(record(&seen(&Stretch { wall_ns: 0, ..all }, &[]), &OVERHEADS), None);
    }

    #[test]
    fn the_main_phase_is_what_most_stretches_agree_on() {
        let start = second(&[thread(1, 0.9, 10)], 50, 0.0);
        let works = |halts| second(&[thread(1, 0.3, 9_000), thread(2, 0.3, 9_000)], halts, 0.0);
        let stretches = [start.clone(), works(18_000), works(17_000), works(19_000), start];
        let MainPhase { seen: main, share, switches_per_s } = main_phase(&stretches).unwrap();
        assert_eq!(switches_per_s, Some(Range { low: 18_000.0, value: 18_000.0, high: 18_000.0 }));
        assert_eq!((main.wall_ns, main.halts, share), (3 * SECOND, 54_000, 0.6));
        assert_eq!(main.threads.iter().map(|thread| thread.switches).collect::<Vec<_>>(), [27_000, 27_000]);
        assert!((main.cpu_rate() - 0.6).abs() < 1e-9 && main.outside() == Some(0.0));
        let recording = record(&Seen { share, ..seen(&main, &[]) }, &OVERHEADS).unwrap();
        assert!(recording.notes.iter().any(|note| note.contains("60 % of the time")), "{:?}", recording.notes);
        assert_eq!(main_phase(&[]), None);
    }

    #[test]
    fn copies_have_their_own_conditions() {
        let threads = [thread(7, 0.4, 20_000), thread(9, 0.4, 20_000)];
        let workload = recorded(&seen(&second(&threads, 40_000, 0.0), &[pair(7, 9, 2_000), pair(9, 7, 2_000)]));
        let eight = copies(&workload, 8).unwrap();
        assert_eq!((eight.groups.len(), eight.conditions.len()), (16, 16));
        let Phase::Wait { condition } = &body(&eight.groups[15])[0] else { panic!() };
        assert_eq!(condition, "thread-2.8");
        Workload::from_json(&eight.to_json(), "copies").unwrap().check_for(1, 1.0).unwrap();
        assert!(copies(&workload, 4_000).is_none());
    }

    proptest! {
        #[test]
        fn whatever_was_seen_becomes_a_workload_that_does_not_get_stuck(
            facts in proptest::collection::vec((0u64..2 * SECOND, 0u64..SECOND, 0u64..200_000), 0..6),
            pairs in proptest::collection::vec((0u32..8, 1u32..8, 0u64..20_000), 0..20),
            halts_per_s in 0.0..1e6f64, outside in 0.0..1.0f64,
        ) {
            let threads: Vec<ThreadFacts> = (1..).zip(facts).map(|(id, (cpu_ns, waiting_ns, switches))| {
                ThreadFacts { id: ThreadId(id), cpu_ns, waiting_ns, switches }
            }).collect();
            let pairs: Vec<WakePair> = pairs.into_iter().map(|(waker, wakee, n)| pair(waker, wakee, n)).collect();
            let main = second(&threads, halts_per_s as u64, outside);
            let seen = seen(&main, &pairs);
            if let Some(recording) = record(&seen, &OVERHEADS) {
                let read = Workload::from_json(&recording.workload.to_json(), "recorded").unwrap();
                read.check_for(1, 1.0).unwrap();
                prop_assert!(plays_through(&read, 3), "{}", read.to_json());
            }
        }
    }

    /// Whether so many turns of every group's loop end without anybody stuck, whatever time anything takes.
    fn plays_through(workload: &Workload, turns: usize) -> bool {
        let mut marks: BTreeMap<&str, u64> =
            workload.conditions.iter().map(|(name, condition)| (name.as_str(), condition.permits)).collect();
        let mut left: Vec<std::collections::VecDeque<&Phase>> =
            workload.groups.iter().map(|group| std::iter::repeat_n(body(group), turns).flatten().collect()).collect();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for phases in &mut left {
                while let Some(phase) = phases.front() {
                    match phase {
                        Phase::Wait { condition } if marks[condition.as_str()] == 0 => break,
                        Phase::Wait { condition } => *marks.get_mut(condition.as_str()).unwrap() -= 1,
                        Phase::Wake { condition, .. } => *marks.get_mut(condition.as_str()).unwrap() += 1,
                        _ => {}
                    }
                    phases.pop_front();
                    moved = true;
                }
            }
        }
        left.iter().all(|phases| phases.is_empty())
    }
}
