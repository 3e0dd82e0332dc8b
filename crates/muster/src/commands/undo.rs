//! `muster undo`: restores what musters that died have left changed.

use muster_undo::{Directory, Item, JournalInfo, Report, State};
use std::fmt::Write;
use std::process::ExitCode;

/// Restores whatever a crashed muster left changed, and what `muster host apply` has set
#[derive(clap::Args)]
pub struct Args {
    /// Only list the journals, those of running musters too
    #[arg(long, conflicts_with = "dry_run")]
    list: bool,
    /// Only say what would be restored
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit code 1 when something could not be restored.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // A directory that is not there has no journals; looking must not make it.
    let directory = Directory::existing(&Directory::standard_path())?;
    if args.list {
        let journals = directory.as_ref().map(muster_undo::list).transpose()?.unwrap_or_default();
        let text = if args.json { json(&journals)? } else { render_list(&journals) };
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let reports = match &directory {
        None => Vec::new(),
        Some(directory) if args.dry_run => muster_undo::preview(directory, None)?,
        Some(directory) => muster_undo::undo_all(directory)?,
    };
    finish(&reports, args.dry_run, args.json)
}

/// Prints what was undone.
pub(super) fn finish(reports: &[Report], dry_run: bool, as_json: bool) -> anyhow::Result<ExitCode> {
    let text = if as_json { json(&reports)? } else { render(reports, dry_run) };
    print!("{text}");
    Ok(if reports.iter().all(Report::is_complete) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json<T: serde::Serialize>(value: &T) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// What was done, a line a thing.
pub fn render(reports: &[Report], dry_run: bool) -> String {
    let mut text = String::new();
    for report in reports {
        let restored = if dry_run { "would restore" } else { "restored" };
        section(&mut text, restored, &report.restored);
        section(&mut text, "left alone", &report.left_alone);
        section(&mut text, "FAILED", &report.failed);
        if !report.is_complete() && !dry_run {
            let _infallible = writeln!(text, "what failed stays in {}", report.journal.display());
        }
    }
    if text.is_empty() {
        text.push_str("nothing to undo\n");
    }
    text
}

fn section(text: &mut String, did: &str, items: &[Item]) {
    for Item { what, why } in items {
        let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let _infallible = writeln!(text, "{did:<13} {what}{why}");
    }
}

fn render_list(journals: &[JournalInfo]) -> String {
    let mut text = String::new();
    for journal in journals {
        let state = match journal.state {
            State::Running => "running",
            State::Abandoned => "dead: `muster undo` restores it",
            State::Kept => "kept as asked: `muster undo` restores it",
            State::EarlierBoot => "of an earlier boot: nothing is left to be undone",
            State::OtherNamespace => "of another PID namespace: only a muster there can undo it",
        };
        let _infallible = writeln!(text, "run {} (process {}), {state}", journal.run, journal.owner.pid);
        for change in &journal.changes {
            let _infallible = writeln!(text, "  {change}");
        }
    }
    if text.is_empty() {
        text.push_str("no journals\n");
    }
    text
}
