//! Errors and output of subcommands.

use std::fmt;
use std::io::Write as _;

use serde::Serialize;

pub(crate) use crate::base::text::counted;

/// Why a command failed, which decides the exit code.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Arguments that contradict each other: 64.
    Usage(String),
    /// Invalid settings or rules: 78.
    Config(String),
    /// Anything else: 1.
    Other(anyhow::Error),
}

impl fmt::Display for CliError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Config(text) => formatter.write_str(text),
            Self::Other(error) => write!(formatter, "{error:#}"),
        }
    }
}

impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// What a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Prints to stdout. A closed pipe, as of `| head`, is ignored: `println!` would panic.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Prints a report, by `text` for people.
pub(crate) fn print_report<R: Serialize>(format: Format, report: &R, text: impl Fn(&R) -> String) {
    print(&match format {
        Format::Text => text(report),
        Format::Json => json(report),
    });
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
