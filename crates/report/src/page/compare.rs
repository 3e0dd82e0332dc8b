//! A comparison on the page: the verdicts, ratios with their intervals, every single run, and what disturbed it.

use super::{cell, figure, table};
use crate::chart::intervals::{dots, ratios};
use crate::format::{percent, ratio_range, significant};
use maud::{Markup, html};
use muster_model::results::{Arm, Comparison, Range, Run};

pub fn body(comparison: &Comparison) -> Markup {
    let baseline = comparison.arms.first().map_or("the first arm", |arm| arm.name.as_str());
    let ranged = |of: fn(&Arm) -> Option<Range>| -> Vec<(String, Range)> {
        comparison.arms.iter().filter_map(|arm| Some((arm.name.clone(), of(arm)?))).collect()
    };
    let speed = ranged(|arm| arm.speed_ratio);
    let cpu = ranged(|arm| arm.machine_cpu_ratio.or(arm.cpu_ratio));
    let unit = format!("{}/s", comparison.metric);
    let runs: Vec<(String, Vec<f64>)> =
        comparison.arms.iter().map(|arm| (arm.name.clone(), arm.runs.iter().map(|run| run.speed).collect())).collect();
    html! {
        p { code { (comparison.command) } }
        @for verdict in comparison.arms.iter().filter_map(|arm| arm.verdict.as_ref()) { p.verdict { (verdict) } }
        div.pair {
            @if !speed.is_empty() { (figure(&format!("Speed relative to {baseline}, 95 % interval (right is faster)"), &ratios("Speed ratios", "Estimate and 95 % confidence interval per arm.", &speed))) }
            @if !cpu.is_empty() { (figure(&format!("CPU time per unit of work relative to {baseline} (left is cheaper)"), &ratios("CPU ratios", "Estimate and 95 % confidence interval per arm, polling idle included where it can be seen.", &cpu))) }
        }
        @if runs.iter().any(|(_, speeds)| !speeds.is_empty()) {
            (figure(&format!("Every run, in {unit}; the line is the median"), &dots("Every run", "One dot a run, one row an arm.", &unit, &runs)))
        }
        (table(
            "The arms",
            &["arm", "runs", &unit, "spread", "speed", "program's CPU per work", "machine's CPU per work"],
            &[1, 2, 3, 4, 5, 6],
            &comparison.arms.iter().map(row).collect::<Vec<_>>(),
        ))
        (table(
            "What the machine did",
            &["arm", "halts/s", "context switches/s", "busy CPUs", "polling", "used by others"],
            &[1, 2, 3, 4, 5],
            &comparison.arms.iter().map(machine_row).collect::<Vec<_>>(),
        ))
        @if !comparison.notes.is_empty() { ul.notes { @for note in &comparison.notes { li { (note) } } } }
    }
}

fn row(arm: &Arm) -> Vec<Markup> {
    let ratio = |range: &Option<Range>| cell(range.as_ref().map_or("1".to_owned(), ratio_range));
    let spread =
        if arm.median_speed > 0.0 { format!("± {}", percent(arm.spread / arm.median_speed)) } else { String::new() };
    vec![
        // The prefix of a built-in arm is muster itself: the name says it all.
        html! { (arm.name) @if !arm.prefix.is_empty() && !arm.prefix[0].starts_with("/proc/") { br; code.quiet { (arm.prefix.join(" ")) } } },
        cell(arm.runs.len().to_string()),
        cell(significant(arm.median_speed)),
        cell(spread),
        ratio(&arm.speed_ratio),
        ratio(&arm.cpu_ratio),
        ratio(&arm.machine_cpu_ratio),
    ]
}

fn machine_row(arm: &Arm) -> Vec<Markup> {
    let median = |of: &dyn Fn(&Run) -> Option<f64>, text: fn(f64) -> String| {
        let values: Option<Vec<f64>> = arm.runs.iter().map(of).collect();
        cell(values.and_then(|values| muster_stats::median(&values)).map_or("not known".to_owned(), text))
    };
    let per_wall = |count: u64, run: &Run| count as f64 / run.wall_ns.max(1) as f64;
    vec![
        cell(&arm.name),
        median(&|run| run.idle_entries.map(|count| per_wall(count, run) * 1e9), significant),
        median(&|run| run.switches.map(|count| per_wall(count, run) * 1e9), significant),
        median(&|run| Some(per_wall(run.machine_busy_ns, run)), significant),
        median(&|run| run.polling_ns.map(|ns| per_wall(ns, run)), |cpus| format!("{} CPUs", significant(cpus))),
        median(&|run| Some(run.foreign_share), percent),
    ]
}
