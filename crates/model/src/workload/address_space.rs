//! What pages a process goes through, where translations are followed page by page.

use super::range;
use crate::ModelError;
use serde::{Deserialize, Serialize};

/// Most pages of a process that count by themselves.
const MAX_PAGES: u64 = 1 << 20;
/// Most places where they lie.
const MAX_AREAS: u64 = 256;
/// Largest heap: 64 GiB.
const MAX_HEAP: u64 = 1 << 36;

/// The size of a page that a program has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HeapPage {
    /// 4 KiB.
    #[default]
    #[serde(rename = "4k")]
    Small,
    /// 2 MiB.
    #[serde(rename = "2m")]
    Large,
}

/// A process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressSpace {
    /// Pages of code that it goes through all the time.
    #[serde(default = "code_pages")]
    pub code_pages: u64,
    /// Pages of data that it goes through all the time.
    #[serde(default = "data_pages")]
    pub data_pages: u64,
    /// In how many places these lie: the program's own, its stack's, and those of libraries between; 2 to 256.
    #[serde(default = "areas")]
    pub areas: u64,
    /// Pages of data that are mapped from the start on besides, and that fork(2) copies; those of the heap not counted.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub resident_pages: u64,
    /// A heap that is mapped from the start on, and that the process comes back to anywhere.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub heap_bytes: u64,
    /// It comes to another page of the heap once in so many nanoseconds of computing.
    #[serde(default = "heap_ns")]
    pub heap_ns: u64,
    /// The heap's pages.
    #[serde(default)]
    pub heap_page: HeapPage,
}

fn code_pages() -> u64 {
    20
}
fn data_pages() -> u64 {
    60
}
fn areas() -> u64 {
    3
}
fn heap_ns() -> u64 {
    200
}

impl Default for AddressSpace {
    fn default() -> Self {
        Self {
            code_pages: code_pages(),
            data_pages: data_pages(),
            areas: areas(),
            resident_pages: 0,
            heap_bytes: 0,
            heap_ns: heap_ns(),
            heap_page: HeapPage::Small,
        }
    }
}

impl AddressSpace {
    pub(super) fn check(&self, place: &str) -> Result<(), ModelError> {
        range(&format!("{place}.code_pages"), self.code_pages, 1, MAX_PAGES)?;
        range(&format!("{place}.data_pages"), self.data_pages, 1, MAX_PAGES)?;
        range(&format!("{place}.areas"), self.areas, 2, MAX_AREAS)?;
        range(&format!("{place}.resident_pages"), self.resident_pages, 0, MAX_PAGES)?;
        range(&format!("{place}.heap_bytes"), self.heap_bytes, 0, MAX_HEAP)?;
        range(&format!("{place}.heap_ns"), self.heap_ns, 1, super::MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    fn read(space: &str, exec: &str) -> Result<Workload, String> {
        let text = format!(
            r#"{{"name":"w","address_space":{space},"groups":[{{"name":"g","count":1,"phases":[
            {{"fork":{{"exec":{exec},"phases":[{{"run":{{"ns":5}}}}]}}}}]}}]}}"#
        );
        Workload::from_json(&text, "w.json").map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_read_and_written_back() {
        let workload = read("{}", "null").unwrap();
        assert_eq!(workload.address_space, Some(AddressSpace::default()));
        let all = r#"{"code_pages":7,"data_pages":8,"areas":12,"resident_pages":9,"heap_bytes":8192,"heap_ns":3,"heap_page":"2m"}"#;
        let both = read(all, all).unwrap();
        assert_eq!(both.address_space.unwrap().heap_page, HeapPage::Large);
        for workload in [workload, both] {
            assert_eq!(Workload::from_json(&workload.to_json(), "w.json").unwrap(), workload);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        for (space, exec, wanted) in [
            (r#"{"code_pages":0}"#, "{}", "address_space.code_pages: found 0; allowed: 1 to 1048576"),
            (r#"{"areas":1}"#, "{}", "address_space.areas: found 1; allowed: 2 to 256"),
            (r#"{"heap_ns":0}"#, "{}", "address_space.heap_ns: found 0"),
            ("{}", r#"{"data_pages":0}"#, "groups.g.phases[0].fork.exec.data_pages: found 0"),
            (r#"{"pages":1}"#, "{}", "unknown field `pages`"),
        ] {
            let error = read(space, exec).unwrap_err();
            assert!(error.starts_with("w.json") && error.contains(wanted), "{error}");
        }
    }
}
