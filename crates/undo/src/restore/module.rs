//! Kernel modules whose parameters are fixed when they are loaded: modprobe(8) unloads them and loads them anew.

use super::Mode;
use crate::pending::{Parameters, Same};
use crate::report::Outcome;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A name goes into a path and onto a command line, so that nothing else may be in it.
pub(crate) fn check(module: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !module.is_empty() && !module.starts_with('-') && module.chars().all(allowed) {
        true => Ok(()),
        false => Err(format!("`{module}` is no name of a module")),
    }
}

pub(super) fn undo(
    module: &str,
    before: Option<&Parameters>,
    applied: &[Parameters],
    mode: Mode,
) -> io::Result<Outcome> {
    let Some(before) = before else {
        if !is_loaded(module) {
            return Ok(Outcome::Nothing);
        }
        if mode == Mode::Apply {
            unload(module)?;
        }
        return Ok(Outcome::Restored);
    };
    // Killed between unloading and loading: it is missing, and everything about it is ours.
    if is_loaded(module) {
        let current = parameters(module, before.keys())?;
        if matches(&current, before) {
            return Ok(Outcome::Nothing);
        }
        if !applied.iter().any(|applied| matches(&current, applied)) {
            return Ok(Outcome::LeftAlone("it has parameters that this run did not set".to_owned()));
        }
    }
    if mode == Mode::Apply {
        reload(module, before)?;
    }
    Ok(Outcome::Restored)
}

fn matches(current: &Parameters, wanted: &Parameters) -> bool {
    wanted.iter().all(|(name, value)| current.get(name).is_some_and(|now| now.same(value)))
}

fn place(module: &str) -> PathBuf {
    PathBuf::from("/sys/module").join(module.replace('-', "_"))
}

/// Whether the running kernel has the module.
pub(crate) fn is_loaded(module: &str) -> bool {
    place(module).exists()
}

/// What the named parameters of a module read.
pub(crate) fn parameters<'a>(module: &str, names: impl Iterator<Item = &'a String>) -> io::Result<Parameters> {
    let read = |name: &'a String| {
        let value = fs::read_to_string(place(module).join("parameters").join(name))?;
        Ok((name.clone(), value.trim().to_owned()))
    };
    names.map(read).collect()
}

/// Loads a module that may be loaded already, with these parameters; those of modprobe.d(5) hold for the others.
pub(crate) fn reload(module: &str, wanted: &Parameters) -> io::Result<()> {
    if is_loaded(module) {
        unload(module)?;
    }
    let arguments = wanted.iter().map(|(name, value)| format!("{name}={value}"));
    modprobe(std::iter::once(module.to_owned()).chain(arguments))?;
    let now = parameters(module, wanted.keys())?;
    match matches(&now, wanted) {
        true => Ok(()),
        false => Err(io::Error::other(format!("module {module} was loaded with {wanted:?}, but has {now:?}"))),
    }
}

fn unload(module: &str) -> io::Result<()> {
    modprobe(["-r".to_owned(), module.to_owned()].into_iter())
}

fn modprobe(arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let arguments: Vec<String> = arguments.collect();
    let output = Command::new("modprobe").args(&arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("modprobe(8) cannot be run: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("`modprobe {}` failed: {}", arguments.join(" "), said.trim())))
        }
    }
}
