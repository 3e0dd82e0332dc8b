//! The team of threads of a search: each has a share of the points, and all pass two barriers for each task.

use super::Point;
use std::sync::{Barrier, Mutex, RwLock};

/// Costs are whole numbers of this part of 1.
const UNIT: f64 = (1u64 << 24) as f64;

/// What all threads do next with their share of the points.
pub enum Task {
    /// Each point belongs to the first center, this point.
    Begin { center: usize },
    /// A further center: whoever is nearer to it goes over.
    Join { center: usize, slot: u32 },
    /// What would be gained by a further center? Sums per slot.
    Gain { center: usize, slots: usize },
    /// The center pays: whoever would gain, and whose center is closed, goes over.
    Move { center: usize, slot: u32, closed: Vec<bool> },
    /// There is nothing more to do.
    End,
}

/// The points of one thread, and what it found out about them.
pub struct Share {
    /// The number of the first.
    pub first: usize,
    /// The slot of the center that each point belongs to.
    pub slots: Vec<u32>,
    /// What each point costs: its weight times the square of the distance to its center.
    pub costs: Vec<f32>,
    /// Whether each point is nearer to the center that is tried.
    nearer: Vec<bool>,
    /// What the points that are nearer would save, in units.
    pub saved: i64,
    /// What closing the center of each slot would cost its other points, in units.
    pub dearer: Vec<i64>,
}

impl Share {
    /// The points from `first` to before `end`.
    pub fn new(first: usize, end: usize) -> Self {
        let many = end - first;
        Self {
            first,
            slots: vec![0; many],
            costs: vec![0.0; many],
            nearer: vec![false; many],
            saved: 0,
            dearer: Vec::new(),
        }
    }

    /// What all of them cost, in units.
    pub fn cost(&self) -> i64 {
        self.costs.iter().map(|cost| units(*cost)).sum()
    }
}

/// A cost in units.
#[inline(always)]
pub fn units(cost: f32) -> i64 {
    (f64::from(cost) * UNIT) as i64
}

/// What the threads of a search share.
pub struct Search<'a> {
    pub points: &'a [Point],
    pub weights: &'a [f32],
    /// One a thread; a lock is never fought for, the barriers see to that.
    pub shares: Vec<Mutex<Share>>,
    task: RwLock<Task>,
    begin: Barrier,
    end: Barrier,
}

impl<'a> Search<'a> {
    /// So many threads share the points.
    pub fn new(points: &'a [Point], weights: &'a [f32], team: usize) -> Self {
        let share = |id| Mutex::new(Share::new(points.len() * id / team, points.len() * (id + 1) / team));
        Self {
            points,
            weights,
            shares: (0..team).map(share).collect(),
            task: RwLock::new(Task::End),
            begin: Barrier::new(team),
            end: Barrier::new(team),
        }
    }

    /// Thread `id`, which is not the leader: does every task until the end.
    pub fn help(&self, id: usize) {
        loop {
            self.begin.wait();
            let task = self.task.read().expect("nobody panics with it");
            if matches!(*task, Task::End) {
                return;
            }
            self.work(id, &task);
            drop(task);
            self.end.wait();
        }
    }

    /// The leader: lets all do a task, and waits until they have.
    pub fn all_do(&self, task: Task) {
        let is_end = matches!(task, Task::End);
        *self.task.write().expect("nobody panics with it") = task;
        self.begin.wait();
        if !is_end {
            self.work(0, &self.task.read().expect("nobody panics with it"));
            self.end.wait();
        }
    }

    fn work(&self, id: usize, task: &Task) {
        let share = &mut *self.shares[id].lock().expect("nobody panics with it");
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was just asked.
            unsafe { self.work_avx2(share, task) }
        } else {
            self.work_on(share, task);
        }
    }

    /// [`Self::work_on`] with wider registers. The sums are the same: no operation is fused, and their order is fixed.
    #[target_feature(enable = "avx2")]
    fn work_avx2(&self, share: &mut Share, task: &Task) {
        self.work_on(share, task);
    }

    #[inline(always)]
    fn work_on(&self, share: &mut Share, task: &Task) {
        let range = share.first..share.first + share.costs.len();
        let (points, weights) = (&self.points[range.clone()], &self.weights[range]);
        match task {
            Task::Begin { center } => {
                let center = &self.points[*center];
                share.slots.fill(0);
                for ((point, weight), cost) in points.iter().zip(weights).zip(&mut share.costs) {
                    *cost = weight * distance(point, center);
                }
            }
            Task::Join { center, slot } => {
                let center = &self.points[*center];
                for (index, (point, weight)) in points.iter().zip(weights).enumerate() {
                    let cost = weight * distance(point, center);
                    if cost < share.costs[index] {
                        (share.costs[index], share.slots[index]) = (cost, *slot);
                    }
                }
            }
            Task::Gain { center, slots } => {
                let center = &self.points[*center];
                share.dearer.clear();
                share.dearer.resize(*slots, 0);
                share.saved = 0;
                for (index, (point, weight)) in points.iter().zip(weights).enumerate() {
                    let more = weight * distance(point, center) - share.costs[index];
                    share.nearer[index] = more < 0.0;
                    if more < 0.0 {
                        share.saved -= units(more);
                    } else {
                        share.dearer[share.slots[index] as usize] += units(more);
                    }
                }
            }
            Task::Move { center, slot, closed } => {
                let center = &self.points[*center];
                for (index, (point, weight)) in points.iter().zip(weights).enumerate() {
                    if share.nearer[index] || closed[share.slots[index] as usize] {
                        share.costs[index] = weight * distance(point, center);
                        share.slots[index] = *slot;
                    }
                }
            }
            Task::End => {}
        }
    }
}

/// The square of the distance. Always in this order: lane by lane, then the lanes pair by pair.
#[inline(always)]
pub fn distance(a: &Point, b: &Point) -> f32 {
    const LANES: usize = 32;
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for ((sum, a), b) in lanes.iter_mut().zip(a).zip(b) {
            let difference = a - b;
            *sum += difference * difference;
        }
    }
    let mut many = LANES;
    while many > 1 {
        many /= 2;
        let (low, high) = lanes.split_at_mut(many);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
    }
    lanes[0]
}
