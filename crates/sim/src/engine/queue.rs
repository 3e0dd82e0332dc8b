//! The queue of pending events, ordered by (time, sequence number).
//!
//! Every source of events (a core, an interrupt line, a timer) owns a *slot* and has at most one event pending. Nothing is
//! ever searched for: the slot says what is pending, and an entry of the heap is only a promise to look at the slot not
//! later than that. Cancelling leaves the entry where it is, and so does putting the event off; when the entry surfaces
//! it is dropped or put in again. A timeout that is set and cancelled a hundred times before it would be due costs one
//! entry, not a hundred.

use super::Ps;

/// A source of events.
pub type Slot = u32;

const SLOT_BITS: u32 = 24;
const SEQUENCE_BITS: u32 = 40;

/// `time:64 | sequence:40 | slot:24`, which compare as one integer.
type Entry = u128;

/// No event, no entry: later than all.
const NONE: Entry = Entry::MAX;

/// One source's event.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The event, or [`NONE`].
    event: Entry,
    /// The slot's earliest entry in the heap, not later than `event`; [`NONE`] when there is none. Later ones are void.
    entry: Entry,
}

/// A binary heap of entries, and what is pending by slot.
#[derive(Debug)]
pub struct Queue {
    heap: Vec<Entry>,
    pending: Vec<Pending>,
    sequence: u64,
    /// The root has been taken out and not been replaced yet: the next entry goes there, without a second sift.
    hole: bool,
}

impl Queue {
    /// A queue for slots `0..slots`.
    ///
    /// # Panics
    /// When there are more slots than an entry can name.
    pub fn new(slots: usize) -> Self {
        assert!(slots <= 1 << SLOT_BITS, "at most 2^{SLOT_BITS} slots");
        Self {
            heap: Vec::with_capacity(4 * slots.min(4096)),
            pending: vec![Pending { event: NONE, entry: NONE }; slots],
            sequence: 0,
            hole: false,
        }
    }

    /// Sets the slot's event to `time`; an event that was pending there is replaced.
    #[inline]
    pub fn schedule(&mut self, slot: Slot, time: Ps) {
        self.sequence += 1;
        debug_assert!(self.sequence < 1 << SEQUENCE_BITS);
        let event = (Entry::from(time) << 64) | (Entry::from(self.sequence) << SLOT_BITS) | Entry::from(slot);
        let pending = &mut self.pending[slot as usize];
        pending.event = event;
        if event < pending.entry {
            pending.entry = event;
            self.push(event);
        }
    }

    /// Drops the slot's event, if one is pending.
    #[inline]
    pub fn cancel(&mut self, slot: Slot) {
        self.pending[slot as usize].event = NONE;
    }

    /// Whether the slot has an event pending.
    #[inline]
    pub fn is_pending(&self, slot: Slot) -> bool {
        self.pending[slot as usize].event != NONE
    }

    /// Takes out the earliest event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ps, Slot)> {
        loop {
            if self.hole {
                self.hole = false;
                let last = self.heap.pop()?;
                if self.heap.is_empty() {
                    // The hole itself was the last entry.
                    return None;
                }
                self.sift_down(last);
            }
            let entry = *self.heap.first()?;
            self.hole = true;
            let slot = (entry as u32) & ((1 << SLOT_BITS) - 1);
            let pending = &mut self.pending[slot as usize];
            if pending.entry != entry {
                continue;
            }
            let event = pending.event;
            if event == entry {
                *pending = Pending { event: NONE, entry: NONE };
                return Some(((entry >> 64) as Ps, slot));
            }
            pending.entry = event;
            if event != NONE {
                self.push(event);
            }
        }
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        if self.hole {
            self.hole = false;
            self.sift_down(entry);
        } else {
            self.sift_up(entry);
        }
    }

    #[inline]
    fn sift_up(&mut self, entry: Entry) {
        let mut at = self.heap.len();
        self.heap.push(entry);
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= entry {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }

    /// Puts `entry` at the root and restores the order below.
    #[inline]
    fn sift_down(&mut self, entry: Entry) {
        let heap = &mut self.heap[..];
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            if left + 1 >= heap.len() {
                break;
            }
            // Which child is the less is a coin's throw: added, not branched on.
            let child = left + usize::from(heap[left + 1] < heap[left]);
            if entry <= heap[child] {
                heap[at] = entry;
                return;
            }
            heap[at] = heap[child];
            at = child;
        }
        let left = 2 * at + 1;
        if left < heap.len() && heap[left] < entry {
            heap[at] = heap[left];
            at = left;
        }
        heap[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against the obvious model: a map from slot to (time, sequence).
        #[test]
        fn behaves_like_a_sorted_map(steps in proptest::collection::vec((0u8..4, 0u32..12, 0u64..50), 0..400)) {
            let mut queue = Queue::new(12);
            let mut model: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            let mut sequence = 0;
            for (what, slot, time) in steps {
                match what {
                    0 | 1 => {
                        sequence += 1;
                        queue.schedule(slot, time);
                        model.insert(slot, (time, sequence));
                    }
                    2 => {
                        queue.cancel(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let first = model.iter().map(|(&slot, &(time, seq))| (time, seq, slot)).min();
                        prop_assert_eq!(queue.pop(), first.map(|(time, _, slot)| (time, slot)));
                        first.map(|(_, _, slot)| model.remove(&slot));
                    }
                }
                prop_assert_eq!(queue.is_pending(slot), model.contains_key(&slot));
            }
        }
    }
}
