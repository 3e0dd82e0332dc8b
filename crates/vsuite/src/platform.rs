//! Where a measured process runs. Native is one place, a virtual machine ([`crate::vm`]) another.

use crate::SuiteError;
use crate::programs::digest::Digest;
use muster_model::CpuSet;
use muster_model::results::SuitePlace;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use rustix::thread::{CpuSet as KernelCpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Lines of standard error that an error message shows.
const TAIL_LINES: usize = 10;
/// Only this much of an output's end is kept.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// One process to be run and measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The suite's name for it, for errors.
    pub program: String,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// What is set in its environment beside what is there.
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs.
    pub dir: PathBuf,
    /// On how many cores it may run.
    pub cores: usize,
    /// Files and directories that it reads or writes into, with all that is in them: a guest gets copies.
    pub needs: Vec<PathBuf>,
    /// A file that it makes and that is its result.
    pub product: Option<PathBuf>,
    /// Debian packages with the programs that it starts, its own first; none where that is muster.
    pub packages: Vec<String>,
}

/// What a process did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// What it wrote to standard output; of much, the end.
    pub stdout: String,
    /// The checksum of the job's product, 16 hexadecimal digits.
    pub product: Option<String>,
    /// From its start to its end.
    pub wall_ns: u64,
    /// CPU time in user mode of the process and the children that it waited for.
    pub user_ns: u64,
    /// The same in the kernel.
    pub kernel_ns: u64,
    /// The most memory that one of these processes held (getrusage(2), ru_maxrss).
    pub peak_memory_bytes: u64,
}

/// A place where processes run on a chosen number of cores.
pub trait Platform {
    /// Which it is.
    fn place(&self) -> SuitePlace;

    /// Whether its times are those of the machine.
    fn is_timing(&self) -> bool;

    /// Why it cannot run a job, if so.
    fn lacks(&self, job: &Job) -> Option<String>;

    /// Runs a process to its end.
    ///
    /// # Errors
    /// When it cannot be started, or fails.
    fn run(&self, job: &Job) -> Result<Finished, SuiteError>;
}

/// This machine, as it stands.
#[derive(Debug, Clone)]
pub struct Native {
    cpus: CpuSet,
}

impl Native {
    /// The CPUs that this process may use.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn new() -> Result<Self, SuiteError> {
        let mask = sched_getaffinity(None).map_err(SuiteError::system("cannot tell which CPUs may be used"))?;
        Ok(Self { cpus: (0..muster_model::cpuset::MAX_CPUS).filter(|cpu| mask.is_set(*cpu)).collect() })
    }
}

impl Native {
    /// How many there are.
    pub fn cores(&self) -> usize {
        self.cpus.len()
    }

    /// The same CPUs for another process: the first `cores` of them.
    pub(crate) fn confine(&self, command: &mut Command, cores: usize) {
        let mut mask = KernelCpuSet::new();
        self.cpus.iter().take(cores).for_each(|cpu| mask.set(cpu));
        command.process_group(0);
        forget_outer_make(command);
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; these are two system calls.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::TERM))?;
                Ok(sched_setaffinity(None, &mask)?)
            });
        }
    }
}

impl Platform for Native {
    fn place(&self) -> SuitePlace {
        SuitePlace::Native
    }

    fn is_timing(&self) -> bool {
        true
    }

    fn lacks(&self, _: &Job) -> Option<String> {
        None
    }

    /// Runs it on the first so many CPUs that this process may use.
    fn run(&self, job: &Job) -> Result<Finished, SuiteError> {
        let failed = |how: String, tail: String| SuiteError::run_failed(job, how, tail);
        let files = || SuiteError::system("cannot make a file for the output");
        let (mut stdout, mut stderr) = (tempfile::tempfile().map_err(files())?, tempfile::tempfile().map_err(files())?);
        let mut command = Command::new(&job.argv[0]);
        command.args(&job.argv[1..]).envs(job.env.iter().cloned()).current_dir(&job.dir).stdin(Stdio::null());
        self.confine(&mut command, job.cores);
        command.stdout(stdout.try_clone().map_err(files())?).stderr(stderr.try_clone().map_err(files())?);
        let start = Instant::now();
        let child = command.spawn().map_err(|error| failed(format!("could not be started: {error}"), String::new()))?;
        let (status, usage) = wait(&child).map_err(SuiteError::system("cannot wait for a process"))?;
        let wall_ns = start.elapsed().as_nanos() as u64;
        if !status.success() {
            return Err(failed(ending(status), tail(&read_end(&mut stderr).map_err(files())?)));
        }
        Ok(Finished {
            stdout: read_end(&mut stdout).map_err(files())?,
            product: job.product.as_deref().map(checksum).transpose()?,
            wall_ns,
            user_ns: nanoseconds(usage.ru_utime),
            kernel_ns: nanoseconds(usage.ru_stime),
            peak_memory_bytes: usage.ru_maxrss as u64 * 1024,
        })
    }
}

/// The checksum of a file, 16 hexadecimal digits.
fn checksum(file: &Path) -> Result<String, SuiteError> {
    let bytes = fs::read(file).map_err(SuiteError::system(format!("cannot read {}", file.display())))?;
    let mut digest = Digest::new();
    digest.bytes(&bytes);
    Ok(format!("{:016x}", digest.finish()))
}

/// Keeps from a command what an outer `make` says to its children: how many may run at once.
pub(crate) fn forget_outer_make(command: &mut Command) {
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        command.env_remove(name);
    }
}

/// The process group that is measured now, 0 for none.
static MEASURED: AtomicI32 = AtomicI32::new(0);
/// Whether this process was told to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Ends the process that is measured now, and lets nobody go on who waits for it.
pub(crate) fn end_measured() {
    ENDING.store(true, Ordering::SeqCst);
    if let Some(group) = Pid::from_raw(MEASURED.load(Ordering::SeqCst)) {
        // It may just have ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Holds a process group that ends with this process; when it is gone, nobody goes on while this process ends.
pub(crate) struct Held;

impl Held {
    /// The group of a child that [`Native::confine`] made.
    pub(crate) fn new(child: &Child) -> Self {
        MEASURED.store(child.id() as i32, Ordering::SeqCst);
        if ENDING.load(Ordering::SeqCst) {
            end_measured();
        }
        Self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        MEASURED.store(0, Ordering::SeqCst);
        while ENDING.load(Ordering::SeqCst) {
            // Whoever handles the signal ends this process as soon as everything is removed.
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Waits for a process; what it used includes the children that it waited for (wait4(2)).
fn wait(child: &Child) -> io::Result<(ExitStatus, libc::rusage)> {
    let _held = Held::new(child);
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are to memory of the right type; the process is our child and nobody else waits for it.
    while unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all zeros are a valid value, and wait4 wrote over them.
    Ok((ExitStatus::from_raw(status), unsafe { usage.assume_init() }))
}

fn nanoseconds(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000
}

pub(crate) fn read_end(file: &mut File) -> io::Result<String> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_OUTPUT_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    last.iter().map(|line| format!("  {}", line.trim_end())).collect::<Vec<_>>().join("\n")
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, cores: usize) -> Job {
        let argv = ["sh", "-c", line].map(OsString::from).to_vec();
        Job { program: "test".to_owned(), argv, dir: std::env::temp_dir(), cores, ..Job::default() }
    }

    #[test]
    fn a_process_gets_its_cores_and_is_measured() {
        let native = Native::new().unwrap();
        let cpus = native.run(&shell("nproc", 1)).unwrap();
        assert_eq!(cpus.stdout.trim(), "1");
        assert_eq!(native.run(&shell("nproc", native.cores())).unwrap().stdout.trim(), native.cores().to_string());
        let busy = native.run(&shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", 1)).unwrap();
        assert!(busy.user_ns > 0 && busy.user_ns + busy.kernel_ns <= busy.wall_ns * 11 / 10 + 10_000_000, "{busy:?}");
        assert!(busy.peak_memory_bytes > 100_000);
        let mut job = shell("echo $WORD | tee product", 1);
        let dir = tempfile::tempdir().unwrap();
        (job.dir, job.product) = (dir.path().to_owned(), Some(dir.path().join("product")));
        let product = |word: &str| {
            let env = vec![("WORD".into(), word.into())];
            native.run(&Job { env, ..job.clone() }).unwrap().product.unwrap()
        };
        assert_eq!((product("a"), product("a").len()), (product("a"), 16));
        assert_ne!(product("a"), product("b"));
    }

    #[test]
    fn failure_is_told_with_the_last_words() {
        let native = Native::new().unwrap();
        let message = native.run(&shell("echo why >&2; exit 3", 1)).unwrap_err().to_string();
        assert!(message.contains("test on 1 core ended with exit code 3") && message.ends_with("why"), "{message}");
        let missing = Job { argv: vec!["/nonexistent/program".into()], ..shell("", 1) };
        assert!(native.run(&missing).unwrap_err().to_string().contains("could not be started"));
        assert!(native.run(&shell("kill -9 $$", 1)).unwrap_err().to_string().contains("signal 9"));
    }
}
