//! What PAUSE exits tell about spins, exit by exit.
//!
//! A PAUSE exit says that a vCPU's loop outlasted the window then in force. KVM lets the window grow with each, up to its
//! longest, and takes it back when the vCPU has been off its CPU. Exits while the window grows are thus taken for one spin,
//! as long as all the windows that it outlasted: too long where several spins followed each other without a pause. With the
//! longest window in force, each exit is a spin of its own.

use super::kvm::Kvm;
use muster_policy::ple::Waits;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// One vCPU now.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Vcpu {
    /// None until KVM has told it.
    window: Option<u32>,
    /// An exit with a window that is not known yet.
    is_waiting: bool,
    /// What its present spin has outlasted so far; 0 when there is none.
    outlasted: u64,
}

/// What was told so far, in the unit of the windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spins {
    base: u32,
    longest: u32,
    /// PAUSE exits by the window that was outlasted.
    pub exits_by_window: BTreeMap<u32, u64>,
    /// The spins made out of them, each by what it outlasted.
    pub outlasted: Waits,
    /// vCPUs that had such exits, or a window that changed.
    pub vcpus: usize,
    #[serde(skip)]
    now: HashMap<u32, Vcpu>,
}

impl Spins {
    /// None yet, of vCPUs under this KVM.
    pub fn new(kvm: &Kvm) -> Self {
        let longest = if kvm.is_adaptive() { kvm.max } else { kvm.window };
        let (exits_by_window, outlasted) = (BTreeMap::new(), Waits::default());
        Self { base: kvm.window, longest, exits_by_window, outlasted, vcpus: 0, now: HashMap::new() }
    }

    /// A PAUSE exit of the vCPU that is this thread.
    pub fn exited(&mut self, thread: u32) {
        let mut vcpu = self.vcpu(thread);
        match vcpu.window {
            Some(window) => self.book(&mut vcpu, window),
            None if !vcpu.is_waiting => vcpu.is_waiting = true,
            // The exit before was not followed by a change: nothing was left to grow.
            None => {
                (vcpu.window, vcpu.is_waiting) = (Some(self.longest), false);
                (0..2).for_each(|_| self.book(&mut vcpu, self.longest));
            }
        }
        self.now.insert(thread, vcpu);
    }

    /// Its window was `old` and is `new`.
    pub fn window_changed(&mut self, thread: u32, old: u32, new: u32) {
        let mut vcpu = self.vcpu(thread);
        if std::mem::take(&mut vcpu.is_waiting) {
            self.book(&mut vcpu, old);
        }
        vcpu.window = Some(new);
        if new < old {
            self.close(&mut vcpu);
        }
        self.now.insert(thread, vcpu);
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
        self.vcpus = self.now.len();
        for mut vcpu in std::mem::take(&mut self.now).into_values() {
            if vcpu.is_waiting {
                self.book(&mut vcpu, self.base);
            }
            self.close(&mut vcpu);
        }
    }

    fn vcpu(&self, thread: u32) -> Vcpu {
        let window = (self.longest == self.base).then_some(self.base);
        self.now.get(&thread).copied().unwrap_or(Vcpu { window, is_waiting: false, outlasted: 0 })
    }

    fn book(&mut self, vcpu: &mut Vcpu, window: u32) {
        *self.exits_by_window.entry(window).or_default() += 1;
        vcpu.outlasted += u64::from(window);
        if window >= self.longest {
            self.close(vcpu);
        }
    }

    fn close(&mut self, vcpu: &mut Vcpu) {
        if vcpu.outlasted > 0 {
            self.outlasted.add(vcpu.outlasted);
            vcpu.outlasted = 0;
        }
    }

    /// All PAUSE exits.
    pub fn exits(&self) -> u64 {
        self.exits_by_window.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Vendor;
    use super::*;

    fn kvm(grow: u32) -> Kvm {
        Kvm { vendor: Vendor::Intel, window: 4096, grow, max: 20_000, gap: 128 }
    }

    #[test]
    fn growing_windows_are_one_spin_until_they_shrink() {
        let mut spins = Spins::new(&kvm(2));
        for (thread, old, new) in [(1, 4096, 8192), (2, 4096, 8192), (1, 8192, 16384)] {
            spins.exited(thread);
            spins.window_changed(thread, old, new);
        }
        spins.window_changed(1, 16384, 4096);
        spins.exited(1);
        spins.end();
        assert_eq!(spins.exits_by_window, BTreeMap::from([(4096, 3), (8192, 1)]));
        let by_power = spins.outlasted.by_power();
        assert_eq!((by_power[12], by_power[14], spins.outlasted.count()), (2, 1, 3), "4096 twice, 12288 once");
        assert_eq!((spins.exits(), spins.vcpus), (4, 2));
    }

    #[test]
    fn with_the_longest_window_each_exit_is_a_spin() {
        let mut spins = Spins::new(&kvm(2));
        (0..5).for_each(|_| spins.exited(7));
        spins.window_changed(7, 20_000, 4096);
        spins.exited(7);
        spins.end();
        assert_eq!(spins.exits_by_window, BTreeMap::from([(4096, 1), (20_000, 5)]));
        assert_eq!((spins.outlasted.by_power()[12], spins.outlasted.by_power()[15]), (1, 5));
    }

    #[test]
    fn a_window_that_had_grown_before_is_what_the_next_change_says() {
        let mut spins = Spins::new(&kvm(2));
        spins.exited(7);
        spins.window_changed(7, 8192, 16384);
        spins.end();
        assert_eq!(spins.exits_by_window, BTreeMap::from([(8192, 1)]));
    }

    #[test]
    fn windows_that_do_not_grow_are_known() {
        let mut spins = Spins::new(&kvm(1));
        (0..3).for_each(|_| spins.exited(7));
        spins.end();
        assert_eq!((spins.exits_by_window, spins.outlasted.count()), (BTreeMap::from([(4096, 3)]), 3));
    }
}
