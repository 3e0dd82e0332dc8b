//! From runs to what may be said of them. Pure.

use crate::arm::ArmSpec;
use crate::metric::Metric;
use muster_model::results::{Arm, Range, Run};
use muster_stats::{Interval, Noise, Verdict, half_iqr, median, noise, paired_ratio};

/// Ratios this near to 1 do not matter to anybody.
const SAME_WITHIN: f64 = 0.03;
/// Speeds of one arm that spread wider than this share of their median are noted.
const SPREAD_NOTED: f64 = 0.1;

/// The arms of a comparison from their runs; `runs[arm][round]`, the first arm is the baseline.
pub fn summarize(specs: &[ArmSpec], runs: &[Vec<Run>], metric: &Metric) -> Vec<Arm> {
    let baseline = runs.first().map(Vec::as_slice).unwrap_or_default();
    let arm = |(index, (spec, runs)): (usize, (&ArmSpec, &Vec<Run>))| {
        let speeds: Vec<f64> = runs.iter().map(|run| run.speed).collect();
        let mut arm = Arm {
            name: spec.name.clone(),
            prefix: spec.prefix.clone(),
            runs: runs.clone(),
            median_speed: median(&speeds).unwrap_or(0.0),
            spread: half_iqr(&speeds).unwrap_or(0.0),
            speed_ratio: None,
            cpu_ratio: None,
            machine_cpu_ratio: None,
            verdict: None,
        };
        if index > 0 {
            let ratio = |of: &dyn Fn(&Run) -> f64| {
                paired_ratio(&baseline.iter().map(of).collect::<Vec<_>>(), &runs.iter().map(of).collect::<Vec<_>>())
            };
            let work = |run: &Run| metric.work(run.speed, run.wall_ns);
            let speed = ratio(&|run| run.speed);
            arm.speed_ratio = speed.map(range);
            arm.cpu_ratio = ratio(&|run| run.cpu_ns as f64 / work(run)).map(range);
            arm.machine_cpu_ratio = ratio(&|run| run.machine_busy_ns as f64 / work(run)).map(range);
            let cpu = arm.machine_cpu_ratio.or(arm.cpu_ratio);
            arm.verdict = Some(verdict(&spec.name, &specs[0].name, speed.as_ref(), cpu.as_ref(), metric.unit()));
        }
        arm
    };
    specs.iter().zip(runs).enumerate().map(arm).collect()
}

fn range(interval: Interval) -> Range {
    Range { low: interval.low, value: interval.value, high: interval.high }
}

/// What can be said of `name` against `baseline`, in one sentence.
fn verdict(name: &str, baseline: &str, speed: Option<&Interval>, cpu: Option<&Range>, unit: &str) -> String {
    let Some(speed) = speed else { return format!("{name}: one round is too few to tell.") };
    let ratio = format!("{:.2}x as fast as {baseline} (95 % CI {:.2} to {:.2})", speed.value, speed.low, speed.high);
    let cost = cpu.map_or(String::new(), |cpu| cost(cpu, unit.trim_end_matches('s')));
    match speed.verdict(SAME_WITHIN) {
        Verdict::Above => format!("{name} is {ratio}{cost}."),
        Verdict::Below => format!("{name} is slower: {ratio}{cost}."),
        Verdict::Same => format!("{name} makes no difference to speed: {ratio}{cost}."),
        Verdict::Undecided => {
            format!(
                "Too noisy to tell whether {name} is faster: {ratio}{cost}. More runs or a quieter machine would tell."
            )
        }
    }
}

fn cost(cpu: &Range, per: &str) -> String {
    let Range { low, value, high } = cpu;
    if *low <= 1.0 && *high >= 1.0 {
        return format!(", with no clear difference in CPU per {per} ({value:.2}x, {low:.2} to {high:.2})");
    }
    format!(" at {value:.2} of the CPU per {per} ({low:.2} to {high:.2})")
}

/// What the runs themselves say about how far to trust them.
pub fn notes_on_runs(specs: &[ArmSpec], runs: &[Vec<Run>]) -> Vec<String> {
    let mut notes = Vec::new();
    for (spec, runs) in specs.iter().zip(runs) {
        let speeds: Vec<f64> = runs.iter().map(|run| run.speed).collect();
        if let Noise::Noisy { relative_spread } = noise(&speeds, SPREAD_NOTED) {
            notes.push(format!(
                "The runs of {} spread by ±{:.0} % of their median.",
                spec.name,
                relative_spread * 100.0
            ));
        }
    }
    let rounds = runs.first().map_or(0, Vec::len);
    if (2..6).contains(&rounds) {
        notes.push(format!(
            "{rounds} rounds are too few for an exact interval: it is Student's t, which takes the logarithms of the \
             ratios as normally distributed. 6 rounds or more need no such assumption."
        ));
    }
    if runs.iter().flatten().any(|run| run.polling_ns.is_none()) {
        notes.push(
            "There is no cpuidle here: the machine's CPU time is sampled by the timer tick, and polling idle is not in it."
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(speed: f64, cpu_ns: u64) -> Run {
        Run {
            wall_ns: 1_000_000_000,
            speed,
            cpu_ns,
            machine_busy_ns: cpu_ns + 10,
            polling_ns: Some(0),
            idle_entries: Some(1),
            switches: Some(1),
            foreign_share: 0.0,
        }
    }

    fn arms(plain: &[f64], other: &[f64]) -> Vec<Arm> {
        let specs = ["plain", "auto"].map(|name| ArmSpec { name: name.to_owned(), prefix: Vec::new() });
        let runs = [plain, other].map(|speeds| speeds.iter().map(|&speed| run(speed, 1_000_000)).collect());
        summarize(&specs, &runs, &Metric::throughput("(.)").unwrap())
    }

    #[test]
    fn a_clear_gain_is_told_with_its_cost() {
        let arms = arms(&[10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0], &[28.0, 28.3, 27.9, 28.1, 28.0, 27.7, 28.4]);
        let verdict = arms[1].verdict.as_deref().unwrap();
        assert!(verdict.starts_with("auto is 2.81x as fast as plain (95 % CI 2.7"), "{verdict}");
        assert!(verdict.contains("at 0.36 of the CPU"), "{verdict}");
        assert_eq!((arms[0].verdict.as_ref(), arms[0].speed_ratio), (None, None));
    }

    #[test]
    fn noise_is_not_sold_as_a_gain() {
        let arms = arms(&[10.0, 5.0, 20.0, 10.0, 8.0, 12.0], &[12.0, 9.0, 7.0, 11.0, 30.0, 6.0]);
        assert!(arms[1].verdict.as_deref().unwrap().starts_with("Too noisy to tell"));
    }

    #[test]
    fn losses_and_ties_are_named() {
        let six = |speed: f64| [speed, speed * 1.001, speed, speed * 0.999, speed, speed];
        assert!(arms(&six(10.0), &six(5.0))[1].verdict.as_deref().unwrap().starts_with("auto is slower: 0.50x"));
        assert!(arms(&six(10.0), &six(10.0))[1].verdict.as_deref().unwrap().starts_with("auto makes no difference"));
        assert!(arms(&[1.0], &[2.0])[1].verdict.as_deref().unwrap().contains("too few"));
    }

    #[test]
    fn few_and_wide_runs_are_noted() {
        let specs = [ArmSpec { name: "plain".to_owned(), prefix: Vec::new() }];
        let runs = [vec![run(1.0, 1), run(2.0, 1), run(4.0, 1)]];
        let notes = notes_on_runs(&specs, &runs);
        assert!(notes[0].contains("±") && notes[1].contains("Student"), "{notes:?}");
    }
}
