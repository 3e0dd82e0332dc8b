//! Import of rt-app's JSON: what each construct becomes, and what is refused. The files beside are the project's own.

use muster_model::rtapp::{Imported, Options, import, is_rtapp};
use muster_model::workload::{Barrier, Count, Duration, Lock, Phase, Timer};
use muster_model::{ModelError, Workload};
use proptest::prelude::*;

const EVENTS: &str = include_str!("rtapp/events.json");
const TASKS: &str = include_str!("rtapp/tasks.json");

fn imported(text: &str) -> Imported {
    import(text, "dir/f.json", &Options::default()).unwrap()
}

/// A file with one task `t` that says this, and an end.
fn one(task: &str) -> Result<Imported, ModelError> {
    let text = format!("{{ \"tasks\": {{\n\"t\": {{ {task} }} }}, \"global\": {{ \"duration\": 1 }} }}");
    import(&text, "f.json", &Options::default())
}

/// The phases of a group.
fn phases<'w>(workload: &'w Workload, group: &str) -> &'w [Phase] {
    &workload.groups.iter().find(|g| g.name == group).unwrap_or_else(|| panic!("no group {group}")).phases
}

fn run(us: u64) -> Phase {
    Phase::Run { ns: Duration::Fixed(us * 1000), shared: false }
}

fn sleep(us: u64) -> Phase {
    Phase::Sleep { ns: Duration::Fixed(us * 1000) }
}

fn lock(lock: &str, phases: Vec<Phase>) -> Phase {
    Phase::Lock { lock: lock.into(), phases }
}

fn repeat(times: Count, phases: Vec<Phase>) -> Phase {
    Phase::Loop { times, scaled: false, phases }
}

fn awaits(condvar: &str, lock: &str) -> Phase {
    Phase::Await { condvar: condvar.into(), lock: lock.into() }
}

fn signal(condvar: &str, all: bool) -> Phase {
    Phase::Signal { condvar: condvar.into(), all }
}

fn barrier(name: &str) -> Phase {
    Phase::Barrier { barrier: name.into() }
}

fn timer(name: &str, us: u64) -> Phase {
    Phase::Timer { timer: name.into(), period_ns: us * 1000 }
}

#[test]
fn every_event_becomes_what_the_table_says() {
    let Imported { workload, notes } = imported(EVENTS);
    let write = Phase::Syscall { ns: Duration::Fixed(0) };
    let memset = Phase::Run { ns: Duration::Fixed(179), shared: false };
    let writes = repeat(Count::Fixed(3), vec![write.clone()]);
    let plain = [
        run(10),
        run(20),
        Phase::RunFor { ns: 30_000 },
        sleep(40),
        memset,
        write,
        writes,
        Phase::Yield {},
        timer("plain.unique", 50),
        timer("tick", 60),
    ];
    assert_eq!(phases(&workload, "plain"), plain);
    let unique = Timer { shared: false, absolute: false };
    let tick = Timer { shared: true, absolute: true };
    assert_eq!(
        workload.timers.iter().map(|(n, t)| (n.as_str(), *t)).collect::<Vec<_>>(),
        [("plain.unique", unique), ("tick", tick)]
    );
    let holder = vec![
        lock("outer", vec![lock("inner", vec![run(1)]), awaits("queue", "outer")]),
        lock("holder", vec![awaits("holder", "holder")]),
    ];
    assert_eq!(phases(&workload, "holder"), [repeat(Count::Fixed(3), holder)]);
    // `sync` takes its mutex around unless it is held.
    let sync = || vec![signal("queue", false), awaits("queue", "other")];
    let waker = vec![
        sleep(5),
        signal("queue", true),
        signal("queue", false),
        lock("other", sync()),
        lock("other", sync()),
        lock("holder", vec![signal("holder", true)]),
    ];
    assert_eq!(phases(&workload, "waker"), [repeat(Count::Fixed(3), waker)]);
    assert_eq!(phases(&workload, "left"), [repeat(Count::Fixed(4), vec![barrier("meet"), run(7)])]);
    assert_eq!(
        phases(&workload, "right"),
        [repeat(Count::Fixed(4), vec![Phase::RunFor { ns: 7000 }, barrier("meet")])]
    );
    assert_eq!(workload.barriers["meet"], Barrier::Condvar);
    assert!(workload.locks.values().all(|&kind| kind == Lock::Mutex) && workload.locks.len() == 4);
    assert_eq!(workload.groups[3].count, Count::Fixed(2));
    assert_eq!((workload.name.as_str(), workload.duration_ns), ("f", None));
    assert_eq!(notes, ["plain: writes memory at 28 bytes per ns"]);
}

#[test]
fn tasks_phases_loops_delays_cpus_and_forks() {
    let Imported { workload, notes } = imported(TASKS);
    let affinity = |cpus: &str| Phase::Affinity { cpus: Some(cpus.parse().unwrap()) };
    // A phase without end ends the task's round: what is behind it is never reached.
    let walker = [
        Phase::SleepUntil { ns: 1_500_000 },
        affinity("0"),
        run(100),
        repeat(Count::Fixed(5), vec![affinity("2-3"), run(200)]),
        repeat(Count::Forever, vec![affinity("2-3"), sleep(300)]),
    ];
    assert_eq!(phases(&workload, "walker"), walker);
    let group = |name: &str| workload.groups.iter().find(|group| group.name == name).unwrap();
    assert_eq!((group("walker").count, group("walker").cpus), (Count::Fixed(3), Some("2-3".parse().unwrap())));
    assert_eq!(phases(&workload, "endless"), [repeat(Count::Forever, vec![run(400), timer("endless.uniqueA", 1000)])]);
    assert_eq!(phases(&workload, "endless1"), [repeat(Count::Forever, vec![run(400)])]);
    // Six forks of the child by the parent, and one of the grandchild by each child.
    let wake = |task: &str| Phase::Wake { condition: format!("fork {task}"), count: Count::Fixed(1) };
    let wait = |task: &str| Phase::Wait { condition: format!("fork {task}") };
    let parent = repeat(Count::Fixed(2), vec![repeat(Count::Fixed(3), vec![wake("child"), sleep(1000)])]);
    assert_eq!(phases(&workload, "parent"), [parent]);
    let child = [wait("child"), Phase::SleepUntil { ns: 10_000 }, run(500), wake("grandchild")];
    assert_eq!(phases(&workload, "child.forked"), child);
    assert_eq!(phases(&workload, "grandchild.forked"), [wait("grandchild"), run(600)]);
    assert_eq!(phases(&workload, "grandchild"), [run(600)]);
    assert_eq!((group("child.forked").count, group("grandchild.forked").count), (Count::Fixed(6), Count::Fixed(6)));
    assert!(phases(&workload, "nothing").is_empty());
    // A real-time priority is no niceness.
    assert_eq!((group("walker").nice, group("endless").nice), (0, -7));
    assert_eq!(workload.groups.len(), 8);
    assert_eq!(workload.duration_ns, Some(2_000_000_000));
    let wanted = [
        "global.pi_enabled, tasks.walker.phases.back.priority, tasks.walker.policy, tasks.walker.priority: not sim",
        "tasks.walker.taskgroup, tasks.walker.util_min: not simulated",
        "child, grandchild: its forked threads",
        "tasks.spare, tasks.walker.phases.never: never reached",
        "tasks.walker.comment: not read",
        "ftrace, gnuplot, lock_pages, log_size, logdir, resources: not read",
        "calibration: not read",
    ];
    assert_eq!(notes.len(), wanted.len(), "{notes:?}");
    for (note, wanted) in notes.iter().zip(wanted) {
        assert!(note.starts_with(wanted), "{note}");
    }
}

#[test]
fn what_is_imported_is_a_workload_that_can_be_saved() {
    for text in [EVENTS, TASKS] {
        assert!(is_rtapp(text));
        let workload = imported(text).workload;
        assert_eq!(Workload::from_json(&workload.to_json(), "saved").unwrap(), workload);
        assert!(!is_rtapp(&workload.to_json()));
    }
}

#[test]
fn refuses_with_file_line_field_and_what_is_allowed() {
    for (task, wanted) in [
        (r#""run": -1"#, "f.json, line 2: tasks.t.run: found -1; allowed: a whole number, 0 to 2147483647"),
        (r#""run": 1.5"#, "found 1.5"),
        (r#""sleep": "long""#, "found \"long\""),
        (r#""run""#, "tasks.t.run: found no value"),
        (r#""loop": 2"#, "tasks.t: found no event; allowed: an event: runtime, run,"),
        (r#""exec": 5, "period": 9"#, "`exec`, of the language before rt-app 1.0"),
        (r#""lock_order": ["r0"]"#, "tasks.t.lock_order: found a list; allowed: a name in quotes"),
        (r#""loop": "x", "run": 1"#, "tasks.t.loop: found \"x\""),
        (r#""loop": 1, "loop": 2, "run": 1"#, "`loop` twice"),
        (r#""cpus": [], "run": 1"#, "found no CPU"),
        (r#""cpus": [1024], "run": 1"#, "found 1024"),
        (r#""policy": "SCHED_DEADLINE", "dl-runtime": 5, "run": 1"#, "found SCHED_DEADLINE; allowed: SCHED_OTHER"),
        (r#""priority": 20, "run": 1"#, "tasks.t.priority: found 20; allowed: -20 to 19"),
        (r#""priority": "high", "run": 1"#, "tasks.t.priority: found \"high\""),
        (r#""policy": "fast", "run": 1"#, "tasks.t.policy: found \"fast\""),
        (r#""lock": "m", "run": 1"#, "tasks.t.lock: found a lock of `m` without an unlock"),
        (r#""lock": "a", "lock": "b", "unlock": "a", "unlock": "b""#, "not the mutex that was locked last"),
        (r#""unlock": "a", "run": 1"#, "not the mutex that was locked last"),
        (r#""lock": "a", "lock": "a", "unlock": "a", "unlock": "a""#, "mutex `a` while the thread holds it"),
        (r#""lock": "t", "suspend", "unlock": "t""#, "mutex `t` while the thread holds it"),
        (r#""wait": {"ref": "q", "mutex": "m"}"#, "mutex `m`, which the thread does not hold"),
        (r#""wait": "q""#, "an object with `ref`"),
        (r#""suspend": "t", "resume": "t""#, "condition variable `t` that nobody can ever signal"),
        (r#""timer": {"ref": "x", "period": 5, "mode": "late"}"#, "tasks.t.timer.mode: found \"late\""),
        (r#""barrier": "b", "run": 1, "barrier2": "b""#, "barrier `b` twice"),
        (r#""fork": "nobody", "run": 1"#, "a fork of unknown task `nobody`; allowed: `t`"),
        (r#""fork": "t", "run": 1"#, "a fork of `t` without end"),
        (r#""loop": 2000, "fork": "t""#, "more than 1024 forks of `t`"),
        (r#""loop": 1, "fork": "t""#, "fork each other in a circle"),
        (r#""resume": "x""#, "an endless loop whose turns can take no time"),
        (r#""phases": {"p": {"loop": 2}}"#, "tasks.t.phases.p: found no event"),
        (r#""phases": [1]"#, "tasks.t.phases: found a list; allowed: an object"),
        (r#""phases": {"p": {"lock": "m", "loop": 2}, "q": {"unlock": "m"}}"#, "without an unlock"),
        (r#""instance": 5000, "run": 1"#, "f.json, as a workload: workload `f`: found 5000 threads"),
    ] {
        let error = one(task).unwrap_err().to_string();
        assert!(error.starts_with("f.json") && error.contains(wanted), "{task}\n{error}\n{wanted}");
    }
}

#[test]
fn refuses_what_the_whole_file_gets_wrong() {
    for (text, wanted) in [
        ("{}", "f.json: found no `tasks`"),
        ("[]", "f.json, line 1: the file: found a list"),
        (r#"{"tasks": {}}"#, "tasks: found none"),
        (r#"{"tasks": {"t": 5}}"#, "tasks.t: found 5; allowed: an object"),
        (r#"{"tasks": {"t": {"run": 5}}}"#, "a task without end in a file without `duration`"),
        (r#"{"tasks": {"t": {"run": 5}}, "global": {"duration": "1 s"}}"#, "global.duration: found \"1 s\""),
        (r#"{"tasks": {"t": {"run": 5}}, "global": {"duration": 20000}}"#, "duration_ns: found 20000000000000"),
        (
            r#"{"tasks": {"t": {"run": 5}}, "global": {"duration": 1, "default_policy": "SCHED_DEADLINE"}}"#,
            "SCHED_DEADLINE",
        ),
        (r#"{"tasks": {"t": {"run": 5}}, "global": {"duration": 1, "calibration": "fast"}}"#, "global.calibration"),
        (r#"{"tasks": {"t": {"iorun": 5}}, "global": {"duration": 1, "io_device": "/x"}}"#, "a write to `/x`"),
        (
            r#"{"tasks": {"a": {"loop": 1, "barrier": "b"}, "c": {"loop": 2, "barrier": "b"}}}"#,
            "barriers.b: found 1 and 2 passes",
        ),
        (
            r#"{"tasks": {"a": {"loop": 1, "fork": "c"}, "c": {"loop": 1, "barrier": "b"}}}"#,
            "a barrier in a task that is forked",
        ),
    ] {
        let error = import(text, "f.json", &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with("f.json") && error.contains(wanted), "{text}\n{error}");
    }
}

#[test]
fn options_say_what_the_file_does_not() {
    let text = r#"{"tasks": {"t": {"mem": 1000}}}"#;
    let options = Options { duration_s: Some(0.5), memset_bytes_per_ns: 4.0 };
    let Imported { workload, notes } = import(text, "f.json", &options).unwrap();
    assert_eq!(workload.duration_ns, Some(500_000_000));
    let memset = Phase::Run { ns: Duration::Fixed(250), shared: false };
    assert_eq!(phases(&workload, "t"), [repeat(Count::Forever, vec![memset])]);
    assert_eq!(notes, ["t: writes memory at 4 bytes per ns"]);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let duration = Options { duration_s: Some(wrong), ..Options::default() };
        assert!(import(text, "f.json", &duration).unwrap_err().to_string().contains("10800 s"));
        let rate = Options { memset_bytes_per_ns: wrong, ..options.clone() };
        assert!(import(text, "f.json", &rate).is_err());
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]{}\":,/* \\\\a-z0-9-]{0,80}") {
        let _ = import(&text, "f", &Options::default());
        let _ = is_rtapp(&text);
    }

    #[test]
    fn any_mutilation_is_read_or_refused(at in 0usize..2000, cut in 0usize..40, with in "\\PC{0,3}") {
        for text in [EVENTS, TASKS] {
            let at = at.min(text.len());
            let broken = format!("{}{with}{}", &text[..at], &text[(at + cut).min(text.len())..]);
            if let Ok(imported) = import(&broken, "f", &Options::default()) {
                prop_assert_eq!(Workload::from_json(&imported.workload.to_json(), "saved").unwrap(), imported.workload);
            }
        }
    }
}
