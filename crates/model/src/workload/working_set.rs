//! What of the memory a program goes through again and again: what caches have to hold for it.

use super::range;
use crate::ModelError;
use serde::{Deserialize, Serialize};

/// Largest working set: 1 TiB.
pub const MAX_BYTES: u64 = 1 << 40;

/// A group's working set. Time that a thread computes is without the misses of it, which come on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkingSet {
    /// How much each thread goes through, what it shares included.
    pub bytes: u64,
    /// How much of that all threads of the group have in common.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub shared_bytes: u64,
    /// A thread comes to another line of it once in so many nanoseconds of computing.
    #[serde(default = "line_ns")]
    pub line_ns: u64,
    /// How many of a hundred such lines it writes: others that have them lose them.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub written_percent: u64,
}

/// Every 48 cycles of 2.4 GHz: assumed where a workload does not say.
fn line_ns() -> u64 {
    20
}

impl WorkingSet {
    pub(super) fn check(&self, place: &str) -> Result<(), ModelError> {
        range(&format!("{place}.bytes"), self.bytes, 1, MAX_BYTES)?;
        range(&format!("{place}.shared_bytes"), self.shared_bytes, 0, self.bytes)?;
        range(&format!("{place}.line_ns"), self.line_ns, 1, super::MAX_NS)?;
        range(&format!("{place}.written_percent"), self.written_percent, 0, 100)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;

    fn read(working_set: &str) -> Result<Workload, String> {
        let text = format!(
            r#"{{"name":"w","groups":[{{"name":"g","count":1,"working_set":{working_set},"phases":[{{"run":{{"ns":5}}}}]}}]}}"#
        );
        Workload::from_json(&text, "w.json").map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_read_and_written_back() {
        let workload = read(r#"{"bytes":4096}"#).unwrap();
        let set = workload.groups[0].working_set.unwrap();
        assert_eq!((set.bytes, set.shared_bytes, set.line_ns, set.written_percent), (4096, 0, 20, 0));
        let all = read(r#"{"bytes":4096,"shared_bytes":64,"line_ns":7,"written_percent":30}"#).unwrap();
        for workload in [workload, all] {
            assert_eq!(Workload::from_json(&workload.to_json(), "w.json").unwrap(), workload);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        for (set, wanted) in [
            (r#"{"bytes":0}"#, "groups.g.working_set.bytes: found 0; allowed: 1 to 1099511627776"),
            (r#"{"bytes":64,"shared_bytes":65}"#, "groups.g.working_set.shared_bytes: found 65; allowed: 0 to 64"),
            (r#"{"bytes":64,"line_ns":0}"#, "groups.g.working_set.line_ns: found 0"),
            (
                r#"{"bytes":64,"written_percent":101}"#,
                "groups.g.working_set.written_percent: found 101; allowed: 0 to 100",
            ),
            (r#"{"bytes":64,"private":1}"#, "unknown field `private`"),
            (r#"{"shared_bytes":64}"#, "missing field `bytes`"),
            (r#"{"bytes":-1}"#, "invalid value"),
        ] {
            let error = read(set).unwrap_err();
            assert!(error.starts_with("w.json") && error.contains(wanted), "{error}");
        }
    }
}
