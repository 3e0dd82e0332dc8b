//! Requests to disks: a thread makes them, piece by piece, and blocks until all are done.
//!
//! There is no page cache here: what is read is read from a disk, and who writes waits for it. Elevators, and merging what
//! several threads ask for, are left out.

use super::thread::Step;
use crate::io::IoStep;
use crate::machine::disk::Request;
use crate::world::World;

/// The largest piece of a request: what a request of a front end holds (BLKIF_MAX_SEGMENTS_PER_REQUEST, 11 pages).
pub const PIECE: u64 = 11 * 4096;

/// A VM's disks.
#[derive(Debug)]
pub struct Storage {
    disks: Vec<u32>,
    /// Whose turn it is.
    next: usize,
    /// Who serves them, where it is not the VM itself.
    pub back_end: Option<u32>,
    /// Where the front end's events come.
    pub vcpu: u32,
    /// Requests in the ring, for the back end.
    queue: Vec<Request>,
    /// Those that are done, for the front end.
    answers: Vec<Request>,
}

impl Storage {
    /// Disks that are asked in turn.
    pub fn new(disks: &[u32], back_end: Option<u32>, vcpu: u32) -> Self {
        Self { disks: disks.to_vec(), next: 0, back_end, vcpu, queue: Vec::new(), answers: Vec::new() }
    }

    /// The disk for the next request.
    pub fn turn(&mut self) -> u32 {
        let disk = self.disks[self.next];
        self.next = (self.next + 1) % self.disks.len();
        disk
    }

    /// What the front end finds in its ring.
    pub fn take_answers(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.answers)
    }

    /// What the back end finds in it.
    pub fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.queue)
    }

    /// Whether the back end finds something.
    pub fn has_requests(&self) -> bool {
        !self.queue.is_empty()
    }
}

impl World {
    /// The vCPU's thread reads from its disks or writes to them.
    pub(crate) fn disk(&mut self, c: usize, t: u32, bytes: u64, write: bool) {
        let vm = self.vcpus[c].vm as usize;
        let io = self.io();
        io.threads[t as usize].request = (bytes, write);
        let is_served = io.storages[vm].as_ref().expect("it has disks").back_end.is_some();
        let prices = io.prices;
        let driver = if is_served { prices.disk_front_end } else { prices.disk_driver };
        let price = self.prices.syscall + bytes.div_ceil(PIECE) * (prices.disk_request + driver);
        self.enter_kernel(c);
        self.in_kernel(c, price, Step::Io(IoStep::Submitted));
    }

    /// The pieces of the request are with the driver.
    pub(crate) fn submitted(&mut self, c: usize, t: u32) {
        let (vm, made) = (self.vcpus[c].vm as usize, self.now);
        let io = self.io.as_mut().expect("it has disks");
        let of = &mut io.threads[t as usize];
        let (mut left, write) = of.request;
        let storage = io.storages[vm].as_mut().expect("it has disks");
        let mut pieces = Vec::with_capacity(left.div_ceil(PIECE) as usize);
        while left > 0 {
            let bytes = left.min(PIECE);
            pieces.push((storage.turn(), Request { thread: t, bytes: bytes as u32, write, made }));
            left -= bytes;
        }
        of.pieces = pieces.len() as u32;
        let back_end = storage.back_end;
        if let Some(b) = back_end {
            storage.queue.extend(pieces.iter().map(|&(_, request)| request));
            return self.notify_back_end(c, b, Step::Io(IoStep::AwaitDisk));
        }
        pieces.into_iter().for_each(|(disk, request)| self.submit(disk, request));
        self.in_kernel(c, self.prices.block, Step::Io(IoStep::AwaitDisk));
    }

    /// Unless its request is done already, the vCPU's thread blocks.
    pub(crate) fn await_disk(&mut self, c: usize, t: u32) {
        if self.io().threads[t as usize].pieces == 0 {
            return self.fetch(c);
        }
        self.block_on_device(c, t);
    }

    /// A piece is done, as a handler on vCPU `c` of the thread's VM finds out.
    pub(crate) fn request_done(&mut self, c: usize, request: &Request) {
        let (vm, now) = (self.vcpus[c].vm as usize, self.now);
        let io = self.io.as_mut().expect("it has disks");
        let of = &mut io.threads[request.thread as usize];
        of.pieces -= 1;
        let is_done = of.pieces == 0;
        let of_vm = &mut io.of_vms[vm];
        of_vm.counts.disk_bytes += u64::from(request.bytes);
        if is_done {
            let count = if request.write { &mut of_vm.counts.disk_writes } else { &mut of_vm.counts.disk_reads };
            *count += 1;
            of_vm.disk_latency.add(now - request.made);
            self.wake_from_device(c, request.thread);
        }
    }

    /// A piece is done, as the service VM finds out on its vCPU `c`: it tells the front end.
    pub(crate) fn answer(&mut self, c: usize, request: &Request) {
        let vm = self.vcpus[self.threads[request.thread as usize].cpu as usize].vm;
        let storage = self.io().storages[vm as usize].as_mut().expect("it has disks");
        storage.answers.push(*request);
        let target = storage.vcpu as usize;
        // What the VMM's scheduler takes for it is in the handler's price.
        self.send_event(c, target, crate::io::Source::Requests(vm.into()));
    }
}
