//! What was seen, for a person.

use super::kvm::Vendor;
use super::{LockWaits, PauseExits};
use muster_policy::ple::{Certainty, Waits};
use std::fmt::Write;

const GAP: &str = "gap      not measured: it takes PAUSE exits counted with several gaps, and for each gap KVM's module loaded\n         \
                   anew; KVM's own is 128\n";

/// What a guest's lock waits say.
pub fn guest(waits: &LockWaits, window: Option<&Certainty>) -> String {
    let mut text = format!(
        "lock waits of this kernel in {:.0} s, in TSC cycles ({:.0} MHz)\n\n",
        waits.watched_ns as f64 / 1e9,
        waits.tsc_hz as f64 / 1e6
    );
    table(&mut text, waits);
    if waits.lost > 0 {
        line(&mut text, &format!("lost     {} waits, whose ends were not seen", grouped(waits.lost)));
    }
    let count = waits.deciding().count();
    match window {
        None => line(&mut text, "window   not told: the kernel waited for no spin lock; run it under load"),
        Some(window) if window.is_certain() => certain(&mut text, waits, window, count),
        Some(window) => line(&mut text, &format!("window   {}", uncertain(window, count, "cycles", "waits"))),
    }
    text + GAP
        + "note     the first waiter for a spin lock shows only where those are paravirtual (KVM's guests, by default);\n         \
           where it does not, short waits are missing, and the window is rather too long\n"
}

fn table(text: &mut String, waits: &LockWaits) {
    let deciding = waits.deciding();
    let all = [&waits.spinlocks, &waits.rwlocks, &waits.mutexes];
    let is_used = |power: &usize| all.iter().any(|kind| kind.by_power()[*power] > 0);
    let powers: Vec<usize> = (0..Waits::POWERS).filter(is_used).collect();
    let (Some(first), Some(last)) = (powers.first(), powers.last()) else { return };
    line(text, "           up to    spin locks   reader-writer locks   longer   mutexes (not counted)");
    for power in *first..=*last {
        let [spin, rw, mutex] = all.map(|kind| grouped(kind.by_power()[power]));
        let longer = share(deciding.longer_than(power), deciding.count());
        let up_to = grouped(1 << power);
        let _infallible = writeln!(text, "{up_to:>16} {spin:>13} {rw:>21} {longer:>8} {mutex:>23}");
    }
    text.push('\n');
}

fn certain(text: &mut String, waits: &LockWaits, window: &Certainty, count: u64) {
    let [low, high] = window.between.map(percent);
    let cycles = grouped(u64::from(window.window));
    let found = percent(window.exceeding);
    line(
        text,
        &format!(
            "window   {cycles} cycles: {found} of {} waits are longer (95 % confidence: {low} to {high})",
            grouped(count)
        ),
    );
    let pauses = (f64::from(window.window) / waits.pause_cycles.max(1.0)).round() as u64;
    let (intel, amd) = (Vendor::Intel.parameter(), Vendor::Amd.parameter());
    line(text, &format!("         on the host: {}.{}={}, or", intel.0, intel.1, window.window));
    let pause = format!("at {:.0} cycles a PAUSE, as measured here", waits.pause_cycles);
    line(text, &format!("         {}.{}={pauses} on AMD's processors, which count PAUSEs ({pause})", amd.0, amd.1));
}

/// What a sample leaves open. It is no answer, and so names no window.
fn uncertain(window: &Certainty, count: u64, unit: &str, what: &str) -> String {
    let least = grouped(u64::from(window.least));
    let count = grouped(count);
    let more = match window.more_waits {
        Some(more) => format!("about {} more like these would tell", grouped(more)),
        None => "and no number of them would tell: as many are longer as may be".to_owned(),
    };
    match window.enough {
        Some(enough) => {
            let enough = grouped(u64::from(enough));
            format!("not told: {count} {what} are too few to tell {least} from {enough} {unit}; {more}")
        }
        None => format!("not told: {count} {what} are too few to say what at most 0.5 % exceed; {more}"),
    }
}

/// What a host's PAUSE exits say.
pub fn host(exits: &PauseExits, longest: Option<&Certainty>) -> String {
    let unit = exits.kvm.vendor.unit();
    let pauses = exits.spins.exits();
    let mut text = format!(
        "PAUSE exits of this host in {:.0} s: {} of {} VM exits, of {} vCPUs\n({})\n\n",
        exits.watched_ns as f64 / 1e9,
        grouped(pauses),
        grouped(exits.exits),
        exits.spins.vcpus,
        exits.kvm.described()
    );
    if pauses > 0 {
        let _infallible = writeln!(text, "{:>30}   exits", format!("outlasted, in {unit}"));
        for (window, count) in &exits.spins.exits_by_window {
            let _infallible = writeln!(text, "{:>30} {:>7}", grouped(u64::from(*window)), grouped(*count));
        }
        text.push('\n');
    }
    if exits.lost > 0 {
        line(&mut text, &format!("lost     {} exits, of which there were too many at once", grouped(exits.lost)));
    }
    line(
        &mut text,
        "window   not observable here: a host sees the spins that outlast its window, not the waits of which they",
    );
    line(&mut text, "         are a share; `muster host ple` in the guests sees those");
    let count = exits.spins.outlasted.count();
    match longest {
        Some(window) if window.is_certain() => {
            let found = grouped(u64::from(window.window));
            line(
                &mut text,
                &format!(
                    "         if the {} spins seen were all waits: {found} {unit}. Shorter ones are not",
                    grouped(count)
                ),
            );
            line(
                &mut text,
                "         among them, and spins that follow each other count as one: an estimate from above",
            );
        }
        Some(window) => {
            line(&mut text, &format!("         an estimate from above: {}", uncertain(window, count, unit, "spins")))
        }
        None if pauses == 0 => {
            let window = grouped(u64::from(exits.kvm.window));
            line(&mut text, &format!("         no spin outlasted {window} {unit}"));
        }
        None => line(&mut text, "         KVM's windows do not grow here: how long a spin was does not show"),
    }
    text + GAP
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { percent(part as f64 / whole as f64) }
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 9.95 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Kvm, Spins};
    use super::*;

    fn waits(short: u64, long: u64) -> LockWaits {
        let mut spinlocks = Waits::default();
        (0..short).for_each(|_| spinlocks.add(1000));
        (0..long).for_each(|_| spinlocks.add(3000));
        let (rwlocks, mutexes) = (Waits::default(), Waits::default());
        LockWaits {
            watched_ns: 10_000_000_000,
            tsc_hz: 2_000_000_000,
            pause_cycles: 64.0,
            spinlocks,
            rwlocks,
            mutexes,
            lost: 0,
        }
    }

    #[test]
    fn enough_waits_tell_a_window_for_both_vendors() {
        let text = Answer::for_guest(waits(10_000, 500)).text();
        assert!(
            text.contains(
                "window   4,096 cycles: 0.00 % of 10,500 waits are longer (95 % confidence: 0.00 % to 0.04 %)"
            ),
            "{text}"
        );
        assert!(
            text.contains("kvm_intel.ple_window=4096, or\n         kvm_amd.pause_filter_count=64 on AMD"),
            "{text}"
        );
        assert!(text.contains("           1,024        10,000                     0   4.76 %"), "{text}");
        assert!(text.contains("gap      not measured"), "{text}");
    }

    #[test]
    fn few_waits_name_no_window_but_how_many_more() {
        let text = Answer::for_guest(waits(100, 0)).text();
        assert!(
            text.contains("window   not told: 100 waits are too few to say what at most 0.5 % exceed; about 6"),
            "{text}"
        );
        let text = Answer::for_guest(waits(1992, 8)).text();
        assert!(text.contains("not told: 2,000 waits are too few to tell 1,024 from 4,096 cycles; about "), "{text}");
        assert!(!text.contains("ple_window="), "{text}");
        let text = Answer::for_guest(waits(0, 0)).text();
        assert!(text.contains("window   not told: the kernel waited for no spin lock"), "{text}");
    }

    #[test]
    fn guests_are_taken_together() {
        let sum = LockWaits::together([waits(400, 1), waits(600, 0)]).unwrap();
        assert_eq!((sum.deciding().count(), sum.watched_ns), (1001, 20_000_000_000));
        assert_eq!(LockWaits::together([]), None);
    }

    #[test]
    fn a_host_claims_no_window() {
        let kvm = Kvm { vendor: Vendor::Amd, window: 3000, grow: 2, max: 65535, gap: 128 };
        let seen = |spins| PauseExits { watched_ns: 1_000_000_000, kvm, exits: 5_000, spins, lost: 0 };
        let text = Answer::for_host(seen(Spins::new(&kvm))).text();
        assert!(
            text.contains("0 of 5,000 VM exits") && text.contains("no spin outlasted 3,000 PAUSE instructions"),
            "{text}"
        );
        let mut spins = Spins::new(&kvm);
        for _ in 0..1000 {
            spins.exited(7);
            spins.window_changed(7, 3000, 6000);
            spins.window_changed(7, 6000, 3000);
        }
        spins.end();
        let text = Answer::for_host(seen(spins)).text();
        assert!(text.contains("window   not observable here"), "{text}");
        assert!(text.contains("if the 1,000 spins seen were all waits: 4,096 PAUSE instructions."), "{text}");
    }

    #[test]
    fn an_answer_survives_json() {
        for answer in [Answer::for_guest(waits(10, 0)), Answer::for_guest(waits(0, 0))] {
            let text = serde_json::to_string(&answer).unwrap();
            assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer, "{text}");
        }
    }
}
