//! The page's first paragraph: each document in a sentence or two that need no knowledge of the field.

use crate::format::{duration, percent, ratio, significant};
use crate::input::{Document, Study};
use crate::judge::{errors_by_kind, kind_word};
use muster_model::profile::names;
use muster_model::results::{Comparison, Explanation, SuitePlace, SuiteResults, SuiteRow};
use muster_model::{Distance, Profile};

/// What one document says: what it is about, and sentences.
pub type Gist = (String, Vec<String>);

/// A gist of each document that says something, in their order.
pub fn gists(documents: &[Document]) -> Vec<Gist> {
    let gist = |document: &Document| match document {
        Document::Probe(profile) => (profile.name.clone(), of_probe(profile)),
        Document::Explain(explanation) => (super::short(&explanation.command), of_explanation(explanation)),
        Document::Compare(comparison) => (super::short(&comparison.command), of_comparison(comparison)),
        Document::Study(study) => (format!("Study {}", study.name), of_study(study)),
        Document::Vsuite(results) => ("VSuite".to_owned(), of_suite(results)),
    };
    documents.iter().map(gist).filter(|(_, sentences)| !sentences.is_empty()).collect()
}

fn of_probe(profile: &Profile) -> Vec<String> {
    let platform = &profile.platform;
    let kind = match platform.hypervisor.as_str() {
        "" => "a machine".to_owned(),
        "none" => "no virtual machine".to_owned(),
        hypervisor => format!("a virtual machine on {hypervisor}"),
    };
    let cpus = profile.topology.len();
    let mut sentences = vec![format!("This is {kind} with {cpus} CPU{}.", if cpus == 1 { "" } else { "s" })];
    let near = profile.price_ns(&names::wake_same_cpu("futex"));
    let far = Distance::ALL.iter().find_map(|distance| profile.price_ns(&names::wake("futex", "halted", *distance)));
    if let (Some(near), Some(far)) = (near, far) {
        sentences.push(format!(
            "Waking a thread takes {} on the CPU that wakes it and {} on a CPU that has halted: {}.",
            duration(near),
            duration(far),
            times(far, near)
        ));
    }
    sentences
}

fn times(more: f64, less: f64) -> String {
    match more / less {
        factor if !factor.is_finite() => "no factor can be given".to_owned(),
        factor if factor >= 1.05 => format!("{} times as long", significant(factor)),
        factor if factor >= 0.95 => "no difference".to_owned(),
        factor => format!("{} of the time", percent(factor)),
    }
}

fn of_explanation(explanation: &Explanation) -> Vec<String> {
    let mut sentences: Vec<String> = explanation.findings.iter().take(2).cloned().collect();
    let best = explanation.remedies.iter().find_map(|remedy| Some((remedy, remedy.speed?)));
    if let Some((remedy, speed)) = best.filter(|(_, speed)| speed.value >= 1.05) {
        sentences.push(format!("The remedy {} is predicted to make it {} as fast.", remedy.remedy, ratio(speed.value)));
    }
    sentences
}

fn of_comparison(comparison: &Comparison) -> Vec<String> {
    comparison.arms.iter().filter_map(|arm| arm.verdict.clone()).collect()
}

fn of_study(study: &Study) -> Vec<String> {
    let sentence = |error: crate::judge::KindError| {
        format!(
            "{} {} numbers of the paper are met with a geometric mean error of {} (the worst is off by {}).",
            error.judged,
            kind_word(error.kind),
            percent(error.geometric_mean),
            ratio(error.worst.exp()),
        )
    };
    let mut sentences: Vec<String> = errors_by_kind(&study.numbers).into_iter().map(sentence).collect();
    if let Some(cores) = study.cores {
        let nowhere = study.numbers.iter().filter(|number| number.simulated.is_none() && number.note.is_some()).count();
        sentences.push(format!("It was grown to {cores} cores, for which the paper states no numbers."));
        if nowhere > 0 {
            sentences
                .push(format!("{nowhere} of {} numbers have no value: their runs were given up.", study.numbers.len()));
        }
    }
    sentences
}

/// How well the programs that were measured on the most cores use them, and which loses most in the VM.
fn of_suite(results: &SuiteResults) -> Vec<String> {
    let most = results.rows.iter().map(|row| row.cores).max().unwrap_or(0);
    let on_most = || results.rows.iter().filter(|row| row.cores == most);
    let of_vm = results.vm.as_ref().map(|vm| {
        if !vm.is_timing {
            return "The VM was emulated: what it took is not a timing.".to_owned();
        }
        let worst = on_most().filter_map(|row| Some((row.degradation?, &row.program)));
        let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0));
        worst.map_or_else(String::new, |(loss, program)| {
            format!("On {most} cores {program} loses most by the VM: it takes {} longer than natively.", percent(loss))
        })
    });
    of_native(most, on_most()).into_iter().chain(of_vm.filter(|sentence| !sentence.is_empty())).collect()
}

fn of_native<'a>(most: u32, rows: impl Iterator<Item = &'a SuiteRow>) -> Option<String> {
    let mut speedups: Vec<(f64, &str)> = rows
        .filter(|row| row.place == SuitePlace::Native && most > 1)
        .filter_map(|row| Some((row.speedup?, row.program.as_str())))
        .collect();
    speedups.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (best, worst) = (speedups.first()?, speedups.last()?);
    Some(format!("On {most} cores {} is {} as fast as on 1, {} {}.", best.1, ratio(best.0), worst.1, ratio(worst.0)))
}
