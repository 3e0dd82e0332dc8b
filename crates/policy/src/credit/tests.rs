//! Tables of the rules, random histories of calls, and machines in virtual time.

use super::*;
use muster_model::cpuset::MAX_CPUS;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const NOBODY: [usize; 0] = [];

fn scheduler(pcpus: usize) -> Scheduler {
    with(pcpus, |_| ())
}

fn with(pcpus: usize, change: impl FnOnce(&mut Config)) -> Scheduler {
    let topology = Topology::regular(1, 1, pcpus as u32, 1).unwrap();
    let mut config = Config { topology, pcpus, tickle: Tickle::One, lone_skips_balance: false };
    change(&mut config);
    Scheduler::new(&config).unwrap()
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A domain with one vCPU for each affinity.
fn domain(scheduler: &mut Scheduler, share: Share, affinities: &[&str]) -> Vec<VcpuId> {
    let domain = scheduler.add_domain(share).unwrap();
    affinities.iter().map(|text| scheduler.add_vcpu(domain, &set(text)).unwrap()).collect()
}

fn kicks(decision: Decision<'_>) -> Vec<usize> {
    decision.kicks.iter().collect()
}

fn run(scheduler: &mut Scheduler, pcpu: usize, now_ms: u64) -> Option<VcpuId> {
    scheduler.schedule(pcpu, now_ms * MS, |_| false).vcpu
}

fn wake_all(scheduler: &mut Scheduler, vcpus: &[VcpuId]) {
    for &vcpu in vcpus {
        scheduler.wake(vcpu, 0);
    }
}

mod table {
    use super::*;

    #[test]
    fn a_vcpu_wakes_boosted_and_preempts() {
        let mut s = scheduler(1);
        let v = domain(&mut s, Share::default(), &["0", "0"]);
        assert_eq!(kicks(s.wake(v[0], 0)), [0]);
        let next = s.schedule(0, 0, |_| false);
        assert_eq!((next.vcpu, next.slice_ns, next.migrated), (Some(v[0]), Some(30 * MS), false));
        assert_eq!(s.priority(v[0]), Priority::Boost);
        assert_eq!(kicks(s.wake(v[1], 0)), NOBODY, "no preemption among equals");
        s.tick(0, 10 * MS);
        assert_eq!(s.priority(v[0]), Priority::Under, "a tick ends the boost");
        s.block(v[1]);
        assert_eq!(kicks(s.wake(v[1], 0)), [0], "a boosted vCPU preempts");
        assert_eq!(run(&mut s, 0, 12), Some(v[1]));
        assert_eq!(s.waiting(0).collect::<Vec<_>>(), [v[0]]);
        assert_eq!(s.credit(v[0]), -120, "10 credits a millisecond");
    }

    #[test]
    fn the_idle_vcpu_runs_when_nothing_waits() {
        let mut s = scheduler(2);
        let v = domain(&mut s, Share::default(), &["0-1"]);
        s.wake(v[0], 0);
        assert_eq!(run(&mut s, 0, 0), Some(v[0]));
        assert_eq!(s.idlers(), &set("1"));
        assert_eq!(kicks(s.block(v[0])), [0]);
        let next = s.schedule(0, MS, |_| false);
        assert_eq!((next.vcpu, next.slice_ns), (None, None));
        assert_eq!(s.idlers(), &set("0-1"));
    }

    #[test]
    fn a_wake_before_the_switch_keeps_the_vcpu_running() {
        let mut s = scheduler(1);
        let v = domain(&mut s, Share::default(), &["0"]);
        s.wake(v[0], 0);
        run(&mut s, 0, 0);
        s.block(v[0]);
        s.wake(v[0], 0);
        assert_eq!(run(&mut s, 0, 1), Some(v[0]));
        assert_eq!(s.waiting(0).count(), 0);
    }

    #[test]
    fn equal_vcpus_take_turns() {
        let mut s = scheduler(1);
        let v = domain(&mut s, Share::default(), &["0", "0", "0"]);
        wake_all(&mut s, &v);
        let turns: Vec<_> = (0..6).map(|slice| run(&mut s, 0, 30 * slice).unwrap()).collect();
        assert_eq!(turns, [v[0], v[1], v[2], v[0], v[1], v[2]]);
    }

    #[test]
    fn who_gives_way_goes_behind_one_of_a_lower_priority() {
        let mut s = scheduler(1);
        let v = domain(&mut s, Share::default(), &["0", "0", "0", "0"]);
        wake_all(&mut s, &v);
        assert_eq!(run(&mut s, 0, 0), Some(v[0]));
        s.remove(v[2]);
        s.vcpus[v[2] as usize].priority = Priority::Over;
        s.insert(v[2]);
        s.remove(v[3]);
        s.vcpus[v[3] as usize].priority = Priority::Over;
        s.insert(v[3]);
        s.vcpus[v[0] as usize].priority = Priority::Under;
        s.vcpus[v[1] as usize].priority = Priority::Under;
        s.give_way(v[0]);
        assert_eq!(run(&mut s, 0, 0), Some(v[1]));
        assert_eq!(s.waiting(0).collect::<Vec<_>>(), [v[2], v[0], v[3]]);
        // Once: the next time it is an equal among equals. Who does not run has nothing to give.
        s.give_way(v[0]);
        assert_eq!(run(&mut s, 0, 0), Some(v[1]), "nobody of its priority waits before it");
        s.give_way(v[1]);
        assert_eq!(run(&mut s, 0, 0), Some(v[2]));
    }

    #[test]
    fn who_is_yielded_to_runs_before_its_equals() {
        let mut s = scheduler(1);
        let v = domain(&mut s, Share::default(), &["0", "0", "0"]);
        wake_all(&mut s, &v);
        run(&mut s, 0, 0);
        s.tick(0, 10 * MS);
        assert!(s.waits(v[2]) && !s.waits(v[0]));
        assert_eq!(kicks(s.run_next(v[0], 0)), NOBODY, "it runs");
        assert_eq!(kicks(s.run_next(v[2], 0)), [0], "it is boosted");
        assert_eq!(run(&mut s, 0, 10), Some(v[2]));
        let over = |s: &mut Scheduler, vcpu: VcpuId| {
            s.remove(vcpu);
            s.vcpus[vcpu as usize].priority = Priority::Over;
            s.insert(vcpu);
        };
        over(&mut s, v[0]);
        over(&mut s, v[1]);
        let last = s.waiting(0).last().unwrap();
        assert_eq!(kicks(s.run_next(last, 0)), NOBODY, "it has no credits");
        assert_eq!(s.waiting(0).next(), Some(last));
    }

    #[test]
    fn short_stretches_are_charged_together() {
        let mut s = scheduler(1);
        let vcpu = domain(&mut s, Share::default(), &["0"])[0];
        for stretch in 0..1000 {
            s.wake(vcpu, 0);
            s.schedule(0, stretch * MS, |_| false);
            s.block(vcpu);
            s.schedule(0, stretch * MS + 40_000, |_| false);
        }
        assert_eq!(s.credit(vcpu), -400, "a thousand times 0.4 credits");
    }

    #[test]
    fn an_idler_is_told_and_steals() {
        let mut s = scheduler(3);
        let v = domain(&mut s, Share::default(), &["0,2", "0,2"]);
        let pinned = domain(&mut s, Share::default(), &["1"]);
        s.wake(pinned[0], 1);
        run(&mut s, 1, 0);
        s.wake(v[0], 0);
        run(&mut s, 0, 0);
        s.move_to(v[1], 0);
        let kicked = kicks(s.wake(v[1], 0));
        assert_eq!(kicked, [2], "the idler at which it may run");
        let next = s.schedule(2, MS, |_| false);
        assert_eq!((next.vcpu, next.migrated), (Some(v[1]), true));
        let touches: Vec<_> = next.touches.to_vec();
        use Touch::*;
        assert_eq!(touches[..4], [Lock(2), ChangeQueue(2), PeekIdlers, TryLock { pcpu: 0, taken: true }]);
        assert_eq!(touches[4..7], [PeekQueue(0), ChangeQueue(0), Unlock(0)]);
        assert_eq!(touches[7..], [PeekIdlers, ChangeIdlers, Unlock(2)]);
    }

    #[test]
    fn all_idlers_are_told_where_so_configured() {
        for (tickle, told) in [(Tickle::One, 1), (Tickle::All, 3)] {
            let mut s = with(4, |config| config.tickle = tickle);
            let v = domain(&mut s, Share::default(), &["0-3", "0-3"]);
            s.wake(v[0], 0);
            run(&mut s, 0, 0);
            s.move_to(v[1], 0);
            assert_eq!(kicks(s.wake(v[1], 0)).len(), told);
        }
    }

    #[test]
    fn a_held_lock_is_passed_over() {
        let mut s = scheduler(3);
        let v = domain(&mut s, Share::default(), &["0", "0,2"]);
        v.iter().for_each(|&v| s.move_to(v, 0));
        s.wake(v[0], 0);
        run(&mut s, 0, 0);
        s.wake(v[1], 0);
        let next = s.schedule(2, MS, |pcpu| pcpu == 0);
        assert_eq!(next.vcpu, None);
        assert!(next.touches.contains(&Touch::TryLock { pcpu: 0, taken: false }));
        assert!(!next.touches.contains(&Touch::PeekQueue(0)));
        assert_eq!(run(&mut s, 2, 2), Some(v[1]));
    }

    #[test]
    fn only_a_more_urgent_vcpu_is_stolen_from_a_busy_pcpu() {
        let mut s = scheduler(2);
        let v = domain(&mut s, Share::default(), &["0-1", "0", "0-1"]);
        v.iter().for_each(|&v| s.move_to(v, 0));
        wake_all(&mut s, &v);
        run(&mut s, 0, 0);
        // On pCPU 1 a vCPU without credits would go on; what waits on pCPU 0 has none either, then some.
        let own = domain(&mut s, Share::default(), &["1"])[0];
        s.wake(own, 1);
        run(&mut s, 1, 0);
        for vcpu in v.iter().chain([&own]) {
            s.vcpus[*vcpu as usize].priority = Priority::Over;
        }
        assert_eq!(run(&mut s, 1, 30), Some(own));
        s.vcpus[v[2] as usize].priority = Priority::Under;
        assert_eq!(run(&mut s, 1, 60), Some(own), "the queue's head has none: the scan ends there");
        s.sort(0);
        assert_eq!(run(&mut s, 1, 90), Some(v[2]));
    }

    #[test]
    fn a_lone_vcpus_pcpu_balances_only_without_the_remedy() {
        for remedy in [false, true] {
            let mut s = with(4, |config| config.lone_skips_balance = remedy);
            let v = domain(&mut s, Share::default(), &["0", "1", "2", "3"]);
            for (pcpu, &vcpu) in v.iter().enumerate() {
                s.wake(vcpu, pcpu);
                run(&mut s, pcpu, 0);
            }
            s.block(v[0]);
            let next = s.schedule(0, MS, |_| false);
            let tried = next.touches.iter().filter(|touch| matches!(touch, Touch::TryLock { .. })).count();
            assert_eq!((next.vcpu, tried), (None, if remedy { 0 } else { 3 }));
            let other = domain(&mut s, Share::default(), &["0-1"])[0];
            s.move_to(other, 1);
            s.wake(other, 1);
            assert_eq!(run(&mut s, 0, 2), Some(other), "a pCPU with a second candidate balances");
        }
    }

    #[test]
    fn with_the_remedy_too_a_pcpu_finds_its_lone_vcpu_elsewhere() {
        let mut s = with(2, |config| config.lone_skips_balance = true);
        let v = domain(&mut s, Share::default(), &["0", "0-1"]);
        s.move_to(v[1], 0);
        wake_all(&mut s, &v);
        assert_eq!(run(&mut s, 0, 0), Some(v[0]));
        assert_eq!(run(&mut s, 1, 0), Some(v[1]), "pCPU 1 has one possible vCPU, and it waits on pCPU 0");
    }

    /// pCPUs; each domain's share and active vCPUs; the credits that each of its vCPUs gets.
    type Sharing<'a> = (usize, &'a [(Share, usize)], &'a [i64]);

    #[test]
    fn credits_are_shared_by_weight_up_to_what_can_be_used() {
        let cases: [Sharing<'_>; 6] = [
            (1, &[(share(256, 0), 1)], &[300]),
            (1, &[(share(256, 0), 1), (share(512, 0), 1)], &[100, 200]),
            (1, &[(share(256, 0), 1), (share(256, 0), 3)], &[75, 75]),
            (2, &[(share(256, 0), 1), (share(256, 0), 1)], &[300, 300]),
            (4, &[(share(256, 0), 2)], &[300]),
            (1, &[(share(256, 25), 1)], &[75]),
        ];
        for (pcpus, domains, expected) in cases {
            let mut s = scheduler(pcpus);
            let affinity = s.all.to_string();
            let mut first = Vec::new();
            for &(share, vcpus) in domains {
                let v = domain(&mut s, share, &vec![affinity.as_str(); vcpus]);
                v.iter().for_each(|&vcpu| s.start_earning(vcpu));
                first.push(v[0]);
            }
            let credits = |s: &Scheduler| first.iter().map(|&vcpu| s.credit(vcpu)).collect::<Vec<_>>();
            s.account(0);
            assert_eq!(credits(&s), expected, "{pcpus} pCPUs, {domains:?}");
        }
    }

    fn share(weight: u16, cap: u16) -> Share {
        Share { weight, cap }
    }

    #[test]
    fn unused_credits_go_to_those_that_come_after() {
        // The heavy domain's vCPU can use 300 of its 480 credits; served first, it leaves the rest to the other.
        let mut s = scheduler(2);
        let light = domain(&mut s, share(256, 0), &["0-1"])[0];
        let heavy = domain(&mut s, share(1024, 0), &["0-1"])[0];
        s.start_earning(light);
        s.start_earning(heavy);
        let done = s.account(0);
        assert_eq!((done.available, done.handed_out, done.limited), (600, 600, 2));
        assert_eq!((s.credit(light), s.credit(heavy)), (300, 300));
    }

    #[test]
    fn debts_are_bounded_and_riches_end_the_earning() {
        let mut s = scheduler(1);
        let v = domain(&mut s, Share::default(), &["0", "0"]);
        v.iter().for_each(|&vcpu| s.start_earning(vcpu));
        (s.vcpus[0].credit, s.vcpus[1].credit) = (-1000, 299);
        let done = s.account(0);
        assert_eq!((done.forgiven, done.forfeited), (1000 - 150 - 300, 225));
        assert_eq!((s.credit(v[0]), s.credit(v[1])), (-300, 224));
        assert_eq!((s.priority(v[0]), s.priority(v[1])), (Priority::Over, Priority::Under));
        assert_eq!(s.domains[0].active, [v[0]]);
        // What is owed is handed out in addition.
        assert_eq!(s.account(0).available, 300 + 76);
    }

    #[test]
    fn a_capped_vcpu_is_parked_and_comes_back_without_a_boost() {
        let mut s = scheduler(1);
        let vcpu = domain(&mut s, share(256, 10), &["0"])[0];
        s.wake(vcpu, 0);
        run(&mut s, 0, 0);
        for ms in [10, 20, 30] {
            s.tick(0, ms * MS);
        }
        let done = s.account(0);
        assert_eq!(done.kicks, &set("0"), "it runs: its pCPU takes it off");
        assert!(s.is_parked(vcpu));
        assert_eq!(run(&mut s, 0, 30), None);
        assert_eq!(kicks(s.wake(vcpu, 0)), NOBODY, "parked vCPUs do not wake");
        let periods = (1..20).find(|_| !s.account(0).kicks.is_empty()).unwrap();
        assert_eq!(periods, 9, "270 credits at 30 a period");
        assert_eq!(s.priority(vcpu), Priority::Under);
        assert_eq!(run(&mut s, 0, 300), Some(vcpu));
    }

    #[test]
    fn a_running_vcpu_moves_to_an_idle_core() {
        // Two sockets of two cores with two threads; CPU n and n + 4 are siblings.
        let topology = Topology::regular(2, 1, 2, 2).unwrap();
        let mut s = with(8, |config| config.topology = topology);
        let v = domain(&mut s, Share::default(), &["0-7", "0-7"]);
        s.move_to(v[1], 4);
        for (pcpu, vcpu) in [(0, v[0]), (4, v[1])] {
            s.wake(vcpu, pcpu);
            run(&mut s, pcpu, 0);
            s.tick(pcpu, 10 * MS);
        }
        let kicked = kicks(s.tick(0, 20 * MS));
        assert_eq!(kicked, [0], "its sibling is busy: another core is better");
        let next = s.schedule(0, 20 * MS, |_| false);
        assert_eq!(next.vcpu, None);
        let to = next.kicks.iter().next().unwrap();
        assert!(![0, 4].contains(&to), "went to {to}");
        assert_eq!(run(&mut s, to, 20), Some(v[0]));
        assert_eq!(kicks(s.tick(to, 30 * MS)), NOBODY, "and stays");
    }

    #[test]
    fn impossible_inputs_are_refused() {
        let config = |pcpus| Config {
            topology: Topology::regular(1, 1, 2, 1).unwrap(),
            pcpus,
            tickle: Tickle::One,
            lone_skips_balance: false,
        };
        assert!(Scheduler::new(&config(0)).is_err());
        assert!(Scheduler::new(&config(3)).is_err());
        let mut s = scheduler(2);
        assert!(s.add_domain(share(0, 0)).is_err());
        assert!(s.add_vcpu(0, &set("0")).is_err());
        s.add_domain(Share::default()).unwrap();
        assert!(s.add_vcpu(0, &set("2-5")).is_err());
    }

    #[test]
    fn a_thousand_pcpus_decide_without_growing_buffers() {
        let mut s = scheduler(1024);
        let owner = s.add_domain(Share::default()).unwrap();
        let all = s.all;
        let vcpus: Vec<_> = (0..2048).map(|_| s.add_vcpu(owner, &all).unwrap()).collect();
        wake_all(&mut s, &vcpus);
        let room = s.touches.capacity();
        for round in 0..4 {
            for pcpu in 0..1024 {
                assert!(run(&mut s, pcpu, round * 30).is_some());
                s.tick(pcpu, (round * 30 + 10) * MS);
            }
            s.account(0);
        }
        assert_eq!(s.touches.capacity(), room);
    }
}

/// Invariants that hold after every call, whatever the history.
fn check(s: &Scheduler) {
    let mut places = vec![0; s.vcpus.len()];
    for pcpu in 0..s.pcpus.len() {
        if let Some(current) = s.current(pcpu) {
            let vcpu = &s.vcpus[current as usize];
            assert_eq!(vcpu.pcpu, pcpu);
            assert!(vcpu.affinity.contains(pcpu) && !vcpu.queued);
            places[current as usize] += 1;
        }
        for waiting in s.waiting(pcpu) {
            let vcpu = &s.vcpus[waiting as usize];
            assert_eq!(vcpu.pcpu, pcpu);
            assert!(vcpu.affinity.contains(pcpu) && vcpu.queued && vcpu.is_runnable());
            places[waiting as usize] += 1;
        }
        assert_eq!(s.idlers.contains(pcpu), s.current(pcpu).is_none());
        let Pcpu { possible, present, .. } = &s.pcpus[pcpu];
        let allowed = s.vcpus.iter().filter(|vcpu| vcpu.affinity.contains(pcpu)).count();
        let here = s.vcpus.iter().filter(|vcpu| vcpu.pcpu == pcpu).count();
        assert_eq!((*possible as usize, *present as usize), (allowed, here));
    }
    for (vcpu, places) in s.vcpus.iter().zip(places) {
        assert!(places <= 1, "in {places} places");
        assert!(places == 1 || !vcpu.is_runnable(), "a runnable vCPU is nowhere");
    }
    let weight: i64 =
        s.vcpus.iter().filter(|v| v.active).map(|v| i64::from(s.domains[v.domain as usize].share.weight)).sum();
    assert_eq!(s.weight, weight);
}

/// Locks are taken and released in pairs, and a queue is touched only under its lock.
fn check_locks(touches: &[Touch]) {
    let mut held = Vec::new();
    for touch in touches {
        match *touch {
            Touch::Lock(pcpu) => held.push(pcpu),
            Touch::TryLock { pcpu, taken: true } => held.push(pcpu),
            Touch::Unlock(pcpu) => assert_eq!(held.pop(), Some(pcpu), "{touches:?}"),
            Touch::PeekQueue(pcpu) | Touch::ChangeQueue(pcpu) => assert!(held.contains(&pcpu), "{touches:?}"),
            _ => {}
        }
    }
    assert_eq!(held, NOBODY, "{touches:?}");
}

/// Any call, in any order, at any time.
#[derive(Debug, Clone)]
enum Call {
    Wake(usize, usize),
    Block(usize),
    Tick(usize),
    Account(usize),
    Schedule(usize, u64),
    Pass(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => (0..64usize, 0..64usize).prop_map(|(v, by)| Call::Wake(v, by)),
        2 => (0..64usize).prop_map(Call::Block),
        2 => (0..64usize).prop_map(Call::Tick),
        1 => (0..64usize).prop_map(Call::Account),
        4 => (0..64usize, any::<u64>()).prop_map(|(pcpu, held)| Call::Schedule(pcpu, held)),
        3 => (0..40_000_000u64).prop_map(Call::Pass),
    ];
    proptest::collection::vec(call, 0..400)
}

#[derive(Debug, Clone)]
struct Machine {
    shape: (u32, u32, u32),
    tickle: Tickle,
    lone_skips_balance: bool,
    /// Share, and the affinities of the vCPUs as bits.
    domains: Vec<(Share, Vec<u16>)>,
}

fn machines() -> impl Strategy<Value = Machine> {
    let share =
        (1u16..1024, prop_oneof![3 => Just(0u16), 1 => 5u16..250]).prop_map(|(weight, cap)| Share { weight, cap });
    let affinity = prop_oneof![any::<u16>(), Just(u16::MAX), (0..16u32).prop_map(|bit| 1 << bit)];
    let domain = (share, proptest::collection::vec(affinity, 1..6));
    let tickle = prop_oneof![Just(Tickle::One), Just(Tickle::All)];
    ((1..3u32, 1..4u32, 1..3u32), tickle, any::<bool>(), proptest::collection::vec(domain, 1..5))
        .prop_map(|(shape, tickle, lone_skips_balance, domains)| Machine { shape, tickle, lone_skips_balance, domains })
}

impl Machine {
    fn scheduler(&self) -> Scheduler {
        let topology = Topology::regular(self.shape.0, 1, self.shape.1, self.shape.2).unwrap();
        let pcpus = topology.len();
        let Self { tickle, lone_skips_balance, .. } = *self;
        let mut s = Scheduler::new(&Config { topology, pcpus, tickle, lone_skips_balance }).unwrap();
        for (share, affinities) in &self.domains {
            let domain = s.add_domain(*share).unwrap();
            for bits in affinities {
                let allowed: CpuSet = (0..pcpus).filter(|pcpu| bits >> pcpu & 1 == 1).collect();
                let affinity = if allowed.is_empty() { CpuSet::first(pcpus) } else { allowed };
                s.add_vcpu(domain, &affinity).unwrap();
            }
        }
        s
    }
}

/// What runs, what was touched, and who is kicked.
type Outcome = (Option<VcpuId>, Vec<Touch>, CpuSet);

/// Plays a history, checking what must hold after each call; gives the decisions.
fn play(machine: &Machine, calls: &[Call]) -> Vec<Outcome> {
    let mut s = machine.scheduler();
    let (pcpus, vcpus) = (s.pcpus.len(), s.vcpus.len());
    let mut now = 0;
    let mut log = Vec::new();
    for call in calls {
        let credits = |s: &Scheduler| s.vcpus.iter().map(|vcpu| vcpu.credit).sum::<i64>();
        let (vcpu, touches, kicks) = match *call {
            Call::Wake(vcpu, by) => of(s.wake((vcpu % vcpus) as VcpuId, by % pcpus)),
            Call::Block(vcpu) => of(s.block((vcpu % vcpus) as VcpuId)),
            Call::Tick(pcpu) => of(s.tick(pcpu % pcpus, now)),
            Call::Account(by) => {
                let (before, active, vcpus) = (credits(&s), s.active_domains.len() as i64, s.weight);
                let earning = s.vcpus.iter().filter(|vcpu| vcpu.active).count() as i64;
                let done = s.account(by % pcpus);
                let grown = done.handed_out - done.forfeited + done.forgiven;
                // Rounded up twice a domain (its share, and what it leaves) and once a vCPU.
                assert!(done.handed_out <= done.available + 2 * active + earning, "{done:?}");
                assert!(done.limited > 0 || vcpus == 0 || done.handed_out >= done.available, "{done:?}");
                let (touches, kicks) = (done.touches.to_vec(), *done.kicks);
                assert_eq!(credits(&s), before + grown);
                (None, touches, kicks)
            }
            Call::Schedule(pcpu, held) => {
                let pcpu = pcpu % pcpus;
                let next = s.schedule(pcpu, now, |peer| held >> (2 * peer) & 3 == 3);
                let decision = (next.vcpu, next.touches.to_vec(), *next.kicks);
                if decision.0.is_none() && !decision.1.iter().any(|t| matches!(t, Touch::TryLock { taken: false, .. }))
                {
                    check_work_is_conserved(&s, pcpu, &decision.2);
                }
                decision
            }
            Call::Pass(ns) => {
                now += ns;
                continue;
            }
        };
        check_locks(&touches);
        check(&s);
        log.push((vcpu, touches, kicks));
    }
    log
}

fn of(decision: Decision<'_>) -> Outcome {
    (None, decision.touches.to_vec(), *decision.kicks)
}

/// A pCPU that idles found nothing to run: what it might run elsewhere waits only on pCPUs that idle themselves, and so
/// have been kicked, or came to wait by this very decision.
fn check_work_is_conserved(s: &Scheduler, pcpu: usize, kicks: &CpuSet) {
    assert!(kicks.contains(pcpu) || s.waiting(pcpu).count() == 0, "pCPU {pcpu} idles over its own queue");
    for peer in s.all.difference(&s.idlers).difference(kicks).iter() {
        let missed = s.waiting(peer).find(|&vcpu| s.vcpus[vcpu as usize].affinity.contains(pcpu));
        assert_eq!(missed, None, "pCPU {pcpu} idles, and its vCPU waits on {peer}");
    }
}

/// A machine in virtual time, timers and kicks served as Xen would: what programs get in the long run.
struct World {
    s: Scheduler,
    now: u64,
    /// By pCPU, when its slice ends.
    slice_ends: Vec<u64>,
    /// By vCPU: how long it runs until it blocks, and how long it is blocked; `None` never blocks.
    habits: Vec<Option<(u64, u64)>>,
    /// By vCPU, what it has left to run, or when it wakes.
    left: Vec<u64>,
    ran: Vec<u64>,
    /// By vCPU, since when it waits with credits, and how many stand before it and how many woke on its pCPU since.
    waits: Vec<Option<Wait>>,
}

#[derive(Clone, Copy)]
struct Wait {
    since: u64,
    ahead: u64,
    wakes: u64,
}

impl World {
    fn new(s: Scheduler, habits: Vec<Option<(u64, u64)>>) -> Self {
        let (pcpus, vcpus) = (s.pcpus.len(), s.vcpus.len());
        let left = habits.iter().map(|habit| habit.map_or(u64::MAX, |(run, _)| run)).collect();
        let mut world = Self {
            s,
            now: 0,
            slice_ends: vec![u64::MAX; pcpus],
            habits,
            left,
            ran: vec![0; vcpus],
            waits: vec![None; vcpus],
        };
        (0..vcpus).for_each(|vcpu| world.wake(vcpu));
        world
    }

    fn wake(&mut self, vcpu: usize) {
        let pcpu = self.s.vcpus[vcpu].pcpu;
        self.waits.iter_mut().enumerate().filter(|(other, _)| self.s.vcpus[*other].pcpu == pcpu).for_each(
            |(_, wait)| {
                wait.iter_mut().for_each(|wait| wait.wakes += 1);
            },
        );
        let kicks = *self.s.wake(vcpu as VcpuId, pcpu).kicks;
        self.serve(kicks);
    }

    fn serve(&mut self, mut kicks: CpuSet) {
        while !kicks.is_empty() {
            let pcpu = kicks.next_after(MAX_CPUS - 1).expect("somebody is kicked");
            kicks.remove(pcpu);
            let next = self.s.schedule(pcpu, self.now, |_| false);
            self.slice_ends[pcpu] = next.slice_ns.map_or(u64::MAX, |slice| self.now + slice);
            kicks = kicks.union(next.kicks);
            check(&self.s);
        }
    }

    /// Until `end`: the next of ticks, accounting, ends of slices, and what vCPUs do by themselves.
    fn run(&mut self, end: u64) {
        while self.now < end {
            let tick = (self.now / TICK_NS + 1) * TICK_NS;
            let running: Vec<_> = (0..self.slice_ends.len()).filter_map(|pcpu| self.s.current(pcpu)).collect();
            let blocks = running.iter().map(|&vcpu| self.now.saturating_add(self.left[vcpu as usize]));
            let sleeping = (0..self.left.len()).filter(|&vcpu| self.s.vcpus[vcpu].blocked).collect::<Vec<_>>();
            let wakes = sleeping.iter().map(|&vcpu| self.left[vcpu]);
            let at = blocks.chain(wakes).chain(self.slice_ends.iter().copied()).chain([tick]).min().unwrap();
            for &vcpu in &running {
                self.ran[vcpu as usize] += at - self.now;
                self.left[vcpu as usize] = self.left[vcpu as usize].saturating_sub(at - self.now);
            }
            self.now = at;
            self.happen(&running, &sleeping, at == tick);
            self.watch_waits();
        }
    }

    fn happen(&mut self, running: &[VcpuId], sleeping: &[usize], is_tick: bool) {
        for &vcpu in running {
            if let (0, Some((run, sleep))) = (self.left[vcpu as usize], self.habits[vcpu as usize]) {
                let kicks = *self.s.block(vcpu).kicks;
                self.left[vcpu as usize] = self.now + sleep;
                self.serve(kicks);
                if sleep == 0 {
                    self.left[vcpu as usize] = run;
                    self.wake(vcpu as usize);
                }
            }
        }
        for &vcpu in sleeping {
            if self.left[vcpu] <= self.now {
                self.left[vcpu] = self.habits[vcpu].map_or(u64::MAX, |(run, _)| run);
                self.wake(vcpu);
            }
        }
        for pcpu in 0..self.slice_ends.len() {
            if self.slice_ends[pcpu] <= self.now {
                self.serve(CpuSet::single(pcpu));
            }
            if is_tick {
                let kicks = *self.s.tick(pcpu, self.now).kicks;
                self.serve(kicks);
            }
        }
        if is_tick && self.now.is_multiple_of(PERIOD_NS) {
            let kicks = *self.s.account(0).kicks;
            self.serve(kicks);
        }
    }

    /// How long a vCPU with credits may wait on one pCPU. Each of the `ahead` that stand before it and each of the `wakes`
    /// that came meanwhile runs for one slice at most, then stands behind it; before a tick sorts the queue, one that ran
    /// may come before it once more, as one before it lost its credits. What runs when it comes has a slice left.
    fn watch_waits(&mut self) {
        for pcpu in 0..self.slice_ends.len() {
            for (place, vcpu) in self.s.waiting(pcpu).enumerate() {
                let vcpu = vcpu as usize;
                if self.s.vcpus[vcpu].priority < Priority::Under {
                    self.waits[vcpu] = None;
                    continue;
                }
                let new = Wait { since: self.now, ahead: place as u64, wakes: 0 };
                let wait = *self.waits[vcpu].get_or_insert(new);
                let bound = (2 * (wait.ahead + wait.wakes) + 1) * SLICE_NS;
                let waited = self.now - wait.since;
                assert!(waited <= bound, "vCPU {vcpu} waited {waited} ns with credits; {bound} at most");
            }
        }
        for vcpu in 0..self.waits.len() {
            if !self.s.vcpus[vcpu].queued {
                self.waits[vcpu] = None;
            }
        }
    }
}

fn habits() -> impl Strategy<Value = Vec<Option<(u64, u64)>>> {
    let times = (1u64..80, 1u64..80).prop_map(|(run, sleep)| Some((run * MS / 2 + 1, sleep * MS / 2 + 3)));
    proptest::collection::vec(prop_oneof![1 => Just(None), 2 => times], 20)
}

proptest! {
    #[test]
    fn any_history_keeps_the_invariants_and_repeats(machine in machines(), calls in calls()) {
        prop_assert_eq!(play(&machine, &calls), play(&machine, &calls));
    }

    /// The load balancer looks where no other vCPU may be in vain: the remedy changes what is touched, not what runs.
    #[test]
    fn the_remedy_changes_no_choice(mut machine in machines(), calls in calls()) {
        let unheld: Vec<Call> = calls
            .into_iter()
            .map(|call| if let Call::Schedule(pcpu, _) = call { Call::Schedule(pcpu, 0) } else { call })
            .collect();
        let mut of = |remedy| {
            machine.lone_skips_balance = remedy;
            play(&machine, &unheld).into_iter().map(|(vcpu, _, kicks)| (vcpu, kicks)).collect::<Vec<_>>()
        };
        prop_assert_eq!(of(false), of(true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nobody_with_credits_starves(machine in machines(), habits in habits()) {
        let s = machine.scheduler();
        let habits = habits[..s.vcpus.len()].to_vec();
        World::new(s, habits).run(2_000 * MS);
    }

    /// vCPUs that always run get CPU time by their domains' weights.
    #[test]
    fn time_follows_weight(pcpus in 1usize..4, weights in proptest::collection::vec(128u16..1024, 2..5)) {
        let mut s = scheduler(pcpus);
        let all = s.all.to_string();
        // As many vCPUs as pCPUs in each domain, so that none is held back by what one vCPU can use.
        for &weight in &weights {
            domain(&mut s, Share { weight, cap: 0 }, &vec![all.as_str(); pcpus]);
        }
        let vcpus = s.vcpus.len();
        let mut world = World::new(s, vec![None; vcpus]);
        world.run(60_000 * MS);
        let total: u64 = world.ran.iter().sum();
        prop_assert_eq!(total, pcpus as u64 * world.now, "no pCPU idles");
        let weight: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        for (of_domain, &own) in world.ran.chunks(pcpus).zip(&weights) {
            let got = of_domain.iter().sum::<u64>() as f64 / total as f64;
            let due = f64::from(own) / weight;
            // Debts beyond a period are forgiven and savings beyond one forfeited, so weights are not exact: 763 domains of
            // such sets got 0.90 to 1.37 of their due, one found later 0.85 (751 beside 563 and 584 on one pCPU).
            prop_assert!((0.7..1.7).contains(&(got / due)), "got {got:.3}, due {due:.3} of {weights:?} on {pcpus}");
        }
        let time = |domain: usize| world.ran[domain * pcpus..(domain + 1) * pcpus].iter().sum::<u64>();
        for (light, heavy) in (0..weights.len()).flat_map(|a| (0..weights.len()).map(move |b| (a, b))) {
            let is_heavier = u32::from(weights[heavy]) >= 2 * u32::from(weights[light]);
            prop_assert!(!is_heavier || time(heavy) > time(light), "{weights:?}: {:?} ns", world.ran);
        }
    }

    /// A domain that always wants to run gets its cap, whatever is idle.
    #[test]
    fn a_cap_is_kept(pcpus in 1usize..4, cap in 5u16..100, vcpus in 1usize..4) {
        let mut s = scheduler(pcpus);
        let all = s.all.to_string();
        domain(&mut s, Share { weight: 256, cap }, &vec![all.as_str(); vcpus]);
        let mut world = World::new(s, vec![None; vcpus]);
        world.run(60_000 * MS);
        let used = world.ran.iter().sum::<u64>() as f64 / world.now as f64 * 100.0;
        // Each vCPU may run up to a period into debt, and credits are rounded up a vCPU.
        let slack = vcpus as f64 * (100.0 * PERIOD_NS as f64 / world.now as f64 + 0.34);
        prop_assert!(used <= f64::from(cap) + slack, "used {used:.2} % of {cap} %");
        prop_assert!(used >= f64::from(cap.min(100 * pcpus as u16)) * 0.95 - slack, "used {used:.2} % of {cap} %");
    }
}
