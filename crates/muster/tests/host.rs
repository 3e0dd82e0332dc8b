//! `muster host` on recorded trees: what it prints, what it writes, and that nothing of it is left behind: killed at every
//! write, ended by a signal at every write, or refused.

#[path = "../../host/tests/trees/mod.rs"]
mod trees;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nine writes to nine files: large pages, halt polling (two), the clock, three interrupts, and virtual functions (two).
const APPLY: [&str; 8] = [
    "apply",
    "large-pages",
    "halt-poll",
    "clock",
    "interrupts",
    "--vfs",
    "0000:03:00.1=4",
    "--set=halt_poll_ns=100000",
];

/// A recorded host, and journals of its own.
struct Scene {
    root: TempDir,
    journals: TempDir,
}

impl Scene {
    fn of(tree: &str) -> Self {
        let journals = tempfile::tempdir().expect("a directory for journals");
        fs::set_permissions(journals.path(), fs::Permissions::from_mode(0o700)).expect("its mode");
        Self { root: trees::make(tree), journals }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        command.args(arguments).env("MUSTER_JOURNALS", self.journals.path()).stdin(Stdio::null());
        command
    }

    fn host_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&["host"]);
        command.args(arguments).arg("--sysroot").arg(self.root.path());
        command
    }

    fn host(&self, arguments: &[&str]) -> Output {
        self.host_command(arguments).output().expect("muster runs")
    }

    fn muster(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("muster runs")
    }

    fn content(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        trees::content(self.root.path())
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.path().join(path)).expect("a file of the tree").trim().to_owned()
    }

    fn journals_left(&self) -> usize {
        fs::read_dir(self.journals.path()).expect("a directory").count()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_machine_that_is_no_host_gets_one_line() {
    let scene = Scene::of(trees::NO_KVM);
    let told = succeeds(&scene.host(&["audit"]));
    assert!(told.starts_with("this is no KVM host") && told.lines().count() == 1, "{told}");
    let refused = scene.host(&["apply"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}

#[test]
fn this_machine_is_audited_as_it_is() {
    let told = Command::new(env!("CARGO_BIN_EXE_muster")).args(["host", "audit"]).output().expect("muster runs");
    let told = succeeds(&told);
    assert!(told.starts_with("this is no KVM host") || told.contains("to act on"), "{told}");
}

#[test]
fn an_audit_changes_nothing_and_says_the_same_as_json() {
    let scene = Scene::of(trees::INTEL);
    let before = scene.content();
    let told = succeeds(&scene.host(&["audit"]));
    let json: serde_json::Value = serde_json::from_str(&succeeds(&scene.host(&["audit", "--json"]))).expect("JSON");
    for finding in json["findings"].as_array().expect("findings") {
        let severity = finding["severity"].as_str().expect("a severity");
        assert!(told.to_lowercase().contains(severity), "{severity}");
    }
    for said in ["14 % (Kernel Build", "14 % (WebBench", "an additional 28 %", "muster host apply"] {
        // The table may break a line anywhere.
        let flat = |text: &str| text.split_whitespace().collect::<String>();
        assert!(flat(&told).contains(&flat(said)), "{said}\n{told}");
    }
    assert!(scene.content() == before && scene.journals_left() == 0);
}

#[test]
fn what_is_applied_stays_until_it_is_undone() {
    for undo in [&["undo"][..], &["host", "undo"]] {
        let scene = Scene::of(trees::INTEL);
        let before = scene.content();
        let dry = succeeds(&scene.host(&[&APPLY[..], &["--dry-run"]].concat()));
        assert!(scene.content() == before && scene.journals_left() == 0, "a dry run changes nothing");
        let told = succeeds(&scene.host(&APPLY));
        assert_eq!(dry.matches("would set").count(), told.lines().filter(|line| line.starts_with("set ")).count());
        assert_eq!(scene.read("sys/kernel/mm/transparent_hugepage/enabled"), "madvise");
        assert_eq!(scene.read("proc/irq/42/smp_affinity_list"), "2");
        assert_eq!(scene.read("sys/bus/pci/devices/0000:03:00.1/sriov_numvfs"), "4");
        assert_eq!(scene.read("sys/bus/pci/devices/0000:03:00.1/sriov_drivers_autoprobe"), "0");
        // Another start of muster restores what crashed ones left; this one did not crash.
        let changed = scene.content();
        succeeds(&scene.host(&["apply", "clock"]));
        assert!(scene.content() == changed && scene.journals_left() == 1, "nothing more to set, nothing undone");
        assert!(succeeds(&scene.muster(&["undo", "--list"])).contains("kept as asked"));
        let mut undo: Vec<&str> = undo.to_vec();
        let root = scene.root.path().to_string_lossy().into_owned();
        if undo[0] == "host" {
            undo.extend(["--sysroot", &root]);
        }
        let told = succeeds(&scene.muster(&undo));
        assert_eq!(told.matches("restored").count(), 9, "{told}");
        assert!(scene.content() == before && scene.journals_left() == 0, "{told}");
    }
}

#[test]
fn two_applies_are_undone_together_and_one_root_apart_from_another() {
    let (scene, other) = (Scene::of(trees::INTEL), Scene::of(trees::AMD));
    let before = scene.content();
    succeeds(&scene.host(&["apply", "--set", "thp=always"]));
    succeeds(&scene.host(&["apply", "--set", "halt_poll_ns=5000"]));
    let refused = scene.host(&["apply", "--set", "thp=madvise"]);
    assert!(text(&refused.stderr).contains("undo it first"), "{}", text(&refused.stderr));
    assert_eq!(scene.read("sys/kernel/mm/transparent_hugepage/enabled"), "always", "a refused change is none");
    let mut elsewhere = scene.command(&["host", "undo", "--sysroot"]);
    succeeds(&elsewhere.arg(other.root.path()).output().expect("muster runs"));
    assert_eq!(scene.read("sys/module/kvm/parameters/halt_poll_ns"), "5000", "undone for another root only");
    succeeds(&scene.host(&["undo"]));
    assert!(scene.content() == before && scene.journals_left() == 0);
}

#[test]
fn advised_settings_that_cannot_be_had_are_named() {
    let scene = Scene::of(trees::INTEL);
    let told = succeeds(&scene.host(&["apply"]));
    assert!(told.contains("cannot        kvm_intel.ple_gap"), "{told}");
    assert_eq!(scene.read("sys/devices/system/clocksource/clocksource0/current_clocksource"), "tsc");
    assert_eq!(scene.read("sys/module/kvm/parameters/halt_poll_ns_grow"), "0", "only to consider, and not named");
}

#[test]
fn bad_requests_exit_2_and_change_nothing() {
    let scene = Scene::of(trees::INTEL);
    let before = scene.content();
    for (arguments, expected) in [
        (&["--set", "ple_window=4096"][..], "takes a value only when the module is loaded"),
        (&["--set", "ple_window=-4"], "allowed: 0 to"),
        (&["--set", "thp"], "NAME=VALUE is expected"),
        (&["--set", "thp=maybe"], "allowed: always"),
        (&["--set", "colour=red"], "allowed: ept"),
        (&["--vfs", "enp3s0f1=64"], "allowed: 0 to 63"),
        (&["--vfs", "enp3s0f1=x"], "DEV=N"),
        (&["--vfs", "0000:99:00.0=1"], "allowed: 0000:03:00.0"),
        (&["--bind", "0000:03:10.2=nosuch"], "driver nosuch is not loaded"),
        (&["--bind", "0000:03:10.2=../../x"], "no name of a driver"),
        (&["--bind", "0000:03:00.1"], "has no virtual functions"),
        (&["--irq", "9=99"], "online: 0-7"),
        (&["--irq", "9999=1"], "no interrupt 9999"),
        (&["no-such-knob"], "possible values"),
        // One of several that cannot be had stops all of them.
        (&["--set", "thp=always", "--set", "ple_gap=1"], "takes a value only when"),
    ] {
        let refused = scene.host(&[&["apply"], arguments].concat());
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains(expected), "{arguments:?}: {}", text(&refused.stderr));
        assert!(scene.content() == before && scene.journals_left() == 0, "{arguments:?}");
    }
    let missing = scene.command(&["host", "audit", "--sysroot", "/no/such/directory"]).output().expect("muster runs");
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn what_the_kernel_does_not_do_is_said_and_everything_is_put_back() {
    // The files of a tree do nothing: the device keeps its driver.
    let scene = Scene::of(trees::INTEL);
    let before = scene.content();
    let failed = scene.host(&["apply", "--set", "thp=always", "--bind", "0000:03:10.2"]);
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("its driver is ixgbevf") && said.contains("everything was put back"), "{said}");
    assert!(scene.content() == before && scene.journals_left() == 0);
}

#[test]
fn a_device_in_use_is_left_where_it_is() {
    let scene = Scene::of(trees::INTEL);
    let before = scene.content();
    for arguments in [&["--release", "0000:03:10.0"][..], &["--vfs", "0000:03:00.0=0"]] {
        let failed = scene.host(&[&["apply"], arguments].concat());
        let said = text(&failed.stderr);
        assert!(failed.status.code() == Some(1) && said.contains("0000:03:10.0 is in use by process 1340"), "{said}");
        assert!(scene.content() == before && scene.journals_left() == 0, "{arguments:?}");
    }
}

#[test]
fn without_privilege_it_names_what_it_needs() {
    let scene = Scene::of(trees::INTEL);
    fs::set_permissions(scene.root.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut command = scene.host_command(&["apply", "large-pages", "clock"]);
    if rustix::process::geteuid().is_root() {
        // SAFETY: only the child changes its identity, by system calls that are async-signal-safe.
        unsafe { command.pre_exec(nobody) };
    } else {
        for path in [
            "sys/kernel/mm/transparent_hugepage/enabled",
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
        ] {
            fs::set_permissions(scene.root.path().join(path), fs::Permissions::from_mode(0o444)).expect("its mode");
        }
    }
    let before = scene.content();
    let Ok(refused) = command.output() else {
        eprintln!("SKIPPED: without_privilege_it_names_what_it_needs: nobody may not run what was built here");
        return;
    };
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for named in ["transparent_hugepage/enabled", "current_clocksource", "needs root", "nothing was changed"] {
        assert!(said.contains(named), "{said}");
    }
    assert!(scene.content() == before && scene.journals_left() == 0);
}

/// Becomes the user `nobody`, without root's groups.
fn nobody() -> io::Result<()> {
    // SAFETY: both calls take numbers and return one; no group list is passed.
    let failed = unsafe { libc::setgroups(0, std::ptr::null()) != 0 || libc::setuid(65534) != 0 };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn killed_at_any_write_the_next_undo_restores() {
    let mut met_changes = 0;
    let mut write = 1;
    loop {
        let scene = Scene::of(trees::INTEL);
        let before = scene.content();
        let end = match traced(scene.host_command(&APPLY), write, Signal::KILL, Guardian::Killed) {
            Ok(end) => end,
            Err(why) => {
                eprintln!("SKIPPED: killed_at_any_write_the_next_undo_restores: {why}");
                return;
            }
        };
        if end != End::Signalled(libc::SIGKILL) {
            assert_eq!(end, End::Exited(0), "with no more writes to be killed at, it ends well");
            break;
        }
        met_changes += usize::from(scene.content() != before);
        let told = scene.muster(&["undo"]);
        // Killed after its last change it may have said that it is to stay; undone all the same.
        assert!(scene.content() == before, "killed at write {write}: {}", text(&told.stdout));
        assert_eq!((told.status.code(), scene.journals_left()), (Some(0), 0), "killed at write {write}");
        write += 1;
    }
    assert!(write > 20, "only {write} writes were seen");
    assert!(met_changes > 15, "{met_changes} kills met a changed tree: this shows little");
}

#[test]
fn killed_its_guardian_restores() {
    for write in [5, 12, 20] {
        let scene = Scene::of(trees::INTEL);
        let before = scene.content();
        match traced(scene.host_command(&APPLY), write, Signal::KILL, Guardian::Left) {
            Ok(end) => assert_eq!(end, End::Signalled(libc::SIGKILL)),
            Err(why) => return eprintln!("SKIPPED: killed_its_guardian_restores: {why}"),
        }
        let start = Instant::now();
        while scene.journals_left() > 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(scene.content() == before && scene.journals_left() == 0, "killed at write {write}");
    }
}

#[test]
fn a_signal_at_any_write_leaves_all_or_nothing() {
    let applied = {
        let scene = Scene::of(trees::INTEL);
        succeeds(&scene.host(&APPLY));
        relative(&scene)
    };
    for write in (1..40).step_by(3) {
        let scene = Scene::of(trees::INTEL);
        let before = relative(&scene);
        let end = match traced(scene.host_command(&APPLY), write, Signal::TERM, Guardian::Left) {
            Ok(end) => end,
            Err(why) => return eprintln!("SKIPPED: a_signal_at_any_write_leaves_all_or_nothing: {why}"),
        };
        match end {
            End::Exited(0) => {
                assert!(relative(&scene) == applied && scene.journals_left() == 1, "signal at write {write}")
            }
            // Before it watches for signals, one ends it like any program.
            End::Exited(143) | End::Signalled(libc::SIGTERM) => {
                assert!(relative(&scene) == before && scene.journals_left() == 0, "signal at write {write}");
            }
            other => panic!("signal at write {write}: {other:?}"),
        }
    }
}

fn relative(scene: &Scene) -> Vec<(PathBuf, Vec<u8>)> {
    let strip = |(path, content): (PathBuf, Vec<u8>)| {
        (path.strip_prefix(scene.root.path()).expect("a path of the tree").to_owned(), content)
    };
    trees::content(scene.root.path()).into_iter().map(strip).collect()
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    let scene = Scene::of(trees::INTEL);
    let victim = scene.root.path().join("victim");
    fs::write(&victim, "never").expect("a file");
    let enabled = scene.root.path().join("sys/kernel/mm/transparent_hugepage/enabled");
    fs::remove_file(&enabled).expect("a file of the tree");
    symlink(&victim, &enabled).expect("a link");
    let refused = scene.host(&["apply", "--set", "thp=always"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert_eq!(fs::read_to_string(victim).expect("a file"), "never");
    assert_eq!(scene.journals_left(), 0);
}

/// How a traced program ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Exited(i32),
    Signalled(i32),
}

/// What becomes of the guardian when its muster is killed.
#[derive(Debug, PartialEq, Eq)]
enum Guardian {
    Killed,
    Left,
}

/// Runs a program and sends it `signal` where it is about to make its `nth` change of a file: write(2), ftruncate(2) or
/// unlinkat(2). A program that is killed there has not made it.
fn traced(mut command: Command, nth: usize, signal: Signal, guardian: Guardian) -> Result<End, String> {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: ptrace(2) with PTRACE_TRACEME takes no pointers and is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let child = command.spawn().map_err(|error| format!("a program cannot be traced: {error}"))?;
    let pid = Pid::from_child(&child);
    let wait = || waitpid(Some(pid), WaitOptions::empty()).expect("a child").expect("a change").1;
    let mut status = wait();
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
    ptrace(libc::PTRACE_SETOPTIONS, pid, options as usize)
        .map_err(|error| format!("no tracing by system call: {error}"))?;
    let mut seen = 0;
    loop {
        if let Some(code) = status.exit_status() {
            return Ok(End::Exited(code));
        } else if let Some(number) = status.terminating_signal() {
            return Ok(End::Signalled(number));
        }
        let stopped = status.stopping_signal().expect("it ended, or is stopped");
        let by_call = stopped == libc::SIGTRAP | 0x80;
        if by_call && is_change(pid)? {
            seen += 1;
            if seen == nth {
                if guardian == Guardian::Killed {
                    kill_children(pid);
                }
                kill_process(pid, signal).expect("a child");
            }
        }
        // Its own signals are passed on.
        let pass_on = if by_call || stopped == libc::SIGTRAP { 0 } else { stopped as usize };
        match ptrace(libc::PTRACE_SYSCALL, pid, pass_on) {
            // It was killed.
            Ok(()) | Err(_) => status = wait(),
        }
    }
}

fn ptrace(request: libc::c_uint, pid: Pid, data: usize) -> io::Result<()> {
    // SAFETY: the requests used here take numbers in `data`, and the kernel ignores `addr`.
    let result = unsafe { libc::ptrace(request, pid.as_raw_nonzero().get(), 0usize, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the stopped program is about to change a file.
fn is_change(pid: Pid) -> Result<bool, String> {
    // SAFETY: an all-zero ptrace_syscall_info is a valid one: it holds numbers only.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of_val(&info);
    let number = pid.as_raw_nonzero().get();
    // SAFETY: `info` is writable for `size` bytes for the length of the call.
    let result = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, number, size, &raw mut info) };
    if result < 0 {
        return Err(format!("no system call to be seen: {}", io::Error::last_os_error()));
    }
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(false);
    }
    // SAFETY: `op` says that `entry` is the valid member.
    let call = unsafe { info.u.entry.nr };
    Ok([libc::SYS_write, libc::SYS_ftruncate, libc::SYS_unlinkat].contains(&(call as libc::c_long)))
}

/// Kills the children of a process, which here are its guardian.
fn kill_children(pid: Pid) {
    let number = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
        let _may_have_ended = kill_process(child, Signal::KILL);
        // A zombie of a stopped parent: dead as far as it matters.
        let start = Instant::now();
        while is_running(child) && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_running(pid: Pid) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])))
}
