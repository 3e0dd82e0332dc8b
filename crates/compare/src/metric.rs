//! How fast a run was: by its time, or by a number in its output.

use crate::error::CompareError;
use regex::Regex;

/// What is compared.
#[derive(Debug, Clone)]
pub enum Metric {
    /// The time of the whole run: 1 run per wall time.
    WallTime,
    /// A throughput in the output, higher is better.
    Throughput(Regex),
    /// A time in the output, lower is better; its inverse is the speed.
    Time(Regex),
}

impl Metric {
    /// A throughput metric from a regular expression with exactly one capture group.
    ///
    /// # Errors
    /// On an invalid expression, and on any other number of groups.
    pub fn throughput(pattern: &str) -> Result<Self, CompareError> {
        one_group(pattern, "--metric").map(Self::Throughput)
    }

    /// A time metric, likewise.
    ///
    /// # Errors
    /// As [`Self::throughput`].
    pub fn time(pattern: &str) -> Result<Self, CompareError> {
        one_group(pattern, "--metric-time").map(Self::Time)
    }

    /// The speed of a run that took `wall_ns` and wrote `stdout` and `stderr`. The last match counts (benchmarks print
    /// progress first), standard output before standard error.
    ///
    /// # Errors
    /// A sentence when the metric is not in the output, or is not a number above 0.
    pub fn speed(&self, wall_ns: u64, stdout: &str, stderr: &str) -> Result<f64, String> {
        let (regex, is_time) = match self {
            Self::WallTime => return Ok(1e9 / wall_ns.max(1) as f64),
            Self::Throughput(regex) => (regex, false),
            Self::Time(regex) => (regex, true),
        };
        let last = |text| regex.captures_iter(text).filter_map(|captures| captures.get(1)).last().map(|m| m.as_str());
        let found = last(stdout).or_else(|| last(stderr)).ok_or_else(|| {
            format!("the metric `{regex}` does not occur in its output; allowed: a pattern that every run prints")
        })?;
        let value: f64 = found.trim().replace(',', "").parse().unwrap_or(f64::NAN);
        if !(value.is_finite() && value > 0.0) {
            return Err(format!("the metric `{regex}` found `{found}`; allowed: a number above 0"));
        }
        Ok(if is_time { 1.0 / value } else { value })
    }

    /// The work of one run, in the metric's units: one run where a time is compared, speed x time for a throughput.
    pub fn work(&self, speed: f64, wall_ns: u64) -> f64 {
        match self {
            Self::WallTime | Self::Time(_) => 1.0,
            Self::Throughput(_) => speed * wall_ns as f64 / 1e9,
        }
    }

    /// What is counted, unless the user names it.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::WallTime | Self::Time(_) => "runs",
            Self::Throughput(_) => "operations",
        }
    }
}

/// A regular expression given as `option`.
///
/// # Errors
/// When it is not one.
pub fn regex(option: &str, pattern: &str) -> Result<Regex, CompareError> {
    Regex::new(pattern).map_err(|error| {
        // The last line of the crate's multi-line message is the reason.
        let reason = error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        CompareError::bad_input(option, format!("`{pattern}` ({reason})"), "a regular expression")
    })
}

fn one_group(pattern: &str, option: &str) -> Result<Regex, CompareError> {
    let regex = regex(option, pattern)?;
    match regex.captures_len() - 1 {
        1 => Ok(regex),
        groups => Err(CompareError::bad_input(
            option,
            format!("`{pattern}` with {groups} capture groups"),
            "exactly one, around the number, such as 'throughput: ([0-9.]+)'; write (?:...) for other groups",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_match_counts() {
        let metric = Metric::throughput(r"rps=([\d.,]+)").unwrap();
        assert_eq!(metric.speed(1, "rps=10\rrps=56,500.5\n", "rps=3"), Ok(56_500.5));
        assert_eq!(metric.speed(1, "", "rps=3"), Ok(3.0));
    }

    #[test]
    fn a_time_is_inverted() {
        assert_eq!(Metric::time("took ([0-9.]+) s").unwrap().speed(1, "took 0.5 s", ""), Ok(2.0));
        assert_eq!(Metric::WallTime.speed(500_000_000, "", ""), Ok(2.0));
    }

    #[test]
    fn bad_patterns_and_outputs_are_named() {
        for (pattern, word) in [("(", "unclosed group"), ("abc", "0 capture groups"), ("(a)(b)", "2 capture groups")] {
            let message = Metric::throughput(pattern).unwrap_err().to_string();
            assert!(message.contains(word) && message.contains("--metric"), "{message}");
        }
        let metric = Metric::throughput("x=(.*)").unwrap();
        assert!(metric.speed(1, "nothing", "").unwrap_err().contains("does not occur"));
        for bad in ["x=abc", "x=0", "x=-1", "x=inf", "x="] {
            assert!(metric.speed(1, bad, "").unwrap_err().contains("above 0"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_output_is_answered(stdout in "\\PC{0,40}", stderr in "\\PC{0,40}") {
            let _ = Metric::throughput("([0-9.]+)").unwrap().speed(1, &stdout, &stderr);
        }
    }
}
