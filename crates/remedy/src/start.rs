//! Remedies that a program gets at its start, through its environment.

use crate::Remedy;
use muster_observe::progress;
use muster_undo::RUN_VARIABLE;
use std::path::PathBuf;

/// Allocations up to this size come from the heap, not from a mapping of their own: glibc's largest (mallopt(3)).
const MMAP_THRESHOLD_BYTES: u64 = 32 << 20;
/// The heap grows by at least this much and gives back only more than that.
const TOP_PAD_BYTES: u64 = 64 << 20;

/// The environment variables the program is started with.
pub fn environment(remedy: Remedy, run: &str, counter: Option<PathBuf>) -> Vec<(&'static str, String)> {
    let mut variables = vec![(RUN_VARIABLE, run.to_owned())];
    variables.extend(counter.map(|path| (progress::VARIABLE, path.display().to_string())));
    if remedy == Remedy::Memory {
        variables.push(("GLIBC_TUNABLES", tunables(std::env::var("GLIBC_TUNABLES").ok())));
    }
    variables
}

/// glibc's allocator told to keep memory and to ask for huge pages, after whatever the user has set (glibc manual,
/// "Memory Allocation Tunables"); the last setting of a tunable wins, so the user's come last.
fn tunables(users: Option<String>) -> String {
    let ours = format!(
        "glibc.malloc.mmap_threshold={MMAP_THRESHOLD_BYTES}:glibc.malloc.top_pad={TOP_PAD_BYTES}:\
         glibc.malloc.trim_threshold={TOP_PAD_BYTES}:glibc.malloc.hugetlb=1"
    );
    match users {
        Some(users) if !users.is_empty() => format!("{ours}:{users}"),
        _ => ours,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_tunables_come_last() {
        assert!(tunables(None).starts_with("glibc.malloc.mmap_threshold=33554432:"));
        assert!(tunables(Some("glibc.malloc.top_pad=1".into())).ends_with(":glibc.malloc.top_pad=1"));
    }
}
