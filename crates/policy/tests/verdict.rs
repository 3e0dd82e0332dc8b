//! What a controller tells of a trial that it concluded, for a program whose two threads hand over to each other.

use muster_model::{CpuSet, PeriodFacts, Topology};
use muster_policy::consolidate::{
    Arm, Config, Controller, Objective, Permitted, Prices, Reason, Scored, Verdict, Yardstick,
};

fn config() -> Config {
    Config {
        allowed: CpuSet::first(2),
        topology: Topology::regular(1, 1, 2, 1).expect("two CPUs are a machine"),
        prices: Prices {
            wake_same_cpu_ns: 1_700.0,
            wake_awake_ns: 15_700.0,
            wake_halted_ns: 22_500.0,
            handover_lines_ns: 0.0,
        },
        objective: Objective::Speed,
        permitted: Permitted { consolidate: true, awake: false, poll: false, colocate: false },
        guest_halt_poll_ns: 0,
    }
}

/// A period of perf's pipe test on the 2-vCPU guest of docs/measured.md: CPU rate, halts and hand-overs.
fn facts(now_ns: u64, active: CpuSet, period_ns: u64) -> PeriodFacts {
    let (cpu, halts, switches) = if active.len() > 1 { (0.71, 28e3, 39e3) } else { (1.0, 50.0, 310e3) };
    let of = |rate: f64| (rate * period_ns as f64 / 1e9) as u64;
    PeriodFacts {
        now_ns,
        period_ns,
        active,
        cpu_ns: (cpu * period_ns as f64) as u64,
        user_ns: None,
        foreign_ns: None,
        idle_entries: Some(of(halts)),
        idle_ns: None,
        poll_entries: Some(0),
        poll_ns: Some(0),
        waiting_ns: None,
        switches: Some(of(switches)),
        io_calls: None,
        io_bytes: None,
        progress: None,
        threads: 2,
        pairs: None,
    }
}

#[test]
fn a_concluded_trial_tells_its_yardstick_and_what_each_setting_scored_once() {
    let mut controller = Controller::new(config());
    let mut decision = controller.first();
    let (mut now_ns, mut verdicts) = (0, Vec::new());
    while now_ns < 100_000_000 {
        now_ns += decision.next_period_ns;
        let period = facts(now_ns, decision.active, decision.next_period_ns);
        decision = controller.step(&period);
        verdicts.extend(controller.verdict().map(|verdict| (verdict.clone(), decision.why)));
    }
    let [(Verdict { yardstick, scores, winner }, why)] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert_eq!((*yardstick, *winner, *why), (Yardstick::Handovers, Arm::Narrow { vcpus: 1 }, Reason::Holding));
    let narrow = Scored { arm: Arm::Narrow { vcpus: 1 }, score: 310e3 };
    assert_eq!(scores[..], [Scored { arm: Arm::Base, score: 39e3 }, narrow]);
}
