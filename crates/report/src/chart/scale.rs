//! Scales: from values to places, and the round values to mark.

/// A scale from `low` to `high`; places run from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Equal differences are equal distances.
    Linear {
        /// Value at place 0.
        low: f64,
        /// Value at place 1; above `low`.
        high: f64,
    },
    /// Equal ratios are equal distances; powers of two are marked, for sizes.
    Binary {
        /// Value at place 0; a power of two.
        low: f64,
        /// Value at place 1; a larger one.
        high: f64,
    },
    /// Equal ratios are equal distances.
    Log {
        /// Value at place 0; above 0.
        low: f64,
        /// Value at place 1; above `low`.
        high: f64,
    },
}

impl Scale {
    /// A logarithmic scale of whole decades around the values that are above 0.
    pub fn decades(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = extent(values.into_iter().filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
        let low = 10f64.powf(low.log10().floor().clamp(-300.0, 300.0));
        let high = 10f64.powf(high.log10().ceil().clamp(-300.0, 300.0));
        Self::Log { low, high: if high > low { high } else { low * 10.0 } }
    }

    /// A logarithmic scale from the power of two below to the one above the values that are above 0.
    pub fn binary(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = extent(values.into_iter().filter(|value| *value > 0.0)).unwrap_or((1.0, 2.0));
        let low = low.log2().floor().clamp(-900.0, 900.0).exp2();
        Self::Binary { low, high: high.log2().ceil().clamp(-900.0, 900.0).exp2().max(low * 2.0) }
    }

    /// A logarithmic scale just around the values that are above 0, with a margin.
    pub fn tight_log(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = extent(values.into_iter().filter(|value| *value > 0.0)).unwrap_or((0.5, 2.0));
        Self::Log { low: low.max(1e-300) / 1.12, high: high.min(1e300) * 1.12 }
    }

    /// A linear scale to a round value; from 0 unless all values lie in the upper half of their range.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let (low, high) = extent(values).unwrap_or((0.0, 1.0));
        let low = if low >= 0.0 && low < high / 2.0 || low == high { low.min(0.0) } else { low };
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step(high - low);
        Self::Linear { low: (low / step).floor() * step, high: (high / step).ceil() * step }
    }

    /// Where a value lies, 0 to 1; values outside the scale lie at its ends.
    pub fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } | Self::Binary { low, high } => {
                (value.max(f64::MIN_POSITIVE) / low).ln() / (high / low).ln()
            }
        };
        if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
    }

    /// Round values to mark, ascending: 1-2-5 steps of a linear scale, decades of a logarithmic one, with 2 and 5 in
    /// between where there are fewer than two decades; powers of two of a binary one.
    pub fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { low, high } => {
                let step = round_step(high - low);
                (0..=20)
                    .map(|n| (low / step).ceil() * step + f64::from(n) * step)
                    .take_while(|t| *t <= high * 1.000_001)
                    .collect()
            }
            Self::Binary { low, high } => {
                let exponents = low.log2() as i32..=high.log2() as i32;
                exponents.map(|exponent| f64::from(exponent).exp2()).collect()
            }
            Self::Log { low, high } => {
                let factors: &[f64] = if high / low < 100.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
                let all =
                    exponents.flat_map(|exponent| factors.iter().map(move |factor| factor * 10f64.powi(exponent)));
                all.filter(|tick| *tick >= low * 0.999 && *tick <= high * 1.001).collect()
            }
        }
    }
}

/// Smallest and largest finite value.
fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| value.is_finite()).fold(None, |extent, value| {
        let (low, high) = extent.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// The 1-2-5 step that divides `span` into 4 to 10 parts.
fn round_step(span: f64) -> f64 {
    let rough = (span / 5.0).max(f64::MIN_POSITIVE);
    let magnitude = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * magnitude >= rough * 0.999).unwrap_or(10.0);
    factor * magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_ticks() {
        let decades = Scale::decades([3.0, 700.0]);
        assert_eq!(decades, Scale::Log { low: 1.0, high: 1000.0 });
        assert!((decades.place(10.0) - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(decades.ticks().len(), 4);
        let linear = Scale::linear([0.0, 3.7, 16.0]);
        assert_eq!(
            (linear, linear.ticks()),
            (Scale::Linear { low: 0.0, high: 20.0 }, vec![0.0, 5.0, 10.0, 15.0, 20.0])
        );
    }

    #[test]
    fn degenerate_values_still_make_a_scale() {
        for values in [vec![], vec![f64::NAN], vec![0.0], vec![-1.0], vec![5.0, 5.0], vec![1e308, 1e-308]] {
            let make = [Scale::decades, Scale::binary, Scale::tight_log, Scale::linear];
            for scale in make.map(|make| make(values.clone())) {
                assert!((0.0..=1.0).contains(&scale.place(1.0)), "{values:?} {scale:?}");
                assert!(scale.ticks().len() < 2500, "{values:?} {scale:?}");
            }
        }
    }
}
