//! Sockets: connections of a VM's program, whose packets a handler delivers and whose threads copy them out and in.
//!
//! A thread that receives takes a connection that has something to read and keeps it until it has got what it asked for; it sends
//! on the one that it received from last. A client's request is read as a whole, and what a thread sends in one go is the whole reply. A connection
//! of a client that only sends or takes is bounded by its window.

use super::thread::{After, Step};
use crate::engine::Ps;
use crate::engine::books::Parts;
use crate::io::{Card, Io, IoStep, Source};
use crate::machine::nic::{Burst, Lane};
use crate::world::{NONE, World};
use muster_model::Account;
use muster_model::study::Client;
use std::collections::VecDeque;
use std::ops::Range;

/// What a thread copies at a time.
const COPY: u64 = 1 << 16;

/// Where received bytes are until they are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In memory, where a card wrote them.
    Memory,
    /// In a last-level cache, unless that has been filled up with other things since.
    Cache {
        /// Which cache.
        llc: u32,
        /// How much had gone through it.
        filled: u64,
    },
}

/// How a VM is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// By the physical function.
    Function,
    /// By a virtual function with this queue.
    Virtual(u32),
    /// By a front end.
    FrontEnd(u32),
}

/// A connection between a program and a client.
#[derive(Debug)]
pub struct Connection {
    /// Its VM.
    pub vm: usize,
    /// Its card.
    pub card: usize,
    /// What the client does.
    pub client: Client,
    /// A burst of the client's is on the lane or waits for it.
    pub offered: bool,
    /// When the client sent its request.
    pub asked: Ps,
    /// Of a request, what the client has not sent yet.
    unsent: u64,
    /// What the client has sent and the program has not taken.
    on_the_way: u64,
    unread: VecDeque<(u64, Place)>,
    /// A message has come whole.
    complete: bool,
    /// It is among those that have something to read.
    is_ready: bool,
    /// The thread that is at receiving from it.
    reader: u32,
    /// What the program has sent and the client has not acknowledged.
    unacknowledged: u64,
    writers: VecDeque<u32>,
}

impl Connection {
    /// A connection on which nothing has been sent.
    pub fn new(vm: usize, card: usize, client: &Client) -> Self {
        Self {
            vm,
            card,
            client: client.clone(),
            offered: false,
            asked: 0,
            unsent: 0,
            on_the_way: 0,
            unread: VecDeque::new(),
            complete: false,
            is_ready: false,
            reader: NONE,
            unacknowledged: 0,
            writers: VecDeque::new(),
        }
    }

    /// The client has a request.
    pub fn ask(&mut self) {
        if let Client::Requests { request_bytes, .. } = self.client {
            self.unsent += request_bytes;
        }
    }

    /// The next that the client sends to its card, if it may; `number` is the connection's.
    pub fn next_burst(&mut self, number: u32, card: &Card) -> Option<Burst> {
        let packet = card.packet;
        let may = match self.client {
            _ if self.offered => 0,
            Client::StreamIn { window_bytes, .. } => {
                let room = window_bytes.max(packet) - self.on_the_way;
                room - room % packet
            }
            Client::StreamOut { .. } => 0,
            Client::Requests { .. } => self.unsent,
        };
        let bytes = may.min(card.peer_batch * packet);
        if bytes == 0 {
            return None;
        }
        self.offered = true;
        self.on_the_way += bytes;
        self.unsent = self.unsent.saturating_sub(bytes);
        let last = matches!(self.client, Client::Requests { .. }) && self.unsent == 0;
        Some(Burst { connection: number, packets: bytes.div_ceil(packet) as u32, bytes, acknowledged: 0, last })
    }

    fn is_readable(&self) -> bool {
        !self.unread.is_empty() && (self.complete || !matches!(self.client, Client::Requests { .. }))
    }

    fn has_room(&self, bytes: u64) -> bool {
        match self.client {
            Client::StreamOut { window_bytes, .. } => {
                self.unacknowledged == 0 || self.unacknowledged + bytes <= window_bytes
            }
            _ => true,
        }
    }
}

/// A VM's sockets.
#[derive(Debug)]
pub struct Sockets {
    /// How it is connected.
    pub port: Port,
    card: usize,
    connections: Range<u32>,
    ready: VecDeque<u32>,
    /// Threads that wait for something to read.
    waiting: VecDeque<u32>,
}

impl Sockets {
    /// Sockets for these connections.
    pub fn new(port: Port, card: usize, connections: Range<u32>) -> Self {
        Self { port, card, connections, ready: VecDeque::new(), waiting: VecDeque::new() }
    }
}

/// What a thread is doing with devices.
#[derive(Debug, Clone)]
pub struct OfThread {
    /// What it still wants to receive.
    wants: u64,
    /// What it still has to send.
    has: u64,
    /// What it copies.
    copies: u64,
    /// The connection it receives from.
    reads: u32,
    /// The one it received from last.
    connection: u32,
    /// Pieces of a disk request that are not done.
    pub pieces: u32,
    /// It is blocked.
    pub is_blocked: bool,
    /// What its disk request is.
    pub request: (u64, bool),
}

impl Default for OfThread {
    /// Nothing.
    fn default() -> Self {
        Self {
            wants: 0,
            has: 0,
            copies: 0,
            reads: NONE,
            connection: NONE,
            pieces: 0,
            is_blocked: false,
            request: (0, false),
        }
    }
}

impl Io {
    /// What protocols take for packets that came.
    pub(crate) fn stack_receive(&self, bursts: &[Burst]) -> Ps {
        let batch = |burst: &Burst| {
            let connection = &self.connections[burst.connection as usize];
            Ps::from(burst.packets.div_ceil(self.cards[connection.card].batches.0))
        };
        bursts.iter().map(batch).sum::<Ps>() * self.prices.stack_receive
    }

    /// The connection on which a thread reads: the one that it has, or one that has something.
    fn reads_from(&mut self, vm: usize, t: u32) -> Option<u32> {
        let k = self.threads[t as usize].reads;
        if k != NONE {
            return self.connections[k as usize].is_readable().then_some(k);
        }
        let k = self.sockets[vm].as_mut()?.ready.pop_front()?;
        let connection = &mut self.connections[k as usize];
        (connection.is_ready, connection.reader) = (false, t);
        let of = &mut self.threads[t as usize];
        (of.reads, of.connection) = (k, k);
        Some(k)
    }

    /// A connection that nobody receives from has something to read: the thread that is to be woken for it, if one waits.
    fn make_ready(&mut self, k: u32) -> Option<u32> {
        let connection = &mut self.connections[k as usize];
        if std::mem::replace(&mut connection.is_ready, true) {
            return None;
        }
        let sockets = self.sockets[connection.vm].as_mut()?;
        sockets.ready.push_back(k);
        let at = sockets.waiting.iter().position(|&t| self.threads[t as usize].reads == NONE)?;
        sockets.waiting.remove(at)
    }
}

impl World {
    // ---- receiving ----

    /// The vCPU's thread receives so many bytes, or goes on doing so.
    pub(crate) fn receive(&mut self, c: usize, t: u32, bytes: u64) {
        let vm = self.vcpus[c].vm as usize;
        let pcpu = self.vcpus[c].pcpu as usize;
        let io = self.io();
        if io.threads[t as usize].wants == 0 {
            io.threads[t as usize].wants = bytes;
        }
        let Some(k) = io.reads_from(vm, t) else {
            let price = self.prices.syscall + self.prices.block;
            return self.in_kernel(c, price, Step::Io(IoStep::AwaitData));
        };
        let connection = &mut io.connections[k as usize];
        let whole = matches!(connection.client, Client::Requests { .. });
        let mut left = if whole { COPY } else { io.threads[t as usize].wants.min(COPY) };
        let (mut copied, mut price, mut moved) = (0, 0, 0);
        while left > 0
            && let Some((bytes, place)) = io.connections[k as usize].unread.pop_front()
        {
            let taken = bytes.min(left);
            if taken < bytes {
                io.connections[k as usize].unread.push_front((bytes - taken, place));
            }
            let copy = io.copy(pcpu, taken, place);
            price += copy;
            moved += if matches!(place, Place::Cache { .. }) { copy } else { 0 };
            (copied, left) = (copied + taken, left - taken);
        }
        io.threads[t as usize].copies = copied;
        let call = io.prices.socket_call;
        self.enter_kernel(c);
        self.in_kernel(c, self.prices.syscall + call + price, Step::Io(IoStep::Copied));
        let mut parts = Parts::NONE;
        parts.add(Account::CacheTransfer, moved);
        self.ledgers.divide(c, pcpu, &parts);
    }

    /// The vCPU's thread has copied what it received.
    pub(crate) fn copied(&mut self, c: usize, t: u32) {
        let io = self.io.as_mut().expect("it receives");
        let of = &mut io.threads[t as usize];
        let k = of.reads;
        let connection = &mut io.connections[k as usize];
        let bytes = std::mem::take(&mut of.copies);
        connection.on_the_way -= bytes;
        io.of_vms[connection.vm].counts.received_bytes += bytes;
        let done = match connection.client {
            Client::Requests { .. } => connection.unread.is_empty(),
            _ => of.wants <= bytes,
        };
        let mut next = None;
        if done {
            (of.wants, of.reads) = (0, NONE);
            (connection.complete, connection.reader) = (false, NONE);
            if connection.is_readable() {
                next = io.make_ready(k);
            }
        } else {
            of.wants = of.wants.saturating_sub(bytes).max(1);
            self.threads[t as usize].pc -= 1;
        }
        // The acknowledgement is on its way.
        self.offer_burst(k);
        if let Some(next) = next {
            self.wake_from_device(c, next);
        }
        self.fetch(c);
    }

    /// Nothing was there to read: unless something has come, the vCPU's thread blocks.
    pub(crate) fn await_data(&mut self, c: usize, t: u32) {
        let vm = self.vcpus[c].vm as usize;
        self.threads[t as usize].pc -= 1;
        let io = self.io();
        let k = io.threads[t as usize].reads;
        let sockets = io.sockets[vm].as_mut().expect("it receives");
        let has = match k {
            NONE => !sockets.ready.is_empty(),
            k => io.connections[k as usize].is_readable(),
        };
        if has {
            return self.fetch(c);
        }
        sockets.waiting.push_back(t);
        self.block_on_device(c, t);
    }

    /// Packets are delivered to their connection, by a handler on vCPU `c` of its VM.
    pub(crate) fn deliver_burst(&mut self, c: usize, burst: &Burst, place: Place) {
        let io = self.io.as_mut().expect("packets have come");
        let connection = &mut io.connections[burst.connection as usize];
        if burst.bytes == 0 {
            connection.unacknowledged = connection.unacknowledged.saturating_sub(burst.acknowledged);
            if let Some(writer) = connection.writers.pop_front() {
                self.wake_from_device(c, writer);
            }
            return;
        }
        connection.unread.push_back((burst.bytes, place));
        connection.complete |= burst.last;
        if !connection.is_readable() {
            return;
        }
        let woken = match connection.reader {
            NONE => io.make_ready(burst.connection),
            reader => {
                let waiting = &mut io.sockets[connection.vm].as_mut().expect("it has a connection").waiting;
                let at = waiting.iter().position(|&t| t == reader);
                at.and_then(|at| waiting.remove(at))
            }
        };
        if let Some(t) = woken {
            self.wake_from_device(c, t);
        }
    }

    // ---- sending ----

    /// The vCPU's thread sends so many bytes, or goes on doing so.
    pub(crate) fn send(&mut self, c: usize, t: u32, bytes: u64) {
        let vm = self.vcpus[c].vm as usize;
        let (pcpu, index) = (self.vcpus[c].pcpu as usize, t - self.vms[vm].threads.start as u32);
        let io = self.io();
        let sockets = io.sockets[vm].as_ref().expect("it sends");
        let (port, connections, card) = (sockets.port, sockets.connections.clone(), &io.cards[sockets.card]);
        let most = card.largest_piece();
        let of = &mut io.threads[t as usize];
        let begins = of.has == 0;
        if begins {
            of.has = bytes;
        }
        if of.connection == NONE {
            of.connection = connections.start + index % connections.len() as u32;
        }
        let (k, piece) = (of.connection as usize, of.has.min(most));
        let call = if begins { self.prices.syscall } else { 0 };
        let io = self.io();
        if !io.connections[k].has_room(piece) {
            let price = call + self.prices.block;
            return self.in_kernel(c, price, Step::Io(IoStep::AwaitRoom));
        }
        io.connections[k].unacknowledged += piece;
        io.threads[t as usize].copies = piece;
        let place = io.place_at(pcpu);
        let copy = io.copy(pcpu, piece, place);
        let prices = &io.prices;
        let driver = if matches!(port, Port::FrontEnd(_)) { prices.front_end_send } else { prices.driver_send };
        let price = call + prices.socket_call + prices.stack_send + copy + driver;
        if begins {
            self.enter_kernel(c);
        }
        self.in_kernel(c, price, Step::Io(IoStep::Sent));
    }

    /// What the vCPU's thread sends is with the driver.
    pub(crate) fn sent(&mut self, c: usize, t: u32) {
        let vm = self.vcpus[c].vm as usize;
        let io = self.io();
        let (port, card) = io.sockets[vm].as_ref().map(|sockets| (sockets.port, sockets.card)).expect("it sends");
        let of = &mut io.threads[t as usize];
        let bytes = std::mem::take(&mut of.copies);
        of.has -= bytes;
        let (connection, last) = (of.connection, of.has == 0);
        let packets = bytes.div_ceil(io.cards[card].packet) as u32;
        let burst = Burst { connection, packets, bytes, acknowledged: 0, last };
        if !last {
            self.threads[t as usize].pc -= 1;
        }
        match port {
            Port::Function | Port::Virtual(_) => {
                self.put(card, Lane::Out, burst);
                self.fetch(c);
            }
            Port::FrontEnd(f) => {
                let back_end = self.hand_to_back_end(f, burst);
                self.notify_back_end(c, back_end, Step::Fetch);
            }
        }
    }

    /// There was no room in the window: unless there is now, the vCPU's thread blocks.
    pub(crate) fn await_room(&mut self, c: usize, t: u32) {
        self.threads[t as usize].pc -= 1;
        let io = self.io();
        let of = &io.threads[t as usize];
        let connection = &mut io.connections[of.connection as usize];
        let card = &io.cards[connection.card];
        if connection.has_room(of.has.min(card.largest_piece())) {
            return self.fetch(c);
        }
        connection.writers.push_back(t);
        self.block_on_device(c, t);
    }

    // ---- blocking ----

    /// The vCPU's thread blocks until a handler wakes it.
    pub(crate) fn block_on_device(&mut self, c: usize, t: u32) {
        self.io().threads[t as usize].is_blocked = true;
        self.threads[t as usize].after = After::Fetch;
        self.vm_mut(c).device_waits += 1;
        self.vcpus[c].current = NONE;
        self.schedule(c);
    }

    /// A handler on vCPU `c` wakes a thread of the same VM that is blocked.
    pub(crate) fn wake_from_device(&mut self, c: usize, t: u32) {
        if std::mem::take(&mut self.io().threads[t as usize].is_blocked) {
            self.vm_mut(c).device_waits -= 1;
            self.wake_in_handler(c, t);
        }
    }

    /// Tells a back end that a ring has something, if it sleeps: an event, for which a hardware-assisted guest leaves.
    pub(crate) fn notify_back_end(&mut self, c: usize, b: u32, then: Step) {
        let back_end = &self.io().back_ends[b as usize];
        if !back_end.is_idle {
            return self.go_on_after_notice(c, then);
        }
        let target = back_end.vcpu as usize;
        let vm = self.vcpus[c].vm as usize;
        self.io().of_vms[vm].counts.notifications += 1;
        let cost = self.send_event(c, target, Source::BackEnd(b));
        let price = self.prices.vm_exit + self.notice_price() + self.prices.vm_entry;
        self.in_kernel(c, price + cost.time, then);
        self.divide_pcpu(self.vcpus[c].pcpu as usize, &cost.parts);
    }

    fn go_on_after_notice(&mut self, c: usize, then: Step) {
        if then == Step::Fetch { self.fetch(c) } else { self.in_kernel(c, 0, then) }
    }

    /// What the VMM takes to send an event.
    pub(crate) fn notice_price(&mut self) -> Ps {
        let prices = &self.io().prices;
        prices.hypercall + prices.event_send
    }
}
