//! A suite on the page: how each program scales, as curves and as a table.

use super::{cell, figure, table};
use crate::chart::curves::{Axis, Curve, curves};
use crate::chart::scale::Scale;
use crate::format::significant;
use crate::table::{SUITE_HEADER, SUITE_NUMERIC, suite_row};
use maud::{Markup, html};
use muster_model::results::{SuiteResults, SuiteRow};

pub fn body(results: &SuiteResults) -> Markup {
    let rows: Vec<Vec<Markup>> = results.rows.iter().map(|row| suite_row(row).map(cell).into()).collect();
    html! {
        p.quiet {
            "Platform " (results.platform) ", " (results.cores) " cores, scale " (results.scale)
            " of the paper\u{2019}s inputs, seed " (results.seed) "."
        }
        (scalability(&results.rows))
        @if !rows.is_empty() { (table("Programs over cores", &SUITE_HEADER, &SUITE_NUMERIC, &rows)) }
        @if !results.skipped.is_empty() {
            ul { @for skip in &results.skipped { li { (skip.program) " did not run: " (skip.why) } } }
        }
    }
}

/// Lines of one plot: there are colours for six.
const LINES: usize = 5;

/// The speed-ups, where more than one number of cores was measured.
fn scalability(rows: &[SuiteRow]) -> Markup {
    let mut lines: Vec<Curve> = Vec::new();
    for row in rows {
        let Some(speedup) = row.speedup else { continue };
        let point = (f64::from(row.cores), speedup);
        match lines.iter_mut().find(|line| line.name == row.program) {
            Some(line) => line.points.push(point),
            None => lines.push(Curve { name: row.program.clone(), points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    html! { @for lines in lines.chunks(LINES) { (one_plot(lines)) } }
}

fn one_plot(lines: &[Curve]) -> Markup {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let axis = |scale: Scale, name: &str| Axis { scale, label: significant, name: name.to_owned() };
    let x = axis(Scale::linear(points().map(|point| point.0)), "cores");
    let y = axis(Scale::linear(points().map(|point| point.1).chain([0.0])), "speed-up against 1 core");
    let title = "Speed-up over cores";
    figure(title, &curves(title, "How many times as fast each program is as on 1 core.", &x, &y, lines))
}
