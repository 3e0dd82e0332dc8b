//! Streamcluster, after PARSEC (Bienia et al., PACT 2008; O'Callaghan et al., "Streaming-data algorithms for high-quality
//! clustering", ICDE 2002): online k-median. The stream is clustered chunk by chunk by local search, then the centers of
//! all chunks are. Whether one more center pays is tried thousands of times; each try is a pass of all threads over the
//! chunk between two barriers, and another if it pays.
//!
//! Costs are summed as integers, so that the result does not depend on how many threads share the points.

mod team;

use super::digest::Digest;
use super::{Fill, random};
use crate::SuiteError;
use rand_core::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use std::num::NonZeroUsize;
use std::thread;
use team::{Search, Task, units};

/// Dimensions of a point, as in PARSEC's native input.
const DIMENSIONS: usize = 128;
const POINT_BYTES: usize = DIMENSIONS * 4;
/// The fewest and the most centers wanted, as there.
const FEWEST: usize = 10;
const MOST: usize = 20;
/// The stream is clustered in so many chunks (PARSEC's native input has 5).
const CHUNKS: usize = 4;
/// How often each center is tried, times the logarithm of the number of centers (PARSEC: ITER).
const ITERATIONS: f64 = 3.0;
/// Clusters that the generated points lie in.
const CLUSTERS: u64 = 16;

/// A point's coordinates.
pub type Point = [f32; DIMENSIONS];

/// Fills points of 128 coordinates, in clusters.
pub fn fill(seed: u64, _total: u64) -> Fill {
    let coordinate = |bits: u32| (bits >> 8) as f32 / (1 << 24) as f32;
    let mut centers = random(seed, u64::MAX);
    let centers: Vec<Point> = (0..CLUSTERS).map(|_| std::array::from_fn(|_| coordinate(centers.next_u32()))).collect();
    Box::new(move |index, block| {
        let mut random = random(seed, index);
        let (points, rest) = block.as_chunks_mut::<POINT_BYTES>();
        for point in points {
            let center = &centers[(random.next_u64() % CLUSTERS) as usize];
            for (pair, middle) in point.as_chunks_mut::<8>().0.iter_mut().zip(center.as_chunks::<2>().0) {
                let draw = random.next_u64();
                let [a, b] = [draw as u32, (draw >> 32) as u32].map(coordinate);
                pair[..4].copy_from_slice(&(middle[0] + 0.25 * (a - 0.5)).to_le_bytes());
                pair[4..].copy_from_slice(&(middle[1] + 0.25 * (b - 0.5)).to_le_bytes());
            }
        }
        rest.fill(0);
    })
}

/// A center and how many points it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Center {
    /// Where it is.
    pub point: Point,
    /// How many points it stands for.
    pub weight: f32,
}

/// The centers of the stream, found by so many threads.
///
/// # Errors
/// When the input holds no point, or is not aligned as numbers are.
pub fn streamcluster(input: &[u8], threads: NonZeroUsize) -> Result<Vec<Center>, SuiteError> {
    let points = points(input)?;
    let chunk = points.len().div_ceil(CHUNKS);
    let mut random = random(points.len() as u64, 0);
    let mut centers: Vec<Center> = Vec::new();
    for points in points.chunks(chunk) {
        let weights = vec![1.0; points.len()];
        centers.extend(local_search(points, &weights, threads, &mut random));
    }
    let (points, weights): (Vec<Point>, Vec<f32>) = centers.iter().map(|center| (center.point, center.weight)).unzip();
    Ok(local_search(&points, &weights, threads, &mut random))
}

/// The checksum of [`streamcluster`].
///
/// # Errors
/// As [`streamcluster`].
pub fn run(input: &[u8], threads: NonZeroUsize) -> Result<u64, SuiteError> {
    let mut digest = Digest::new();
    for center in streamcluster(input, threads)? {
        center.point.iter().for_each(|coordinate| digest.word(u64::from(coordinate.to_bits())));
        digest.word(u64::from(center.weight.to_bits()));
    }
    Ok(digest.finish())
}

fn points(input: &[u8]) -> Result<&[Point], SuiteError> {
    let whole = input.len() / POINT_BYTES * POINT_BYTES;
    // SAFETY: every pattern of bits is an f32, and `Point` is an array of them without padding.
    let (before, points, _) = unsafe { input[..whole].align_to::<Point>() };
    if points.is_empty() || !before.is_empty() {
        let found = "no whole point of 128 numbers, aligned".to_owned();
        return Err(SuiteError::Input { program: "streamcluster".to_owned(), found });
    }
    Ok(points)
}

/// Centers of weighted points, by local search on a team of threads made for it.
fn local_search(
    points: &[Point],
    weights: &[f32],
    threads: NonZeroUsize,
    random: &mut Xoshiro256PlusPlus,
) -> Vec<Center> {
    let team = threads.get().min(points.len());
    let search = Search::new(points, weights, team);
    thread::scope(|scope| {
        for id in 1..team {
            let search = &search;
            scope.spawn(move || search.help(id));
        }
        let centers = Leader::new(&search, random).find();
        search.all_do(Task::End);
        centers
    })
}

/// The thread that decides what is tried.
struct Leader<'s, 'a> {
    search: &'s Search<'a>,
    random: &'s mut Xoshiro256PlusPlus,
    /// The point at the center of each slot; `None` where the slot is free.
    centers: Vec<Option<usize>>,
    /// What a center costs, in units, and the range that the right price lies in.
    price: i64,
    cheapest: i64,
    dearest: i64,
    /// What all points and all centers cost together, in units.
    cost: i64,
}

impl<'s, 'a> Leader<'s, 'a> {
    fn new(search: &'s Search<'a>, random: &'s mut Xoshiro256PlusPlus) -> Self {
        Self { search, random, centers: Vec::new(), price: 0, cheapest: 0, dearest: 0, cost: 0 }
    }

    /// Looks for the price at which about as many centers pay as are wanted (PARSEC: pkmedian).
    fn find(mut self) -> Vec<Center> {
        if self.search.points.len() <= MOST {
            return self.every_point();
        }
        self.first_solution();
        let mut feasible = self.feasible();
        loop {
            self.settle(&mut feasible);
            if !self.correct_price() {
                return self.gravity();
            }
        }
    }

    /// Halves the price until enough centers are opened: two tries at each.
    fn first_solution(&mut self) {
        self.dearest = self.total_from_first();
        self.price = self.dearest / 2;
        self.speedy();
        while self.open() < FEWEST && self.dearest > self.cheapest + 1 {
            self.speedy();
            if self.open() < FEWEST {
                self.dearest = self.price;
                self.price = self.cheapest.midpoint(self.dearest);
                self.speedy();
            }
        }
    }

    /// Improves the centers at this price; thoroughly when there are about as many as are wanted.
    fn settle(&mut self, feasible: &mut [usize]) {
        let tries = (ITERATIONS * MOST as f64 * (FEWEST as f64).ln()) as usize;
        self.improve(feasible, tries, 0.1);
        let open = self.open();
        let is_near = open * 10 <= MOST * 11 && open * 10 >= FEWEST * 9;
        if is_near || (open <= MOST + 2 && open + 2 >= FEWEST) {
            self.improve(feasible, tries, 0.001);
        }
    }

    /// Another price where there are too many or too few centers; `false` when there is nothing to correct.
    fn correct_price(&mut self) -> bool {
        let (open, before) = (self.open(), self.price);
        match open {
            FEWEST..=MOST => return false,
            0..FEWEST => self.dearest = before,
            _ => self.cheapest = before,
        }
        self.price = self.cheapest.midpoint(self.dearest);
        self.cost += (self.price - before) * open as i64;
        self.cheapest < self.dearest / 1000 * 999
    }

    fn every_point(&self) -> Vec<Center> {
        let center = |(point, weight): (&Point, &f32)| Center { point: *point, weight: *weight };
        self.search.points.iter().zip(self.search.weights).map(center).collect()
    }

    /// How many centers are open.
    fn open(&self) -> usize {
        self.centers.iter().flatten().count()
    }

    fn points_cost(&self) -> i64 {
        self.search.shares.iter().map(|share| share.lock().expect("nobody panics with it").cost()).sum()
    }

    /// What all points cost when the first is the only center.
    fn total_from_first(&mut self) -> i64 {
        self.search.all_do(Task::Begin { center: 0 });
        self.points_cost()
    }

    /// A first solution: goes through the points in any order and opens a center where one is far from all others, with
    /// the probability of its cost over the price (PARSEC: pspeedy).
    fn speedy(&mut self) {
        let mut order: Vec<usize> = (0..self.search.points.len()).collect();
        shuffle(&mut order, self.random);
        self.centers = vec![Some(order[0])];
        self.search.all_do(Task::Begin { center: order[0] });
        for point in order.into_iter().skip(1) {
            let draw = self.random.next_u64() >> 11;
            let is_opened = draw as f64 / (1u64 << 53) as f64 * (self.price as f64) < self.cost_of(point) as f64;
            if is_opened {
                let slot = self.centers.len() as u32;
                self.centers.push(Some(point));
                self.search.all_do(Task::Join { center: point, slot });
            }
        }
        self.cost = self.points_cost() + self.price * self.open() as i64;
    }

    fn cost_of(&self, point: usize) -> i64 {
        let shares = &self.search.shares;
        // The share that the point is in, or the one before by rounding.
        let mut id = (point * shares.len() / self.search.points.len()).min(shares.len() - 1);
        loop {
            let share = shares[id].lock().expect("nobody panics with it");
            match point.checked_sub(share.first) {
                None => id -= 1,
                Some(index) if index >= share.costs.len() => id += 1,
                Some(index) => return units(share.costs[index]),
            }
        }
    }

    /// Points that may become centers: a few, drawn (PARSEC: selectfeasible_fast).
    fn feasible(&mut self) -> Vec<usize> {
        let many = self.search.points.len();
        let wanted = ((ITERATIONS * FEWEST as f64 * (FEWEST as f64).ln()) as usize).min(many);
        (0..wanted).map(|_| (self.random.next_u64() % many as u64) as usize).collect()
    }

    /// Tries feasible centers until a round of tries gains no more than `least` of the cost (PARSEC: pFL).
    fn improve(&mut self, feasible: &mut [usize], tries: usize, least: f64) {
        loop {
            shuffle(feasible, self.random);
            let gained: i64 = (0..tries).map(|attempt| self.try_center(feasible[attempt % feasible.len()])).sum();
            self.cost -= gained;
            if gained as f64 <= least * self.cost as f64 {
                break;
            }
        }
    }

    /// Opens a center if that pays, and closes those that pay no longer; returns what was gained (PARSEC: pgain).
    fn try_center(&mut self, center: usize) -> i64 {
        let slots = self.centers.len();
        self.search.all_do(Task::Gain { center, slots });
        let (mut gain, mut dearer) = (-self.price, vec![0; slots]);
        for share in &self.search.shares {
            let share = share.lock().expect("nobody panics with it");
            gain += share.saved;
            dearer.iter_mut().zip(&share.dearer).for_each(|(sum, more)| *sum += more);
        }
        // A center pays no longer when its price is more than what its points would pay elsewhere.
        let is_closed = |(slot, more): (&Option<usize>, &i64)| slot.is_some() && self.price > *more;
        let mut closed: Vec<bool> = self.centers.iter().zip(&dearer).map(is_closed).collect();
        gain +=
            closed.iter().zip(&dearer).filter(|(closed, _)| **closed).map(|(_, more)| self.price - more).sum::<i64>();
        if gain <= 0 {
            return 0;
        }
        let slot = self.centers.iter().position(Option::is_none).unwrap_or(slots);
        self.centers.iter_mut().zip(&closed).filter(|(_, closed)| **closed).for_each(|(slot, _)| *slot = None);
        self.centers.resize(self.centers.len().max(slot + 1), None);
        closed.resize(self.centers.len(), false);
        self.centers[slot] = Some(center);
        self.search.all_do(Task::Move { center, slot: slot as u32, closed });
        gain
    }

    /// The centers, each moved to the middle of its points (PARSEC: contcenters, copycenters).
    fn gravity(&self) -> Vec<Center> {
        let mut sums = vec![([0.0f64; DIMENSIONS], 0.0f64); self.centers.len()];
        for share in &self.search.shares {
            let share = share.lock().expect("nobody panics with it");
            for (index, slot) in share.slots.iter().enumerate() {
                let (sum, total) = &mut sums[*slot as usize];
                let weight = f64::from(self.search.weights[share.first + index]);
                let point = &self.search.points[share.first + index];
                sum.iter_mut().zip(point).for_each(|(sum, coordinate)| *sum += weight * f64::from(*coordinate));
                *total += weight;
            }
        }
        let center = |(sum, total): &([f64; DIMENSIONS], f64)| Center {
            point: std::array::from_fn(|axis| (sum[axis] / total) as f32),
            weight: *total as f32,
        };
        sums.iter().filter(|(_, total)| *total > 0.0).map(center).collect()
    }
}

/// Fisher and Yates' shuffle.
fn shuffle(items: &mut [usize], random: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::team::distance;
    use super::*;
    use crate::programs::{generate, threads};

    /// A stream of so many points, aligned.
    fn stream(seed: u64, many: usize) -> Vec<f32> {
        let bytes = generate(fill, seed, many * POINT_BYTES);
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }

    fn as_bytes(numbers: &[f32]) -> &[u8] {
        // SAFETY: numbers are plain bytes, and four times as many.
        unsafe { numbers.align_to::<u8>() }.1
    }

    fn cost(points: &[f32], centers: &[Center]) -> f64 {
        let far = |point: &[f32], center: &Center| {
            point.iter().zip(&center.point).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
        };
        let nearest = |point| centers.iter().map(|center| far(point, center)).fold(f64::INFINITY, f64::min);
        points.chunks(DIMENSIONS).map(nearest).sum()
    }

    #[test]
    fn centers_are_those_the_points_were_made_around() {
        let points = stream(7, 2000);
        let found = streamcluster(as_bytes(&points), threads(2)).unwrap();
        assert!((FEWEST..=MOST + 2).contains(&found.len()), "{} centers", found.len());
        assert_eq!(found.iter().map(|center| center.weight).sum::<f32>(), 2000.0);
        // Noise alone: each coordinate is within 0.125 of its center's, a variance of 1/192.
        let noise = 2000.0 * DIMENSIONS as f64 / 192.0;
        assert!(cost(&points, &found) < 1.6 * noise, "{} of {noise}", cost(&points, &found));
    }

    #[test]
    fn any_number_of_threads_finds_the_same() {
        for many in [3, 25, 1500] {
            let points = stream(5, many);
            let one = streamcluster(as_bytes(&points), threads(1)).unwrap();
            for team in [2, 3, 7] {
                assert_eq!(
                    streamcluster(as_bytes(&points), threads(team)).unwrap(),
                    one,
                    "{team} threads, {many} points"
                );
            }
        }
    }

    #[test]
    fn costs_are_what_a_plain_loop_says() {
        let points = stream(5, 2);
        let (a, b) = points.split_at(DIMENSIONS);
        let plain: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let ours = distance(a.try_into().unwrap(), b.try_into().unwrap());
        assert!((f64::from(ours) - plain).abs() < 1e-4 * plain);
    }

    #[test]
    fn an_empty_stream_is_refused() {
        assert!(run(&[0; POINT_BYTES - 1], threads(1)).is_err());
    }
}
