//! One sample: where it lies, how wide it is, whether it may be trusted.

/// The five numbers of a sample, and its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// How many values there are; at least 1.
    pub count: usize,
    /// Smallest value.
    pub min: f64,
    /// First quartile.
    pub lower_quartile: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub upper_quartile: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// Half the distance between the quartiles.
    pub fn half_iqr(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0
    }
}

/// What a sample says about the machine it was taken on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Noise {
    /// The spread is within what was tolerated.
    Quiet {
        /// Half the distance between the quartiles, relative to the median.
        relative_spread: f64,
    },
    /// The spread is wider than what was tolerated.
    Noisy {
        /// Half the distance between the quartiles, relative to the median; infinite when the median is 0.
        relative_spread: f64,
    },
    /// Fewer than 3 values, or values that are not finite: nothing can be said.
    Unknown,
}

/// The quantile `p` (0 to 1) of a sample in any order, interpolated linearly between order statistics (Hyndman and Fan
/// 1996, type 7, as R and NumPy do by default). `None` for an empty sample, a value that is not finite or a `p`
/// outside 0 to 1.
pub fn quantile(values: &[f64], p: f64) -> Option<f64> {
    let sorted = sorted(values)?;
    (0.0..=1.0).contains(&p).then(|| quantile_of_sorted(&sorted, p))
}

/// The median of a sample in any order; `None` for an empty sample or a value that is not finite.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The first and third quartile of a sample in any order; `None` as for [`median`].
pub fn quartiles(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values)?;
    Some((quantile_of_sorted(&sorted, 0.25), quantile_of_sorted(&sorted, 0.75)))
}

/// Half the distance between the quartiles; `None` as for [`median`].
pub fn half_iqr(values: &[f64]) -> Option<f64> {
    quartiles(values).map(|(lower, upper)| (upper - lower) / 2.0)
}

/// The median absolute deviation from the median, not scaled; `None` as for [`median`].
pub fn mad(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&deviations)
}

/// All five numbers of a sample at once; `None` as for [`median`].
pub fn summary(values: &[f64]) -> Option<Summary> {
    let sorted = sorted(values)?;
    Some(Summary {
        count: sorted.len(),
        min: sorted[0],
        lower_quartile: quantile_of_sorted(&sorted, 0.25),
        median: quantile_of_sorted(&sorted, 0.5),
        upper_quartile: quantile_of_sorted(&sorted, 0.75),
        max: sorted[sorted.len() - 1],
    })
}

/// The geometric mean; `None` for an empty sample and for a value that is not finite and above 0.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let is_fit = !values.is_empty() && values.iter().all(|value| value.is_finite() && *value > 0.0);
    is_fit.then(|| mean_of(values.iter().map(|value| value.ln())).exp())
}

/// The geometric mean of relative errors given as `|ln(simulated / paper)|`: exp(mean) - 1. `None` for an empty
/// sample and for a value that is not finite.
pub fn geometric_mean_error(log_errors: &[f64]) -> Option<f64> {
    let is_fit = !log_errors.is_empty() && log_errors.iter().all(|error| error.is_finite());
    is_fit.then(|| mean_of(log_errors.iter().copied()).exp_m1())
}

/// Whether the spread of a sample of at least 3 values stays within `tolerance`, a share of the median.
pub fn noise(values: &[f64], tolerance: f64) -> Noise {
    let Some(summary) = summary(values).filter(|summary| summary.count >= 3) else { return Noise::Unknown };
    let spread = summary.half_iqr();
    let relative_spread = if spread == 0.0 { 0.0 } else { spread / summary.median.abs() };
    if relative_spread <= tolerance { Noise::Quiet { relative_spread } } else { Noise::Noisy { relative_spread } }
}

/// The positions of outliers: values whose modified z-score, 0.6745 (x - median) / MAD, exceeds 3.5 (Iglewicz and
/// Hoaglin 1993). Empty for fewer than 3 values, for values that are not finite and where the MAD is 0.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    let (Some(middle), Some(mad)) = (median(values), mad(values)) else { return Vec::new() };
    if values.len() < 3 || mad == 0.0 {
        return Vec::new();
    }
    let is_outlier = |value: f64| 0.6745 * (value - middle).abs() / mad > 3.5;
    values.iter().enumerate().filter(|&(_, &value)| is_outlier(value)).map(|(index, _)| index).collect()
}

/// The values in ascending order; `None` when there is none, or one is not finite.
pub(crate) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

pub(crate) fn quantile_of_sorted(sorted: &[f64], p: f64) -> f64 {
    let position = p * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let share = position - below as f64;
    // A weighted sum instead of `low + share * (high - low)`: the difference of two large values may overflow.
    (1.0 - share) * sorted[below] + share * sorted[above]
}

pub(crate) fn mean_of(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn finite() -> impl Strategy<Value = Vec<f64>> {
        proptest::collection::vec(-1e9..1e9f64, 1..60)
    }

    proptest! {
        #[test]
        fn five_numbers_are_in_order(values in finite()) {
            let s = summary(&values).unwrap();
            prop_assert!(s.min <= s.lower_quartile && s.lower_quartile <= s.median);
            prop_assert!(s.median <= s.upper_quartile && s.upper_quartile <= s.max);
            prop_assert_eq!(Some(s.median), median(&values));
            prop_assert_eq!(Some(s.half_iqr()), half_iqr(&values));
        }

        #[test]
        fn half_of_the_values_lie_on_each_side_of_the_median(values in finite()) {
            let middle = median(&values).unwrap();
            let below = values.iter().filter(|value| **value < middle).count();
            let above = values.iter().filter(|value| **value > middle).count();
            prop_assert!(2 * below <= values.len() && 2 * above <= values.len());
        }

        #[test]
        fn order_does_not_matter(mut values in finite()) {
            let before = (summary(&values), mad(&values));
            values.reverse();
            prop_assert_eq!(before, (summary(&values), mad(&values)));
        }

        #[test]
        fn shifting_moves_location_and_leaves_spread(values in finite(), shift in -1e6..1e6f64) {
            let shifted: Vec<f64> = values.iter().map(|value| value + shift).collect();
            prop_assert!((median(&shifted).unwrap() - median(&values).unwrap() - shift).abs() < 1e-3);
            prop_assert!((mad(&shifted).unwrap() - mad(&values).unwrap()).abs() < 1e-3);
        }

        #[test]
        fn fewer_than_half_of_the_values_cannot_carry_the_median_away(
            values in proptest::collection::vec(1.0..2.0f64, 3..40),
        ) {
            let mut spoiled = values.clone();
            let bad = (values.len() - 1) / 2;
            spoiled[..bad].fill(1e12);
            prop_assert!(median(&spoiled).unwrap() <= 2.0);
        }

        #[test]
        fn geometric_mean_lies_between_the_extremes(values in proptest::collection::vec(1e-6..1e6f64, 1..40)) {
            let s = summary(&values).unwrap();
            let mean = geometric_mean(&values).unwrap();
            prop_assert!(s.min * (1.0 - 1e-9) <= mean && mean <= s.max * (1.0 + 1e-9));
        }

        #[test]
        fn any_input_is_answered(values in proptest::collection::vec(any::<f64>(), 0..20), p in any::<f64>()) {
            let is_fit = !values.is_empty() && values.iter().all(|value| value.is_finite());
            prop_assert_eq!(median(&values).is_some(), is_fit);
            let _ = (quantile(&values, p), mad(&values), noise(&values, 0.1), outliers(&values));
        }
    }

    #[test]
    fn known_values() {
        // R: quantile(c(1, 2, 4, 8), c(.25, .5, .75)) gives 1.75, 3, 5.
        let values = [8.0, 1.0, 4.0, 2.0];
        assert_eq!(quartiles(&values), Some((1.75, 5.0)));
        assert_eq!(median(&values), Some(3.0));
        assert_eq!(half_iqr(&values), Some(1.625));
        assert_eq!(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), Some(1.0));
        assert!((geometric_mean(&[1.0, 4.0, 16.0]).unwrap() - 4.0).abs() < 1e-12);
        assert!((geometric_mean_error(&[1.1f64.ln(), 1.1f64.ln()]).unwrap() - 0.1).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(summary(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean_error(&[]), None);
        assert_eq!(noise(&[1.0, 1.0], 0.1), Noise::Unknown);
    }

    #[test]
    fn noise_and_outliers() {
        assert_eq!(noise(&[5.0; 4], 0.0), Noise::Quiet { relative_spread: 0.0 });
        assert!(matches!(noise(&[1.0, 2.0, 3.0, 4.0], 0.1), Noise::Noisy { .. }));
        assert_eq!(outliers(&[10.0, 10.1, 9.9, 10.2, 30.0]), vec![4]);
        assert_eq!(outliers(&[10.0, 10.1, 9.9, 10.2]), Vec::<usize>::new());
    }
}
