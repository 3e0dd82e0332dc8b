//! A machine profile: what a machine is and what it charges for each primitive.
//!
//! `muster probe` writes one for the machine at hand; `machines/` holds those of the papers. The simulator and the
//! live tools read the same file. Every price says where it comes from.

use crate::{Distance, ModelError, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a price comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriceKind {
    /// `muster probe` measured it on the machine itself.
    Measured,
    /// A paper or a vendor's document states it; `source` says where.
    Stated,
    /// It follows from measured prices; `source` says how.
    Derived,
    /// Nobody stated it; `source` says why this value was assumed.
    Assumed,
}

/// One primitive's price.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Median price in nanoseconds.
    pub ns: f64,
    /// Half the distance between the quartiles of the batches, in nanoseconds, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_ns: Option<f64>,
    /// Where the value comes from.
    pub kind: PriceKind,
    /// The table, section, document or program that gave it; for an assumption, the reason.
    pub source: String,
    /// Whether the machine was too noisy for the value to be trusted within its spread.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noisy: bool,
}

/// What kind of machine it is, as far as it matters to scaling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Platform {
    /// CPU model name.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// The hypervisor under this machine (`kvm`, `xen`, ...), or `none`.
    pub hypervisor: String,
    /// cpuidle driver, or `none`.
    pub cpuidle_driver: String,
    /// cpuidle governor, or `none`.
    pub cpuidle_governor: String,
    /// haltpoll's `guest_halt_poll_ns`; absent where the guest has no haltpoll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_halt_poll_ns: Option<u64>,
    /// Every parameter of the haltpoll module, by name; empty where it is not loaded.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub haltpoll_parameters: BTreeMap<String, String>,
    /// Current clock source.
    pub clock_source: String,
    /// Every clock source the kernel offers, best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clock_sources: Vec<String>,
    /// Memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: String,
    /// Pages of 2 MiB set aside for hugetlbfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages_2m: Option<u64>,
    /// Share of CPU time stolen by the host since boot, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_share: Option<f64>,
    /// Mitigations in force, by vulnerability.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mitigations: BTreeMap<String, String>,
    /// Data and unified caches of the first CPU, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<Cache>,
    /// TLBs of the first CPU, nearest first; empty where they are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tlbs: Vec<Tlb>,
    /// Caches of entries of page tables that a CPU has; empty where they are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub walk_caches: Vec<WalkCache>,
}

/// A paging-structure cache (Intel SDM, volume 3A, section 4.10.3, and 3B, 25.3.1): entries of one level of tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCache {
    /// Of whose tables.
    pub of: Dimension,
    /// 2 for page directories, up to 4; of the nested dimension also 1: whole translations of guest-physical addresses.
    pub level: u8,
    /// How many, 1 to [`WalkCache::MOST`].
    pub entries: u32,
    /// Where the number comes from.
    pub source: String,
}

impl WalkCache {
    /// Most entries of one.
    pub const MOST: u32 = 1024;
}

/// Whose page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dimension {
    /// The guest's, or the only ones.
    Guest,
    /// The VMM's, from guest-physical addresses on.
    Nested,
}

/// One translation-lookaside buffer of a CPU: the entries for one size of page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// 1 for the nearest.
    pub level: u32,
    /// Whose translations.
    pub holds: TlbUse,
    /// Of which pages: one of [`names::PAGE_SIZES`].
    pub page: String,
    /// How many, 1 or more.
    pub entries: u32,
}

/// Whose translations a TLB holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlbUse {
    /// Of code.
    Instructions,
    /// Of data.
    Data,
    /// Of both.
    Unified,
}

impl TlbUse {
    /// Whether one that holds this holds `other`.
    pub fn covers(self, other: Self) -> bool {
        self == other || self == Self::Unified
    }
}

/// One cache of a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// 1 for the nearest.
    pub level: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// How many CPUs share it.
    pub shared_by: u32,
}

/// A machine: its shape, its kind and its prices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Short name.
    pub name: String,
    /// One sentence about it.
    #[serde(default)]
    pub description: String,
    /// What kind of machine it is.
    #[serde(default)]
    pub platform: Platform,
    /// Which CPUs it has.
    pub topology: Topology,
    /// Prices by primitive; the names are those of [`names`].
    #[serde(default)]
    pub prices: BTreeMap<String, Price>,
    /// What could not be measured and why, and what made the prices less sure; one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The names of primitives in a profile. A name is a path of dot-separated words; distances are [`Distance::name`].
/// docs/machine-profile.md says what each one is.
pub mod names {
    use super::Distance;

    /// How a thread blocks and is woken.
    pub const WAKE_CHANNELS: [&str; 3] = ["futex", "pipe", "signal"];
    /// The state of the target CPU of a wake-up: Gleaner's Table 1, settings A, B and C.
    pub const WAKE_SETTINGS: [&str; 3] = ["same-cpu", "awake", "halted"];
    /// The target's states on another CPU, from the cheapest: kept `awake` by a lowest-priority yielding thread; idle
    /// and still `polling` (guest halt polling); `halted` a moment ago; `parked`, halted so long that the host has
    /// stopped polling for it.
    pub const REMOTE_SETTINGS: [&str; 4] = ["awake", "polling", "halted", "parked"];
    /// Ways of reading the clock (vDSO(7), clock_gettime(2)).
    pub const CLOCK_PATHS: [&str; 12] = [
        "rdtsc",
        "monotonic",
        "realtime",
        "monotonic-coarse",
        "realtime-coarse",
        "monotonic-raw",
        "boottime",
        "thread-cputime",
        "gettimeofday",
        "time",
        "getres",
        "syscall",
    ];
    /// Who reads at the same time.
    pub const CLOCK_READERS: [&str; 2] = ["alone", "all-cpus"];
    /// Operations that make other CPUs drop translations; `churn` is map, touch and unmap by everybody at once.
    pub const TLB_OPERATIONS: [&str; 3] = ["munmap", "mprotect", "churn"];
    /// Page sizes.
    pub const PAGE_SIZES: [&str; 2] = ["4k", "2m"];
    /// Names without a parameter that `muster probe` measures.
    pub const SINGLE: [&str; 12] = [
        SYSCALL,
        CONTEXT_SWITCH,
        "process.fork",
        "process.fork-exec",
        "process.spawn",
        "thread.create",
        "memory.map-unmap",
        "memory.latency",
        "cache.l1",
        "cache.l2",
        "cache.l3",
        PAGE_WALK,
    ];
    /// Names without a parameter that papers state and `muster probe` does not measure: reading the first bytes of a
    /// file that is not in memory.
    pub const STATED: [&str; 1] = ["file.read"];

    /// A system call that does nothing (getppid).
    pub const SYSCALL: &str = "syscall";
    /// Switching between two threads of one process on one CPU.
    pub const CONTEXT_SWITCH: &str = "context-switch";
    /// What a translation that misses the TLB costs, with 4 KiB pages; measured as a difference, cache misses on the
    /// page tables included.
    pub const PAGE_WALK: &str = "page-walk.4k";

    /// Waking a blocked thread on another CPU, one way. `channel` is one of [`WAKE_CHANNELS`], `setting` one of
    /// [`REMOTE_SETTINGS`].
    pub fn wake(channel: &str, setting: &str, distance: Distance) -> String {
        format!("wake.{channel}.{setting}.{}", distance.name())
    }

    /// Waking a blocked thread on the same CPU, one way (Table 1, A).
    pub fn wake_same_cpu(channel: &str) -> String {
        format!("wake.{channel}.same-cpu")
    }

    /// What the waker itself pays for waking a thread on another CPU: the time until the call that wakes returns.
    pub fn waker(channel: &str, setting: &str, distance: Distance) -> String {
        format!("waker.{channel}.{setting}.{}", distance.name())
    }

    /// Reading the clock; `path` is one of [`CLOCK_PATHS`], `readers` one of [`CLOCK_READERS`].
    pub fn clock(path: &str, readers: &str) -> String {
        format!("clock.{path}.{readers}")
    }

    /// A translation change with `others` other threads of the process running; `operation` is one of
    /// [`TLB_OPERATIONS`].
    pub fn tlb_threads(operation: &str, others: usize) -> String {
        format!("tlb.{operation}.threads-{others}")
    }

    /// The same with `others` other processes running in the threads' place.
    pub fn tlb_processes(operation: &str, others: usize) -> String {
        format!("tlb.{operation}.processes-{others}")
    }

    /// Touching a page for the first time; `page` is one of [`PAGE_SIZES`].
    pub fn first_touch(page: &str) -> String {
        format!("memory.first-touch.{page}")
    }

    /// One dependent load at random in a working set of `kib` KiB; `page` is one of [`PAGE_SIZES`].
    pub fn chase(page: &str, kib: u64) -> String {
        format!("chase.{page}.{kib}k")
    }

    /// Moving a modified cache line from one CPU to another.
    pub fn cache_transfer(distance: Distance) -> String {
        format!("cache-transfer.{}", distance.name())
    }

    /// A message between virtual machines on CPUs this far apart, one way.
    pub fn message(distance: Distance) -> String {
        format!("message.{}", distance.name())
    }

    /// Whether `name` is one of the names above, or belongs to the simulator: `sim.PART.MECHANISM`, with a distance
    /// where it depends on one. Which of those there are, the simulator says when it misses one.
    pub fn is_known(name: &str) -> bool {
        let distance = |word: &str| Distance::ALL.iter().any(|d| d.name() == word && *d != Distance::SameCpu);
        let words: Vec<&str> = name.split('.').collect();
        match words[..] {
            ["wake", channel, "same-cpu"] => WAKE_CHANNELS.contains(&channel),
            ["wake" | "waker", channel, setting, far] => {
                WAKE_CHANNELS.contains(&channel) && REMOTE_SETTINGS.contains(&setting) && distance(far)
            }
            ["clock", path, readers] => CLOCK_PATHS.contains(&path) && CLOCK_READERS.contains(&readers),
            ["tlb", operation, others] => {
                let count = others.strip_prefix("threads-").or_else(|| others.strip_prefix("processes-"));
                TLB_OPERATIONS.contains(&operation) && count.is_some_and(is_number)
            }
            ["memory", "first-touch", page] => PAGE_SIZES.contains(&page),
            ["chase", page, size] => PAGE_SIZES.contains(&page) && size.strip_suffix('k').is_some_and(is_number),
            ["cache-transfer" | "message", far] => distance(far),
            ["sim", "cpu" | "kernel" | "vmm" | "xen" | "kvm" | "net" | "disk" | "remedy", mechanism] => {
                is_word(mechanism)
            }
            ["sim", "cpu" | "kernel" | "vmm" | "xen" | "kvm" | "net" | "disk" | "remedy", mechanism, far] => {
                is_word(mechanism) && distance(far)
            }
            _ => SINGLE.contains(&name) || STATED.contains(&name),
        }
    }

    fn is_word(word: &str) -> bool {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    }

    fn is_number(word: &str) -> bool {
        !word.is_empty() && word.len() <= 10 && word.bytes().all(|byte| byte.is_ascii_digit())
    }
}

impl Profile {
    /// Reads a profile from TOML; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed TOML, an unknown field, an impossible topology or a price that is negative or not a number.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ModelError> {
        let profile: Self = toml::from_str(text).map_err(|error| toml_error(text, file, &error))?;
        for tlb in &profile.platform.tlbs {
            if tlb.level == 0 || tlb.entries == 0 || !names::PAGE_SIZES.contains(&tlb.page.as_str()) {
                let allowed = format!("level and entries of 1 or more, page {}", names::PAGE_SIZES.join(" or "));
                return Err(ModelError::new(format!("{file}: platform.tlbs"), format!("{tlb:?}"), allowed));
            }
        }
        for cache in &profile.platform.walk_caches {
            let least = if cache.of == Dimension::Nested { 1 } else { 2 };
            if !(least..=4).contains(&cache.level) || !(1..=WalkCache::MOST).contains(&cache.entries) {
                let allowed = format!("level {least} to 4 and 1 to {} entries", WalkCache::MOST);
                return Err(ModelError::new(format!("{file}: platform.walk_caches"), format!("{cache:?}"), allowed));
            }
        }
        for (name, price) in &profile.prices {
            if !(price.ns.is_finite() && price.ns >= 0.0) {
                return Err(ModelError::new(
                    format!("{file}: prices.\"{name}\".ns"),
                    price.ns.to_string(),
                    "a number of nanoseconds, 0 or more",
                ));
            }
            if price.spread_ns.is_some_and(|spread| !(spread.is_finite() && spread >= 0.0)) {
                return Err(ModelError::new(
                    format!("{file}: prices.\"{name}\".spread_ns"),
                    format!("{:?}", price.spread_ns),
                    "a number of nanoseconds, 0 or more",
                ));
            }
        }
        Ok(profile)
    }

    /// The profile as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile holds only what TOML can express")
    }

    /// The names of prices that nothing reads (see [`names::is_known`]): most likely misspelt.
    pub fn unknown_prices(&self) -> impl Iterator<Item = &str> {
        self.prices.keys().map(String::as_str).filter(|name| !names::is_known(name))
    }

    /// A price in nanoseconds, if the profile has it.
    pub fn price_ns(&self, name: &str) -> Option<f64> {
        self.prices.get(name).map(|price| price.ns)
    }

    /// A price in nanoseconds that the caller cannot do without.
    ///
    /// # Errors
    /// When the profile lacks it.
    pub fn require_ns(&self, name: &str) -> Result<f64, ModelError> {
        self.price_ns(name).ok_or_else(|| {
            ModelError::new(
                format!("profile `{}`", self.name),
                format!("no price `{name}`"),
                "a profile with that price",
            )
        })
    }
}

/// A TOML error as one sentence with file and line.
pub(crate) fn toml_error(text: &str, file: &str, error: &toml::de::Error) -> ModelError {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    ModelError::new(
        format!("{file}, line {line}"),
        error.message().to_owned(),
        "TOML as docs/ describes it for this kind of file",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn price(ns: f64) -> Price {
        Price { ns, spread_ns: Some(0.5), kind: PriceKind::Measured, source: "a test".into(), noisy: false }
    }

    fn profile(prices: BTreeMap<String, Price>) -> Profile {
        let topology = Topology::regular(2, 1, 2, 2).unwrap();
        let caches = vec![Cache { level: 1, size_bytes: 32 << 10, shared_by: 2 }];
        let platform = Platform { cpu: "a \"quoted\" name".into(), caches, ..Platform::default() };
        let notes = vec!["two\nlines".to_owned()];
        Profile { name: "test".into(), description: String::new(), platform, topology, prices, notes }
    }

    proptest! {
        #[test]
        fn profiles_round_trip(
            prices in proptest::collection::btree_map("[a-z.-]{1,20}", 0.0..1e12f64, 0..8),
        ) {
            let original = profile(prices.into_iter().map(|(name, ns)| (name, price(ns))).collect());
            prop_assert_eq!(Profile::from_toml(&original.to_toml(), "test").unwrap(), original);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Profile::from_toml(&text, "test");
        }

        #[test]
        fn a_damaged_profile_is_read_or_refused(at in 0usize..600, with in "\\PC{0,3}") {
            let mut text = profile([("syscall".to_owned(), price(100.0))].into()).to_toml();
            let at = (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.insert_str(at, &with);
            let _ = Profile::from_toml(&text, "test");
        }

        #[test]
        fn any_name_is_known_or_not(name in "[a-z0-9.-]{0,40}") {
            let _ = names::is_known(&name);
        }
    }

    #[test]
    fn errors_name_file_line_and_what_is_allowed() {
        let text = "name = 'x'\nspeed = 3\n[topology]\nsockets = 1\n";
        let error = Profile::from_toml(text, "m.toml").unwrap_err().to_string();
        assert!(error.starts_with("m.toml, line 2") && error.contains("speed"), "{error}");
        let text = "name = 'x'\n[topology]\n[prices.syscall]\nns = -1\nkind = 'assumed'\nsource = ''\n";
        let error = Profile::from_toml(text, "m.toml").unwrap_err().to_string();
        assert!(error.contains("prices.\"syscall\".ns") && error.contains("-1"), "{error}");
        let text = text.replace("-1", "nan");
        assert!(Profile::from_toml(&text, "m.toml").is_err());
        let text = text.replace("nan", "1\nspread_ns = -2");
        assert!(Profile::from_toml(&text, "m.toml").unwrap_err().to_string().contains("spread_ns"));
        assert!(Profile::from_toml("name = 'x'\n[topology]\nsockets = 0\n", "m.toml").is_err());
        let text = "name = 'x'\n[topology]\n[[platform.tlbs]]\nlevel = 1\nholds = 'data'\npage = '4k'\nentries = 0\n";
        let error = Profile::from_toml(text, "m.toml").unwrap_err().to_string();
        assert!(error.contains("platform.tlbs") && error.contains("4k or 2m"), "{error}");
    }

    #[test]
    fn a_missing_price_is_named() {
        let error = profile(BTreeMap::new()).require_ns("syscall").unwrap_err().to_string();
        assert!(error.contains("`syscall`") && error.contains("`test`"), "{error}");
    }

    #[test]
    fn built_names_are_known() {
        let mut built: Vec<String> = names::SINGLE.iter().chain(&names::STATED).map(|&name| name.into()).collect();
        for channel in names::WAKE_CHANNELS {
            built.push(names::wake_same_cpu(channel));
            for setting in names::REMOTE_SETTINGS {
                built.push(names::wake(channel, setting, Distance::OtherNode));
                built.push(names::waker(channel, setting, Distance::SmtSibling));
            }
        }
        built.push(names::clock("monotonic", "all-cpus"));
        built.push(names::tlb_threads("munmap", 0));
        built.push(names::tlb_processes("churn", 127));
        built.push(names::first_touch("2m"));
        built.push(names::chase("4k", 1 << 20));
        built.push(names::cache_transfer(Distance::SameLlc));
        built.push(names::message(Distance::OtherNode));
        built.extend(["sim.cpu.ipi-send", "sim.cpu.refill.same-llc", "sim.xen.hypercall"].map(String::from));
        for name in built {
            assert!(names::is_known(&name), "{name}");
        }
    }

    #[test]
    fn misspelt_names_are_unknown() {
        for name in [
            "wake.futex",
            "wake.futex.halted",
            "wake.futex.halted.same-cpu",
            "clock.tsc.alone",
            "tlb.munmap.x-1",
            "tlb.munmap.threads-",
            "chase.4k.12",
            "chase.1g.12k",
            "",
            ".",
            "syscall.",
            "cache-transfer.same-cpu",
            "sim.cpu",
            "sim.cpu.refill.near",
            "sim.gpu.x",
        ] {
            assert!(!names::is_known(name), "{name}");
        }
        let misspelt = profile([("sycall".to_owned(), price(1.0))].into());
        assert_eq!(misspelt.unknown_prices().collect::<Vec<_>>(), ["sycall"]);
    }
}
