//! What the whole-world tests share: the R720's profile, and random experiments.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use muster_model::study::{Consolidation, Environment, Experiment, IdleKind, Placement, RemoteWake, WakeSignal};
use muster_model::{Account, Profile, Topology, Workload};
use muster_sim::{Outcome, SimError, Simulation};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::collections::BTreeSet;

/// The R720 of the Gleaner paper.
pub fn r720() -> Profile {
    let text = include_str!("../../../../machines/gleaner-r720.toml");
    Profile::from_toml(text, "machines/gleaner-r720.toml").unwrap()
}

/// A plain experiment on `cores` cores.
pub fn experiment(environment: Environment, cores: u32) -> Experiment {
    Experiment {
        machine: String::new(),
        workload: String::new(),
        environment,
        kernel: None,
        cores,
        vcpus: None,
        scale_out: false,
        threads: None,
        idle: IdleKind::Halt,
        remote_wake: RemoteWake::Flag,
        wakeup: Placement::Spread,
        wake_signal: WakeSignal::Ipi,
        yielding: false,
        consolidation: Consolidation::None,
        remedies: BTreeSet::new(),
        seed: 1,
        scale: 1.0,
        limit_s: 600.0,
    }
}

/// A random machine, program and remedies.
pub struct Case {
    pub experiment: Experiment,
    pub profile: Profile,
    pub workload: Workload,
}

/// The case of a seed.
pub fn case(seed: u64) -> Case {
    let mut draw = Draw(Xoshiro256PlusPlus::seed_from_u64(seed));
    let shapes = [(1, 1, 1, 1), (1, 1, 2, 1), (1, 1, 4, 2), (2, 1, 3, 1), (2, 2, 2, 2), (2, 1, 8, 1)];
    let (sockets, llcs, cores, smt) = shapes[draw.below(6)];
    let mut profile = r720();
    profile.topology = Topology::regular(sockets, llcs, cores, smt).unwrap();
    let most = profile.topology.len();
    let mut experiment = experiment(Environment::Native, draw.below(most) as u32 + 1);
    experiment.environment = [Environment::Native, Environment::Virtual][draw.below(2)];
    experiment.idle = [IdleKind::Halt, IdleKind::Poll, IdleKind::Mwait, IdleKind::Haltpoll][draw.below(4)];
    experiment.remote_wake = [RemoteWake::Flag, RemoteWake::Ipi][draw.below(2)];
    experiment.wakeup = [Placement::Spread, Placement::Colocate][draw.below(2)];
    experiment.wake_signal = [WakeSignal::Ipi, WakeSignal::Exception][draw.below(2)];
    experiment.consolidation =
        [Consolidation::None, Consolidation::Yielding, Consolidation::Controller, Consolidation::Colocate]
            [draw.below(4)];
    experiment.yielding = draw.below(4) == 0;
    experiment.threads = Some(draw.below(12) as u32 + 1);
    experiment.seed = seed;
    let workload = Workload::from_json(&program(&mut draw), "random.json").unwrap();
    Case { experiment, profile, workload }
}

struct Draw(Xoshiro256PlusPlus);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }
}

/// Two or three groups of random phases, which share locks, barriers and a condition with permits enough.
fn program(draw: &mut Draw) -> String {
    let lock_kinds = [
        r#"{"kind":"mutex"}"#,
        r#"{"kind":"kernel-mutex"}"#,
        r#"{"kind":"spin"}"#,
        r#"{"kind":"spin-then-block","spin_ns":4000}"#,
    ];
    let barrier = [r#"{"kind":"futex"}"#, r#"{"kind":"condvar"}"#][draw.below(2)];
    let locks = (0..2).map(|i| format!(r#""l{i}":{}"#, lock_kinds[draw.below(4)])).collect::<Vec<_>>().join(",");
    let times = draw.below(20) + 2;
    let barriers_everywhere = draw.below(2) == 0;
    let groups = (0..draw.below(2) + 2).map(|g| {
        let count = if g == 0 { r#""threads""#.to_owned() } else { (draw.below(4) + 1).to_string() };
        let mut phases: Vec<String> = (0..draw.below(5) + 1).map(|_| phase(draw)).collect();
        if barriers_everywhere {
            phases.push(r#"{"barrier":{"barrier":"b"}}"#.to_owned());
        }
        // Give before taking: permits always suffice.
        phases.push(r#"{"wake":{"condition":"c","count":2}}"#.to_owned());
        phases.push(r#"{"wait":{"condition":"c"}}"#.to_owned());
        let phases = phases.join(",");
        format!(r#"{{"name":"g{g}","count":{count},"phases":[{{"loop":{{"times":{times},"phases":[{phases}]}}}}]}}"#)
    });
    let groups = groups.collect::<Vec<_>>().join(",");
    format!(
        r#"{{"name":"random","locks":{{{locks}}},"barriers":{{"b":{barrier}}},"conditions":{{"c":{{}}}},"groups":[{groups}]}}"#
    )
}

fn phase(draw: &mut Draw) -> String {
    let ns = [0, 100, 3_000, 50_000, 2_000_000][draw.below(5)];
    match draw.below(9) {
        0 | 1 => format!(r#"{{"run":{{"ns":{{"exponential":{{"mean":{ns}}}}}}}}}"#),
        2 => format!(r#"{{"lock":{{"lock":"l0","phases":[{{"run":{{"ns":{}}}}}]}}}}"#, ns.min(50_000)),
        3 => r#"{"lock":{"lock":"l0","phases":[{"lock":{"lock":"l1","phases":[{"run":{"ns":500}}]}}]}}"#.to_owned(),
        4 => r#"{"touch-memory":{"pages":3}}"#.to_owned(),
        5 => r#"{"map":{"pages":4}},{"unmap":{"pages":4}}"#.to_owned(),
        6 => format!(r#"{{"syscall":{{"ns":{}}}}}"#, ns.min(50_000)),
        7 => format!(r#"{{"sleep":{{"ns":{ns}}}}}"#),
        _ => r#"{"read-clock":{"times":5}}"#.to_owned(),
    }
}

/// Runs a case and checks what must hold of every run.
pub fn run_checked(case: &Case) -> Result<Outcome, String> {
    let simulation =
        Simulation::new(&case.experiment, &case.profile, &case.workload, None).map_err(|e| e.to_string())?;
    let outcome = simulation.run().map_err(|error: SimError| error.to_string())?;
    for (core, book) in outcome.books.iter().enumerate() {
        let booked: u64 = book.iter().sum();
        if booked != outcome.wall_ps {
            return Err(format!("core {core} has {booked} ps booked of {}", outcome.wall_ps));
        }
    }
    let native = case.experiment.environment == Environment::Native;
    let total = |account: Account| outcome.books.iter().map(|book| book[account as usize]).sum::<u64>();
    if native && (total(Account::VmmScheduler) > 0 || outcome.counters.halt_exits > 0) {
        return Err("a native run has time in the VMM".to_owned());
    }
    if outcome.active_history.iter().any(|&(_, n)| n == 0 || n > case.experiment.cores) {
        return Err("the number of active cores left its range".to_owned());
    }
    Ok(outcome)
}
