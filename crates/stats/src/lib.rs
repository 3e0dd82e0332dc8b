//! Statistics for measurements: location, spread, paired ratios with their confidence, and what they allow to be said.
//!
//! Pure: slices of numbers in, numbers out; no clock, no randomness, no other room of the project. Whatever cannot be
//! computed (an empty sample, a value that is not finite) is `None`, never a made-up number.
//!
//! Measurements have heavy right tails, so location is the median and spread is half the distance between the
//! quartiles or the median absolute deviation; neither moves far for one bad run.

mod paired;
mod sample;

pub use paired::{Interval, Method, Verdict, paired_difference, paired_ratio};
pub use sample::{
    Noise, Summary, geometric_mean, geometric_mean_error, half_iqr, mad, median, noise, outliers, quantile, quartiles,
    summary,
};
