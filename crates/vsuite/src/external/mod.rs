//! The two programs that are not our own: what they need, and what they are asked to do.

pub mod dbench;
pub mod make;

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The first of these commands that cannot be found, with the package that has it, in words.
fn missing(commands: &[(&str, &str)]) -> Option<String> {
    let lacking = commands.iter().find(|(command, _)| !is_command(command));
    lacking.map(|(command, package)| format!("`{command}` is not installed (package {package})"))
}

fn is_command(name: &str) -> bool {
    let is_program =
        |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| is_program(&dir.join(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        assert_eq!(missing(&[("sh", "dash")]), None);
        let found = missing(&[("sh", "dash"), ("no-such-command", "no-such-package")]);
        assert_eq!(found.unwrap(), "`no-such-command` is not installed (package no-such-package)");
    }
}
