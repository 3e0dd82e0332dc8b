//! A study's figures in TOML: any text is read or refused, and every run that a figure names makes an experiment.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_model::study::Figure;

fuzz_target!(|text: &str| {
    if let Ok(figure) = Figure::from_toml(text, "fuzz") {
        for number in &figure.numbers {
            for (run, workload) in number.runs() {
                figure.experiment(run, workload).expect("reading the figure checked its runs");
            }
        }
    }
});
