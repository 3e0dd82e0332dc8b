//! Stands in for `bpf` in a muster that was built without it: its program cannot be loaded.

use crate::wakes::Totals;
use muster_model::WakePair;

/// Why there is no BPF.
#[derive(Debug, thiserror::Error)]
#[error("this muster was built without BPF; `make build` builds it in where clang, libelf and zlib are installed")]
pub struct BpfError;

/// Never made.
#[derive(Debug)]
pub enum WakeTracer {}

impl WakeTracer {
    /// Does not load.
    ///
    /// # Errors
    /// Always.
    pub fn load() -> Result<Self, BpfError> {
        Err(BpfError)
    }

    pub(crate) fn watch(&self, _: impl Iterator<Item = u32>) -> Result<(), BpfError> {
        match *self {}
    }

    pub(crate) fn attach(&mut self) -> Result<(), BpfError> {
        match *self {}
    }

    pub(crate) fn detach(&mut self) {
        match *self {}
    }

    pub(crate) fn totals(&self) -> Result<Totals, BpfError> {
        match *self {}
    }

    pub(crate) fn take_pairs(&self) -> Vec<WakePair> {
        match *self {}
    }

    pub(crate) fn price_ns(&self) -> Option<f64> {
        match *self {}
    }
}

/// Never kept.
#[derive(Debug)]
pub enum RunTimes {}

impl RunTimes {
    pub(crate) fn keep() -> Option<Self> {
        None
    }
}
