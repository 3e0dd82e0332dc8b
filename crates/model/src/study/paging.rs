//! How a VM's memory is virtualized: shadow or nested paging, and how its page tables lie in memory.

use super::Environment;
use crate::ModelError;
use serde::{Deserialize, Serialize};

/// Smallest and largest memory of a guest, in MiB.
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 32..=1 << 20;

/// What translates a guest's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PagingKind {
    /// The VMM keeps shadows of the guest's page tables, which are write-protected.
    Shadow,
    /// Hardware walks the guest's page tables and the VMM's (EPT, NPT).
    Nested,
}

/// By which pages the VMM maps a guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Backing {
    /// 4 KiB.
    #[default]
    #[serde(rename = "4k")]
    Small,
    /// 2 MiB: the last level of the VMM's tables is left out.
    #[serde(rename = "2m")]
    Large,
}

/// How many levels the guest's page tables have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum GuestMode {
    /// Two, of 1024 entries of 4 bytes.
    #[serde(rename = "32-bit")]
    Legacy,
    /// Three: physical address extension.
    #[serde(rename = "pae")]
    Pae,
    /// Four.
    #[default]
    #[serde(rename = "64-bit")]
    Long,
}

impl GuestMode {
    /// How many levels that are.
    pub fn levels(self) -> u8 {
        match self {
            Self::Legacy => 2,
            Self::Pae => 3,
            Self::Long => 4,
        }
    }
}

/// Where the guest's kernel puts page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TablePlacement {
    /// Where its page allocator happens to: next to each other at first, all over the memory once pages come and go.
    #[default]
    Allocated,
    /// In regions of 2 MiB that hold nothing else (hardware acceleration, section IV.B).
    Confined,
}

/// What the VMM does when a guest writes to a page table that has a shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShadowSync {
    /// It emulates each write.
    #[default]
    Trap,
    /// It lets a last-level table go out of sync with its shadow, and brings a few of them back when the guest drops translations
    /// (Xen from 3.3 on, SHOPT_OUT_OF_SYNC).
    Lazy,
}

/// How a VM's memory is virtualized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paging {
    /// Shadow or nested paging.
    pub kind: PagingKind,
    /// By which pages the VMM maps the guest's memory.
    #[serde(default)]
    pub backing: Backing,
    /// The levels of the guest's page tables.
    #[serde(default)]
    pub mode: GuestMode,
    /// Where they lie; `confined` under nested paging only.
    #[serde(default)]
    pub tables: TablePlacement,
    /// How shadows are kept up; shadow paging only.
    #[serde(default)]
    pub sync: ShadowSync,
    /// The guest's memory in MiB.
    #[serde(default = "memory_mib")]
    pub memory_mib: u32,
}

fn memory_mib() -> u32 {
    512
}

impl Paging {
    /// Paging of a kind with everything else as it is when a file does not mention it.
    pub fn new(kind: PagingKind) -> Self {
        Self {
            kind,
            backing: Backing::Small,
            mode: GuestMode::Long,
            tables: TablePlacement::Allocated,
            sync: ShadowSync::Trap,
            memory_mib: memory_mib(),
        }
    }

    /// Checks what excludes each other.
    ///
    /// # Errors
    /// When a setting has no meaning in the environment or beside another one, or the memory is out of range.
    pub(super) fn validate(&self, environment: Environment) -> Result<(), ModelError> {
        if !matches!(environment, Environment::Virtual | Environment::Hvm) {
            let found = format!("in environment `{}`", environment.name());
            return Err(ModelError::new("paging", found, "with environment `virtual` or `hvm` only"));
        }
        let is_shadow = self.kind == PagingKind::Shadow;
        if is_shadow && self.backing == Backing::Large {
            // Xen's shadows map by 4 KiB whatever lies below (xen/arch/x86/mm/shadow/multi.c, `sh_page_fault`).
            return Err(ModelError::new("paging.backing", "2m with kind `shadow`", "4k, or kind `nested`"));
        }
        if is_shadow && self.tables == TablePlacement::Confined {
            return Err(ModelError::new("paging.tables", "confined with kind `shadow`", "allocated, or kind `nested`"));
        }
        if !is_shadow && self.sync == ShadowSync::Lazy {
            return Err(ModelError::new("paging.sync", "lazy with kind `nested`", "kind `shadow`"));
        }
        if !MEMORY_MIB.contains(&self.memory_mib) {
            let allowed = format!("{} to {}", MEMORY_MIB.start(), MEMORY_MIB.end());
            return Err(ModelError::new("paging.memory_mib", self.memory_mib.to_string(), allowed));
        }
        if self.mode == GuestMode::Legacy && self.memory_mib > 4096 {
            let found = format!("{} with mode `32-bit`", self.memory_mib);
            return Err(ModelError::new("paging.memory_mib", found, "at most 4096, or mode `pae` or `64-bit`"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Experiment;
    use super::*;

    fn read(environment: &str, paging: &str) -> Result<Experiment, String> {
        let text = format!("machine='m'\nworkload='w'\nenvironment='{environment}'\ncores=1\npaging={{{paging}}}");
        Experiment::from_toml(&text, "e.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_read_with_what_is_left_out() {
        let paging = read("hvm", "kind='nested',backing='2m',mode='pae',tables='confined'").unwrap().paging.unwrap();
        assert_eq!((paging.backing, paging.mode.levels(), paging.memory_mib), (Backing::Large, 3, 512));
        assert_eq!(read("virtual", "kind='shadow'").unwrap().paging, Some(Paging::new(PagingKind::Shadow)));
        assert_eq!(read("hvm", "kind='nested'").unwrap().all_vms()[0].paging, Some(Paging::new(PagingKind::Nested)));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (environment, paging, wanted) in [
            ("native", "kind='nested'", "paging: found in environment `native`"),
            ("pv", "kind='shadow'", "paging: found in environment `pv`"),
            ("hvm", "kind='shadow',backing='2m'", "paging.backing: found 2m with kind `shadow`"),
            ("hvm", "kind='shadow',tables='confined'", "paging.tables: found confined"),
            ("hvm", "kind='nested',sync='lazy'", "paging.sync: found lazy"),
            ("hvm", "kind='nested',memory_mib=1", "paging.memory_mib: found 1; allowed: 32 to 1048576"),
            ("hvm", "kind='nested',mode='32-bit',memory_mib=5000", "at most 4096"),
            ("hvm", "kind='hash'", "unknown variant `hash`"),
            ("hvm", "kind='nested',levels=4", "unknown field `levels`"),
        ] {
            let error = read(environment, paging).unwrap_err();
            assert!(error.starts_with("e.toml") && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_vm_has_its_own_or_the_first_ones() {
        let text = "machine='m'\nworkload='w'\nenvironment='hvm'\ncores=1\npaging={kind='nested'}\n\
            [[vms]]\nworkload='x'\nvcpus=1\npaging={kind='shadow'}\n[[vms]]\nworkload='x'\nvcpus=1\n";
        let kinds = |text: &str| -> Vec<_> {
            let vms = Experiment::from_toml(text, "e.toml").unwrap().all_vms();
            vms.iter().map(|vm| vm.paging.map(|paging| paging.kind)).collect()
        };
        assert_eq!(kinds(text), [PagingKind::Nested, PagingKind::Shadow, PagingKind::Nested].map(Some));
        let error = Experiment::from_toml(&text.replace("'shadow'", "'shadow',backing='2m'"), "e.toml").unwrap_err();
        assert!(error.to_string().contains("vms[0]: paging.backing"), "{error}");
    }
}
