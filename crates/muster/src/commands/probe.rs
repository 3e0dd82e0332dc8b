//! `muster probe`: measures the machine, prints what it charges, and keeps the profile for the other commands.

use crate::BadInput;
use anyhow::Context;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use indicatif::{ProgressBar, ProgressStyle};
use muster_model::results::ResultFile;
use muster_model::{Price, Profile};
use muster_probe::{Depth, reading, store};
use muster_report::format::duration;
use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure what this machine charges: wake-ups, clock reads, TLB shootdowns, page walks, cache-line transfers.
///
/// Prints a table and keeps the machine profile in the cache directory, where `muster explain` and `muster run` find it.
#[derive(clap::Args)]
pub struct Args {
    /// Finish in under 10 seconds instead of 60, with more spread.
    #[arg(long)]
    quick: bool,
    /// Print the result as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also write the machine profile (TOML) to FILE.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Do not keep the profile for other commands.
    #[arg(long)]
    no_cache: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Before the measurement: nobody should wait a minute to learn that the result has no place.
    args.out.as_deref().map_or(Ok(()), check_writable)?;
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    let bar = progress_bar();
    let profile = muster_probe::probe(depth, |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.now.to_owned());
    })?;
    bar.finish_and_clear();
    if let Some(file) = &args.out {
        std::fs::write(file, profile.to_toml()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let kept = if args.no_cache { None } else { keep(&profile) };
    if args.json {
        print(&serde_json::to_string_pretty(&ResultFile::Probe(Box::new(profile)))?)?;
    } else {
        print(&page(&profile, kept.as_deref(), args.out.as_deref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn check_writable(file: &Path) -> Result<(), BadInput> {
    let existed = file.exists();
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| {
        BadInput(format!(
            "--out: cannot write to {}: {error}; allowed: a file in a directory that exists",
            file.display()
        ))
    })?;
    if !existed {
        // What is left of a failed removal is an empty file that the result replaces.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// A bar on standard error; nothing where that is no terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Keeps the profile for other commands; returns where. A failure is said and otherwise without effect, and a process
/// that could not use the whole machine keeps nothing.
fn keep(profile: &Profile) -> Option<PathBuf> {
    if profile.notes.iter().any(|note| note.starts_with("confined to")) {
        return None;
    }
    let path = store::path()?;
    match store::save(profile, &path) {
        Ok(()) => Some(path),
        Err(error) => {
            eprintln!("muster: the profile is not kept for other commands: {}: {error}", path.display());
            None
        }
    }
}

/// Prints to standard output; a reader that has gone away is no error.
fn print(text: &str) -> std::io::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn page(profile: &Profile, kept: Option<&Path>, out: Option<&Path>) -> String {
    let mut parts = vec![machine(profile)];
    parts.extend(reading::tables(profile).iter().map(prices));
    if profile.prices.values().any(|price| price.noisy) {
        parts.push("! noisy: measure again on a quiet machine".into());
    }
    parts.push(list("What it means", &reading::hints(profile)));
    parts.push(list("Notes", &profile.notes));
    let files = [
        kept.map(|path| format!("Kept for explain and run: {}", path.display())),
        out.map(|path| format!("Machine profile: {}", path.display())),
    ];
    parts.push(files.into_iter().flatten().collect::<Vec<_>>().join("\n"));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn list(title: &str, sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = sentences.iter().map(|sentence| format!("  - {sentence}")).collect();
    format!("{title}\n{}", lines.join("\n"))
}

/// A line under the heading and nothing else: the tables are many and long.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::stdout().is_terminal() {
        table.set_width(muster_report::table::PLAIN_WIDTH);
    }
    table
}

fn machine(profile: &Profile) -> String {
    let mut table = new_table();
    table.set_header(["Machine", ""]);
    for (name, value) in reading::machine(profile) {
        table.add_row([name.to_owned(), value]);
    }
    table.to_string()
}

fn prices(group: &reading::Table) -> String {
    let mut table = new_table();
    let heading = |text: &str| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(std::iter::once(Cell::new(group.title)).chain(group.columns.iter().map(|text| heading(text))));
    for (label, cells) in &group.rows {
        let cells = cells.iter().map(|price| heading(&price.map_or(String::new(), price_text)));
        table.add_row(std::iter::once(Cell::new(label)).chain(cells));
    }
    table.to_string()
}

/// A price, its spread in percent of it, and a mark where it is noisy.
fn price_text(price: &Price) -> String {
    let spread = price.spread_ns.filter(|_| price.ns > 0.0).map(|spread| spread / price.ns * 100.0);
    let spread = spread.map_or(String::new(), |percent| format!(" ±{percent:.0} %"));
    format!("{}{spread}{}", duration(price.ns), if price.noisy { " !" } else { "" })
}
