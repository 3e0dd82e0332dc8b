//! Kills a program at its nth write to the system or the journal: traced by ptrace(2), ended before the write is done.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Where a write counts.
const PLACES: [&str; 3] = ["/sys/", "/proc/", "/run/"];

/// How a traced program came to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Killed before this write.
    Killed { before: PathBuf },
    /// It had fewer writes.
    Over { writes: u32, code: i32 },
}

/// Runs a program, and kills it before its `nth` write (from 1); what `first` does comes right before that.
pub fn at_write(mut command: Command, nth: u32, first: impl Fn()) -> io::Result<End> {
    // SAFETY: between fork and exec, only a system call.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let pid = command.spawn()?.id() as libc::pid_t;
    wait(pid)?;
    trace(libc::PTRACE_SETOPTIONS, pid, (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize)?;
    let (mut writes, mut entering, mut signal) = (0, false, 0);
    loop {
        trace(libc::PTRACE_SYSCALL, pid, signal as usize)?;
        let status = wait(pid)?;
        if libc::WIFEXITED(status) {
            return Ok(End::Over { writes, code: libc::WEXITSTATUS(status) });
        }
        if libc::WIFSIGNALED(status) {
            return Err(io::Error::other(format!("it died of signal {}", libc::WTERMSIG(status))));
        }
        // A stop at a system call is marked so; any other one is for a signal, which it gets.
        signal = match libc::WSTOPSIG(status) {
            stop if stop == libc::SIGTRAP | 0x80 => 0,
            libc::SIGTRAP => 0,
            other => other,
        };
        if libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80 {
            continue;
        }
        entering = !entering;
        if let Some(path) = written(pid)?.filter(|_| entering) {
            writes += 1;
            if writes == nth {
                first();
                // SAFETY: a signal to a child that was not waited for to its end.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                wait(pid)?;
                return Ok(End::Killed { before: path });
            }
        }
    }
}

/// Where the system call at which it stands writes to, if that counts.
fn written(pid: libc::pid_t) -> io::Result<Option<PathBuf>> {
    // SAFETY: all-zero registers are registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, pid, std::ptr::from_mut(&mut registers) as usize)?;
    let call = registers.orig_rax as libc::c_long;
    if call != libc::SYS_write && call != libc::SYS_pwrite64 {
        return Ok(None);
    }
    let path = fs::read_link(format!("/proc/{pid}/fd/{}", registers.rdi)).unwrap_or_default();
    Ok(PLACES.iter().any(|place| path.starts_with(place)).then_some(path))
}

fn trace(request: libc::c_uint, pid: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: the process is a stopped child; `data` is what the request takes, and what it points to outlives the call.
    match unsafe { libc::ptrace(request, pid, 0, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn wait(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: a number to write to, and a child.
    match unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(status),
    }
}
