//! Network cards: what travels on a wire, the wire with its two lanes, and the receive queues of a card's functions with
//! their interrupts.

use crate::engine::{NS, Ps};
use muster_model::study::Moderation;
use muster_policy::io::adaptive_period_ns;
use std::collections::VecDeque;

/// Packets of one connection that travel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Whose.
    pub connection: u32,
    /// How many.
    pub packets: u32,
    /// Their payload.
    pub bytes: u64,
    /// Payload of the other direction that they acknowledge; such packets have none of their own.
    pub acknowledged: u64,
    /// Whether they end a message.
    pub last: bool,
}

/// The direction of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// From the peer to the card.
    In = 0,
    /// From the card to the peer.
    Out = 1,
}

/// A wire between a card and its peer: two lanes, on each of which one burst travels after the other.
#[derive(Debug)]
pub struct Wire {
    /// Picoseconds for 1024 bytes of payload.
    ps_per_kib: u64,
    lanes: [VecDeque<Burst>; 2],
}

impl Wire {
    /// A wire that carries so many Gb of payload a second in each direction.
    pub fn new(gbps: f64) -> Self {
        Self { ps_per_kib: (8192e3 / gbps).round().max(1.0) as u64, lanes: [VecDeque::new(), VecDeque::new()] }
    }

    fn takes(&self, burst: &Burst) -> Ps {
        ((u128::from(burst.bytes.max(1)) * u128::from(self.ps_per_kib)) >> 10) as Ps
    }

    /// Puts a burst on a lane; how long it takes if the lane was free.
    pub fn put(&mut self, lane: Lane, burst: Burst) -> Option<Ps> {
        let queue = &mut self.lanes[lane as usize];
        queue.push_back(burst);
        (queue.len() == 1).then(|| self.takes(&burst))
    }

    /// The first burst of a lane is at its end; how long the next takes, if there is one.
    ///
    /// # Panics
    /// When nothing was on the lane.
    pub fn arrive(&mut self, lane: Lane) -> (Burst, Option<Ps>) {
        let queue = &mut self.lanes[lane as usize];
        let burst = queue.pop_front().expect("a burst travels");
        let next = queue.front().copied();
        (burst, next.map(|next| self.takes(&next)))
    }
}

/// Over how long the rate of a queue's packets is taken.
const RATE_WINDOW: Ps = 1_000_000 * NS;

/// A receive queue.
#[derive(Debug)]
pub struct Queue {
    bursts: VecDeque<Burst>,
    /// Whether its next packet interrupts; not while its driver polls it.
    armed: bool,
    /// Before this it does not interrupt.
    not_before: Ps,
    /// From one interrupt to the next at least.
    period: Ps,
    moderation: Moderation,
    /// Packets since then.
    counted: (Ps, u64),
}

impl Queue {
    /// An empty queue.
    pub fn new(moderation: Moderation) -> Self {
        let period = match moderation {
            Moderation::Adaptive => adaptive_period_ns(0) * NS,
            Moderation::PerSecond(rate) => 1_000_000_000 * NS / u64::from(rate),
        };
        Self { bursts: VecDeque::new(), armed: true, not_before: 0, period, moderation, counted: (0, 0) }
    }

    /// A burst is in memory; when the queue interrupts for it, if it does.
    pub fn push(&mut self, burst: Burst, now: Ps) -> Option<Ps> {
        self.counted.1 += u64::from(burst.packets);
        self.bursts.push_back(burst);
        (self.armed && self.bursts.len() == 1).then(|| now.max(self.not_before))
    }

    /// It interrupts, and does not do so again before it is armed.
    pub fn interrupt(&mut self, now: Ps) {
        self.armed = false;
        let (since, packets) = self.counted;
        if now - since >= RATE_WINDOW {
            if self.moderation == Moderation::Adaptive {
                let per_s = u128::from(packets) * 1_000_000_000_000 / u128::from(now - since);
                self.period = adaptive_period_ns(per_s as u64) * NS;
            }
            self.counted = (now, 0);
        }
        self.not_before = now + self.period;
    }

    /// The driver takes up to so many packets, or one burst if that has more.
    pub fn poll(&mut self, most: u32, taken: &mut Vec<Burst>) {
        let mut packets = 0;
        while let Some(burst) = self.bursts.front()
            && (packets == 0 || packets + burst.packets <= most)
        {
            packets += burst.packets;
            taken.push(*burst);
            self.bursts.pop_front();
        }
    }

    /// The driver has done what it took: whether it has to go on. Else the queue interrupts again.
    pub fn goes_on(&mut self) -> bool {
        self.armed = self.bursts.is_empty();
        !self.armed
    }
}

/// What an IOMMU's TLB holds, as far as buffers of receive rings go: each function goes round its ring of buffers, so that a page
/// is gone by the time its turn comes again unless all rings in use fit.
#[derive(Debug, Clone)]
pub struct Iotlb {
    entries: VecDeque<(u32, u32)>,
    /// Translations that were looked for, and those that were not there.
    pub lookups: (u64, u64),
}

/// Entries of an IOTLB: assumed, as those of a CPU's second level.
const IOTLB_ENTRIES: usize = 512;
/// Buffers of a ring (ixgbevf's default), two to a page.
const RING: u32 = 512;

impl Default for Iotlb {
    /// An empty one.
    fn default() -> Self {
        Self { entries: VecDeque::with_capacity(IOTLB_ENTRIES), lookups: (0, 0) }
    }
}

impl Iotlb {
    /// A function writes so many packets to the buffers of its ring from number `buffer` on; how many pages had to be looked
    /// for, and the next buffer.
    pub fn write(&mut self, function: u32, buffer: u32, packets: u32) -> (u32, u32) {
        let mut misses = 0;
        let end = buffer + packets;
        for page in buffer / 2..end.div_ceil(2) {
            let page = (function, page % (RING / 2));
            self.lookups.0 += 1;
            if self.entries.contains(&page) {
                continue;
            }
            misses += 1;
            if self.entries.len() == IOTLB_ENTRIES {
                self.entries.pop_front();
            }
            self.entries.push_back(page);
        }
        self.lookups.1 += u64::from(misses);
        (misses, end % RING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(packets: u32) -> Burst {
        Burst { connection: 0, packets, bytes: 1448 * u64::from(packets), acknowledged: 0, last: false }
    }

    #[test]
    fn a_wire_carries_its_rate_in_each_direction() {
        let mut wire = Wire::new(9.48);
        let mut now = wire.put(Lane::In, burst(16)).unwrap();
        assert_eq!(wire.put(Lane::In, burst(16)), None);
        assert!(wire.put(Lane::Out, burst(16)).is_some());
        for _ in 0..999 {
            now += wire.arrive(Lane::In).1.unwrap();
            wire.put(Lane::In, burst(16));
        }
        let gbps = 1000.0 * 16.0 * 1448.0 * 8.0 / (now as f64 / 1e12) / 1e9;
        assert!((gbps / 9.48 - 1.0).abs() < 1e-3, "{gbps}");
    }

    #[test]
    fn a_queue_interrupts_once_until_it_has_been_emptied_and_not_too_often() {
        let mut queue = Queue::new(Moderation::PerSecond(10_000));
        let mut taken = Vec::new();
        let at = queue.push(burst(3), 1_000_000_000).unwrap();
        assert_eq!(at, 1_000_000_000, "the last one was long ago");
        assert_eq!(queue.push(burst(3), at), None);
        queue.interrupt(at);
        queue.poll(4, &mut taken);
        assert_eq!((taken.len(), queue.goes_on()), (1, true));
        assert_eq!(queue.push(burst(1), at + 1), None, "its driver polls");
        queue.poll(64, &mut taken);
        assert_eq!((taken.len(), queue.goes_on()), (3, false));
        assert_eq!(queue.push(burst(1), at + 2), Some(at + 100_000_000));
    }

    #[test]
    fn rings_that_fit_are_translated_once() {
        let misses = |functions: u32| {
            let (mut iotlb, mut at) = (Iotlb::default(), vec![0; functions as usize]);
            for turn in 0..200 * functions {
                let f = turn % functions;
                at[f as usize] = iotlb.write(f, at[f as usize], 16).1;
            }
            (iotlb.lookups.1, iotlb.lookups.0)
        };
        assert_eq!(misses(2), (2 * 256, 2 * 200 * 8));
        let (missed, all) = misses(10);
        assert_eq!(missed, all, "ten rings push each other out");
    }
}
