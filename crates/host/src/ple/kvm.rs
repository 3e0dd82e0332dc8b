//! What KVM's module is told about pause loops (arch/x86/kvm/vmx/vmx.c, arch/x86/kvm/svm/svm.c).

use super::PleError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Whose processors the module is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// `kvm_intel`: a window is so many TSC cycles.
    Intel,
    /// `kvm_amd`: a window is so many PAUSE instructions.
    Amd,
}

impl Vendor {
    /// What a window counts.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Intel => "cycles",
            Self::Amd => "PAUSE instructions",
        }
    }

    /// The module, and its parameter that is the window.
    pub fn parameter(self) -> (&'static str, &'static str) {
        match self {
            Self::Intel => ("kvm_intel", "ple_window"),
            Self::Amd => ("kvm_amd", "pause_filter_count"),
        }
    }

    fn gap_parameter(self) -> &'static str {
        match self {
            Self::Intel => "ple_gap",
            Self::Amd => "pause_filter_thresh",
        }
    }
}

/// The module's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kvm {
    /// Whose processors it is for.
    pub vendor: Vendor,
    /// Each vCPU's window at first, in [`Vendor::unit`]; 0: no PAUSE exits.
    pub window: u32,
    /// What a window grows by on a PAUSE exit: a factor where it is less than the window, else a summand; 0 and 1: not.
    pub grow: u32,
    /// The longest window.
    pub max: u32,
    /// Up to how many cycles lie between two PAUSEs of one loop; 0: no PAUSE exits.
    pub gap: u32,
}

impl Kvm {
    /// Reads them in /sys below `root`.
    ///
    /// # Errors
    /// Where no such module is loaded, or it has no such parameters.
    pub fn read(root: &Path) -> Result<Self, PleError> {
        let modules = root.join("sys/module");
        let is_loaded = |vendor: &Vendor| modules.join(vendor.parameter().0).is_dir();
        let vendor = [Vendor::Intel, Vendor::Amd].into_iter().find(is_loaded);
        let none = || PleError::NoPle("this is no KVM host: neither kvm_intel nor kvm_amd is loaded".to_owned());
        let vendor = vendor.ok_or_else(none)?;
        let (module, window) = vendor.parameter();
        let read = |name: &str| {
            let path = modules.join(module).join("parameters").join(name);
            let bad = |what: String| PleError::NoPle(format!("{}: {what}", path.display()));
            let text = fs::read_to_string(&path).map_err(|error| bad(error.to_string()))?;
            text.trim().parse().map_err(|_| bad(format!("found {}; allowed: a number", text.trim())))
        };
        Ok(Self {
            vendor,
            window: read(window)?,
            grow: read(&format!("{window}_grow"))?,
            max: read(&format!("{window}_max"))?,
            gap: read(vendor.gap_parameter())?,
        })
    }

    /// The two that matter, by their names.
    pub fn described(&self) -> String {
        let (module, window) = self.vendor.parameter();
        format!("{module}.{window}={}, {module}.{}={}", self.window, self.vendor.gap_parameter(), self.gap)
    }

    /// Whether windows grow, so that longer spins show.
    pub fn is_adaptive(&self) -> bool {
        self.grow > 1 && self.max > self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(module: &str, parameters: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("sys/module").join(module).join("parameters");
        fs::create_dir_all(&directory).unwrap();
        parameters.iter().for_each(|(name, value)| fs::write(directory.join(name), value).unwrap());
        root
    }

    #[test]
    fn both_vendors_parameters_are_read() {
        let names = ["ple_window", "ple_window_grow", "ple_window_max", "ple_gap"];
        let intel: Vec<_> = names.into_iter().zip(["4096\n", "2\n", "4294967295\n", "128\n"]).collect();
        let kvm = Kvm::read(tree("kvm_intel", &intel).path()).unwrap();
        assert_eq!(kvm, Kvm { vendor: Vendor::Intel, window: 4096, grow: 2, max: u32::MAX, gap: 128 });
        assert!(kvm.is_adaptive());
        let names = ["pause_filter_count", "pause_filter_count_grow", "pause_filter_count_max", "pause_filter_thresh"];
        let amd: Vec<_> = names.into_iter().zip(["0", "2", "65535", "0"]).collect();
        let kvm = Kvm::read(tree("kvm_amd", &amd).path()).unwrap();
        assert_eq!(kvm.described(), "kvm_amd.pause_filter_count=0, kvm_amd.pause_filter_thresh=0");
    }

    #[test]
    fn what_is_no_host_says_so() {
        let error = Kvm::read(Path::new("/nowhere")).unwrap_err().to_string();
        assert_eq!(error, "this is no KVM host: neither kvm_intel nor kvm_amd is loaded");
        let error = Kvm::read(tree("kvm_intel", &[("ple_window", "much")]).path()).unwrap_err().to_string();
        assert!(error.ends_with("ple_window: found much; allowed: a number"), "{error}");
    }
}
