//! Charts as inline SVG, drawn for pages that are read on a phone as well as on a desk.
//!
//! Horizontal places are percentages and text has a fixed size, so a chart fits any width and stays readable. Curves,
//! which need absolute coordinates, lie in a nested SVG that is stretched. Colours are CSS classes of the page
//! (`c-NAME`), so that light and dark are one stylesheet's business. No script, no font, nothing from outside.

pub mod bars;
pub mod curves;
pub mod intervals;
pub mod scale;
pub mod stack;

use crate::format::round;
use maud::{Markup, html};

/// A place as a percentage of the chart's width.
pub(crate) fn percent_of_width(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// An SVG that fills its column, with the words that a screen reader speaks.
pub(crate) fn drawing(title: &str, description: &str, height: u32, body: Markup) -> Markup {
    html! {
        svg.chart width="100%" height=(height) role="img" aria-label=(title) {
            desc { (description) }
            (body)
        }
    }
}

/// Text at a place; `class` sets its size and anchor.
pub(crate) fn text(x: &str, y: u32, class: &str, content: &str) -> Markup {
    html! { text class=(class) x=(x) y=(y) { (content) } }
}

/// Vertical lines at the ticks of a scale, their labels above. Labels near the edges are anchored inwards; labels
/// that would touch their neighbour are left out.
pub(crate) fn vertical_grid(scale: &scale::Scale, label: fn(f64) -> String, top: u32, bottom: u32) -> Markup {
    /// No two labels nearer than this share of the width: a phone has room for 6.
    const ROOM: f64 = 0.14;
    let mut last_label = f64::NEG_INFINITY;
    html! {
        @for tick in scale.ticks() {
            @let share = scale.place(tick);
            @let x = percent_of_width(share);
            line.grid x1=(x) x2=(x) y1=(top) y2=(bottom) {}
            @if share - last_label >= ROOM {
                @let anchor = if share < 0.05 { "tick start" } else if share > 0.95 { "tick end" } else { "tick middle" };
                (text(&x, top - 5, anchor, &round(&label(tick))))
                ({ last_label = share; "" })
            }
        }
    }
}
