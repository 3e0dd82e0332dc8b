//! A suite on the page: how each program scales, as curves and as a table.

use super::{cell, figure, table};
use crate::chart::curves::{Axis, Curve, curves};
use crate::chart::scale::Scale;
use crate::format::significant;
use crate::table::{suite_header, suite_row, suite_vm};
use maud::{Markup, html};
use muster_model::results::{SuitePlace, SuiteResults, SuiteRow};

pub fn body(results: &SuiteResults) -> Markup {
    let has_vm = results.vm.is_some();
    let (names, numeric) = suite_header(has_vm);
    let cells = |row| suite_row(row, has_vm).into_iter().map(cell).collect();
    let rows: Vec<Vec<Markup>> = results.rows.iter().map(cells).collect();
    html! {
        p.quiet {
            "Platform " (results.platform) ", " (results.cores) " cores, scale " (results.scale)
            " of the paper\u{2019}s inputs, seed " (results.seed) "."
        }
        @if let Some(vm) = &results.vm { p.quiet { (suite_vm(vm).join("; ")) "." } }
        (plots(&SPEEDUP, &results.rows))
        (plots(&DEGRADATION, &results.rows))
        @if !rows.is_empty() { (table("Programs over cores", &names, &numeric, &rows)) }
        @if !results.skipped.is_empty() {
            ul { @for skip in &results.skipped { li { (skip.program) " did not run: " (skip.why) } } }
        }
    }
}

/// Lines of one plot: there are colours for six.
const LINES: usize = 5;

/// A quantity over cores.
struct Quantity {
    title: &'static str,
    axis: &'static str,
    says: &'static str,
    of: fn(&SuiteRow) -> Option<f64>,
}

const SPEEDUP: Quantity = Quantity {
    title: "Speed-up over cores",
    axis: "speed-up against 1 core",
    says: "How many times as fast each program is as on 1 core.",
    of: |row| row.speedup,
};
const DEGRADATION: Quantity = Quantity {
    title: "Degradation over cores",
    axis: "how much longer than natively",
    says: "How much longer each program takes in the VM than natively on as many cores; 0.5 is half as long again.",
    of: |row| row.degradation,
};

/// A line for each program and place where more than one number of cores was measured.
fn plots(quantity: &Quantity, rows: &[SuiteRow]) -> Markup {
    let mut lines: Vec<Curve> = Vec::new();
    for row in rows {
        let Some(value) = (quantity.of)(row) else { continue };
        let point = (f64::from(row.cores), value);
        let name = match row.place {
            SuitePlace::Native => row.program.clone(),
            SuitePlace::Vm => format!("{}, VM", row.program),
        };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Curve { name, points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    html! { @for lines in lines.chunks(LINES) { (one_plot(quantity, lines)) } }
}

fn one_plot(quantity: &Quantity, lines: &[Curve]) -> Markup {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let axis = |scale: Scale, name: &str| Axis { scale, label: significant, name: name.to_owned() };
    let x = axis(Scale::linear(points().map(|point| point.0)), "cores");
    let y = axis(Scale::linear(points().map(|point| point.1).chain([0.0])), quantity.axis);
    figure(quantity.title, &curves(quantity.title, quantity.says, &x, &y, lines))
}
