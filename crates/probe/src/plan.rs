//! Which measurements a probe makes, in which order, and how their results become a profile.

use crate::batch::{Effort, NOISY_FOREIGN_SHARE, NOISY_SPREAD, price, rounded};
use crate::chase::{self, Arena, Point};
use crate::error::{ProbeError, Result};
use crate::machine::{self, CpuTimes, Root};
use crate::mapping::Pages;
use crate::memory::{self, Change, Company};
use crate::stamp::Stamps;
use crate::wake::{self, Channel, Scene, Setting, WakeTimes};
use crate::{Progress, affinity, clocks, process, transfer};
use muster_model::profile::{Platform, names};
use muster_model::{CpuSet, Distance, Price, PriceKind, Profile, Topology};

/// Pairs of CPUs between which cache-line transfers are measured at most.
const TRANSFER_PAIRS: usize = 64;

/// What every step needs.
pub struct Bench {
    stamps: Stamps,
    effort: Effort,
    allowed: CpuSet,
    topology: Topology,
    platform: Platform,
    /// Where measurements of one thread run: the last allowed CPU, since the first takes most interrupts.
    home: usize,
}

impl Bench {
    /// Finds out what the machine is.
    ///
    /// # Errors
    /// When its CPUs cannot be found out.
    pub fn new(effort: Effort) -> Result<Self> {
        let allowed = affinity::allowed()?;
        let topology = machine::topology(&Root::default(), &allowed)?;
        let allowed = allowed.intersection(&topology.all());
        let home = allowed.iter().last().ok_or_else(|| ProbeError::NotMeasurable("no CPU is allowed".into()))?;
        let platform = machine::platform(&Root::default(), home);
        Ok(Self { stamps: Stamps::new(&platform), effort, allowed, topology, platform, home })
    }

    /// The guest's own halt polling, nanoseconds; 0 where idle CPUs halt at once.
    fn guest_poll_ns(&self) -> u64 {
        self.platform.guest_halt_poll_ns.unwrap_or(0)
    }
}

/// What steps find.
#[derive(Default)]
pub struct Findings {
    prices: Vec<(String, Price)>,
    notes: Vec<String>,
    small: Vec<Point>,
    large: Vec<Point>,
}

impl Findings {
    /// Books batches under `name`.
    fn add(&mut self, name: String, batches_ns: &[f64], source: impl Into<String>) {
        match price(batches_ns, source) {
            Some(price) => self.prices.push((name, price)),
            None => self.notes.push(format!("{name}: not measured: the measurement was interrupted")),
        }
    }
}

type Measurement = dyn FnOnce(&Bench, &mut Findings) -> Result<()>;

/// One step of a probe.
pub struct Step {
    title: String,
    run: Box<Measurement>,
}

fn step(title: impl Into<String>, run: impl FnOnce(&Bench, &mut Findings) -> Result<()> + 'static) -> Step {
    Step { title: title.into(), run: Box::new(run) }
}

/// Every step, in groups that take at least some tenths of a second, so that foreign CPU time shows during each.
pub fn everything(bench: &Bench) -> Vec<Vec<Step>> {
    vec![
        wakes(bench),
        clock_reads(bench),
        kernel_services(),
        address_spaces(bench),
        vec![chase_step(Pages::Large), chase_step(Pages::Small), step("page walk", page_walk)],
        transfers(
            &transfer::pairs(&bench.topology, &bench.allowed, TRANSFER_PAIRS),
            // The spread is over the pairs as well, so few batches of each will do.
            Effort { batches: (bench.effort.batches / 3).max(3), ..Effort::QUICK },
        ),
    ]
}

/// What a hand-over costs: wake-ups through a futex, without the slow setting, and the lines that move.
pub fn handovers_only(bench: &Bench) -> Vec<Vec<Step>> {
    let is_wanted = |channel: Channel, setting: Setting| channel == Channel::Futex && setting != Setting::Parked;
    let mut steps = wake_steps(bench, is_wanted);
    let pairs = transfer::one_pair_per_distance(&bench.topology, &bench.allowed);
    steps.extend(transfers(&pairs, bench.effort));
    vec![steps]
}

fn wakes(bench: &Bench) -> Vec<Step> {
    wake_steps(bench, |_, _| true)
}

fn wake_steps(bench: &Bench, is_wanted: impl Fn(Channel, Setting) -> bool) -> Vec<Step> {
    let remote = remote_settings(bench.guest_poll_ns());
    let mut steps = Vec::new();
    for channel in Channel::ALL {
        if is_wanted(channel, Setting::SameCpu) {
            steps.push(wake_step(channel, Setting::SameCpu, (Distance::SameCpu, bench.home, bench.home)));
        }
        for pair in transfer::one_pair_per_distance(&bench.topology, &bench.allowed) {
            let wanted = remote.iter().filter(|&&setting| is_wanted(channel, setting));
            steps.extend(wanted.map(|&setting| wake_step(channel, setting, pair)));
        }
    }
    steps
}

/// The settings of another CPU that this guest can be in.
fn remote_settings(guest_poll_ns: u64) -> Vec<Setting> {
    let all = [Setting::Awake, Setting::Polling, Setting::Halted, Setting::Parked];
    all.into_iter().filter(|&setting| setting != Setting::Polling || guest_poll_ns > 0).collect()
}

fn wake_step(channel: Channel, setting: Setting, (distance, wakee, waker): (Distance, usize, usize)) -> Step {
    let title = format!("waking through {}, {} ({})", channel.name(), setting.name(), distance.name());
    step(title, move |bench, findings| {
        let guest_poll_ns = bench.guest_poll_ns();
        let scene = Scene { channel, setting, waker_cpu: waker, wakee_cpu: wakee, guest_poll_ns };
        let times = wake::measure(&scene, &bench.effort, bench.stamps)?;
        let source = wake_source(&scene, &times, bench.stamps);
        if setting == Setting::SameCpu {
            findings.add(names::wake_same_cpu(channel.name()), &times.latency_ns, source);
        } else {
            let (channel, setting) = (channel.name(), setting.name());
            findings.add(
                names::waker(channel, setting, distance),
                &times.call_ns,
                "time until the waking call returns",
            );
            findings.add(names::wake(channel, setting, distance), &times.latency_ns, source);
        }
        findings.notes.extend(doubt(&scene, &times));
        Ok(())
    })
}

fn wake_source(scene: &Scene, times: &WakeTimes, stamps: Stamps) -> String {
    let idle = times.idle.filter(|_| scene.setting != Setting::SameCpu).map_or(String::new(), |idle| {
        format!("; the target entered polling idle {} and halting idle {} times", idle.polling, idle.halting)
    });
    format!(
        "muster probe: CPU {} wakes CPU {}, {} of {} wake-ups counted, by {}{idle}",
        scene.waker_cpu,
        scene.wakee_cpu,
        times.counted,
        times.rounds,
        stamps.source()
    )
}

/// A note where the target CPU was not in the state that was wanted.
fn doubt(scene: &Scene, times: &WakeTimes) -> Option<String> {
    let idle = times.idle?;
    let halts_share = idle.halting as f64 / times.rounds.max(1) as f64;
    let (setting, channel) = (scene.setting.name(), scene.channel.name());
    match scene.setting {
        Setting::Halted | Setting::Parked if halts_share < 0.5 => Some(format!(
            "wake.{channel}.{setting}: the target CPU halted before only {:.0} % of the wake-ups",
            halts_share * 100.0
        )),
        Setting::Polling | Setting::Awake if halts_share > 0.2 => Some(format!(
            "wake.{channel}.{setting}: the target CPU halted all the same before {:.0} % of the wake-ups",
            halts_share * 100.0
        )),
        _ => None,
    }
}

fn clock_reads(bench: &Bench) -> Vec<Step> {
    let can_share = bench.allowed.len() > 1;
    let mut steps = Vec::new();
    for path in clocks::paths() {
        steps.push(step(format!("reading the clock: {path}"), move |bench, findings| {
            let batches = clocks::alone(path, bench.home, &bench.effort, bench.stamps)?;
            findings.add(names::clock(path, "alone"), &batches, clock_source(bench));
            Ok(())
        }));
        if can_share {
            steps.push(step(format!("reading the clock: {path}, all CPUs"), move |bench, findings| {
                let batches = clocks::together(path, &bench.allowed, &bench.effort, bench.stamps)?;
                let source = format!("{}, {} CPUs at once", clock_source(bench), bench.allowed.len());
                findings.add(names::clock(path, "all-cpus"), &batches, source);
                Ok(())
            }));
        }
    }
    steps
}

fn clock_source(bench: &Bench) -> String {
    format!("muster probe: clock source {}", bench.platform.clock_source)
}

fn kernel_services() -> Vec<Step> {
    type Measure = fn(usize, &Effort, Stamps) -> Result<Vec<f64>>;
    let single: [(&str, &str, Measure); 6] = [
        (names::SYSCALL, "getppid", process::system_call),
        (names::CONTEXT_SWITCH, "two threads yielding to each other, the call included", process::context_switch),
        ("thread.create", "starting a thread and joining it", process::thread),
        ("process.fork", "fork, exit, wait", process::fork),
        ("process.fork-exec", "fork, exec of /bin/true, wait", process::fork_exec),
        ("process.spawn", "posix_spawn of /bin/true, wait", process::spawn),
    ];
    let to_step = |(name, what, measure): (&'static str, &'static str, Measure)| {
        step(what, move |bench: &Bench, findings: &mut Findings| {
            findings.add(
                name.into(),
                &measure(bench.home, &bench.effort, bench.stamps)?,
                format!("muster probe: {what}"),
            );
            Ok(())
        })
    };
    single.into_iter().map(to_step).collect()
}

fn address_spaces(bench: &Bench) -> Vec<Step> {
    let mut steps = vec![step("mapping and unmapping", |bench, findings| {
        let batches = memory::map_unmap(bench.home, &bench.effort, bench.stamps)?;
        findings.add("memory.map-unmap".into(), &batches, "muster probe: mmap and munmap of a page nobody touches");
        Ok(())
    })];
    steps.extend([Pages::Small, Pages::Large].map(|pages| {
        step(format!("first touch of a page of {}", pages.name()), move |bench, findings| {
            let batches = memory::first_touch(pages, bench.home, &bench.effort, bench.stamps)?;
            findings.add(names::first_touch(pages.name()), &batches, "muster probe: one write to a fresh page");
            Ok(())
        })
    }));
    for change in Change::ALL {
        for others in company_sizes(bench.allowed.len()) {
            steps.push(change_step(change, Company::Threads, others));
            if others > 0 {
                steps.push(change_step(change, Company::Processes, others));
            }
        }
    }
    steps
}

/// How many others to measure with: none, powers of two, and as many as there are other CPUs.
fn company_sizes(cpus: usize) -> Vec<usize> {
    let most = cpus.saturating_sub(1);
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < most).collect();
    sizes.insert(0, 0);
    if most > 0 {
        sizes.push(most);
    }
    sizes
}

fn change_step(change: Change, company: Company, count: usize) -> Step {
    let (name, who) = match company {
        Company::Threads => (names::tlb_threads(change.name(), count), "threads"),
        Company::Processes => (names::tlb_processes(change.name(), count), "processes"),
    };
    step(format!("{} beside {count} {who}", change.name()), move |bench, findings| {
        let others: CpuSet = bench.allowed.iter().filter(|&cpu| cpu != bench.home).take(count).collect();
        let batches = memory::change(change, company, bench.home, &others, &bench.effort, bench.stamps)?;
        findings.add(name, &batches, format!("muster probe: {count} other {who} on CPUs of their own"));
        Ok(())
    })
}

fn chase_step(pages: Pages) -> Step {
    step(format!("pointer chase, {} pages", pages.name()), move |bench, findings| {
        let sizes = chase::sizes(bench.effort.chase_bytes, bench.platform.memory_bytes);
        let Some(&largest) = sizes.last() else {
            return Err(ProbeError::NotMeasurable("the machine has too little memory".into()));
        };
        let mut arena = Arena::new(largest, pages)?;
        for bytes in sizes {
            let batches = arena.chase(bytes, bench.home, &bench.effort, bench.stamps)?;
            let points = if arena.pages() == Pages::Small { &mut findings.small } else { &mut findings.large };
            points.extend(muster_stats::median(&batches).map(|ns| (bytes, ns)));
            findings.add(
                names::chase(pages.name(), bytes >> 10),
                &batches,
                "muster probe: random cycle of cache lines",
            );
        }
        Ok(())
    })
}

/// Derives cache levels and the page walk from the two chases.
fn page_walk(bench: &Bench, findings: &mut Findings) -> Result<()> {
    for (name, (bytes, ns)) in chase::levels(&findings.large, &bench.platform.caches) {
        let chase = names::chase(Pages::Large.name(), bytes >> 10);
        let source = format!("muster probe: {chase}");
        let spread_ns = findings.prices.iter().find(|(name, _)| *name == chase).and_then(|(_, price)| price.spread_ns);
        findings.prices.push((name.into(), derived(ns, spread_ns, source)));
    }
    match chase::walk(&findings.small, &findings.large) {
        Some(walk) => {
            let source = format!(
                "muster probe: chase with 4 KiB pages less chase with 2 MiB pages at the largest working set; without \
                 misses up to {} KiB",
                walk.reach_bytes >> 10
            );
            findings.prices.push((names::PAGE_WALK.into(), derived(walk.ns, None, source)));
            Ok(())
        }
        None => Err(ProbeError::NotMeasurable("small pages were no dearer than large ones, or one was missing".into())),
    }
}

fn derived(ns: f64, spread_ns: Option<f64>, source: String) -> Price {
    let noisy = spread_ns.is_some_and(|spread| spread > NOISY_SPREAD * ns);
    Price { ns: rounded(ns), spread_ns, kind: PriceKind::Measured, source, noisy }
}

fn transfers(pairs: &[(Distance, usize, usize)], effort: Effort) -> Vec<Step> {
    let distances: std::collections::BTreeSet<Distance> = pairs.iter().map(|pair| pair.0).collect();
    let to_step = |distance: Distance| {
        let pairs: Vec<_> = pairs.iter().copied().filter(|pair| pair.0 == distance).collect();
        step(format!("cache-line transfer ({})", distance.name()), move |bench, findings| {
            let mut batches = Vec::new();
            for &(_, a, b) in &pairs {
                batches.extend(transfer::transfer(a, b, &effort, bench.stamps)?);
            }
            let source = format!("muster probe: half a round trip, {} pairs of CPUs", pairs.len());
            findings.add(names::cache_transfer(distance), &batches, source);
            Ok(())
        })
    };
    distances.into_iter().map(to_step).collect()
}

/// Makes every step; a failed one becomes a note, and a group during which others used the machine is noisy.
pub fn carry_out(bench: &Bench, groups: Vec<Vec<Step>>, tell: &mut dyn FnMut(Progress)) -> Profile {
    let total = groups.iter().map(Vec::len).sum();
    let (mut done, mut all, mut worst) = (0, Findings::default(), 0.0f64);
    for group in groups {
        let before = CpuUse::now();
        let first = all.prices.len();
        for step in group {
            tell(Progress { done, total, now: &step.title });
            done += 1;
            if let Err(error) = (step.run)(bench, &mut all) {
                all.notes.push(format!("{}: not measured: {error}", step.title));
            }
        }
        let foreign = before.zip(CpuUse::now()).and_then(|(before, after)| after.foreign_share_since(&before));
        if let Some(share) = foreign.filter(|&share| share > NOISY_FOREIGN_SHARE) {
            all.prices[first..].iter_mut().for_each(|(_, price)| price.noisy = true);
            worst = worst.max(share);
        }
    }
    if worst > 0.0 {
        all.notes.push(format!("noisy machine: up to {:.0} % of its CPU time went to others meanwhile", worst * 100.0));
    }
    all.notes.extend(limits(bench));
    let profile = unpriced(bench.platform.clone(), bench.topology.clone());
    Profile { prices: all.prices.into_iter().collect(), notes: all.notes, ..profile }
}

/// What this process could not see, whatever it measured.
fn limits(bench: &Bench) -> Vec<String> {
    let mut notes = Vec::new();
    let (allowed, all) = (bench.allowed, bench.topology.all());
    if allowed.len() == 1 {
        notes.push(format!(
            "confined to CPU {allowed}: waking other CPUs, contended clocks, TLB shootdowns and cache-line transfers are \
             not measurable"
        ));
    } else if allowed != all {
        notes.push(format!("confined to CPUs {allowed} of {all}: prices hold between those"));
    }
    if bench.guest_poll_ns() > 0 {
        notes.push(format!(
            "idle CPUs of this guest poll up to {} us before they halt: `polling` is a wake-up inside that time, `halted` \
             one after it",
            bench.guest_poll_ns() / 1000
        ));
    }
    notes
}

/// A profile without prices.
pub fn unpriced(platform: Platform, topology: Topology) -> Profile {
    let kind = match platform.hypervisor.as_str() {
        "none" | "" => "bare-metal".to_owned(),
        hypervisor => hypervisor.to_owned(),
    };
    let cpus = topology.len();
    let description = format!("{kind} machine with {cpus} CPUs ({}), Linux {}", platform.cpu, platform.kernel);
    let name = format!("{kind}-{cpus}cpu");
    Profile { name, description, platform, topology, prices: Default::default(), notes: Vec::new() }
}

/// CPU time of the machine and of this process with its children.
#[derive(Clone, Copy)]
struct CpuUse {
    machine: CpuTimes,
    own_ns: u64,
}

impl CpuUse {
    fn now() -> Option<Self> {
        Some(Self { machine: CpuTimes::read(&Root::default())?, own_ns: own_cpu_ns() })
    }

    /// The share of all CPU time that others used or the host took away, 0 to 1; `None` when too little time passed for
    /// ticks of 10 ms to tell.
    fn foreign_share_since(&self, before: &Self) -> Option<f64> {
        let machine = self.machine.since(&before.machine);
        let all = machine.busy + machine.idle + machine.steal;
        let own_ticks = self.own_ns.saturating_sub(before.own_ns) / 10_000_000;
        let foreign = machine.busy.saturating_sub(own_ticks) + machine.steal;
        (all >= 40).then(|| foreign as f64 / all as f64)
    }
}

/// CPU time of this process and of its reaped children.
fn own_cpu_ns() -> u64 {
    let of = |who| {
        // SAFETY: a zeroed rusage is valid, and the call fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(who, &mut usage);
            usage
        };
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        ns(usage.ru_utime) + ns(usage.ru_stime)
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::IdleEntries;

    #[test]
    fn company_grows_by_powers_of_two_up_to_every_other_cpu() {
        assert_eq!(company_sizes(1), [0]);
        assert_eq!(company_sizes(2), [0, 1]);
        assert_eq!(company_sizes(4), [0, 1, 2, 3]);
        assert_eq!(company_sizes(48), [0, 1, 2, 4, 8, 16, 32, 47]);
    }

    #[test]
    fn a_guest_that_halts_at_once_has_no_polling_setting() {
        assert_eq!(remote_settings(0), [Setting::Awake, Setting::Halted, Setting::Parked]);
        assert_eq!(remote_settings(200_000).len(), 4);
    }

    #[test]
    fn a_target_in_another_state_than_wanted_is_said() {
        let scene = |setting| Scene { channel: Channel::Futex, setting, waker_cpu: 0, wakee_cpu: 1, guest_poll_ns: 0 };
        let times = |halting| {
            let idle = Some(IdleEntries { polling: 0, halting });
            WakeTimes { latency_ns: vec![], call_ns: vec![], counted: 100, rounds: 100, idle }
        };
        assert!(doubt(&scene(Setting::Halted), &times(100)).is_none());
        assert!(doubt(&scene(Setting::Halted), &times(40)).unwrap().contains("40 %"));
        assert!(doubt(&scene(Setting::Awake), &times(3)).is_none());
        assert!(doubt(&scene(Setting::Awake), &times(90)).unwrap().contains("90 %"));
        assert!(doubt(&scene(Setting::Halted), &WakeTimes { idle: None, ..times(0) }).is_none());
    }

    #[test]
    fn foreign_time_is_what_is_left_of_busy_and_steal() {
        let at = |busy, idle, steal, own_ns| CpuUse { machine: CpuTimes { busy, idle, steal }, own_ns };
        let share = |after: CpuUse| after.foreign_share_since(&at(0, 0, 0, 0));
        assert_eq!(share(at(50, 50, 0, 500_000_000)), Some(0.0));
        assert_eq!(share(at(50, 40, 10, 300_000_000)), Some(0.3));
        assert_eq!(share(at(5, 5, 0, 0)), None);
    }

    #[test]
    fn what_is_derived_from_a_noisy_chase_is_noisy() {
        assert!(derived(1.0, Some(0.5), String::new()).noisy);
        assert!(!derived(1.0, None, String::new()).noisy);
    }
}
