//! One bar of parts that make up a whole: a ledger.

use super::{drawing, percent_of_width, text};
use crate::format::percent;
use maud::{Markup, html};

/// One part.
#[derive(Debug, Clone)]
pub struct Part {
    /// What it stands for.
    pub label: String,
    /// Its colour's class.
    pub class: String,
    /// Its share of the whole, 0 to 1.
    pub share: f64,
}

/// Parts narrower than this carry no text of their own; the legend beside the chart names them all.
const LABELLED_FROM: f64 = 0.12;

/// The parts side by side, in order; shares that sum up to more than 1 are drawn to scale of their sum.
pub fn stack(title: &str, description: &str, parts: &[Part]) -> Markup {
    let whole = parts.iter().map(|part| part.share).sum::<f64>().max(1.0);
    let mut from = 0.0;
    let placed: Vec<(f64, &Part)> = parts
        .iter()
        .map(|part| {
            let start = from;
            from += part.share / whole;
            (start, part)
        })
        .collect();
    let body = html! {
        @for (start, part) in placed {
            @let width = part.share / whole;
            g {
                title { (part.label) ": " (percent(part.share)) }
                rect class=(format!("part c-{}", part.class)) x=(percent_of_width(start)) y="0" width=(percent_of_width(width)) height="44" {}
                @if width >= LABELLED_FROM {
                    (text(&percent_of_width(start + width / 2.0), 27, "inside middle", &percent(part.share)))
                }
            }
        }
    };
    drawing(title, description, 44, body)
}
