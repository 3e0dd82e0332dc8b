//! Values with the intervals they lie in, on a logarithmic scale around 1; and single runs as dots.

use super::scale::Scale;
use super::{drawing, percent_of_width, text, vertical_grid};
use crate::format::{ratio, ratio_range, significant};
use maud::{Markup, html};
use muster_model::results::Range;

const TOP: u32 = 22;
const ROW: u32 = 38;

/// One ratio to 1 and its interval a row.
pub fn ratios(title: &str, description: &str, rows: &[(String, Range)]) -> Markup {
    let values = rows.iter().flat_map(|(_, range)| [range.low, range.value, range.high]).chain([0.8, 1.25]);
    let scale = Scale::tight_log(values);
    let height = TOP + ROW * rows.len() as u32 + 4;
    let one = percent_of_width(scale.place(1.0));
    let body = html! {
        (vertical_grid(&scale, ratio, TOP, height))
        line.one x1=(one) x2=(one) y1=(TOP) y2=(height) {}
        @for (row, (label, range)) in rows.iter().enumerate() {
            @let top = TOP + ROW * row as u32;
            @let y = top + 26;
            @let [low, value, high] = [range.low, range.value, range.high].map(|value| percent_of_width(scale.place(value)));
            g {
                title { (label) ": " (ratio_range(range)) }
                (text("0", top + 14, "label", label))
                (text("100%", top + 14, "value end", &ratio_range(range)))
                line.interval x1=(low) x2=(high) y1=(y) y2=(y) {}
                line.interval x1=(low) x2=(low) y1=(y - 5) y2=(y + 5) {}
                line.interval x1=(high) x2=(high) y1=(y - 5) y2=(y + 5) {}
                circle.estimate cx=(value) cy=(y) r="5" {}
            }
        }
    };
    drawing(title, description, height, body)
}

/// Every value a dot, one row a sample, with a line at its median.
pub fn dots(title: &str, description: &str, unit: &str, rows: &[(String, Vec<f64>)]) -> Markup {
    let scale = Scale::linear(rows.iter().flat_map(|(_, values)| values.iter().copied()));
    let height = TOP + ROW * rows.len() as u32 + 4;
    let body = html! {
        (vertical_grid(&scale, significant, TOP, height))
        @for (row, (label, values)) in rows.iter().enumerate() {
            @let top = TOP + ROW * row as u32;
            @let y = top + 26;
            (text("0", top + 14, "label", label))
            @if let Some(median) = muster_stats::median(values) {
                @let x = percent_of_width(scale.place(median));
                (text("100%", top + 14, "value end", &format!("{} {unit}", significant(median))))
                line.median x1=(x) x2=(x) y1=(y - 8) y2=(y + 8) {}
            }
            @for value in values {
                circle.run cx=(percent_of_width(scale.place(*value))) cy=(y) r="4" { title { (significant(*value)) " " (unit) } }
            }
        }
    };
    drawing(title, description, height, body)
}
