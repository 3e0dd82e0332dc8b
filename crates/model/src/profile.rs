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
    /// Current clock source.
    pub clock_source: String,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: String,
    /// Share of CPU time stolen by the host since boot, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_share: Option<f64>,
    /// Mitigations in force, by vulnerability.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mitigations: BTreeMap<String, String>,
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
}

/// The names of primitives in a profile. A name is a path of dot-separated words; distances are [`Distance::name`].
pub mod names {
    use super::Distance;

    /// How a thread blocks and is woken.
    pub const WAKE_CHANNELS: [&str; 3] = ["futex", "pipe", "signal"];
    /// The state of the target CPU of a wake-up: Gleaner's Table 1, settings A, B and C.
    pub const WAKE_SETTINGS: [&str; 3] = ["same-cpu", "awake", "halted"];

    /// Waking a blocked thread on another CPU, one way. `channel` is one of [`WAKE_CHANNELS`], `setting` is `awake` or
    /// `halted`.
    pub fn wake(channel: &str, setting: &str, distance: Distance) -> String {
        format!("wake.{channel}.{setting}.{}", distance.name())
    }

    /// Waking a blocked thread on the same CPU, one way (Table 1, A).
    pub fn wake_same_cpu(channel: &str) -> String {
        format!("wake.{channel}.same-cpu")
    }
}

impl Profile {
    /// Reads a profile from TOML; `file` names it in errors.
    ///
    /// # Errors
    /// On malformed TOML, an unknown field, an impossible topology or a price that is negative or not a number.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, ModelError> {
        let profile: Self = toml::from_str(text).map_err(|error| toml_error(text, file, &error))?;
        for (name, price) in &profile.prices {
            if !(price.ns.is_finite() && price.ns >= 0.0) {
                return Err(ModelError::new(
                    format!("{file}: prices.\"{name}\".ns"),
                    price.ns.to_string(),
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
