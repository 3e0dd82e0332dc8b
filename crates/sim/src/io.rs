//! All devices of a world, who drives them, and who is at the other ends of their wires.
//!
//! A device tells a vCPU that it has something by an interrupt, one VM tells another by an event; either is a [`Source`] that is
//! pending at a vCPU. Its handler polls what the source has, and delivers it when it is done: to the sockets and requests of a
//! guest (`guest::network`, `guest::storage`), or to back ends (`vmm::service`).
//!
//! A packet is never lost: what connections may have on their way is bounded by their windows.

use crate::engine::books::Cost;
use crate::engine::random::Random;
use crate::engine::{NS, Ps};
use crate::guest::network::{Connection, OfThread, Place, Port, Sockets};
use crate::guest::storage::Storage;
use crate::machine::disk::{Disk, Request};
use crate::machine::interrupt::reason;
use crate::machine::io_prices::IoPrices;
use crate::machine::nic::{Burst, Iotlb, Lane, Queue, Wire};
use crate::vmm::pcpu::RunState;
use crate::vmm::service::{BackEnd, FrontEnd};
use crate::world::{World, kind, slot_of};
use muster_model::study::Client;
use muster_policy::io::queue_of;
use outcome::OfVm;
use std::ops::Range;

mod build;
mod outcome;

pub(crate) use build::{Plan, back_ends};
pub use outcome::{IoCounts, IoOutcome, Latencies};

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
    /// Packets that the peer sends in a row.
    pub peer_batch: u64,
    latency: Ps,
    iotlb: Iotlb,
}

impl Card {
    /// What a sender hands over at once at most, in bytes.
    pub fn largest_piece(&self) -> u64 {
        self.packet * u64::from(self.batches.1)
    }
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

impl Io {
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
        let Some(burst) = connection.next_burst(k, &io.cards[connection.card]) else { return };
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
    pub(crate) fn send_event(&mut self, by: usize, c: usize, source: Source) -> Cost {
        self.raise(c, source);
        if self.scheduler.decides() && self.run_state(c) != RunState::Running {
            return self.post(c, reason::DEVICE, self.vcpus[by].pcpu as usize);
        }
        let slot = slot_of(c, kind::EVENT);
        if !self.queue.is_pending(slot) {
            self.queue.schedule(slot, self.now + self.prices.ipi_delivery);
        }
        Cost::default()
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
