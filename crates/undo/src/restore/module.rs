//! Kernel modules whose parameters are fixed when they are loaded: rmmod(8) unloads them, and modprobe(8) loads them anew.
//!
//! A module that is loaded anew is not unloaded by `modprobe -r`, which takes the modules that it alone needs with it: with
//! kvm_amd it would lose whatever somebody has set of kvm.

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
        reload(module, &Parameters::new(), before)?;
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

/// All parameters of a module that can be read, and given to it again on a command line.
pub(crate) fn all_parameters(module: &str) -> io::Result<Parameters> {
    let directory = place(module).join("parameters");
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Parameters::new()),
        entries => entries?,
    };
    let read = |entry: fs::DirEntry| {
        let value = fs::read_to_string(entry.path()).ok()?.trim().to_owned();
        let is_word = !value.is_empty() && value != "(null)" && !value.contains(char::is_whitespace);
        is_word.then_some((entry.file_name().into_string().ok()?, value))
    };
    Ok(entries.flatten().filter_map(read).collect())
}

/// Loads a module that may be loaded already, with the `wanted` parameters, and its other ones as they were `before`. Of
/// those only the ones that do not come out so by themselves (modprobe.d(5), defaults) are given to it: with some, naming
/// them is enough to taint the kernel.
pub(crate) fn reload(module: &str, wanted: &Parameters, before: &Parameters) -> io::Result<()> {
    load_anew(module, wanted)?;
    let mut all = before.clone();
    all.extend(wanted.clone());
    let now = parameters(module, all.keys())?;
    all.retain(|name, value| !now[name].same(value));
    if !all.is_empty() {
        all.extend(wanted.clone());
        load_anew(module, &all)?;
    }
    let now = parameters(module, all.keys())?;
    match matches(&now, &all) {
        true => Ok(()),
        false => Err(io::Error::other(format!("module {module} was loaded with {all:?}, but has {now:?}"))),
    }
}

fn load_anew(module: &str, parameters: &Parameters) -> io::Result<()> {
    if is_loaded(module) {
        run("rmmod", [module.to_owned()].into_iter())?;
    }
    let arguments = parameters.iter().map(|(name, value)| format!("{name}={value}"));
    run("modprobe", std::iter::once(module.to_owned()).chain(arguments))
}

/// Unloads a module that was loaded by [`reload`], and what was loaded for it alone.
fn unload(module: &str) -> io::Result<()> {
    run("modprobe", ["-r".to_owned(), module.to_owned()].into_iter())
}

fn run(program: &str, arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let arguments: Vec<String> = arguments.collect();
    let output = Command::new(program).args(&arguments).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| io::Error::new(error.kind(), format!("{program}(8) cannot be run: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("`{program} {}` failed: {}", arguments.join(" "), said.trim())))
        }
    }
}
