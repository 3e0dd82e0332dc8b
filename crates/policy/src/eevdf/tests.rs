//! What EEVDF is held to.

use super::*;
use proptest::prelude::*;

const TICK: u64 = 4_000_000;
const MS: u64 = 1_000_000;

/// A scheduler, the time, and the timers that its caller keeps.
struct Host {
    scheduler: Scheduler,
    now: u64,
    /// By vCPU, CPU time.
    ran: Vec<u64>,
    /// By vCPU, since when it waits without a break.
    waits_since: Vec<Option<u64>>,
    longest_wait: Vec<u64>,
    /// The greatest time that anybody was owed, or had had too much, on a queue of vCPUs or of domains.
    owed: i64,
    /// By pCPU, since when it has idled though a vCPU waited that may run there.
    slacks_since: Vec<Option<u64>>,
    longest_slack: u64,
    domains: u32,
}

impl Host {
    /// Domains with so many vCPUs each on a machine of two cache domains, or one pCPU.
    fn new(pcpus: usize, domains: &[(Share, usize)], affinity: impl Fn(usize) -> CpuSet) -> Self {
        let topology = if pcpus.is_multiple_of(4) {
            Topology::regular(2, 1, pcpus as u32 / 4, 2)
        } else {
            Topology::regular(1, 1, pcpus as u32, 1)
        };
        let config = Config { topology: topology.unwrap(), pcpus, tick_ns: TICK };
        let mut scheduler = Scheduler::new(&config).unwrap();
        for (share, vcpus) in domains {
            let domain = scheduler.add_domain(*share).unwrap();
            for vcpu in 0..*vcpus {
                scheduler.add_vcpu(domain, &affinity(vcpu)).unwrap();
            }
        }
        let vcpus = scheduler.vcpus.len();
        Self {
            scheduler,
            now: 0,
            ran: vec![0; vcpus],
            waits_since: vec![None; vcpus],
            longest_wait: vec![0; vcpus],
            owed: 0,
            slacks_since: vec![None; pcpus],
            longest_slack: 0,
            domains: domains.len() as u32,
        }
    }

    fn do_kicks(&mut self, kicks: CpuSet) {
        let mut left = kicks;
        while !left.is_empty() {
            let pcpu = left.iter().next().expect("it is not empty");
            left.remove(pcpu);
            left = left.union(self.scheduler.schedule(pcpu, self.now).kicks);
        }
        self.check();
    }

    fn wake(&mut self, vcpu: VcpuId, by: usize) {
        let kicks = *self.scheduler.wake(vcpu, by, self.now);
        self.do_kicks(kicks);
    }

    fn block(&mut self, vcpu: VcpuId) {
        let kicks = *self.scheduler.block(vcpu, self.now);
        self.do_kicks(kicks);
    }

    fn wake_all(&mut self) {
        (0..self.ran.len()).for_each(|vcpu| self.wake(vcpu as u32, vcpu % self.scheduler.pcpus.len()));
    }

    /// Time goes on, with a tick on each pCPU that is busy and the domains' periods.
    fn go_on(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.now < until {
            let next = (self.now / TICK + 1) * TICK;
            let to = next.min(until);
            for pcpu in 0..self.scheduler.pcpus.len() {
                if let Some(vcpu) = self.scheduler.current(pcpu) {
                    self.ran[vcpu as usize] += to - self.now;
                }
            }
            self.now = to;
            if to < next {
                break;
            }
            for pcpu in 0..self.scheduler.pcpus.len() {
                if self.scheduler.current(pcpu).is_some() {
                    let kicks = *self.scheduler.tick(pcpu, to);
                    self.do_kicks(kicks);
                }
            }
            if to.is_multiple_of(PERIOD_NS) {
                for domain in 0..self.domains {
                    let kicks = *self.scheduler.refill(domain, to);
                    self.do_kicks(kicks);
                }
            }
        }
        self.check();
    }

    /// What holds at any time once kicks are done.
    fn check(&mut self) {
        let s = &self.scheduler;
        let mut running = CpuSet::EMPTY;
        for pcpu in 0..s.pcpus.len() {
            let current = s.current(pcpu);
            assert_eq!(s.idlers().contains(pcpu), current.is_none() && s.runnable(pcpu) == 0, "pCPU {pcpu}");
            let Some(vcpu) = current else { continue };
            assert!(!running.contains(vcpu as usize), "vCPU {vcpu} runs twice");
            running.insert(vcpu as usize);
            assert!(s.is_runnable(vcpu) && s.pcpu_of(vcpu) == pcpu && s.vcpus[vcpu as usize].affinity.contains(pcpu));
        }
        let counted: usize = (0..s.pcpus.len()).map(|pcpu| s.runnable(pcpu)).sum();
        let there = (0..self.ran.len() as u32).filter(|&vcpu| s.is_runnable(vcpu) && !s.is_throttled(vcpu)).count();
        assert_eq!(counted, there);
        for vcpu in 0..self.ran.len() {
            let waits = s.is_runnable(vcpu as u32) && !running.contains(vcpu) && !s.is_throttled(vcpu as u32);
            if s.is_runnable(vcpu as u32) {
                let owed = s.owed_ns(vcpu as u32).abs().max(s.domain_owed_ns(vcpu as u32).map_or(0, i64::abs));
                self.owed = self.owed.max(owed);
            }
            let since = &mut self.waits_since[vcpu];
            *since = if waits { since.or(Some(self.now)) } else { None };
            self.longest_wait[vcpu] = self.longest_wait[vcpu].max(since.map_or(0, |since| self.now - since));
        }
        for pcpu in 0..s.pcpus.len() {
            let waits = |vcpu: usize| self.waits_since[vcpu].is_some() && s.vcpus[vcpu].affinity.contains(pcpu);
            let slacks = s.current(pcpu).is_none() && (0..self.ran.len()).any(waits);
            let since = &mut self.slacks_since[pcpu];
            *since = if slacks { since.or(Some(self.now)) } else { None };
            self.longest_slack = self.longest_slack.max(since.map_or(0, |since| self.now - since));
        }
    }

    fn ran_by(&self, domain: DomainId) -> u64 {
        let of = |vcpu: &usize| self.scheduler.vcpus[*vcpu].domain == domain;
        (0..self.ran.len()).filter(of).map(|vcpu| self.ran[vcpu]).sum()
    }
}

fn anywhere(_: usize) -> CpuSet {
    CpuSet::first(64)
}

fn weighing(weight: u16) -> Share {
    Share { weight, cap: 0 }
}

#[test]
fn the_base_slice_grows_with_the_machine_up_to_eight_pcpus() {
    assert_eq!([1, 2, 4, 8, 16, 1024].map(slice_ns), [750_000, 1_500_000, 2_250_000, 3_000_000, 3_000_000, 3_000_000]);
}

#[test]
fn a_domain_has_its_share_however_many_vcpus_it_has() {
    let mut host = Host::new(1, &[(weighing(256), 1), (weighing(256), 3), (weighing(512), 2)], anywhere);
    host.wake_all();
    host.go_on(4_000 * MS);
    let parts = [0, 1, 2].map(|domain| host.ran_by(domain) as f64 / 1e9);
    for (part, wanted) in parts.iter().zip([1.0, 1.0, 2.0]) {
        assert!((part - wanted).abs() < 0.02, "{parts:?}");
    }
}

/// Two that compute, and one that runs 1 ms in 20 and so is always owed time: it comes at once when the other's slice is over
/// or it is ahead, and has all it asks for.
#[test]
fn who_sleeps_gets_what_it_asks_for() {
    let mut host = Host::new(1, &[(weighing(256), 1), (weighing(256), 1), (weighing(256), 1)], anywhere);
    host.wake(0, 0);
    host.wake(1, 0);
    let mut turns = 0;
    for _ in 0..100 {
        host.wake(2, 0);
        let had = host.ran[2];
        while host.ran[2] < had + MS {
            host.go_on(100_000);
        }
        host.block(2);
        turns += 1;
        host.go_on(20 * MS);
    }
    assert_eq!(turns, 100);
    assert!(host.longest_wait[2] <= 2 * TICK, "{}", host.longest_wait[2]);
}

#[test]
fn a_woken_vcpu_goes_to_an_idle_pcpu_of_its_cache_domain() {
    // Two sockets of two cores of two threads. The last vCPU takes the first one's pCPU while that sleeps.
    let affinity = |vcpu| if vcpu == 3 { CpuSet::single(0) } else { anywhere(vcpu) };
    let mut host = Host::new(8, &[(weighing(256), 4)], affinity);
    host.wake(0, 0);
    assert_eq!(host.scheduler.pcpu_of(0), 0);
    host.block(0);
    host.wake(0, 5);
    assert_eq!(host.scheduler.pcpu_of(0), 0, "its last one idles");
    host.block(0);
    host.wake(3, 0);
    host.wake(0, 0);
    let on = host.scheduler.pcpu_of(0);
    assert!(on != 0 && host.scheduler.pcpus[0].llc.contains(on) && !host.scheduler.pcpus[0].core.contains(on), "{on}");
}

#[test]
fn an_idle_pcpu_takes_what_waits_elsewhere() {
    let mut host = Host::new(2, &[(weighing(256), 3)], anywhere);
    host.wake_all();
    assert!(host.scheduler.idlers().is_empty());
    host.go_on(10 * MS);
    let lone = (0..3).find(|&vcpu| host.scheduler.runnable(host.scheduler.pcpu_of(vcpu)) == 1).unwrap();
    host.block(lone);
    host.go_on(TICK);
    assert!(host.scheduler.idlers().is_empty(), "two vCPUs, two pCPUs");
}

/// Three equal vCPUs on two pCPUs: one of them has a pCPU for itself, but not always the same.
#[test]
fn balancing_turns_the_odd_one_round() {
    let mut host = Host::new(2, &[(weighing(256), 1), (weighing(256), 1), (weighing(256), 1)], anywhere);
    host.wake_all();
    host.go_on(10_000 * MS);
    for ran in &host.ran {
        let share = *ran as f64 / (20_000.0 / 3.0 * 1e6);
        assert!((share - 1.0).abs() < 0.1, "{:?}", host.ran);
    }
}

#[test]
fn a_yield_makes_the_target_next_where_it_waits() {
    let mut host = Host::new(1, &[(weighing(256), 3)], anywhere);
    host.wake_all();
    host.go_on(12 * MS);
    let from = host.scheduler.current(0).unwrap();
    let waiting: Vec<u32> = (0..3).filter(|&vcpu| vcpu != from && host.scheduler.owed_ns(vcpu) >= 0).collect();
    for to in waiting {
        let mut copy = host.scheduler.clone();
        assert_eq!(copy.yield_to(from, to, host.now), Some(&CpuSet::single(0)));
        assert_eq!(copy.schedule(0, host.now).vcpu, Some(to));
    }
    assert_eq!(host.scheduler.yield_to(from, from, host.now), None, "it runs");
}

#[test]
fn bad_configurations_are_refused() {
    let topology = Topology::regular(1, 1, 2, 1).unwrap();
    let config = |pcpus, tick_ns| Config { topology: topology.clone(), pcpus, tick_ns };
    assert!(Scheduler::new(&config(3, TICK)).unwrap_err().to_string().contains("pcpus: found 3"));
    assert!(Scheduler::new(&config(2, 0)).unwrap_err().to_string().contains("tick_ns: found 0"));
    let mut scheduler = Scheduler::new(&config(2, TICK)).unwrap();
    assert!(scheduler.add_domain(weighing(0)).unwrap_err().to_string().contains("weight: found 0"));
    assert!(scheduler.add_vcpu(0, &anywhere(0)).unwrap_err().to_string().contains("domain: found 0"));
    scheduler.add_domain(weighing(1)).unwrap();
    assert!(scheduler.add_vcpu(0, &CpuSet::single(5)).unwrap_err().to_string().contains("affinity: found no pCPU"));
}

fn domains(most_vcpus: usize) -> impl Strategy<Value = Vec<(Share, usize)>> {
    let weight = prop_oneof![Just(64u16), Just(256), Just(256), Just(1024)];
    proptest::collection::vec((weight.prop_map(weighing), 1..=most_vcpus), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// On one pCPU: nobody is owed, or has had, more than a request and what a tick comes late; nobody waits for longer than
    /// all others' requests.
    #[test]
    fn lag_is_bounded_and_nobody_starves(domains in domains(3), steps in proptest::collection::vec((0usize..12, 0u64..9_000_000), 20..120)) {
        let mut host = Host::new(1, &domains, anywhere);
        host.wake_all();
        let vcpus = host.ran.len();
        for (who, ns) in steps {
            host.go_on(ns);
            let vcpu = (who % vcpus) as u32;
            if host.scheduler.is_runnable(vcpu) { host.block(vcpu) } else { host.wake(vcpu, 0) }
        }
        let request = (host.scheduler.slice_ns() + TICK) as i64;
        // A domain that runs alone for a while has no lag; one that comes brings at most two slices or a tick.
        prop_assert!(host.owed <= 3 * request, "owed {} ns", host.owed);
        let (all, least) = domains.iter().fold((0, u64::MAX), |(all, least), (share, _)| {
            (all + u64::from(share.weight), least.min(u64::from(share.weight)))
        });
        let longest = *host.longest_wait.iter().max().unwrap();
        prop_assert!(longest <= 4 * request as u64 * (all / least + 1) * 3, "waited {longest} ns");
    }

    /// Domains that always want the one pCPU have it in proportion to their weights, and a domain's vCPUs evenly.
    #[test]
    fn time_is_shared_by_weight(domains in domains(3)) {
        let mut host = Host::new(1, &domains, anywhere);
        host.wake_all();
        host.go_on(20_000 * MS);
        let all: u64 = domains.iter().map(|(share, _)| u64::from(share.weight)).sum();
        let tolerance = 3.0 * (host.scheduler.slice_ns() + TICK) as f64;
        for (number, (share, vcpus)) in domains.iter().enumerate() {
            let wanted = 20e9 * f64::from(share.weight) / all as f64;
            let found = host.ran_by(number as u32) as f64;
            prop_assert!((found - wanted).abs() <= tolerance, "domain {number}: {found} of {wanted}");
            let each = (0..host.ran.len()).filter(|&vcpu| host.scheduler.vcpus[vcpu].domain == number as u32);
            for vcpu in each {
                let wanted = found / *vcpus as f64;
                prop_assert!((host.ran[vcpu] as f64 - wanted).abs() <= tolerance, "vCPU {vcpu}");
            }
        }
    }

    /// However vCPUs wake and block on however many pCPUs: no pCPU idles for longer than two ticks while a vCPU waits that may run
    /// there.
    #[test]
    fn work_is_conserved(pcpus in prop_oneof![Just(2usize), Just(3), Just(4), Just(8)], domains in domains(6), pin in 0usize..4,
        steps in proptest::collection::vec((0usize..24, 0usize..8, 0u64..5_000_000), 20..200)) {
        let affinity = move |vcpu: usize| if pin == 0 { CpuSet::single(vcpu % pcpus) } else { CpuSet::first(pcpus) };
        let mut host = Host::new(pcpus, &domains, affinity);
        let vcpus = host.ran.len();
        for (who, by, ns) in steps {
            host.go_on(ns);
            let vcpu = (who % vcpus) as u32;
            match (who / vcpus) % 3 {
                2 => {
                    let to = (by % vcpus) as u32;
                    if host.scheduler.pcpus.iter().any(|pcpu| pcpu.current == vcpu)
                        && let Some(&kicks) = host.scheduler.yield_to(vcpu, to, host.now)
                    {
                        host.do_kicks(kicks);
                    }
                }
                _ if host.scheduler.is_runnable(vcpu) => host.block(vcpu),
                _ => host.wake(vcpu, by % pcpus),
            }
        }
        prop_assert!(host.longest_slack <= 2 * TICK, "idle for {} ns", host.longest_slack);
    }

    /// A domain never runs for longer than its quotas by more than what its pCPUs hold: a slice each, and what a tick comes
    /// late; and with enough to do it has its quota.
    #[test]
    fn caps_hold(pcpus in prop_oneof![Just(1usize), Just(4)], cap in 10u16..500, vcpus in 1usize..6, periods in 3u64..20,
        sleeps in 0u64..6_000_000) {
        let others = (weighing(256), if sleeps % 2 == 0 { 1 } else { 0 });
        let mut host = Host::new(pcpus, &[(Share { weight: 256, cap }, vcpus), others], anywhere);
        host.wake_all();
        let mut woken = 0;
        while host.now < periods * PERIOD_NS {
            if sleeps < 1_000_000 {
                host.go_on(PERIOD_NS);
                continue;
            }
            host.go_on(sleeps);
            woken += 1;
            let vcpu = (woken % vcpus) as u32;
            host.block(vcpu);
            host.go_on(sleeps / 4);
            host.wake(vcpu, 0);
        }
        let held = pcpus as u64 * (RUNTIME_SLICE_NS + TICK);
        let quota = u64::from(cap) * MS;
        let begun = host.now / PERIOD_NS + 1;
        prop_assert!(host.ran_by(0) <= begun * quota + held, "{} in {begun} periods of {quota}", host.ran_by(0));
        if sleeps < 1_000_000 && others.1 == 0 {
            let could = quota.min(vcpus.min(pcpus) as u64 * PERIOD_NS);
            prop_assert!(host.ran_by(0) + held >= periods * could, "{} of {}", host.ran_by(0), periods * could);
        }
    }
}
