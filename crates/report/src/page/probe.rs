//! A machine profile on the page: what it is, and its prices as bars on one scale for all machines of the page.

use super::{cell, figure, table};
use crate::chart::bars::{Bar, bars};
use crate::chart::curves::{Axis, Curve, curves};
use crate::chart::scale::Scale;
use crate::format::{duration, percent, significant};
use crate::input::Document;
use maud::{Markup, html};
use muster_model::profile::{Price, Profile};
use std::collections::BTreeMap;

/// Groups of prices by the first word of their names, in reading order; whatever is left comes last.
const GROUPS: [(&str, &str); 8] = [
    ("wake", "Waking a blocked thread, one way"),
    ("waker", "What the waker itself pays"),
    ("clock", "Reading the clock"),
    ("tlb", "Making other CPUs drop translations"),
    ("cache-transfer", "Moving a modified cache line between CPUs"),
    ("memory", "Touching and mapping memory"),
    ("process", "Starting processes"),
    ("", "Everything else"),
];

pub fn body(profile: &Profile, all: &[Document]) -> Markup {
    let prices = |profile: &Profile| profile.prices.values().map(|price| price.ns).collect::<Vec<_>>();
    let scale = Scale::decades(all.iter().flat_map(|document| match document {
        Document::Probe(profile) => prices(profile),
        _ => Vec::new(),
    }));
    html! {
        @if !profile.description.is_empty() { p { (profile.description) } }
        (platform(profile))
        @if profile.prices.is_empty() { p { "The profile holds no prices." } }
        @for (word, title) in GROUPS {
            @let group = group(profile, word);
            @if !group.is_empty() {
                (figure(title, &bars(title, "Bars on a logarithmic scale of time, with half the distance between the quartiles as whiskers.", &scale, &group)))
            }
        }
        (chase(profile))
    }
}

fn platform(profile: &Profile) -> Markup {
    let platform = &profile.platform;
    let facts = [
        ("CPU", platform.cpu.clone()),
        ("CPUs", profile.topology.len().to_string()),
        ("Kernel", platform.kernel.clone()),
        ("Hypervisor", platform.hypervisor.clone()),
        (
            "Idle",
            [&*platform.cpuidle_driver, &platform.cpuidle_governor].join(" / ").trim_matches([' ', '/']).to_owned(),
        ),
        (
            "Guest halt polling",
            platform
                .guest_halt_poll_ns
                .map_or(String::new(), |ns| if ns == 0 { "off".to_owned() } else { duration(ns as f64) }),
        ),
        ("Clock source", platform.clock_source.clone()),
        ("Transparent huge pages", platform.transparent_huge_pages.clone()),
        ("Stolen since boot", platform.steal_share.map_or(String::new(), percent)),
    ];
    html! { dl.facts { @for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) { div { dt { (name) } dd { (value) } } } } }
}

/// The bars of one group; pointer chases have a chart of their own.
fn group(profile: &Profile, wanted: &str) -> Vec<Bar> {
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let is_in = |name: &str| match first(name).as_str() {
        "chase" => false,
        word if wanted.is_empty() => !GROUPS.iter().any(|(known, _)| *known == word),
        word => word == wanted,
    };
    let mut prices: Vec<(&String, &Price)> = profile.prices.iter().filter(|(name, _)| is_in(name)).collect();
    // What belongs together (a channel, a path, an operation) stays together, the cheapest first.
    let kind = |name: &str| {
        name.strip_prefix(wanted).unwrap_or(name).split('.').find(|word| !word.is_empty()).map(str::to_owned)
    };
    prices.sort_by(|a, b| kind(a.0).cmp(&kind(b.0)).then(a.1.ns.total_cmp(&b.1.ns)));
    prices.into_iter().map(|(name, price)| bar(name, price, wanted)).collect()
}

fn bar(name: &str, price: &Price, group: &str) -> Bar {
    let rest = name.strip_prefix(group).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name);
    let label = rest.split('.').map(words).collect::<Vec<_>>().join(", ");
    Bar { label, ns: price.ns, spread_ns: price.spread_ns, is_noisy: price.noisy, source: price.source.clone() }
}

/// One word of a price's name as people say it.
fn words(word: &str) -> String {
    let others = |number: &str, one: &str, many: &str| {
        format!("{number} other {} running", if number == "1" { one } else { many })
    };
    if let Some(number) = word.strip_prefix("threads-") {
        return others(number, "thread", "threads");
    }
    if let Some(number) = word.strip_prefix("processes-") {
        return others(number, "process", "processes");
    }
    match word {
        "4k" => "4 KiB page".to_owned(),
        "2m" => "2 MiB page".to_owned(),
        "thread-cputime" => "thread CPU time".to_owned(),
        _ => word.replace('-', " ").replace("llc", "LLC").replace("cpu", "CPU").replace("smt", "SMT"),
    }
}

/// The pointer chase: one dependent load by the size of the working set, a curve per page size.
fn chase(profile: &Profile) -> Markup {
    let mut sizes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (name, price) in &profile.prices {
        if let Some((page, size)) = name.strip_prefix("chase.").and_then(|rest| rest.split_once('.'))
            && let Some(kib) = size.strip_suffix('k').and_then(|kib| kib.parse::<f64>().ok())
        {
            sizes.entry(page).or_default().push((kib, price.ns));
        }
    }
    if sizes.is_empty() {
        return html! {};
    }
    let lines: Vec<Curve> = sizes
        .into_iter()
        .map(|(page, mut points)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { name: format!("{} pages", if page == "2m" { "2 MiB" } else { "4 KiB" }), points }
        })
        .collect();
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Axis { scale: Scale::binary(all().map(|point| point.0)), label: size, name: "working set".to_owned() };
    let y = Axis {
        scale: Scale::decades(all().map(|point| point.1)),
        label: duration,
        name: "time of one load".to_owned(),
    };
    let title = "A load from memory, by the size of the working set";
    let rows: Vec<Vec<Markup>> = lines
        .iter()
        .flat_map(|line| {
            line.points.iter().map(|(kib, ns)| vec![cell(&line.name), cell(size(*kib)), cell(duration(*ns))])
        })
        .collect();
    html! {
        (figure(title, &curves(title, "Each step up is a cache, or the TLB's reach, that the working set has outgrown.", &x, &y, &lines)))
        details { summary { "The numbers" } (table(title, &["pages", "working set", "one load"], &[1, 2], &rows)) }
    }
}

/// A size given in KiB.
fn size(kib: f64) -> String {
    match kib {
        kib if kib >= 1024.0 * 1024.0 => format!("{} GiB", significant(kib / 1024.0 / 1024.0)),
        kib if kib >= 1024.0 => format!("{} MiB", significant(kib / 1024.0)),
        kib => format!("{} KiB", significant(kib)),
    }
}
