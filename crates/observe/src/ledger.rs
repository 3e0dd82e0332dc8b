//! From an observation and prices to a ledger: every account a count times a price, an account of the kernel's own, a
//! bound, or *not observable here*. Pure. docs/live-accounts.md says how each account comes about.

use crate::prices::{UnitPrice, UnitPrices};
use crate::watch::Observation;
use muster_model::ledger::Confidence;
use muster_model::{Account, Amount, Ledger, PeriodFacts};
use std::collections::BTreeMap;

/// The books of an observation. The accounts that hold numbers, and the CPU time of others, add up to all core time.
pub fn ledger(seen: &Observation, prices: &UnitPrices) -> Ledger {
    let cores = seen.allowed.len() as u32;
    let total_ns = seen.wall_ns.saturating_mul(u64::from(cores));
    let parts = Parts::of(seen, prices);
    let steal_ns = seen.counters.steal_ns.unwrap_or(0);
    let polled_ns = seen.sum(|facts| facts.poll_ns).unwrap_or(0);
    let taken_ns = seen.usage.cpu_ns + steal_ns + polled_ns + others_ns(seen) + parts.beside_ns as u64;
    let idle_ns = total_ns.saturating_sub(taken_ns);
    let kernel_ns = system_ns(seen).saturating_sub(parts.inside_ns as u64);
    let mut accounts = BTreeMap::from([
        (
            Account::User,
            accounted(
                seen.usage.user_ns,
                Confidence::Medium,
                "the kernel's tick-based split of the program's CPU time",
            ),
        ),
        (
            Account::Kernel,
            accounted(
                kernel_ns,
                Confidence::Medium,
                "the program's system time, less what halt+wake, IPI and TLB shootdown hold of it",
            ),
        ),
        (Account::Spin, spin(seen, polled_ns)),
        (Account::HaltWake, parts.halt_wake),
        (Account::Ipi, parts.ipi),
        (Account::TlbShootdown, parts.shootdown),
        (Account::ClockEmulation, clock_emulation(seen)),
        (Account::IoService, io_service(seen, idle_ns)),
        (Account::Steal, steal(seen)),
        (
            Account::Idle,
            accounted(idle_ns, Confidence::Medium, "what is left of all vCPU time, others' CPU time taken off"),
        ),
    ]);
    accounts.extend(unseen(seen));
    Ledger { wall_ns: seen.wall_ns, cores, accounts }
}

/// CPU time of everything else on the machine.
pub fn others_ns(seen: &Observation) -> u64 {
    let exact = seen.counters.tasks_ns.map(|tasks_ns| tasks_ns.saturating_sub(seen.usage.cpu_ns));
    exact.or_else(|| seen.sum(|facts| facts.foreign_ns)).unwrap_or(0)
}

/// A count of all periods, stretched over the part of the watch that no period covers.
pub fn count(seen: &Observation, count: impl Fn(&PeriodFacts) -> Option<u64>) -> Option<u64> {
    let stretch = seen.wall_ns as f64 / seen.sampled_ns().max(1) as f64;
    Some((seen.sum(count)? as f64 * stretch.clamp(1.0, 2.0)) as u64)
}

fn system_ns(seen: &Observation) -> u64 {
    seen.usage.cpu_ns.saturating_sub(seen.usage.user_ns)
}

/// What waking costs: its accounts, how much of them lies inside the program's system time, and how much beside it, in
/// time in which the guest counts a vCPU as idle.
struct Parts {
    halt_wake: Amount,
    ipi: Amount,
    shootdown: Amount,
    inside_ns: f64,
    beside_ns: f64,
}

impl Parts {
    fn of(seen: &Observation, prices: &UnitPrices) -> Self {
        let halts = count(seen, |facts| facts.idle_entries);
        let remote = seen.counters.interrupts.map(|interrupts| interrupts.reschedule);
        let halt_wake =
            estimated(halts, difference(prices.wake_halted, prices.wake_awake), "halts (cpuidle usage)", prices)
                .unwrap_or_else(|| unpriced("halts (a cpuidle driver)", "wake.futex.halted and wake.futex.awake"));
        let wakes = halts.map(|halts| halts + remote.unwrap_or(0));
        let ipi = estimated(
            wakes,
            difference(prices.wake_awake, prices.wake_same_cpu),
            "halts and rescheduling interrupts",
            prices,
        )
        .unwrap_or_else(|| unpriced("halts (a cpuidle driver)", "wake.futex.awake and wake.futex.same-cpu"));
        let shootdowns = seen.counters.interrupts.map(|interrupts| interrupts.tlb);
        let shootdown = estimated(shootdowns, prices.shootdown, "TLB interrupts of the machine", prices)
            .unwrap_or_else(|| {
                unpriced("TLB interrupts (/proc/interrupts)", "tlb.munmap.threads-0 and -1 (`muster probe`)")
            });
        let time = |amount: &Amount| amount.time_ns().unwrap_or(0.0);
        let (waking_ns, shooting_ns) = (time(&halt_wake) + time(&ipi), time(&shootdown));
        // The waker pays its part as system time; the rest passes while the woken vCPU comes back from the host.
        let waker_ns =
            halts.unwrap_or(0) as f64 * prices.waker_halted.map_or(waking_price_ns(prices), |price| price.ns);
        let system_ns = system_ns(seen) as f64;
        let inside_ns = (waker_ns.min(waking_ns) + shooting_ns).min(system_ns);
        let beside_ns = waking_ns + shooting_ns - inside_ns;
        Self { halt_wake, ipi, shootdown, inside_ns, beside_ns }
    }
}

fn waking_price_ns(prices: &UnitPrices) -> f64 {
    difference(prices.wake_halted, prices.wake_same_cpu).map_or(0.0, |price| price.ns)
}

fn difference(more: Option<UnitPrice>, less: Option<UnitPrice>) -> Option<UnitPrice> {
    let (more, less) = (more?, less?);
    Some(UnitPrice { ns: (more.ns - less.ns).max(0.0), is_sure: more.is_sure && less.is_sure })
}

fn estimated(count: Option<u64>, price: Option<UnitPrice>, counted: &str, prices: &UnitPrices) -> Option<Amount> {
    let (count, price) = (count?, price?);
    let confidence = if price.is_sure { Confidence::Medium } else { Confidence::Low };
    Some(Amount::Estimated {
        count,
        price_ns: price.ns,
        confidence,
        source: format!("{counted} x price from profile `{}`", prices.source),
    })
}

fn unpriced(counted: &str, priced: &str) -> Amount {
    Amount::NotObservable { reason: format!("takes {counted} and a profile with {priced}") }
}

fn accounted(time_ns: u64, confidence: Confidence, source: &str) -> Amount {
    Amount::Accounted { time_ns, confidence, source: source.to_owned() }
}

fn spin(seen: &Observation, polled_ns: u64) -> Amount {
    match seen.sum(|facts| facts.poll_ns) {
        Some(_) => accounted(
            polled_ns,
            Confidence::Medium,
            "polling idle (cpuidle state POLL); spinning inside the program is part of user and kernel",
        ),
        None => Amount::NotObservable { reason: "polling idle takes a cpuidle driver to be counted".into() },
    }
}

fn steal(seen: &Observation) -> Amount {
    match seen.counters.steal_ns {
        Some(steal_ns) => {
            accounted(steal_ns, Confidence::Medium, "steal time in /proc/stat, as the hypervisor reports it")
        }
        None => Amount::NotObservable { reason: "/proc/stat cannot be read".into() },
    }
}

fn clock_emulation(seen: &Observation) -> Amount {
    let source = &seen.settings.clock_source;
    if source.is_empty() {
        return Amount::NotObservable { reason: "the kernel does not name its clock source".into() };
    }
    if !seen.settings.clock_leaves_guest() {
        return Amount::AtMost {
            time_ns: 0,
            derivation: format!("clock source {source} is read without leaving the guest"),
        };
    }
    Amount::AtMost {
        time_ns: system_ns(seen),
        derivation: format!(
            "clock source {source} is emulated by the VMM and each read is a system call: no more than the program's system time"
        ),
    }
}

fn io_service(seen: &Observation, idle_ns: u64) -> Amount {
    match seen.counters.io_pressure_ns {
        Some(pressure_ns) => Amount::AtMost {
            time_ns: pressure_ns.min(idle_ns),
            derivation:
                "time in which some task of the machine waited for a disk (PSI io, some), and no more than idle".into(),
        },
        None => Amount::NotObservable { reason: "takes pressure stall information (CONFIG_PSI)".into() },
    }
}

/// The accounts that a guest cannot see.
fn unseen(seen: &Observation) -> [(Account, Amount); 4] {
    let counters = |what: &str, event: &str| match seen.settings.has_pmu {
        true => format!("{what} are not read by muster; `perf stat -e {event}` counts them on this machine"),
        false => format!("{what} take hardware performance counters, which this guest does not have"),
    };
    let inside = |what: &str| format!("{what} happen in the host; `muster host` on the host sees them");
    let unseen = |reason: String| Amount::NotObservable { reason };
    [
        (Account::PageWalk, unseen(counters("page walks", "dTLB-load-misses,iTLB-load-misses"))),
        (Account::CacheTransfer, unseen(counters("cache-line transfers", "cache-misses"))),
        (Account::VmmScheduler, unseen(inside("the VMM's scheduling decisions"))),
        (Account::VmmLock, unseen(inside("waits for the VMM's locks"))),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::interrupts::Interrupts;
    use crate::machine::Settings;
    use crate::states::Looks;
    use crate::usage::Usage;
    use crate::watch::Period;
    use muster_model::CpuSet;

    pub(crate) fn prices() -> UnitPrices {
        let price = |ns| Some(UnitPrice { ns, is_sure: true });
        UnitPrices {
            wake_same_cpu: price(1_700.0),
            wake_awake: price(15_700.0),
            wake_halted: price(22_500.0),
            waker_halted: price(9_000.0),
            shootdown: price(4_000.0),
            first_touch: price(500.0),
            source: "test".into(),
        }
    }

    pub(crate) fn observation() -> Observation {
        let facts = PeriodFacts {
            now_ns: 1_000_000_000,
            period_ns: 1_000_000_000,
            active: CpuSet::first(2),
            cpu_ns: 700_000_000,
            user_ns: Some(40_000_000),
            foreign_ns: Some(10_000_000),
            idle_entries: Some(30_000),
            idle_ns: Some(990_000_000),
            poll_entries: Some(0),
            poll_ns: Some(0),
            waiting_ns: Some(0),
            switches: Some(35_000),
            io_calls: None,
            io_bytes: None,
            progress: None,
            threads: 2,
            pairs: None,
        };
        Observation {
            wall_ns: 1_000_000_000,
            allowed: CpuSet::first(2),
            own_ns: 5_000_000,
            usage: Usage { cpu_ns: 700_000_000, user_ns: 40_000_000, minor_faults: 300, refaults: 0 },
            periods: vec![Period {
                facts,
                looks: Looks { looks: 100, none: 0, several: 10 },
                minor_faults: 0,
                threads: Vec::new(),
            }],
            unfinished: None,
            counters: Counters {
                interrupts: Some(Interrupts { reschedule: 100, call: 30_100, tlb: 20, timer: 250 }),
                tasks_ns: Some(720_000_000),
                steal_ns: Some(0),
                cpu_pressure_ns: Some(150_000_000),
                io_pressure_ns: Some(1_000_000),
            },
            looks: Looks { looks: 100, none: 0, several: 10 },
            settings: Settings { clock_source: "tsc".into(), has_cpuidle: true, ..Settings::default() },
            wakes: None,
            channels_used: Vec::new(),
            channels_missing: Vec::new(),
        }
    }

    #[test]
    fn every_account_is_there_and_the_books_balance() {
        let seen = observation();
        let books = ledger(&seen, &prices());
        assert_eq!(books.accounts.keys().copied().collect::<Vec<_>>(), Account::ALL);
        let booked: f64 = books.accounts.values().filter_map(Amount::time_ns).sum();
        let all = booked + others_ns(&seen) as f64;
        assert!((all - books.total_ns()).abs() < 1e3, "{all} of {}: {books:?}", books.total_ns());
    }

    #[test]
    fn waking_is_halts_times_what_halting_adds() {
        let books = ledger(&observation(), &prices());
        let Amount::Estimated { count, price_ns, confidence, .. } = &books.accounts[&Account::HaltWake] else {
            panic!("{books:?}")
        };
        assert_eq!((*count, *price_ns, *confidence), (30_000, 6_800.0, Confidence::Medium));
        assert!(matches!(books.accounts[&Account::Ipi], Amount::Estimated { count: 30_100, .. }));
        assert!(matches!(books.accounts[&Account::TlbShootdown], Amount::Estimated { count: 20, .. }));
    }

    #[test]
    fn what_cannot_be_seen_is_no_number() {
        let mut seen = observation();
        seen.periods[0].facts.idle_entries = None;
        seen.counters = Counters::default();
        let books = ledger(&seen, &UnitPrices::default());
        for account in [
            Account::HaltWake,
            Account::Ipi,
            Account::TlbShootdown,
            Account::PageWalk,
            Account::CacheTransfer,
            Account::VmmScheduler,
            Account::VmmLock,
            Account::IoService,
            Account::Steal,
        ] {
            assert!(matches!(books.accounts[&account], Amount::NotObservable { .. }), "{account:?}: {books:?}");
        }
    }

    #[test]
    fn an_emulated_clock_is_bounded_by_system_time() {
        let mut seen = observation();
        assert!(matches!(
            ledger(&seen, &prices()).accounts[&Account::ClockEmulation],
            Amount::AtMost { time_ns: 0, .. }
        ));
        for source in ["acpi_pm", "hpet", "jiffies"] {
            seen.settings.clock_source = source.into();
            let books = ledger(&seen, &prices());
            assert!(matches!(books.accounts[&Account::ClockEmulation], Amount::AtMost { time_ns: 660_000_000, .. }));
        }
    }

    #[test]
    fn prices_from_elsewhere_are_less_sure() {
        let mut unsure = prices();
        unsure.wake_halted = unsure.wake_halted.map(|price| UnitPrice { is_sure: false, ..price });
        let books = ledger(&observation(), &unsure);
        assert!(matches!(books.accounts[&Account::HaltWake], Amount::Estimated { confidence: Confidence::Low, .. }));
    }

    #[test]
    fn absurd_prices_do_not_overdraw() {
        let mut dear = prices();
        dear.wake_halted = Some(UnitPrice { ns: 1e9, is_sure: true });
        let books = ledger(&observation(), &dear);
        assert!(matches!(books.accounts[&Account::Idle], Amount::Accounted { time_ns: 0, .. }), "{books:?}");
    }
}
