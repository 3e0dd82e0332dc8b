//! The command line as a user meets it: help, version, refusals, and a page in docs/ for every command.

use assert_cmd::Command;
use predicates::str::{contains, is_match};
use std::path::Path;

fn muster() -> Command {
    Command::cargo_bin("muster").expect("cargo builds muster for this test")
}

/// The commands that `muster --help` lists, `help` itself left out.
fn listed_commands() -> Vec<String> {
    let output = muster().arg("--help").output().expect("muster runs");
    let help = String::from_utf8(output.stdout).expect("help is UTF-8");
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn help_lists_the_commands() {
    muster().arg("--help").assert().success().stdout(contains("Usage: muster"));
    for command in ["probe", "explain", "run", "compare", "sim", "study", "report", "undo", "vsuite", "host"] {
        assert!(listed_commands().iter().any(|listed| listed == command), "`muster --help` lists {command}");
    }
}

#[test]
fn version_is_a_name_and_a_number() {
    muster().arg("--version").assert().success().stdout(is_match(r"^muster \d+\.\d+\.\d+\n$").expect("a regex"));
}

#[test]
fn nothing_asked_shows_help_and_exits_2() {
    muster().assert().code(2).stderr(contains("Usage: muster"));
}

#[test]
fn unknown_command_and_option_exit_2() {
    muster().arg("no-such-command").assert().code(2).stderr(contains("no-such-command"));
    muster().arg("--no-such-option").assert().code(2).stderr(contains("--no-such-option"));
    for command in listed_commands() {
        muster().args([&command, "--no-such-option"]).assert().code(2).stderr(contains("--no-such-option"));
    }
}

#[test]
fn every_command_explains_itself() {
    for command in listed_commands() {
        muster().args([&command, "--help"]).assert().success().stdout(contains(format!("Usage: muster {command}")));
    }
}

#[test]
fn every_command_has_its_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let index = std::fs::read_to_string(docs.join("README.md")).expect("docs/ has its index");
    for command in listed_commands() {
        let page = format!("{command}.md");
        assert!(docs.join(&page).is_file(), "docs/{page} describes `muster {command}`");
        assert!(index.contains(&format!("({page})")), "docs/README.md links {page}");
    }
}

#[test]
fn every_link_of_the_book_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for page in ["README.md", "CONTRIBUTING.md", "docs/README.md"] {
        let text = std::fs::read_to_string(root.join(page)).expect("a readable page");
        let folder = root.join(page).parent().expect("a page lies in a folder").to_owned();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            assert!(folder.join(link).exists(), "{page} links {link}");
        }
    }
}
