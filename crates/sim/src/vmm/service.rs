//! The service VM's back ends: threads of its kernel that take packets from the bridge and copy them to front ends, take what
//! front ends send, and take their requests to disks.
//!
//! Xen's network back end (drivers/xen/netback/netback.c) gathers what is there for all its front ends, up to a ring's worth of
//! packets, copies it by one hypercall, and tells each front end once. It has been one pair of tasklets for all front ends, until
//! there was a thread for each vCPU ("Netback multiple threads support", xen-devel, May 2010).

use crate::engine::Ps;
use crate::engine::books::Cost;
use crate::guest::network::{Place, Port};
use crate::guest::storage::PIECE;
use crate::guest::thread::Step;
use crate::io::{Io, IoStep, Source};
use crate::machine::disk::Request;
use crate::machine::nic::{Burst, Lane};
use crate::world::World;
use muster_model::Account;
use std::collections::VecDeque;

/// Slots of a front end's receive ring, and packets of a back end's batch (NET_RX_RING_SIZE).
const RING: u32 = 256;

/// What a back end serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Networks of some VMs.
    Network,
    /// The disks of a VM.
    Disks(u32),
}

/// A network's front end, and what its back end has for it.
#[derive(Debug)]
pub struct FrontEnd {
    vm: usize,
    vcpu: u32,
    /// Who serves it.
    pub back_end: u32,
    /// Packets from the bridge.
    backlog: VecDeque<Burst>,
    /// Packets in the ring.
    ring: Vec<Burst>,
    slots: u32,
    /// Whether the next packet in the ring is announced by an event.
    is_armed: bool,
    /// The back end waits for room in the ring.
    waits_for_room: bool,
    /// What it sends.
    sent: VecDeque<Burst>,
    /// It is among those that its back end looks at.
    is_queued: bool,
    /// Where the packets in the ring are.
    pub place: Place,
}

impl FrontEnd {
    /// A front end with an empty ring, whose events come to `vcpu`.
    pub fn new(vm: usize, vcpu: u32, back_end: u32) -> Self {
        Self {
            vm,
            vcpu,
            back_end,
            backlog: VecDeque::new(),
            ring: Vec::new(),
            slots: RING,
            is_armed: true,
            waits_for_room: false,
            sent: VecDeque::new(),
            is_queued: false,
            place: Place::Memory,
        }
    }

    /// Takes what is in the ring, whose slots are free again.
    pub fn take_received(&mut self) -> Vec<Burst> {
        self.slots = RING;
        std::mem::take(&mut self.ring)
    }
}

/// A back end.
#[derive(Debug)]
pub struct BackEnd {
    /// What it serves.
    pub job: Job,
    thread: u32,
    /// Where events come for it.
    pub vcpu: u32,
    /// It has nothing to do and sleeps, or is about to.
    pub is_idle: bool,
    /// Front ends that have something.
    queued: VecDeque<u32>,
    /// What it is at.
    received: Vec<(u32, Burst)>,
    sent: Vec<Burst>,
    requests: Vec<Request>,
}

impl BackEnd {
    /// A back end that is a thread.
    pub fn new(job: Job, thread: u32, vcpu: u32) -> Self {
        Self {
            job,
            thread,
            vcpu,
            is_idle: false,
            queued: VecDeque::new(),
            received: Vec::new(),
            sent: Vec::new(),
            requests: Vec::new(),
        }
    }
}

impl Io {
    fn queue_front_end(&mut self, f: u32) -> u32 {
        let front_end = &mut self.front_ends[f as usize];
        let b = front_end.back_end;
        if !std::mem::replace(&mut front_end.is_queued, true) {
            self.back_ends[b as usize].queued.push_back(f);
        }
        b
    }

    /// A back end gathers a batch: what front ends send, and packets for them in turn, as far as their rings have room.
    fn gather(&mut self, b: u32) {
        let back_end = &mut self.back_ends[b as usize];
        let mut room = RING;
        while room > 0
            && let Some(f) = back_end.queued.pop_front()
        {
            let front_end = &mut self.front_ends[f as usize];
            back_end.sent.extend(front_end.sent.drain(..));
            while let Some(&burst) = front_end.backlog.front()
                && burst.packets <= front_end.slots.min(room)
            {
                front_end.backlog.pop_front();
                front_end.slots -= burst.packets;
                room -= burst.packets;
                back_end.received.push((f, burst));
            }
            let Some(next) = front_end.backlog.front() else {
                front_end.is_queued = false;
                continue;
            };
            if next.packets > front_end.slots {
                front_end.is_queued = false;
                front_end.waits_for_room = true;
            } else {
                back_end.queued.push_front(f);
                return;
            }
        }
    }

    /// What a back end's batch of packets takes on a pCPU.
    fn batch_price(&mut self, b: u32, pcpu: usize) -> Ps {
        let back_end = &self.back_ends[b as usize];
        let packets: Ps = back_end.received.iter().map(|(_, burst)| Ps::from(burst.packets)).sum();
        let bytes: u64 = back_end.received.iter().map(|(_, burst)| burst.bytes).sum();
        let sent = back_end.sent.len() as Ps;
        let copy = self.copy(pcpu, bytes, Place::Memory);
        let prices = &self.prices;
        prices.back_end_batch
            + packets * prices.back_end_receive
            + copy
            + sent * (prices.back_end_send + prices.bridge + prices.driver_send)
    }
}

impl World {
    // ---- what comes to back ends ----

    /// The bridge has a burst for a front end; the handler on vCPU `c` of the service VM wakes the back end.
    pub(crate) fn bridge_burst(&mut self, c: usize, burst: &Burst) {
        let io = self.io();
        let vm = io.connections[burst.connection as usize].vm;
        let port = io.sockets[vm].as_ref().expect("it has a connection").port;
        let Port::FrontEnd(f) = port else { unreachable!("others have queues of their own") };
        io.front_ends[f as usize].backlog.push_back(*burst);
        let b = io.queue_front_end(f);
        self.wake_back_end(c, b);
    }

    /// A guest's driver puts what it sends into the ring of its front end; who serves that.
    pub(crate) fn hand_to_back_end(&mut self, f: u32, burst: Burst) -> u32 {
        let io = self.io();
        io.front_ends[f as usize].sent.push_back(burst);
        io.queue_front_end(f)
    }

    /// A handler on vCPU `c` of the service VM wakes a back end that sleeps.
    pub(crate) fn wake_back_end(&mut self, c: usize, b: u32) {
        let back_end = &mut self.io().back_ends[b as usize];
        if std::mem::take(&mut back_end.is_idle) {
            let thread = back_end.thread;
            self.wake_from_device(c, thread);
        }
    }

    /// A guest's handler on vCPU `c` has taken what was in a front end's ring: whether there is more by now.
    pub(crate) fn front_end_polled(&mut self, c: usize, f: u32) -> bool {
        let io = self.io();
        let front_end = &mut io.front_ends[f as usize];
        let has_more = !front_end.ring.is_empty();
        front_end.is_armed = !has_more;
        if std::mem::take(&mut front_end.waits_for_room) {
            let vm = front_end.vm;
            let b = io.queue_front_end(f);
            let back_end = &io.back_ends[b as usize];
            if back_end.is_idle {
                let target = back_end.vcpu as usize;
                io.of_vms[vm].counts.notifications += 1;
                // What it takes is in the handler's price.
                self.send_event(c, target, Source::BackEnd(b));
            }
        }
        has_more
    }

    /// What the handler of a front end's event takes to tell the back end of room in the ring, if that waits for it.
    pub(crate) fn room_price(&self, f: u32) -> Ps {
        let Some(io) = &self.io else { return 0 };
        let front_end = &io.front_ends[f as usize];
        if !front_end.waits_for_room || !io.back_ends[front_end.back_end as usize].is_idle {
            return 0;
        }
        self.prices.vm_exit + io.prices.hypercall + io.prices.event_send + self.prices.vm_entry + self.prices.decision
    }

    // ---- their threads ----

    /// The vCPU's thread, which is a back end, takes the next batch.
    pub(crate) fn serve(&mut self, c: usize, b: u32) {
        let pcpu = self.vcpus[c].pcpu as usize;
        let io = self.io();
        let price = match io.back_ends[b as usize].job {
            Job::Network => {
                io.gather(b);
                let back_end = &io.back_ends[b as usize];
                let has_work = !back_end.received.is_empty() || !back_end.sent.is_empty();
                if has_work { io.batch_price(b, pcpu) } else { 0 }
            }
            Job::Disks(vm) => {
                let requests = io.storages[vm as usize].as_mut().expect("it has disks").take_requests();
                let prices = &io.prices;
                let each = prices.disk_back_end + prices.disk_driver;
                let pages = |request: &Request| u64::from(request.bytes).min(PIECE).div_ceil(4096);
                let price = requests.iter().map(|request| each + pages(request) * prices.disk_page).sum();
                io.back_ends[b as usize].requests = requests;
                price
            }
        };
        match price {
            0 => self.in_kernel(c, self.prices.block, Step::Io(IoStep::Idle(b))),
            _ => self.stretch(c, price, Account::IoService, true, Step::Io(IoStep::Served(b))),
        }
    }

    /// The back end has found nothing to do: unless something has come meanwhile, it sleeps.
    pub(crate) fn back_end_idles(&mut self, c: usize, t: u32, b: u32) {
        self.threads[t as usize].pc -= 1;
        let io = self.io();
        let back_end = &io.back_ends[b as usize];
        let has_work = match back_end.job {
            Job::Network => !back_end.queued.is_empty(),
            Job::Disks(vm) => io.storages[vm as usize].as_ref().is_some_and(|storage| storage.has_requests()),
        };
        if has_work {
            return self.fetch(c);
        }
        io.back_ends[b as usize].is_idle = true;
        self.block_on_device(c, t);
    }

    /// The back end has done a batch: packets are in rings and on the wire, requests with the disks; it tells front ends.
    pub(crate) fn served(&mut self, c: usize, t: u32, b: u32) {
        let pcpu = self.vcpus[c].pcpu as usize;
        self.threads[t as usize].pc -= 1;
        let io = self.io();
        let place = io.place_at(pcpu);
        let back_end = &mut io.back_ends[b as usize];
        let received = std::mem::take(&mut back_end.received);
        let sent = std::mem::take(&mut back_end.sent);
        let requests = std::mem::take(&mut back_end.requests);
        for burst in sent {
            let card = self.io().connections[burst.connection as usize].card;
            self.put(card, Lane::Out, burst);
        }
        if let Job::Disks(vm) = self.io().back_ends[b as usize].job {
            for request in requests {
                let disk = self.io().storages[vm as usize].as_mut().expect("it has disks").turn();
                self.submit(disk, request);
            }
        }
        let mut cost = Cost::default();
        for (f, burst) in received {
            let front_end = &mut self.io().front_ends[f as usize];
            front_end.ring.push(burst);
            front_end.place = place;
            if std::mem::take(&mut front_end.is_armed) {
                let target = front_end.vcpu as usize;
                cost.time += self.notice_price();
                cost += self.send_event(c, target, Source::FrontEnd(f));
            }
        }
        if cost.time == 0 {
            return self.fetch(c);
        }
        self.stretch(c, cost.time, Account::IoService, true, Step::Fetch);
        self.divide_pcpu(pcpu, &cost.parts);
    }
}
