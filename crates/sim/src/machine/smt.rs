//! Hardware threads that share a core: each is slower while a sibling is busy.
//!
//! What takes `sim.cpu.alone-on-core` on a core whose other threads sleep takes `sim.cpu.beside-sibling` while one of them does
//! not, whatever both do: user code, kernels, the VMM. Waits for lines, locks and page walks are as long as they are. A stretch that
//! is under way goes on at the other speed from when a sibling falls asleep or wakes. HLT and MWAIT are asleep; whoever
//! polls is not. Left out: that programs get on with each other on a core more or less well, and that a loop of PAUSE
//! leaves its sibling more.

use crate::engine::{Ps, from_ns};
use crate::guest::vcpu::VcpuState;
use crate::world::{World, kind, slot_of};
use muster_model::{ModelError, Profile, Topology};

/// Cores of several hardware threads.
#[derive(Debug)]
pub struct Smt {
    /// What takes `alone` on a core for itself takes `beside` beside a busy sibling.
    alone: Ps,
    beside: Ps,
    /// By pCPU, its siblings.
    siblings: Vec<Vec<u32>>,
    /// By pCPU, whether it is awake.
    awake: Vec<bool>,
    /// By pCPU, how many of its siblings are.
    company: Vec<u32>,
}

impl Smt {
    /// The first so many pCPUs of a machine, if any of them share a core and its profile says what that costs.
    ///
    /// # Errors
    /// When the profile says that a busy sibling makes faster.
    pub fn new(profile: &Profile, topology: &Topology, pcpus: usize) -> Result<Option<Box<Self>>, ModelError> {
        let price = |name| profile.price_ns(name).map(from_ns);
        let (Some(alone), Some(beside)) = (price("sim.cpu.alone-on-core"), price("sim.cpu.beside-sibling")) else {
            return Ok(None);
        };
        if alone == 0 || beside < alone {
            let found = format!("{beside} ps, and {alone} ps without a sibling");
            return Err(ModelError::new(
                "sim.cpu.beside-sibling",
                found,
                "no less than `sim.cpu.alone-on-core`, above 0",
            ));
        }
        let core = |p: usize| topology.cpu(p).map(|cpu| cpu.core);
        let siblings = |p| (0..pcpus).filter(|&q| q != p && core(q) == core(p)).map(|q| q as u32).collect();
        let siblings: Vec<Vec<u32>> = (0..pcpus).map(siblings).collect();
        let shared = siblings.iter().any(|siblings| !siblings.is_empty());
        let (awake, company) = (vec![false; pcpus], vec![0; pcpus]);
        Ok(shared.then(|| Box::new(Self { alone, beside, siblings, awake, company })))
    }

    /// How long work takes on a pCPU as things are.
    #[inline]
    fn lasts(&self, p: usize, work: Ps) -> Ps {
        if self.company[p] == 0 { work } else { work * self.beside / self.alone }
    }

    /// How much of work is left that would last so long.
    fn work(&self, p: usize, lasts: Ps) -> Ps {
        if self.company[p] == 0 { lasts } else { (lasts * self.alone).div_ceil(self.beside) }
    }

    /// A pCPU falls asleep or wakes; whether it was in the other state.
    #[inline]
    fn note(&mut self, p: usize, awake: bool) -> bool {
        std::mem::replace(&mut self.awake[p], awake) != awake
    }
}

/// Whether what a vCPU does in this state is work, which takes longer beside a busy sibling.
fn is_work(state: VcpuState) -> bool {
    match state {
        VcpuState::Thread
        | VcpuState::Masked
        | VcpuState::Locking
        | VcpuState::Interrupt
        | VcpuState::Switching
        | VcpuState::Refilling
        | VcpuState::EnteringIdle
        | VcpuState::Suspending
        | VcpuState::SchedulingIn
        | VcpuState::LeavingIdle => true,
        VcpuState::Spinning
        | VcpuState::Queueing
        | VcpuState::AwaitingAcks
        | VcpuState::HostPolling
        | VcpuState::Halted
        | VcpuState::Mwait
        | VcpuState::Polling
        | VcpuState::Yielding
        | VcpuState::Resuming => false,
    }
}

impl World {
    /// How long work takes that a vCPU begins in a state.
    #[inline]
    pub(crate) fn lasts(&self, c: usize, state: VcpuState, work: Ps) -> Ps {
        match &self.smt {
            Some(smt) if is_work(state) => smt.lasts(self.vcpus[c].pcpu as usize, work),
            _ => work,
        }
    }

    /// How much of the work is left that a vCPU does, which would end in so long.
    pub(crate) fn work_left(&self, c: usize, lasts: Ps) -> Ps {
        match &self.smt {
            Some(smt) if is_work(self.vcpus[c].state) => smt.work(self.vcpus[c].pcpu as usize, lasts),
            _ => lasts,
        }
    }

    /// How long the VMM's work takes on a pCPU.
    pub(crate) fn vmm_lasts(&self, p: usize, work: Ps) -> Ps {
        self.smt.as_ref().map_or(work, |smt| smt.lasts(p, work))
    }

    /// A pCPU is awake from now on, or not.
    #[inline]
    pub(crate) fn note_awake(&mut self, p: usize, awake: bool) {
        if let Some(smt) = &mut self.smt
            && smt.note(p, awake)
        {
            self.tell_siblings(p, awake);
        }
    }

    /// Siblings of a pCPU that has fallen asleep or woken go on at another speed.
    #[cold]
    fn tell_siblings(&mut self, p: usize, awake: bool) {
        let Some(mut smt) = self.smt.take() else { return };
        for index in 0..smt.siblings[p].len() {
            let sibling = smt.siblings[p][index] as usize;
            let before = smt.company[sibling];
            let after = if awake { before + 1 } else { before - 1 };
            if before == 0 || after == 0 {
                let left = self.end_of_work(sibling).map(|(c, until)| (c, smt.work(sibling, until - self.now)));
                smt.company[sibling] = after;
                if let Some((c, work)) = left {
                    let until = self.now + smt.lasts(sibling, work);
                    self.vcpus[c].until = until;
                    self.queue.schedule(slot_of(c, kind::VCPU), until);
                }
            } else {
                smt.company[sibling] = after;
            }
        }
        self.smt = Some(smt);
    }

    /// The vCPU that works on a pCPU, and up to when.
    fn end_of_work(&self, p: usize) -> Option<(usize, Ps)> {
        let c = self.pcpus[p].current as usize;
        let vcpu = self.vcpus.get(c)?;
        let works = !vcpu.is_stopped() && is_work(vcpu.state) && self.queue.is_pending(slot_of(c, kind::VCPU));
        works.then_some((c, vcpu.until.max(self.now)))
    }
}

#[cfg(test)]
mod tests {
    use crate::run::Simulation;
    use muster_model::study::{Environment, Experiment};
    use muster_model::{Profile, Workload};

    fn profile() -> Profile {
        let text = include_str!("../../../../machines/gleaner-r720.toml");
        let (head, prices) = text.split_at(text.find("[prices").expect("a profile has prices"));
        let head = head.replace("threads_per_core = 1", "threads_per_core = 2");
        let price = |name: &str, ns: u32| {
            format!("[prices.\"sim.cpu.{name}\"]\nns = {ns}\nkind = \"assumed\"\nsource = \"a test\"\n")
        };
        let text = format!("{head}{}{}{prices}", price("alone-on-core", 1000), price("beside-sibling", 1600));
        Profile::from_toml(&text, "m.toml").unwrap()
    }

    /// How long two threads take that compute for 10 ms and, the second, 10 ms and `more`, in ms.
    fn both(cpus: &str, more_ms: u32, environment: Environment) -> f64 {
        let text = format!(
            r#"{{"name":"w","groups":[
                {{"name":"a","count":1,"cpus":"0","phases":[{{"run":{{"ns":10000000}}}}]}},
                {{"name":"b","count":1,"cpus":"{cpus}","phases":[{{"run":{{"ns":{}}}}}]}}]}}"#,
            10_000_000 + more_ms * 1_000_000
        );
        let workload = Workload::from_json(&text, "w.json").unwrap();
        let experiment = Experiment::new(environment, 17);
        let outcome = Simulation::new(&experiment, &profile(), &workload, None).unwrap().run().unwrap();
        for book in &outcome.books {
            assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books balance");
        }
        outcome.seconds() * 1e3
    }

    #[test]
    fn a_busy_sibling_slows_down_for_as_long_as_it_is_busy() {
        for environment in [Environment::Native, Environment::Virtual] {
            let (apart, beside) = (both("2", 0, environment), both("16", 0, environment));
            assert!((beside / apart / 1.6 - 1.0).abs() < 0.01, "{environment:?}: {apart} {beside}");
            // The first ends after 16 ms; the second has 6 ms left then, alone.
            let longer = both("16", 6, environment);
            assert!((longer / 22.0 - 1.0).abs() < 0.01, "{environment:?}: {longer}");
        }
    }
}
