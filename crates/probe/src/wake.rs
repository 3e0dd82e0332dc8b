//! What waking a blocked thread costs: Gleaner's Table 1, settings A, B and C, through futex, pipe and signal.
//!
//! A waker and a wakee, each confined to a CPU. The waker stamps the time just before the call that wakes; the wakee
//! stamps it as soon as it runs again. The difference is the one-way latency. A round counts only if the wakee really
//! blocked (its voluntary context switches rose), and whether the target CPU halted is read from cpuidle.

use crate::affinity;
use crate::batch::Effort;
use crate::error::{ProbeError, Result};
use crate::machine::{IdleEntries, Root};
use crate::stamp::Stamps;
use muster_model::profile::names::WAKE_CHANNELS;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::sync::mpsc;

/// How the wakee blocks and is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// FUTEX_WAIT and FUTEX_WAKE.
    Futex,
    /// A read of an empty pipe, and a write of one byte.
    Pipe,
    /// sigwaitinfo and tgkill.
    Signal,
}

impl Channel {
    /// Every channel, in the order of [`WAKE_CHANNELS`].
    pub const ALL: [Self; 3] = [Self::Futex, Self::Pipe, Self::Signal];

    /// The name in price names.
    pub fn name(self) -> &'static str {
        WAKE_CHANNELS[self as usize]
    }
}

/// The state of the target CPU when the wake-up is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// It is the waker's own CPU (Table 1, A).
    SameCpu,
    /// Another CPU, kept awake by a lowest-priority thread in a loop of sched_yield (Table 1, B).
    Awake,
    /// Another CPU, idle, still polling (guest halt polling).
    Polling,
    /// Another CPU that halted a moment ago (Table 1, C).
    Halted,
    /// Another CPU that halted long ago: whoever polls for it on the host has given up.
    Parked,
}

impl Setting {
    /// The name in price names.
    pub fn name(self) -> &'static str {
        match self {
            Self::SameCpu => "same-cpu",
            Self::Awake => "awake",
            Self::Polling => "polling",
            Self::Halted => "halted",
            Self::Parked => "parked",
        }
    }

    /// How long the waker waits after the wakee set out to block, so that the target is in this state.
    /// `guest_poll_ns` is how long an idle CPU of this guest polls at most.
    fn pause_ns(self, guest_poll_ns: u64) -> u64 {
        match self {
            Self::SameCpu => 0,
            Self::Awake => 20_000,
            // Well inside the window, and long enough for the wakee to have blocked.
            Self::Polling => (guest_poll_ns / 4).clamp(5_000, 20_000),
            Self::Halted => guest_poll_ns + guest_poll_ns / 4 + 60_000,
            // KVM polls 200 us for a halted vCPU by default (Documentation/virt/kvm/halt-polling.rst).
            Self::Parked => guest_poll_ns + 2_000_000,
        }
    }
}

/// One arrangement to measure.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// How the wakee blocks.
    pub channel: Channel,
    /// What the target CPU is doing.
    pub setting: Setting,
    /// Where the waker runs.
    pub waker_cpu: usize,
    /// Where the wakee runs; the waker's CPU in setting A only.
    pub wakee_cpu: usize,
    /// How long an idle CPU of this guest polls at most, nanoseconds; 0 where it halts at once.
    pub guest_poll_ns: u64,
}

/// What one arrangement showed.
#[derive(Debug, Clone)]
pub struct WakeTimes {
    /// Median one-way latency of each batch, nanoseconds.
    pub latency_ns: Vec<f64>,
    /// Median time of each batch that the waker spent in the waking call, nanoseconds.
    pub call_ns: Vec<f64>,
    /// Rounds that counted, of those made.
    pub counted: usize,
    /// Rounds made.
    pub rounds: usize,
    /// What the target CPU's idle did meanwhile, where cpuidle tells.
    pub idle: Option<IdleEntries>,
}

/// Measures one arrangement.
///
/// # Errors
/// When the threads cannot be started or confined, or when the wakee hardly ever blocked.
pub fn measure(scene: &Scene, effort: &Effort, stamps: Stamps) -> Result<WakeTimes> {
    let wakes = if scene.setting == Setting::Parked { effort.wakes.div_ceil(4) } else { effort.wakes };
    let link = Link::new(scene.channel)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let keeper = (scene.setting == Setting::Awake)
            .then(|| affinity::spawn_on(scope, scene.wakee_cpu, || keep_awake(&stop)))
            .transpose()?;
        let outcome = affinity::on_cpu(scene.waker_cpu, || rounds(scene, effort.batches, wakes, &link, stamps));
        stop.store(true, Relaxed);
        keeper.map_or(Ok(()), affinity::finish)?;
        outcome
    })
}

/// Gleaner's yielding thread: keeps the CPU from going idle and gives it to anybody who wants it.
fn keep_awake(stop: &AtomicBool) -> Result<()> {
    affinity::lowest_priority()?;
    while !stop.load(Relaxed) {
        std::thread::yield_now();
    }
    Ok(())
}

/// The waker's side: starts the wakee, makes all rounds, and sums them up.
fn rounds(scene: &Scene, batches: usize, wakes: usize, link: &Link, stamps: Stamps) -> Result<WakeTimes> {
    // One batch more: the first settles caches, frequencies and adaptive polling, and is dropped.
    let total = (batches + 1) * wakes;
    let (started, wait_for_start) = mpsc::sync_channel(1);
    let outcome = std::thread::scope(|scope| {
        let wakee = affinity::spawn_on(scope, scene.wakee_cpu, move || {
            let prepared = link.prepare_wakee();
            let is_ready = prepared.is_ok();
            // The waker waits for this word; it cannot be gone.
            let _ = started.send(is_ready);
            prepared?;
            (1..=total as u32).try_for_each(|round| link.be_woken(scene.setting, round, stamps))
        })?;
        // An error of the wakee before the first round closes the channel or says `false`.
        if !wait_for_start.recv().unwrap_or(false) {
            affinity::finish(wakee)?;
            return Err(ProbeError::NotMeasurable("the thread to be woken did not start".into()));
        }
        let root = Root::default();
        let pause_ns = scene.setting.pause_ns(scene.guest_poll_ns);
        let mut seen = Vec::with_capacity(total);
        let mut idle_before = None;
        for round in 1..=total {
            if round == wakes + 1 {
                idle_before = IdleEntries::read(&root, scene.wakee_cpu);
            }
            seen.push(link.wake(scene.setting, round as u32, pause_ns, stamps)?);
        }
        let idle_after = IdleEntries::read(&root, scene.wakee_cpu);
        affinity::finish(wakee)?;
        Ok((seen, idle_after.zip(idle_before).map(|(after, before)| after.since(&before))))
    });
    let (seen, idle) = outcome?;
    summarize(&seen[wakes..], wakes, idle)
}

/// One round: latency and time in the call, nanoseconds; `None` when the wakee had not blocked.
type Round = Option<(f64, f64)>;

fn summarize(seen: &[Round], wakes: usize, idle: Option<IdleEntries>) -> Result<WakeTimes> {
    let counted = seen.iter().flatten().count();
    if counted * 2 < seen.len() {
        let text = format!("the thread to be woken blocked in only {counted} of {} rounds", seen.len());
        return Err(ProbeError::NotMeasurable(text));
    }
    let median_of = |pick: fn(&(f64, f64)) -> f64| {
        let batch = |batch: &[Round]| muster_stats::median(&batch.iter().flatten().map(pick).collect::<Vec<_>>());
        seen.chunks(wakes).filter_map(batch).collect()
    };
    Ok(WakeTimes {
        latency_ns: median_of(|round| round.0),
        call_ns: median_of(|round| round.1),
        counted,
        rounds: seen.len(),
        idle,
    })
}

/// A value on cache lines of its own, so that what one side polls does not slow the other.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

/// What a waker and a wakee share.
struct Link {
    channel: Channel,
    pipe: Option<(OwnedFd, OwnedFd)>,
    /// The wakee's thread id.
    wakee: AtomicI32,
    /// The futex the wakee blocks on: the number of the last round whose wake-up was sent.
    sent: Line<AtomicU32>,
    /// The round for which the wakee is about to block.
    about_to_block: Line<AtomicU32>,
    /// The last round whose wake-up arrived; a futex for the waker in setting A.
    arrived: Line<AtomicU32>,
    /// When the wakee ran again.
    woken_at: AtomicU64,
    /// Whether it had blocked.
    had_blocked: AtomicBool,
}

impl Link {
    fn new(channel: Channel) -> Result<Self> {
        let pipe = (channel == Channel::Pipe)
            .then(|| rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(ProbeError::call("pipe2")))
            .transpose()?;
        Ok(Self {
            channel,
            pipe,
            wakee: AtomicI32::new(0),
            sent: Line::default(),
            about_to_block: Line::default(),
            arrived: Line::default(),
            woken_at: AtomicU64::new(0),
            had_blocked: AtomicBool::new(false),
        })
    }

    /// What the wakee does once: says who it is and, for signals, blocks the one it will wait for.
    fn prepare_wakee(&self) -> Result<()> {
        self.wakee.store(rustix::thread::gettid().as_raw_nonzero().get(), Release);
        if self.channel == Channel::Signal {
            let set = wake_signal_set();
            // SAFETY: `set` is initialized and lives through the call; no old set is asked for.
            let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
            if failed != 0 {
                let source = std::io::Error::from_raw_os_error(failed);
                return Err(ProbeError::Call { call: "pthread_sigmask", source });
            }
        }
        Ok(())
    }

    /// The wakee's side of one round.
    fn be_woken(&self, setting: Setting, round: u32, stamps: Stamps) -> Result<()> {
        let switches = voluntary_switches();
        self.about_to_block.0.store(round, Release);
        self.block(round)?;
        let woken_at = stamps.now();
        self.had_blocked.store(voluntary_switches() > switches, Relaxed);
        self.woken_at.store(woken_at, Relaxed);
        self.arrived.0.store(round, Release);
        if setting == Setting::SameCpu {
            futex_wake(&self.arrived.0)?;
        }
        Ok(())
    }

    /// The waker's side of one round.
    fn wake(&self, setting: Setting, round: u32, pause_ns: u64, stamps: Stamps) -> Result<Round> {
        while self.about_to_block.0.load(Acquire) != round {
            self.give_way(setting);
        }
        if setting == Setting::SameCpu {
            // The wakee may have been preempted between its word and blocking: let it finish.
            std::thread::yield_now();
        }
        stamps.spin_ns(pause_ns);
        let before = stamps.now();
        self.send(round)?;
        let after = stamps.now();
        if setting == Setting::SameCpu {
            // Blocking is what a thread that woke another on its own CPU does next: it makes room.
            futex_wait(&self.arrived.0, round)?;
        } else {
            while self.arrived.0.load(Acquire) != round {
                std::hint::spin_loop();
            }
        }
        let latency_ns = stamps.ns(before, self.woken_at.load(Relaxed));
        Ok(self.had_blocked.load(Relaxed).then(|| (latency_ns, stamps.ns(before, after))))
    }

    fn give_way(&self, setting: Setting) {
        if setting == Setting::SameCpu {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Blocks until the wake-up of `round` has been sent.
    fn block(&self, round: u32) -> Result<()> {
        match (self.channel, &self.pipe) {
            (Channel::Pipe, Some((reader, _))) => {
                retry(|| rustix::io::read(reader, &mut [0u8; 1])).map(drop).map_err(ProbeError::call("read (a pipe)"))
            }
            (Channel::Signal, _) => wait_for_signal(),
            _ => futex_wait(&self.sent.0, round),
        }
    }

    /// Wakes the wakee for `round`.
    fn send(&self, round: u32) -> Result<()> {
        match (self.channel, &self.pipe) {
            (Channel::Pipe, Some((_, writer))) => {
                retry(|| rustix::io::write(writer, &[0u8; 1])).map(drop).map_err(ProbeError::call("write (a pipe)"))
            }
            (Channel::Signal, _) => send_signal(self.wakee.load(Acquire)),
            _ => {
                self.sent.0.store(round, Release);
                futex_wake(&self.sent.0)
            }
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Blocks while `word` is not `round`; every value before it is `round - 1`.
fn futex_wait(word: &AtomicU32, round: u32) -> Result<()> {
    while word.load(Acquire) != round {
        match futex::wait(word, futex::Flags::PRIVATE, round - 1, None) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(ProbeError::call("futex(FUTEX_WAIT)")(errno)),
        }
    }
    Ok(())
}

fn futex_wake(word: &AtomicU32) -> Result<()> {
    futex::wake(word, futex::Flags::PRIVATE, 1).map(drop).map_err(ProbeError::call("futex(FUTEX_WAKE)"))
}

fn wake_signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

fn wake_signal_set() -> libc::sigset_t {
    // SAFETY: a zeroed set is a valid place for sigemptyset, which initializes it; the signal number is valid.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, wake_signal());
        set
    }
}

fn wait_for_signal() -> Result<()> {
    let set = wake_signal_set();
    loop {
        // SAFETY: `set` is initialized and lives through the call; no signal information is asked for.
        if unsafe { libc::sigwaitinfo(&set, std::ptr::null_mut()) } >= 0 {
            return Ok(());
        }
        let source = std::io::Error::last_os_error();
        if source.kind() != std::io::ErrorKind::Interrupted {
            return Err(ProbeError::Call { call: "sigwaitinfo", source });
        }
    }
}

fn send_signal(thread: i32) -> Result<()> {
    // SAFETY: plain numbers; the thread belongs to this process and has the signal blocked, so that it only ends a
    // sigwaitinfo.
    match unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, wake_signal()) } {
        0 => Ok(()),
        _ => Err(ProbeError::last("tgkill")),
    }
}

/// How often the calling thread gave up its CPU by blocking (getrusage(2), ru_nvcsw).
fn voluntary_switches() -> i64 {
    // SAFETY: a zeroed rusage is valid, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_in_which_nobody_blocked_do_not_count() {
        let seen: Vec<Round> = vec![Some((10.0, 1.0)), None, Some((30.0, 3.0)), Some((50.0, 5.0))];
        let times = summarize(&seen, 2, None).unwrap();
        assert_eq!((times.latency_ns, times.call_ns), (vec![10.0, 40.0], vec![1.0, 4.0]));
        assert_eq!((times.counted, times.rounds), (3, 4));
        assert!(summarize(&[None, None, Some((1.0, 1.0))], 2, None).is_err());
    }

    #[test]
    fn every_channel_has_its_name() {
        assert_eq!(Channel::ALL.map(Channel::name), WAKE_CHANNELS);
    }

    #[test]
    fn a_halted_target_is_woken_after_the_guest_stopped_polling() {
        for poll_ns in [0, 50_000, 200_000] {
            assert!(Setting::Polling.pause_ns(poll_ns) < poll_ns.max(30_000));
            assert!(Setting::Halted.pause_ns(poll_ns) > poll_ns);
            assert!(Setting::Parked.pause_ns(poll_ns) > Setting::Halted.pause_ns(poll_ns));
        }
    }

    #[test]
    fn every_channel_wakes_on_one_cpu() {
        let cpu = affinity::allowed().unwrap().iter().next().unwrap();
        let stamps = Stamps::new(&crate::machine::platform(&Root::default(), cpu));
        for channel in Channel::ALL {
            let scene = Scene { channel, setting: Setting::SameCpu, waker_cpu: cpu, wakee_cpu: cpu, guest_poll_ns: 0 };
            let times = measure(&scene, &Effort { batches: 3, wakes: 5, ..Effort::QUICK }, stamps).unwrap();
            assert_eq!(times.rounds, 15);
            assert!(times.latency_ns.iter().all(|&ns| ns > 0.0), "{times:?}");
        }
    }
}
