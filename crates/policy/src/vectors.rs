//! Which interrupt vector a source gets (Dong et al., "Improving Virtualization Performance and Scalability with Advanced
//! Hardware Accelerations", 2010, section IV.A).
//!
//! A CPU tells 256 vectors apart, of which the architecture and the system keep some. *Global* vectoring gives a source
//! one number on all pCPUs, so that all sources together share those that are left. *Per-pCPU* vectoring names an interrupt by pCPU
//! and number: each pCPU has a remap table of its own. *Hybrid* vectoring keeps level-triggered sources global, whose
//! end of interrupt names the number only, and gives edge-triggered ones, which message-signalled interrupts are, a number on a
//! pCPU.

use muster_model::ModelError;
pub use muster_model::study::Vectoring;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// How many vectors a CPU tells apart.
pub const VECTORS: usize = 256;
/// Interrupt sources of a virtual function of the Intel 82599 (section IV.A).
pub const SOURCES_PER_VF: usize = 3;

/// How a source signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Once each time; so do message-signalled interrupts.
    Edge,
    /// As long as it has something to say.
    Level,
}

/// A source that interrupts; numbered by the caller.
pub type Source = u32;

/// The name under which a source's interrupts arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Vector {
    /// The pCPU to which they go.
    pub pcpu: usize,
    /// The number.
    pub number: u8,
    /// The number means this source on every pCPU, so that it may be sent to another.
    pub is_global: bool,
}

/// The vectors that nobody gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved(Vec<RangeInclusive<u8>>);

impl Reserved {
    /// Those of these ranges.
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<u8>>) -> Self {
        Self(ranges.into_iter().collect())
    }

    fn has(&self, number: u8) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }
}

impl Default for Reserved {
    /// The 32 exceptions of the architecture, and 24 of the highest numbers, which leaves the 200 for devices that the paper
    /// speaks of. Assumed in detail: Xen keeps 0xe0 to 0xef for the legacy controller, 0xf0 to 0xff for its own, and single
    /// ones below.
    fn default() -> Self {
        Self::new([0..=31, 232..=255])
    }
}

/// The vectors of a machine.
#[derive(Debug, Clone)]
pub struct Vectors {
    vectoring: Vectoring,
    /// Numbers that are given out at all, ascending.
    usable: Vec<u8>,
    /// By pCPU: the remap table, by number.
    tables: Vec<Vec<Option<Source>>>,
}

impl Vectors {
    /// The vectors of so many pCPUs, all free.
    ///
    /// # Errors
    /// When there is no pCPU, or every vector is reserved.
    pub fn new(vectoring: Vectoring, pcpus: usize, reserved: &Reserved) -> Result<Self, ModelError> {
        let usable: Vec<u8> = (0..=u8::MAX).filter(|&number| !reserved.has(number)).collect();
        if pcpus == 0 {
            return Err(ModelError::new("pCPUs with interrupt vectors", "0", "1 or more"));
        }
        if usable.is_empty() {
            return Err(ModelError::new("reserved interrupt vectors", "all 256", "at most 255"));
        }
        Ok(Self { vectoring, usable, tables: vec![vec![None; VECTORS]; pcpus] })
    }

    /// How many vectors a pCPU can be given.
    pub fn usable(&self) -> usize {
        self.usable.len()
    }

    /// How many of a pCPU's vectors are free.
    pub fn free_on(&self, pcpu: usize) -> usize {
        self.usable.iter().filter(|&&number| self.is_free(pcpu, number)).count()
    }

    /// Gives `source` a vector on `pcpu`; on the one with the most free ones, the first of equals, if the caller does not care.
    ///
    /// # Errors
    /// When no vector is left for it; the error says how many there were.
    pub fn allocate(&mut self, source: Source, trigger: Trigger, pcpu: Option<usize>) -> Result<Vector, ModelError> {
        let pcpus = self.tables.len();
        if let Some(pcpu) = pcpu.filter(|&pcpu| pcpu >= pcpus) {
            return Err(ModelError::new(
                "pCPU of an interrupt vector",
                pcpu.to_string(),
                format!("0 to {}", pcpus - 1),
            ));
        }
        let most_free = || (0..pcpus).max_by_key(|&pcpu| (self.free_on(pcpu), pcpus - pcpu)).unwrap_or(0);
        let pcpu = pcpu.unwrap_or_else(most_free);
        let is_global = self.is_global(trigger);
        let number = if is_global { self.free_everywhere() } else { self.free_number(pcpu) };
        let number = number.ok_or_else(|| self.exhausted(trigger, pcpu))?;
        for (table, entries) in self.tables.iter_mut().enumerate() {
            if is_global || table == pcpu {
                entries[usize::from(number)] = Some(source);
            }
        }
        Ok(Vector { pcpu, number, is_global })
    }

    /// Takes a vector back.
    ///
    /// # Errors
    /// When it is not given out; nothing changes then.
    pub fn release(&mut self, vector: Vector) -> Result<Source, ModelError> {
        let number = usize::from(vector.number);
        let there = self.source(vector.pcpu, vector.number);
        let is_such = |source: Source| {
            let tables = self.tables.iter().filter(|table| table[number] == Some(source)).count();
            tables == if vector.is_global { self.tables.len() } else { 1 }
        };
        let Some(source) = there.filter(|&source| self.tables.len() == 1 || is_such(source)) else {
            let found = format!("{number} on pCPU {}, which is not given out", vector.pcpu);
            return Err(ModelError::new(
                "interrupt vector to release",
                found,
                "one that was allocated and not released",
            ));
        };
        for (table, entries) in self.tables.iter_mut().enumerate() {
            if vector.is_global || table == vector.pcpu {
                entries[number] = None;
            }
        }
        Ok(source)
    }

    /// Whose interrupt it is that arrives at a pCPU under a number: the remap table's entry.
    pub fn source(&self, pcpu: usize, number: u8) -> Option<Source> {
        self.tables.get(pcpu)?[usize::from(number)]
    }

    fn is_global(&self, trigger: Trigger) -> bool {
        match self.vectoring {
            Vectoring::Global => true,
            Vectoring::PerPcpu => false,
            Vectoring::Hybrid => trigger == Trigger::Level,
        }
    }

    fn is_free(&self, pcpu: usize, number: u8) -> bool {
        self.tables[pcpu][usize::from(number)].is_none()
    }

    /// The lowest number that is free on all pCPUs.
    fn free_everywhere(&self) -> Option<u8> {
        self.usable.iter().copied().find(|&number| (0..self.tables.len()).all(|pcpu| self.is_free(pcpu, number)))
    }

    /// The highest number that is free on a pCPU - where others need one that is free everywhere; else the lowest.
    fn free_number(&self, pcpu: usize) -> Option<u8> {
        let mut numbers = self.usable.iter().copied();
        let is_free = |&number: &u8| self.is_free(pcpu, number);
        if self.vectoring == Vectoring::Hybrid { numbers.rev().find(is_free) } else { numbers.find(is_free) }
    }

    fn exhausted(&self, trigger: Trigger, pcpu: usize) -> ModelError {
        let (usable, reserved) = (self.usable.len(), VECTORS - self.usable.len());
        let each = format!("{usable} of {VECTORS} vectors ({reserved} are reserved)");
        let (whom, allowed) = match (self.is_global(trigger), self.vectoring) {
            (true, Vectoring::Global) => {
                ("on all pCPUs".to_owned(), format!("{usable} sources in all, global vectors"))
            }
            (true, _) => ("free on every pCPU".to_owned(), format!("{usable} sources on a pCPU")),
            (false, _) => (format!("on pCPU {pcpu}"), format!("{usable} sources on a pCPU, another pCPU")),
        };
        let kind = if trigger == Trigger::Edge { "edge" } else { "level" };
        ModelError::new(
            format!("interrupt vector for an {kind}-triggered source"),
            format!("none left {whom} of {each}"),
            allowed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Vectoring; 3] = [Vectoring::Global, Vectoring::PerPcpu, Vectoring::Hybrid];

    fn vectors(vectoring: Vectoring, pcpus: usize) -> Vectors {
        Vectors::new(vectoring, pcpus, &Reserved::default()).unwrap()
    }

    /// How many virtual functions get their vectors, and why the next does not.
    fn vfs(vectoring: Vectoring, pcpus: usize) -> (usize, String) {
        let mut vectors = vectors(vectoring, pcpus);
        for source in 0.. {
            if let Err(error) = vectors.allocate(source, Trigger::Edge, None) {
                return (source as usize / SOURCES_PER_VF, error.to_string());
            }
        }
        unreachable!("vectors run out")
    }

    #[test]
    fn global_vectoring_is_exhausted_at_66_functions_and_the_others_go_with_the_pcpus() {
        let (functions, error) = vfs(Vectoring::Global, 16);
        assert_eq!(functions, 66, "section IV.A");
        assert!(error.contains("none left on all pCPUs of 200 of 256 vectors (56 are reserved)"), "{error}");
        assert_eq!(vfs(Vectoring::Global, 1).0, 66);
        for vectoring in [Vectoring::PerPcpu, Vectoring::Hybrid] {
            let (functions, error) = vfs(vectoring, 16);
            assert_eq!(functions, 16 * 200 / 3);
            assert!(error.contains("200 of 256 vectors"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(Vectors::new(Vectoring::Global, 0, &Reserved::default()).is_err());
        assert!(Vectors::new(Vectoring::Global, 1, &Reserved::new([0..=255])).is_err());
        let mut vectors = vectors(Vectoring::Hybrid, 2);
        let error = vectors.allocate(1, Trigger::Edge, Some(2)).unwrap_err().to_string();
        assert!(error.contains("found 2; allowed: 0 to 1"), "{error}");
        let vector = vectors.allocate(1, Trigger::Level, Some(1)).unwrap();
        assert!(vectors.release(Vector { number: vector.number + 1, ..vector }).is_err());
        assert!(vectors.release(Vector { is_global: false, ..vector }).is_err());
        assert!(vectors.release(Vector { pcpu: 9, ..vector }).is_err());
        assert_eq!(vectors.release(vector), Ok(1));
        assert!(vectors.release(vector).unwrap_err().to_string().contains("not given out"));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Allocate { level: bool, pcpu: Option<usize> },
        Release(prop::sample::Index),
    }

    fn steps(pcpus: usize) -> impl Strategy<Value = Vec<Step>> {
        let allocate =
            (any::<bool>(), proptest::option::of(0..pcpus)).prop_map(|(level, pcpu)| Step::Allocate { level, pcpu });
        let step = prop_oneof![2 => allocate, 1 => any::<prop::sample::Index>().prop_map(Step::Release)];
        proptest::collection::vec(step, 0..300)
    }

    proptest! {
        /// Nobody's interrupts are taken for another's: each pCPU's table names just those that were given a number there, a
        /// reserved one is never given, and who is refused finds nothing free.
        #[test]
        fn a_number_on_a_pcpu_is_one_sources(which in 0usize..3, few in 0u8..12, steps in steps(3)) {
            let reserved = Reserved::new([0..=31, 32 + few..=255]);
            prop_assume!(few > 0);
            let mut vectors = Vectors::new(ALL[which], 3, &reserved).unwrap();
            let mut given: Vec<(Vector, Source)> = Vec::new();
            for (source, step) in steps.into_iter().enumerate() {
                let source = source as Source;
                match step {
                    Step::Allocate { level, pcpu } => {
                        let trigger = if level { Trigger::Level } else { Trigger::Edge };
                        let global = ALL[which] == Vectoring::Global || (ALL[which] == Vectoring::Hybrid && level);
                        match vectors.allocate(source, trigger, pcpu) {
                            Ok(vector) => {
                                prop_assert!(pcpu.is_none_or(|pcpu| pcpu == vector.pcpu));
                                prop_assert_eq!(vector.is_global, global);
                                prop_assert!(!reserved.has(vector.number));
                                given.push((vector, source));
                            }
                            Err(_) if global => {
                                let is_taken = |number| (0..3).any(|pcpu| vectors.source(pcpu, number).is_some());
                                prop_assert!((32..32 + few).all(is_taken));
                            }
                            Err(_) => prop_assert_eq!(pcpu.map_or(0, |pcpu| vectors.free_on(pcpu)), 0),
                        }
                    }
                    Step::Release(index) if !given.is_empty() => {
                        let (vector, source) = given.swap_remove(index.index(given.len()));
                        prop_assert_eq!(vectors.release(vector), Ok(source));
                    }
                    Step::Release(_) => {}
                }
                for pcpu in 0..3 {
                    for number in 0..=u8::MAX {
                        let mut owners = given.iter().filter(|(vector, _)| {
                            vector.number == number && (vector.is_global || vector.pcpu == pcpu)
                        });
                        prop_assert_eq!(vectors.source(pcpu, number), owners.next().map(|&(_, source)| source));
                        prop_assert!(owners.next().is_none());
                    }
                }
            }
        }
    }
}
