//! What is predicted for programs of benches/live from the signals that `muster explain -- benches/live/run-one NAME`
//! recorded of them, period by period, on the 2-vCPU guest of docs/measured.md without BPF. One run each (two of those
//! that contend); of sched-pipe the first 1.2 s. The last period of a program that ended has no counts.

use muster_policy::consolidate::Prices;
use muster_policy::predict::{Gain, WakeSignals, consolidation_gain_over};
use serde_json::{Map, Value};

/// Futex wake-ups on the 2-vCPU guest of docs/live-accounts.md.
const PRICES: Prices =
    Prices { wake_same_cpu_ns: 1_700.0, wake_awake_ns: 15_700.0, wake_halted_ns: 22_500.0, handover_lines_ns: 0.0 };

/// Speed on one vCPU relative to both (docs/measured.md); `None` for those of which nothing tells.
const MEASURED: [(&str, Option<f64>); 11] = [
    ("sysbench-mutex", None),
    ("stress-ng-futex", None),
    ("pigz", Some(0.52)),
    ("zstd-2", Some(0.49)),
    ("make-j2", Some(0.53)),
    ("redis-50", Some(0.67)),
    ("hackbench-pipe", Some(0.81)),
    ("memcached-8", Some(0.80)),
    ("python-gil", Some(1.01)),
    ("sched-pipe", Some(7.64)),
    ("pipeline-64", Some(2.39)),
];

/// By run, the program and its periods.
fn recorded() -> Vec<(String, Vec<(f64, WakeSignals)>)> {
    let file: Value = serde_json::from_str(include_str!("explained.json")).unwrap();
    let columns: Vec<&str> = file["columns"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let period = |row: &Value| {
        let fields = columns.iter().map(|&name| name.to_owned()).zip(row.as_array().unwrap().iter().cloned());
        let signals: Map<String, Value> = fields.filter(|(name, _)| name != "seconds").collect();
        (row[0].as_f64().unwrap(), serde_json::from_value(Value::Object(signals)).unwrap())
    };
    let run = |run: &Value| {
        let periods = run["periods"].as_array().unwrap().iter().map(period).collect();
        (run["program"].as_str().unwrap().to_owned(), periods)
    };
    file["runs"].as_array().unwrap().iter().map(run).collect()
}

fn predicted(program: &str) -> Vec<Option<Gain>> {
    let runs = recorded().into_iter().filter(|(name, _)| name == program);
    runs.map(|(_, periods)| consolidation_gain_over(&periods, &PRICES)).collect()
}

#[test]
fn nothing_is_said_of_programs_that_fill_their_vcpus_contending_and_the_right_thing_of_others() {
    for (program, measured) in MEASURED {
        let predicted = predicted(program);
        assert!(!predicted.is_empty(), "{program} was not recorded");
        for gain in predicted {
            match (measured, gain) {
                (None, gain) => assert_eq!(gain, None, "{program}"),
                (Some(measured), None) => panic!("{program}: nothing is said, {measured} was measured"),
                (Some(measured), Some(gain)) => {
                    let is_near_one = (0.9..=1.1).contains(&measured);
                    assert!(is_near_one || (measured > 1.0) == (gain.speed.value > 1.0), "{program}: {gain:?}");
                }
            }
        }
    }
}
