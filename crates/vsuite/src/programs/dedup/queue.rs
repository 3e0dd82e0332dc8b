//! A bounded queue between two stages: a mutex and two condition variables, as PARSEC's. Items go in and out in batches.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

/// A queue. It ends when everybody who adds to it has left and it is empty.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    not_empty: Condvar,
    not_full: Condvar,
    limit: usize,
}

struct State<T> {
    items: VecDeque<T>,
    producers: usize,
    /// How many wait for items, and for room: a condition variable that nobody waits for is not signalled, which would
    /// be a system call.
    hungry: usize,
    blocked: usize,
}

impl<T> Queue<T> {
    /// A queue of at most `limit` items, to which so many threads add.
    pub fn new(limit: usize, producers: usize) -> Self {
        let state = Mutex::new(State { items: VecDeque::with_capacity(limit), producers, hungry: 0, blocked: 0 });
        Self { state, not_empty: Condvar::new(), not_full: Condvar::new(), limit }
    }

    /// Adds all items, waiting while the queue is full; `items` is empty afterwards.
    pub fn push_all(&self, items: &mut Vec<T>) {
        let mut items = items.drain(..).peekable();
        while items.peek().is_some() {
            let mut state = self.lock();
            while state.items.len() >= self.limit {
                state.blocked += 1;
                state = self.not_full.wait(state).expect("nobody panics with it");
                state.blocked -= 1;
            }
            let room = self.limit - state.items.len();
            state.items.extend(items.by_ref().take(room));
            if state.hungry > 0 {
                drop(state);
                // All: a batch may be enough for several.
                self.not_empty.notify_all();
            }
        }
    }

    /// Takes up to `most` items, waiting while there is none; `false` when none will come any more.
    pub fn pop(&self, into: &mut Vec<T>, most: usize) -> bool {
        let mut state = self.lock();
        while state.items.is_empty() && state.producers > 0 {
            state.hungry += 1;
            state = self.not_empty.wait(state).expect("nobody panics with it");
            state.hungry -= 1;
        }
        let many = most.min(state.items.len());
        into.extend(state.items.drain(..many));
        if state.blocked > 0 {
            drop(state);
            self.not_full.notify_all();
        }
        many > 0
    }

    /// One who added adds no more.
    pub fn leave(&self) {
        self.lock().producers -= 1;
        self.not_empty.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("nobody panics with it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn every_item_comes_out_once_and_nobody_waits_for_ever() {
        let queue = Queue::new(3, 4);
        let mut all: Vec<u32> = thread::scope(|scope| {
            for producer in 0..4u32 {
                let queue = &queue;
                scope.spawn(move || {
                    for start in (0..1000).step_by(10) {
                        queue.push_all(&mut (start..start + 10).map(|item| producer * 1000 + item).collect());
                    }
                    queue.leave();
                });
            }
            let consume = || {
                let (mut all, mut batch) = (Vec::new(), Vec::new());
                while queue.pop(&mut batch, 7) {
                    assert!(batch.len() <= 3, "the queue holds no more");
                    all.append(&mut batch);
                }
                all
            };
            let consumers: Vec<_> = (0..3).map(|_| scope.spawn(consume)).collect();
            consumers.into_iter().flat_map(|consumer| consumer.join().expect("it ends")).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..4000).collect::<Vec<u32>>());
    }
}
