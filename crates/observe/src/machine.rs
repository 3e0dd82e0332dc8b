//! What the machine at hand is set to, as far as it changes what a program's time is spent on. Reads sysfs only.

use std::fs;
use std::path::Path;

/// The clock source in use; what is written there is used instead if the kernel offers it (kernel parameter
/// `clocksource` at run time).
pub const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Clock sources that are read in user mode or from memory, without an exit.
const FREE_CLOCKS: [&str; 5] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter"];

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Current clock source; empty where the kernel does not say.
    pub clock_source: String,
    /// Clock sources that the kernel offers.
    pub clock_sources: Vec<String>,
    /// haltpoll's `guest_halt_poll_ns`; `None` where the guest has no haltpoll.
    pub guest_halt_poll_ns: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`; empty where the kernel has none.
    pub transparent_huge_pages: String,
    /// Whether there are hardware performance counters.
    pub has_pmu: bool,
    /// Whether idle states are counted (a cpuidle driver is loaded).
    pub has_cpuidle: bool,
}

impl Settings {
    /// Reads them below `/sys`.
    pub fn read() -> Self {
        Self::read_below(Path::new("/sys"))
    }

    /// Whether reading the clock leaves the guest.
    pub fn clock_leaves_guest(&self) -> bool {
        leaves_guest(&self.clock_source)
    }

    /// The source on offer that is read without leaving the guest, where the one in use is not. The kernel lists the
    /// best first, and none that it has found unstable.
    pub fn better_clock_source(&self) -> Option<&str> {
        let better = self.clock_sources.iter().find(|source| !leaves_guest(source));
        better.map(String::as_str).filter(|_| self.clock_leaves_guest())
    }

    fn read_below(sys: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(sys.join(path)).unwrap_or_default().trim().to_owned();
        let clock = |file: &str| text(&format!("devices/system/clocksource/clocksource0/{file}"));
        Self {
            clock_source: clock("current_clocksource"),
            clock_sources: clock("available_clocksource").split_whitespace().map(str::to_owned).collect(),
            guest_halt_poll_ns: text("module/haltpoll/parameters/guest_halt_poll_ns").parse().ok(),
            transparent_huge_pages: chosen(&text("kernel/mm/transparent_hugepage/enabled")),
            has_pmu: has_pmu(&sys.join("bus/event_source/devices")),
            has_cpuidle: sys.join("devices/system/cpu/cpu0/cpuidle/state0").exists(),
        }
    }
}

fn leaves_guest(clock_source: &str) -> bool {
    !clock_source.is_empty() && !FREE_CLOCKS.contains(&clock_source)
}

/// A core PMU is called `cpu` on x86, `cpu_core` and `cpu_atom` on hybrids, `armv8...` on Arm.
fn has_pmu(devices: &Path) -> bool {
    let Ok(entries) = fs::read_dir(devices) else { return false };
    entries
        .flatten()
        .any(|entry| entry.file_name().to_str().is_some_and(|n| n.starts_with("cpu") || n.starts_with("armv8")))
}

/// The word in brackets of a sysfs choice such as `always [madvise] never`.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map(|(word, _)| word.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_machine_and_an_empty_one() {
        let sys = std::env::temp_dir().join(format!("muster-settings-{}", std::process::id()));
        let clock = sys.join("devices/system/clocksource/clocksource0");
        fs::create_dir_all(&clock).unwrap();
        fs::create_dir_all(sys.join("bus/event_source/devices/cpu")).unwrap();
        fs::create_dir_all(sys.join("kernel/mm/transparent_hugepage")).unwrap();
        fs::write(clock.join("current_clocksource"), "acpi_pm\n").unwrap();
        fs::write(clock.join("available_clocksource"), "hpet acpi_pm \n").unwrap();
        fs::write(sys.join("kernel/mm/transparent_hugepage/enabled"), "always [madvise] never\n").unwrap();
        let read = Settings::read_below(&sys);
        fs::remove_dir_all(&sys).unwrap();
        assert_eq!(read.clock_source, "acpi_pm");
        assert_eq!(read.clock_sources, ["hpet", "acpi_pm"]);
        assert_eq!((read.guest_halt_poll_ns, read.has_pmu, read.has_cpuidle), (None, true, false));
        assert_eq!(read.transparent_huge_pages, "madvise");
        assert!(read.clock_leaves_guest() && read.better_clock_source().is_none());
        assert_eq!(Settings::read_below(&sys), Settings::default());
    }

    #[test]
    fn a_better_clock_source_is_one_that_stays_in_the_guest() {
        let better = |now: &str, offered: &str| {
            let clock_sources = offered.split_whitespace().map(str::to_owned).collect();
            let settings = Settings { clock_source: now.to_owned(), clock_sources, ..Settings::default() };
            settings.better_clock_source().map(str::to_owned)
        };
        assert_eq!(better("acpi_pm", "tsc kvm-clock hpet acpi_pm").as_deref(), Some("tsc"));
        assert_eq!(better("hpet", "hpet kvm-clock").as_deref(), Some("kvm-clock"));
        assert_eq!(better("kvm-clock", "tsc kvm-clock"), None);
        assert_eq!(better("acpi_pm", "hpet acpi_pm"), None);
        assert_eq!(better("", ""), None);
    }
}
