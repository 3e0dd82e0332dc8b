//! An explanation on the page: findings, the ledger as one bar, remedies with their ranges, and what was not seen.

use super::{cell, figure, table};
use crate::chart::intervals::ratios;
use crate::chart::stack::{Part, stack};
use crate::format::{count, duration, percent, ratio, ratio_range, significant, with_unit};
use crate::table::why_not_told;
use maud::{Markup, html};
use muster_model::results::{Checked, Explanation, Prediction, Projected, Projection, Range};
use muster_model::{Account, Amount, Ledger};

pub fn body(explanation: &Explanation) -> Markup {
    let signals: Vec<Vec<Markup>> = explanation
        .signals
        .iter()
        .map(|signal| vec![cell(&signal.name), cell(with_unit(signal.value, &signal.unit))])
        .collect();
    html! {
        p { code { (explanation.command) } }
        @if !explanation.findings.is_empty() { ul.findings { @for finding in &explanation.findings { li { (finding) } } } }
        (ledger(&explanation.ledger))
        @if !explanation.remedies.is_empty() { h3 { "What would help" } (remedies(&explanation.remedies)) }
        @if let Some(it) = &explanation.projection { h3 { "On " (it.vcpus) " vCPUs" } (projection(it)) }
        @if !signals.is_empty() {
            details { summary { "What it rests on" } (table("Signals", &["signal", "value"], &[1], &signals)) }
        }
        details open[!explanation.channels_missing.is_empty()] {
            summary { "How it was seen" }
            p { "Channels read: " (explanation.channels_used.join(", ")) "." }
            @if !explanation.channels_missing.is_empty() {
                p { "Missing:" }
                ul { @for missing in &explanation.channels_missing { li { (missing) } } }
            }
        }
    }
}

/// The ledger: one bar of all core time, and the table behind it.
pub fn ledger(ledger: &Ledger) -> Markup {
    let parts = parts(ledger);
    let title = "Where the core time went";
    let caption = format!(
        "{title}: {} on {} core{}, {} in all",
        duration(ledger.wall_ns as f64),
        ledger.cores,
        if ledger.cores == 1 { "" } else { "s" },
        duration(ledger.total_ns())
    );
    let described =
        parts.iter().map(|part| format!("{} {}", part.label, percent(part.share))).collect::<Vec<_>>().join(", ");
    let rows: Vec<Vec<Markup>> = Account::ALL
        .into_iter()
        .filter_map(|account| ledger.accounts.get(&account).map(|amount| row(account, amount, ledger.share(account))))
        .collect();
    html! {
        (figure(&caption, &html! {
            (stack(title, &described, &parts))
            ul.legend { @for part in &parts { li { span class=(format!("swatch c-{}", part.class)) {} (part.label) " " span.quiet { (percent(part.share)) } } } }
        }))
        (table("The ledger", &["account", "core time", "share", "how sure", "from"], &[1, 2], &rows))
    }
}

/// The accounts that hold a number, and what no account holds.
fn parts(ledger: &Ledger) -> Vec<Part> {
    let mut parts: Vec<Part> = Account::ALL
        .into_iter()
        .filter_map(|account| Some((account, ledger.share(account)?)))
        .filter(|(_, share)| share.is_finite() && *share > 0.0)
        .map(|(account, share)| Part { label: account.name().to_owned(), class: class(account), share })
        .collect();
    let rest = 1.0 - parts.iter().map(|part| part.share).sum::<f64>();
    // Below this it is rounding.
    if rest > 1e-3 {
        parts.push(Part { label: "not booked".to_owned(), class: "rest".to_owned(), share: rest });
    }
    parts
}

fn class(account: Account) -> String {
    account.name().to_ascii_lowercase().replace([' ', '+', '/'], "-")
}

fn row(account: Account, amount: &Amount, share: Option<f64>) -> Vec<Markup> {
    let (time, sure, from) = match amount {
        Amount::Exact { time_ps } => {
            (duration(*time_ps as f64 / 1e3), "exact".to_owned(), "booked by the simulator".to_owned())
        }
        Amount::Accounted { time_ns, confidence, source } => {
            (duration(*time_ns as f64), crate::judge::confidence_word(*confidence).to_owned(), source.clone())
        }
        Amount::Estimated { count: times, price_ns, confidence, source } => (
            duration(*times as f64 * price_ns),
            crate::judge::confidence_word(*confidence).to_owned(),
            format!("{} × {}: {source}", count(*times), duration(*price_ns)),
        ),
        Amount::AtMost { time_ns, derivation } => {
            (format!("≤ {}", duration(*time_ns as f64)), "a bound".to_owned(), derivation.clone())
        }
        Amount::NotObservable { reason } => (String::new(), "not observable here".to_owned(), reason.clone()),
    };
    let swatch = html! { span class=(format!("swatch c-{}", class(account))) {} (account.name()) };
    let sure = if matches!(amount, Amount::NotObservable { .. }) {
        html! { span.badge { (sure) } }
    } else {
        cell(sure)
    };
    vec![swatch, cell(time), cell(share.map(percent).unwrap_or_default()), sure, cell(from)]
}

/// A simulated prediction, and how well the recording behind it reproduces what was seen.
fn projection(projection: &Projection) -> Markup {
    let home = &projection.home;
    let checked = |name: &str, checked: &Checked| {
        vec![cell(name), cell(significant(checked.seen)), cell(significant(checked.simulated))]
    };
    let mut check = vec![checked("CPUs busy", &home.cpu_rate), checked("halts per second", &home.halts_per_s)];
    check.extend(home.handovers.map(|it| {
        let Range { low, value, high } = it.seen_per_s;
        let seen = format!("{} ({} to {})", significant(value), significant(low), significant(high));
        vec![cell("hand-overs per second"), cell(seen), cell(significant(it.simulated_per_s))]
    }));
    html! {
        @match &projection.found {
            Some(found) => (projected(projection, found)),
            None => p { "Not told: " (why_not_told(home)) "." },
        }
        details {
            summary { "Simulated and predicted; at home it is off by " (percent(home.error)) " (allowed: " (percent(home.allowed)) ")" }
            (table(&format!("At home, on {} vCPUs", home.vcpus), &["", "seen", "simulated"], &[1, 2], &check))
            ul { @for assumption in &projection.assumptions { li { (assumption) } } }
        }
    }
}

fn projected(projection: &Projection, found: &Projected) -> Markup {
    let row = |name: &str, vcpus: u32, speed: f64, cpu: f64| {
        vec![cell(name), cell(vcpus.to_string()), cell(ratio(speed)), cell(ratio(cpu))]
    };
    let none = row("none", projection.vcpus, 1.0, 1.0);
    let remedies = found.remedies.iter().map(|it| row(&it.remedy, it.vcpus, it.speed, it.cpu_per_work));
    let rows: Vec<Vec<Markup>> = std::iter::once(none).chain(remedies).collect();
    html! {
        p {
            (projection.copies) " × this program, " (projection.threads) " threads in all: "
            (ratio(found.slowdown)) " as fast without virtualization; "
            (significant(found.idle_transitions_per_s)) " transitions to idle a second; "
            (percent(found.waking_share)) " of core time goes into halting and waking."
        }
        (table("What remedies give back there", &["remedy", "vCPUs in use", "speed", "CPU per work"], &[1, 2, 3], &rows))
    }
}

fn remedies(remedies: &[Prediction]) -> Markup {
    let ranged = |of: fn(&Prediction) -> Option<Range>| -> Vec<(String, Range)> {
        remedies.iter().filter_map(|remedy| Some((remedy.remedy.clone(), of(remedy)?))).collect()
    };
    let (speed, cpu) = (ranged(|remedy| remedy.speed), ranged(|remedy| remedy.cpu_per_work));
    let rows: Vec<Vec<Markup>> = remedies
        .iter()
        .map(|remedy| {
            let range = |range: Option<Range>| cell(range.as_ref().map_or("not known".to_owned(), ratio_range));
            let command = html! { @if let Some(command) = &remedy.command { code { (command) } } };
            vec![cell(&remedy.remedy), range(remedy.speed), range(remedy.cpu_per_work), cell(&remedy.because), command]
        })
        .collect();
    html! {
        div.pair {
            @if !speed.is_empty() { (figure("Predicted speed, relative to now (right is faster)", &ratios("Predicted speed", "Best guess and range per remedy, relative to now.", &speed))) }
            @if !cpu.is_empty() { (figure("Predicted CPU time per unit of work (left is cheaper)", &ratios("Predicted CPU time per unit of work", "Best guess and range per remedy, relative to now.", &cpu))) }
        }
        (table("Remedies", &["remedy", "speed", "CPU per work", "because", "command"], &[], &rows))
    }
}
