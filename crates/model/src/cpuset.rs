//! A set of CPU numbers, and the kernel's list format for it (`0-3,8`).

use crate::ModelError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// CPU numbers at and above this are refused: the largest machine the project speaks of has 1024 CPUs.
pub const MAX_CPUS: usize = 1024;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPU numbers below [`MAX_CPUS`].
#[derive(Clone, Copy, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

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
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Takes `cpu` out; nothing happens when it was not in.
    #[inline]
    pub fn remove(&mut self, cpu: usize) {
        if cpu < MAX_CPUS {
            self.0[cpu / 64] &= !(1 << (cpu % 64));
        }
    }

    /// Whether `cpu` is in the set.
    #[inline]
    pub fn contains(&self, cpu: usize) -> bool {
        cpu < MAX_CPUS && self.0[cpu / 64] & (1 << (cpu % 64)) != 0
    }

    /// How many CPUs are in the set.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        none(self.0)
    }

    /// The CPUs in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    index * 64 + bit
                })
            })
        })
    }

    /// The first CPU of the set after `cpu`, going on from the lowest when there is none; `None` when the set is empty.
    #[inline]
    pub fn next_after(&self, cpu: usize) -> Option<usize> {
        let first = cpu + 1;
        let rest =
            |index: usize| if index == first / 64 { self.0[index] & (u64::MAX << (first % 64)) } else { self.0[index] };
        let above = (first / 64..WORDS).find(|&index| rest(index) != 0).map(|index| (index, rest(index)));
        let (index, word) = above.or_else(|| (0..WORDS).find(|&i| self.0[i] != 0).map(|i| (i, self.0[i])))?;
        Some(index * 64 + word.trailing_zeros() as usize)
    }

    /// The CPUs in both sets.
    #[inline]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// The CPUs in either set.
    #[inline]
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The CPUs of this set that are not in `other`.
    #[inline]
    pub fn difference(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Whether every CPU of this set is in `other`.
    #[inline]
    pub fn is_subset(&self, other: &Self) -> bool {
        none(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Whether no CPU is in both sets.
    #[inline]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        none(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }
}

/// Whether no bit is set. Without a branch a word: sets are compared far more often than they are large.
#[inline]
fn none(words: [u64; WORDS]) -> bool {
    words.iter().fold(0, |all, word| all | word) == 0
}

impl PartialEq for CpuSet {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        none(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }
}

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
