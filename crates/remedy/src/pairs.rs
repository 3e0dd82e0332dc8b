//! Shows the controller who wakes whom, when it asks and the budget allows.
//!
//! Attaches and detaches BPF tracepoints (root); decides nothing.

use crate::Error;
use muster_model::WakeWindow;
use muster_observe::bpf::BpfError;
use muster_observe::pairs::PairWatch;
use muster_observe::sampler::monotonic_ns;
use muster_observe::tree::Tree;
use muster_policy::advice::duty;

/// Windows on the program's wake-ups.
#[derive(Debug)]
pub struct Pairs {
    watch: PairWatch,
    opened_ns: u64,
    /// From then on another window keeps to the budget.
    affordable_ns: u64,
}

impl Pairs {
    /// Loads what sees who wakes whom.
    ///
    /// # Errors
    /// Where that is not to be had: without root, in a muster built without BPF, or on a kernel that refuses it.
    pub fn load() -> Result<Self, Error> {
        let refused = |error: BpfError| Error::NotPermitted {
            remedy: "colocate",
            why: format!("it has to see who wakes whom by BPF, and {error}"),
        };
        let watch = PairWatch::load().map_err(refused)?;
        Ok(Self { watch, opened_ns: 0, affordable_ns: 0 })
    }

    /// Closes the window on the period that has just ended, if there was one, and says what was seen.
    pub fn close_window(&mut self, tree: &Tree) -> Result<Option<WakeWindow>, Error> {
        let Some(window) = self.watch.close(tree) else { return Ok(None) };
        let (per_second, price_ns) = self.watch.rate_and_price().map_err(lost)?;
        let duty = duty(per_second, price_ns);
        let times = duty.period_ns as f64 / duty.window_ns.max(1) as f64;
        self.affordable_ns = self.opened_ns + ((monotonic_ns() - self.opened_ns) as f64 * times) as u64;
        Ok(Some(window))
    }

    /// Whether another window would keep to the budget by now.
    pub fn are_affordable(&self) -> bool {
        monotonic_ns() >= self.affordable_ns
    }

    /// Opens a window on the processes of `tree`.
    pub fn open_window(&mut self, tree: &Tree) -> Result<(), Error> {
        self.opened_ns = monotonic_ns();
        self.watch.open(tree).map_err(lost)
    }
}

fn lost(error: BpfError) -> Error {
    Error::System { what: "see who wakes whom", source: std::io::Error::other(error) }
}
