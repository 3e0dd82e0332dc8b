//! `muster run --remedy colocate` against a real program of two pairs of threads: each pair gets a vCPU, everybody else
//! keeps what he has, and all is as before when muster has ended, also by `kill -9`. Needs root, BPF and two CPUs.

use muster_undo::{CpuMask, system};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Set for everything that a scene starts, so that it is found again.
const MARK: &str = "MUSTER_COLOCATE_TEST";
/// A program that nobody ended ends itself.
const LIFETIME: Duration = Duration::from_secs(120);
/// What is to happen happens within this time. How long it takes is not judged.
const PATIENCE: Duration = Duration::from_secs(60);
/// Each pair works for so long in four: a scheduler leaves threads of busier programs together by itself.
const TURN: Duration = Duration::from_millis(3);
/// Then there are new pairs. A scheduler may come to leave these together by itself, and then nothing is to be done.
const GENERATION: Duration = Duration::from_secs(10);

/// The program under muster: two pairs that hand over through pipes, threads that a member of a pair starts later, and
/// one that keeps to a mask of its own.
#[test]
#[ignore = "the program that the tests start, no test"]
fn program() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let first = system::affinity(std::process::id()).expect("an affinity").iter().take(1).collect();
    let start = |name: String, body: Box<dyn FnOnce() + Send>| Builder::new().name(name).spawn(body).expect("a thread");
    start(
        "loner".into(),
        Box::new(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            system::set_affinity(tid, &first).expect("a mask of its own");
            sleep(LIFETIME);
        }),
    );
    let began = Instant::now();
    while began.elapsed() < LIFETIME {
        let ends = Instant::now() + GENERATION;
        let threads = [0, 1].map(|pair| start(format!("a{pair}"), Box::new(move || lead(pair, ends))));
        threads.into_iter().for_each(|thread| thread.join().expect("a thread's end"));
    }
}

/// One of a pair: hands over to the other, and starts a thread now and then.
fn lead(pair: u128, ends: Instant) {
    let (mut there, mut to_other) = std::io::pipe().expect("a pipe");
    let (mut back, mut to_this) = std::io::pipe().expect("a pipe");
    let other = move || while there.read_exact(&mut [0]).and_then(|()| to_this.write_all(b"x")).is_ok() {};
    Builder::new().name(format!("b{pair}")).spawn(other).expect("a thread");
    let (began, mut late) = (Instant::now(), 0);
    while Instant::now() < ends {
        let (turn, since_ns) =
            (began.elapsed().as_nanos() / TURN.as_nanos(), began.elapsed().as_nanos() % TURN.as_nanos());
        if turn % 4 != 2 * pair {
            sleep(TURN - Duration::from_nanos(since_ns as u64));
        } else if to_other.write_all(b"x").and_then(|()| back.read_exact(&mut [0])).is_err() {
            return;
        }
        if began.elapsed().as_millis() / 50 > late {
            late = began.elapsed().as_millis() / 50;
            Builder::new().name("late".into()).spawn(|| sleep(Duration::from_millis(400))).expect("a thread");
        }
    }
}

/// A program under muster, and what ends them.
struct Scene {
    mark: String,
    journals: tempfile::TempDir,
    muster: Child,
    whole: CpuMask,
}

impl Scene {
    /// Starts muster on a shell that starts the program and ends when its input does; `None` where that cannot work.
    fn start(test: &str) -> Option<Self> {
        let whole = system::affinity(std::process::id()).expect("an affinity");
        let journals = tempfile::tempdir().expect("a temporary directory");
        let mut muster = Command::new(env!("CARGO_BIN_EXE_muster"));
        muster.args(["run", "--remedy", "colocate", "--"]).env("MUSTER_JOURNALS", journals.path().join("journals"));
        let mut trial = Command::new(env!("CARGO_BIN_EXE_muster"));
        let trial = trial.args(["run", "--remedy", "colocate", "--", "true"]).output().expect("muster starts");
        let why = match whole.iter().count() {
            1 => Some("on one CPU nothing is changed".to_owned()),
            _ if !trial.status.success() => Some(String::from_utf8_lossy(&trial.stderr).into_owned()),
            _ => None,
        };
        if let Some(why) = why {
            eprintln!("SKIPPED: {test}: {why}");
            return None;
        }
        let mark = format!("{test}-{}", std::process::id());
        let program = std::env::current_exe().expect("this program's path");
        muster.args(["sh", "-c", "\"$0\" program --exact --ignored & read end"]).arg(program).env(MARK, &mark);
        muster.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(Self { mark, journals, muster: muster.spawn().expect("muster"), whole })
    }

    /// The program's threads and their masks, by name.
    fn threads(&self) -> BTreeMap<String, BTreeMap<u32, CpuMask>> {
        let mut threads: BTreeMap<String, BTreeMap<u32, CpuMask>> = BTreeMap::new();
        let own = std::env::current_exe().expect("this program's path");
        let is_program = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own);
        for pid in self.processes().into_iter().filter(is_program) {
            for tid in numbers(Path::new(&format!("/proc/{pid}/task"))) {
                let name = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
                if let Ok(mask) = system::affinity(tid) {
                    threads.entry(name.trim().to_owned()).or_default().insert(tid, mask);
                }
            }
        }
        threads
    }

    /// Waits until each pair has a CPU to itself, and a thread that was started from a seat has the whole set back.
    /// Returns the threads of the pairs; `None` where others keep the CPUs so busy that none halts, and nothing is to
    /// be done.
    fn await_seats(&self, test: &str) -> Option<BTreeSet<u32>> {
        let (idle, all) = idle_and_all_ticks();
        let mut on_seats = BTreeSet::new();
        let mut members = BTreeSet::new();
        let are_seated = wait_until(|| {
            let threads = self.threads();
            let member = |name: String| threads.get(&name)?.iter().next().map(|(&tid, mask)| (tid, mask.clone()));
            let pairs = [0, 1].map(|pair| Some((member(format!("a{pair}"))?, member(format!("b{pair}"))?)));
            let late = threads.get("late").cloned().unwrap_or_default();
            on_seats.extend(late.iter().filter(|(_, mask)| **mask != self.whole).map(|(&tid, _)| tid));
            let is_freed = late.iter().any(|(tid, mask)| on_seats.contains(tid) && *mask == self.whole);
            let [Some((a, b)), Some((c, d))] = pairs else { return false };
            members = [a.0, b.0, c.0, d.0].into();
            a.1 == b.1 && c.1 == d.1 && a.1 != c.1 && a.1.iter().count() == 1 && c.1.iter().count() == 1 && is_freed
        });
        let (idle, all) = (idle_and_all_ticks().0 - idle, idle_and_all_ticks().1 - all);
        if !are_seated && 2 * idle < all {
            eprintln!("SKIPPED: {test}: others keep the CPUs busy, {idle} of {all} ticks were idle");
            return None;
        }
        assert!(are_seated, "{idle} of {all} ticks were idle, {:?}", self.threads());
        Some(members)
    }

    /// Whether `members` have what they had before muster, as everybody else has, and no journal is left.
    fn is_as_before(&self, members: &BTreeSet<u32>) -> bool {
        let threads = self.threads();
        let first: CpuMask = self.whole.iter().take(1).collect();
        let is_own = |(name, threads): (&String, &BTreeMap<u32, CpuMask>)| {
            threads.values().all(|mask| *mask == if name == "loner" { first.clone() } else { self.whole.clone() })
        };
        let alive: BTreeSet<u32> = threads.values().flat_map(BTreeMap::keys).copied().collect();
        let journals = fs::read_dir(self.journals.path().join("journals")).into_iter().flatten().flatten();
        members.is_subset(&alive)
            && threads.iter().all(is_own)
            && journals.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "journal")).count() == 0
    }

    fn processes(&self) -> BTreeSet<u32> {
        let wanted = format!("{MARK}={}", self.mark);
        let is_marked = |pid: &u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|all| all.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes()))
        };
        numbers(Path::new("/proc")).into_iter().filter(is_marked).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.muster.stdin.take());
        wait_until(|| {
            let processes = self.processes();
            processes.iter().for_each(|&pid| send(pid, Signal::KILL));
            processes.is_empty()
        });
        let _ended_long_ago = self.muster.wait();
    }
}

/// One scene at a time: two programs keep two CPUs so busy that nothing halts.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn pairs_get_a_vcpu_each_and_their_masks_back_at_the_end() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut scene) = Scene::start("pairs_get_a_vcpu_each_and_their_masks_back_at_the_end") else { return };
    let Some(members) = scene.await_seats("pairs_get_a_vcpu_each_and_their_masks_back_at_the_end") else { return };
    drop(scene.muster.stdin.take());
    scene.muster.wait().expect("muster's end");
    assert!(scene.is_as_before(&members), "{:?}", scene.threads());
}

#[test]
fn a_killed_muster_leaves_no_thread_on_its_seat() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut scene) = Scene::start("a_killed_muster_leaves_no_thread_on_its_seat") else { return };
    let Some(members) = scene.await_seats("a_killed_muster_leaves_no_thread_on_its_seat") else { return };
    send(scene.muster.id(), Signal::KILL);
    scene.muster.wait().expect("muster's end");
    assert!(wait_until(|| scene.is_as_before(&members)), "{:?}", scene.threads());
}

fn send(pid: u32, signal: Signal) {
    let _may_have_ended = kill_process(Pid::from_raw(pid as i32).expect("a process number"), signal);
}

fn wait_until(mut fact: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if fact() {
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    fact()
}

/// Of all CPUs since boot (proc_stat(5)).
fn idle_and_all_ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks = text.lines().next().into_iter().flat_map(|line| line.split_ascii_whitespace().skip(1).take(8));
    let ticks: Vec<u64> = ticks.map(|word| word.parse().expect("a number")).collect();
    (ticks[3] + ticks[4], ticks.iter().sum())
}

fn numbers(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
