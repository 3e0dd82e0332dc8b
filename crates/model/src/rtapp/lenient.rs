//! JSON as files for rt-app hold it: what json-c reads in its default mode (comments, commas at the end, single quotes,
//! `True`), and what workgen mends before (a key twice, a key without a value). Order is kept, as it is the program's.
//!
//! No crate reads keys without values, and errors name the line.

use crate::ModelError;

/// Deepest nesting, as json-c's.
const DEPTH: usize = 32;

/// A value and where it begins.
#[derive(Debug)]
pub struct Node {
    /// Line, from 1.
    pub line: usize,
    /// The value.
    pub value: Value,
}

/// A JSON value.
#[derive(Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the file's order; keys may repeat.
    Object(Vec<(String, Node)>),
    /// A key stands by itself.
    Missing,
}

impl Node {
    /// What it is, for a message.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(truth) => truth.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Text(text) => format!("\"{text}\""),
            Value::List(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            Value::Missing => "no value".to_owned(),
        }
    }
}

/// Reads a whole file.
///
/// # Errors
/// On anything that json-c and workgen would not read either, with its line.
pub fn parse(text: &str, file: &str) -> Result<Node, ModelError> {
    let mut reader = Reader { file, rest: text, line: 1 };
    let node = reader.value(0)?;
    reader.skip_blanks()?;
    if reader.rest.is_empty() { Ok(node) } else { Err(reader.unexpected("the end of the file")) }
}

/// The first key of the outermost object, if there is one.
pub fn first_key(text: &str) -> Option<String> {
    let mut reader = Reader { file: "", rest: text, line: 1 };
    reader.skip_blanks().ok()?;
    reader.take('{').then_some(())?;
    reader.skip_blanks().ok()?;
    reader.string().ok()
}

struct Reader<'a> {
    file: &'a str,
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, ModelError> {
        self.skip_blanks()?;
        let line = self.line;
        if depth > DEPTH {
            return Err(self.error("a value nested deeper", format!("at most {DEPTH} levels")));
        }
        let value = match self.rest.chars().next() {
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some('"' | '\'') => Value::Text(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            Some(first) if first.is_ascii_alphabetic() => self.word()?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { line, value })
    }

    fn object(&mut self, depth: usize) -> Result<Value, ModelError> {
        let mut members = Vec::new();
        self.take('{');
        loop {
            self.skip_blanks()?;
            if self.take('}') {
                return Ok(Value::Object(members));
            }
            let line = self.line;
            if !self.rest.starts_with(['"', '\'']) {
                return Err(self.unexpected("a key in quotes, or `}`"));
            }
            let key = self.string()?;
            self.skip_blanks()?;
            let node = match self.take(':') {
                true => self.value(depth + 1)?,
                false => Node { line, value: Value::Missing },
            };
            members.push((key, node));
            self.skip_blanks()?;
            if !self.take(',') && !self.rest.starts_with('}') {
                return Err(self.unexpected("`:`, `,` or `}`"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, ModelError> {
        let mut nodes = Vec::new();
        self.take('[');
        loop {
            self.skip_blanks()?;
            if self.take(']') {
                return Ok(Value::List(nodes));
            }
            nodes.push(self.value(depth + 1)?);
            self.skip_blanks()?;
            if !self.take(',') && !self.rest.starts_with(']') {
                return Err(self.unexpected("`,` or `]`"));
            }
        }
    }

    fn number(&mut self) -> Result<Value, ModelError> {
        let end = self.rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        let digits = &self.rest[..end.unwrap_or(self.rest.len())];
        let value = match (digits.parse(), digits.parse()) {
            (Ok(number), _) => Value::Int(number),
            (_, Ok(number)) => Value::Float(number),
            _ => return Err(self.error(format!("`{digits}`"), "a number")),
        };
        self.skip(digits.len());
        Ok(value)
    }

    fn word(&mut self) -> Result<Value, ModelError> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        let value = match word.to_ascii_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            _ => return Err(self.error(format!("`{word}`"), "a value: a number, a text in quotes, true, false, null")),
        };
        self.skip(end);
        Ok(value)
    }

    fn string(&mut self) -> Result<String, ModelError> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        let Some((_, quote @ ('"' | '\''))) = chars.next() else { return Err(self.unexpected("a text in quotes")) };
        loop {
            match chars.next() {
                Some((at, c)) if c == quote => {
                    self.skip(at + 1);
                    return Ok(text);
                }
                Some((_, '\\')) => match chars.next().map(|(_, c)| c) {
                    Some('b') => text.push('\u{8}'),
                    Some('f') => text.push('\u{c}'),
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some('u') => {
                        let code: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                        text.push(code.unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    Some(c) => text.push(c),
                    None => break,
                },
                Some((_, c)) => text.push(c),
                None => break,
            }
        }
        Err(self.error("a text without an end", format!("{quote} at its end")))
    }

    /// Passes over white space and comments.
    fn skip_blanks(&mut self) -> Result<(), ModelError> {
        loop {
            self.skip(self.rest.len() - self.rest.trim_start().len());
            if self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                match self.rest[2..].find("*/") {
                    Some(end) => self.skip(end + 4),
                    None => return Err(self.error("a comment without an end", "*/ at its end")),
                }
            } else {
                return Ok(());
            }
        }
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.rest.starts_with(c);
        if found {
            self.skip(c.len_utf8());
        }
        found
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes);
        self.line += skipped.matches('\n').count();
        self.rest = rest;
    }

    fn unexpected(&self, allowed: &str) -> ModelError {
        let found = match self.rest.chars().next() {
            Some(c) => format!("`{}`", c.escape_debug()),
            None => "the end of the file".to_owned(),
        };
        self.error(found, allowed)
    }

    fn error(&self, found: impl Into<String>, allowed: impl Into<String>) -> ModelError {
        ModelError::new(format!("{}, line {}", self.file, self.line), found, allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(node: &Node) -> Vec<(&str, String)> {
        let Value::Object(members) = &node.value else { panic!("{node:?}") };
        members.iter().map(|(key, node)| (key.as_str(), node.describe())).collect()
    }

    #[test]
    fn reads_what_json_c_and_workgen_read() {
        let text = "{ /* a\n comment */ \"run\" : 5, // and one\n 'run' : -7, \"suspend\", \"x\": True, \"y\": [1, 2,],\n\
                    \"z\": \"a\\\"\\u0041\\n\", \"f\": 1.5, \"n\": NULL, \"last\" }";
        let node = parse(text, "f").unwrap();
        let wanted = [
            ("run", "5"),
            ("run", "-7"),
            ("suspend", "no value"),
            ("x", "true"),
            ("y", "a list"),
            ("z", "\"a\"A\n\""),
            ("f", "1.5"),
            ("n", "null"),
            ("last", "no value"),
        ];
        assert_eq!(keys(&node), wanted.map(|(key, value)| (key, value.to_owned())));
        let Value::Object(members) = &node.value else { panic!() };
        assert_eq!((members[0].1.line, members[1].1.line, members[5].1.line), (2, 3, 4));
    }

    #[test]
    fn refuses_with_the_line() {
        for (text, wanted) in [
            ("", "f, line 1: found the end of the file"),
            ("{\n\"a\": 1", "f, line 2"),
            ("{\n\n\"a\" 5}", "f, line 3: found `5`; allowed: `:`, `,` or `}`"),
            ("{\"a\": /* ", "a comment without an end"),
            ("{\"a\": \"b", "a text without an end"),
            ("{\"a\": maybe}", "found `maybe`"),
            ("{\"a\": 1-2}", "found `1-2`; allowed: a number"),
            ("{\"a\": 1} 2", "allowed: the end of the file"),
            ("{a: 1}", "a key in quotes"),
            (&"[".repeat(100_000), "at most 32 levels"),
        ] {
            let error = parse(text, "f").unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn the_first_key_is_found_behind_comments() {
        assert_eq!(first_key("{ /* x */ 'tasks' : {").as_deref(), Some("tasks"));
        assert_eq!(first_key("[1]"), None);
    }
}
