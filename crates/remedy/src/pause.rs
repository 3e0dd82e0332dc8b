//! The process of the pause loops: iXen's idle daemon for guests that must not halt.
//!
//! One thread per vCPU of class SCHED_IDLE spins with PAUSE while it is switched on, so that the vCPU never halts and a
//! woken thread preempts it at once. It takes orders on standard input and ends with it.

use muster_model::CpuSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The order to spin.
pub const ON: u8 = b'1';
/// The order to sleep.
pub const OFF: u8 = b'0';

/// The hidden subcommand that a muster re-executes itself with; it must call [`serve`].
pub const SUBCOMMAND: &str = "pause-loops";

/// PAUSEs between two looks at the switch: some microseconds.
const PAUSES: u32 = 64;

/// The command that starts the process, in a session of its own and, through `door`, in an idle cgroup.
pub(crate) fn command(cpus: &CpuSet, door: Option<File>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("muster").args([SUBCOMMAND, "--cpus", &cpus.to_string()]).env_remove(muster_undo::RUN_VARIABLE);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    // SAFETY: setsid(2) and write(2) on an open descriptor are async-signal-safe, and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            // Without the cgroup the loops still have the lowest class; they only weigh more against other sessions.
            let _joined = door.as_ref().map(|mut door| door.write_all(b"0"));
            Ok(())
        });
    }
    command
}

/// Whether the loops spin, for those that do, and a place to sleep, for those that do not.
struct Switch {
    on: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// The process's whole life.
///
/// # Errors
/// When a thread cannot be started or standard input cannot be read.
pub fn serve(cpus: &CpuSet) -> io::Result<()> {
    static SWITCH: Switch = Switch { on: AtomicBool::new(false), lock: Mutex::new(()), changed: Condvar::new() };
    // A session of its own is a group of its own to the autogroup scheduler (sched(7)): the lowest there, too.
    let _where_there_is_autogroup = std::fs::write("/proc/self/autogroup", "19");
    for cpu in cpus.iter() {
        std::thread::Builder::new()
            .name(format!("pause-{cpu}"))
            .stack_size(64 << 10)
            .spawn(move || keep_awake(cpu, &SWITCH))?;
    }
    let mut order = [OFF];
    while io::stdin().read(&mut order)? == 1 {
        let _guard = SWITCH.lock.lock().unwrap_or_else(PoisonError::into_inner);
        SWITCH.on.store(order[0] == ON, Ordering::Relaxed);
        SWITCH.changed.notify_all();
    }
    Ok(())
}

fn keep_awake(cpu: usize, switch: &Switch) {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let idle = muster_undo::Scheduling { policy: SCHED_IDLE, priority: 0, nice: 19 };
    let pinned = muster_undo::system::set_affinity(tid, &[cpu].into_iter().collect());
    if pinned.and_then(|()| muster_undo::system::set_scheduling(tid, idle)).is_err() {
        // A loop that is not the lowest of all must not spin.
        return;
    }
    loop {
        while switch.on.load(Ordering::Relaxed) {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        let guard = switch.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = switch.changed.wait_while(guard, |()| !switch.on.load(Ordering::Relaxed));
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

/// sched(7).
const SCHED_IDLE: i32 = 5;
