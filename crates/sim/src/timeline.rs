//! A run's timeline as Chrome trace JSON, which Perfetto reads: one track a core, one slice a stretch of its time.

use crate::engine::books::Stretch;
use serde::Serialize;

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'a str,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Named>,
}

#[derive(Serialize)]
struct Named {
    name: String,
}

/// The stretches of `cores` cores as a JSON array of trace events, times in microseconds.
pub fn chrome_trace(stretches: &[Stretch], cores: u32) -> String {
    let names = (0..cores).map(|core| Event {
        name: "thread_name",
        ph: "M",
        pid: 0,
        tid: core,
        ts: 0.0,
        dur: None,
        args: Some(Named { name: format!("core {core}") }),
    });
    let us = |ps: u64| ps as f64 / 1e6;
    let slices = stretches.iter().map(|stretch| Event {
        name: stretch.account.name(),
        ph: "X",
        pid: 0,
        tid: stretch.core,
        ts: us(stretch.from_ps),
        dur: Some(us(stretch.to_ps - stretch.from_ps)),
        args: None,
    });
    serde_json::to_string(&names.chain(slices).collect::<Vec<_>>()).expect("numbers and names are JSON")
}
