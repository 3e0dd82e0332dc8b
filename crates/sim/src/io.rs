//! All devices of a world, who drives them, and who is at the other ends of their wires.
//!
//! A device tells a vCPU that it has something by an interrupt, one VM tells another by an event; either is a [`Source`] that is
//! pending at a vCPU. Its handler polls what the source has, and delivers it when it is done: to the sockets and requests of a
//! guest (`guest::network`, `guest::storage`), or to back ends (`vmm::service`).
//!
//! A packet is never lost: what connections may have on their way is bounded by their windows.

use crate::engine::random::Random;
use crate::engine::{NS, Ps};
use crate::guest::network::{Connection, OfThread, Place, Port, Sockets};
use crate::guest::storage::Storage;
use crate::machine::disk::{Disk, Request};
use crate::machine::interrupt::reason;
use crate::machine::io_prices::IoPrices;
use crate::machine::nic::{Burst, Iotlb, Lane, Queue, Wire};
use crate::vmm::pcpu::RunState;
use crate::vmm::service::{BackEnd, FrontEnd, Job};
use crate::world::{World, kind, slot_of};
use muster_model::study::{Client, Experiment, Path, VmSpec};
use muster_model::{ModelError, Profile, Topology};
use muster_policy::io::queue_of;
use muster_policy::vectors::{Reserved, SOURCES_PER_VF, Trigger, Vectors};
use std::ops::Range;

/// What makes a vCPU look for work of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A receive queue.
    Queue(u32),
    /// A network's front end: its back end has put something into its ring.
    FrontEnd(u32),
    /// A back end: a front end has put something into its ring.
    BackEnd(u32),
    /// A disk.
    Disk(u32),
    /// The front end of a VM's disks.
    Requests(u32),
}

/// What comes next for a thread that has to do with devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoStep {
    /// It has copied what it received.
    Copied,
    /// It has found nothing to read, and blocks.
    AwaitData,
    /// What it sends is with the driver.
    Sent,
    /// It has found no room in the window, and blocks.
    AwaitRoom,
    /// Its disk request is with the driver.
    Submitted,
    /// It blocks until that is done.
    AwaitDisk,
    /// It is a back end and has done a batch.
    Served(u32),
    /// It is a back end and has found nothing to do.
    Idle(u32),
}

/// A source at a vCPU.
#[derive(Debug, Clone, Copy)]
struct Pending {
    source: Source,
    /// It is polled again, without an interrupt.
    again: bool,
}

/// What a handler is going to deliver when it is done.
#[derive(Debug)]
enum Work {
    /// Packets for sockets.
    Packets { bursts: Vec<Burst>, place: Place, then: Source },
    /// Packets for back ends.
    Bridged { bursts: Vec<Burst>, queue: u32 },
    /// Requests that are done, for who waits for them.
    Done(Vec<Request>),
    /// Requests that are done, for front ends.
    Answered(Vec<Request>),
    /// A back end has work.
    Wake(u32),
}

/// Sources at a vCPU.
#[derive(Debug, Default)]
struct AtVcpu {
    pending: Vec<Pending>,
    works: Vec<Work>,
}

/// A card, and where its functions' queues lie.
#[derive(Debug)]
pub struct Card {
    /// Its wire.
    pub wire: Wire,
    /// The physical function's queues.
    queues: Range<u32>,
    /// Bytes of a packet.
    pub packet: u64,
    /// Packets that a receiver takes as one, and that a sender hands over as one.
    pub batches: (u32, u32),
    latency: Ps,
    iotlb: Iotlb,
}

/// A receive queue, and who drives it.
#[derive(Debug)]
struct Driven {
    queue: Queue,
    vcpu: u32,
    /// Whether the service VM bridges what comes.
    bridged: bool,
    /// Whether it is a virtual function's.
    is_virtual: bool,
    /// The next buffer of its ring.
    buffer: u32,
}

macro_rules! io_counts {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What a VM did with devices, over the whole run.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct IoCounts {
            $($(#[$doc])* pub $field: u64,)*
        }
    };
}

io_counts! {
    /// Payload that its program took, in bytes.
    received_bytes,
    /// Packets that came.
    received_packets,
    /// Payload that arrived at the peer, in bytes.
    sent_bytes,
    /// Packets of those.
    sent_packets,
    /// Requests that were answered.
    requests,
    /// Interrupts and events that devices and back ends sent it.
    interrupts,
    /// Events that it sent to the service VM, by leaving the guest where it is hardware-assisted.
    notifications,
    /// Reads of a disk.
    disk_reads,
    /// Writes.
    disk_writes,
    /// Bytes read and written.
    disk_bytes,
}

/// Latencies, in buckets a sixteenth of an octave wide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum: Ps,
}

impl Latencies {
    /// Adds one.
    pub fn add(&mut self, latency: Ps) {
        let bucket = Self::bucket(latency);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += latency;
    }

    fn bucket(latency: Ps) -> usize {
        let latency = latency.max(16);
        let octave = latency.ilog2() as usize;
        (octave - 4) * 16 + ((latency >> (octave - 4)) as usize - 16)
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 when there is none.
    pub fn mean(&self) -> Ps {
        self.sum / self.count.max(1)
    }

    /// The latency that so many per cent do not exceed, to a sixteenth; 0 when there is none.
    pub fn percentile(&self, percent: u64) -> Ps {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (17 + bucket as Ps % 16) << (bucket / 16);
            }
        }
        0
    }
}

/// What a run gave of a VM's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoOutcome {
    /// Counts.
    pub counts: IoCounts,
    /// From sending a request to its reply, as the client sees it.
    pub latency: Latencies,
    /// From a thread's request to a disk until it is done.
    pub disk_latency: Latencies,
}

/// What is counted of a VM.
#[derive(Debug, Default)]
pub struct OfVm {
    /// Counts.
    pub counts: IoCounts,
    /// Of requests.
    pub latency: Latencies,
    /// Of its disks.
    pub disk_latency: Latencies,
}

/// How much has gone through a last-level cache, and what it holds.
#[derive(Debug, Clone, Copy)]
struct Cache {
    filled: u64,
    bytes: u64,
}

/// All devices of a world.
#[derive(Debug)]
pub struct Io {
    pub(crate) prices: IoPrices,
    pub(crate) cards: Vec<Card>,
    queues: Vec<Driven>,
    disks: Vec<(Disk, u32)>,
    pub(crate) connections: Vec<Connection>,
    /// By VM.
    pub(crate) sockets: Vec<Option<Sockets>>,
    /// By VM.
    pub(crate) storages: Vec<Option<Storage>>,
    pub(crate) front_ends: Vec<FrontEnd>,
    pub(crate) back_ends: Vec<BackEnd>,
    at_vcpus: Vec<AtVcpu>,
    pub(crate) threads: Vec<OfThread>,
    /// By VM.
    pub(crate) of_vms: Vec<OfVm>,
    /// The service VM.
    pub(crate) service: Option<usize>,
    /// By pCPU, its last-level cache.
    llc: Vec<usize>,
    caches: Vec<Cache>,
    random: Vec<Random>,
}

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
        let Plan { experiment, profile, topology, specs, .. } = plan;
        if experiment.nics.is_empty() && experiment.disks.is_empty() && plan.service.is_none() {
            return Ok(None);
        }
        let vms = specs.len();
        let pcpus = experiment.pcpus() as usize;
        let domain = |p: usize| topology.llc_domain(p).iter().next().unwrap_or(p);
        let llc_bytes =
            profile.platform.caches.iter().filter(|cache| cache.level > 2).map(|cache| cache.size_bytes).max();
        let mut io = Self {
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
        };
        // The physical functions are the service VM's, or natively the machine's.
        let owner = plan.vcpus[io.service.unwrap_or(0)].clone();
        for spec in &experiment.nics {
            let first = io.queues.len() as u32;
            let has_function =
                io.service.is_some() || experiment.environment == muster_model::study::Environment::Native;
            let count = if has_function { spec.queues.unwrap_or(owner.len() as u32) } else { 0 };
            for index in 0..count as usize {
                let vcpu = (owner.start + index % owner.len()) as u32;
                let queue = Queue::new(spec.moderation);
                io.queues.push(Driven { queue, vcpu, bridged: io.service.is_some(), is_virtual: false, buffer: 0 });
            }
            io.cards.push(Card {
                wire: Wire::new(spec.line_gbps),
                queues: first..first + count,
                packet: spec.packet_bytes.into(),
                batches: (spec.receive_batch, spec.send_batch),
                latency: spec.latency_ns * NS,
                iotlb: Iotlb::default(),
            });
        }
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
        let back_end = networks[muster_policy::io::back_end_for(&served)] as u32;
        self.front_ends.push(FrontEnd::new(vm, vcpu, back_end));
        self.front_ends.len() as u32 - 1
    }

    /// The largest number of a queue, disk, connection or lane, for event slots.
    pub(crate) fn slots(&self) -> usize {
        self.queues.len().max(self.disks.len()).max(self.connections.len()).max(2 * self.cards.len())
    }

    /// What a VM did.
    pub(crate) fn outcome(&self, vm: usize) -> IoOutcome {
        let of_vm = &self.of_vms[vm];
        let (latency, disk_latency) = (of_vm.latency.clone(), of_vm.disk_latency.clone());
        IoOutcome { counts: of_vm.counts, latency, disk_latency }
    }

    // ---- caches ----

    /// Where what a pCPU writes now is found later.
    pub(crate) fn place_at(&self, pcpu: usize) -> Place {
        let llc = self.llc[pcpu];
        Place::Cache { llc: llc as u32, filled: self.caches[llc].filled }
    }

    /// What copying so many bytes from a place on a pCPU takes; the copy goes through its cache.
    pub(crate) fn copy(&mut self, pcpu: usize, bytes: u64, place: Place) -> Ps {
        let here = self.llc[pcpu];
        let prices = &self.prices;
        let line = match place {
            Place::Cache { llc, filled } => {
                let cache = &self.caches[llc as usize];
                // Half of what it holds is others' of the same age.
                let is_there = cache.filled - filled <= cache.bytes / 2;
                match is_there {
                    true if llc as usize == here => prices.line_cached,
                    true => prices.line_remote,
                    false => prices.line_memory,
                }
            }
            Place::Memory => prices.line_memory,
        };
        self.caches[here].filled += 2 * bytes;
        bytes.div_ceil(64) * line
    }
}

/// The back ends of a service VM, each a thread of it: those of networks first.
pub(crate) fn back_ends(service: &muster_model::study::Service, specs: &[VmSpec]) -> Vec<Job> {
    let networks = match service.back_end {
        muster_model::study::BackEnd::Single => 1,
        muster_model::study::BackEnd::Multi => service.vcpus,
    };
    let disks = specs
        .iter()
        .enumerate()
        .filter(|(_, spec)| spec.devices.storage.as_ref().is_some_and(|storage| storage.path == Path::Pv));
    (0..networks).map(|_| Job::Network).chain(disks.map(|(vm, _)| Job::Disks(vm as u32))).collect()
}

impl World {
    /// What comes next for the vCPU's thread `t`.
    pub(crate) fn io_step(&mut self, c: usize, t: u32, step: IoStep) {
        match step {
            IoStep::Copied => self.copied(c, t),
            IoStep::AwaitData => self.await_data(c, t),
            IoStep::Sent => self.sent(c, t),
            IoStep::AwaitRoom => self.await_room(c, t),
            IoStep::Submitted => self.submitted(c, t),
            IoStep::AwaitDisk => self.await_disk(c, t),
            IoStep::Served(b) => self.served(c, t, b),
            IoStep::Idle(b) => self.back_end_idles(c, t, b),
        }
    }

    /// The devices, in a world that has some.
    pub(crate) fn io(&mut self) -> &mut Io {
        self.io.as_mut().expect("only worlds with devices come here")
    }

    /// Clients begin.
    pub(crate) fn start_devices(&mut self) {
        let connections = self.io.as_ref().map_or(0, |io| io.connections.len());
        for k in 0..connections {
            match self.io().connections[k].client {
                Client::StreamIn { .. } => self.offer_burst(k as u32),
                Client::Requests { think_ns, .. } => {
                    // Not all at once.
                    let after = self.io().random[k].duration(think_ns) + k as Ps * NS;
                    self.queue.schedule(slot_of(k, kind::CLIENT), after);
                }
                Client::StreamOut { .. } => {}
            }
        }
    }

    // ---- wires ----

    /// A connection's client sends what it may, one burst at a time.
    pub(crate) fn offer_burst(&mut self, k: u32) {
        let io = self.io.as_mut().expect("a connection has a card");
        let connection = &mut io.connections[k as usize];
        let Some(burst) = connection.next_burst(k, io.cards[connection.card].packet) else { return };
        let card = connection.card;
        self.put(card, Lane::In, burst);
    }

    /// A burst goes onto a lane.
    pub(crate) fn put(&mut self, card: usize, lane: Lane, burst: Burst) {
        let takes = self.io().cards[card].wire.put(lane, burst);
        if let Some(takes) = takes {
            self.queue.schedule(slot_of(2 * card + lane as usize, kind::LANE), self.now + takes);
        }
    }

    /// A burst has come to the end of a lane.
    pub(crate) fn lane_due(&mut self, index: usize) {
        let (card, lane) = (index / 2, if index.is_multiple_of(2) { Lane::In } else { Lane::Out });
        let (burst, next) = self.io().cards[card].wire.arrive(lane);
        if let Some(takes) = next {
            self.queue.schedule(slot_of(index, kind::LANE), self.now + takes);
        }
        match lane {
            Lane::In => {
                self.io().connections[burst.connection as usize].offered = false;
                self.receive_burst(burst);
                self.offer_burst(burst.connection);
            }
            Lane::Out => self.at_client(burst),
        }
    }

    /// A burst has reached its client, which acknowledges every other packet.
    fn at_client(&mut self, burst: Burst) {
        let now = self.now;
        let k = burst.connection as usize;
        let io = self.io.as_mut().expect("a connection has a card");
        let connection = &mut io.connections[k];
        let (vm, latency) = (connection.vm, io.cards[connection.card].latency);
        let of_vm = &mut io.of_vms[vm];
        of_vm.counts.sent_bytes += burst.bytes;
        of_vm.counts.sent_packets += u64::from(burst.packets);
        if let Client::Requests { think_ns, .. } = connection.client
            && burst.last
        {
            of_vm.counts.requests += 1;
            of_vm.latency.add(now - connection.asked + latency);
            let think = io.random[k].duration(think_ns);
            self.queue.schedule(slot_of(k, kind::CLIENT), now + latency + think);
        }
        let acknowledged = Burst { packets: burst.packets.div_ceil(2), bytes: 0, acknowledged: burst.bytes, ..burst };
        self.receive_burst(acknowledged);
    }

    /// A client's pause is over: it sends its next request.
    pub(crate) fn client_due(&mut self, k: usize) {
        let now = self.now;
        let io = self.io();
        let latency = io.cards[io.connections[k].card].latency;
        let connection = &mut io.connections[k];
        // What the wire adds to both ways is reckoned here.
        connection.asked = now - latency.min(now);
        connection.ask();
        self.offer_burst(k as u32);
    }

    /// Packets are in the memory of whoever drives their queue.
    fn receive_burst(&mut self, burst: Burst) {
        let io = self.io.as_mut().expect("a connection has a card");
        let connection = &io.connections[burst.connection as usize];
        let card = &mut io.cards[connection.card];
        let q = match io.sockets[connection.vm].as_ref().expect("it has connections").port {
            Port::Virtual(queue) => queue,
            Port::Function | Port::FrontEnd(_) => {
                card.queues.start + queue_of(burst.connection, card.queues.len() as u32)
            }
        };
        io.of_vms[connection.vm].counts.received_packets += u64::from(burst.packets);
        let driven = &mut io.queues[q as usize];
        let mut there = self.now + io.prices.dma;
        if self.virtualized {
            let (misses, buffer) = card.iotlb.write(q, driven.buffer, burst.packets);
            driven.buffer = buffer;
            there += Ps::from(misses) * io.prices.iotlb_miss;
        }
        if let Some(at) = driven.queue.push(burst, there) {
            self.queue.schedule(slot_of(q as usize, kind::NIC), at);
        }
    }

    // ---- interrupts and events ----

    /// A receive queue interrupts.
    pub(crate) fn nic_due(&mut self, q: usize) {
        let now = self.now;
        let driven = &mut self.io().queues[q];
        driven.queue.interrupt(now);
        let vcpu = driven.vcpu as usize;
        self.device_interrupts(vcpu, Source::Queue(q as u32));
    }

    /// A disk has done something.
    pub(crate) fn disk_due(&mut self, d: usize) {
        let vcpu = self.io().disks[d].1 as usize;
        self.device_interrupts(vcpu, Source::Disk(d as u32));
    }

    /// A disk takes a request.
    pub(crate) fn submit(&mut self, d: u32, request: Request) {
        let now = self.now;
        let next = self.io().disks[d as usize].0.take(request, now);
        // Else it has interrupted, and is looked at soon.
        if next > now {
            self.queue.schedule(slot_of(d as usize, kind::DISK), next);
        }
    }

    fn raise(&mut self, c: usize, source: Source) {
        let vm = self.vcpus[c].vm as usize;
        let io = self.io();
        let pending = &mut io.at_vcpus[c].pending;
        if !pending.iter().any(|there| there.source == source) {
            pending.push(Pending { source, again: false });
            io.of_vms[vm].counts.interrupts += 1;
        }
    }

    /// A device interrupts a vCPU: at the pCPU where that is, or was last.
    fn device_interrupts(&mut self, c: usize, source: Source) {
        self.raise(c, source);
        if self.scheduler.decides() && self.run_state(c) == RunState::Runnable {
            self.vcpus[c].pending |= reason::DEVICE;
            let p = self.vcpus[c].pcpu as usize;
            return self.host_interrupt(p, 0);
        }
        self.interrupt(c, reason::DEVICE);
    }

    /// Whoever runs on vCPU `by` sends an event to another; what the VMM takes for it there.
    pub(crate) fn send_event(&mut self, by: usize, c: usize, source: Source) -> crate::engine::books::Cost {
        self.raise(c, source);
        if self.scheduler.decides() && self.run_state(c) != RunState::Running {
            return self.post(c, reason::DEVICE, self.vcpus[by].pcpu as usize);
        }
        let slot = slot_of(c, kind::EVENT);
        if !self.queue.is_pending(slot) {
            self.queue.schedule(slot, self.now + self.prices.ipi_delivery);
        }
        crate::engine::books::Cost::default()
    }

    // ---- handlers ----

    /// What a vCPU's handler does for the devices that are pending; `first` says that it is on its way into the guest.
    /// What that takes, and the VM exits of it.
    pub(crate) fn device_handler(&mut self, c: usize, first: &mut bool) -> (Ps, u64) {
        let Some(io) = &mut self.io else { return (0, 0) };
        let is_service = io.service == Some(self.vcpus[c].vm as usize);
        let pending = std::mem::take(&mut io.at_vcpus[c].pending);
        let (mut price, mut exits, mut upcalls) = (0, 0, 0);
        for Pending { source, again } in &pending {
            price += self.handle_source(c, *source);
            let by_event = matches!(source, Source::FrontEnd(_) | Source::BackEnd(_) | Source::Requests(_));
            // All events come by one interrupt.
            upcalls += u64::from(!again && (!by_event || upcalls == 0));
        }
        for _ in 0..upcalls {
            price += self.prices.interrupt;
            if is_service {
                price += self.prices.host_interrupt + self.io().prices.upcall;
            } else if self.virtualized {
                let prices = &self.prices;
                let into = if *first { prices.inject + prices.vm_entry } else { prices.kick() };
                price += into + prices.end_of_interrupt();
                exits += u64::from(!*first) + 1;
                *first = false;
            }
        }
        (price, exits)
    }

    /// What polling a source takes; what it has is delivered when the handler is done.
    fn handle_source(&mut self, c: usize, source: Source) -> Ps {
        let now = self.now;
        let room_price = if let Source::FrontEnd(f) = source { self.room_price(f) } else { 0 };
        let io = self.io.as_mut().expect("it has a source");
        let prices = io.prices;
        let (price, work) = match source {
            Source::Queue(q) => {
                let driven = &mut io.queues[q as usize];
                let mut bursts = Vec::new();
                driven.queue.poll(NAPI_BUDGET, &mut bursts);
                let packets: Ps = bursts.iter().map(|burst| Ps::from(burst.packets)).sum();
                if driven.bridged {
                    (packets * (prices.driver_receive + prices.bridge), Work::Bridged { bursts, queue: q })
                } else {
                    let stack = io.stack_receive(&bursts);
                    let work = Work::Packets { bursts, place: Place::Memory, then: source };
                    (packets * prices.driver_receive + stack, work)
                }
            }
            Source::FrontEnd(f) => {
                let notice = room_price;
                let bursts: Vec<Burst> = io.front_ends[f as usize].take_received();
                let packets: Ps = bursts.iter().map(|burst| Ps::from(burst.packets)).sum();
                let stack = io.stack_receive(&bursts);
                let place = io.front_ends[f as usize].place;
                (packets * prices.front_end_receive + stack + notice, Work::Packets { bursts, place, then: source })
            }
            Source::BackEnd(b) => (0, Work::Wake(b)),
            Source::Disk(d) => {
                let mut done = Vec::new();
                io.disks[d as usize].0.done(now, &mut done);
                if let Some(next) = io.disks[d as usize].0.next() {
                    self.queue.schedule(slot_of(d as usize, kind::DISK), next);
                }
                let served = io.service == Some(self.vcpus[c].vm as usize);
                let each = prices.disk_complete
                    + if served { prices.hypercall + prices.event_send + self.prices.decision } else { 0 };
                let price = done.len() as Ps * each;
                (price, if served { Work::Answered(done) } else { Work::Done(done) })
            }
            Source::Requests(vm) => {
                let done = io.storages[vm as usize].as_mut().expect("it has disks").take_answers();
                (done.len() as Ps * prices.disk_complete, Work::Done(done))
            }
        };
        io.at_vcpus[c].works.push(work);
        price
    }

    /// The handler is done: what it polled is delivered, and what has more is polled again.
    pub(crate) fn devices_handled(&mut self, c: usize) {
        if self.io.is_none() {
            return;
        }
        let mut works = std::mem::take(&mut self.io().at_vcpus[c].works);
        for work in works.drain(..) {
            match work {
                Work::Packets { bursts, place, then } => {
                    bursts.iter().for_each(|burst| self.deliver_burst(c, burst, place));
                    self.polled(c, then);
                }
                Work::Bridged { bursts, queue } => {
                    bursts.iter().for_each(|burst| self.bridge_burst(c, burst));
                    self.polled(c, Source::Queue(queue));
                }
                Work::Done(requests) => requests.iter().for_each(|request| self.request_done(c, request)),
                Work::Answered(requests) => requests.iter().for_each(|request| self.answer(c, request)),
                Work::Wake(b) => self.wake_back_end(c, b),
            }
        }
        self.io().at_vcpus[c].works = works;
    }

    /// A source has been polled: if it has more, it is polled again, before anything else runs.
    fn polled(&mut self, c: usize, source: Source) {
        let goes_on = match source {
            Source::Queue(q) => self.io().queues[q as usize].queue.goes_on(),
            Source::FrontEnd(f) => self.front_end_polled(c, f),
            Source::BackEnd(_) | Source::Disk(_) | Source::Requests(_) => false,
        };
        if goes_on {
            self.io().at_vcpus[c].pending.push(Pending { source, again: true });
            self.vcpus[c].pending |= reason::DEVICE;
        }
    }
}

/// Packets that a driver takes at a time (net.core.netdev_budget).
const NAPI_BUDGET: u32 = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let mut latencies = Latencies::default();
        (1..=1000u64).for_each(|i| latencies.add(i * 1_000_000));
        for percent in [1, 50, 95, 99, 100] {
            let (found, wanted) = (latencies.percentile(percent) as f64, percent as f64 * 10e6);
            assert!((1.0..=1.0 + 1.0 / 16.0).contains(&(found / wanted)), "{percent} %: {found} for {wanted}");
        }
        assert_eq!((latencies.count(), latencies.mean()), (1000, 500_500_000));
        assert_eq!(Latencies::default().percentile(99), 0);
    }
}
