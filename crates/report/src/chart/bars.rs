//! Horizontal bars on a logarithmic scale, with whiskers: what things cost.

use super::scale::Scale;
use super::{drawing, percent_of_width, text, vertical_grid};
use crate::format::duration;
use maud::{Markup, html};

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// What it stands for.
    pub label: String,
    /// Its length.
    pub ns: f64,
    /// Half the width of its whisker.
    pub spread_ns: Option<f64>,
    /// Whether the value was measured in noise; such a bar is hatched.
    pub is_noisy: bool,
    /// Where the value comes from, shown under the pointer.
    pub source: String,
}

const TOP: u32 = 22;
const ROW: u32 = 32;

/// Bars below one another on `scale`, which all charts of a page share so that their bars compare.
pub fn bars(title: &str, description: &str, scale: &Scale, bars: &[Bar]) -> Markup {
    let height = TOP + ROW * bars.len() as u32 + 4;
    let body = html! {
        (vertical_grid(scale, duration, TOP, height))
        @for (row, bar) in bars.iter().enumerate() { (one_bar(bar, scale, TOP + ROW * row as u32)) }
    };
    drawing(title, description, height, body)
}

fn one_bar(bar: &Bar, scale: &Scale, top: u32) -> Markup {
    let end = scale.place(bar.ns).max(0.004);
    let value = if bar.is_noisy { format!("{} (noisy)", duration(bar.ns)) } else { duration(bar.ns) };
    html! {
        g {
            title { (bar.label) ": " (value) @if let Some(spread) = bar.spread_ns { " ± " (duration(spread)) } " - " (bar.source) }
            (text("0", top + 14, "label", &bar.label))
            (text("100%", top + 14, "value end", &value))
            rect.bar.noisy[bar.is_noisy] x="0" y=(top + 19) width=(percent_of_width(end)) height="9" rx="2" {}
            @if let Some(spread) = bar.spread_ns {
                line.whisker x1=(percent_of_width(scale.place(bar.ns - spread))) x2=(percent_of_width(scale.place(bar.ns + spread)))
                    y1=(f64::from(top) + 23.5) y2=(f64::from(top) + 23.5) {}
            }
        }
    }
}
