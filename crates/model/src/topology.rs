//! Which CPUs a machine has and what they share.

use crate::{CpuSet, ModelError, cpuset::MAX_CPUS};
use serde::{Deserialize, Serialize};

/// One logical CPU and what it shares with others. Numbers are unique over the machine, not within their parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Physical core; CPUs with the same number are SMT siblings.
    pub core: u32,
    /// Last-level-cache domain.
    pub llc: u32,
    /// NUMA node.
    pub node: u32,
    /// Socket (physical package).
    pub socket: u32,
}

impl Cpu {
    /// How far another CPU is.
    #[inline]
    pub fn distance(&self, other: &Self) -> Distance {
        if self.core == other.core {
            Distance::SmtSibling
        } else if self.llc == other.llc {
            Distance::SameLlc
        } else if self.node == other.node {
            Distance::OtherLlc
        } else {
            Distance::OtherNode
        }
    }
}

/// How far apart two CPUs are, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// The same logical CPU.
    SameCpu,
    /// Two hardware threads of one core.
    SmtSibling,
    /// Two cores behind one last-level cache.
    SameLlc,
    /// Two last-level caches on one NUMA node.
    OtherLlc,
    /// Two NUMA nodes.
    OtherNode,
}

impl Distance {
    /// Every distance, nearest first.
    pub const ALL: [Self; 5] = [Self::SameCpu, Self::SmtSibling, Self::SameLlc, Self::OtherLlc, Self::OtherNode];

    /// The name as it stands in files and price names.
    pub fn name(self) -> &'static str {
        match self {
            Self::SameCpu => "same-cpu",
            Self::SmtSibling => "smt-sibling",
            Self::SameLlc => "same-llc",
            Self::OtherLlc => "other-llc",
            Self::OtherNode => "other-node",
        }
    }
}

/// The CPUs of a machine, indexed by CPU number. On a machine whose numbers have gaps the missing ones are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Shape", into = "Shape")]
pub struct Topology {
    cpus: Vec<Option<Cpu>>,
}

impl Topology {
    /// A topology from the CPUs by number.
    ///
    /// # Errors
    /// When there is no CPU, or more than [`MAX_CPUS`].
    pub fn new(cpus: Vec<Option<Cpu>>) -> Result<Self, ModelError> {
        if cpus.iter().flatten().next().is_none() || cpus.len() > MAX_CPUS {
            return Err(ModelError::new("topology", format!("{} CPUs", cpus.len()), format!("1 to {MAX_CPUS} CPUs")));
        }
        Ok(Self { cpus })
    }

    /// A regular machine: `sockets` packages, each one NUMA node, of `llcs_per_socket` cache domains of
    /// `cores_per_llc` cores of `threads_per_core` hardware threads; CPU numbers run through one thread of every core
    /// first, as Linux numbers them.
    ///
    /// # Errors
    /// When a count is 0 or the product exceeds [`MAX_CPUS`].
    pub fn regular(
        sockets: u32,
        llcs_per_socket: u32,
        cores_per_llc: u32,
        threads_per_core: u32,
    ) -> Result<Self, ModelError> {
        Shape { sockets, llcs_per_socket, cores_per_llc, threads_per_core, cpus: Vec::new() }.try_into()
    }

    /// The same kind of machine with `count` CPUs, numbered from 0: the first so many of this one, or as many again and
    /// again. CPUs that shared everything with all others still do: how far apart they would be on a larger machine,
    /// this one cannot tell. A machine of several cache domains gets more of the same size, each repetition of it on
    /// sockets of its own.
    ///
    /// # Errors
    /// When `count` is 0 or exceeds [`MAX_CPUS`].
    pub fn scaled_out(&self, count: usize) -> Result<Self, ModelError> {
        if count == 0 || count > MAX_CPUS {
            return Err(ModelError::new("vCPUs", count.to_string(), format!("1 to {MAX_CPUS}")));
        }
        let own: Vec<Cpu> = self.cpus.iter().flatten().copied().collect();
        let beyond = |of: fn(&Cpu) -> u32| own.iter().map(of).max().unwrap_or(0) + 1;
        let (cores, llcs) = (beyond(|cpu| cpu.core), beyond(|cpu| cpu.llc));
        let (nodes, sockets) = (beyond(|cpu| cpu.node), beyond(|cpu| cpu.socket));
        let is_one_domain = own.iter().all(|cpu| cpu.llc == own[0].llc);
        let cpu = |number: usize| {
            let (cpu, again) = (own[number % own.len()], (number / own.len()) as u32);
            let apart = if is_one_domain { 0 } else { again };
            Some(Cpu {
                core: cpu.core + again * cores,
                llc: cpu.llc + apart * llcs,
                node: cpu.node + apart * nodes,
                socket: cpu.socket + apart * sockets,
            })
        };
        Self::new((0..count).map(cpu).collect())
    }

    /// The CPU with this number, if the machine has it.
    pub fn cpu(&self, number: usize) -> Option<&Cpu> {
        self.cpus.get(number).and_then(Option::as_ref)
    }

    /// All CPU numbers.
    pub fn all(&self) -> CpuSet {
        self.cpus.iter().enumerate().filter(|(_, cpu)| cpu.is_some()).map(|(number, _)| number).collect()
    }

    /// How many CPUs there are.
    pub fn len(&self) -> usize {
        self.cpus.iter().flatten().count()
    }

    /// Never true: a topology has at least one CPU.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// How far apart two CPUs are; `None` when the machine lacks one of them.
    pub fn distance(&self, a: usize, b: usize) -> Option<Distance> {
        let (x, y) = (self.cpu(a)?, self.cpu(b)?);
        Some(if a == b { Distance::SameCpu } else { x.distance(y) })
    }

    /// The CPUs that share `number`'s last-level cache, itself included; empty when the machine lacks it.
    pub fn llc_domain(&self, number: usize) -> CpuSet {
        let Some(wanted) = self.cpu(number).map(|cpu| cpu.llc) else { return CpuSet::EMPTY };
        self.all().iter().filter(|&other| self.cpu(other).is_some_and(|cpu| cpu.llc == wanted)).collect()
    }
}

/// How a topology stands in a file: the counts of a regular machine, or every CPU by number.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    #[serde(default = "one")]
    sockets: u32,
    #[serde(default = "one")]
    llcs_per_socket: u32,
    #[serde(default = "one")]
    cores_per_llc: u32,
    #[serde(default = "one")]
    threads_per_core: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<NumberedCpu>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberedCpu {
    number: usize,
    core: u32,
    llc: u32,
    node: u32,
    socket: u32,
}

fn one() -> u32 {
    1
}

impl TryFrom<Shape> for Topology {
    type Error = ModelError;

    fn try_from(shape: Shape) -> Result<Self, ModelError> {
        if shape.cpus.is_empty() { regular(&shape) } else { listed(&shape.cpus) }
    }
}

fn regular(shape: &Shape) -> Result<Topology, ModelError> {
    let counts = [shape.sockets, shape.llcs_per_socket, shape.cores_per_llc, shape.threads_per_core];
    let total = counts.iter().try_fold(1u32, |product, &count| product.checked_mul(count)).unwrap_or(u32::MAX);
    if total == 0 || total as usize > MAX_CPUS {
        let found = counts.map(|count| count.to_string()).join(" x ");
        return Err(ModelError::new(
            "topology",
            format!("{found} CPUs"),
            format!("1 to {MAX_CPUS} CPUs, every count at least 1"),
        ));
    }
    let cores = total / shape.threads_per_core;
    let cpu = |number: u32| {
        let core = number % cores;
        let llc = core / shape.cores_per_llc;
        let socket = llc / shape.llcs_per_socket;
        Some(Cpu { core, llc, node: socket, socket })
    };
    Topology::new((0..total).map(cpu).collect())
}

fn listed(listed: &[NumberedCpu]) -> Result<Topology, ModelError> {
    let highest = listed.iter().map(|cpu| cpu.number).max().unwrap_or(0);
    if highest >= MAX_CPUS {
        return Err(ModelError::new("topology.cpus.number", highest.to_string(), format!("below {MAX_CPUS}")));
    }
    let mut cpus = vec![None; highest + 1];
    for entry in listed {
        let cpu = Cpu { core: entry.core, llc: entry.llc, node: entry.node, socket: entry.socket };
        if cpus[entry.number].replace(cpu).is_some() {
            return Err(ModelError::new("topology.cpus.number", format!("{} twice", entry.number), "each number once"));
        }
    }
    Topology::new(cpus)
}

impl From<Topology> for Shape {
    fn from(topology: Topology) -> Self {
        let cpus = topology.cpus.iter().enumerate().filter_map(|(number, cpu)| {
            cpu.map(|cpu| NumberedCpu { number, core: cpu.core, llc: cpu.llc, node: cpu.node, socket: cpu.socket })
        });
        Self { sockets: 1, llcs_per_socket: 1, cores_per_llc: 1, threads_per_core: 1, cpus: cpus.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_machine_has_every_distance() {
        let machine = Topology::regular(2, 2, 2, 2).unwrap();
        assert_eq!(machine.len(), 16);
        assert_eq!(machine.distance(0, 0), Some(Distance::SameCpu));
        assert_eq!(machine.distance(0, 8), Some(Distance::SmtSibling));
        assert_eq!(machine.distance(0, 1), Some(Distance::SameLlc));
        assert_eq!(machine.distance(0, 2), Some(Distance::OtherLlc));
        assert_eq!(machine.distance(0, 4), Some(Distance::OtherNode));
        assert_eq!(machine.distance(0, 16), None);
        assert_eq!(machine.llc_domain(0), "0-1,8-9".parse().unwrap());
    }

    #[test]
    fn a_machine_grows_by_what_it_knows() {
        let small = Topology::regular(1, 1, 2, 1).unwrap().scaled_out(16).unwrap();
        assert_eq!((small.len(), small.distance(0, 15)), (16, Some(Distance::SameLlc)));
        let threads = Topology::regular(1, 1, 1, 2).unwrap().scaled_out(4).unwrap();
        assert_eq!(threads.distance(2, 3), Some(Distance::SmtSibling));
        assert_eq!(threads.distance(0, 2), Some(Distance::SameLlc));
        let two = Topology::regular(2, 1, 2, 1).unwrap();
        let large = two.scaled_out(8).unwrap();
        assert_eq!((large.distance(4, 5), large.distance(4, 6)), (Some(Distance::SameLlc), Some(Distance::OtherNode)));
        assert_eq!(large.distance(0, 4), Some(Distance::OtherNode));
        assert_eq!(two.scaled_out(4).unwrap(), two);
        assert_eq!(two.scaled_out(3).unwrap().len(), 3);
        for wrong in [0, MAX_CPUS + 1] {
            assert!(two.scaled_out(wrong).is_err());
        }
        let mut gaps = vec![None; 3];
        gaps.push(two.cpu(0).copied());
        assert_eq!(Topology::new(gaps).unwrap().scaled_out(2).unwrap().all(), CpuSet::first(2));
    }

    #[test]
    fn impossible_machines_are_refused() {
        assert!(Topology::regular(0, 1, 1, 1).is_err());
        assert!(Topology::regular(1, 1, 1025, 1).is_err());
        assert!(Topology::regular(u32::MAX, u32::MAX, 2, 2).is_err());
        assert!(Topology::new(vec![None]).is_err());
    }
}
