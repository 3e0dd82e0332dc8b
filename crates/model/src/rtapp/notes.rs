//! What an import leaves out or simulates by something near to it, each told once.

use std::collections::BTreeSet;

/// Names, gathered by what has to be said of them.
#[derive(Debug, Default)]
pub struct Notes {
    logs: BTreeSet<String>,
    unknown: BTreeSet<String>,
    weight: BTreeSet<String>,
    placement: BTreeSet<String>,
    memset: BTreeSet<String>,
    forks: BTreeSet<String>,
    never: BTreeSet<String>,
    calibration: bool,
}

impl Notes {
    /// What rt-app writes or prepares, which changes no timing here.
    pub fn log(&mut self, key: &str) {
        self.logs.insert(key.to_owned());
    }

    /// A key that rt-app does not read either.
    pub fn unknown(&mut self, path: &str) {
        self.unknown.insert(path.to_owned());
    }

    /// A share of the CPU or a policy.
    pub fn weight(&mut self, path: &str) {
        self.weight.insert(path.to_owned());
    }

    /// A limit on clock speed, a memory node, a group of tasks.
    pub fn placement(&mut self, path: &str) {
        self.placement.insert(path.to_owned());
    }

    /// A task writes to memory.
    pub fn memset(&mut self, task: &str) {
        self.memset.insert(task.to_owned());
    }

    /// A task is forked.
    pub fn fork(&mut self, task: &str) {
        self.forks.insert(task.to_owned());
    }

    /// Something never happens.
    pub fn never(&mut self, path: &str) {
        self.never.insert(path.to_owned());
    }

    /// `calibration` is a number.
    pub fn calibration(&mut self) {
        self.calibration = true;
    }

    /// The sentences.
    pub fn sentences(&self, memset_bytes_per_ns: f64) -> Vec<String> {
        let memset = format!("writes memory at {memset_bytes_per_ns} bytes per ns");
        let said = [
            (
                &self.weight,
                "not simulated: where threads compete for a CPU, they do as SCHED_OTHER with their task's niceness",
            ),
            (&self.placement, "not simulated: clock speed and memory are the same for all, CPUs are shared by thread"),
            (&self.memset, memset.as_str()),
            (&self.forks, "its forked threads are there from the start and wait; forking one costs a futex wake-up"),
            (&self.never, "never reached"),
            (&self.unknown, "not read, as rt-app does not"),
            (&self.logs, "not read: it changes no timing here"),
        ];
        let mut sentences: Vec<String> = (said.iter())
            .filter(|(names, _)| !names.is_empty())
            .map(|(names, text)| format!("{}: {text}", names.iter().cloned().collect::<Vec<_>>().join(", ")))
            .collect();
        if self.calibration {
            sentences.push("calibration: not read; a `run` takes the time that it names".to_owned());
        }
        sentences
    }
}
