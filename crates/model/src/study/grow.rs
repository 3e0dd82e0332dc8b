//! A paper's evaluation on more cores than the paper had: the same experiments, with a larger machine and a larger VM.

use super::{Curve, Experiment, Figure, NumberSpec};
use crate::results::StudyKind;

/// Simulated seconds after which a run on more cores is given up where the figure does not say: what more cores make slow,
/// they make hundreds of times slower.
const LIMIT_S: f64 = 600.0;

/// Fields of an experiment that say how large its machine or VM is.
const SIZES: [&str; 3] = ["cores", "vcpus", "pcpus"];

impl Figure {
    /// The most cores that any of its experiments has.
    pub fn largest(&self) -> u32 {
        let tables = std::iter::once(&self.defaults).chain(self.configurations.values());
        let sizes = tables.flat_map(|table| SIZES.iter().filter_map(|&size| table.get(size)?.as_integer()));
        sizes.max().and_then(|most| u32::try_from(most).ok()).unwrap_or(0)
    }

    /// The figure with `to` cores wherever it has `from`, on a machine that is scaled out as far. Experiments on fewer
    /// cores stay, in the larger VM where they are in one; curves go on from `from` by doubling.
    ///
    /// The paper knows nothing of that: what its runs no longer are is predicted, without a reference.
    #[must_use]
    pub fn grown(&self, from: u32, to: u32) -> Self {
        let mut grown = self.clone();
        for table in std::iter::once(&mut grown.defaults).chain(grown.configurations.values_mut()) {
            for size in SIZES {
                if table.get(size).and_then(toml::Value::as_integer) == Some(i64::from(from)) {
                    table.insert(size.to_owned(), i64::from(to).into());
                }
            }
        }
        grown.defaults.insert("scale_out".to_owned(), true.into());
        grown.defaults.entry("limit_s").or_insert(LIMIT_S.into());
        for index in 0..grown.numbers.len() {
            let mut number = grown.numbers[index].clone();
            let runs = number.terms.iter_mut().flat_map(|term| term.measure.runs_mut());
            runs.for_each(|run| *run = on(run, from, to));
            if !self.has_the_same_runs(&grown, &self.numbers[index], &number) {
                (number.row, number.column) = (named(&number.row, from, to), named(&number.column, from, to));
                (number.paper, number.paper_bound, number.kind) = (None, None, StudyKind::Predicted);
            }
            grown.numbers[index] = number;
        }
        for series in &mut grown.series {
            match &mut series.curve {
                Curve::ActiveCpus { run } => *run = on(run, from, to),
                Curve::Speedup { runs, .. } => *runs = runs.iter().flat_map(|run| doubling(run, from, to)).collect(),
                Curve::Values { .. } => {}
            }
        }
        grown
    }

    /// Whether the runs of a number of this figure are those of the `other` figure's number.
    fn has_the_same_runs(&self, other: &Self, ours: &NumberSpec, theirs: &NumberSpec) -> bool {
        let run = |figure: &Self, (run, workload): (&str, &str)| {
            figure.experiment(run, workload).ok().map(|found| Experiment { scale_out: false, limit_s: 0.0, ..found })
        };
        ours.runs().zip(theirs.runs()).all(|(one, two)| run(self, one) == run(other, two))
    }
}

/// A run on `from` cores becomes one on `to`.
fn on(run: &str, from: u32, to: u32) -> String {
    match run.strip_suffix(&format!("@{from}")) {
        Some(name) => format!("{name}@{to}"),
        None => run.to_owned(),
    }
}

/// A run on `from` cores, and those on twice as many and more up to `to`.
fn doubling(run: &str, from: u32, to: u32) -> Vec<String> {
    let Some(name) = run.strip_suffix(&format!("@{from}")) else { return vec![run.to_owned()] };
    let below = std::iter::successors(Some(from), |cores| cores.checked_mul(2)).take_while(|&cores| cores < to);
    below.chain([to]).map(|cores| format!("{name}@{cores}")).collect()
}

fn named(text: &str, from: u32, to: u32) -> String {
    text.replace(&format!("{from} cores"), &format!("{to} cores"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: &str = r#"
        figure = "F"
        programs = ["p"]
        workloads = "w/{program}.json"
        cores = [1, 8]
        [defaults]
        machine = "m.toml"
        cores = 8
        [configurations.native]
        environment = "native"
        [configurations.hvm]
        environment = "hvm"
        vcpus = 8
        [[columns]]
        column = "HVM, {cores} cores"
        unit = "%"
        kind = "calibrated"
        cores = [1, 8]
        measure = { slowdown = { run = "hvm@{cores}", baseline = "native@{cores}" } }
        rows = { p = 5 }
        [[columns]]
        column = "kernel, {cores} cores"
        unit = "%"
        kind = "calibrated"
        cores = [1, 8]
        measure = { kernel-share = { run = "native@{cores}" } }
        rows = { p = 6 }
        [[series]]
        name = "{program}"
        curve = { speedup = { baseline = "native@1", runs = ["hvm@*"] } }
    "#;

    #[test]
    fn what_stays_keeps_its_reference_and_the_rest_is_predicted() {
        let figure = Figure::from_toml(FIGURE, "f.toml").unwrap();
        assert_eq!(figure.largest(), 8);
        let grown = figure.grown(8, 20);
        let told: Vec<_> = grown.numbers.iter().map(|n| (n.column.as_str(), n.paper, n.kind)).collect();
        assert_eq!(
            told,
            [
                ("HVM, 1 cores", None, StudyKind::Predicted),
                ("HVM, 20 cores", None, StudyKind::Predicted),
                ("kernel, 1 cores", Some(6.0), StudyKind::Calibrated),
                ("kernel, 20 cores", None, StudyKind::Predicted),
            ]
        );
        let of = |run: &str| grown.experiment(run, "w/p.json").unwrap();
        assert_eq!((of("hvm@1").cores, of("hvm@1").vcpu_count(), of("hvm").cores), (1, 20, 20));
        assert!(of("native").scale_out);
        let Curve::Speedup { runs, .. } = &grown.series[0].curve else { panic!("{:?}", grown.series) };
        assert_eq!(runs, &["hvm@1", "hvm@8", "hvm@16", "hvm@20"]);
        assert_eq!(figure.grown(8, 8).numbers, figure.numbers, "as large as it is");
    }
}
