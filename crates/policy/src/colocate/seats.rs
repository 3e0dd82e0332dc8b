//! Which vCPU each group gets: the one it has, else one of the least busy last-level-cache domain.

use super::groups::{Cluster, Company, JOIN_LOAD};
use crate::consolidate::Group;
use muster_model::{CpuSet, ThreadId, Topology};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The vCPUs and what the groups seated so far take of them, in nanoseconds of the window.
struct Seats {
    loads_ns: BTreeMap<usize, u64>,
    /// Physical core and last-level-cache domain of each.
    shares: BTreeMap<usize, (u32, u32)>,
    /// A vCPU is full here.
    full_ns: u64,
}

impl Seats {
    fn new(allowed: &CpuSet, topology: &Topology, full_ns: u64) -> Self {
        let share = |cpu| topology.cpu(cpu).map_or((u32::MAX, u32::MAX), |cpu| (cpu.core, cpu.llc));
        Self {
            loads_ns: allowed.iter().map(|cpu| (cpu, 0)).collect(),
            shares: allowed.iter().map(|cpu| (cpu, share(cpu))).collect(),
            full_ns,
        }
    }

    fn fits(&self, cpu: usize, load_ns: u64) -> bool {
        self.loads_ns.get(&cpu).is_some_and(|&taken_ns| taken_ns == 0 || taken_ns + load_ns <= self.full_ns)
    }

    /// The vCPU for a group without one: the domain that is least busy per vCPU, in it the least busy core, of that the
    /// least busy vCPU, and the highest number, because devices interrupt the lowest. `None` where it would be too much
    /// for any.
    fn best_for(&self, load_ns: u64) -> Option<usize> {
        let mut cores: BTreeMap<u32, u64> = BTreeMap::new();
        let mut domains: BTreeMap<u32, (u128, u128)> = BTreeMap::new();
        for (cpu, &taken_ns) in &self.loads_ns {
            let (core, llc) = self.shares[cpu];
            *cores.entry(core).or_default() += taken_ns;
            let domain = domains.entry(llc).or_default();
            *domain = (domain.0 + u128::from(taken_ns), domain.1 + 1);
        }
        let fit = self.loads_ns.iter().filter(|(cpu, _)| self.fits(**cpu, load_ns));
        fit.min_by_key(|(cpu, taken_ns)| {
            let (core, llc) = self.shares[*cpu];
            let (domain_ns, vcpus) = domains[&llc];
            (domain_ns / vcpus, cores[&core], **taken_ns, Reverse(**cpu))
        })
        .map(|(&cpu, _)| cpu)
    }

    fn take(&mut self, cpu: usize, load_ns: u64) {
        // A group that takes next to nothing still takes its seat.
        *self.loads_ns.entry(cpu).or_default() += load_ns.max(1);
    }
}

/// Gives each cluster a vCPU of `allowed`; one that was `in_force` keeps its own unless that is too busy and another is
/// not. A cluster for which no vCPU has room is left out. Ordered by first thread.
pub fn seat(
    company: &Company,
    clusters: &[Cluster],
    in_force: &[Group],
    allowed: &CpuSet,
    topology: &Topology,
) -> Vec<Group> {
    let mut seats = Seats::new(allowed, topology, company.share_ns(JOIN_LOAD));
    let mut order: Vec<(&Cluster, Option<usize>)> =
        clusters.iter().map(|cluster| (cluster, seat_of(cluster, in_force, allowed))).collect();
    // Those that have a seat first, then the largest load.
    order.sort_by_key(|(cluster, seat)| (seat.is_none(), Reverse(cluster.load_ns), cluster.threads.first().copied()));
    let mut groups = Vec::new();
    let mut crowded = Vec::new();
    for &(cluster, seat) in &order {
        match seat.filter(|&cpu| seats.fits(cpu, cluster.load_ns)) {
            Some(cpu) => {
                seats.take(cpu, cluster.load_ns);
                groups.push(group(cluster, cpu));
            }
            None => crowded.push((cluster, seat)),
        }
    }
    for (cluster, seat) in crowded {
        if let Some(cpu) = seats.best_for(cluster.load_ns).or(seat) {
            seats.take(cpu, cluster.load_ns);
            groups.push(group(cluster, cpu));
        }
    }
    groups.sort_by_key(|group| group.threads.first().copied());
    groups
}

fn group(cluster: &Cluster, cpu: usize) -> Group {
    Group { threads: cluster.threads.clone(), cpus: CpuSet::single(cpu) }
}

/// The vCPU of the group in force with which the cluster shares the most threads.
fn seat_of(cluster: &Cluster, in_force: &[Group], allowed: &CpuSet) -> Option<usize> {
    let shared = |group: &Group| group.threads.iter().filter(|thread| cluster.threads.contains(thread)).count();
    let most = in_force.iter().filter(|group| shared(group) > 0).max_by_key(|group| {
        let first: Option<Reverse<ThreadId>> = group.threads.first().copied().map(Reverse);
        (shared(group), first)
    })?;
    most.cpus.iter().next().filter(|&cpu| allowed.contains(cpu))
}
