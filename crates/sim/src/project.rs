//! A recorded program on another number of vCPUs: simulated at home first, to see whether the recording reproduces what
//! was seen there, and then on the scaled-out machine, natively, in a VM, and with remedies.
//!
//! Weak scaling: the program is copied in proportion to the vCPUs, so that each thread's behaviour stays as measured.
//! The numbers are rates in a stretch of the run after its first milliseconds; they do not depend on when it ends.

use crate::engine::{NS, Ps};
use crate::machine::derive::{is_guest, simulatable};
use crate::machine::prices::Prices;
use crate::run::Window;
use crate::{SimError, Simulation};
use muster_model::profile::{PriceKind, names};
use muster_model::results::{Checked, HandoverCheck, HomeCheck, Projected, ProjectedRemedy, Projection, Range};
use muster_model::study::{Environment, Experiment, IdleKind};
use muster_model::workload::MAX_THREADS;
use muster_model::{Distance, ModelError, Profile, Workload};
use muster_policy::predict::HALT_COST;
use muster_policy::record::{Overheads, Recording, copies};

/// What was seen of the program where it was recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Home {
    /// vCPUs it could use.
    pub vcpus: u32,
    /// CPUs it kept busy.
    pub cpu_rate: f64,
    /// Halts per second of those vCPUs.
    pub halts_per_s: f64,
    /// How often a second its threads were switched in: the mean, the least and the most while it did the same; `None`
    /// where that was not counted.
    pub switches_per_s: Option<Range>,
    /// Whether idle vCPUs of the guest poll before they halt.
    pub polls: bool,
}

/// A home check that is off by more makes the projection worthless.
pub const ALLOWED_ERROR: f64 = 0.3;
/// The same for hand-overs: a program that does little but hand over does so as often as a wake-up allows, and the price
/// of one is known to this share. What the program varied by itself comes on top.
const HANDOVER_ERROR: f64 = HALT_COST.high - 1.0;
/// So many wake-ups give a mean worth having.
const ENOUGH_WAKES: u64 = 200;
/// A wake-up in a program costs at most so many times more or less than it costs the probe.
const FAR_OFF: f64 = 4.0;
/// How a price ends that was taken from the program.
const AS_MET: &str = ", as seen in the program";
/// Halts and switch-ins below this rate are the machine's own timers.
const FEW_HALTS: f64 = 500.0;
/// Time before the stretch that is looked at.
const WARM_UP: Ps = 5_000_000 * NS;
/// The stretch at home.
const HOME: Ps = 100_000_000 * NS;
/// The shortest and the longest stretch elsewhere; in between, so long that a run takes [`EVENTS`].
const STRETCH: (Ps, Ps) = (4_000_000 * NS, 100_000_000 * NS);
const EVENTS: f64 = 400e3;
/// Recorded seconds to simulate: more than any run gets through.
const SCALE: f64 = 1e3;

/// What the machine's simulation charges threads for waking and blocking.
///
/// # Errors
/// When the profile cannot be simulated.
pub fn overheads(profile: &Profile) -> Result<Overheads, ModelError> {
    Ok(Prices::new(&*simulatable(profile)?)?.overheads(is_guest(profile)))
}

fn wake_halted_ns(profile: &Profile) -> Option<f64> {
    Distance::ALL.iter().find_map(|&far| profile.price_ns(&names::wake("futex", "halted", far)))
}

/// The machine as the program met it: with wake-ups of halted vCPUs that took `mean_ns` from the waking until the thread
/// ran, `count` of which were seen. Its caches are colder than the probe's, and the host is as busy as it is.
pub fn as_met(profile: &Profile, idle_wakes: Option<(u64, f64)>) -> Profile {
    let mut met = profile.clone();
    let halted = wake_halted_ns(profile);
    let same_cpu = profile.price_ns(&names::wake_same_cpu("futex"));
    let seen = idle_wakes.filter(|(count, _)| *count >= ENOUGH_WAKES);
    let Some(((halted, same_cpu), (_, mean_ns))) = halted.zip(same_cpu).zip(seen) else { return met };
    // The way into the waking call and out of the woken thread is half of a wake-up on one vCPU.
    let scale = ((mean_ns + same_cpu / 2.0) / halted).clamp(1.0 / FAR_OFF, FAR_OFF);
    let remote = |name: &str| name.starts_with("wake") && !name.ends_with("same-cpu");
    for (_, price) in met.prices.iter_mut().filter(|(name, _)| remote(name)) {
        price.ns *= scale;
        price.kind = PriceKind::Derived;
        price.source = format!("{}; x {scale:.2}{AS_MET}", price.source);
    }
    met.notes.push(format!("waking a halted vCPU takes {:.1} us{AS_MET}", scale * halted / 1e3));
    met
}

/// The recording on `vcpus` vCPUs of the machine `profile`.
///
/// # Errors
/// When the machine cannot be simulated or scaled out so far, the copies have too many threads, or the recording
/// deadlocks.
pub fn project(
    recording: &Recording,
    profile: &Profile,
    home: &Home,
    vcpus: u32,
    seed: u64,
) -> Result<Projection, SimError> {
    let profile = &*simulatable(profile)?;
    let work = work(recording, 1);
    let at_home = Stage { profile, workload: &recording.workload, work_ns: &work, seed, stretch: HOME };
    let environment = if is_guest(profile) { Environment::Virtual } else { Environment::Native };
    let idle = if home.polls { IdleKind::Haltpoll } else { IdleKind::Halt };
    let seen_again = at_home.run(environment, home.vcpus, idle)?;
    let times = (f64::from(vcpus) / f64::from(home.vcpus.max(1))).round().max(1.0) as u32;
    let workload = copies(&recording.workload, times).ok_or_else(|| {
        let found = format!("{times} copies of {} threads", threads(&recording.workload));
        ModelError::new("--project", found, format!("at most {MAX_THREADS} threads in all"))
    })?;
    let home = check(home, &seen_again, wake_halted_ns(profile));
    let events_per_ps = seen_again.events as f64 / (WARM_UP + HOME) as f64 * f64::from(times);
    let stretch = ((EVENTS / events_per_ps.max(1e-12)) as Ps).clamp(STRETCH.0, STRETCH.1);
    let work = self::work(recording, times);
    let there = Stage { profile, workload: &workload, work_ns: &work, seed, stretch };
    let found = home.passes().then(|| there.project(vcpus, idle)).transpose()?;
    let mut assumptions = if found.is_some() { assumptions(profile, times, vcpus) } else { Vec::new() };
    assumptions.extend(recording.notes.iter().cloned());
    Ok(Projection { vcpus, copies: times, threads: threads(&workload), seed, assumptions, home, found })
}

/// By thread of so many copies, what a turn of its loop is worth: the CPU time it took when it was seen.
fn work(recording: &Recording, times: u32) -> Vec<f64> {
    let groups = recording.workload.groups.iter().zip(&recording.turn_cpu_ns);
    let once: Vec<f64> =
        groups.flat_map(|(group, &ns)| std::iter::repeat_n(ns, group.count.resolve(1) as usize)).collect();
    (0..times).flat_map(|_| once.iter().copied()).collect()
}

fn threads(workload: &Workload) -> u32 {
    workload.groups.iter().map(|group| group.count.resolve(1)).sum()
}

fn check(home: &Home, simulated: &Window, wake_ns: Option<f64>) -> HomeCheck {
    let cpu_rate = Checked { seen: home.cpu_rate, simulated: simulated.cpu_rate() };
    let halts_per_s = Checked { seen: home.halts_per_s, simulated: simulated.per_second(simulated.idle_entries) };
    let factor = |checked: &Checked, floor: f64| {
        let (a, b) = (checked.seen.max(floor), checked.simulated.max(floor));
        (a / b).max(b / a) - 1.0
    };
    let error = factor(&cpu_rate, 0.01).max(factor(&halts_per_s, FEW_HALTS));
    // Fewer would not change the program's CPU time by more than is allowed, if each woke a halted vCPU.
    let few = wake_ns.map_or(0.0, |ns| HANDOVER_ERROR * home.cpu_rate * 1e9 / ns).max(FEW_HALTS);
    let handovers = home.switches_per_s.map(|seen| handovers(seen, simulated.per_second(simulated.switches), few));
    HomeCheck { vcpus: home.vcpus, cpu_rate, halts_per_s, error, allowed: ALLOWED_ERROR, handovers }
}

/// Work is done hand-over by hand-over: a recording that makes another number of them does another amount of work in each,
/// and what a remedy gives back is off as much.
fn handovers(seen_per_s: Range, simulated_per_s: f64, few_per_s: f64) -> HandoverCheck {
    let floor = |rate: f64| rate.max(few_per_s);
    let simulated = floor(simulated_per_s);
    let error = (simulated / floor(seen_per_s.high)).max(floor(seen_per_s.low) / simulated).max(1.0) - 1.0;
    HandoverCheck { seen_per_s, simulated_per_s, error, allowed: HANDOVER_ERROR }
}

fn assumptions(profile: &Profile, times: u32, vcpus: u32) -> Vec<String> {
    let program = match times {
        1 => "the program as it is, with the threads it has".to_owned(),
        _ => format!(
            "weak scaling: {times} copies of the recorded threads, each with as much work as here; locks that more threads would contend for are not in it"
        ),
    };
    let cpus = profile.topology.all();
    let llcs = cpus.iter().filter_map(|cpu| profile.topology.cpu(cpu)).map(|cpu| cpu.llc);
    let domains = llcs.collect::<std::collections::BTreeSet<_>>().len();
    let machine = match domains {
        1 => format!(
            "all {vcpus} vCPUs share one last-level cache, as the ones measured here do, each on a core of its own"
        ),
        _ => "cache domains and sockets of the size found here, each vCPU on a core of its own".to_owned(),
    };
    let hardware =
        "the machine without a hypervisor: what its hardware takes for an interrupt is assumed, not measured";
    let met = profile.notes.iter().filter(|note| note.ends_with(AS_MET)).cloned();
    [program, machine, hardware.to_owned()].into_iter().chain(met).collect()
}

/// A program on a machine, ready for several runs.
struct Stage<'a> {
    profile: &'a Profile,
    workload: &'a Workload,
    /// By thread, what a turn of its loop is worth.
    work_ns: &'a [f64],
    seed: u64,
    stretch: Ps,
}

impl Stage<'_> {
    fn run(&self, environment: Environment, cores: u32, idle: IdleKind) -> Result<Window, SimError> {
        let experiment = Experiment {
            scale_out: true,
            idle,
            seed: self.seed,
            scale: SCALE,
            limit_s: SCALE,
            ..Experiment::new(environment, cores)
        };
        Simulation::new(&experiment, self.profile, self.workload, None)?.window(WARM_UP, WARM_UP + self.stretch)
    }

    fn project(&self, vcpus: u32, idle: IdleKind) -> Result<Projected, SimError> {
        let native = self.run(Environment::Native, vcpus, IdleKind::Halt)?;
        let plain = self.run(Environment::Virtual, vcpus, idle)?;
        let mut remedies = vec![self.consolidated(vcpus, idle, &plain)?];
        if idle == IdleKind::Halt {
            let polling = self.run(Environment::Virtual, vcpus, IdleKind::Haltpoll)?;
            remedies.push(self.gain("poll", vcpus, &polling, &plain));
        }
        let core_time = plain.length_ps as f64 * f64::from(vcpus);
        Ok(Projected {
            slowdown: self.speed(&native) / self.speed(&plain),
            idle_transitions_per_s: plain.per_second(plain.idle_entries),
            waking_share: plain.waking_ps as f64 / core_time.max(1.0),
            remedies,
        })
    }

    /// On the best of N/2, N/4 ... 1 vCPUs.
    fn consolidated(&self, vcpus: u32, idle: IdleKind, plain: &Window) -> Result<ProjectedRemedy, SimError> {
        let mut best = self.gain("consolidate", vcpus, plain, plain);
        let mut fewer = vcpus / 2;
        while fewer > 0 {
            let run = self.run(Environment::Virtual, fewer, idle)?;
            let on_fewer = self.gain("consolidate", fewer, &run, plain);
            // Once the work does not fit any more, still fewer vCPUs cannot help.
            let is_crowded = on_fewer.speed < 0.6 * best.speed;
            if on_fewer.speed > best.speed {
                best = on_fewer;
            }
            fewer = if is_crowded { 0 } else { fewer / 2 };
        }
        Ok(best)
    }

    fn gain(&self, remedy: &str, vcpus: u32, with: &Window, without: &Window) -> ProjectedRemedy {
        let speed = self.speed(with) / self.speed(without);
        let burnt = |window: &Window| (window.cpu_ps + window.polled_ps) as f64 / window.length_ps.max(1) as f64;
        let cpu_per_work = burnt(with) / burnt(without).max(1e-12) / speed.max(1e-12);
        ProjectedRemedy { remedy: remedy.to_owned(), vcpus, speed, cpu_per_work }
    }

    /// The program's progress per time, never 0: turns of the threads' loops, weighed by what they were worth at home.
    fn speed(&self, window: &Window) -> f64 {
        let work_ns: f64 = window.turns.iter().zip(self.work_ns).map(|(&turns, ns)| turns as f64 * ns).sum();
        (work_ns / (window.length_ps.max(1) as f64 / 1e3)).max(1e-12)
    }
}

impl Window {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e12 / self.length_ps.max(1) as f64
    }

    /// CPUs that the program's threads keep busy.
    fn cpu_rate(&self) -> f64 {
        self.cpu_ps as f64 / self.length_ps.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::{ThreadFacts, ThreadId, WakePair};
    use muster_policy::record::{Seen, Stretch, record};

    fn machine() -> Profile {
        let text = include_str!("../../../machines/kvm-guest-2vcpu.toml");
        Profile::from_toml(text, "kvm-guest-2vcpu").unwrap()
    }

    /// A pair that runs `work_ns` in each hop and halts a vCPU with it, as it would be seen on the machine.
    fn pair(work_ns: f64) -> (Recording, Home) {
        let price = machine().price_ns("wake.futex.halted.same-llc").unwrap();
        let overheads = overheads(&machine()).unwrap();
        let hop_ns = work_ns + price;
        let per_s = 1e9 / hop_ns;
        let cpu = (work_ns + overheads.wake_halted_ns + overheads.block_ns) / hop_ns;
        let thread = |id| ThreadFacts {
            id: ThreadId(id),
            cpu_ns: (cpu / 2.0 * 1e9) as u64,
            waiting_ns: 0,
            switches: (per_s / 2.0) as u64,
        };
        let wakes = |waker, wakee| WakePair { waker: ThreadId(waker), wakee: ThreadId(wakee), count: per_s as u64 / 2 };
        let main = Stretch {
            wall_ns: 1_000_000_000,
            cpu_ns: (cpu * 1e9) as u64,
            user_ns: (0.3 * cpu * 1e9) as u64,
            halts: per_s as u64,
            looks: (100, 0),
            threads: vec![thread(1), thread(2)],
        };
        let pairs = [wakes(1, 2), wakes(2, 1)];
        let seen = Seen { name: "pair", main: &main, share: 1.0, wakes: Some((&pairs, 1_000_000_000)) };
        let switches_per_s = Some(Range { low: 0.98 * per_s, value: per_s, high: 1.02 * per_s });
        let home = Home { vcpus: 2, cpu_rate: cpu, halts_per_s: per_s, switches_per_s, polls: false };
        (record(&seen, &overheads).unwrap(), home)
    }

    fn on(vcpus: u32) -> Projection {
        let (recording, home) = pair(4_000.0);
        project(&recording, &machine(), &home, vcpus, 1).unwrap()
    }

    #[test]
    fn a_pair_behaves_at_home_as_it_was_seen() {
        let projection = on(2);
        assert!(projection.home.error < 0.1, "{:?}", projection.home);
        let found = projection.found.unwrap();
        assert_eq!((projection.copies, projection.threads), (1, 2));
        let [consolidated, polling] = &found.remedies[..] else { panic!("{found:?}") };
        assert_eq!((consolidated.vcpus, polling.vcpus), (1, 2));
        assert!(found.slowdown > 1.5 && consolidated.speed > 3.0 && polling.speed > 1.5, "{found:?}");
        assert!(consolidated.cpu_per_work < 0.5, "{found:?}");
    }

    #[test]
    fn copies_lose_as_much_as_one_and_halt_as_often_each() {
        let (two, eight) = (on(2).found.unwrap(), on(8).found.unwrap());
        let per_pair = eight.idle_transitions_per_s / 4.0 / two.idle_transitions_per_s;
        assert!((0.8..1.25).contains(&per_pair), "{two:?} {eight:?}");
        assert!((0.7..1.4).contains(&(eight.slowdown / two.slowdown)), "{two:?} {eight:?}");
        assert_eq!(on(8), on(8), "equal inputs give equal numbers");
    }

    #[test]
    fn a_recording_that_does_not_reproduce_is_not_projected() {
        let (recording, home) = pair(4_000.0);
        for wrong in [
            Home { halts_per_s: 3.0 * home.halts_per_s, ..home },
            Home { cpu_rate: home.cpu_rate / 2.0, ..home },
            Home { halts_per_s: 0.0, ..home },
        ] {
            let projection = project(&recording, &machine(), &wrong, 16, 1).unwrap();
            assert!(projection.found.is_none() && projection.home.error > 0.3, "{:?}", projection.home);
        }
    }

    #[test]
    fn a_recording_that_hands_over_too_often_or_too_rarely_is_not_projected() {
        let (recording, home) = pair(4_000.0);
        let of = |factor: f64, spread: f64| {
            let seen = home.switches_per_s.unwrap();
            let value = factor * seen.value;
            let range = Range { low: value / spread, value, high: value * spread };
            project(&recording, &machine(), &Home { switches_per_s: Some(range), ..home }, 16, 1).unwrap()
        };
        for factor in [0.5, 2.0] {
            let projection = of(factor, 1.0);
            assert!(projection.found.is_none() && !projection.home.passes(), "{:?}", projection.home);
            assert!(projection.home.error < 0.1, "CPU rate and halts are right: {:?}", projection.home);
            assert!(of(factor, 2.0).found.is_some(), "a program that varies so much by itself may be");
        }
        let uncounted = Home { switches_per_s: None, ..home };
        assert!(project(&recording, &machine(), &uncounted, 16, 1).unwrap().found.is_some());
        // pigz, and memcached with one client: seen and simulated at home.
        let pigz = handovers(Range { low: 4_358.0, value: 4_611.0, high: 5_100.0 }, 1_935.0, 0.2 * 1.98 / 22.5e-6);
        assert!(pigz.passes(), "they take next to none of its time: {pigz:?}");
        let memcached = Range { low: 29_236.0, value: 30_752.0, high: 32_916.0 };
        assert!(!handovers(memcached, 55_760.0, 0.2 * 0.73 / 22.5e-6).passes());
    }

    #[test]
    fn a_program_brings_its_own_price_of_waking() {
        let halted = |profile: &Profile| profile.price_ns("wake.futex.halted.same-llc").unwrap();
        let same_cpu = machine().price_ns("wake.futex.same-cpu").unwrap();
        let met = as_met(&machine(), Some((1_000, 40_000.0)));
        assert!((halted(&met) - 40_000.0 - same_cpu / 2.0).abs() < 1.0);
        assert_eq!(met.price_ns("wake.futex.same-cpu"), Some(same_cpu));
        let ratio = |name: &str| met.price_ns(name).unwrap() / machine().price_ns(name).unwrap();
        assert!((ratio("waker.futex.halted.same-llc") - halted(&met) / halted(&machine())).abs() < 1e-9);
        for unsure in [None, Some((10, 40_000.0))] {
            assert_eq!(as_met(&machine(), unsure), machine());
        }
        assert_eq!(halted(&as_met(&machine(), Some((1_000, 1e9)))), 4.0 * halted(&machine()));
    }

    #[test]
    fn what_is_too_large_or_not_priced_is_refused() {
        let (recording, home) = pair(4_000.0);
        let many = Recording { workload: copies(&recording.workload, 10).unwrap(), ..recording.clone() };
        let error = project(&many, &machine(), &home, 1024, 1).unwrap_err().to_string();
        assert!(error.contains("at most 4096 threads"), "{error}");
        let mut unpriced = machine();
        unpriced.prices.clear();
        assert!(project(&recording, &unpriced, &home, 16, 1).unwrap_err().to_string().contains("wake.futex"));
    }
}
