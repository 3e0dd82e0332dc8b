//! One self-contained HTML page from any results: nothing is fetched, nothing runs, every number is also text.

mod compare;
mod explain;
mod probe;
mod study;
mod summary;
mod vsuite;

use crate::input::Document;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// The page. Equal documents give equal bytes.
pub fn page(documents: &[Document]) -> String {
    let sections: Vec<Section> =
        documents.iter().enumerate().map(|(index, document)| section(index, document, documents)).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "muster report" }
                // A page without an icon makes browsers ask for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "muster report" }
                    p.lead { "Where the time goes in this virtual machine, what would fix it, and what was gained." }
                }
                nav aria-label="Contents" {
                    ol { @for section in &sections { li { a href=(format!("#{}", section.id)) { (section.title) } } } }
                }
                main {
                    section.summary aria-labelledby="in-short" {
                        h2 #in-short { "In short" }
                        @if documents.is_empty() { p { "There are no results to report." } }
                        dl { @for (about, sentences) in summary::gists(documents) { dt { (about) } @for sentence in sentences { dd { (sentence) } } } }
                    }
                    @for section in &sections {
                        section id=(section.id) {
                            p.kicker { (section.kicker) }
                            h2 { (section.title) }
                            (section.body)
                        }
                    }
                }
                footer {
                    p { "Made by " code { "muster report" } ". This page is one file: it loads nothing and runs nothing. Point at a bar or a dot for its exact value and its source." }
                }
            }
        }
    };
    page.into_string()
}

/// The page's summary as text: what each document is about, and under it what was found.
pub fn in_short(documents: &[Document]) -> String {
    let gist = |(about, sentences): (String, Vec<String>)| format!("{about}\n  {}\n", sentences.join("\n  "));
    summary::gists(documents).into_iter().map(gist).collect()
}

/// One document on the page.
struct Section {
    id: String,
    kicker: &'static str,
    title: String,
    body: Markup,
}

fn section(index: usize, document: &Document, all: &[Document]) -> Section {
    let (kicker, title, body) = match document {
        Document::Probe(profile) => ("Probe", format!("What {} charges", profile.name), probe::body(profile, all)),
        Document::Explain(explanation) => {
            ("Explain", format!("Where the time of {} goes", short(&explanation.command)), explain::body(explanation))
        }
        Document::Compare(comparison) => {
            ("Compare", format!("What was gained for {}", short(&comparison.command)), compare::body(comparison))
        }
        Document::Study(results) => {
            ("Study", format!("The paper beside the simulator: {}", results.name), study::body(results))
        }
        Document::Vsuite(results) => ("VSuite", "How real programs scale over cores".to_owned(), vsuite::body(results)),
    };
    Section { id: format!("part-{}", index + 1), kicker, title, body }
}

/// A command line short enough for a heading.
fn short(command: &str) -> String {
    const LONGEST: usize = 40;
    if command.chars().count() <= LONGEST {
        return command.to_owned();
    }
    command.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Tables of this many columns and more show each row as a block on a phone.
const STACKED_FROM: usize = 5;

/// A table that scrolls within itself where the screen is narrower; `numeric` columns are set flush right.
fn table(caption: &str, header: &[&str], numeric: &[usize], rows: &[Vec<Markup>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table.wide[header.len() >= STACKED_FROM] {
                caption { (caption) }
                thead { tr { @for (column, title) in header.iter().enumerate() { th scope="col" .number[numeric.contains(&column)] { (title) } } } }
                tbody {
                    @for row in rows {
                        tr { @for (column, cell) in row.iter().enumerate() { td.number[numeric.contains(&column)] data-label=(header.get(column).copied().unwrap_or_default()) { (cell) } } }
                    }
                }
            }
        }
    }
}

/// Text as a cell.
fn cell(content: impl AsRef<str>) -> Markup {
    html! { (content.as_ref()) }
}

/// A chart with its caption.
fn figure(caption: &str, chart: &Markup) -> Markup {
    html! { figure { figcaption { (caption) } (chart) } }
}
