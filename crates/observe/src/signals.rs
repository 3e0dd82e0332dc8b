//! The rates that an explanation rests on, in reading order. Pure.

use crate::ledger::others_ns;
use crate::watch::Observation;
use muster_model::results::Signal;

/// The signals of an observation.
pub fn signals(seen: &Observation) -> Vec<Signal> {
    let mut signals = Vec::new();
    let mut tell = |name: &str, value: Option<f64>, unit: &str| {
        let signal = |value| Signal { name: name.to_owned(), value, unit: unit.to_owned() };
        signals.extend(value.filter(|value| value.is_finite()).map(signal));
    };
    let wall_s = seen.wall_ns.max(1) as f64 / 1e9;
    let sampled_s = seen.sampled_ns().max(1) as f64 / 1e9;
    let cpus = |time_ns: u64| Some(time_ns as f64 / 1e9 / wall_s);
    let per_s = |count: u64| count as f64 / wall_s;
    tell("CPU rate of the program", cpus(seen.usage.cpu_ns), "CPUs");
    tell("... in user mode", cpus(seen.usage.user_ns), "CPUs");
    tell("CPU rate of others", cpus(others_ns(seen)), "CPUs");
    tell("... muster itself among them", cpus(seen.own_ns), "CPUs");
    tell("halts", seen.sum(|facts| facts.idle_entries).map(|count| count as f64 / sampled_s), "1/s");
    tell("polling idle", seen.sum(|facts| facts.poll_ns).map(|time_ns| time_ns as f64 / 1e9 / sampled_s), "CPUs");
    tell("switch-ins", seen.sum(|facts| facts.switches).map(|count| count as f64 / sampled_s), "1/s");
    let waiting = seen.sum(|facts| facts.waiting_ns).map(|time_ns| time_ns as f64 / 1e9 / sampled_s);
    tell("runnable threads without a vCPU", waiting, "threads");
    tell("time with no thread runnable", seen.looks.outside().map(|share| 100.0 * share), "%");
    tell("time with several threads runnable", seen.looks.together().map(|share| 100.0 * share), "%");
    let interrupts = seen.counters.interrupts;
    tell("rescheduling interrupts", interrupts.map(|i| per_s(i.reschedule)), "1/s");
    tell("function call interrupts", interrupts.map(|i| per_s(i.call)), "1/s");
    tell("TLB interrupts", interrupts.map(|i| per_s(i.tlb)), "1/s");
    tell("minor page faults", Some(per_s(seen.usage.minor_faults)), "1/s");
    tell("... on memory the process had before", Some(per_s(seen.usage.refaults)), "1/s");
    if let Some(wakes) = &seen.wakes {
        let attached_s = wakes.window.window_ns.max(1) as f64 / 1e9;
        let totals = &wakes.totals;
        tell("wake-ups", Some(totals.wakes as f64 / attached_s), "1/s");
        let kinds = [
            ("its waker's vCPU", totals.same_cpu),
            ("an idle vCPU", totals.idle_cpu),
            ("a busy vCPU", totals.busy_cpu),
        ];
        for (place, latency) in kinds {
            tell(&format!("wake-ups on {place}"), Some(latency.count as f64 / attached_s), "1/s");
            tell("... until the thread runs", latency.mean_ns().map(|ns| ns / 1e3), "us");
        }
        tell("sleep before a wake-up, median", totals.median_sleep_us(), "us");
        tell("share of time observed by BPF", Some(100.0 * attached_s / wall_s), "%");
        tell("price of a tracepoint", wakes.price_ns, "ns");
        let all: u64 = wakes.window.pairs.iter().map(|pair| pair.count).sum();
        for pair in wakes.window.pairs.iter().take(TOP_PAIRS) {
            let share = 100.0 * pair.count as f64 / all.max(1) as f64;
            let waker = if pair.waker.0 == 0 { "an interrupt".to_owned() } else { format!("thread {}", pair.waker.0) };
            tell(&format!("{waker} wakes thread {}", pair.wakee.0), Some(share), "% of wake-ups");
        }
    }
    signals
}

/// So many pairs of waker and wakee are told.
const TOP_PAIRS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::observation;
    use crate::wakes::{Latency, Totals, WakesSeen};
    use muster_model::{ThreadId, WakePair, WakeWindow};

    #[test]
    fn rates_are_per_second_of_their_own_time() {
        let mut seen = observation();
        let idle_cpu = Latency { count: 300, sum_ns: 6_000_000 };
        let totals = Totals { wakes: 400, idle_cpu, ..Totals::default() };
        let pairs = vec![WakePair { waker: ThreadId(0), wakee: ThreadId(7), count: 400 }];
        let window = WakeWindow { window_ns: 100_000_000, pairs, threads: Vec::new() };
        seen.wakes = Some(WakesSeen { totals, window, price_ns: None });
        let signals = signals(&seen);
        let value = |name: &str| signals.iter().find(|signal| signal.name == name).map(|signal| signal.value);
        assert_eq!(value("CPU rate of the program"), Some(0.7));
        assert_eq!(value("halts"), Some(30_000.0));
        assert_eq!(value("wake-ups"), Some(4_000.0));
        assert_eq!(value("wake-ups on an idle vCPU"), Some(3_000.0));
        assert_eq!(value("... until the thread runs"), Some(20.0));
        assert_eq!(value("an interrupt wakes thread 7"), Some(100.0));
        assert_eq!(value("price of a tracepoint"), None);
    }
}
