//! What subcommands share: why they fail, and how they print.

use std::fmt;
use std::io::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::text::Escaped;
pub(crate) use crate::text::counted;

/// Why a command failed, which decides the exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Arguments that contradict each other: 64.
    Usage(String),
    /// Invalid settings or rules: 78.
    Config(String),
    /// Anything else: 1.
    Other(anyhow::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Config(text) => formatter.write_str(text),
            Self::Other(error) => write!(formatter, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Prints to stdout. A closed pipe, as of `| head`, is ignored: `println!` would panic.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// A report for programs.
pub(crate) fn json(report: &impl Serialize) -> String {
    serde_json::to_string_pretty(report).expect("the keys of its maps are texts") + "\n"
}

/// Prints to stderr, ignoring a closed pipe.
pub(crate) fn print_error(text: &str) {
    let _ = std::io::stderr().write_all(error_line(text).as_bytes());
}

/// An error as commands print it.
pub(crate) fn error_line(error: impl fmt::Display) -> String {
    format!("tollgate: {error}\n")
}

/// The elements of a list of a page; none if it has no such list.
pub(crate) fn list<'p>(page: &'p Value, name: &str) -> impl Iterator<Item = &'p Value> {
    page[name].as_array().into_iter().flatten()
}

/// A value of a page without control characters, which clients may send.
pub(crate) fn printable(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    Escaped(text).to_string()
}
