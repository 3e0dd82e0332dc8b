//! `muster run --metric`: a program's own count of its work reaches the controller, whole and in time.

use muster_remedy::trace;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn muster(home: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.env("MUSTER_JOURNALS", home.path().join("journals")).arg("run").args(arguments).stdin(Stdio::null());
    command.output().expect("muster")
}

/// The units that the summary tells.
fn counted(output: &Output) -> f64 {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    summary["progress"].as_f64().unwrap_or_else(|| panic!("no progress in {text}"))
}

/// The units that the trace tells, period by period.
fn traced(path: &Path) -> Vec<f64> {
    let (_, steps) = trace::read(BufReader::new(File::open(path).expect("a trace"))).expect("a whole trace");
    steps.iter().filter_map(|step| step.facts.progress).collect()
}

/// The first block of C in the page on progress.
fn example() -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/progress.md")).expect("the page");
    let (_, rest) = page.split_once("```c\n").expect("an example");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn a_program_counts_as_the_book_says() {
    let home = home();
    let (source, program) = (home.path().join("program.c"), home.path().join("program"));
    let main = "#include <time.h>\n\
                int main(void) {\n\
                    find_counter();\n\
                    for (int i = 0; i < 500; i++) { count(2); nanosleep(&(struct timespec){0, 1000000}, 0); }\n\
                    return work ? 0 : 1;\n\
                }\n";
    fs::write(&source, example() + main).expect("a source");
    let compiled = Command::new("cc").args(["-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]).output();
    match compiled {
        Err(_) => return eprintln!("SKIPPED: a_program_counts_as_the_book_says: there is no cc"),
        Ok(compiler) => assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr)),
    }
    let trace = home.path().join("trace");
    let names = [trace.to_str().expect("a name"), program.to_str().expect("a name")];
    let output = muster(&home, &["--metric", "counter", "--json", "--trace", names[0], "--", names[1]]);
    assert_eq!(counted(&output), 1000.0, "nothing is lost");
    let periods = traced(&trace);
    assert!(periods.iter().filter(|&&units| units > 0.0).count() > 10, "{periods:?}");
    let plain = Command::new(&program).env_remove("MUSTER_PROGRESS").status().expect("the program");
    assert_eq!(plain.code(), Some(1), "without muster there is no counter, and no harm");
}

/// A function, and a static probe as `sys/sdt.h` makes one, passed 500 times.
const PROBED: &str = r#"
#include <time.h>
__attribute__((noinline)) void unit(void) {
    __asm__ volatile("990: nop\n"
        ".pushsection .note.stapsdt,\"\",\"note\"\n .balign 4\n .4byte 992f-991f, 994f-993f, 3\n"
        "991: .asciz \"stapsdt\"\n 992: .balign 4\n 993: .8byte 990b, _.stapsdt.base, 0\n"
        ".asciz \"work\"\n .asciz \"unit\"\n .asciz \"\"\n 994: .balign 4\n .popsection\n"
        ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n .weak _.stapsdt.base\n"
        ".hidden _.stapsdt.base\n _.stapsdt.base: .space 1\n .size _.stapsdt.base,1\n .popsection\n");
}
int main(void) {
    for (int i = 0; i < 500; i++) { unit(); nanosleep(&(struct timespec){0, 1000000}, 0); }
}
"#;

#[test]
fn places_that_a_program_passes_count() {
    let home = home();
    let (source, program) = (home.path().join("program.c"), home.path().join("program"));
    fs::write(&source, PROBED).expect("a source");
    let compiled = Command::new("cc").args(["-O1", "-o"]).args([&program, &source]).output();
    match compiled {
        Err(_) => return eprintln!("SKIPPED: places_that_a_program_passes_count: there is no cc"),
        Ok(compiler) => assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr)),
    }
    let name = program.to_str().expect("a name");
    for metric in [format!("calls:{name}:unit"), format!("usdt:{name}:work:unit")] {
        let output = muster(&home, &["--metric", &metric, "--json", "--", name]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(2) {
            assert!(text.contains("takes root") || text.contains("has no uprobes"), "{text}");
            eprintln!("SKIPPED: places_that_a_program_passes_count: {text}");
            return;
        }
        assert_eq!(counted(&output), 500.0, "{metric}");
    }
}

#[test]
fn a_number_in_a_text_counts() {
    let home = home();
    let (trace, count) = (home.path().join("trace"), home.path().join("count"));
    let source = format!("file:{}", count.display());
    let loops =
        "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo done: $i > \"$0.new\"; mv \"$0.new\" \"$0\"; sleep 0.002; done";
    let names = [trace.to_str().expect("a name"), count.to_str().expect("a name")];
    let line = ["--metric", &source, "--json", "--trace", names[0], "--", "sh", "-c", loops, names[1]];
    let units = counted(&muster(&home, &line));
    assert!(units > 0.0 && units < 100.0, "the first reading is where counting begins: {units}");
    assert!(traced(&trace).iter().any(|&units| units > 0.0));
}

#[test]
fn a_running_program_is_attached_to_with_its_counter() {
    let home = home();
    let path = home.path().join("counter");
    fs::write(&path, [0; 16]).expect("a counter file");
    let mut program = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
    let counter = File::options().write(true).open(&path).expect("the counter");
    // The program's work is counted in both words until it has been watched for a while.
    let journals = home.path().join("journals");
    let worker = std::thread::spawn({
        let mut input = program.stdin.take().expect("a pipe");
        move || {
            let (mut units, mut watched) = (0_u64, 0);
            while watched < 200 {
                units += 1;
                counter.write_all_at(&units.to_ne_bytes(), 8 * (units % 2)).expect("written");
                std::thread::sleep(std::time::Duration::from_millis(2));
                watched += u32::from(fs::read_dir(&journals).is_ok_and(|entries| entries.count() > 0));
            }
            input.write_all(b"done").expect("the program reads on");
            2 * units - 1
        }
    });
    let (source, pid) = (format!("counter:{}", path.display()), program.id().to_string());
    let units = counted(&muster(&home, &["--metric", &source, "--json", "--remedy", "none", "--pid", &pid]));
    let all = worker.join().expect("all was counted");
    program.wait().expect("its end");
    assert!(units > 0.0 && units <= all as f64, "{units} of {all}");
}

#[test]
fn what_cannot_be_a_count_is_refused_in_one_sentence() {
    let home = home();
    let own = std::process::id().to_string();
    for (arguments, sentence) in [
        (["--metric", "ops", "--", "true"], "allowed: counter, counter:PATH, file:PATH, calls:"),
        (["--metric", "calls:/bin/sh:no_such_function", "--", "true"], "no function `no_such_function`"),
        (["--metric", "calls:/proc/version:f", "--", "true"], "no 64-bit ELF program"),
        (["--metric", "usdt:/bin/sh:nobody:nothing", "--", "true"], "no static probe `nobody:nothing`"),
        (["--metric", "counter", "--pid", &own], "cannot be told where to count"),
        (["--metric", "counter:/no/such/file", "--", "true"], "counter:/no/such/file: No such file"),
        (["--metric", "counter:/proc/version", "--", "true"], "in words of 8"),
        (["--metric", "file:/dev/zero", "--", "true"], "it is no file"),
        (["--metric", "file:/proc/self/comm", "--", "true"], "no number"),
    ] {
        let output = muster(&home, &arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(sentence) && !text.contains("panicked"), "{arguments:?}: {text}");
    }
}

#[test]
fn a_count_that_never_rises_is_named() {
    let home = home();
    let output = muster(&home, &["--metric", "counter", "--", "sleep", "0.1"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("the count never rose"), "{output:?}");
}
