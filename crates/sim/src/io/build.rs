//! How the devices of a world are put together.

use super::{AtVcpu, Cache, Card, Driven, Io};
use crate::engine::NS;
use crate::engine::random::Random;
use crate::guest::network::{Connection, OfThread, Port, Sockets};
use crate::guest::storage::Storage;
use crate::io::outcome::OfVm;
use crate::machine::disk::Disk;
use crate::machine::io_prices::IoPrices;
use crate::machine::nic::{Iotlb, Queue, Wire};
use crate::vmm::service::{BackEnd, FrontEnd, Job};
use muster_model::study::{self, Environment, Experiment, Nic, Path, Service, VmSpec};
use muster_model::{ModelError, Profile, Topology};
use muster_policy::io::back_end_for;
use muster_policy::vectors::{Reserved, SOURCES_PER_VF, Trigger, Vectors};
use std::ops::Range;

/// What the devices are put together from.
pub(crate) struct Plan<'a> {
    pub experiment: &'a Experiment,
    pub profile: &'a Profile,
    pub topology: &'a Topology,
    /// All VMs, the service VM last.
    pub specs: &'a [VmSpec],
    /// By VM.
    pub vcpus: Vec<Range<usize>>,
    pub threads: usize,
    /// The service VM and its first thread.
    pub service: Option<(usize, usize)>,
}

impl Io {
    /// The devices of an experiment; none where it has none.
    ///
    /// # Errors
    /// When there are no interrupt vectors left for a virtual function.
    pub(crate) fn new(plan: &Plan<'_>) -> Result<Option<Box<Self>>, ModelError> {
        let Plan { experiment, specs, .. } = plan;
        if experiment.nics.is_empty() && experiment.disks.is_empty() && plan.service.is_none() {
            return Ok(None);
        }
        let mut io = Self::empty(plan);
        // The physical functions are the service VM's, or natively the machine's.
        let owner = plan.vcpus[io.service.unwrap_or(0)].clone();
        experiment.nics.iter().for_each(|spec| io.add_card(plan, spec, &owner));
        for (number, spec) in experiment.all_disks().iter().enumerate() {
            io.disks.push((Disk::new(spec), (owner.start + number % owner.len()) as u32));
        }
        io.add_back_ends(plan);
        for (vm, spec) in specs.iter().enumerate() {
            io.add_vm(plan, vm, spec);
        }
        io.take_vectors(plan)?;
        Ok(Some(Box::new(io)))
    }

    fn empty(plan: &Plan<'_>) -> Self {
        let Plan { experiment, profile, topology, specs, .. } = plan;
        let vms = specs.len();
        let pcpus = experiment.pcpus() as usize;
        let domain = |p: usize| topology.llc_domain(p).iter().next().unwrap_or(p);
        let llc_bytes =
            profile.platform.caches.iter().filter(|cache| cache.level > 2).map(|cache| cache.size_bytes).max();
        Self {
            prices: IoPrices::new(profile),
            cards: Vec::new(),
            queues: Vec::new(),
            disks: Vec::new(),
            connections: Vec::new(),
            sockets: (0..vms).map(|_| None).collect(),
            storages: (0..vms).map(|_| None).collect(),
            front_ends: Vec::new(),
            back_ends: Vec::new(),
            at_vcpus: plan.vcpus.iter().flat_map(Clone::clone).map(|_| AtVcpu::default()).collect(),
            threads: vec![OfThread::default(); plan.threads],
            of_vms: (0..vms).map(|_| OfVm::default()).collect(),
            service: plan.service.map(|(vm, _)| vm),
            llc: (0..pcpus).map(domain).collect(),
            caches: vec![Cache { filled: 0, bytes: llc_bytes.unwrap_or(8 << 20) }; pcpus],
            random: Vec::new(),
        }
    }

    /// A card, whose physical function's queues are spread over the vCPUs of `owner`.
    fn add_card(&mut self, plan: &Plan<'_>, spec: &Nic, owner: &Range<usize>) {
        let first = self.queues.len() as u32;
        let bridged = self.service.is_some();
        let has_function = bridged || plan.experiment.environment == Environment::Native;
        let count = if has_function { spec.queues.unwrap_or(owner.len() as u32) } else { 0 };
        for index in 0..count as usize {
            let vcpu = (owner.start + index % owner.len()) as u32;
            let queue = Queue::new(spec.moderation);
            self.queues.push(Driven { queue, vcpu, bridged, is_virtual: false, buffer: 0 });
        }
        self.cards.push(Card {
            wire: Wire::new(spec.line_gbps),
            queues: first..first + count,
            packet: spec.packet_bytes.into(),
            batches: (spec.receive_batch, spec.send_batch),
            peer_batch: spec.peer_batch.into(),
            latency: spec.latency_ns * NS,
            iotlb: Iotlb::default(),
        });
    }

    /// Every source that interrupts by itself takes a vector: a queue of a physical function one, a virtual function three.
    fn take_vectors(&self, plan: &Plan<'_>) -> Result<(), ModelError> {
        let vectoring = plan.experiment.service.as_ref().map(|service| service.vectoring).unwrap_or_default();
        let mut vectors = Vectors::new(vectoring, plan.experiment.pcpus() as usize, &Reserved::default())?;
        let of = |driven: &Driven| if driven.is_virtual { SOURCES_PER_VF } else { 1 };
        let sources = self.queues.iter().map(of).sum::<usize>() + self.disks.len();
        for source in 0..sources {
            vectors.allocate(source as u32, Trigger::Edge, None)?;
        }
        Ok(())
    }

    fn add_back_ends(&mut self, plan: &Plan<'_>) {
        let (Some(service), Some((vm, first))) = (&plan.experiment.service, plan.service) else { return };
        for (index, &job) in back_ends(service, plan.specs).iter().enumerate() {
            let vcpus = &plan.vcpus[vm];
            let vcpu = (vcpus.start + index % vcpus.len()) as u32;
            self.back_ends.push(BackEnd::new(job, (first + index) as u32, vcpu));
        }
    }

    fn add_vm(&mut self, plan: &Plan<'_>, vm: usize, spec: &VmSpec) {
        let first = plan.vcpus[vm].start as u32;
        if let Some(network) = &spec.devices.network {
            let card = network.nic as usize;
            let port = match network.path {
                Path::Native => Port::Function,
                Path::Vf => {
                    let moderation = plan.experiment.nics[card].moderation;
                    let queue = Queue::new(moderation);
                    self.queues.push(Driven { queue, vcpu: first, bridged: false, is_virtual: true, buffer: 0 });
                    Port::Virtual(self.queues.len() as u32 - 1)
                }
                Path::Pv => Port::FrontEnd(self.add_front_end(vm, first)),
            };
            let from = self.connections.len() as u32;
            for _ in 0..network.client.connections() {
                let index = self.connections.len();
                self.random.push(Random::new(plan.experiment.seed.rotate_left(32) ^ 0x10, index as u64));
                self.connections.push(Connection::new(vm, card, &network.client));
            }
            self.sockets[vm] = Some(Sockets::new(port, card, from..self.connections.len() as u32));
        }
        if let Some(storage) = &spec.devices.storage {
            let back_end = self.back_ends.iter().position(|back_end| back_end.job == Job::Disks(vm as u32));
            if storage.path == Path::Vf {
                storage.disks.iter().for_each(|&disk| self.disks[disk as usize].1 = first);
            }
            self.storages[vm] = Some(Storage::new(&storage.disks, back_end.map(|b| b as u32), first));
        }
    }

    fn add_front_end(&mut self, vm: usize, vcpu: u32) -> u32 {
        let networks: Vec<usize> =
            (0..self.back_ends.len()).filter(|&b| self.back_ends[b].job == Job::Network).collect();
        let served: Vec<u32> = networks
            .iter()
            .map(|&b| self.front_ends.iter().filter(|front_end| front_end.back_end as usize == b).count() as u32)
            .collect();
        let back_end = networks[back_end_for(&served)] as u32;
        self.front_ends.push(FrontEnd::new(vm, vcpu, back_end));
        self.front_ends.len() as u32 - 1
    }
}

/// The back ends of a service VM, each a thread of it: those of networks first.
pub(crate) fn back_ends(service: &Service, specs: &[VmSpec]) -> Vec<Job> {
    let networks = match service.back_end {
        study::BackEnd::Single => 1,
        study::BackEnd::Multi => service.vcpus,
    };
    let disks = specs
        .iter()
        .enumerate()
        .filter(|(_, spec)| spec.devices.storage.as_ref().is_some_and(|storage| storage.path == Path::Pv));
    (0..networks).map(|_| Job::Network).chain(disks.map(|(vm, _)| Job::Disks(vm as u32))).collect()
}
