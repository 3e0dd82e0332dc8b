//! The kill campaign: runs programs under muster, kills muster at random moments, and looks whether anything is left
//! changed. A dozen kills in an ordinary test run; `benches/kill-campaign 500` for the real thing.
//!
//! `MUSTER_KILLS` is the number of kills, `MUSTER_SEED` where their dice start.

use muster_undo::{CpuMask, system};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Set for everything that a kill starts, muster's own helpers included, so that strays are found.
const MARK: &str = "MUSTER_CAMPAIGN";
/// Makes the program ignore SIGTERM and SIGINT, so that there are survivors.
const DEAF: &str = "MUSTER_CAMPAIGN_DEAF";
/// Set for the program's child process.
const CHILD: &str = "MUSTER_CAMPAIGN_CHILD";
/// A program that nobody ended ends itself.
const LIFETIME: Duration = Duration::from_secs(60);
/// Everything must be restored within this time. It is judged by what is left then, not by how long it took.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program under muster: two threads that wake each other, so that consolidating pays, short-lived threads, and a
/// child of the same kind that mostly sleeps.
#[test]
#[ignore = "the program that the campaign starts, no test"]
fn program() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    if std::env::var_os(DEAF).is_some() {
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: ignoring a signal runs no code.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    let is_child = std::env::var_os(CHILD).is_some();
    // The child survives a program that dies of a signal.
    let child = (!is_child).then(|| this_program().env(CHILD, "1").spawn().expect("a child"));
    let (there, arrive) = sync_channel::<()>(0);
    let (back, again) = sync_channel::<()>(0);
    spawn(move || arrive.iter().try_for_each(|()| back.send(())));
    let start = Instant::now();
    while start.elapsed() < LIFETIME {
        spawn(|| sleep(Duration::from_millis(3)));
        if is_child {
            sleep(Duration::from_millis(20));
        }
        for _ in 0..500 {
            there.send(()).expect("the other thread");
            again.recv().expect("the other thread");
        }
    }
    if let Some(mut child) = child {
        child.wait().expect("the child's end");
    }
}

fn this_program() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command.args(["program", "--exact", "--ignored", "--nocapture"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn kills_leave_nothing_changed() {
    let setting = |name, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (kills, seed) = (setting("MUSTER_KILLS", 12), setting("MUSTER_SEED", 1));
    let machine = Machine::now();
    if machine.mask.iter().count() < 2 {
        eprintln!("SKIPPED: kills_leave_nothing_changed: on one CPU nothing is changed");
        return;
    }
    if let Err(why) = measured_profile() {
        eprintln!("SKIPPED: kills_leave_nothing_changed: {why}");
        return;
    }
    // The last two take root, and what not every machine has.
    let remedies = ["auto", "consolidate", "awake", "poll", "colocate"].into_iter().filter(|remedy| can_apply(remedy));
    let remedies: Vec<&'static str> = remedies.collect();
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tally = Tally::default();
    for number in 0..kills {
        let plan = Plan::throw(&mut dice, &remedies);
        let result = Scene::new(number).play(&plan, &machine);
        tally.add(number, &plan, result);
    }
    tally.print(seed);
    assert!(tally.left.is_empty(), "{} of {kills} kills left something changed", tally.left.len());
    assert!(kills < 12 || tally.kills_while_changed() > 0, "no kill met a changed machine: this shows nothing");
}

/// muster measures the machine at its first use, which would take up the first kill.
fn measured_profile() -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    let output = command.args(["run", "--remedy", "none", "--", "true"]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("muster run does not work here: {said}")) }
}

/// Whether muster takes the remedy here.
fn can_apply(remedy: &str) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    let output = command.args(["run", "--remedy", remedy, "--", "true"]).output();
    output.is_ok_and(|output| output.status.success())
}

/// What must be as it was.
#[derive(Debug, PartialEq)]
struct Machine {
    mask: CpuMask,
    haltpoll: BTreeMap<PathBuf, String>,
}

impl Machine {
    fn now() -> Self {
        let parameters = fs::read_dir("/sys/module/haltpoll/parameters").into_iter().flatten();
        let read = |path: PathBuf| Some((path.clone(), fs::read_to_string(path).ok()?));
        Self {
            mask: system::affinity(std::process::id()).expect("an affinity"),
            haltpoll: parameters.filter_map(|entry| read(entry.ok()?.path())).collect(),
        }
    }
}

/// One kill.
#[derive(Debug)]
struct Plan {
    remedy: &'static str,
    attach: bool,
    deaf: bool,
    signal: Signal,
    after: Duration,
}

impl Plan {
    fn throw(dice: &mut Xoshiro256PlusPlus, remedies: &[&'static str]) -> Self {
        let mut below = |sides: u64| dice.next_u64() % sides;
        let remedy = remedies[below(remedies.len() as u64) as usize];
        let attach = below(4) == 0;
        let deaf = below(2) == 0;
        let signal = [Signal::KILL, Signal::TERM, Signal::INT][below(3) as usize];
        // 5 ms to 2.5 s, short ones more often: muster starts, tries settings, and holds one.
        let exponent = below(2700) as f64 / 1000.0;
        Self { remedy, attach, deaf, signal, after: Duration::from_secs_f64(0.005 * 10_f64.powf(exponent)) }
    }
}

/// What a kill met, and what it left.
struct Kill {
    while_changed: bool,
    restored_after: Duration,
    left: Vec<String>,
}

/// The processes of one kill; those that are left are ended with it.
struct Scene {
    mark: String,
    journals: tempfile::TempDir,
}

impl Scene {
    fn new(number: u64) -> Self {
        Self {
            mark: format!("{MARK}={}-{number}", std::process::id()),
            journals: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn play(&self, plan: &Plan, machine: &Machine) -> Kill {
        let mut program = plan.attach.then(|| self.marked(this_program(), plan.deaf).spawn().expect("the program"));
        let mut muster = self.start(plan, program.as_ref());
        let pid = muster.id();
        sleep(plan.after);
        let while_changed = self.is_changed(machine);
        let killed = Instant::now();
        send(pid, plan.signal);
        // A program that ignores the signal goes on, and muster with it.
        if plan.signal != Signal::KILL && !wait_until(Duration::from_millis(300), || has_ended(&mut muster)) {
            send(pid, Signal::KILL);
        }
        let quiet = wait_until(PATIENCE, || has_ended(&mut muster) && self.left(pid, machine).is_empty());
        let left = if quiet { Vec::new() } else { self.left(pid, machine) };
        let restored_after = killed.elapsed();
        self.end_all();
        if let Some(program) = &mut program {
            program.wait().expect("the program's end");
        }
        Kill { while_changed, restored_after, left }
    }

    fn start(&self, plan: &Plan, program: Option<&Child>) -> Child {
        let mut muster = self.marked(Command::new(env!("CARGO_BIN_EXE_muster")), plan.deaf);
        muster.args(["run", "--remedy", plan.remedy]).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
        match program {
            Some(program) => muster.args(["--pid", &program.id().to_string()]),
            None => muster.arg("--").arg(this_program().get_program()).args(this_program().get_args()),
        };
        muster.spawn().expect("muster")
    }

    fn marked(&self, mut command: Command, deaf: bool) -> Command {
        let (name, value) = self.mark.split_once('=').expect("a variable");
        command.env(name, value).env("MUSTER_JOURNALS", self.journals.path().join("journals"));
        if deaf {
            command.env(DEAF, "1");
        }
        command
    }

    /// The living processes of this kill.
    fn processes(&self) -> Vec<u32> {
        let marked = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|all| all.split(|&byte| byte == 0).any(|variable| variable == self.mark.as_bytes()))
        };
        numbers(Path::new("/proc")).into_iter().filter(marked).collect()
    }

    /// Whether muster has something in force right now.
    fn is_changed(&self, machine: &Machine) -> bool {
        let processes = self.processes();
        Machine::now() != *machine
            || processes.iter().any(|&pid| is_muster(pid, "pause-loops"))
            || processes.iter().any(|&pid| !is_muster(pid, "") && !narrowed(pid, &machine.mask).is_empty())
    }

    /// What muster, process `pid`, has left.
    fn left(&self, pid: u32, machine: &Machine) -> Vec<String> {
        let mut left = Vec::new();
        let now = Machine::now();
        if now != *machine {
            left.push(format!("{now:?}"));
        }
        for process in self.processes() {
            if is_muster(process, "") {
                left.push(format!("process {process}: {}", command_line(process)));
            } else {
                left.extend(narrowed(process, &machine.mask));
            }
        }
        left.extend(cgroups(&format!("muster-{pid}-")).iter().map(|path| path.display().to_string()));
        let journals = fs::read_dir(self.journals.path().join("journals")).into_iter().flatten().flatten();
        left.extend(journals.map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            format!("{}: {text}", entry.path().display())
        }));
        left
    }

    fn end_all(&self) {
        wait_until(PATIENCE, || {
            let processes = self.processes();
            processes.iter().for_each(|&pid| send(pid, Signal::KILL));
            processes.is_empty()
        });
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.end_all();
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process number")).expect("a process number");
    let _may_have_ended = kill_process(pid, signal);
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().expect("a child's state").is_some()
}

fn wait_until(patience: Duration, mut fact: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if fact() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
}

fn numbers(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn command_line(pid: u32) -> String {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ")
}

/// Whether the process is a muster, with `word` among its arguments.
fn is_muster(pid: u32, word: &str) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program == Path::new(env!("CARGO_BIN_EXE_muster")) && command_line(pid).contains(word)
}

/// The threads of a process that have another mask than `mask`.
fn narrowed(pid: u32, mask: &CpuMask) -> Vec<String> {
    let threads = numbers(&PathBuf::from(format!("/proc/{pid}/task"))).into_iter();
    let others = threads.filter_map(|tid| Some((tid, system::affinity(tid).ok()?))).filter(|(_, has)| has != mask);
    others.map(|(tid, has)| format!("thread {tid} of process {pid} may run on {has}")).collect()
}

/// The cgroups, in any hierarchy, whose names start with `prefix`.
fn cgroups(prefix: &str) -> Vec<PathBuf> {
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut found = Vec::new();
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for entry in directories {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                found.push(entry.path());
            }
            open.push(entry.path());
        }
    }
    found
}

fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::KILL => "SIGKILL",
        Signal::TERM => "SIGTERM",
        _ => "SIGINT",
    }
}

/// The campaign's result.
#[derive(Default)]
struct Tally {
    /// By remedy, way of starting and signal: kills, and kills while something was changed.
    kinds: BTreeMap<String, (u32, u32)>,
    restored_after: Vec<Duration>,
    slowest: Option<(Duration, String)>,
    left: Vec<String>,
}

impl Tally {
    fn add(&mut self, number: u64, plan: &Plan, kill: Kill) {
        let way = if plan.attach { "attached" } else { "started" };
        let kind = self.kinds.entry(format!("{:<12} {way:<9} {}", plan.remedy, name(plan.signal))).or_default();
        kind.0 += 1;
        kind.1 += u32::from(kill.while_changed);
        if kill.while_changed {
            self.restored_after.push(kill.restored_after);
        }
        let slowest = self.slowest.get_or_insert_default();
        if kill.restored_after >= slowest.0 {
            *slowest = (kill.restored_after, format!("kill {number}, {plan:?}"));
        }
        if !kill.left.is_empty() {
            let left = kill.left.join("\n    ");
            eprintln!("kill {number} ({plan:?}) left:\n    {left}");
            self.left.push(left);
        }
    }

    fn kills_while_changed(&self) -> u32 {
        self.kinds.values().map(|(_, changed)| changed).sum()
    }

    fn print(&mut self, seed: u64) {
        let kills: u32 = self.kinds.values().map(|(kills, _)| kills).sum();
        println!("remedy       program   signal    kills  while something was changed");
        for (kind, (kills, changed)) in &self.kinds {
            println!("{kind:<30} {kills:>6}  {changed:>6}");
        }
        self.restored_after.sort();
        let at = |share: f64| self.restored_after.get((share * (self.restored_after.len().max(1) - 1) as f64) as usize);
        let ms = |share| at(share).map_or("-".to_owned(), |time| format!("{:.0} ms", time.as_secs_f64() * 1e3));
        println!("seed {seed}: {kills} kills, {} while something was changed", self.kills_while_changed());
        println!("all was back after {} (median), {} (at most)", ms(0.5), ms(1.0));
        if let Some((time, kill)) = &self.slowest {
            println!("slowest, {:.0} ms: {kill}", time.as_secs_f64() * 1e3);
        }
        println!("{} kills left something changed", self.left.len());
    }
}
