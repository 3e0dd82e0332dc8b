//! Rooms and doors: which crate may import which, and what the two pure rooms may touch (CONTRIBUTING.md).

use cargo_metadata::{Metadata, MetadataCommand, Package};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every room and the rooms that it may import. `muster`, the command line, may import all.
const DOORS: [(&str, &[&str]); 13] = [
    ("model", &[]),
    ("stats", &[]),
    ("undo", &[]),
    ("policy", &["model"]),
    ("observe", &["model"]),
    ("probe", &["model", "stats"]),
    ("report", &["model", "stats"]),
    ("compare", &["model", "stats"]),
    ("sim", &["model", "policy"]),
    ("vsuite", &["model", "stats"]),
    ("remedy", &["model", "policy", "observe", "undo"]),
    ("host", &["model", "policy", "undo"]),
    (
        "muster",
        &[
            "model", "stats", "undo", "policy", "observe", "probe", "report", "compare", "sim", "remedy", "host",
            "vsuite",
        ],
    ),
];

/// Rooms that hold decisions and nouns only: no clock, file, network, system, thread or chance.
const PURE_ROOMS: [&str; 2] = ["model", "policy"];
/// What the pure rooms may import from outside the project: data formats and errors.
const PURE_IMPORTS: [&str; 5] = ["bitflags", "serde", "serde_json", "thiserror", "toml"];
/// What no source of a pure room may name; other crates that reach the system are kept out by [`PURE_IMPORTS`].
const IMPURE_PATHS: [&str; 8] =
    ["std::env", "std::fs", "std::io", "std::net", "std::os", "std::process", "std::thread", "std::time"];

fn workspace() -> Metadata {
    MetadataCommand::new().no_deps().exec().expect("cargo metadata describes the workspace")
}

/// `muster-sim` is the room `sim`; the command line is the room `muster`.
fn room(package_name: &str) -> &str {
    package_name.strip_prefix("muster-").unwrap_or(package_name)
}

fn source_dir(package: &Package) -> PathBuf {
    package.manifest_path.parent().expect("a manifest lies in a directory").join("src").into()
}

/// All Rust sources below a directory.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a crate has sources").map(|entry| entry.expect("a readable entry").path());
    entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn every_room_imports_only_what_its_doors_allow() {
    let metadata = workspace();
    let rooms: BTreeSet<&str> = metadata.packages.iter().map(|package| room(&package.name)).collect();
    assert_eq!(rooms, DOORS.iter().map(|(room, _)| *room).collect(), "every room has its line in DOORS");
    for package in &metadata.packages {
        let (name, allowed) = DOORS.iter().find(|(name, _)| *name == room(&package.name)).expect("compared above");
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let imported = room(&dependency.name);
            assert!(allowed.contains(&imported), "room {name} imports {imported}; allowed: {allowed:?}");
        }
    }
}

#[test]
fn pure_rooms_import_only_data_formats() {
    for package in workspace().packages.iter().filter(|package| PURE_ROOMS.contains(&room(&package.name))) {
        let outside = package.dependencies.iter().filter(|dependency| {
            dependency.path.is_none() && dependency.kind == cargo_metadata::DependencyKind::Normal
        });
        for dependency in outside {
            assert!(
                PURE_IMPORTS.contains(&dependency.name.as_str()),
                "{} imports {}; allowed: {PURE_IMPORTS:?}",
                package.name,
                dependency.name
            );
        }
    }
}

#[test]
fn pure_rooms_never_touch_the_system() {
    for package in workspace().packages.iter().filter(|package| PURE_ROOMS.contains(&room(&package.name))) {
        for file in sources(&source_dir(package)) {
            let text = fs::read_to_string(&file).expect("a readable source");
            let impure = impure_paths(&text);
            assert!(impure.is_empty(), "{} names {impure:?}, which a pure room must not", file.display());
        }
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    for package in workspace().packages {
        for file in sources(&source_dir(&package)) {
            let text = fs::read_to_string(&file).expect("a readable source");
            assert!(text.starts_with("//! "), "{}: the first line says what the module is for", file.display());
        }
    }
}

/// The paths in a source that lead through one of [`IMPURE_PATHS`].
fn impure_paths(source: &str) -> Vec<String> {
    let tokens: TokenStream = source.parse().expect("a source that Rust can read");
    let mut paths = Vec::new();
    collect_paths(tokens, "", &mut paths);
    paths.retain(|path| IMPURE_PATHS.iter().any(|impure| format!("::{path}::").contains(&format!("::{impure}::"))));
    paths
}

/// Every path in a token stream, `use a::{b, c}` unfolded to `a::b` and `a::c`; comments and strings hold none.
fn collect_paths(tokens: TokenStream, prefix: &str, paths: &mut Vec<String>) {
    let mut path = prefix.to_owned();
    for token in tokens {
        match token {
            TokenTree::Ident(name) if path.is_empty() || path.ends_with("::") => path.push_str(&name.to_string()),
            TokenTree::Ident(name) => {
                paths.push(std::mem::replace(&mut path, format!("{prefix}{name}")));
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => path.push(':'),
            TokenTree::Group(group) => {
                let inner = if path.ends_with("::") { path.as_str() } else { "" };
                collect_paths(group.stream(), inner, paths);
            }
            _ => paths.push(std::mem::replace(&mut path, prefix.to_owned())),
        }
    }
    paths.push(path);
}

#[test]
fn impure_paths_are_found_however_they_are_written() {
    for source in [
        "use std::time::Instant;",
        "use std::{collections::BTreeMap, fs};",
        "use std::{collections::{BTreeMap, BTreeSet}, env::{self, var}};",
        "fn f() { let x = std::thread::spawn(|| 1); }",
        "fn f() { println!(\"{}\", std::process::id()); }",
        "fn f(a: std::time::Duration) {}",
        "use ::std::net;",
        "struct S { a: ::std::os::fd::RawFd }",
    ] {
        assert!(!impure_paths(source).is_empty(), "{source}");
    }
    for source in [
        "//! std::time is not for us",
        "const TEXT: &str = \"std::fs\";",
        "use std::collections::BTreeMap; struct S { env: u8, time: bool }",
    ] {
        assert!(impure_paths(source).is_empty(), "{source}");
    }
}
