//! Tables for the terminal: a ledger, an explanation, a comparison, a study, a suite.
//!
//! Every table fits the terminal it is printed on; into a file or a pipe it is [`PLAIN_WIDTH`] wide.

use crate::format::{count, duration, percent, ratio, ratio_range, significant, with_unit};
use crate::judge::{KindError, errors_by_kind};
use comfy_table::{Cell, CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle};
use muster_model::host::{Finding, HostAudit, Severity};
use muster_model::results::{
    Arm, Comparison, Explanation, HomeCheck, Prediction, Projected, Projection, StudyKind, StudyResults, SuiteCheck,
    SuiteMeasure, SuitePlace, SuiteResults, SuiteRow, SuiteVm,
};
use muster_model::{Account, Amount, Ledger};
use std::fmt::Write;

/// Width of a table that is not printed on a terminal.
pub const PLAIN_WIDTH: u16 = 110;

/// One line under the header and nothing else: numbers are told apart by their columns.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none().junction(' '));

/// A ledger: account by account how much core time, which share, how sure, and where the number comes from.
pub fn ledger(ledger: &Ledger) -> String {
    ledger_at(ledger, terminal_width())
}

/// What `muster explain` found: findings, ledger, signals, remedies, channels.
pub fn explanation(explanation: &Explanation) -> String {
    explanation_at(explanation, terminal_width())
}

/// What `muster compare` measured: one row an arm, the verdicts below.
pub fn comparison(comparison: &Comparison) -> String {
    comparison_at(comparison, terminal_width())
}

/// What `muster study` computed beside the paper's numbers, and the errors of each kind.
pub fn study(study: &StudyResults) -> String {
    study_at(study, terminal_width())
}

/// What `muster vsuite` measured: one row a program and number of cores, and what did not run.
pub fn suite(results: &SuiteResults) -> String {
    suite_at(results, terminal_width())
}

/// The rows of a program, in short.
pub fn suite_news(results: &SuiteResults, program: &str) -> Vec<String> {
    let line = |row: &SuiteRow| {
        let place = match row.place {
            SuitePlace::Native => "",
            SuitePlace::Vm => " in the VM",
        };
        let degradation = match row.place {
            SuitePlace::Native => String::new(),
            SuitePlace::Vm => format!(", degradation: {}", degradation(row)),
        };
        let SuiteTexts { median, spread, speedup, check, .. } = SuiteTexts::of(row);
        format!("{program} on {}{place}: {median} {spread}, speed-up {speedup}{degradation}, {check}", row.cores)
    };
    results.rows.iter().filter(|row| row.program == program).map(line).collect()
}

/// The virtual machine of a suite: what it is, and what has to be known about it, a line each.
pub fn suite_vm(vm: &SuiteVm) -> Vec<String> {
    let emulated = if vm.is_timing { "" } else { ", emulated: NOT A TIMING" };
    let mut lines = vec![format!("VM: {}, Linux {}{emulated}", vm.accelerator.name(), vm.kernel)];
    if vm.is_timing && vm.kernel != vm.host_kernel {
        lines.push(format!("natively Linux {}: what the kernels differ in is in the degradation", vm.host_kernel));
    }
    lines.extend(vm.note.clone());
    lines
}

/// The columns of a suite, and which of them hold numbers.
pub(crate) fn suite_header(has_vm: bool) -> (Vec<&'static str>, Vec<usize>) {
    if has_vm {
        let names = ["program", "cores", "median", "spread", "speed-up", "degradation", "kernel share", "result"];
        (names.to_vec(), vec![2, 3, 4, 5, 6])
    } else {
        let names = ["program", "cores", "median", "spread", "speed-up", "kernel share", "result"];
        (names.to_vec(), vec![1, 2, 3, 4, 5])
    }
}

/// A row of a suite, as text.
pub(crate) fn suite_row(row: &SuiteRow, has_vm: bool) -> Vec<String> {
    let SuiteTexts { median, spread, speedup, check } = SuiteTexts::of(row);
    let place = match row.place {
        SuitePlace::Native => "",
        SuitePlace::Vm => " VM",
    };
    let (program, cores, kernel_share) = (row.program.clone(), row.cores.to_string(), percent(row.kernel_share));
    if has_vm {
        vec![program, cores + place, median, spread, speedup, degradation(row), kernel_share, check]
    } else {
        vec![program, cores, median, spread, speedup, kernel_share, check]
    }
}

fn degradation(row: &SuiteRow) -> String {
    match (row.place, row.degradation) {
        (SuitePlace::Native, _) => "-".to_owned(),
        (SuitePlace::Vm, Some(loss)) => percent(loss),
        (SuitePlace::Vm, None) => "not a timing".to_owned(),
    }
}

/// What a row holds, as text.
struct SuiteTexts {
    median: String,
    spread: String,
    speedup: String,
    check: String,
}

impl SuiteTexts {
    fn of(row: &SuiteRow) -> Self {
        let median = match row.measure {
            SuiteMeasure::Seconds => duration(row.median * 1e9),
            SuiteMeasure::MegabytesPerSecond => with_unit(row.median, "MB/s"),
        };
        let check = match row.check {
            SuiteCheck::Verified => "verified",
            SuiteCheck::Differs => "WRONG",
            SuiteCheck::NoResult => "none to verify",
        };
        Self {
            median,
            spread: row.spread.map_or("-".to_owned(), |spread| format!("± {}", percent(spread))),
            speedup: row.speedup.map_or("-".to_owned(), ratio),
            check: check.to_owned(),
        }
    }
}

/// What `muster host audit` found: what to do, then what is fine, then what could not be read.
pub fn host_audit(audit: &HostAudit) -> String {
    host_audit_at(audit, terminal_width())
}

fn host_audit_at(audit: &HostAudit, width: u16) -> String {
    if let Some(why) = &audit.no_host {
        return format!("{why}\n");
    }
    const ORDER: [Severity; 4] = [Severity::Act, Severity::Consider, Severity::Unknown, Severity::Fine];
    let of = |severity| audit.findings.iter().filter(move |finding| finding.severity == severity);
    let mut table = new_table(width, &["", "knob", "what was found, and what follows"]);
    for severity in ORDER {
        let findings: Vec<&Finding> = of(severity).collect();
        table.add_rows(findings.chunk_by(|a, b| is_same_advice(a, b)).map(host_row));
    }
    let mut text = format!("{}\n", table.trim_fmt());
    if !audit.unreadable.is_empty() {
        text.push_str("\nnot readable by this user:\n");
        audit.unreadable.iter().for_each(|one| text.push_str(&format!("  {}: {}\n", one.path, one.why)));
    }
    let [act, consider, unknown, fine] = ORDER.map(|severity| of(severity).count());
    let _infallible = writeln!(
        text,
        "\n{act} to act on, {consider} to consider, {unknown} unknown, {fine} fine. `muster host apply` sets what is to act \
         on,\n`muster host apply KNOB` also what that knob has to consider."
    );
    text
}

/// Whether two findings differ only in what they are about and what was found there, such as those of many VMs.
fn is_same_advice(one: &Finding, other: &Finding) -> bool {
    let advice = |finding: &Finding| Finding { subject: String::new(), found: String::new(), ..finding.clone() };
    advice(one) == advice(other)
}

/// Findings of the same advice in one row, that advice a line each.
fn host_row(findings: &[&Finding]) -> [String; 3] {
    let finding = findings[0];
    let mut lines: Vec<String> = findings.iter().map(|one| format!("{}: {}", one.subject, one.found)).collect();
    let see = format!("see: {}", finding.sources.join("; "));
    if finding.severity == Severity::Fine {
        lines.push(format!("{} ({see})", finding.reason));
    } else {
        lines.push(finding.reason.clone());
        lines.extend(finding.gain.as_ref().map(|gain| format!("gain: {gain}")));
        lines.extend(finding.settings.iter().map(|setting| format!("sets: {setting}")));
        let mut notes: Vec<&str> = finding.settings.iter().filter_map(|setting| setting.effect().note()).collect();
        notes.dedup();
        lines.extend(notes.into_iter().map(|note| format!("note: {note}")));
        lines.extend(finding.by_hand.as_ref().map(|what| format!("by hand: {what}")));
        lines.push(see);
    }
    [finding.severity.name().to_owned(), finding.knob.name().to_owned(), lines.join("\n")]
}

fn suite_at(results: &SuiteResults, width: u16) -> String {
    let mut text = format!(
        "{}, {} core{}, scale {}, seed {}\n",
        results.platform,
        results.cores,
        if results.cores == 1 { "" } else { "s" },
        results.scale,
        results.seed
    );
    if let Some(vm) = &results.vm {
        suite_vm(vm).iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    if !results.rows.is_empty() {
        let (names, numeric) = suite_header(results.vm.is_some());
        let mut table = new_table(width, &names);
        align_right(&mut table, &numeric);
        table.add_rows(results.rows.iter().map(|row| suite_row(row, results.vm.is_some())));
        let _ = write!(text, "\n{}\n", table.trim_fmt());
    }
    for skip in &results.skipped {
        let _ = writeln!(text, "SKIPPED: {}: {}", skip.program, skip.why);
    }
    text
}

fn ledger_at(ledger: &Ledger, width: u16) -> String {
    let mut table = new_table(width, &["account", "core time", "share", "", "how sure", "from"]);
    align_right(&mut table, &[1, 2]);
    for account in Account::ALL {
        if let Some(amount) = ledger.accounts.get(&account) {
            table.add_row(ledger_row(account, amount, ledger.share(account)));
        }
    }
    let cores = if ledger.cores == 1 { "core" } else { "cores" };
    format!(
        "{} on {} {cores}: {} of core time\n{}\n",
        duration(ledger.wall_ns as f64),
        ledger.cores,
        duration(ledger.total_ns()),
        table.trim_fmt()
    )
}

fn ledger_row(account: Account, amount: &Amount, share: Option<f64>) -> [String; 6] {
    let time = amount.time_ns().map(duration);
    let (time, sure, from) = match amount {
        Amount::Exact { .. } => (time.unwrap_or_default(), "exact".to_owned(), "booked by the simulator".to_owned()),
        Amount::Accounted { confidence, source, .. } => {
            (time.unwrap_or_default(), crate::judge::confidence_word(*confidence).to_owned(), source.clone())
        }
        Amount::Estimated { count: n, price_ns, confidence, source } => {
            let product = format!("{} x {}: {source}", count(*n), duration(*price_ns));
            (time.unwrap_or_default(), crate::judge::confidence_word(*confidence).to_owned(), product)
        }
        Amount::AtMost { time_ns, derivation } => {
            (format!("<= {}", duration(*time_ns as f64)), "bound".to_owned(), derivation.clone())
        }
        Amount::NotObservable { reason } => ("-".to_owned(), "not observable here".to_owned(), reason.clone()),
    };
    let bar = share.map(|share| bar(share, 10)).unwrap_or_default();
    [account.name().to_owned(), time, share.map(percent).unwrap_or_default(), bar, sure, from]
}

fn explanation_at(explanation: &Explanation, width: u16) -> String {
    let mut text = format!("{}\n\n", explanation.command);
    for finding in &explanation.findings {
        let _ = writeln!(text, "  {finding}");
    }
    let _ = writeln!(text, "\nWhere the time went: {}", ledger_at(&explanation.ledger, width));
    if !explanation.remedies.is_empty() {
        let _ = writeln!(text, "What would help:\n{}\n", remedies(&explanation.remedies, width));
    }
    if let Some(projection) = &explanation.projection {
        let _ = writeln!(text, "{}", projection_at(projection, width));
    }
    if !explanation.signals.is_empty() {
        let mut table = new_table(width, &["signal", "value"]);
        align_right(&mut table, &[1]);
        for signal in &explanation.signals {
            table.add_row([signal.name.clone(), with_unit(signal.value, &signal.unit)]);
        }
        let _ = writeln!(text, "What it rests on:\n{}\n", table.trim_fmt());
    }
    let _ = writeln!(text, "Channels read: {}", explanation.channels_used.join(", "));
    for missing in &explanation.channels_missing {
        let _ = writeln!(text, "Missing: {missing}");
    }
    text
}

fn remedies(predictions: &[Prediction], width: u16) -> String {
    let mut table = new_table(width, &["remedy", "speed", "CPU per work", "because", "command"]);
    for prediction in predictions {
        table.add_row([
            prediction.remedy.clone(),
            prediction.speed.as_ref().map_or("not known".to_owned(), ratio_range),
            prediction.cpu_per_work.as_ref().map_or("not known".to_owned(), ratio_range),
            prediction.because.clone(),
            prediction.command.clone().unwrap_or_default(),
        ]);
    }
    table.trim_fmt()
}

/// What the program would meet on more vCPUs, and how well the recording reproduces it at home.
fn projection_at(projection: &Projection, width: u16) -> String {
    let Projection { home, found, .. } = projection;
    let mut text = format!("On {} vCPUs (simulated, predicted):\n", projection.vcpus);
    match found {
        Some(found) => text.push_str(&projected(projection, found, width)),
        None => {
            let why = why_not_told(home);
            let _ = writeln!(text, "  Not told: {why}.");
        }
    }
    let _ = writeln!(
        text,
        "  Checked at home, on {} vCPUs: {:.2} CPUs busy, simulated {:.2}; {} halts/s, simulated {}: off by {}, allowed {}.",
        home.vcpus,
        home.cpu_rate.seen,
        home.cpu_rate.simulated,
        significant(home.halts_per_s.seen),
        significant(home.halts_per_s.simulated),
        percent(home.error),
        percent(home.allowed)
    );
    if let Some(handovers) = &home.handovers {
        let seen = handovers.seen_per_s;
        let _ = writeln!(
            text,
            "  {} hand-overs/s ({} to {}), simulated {}: off by {}, allowed {}.",
            significant(seen.value),
            significant(seen.low),
            significant(seen.high),
            significant(handovers.simulated_per_s),
            percent(handovers.error),
            percent(handovers.allowed)
        );
    }
    for assumption in &projection.assumptions {
        let _ = writeln!(text, "  Assumed: {assumption}.");
    }
    text
}

/// Which check at home failed, and what that means.
pub(crate) fn why_not_told(home: &HomeCheck) -> &'static str {
    if home.error <= home.allowed {
        return "simulated at home, its threads do not hand over as often as they did, so that they do another amount of work for each hand-over than was recorded, and what remedies give back would be wrong";
    }
    "what was recorded does not behave at home as the program did; it fits programs that do the same all the time, on a quiet machine"
}

fn projected(projection: &Projection, found: &Projected, width: u16) -> String {
    let mut table = new_table(width, &["remedy", "vCPUs in use", "speed", "CPU per work"]);
    align_right(&mut table, &[1, 2, 3]);
    table.add_row(["none".to_owned(), projection.vcpus.to_string(), ratio(1.0), ratio(1.0)]);
    for remedy in &found.remedies {
        table.add_row([
            remedy.remedy.clone(),
            remedy.vcpus.to_string(),
            ratio(remedy.speed),
            ratio(remedy.cpu_per_work),
        ]);
    }
    format!(
        "  {} of this program, {} threads in all, would be {} times as fast without virtualization.\n  {} transitions to \
         idle a second; {} of core time goes into halting and waking.\n{}\n",
        if projection.copies == 1 { "One copy".to_owned() } else { format!("{} copies", projection.copies) },
        projection.threads,
        significant(found.slowdown),
        significant(found.idle_transitions_per_s),
        percent(found.waking_share),
        table.trim_fmt()
    )
}

fn comparison_at(comparison: &Comparison, width: u16) -> String {
    let speed = format!("{}/s", comparison.metric);
    let mut table = new_table(
        width,
        &[
            "arm",
            "runs",
            &speed,
            "spread",
            "speed (95 % CI)",
            "CPU per work (95 % CI)",
            "machine CPU per work",
            "halts/s",
            "switches/s",
        ],
    );
    align_right(&mut table, &[1, 2, 3, 7, 8]);
    for arm in &comparison.arms {
        table.add_row(arm_row(arm));
    }
    let mut text = format!("{}\n\n{}\n", comparison.command, table.trim_fmt());
    for verdict in comparison.arms.iter().filter_map(|arm| arm.verdict.as_deref()) {
        let _ = writeln!(text, "  {verdict}");
    }
    for note in &comparison.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

fn arm_row(arm: &Arm) -> [String; 9] {
    let range = |range: &Option<_>| range.as_ref().map_or("1".to_owned(), ratio_range);
    let rates = |of: fn(&muster_model::results::Run) -> Option<u64>| {
        let rates: Option<Vec<f64>> =
            arm.runs.iter().map(|run| of(run).map(|n| n as f64 * 1e9 / run.wall_ns.max(1) as f64)).collect();
        rates.and_then(|rates| muster_stats::median(&rates)).map_or("-".to_owned(), significant)
    };
    let spread = if arm.median_speed > 0.0 { percent(arm.spread / arm.median_speed) } else { "-".to_owned() };
    [
        arm.name.clone(),
        arm.runs.len().to_string(),
        significant(arm.median_speed),
        format!("± {spread}"),
        range(&arm.speed_ratio),
        range(&arm.cpu_ratio),
        range(&arm.machine_cpu_ratio),
        rates(|run| run.idle_entries),
        rates(|run| run.switches),
    ]
}

fn study_at(study: &StudyResults, width: u16) -> String {
    let grown = study.cores.map_or_else(String::new, |cores| format!(", on {cores} cores"));
    let mut text = format!("study {} (seed {}{grown})\n", study.study, study.seed);
    for kind in [StudyKind::Predicted, StudyKind::Calibrated, StudyKind::Contested, StudyKind::Withheld] {
        let numbers: Vec<_> = study.numbers.iter().filter(|number| number.kind == kind).collect();
        if numbers.is_empty() {
            continue;
        }
        let mut table = new_table(width, &["figure", "row", "column", "paper", "simulated", "error"]);
        align_right(&mut table, &[3, 4, 5]);
        for number in numbers {
            let paper = number.paper.map(|value| with_unit(value, &number.unit));
            table.add_row([
                number.figure.clone(),
                number.row.clone(),
                number.column.clone(),
                paper.or_else(|| number.paper_bound.clone()).unwrap_or_else(|| "-".to_owned()),
                crate::judge::simulated_text(number),
                crate::judge::error_text(number),
            ]);
        }
        let _ = write!(text, "\n{}\n{}\n", crate::judge::kind_title(kind), table.trim_fmt());
    }
    for KindError { kind, judged, geometric_mean, worst } in errors_by_kind(&study.numbers) {
        let _ = writeln!(
            text,
            "{}: {judged} numbers judged, geometric mean error {}, worst {}",
            crate::judge::kind_word(kind),
            percent(geometric_mean),
            ratio(worst.exp()),
        );
    }
    text
}

/// A bar of `width` characters for a share of 1, in eighths of a character.
fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

fn terminal_width() -> u16 {
    Table::new().width().unwrap_or(PLAIN_WIDTH).max(60)
}

fn new_table(width: u16, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table.set_header(header.iter().map(|title| Cell::new(*title)));
    table
}

fn align_right(table: &mut Table, columns: &[usize]) {
    for &index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::host::{Effect, Knob, Setting, Unreadable};
    use muster_model::results::{HandoverCheck, Range, ResultFile};

    fn fixture(text: &str) -> ResultFile {
        serde_json::from_str(text).expect("fixtures are well-formed")
    }

    #[test]
    fn an_explanation_is_told_in_order() {
        let ResultFile::Explain(explanation) = fixture(include_str!("../tests/fixtures/explain.json")) else {
            panic!()
        };
        insta::assert_snapshot!(explanation_at(&explanation, PLAIN_WIDTH));
    }

    #[test]
    fn a_projection_that_failed_its_check_holds_no_numbers() {
        let ResultFile::Explain(explanation) = fixture(include_str!("../tests/fixtures/explain.json")) else {
            panic!()
        };
        let projection = *explanation.projection.expect("the fixture holds one");
        let home = HomeCheck { error: 3.45, ..projection.home };
        insta::assert_snapshot!(projection_at(&Projection { home, found: None, ..projection.clone() }, PLAIN_WIDTH));
        let seen_per_s = Range { low: 31_000.0, value: 35_000.0, high: 37_000.0 };
        let handovers = Some(HandoverCheck { seen_per_s, simulated_per_s: 55_500.0, error: 0.5, allowed: 0.2 });
        let home = HomeCheck { handovers, ..projection.home };
        insta::assert_snapshot!(projection_at(&Projection { home, found: None, ..projection }, PLAIN_WIDTH));
    }

    #[test]
    fn a_comparison_ends_in_its_verdicts() {
        let ResultFile::Compare(comparison) = fixture(include_str!("../tests/fixtures/compare.json")) else { panic!() };
        insta::assert_snapshot!(comparison_at(&comparison, PLAIN_WIDTH));
    }

    #[test]
    fn a_study_tells_kinds_apart() {
        let ResultFile::Study(results) = fixture(include_str!("../tests/fixtures/study.json")) else { panic!() };
        insta::assert_snapshot!(study_at(&results, PLAIN_WIDTH));
    }

    #[test]
    fn a_suite_tells_what_was_verified_and_what_did_not_run() {
        let ResultFile::Vsuite(results) = fixture(include_str!("../tests/fixtures/vsuite.json")) else { panic!() };
        insta::assert_snapshot!(suite_at(&results, PLAIN_WIDTH));
        assert_eq!(suite_news(&results, "dbench"), ["dbench on 2: 2,890 MB/s ± 1.2 %, speed-up -, none to verify"]);
    }

    #[test]
    fn a_vm_stands_beside_and_an_emulator_is_no_timing() {
        let ResultFile::Vsuite(results) = fixture(include_str!("../tests/fixtures/vsuite-kvm.json")) else { panic!() };
        insta::assert_snapshot!("suite_in_kvm", suite_at(&results, PLAIN_WIDTH));
        let ResultFile::Vsuite(results) = fixture(include_str!("../tests/fixtures/vsuite-tcg.json")) else { panic!() };
        let text = suite_at(&results, PLAIN_WIDTH);
        insta::assert_snapshot!("suite_in_tcg", text);
        assert!(text.lines().all(|line| line.chars().count() <= PLAIN_WIDTH.into()), "{text}");
    }

    #[test]
    fn an_audit_says_first_what_to_act_on() {
        let ple = Finding {
            knob: Knob::Ple,
            severity: Severity::Act,
            subject: "kvm_intel.ple_gap".to_owned(),
            found: "gap 0".to_owned(),
            reason: "vCPUs that spin burn time".to_owned(),
            gain: Some("14 %, only while overcommitted".to_owned()),
            sources: vec!["Hardware Acceleration, section V.A, Figure 9".to_owned()],
            settings: vec![Setting::Parameter {
                module: "kvm_intel".to_owned(),
                name: "ple_gap".to_owned(),
                value: "128".to_owned(),
                effect: Effect::NewVms,
            }],
            by_hand: None,
        };
        let vm = |name: &str, found: &str, severity| Finding {
            knob: Knob::LargePages,
            severity,
            subject: format!("VM {name}"),
            found: found.to_owned(),
            reason: "the host gives none".to_owned(),
            gain: None,
            settings: Vec::new(),
            by_hand: Some("restart it".to_owned()),
            ..ple.clone()
        };
        let findings = vec![
            vm("a", "90 % in large pages", Severity::Fine),
            vm("b", "0 % in large pages", Severity::Consider),
            vm("c", "1 % in large pages", Severity::Consider),
            ple.clone(),
        ];
        let unreadable = vec![Unreadable { path: "/proc/7/smaps".to_owned(), why: "permission denied".to_owned() }];
        let audit = HostAudit { no_host: None, findings, unreadable };
        let text = host_audit_at(&audit, PLAIN_WIDTH);
        insta::assert_snapshot!(text);
        assert!(host_audit_at(&audit, 60).lines().take(20).all(|line| line.chars().count() <= 60));
        let none =
            HostAudit { no_host: Some("this is no KVM host".to_owned()), findings: Vec::new(), unreadable: Vec::new() };
        assert_eq!(host_audit_at(&none, PLAIN_WIDTH), "this is no KVM host\n");
    }

    #[test]
    fn tables_fit_a_narrow_terminal() {
        let ResultFile::Explain(explanation) = fixture(include_str!("../tests/fixtures/explain.json")) else {
            panic!()
        };
        let narrow = ledger_at(&explanation.ledger, 80);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    }
}
