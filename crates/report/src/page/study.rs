//! A study on the page: the paper's numbers beside the simulator's, by kind, and the curves.

use super::{cell, figure, table};
use crate::chart::curves::{Axis, Curve, Sample, curves, scatter};
use crate::chart::scale::Scale;
use crate::format::{percent, ratio, significant, with_unit};
use crate::input::Study;
use crate::judge::{error_text, errors_by_kind, kind_title, kind_word, simulated_text};
use maud::{Markup, html};
use muster_model::results::{Series, StudyKind, StudyNumber};

pub fn body(study: &Study) -> Markup {
    let errors = errors_by_kind(&study.numbers);
    let rows: Vec<Vec<Markup>> = errors
        .iter()
        .map(|error| {
            let texts = [
                kind_word(error.kind).to_owned(),
                error.judged.to_string(),
                percent(error.geometric_mean),
                ratio(error.worst.exp()),
            ];
            texts.map(cell).into()
        })
        .collect();
    html! {
        @if let Some(seed) = study.seed { p.quiet { "Seed " (seed) " reproduces every number." } }
        @if !rows.is_empty() { (table("Errors by kind", &["kind", "numbers judged", "geometric mean error", "worst off by"], &[1, 2, 3], &rows)) }
        (beside(study))
        @for kind in [StudyKind::Predicted, StudyKind::Calibrated, StudyKind::Contested, StudyKind::Withheld] { (numbers(study, kind)) }
        (plots(&study.series))
    }
}

/// Paper against simulator, where both have a value above 0: on the line they agree.
fn beside(study: &Study) -> Markup {
    let points = |kind: StudyKind| -> Vec<(String, f64, f64)> {
        let is_drawn = |number: &&StudyNumber| number.kind == kind && number.simulated > Some(0.0);
        let point = |number: &StudyNumber| {
            let paper = number.paper.filter(|paper| *paper > 0.0)?;
            Some((
                format!("{}, {}, {} ({})", number.figure, number.row, number.column, number.unit),
                paper,
                number.simulated?,
            ))
        };
        study.numbers.iter().filter(is_drawn).filter_map(point).collect()
    };
    let sample = |kind| Sample { name: kind_word(kind), points: points(kind) };
    let samples = [sample(StudyKind::Predicted), sample(StudyKind::Calibrated)];
    let values = || samples.iter().flat_map(|sample| sample.points.iter().flat_map(|(_, x, y)| [*x, *y]));
    if values().next().is_none() {
        return html! {};
    }
    let axis = |name: &str| Axis { scale: Scale::decades(values()), label: significant, name: name.to_owned() };
    let title = "Paper against simulator; on the line they agree";
    figure(
        title,
        &scatter(
            title,
            "Every number of the study that both state, in its own unit.",
            &axis("paper"),
            &axis("simulator"),
            &samples,
        ),
    )
}

fn numbers(study: &Study, kind: StudyKind) -> Markup {
    let row = |number: &StudyNumber| {
        let paper = number.paper.map(|value| with_unit(value, &number.unit)).or_else(|| number.paper_bound.clone());
        vec![
            cell(&number.figure),
            cell(&number.row),
            cell(&number.column),
            words(paper.unwrap_or_else(|| "not stated".to_owned())),
            words(simulated_text(number)),
            cell(error_text(number)),
        ]
    };
    let rows: Vec<Vec<Markup>> = study.numbers.iter().filter(|number| number.kind == kind).map(row).collect();
    html! {
        @if !rows.is_empty() {
            (table(kind_title(kind), &["figure", "row", "column", "paper", "simulated", "error"], &[3, 4, 5], &rows))
        }
    }
}

/// A cell that may hold words, which wrap, in place of a number.
fn words(text: String) -> Markup {
    html! { span.words { (text) } }
}

/// One plot for each figure and pair of axes, in the order in which they first occur.
fn plots(series: &[Series]) -> Markup {
    let mut plots: Vec<Vec<&Series>> = Vec::new();
    for one in series {
        let same = |plot: &&mut Vec<&Series>| {
            plot.iter().all(|other| (&other.figure, &other.x, &other.y) == (&one.figure, &one.x, &one.y))
        };
        match plots.iter_mut().find(same) {
            Some(plot) => plot.push(one),
            None => plots.push(vec![one]),
        }
    }
    html! { @for plot in plots { (one_plot(&plot)) } }
}

fn one_plot(plot: &[&Series]) -> Markup {
    let first = plot[0];
    let points = || plot.iter().flat_map(|series| series.points.iter());
    let x = Axis { scale: Scale::linear(points().map(|point| point.0)), label: significant, name: first.x.clone() };
    let y = Axis { scale: Scale::linear(points().map(|point| point.1)), label: significant, name: first.y.clone() };
    let lines: Vec<Curve> =
        plot.iter().map(|series| Curve { name: series.name.clone(), points: series.points.clone() }).collect();
    let title = if plot.len() == 1 { format!("{}: {}", first.figure, first.name) } else { first.figure.clone() };
    figure(&title, &curves(&title, &format!("{} over {}.", first.y, first.x), &x, &y, &lines))
}
