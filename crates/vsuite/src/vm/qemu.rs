//! One guest: QEMU's command line, and the watch over it from its start to its end.

use super::guest::{Message, messages};
use super::memory_file;
use crate::SuiteError;
use crate::platform::{Held, Job, Native, read_end, tail};
use muster_model::results::Accelerator;
use rustix::process::{Pid, Signal, kill_process_group};
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// QEMU for this machine, and the Debian package that has it.
const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
/// vCPUs that QEMU's machine `pc` can have.
pub const MAX_CORES: usize = 255;
const KVM: &str = "/dev/kvm";
/// What a kernel says when it has no memory left, for programs or for the archive; and when it gives up.
const NO_MEMORY: [&str; 3] = ["Out of memory", "deadlocked on memory", "Initramfs unpacking failed"];
const PANIC: &str = "Kernel panic";
/// How often it is looked whether a guest is ready or at its end.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// QEMU, and what it boots with.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// The command.
    pub program: PathBuf,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// What runs the guest's instructions.
    pub accelerator: Accelerator,
}

/// A guest for one job.
pub struct Guest<'a> {
    /// What it runs, on as many vCPUs as the job has cores.
    pub job: &'a Job,
    /// Its memory, whole MiB.
    pub memory_bytes: u64,
    /// Its files.
    pub archive: &'a File,
    /// When it is given up if it is not ready.
    pub boot_limit: Duration,
    /// When it is given up if it is not at its end.
    pub run_limit: Duration,
}

/// QEMU for this machine.
///
/// # Errors
/// When it is not installed, or this machine is of another kind.
pub fn find() -> Result<PathBuf, SuiteError> {
    if env::consts::ARCH != "x86_64" {
        return Err(SuiteError::NoVm(format!("works on x86_64 only; this machine is {}", env::consts::ARCH)));
    }
    let dirs = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&dirs).map(|dir| dir.join(PROGRAM)).find(|path| path.is_file());
    found.ok_or_else(|| SuiteError::NoVm(format!("`{PROGRAM}` is not installed (package {PACKAGE})")))
}

/// Why there is no KVM here, as far as can be told without trying it.
pub fn why_no_kvm() -> Option<String> {
    match File::options().read(true).write(true).open(KVM) {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!("there is no {KVM}")),
        Err(error) => Some(format!("{KVM} may not be used (group kvm?): {error}")),
    }
}

impl Qemu {
    /// Runs a guest to its end and returns what it said.
    ///
    /// # Errors
    /// When QEMU does not start, or the guest does not boot, panics, runs out of memory or out of time; with the last
    /// lines of its console.
    pub fn run(&self, guest: &Guest<'_>, native: &Native) -> Result<Vec<Message>, SuiteError> {
        let files = || SuiteError::system("cannot make a file in memory");
        let mut console = memory_file("console").map_err(files())?;
        let mut said = memory_file("messages").map_err(files())?;
        let mut errors = memory_file("errors").map_err(files())?;
        let mut command = Command::new(&self.program);
        command.args(self.arguments(guest, [guest.archive, &console, &said].map(path_of)));
        native.confine(&mut command, guest.job.cores);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone().map_err(files())?);
        let mut child =
            command.spawn().map_err(SuiteError::system(format!("cannot start {}", self.program.display())))?;
        let ended = watch(&mut child, |elapsed| {
            let is_ready = !messages(&read_end(&mut said).unwrap_or_default()).is_empty();
            if is_ready && elapsed > guest.run_limit {
                Some(format!("did not end in the VM within {} s", guest.run_limit.as_secs()))
            } else if !is_ready && elapsed > guest.boot_limit {
                Some(format!("did not boot a VM within {} s", guest.boot_limit.as_secs()))
            } else {
                None
            }
        })
        .map_err(SuiteError::system("cannot wait for QEMU"))?;
        let text = |file: &mut File| read_end(file).unwrap_or_default();
        let seen =
            Seen { ended, console: text(&mut console), errors: text(&mut errors), said: messages(&text(&mut said)) };
        seen.judge(guest)
    }

    fn arguments(&self, guest: &Guest<'_>, [archive, console, said]: [String; 3]) -> Vec<OsString> {
        let cpu = match self.accelerator {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max",
        };
        let machine = format!("pc,accel={}", self.accelerator.name());
        let (cores, memory) = (guest.job.cores.to_string(), format!("{}M", guest.memory_bytes >> 20));
        let (console, said) = (format!("file,id=console,path={console}"), format!("file,id=said,path={said}"));
        let mut arguments: Vec<OsString> = [
            ["-machine", &machine],
            ["-cpu", cpu],
            ["-smp", &cores],
            ["-m", &memory],
            ["-display", "none"],
            ["-chardev", &console],
            ["-serial", "chardev:console"],
            ["-chardev", &said],
            ["-serial", "chardev:said"],
            ["-initrd", &archive],
            // Of the kernel's messages only errors, and an end instead of a rest after a panic. What stands behind `--`
            // is for its first process.
            ["-append", "console=ttyS0 loglevel=4 panic=-1 rdinit=/init -- vsuite-guest"],
        ]
        .iter()
        .flatten()
        .map(OsString::from)
        .collect();
        arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot", "-kernel"].map(OsString::from));
        arguments.push(self.kernel.clone().into());
        arguments
    }
}

/// The path by which a child finds a file of ours that has no name.
fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// What was seen of a guest.
struct Seen {
    /// How QEMU ended, or why it was ended.
    ended: Result<ExitStatus, String>,
    console: String,
    errors: String,
    said: Vec<Message>,
}

impl Seen {
    /// What the guest said, if it came to a good end.
    fn judge(self, guest: &Guest<'_>) -> Result<Vec<Message>, SuiteError> {
        let failed = |how: &str, text: &str| Err(SuiteError::run_failed(guest.job, how, tail(text)));
        let lacked_memory = NO_MEMORY.iter().any(|words| self.console.contains(words));
        let is_over = match self.said.last() {
            Some(Message::Ready { .. }) => guest.job.argv.is_empty(),
            Some(Message::Finished(_)) => true,
            Some(Message::Failed { .. }) => !lacked_memory,
            None => false,
        };
        match self.ended {
            _ if is_over => Ok(self.said),
            Ok(status) if !status.success() => failed(&format!("had no VM: QEMU ended with {status}"), &self.errors),
            _ if lacked_memory => {
                let megabytes = guest.memory_bytes >> 20;
                let how = format!("ran out of memory in a VM of {megabytes} MiB; a smaller --scale needs less");
                failed(&how, up_to(&self.console, &NO_MEMORY))
            }
            Err(why) => failed(&why, &self.console),
            Ok(_) if self.console.contains(PANIC) => {
                failed("ended in a panic of the VM", up_to(&self.console, &[PANIC]))
            }
            Ok(_) => failed("ended without a word of the VM", &self.console),
        }
    }
}

/// A console up to the end of the last line with one of these words; what comes after it explains nothing.
fn up_to<'a>(console: &'a str, words: &[&str]) -> &'a str {
    let last = words.iter().filter_map(|words| console.rfind(words)).max().unwrap_or(0);
    let line_end = console[last..].find('\n').map_or(console.len(), |length| last + length);
    &console[..line_end]
}

/// Waits for a child that [`Native::confine`] made; ends it when there is a reason to, and returns that.
fn watch(
    child: &mut Child,
    mut reason: impl FnMut(Duration) -> Option<String>,
) -> io::Result<Result<ExitStatus, String>> {
    let _held = Held::new(child);
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ok(status));
        }
        if let Some(why) = reason(start.elapsed()) {
            // It may just have ended by itself.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait()?;
            return Ok(Err(why));
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

/// Runs a helper to its end, within a limit; its standard input is what the caller set, or nothing.
///
/// # Errors
/// How it failed, in words.
pub fn run_to_end(command: &mut Command, native: &Native, limit: Duration) -> Result<(), String> {
    let mut errors = memory_file("errors").map_err(|error| error.to_string())?;
    native.confine(command, native.cores());
    command.stdout(Stdio::null()).stderr(errors.try_clone().map_err(|error| error.to_string())?);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let late = |elapsed: Duration| (elapsed > limit).then(|| format!("it took more than {} s", limit.as_secs()));
    let status = watch(&mut child, late).map_err(|error| error.to_string())??;
    if status.success() {
        return Ok(());
    }
    let text = read_end(&mut errors).unwrap_or_default();
    Err(text.lines().rev().find(|line| !line.trim().is_empty()).map_or_else(|| status.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn job() -> Job {
        Job { program: "dedup".to_owned(), argv: vec!["/init".into()], cores: 2, ..Job::default() }
    }

    fn judged(ended: Result<i32, &str>, console: &str, said: Vec<Message>) -> Result<Vec<Message>, String> {
        let (job, archive) = (job(), memory_file("test").unwrap());
        let limit = Duration::from_secs(1);
        let guest =
            Guest { job: &job, memory_bytes: 700 << 20, archive: &archive, boot_limit: limit, run_limit: limit };
        let ended = ended.map(ExitStatus::from_raw).map_err(str::to_owned);
        let seen = Seen { ended, console: console.to_owned(), errors: "qemu: no memory\n".to_owned(), said };
        seen.judge(&guest).map_err(|error| error.to_string())
    }

    fn ready() -> Message {
        Message::Ready { kernel: "6.1".to_owned() }
    }

    #[test]
    fn a_guest_has_its_cores_its_memory_two_lines_and_nothing_else() {
        let (job, archive) = (job(), memory_file("test").unwrap());
        let limit = Duration::from_secs(1);
        let guest =
            Guest { job: &job, memory_bytes: 700 << 20, archive: &archive, boot_limit: limit, run_limit: limit };
        for (accelerator, machine, cpu) in
            [(Accelerator::Kvm, "pc,accel=kvm", "host"), (Accelerator::Tcg, "pc,accel=tcg", "max")]
        {
            let qemu = Qemu { program: PROGRAM.into(), kernel: "/boot/vmlinuz-6.1".into(), accelerator };
            let arguments = qemu.arguments(&guest, ["/a", "/b", "/c"].map(str::to_owned));
            let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap()).collect();
            let value = |name: &str| words[words.iter().position(|word| *word == name).unwrap() + 1];
            assert_eq!((value("-machine"), value("-cpu")), (machine, cpu));
            assert_eq!((value("-smp"), value("-m"), value("-initrd")), ("2", "700M", "/a"));
            assert_eq!((value("-kernel"), value("-display")), ("/boot/vmlinuz-6.1", "none"));
            assert_eq!(words.iter().filter(|word| **word == "-serial").count(), 2);
            assert!(words.contains(&"-nodefaults") && words.contains(&"-no-reboot"));
            assert!(!words.iter().any(|word| ["-device", "-drive", "-nic", "-virtfs"].contains(word)));
        }
    }

    #[test]
    fn a_bad_end_is_told_by_its_reason() {
        let died = Message::Failed { how: "was killed by signal 9".to_owned(), tail: String::new() };
        let memory = "[ 9.0] Out of memory: Killed process 70 (init)\n";
        let panic = "muster: cannot mount /proc\n[ 2.1] Kernel panic - not syncing: Attempted to kill init!\n[ 2.2] Call Trace:\n";
        for (ended, console, said, starts) in [
            (
                Ok(1 << 8),
                "",
                vec![],
                "dedup on 2 cores had no VM: QEMU ended with exit status: 1; its last words:\n  qemu",
            ),
            (Ok(0), panic, vec![], "dedup on 2 cores ended in a panic of the VM; its last words:\n  muster: cannot"),
            (Ok(0), memory, vec![ready(), died], "dedup on 2 cores ran out of memory in a VM of 700 MiB; a smaller"),
            (Err("did not boot a VM within 1 s"), "", vec![], "dedup on 2 cores did not boot a VM within 1 s"),
            (Ok(0), "", vec![ready()], "dedup on 2 cores ended without a word of the VM"),
        ] {
            let message = judged(ended, console, said).unwrap_err();
            assert!(message.starts_with(starts), "{message}");
        }
        let panic = judged(Ok(0), panic, vec![]).unwrap_err();
        assert!(panic.ends_with("Attempted to kill init!"), "{panic}");
        let failed = Message::Failed { how: "ended with exit code 1".to_owned(), tail: String::new() };
        assert_eq!(judged(Ok(0), "", vec![ready(), failed.clone()]).unwrap(), [ready(), failed]);
    }

    #[test]
    fn a_helper_that_hangs_or_fails_is_ended_and_named() {
        let native = Native::new().unwrap();
        let run = |line: &str, limit| {
            let mut command = Command::new("sh");
            command.args(["-c", line]).stdin(Stdio::null());
            run_to_end(&mut command, &native, Duration::from_millis(limit))
        };
        assert_eq!(run("true", 60_000), Ok(()));
        assert_eq!(run("echo one >&2; echo two >&2; exit 3", 60_000), Err("two".to_owned()));
        assert_eq!(run("sleep 60", 50), Err("it took more than 0 s".to_owned()));
        let mut missing = Command::new("/nowhere/program");
        assert!(run_to_end(&mut missing, &native, Duration::from_secs(1)).unwrap_err().contains("No such file"));
    }
}
