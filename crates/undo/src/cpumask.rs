//! A set of CPU numbers as the journal keeps it: in the kernel's list format (`0-3,8`).

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A set of CPU numbers below [`CpuMask::MAX_CPUS`]; written in the kernel's list format (cpuset(7), "List format").
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuMask(BTreeSet<usize>);

impl CpuMask {
    /// CPU numbers at and above this are refused (the size of glibc's `cpu_set_t`).
    pub const MAX_CPUS: usize = rustix::thread::CpuSet::MAX_CPU;

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<usize> for CpuMask {
    /// # Panics
    /// On a CPU number that is not below [`CpuMask::MAX_CPUS`].
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let cpus: BTreeSet<usize> = cpus.into_iter().collect();
        assert!(cpus.last().is_none_or(|&last| last < Self::MAX_CPUS), "CPU numbers must be below {}", Self::MAX_CPUS);
        Self(cpus)
    }
}

impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(start) = cpus.next() {
            let mut end = start;
            while cpus.next_if_eq(&(end + 1)).is_some() {
                end += 1;
            }
            match start == end {
                true => write!(f, "{separator}{start}")?,
                false => write!(f, "{separator}{start}-{end}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuMask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a CPU list: numbers and ranges below {} expected", Self::MAX_CPUS);
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let low: usize = low.parse().map_err(|_| wrong())?;
            let high: usize = high.parse().map_err(|_| wrong())?;
            if low > high || high >= Self::MAX_CPUS {
                return Err(wrong());
            }
            cpus.extend(low..=high);
        }
        Ok(Self(cpus))
    }
}

impl TryFrom<String> for CpuMask {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CpuMask> for String {
    fn from(mask: CpuMask) -> Self {
        mask.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn list_format_round_trips(cpus in proptest::collection::btree_set(0..CpuMask::MAX_CPUS, 0..64)) {
            let mask: CpuMask = cpus.iter().copied().collect();
            prop_assert_eq!(mask.to_string().parse::<CpuMask>().unwrap(), mask);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}") {
            let _ = text.parse::<CpuMask>();
        }
    }
}
