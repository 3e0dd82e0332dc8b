//! How a person reads a profile: which prices stand beside each other, and what they mean in a sentence. Pure.

use muster_model::profile::names::{self, CLOCK_PATHS, CLOCK_READERS, PAGE_SIZES, REMOTE_SETTINGS, TLB_OPERATIONS};
use muster_model::profile::names::{
    WAKE_CHANNELS, chase, clock, tlb_processes, tlb_threads, wake, wake_same_cpu, waker,
};
use muster_model::{Distance, Price, Profile};

/// Prices that belong side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Table<'a> {
    /// What they are prices of.
    pub title: &'static str,
    /// Column headings.
    pub columns: Vec<&'static str>,
    /// A label and one cell per column; a cell is empty where the profile has no such price.
    pub rows: Vec<(String, Vec<Option<&'a Price>>)>,
}

/// The prices of a profile in groups, in reading order; groups and rows without a price are left out.
pub fn tables(profile: &Profile) -> Vec<Table<'_>> {
    let all = [wakes(profile), clocks(profile), services(profile), changes(profile), loads(profile), lines(profile)];
    let mut tables = Vec::from(all);
    for table in &mut tables {
        table.rows.retain(|(_, cells)| cells.iter().any(Option::is_some));
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn row(profile: &Profile, label: impl Into<String>, names: Vec<String>) -> (String, Vec<Option<&Price>>) {
    (label.into(), names.iter().map(|name| profile.prices.get(name)).collect())
}

fn wakes(profile: &Profile) -> Table<'_> {
    let mut rows = vec![row(profile, "same CPU (A)", WAKE_CHANNELS.map(wake_same_cpu).into())];
    for distance in &Distance::ALL[1..] {
        for setting in REMOTE_SETTINGS {
            let label = format!("{}, {}", setting_words(setting), distance_words(*distance));
            let names = WAKE_CHANNELS.map(|channel| wake(channel, setting, *distance));
            rows.push(row(profile, label, names.into()));
        }
        for setting in REMOTE_SETTINGS {
            let label = format!("  the waker's call, {setting}, {}", distance_words(*distance));
            let names = WAKE_CHANNELS.map(|channel| waker(channel, setting, *distance));
            rows.push(row(profile, label, names.into()));
        }
    }
    Table { title: "Waking a blocked thread, one way", columns: WAKE_CHANNELS.into(), rows }
}

fn setting_words(setting: &str) -> &'static str {
    match setting {
        "awake" => "CPU kept awake (B)",
        "polling" => "CPU idle, polling",
        "halted" => "CPU just halted (C)",
        _ => "CPU halted 2 ms ago",
    }
}

fn distance_words(distance: Distance) -> &'static str {
    match distance {
        Distance::SameCpu => "same CPU",
        Distance::SmtSibling => "SMT sibling",
        Distance::SameLlc => "same LLC",
        Distance::OtherLlc => "other LLC",
        Distance::OtherNode => "other node",
    }
}

fn clocks(profile: &Profile) -> Table<'_> {
    let to_row = |path| row(profile, path, CLOCK_READERS.map(|readers| clock(path, readers)).into());
    let rows = CLOCK_PATHS.into_iter().map(to_row).collect();
    Table { title: "Reading the clock", columns: vec!["alone", "all CPUs at once"], rows }
}

fn services(profile: &Profile) -> Table<'_> {
    let single = [
        ("system call (getppid)", names::SYSCALL),
        ("context switch", names::CONTEXT_SWITCH),
        ("start and join a thread", "thread.create"),
        ("fork, exit, wait", "process.fork"),
        ("fork, exec, wait", "process.fork-exec"),
        ("posix_spawn, wait", "process.spawn"),
        ("mmap + munmap, not touched", "memory.map-unmap"),
        ("first touch of 4 KiB", "memory.first-touch.4k"),
        ("first touch of 2 MiB", "memory.first-touch.2m"),
    ];
    let rows = single.into_iter().map(|(label, name)| row(profile, label, vec![name.into()])).collect();
    Table { title: "Kernel services", columns: vec!["price"], rows }
}

fn changes(profile: &Profile) -> Table<'_> {
    let mut rows = Vec::new();
    for operation in TLB_OPERATIONS {
        for others in company(profile, operation) {
            let names = vec![tlb_threads(operation, others), tlb_processes(operation, others)];
            rows.push(row(profile, format!("{operation}, {others} others running"), names));
        }
    }
    Table {
        title: "Changing an address space (TLB shootdown)",
        columns: vec!["beside threads", "beside processes"],
        rows,
    }
}

/// The numbers of others an operation was measured with, ascending.
fn company(profile: &Profile, operation: &str) -> Vec<usize> {
    let prefix = tlb_threads(operation, 0);
    let prefix = prefix.trim_end_matches('0');
    let mut sizes: Vec<usize> =
        profile.prices.keys().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    sizes.sort_unstable();
    sizes
}

fn loads(profile: &Profile) -> Table<'_> {
    let mut rows: Vec<_> = working_sets(profile)
        .into_iter()
        .map(|kib| {
            row(
                profile,
                format!("load at random in {}", bytes_words(kib << 10)),
                PAGE_SIZES.map(|page| chase(page, kib)).into(),
            )
        })
        .collect();
    rows.push(row(profile, "page walk (difference)", vec![names::PAGE_WALK.into()]));
    Table { title: "Memory", columns: vec!["4 KiB pages", "2 MiB pages"], rows }
}

/// Working sets that were measured, KiB, ascending.
fn working_sets(profile: &Profile) -> Vec<u64> {
    let kib = |name: &String| name.strip_prefix("chase.")?.split_once('.')?.1.strip_suffix('k')?.parse().ok();
    let mut sizes: Vec<u64> = profile.prices.keys().filter_map(kib).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn lines(profile: &Profile) -> Table<'_> {
    let to_row = |&distance: &Distance| row(profile, distance_words(distance), vec![names::cache_transfer(distance)]);
    let rows = Distance::ALL[1..].iter().map(to_row).collect();
    Table { title: "Moving a modified cache line", columns: vec!["one way"], rows }
}

/// A size as a person writes it.
pub fn bytes_words(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b.div_ceil(1 << 10)),
    }
}

/// What the machine is, as (name, value) in reading order; what is unknown is left out.
pub fn machine(profile: &Profile) -> Vec<(&'static str, String)> {
    let platform = &profile.platform;
    let idle = match platform.guest_halt_poll_ns {
        Some(0) => "halts at once (guest_halt_poll_ns = 0)".to_owned(),
        Some(poll_ns) => format!("polls up to {} us, then halts", poll_ns / 1000),
        None if platform.cpuidle_driver == "none" => "no cpuidle driver".to_owned(),
        None => "decided by the governor".to_owned(),
    };
    let caches: Vec<String> = platform
        .caches
        .iter()
        .map(|cache| format!("L{} {} for {}", cache.level, bytes_words(cache.size_bytes), cpus(cache.shared_by)))
        .collect();
    let steal = platform.steal_share.map_or(String::new(), |share| format!("{:.2} % since boot", share * 100.0));
    let pool = platform.huge_pages_2m.filter(|&count| count > 0);
    let pool = pool.map_or(String::new(), |count| format!(", {count} set aside"));
    let rows = [
        ("CPU", platform.cpu.clone()),
        ("CPUs", shape(profile)),
        ("caches", caches.join(", ")),
        ("memory", platform.memory_bytes.map_or(String::new(), |bytes| bytes_words(bytes >> 20 << 20))),
        ("kernel", platform.kernel.clone()),
        ("hypervisor", platform.hypervisor.clone()),
        ("idle", format!("{}, governor {}; {idle}", platform.cpuidle_driver, platform.cpuidle_governor)),
        ("clock source", platform.clock_source.clone()),
        ("huge pages", format!("{}{pool}", platform.transparent_huge_pages)),
        ("steal", steal),
        ("mitigations", platform.mitigations.keys().cloned().collect::<Vec<_>>().join(", ")),
    ];
    rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn cpus(count: u32) -> String {
    if count == 1 { "1 CPU".into() } else { format!("{count} CPUs") }
}

fn shape(profile: &Profile) -> String {
    let topology = &profile.topology;
    let distinct = |pick: fn(&muster_model::Cpu) -> u32| {
        let groups: std::collections::BTreeSet<u32> =
            topology.all().iter().filter_map(|number| topology.cpu(number)).map(pick).collect();
        groups.len()
    };
    let parts = [
        (distinct(|cpu| cpu.core), "core"),
        (distinct(|cpu| cpu.llc), "LLC domain"),
        (distinct(|cpu| cpu.node), "NUMA node"),
        (distinct(|cpu| cpu.socket), "socket"),
    ];
    let parts = parts.map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }));
    format!("{} ({})", topology.all(), parts.join(", "))
}

/// What the prices mean, one sentence each; only what stands out.
pub fn hints(profile: &Profile) -> Vec<String> {
    [
        halted_hint(profile),
        parked_hint(profile),
        polling_hint(profile),
        clock_hint(profile),
        crowd_hint(profile),
        shootdown_hint(profile),
        walk_hint(profile),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The nearest other CPU to which waking was measured.
fn nearest(profile: &Profile) -> Option<Distance> {
    Distance::ALL[1..].iter().copied().find(|&distance| profile.prices.contains_key(&wake("futex", "halted", distance)))
}

fn halted_hint(profile: &Profile) -> Option<String> {
    let distance = nearest(profile)?;
    let halted_ns = profile.price_ns(&wake("futex", "halted", distance))?;
    let same_ns = profile.price_ns(&wake_same_cpu("futex")).filter(|&ns| ns > 0.0)?;
    let awake_ns = profile.price_ns(&wake("futex", "awake", distance)).filter(|&ns| ns > 0.0)?;
    Some(format!(
        "A wake-up that finds another CPU halted costs {:.1} times one on the waker's own CPU, and {:.1} times one that \
         finds it awake.",
        halted_ns / same_ns,
        halted_ns / awake_ns
    ))
}

fn parked_hint(profile: &Profile) -> Option<String> {
    let distance = nearest(profile)?;
    let halted_ns = profile.price_ns(&wake("futex", "halted", distance)).filter(|&ns| ns > 0.0)?;
    let parked_ns = profile.price_ns(&wake("futex", "parked", distance))?;
    (parked_ns > 1.3 * halted_ns).then(|| {
        format!(
            "One that finds it halted for 2 ms costs {:.1} times as much again: by then the host no longer polls for it, \
             or the core sleeps deeper.",
            parked_ns / halted_ns
        )
    })
}

fn polling_hint(profile: &Profile) -> Option<String> {
    let distance = nearest(profile)?;
    let halted_ns = profile.price_ns(&wake("futex", "halted", distance))?;
    let polling_ns = profile.price_ns(&wake("futex", "polling", distance)).filter(|&ns| ns > 0.0)?;
    Some(format!(
        "Idle CPUs poll here before they halt: a wake-up inside that time is {:.1} times as cheap as one after it.",
        halted_ns / polling_ns
    ))
}

fn clock_hint(profile: &Profile) -> Option<String> {
    let call_ns = profile.price_ns(&clock("syscall", "alone"))?;
    let read_ns = profile.price_ns(&clock("monotonic", "alone"))?;
    (read_ns > 0.7 * call_ns).then(|| {
        format!(
            "Every reading of the clock is a system call: clock source {} has no user-space path.",
            profile.platform.clock_source
        )
    })
}

fn crowd_hint(profile: &Profile) -> Option<String> {
    let alone_ns = profile.price_ns(&clock("monotonic", "alone")).filter(|&ns| ns > 0.0)?;
    let crowd_ns = profile.price_ns(&clock("monotonic", "all-cpus"))?;
    (crowd_ns > 1.5 * alone_ns).then(|| {
        format!("Reading the clock costs {:.1} times as much when all CPUs do it at once.", crowd_ns / alone_ns)
    })
}

fn shootdown_hint(profile: &Profile) -> Option<String> {
    let most = company(profile, "munmap").into_iter().next_back().filter(|&others| others > 0)?;
    let alone_ns = profile.price_ns(&tlb_threads("munmap", 0)).filter(|&ns| ns > 0.0)?;
    let crowd_ns = profile.price_ns(&tlb_threads("munmap", most))?;
    let whose = if most == 1 { "one other thread".to_owned() } else { format!("{most} other threads") };
    (crowd_ns > 1.5 * alone_ns).then(|| {
        format!(
            "Unmapping a page costs {:.1} times as much while {whose} of the process run{}.",
            crowd_ns / alone_ns,
            if most == 1 { "s" } else { "" }
        )
    })
}

fn walk_hint(profile: &Profile) -> Option<String> {
    let largest = working_sets(profile).into_iter().next_back()?;
    let walk_ns = profile.price_ns(names::PAGE_WALK)?;
    let large_ns = profile.price_ns(&chase("2m", largest)).filter(|&ns| ns > 0.0)?;
    Some(format!(
        "In {} at random, page walks add {:.0} % to every load with 4 KiB pages; huge pages save that.",
        bytes_words(largest << 10),
        walk_ns / large_ns * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::{PriceKind, Topology, profile::Platform};

    fn profile(prices: &[(&str, f64)]) -> Profile {
        let price = |ns| Price { ns, spread_ns: None, kind: PriceKind::Measured, source: String::new(), noisy: false };
        Profile {
            name: "test".into(),
            description: String::new(),
            platform: Platform { clock_source: "hpet".into(), ..Platform::default() },
            topology: Topology::regular(2, 1, 2, 1).unwrap(),
            prices: prices.iter().map(|&(name, ns)| (name.to_owned(), price(ns))).collect(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn every_measured_name_has_its_place() {
        let measured = [
            "wake.futex.same-cpu",
            "wake.pipe.halted.other-node",
            "waker.signal.awake.same-llc",
            "clock.rdtsc.alone",
            "syscall",
            "context-switch",
            "thread.create",
            "process.spawn",
            "memory.map-unmap",
            "memory.first-touch.2m",
            "tlb.munmap.threads-47",
            "tlb.churn.processes-47",
            "tlb.churn.threads-47",
            "chase.4k.16k",
            "chase.2m.262144k",
            "page-walk.4k",
            "cache-transfer.smt-sibling",
        ];
        let profile = profile(&measured.map(|name| (name, 1.0)));
        let tables = tables(&profile);
        let cells = tables.iter().flat_map(|table| &table.rows).flat_map(|(_, cells)| cells).flatten().count();
        assert_eq!(cells, measured.len());
        assert!(tables.iter().all(|table| table.rows.iter().all(|(_, cells)| cells.len() <= table.columns.len())));
    }

    #[test]
    fn nothing_measured_is_nothing_to_show() {
        assert!(tables(&profile(&[])).is_empty());
        assert!(hints(&profile(&[])).is_empty());
    }

    #[test]
    fn hints_say_what_stands_out() {
        let hints = hints(&profile(&[
            ("wake.futex.same-cpu", 2.0),
            ("wake.futex.awake.same-llc", 10.0),
            ("wake.futex.halted.same-llc", 20.0),
            ("clock.monotonic.alone", 100.0),
            ("clock.monotonic.all-cpus", 900.0),
            ("clock.syscall.alone", 110.0),
            ("tlb.munmap.threads-0", 1.0),
            ("tlb.munmap.threads-1", 8.0),
        ]));
        let expected =
            ["10.0 times", "has no user-space path", "9.0 times", "8.0 times as much while one other thread"];
        assert_eq!(hints.len(), expected.len(), "{hints:?}");
        for (hint, part) in hints.iter().zip(expected) {
            assert!(hint.contains(part), "{hint}");
        }
    }

    #[test]
    fn the_machine_is_described_without_what_is_unknown() {
        let rows = machine(&profile(&[]));
        assert_eq!(rows[0], ("CPUs", "0-3 (4 cores, 2 LLC domains, 2 NUMA nodes, 2 sockets)".to_owned()));
        assert!(rows.iter().all(|(name, _)| *name != "memory"));
        assert_eq!(bytes_words(48 << 10), "48 KiB");
        assert_eq!(bytes_words(3 << 30), "3 GiB");
    }
}
