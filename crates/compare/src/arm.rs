//! Arms: the ways in which the same program is run.

use crate::error::CompareError;

/// The names of arms that `muster run` provides; `plain` is the program as it stands.
pub const BUILT_IN: [&str; 8] = ["plain", "auto", "consolidate", "poll", "awake", "colocate", "clock", "memory"];

/// One way of running the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmSpec {
    /// Its name.
    pub name: String,
    /// What is put before the program's command line.
    pub prefix: Vec<String>,
}

impl ArmSpec {
    /// Reads one `--arm`: a built-in name, or `name=PREFIX COMMAND`, whose words are split as a shell splits them.
    /// `muster` is the path under which this program can start itself, `objective` is handed on to `muster run`.
    ///
    /// # Errors
    /// On an unknown name, an empty name or prefix and unbalanced quotes.
    pub fn parse(text: &str, muster: &str, objective: &str) -> Result<Self, CompareError> {
        match text.split_once('=') {
            Some((name, prefix)) => custom(text, name, prefix),
            None if BUILT_IN.contains(&text) => Ok(built_in(text, muster, objective)),
            None => Err(wrong(text)),
        }
    }
}

/// The arms of a comparison, baseline first: `plain` is put in front where nobody named it, and `auto` behind it where
/// nobody named any.
///
/// # Errors
/// As [`ArmSpec::parse`]; when two arms share a name, or only one is left.
pub fn parse_all(texts: &[String], muster: &str, objective: &str) -> Result<Vec<ArmSpec>, CompareError> {
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    if texts.is_empty() {
        texts.push("auto");
    }
    if !texts.iter().any(|text| name_of(text) == "plain") {
        texts.insert(0, "plain");
    }
    let arms: Vec<ArmSpec> =
        texts.iter().map(|text| ArmSpec::parse(text, muster, objective)).collect::<Result<_, _>>()?;
    if let Some(twice) = arms.iter().enumerate().find(|(index, arm)| arms[..*index].iter().any(|a| a.name == arm.name))
    {
        return Err(CompareError::bad_input("--arm", format!("`{}` twice", twice.1.name), "each name once"));
    }
    if arms.len() < 2 {
        return Err(CompareError::bad_input("--arm", "only `plain`", "one more arm to compare it with"));
    }
    Ok(arms)
}

fn name_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(name, _)| name)
}

fn built_in(name: &str, muster: &str, objective: &str) -> ArmSpec {
    let prefix: &[&str] =
        if name == "plain" { &[] } else { &[muster, "run", "--remedy", name, "--objective", objective, "--"] };
    ArmSpec { name: name.to_owned(), prefix: prefix.iter().map(|word| (*word).to_owned()).collect() }
}

fn custom(text: &str, name: &str, prefix: &str) -> Result<ArmSpec, CompareError> {
    let words = shlex::split(prefix).filter(|words| !words.is_empty()).ok_or_else(|| wrong(text))?;
    let is_fit = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    if !is_fit {
        return Err(wrong(text));
    }
    Ok(ArmSpec { name: name.to_owned(), prefix: words })
}

fn wrong(text: &str) -> CompareError {
    let allowed = format!(
        "{}, or NAME=PREFIX with a name of letters, digits, `-`, `_` and `.`, such as one='taskset -c 0'",
        BUILT_IN.join(", ")
    );
    CompareError::bad_input("--arm", format!("`{text}`"), allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Result<Vec<String>, String> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let arms = parse_all(&texts, "muster", "speed").map_err(|error| error.to_string())?;
        Ok(arms.into_iter().map(|arm| arm.name).collect())
    }

    #[test]
    fn plain_comes_first_unless_placed() {
        assert_eq!(names(&[]).unwrap(), ["plain", "auto"]);
        assert_eq!(names(&["one=taskset -c 0"]).unwrap(), ["plain", "one"]);
        assert_eq!(names(&["auto", "plain"]).unwrap(), ["auto", "plain"]);
    }

    #[test]
    fn prefixes_are_split_as_a_shell_does() {
        let arm = ArmSpec::parse("x=env 'A=b c' nice -n 5", "muster", "speed").unwrap();
        assert_eq!(arm.prefix, ["env", "A=b c", "nice", "-n", "5"]);
        let arm = ArmSpec::parse("consolidate", "/m", "cost").unwrap();
        assert_eq!(arm.prefix, ["/m", "run", "--remedy", "consolidate", "--objective", "cost", "--"]);
    }

    #[test]
    fn bad_arms_are_refused() {
        for bad in ["fast", "", "x=", "=taskset", "x='unbalanced", "a b=true"] {
            let message = names(&[bad]).unwrap_err();
            assert!(message.contains("allowed: plain, auto") && message.contains(bad), "{message}");
        }
        assert!(names(&["auto", "auto"]).unwrap_err().contains("twice"));
        assert!(names(&["plain"]).unwrap_err().contains("one more arm"));
    }
}
