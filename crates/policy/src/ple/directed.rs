//! To whom a spinning vCPU gives way (`kvm_vcpu_on_spin`).

/// How often a yield may fail before the search is given up.
const TRIES: u32 = 3;

/// What became of a yield to a vCPU (`yield_to`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yielded {
    /// It runs next where it waits.
    Yes,
    /// It runs already, or the scheduler will not have it: the next one is tried.
    No,
    /// Nobody waits on either CPU, so that nothing is gained: counts as a failed try.
    Pointless,
}

/// One VM's vCPUs, as far as spinning goes.
///
/// A vCPU that is in a pause loop itself probably waits for the same lock. It is passed over, but every second time, in
/// which it may have got the lock since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectedYield {
    /// The vCPU that was yielded to last: the search goes round from there.
    last: usize,
    /// By vCPU: it is in the handler of a PAUSE exit, which it leaves when it has its pCPU back.
    spins: Vec<bool>,
    /// By vCPU (`dy_eligible`): the next search that finds it spinning may take it.
    eligible: Vec<bool>,
}

impl DirectedYield {
    /// A VM of so many vCPUs, none of which spins.
    pub fn new(vcpus: usize) -> Self {
        Self { last: 0, spins: vec![false; vcpus], eligible: vec![false; vcpus] }
    }

    /// vCPU `me` has left the guest in a pause loop: whom it gave way to, if to anybody. `may_hold` says of a vCPU whether it is
    /// ready to run and was preempted in its kernel (only there it can hold a spin lock); `yield_to` tries to run it.
    pub fn on_spin(
        &mut self,
        me: usize,
        may_hold: impl Fn(usize) -> bool,
        mut yield_to: impl FnMut(usize) -> Yielded,
    ) -> Option<usize> {
        self.spins[me] = true;
        let vcpus = self.spins.len();
        let mut tries = TRIES;
        for step in 1..=vcpus {
            let vcpu = (self.last + step) % vcpus;
            if vcpu == me || !may_hold(vcpu) || !self.is_eligible(vcpu) {
                continue;
            }
            match yield_to(vcpu) {
                Yielded::Yes => {
                    self.last = vcpu;
                    return Some(vcpu);
                }
                Yielded::No => {}
                Yielded::Pointless => {
                    tries -= 1;
                    if tries == 0 {
                        break;
                    }
                }
            }
        }
        None
    }

    /// vCPU `me`, which gave way or found nobody, goes on.
    pub fn resumes(&mut self, me: usize) {
        (self.spins[me], self.eligible[me]) = (false, false);
    }

    fn is_eligible(&mut self, vcpu: usize) -> bool {
        let was = self.eligible[vcpu];
        self.eligible[vcpu] ^= self.spins[vcpu];
        !self.spins[vcpu] || was
    }
}
