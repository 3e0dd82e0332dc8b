//! Stands in for `bpf` in a muster that was built without it: nothing can be loaded.

use super::PleError;
use super::format::Fields;
use super::spins::Spins;
use muster_policy::ple::Waits;

/// Never made.
#[derive(Debug)]
pub enum LockTracer {}

impl LockTracer {
    pub fn load(_: u64) -> Result<Self, PleError> {
        Err(PleError::NoBpf)
    }

    pub fn attach(&mut self) -> Result<(), PleError> {
        match *self {}
    }

    pub fn detach(&mut self) {
        match *self {}
    }

    pub fn sums(&self) -> Result<([Waits; 3], u64), PleError> {
        match *self {}
    }
}

/// Never made.
#[derive(Debug)]
pub enum ExitTracer {}

impl ExitTracer {
    pub fn load(fields: &Fields) -> Result<Self, PleError> {
        let _places = fields.words();
        Err(PleError::NoBpf)
    }

    pub fn attach(&mut self) -> Result<(), PleError> {
        match *self {}
    }

    pub fn detach(&mut self) {
        match *self {}
    }

    pub fn take(&self, _: &mut Spins) -> Result<(), PleError> {
        match *self {}
    }

    pub fn counts(&self) -> Result<(u64, u64), PleError> {
        match *self {}
    }
}
