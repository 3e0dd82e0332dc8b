//! Caches by working set: how much of whose memory each private cache and each last-level cache holds.
//!
//! A *working set* is memory that code goes through again and again. Code that runs comes to lines of it at a rate, evenly
//! over the whole; what of it a cache holds is found there, the rest is missed and comes in. What comes in takes free room
//! first and then displaces what the cache holds of other sets, each in proportion. A set that is larger than a cache goes on
//! missing, and displaces its own lines like others'. A line that another CPU has written is lost here; lines that are written
//! are as evenly spread as those that are touched.
//!
//! A miss of the private cache asks the last-level cache, which is reckoned alike; what that misses comes from the
//! last-level cache that had the set last, as far as that one holds it, and else from memory.
//!
//! No line is an object: a touch is a handful of operations, whatever the sizes. Displacement is one factor a cache, which a
//! set's own share is brought up to when somebody looks at it (Denning, "The Working Set Model for Program Behavior", 1968;
//! Thiebaut and Stone, "Footprints in the Cache", ACM TOCS 5(4), 1987, for the refill of a footprint).

use super::lines::{ByDistance, Cause};
use crate::engine::{Ps, from_ns};
use muster_model::{Distance, ModelError, Profile, Topology};

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// What a line of a stream takes where the profile does not say: 5 GB/s a core, assumed.
const STREAM_LINE_NS: f64 = 12.8;
/// A cache's factor is brought back to 1 when it has become smaller than this.
const SMALLEST_FACTOR: f64 = 1e-9;

/// Fewer touches of a set than this are reckoned together with those that follow.
const FEW: f64 = 128.0;

/// Number of a working set.
pub type SetId = u32;

/// What misses cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CachePrices {
    /// A line from the last-level cache.
    llc: Ps,
    /// A line from memory.
    memory: Ps,
    /// A line of a stream that the prefetcher follows.
    stream: Ps,
    /// A line from another CPU's caches, by distance.
    line: ByDistance,
}

/// What filling caches took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filling {
    /// From the CPU's own last-level cache and from memory.
    pub near: Ps,
    /// From caches of other CPUs.
    pub moved: Ps,
}

impl std::ops::AddAssign for Filling {
    fn add_assign(&mut self, other: Self) {
        self.near += other.near;
        self.moved += other.moved;
    }
}

impl Filling {
    /// All of it.
    pub fn total(self) -> Ps {
        self.near + self.moved
    }
}

/// Misses of one level, in lines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Misses {
    /// All, by cause (in the order of [`Cause::ALL`]).
    pub all: [f64; Cause::ALL.len()],
    /// Of these, lines that another CPU had written.
    pub coherence: [f64; Cause::ALL.len()],
    /// Of these, lines that others had displaced.
    pub conflict: [f64; Cause::ALL.len()],
}

/// One cache.
#[derive(Debug, Clone)]
struct Cache {
    /// In lines, as all that follows.
    capacity: f64,
    used: f64,
    /// The product of all factors by which what it held was displaced, ...
    kept: f64,
    /// ... brought back to 1 so often.
    epoch: u32,
}

/// What one cache holds of one set.
#[derive(Debug, Clone, Copy)]
struct Place {
    cache: u32,
    epoch: u32,
    held: f64,
    /// The cache's factor at that time.
    kept: f64,
    /// Lines that CPUs of this cache have written, and others up to the last look.
    own_writes: f64,
    seen_writes: f64,
    /// Lines that were held and are not fetched again yet: written elsewhere, displaced.
    stale: f64,
    swept: f64,
}

#[derive(Debug, Clone)]
struct Set {
    lines: f64,
    per_line: f64,
    /// Share of touched lines that are written.
    writes: f64,
    /// Lines written so far, by anybody.
    written: f64,
    /// Touches that were not reckoned yet, because they were so few.
    untold: f64,
    /// The private and the last-level cache that had it last, and their places; the last-level cache before that.
    at: [u32; 2],
    here: [u32; 2],
    before: u32,
    /// Many CPUs go through it.
    is_shared: bool,
    /// Where it is: one for each cache if it is shared, else only where it has been.
    places: Vec<Place>,
}

/// What one look at a cache found.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    misses: f64,
    /// How many lines of the set were not there.
    missing: f64,
    coherence: f64,
    conflict: f64,
}

/// All caches of a machine, and what they hold.
#[derive(Debug, Clone)]
pub struct Caches {
    /// The private ones first, then the last-level ones.
    caches: Vec<Cache>,
    /// By CPU, its private and its last-level cache.
    of_cpu: Vec<[u32; 2]>,
    /// By cache, the node that it is in.
    node: Vec<u32>,
    sets: Vec<Set>,
    prices: CachePrices,
    /// Whether the private ones are the second level, and not the last-level ones.
    private_is_l2: bool,
    misses: [Misses; 2],
}

impl CachePrices {
    /// Takes them out of a profile whose last-level cache is of level `llc`; lines move at `line`.
    ///
    /// # Errors
    /// When the profile lacks one.
    fn new(profile: &Profile, llc: u32, line: ByDistance) -> Result<Self, ModelError> {
        Ok(Self {
            llc: from_ns(profile.require_ns(&format!("cache.l{llc}"))?),
            memory: from_ns(profile.require_ns("memory.latency")?),
            stream: from_ns(profile.price_ns("sim.cpu.stream-line").unwrap_or(STREAM_LINE_NS)),
            line,
        })
    }
}

/// The lesser of two numbers that are numbers: [`f64::min`] looks for others.
#[inline]
fn least(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

impl Cache {
    fn new(bytes: u64) -> Self {
        Self { capacity: (bytes / LINE_BYTES) as f64, used: 0.0, kept: 1.0, epoch: 0 }
    }

    /// What is left of what a place held.
    #[inline]
    fn left(&self, place: &Place) -> f64 {
        match self.epoch - place.epoch {
            0 if self.kept == place.kept => place.held,
            0 => place.held * (self.kept / place.kept),
            1 => place.held * (self.kept * SMALLEST_FACTOR / place.kept),
            _ => 0.0,
        }
    }

    /// So many lines come in besides `own`, which stay; what part of the others does.
    #[inline]
    fn insert(&mut self, lines: f64, own: f64) -> f64 {
        let excess = self.used + lines - self.capacity;
        if excess <= 0.0 {
            self.used += lines;
            return 1.0;
        }
        self.used = self.capacity;
        let others = self.capacity - own - (lines - excess);
        let keeps = 1.0 - excess / others;
        if keeps > 0.0 {
            self.kept *= keeps;
            if self.kept < SMALLEST_FACTOR {
                self.kept /= SMALLEST_FACTOR;
                self.epoch += 1;
            }
        } else {
            self.epoch += 2;
            self.kept = 1.0;
        }
        keeps.max(0.0)
    }

    /// Whether nothing has changed here since a place was looked at that holds all of its set.
    #[inline]
    fn has_all(&self, place: &Place, lines: f64) -> bool {
        self.kept == place.kept && self.epoch == place.epoch && place.held + 1.0 > lines
    }

    /// Brings a place up to date; what it holds.
    #[inline]
    fn look(&mut self, place: &mut Place, lines: f64, written: f64) -> f64 {
        let held = self.left(place);
        place.swept += place.held - held;
        let foreign = written - place.own_writes;
        if foreign <= place.seen_writes {
            return held;
        }
        let lost = held * ((foreign - place.seen_writes) / lines).min(1.0);
        place.seen_writes = foreign;
        place.stale += lost;
        self.used -= lost;
        held - lost
    }

    /// Of a set of which this cache holds what `place` says, a `part` of the lines that it may miss are touched.
    #[inline]
    fn touch(&mut self, place: &mut Place, (lines, written): (f64, f64), touches: f64, part: f64) -> Look {
        let mut held = self.look(place, lines, written);
        let missing = lines - held;
        let mut found = Look::default();
        if missing >= 1.0 {
            let once = least(part, 1.0);
            let fill = least(missing * once, touches);
            let now = least(held + fill, self.capacity);
            let sweeps = least((lines - now) * part, touches);
            let misses = if sweeps > fill { sweeps } else { fill };
            found = place.missed(misses, missing, once);
            // What fits is used again before it is the oldest; what does not displaces itself as well.
            held = if lines <= self.capacity {
                self.insert(now - held, held);
                now
            } else {
                least(held * self.insert(misses, 0.0) + misses, self.capacity)
            };
        }
        (place.held, place.kept, place.epoch) = (held, self.kept, self.epoch);
        found
    }
}

impl Place {
    fn new(cache: u32, at: &Cache) -> Self {
        let (kept, epoch) = (at.kept, at.epoch);
        Self { cache, held: 0.0, kept, epoch, own_writes: 0.0, seen_writes: 0.0, stale: 0.0, swept: 0.0 }
    }

    /// So many misses where so much is missing, of which a part is fetched again; how many for what reason.
    #[inline]
    fn missed(&mut self, misses: f64, missing: f64, part: f64) -> Look {
        let (coherence, conflict) = (self.stale * part, self.swept * part);
        self.stale -= coherence;
        self.swept -= conflict;
        Look { misses, missing, coherence, conflict }
    }
}

impl Set {
    /// Its places at a private cache and at a last-level one, where a CPU goes through it now.
    #[inline]
    fn places(&mut self, at: [u32; 2], caches: &[Cache]) -> [usize; 2] {
        if self.at[0] != at[0] || self.at[1] != at[1] {
            self.move_to(at, caches);
        }
        self.here.map(|place| place as usize)
    }

    #[inline(never)]
    fn move_to(&mut self, at: [u32; 2], caches: &[Cache]) {
        if self.at[1] != at[1] {
            self.before = self.at[1];
        }
        self.at = at;
        if self.is_shared {
            self.here = at;
            return;
        }
        self.places.retain(|place| at.contains(&place.cache) || caches[place.cache as usize].left(place) >= 1.0);
        self.here = at.map(|cache| self.place(cache, caches) as u32);
    }

    fn place(&mut self, cache: u32, caches: &[Cache]) -> usize {
        self.places.iter().position(|place| place.cache == cache).unwrap_or_else(|| {
            let place = Place { seen_writes: self.written, ..Place::new(cache, &caches[cache as usize]) };
            self.places.push(place);
            self.places.len() - 1
        })
    }

    /// What part of it a cache holds.
    fn share_at(&self, cache: u32, caches: &[Cache]) -> f64 {
        let place = if self.is_shared {
            self.places.get(cache as usize)
        } else {
            self.places.iter().find(|place| place.cache == cache)
        };
        place.map_or(0.0, |place| (caches[cache as usize].left(place) / self.lines).min(1.0))
    }
}

impl Caches {
    /// The caches of the first `cpus` CPUs of a machine, empty; lines move between CPUs at `line`.
    ///
    /// # Errors
    /// When the profile does not say how large they are or what they cost.
    pub fn new(profile: &Profile, topology: &Topology, cpus: usize, line: ByDistance) -> Result<Self, ModelError> {
        let (private, llc) = levels(profile)?;
        let mut this = Self {
            caches: Vec::new(),
            of_cpu: Vec::with_capacity(cpus),
            node: Vec::new(),
            sets: Vec::new(),
            prices: CachePrices::new(profile, llc.level, line)?,
            private_is_l2: private.level == 2,
            misses: [Misses::default(); 2],
        };
        let cpu = |number| topology.cpu(number).expect("the CPUs are the topology's first");
        let cores = this.add(cpus, private.size_bytes, |number| (cpu(number).core, cpu(number).node));
        let domains = this.add(cpus, llc.size_bytes, |number| (cpu(number).llc, cpu(number).node));
        // A machine that is scaled out within one domain has a cache that is scaled out with it.
        for domain in cores.iter().max().map_or(0, |&last| last as usize + 1)..this.caches.len() {
            let sharing = domains.iter().filter(|&&of| of as usize == domain).count() as f64;
            this.caches[domain].capacity *= (sharing / f64::from(llc.shared_by.max(1))).max(1.0);
        }
        this.of_cpu = cores.into_iter().zip(domains).map(|(core, domain)| [core, domain]).collect();
        Ok(this)
    }

    /// A cache for each core or domain that there is; by CPU, its number.
    fn add(&mut self, cpus: usize, bytes: u64, of: impl Fn(usize) -> (u32, u32)) -> Vec<u32> {
        let mut numbers = std::collections::BTreeMap::new();
        let mut number = |cpu: usize| {
            let (key, node) = of(cpu);
            *numbers.entry(key).or_insert_with(|| {
                self.caches.push(Cache::new(bytes));
                self.node.push(node);
                self.caches.len() as u32 - 1
            })
        };
        (0..cpus).map(&mut number).collect()
    }

    /// A working set that no cache holds anything of. `is_shared`: many CPUs go through it at a time.
    pub fn add_set(&mut self, bytes: u64, written_percent: u64, is_shared: bool) -> SetId {
        let at = |(number, cache): (usize, &Cache)| Place::new(number as u32, cache);
        let places = if is_shared { self.caches.iter().enumerate().map(at).collect() } else { Vec::new() };
        let lines = bytes.div_ceil(LINE_BYTES) as f64;
        self.sets.push(Set {
            lines,
            per_line: 1.0 / lines,
            writes: written_percent as f64 / 100.0,
            written: 0.0,
            untold: 0.0,
            at: [u32::MAX; 2],
            here: [u32::MAX; 2],
            before: u32::MAX,
            is_shared,
            places,
        });
        self.sets.len() as SetId - 1
    }

    /// A set has so many lines from now on; of those that caches hold, what is too much goes.
    pub fn resize(&mut self, id: SetId, lines: u64) {
        let set = &mut self.sets[id as usize];
        set.lines = lines.max(1) as f64;
        set.per_line = 1.0 / set.lines;
        for place in &mut set.places {
            let cache = &mut self.caches[place.cache as usize];
            let held = cache.look(place, set.lines, set.written);
            let kept = least(held, set.lines);
            cache.used -= held - kept;
            (place.held, place.kept, place.epoch) = (kept, cache.kept, cache.epoch);
        }
    }

    /// Code on a CPU comes to `touches` lines of a set, one after the other; what fetching those that are missing takes.
    #[inline]
    pub fn touch(&mut self, cpu: usize, id: SetId, touches: f64, cause: Cause) -> Filling {
        let at = self.of_cpu[cpu];
        let set = &mut self.sets[id as usize];
        set.untold += touches;
        if set.untold < FEW {
            return Filling::default();
        }
        let touches = std::mem::take(&mut set.untold);
        let stays = set.at[0] == at[0];
        let [private, llc] = set.places(at, &self.caches);
        if set.writes > 0.0 {
            let written = touches * set.writes;
            set.written += written;
            set.places[private].own_writes += written;
            set.places[llc].own_writes += written;
        }
        let nobody_else_writes = set.writes == 0.0 || (stays && !set.is_shared);
        if nobody_else_writes && self.caches[at[0] as usize].has_all(&set.places[private], set.lines) {
            return Filling::default();
        }
        let size = (set.lines, set.written);
        let first = self.caches[at[0] as usize].touch(&mut set.places[private], size, touches, touches * set.per_line);
        if first.misses == 0.0 {
            return Filling::default();
        }
        // What the private cache has, the last-level cache is not asked for.
        let second =
            self.caches[at[1] as usize].touch(&mut set.places[llc], size, first.misses, first.misses / first.missing);
        self.misses[0].count(first, cause);
        self.misses[1].count(second, cause);
        self.fetch(id, first, second)
    }

    /// What it takes to fetch what a set's private cache, and of that what its last-level cache missed.
    fn fetch(&self, id: SetId, first: Look, second: Look) -> Filling {
        let (prices, set) = (&self.prices, &self.sets[id as usize]);
        let here = (first.misses - second.misses).max(0.0);
        // What another core of this domain has written is there.
        let written = first.coherence.min(here);
        let mut near = (here - written) * prices.llc as f64;
        let mut moved = written * prices.line[Distance::SameLlc as usize] as f64;
        if second.misses > 0.0 {
            let there = if set.before == u32::MAX { 0.0 } else { set.share_at(set.before, &self.caches) };
            near += second.misses * (1.0 - there) * prices.memory as f64;
            if there > 0.0 {
                let same_node = self.node[set.before as usize] == self.node[set.at[1] as usize];
                let distance = if same_node { Distance::OtherLlc } else { Distance::OtherNode };
                moved += second.misses * there * prices.line[distance as usize] as f64;
            }
        }
        Filling { near: near as Ps, moved: moved as Ps }
    }

    /// A CPU goes once through lines that no cache holds, and that nobody comes back to; what fetching them takes.
    pub fn stream(&mut self, cpu: usize, lines: u32, cause: Cause) -> Filling {
        let all = Look { misses: f64::from(lines), ..Look::default() };
        for (level, cache) in self.of_cpu[cpu].into_iter().enumerate() {
            self.caches[cache as usize].insert(all.misses, 0.0);
            self.misses[level].count(all, cause);
        }
        Filling { near: Ps::from(lines) * self.prices.stream, moved: 0 }
    }

    /// Misses of the second level.
    pub fn l2_misses(&self) -> &Misses {
        &self.misses[usize::from(!self.private_is_l2)]
    }

    /// Misses of the last-level caches.
    pub fn llc_misses(&self) -> &Misses {
        &self.misses[1]
    }
}

impl Misses {
    fn count(&mut self, look: Look, cause: Cause) {
        self.all[cause as usize] += look.misses;
        self.coherence[cause as usize] += look.coherence;
        self.conflict[cause as usize] += look.conflict;
    }
}

/// The private cache that is largest, and the last-level one.
fn levels(profile: &Profile) -> Result<(&muster_model::profile::Cache, &muster_model::profile::Cache), ModelError> {
    let mut caches: Vec<_> = profile.platform.caches.iter().collect();
    caches.sort_by_key(|cache| cache.level);
    let [.., private, llc] = caches[..] else {
        let found = format!("{} sizes of caches", caches.len());
        let allowed = "two levels or more in `platform.caches`, where a workload states working sets";
        return Err(ModelError::new(format!("profile `{}`", profile.name), found, allowed));
    };
    Ok((private, llc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LLC: u64 = 6 << 20;
    const L2: u64 = 512 << 10;
    const L2_LINES: f64 = (L2 / LINE_BYTES) as f64;
    const LLC_LINES: f64 = (LLC / LINE_BYTES) as f64;

    fn opteron() -> Profile {
        Profile::from_toml(include_str!("../../../../machines/ixen-opteron48.toml"), "machine").unwrap()
    }

    /// Two sockets of three cores.
    fn caches() -> Caches {
        let topology = Topology::regular(2, 1, 3, 1).unwrap();
        Caches::new(&opteron(), &topology, 6, [0, 47_000, 47_000, 226_000, 226_000]).unwrap()
    }

    fn misses(caches: &Caches) -> [f64; 2] {
        [caches.l2_misses(), caches.llc_misses()].map(|misses| misses.all.iter().sum())
    }

    /// What touching costs in misses of both levels.
    fn touch(caches: &mut Caches, cpu: usize, set: SetId, touches: f64) -> [f64; 2] {
        let before = misses(caches);
        caches.touch(cpu, set, touches, Cause::User);
        let after = misses(caches);
        [after[0] - before[0], after[1] - before[1]]
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1.0 + 1e-6 * a.abs().max(b.abs())
    }

    #[test]
    fn a_set_that_fits_is_fetched_once_from_memory() {
        let mut caches = caches();
        let set = caches.add_set(256 << 10, 0, false);
        let first = caches.touch(0, set, 4096.0, Cause::Guest);
        assert_eq!(first, Filling { near: 4096 * 113_000, moved: 0 });
        assert_eq!(caches.touch(0, set, 1e6, Cause::Guest), Filling::default());
        assert_eq!(caches.l2_misses().all, [0.0, 4096.0, 0.0, 0.0]);
        assert_eq!(caches.llc_misses().conflict, [0.0; 4]);
    }

    #[test]
    fn what_was_displaced_comes_from_the_last_level_cache() {
        let mut caches = caches();
        let (one, other) = (caches.add_set(L2, 0, false), caches.add_set(L2, 0, false));
        touch(&mut caches, 0, one, L2_LINES);
        touch(&mut caches, 0, other, L2_LINES / 2.0);
        let again = caches.touch(0, one, L2_LINES, Cause::User);
        assert_eq!(again.moved, 0);
        assert!(near(again.near as f64 / 23_300.0, L2_LINES / 2.0), "{again:?}");
        assert!(near(caches.l2_misses().conflict[0], L2_LINES / 2.0), "{:?}", caches.l2_misses());
        assert!(near(misses(&caches)[1], 1.5 * L2_LINES), "the last-level cache holds both");
    }

    #[test]
    fn a_set_that_is_too_large_goes_on_missing() {
        let mut caches = caches();
        let set = caches.add_set(4 * L2, 0, false);
        touch(&mut caches, 0, set, 4.0 * L2_LINES);
        assert!(near(touch(&mut caches, 0, set, 1000.0)[0], 750.0));
        assert_eq!(touch(&mut caches, 0, set, 1000.0)[1], 0.0, "it fits the last-level cache");
    }

    #[test]
    fn a_set_that_moves_comes_from_where_it_was() {
        let mut caches = caches();
        let set = caches.add_set(128 << 10, 100, false);
        touch(&mut caches, 0, set, 2048.0);
        let near_core = caches.touch(1, set, 2048.0, Cause::User);
        assert_eq!(near_core, Filling { near: 2048 * 23_300, moved: 0 });
        let far_core = caches.touch(3, set, 2048.0, Cause::User);
        assert_eq!(far_core, Filling { near: 0, moved: 2048 * 226_000 });
        let back = caches.touch(0, set, 2048.0, Cause::User);
        assert_eq!(back, Filling { near: 0, moved: 2048 * 226_000 }, "it was written there");
        assert_eq!(caches.llc_misses().coherence[0], 2048.0);
    }

    #[test]
    fn what_others_only_read_stays() {
        let mut caches = caches();
        let set = caches.add_set(128 << 10, 0, true);
        for cpu in [0, 3] {
            touch(&mut caches, cpu, set, 2048.0);
        }
        assert_eq!(touch(&mut caches, 0, set, 1e5), [0.0, 0.0]);
        let written = caches.add_set(128 << 10, 50, true);
        for cpu in [0, 3] {
            touch(&mut caches, cpu, written, 2048.0);
        }
        let [private, domain] = touch(&mut caches, 0, written, 2048.0);
        assert!(
            near(private, 1024.0) && near(domain, 1024.0),
            "what was written elsewhere is not here: {private} {domain}"
        );
    }

    #[test]
    fn a_stream_displaces_and_is_never_found_again() {
        let mut caches = caches();
        let set = caches.add_set(L2 / 2, 0, false);
        touch(&mut caches, 0, set, L2_LINES);
        let took = caches.stream(0, 64, Cause::User);
        assert_eq!(took.near, 64 * 12_800);
        for _ in 0..1000 {
            caches.stream(0, 64, Cause::User);
        }
        let [private, domain] = touch(&mut caches, 0, set, L2_LINES);
        assert!(private > 0.9 * L2_LINES / 2.0 && domain < private, "{private} {domain}");
    }

    #[test]
    fn a_machine_that_does_not_say_is_named() {
        let topology = Topology::regular(1, 1, 2, 1).unwrap();
        let new = |profile: &Profile| Caches::new(profile, &topology, 2, [0; 5]).unwrap_err().to_string();
        let mut profile = opteron();
        profile.prices.remove("memory.latency");
        assert!(new(&profile).contains("memory.latency"));
        profile.platform.caches.truncate(1);
        assert!(new(&profile).contains("1 sizes of caches"), "{}", new(&profile));
    }

    #[test]
    fn a_domain_that_was_scaled_out_has_a_larger_cache() {
        let topology = Topology::regular(1, 1, 12, 1).unwrap();
        let caches = Caches::new(&opteron(), &topology, 12, [0; 5]).unwrap();
        assert_eq!(caches.caches.last().unwrap().capacity, 2.0 * LLC_LINES);
    }

    proptest! {
        /// No cache ever holds more than fits, and no set more of itself than there is; misses of the last-level cache are
        /// among those of the private one.
        #[test]
        fn caches_hold_what_fits(
            sizes in proptest::collection::vec((64u64..16 << 20, 0u64..=100, any::<bool>()), 1..6),
            touches in proptest::collection::vec((0usize..6, 0usize..6, 0.0f64..50_000.0, 0u32..3_000), 1..200)
        ) {
            let mut caches = caches();
            let sets: Vec<SetId> = sizes.iter().map(|&(size, written, all)| caches.add_set(size, written, all)).collect();
            for (cpu, set, lines, streamed) in touches {
                let [private, domain] = touch(&mut caches, cpu, sets[set % sets.len()], lines);
                prop_assert!(private <= lines + FEW && domain <= private + 1e-6, "{private} {domain} of {lines}");
                caches.stream(cpu, streamed, Cause::User);
                for (number, cache) in caches.caches.iter().enumerate() {
                    let holds = |set: &Set| set.share_at(number as u32, &caches.caches) * set.lines;
                    let held: f64 = caches.sets.iter().map(holds).sum();
                    prop_assert!(held <= cache.used * (1.0 + 1e-6) + 1e-3, "{held} of {}", cache.used);
                    prop_assert!(cache.used <= cache.capacity && cache.used >= -1e-6);
                }
            }
            for level in [caches.l2_misses(), caches.llc_misses()] {
                for cause in 0..4 {
                    prop_assert!(level.coherence[cause] + level.conflict[cause] <= level.all[cause] + 1e-3);
                }
            }
        }

        /// A lone set that fits is missed once a line, however it is touched.
        #[test]
        fn a_lone_set_that_fits_never_misses_twice(
            size in 64u64..=L2, cpu in 0usize..6, touches in proptest::collection::vec(0.0f64..5_000.0, 1..300)
        ) {
            let mut caches = caches();
            let set = caches.add_set(size, 30, false);
            for lines in touches {
                touch(&mut caches, cpu, set, lines);
            }
            let lines = size.div_ceil(LINE_BYTES) as f64;
            prop_assert!(misses(&caches).iter().all(|&all| all <= lines + 1e-6), "{:?} of {lines}", misses(&caches));
        }

        /// The more others have displaced, the more is missed.
        #[test]
        fn displaced_sets_miss_again(size in 64u64..=L2, first in 0.0f64..10_000.0, more in 0.0f64..10_000.0) {
            let missed = |foreign: f64| {
                let mut caches = caches();
                let (set, other) = (caches.add_set(size, 0, false), caches.add_set(L2, 0, false));
                touch(&mut caches, 0, set, 1e6);
                touch(&mut caches, 0, other, foreign);
                touch(&mut caches, 0, set, 1e6)[0]
            };
            prop_assert!(missed(first + more) >= missed(first) - 1e-6);
        }
    }
}
