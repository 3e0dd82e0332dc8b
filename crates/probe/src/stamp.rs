//! Time stamps that two CPUs can compare, as cheap as the machine offers: the time-stamp counter where the kernel trusts
//! it, the monotonic clock elsewhere.

use muster_model::profile::Platform;
use std::time::{Duration, Instant};

/// A source of time stamps.
#[derive(Debug, Clone, Copy)]
pub struct Stamps {
    /// Nanoseconds per tick of the counter; `None` where stamps are nanoseconds of the monotonic clock.
    ns_per_tick: Option<f64>,
}

impl Stamps {
    /// The best source on this machine; takes 20 ms where the counter has to be compared with the clock.
    pub fn new(platform: &Platform) -> Self {
        Self { ns_per_tick: counter_is_trusted(&platform.clock_sources).then(calibrate) }
    }

    /// Now, in ticks of this source.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        match self.ns_per_tick {
            Some(_) => counter(),
            None => monotonic_ns(),
        }
    }

    /// Nanoseconds from one stamp to another; negative when `to` is the earlier one.
    #[inline]
    pub fn ns(&self, from: u64, to: u64) -> f64 {
        to.wrapping_sub(from) as i64 as f64 * self.ns_per_tick.unwrap_or(1.0)
    }

    /// Ticks in `ns` nanoseconds.
    pub fn ticks(&self, ns: u64) -> u64 {
        (ns as f64 / self.ns_per_tick.unwrap_or(1.0)) as u64
    }

    /// Spins until `ns` nanoseconds have passed.
    pub fn spin_ns(&self, ns: u64) {
        let start = self.now();
        let ticks = self.ticks(ns);
        while self.now().wrapping_sub(start) < ticks {
            std::hint::spin_loop();
        }
    }

    /// What the stamps are read from.
    pub fn source(&self) -> &'static str {
        if self.ns_per_tick.is_some() { "time-stamp counter" } else { "CLOCK_MONOTONIC" }
    }
}

/// Whether the kernel found the counter constant and equal on all CPUs: it offers it as a clock source only then
/// (Documentation/virt/kvm/x86/timekeeping.rst, section 4).
fn counter_is_trusted(clock_sources: &[String]) -> bool {
    cfg!(target_arch = "x86_64") && clock_sources.iter().any(|source| source == "tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 CPU has both instructions; the fence keeps earlier loads from moving past the read.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    monotonic_ns()
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn calibrate() -> f64 {
    let (clock, ticks) = (Instant::now(), counter());
    while clock.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let (elapsed, now) = (clock.elapsed(), counter());
    elapsed.as_nanos() as f64 / now.wrapping_sub(ticks).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sources_run_forward() {
        for clock_sources in [vec![], vec!["tsc".to_owned()]] {
            let stamps = Stamps::new(&Platform { clock_sources, ..Platform::default() });
            let before = stamps.now();
            stamps.spin_ns(1000);
            let after = stamps.now();
            assert!(stamps.ns(before, after) > 0.0 && stamps.ns(after, before) < 0.0, "{}", stamps.source());
        }
    }

    #[test]
    fn a_counter_the_kernel_rejected_is_not_used() {
        assert!(!counter_is_trusted(&["hpet".into(), "acpi_pm".into()]));
        assert_eq!(counter_is_trusted(&["kvm-clock".into(), "tsc".into()]), cfg!(target_arch = "x86_64"));
    }
}
