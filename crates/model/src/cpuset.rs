//! A set of CPU numbers, and the kernel's list format for it (`0-3,8`).

use crate::ModelError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// CPU numbers at and above this are refused: the largest machine the project speaks of has 1024 CPUs.
pub const MAX_CPUS: usize = 1024;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPU numbers below [`MAX_CPUS`].
///
/// It knows which of its words have bits, and looks at no other: a set is as dear as its CPUs are many.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    /// Bit i says that `words[i]` is not 0.
    used: u16,
    words: [u64; WORDS],
}

const _: () = assert!(WORDS <= u16::BITS as usize);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self { used: 0, words: [0; WORDS] };

    /// The set of CPUs `0..count`.
    ///
    /// # Panics
    /// When `count` is above [`MAX_CPUS`].
    pub fn first(count: usize) -> Self {
        (0..count).collect()
    }

    /// The set of one CPU.
    ///
    /// # Panics
    /// When `cpu` is not below [`MAX_CPUS`].
    #[inline]
    pub fn single(cpu: usize) -> Self {
        let mut set = Self::EMPTY;
        set.insert(cpu);
        set
    }

    /// Adds `cpu`.
    ///
    /// # Panics
    /// When `cpu` is not below [`MAX_CPUS`].
    #[inline]
    pub fn insert(&mut self, cpu: usize) {
        self.words[cpu / 64] |= 1 << (cpu % 64);
        self.used |= 1 << (cpu / 64);
    }

    /// Takes `cpu` out; nothing happens when it was not in.
    #[inline]
    pub fn remove(&mut self, cpu: usize) {
        if cpu < MAX_CPUS {
            let word = &mut self.words[cpu / 64];
            *word &= !(1 << (cpu % 64));
            self.used &= !(u16::from(*word == 0) << (cpu / 64));
        }
    }

    /// Whether `cpu` is in the set.
    #[inline]
    pub fn contains(&self, cpu: usize) -> bool {
        cpu < MAX_CPUS && self.words[cpu / 64] & (1 << (cpu % 64)) != 0
    }

    /// How many CPUs are in the set.
    #[inline]
    pub fn len(&self) -> usize {
        bits(self.used).map(|i| self.words[i].count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The CPUs in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        bits(self.used).flat_map(|index| bits(self.words[index]).map(move |bit| index * 64 + bit))
    }

    /// The first CPU of the set after `cpu`, going on from the lowest when there is none; `None` when the set is empty.
    #[inline]
    pub fn next_after(&self, cpu: usize) -> Option<usize> {
        let (index, bit) = ((cpu + 1) / 64, (cpu + 1) % 64);
        let at = |index: usize, word: u64| Some(index * 64 + word.trailing_zeros() as usize);
        if let Some(&word) = self.words.get(index)
            && word >> bit != 0
        {
            return at(index, word >> bit << bit);
        }
        let above = if index + 1 < WORDS { self.used >> (index + 1) << (index + 1) } else { 0 };
        let next = bits(above).next().or_else(|| bits(self.used).next())?;
        at(next, self.words[next])
    }

    /// The CPUs in both sets.
    #[inline]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::of_words(self.used & other.used, |i| self.words[i] & other.words[i])
    }

    /// The CPUs in either set.
    #[inline]
    pub fn union(&self, other: &Self) -> Self {
        Self::of_words(self.used | other.used, |i| self.words[i] | other.words[i])
    }

    /// The CPUs of this set that are not in `other`.
    #[inline]
    pub fn difference(&self, other: &Self) -> Self {
        Self::of_words(self.used, |i| self.words[i] & !other.words[i])
    }

    /// Whether every CPU of this set is in `other`.
    #[inline]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.used & !other.used == 0 && bits(self.used).all(|i| self.words[i] & !other.words[i] == 0)
    }

    /// Whether no CPU is in both sets.
    #[inline]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        bits(self.used & other.used).all(|i| self.words[i] & other.words[i] == 0)
    }

    /// The set whose words are `word` where `among` has bits.
    #[inline]
    fn of_words(among: u16, word: impl Fn(usize) -> u64) -> Self {
        let mut set = Self::EMPTY;
        for i in bits(among) {
            set.words[i] = word(i);
            set.used |= u16::from(set.words[i] != 0) << i;
        }
        set
    }
}

/// The numbers of the bits that are set, ascending.
#[inline]
fn bits(word: impl Into<u64>) -> impl Iterator<Item = usize> {
    let mut rest: u64 = word.into();
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            bit
        })
    })
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl PartialEq for CpuSet {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.used == other.used && bits(self.used).all(|i| self.words[i] == other.words[i])
    }
}

impl Eq for CpuSet {}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(start) = cpus.next() {
            let mut end = start;
            while cpus.peek() == Some(&(end + 1)) {
                end += 1;
                cpus.next();
            }
            if start == end {
                write!(f, "{separator}{start}")?;
            } else {
                write!(f, "{separator}{start}-{end}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl FromStr for CpuSet {
    type Err = ModelError;

    /// Reads the kernel's list format (cpuset(7), "List format"); an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let wrong = || {
            ModelError::new(
                "CPU list",
                format!("`{text}`"),
                format!("numbers and ranges below {MAX_CPUS}, such as 0-3,8"),
            )
        };
        let mut set = Self::EMPTY;
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: usize = low.trim().parse().map_err(|_| wrong())?;
            let high: usize = high.trim().parse().map_err(|_| wrong())?;
            if low > high || high >= MAX_CPUS {
                return Err(wrong());
            }
            (low..=high).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ModelError;
    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn list_format_round_trips(cpus in proptest::collection::btree_set(0..MAX_CPUS, 0..64)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), cpus.len());
        }

        #[test]
        fn sets_compare_as_sets_do(
            one in proptest::collection::btree_set(0..MAX_CPUS, 0..4), two in proptest::collection::btree_set(0..MAX_CPUS, 0..4),
            both in proptest::collection::btree_set(0..MAX_CPUS, 0..4),
        ) {
            let (one, two) = (&one | &both, &two | &both);
            let (a, b): (CpuSet, CpuSet) = (one.iter().copied().collect(), two.iter().copied().collect());
            prop_assert_eq!(a == b, one == two);
            prop_assert_eq!(a.is_empty(), one.is_empty());
            prop_assert_eq!(a.is_subset(&b), one.is_subset(&two));
            prop_assert_eq!(a.is_disjoint(&b), one.is_disjoint(&two));
        }

        #[test]
        fn the_next_cpu_is_the_nearest_above_or_the_lowest(
            cpus in proptest::collection::btree_set(0..MAX_CPUS, 0..8), from in 0..MAX_CPUS,
        ) {
            let set: CpuSet = cpus.iter().copied().collect();
            let expected = cpus.range(from + 1..).next().or_else(|| cpus.first());
            prop_assert_eq!(set.next_after(from), expected.copied());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}") {
            let _ = text.parse::<CpuSet>();
        }
    }

    #[test]
    fn refuses_reversed_and_too_large() {
        for text in ["3-1", "1024", "0-2000", "a", "1--2", "-1"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }
}
