//! `muster report` as a user meets it: a page, an error with file and line; and the page in a real browser.

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use std::fs;
use std::path::{Path, PathBuf};

fn report() -> Command {
    let mut command = Command::cargo_bin("muster").expect("cargo builds muster for this test");
    command.arg("report");
    command
}

/// One result file of every kind.
fn fixtures() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/tests/fixtures");
    ["probe.json", "explain.json", "compare.json", "study.json", "numbers.ndjson", "vsuite.json"]
        .map(|name| directory.join(name))
        .into()
}

#[test]
fn every_kind_of_result_makes_one_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("made/for/it/report.html");
    report().arg("-o").arg(&page).args(fixtures()).assert().success().stderr(contains("report.html"));
    let html = fs::read_to_string(&page).expect("the page is there");
    for kicker in ["Probe", "Explain", "Compare", "Study", "VSuite"] {
        assert!(html.contains(&format!("<p class=\"kicker\">{kicker}</p>")), "{kicker}");
    }
    for outside in ["<script", "src=", "@import", "url(", "http://", "https://"] {
        assert!(!html.contains(outside), "the page asks for something outside: {outside}");
    }
}

#[test]
fn malformed_input_exits_2_with_file_and_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let bad = directory.path().join("bad.json");
    fs::write(&bad, "{\n\"kind\": \"compare\",\n\"command\": 7\n}").expect("a file");
    report().arg(&bad).assert().code(2).stderr(contains("bad.json, line 3: found").and(contains("allowed: JSON as")));
    report().arg("/nonexistent.json").assert().code(2).stderr(contains("/nonexistent.json"));
    report().assert().code(2).stderr(contains("<FILE>"));
}

#[test]
fn a_page_that_cannot_be_written_exits_1() {
    report().args(["-o", "/proc/no/page.html"]).args(fixtures()).assert().code(1).stderr(contains("/proc/no"));
}

#[test]
fn headless_chromium_loads_the_page_without_a_complaint() {
    let Some(chromium) =
        ["/usr/bin/chromium", "/usr/bin/google-chrome"].into_iter().find(|path| Path::new(path).exists())
    else {
        eprintln!(
            "SKIPPED: headless_chromium_loads_the_page_without_a_complaint: no chromium (apt-get install chromium)"
        );
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("report.html");
    report().arg("-o").arg(&page).args(fixtures()).assert().success();
    let load = |page: &Path| {
        let output = std::process::Command::new(chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
            .args(["--enable-logging=stderr", "--v=0", "--dump-dom"])
            .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
            .arg(format!("file://{}", page.display()))
            .output()
            .expect("chromium starts");
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (dom, log) = load(&page);
    assert!(dom.contains("muster report") && dom.contains("</footer>"), "chromium shows no page: {log}");
    assert!(!log.contains("CONSOLE"), "{log}");
    // The check can fail: a page that breaks does say so.
    let broken = directory.path().join("broken.html");
    fs::write(&broken, "<script>undefined_function()</script>").expect("a file");
    assert!(load(&broken).1.contains("CONSOLE"), "console errors are not seen by this test");
}
