//! Settings that a person asks for by name and value, and what each of them may be.

use super::{core, file, hardware, parameter};
use muster_model::CpuSet;
use muster_model::host::{Effect, HostFacts, PhysicalFunction, Setting};

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A named setting gets a value.
    Set {
        /// Its name, see [`names`].
        name: String,
        /// The value.
        value: String,
    },
    /// A device gets so many virtual functions.
    Functions {
        /// The physical function: its address, or a network interface of it.
        device: String,
        /// How many.
        count: u64,
    },
    /// A virtual function, or all those of a physical one, get a driver.
    Bind {
        /// Its address, or a network interface of it.
        device: String,
        /// The driver.
        driver: String,
    },
    /// A virtual function, or all those of a physical one, are left to the host.
    Release {
        /// Its address, or a network interface of it.
        device: String,
    },
    /// An interrupt goes to other CPUs.
    Interrupt {
        /// Its number.
        number: u32,
        /// The CPUs.
        cpus: CpuSet,
    },
}

/// The values that a named setting takes.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// `0` or `1`.
    Switch,
    /// A number up to this one.
    UpTo(u64),
    /// One of these words.
    OneOf(&'static [&'static str]),
}

const NUMBER: Values = Values::UpTo(u32::MAX as u64);
/// What the hardware of AMD and the module's `ushort` take.
const SHORT: Values = Values::UpTo(u16::MAX as u64);

/// Parameters of the module that drives the CPU's virtualization.
const HARDWARE_PARAMETERS: [(&str, Values); 15] = [
    ("ept", Values::Switch),
    ("npt", Values::Switch),
    ("unrestricted_guest", Values::Switch),
    ("nested", Values::Switch),
    ("ple_gap", NUMBER),
    ("ple_window", NUMBER),
    ("ple_window_grow", NUMBER),
    ("ple_window_shrink", NUMBER),
    ("ple_window_max", NUMBER),
    ("pause_filter_thresh", SHORT),
    ("pause_filter_count", SHORT),
    ("pause_filter_count_grow", SHORT),
    ("pause_filter_count_shrink", SHORT),
    ("pause_filter_count_max", SHORT),
    ("avic", Values::Switch),
];

/// Parameters of `kvm` itself; the running kernel takes them.
const CORE_PARAMETERS: [(&str, Values); 4] = [
    ("halt_poll_ns", NUMBER),
    ("halt_poll_ns_grow", NUMBER),
    ("halt_poll_ns_grow_start", NUMBER),
    ("halt_poll_ns_shrink", NUMBER),
];

/// Settings in files of their own.
const FILES: [(&str, &str, Values, Effect); 8] = [
    (
        "thp",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        Values::OneOf(&["always", "madvise", "never"]),
        Effect::NewMemory,
    ),
    (
        "thp-defrag",
        "/sys/kernel/mm/transparent_hugepage/defrag",
        Values::OneOf(&["always", "defer", "defer+madvise", "madvise", "never"]),
        Effect::NewMemory,
    ),
    (
        "thp-shmem",
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        Values::OneOf(&["always", "within_size", "advise", "never"]),
        Effect::NewMemory,
    ),
    ("khugepaged-defrag", "/sys/kernel/mm/transparent_hugepage/khugepaged/defrag", Values::Switch, Effect::AtOnce),
    (
        "khugepaged-pages-to-scan",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
        NUMBER,
        Effect::AtOnce,
    ),
    (
        "khugepaged-scan-sleep-ms",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
        NUMBER,
        Effect::AtOnce,
    ),
    ("nr_hugepages", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", NUMBER, Effect::NewVms),
    (
        "clocksource",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        Values::OneOf(&["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "hpet", "acpi_pm"]),
        Effect::AtOnce,
    ),
];

/// The names that [`Asked::Set`] takes.
pub fn names() -> impl Iterator<Item = &'static str> {
    let parameters = HARDWARE_PARAMETERS.iter().chain(&CORE_PARAMETERS).map(|(name, _)| *name);
    parameters.chain(FILES.iter().map(|(name, ..)| *name))
}

/// The setting that was asked for.
///
/// # Errors
/// One sentence: what was wrong with the request, and what is allowed.
pub fn resolve(facts: &HostFacts, asked: &Asked) -> Result<Setting, String> {
    match asked {
        Asked::Set { name, value } => named(facts, name, value),
        Asked::Functions { device, count } => {
            let found = physical(facts, device)?;
            match *count <= found.total {
                true => Ok(Setting::VirtualFunctions { device: found.address.clone(), count: *count }),
                false => Err(format!("{device} cannot have {count} virtual functions; allowed: 0 to {}", found.total)),
            }
        }
        Asked::Bind { device, driver } => {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if driver.is_empty() || !driver.chars().all(plain) {
                return Err(format!("`{driver}` is no name of a driver, such as `vfio-pci`"));
            }
            Ok(Setting::Driver { device: function(facts, device)?, driver: Some(driver.clone()) })
        }
        Asked::Release { device } => Ok(Setting::Driver { device: function(facts, device)?, driver: None }),
        Asked::Interrupt { number, cpus } => {
            if !facts.interrupts.iter().any(|interrupt| interrupt.number == *number) {
                return Err(format!("there is no interrupt {number}; /proc/interrupts lists them"));
            }
            if cpus.is_empty() || !cpus.is_subset(&facts.cpus) {
                return Err(format!("interrupt {number} cannot go to CPUs `{cpus}`; online: {}", facts.cpus));
            }
            Ok(file(format!("/proc/irq/{number}/smp_affinity_list"), cpus.to_string(), Effect::AtOnce))
        }
    }
}

fn named(facts: &HostFacts, name: &str, value: &str) -> Result<Setting, String> {
    if let Some((_, path, values, effect)) = FILES.iter().find(|(known, ..)| *known == name) {
        check(name, value, *values)?;
        return Ok(file(*path, value, *effect));
    }
    // `kvm_intel.ple_gap`, as on the kernel's command line, or `ple_gap` alone.
    let (module, plain) = name.split_once('.').map_or((None, name), |(module, plain)| (Some(module), plain));
    let of = |table: &[(&str, Values)]| table.iter().find(|(known, _)| *known == plain).map(|(_, values)| *values);
    let (found, values, effect) = match (of(&HARDWARE_PARAMETERS), of(&CORE_PARAMETERS)) {
        (Some(values), _) => (hardware(facts), values, Effect::NewVms),
        (None, Some(values)) => (core(facts), values, Effect::DependsOnKernel),
        (None, None) => {
            let allowed = names().collect::<Vec<_>>().join(", ");
            return Err(format!("`{name}` cannot be set; allowed: {allowed}"));
        }
    };
    let found = found.filter(|found| module.is_none_or(|module| module == found.name));
    let Some(found) = found.filter(|found| found.parameters.contains_key(plain)) else {
        return Err(format!("`{name}` cannot be set here: no loaded module of KVM has that parameter"));
    };
    check(name, value, values)?;
    Ok(parameter(found, plain, value, effect))
}

fn check(name: &str, value: &str, values: Values) -> Result<(), String> {
    let (fits, allowed) = match values {
        Values::Switch => (["0", "1"].contains(&value), "0 and 1".to_owned()),
        Values::UpTo(most) => {
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            (digits && value.parse::<u64>().is_ok_and(|value| value <= most), format!("0 to {most}"))
        }
        Values::OneOf(words) => (words.contains(&value), words.join(", ")),
    };
    if fits { Ok(()) } else { Err(format!("{name} cannot be `{value}`; allowed: {allowed}")) }
}

/// Whether a device goes by this name: its address with or without the domain, or a network interface.
fn goes_by(address: &str, interfaces: &[String], name: &str) -> bool {
    address == name
        || address.strip_prefix("0000:").is_some_and(|short| short == name)
        || interfaces.iter().any(|interface| interface == name)
}

fn physical<'a>(facts: &'a HostFacts, name: &str) -> Result<&'a PhysicalFunction, String> {
    let found = facts.devices.iter().find(|device| goes_by(&device.address, &device.interfaces, name));
    found.ok_or_else(|| {
        let all: Vec<&str> = facts.devices.iter().map(|device| device.address.as_str()).collect();
        match all.is_empty() {
            true => format!("`{name}` can have no virtual functions; no device here can"),
            false => format!("`{name}` can have no virtual functions; allowed: {}", all.join(", ")),
        }
    })
}

/// The address of a virtual function, or of a physical one that stands for all of its own.
fn function(facts: &HostFacts, name: &str) -> Result<String, String> {
    let virtual_ones = facts.devices.iter().flat_map(|device| &device.functions);
    match virtual_ones.map(|function| &function.address).find(|address| goes_by(address, &[], name)) {
        Some(address) => Ok(address.clone()),
        None => physical(facts, name)
            .map(|device| device.address.clone())
            .map_err(|_| format!("`{name}` is neither a virtual function nor a device that can have some")),
    }
}
