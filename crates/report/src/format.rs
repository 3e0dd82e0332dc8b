//! Numbers as people read them: three significant digits, a unit that fits, thin thousands.

use muster_model::results::Range;

/// A duration given in nanoseconds, in the unit that leaves 1 to 999 before the point: `1.70 µs`.
pub fn duration(ns: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
    // 0.9995 of a unit already prints as 1.00 of it.
    let (size, unit) = UNITS.into_iter().find(|(size, _)| ns.abs() >= size * 0.9995).unwrap_or((1.0, "ns"));
    format!("{} {unit}", significant(ns / size))
}

/// A number with three significant digits, thousands set apart: `1.70`, `0.0123`, `56,500`.
pub fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() || value.abs() < 1e-4 {
        return format!("{value:.2e}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    // Rounding may carry into the next magnitude (9.996 to 10.0): the digits are chosen after it.
    let scale = 10f64.powi(2 - magnitude);
    let rounded = (value * scale).round() / scale;
    let magnitude = rounded.abs().log10().floor() as i32;
    thousands(&format!("{rounded:.*}", (2 - magnitude).max(0) as usize))
}

/// A whole count, thousands set apart.
pub fn count(value: u64) -> String {
    thousands(&value.to_string())
}

/// A share (0 to 1) as percent: `12.3 %`; what is not 0 never prints as 0.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        0.0 => "0 %".to_owned(),
        p if p < 0.1 => "< 0.1 %".to_owned(),
        p if p < 99.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// A ratio: `2.81x`, `0.38x`; two digits behind the point between 0.1 and 10.
pub fn ratio(value: f64) -> String {
    format!("{}x", ratio_digits(value))
}

fn ratio_digits(value: f64) -> String {
    if (0.095..9.995).contains(&value) { format!("{value:.2}") } else { significant(value) }
}

/// A text as it stands at an axis, whose values are round: zeros that say nothing are dropped (`1.00 ns` to `1 ns`).
pub fn round(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_ascii_digit() || ",.-".contains(c))).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{unit}")
}

/// A ratio with the range it lies in: `2.81x (2.70 to 2.90)`.
pub fn ratio_range(range: &Range) -> String {
    format!("{}x ({} to {})", ratio_digits(range.value), ratio_digits(range.low), ratio_digits(range.high))
}

/// A value with its unit; nanoseconds, bytes and shares are scaled.
pub fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "ns" => duration(value),
        "us" | "µs" => duration(value * 1e3),
        "ms" => duration(value * 1e6),
        "s" => duration(value * 1e9),
        "%" => format!("{} %", significant(value)),
        "x" => ratio(value),
        "" | "1" => significant(value),
        "cycles" => format!("{} cycles", thousands(&format!("{value:.0}"))),
        _ => format!("{} {unit}", significant(value)),
    }
}

fn thousands(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut text = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_take_the_unit_that_fits() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (0.5, "0.500 ns"),
            (1.0, "1.00 ns"),
            (1700.0, "1.70 µs"),
            (999.9, "1.00 µs"),
            (22_500.0, "22.5 µs"),
            (1.5e9, "1.50 s"),
            (7.2e12, "7,200 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn three_digits_count() {
        for (value, text) in [
            (2.812, "2.81"),
            (9.996, "10.0"),
            (0.012_34, "0.0123"),
            (56_512.0, "56,500"),
            (-3.0, "-3.00"),
            (999.6, "1,000"),
            (1e-9, "1.00e-9"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(significant(value), text);
        }
    }

    #[test]
    fn ratios_and_axis_labels() {
        assert_eq!([0.38, 2.814, 13.91, 0.0123].map(ratio), ["0.38x", "2.81x", "13.9x", "0.0123x"]);
        assert_eq!(
            ["1.00 ns", "10.0 µs", "0.50x", "1,000", "2.5"].map(round),
            ["1 ns", "10 µs", "0.5x", "1,000", "2.5"]
        );
    }

    #[test]
    fn shares_that_are_not_zero_never_look_like_it() {
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(1e-6), "< 0.1 %");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
