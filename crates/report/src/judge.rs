//! How far results can be trusted: a simulation's errors by kind (DESIGN section 4), an estimate's confidence.

use crate::format::{percent, with_unit};
use muster_model::ledger::Confidence;
use muster_model::results::{StudyKind, StudyNumber};
use muster_stats::geometric_mean_error;

/// The judged numbers of one kind together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindError {
    /// Which kind.
    pub kind: StudyKind,
    /// How many numbers have a relative error.
    pub judged: usize,
    /// exp(mean error) - 1.
    pub geometric_mean: f64,
    /// The largest |ln(simulated / paper)|.
    pub worst: f64,
}

/// The errors of each judged kind that has any, predicted first.
pub fn errors_by_kind(numbers: &[StudyNumber]) -> Vec<KindError> {
    let of_kind = |kind| {
        let judged = numbers.iter().filter(|number| number.kind == kind && !number.in_points);
        let errors: Vec<f64> = judged.filter_map(|number| number.error).collect();
        let worst = errors.iter().copied().fold(0.0, f64::max);
        let geometric_mean = geometric_mean_error(&errors)?;
        Some(KindError { kind, judged: errors.len(), geometric_mean, worst })
    };
    [StudyKind::Predicted, StudyKind::Calibrated].into_iter().filter_map(of_kind).collect()
}

/// A number's error as text: `12.3 %`, `1.2 points` or `-`.
pub fn error_text(number: &StudyNumber) -> String {
    match number.error {
        None => "-".to_owned(),
        Some(error) if number.in_points => format!("{error:.1} points"),
        Some(error) => percent(error.exp_m1()),
    }
}

/// What the simulator says as text: a value, what that leaves out, or why there is none.
pub fn simulated_text(number: &StudyNumber) -> String {
    let value = number.simulated.map(|value| with_unit(value, &number.unit));
    let known = [value, number.note.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
    if known.is_empty() { "-".to_owned() } else { known }
}

/// The kind in one word.
pub fn kind_word(kind: StudyKind) -> &'static str {
    match kind {
        StudyKind::Calibrated => "calibrated",
        StudyKind::Predicted => "predicted",
        StudyKind::Contested => "contested",
        StudyKind::Withheld => "withheld",
    }
}

/// The kind as a table's title.
pub fn kind_title(kind: StudyKind) -> &'static str {
    match kind {
        StudyKind::Calibrated => "Calibrated: the simulator's free parameters may be fitted to these",
        StudyKind::Predicted => "Predicted: what the simulator is judged by",
        StudyKind::Contested => "Contested: the paper contradicts itself, no reading is judged",
        StudyKind::Withheld => "Withheld: the paper's value is kept back",
    }
}

/// How sure an estimate is, in one word.
pub fn confidence_word(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_what_it_leaves_out_and_why_it_has_no_value() {
        let text = |fields: &str| {
            let number = format!(
                r#"{{"study":"s","figure":"f","row":"r","column":"c","unit":"x","paper":null,"kind":"predicted","error":null,{fields}}}"#
            );
            simulated_text(&serde_json::from_str(&number).unwrap())
        };
        assert_eq!(text(r#""simulated":2.5"#), with_unit(2.5, "x"));
        assert_eq!(text(r#""simulated":null,"note":"no progress""#), "no progress");
        assert_eq!(text(r#""simulated":2.5,"note":"without gmake""#), with_unit(2.5, "x") + "; without gmake");
    }
}
