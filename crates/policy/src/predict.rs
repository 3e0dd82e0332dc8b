//! What a remedy would give back: plain signals of a running program and measured prices in, predicted ratios out.
//!
//! The model is one equation, read off the mechanism (Gleaner, section 2). A program that keeps `U` CPUs busy and lets
//! its vCPUs halt `E` times a second pays, for every halt, a wake-up of a halted vCPU. What is left of `U` after that
//! is work, `W`. With a remedy each of the `E` wake-ups costs another price, so that one second of today's work takes
//!
//! ```text
//! T = (W + E x price) / CPUs the program can use + X
//! ```
//!
//! where `X` is the part of that second in which nobody of the program ran or was being woken: it waited for the
//! outside. The speed is `1 / T`. `W`, `X` and the prices are uncertain, and so is the answer: a [`Range`] runs from
//! everything against the remedy to everything for it.

use crate::consolidate::Prices;
use muster_model::results::Range;
use serde::{Deserialize, Serialize};

/// What the predictions start from: rates per second of wall time while the program may use all of `vcpus`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WakeSignals {
    /// The vCPUs the program may use.
    pub vcpus: u32,
    /// CPUs the program keeps busy, 0 to `vcpus`.
    pub cpu_rate: f64,
    /// Part of `cpu_rate` in user mode: work whatever happens.
    pub user_rate: Option<f64>,
    /// Entries per second into idle states that halt (not into guest polling), over the program's vCPUs.
    pub halts_per_s: f64,
    /// CPUs that poll in the guest's idle loop, 0 to `vcpus`.
    pub polling_rate: f64,
    /// How often a second a thread of the program blocks (voluntary context switches).
    pub blocks_per_s: Option<f64>,
    /// Share of the time, 0 to 1, in which no thread of the program ran or was being woken, where that was seen.
    pub outside: Option<f64>,
}

/// What consolidation would do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// The number of vCPUs that is best, fewer than the program may use now.
    pub vcpus: u32,
    /// Speed relative to now.
    pub speed: Range,
    /// CPU time per unit of work relative to now.
    pub cpu_per_work: Range,
}

/// The CPU time that one halt costs the guest, in wake-up latencies, and how far that is off: the waker's exit to send
/// the IPI, the way out of the idle loop on the other side and both context switches, less the time in which neither
/// side's guest code runs.
const HALT_COST: Range = Range { low: 0.8, value: 1.0, high: 1.2 };

/// A wake-up of a halted vCPU takes up to this many measured latencies in a program with a life of its own: its caches
/// are colder than the probe's, and the host may have stopped polling.
const LATENCY_IN_PROGRAM: f64 = 1.5;

/// From this share of all its vCPUs a program's CPUs are taken.
const SATURATED: f64 = 0.8;

/// Blocks per CPU second from which a program whose vCPUs hardly ever halt is one of threads that block each other.
const CONTENDED_BLOCKS: f64 = 2_000.0;

/// What consolidating the program's threads onto fewer vCPUs would do; `None` where the signals cannot tell: with one
/// vCPU, with signals that are no numbers, and where [`hides_contention`].
pub fn consolidation_gain(signals: &WakeSignals, prices: &Prices) -> Option<Gain> {
    if signals.vcpus < 2 || !signals.is_sane() || hides_contention(signals) {
        return None;
    }
    let gain = |vcpus| consolidated(signals, prices, vcpus);
    (1..signals.vcpus).map(gain).max_by(|a, b| a.speed.value.total_cmp(&b.speed.value))
}

/// Whether the program takes all its vCPUs, hardly ever lets one halt, and yet its threads block thousands of times a
/// second: they may gain from fewer vCPUs (less contention) or lose (less work at a time), and no idle signal tells
/// which (sysbench mutex gains 1.46 on one of two, stress-ng futex loses 0.40).
pub fn hides_contention(signals: &WakeSignals) -> bool {
    let halts_matter = signals.halts_per_s > 0.1 * signals.blocks_per_s.unwrap_or(0.0);
    let saturated = signals.cpu_rate > SATURATED * f64::from(signals.vcpus);
    let blocks_per_cpu_s = signals.blocks_per_s.unwrap_or(0.0) / signals.cpu_rate.max(1e-9);
    saturated && !halts_matter && blocks_per_cpu_s > CONTENDED_BLOCKS
}

/// What keeping idle vCPUs busy with lowest-priority pause loops would do: wake-ups find their vCPU awake, and all
/// vCPUs are busy all the time.
pub fn awake_gain(signals: &WakeSignals, prices: &Prices) -> Option<Gain> {
    let burnt = |_: f64, time: f64| f64::from(signals.vcpus) * time;
    not_halting(signals, prices, prices.wake_awake_ns, |_, _| 1.0, burnt)
}

/// What guest halt polling up to `limit_ns` would do. A vCPU that polls is woken by a store, not an IPI, at about the
/// price of a wake-up on the same CPU; idle times longer than the limit still end in a halt.
pub fn poll_gain(signals: &WakeSignals, prices: &Prices, limit_ns: u64) -> Option<Gain> {
    let limit = limit_ns as f64 / 1e9;
    let mean_idle =
        |busy: f64, time: f64| (f64::from(signals.vcpus) * time - busy).max(0.0) / signals.halts_per_s.max(1e-9);
    // Idle times of one length on average are taken as exponentially distributed.
    let caught = |busy: f64, time: f64| 1.0 - (-limit / mean_idle(busy, time).max(1e-12)).exp();
    let burnt = |busy: f64, time: f64| {
        let polled = signals.halts_per_s * mean_idle(busy, time) * caught(busy, time);
        (busy + polled).min(f64::from(signals.vcpus) * time)
    };
    not_halting(signals, prices, prices.wake_same_cpu_ns, caught, burnt)
}

impl WakeSignals {
    fn is_sane(&self) -> bool {
        let rates = [self.cpu_rate, self.halts_per_s, self.polling_rate];
        rates
            .iter()
            .chain(&self.user_rate)
            .chain(&self.blocks_per_s)
            .chain(&self.outside)
            .all(|r| r.is_finite() && *r >= 0.0)
    }

    /// CPU time per second that the program costs the machine now, polling included.
    fn burnt_now(&self) -> f64 {
        (self.cpu_rate + self.polling_rate).max(1e-9)
    }
}

/// One reading of the signals: what a second of now consists of.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// CPU time that no remedy takes away.
    work: f64,
    /// Time in which nobody of the program ran or was being woken.
    outside: f64,
    /// Time per halt in which a vCPU was on its way back from the host and nobody was charged, in seconds.
    latent: f64,
}

/// The readings for, between and against a remedy.
fn cases(signals: &WakeSignals, prices: &Prices) -> [Case; 3] {
    let halts = signals.halts_per_s * prices.wake_halted_ns / 1e9;
    let floor = signals.user_rate.unwrap_or(0.0).min(signals.cpu_rate);
    let work = |share: f64| (signals.cpu_rate - share * halts).max(floor);
    // Time in which nobody is charged is time outside, or time in which a vCPU was on its way back from the host.
    let uncharged = (1.0 - signals.cpu_rate).max(0.0);
    let least = (uncharged - (LATENCY_IN_PROGRAM - HALT_COST.value) * halts).max(0.0);
    let most = (1.0 - signals.cpu_rate + overlap(work(HALT_COST.value), signals.vcpus)).clamp(0.0, 1.0);
    let outside = match signals.outside {
        Some(seen) => [seen; 3],
        None => [least, (least + most) / 2.0, most],
    };
    let latent = |outside: f64| (uncharged - outside).max(0.0) / signals.halts_per_s.max(1e-9);
    let case = |share, outside| Case { work: work(share), outside, latent: latent(outside) };
    [case(HALT_COST.high, outside[0]), case(HALT_COST.value, outside[1]), case(HALT_COST.low, outside[2])]
}

/// How much of `work` is done at the same time as other work, if threads are busy independently of each other.
fn overlap(work: f64, vcpus: u32) -> f64 {
    let n = f64::from(vcpus);
    let nobody_works = (1.0 - (work / n).min(1.0)).powf(n);
    (nobody_works - 1.0 + work).max(0.0)
}

/// The gain of running on `vcpus` of the vCPUs.
fn consolidated(signals: &WakeSignals, prices: &Prices, vcpus: u32) -> Gain {
    let chains = signals.cpu_rate.max(1.0);
    let width = f64::from(vcpus).min(chains);
    // A wake-up meets its own vCPU, a busy one, or, where the vCPUs that are left are not full, a halted one.
    let local = 1.0 / f64::from(vcpus);
    let outcome = cases(signals, prices).map(|case| {
        let busy = |price_ns: f64| case.work + signals.halts_per_s * price_ns / 1e9;
        let halted = (1.0 - local) * (1.0 - busy(prices.wake_same_cpu_ns) / f64::from(vcpus)).max(0.0);
        let awake = 1.0 - local - halted;
        let price_ns = local * prices.wake_same_cpu_ns + awake * prices.wake_awake_ns + halted * prices.wake_halted_ns;
        let latent = signals.halts_per_s * halted * case.latent;
        (busy(price_ns) / width + latent + case.outside, busy(price_ns))
    });
    Gain { vcpus, ..gain(signals, outcome) }
}

/// The gain of a remedy that keeps vCPUs from halting: `caught` of the halts cost `price_ns` instead.
fn not_halting(
    signals: &WakeSignals,
    prices: &Prices,
    price_ns: f64,
    caught: impl Fn(f64, f64) -> f64,
    burnt: impl Fn(f64, f64) -> f64,
) -> Option<Gain> {
    if !signals.is_sane() || signals.vcpus == 0 {
        return None;
    }
    let chains = signals.cpu_rate.max(1.0);
    let outcome = cases(signals, prices).map(|case| {
        let at = |share: f64| {
            let price_ns = share * price_ns + (1.0 - share) * prices.wake_halted_ns;
            let busy = case.work + signals.halts_per_s * price_ns / 1e9;
            let latent = signals.halts_per_s * (1.0 - share) * case.latent;
            (busy, busy / chains + latent + case.outside)
        };
        // How many halts are caught depends on how long idle times are, which depends on how many are caught.
        let share = (0..8).fold(1.0, |share, _| {
            let (busy, time) = at(share);
            caught(busy, time)
        });
        let (busy, time) = at(share);
        (time, burnt(busy, time))
    });
    Some(Gain { vcpus: signals.vcpus, ..gain(signals, outcome) })
}

/// Times and CPU times of best, middle and worst case, relative to one second of now, as ratios.
fn gain(signals: &WakeSignals, outcome: [(f64, f64); 3]) -> Gain {
    let [best, middle, worst] = outcome;
    let speed = |time: f64| 1.0 / time.max(1e-3);
    let cpu = |busy: f64| busy / signals.burnt_now();
    let ordered = |a: f64, value: f64, b: f64| Range { low: a.min(b).min(value), value, high: a.max(b).max(value) };
    Gain {
        vcpus: signals.vcpus,
        speed: ordered(speed(worst.0), speed(middle.0), speed(best.0)),
        cpu_per_work: ordered(cpu(best.1), cpu(middle.1), cpu(worst.1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Futex wake-ups on the 2-vCPU guest of docs/live-accounts.md.
    const PRICES: Prices = Prices { wake_same_cpu_ns: 1_700.0, wake_awake_ns: 15_700.0, wake_halted_ns: 22_500.0 };

    fn signals(cpu_rate: f64, halts_per_s: f64) -> WakeSignals {
        WakeSignals {
            vcpus: 2,
            cpu_rate,
            user_rate: None,
            halts_per_s,
            polling_rate: 0.0,
            blocks_per_s: None,
            outside: None,
        }
    }

    fn one_vcpu(cpu_rate: f64, halts_per_s: f64) -> Gain {
        consolidation_gain(&signals(cpu_rate, halts_per_s), &PRICES).expect("idle signals suffice")
    }

    #[test]
    fn programs_that_do_little_but_wake_gain_in_speed_and_cost() {
        // The winners' corner of the measured plane: gains of 2.5 and more, at 0.08 to 0.38 of the CPU time.
        for (cpu_rate, halts_per_s) in [(0.70, 25e3), (0.70, 28e3), (0.78, 30e3), (0.86, 35e3), (0.86, 39e3)] {
            let gain = one_vcpu(cpu_rate, halts_per_s);
            assert!(
                gain.vcpus == 1 && gain.speed.value > 1.9 && gain.speed.low > 1.1,
                "{cpu_rate} {halts_per_s}: {gain:?}"
            );
            assert!(gain.cpu_per_work.value < 0.5, "{gain:?}");
        }
    }

    #[test]
    fn programs_that_need_both_vcpus_lose() {
        for (cpu_rate, halts_per_s) in
            [(0.99, 500.0), (1.35, 13e3), (1.5, 13e3), (1.75, 5e3), (1.95, 200.0), (2.0, 0.0)]
        {
            let gain = one_vcpu(cpu_rate, halts_per_s);
            assert!(gain.speed.value < 1.0, "{cpu_rate} {halts_per_s}: {gain:?}");
        }
        assert!(one_vcpu(1.95, 200.0).speed.value < 0.55);
    }

    #[test]
    fn a_program_that_waits_for_the_outside_saves_cpu_and_little_time() {
        let gain = one_vcpu(0.10, 3e3);
        assert!((0.95..1.15).contains(&gain.speed.value), "{gain:?}");
        assert!(gain.cpu_per_work.value < 0.6, "{gain:?}");
    }

    #[test]
    fn polling_gives_speed_and_consolidation_costs_less() {
        // redis with one client: polling 3.1 times as fast at 0.62 of the CPU time, consolidated 2.6 at 0.38.
        let redis = signals(0.85, 32e3);
        let poll = poll_gain(&redis, &PRICES, 200_000).unwrap();
        let consolidated = consolidation_gain(&redis, &PRICES).unwrap();
        let awake = awake_gain(&redis, &PRICES).unwrap();
        assert!(poll.speed.value > 2.0 && poll.cpu_per_work.value < 0.9, "{poll:?}");
        assert!(consolidated.cpu_per_work.value < 0.7 * poll.cpu_per_work.value, "{consolidated:?} {poll:?}");
        assert!((1.2..2.0).contains(&awake.speed.value) && awake.speed.value < poll.speed.value, "{awake:?}");
    }

    #[test]
    fn a_guest_that_polls_has_nothing_to_gain_in_speed() {
        let polling = WakeSignals { polling_rate: 1.0, ..signals(0.95, 50.0) };
        for gain in [consolidation_gain(&polling, &PRICES), poll_gain(&polling, &PRICES, 200_000)] {
            let gain = gain.unwrap();
            assert!(gain.speed.value < 1.05, "{gain:?}");
        }
    }

    #[test]
    fn where_idle_signals_cannot_tell_nothing_is_said() {
        let mutex = WakeSignals { blocks_per_s: Some(40e3), ..signals(1.82, 152.0) };
        assert!(hides_contention(&mutex));
        assert_eq!(consolidation_gain(&mutex, &PRICES), None);
        let compute = WakeSignals { blocks_per_s: Some(300.0), ..signals(1.9, 152.0) };
        assert!(consolidation_gain(&compute, &PRICES).is_some());
        assert_eq!(consolidation_gain(&WakeSignals { vcpus: 1, ..signals(0.5, 1e4) }, &PRICES), None);
        assert_eq!(consolidation_gain(&signals(f64::NAN, 1e4), &PRICES), None);
    }

    #[test]
    fn a_wide_program_keeps_as_many_vcpus_as_it_has_work_for() {
        // Eight of sixteen vCPUs busy, half of that in 100,000 wake-ups a second.
        let wide = WakeSignals { vcpus: 16, ..signals(8.0, 150e3) };
        let gain = consolidation_gain(&wide, &PRICES).unwrap();
        assert!((4..=10).contains(&gain.vcpus) && gain.speed.value > 1.0, "{gain:?}");
    }

    #[test]
    fn more_halts_never_make_consolidation_worse_and_ranges_are_ordered() {
        for vcpus in [2, 4, 16, 128] {
            for cpu_rate in [0.0, 0.05, 0.4, 0.8, 1.0, 1.5, f64::from(vcpus)] {
                // More halts than the CPU time can have paid for are no signals of this machine.
                let most = (cpu_rate * 1e9 / PRICES.wake_halted_ns / HALT_COST.high / 1e3) as u32;
                let gains = (0..most.min(100)).map(|step| {
                    let signals = WakeSignals { vcpus, ..signals(cpu_rate, f64::from(step) * 1e3) };
                    consolidation_gain(&signals, &PRICES).unwrap()
                });
                let mut before = 0.0;
                for gain in gains {
                    assert!(gain.speed.low <= gain.speed.value && gain.speed.value <= gain.speed.high, "{gain:?}");
                    assert!(gain.speed.value >= before - 1e-9, "{vcpus} {cpu_rate}: {gain:?} after {before}");
                    before = gain.speed.value;
                }
            }
        }
    }
}
