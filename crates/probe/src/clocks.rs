//! What reading the clock costs, by each path, alone and from all CPUs at once (iXen, section 3.1: an emulated clock
//! gets dearer with every reader).

use crate::affinity;
use crate::batch::{Effort, tight};
use crate::company;
use crate::error::{ProbeError, Result};
use crate::stamp::Stamps;
use muster_model::CpuSet;
use muster_model::profile::names::CLOCK_PATHS;
use std::hint::black_box;

/// The paths that exist on this machine, in the order of [`CLOCK_PATHS`].
pub fn paths() -> impl Iterator<Item = &'static str> {
    CLOCK_PATHS.into_iter().filter(|&path| cfg!(target_arch = "x86_64") || path != "rdtsc")
}

/// Nanoseconds per read in each batch, on one CPU.
///
/// # Errors
/// When `path` is not one of [`paths`], or the thread cannot be confined.
pub fn alone(path: &str, cpu: usize, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    let read = reader(path)?;
    affinity::on_cpu(cpu, || Ok(tight(effort, stamps, read)))
}

/// Nanoseconds per read in each batch of each CPU, with all of `cpus` reading.
///
/// # Errors
/// When `path` is not one of [`paths`], or a thread cannot be confined.
pub fn together(path: &str, cpus: &CpuSet, effort: &Effort, stamps: Stamps) -> Result<Vec<f64>> {
    let read = reader(path)?;
    Ok(company::on_all(cpus, || Ok(tight(effort, stamps, read)))?.concat())
}

/// A function that reads the clock once by `path`.
fn reader(path: &str) -> Result<fn()> {
    Ok(match path {
        "rdtsc" => read_counter,
        "monotonic" => || clock(libc::CLOCK_MONOTONIC),
        "realtime" => || clock(libc::CLOCK_REALTIME),
        "monotonic-coarse" => || clock(libc::CLOCK_MONOTONIC_COARSE),
        "realtime-coarse" => || clock(libc::CLOCK_REALTIME_COARSE),
        "monotonic-raw" => || clock(libc::CLOCK_MONOTONIC_RAW),
        "boottime" => || clock(libc::CLOCK_BOOTTIME),
        "thread-cputime" => || clock(libc::CLOCK_THREAD_CPUTIME_ID),
        "gettimeofday" => time_of_day,
        "time" => seconds,
        "getres" => resolution,
        "syscall" => clock_by_system_call,
        other => return Err(ProbeError::NotMeasurable(format!("no way of reading the clock is called `{other}`"))),
    })
}

#[cfg(target_arch = "x86_64")]
fn read_counter() {
    // SAFETY: every x86-64 CPU has the instruction.
    black_box(unsafe { std::arch::x86_64::_rdtsc() });
}

#[cfg(not(target_arch = "x86_64"))]
fn read_counter() {
    clock(libc::CLOCK_MONOTONIC);
}

/// Through the C library, as programs do: the vDSO where it can, a system call where it cannot.
fn clock(id: libc::clockid_t) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call to write.
    unsafe { libc::clock_gettime(id, &mut now) };
    black_box(now.tv_nsec);
}

fn time_of_day() {
    let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: `now` is valid for the call to write; no time zone is asked for.
    unsafe { libc::gettimeofday(&mut now, std::ptr::null_mut()) };
    black_box(now.tv_usec);
}

fn seconds() {
    // SAFETY: the call writes nothing when handed no place.
    black_box(unsafe { libc::time(std::ptr::null_mut()) });
}

fn resolution() {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `resolution` is valid for the call to write.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC, &mut resolution) };
    black_box(resolution.tv_nsec);
}

/// Past the vDSO: what every read costs where the clock source has no user-space path (hpet, acpi_pm).
fn clock_by_system_call() {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call to write.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut now) };
    black_box(now.tv_nsec);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_reader() {
        for path in CLOCK_PATHS {
            reader(path).unwrap()();
        }
        assert!(reader("sundial").is_err());
    }
}
