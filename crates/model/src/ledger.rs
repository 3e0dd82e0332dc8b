//! Where time went: one set of accounts for the simulated and the live world.
//!
//! In simulation every picosecond of every core is in exactly one account. Live, an amount is an estimate
//! (count x measured price), a bound with its derivation, or not observable; it says which.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The accounts of DESIGN section 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Account {
    /// The program's own instructions.
    User,
    /// The guest kernel on the program's behalf, less what other accounts hold.
    Kernel,
    /// Busy waiting: in locks, in polling idle loops.
    Spin,
    /// Suspending a CPU that has nothing to do and bringing it back.
    HaltWake,
    /// Sending, trapping and delivering inter-processor interrupts.
    Ipi,
    /// Waiting for other CPUs to drop translations, and dropping them.
    TlbShootdown,
    /// Walking page tables, one- or two-dimensional.
    PageWalk,
    /// Moving cache lines between cores.
    CacheTransfer,
    /// Clock reads that leave the guest.
    ClockEmulation,
    /// Decisions of the VMM's vCPU scheduler.
    VmmScheduler,
    /// Waiting for locks inside the VMM.
    VmmLock,
    /// I/O done by somebody else on the program's behalf.
    IoService,
    /// Runnable, but the VMM runs another vCPU.
    Steal,
    /// Nothing to do.
    Idle,
}

impl Account {
    /// Every account, in the order in which it is printed.
    pub const ALL: [Self; 14] = [
        Self::User,
        Self::Kernel,
        Self::Spin,
        Self::HaltWake,
        Self::Ipi,
        Self::TlbShootdown,
        Self::PageWalk,
        Self::CacheTransfer,
        Self::ClockEmulation,
        Self::VmmScheduler,
        Self::VmmLock,
        Self::IoService,
        Self::Steal,
        Self::Idle,
    ];

    /// The name as it stands in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
            Self::Spin => "spin",
            Self::HaltWake => "halt+wake",
            Self::Ipi => "IPI",
            Self::TlbShootdown => "TLB shootdown",
            Self::PageWalk => "page walk",
            Self::CacheTransfer => "cache transfer",
            Self::ClockEmulation => "clock emulation",
            Self::VmmScheduler => "VMM scheduler",
            Self::VmmLock => "VMM lock",
            Self::IoService => "I/O service",
            Self::Steal => "steal",
            Self::Idle => "idle",
        }
    }
}

/// How sure an estimate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Order of magnitude: a sampled count, or a price from another machine.
    Low,
    /// Within a factor of about 1.5: a full count, and a price measured here in another situation.
    Medium,
    /// Within about 20 %: counted or accounted for by the kernel itself.
    High,
}

/// What one account holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Amount {
    /// Booked by the simulator, to the picosecond.
    Exact {
        /// Core time.
        time_ps: u64,
    },
    /// Accounted for by the kernel.
    Accounted {
        /// Core time.
        time_ns: u64,
        /// How sure it is.
        confidence: Confidence,
        /// Where it was read.
        source: String,
    },
    /// A count times a measured price.
    Estimated {
        /// How often it happened.
        count: u64,
        /// What it costs once.
        price_ns: f64,
        /// How sure the product is.
        confidence: Confidence,
        /// What was counted and where the price comes from.
        source: String,
    },
    /// No more than this.
    AtMost {
        /// Core time.
        time_ns: u64,
        /// How the bound follows.
        derivation: String,
    },
    /// There is no observable count here.
    NotObservable {
        /// What is missing, and what would show it.
        reason: String,
    },
}

impl Amount {
    /// The amount as nanoseconds of core time: exact, accounted or estimated; `None` for a bound and for what cannot
    /// be seen.
    pub fn time_ns(&self) -> Option<f64> {
        match self {
            Self::Exact { time_ps } => Some(*time_ps as f64 / 1e3),
            Self::Accounted { time_ns, .. } => Some(*time_ns as f64),
            Self::Estimated { count, price_ns, .. } => Some(*count as f64 * price_ns),
            Self::AtMost { .. } | Self::NotObservable { .. } => None,
        }
    }
}

/// The books of one run: `wall_ns` long on `cores` cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Duration of the run.
    pub wall_ns: u64,
    /// Cores (live: vCPUs the program may use) whose time is booked.
    pub cores: u32,
    /// What each account holds.
    pub accounts: BTreeMap<Account, Amount>,
}

impl Ledger {
    /// All core time there was to book.
    pub fn total_ns(&self) -> f64 {
        self.wall_ns as f64 * f64::from(self.cores)
    }

    /// An account's share of all core time, 0 to 1; `None` where the account holds no number.
    pub fn share(&self, account: Account) -> Option<f64> {
        let time_ns = self.accounts.get(&account)?.time_ns()?;
        (self.total_ns() > 0.0).then(|| time_ns / self.total_ns())
    }
}
