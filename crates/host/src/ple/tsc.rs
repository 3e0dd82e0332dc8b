//! The time-stamp counter, in whose cycles Intel's processors count a window, and what a PAUSE takes, in which AMD's do.

use super::PleError;

/// Cycles per second, compared with the clock of the kernel for 50 ms.
///
/// # Errors
/// On another processor than x86.
pub fn hz() -> Result<u64, PleError> {
    imp::hz()
}

/// Cycles that a PAUSE takes: the least of many tries, for any may be interrupted.
///
/// # Errors
/// On another processor than x86.
pub fn pause_cycles() -> Result<f64, PleError> {
    imp::pause_cycles()
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use super::PleError;
    use std::time::{Duration, Instant};

    fn counter() -> u64 {
        // SAFETY: every x86_64 processor has RDTSC, and Linux lets programs use it.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// The counter and the clock at one moment: the closest of some tries.
    fn moment() -> (u64, Instant) {
        let look = |_| {
            let before = counter();
            let now = Instant::now();
            let width = counter().wrapping_sub(before);
            (width, before + width / 2, now)
        };
        let (_, cycles, now) = (0..16).map(look).min_by_key(|(width, ..)| *width).expect("there were tries");
        (cycles, now)
    }

    pub fn hz() -> Result<u64, PleError> {
        let first = moment();
        std::thread::sleep(Duration::from_millis(50));
        let last = moment();
        let ns = last.1.duration_since(first.1).as_nanos();
        Ok((u128::from(last.0.wrapping_sub(first.0)) * 1_000_000_000 / ns.max(1)) as u64)
    }

    pub fn pause_cycles() -> Result<f64, PleError> {
        const BATCH: u64 = 200;
        let time = |_| {
            let before = counter();
            (0..BATCH).for_each(|_| std::hint::spin_loop());
            counter().wrapping_sub(before)
        };
        let least = (0..100).map(time).min().expect("there were tries");
        Ok(least as f64 / BATCH as f64)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_counter_runs_at_a_clocks_rate() {
            let found = hz().unwrap();
            assert!((100_000_000..100_000_000_000).contains(&found), "{found}");
            let pause = pause_cycles().unwrap();
            assert!(pause > 0.0 && pause < 1e6, "{pause}");
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use super::PleError;

    pub fn hz() -> Result<u64, PleError> {
        Err(PleError::NotX86)
    }

    pub fn pause_cycles() -> Result<f64, PleError> {
        Err(PleError::NotX86)
    }
}
