//! Disks: what one does with requests, and when they are done.
//!
//! Up to `queue_depth` requests are at work. Each takes its latency, and all pass through one stage that the disk's operations and
//! bytes a second bound; others wait their turn.

use crate::engine::{NS, Ps};
use muster_model::study;
use std::collections::VecDeque;

/// A request of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The thread that waits for it.
    pub thread: u32,
    /// Its size.
    pub bytes: u32,
    /// Whether it writes.
    pub write: bool,
    /// When it was made.
    pub made: Ps,
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    spec: study::Disk,
    waiting: VecDeque<Request>,
    /// At work, the next to be done last.
    working: Vec<(Ps, Request)>,
    free: Ps,
}

impl Disk {
    /// A disk that has nothing to do.
    pub fn new(spec: &study::Disk) -> Self {
        Self { spec: spec.clone(), waiting: VecDeque::new(), working: Vec::new(), free: 0 }
    }

    /// Takes a request; when its next one is done.
    pub fn take(&mut self, request: Request, now: Ps) -> Ps {
        if self.working.len() < self.spec.queue_depth as usize {
            self.work(request, now);
        } else {
            self.waiting.push_back(request);
        }
        self.next().expect("it has work")
    }

    /// When the next request is done, if there is one.
    pub fn next(&self) -> Option<Ps> {
        self.working.last().map(|&(at, _)| at)
    }

    /// The requests that are done by `now`.
    pub fn done(&mut self, now: Ps, done: &mut Vec<Request>) {
        while let Some(&(at, request)) = self.working.last()
            && at <= now
        {
            self.working.pop();
            done.push(request);
            if let Some(next) = self.waiting.pop_front() {
                self.work(next, now);
            }
        }
    }

    fn work(&mut self, request: Request, now: Ps) {
        let spec = &self.spec;
        let (iops, rate, latency_ns) = match request.write {
            false => (spec.read_iops, spec.read_bytes_per_s, spec.read_latency_ns),
            true => (spec.write_iops, spec.write_bytes_per_s, spec.write_latency_ns),
        };
        let per_operation = 1_000_000_000_000 / Ps::from(iops);
        let bytes = (u128::from(request.bytes) * 1_000_000_000_000 / u128::from(rate)) as Ps;
        self.free = self.free.max(now) + per_operation.max(bytes);
        let at = self.free.max(now + latency_ns * NS);
        let place = self.working.partition_point(|&(other, _)| other > at);
        self.working.insert(place, (at, request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests a second, always so many at once.
    fn rate(at_once: u32, bytes: u32, write: bool) -> f64 {
        let mut disk = Disk::new(&study::Disk::default());
        let request = |made| Request { thread: 0, bytes, write, made };
        (0..at_once).for_each(|_| {
            disk.take(request(0), 0);
        });
        let (mut now, mut done) = (0, Vec::new());
        while done.len() < 10_000 {
            now = disk.next().unwrap();
            let before = done.len();
            disk.done(now, &mut done);
            (before..done.len()).for_each(|_| {
                disk.take(request(now), now);
            });
        }
        done.len() as f64 / (now as f64 / 1e12)
    }

    #[test]
    fn an_x25_e_does_what_its_data_sheet_says() {
        for (at_once, bytes, write, wanted) in [
            (1, 4096, false, 1e6 / 75.0),
            (32, 4096, false, 35_000.0),
            (64, 4096, false, 35_000.0),
            (32, 4096, true, 3_300.0),
            (4, 1 << 20, false, 250e6 / f64::from(1 << 20)),
            (4, 1 << 20, true, 170e6 / f64::from(1 << 20)),
        ] {
            let found = rate(at_once, bytes, write);
            assert!((found / wanted - 1.0).abs() < 0.01, "{at_once} of {bytes}, {write}: {found} for {wanted}");
        }
    }
}
