//! Which threads belong together: greedy merging of threads that wake each other, the most frequent wake-ups first.

use muster_model::{ThreadId, WakeWindow};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A thread belongs to whoever causes this share of its wake-ups.
const STRONG: f64 = 0.1;
/// Wake-ups per second from which two threads are put together; at a gain of 20 us each, one hundredth of a vCPU.
pub const JOIN_PER_S: f64 = 500.0;
/// Wake-ups per second from inside its group below which a thread is no longer seen to belong there.
const STAY_PER_S: f64 = 100.0;
/// Share of a vCPU up to which threads are put together: what is left absorbs that they do not take turns exactly.
pub const JOIN_LOAD: f64 = 0.9;
/// Share of a vCPU up to which threads stay together: on one vCPU they cannot take more, but clocks tick apart.
pub const STAY_LOAD: f64 = 1.1;
/// So many windows on end a thread may be silent before it leaves its group.
const SILENT_WINDOWS: u32 = 3;
/// Groups formed anew replace those in force when this many times as many wake-ups are inside them.
const CLEARLY_MORE: f64 = 1.25;

/// What one window shows: the threads, what each takes, and the wake-ups between them.
#[derive(Debug)]
pub struct Company {
    window_ns: u64,
    loads_ns: BTreeMap<ThreadId, Option<u64>>,
    /// CPU time of the program that no thread is known to have taken: any unknown thread's, for all one knows.
    rest_ns: u64,
    /// Wake-ups that bind two threads, most frequent first.
    edges: Vec<Edge>,
    wakes: u64,
}

/// How often two threads of the program woke each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edge {
    a: ThreadId,
    b: ThreadId,
    count: u64,
}

/// Threads that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Ascending.
    pub threads: Vec<ThreadId>,
    /// CPU time they took in the window, at most.
    pub load_ns: u64,
}

/// A cluster that still grows.
#[derive(Debug, Clone, Default)]
struct Growing {
    threads: Vec<ThreadId>,
    known_ns: u64,
    has_unknown: bool,
}

impl Company {
    /// What `window` shows of a program that kept `cpu_rate` CPUs busy.
    pub fn of(window: &WakeWindow, cpu_rate: f64) -> Self {
        let loads_ns: BTreeMap<_, _> = window.threads.iter().map(|load| (load.thread, load.cpu_ns)).collect();
        let known_ns: u64 = loads_ns.values().flatten().sum();
        let all_ns = (cpu_rate.max(0.0) * window.window_ns as f64) as u64;
        Self {
            window_ns: window.window_ns.max(1),
            edges: edges(window, &loads_ns),
            rest_ns: all_ns.saturating_sub(known_ns),
            loads_ns,
            wakes: window.pairs.iter().map(|pair| pair.count).sum(),
        }
    }

    /// The clusters to be, given those in force. What is in force grows; only where forming all anew would put clearly
    /// more wake-ups inside, that is done. Each takes at most [`JOIN_LOAD`] of a vCPU, or was in force and takes at most
    /// [`STAY_LOAD`]. Equal input with its own output in force gives that output.
    pub fn clusters(&self, in_force: &[Vec<ThreadId>]) -> Vec<Cluster> {
        let grown = self.merge(in_force);
        let fresh = self.merge(&[]);
        let inside = |clusters: &[Cluster]| self.inside(clusters.iter().map(|cluster| cluster.threads.as_slice()));
        if inside(&fresh) as f64 > CLEARLY_MORE * inside(&grown) as f64 { fresh } else { grown }
    }

    /// The share of all wake-ups, 0 to 1, whose waker and wakee are in one of `groups`.
    pub fn share_inside<'a>(&self, groups: impl Iterator<Item = &'a [ThreadId]>) -> f64 {
        self.inside(groups) as f64 / self.wakes.max(1) as f64
    }

    fn inside<'a>(&self, groups: impl Iterator<Item = &'a [ThreadId]>) -> u64 {
        let group_of: BTreeMap<ThreadId, usize> = groups
            .enumerate()
            .flat_map(|(group, threads)| threads.iter().map(move |&thread| (thread, group)))
            .collect();
        let is_inside = |edge: &&Edge| group_of.contains_key(&edge.a) && group_of.get(&edge.a) == group_of.get(&edge.b);
        self.edges.iter().filter(is_inside).map(|edge| edge.count).sum()
    }

    fn merge(&self, seeds: &[Vec<ThreadId>]) -> Vec<Cluster> {
        let mut growing: Vec<Growing> = Vec::new();
        let mut home: BTreeMap<ThreadId, usize> = BTreeMap::new();
        for seed in seeds {
            let cluster = seed.iter().fold(Growing::default(), |sum, &thread| sum.with(self.alone(thread)));
            if self.joint_load_ns(&[&cluster]) <= self.share_ns(STAY_LOAD) {
                cluster.threads.iter().for_each(|&thread| _ = home.insert(thread, growing.len()));
                growing.push(cluster);
            }
        }
        for edge in self.edges.iter().filter(|edge| self.per_second(edge.count) >= JOIN_PER_S) {
            let [a, b] = [edge.a, edge.b].map(|thread| {
                *home.entry(thread).or_insert_with(|| {
                    growing.push(self.alone(thread));
                    growing.len() - 1
                })
            });
            if a != b && self.joint_load_ns(&[&growing[a], &growing[b]]) <= self.share_ns(JOIN_LOAD) {
                let moving = std::mem::take(&mut growing[b]);
                moving.threads.iter().for_each(|&thread| _ = home.insert(thread, a));
                growing[a] = std::mem::take(&mut growing[a]).with(moving);
            }
        }
        let mut clusters: Vec<Cluster> = growing
            .into_iter()
            .filter(|cluster| cluster.threads.len() > 1)
            .map(|cluster| self.grown(cluster))
            .collect();
        clusters.sort_by(|a, b| a.threads.cmp(&b.threads));
        clusters
    }

    fn grown(&self, cluster: Growing) -> Cluster {
        let load_ns = self.joint_load_ns(&[&cluster]);
        let mut threads = cluster.threads;
        threads.sort_unstable();
        Cluster { threads, load_ns }
    }

    fn alone(&self, thread: ThreadId) -> Growing {
        let load_ns = self.loads_ns.get(&thread).copied().flatten();
        Growing { threads: vec![thread], known_ns: load_ns.unwrap_or(0), has_unknown: load_ns.is_none() }
    }

    /// What clusters take together, at most.
    fn joint_load_ns(&self, clusters: &[&Growing]) -> u64 {
        let known_ns: u64 = clusters.iter().map(|cluster| cluster.known_ns).sum();
        let has_unknown = clusters.iter().any(|cluster| cluster.has_unknown);
        known_ns + if has_unknown { self.rest_ns } else { 0 }
    }

    /// A share of one vCPU over the window.
    pub fn share_ns(&self, share: f64) -> u64 {
        (share * self.window_ns as f64) as u64
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.window_ns as f64
    }
}

impl Growing {
    fn with(mut self, other: Self) -> Self {
        self.threads.extend(other.threads);
        self.known_ns += other.known_ns;
        self.has_unknown |= other.has_unknown;
        self
    }
}

/// The wake-ups between two threads of the program that make up a good part of either's, most frequent first.
fn edges(window: &WakeWindow, own: &BTreeMap<ThreadId, Option<u64>>) -> Vec<Edge> {
    let mut woken: BTreeMap<ThreadId, u64> = BTreeMap::new();
    window.pairs.iter().for_each(|pair| *woken.entry(pair.wakee).or_default() += pair.count);
    let mut counts: BTreeMap<(ThreadId, ThreadId), u64> = BTreeMap::new();
    for pair in &window.pairs {
        let are_two = pair.waker != pair.wakee && own.contains_key(&pair.waker) && own.contains_key(&pair.wakee);
        if are_two && pair.count as f64 >= STRONG * woken[&pair.wakee] as f64 {
            *counts.entry((pair.waker.min(pair.wakee), pair.waker.max(pair.wakee))).or_default() += pair.count;
        }
    }
    let mut edges: Vec<Edge> = counts.into_iter().map(|((a, b), count)| Edge { a, b, count }).collect();
    edges.sort_by_key(|edge| (Reverse(edge.count), edge.a, edge.b));
    edges
}

/// Groups over time: threads that are silent for a window keep their place, those that have ended or turned to other
/// work lose it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// For how many windows on end a thread has not been seen to belong to its group.
    silent: BTreeMap<ThreadId, u32>,
}

impl Memory {
    /// What is left of the groups `in_force` after a window.
    pub fn still_together(&mut self, company: &Company, in_force: &[Vec<ThreadId>]) -> Vec<Vec<ThreadId>> {
        let mut silent = BTreeMap::new();
        let left = in_force.iter().map(|group| self.members(company, group, &mut silent)).collect::<Vec<_>>();
        self.silent = silent;
        left.into_iter().filter(|group| group.len() > 1).collect()
    }

    fn members(&self, company: &Company, group: &[ThreadId], silent: &mut BTreeMap<ThreadId, u32>) -> Vec<ThreadId> {
        let within = |edge: &&Edge| group.contains(&edge.a) && group.contains(&edge.b);
        let mut wakes: BTreeMap<ThreadId, u64> = BTreeMap::new();
        for edge in company.edges.iter().filter(within) {
            *wakes.entry(edge.a).or_default() += edge.count;
            *wakes.entry(edge.b).or_default() += edge.count;
        }
        let mut members = Vec::new();
        for &thread in group {
            let belongs = wakes.get(&thread).is_some_and(|&count| company.per_second(count) >= STAY_PER_S);
            let windows = if belongs { 0 } else { self.silent.get(&thread).copied().unwrap_or(0) + 1 };
            let load_ns = company.loads_ns.get(&thread).copied();
            // Busy without waking anybody: it has turned to work of its own.
            let is_busy = !belongs && load_ns.flatten().is_some_and(|load_ns| load_ns > company.share_ns(0.5));
            if load_ns.is_some() && windows < SILENT_WINDOWS && !is_busy {
                members.push(thread);
                silent.insert(thread, windows);
            }
        }
        members
    }
}
