//! `muster host` on a KVM host, in an emulated one (`rig`): module parameters, huge pages, VFs, interrupts; everything
//! is put back, also after SIGKILL. All tests share one guest; where there can be none, they are skipped.
//!
//! `make campaign-host` kills at each write instead of some.
#![cfg(target_arch = "x86_64")]

mod rig;

use rig::guest::{ALL, SETTINGS, described, must, muster, play};
use rig::kill::{End, at_write};
use rig::snapshot::{Snapshot, differences, settled};
use rig::vm::Vm;
use rig::{Outcome, SKIPPED, Scene, judge};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SCENES: [Scene; 6] = [
    ("the_rig_is_a_kvm_host", is_a_kvm_host),
    ("settings_come_and_go", settings),
    ("a_module_is_loaded_anew_and_put_back", module),
    ("kills_leave_nothing_changed", kills),
    ("a_guests_lock_waits_are_seen", lock_waits),
    ("a_hosts_pause_exits_are_seen", pause_exits),
];

#[test]
#[ignore = "the guest's first process, no test"]
fn guest() {
    play(&SCENES);
}

#[test]
fn the_rig_is_a_kvm_host() {
    judge("the_rig_is_a_kvm_host");
}

#[test]
fn settings_come_and_go() {
    judge("settings_come_and_go");
}

#[test]
fn a_module_is_loaded_anew_and_put_back() {
    judge("a_module_is_loaded_anew_and_put_back");
}

#[test]
fn kills_leave_nothing_changed() {
    judge("kills_leave_nothing_changed");
}

#[test]
fn a_guests_lock_waits_are_seen() {
    judge("a_guests_lock_waits_are_seen");
}

#[test]
fn a_hosts_pause_exits_are_seen() {
    judge("a_hosts_pause_exits_are_seen");
}

/// The SR-IOV device and its first VF.
const DEVICE: &str = "/sys/bus/pci/devices/0000:01:00.0";
const VF: &str = "/sys/bus/pci/devices/0000:01:00.1";
const HALT_POLL: &str = "/sys/module/kvm/parameters/halt_poll_ns";
const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const PAUSES: &str = "/sys/module/kvm_amd/parameters/pause_filter_count";

fn read(path: impl AsRef<Path>) -> Result<String, String> {
    let path = path.as_ref();
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| format!("{}: {error}", path.display()))
}

fn expect<T: PartialEq<U> + std::fmt::Debug, U: std::fmt::Debug>(what: &str, found: T, expected: U) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: found {found:?}, expected {expected:?}")) }
}

fn expect_all_back(before: &Snapshot, after: &str) -> Outcome {
    let left = differences(before);
    if left.is_empty() { Ok(()) } else { Err(format!("{after}, left changed:\n{}", left.join("\n"))) }
}

fn has_modprobe() -> bool {
    ["/usr/sbin/modprobe", "/sbin/modprobe"].iter().any(|path| Path::new(path).exists())
}

fn is_a_kvm_host() -> Outcome {
    expect("/dev/kvm", Path::new("/dev/kvm").exists(), true)?;
    expect("npt", read("/sys/module/kvm_amd/parameters/npt")?, "Y")?;
    expect("the pause filter", read(PAUSES)?, "3000")?;
    expect("VFs", read(format!("{DEVICE}/sriov_totalvfs"))?, "4")?;
    expect("an IOMMU group", Path::new(&format!("{DEVICE}/iommu_group")).exists(), true)?;
    let vm = Vm::start()?;
    std::thread::sleep(Duration::from_millis(100));
    expect("a VM runs", vm.end()? > 0, true)?;
    let before = settled();
    expect("settings", before.len() > 2_000, true)?;
    let said = must(&["host", "audit"])?;
    eprintln!("{said}");
    expect("the audit says something", said.lines().count() > 5, true)?;
    expect_all_back(&before, "after an audit")
}

/// The number of an interrupt of the NVMe device that may be moved: its administration queue's.
fn interrupt() -> Result<String, String> {
    let text = read("/proc/interrupts")?;
    let line = text.lines().find(|line| line.trim().ends_with("nvme0q0")).ok_or("no interrupt of nvme0q0")?;
    let number = line.trim().split(':').next().unwrap_or_default();
    let mask = read(format!("/proc/irq/{number}/smp_affinity_list"))?;
    expect("both CPUs may have it", mask, "0-1")?;
    Ok(number.to_owned())
}

/// One of each kind that is set without modprobe.
fn all_settings() -> Result<Vec<String>, String> {
    let mut arguments: Vec<String> =
        ["host", "apply", "--set", "halt_poll_ns=50000", "--set", "thp=madvise"].map(str::to_owned).into();
    arguments.extend(["--vfs", "0000:01:00.0=2", "--bind", "0000:01:00.0", "--irq"].map(str::to_owned));
    arguments.push(format!("{}=1", interrupt()?));
    Ok(arguments)
}

fn settings() -> Outcome {
    let before = settled();
    let arguments = all_settings()?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    must(&[&arguments[..], &["--dry-run"]].concat())?;
    expect_all_back(&before, "after a dry run")?;
    eprintln!("{}", must(&arguments)?);
    expect("halt_poll_ns", read(HALT_POLL)?, "50000")?;
    expect("huge pages", read(THP)?.contains("[madvise]"), true)?;
    expect("VFs", read(format!("{DEVICE}/sriov_numvfs"))?, "2")?;
    for vf in [VF, "/sys/bus/pci/devices/0000:01:00.2"] {
        let driver = fs::read_link(format!("{vf}/driver")).map_err(|error| format!("{vf} has no driver: {error}"))?;
        expect("its driver", driver.ends_with("vfio-pci"), true)?;
        let group = fs::read_link(format!("{vf}/iommu_group")).map_err(|error| error.to_string())?;
        let device = Path::new("/dev/vfio").join(group.file_name().unwrap_or_default());
        expect(&format!("{}", device.display()), device.exists(), true)?;
    }
    expect("the interrupt's CPU", read(format!("/proc/irq/{}/smp_affinity_list", interrupt_number(&arguments)))?, "1")?;
    // A VMM has a VF: it is not taken from it, and everything else is put back.
    let group = fs::read_link(format!("{VF}/iommu_group")).map_err(|error| error.to_string())?;
    let group = Path::new("/dev/vfio").join(group.file_name().unwrap_or_default());
    let held = File::options().read(true).write(true).open(&group).map_err(|error| error.to_string())?;
    let output = muster(&["host", "undo"]).output().map_err(|error| error.to_string())?;
    let said = described(&["host", "undo"], &output);
    expect(&said, output.status.code(), Some(1))?;
    expect(&said, said.contains("0000:01:00.1 is in use by process 1"), true)?;
    expect("huge pages", read(THP)?.contains("[always]"), true)?;
    drop(held);
    must(&["host", "undo"])?;
    expect_all_back(&before, "after undo")?;
    let again = must(&["host", "undo"])?;
    expect("a second undo", again.trim(), "nothing to undo")
}

fn interrupt_number<'a>(arguments: &[&'a str]) -> &'a str {
    arguments.last().and_then(|last| last.split('=').next()).unwrap_or_default()
}

fn module() -> Outcome {
    if !has_modprobe() {
        return Err(format!("{SKIPPED}modprobe is not installed (package kmod)"));
    }
    // What somebody has set of this module, and of the one that it builds on, must not be lost when it is loaded anew.
    for arguments in [&["-r", "kvm_amd"][..], &["kvm_amd", "nested=0"]] {
        let mut modprobe = Command::new("modprobe");
        let status = modprobe.env("PATH", "/usr/sbin:/sbin").args(arguments).status();
        let status = status.map_err(|error| format!("modprobe: {error}"))?;
        expect(&format!("modprobe {arguments:?}"), status.success(), true)?;
    }
    fs::write(HALT_POLL, "77777").map_err(|error| error.to_string())?;
    let before = settled();
    let vm = Vm::start()?;
    let arguments = ["host", "apply", "--set", "pause_filter_count=2048"];
    let output = muster(&arguments).output().map_err(|error| error.to_string())?;
    expect(&described(&arguments, &output), output.status.code(), Some(2))?;
    expect("what it says of the VM", String::from_utf8_lossy(&output.stderr).contains("while it is in use"), true)?;
    vm.end()?;
    expect_all_back(&before, "after a refusal")?;
    must(&arguments)?;
    expect("the parameter", read(PAUSES)?, "2048")?;
    expect("kvm.halt_poll_ns", read(HALT_POLL)?, "77777")?;
    expect("kvm_amd.nested", read("/sys/module/kvm_amd/parameters/nested")?, "0")?;
    Vm::start()?.end()?;
    must(&["host", "undo"])?;
    expect("the parameter", read(PAUSES)?, "3000")?;
    expect_all_back(&before, "after undo")?;
    fs::write(HALT_POLL, "200000").map_err(|error| error.to_string())
}

/// Kills an `apply` of everything before its nth write, for some n, and looks whether all is back: by the guardian, and
/// where that was killed too, by `muster host undo`.
fn kills() -> Outcome {
    let before = settled();
    let mut arguments = all_settings()?;
    if has_modprobe() {
        arguments.splice(2..2, ["--set".to_owned(), "pause_filter_count=2048".to_owned()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let all = at_write(muster(&arguments), u32::MAX, || {}).map_err(|error| error.to_string())?;
    let End::Over { writes, code: 0 } = all else { return Err(format!("untouched, it ended as {all:?}")) };
    must(&["host", "undo"])?;
    expect_all_back(&before, "after undo")?;
    let step = if read(SETTINGS)? == ALL { 1 } else { (writes / 4).max(1) };
    let mut places = Vec::new();
    for nth in (1..=writes).step_by(step as usize) {
        let is_guarded = places.len() % 2 == 1;
        let first = || {
            if !is_guarded {
                end_guardians()
            }
        };
        let end = at_write(muster(&arguments), nth, first).map_err(|error| error.to_string())?;
        let End::Killed { before: place } = end else { return Err(format!("at write {nth} of {writes}: {end:?}")) };
        let how = format!("killed before write {nth} of {writes}, to {}, guarded: {is_guarded}", place.display());
        places.push(how.clone());
        if !is_guarded || !wait_until(Duration::from_secs(20), || differences(&before).is_empty()) {
            let said = must(&["host", "undo"]).map_err(|error| format!("{how}: {error}"))?;
            if is_guarded {
                return Err(format!("{how}: the guardian left it to undo, which says:\n{said}"));
            }
        }
        expect_all_back(&before, &how)?;
    }
    eprintln!("{}", places.join("\n"));
    expect("a kill between two writes to the system", places.iter().any(|place| place.contains("/sys/")), true)
}

/// Ends all guardians, so that nobody puts anything back.
fn end_guardians() {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        if words.starts_with(b"/muster\0guard\0") {
            // SAFETY: a signal to another process.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
}

fn wait_until(patience: Duration, fact: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if fact() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs `muster host ple` while something else goes on; `None` where this muster has no BPF in it.
fn ple(arguments: &[&str], meanwhile: impl FnOnce() -> Outcome) -> Result<Option<Value>, String> {
    let arguments = [&["host", "ple", "--json"], arguments].concat();
    let mut command = muster(&arguments);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    meanwhile()?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if String::from_utf8_lossy(&output.stderr).contains("built without BPF") {
        return Ok(None);
    }
    expect(&described(&arguments, &output), output.status.code(), Some(0))?;
    serde_json::from_slice(&output.stdout).map(Some).map_err(|error| error.to_string())
}

const NO_BPF: &str = "SKIPPED: this muster was built without BPF";

/// Processes come and go on both CPUs: they all take the lock of the list of tasks.
fn lock_waits() -> Outcome {
    let load = || {
        let end = Instant::now() + Duration::from_secs(8);
        let start = |_| {
            std::thread::spawn(move || {
                while Instant::now() < end {
                    // SAFETY: the child does nothing but end.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        // SAFETY: ends the child without running anything of the parent's.
                        unsafe { libc::_exit(0) };
                    }
                    // SAFETY: waits for a child of this process.
                    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                }
            })
        };
        let threads: Vec<_> = (0..4).map(start).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned()))
    };
    let sum = |answer: &Value, kind: &str| -> u64 {
        answer["waits"][kind].as_array().into_iter().flatten().filter_map(Value::as_u64).sum()
    };
    let mut waits = 0;
    let mut answer = Value::Null;
    // On two CPUs that take turns locks are seldom contended.
    for _ in 0..3 {
        let Some(said) = ple(&["--side", "guest", "--seconds", "6"], load)? else { return Err(NO_BPF.to_owned()) };
        eprintln!("{said}");
        waits = sum(&said, "spinlocks") + sum(&said, "rwlocks");
        answer = said;
        if waits > 0 {
            break;
        }
    }
    expect("waits are seen", waits > 0, true)?;
    expect("none is lost", answer["waits"]["lost"].as_u64(), Some(0))?;
    // Few waits tell no window; what is told is a power of two.
    match answer["window"].as_u64() {
        Some(window) => expect("the window", window.is_power_of_two() && waits > 500, true),
        None => expect("what is missing", answer["certainty"]["more_waits"].as_u64().is_none_or(|more| more > 0), true),
    }
}

fn pause_exits() -> Outcome {
    let base = read(PAUSES)?;
    let mut rounds = 0;
    let run = || {
        let vm = Vm::start()?;
        std::thread::sleep(Duration::from_secs(4));
        rounds = vm.end()?;
        Ok(())
    };
    let Some(answer) = ple(&["--side", "host", "--seconds", "3"], run)? else { return Err(NO_BPF.to_owned()) };
    eprintln!("{rounds} rounds of 200 PAUSEs: {answer}");
    let exits = &answer["exits"];
    expect("the window in force", exits["kvm"]["window"].to_string(), base)?;
    let by_window = exits["spins"]["exits_by_window"].as_object().ok_or("no exits by window")?;
    let pauses: u64 = by_window.values().filter_map(Value::as_u64).sum();
    // The emulator exits on each PAUSE, 200 for each exit of the other kind.
    let all = exits["exits"].as_u64().unwrap_or_default();
    expect(&format!("{pauses} of {all} exits are PAUSEs"), pauses > 1_000 && pauses < all, true)?;
    expect("windows grow", by_window.len() > 1, true)
}
