//! A measured machine profile made simulatable: the simulator's prices, one a mechanism, from what `muster probe`
//! measures, one a wake-up. Pure.
//!
//! The three settings of a wake-up (Gleaner, Table 1) and the part of it that the waker pays are equations between the
//! simulator's mechanisms, written down as the simulated world walks through them:
//!
//! ```text
//! call  = syscall + futex-wake + wake-up
//! tail  = context-switch + return-from-wait
//! A     = call + syscall + block + tail
//! waker = call + exit + ipi-emulation + wake-vcpu + entry                                     (B: without wake-vcpu)
//! B     = call + exit + ipi-emulation + ipi-delivery
//!       + kick-delivery + exit + host-interrupt + inject + entry + interrupt + (exit + eoi + entry) + wake-lines + tail
//! C     = call + exit + ipi-emulation + wake-vcpu + ipi-delivery + c1-exit + host-interrupt + host-idle-exit
//!       + schedule-in + unblock + inject + entry + interrupt + (exit + eoi + entry)
//!       + idle-exit + (exit + timer-emulation + entry) + wake-lines + tail
//! ```
//!
//! There are more mechanisms than equations. What the hardware does without a hypervisor is assumed, as on the machine
//! of the paper (`machines/gleaner-r720.toml`, the *pattern*); it takes at most half of what a remote wake-up adds. What
//! is left of each equation is split in the pattern's proportions; the mechanism that only one equation knows
//! (ipi-emulation, kick-delivery, schedule-in and its neighbours) takes the rest, so that A, B and C come out as measured.

use muster_model::profile::names;
use muster_model::{Distance, ModelError, Price, PriceKind, Profile};
use std::borrow::Cow;

/// The machine whose assumptions stand in for what a probe cannot see.
const PATTERN: &str = include_str!("../../../../machines/gleaner-r720.toml");
/// The CPU time that a halt costs the guest at least, in wake-up latencies: the lower end of what was measured over the
/// programs of benches/live (muster-policy, `predict`). What the probe does not see of it is the waker's: the woken
/// thread is on its way meanwhile, so that no setting holds it.
const HALT_COST: f64 = 0.8;
const AFTER_SEND: &str =
    "0.8 of wake.futex.halted, the CPU time that a halt costs at least, less what waking and blocking take";
/// Distances between cores, the most usual one first.
const NEAREST: [Distance; 4] = [Distance::SameLlc, Distance::OtherLlc, Distance::OtherNode, Distance::SmtSibling];
/// The part of what a remote wake-up adds that may be the hardware's own.
const HARDWARE_SHARE: f64 = 0.5;
/// The part of what virtualization adds to a remote wake-up that the waker may pay.
const WAKER_SHARE: f64 = 0.9;
/// The waker's part where it was not measured: as on the pattern (Table 1, B).
const USUAL_WAKER_SHARE: f64 = 0.4;

/// The profile itself if it holds prices of the simulator's, else with all of them, derived.
///
/// # Errors
/// When it lacks a wake-up that everything rests on.
pub fn simulatable(profile: &Profile) -> Result<Cow<'_, Profile>, ModelError> {
    if profile.prices.keys().any(|name| name.starts_with("sim.")) {
        return Ok(Cow::Borrowed(profile));
    }
    let measured = Measured::of(profile)?;
    let mut derived = Derived { pattern: pattern(), profile: profile.clone() };
    derived.take_over_pattern();
    derived.kernel(&measured);
    derived.distances(&measured);
    if measured.is_guest {
        derived.guest(&measured)
    } else {
        derived.bare_metal(&measured)
    }
    Ok(Cow::Owned(derived.profile))
}

/// Whether the profile is that of a virtual machine.
pub fn is_guest(profile: &Profile) -> bool {
    !matches!(profile.platform.hypervisor.as_str(), "" | "none")
}

fn pattern() -> Profile {
    Profile::from_toml(PATTERN, "machines/gleaner-r720.toml").expect("a test reads every shipped profile")
}

/// What the derivation starts from, in nanoseconds.
struct Measured {
    is_guest: bool,
    nearest: Distance,
    /// Settings A, B and C.
    same_cpu: f64,
    awake: f64,
    halted: f64,
    /// The waker's part in B and C.
    waker_awake: Option<f64>,
    waker_halted: Option<f64>,
    syscall: Option<f64>,
    switch: Option<f64>,
    /// By distance, what B costs more than at the nearest one, and what moving a line costs.
    farther: Vec<(Distance, f64)>,
    lines: Vec<(Distance, f64)>,
    clock: Option<f64>,
    fork: Option<f64>,
    first_touch: Option<f64>,
    map_unmap: Option<f64>,
}

impl Measured {
    fn of(profile: &Profile) -> Result<Self, ModelError> {
        let price = |name: &str| profile.price_ns(name);
        let remote = |setting: &str, far: Distance| price(&names::wake("futex", setting, far));
        let lacking = |name: &str| {
            let allowed =
                "prices of the simulator (sim.*), or the futex wake-ups that `muster probe` measures on 2 or more CPUs";
            ModelError::new(format!("profile `{}`", profile.name), format!("no price `{name}`"), allowed)
        };
        let halted_at = |far: Distance| remote("halted", far).or_else(|| remote("parked", far));
        let both = |far: Distance| Some((far, remote("awake", far)?, halted_at(far)?));
        let (nearest, awake, halted) =
            NEAREST.iter().find_map(|&far| both(far)).ok_or_else(|| lacking("wake.futex.awake and .halted"))?;
        let waker = |setting: &str| price(&names::waker("futex", setting, nearest));
        let at_distances = |of: &dyn Fn(Distance) -> Option<f64>| -> Vec<(Distance, f64)> {
            NEAREST.iter().filter_map(|&far| Some((far, of(far)?))).collect()
        };
        let syscall = price(names::SYSCALL);
        Ok(Self {
            is_guest: is_guest(profile),
            nearest,
            same_cpu: price(&names::wake_same_cpu("futex")).ok_or_else(|| lacking("wake.futex.same-cpu"))?,
            awake,
            halted,
            waker_awake: waker("awake"),
            waker_halted: waker("halted"),
            syscall,
            switch: price(names::CONTEXT_SWITCH).map(|both| (both - syscall.unwrap_or(0.0)).max(0.0)),
            farther: at_distances(&|far| Some(remote("awake", far)? - awake)),
            lines: at_distances(&|far| price(&names::cache_transfer(far))),
            clock: price(&names::clock("monotonic", "alone")),
            fork: price("process.fork"),
            first_touch: price(&names::first_touch("4k")),
            map_unmap: price("memory.map-unmap"),
        })
    }
}

/// The profile in the making.
struct Derived {
    pattern: Profile,
    profile: Profile,
}

impl Derived {
    fn pattern(&self, name: &str) -> f64 {
        self.pattern.price_ns(&format!("sim.{name}")).expect("the pattern has every price of the simulator")
    }

    fn now(&self, name: &str) -> f64 {
        self.profile.price_ns(&format!("sim.{name}")).expect("everything began as in the pattern")
    }

    fn sum(&self, names: &[&str]) -> f64 {
        names.iter().map(|name| self.now(name)).sum()
    }

    fn set(&mut self, name: &str, ns: f64, source: &str) {
        let price = Price {
            ns: (ns.max(0.0) * 10.0).round() / 10.0,
            spread_ns: None,
            kind: PriceKind::Derived,
            source: source.to_owned(),
            noisy: false,
        };
        self.profile.prices.insert(format!("sim.{name}"), price);
    }

    /// Splits `ns` in the pattern's proportions.
    fn split(&mut self, ns: f64, names: &[&str], source: &str) {
        let whole: f64 = names.iter().map(|name| self.pattern(name)).sum();
        for name in names {
            let share = self.pattern(name) / whole;
            self.set(name, ns * share, source);
        }
    }

    fn take_over_pattern(&mut self) {
        for (name, price) in self.pattern.prices.iter().filter(|(name, _)| name.starts_with("sim.")) {
            let source = format!("as on {}: {}", self.pattern.name, price.source);
            self.profile.prices.insert(name.clone(), Price { kind: PriceKind::Assumed, source, ..price.clone() });
        }
    }

    /// The kernel's paths, which a VM does not change: setting A, and what was measured by itself.
    fn kernel(&mut self, measured: &Measured) {
        self.set("vmm.guest-switch", 0.0, "measured in the guest: part of sim.kernel.context-switch");
        let a = measured.same_cpu;
        let known = 2.0 * measured.syscall.unwrap_or(0.0) + measured.switch.unwrap_or(0.0);
        let rest = ["kernel.futex-wake", "kernel.wake-up", "kernel.block", "kernel.return-from-wait"];
        match (measured.syscall, measured.switch) {
            (Some(syscall), Some(switch)) if known < 0.8 * a => {
                self.set("kernel.syscall", syscall, "syscall");
                self.set("kernel.context-switch", switch, "context-switch less syscall");
                self.split(
                    a - known,
                    &rest,
                    "wake.futex.same-cpu less the calls and the switch, split as on the pattern",
                );
            }
            _ => {
                let whole = self.sum(&rest) + self.sum(&["kernel.syscall", "kernel.syscall", "kernel.context-switch"]);
                for name in rest.iter().chain(&["kernel.syscall", "kernel.context-switch"]) {
                    self.set(name, a * self.pattern(name) / whole, "wake.futex.same-cpu, split as on the pattern");
                }
            }
        }
        if let Some(fork) = measured.fork {
            let source = "process.fork less a call; the child's end and the wait for it are in it";
            self.set("kernel.fork", fork - self.now("kernel.syscall"), source);
        }
        if let Some(clock) = measured.clock {
            self.set("kernel.clock-read", clock, "clock.monotonic.alone");
        }
        if let Some(first_touch) = measured.first_touch {
            self.set("kernel.page-fault", first_touch, "memory.first-touch.4k");
        }
        if let Some(both) = measured.map_unmap {
            let work = both - 2.0 * self.now("kernel.syscall");
            self.split(
                work,
                &["kernel.map", "kernel.unmap", "kernel.unmap-page"],
                "memory.map-unmap less two calls, split as on the pattern",
            );
        }
    }

    /// Lines and caches: as many lines as on the pattern, at the price that was measured.
    fn distances(&mut self, measured: &Measured) {
        for &(far, line) in &measured.lines {
            let far = far.name();
            for (name, source) in
                [("wake-lines", "lines that a waker writes"), ("refill", "lines that a moved thread touches")]
            {
                let count = self.pattern(&format!("cpu.{name}.same-llc")) / self.pattern("cpu.cache-line.same-llc");
                self.set(
                    &format!("cpu.{name}.{far}"),
                    count * line,
                    &format!("cache-transfer.{far} x {count:.0} {source}"),
                );
            }
            self.set(&format!("cpu.cache-line.{far}"), line, &format!("cache-transfer.{far}"));
        }
    }

    /// What setting B costs more over a longer distance is the lines'.
    fn farther(&mut self, measured: &Measured) {
        let near = self.now(&format!("cpu.wake-lines.{}", measured.nearest.name()));
        for &(far, more) in measured.farther.iter().filter(|(far, _)| *far != measured.nearest) {
            let name = format!("cpu.wake-lines.{}", far.name());
            self.set(&name, near + more, "what wake.futex.awake costs more over this distance");
        }
    }

    /// Scales what the hardware does by itself, so that it takes at most its share of `room`.
    fn hardware(&mut self, names: &[&str], room: f64, source: &str) {
        let scale = room.max(0.0) / self.sum(names);
        if scale < 1.0 {
            names.iter().for_each(|name| self.set(name, scale * self.now(name), source));
        }
    }

    /// A guest: the equations of the head, from the inside out.
    fn guest(&mut self, measured: &Measured) {
        let lines = format!("cpu.wake-lines.{}", measured.nearest.name());
        let call = self.sum(&["kernel.syscall", "kernel.futex-wake", "kernel.wake-up"]);
        let tail = self.sum(&["kernel.context-switch", "kernel.return-from-wait"]);
        let [room_b, room_c] = [measured.awake, measured.halted].map(|ns| (ns - call - tail).max(0.0));
        let arrival = ["cpu.ipi-delivery", "kernel.interrupt", lines.as_str()];
        let at_most = "as on the pattern, but at most half of what a remote wake-up adds";
        self.hardware(&arrival, HARDWARE_SHARE * room_b.min(0.6 * room_c), at_most);
        self.hardware(&["cpu.c1-exit", "kernel.idle-exit"], HARDWARE_SHARE * 0.4 * room_c, at_most);
        self.farther(measured);
        // What virtualization adds to B and C.
        let b = room_b - self.sum(&arrival);
        let c = room_c - self.sum(&arrival) - self.sum(&["cpu.c1-exit", "kernel.idle-exit"]);
        let most = WAKER_SHARE * b.min(c);
        let wakers = [measured.waker_awake, measured.waker_halted].map(|waker| Some((waker? - call).max(0.0)));
        let send = wakers.iter().flatten().copied().reduce(f64::min).unwrap_or(USUAL_WAKER_SHARE * b.min(c)).min(most);
        let wake_vcpu = match wakers {
            [Some(awake), Some(halted)] => (halted - awake).max(0.0).min(WAKER_SHARE * (c - send)),
            _ => 0.0,
        };
        self.exits(send, b - send, c - send - wake_vcpu);
        self.set("vmm.wake-vcpu", wake_vcpu, "waker.futex.halted less waker.futex.awake");
        let block = self.sum(&["kernel.syscall", "kernel.block", "kernel.return-from-wait", lines.as_str()]);
        let after = HALT_COST * measured.halted - (call + send + wake_vcpu) - block;
        self.set("vmm.after-send", after, AFTER_SEND);
    }

    /// One scale for all exits, the largest that none of the three equations forbids; each equation's own mechanism
    /// takes what is left of it. `send` is the waker's part; `b` and `c` are the receiver's, the waker's entry included.
    fn exits(&mut self, send: f64, b: f64, c: f64) {
        let round = ["vmm.exit", "vmm.entry"];
        let sent = self.sum(&round) + self.now("vmm.ipi-emulation");
        let entered = self.sum(&["vmm.host-interrupt", "vmm.inject", "vmm.eoi"]) + self.sum(&round);
        let in_b = entered + self.now("vmm.exit");
        let switched = ["vmm.host-idle-exit", "vmm.schedule-in", "vmm.unblock"];
        let in_c = entered + self.now("vmm.timer-emulation") + self.sum(&round);
        let scale = (send / sent).min(b / in_b).min(c / (in_c + self.sum(&switched))).max(0.0);
        let source = "waker.* and wake.futex.*: the largest share of all three settings, split as on the pattern";
        for name in ["vmm.host-interrupt", "vmm.inject", "vmm.eoi", "vmm.timer-emulation"].iter().chain(&round) {
            self.set(name, scale * self.pattern(name), source);
        }
        let exit_and_entry = self.sum(&round);
        self.set("vmm.ipi-emulation", send - exit_and_entry, "waker.futex.* less the call, an exit and an entry");
        self.set("vmm.kick-delivery", b - scale * in_b, "wake.futex.awake less everything else in it");
        let rest = c - scale * in_c;
        self.split(rest, &switched, "wake.futex.halted less everything else in it, split as on the pattern");
        let suspend = self.pattern("vmm.suspend") * self.now("vmm.schedule-in") / self.pattern("vmm.schedule-in");
        self.set("vmm.suspend", suspend, "to sim.vmm.schedule-in as on the pattern");
    }

    /// No hypervisor: B and C are the hardware's and the kernel's own. Its VMM stays that of the pattern.
    fn bare_metal(&mut self, measured: &Measured) {
        self.farther(measured);
        let lines = format!("cpu.wake-lines.{}", measured.nearest.name());
        let call = self.sum(&["kernel.syscall", "kernel.futex-wake", "kernel.wake-up", lines.as_str()]);
        let tail = self.sum(&["kernel.context-switch", "kernel.return-from-wait"]);
        let b = (measured.awake - call - tail).max(0.0);
        self.split(
            b,
            &["cpu.ipi-send", "cpu.ipi-delivery", "kernel.interrupt"],
            "wake.futex.awake less setting A's path, split as on the pattern",
        );
        let c = measured.halted - measured.awake;
        self.split(
            c,
            &["cpu.c1-exit", "kernel.idle-exit"],
            "wake.futex.halted less wake.futex.awake, split as on the pattern",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simulation;
    use crate::machine::prices::Prices;
    use muster_model::Workload;
    use muster_model::study::{Environment, Experiment, RemoteWake};

    const GUEST: &str = include_str!("../../../../machines/kvm-guest-2vcpu.toml");
    const SAME_CORE: &str = include_str!("../../../../workloads/gleaner/wake-same-core.json");
    const OTHER_CORE: &str = include_str!("../../../../workloads/gleaner/wake-other-core.json");

    fn measured() -> Profile {
        Profile::from_toml(GUEST, "kvm-guest-2vcpu").unwrap()
    }

    /// The probe's own microbenchmark, simulated as Table 1 does, in nanoseconds.
    fn wake_ns(profile: &Profile, workload: &str, environment: Environment, yielding: bool) -> f64 {
        let text = "machine = 'm'\nworkload = 'w'\nenvironment = 'virtual'\ncores = 2\nscale = 0.05\n";
        let plain = Experiment::from_toml(text, "e").unwrap();
        let experiment = Experiment { environment, yielding, remote_wake: RemoteWake::Ipi, ..plain };
        let workload = Workload::from_json(workload, "w").unwrap();
        Simulation::new(&experiment, profile, &workload, None).unwrap().run().unwrap().lock_wake_us() * 1e3
    }

    fn settings(profile: &Profile) -> [f64; 3] {
        let run = |workload, yielding| wake_ns(profile, workload, Environment::Virtual, yielding);
        [run(SAME_CORE, false), run(OTHER_CORE, true), run(OTHER_CORE, false)]
    }

    fn priced(profile: &Profile) -> [f64; 3] {
        let far = Distance::SameLlc;
        [names::wake_same_cpu("futex"), names::wake("futex", "awake", far), names::wake("futex", "halted", far)]
            .map(|name| profile.price_ns(&name).unwrap())
    }

    fn assert_reproduces(profile: &Profile) {
        for (setting, (simulated, price)) in
            ["A", "B", "C"].iter().zip(settings(profile).into_iter().zip(priced(profile)))
        {
            let error = (simulated / price).ln().abs();
            assert!(error < 0.04, "{setting}: measured {price}, simulated {simulated}");
        }
    }

    #[test]
    fn the_measured_wake_ups_come_out_again() {
        assert_reproduces(&measured());
        let native = wake_ns(&measured(), OTHER_CORE, Environment::Native, false);
        assert!(native < 0.5 * priced(&measured())[2] && native > priced(&measured())[0], "{native}");
    }

    #[test]
    fn so_they_do_on_very_different_guests() {
        // A, B, C and the waker's part in B and C: the paper's machine; a fast host; B dearer than C; only three numbers.
        let guests = [
            [6_000.0, 17_000.0, 37_000.0, 6_000.0, 9_000.0],
            [1_200.0, 3_500.0, 6_000.0, 1_800.0, 2_200.0],
            [2_500.0, 40_000.0, 21_000.0, 19_000.0, 12_000.0],
            [1_700.0, 15_700.0, 22_500.0, 0.0, 0.0],
        ];
        for [a, b, c, waker_b, waker_c] in guests {
            let mut profile = measured();
            let wakes = priced_names().into_iter().zip([a, b, c, waker_b, waker_c]);
            for (name, ns) in wakes {
                profile.prices.get_mut(&name).unwrap().ns = ns;
            }
            if waker_b == 0.0 {
                let keep: Vec<String> = priced_names().into_iter().take(3).collect();
                profile.prices.retain(|name, _| keep.contains(name));
            }
            assert_reproduces(&profile);
        }
    }

    fn priced_names() -> [String; 5] {
        let far = Distance::SameLlc;
        [
            names::wake_same_cpu("futex"),
            names::wake("futex", "awake", far),
            names::wake("futex", "halted", far),
            names::waker("futex", "awake", far),
            names::waker("futex", "halted", far),
        ]
    }

    #[test]
    fn every_price_says_where_it_comes_from() {
        let measured = measured();
        let derived = simulatable(&measured).unwrap();
        assert_eq!(derived.unknown_prices().count(), 0);
        for name in Prices::NAMES {
            let price = &derived.prices[*name];
            assert!(
                matches!(price.kind, PriceKind::Derived | PriceKind::Assumed) && !price.source.is_empty(),
                "{name}"
            );
        }
        assert_eq!(derived.prices["sim.kernel.syscall"].kind, PriceKind::Derived);
        assert_eq!(derived.prices["sim.kernel.tick"].kind, PriceKind::Assumed);
        let fork = derived.prices["sim.kernel.fork"].ns + derived.prices["sim.kernel.syscall"].ns;
        assert!((fork / measured.prices["process.fork"].ns).ln().abs() < 1e-3, "{fork}");
        let again = simulatable(&derived).unwrap();
        assert_eq!(*again, *derived, "a profile that has them keeps them");
    }

    #[test]
    fn a_machine_without_a_hypervisor_gives_its_own_wake_ups_back() {
        let mut profile = measured();
        profile.platform.hypervisor = "none".into();
        for (name, ns) in priced_names().into_iter().zip([1_500.0, 3_000.0, 4_200.0]) {
            profile.prices.get_mut(&name).unwrap().ns = ns;
        }
        let halted = wake_ns(&profile, OTHER_CORE, Environment::Native, false);
        assert!((halted / 4_200.0).ln().abs() < 0.04, "{halted}");
    }

    #[test]
    fn a_profile_without_wake_ups_is_refused_by_name() {
        let mut profile = measured();
        profile.prices.remove("wake.futex.same-cpu");
        let error = simulatable(&profile).unwrap_err().to_string();
        assert!(error.contains("wake.futex.same-cpu") && error.contains("muster probe"), "{error}");
    }
}
