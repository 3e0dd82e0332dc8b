//! What pause-loop exiting (PLE) should be set to, out of what is seen: in a guest, how long its kernel spins for locks; on a
//! host, which of KVM's windows spins outlast.
//!
//! Only the guest's side tells a window ([`LockWaits`], [`muster_policy::ple::window`]): a host sees the spins that outlast
//! the window in force, not the waits of which these are a share ([`PauseExits`]). Neither tells a gap, which takes exits
//! counted with several gaps.

#[cfg_attr(not(feature = "bpf"), path = "ple/no_bpf.rs")]
mod bpf;
mod format;
mod kvm;
mod spins;
mod text;
mod tsc;

use muster_policy::ple::{Certainty, Waits};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

pub use kvm::{Kvm, Vendor};
pub use spins::Spins;

/// What cannot be seen here, and why.
#[derive(Debug, thiserror::Error)]
pub enum PleError {
    /// This muster has no BPF program in it.
    #[error("this muster was built without BPF; `make build` builds it in where clang, libelf and zlib are installed")]
    NoBpf,
    /// The kernel refused the program.
    #[error("BPF cannot {what}: {why}")]
    Bpf {
        /// What it was to do, and what that takes.
        what: &'static str,
        /// The kernel's or libbpf's words.
        why: String,
    },
    /// The tracepoints are not there.
    #[error("{place} cannot be read: {why}; {advice}")]
    NoTracepoint {
        /// The tracepoint's description.
        place: String,
        /// The system's words, or what is missing in it.
        why: String,
        /// What would bring it.
        advice: &'static str,
    },
    /// No KVM with pause-loop exiting.
    #[error("{0}")]
    NoPle(String),
    /// Not an x86 processor.
    #[error("pause-loop exiting is a feature of x86 processors; this is another one")]
    NotX86,
}

/// What was seen on one side, and the window that follows from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "side", rename_all = "lowercase")]
pub enum Answer {
    /// In a guest, or wherever a kernel spins for locks.
    Guest {
        /// What was seen.
        waits: Box<LockWaits>,
        /// What the policy chooses, in cycles; none where too few waits were seen to tell.
        window: Option<u32>,
        /// How sure that is, or what is possible; none where no spin lock was waited for.
        certainty: Option<Certainty>,
    },
    /// On a KVM host.
    Host {
        /// What was seen.
        exits: Box<PauseExits>,
        /// What the policy would choose if the spins that outlasted KVM's window were all waits: an estimate from above.
        longest: Option<Certainty>,
    },
}

impl Answer {
    /// Asks the policy about a guest's waits.
    pub fn for_guest(waits: LockWaits) -> Self {
        let certainty = Certainty::of(&waits.deciding()).ok();
        let window = certainty.filter(Certainty::is_certain).map(|certainty| certainty.window);
        Self::Guest { waits: Box::new(waits), window, certainty }
    }

    /// Asks the policy about a host's exits. Where windows do not grow, a spin's length is not told.
    pub fn for_host(exits: PauseExits) -> Self {
        let longest = exits.kvm.is_adaptive().then(|| Certainty::of(&exits.spins.outlasted).ok()).flatten();
        Self::Host { exits: Box::new(exits), longest }
    }

    /// For a person.
    pub fn text(&self) -> String {
        match self {
            Self::Guest { waits, certainty, .. } => text::guest(waits, certainty.as_ref()),
            Self::Host { exits, longest } => text::host(exits, longest.as_ref()),
        }
    }
}

/// How long a guest's kernel spun for locks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LockWaits {
    /// How long was watched, in ns.
    pub watched_ns: u64,
    /// TSC cycles per second, measured against the kernel's clock.
    pub tsc_hz: u64,
    /// TSC cycles that a PAUSE takes here, measured.
    pub pause_cycles: f64,
    /// Waits for spin locks.
    pub spinlocks: Waits,
    /// Waits for reader-writer locks that spin.
    pub rwlocks: Waits,
    /// Mutexes spun for while their owner ran, until they were had. They are no part of [`LockWaits::deciding`].
    pub mutexes: Waits,
    /// Waits whose end was not seen.
    pub lost: u64,
}

impl LockWaits {
    /// Watches the kernel of this machine for so long; `tick` is told how much of it is over.
    ///
    /// # Errors
    /// Without root, without BPF, on a kernel before Linux 5.19 (no such tracepoints), on another processor than x86.
    pub fn watch(duration: Duration, tick: &mut dyn FnMut(Duration)) -> Result<Self, PleError> {
        let tsc_hz = tsc::hz()?;
        let pause_cycles = tsc::pause_cycles()?;
        let mut tracer = bpf::LockTracer::load(tsc_hz / 1000)?;
        tracer.attach()?;
        let start = Instant::now();
        wait(duration, tick);
        tracer.detach();
        let watched_ns = start.elapsed().as_nanos() as u64;
        let (kinds, lost) = tracer.sums()?;
        let [spinlocks, rwlocks, mutexes] = kinds;
        Ok(Self { watched_ns, tsc_hz, pause_cycles, spinlocks, rwlocks, mutexes, lost })
    }

    /// Of several guests together; what a PAUSE takes is the least of them. None of none.
    pub fn together(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|mut sum, other| {
            sum.watched_ns += other.watched_ns;
            sum.pause_cycles = sum.pause_cycles.min(other.pause_cycles);
            sum.spinlocks += &other.spinlocks;
            sum.rwlocks += &other.rwlocks;
            sum.mutexes += &other.mutexes;
            sum.lost += other.lost;
            sum
        })
    }

    /// The waits by which a window is chosen: for locks whose waiters spin until they have them.
    pub fn deciding(&self) -> Waits {
        let mut waits = self.spinlocks.clone();
        waits += &self.rwlocks;
        waits
    }
}

/// Which of KVM's windows spins outlasted on this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PauseExits {
    /// How long was watched, in ns.
    pub watched_ns: u64,
    /// What KVM is told about pause loops.
    pub kvm: Kvm,
    /// VM exits of all kinds.
    pub exits: u64,
    /// What PAUSE exits tell.
    pub spins: Spins,
    /// Events that were not seen, because there were too many.
    pub lost: u64,
}

impl PauseExits {
    /// Watches KVM for so long; `tick` is told how much of it is over. `root` is where /sys lies.
    ///
    /// # Errors
    /// Without root, without BPF, where KVM is not loaded or does not exit on PAUSE, where its tracepoints are not there.
    pub fn watch(root: &Path, duration: Duration, tick: &mut dyn FnMut(Duration)) -> Result<Self, PleError> {
        let kvm = Kvm::read(root)?;
        if kvm.window == 0 || kvm.gap == 0 {
            let what = format!("KVM does not exit on PAUSE here: {}", kvm.described());
            return Err(PleError::NoPle(what));
        }
        let fields = format::Fields::read(root)?;
        let mut tracer = bpf::ExitTracer::load(&fields)?;
        tracer.attach()?;
        let start = Instant::now();
        let mut spins = Spins::new(&kvm);
        let mut drain = |elapsed: Duration| {
            tick(elapsed);
            tracer.take(&mut spins)
        };
        let mut outcome = Ok(());
        wait(duration, &mut |elapsed| outcome = drain(elapsed));
        outcome?;
        tracer.detach();
        let watched_ns = start.elapsed().as_nanos() as u64;
        tracer.take(&mut spins)?;
        let (exits, lost) = tracer.counts()?;
        spins.end();
        Ok(Self { watched_ns, kvm, exits, spins, lost })
    }
}

fn wait(duration: Duration, tick: &mut dyn FnMut(Duration)) {
    const STEP: Duration = Duration::from_millis(100);
    let start = Instant::now();
    while let Some(left) = duration.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(STEP));
        tick(start.elapsed().min(duration));
    }
}
