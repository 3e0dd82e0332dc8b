//! The inside: this test as the guest's first process. It mounts and loads what a host has, plays the scenes one after
//! the other, says on the second serial line what each came to, and switches the machine off.

use super::{Outcome, Scene};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The modules to load, a path a line.
pub const MODULES: &str = "/modules.list";
/// The value of `MUSTER_KILLS` where the test was started.
pub const SETTINGS: &str = "/settings";
/// The last line of a guest that played all scenes.
pub const END: &str = "all scenes played";
/// What it is where muster is to be killed at each write.
pub const ALL: &str = "all";
const LINE: &str = "/dev/ttyS1";

/// When a guest with these settings switches itself off whatever it does.
pub fn lifetime(settings: &str) -> Duration {
    Duration::from_secs(if settings == ALL { 3600 } else { 240 })
}

/// What each scene came to, out of what a guest said.
pub fn outcomes(said: &str) -> BTreeMap<String, Outcome> {
    let line = |line: &str| {
        let (name, how) = line.trim().strip_prefix("scene ")?.split_once(": ")?;
        let outcome = if how.starts_with("well") { Ok(()) } else { Err(how.replace("\\n", "\n")) };
        Some((name.to_owned(), outcome))
    };
    said.lines().filter_map(line).collect()
}

/// The body of the first process. Anywhere else it touches nothing.
pub fn play(scenes: &[Scene]) {
    if std::process::id() != 1 || !Path::new(MODULES).exists() {
        eprintln!("SKIPPED: guest: this is no guest of the test");
        return;
    }
    let settings = fs::read_to_string(SETTINGS).unwrap_or_default();
    std::thread::spawn(move || {
        std::thread::sleep(lifetime(&settings));
        reboot(RebootCommand::PowerOff)
    });
    let prepared = prepare();
    let mut line = File::options().write(true).open(LINE).expect("a second serial line");
    let mut say = |text: String| writeln!(line, "{text}").expect("the line is written");
    if let Err(why) = prepared {
        say(format!("the guest cannot be prepared: {why}"));
    } else {
        for (name, scene) in scenes {
            let start = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(scene)).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Err(text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
            });
            if outcome.is_err() {
                // The next scene is not to fail for this one; it looks whether all is back itself.
                let _done = muster(&["host", "undo"]).output();
            }
            let took = start.elapsed().as_secs_f64();
            say(match outcome {
                Ok(()) => format!("scene {name}: well ({took:.1} s)"),
                Err(why) => format!("scene {name}: {} ({took:.1} s)", why.trim().replace('\n', "\\n")),
            });
        }
        say(END.to_owned());
    }
    drop(line);
    reboot(RebootCommand::PowerOff).expect("the machine can be switched off");
}

fn prepare() -> Result<(), String> {
    for (kind, place) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tracefs", "/sys/kernel/tracing"),
        ("cgroup2", "/sys/fs/cgroup"),
        ("tmpfs", "/tmp"),
    ] {
        mount(kind, place, kind, MountFlags::empty(), None::<&CStr>).map_err(|error| format!("{place}: {error}"))?;
    }
    fs::create_dir_all("/run").map_err(|error| error.to_string())?;
    for module in fs::read_to_string(MODULES).map_err(|error| error.to_string())?.lines() {
        load(module).map_err(|error| format!("{module}: {error}"))?;
    }
    Ok(())
}

fn load(module: &str) -> std::io::Result<()> {
    let file = File::open(module)?;
    // SAFETY: finit_module(2) takes a descriptor, a string that ends in a zero, and flags.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, std::os::fd::AsRawFd::as_raw_fd(&file), c"".as_ptr(), 0) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// muster with these arguments, not yet started.
pub fn muster(arguments: &[&str]) -> Command {
    let mut command = Command::new("/muster");
    command.args(arguments).stdin(Stdio::null()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Runs muster to its end, which must be good, and returns its standard output.
///
/// # Errors
/// How it ended, and what it said.
pub fn must(arguments: &[&str]) -> Result<String, String> {
    let output = muster(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(described(arguments, &output)) }
}

/// A call and all that came of it.
pub fn described(arguments: &[&str], output: &Output) -> String {
    format!("muster {arguments:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
