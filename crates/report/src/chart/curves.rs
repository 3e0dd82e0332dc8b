//! Lines over an axis, and points of two values against each other.

use super::scale::Scale;
use super::{drawing, percent_of_width, text};
use crate::format::round;
use maud::{Markup, html};

/// One line.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points, x ascending.
    pub points: Vec<(f64, f64)>,
}

/// Points of one kind in a scatter plot.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its name in the legend.
    pub name: &'static str,
    /// What each point is, its x and its y.
    pub points: Vec<(String, f64, f64)>,
}

/// An axis: its scale, how its values are written, and what it counts.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The scale.
    pub scale: Scale,
    /// A value as text.
    pub label: fn(f64) -> String,
    /// What it counts, with its unit.
    pub name: String,
}

const TOP: u32 = 18;
const HEIGHT: u32 = 240;
const BOTTOM: u32 = TOP + HEIGHT;
/// Lines of more points than this are drawn without markers.
const MARKED_UP_TO: usize = 40;
/// The stretched coordinate system of the lines.
const UNITS: f64 = 1000.0;

/// Lines over common axes, with a legend below.
pub fn curves(title: &str, description: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> Markup {
    let body = html! {
        (grid(x, y))
        svg x="0" y=(TOP) width="100%" height=(HEIGHT) viewBox="0 0 1000 1000" preserveAspectRatio="none" {
            @for (index, curve) in curves.iter().enumerate() {
                polyline class=(format!("curve s{}", index % 6)) vector-effect="non-scaling-stroke" points=(polyline(curve, x, y)) {}
            }
        }
        @for (index, curve) in curves.iter().enumerate() {
            @if curve.points.len() <= MARKED_UP_TO {
                @for &(at, value) in &curve.points {
                    circle class=(format!("mark s{}", index % 6)) cx=(percent_of_width(x.scale.place(at))) cy=(height_of(y, value)) r="3.5" {
                        title { (curve.name) ": " ((x.label)(at)) ", " ((y.label)(value)) }
                    }
                }
            }
        }
        (labels(x, y))
    };
    html! {
        (drawing(title, description, BOTTOM + 40, body))
        @if curves.len() > 1 {
            ul.legend {
                @for (index, curve) in curves.iter().enumerate() {
                    li { span class=(format!("swatch s{}", index % 6)) {} (curve.name) }
                }
            }
        }
    }
}

/// Points of two quantities against each other with the line where they are equal.
pub fn scatter(title: &str, description: &str, x: &Axis, y: &Axis, samples: &[Sample]) -> Markup {
    let body = html! {
        (grid(x, y))
        line.one x1="0" y1=(BOTTOM) x2="100%" y2=(TOP) {}
        @for (index, sample) in samples.iter().enumerate() {
            @for (label, at, value) in &sample.points {
                circle class=(format!("mark s{}", index % 6)) cx=(percent_of_width(x.scale.place(*at))) cy=(height_of(y, *value)) r="4.5" {
                    title { (label) ": " (x.name) " " ((x.label)(*at)) ", " (y.name) " " ((y.label)(*value)) }
                }
            }
        }
        (labels(x, y))
    };
    html! {
        (drawing(title, description, BOTTOM + 40, body))
        ul.legend { @for (index, Sample { name, .. }) in samples.iter().enumerate() { li { span class=(format!("swatch s{}", index % 6)) {} (name) } } }
    }
}

/// The lines of both axes; drawn below the curves.
fn grid(x: &Axis, y: &Axis) -> Markup {
    html! {
        @for tick in y.scale.ticks() {
            @let at = height_of(y, tick);
            line.grid x1="0" x2="100%" y1=(at) y2=(at) {}
        }
        @for (share, _) in labelled(x) {
            @let at = percent_of_width(share);
            line.grid x1=(at) x2=(at) y1=(BOTTOM) y2=(BOTTOM + 4) {}
        }
    }
}

/// The labels of both axes; drawn above the curves. Those of the y axis stand on their lines, inside, so that no width
/// is lost to a margin.
fn labels(x: &Axis, y: &Axis) -> Markup {
    html! {
        @for tick in y.scale.ticks() {
            @let at = f64::from(BOTTOM) - y.scale.place(tick) * f64::from(HEIGHT) - 3.0;
            text.tick.start x="0" y=(format!("{at:.1}")) { (round(&(y.label)(tick))) }
        }
        @for (share, label) in labelled(x) {
            @let anchor = if share < 0.05 { "tick start" } else if share > 0.95 { "tick end" } else { "tick middle" };
            (text(&percent_of_width(share), BOTTOM + 17, anchor, &label))
        }
        (text("100%", BOTTOM + 34, "axis end", &x.name))
        (text("100%", TOP - 6, "axis end", &y.name))
    }
}

/// The ticks of an x axis that have room for a label: their places and labels.
fn labelled(x: &Axis) -> Vec<(f64, String)> {
    // Shares of the width; a label at the right edge reaches inwards with all of its width.
    let room = |share: f64| if share > 0.95 { 0.2 } else { 0.13 };
    let mut last = f64::NEG_INFINITY;
    let mut labels = Vec::new();
    for tick in x.scale.ticks() {
        let share = x.scale.place(tick);
        if share - last >= room(share) {
            labels.push((share, round(&(x.label)(tick))));
            last = share;
        }
    }
    labels
}

fn polyline(curve: &Curve, x: &Axis, y: &Axis) -> String {
    let point = |&(at, value): &(f64, f64)| {
        format!("{:.1},{:.1}", x.scale.place(at) * UNITS, (1.0 - y.scale.place(value)) * UNITS)
    };
    curve.points.iter().map(point).collect::<Vec<_>>().join(" ")
}

fn height_of(y: &Axis, value: f64) -> String {
    format!("{:.1}", f64::from(BOTTOM) - y.scale.place(value) * f64::from(HEIGHT))
}
