//! Paired measurements: the same thing measured under two conditions in the same round.
//!
//! Alternated runs are paired: the machine's drift (a neighbour, a clock, a warm cache) moves both runs of a round
//! together and cancels in their ratio. So the ratio of each round is taken first and the rounds are summed up after;
//! a ratio of two medians, bootstrapped, would throw the pairing away and, at the 5 to 10 rounds that people wait for,
//! covers too little (the bootstrap's intervals are too narrow in small samples).
//!
//! The estimate is that of Hodges and Lehmann: the median of the averages of all pairs of rounds (Walsh averages), of
//! the logarithms, so that a ratio and its inverse are treated alike. The interval is the exact one that belongs to
//! Wilcoxon's signed-rank test (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, section 3.3): it asks
//! only that rounds are independent and that log ratios are symmetric about their centre. Nothing is drawn at random.
//! It can reach 95 % from 6 rounds on; with 2 to 5 the interval is Student's t, which asks for normal log ratios as
//! well, and says so in its [`Method`].

use crate::sample::{mean_of, median, quantile_of_sorted, sorted};

/// An estimate and the interval that holds the true value with a probability of `confidence`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The estimate.
    pub value: f64,
    /// Upper end.
    pub high: f64,
    /// The confidence that was reached: at least 0.95.
    pub confidence: f64,
    /// How the interval was found.
    pub method: Method,
}

/// How an interval was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Wilcoxon's signed-rank distribution: exact up to [`EXACT_UP_TO`] pairs, by its normal limit above.
    SignedRank,
    /// Student's t; 2 to 5 pairs are too few for the signed-rank distribution to reach 95 %.
    StudentT,
}

/// What a ratio's interval allows to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval lies above 1.
    Above,
    /// The whole interval lies below 1.
    Below,
    /// The whole interval lies so near to 1 that the difference does not matter.
    Same,
    /// The interval holds 1 and more: too noisy, or too few rounds, to tell.
    Undecided,
}

impl Interval {
    /// What this interval of a ratio allows to be said, where ratios within `tolerance` of 1 do not matter.
    pub fn verdict(&self, tolerance: f64) -> Verdict {
        if self.low >= 1.0 - tolerance && self.high <= 1.0 + tolerance {
            Verdict::Same
        } else if self.low > 1.0 {
            Verdict::Above
        } else if self.high < 1.0 {
            Verdict::Below
        } else {
            Verdict::Undecided
        }
    }
}

/// Up to this many pairs the signed-rank distribution is computed exactly; above, its normal limit leaves out at
/// most 5 of the 5000 Walsh averages more or fewer.
pub const EXACT_UP_TO: usize = 100;

/// One side of the 5 % that an interval may miss.
const TAIL: f64 = 0.025;

/// The ratio `treated / baseline` over rounds, with its 95 % confidence interval. `None` when the slices differ in
/// length, hold fewer than 2 rounds, or a value is not finite and above 0.
pub fn paired_ratio(baseline: &[f64], treated: &[f64]) -> Option<Interval> {
    let is_fit = |values: &[f64]| values.iter().all(|value| value.is_finite() && *value > 0.0);
    if baseline.len() != treated.len() || !is_fit(baseline) || !is_fit(treated) {
        return None;
    }
    let logs: Vec<f64> = baseline.iter().zip(treated).map(|(base, treat)| treat.ln() - base.ln()).collect();
    let log = paired_difference(&logs)?;
    Some(Interval { low: log.low.exp(), value: log.value.exp(), high: log.high.exp(), ..log })
}

/// The centre of differences over rounds, with its 95 % confidence interval. `None` for fewer than 2 rounds or a value
/// that is not finite.
pub fn paired_difference(differences: &[f64]) -> Option<Interval> {
    let sorted = sorted(differences)?;
    match sorted.len() {
        0 | 1 => None,
        count @ 2..=5 => Some(student_t(&sorted, T_QUANTILES[count - 2])),
        _ => Some(signed_rank(&sorted)),
    }
}

/// The 97.5 % quantiles of Student's t with 1 to 4 degrees of freedom.
const T_QUANTILES: [f64; 4] = [12.706_204_7, 4.302_652_7, 3.182_446_3, 2.776_445_1];

fn student_t(values: &[f64], quantile: f64) -> Interval {
    let mean = mean_of(values.iter().copied());
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let variance = squares / (values.len() - 1) as f64;
    let half = quantile * (variance / values.len() as f64).sqrt();
    // The median of few rounds may lie off their mean: the interval is widened to hold what is reported.
    let value = median(values).unwrap_or(mean);
    let (low, high) = ((mean - half).min(value), (mean + half).max(value));
    Interval { low, value, high, confidence: 0.95, method: Method::StudentT }
}

fn signed_rank(values: &[f64]) -> Interval {
    let walsh = walsh_averages(values);
    let (cut, confidence) = signed_rank_cut(values.len());
    Interval {
        low: walsh[cut],
        value: quantile_of_sorted(&walsh, 0.5),
        high: walsh[walsh.len() - 1 - cut],
        confidence,
        method: Method::SignedRank,
    }
}

/// The averages of all pairs of values, each with itself too, ascending.
fn walsh_averages(values: &[f64]) -> Vec<f64> {
    let mut averages: Vec<f64> = values
        .iter()
        .enumerate()
        .flat_map(|(index, first)| values[index..].iter().map(move |second| first / 2.0 + second / 2.0))
        .collect();
    averages.sort_by(f64::total_cmp);
    averages
}

/// How many Walsh averages are left out on each side of a 95 % interval, and the confidence that is reached: the
/// largest c with P(T <= c) <= 2.5 %, T being the signed-rank statistic. `count` is at least 6.
fn signed_rank_cut(count: usize) -> (usize, f64) {
    if count > EXACT_UP_TO { normal_cut(count) } else { exact_cut(count) }
}

/// By counting subsets of the ranks 1 to `count` by their sum: each rank is in or out with probability 1/2.
fn exact_cut(count: usize) -> (usize, f64) {
    let mut probability = vec![0.0f64; count * (count + 1) / 2 + 1];
    probability[0] = 1.0;
    for rank in 1..=count {
        for sum in (0..probability.len()).rev() {
            let with_rank = if sum >= rank { probability[sum - rank] } else { 0.0 };
            probability[sum] = (probability[sum] + with_rank) / 2.0;
        }
    }
    let mut below = probability[0];
    let mut cut = 0;
    while below + probability[cut + 1] <= TAIL {
        cut += 1;
        below += probability[cut];
    }
    (cut, 1.0 - 2.0 * below)
}

fn normal_cut(count: usize) -> (usize, f64) {
    let n = count as f64;
    let mean = n * (n + 1.0) / 4.0;
    let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    ((mean - 1.959_964 * deviation - 0.5).floor() as usize, 0.95)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rounds() -> impl Strategy<Value = Vec<(f64, f64)>> {
        proptest::collection::vec((1e-3..1e6f64, 1e-3..1e6f64), 2..30)
    }

    proptest! {
        #[test]
        fn the_estimate_lies_inside_and_the_interval_within_the_rounds(rounds in rounds()) {
            let (base, treat): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
            let ratio = paired_ratio(&base, &treat).unwrap();
            prop_assert!(ratio.low <= ratio.value && ratio.value <= ratio.high);
            prop_assert!(ratio.confidence >= 0.95);
            if ratio.method == Method::SignedRank {
                let ratios: Vec<f64> = base.iter().zip(&treat).map(|(b, t)| t / b).collect();
                let sorted = sorted(&ratios).unwrap();
                prop_assert!(ratio.low >= sorted[0] * (1.0 - 1e-9));
                prop_assert!(ratio.high <= sorted[sorted.len() - 1] * (1.0 + 1e-9));
            }
        }

        #[test]
        fn swapping_the_arms_inverts_the_ratio(rounds in rounds()) {
            let (base, treat): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
            let (one, other) = (paired_ratio(&base, &treat).unwrap(), paired_ratio(&treat, &base).unwrap());
            for (x, y) in [(one.low, other.high), (one.value, other.value), (one.high, other.low)] {
                prop_assert!((x * y - 1.0).abs() < 1e-6, "{x} {y}");
            }
        }

        #[test]
        fn drift_common_to_a_round_cancels(drift in proptest::collection::vec(0.5..2.0f64, 6..20), ratio in 0.1..10.0f64) {
            let treated: Vec<f64> = drift.iter().map(|value| value * ratio).collect();
            let found = paired_ratio(&drift, &treated).unwrap();
            prop_assert!((found.low / ratio - 1.0).abs() < 1e-9 && (found.high / ratio - 1.0).abs() < 1e-9);
        }

        #[test]
        fn any_input_is_answered(a in proptest::collection::vec(any::<f64>(), 0..9), b in proptest::collection::vec(any::<f64>(), 0..9)) {
            let _ = paired_ratio(&a, &b);
            let _ = paired_difference(&a);
        }
    }

    /// R: qsignrank(0.025, n) is the first w with P(T <= w) >= 2.5 %, one more than the cut.
    #[test]
    fn cuts_are_those_of_the_tables() {
        for (count, quantile) in [(6, 1), (7, 3), (8, 4), (9, 6), (10, 9), (15, 26), (20, 53), (25, 90), (50, 435)] {
            assert_eq!(exact_cut(count).0 + 1, quantile, "{count}");
        }
        assert!((exact_cut(6).1 - 0.96875).abs() < 1e-12);
    }

    #[test]
    fn the_normal_limit_continues_the_exact_distribution() {
        let (exact, _) = exact_cut(EXACT_UP_TO);
        let (normal, _) = normal_cut(EXACT_UP_TO);
        assert!(exact.abs_diff(normal) <= 5, "{exact} {normal}");
    }

    /// The promise of the name: of intervals over rounds with a known ratio, at least 95 % hold it. Rounds are drawn
    /// from a fixed linear congruential sequence.
    #[test]
    fn coverage_is_at_least_what_is_claimed() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for count in [6, 7, 10] {
            let held = (0..4000)
                .filter(|_| {
                    // A Laplace distribution: symmetric, with heavier tails than the normal.
                    let logs: Vec<f64> =
                        (0..count).map(|_| uniform().max(1e-12).ln() - uniform().max(1e-12).ln()).collect();
                    let found = paired_difference(&logs).unwrap();
                    found.low <= 0.0 && 0.0 <= found.high
                })
                .count();
            assert!(held as f64 / 4000.0 > 0.945, "{count} rounds: {held} of 4000");
        }
    }

    #[test]
    fn too_little_is_refused() {
        assert_eq!(paired_ratio(&[1.0], &[2.0]), None);
        assert_eq!(paired_ratio(&[1.0, 2.0], &[2.0]), None);
        assert_eq!(paired_ratio(&[1.0, 0.0], &[2.0, 1.0]), None);
    }

    #[test]
    fn verdicts() {
        let interval = |low, high| Interval { low, value: 1.0, high, confidence: 0.95, method: Method::SignedRank };
        assert_eq!(interval(1.2, 1.4).verdict(0.02), Verdict::Above);
        assert_eq!(interval(0.5, 0.9).verdict(0.02), Verdict::Below);
        assert_eq!(interval(0.99, 1.01).verdict(0.02), Verdict::Same);
        assert_eq!(interval(0.8, 1.3).verdict(0.02), Verdict::Undecided);
    }
}
