//! Prints the result of a check: for people, for programs, and for GitHub.

use std::io::{self, IsTerminal};

use clap::ValueEnum;

use crate::cli::check::report::Report;
use crate::cli::github::annotation;
use crate::cli::output::{self, CliError, counted};
use crate::report::Severity;

/// --format
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Format {
    /// Each with its line and a fix, in color on a terminal
    Text,
    /// One object
    Json,
    /// Annotations of a pull request, as a GitHub workflow prints them
    Github,
}

/// Prints a report.
///
/// # Errors
/// The rules are invalid.
pub(super) fn print(report: &Report, format: Format) -> Result<(), CliError> {
    let problems = report.count(Severity::Error);
    let summary = if problems == 0 {
        format!("{}: ok, {}", report.name, contents(report))
    } else {
        format!("{} in {}", counted(problems, "problem"), report.name)
    };
    match format {
        Format::Text => return print_text(report, &summary, problems),
        Format::Json => output::print(&output::json(&report.checked())),
        Format::Github => output::print(&github(report)),
    }
    match problems {
        0 => Ok(()),
        _ => Err(CliError::Config(summary)),
    }
}

fn contents(report: &Report) -> String {
    format!(
        "{} in {} of {}",
        counted(report.limits, "limit"),
        counted(report.domains, "domain"),
        counted(report.files, "file")
    )
}

/// Problems go to stderr, everything else to stdout.
fn print_text(report: &Report, summary: &str, problems: usize) -> Result<(), CliError> {
    let color = Color::of(&io::stdout());
    for severity in [Severity::Warning, Severity::Note] {
        for finding in report.of(severity) {
            let text = format!("{}: {finding}", severity.name());
            output::print(&format!("{}\n\n", color.apply(severity, &text)));
        }
    }
    if problems == 0 {
        output::print(&format!("{summary}\n"));
        return Ok(());
    }
    let color = Color::of(&io::stderr());
    let found = report.of(Severity::Error);
    let found = found.map(|finding| color.apply(Severity::Error, &finding.to_string()));
    let found: Vec<String> = found.collect();
    Err(CliError::Config(format!("{summary}\n\n{}", found.join("\n\n"))))
}

/// Whether a stream shows colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Color {
    Never,
    Ansi,
}

impl Color {
    /// On a terminal, unless NO_COLOR is set (<https://no-color.org>) or the terminal has none.
    fn of(stream: &impl IsTerminal) -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb {
            Self::Ansi
        } else {
            Self::Never
        }
    }

    /// The first line and the carets have the color of the severity, the places another one.
    fn apply(self, severity: Severity, text: &str) -> String {
        if self == Self::Never {
            return text.to_owned();
        }
        let own = match severity {
            Severity::Error => "31",
            Severity::Warning => "33",
            Severity::Note => "36",
        };
        let lines = text.lines().enumerate().map(|(number, line)| {
            let is_caret = line.trim_start_matches([' ', '|']).starts_with('^');
            let code = match number {
                0 => format!("1;{own}"),
                _ if line.starts_with("  -->") => "34".to_owned(),
                _ if is_caret => own.to_owned(),
                _ if line.starts_with("   = ") => "32".to_owned(),
                _ => return line.to_owned(),
            };
            format!("\x1b[{code}m{line}\x1b[0m")
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A line for each finding.
fn github(report: &Report) -> String {
    let findings = report.findings.iter().map(|(severity, finding)| {
        let mut placed = report.placed(*severity, finding);
        if let Some(line) = placed.line_within {
            placed.finding.message += &format!(", in line {line} of {}", finding.source.name);
        }
        annotation(*severity, &placed.finding, placed.end_column)
    });
    findings.collect()
}
