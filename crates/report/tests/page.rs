//! The page as a whole: golden HTML, and that nobody's text becomes markup.

use muster_report::input::{Document, parse};
use muster_report::page::page;

const FIXTURES: [(&str, &str); 8] = [
    ("probe.json", include_str!("fixtures/probe.json")),
    ("explain.json", include_str!("fixtures/explain.json")),
    ("compare.json", include_str!("fixtures/compare.json")),
    ("study.json", include_str!("fixtures/study.json")),
    ("numbers.ndjson", include_str!("fixtures/numbers.ndjson")),
    ("vsuite.json", include_str!("fixtures/vsuite.json")),
    ("vsuite-kvm.json", include_str!("fixtures/vsuite-kvm.json")),
    ("vsuite-tcg.json", include_str!("fixtures/vsuite-tcg.json")),
];

fn documents() -> Vec<Document> {
    FIXTURES.iter().flat_map(|(file, text)| parse(text, file).expect("fixtures are well-formed")).collect()
}

/// The page without its stylesheet, one tag a line.
fn body(page: &str) -> String {
    let (_, body) = page.split_once("</style>").expect("the page has a stylesheet");
    body.replace("><", ">\n<")
}

#[test]
fn golden() {
    insta::assert_snapshot!(body(&page(&documents())));
}

#[test]
fn equal_documents_give_equal_bytes() {
    assert_eq!(page(&documents()), page(&documents()));
}

#[test]
fn nothing_to_report_is_a_page_too() {
    assert!(page(&[]).contains("There are no results to report."));
}

#[test]
fn text_from_results_is_never_markup() {
    let hostile = include_str!("fixtures/compare.json").replace("redis-server", "<script>alert(1)</script>");
    let html = page(&parse(&hostile, "hostile").expect("still well-formed"));
    assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"));
}

#[test]
fn empty_and_extreme_results_do_not_panic() {
    for text in [
        r#"{"kind":"compare","command":"","metric":"","arms":[],"notes":[]}"#,
        r#"{"kind":"compare","command":"x","metric":"runs","arms":[{"name":"plain","runs":[],"median_speed":0,"spread":0,"speed_ratio":{"low":0,"value":0,"high":1e308},"cpu_ratio":null}],"notes":[]}"#,
        r#"{"kind":"explain","command":"x","ledger":{"wall_ns":0,"cores":0,"accounts":{}},"signals":[],"remedies":[],"channels_used":[],"channels_missing":[],"findings":[]}"#,
        r#"{"kind":"explain","command":"x","ledger":{"wall_ns":1,"cores":1,"accounts":{"user":{"is":"estimated","count":18446744073709551615,"price_ns":1e308,"confidence":"low","source":""}}},"signals":[],"remedies":[],"channels_used":[],"channels_missing":[],"findings":[]}"#,
        r#"{"kind":"study","study":"s","seed":0,"numbers":[],"series":[{"figure":"F","name":"n","x":"x","y":"y","points":[]},{"figure":"G","name":"n","x":"x","y":"y","points":[[0,0],[-1e308,1e308]]}]}"#,
        r#"{"kind":"probe","name":"","topology":{}}"#,
        r#"{"kind":"probe","name":"p","topology":{},"prices":{"syscall":{"ns":0,"kind":"assumed","source":""},"chase.4k.0k":{"ns":0,"kind":"assumed","source":""},"chase.4k.xk":{"ns":1e300,"kind":"assumed","source":""}}}"#,
    ] {
        let documents = parse(text, "extreme").unwrap_or_else(|error| panic!("{text}: {error}"));
        let html = page(&documents);
        assert!(html.ends_with("</html>"), "{text}");
        assert!(!html.contains("NaN") && !html.contains("inf%"), "{text}");
    }
}

/// A study on more cores than its paper has says so, and what its runs did where a number is missing.
#[test]
fn a_grown_study_says_so() {
    let text = r#"{"kind": "study", "study": "ixen", "seed": 1, "cores": 128, "numbers": [{"study": "ixen", "figure": "Table 2", "row": "gmake",
        "column": "128 cores, Xen", "unit": "%", "kind": "predicted", "paper": null, "simulated": null, "error": null,
        "note": "no progress: 100 % of the time in handle_pmt_io", "seed": 1}], "series": []}"#;
    let page = page(&parse(text, "grown.json").unwrap());
    for said in
        ["grown to 128 cores", "1 of 1 numbers have no value", "no progress: 100 % of the time in handle_pmt_io"]
    {
        assert!(page.contains(said), "{said}");
    }
}
