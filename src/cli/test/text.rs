//! The report for people: each failure with its line, a caret at the expectation, and the
//! difference.

use crate::cli::output::counted;
use crate::cli::test::play::{Mismatch, Outcome};
use crate::cli::test::report::Report;
use crate::config::Source;
use crate::config::error::Findings;
use crate::config::yaml::Diagnostic;

pub(super) fn write(report: &Report<'_>) -> String {
    let mut text = String::new();
    for file in &report.files {
        text += &format!("{}\n", file.source.path);
        for outcome in &file.outcomes {
            let state = if outcome.passed() { "ok    " } else { "failed" };
            text += &format!("  {state}  {}\n", outcome.case.name.value);
        }
    }
    for file in &report.files {
        for outcome in &file.outcomes {
            text += &failure(file.source, outcome);
        }
    }
    if let Some(coverage) = &report.coverage {
        text += &format!("\n{}", coverage.headline());
        for rule in &coverage.unreached {
            text += &format!("\n  no test reaches {} at {}", rule.path, rule.origin);
        }
        text += "\n";
    }
    let (tests, failed) = (report.tests(), report.failed());
    text += &format!(
        "\n{}: {} passed, {failed} failed\n",
        counted(tests, "test"),
        tests - failed
    );
    text
}

/// Why a test fails; empty if it passes.
pub(super) fn failure(source: &Source, outcome: &Outcome<'_>) -> String {
    let Some(failure) = &outcome.failure else {
        return String::new();
    };
    let (name, moment) = (&outcome.case.name.value, failure.moment());
    let mut text = format!("\nfailed: {name}\n");
    for mismatch in &failure.mismatches {
        text += &format!("{}\n\n", difference(source, mismatch));
    }
    text + &format!("{moment}: {}\n", failure.response)
}

fn difference(source: &Source, mismatch: &Mismatch) -> String {
    let mut findings = Findings::default();
    let diagnostic = Diagnostic::new(mismatch.location, mismatch.text());
    findings.of(source).at(&mismatch.place).problem(diagnostic);
    let (found, _) = findings.into_parts();
    let text: String = found.iter().map(ToString::to_string).collect();
    let field = mismatch.name.rsplit('.').next().unwrap_or_default();
    let [expected, found] = mismatch.values();
    format!("{text}\n   - {field}: {expected}\n   + {field}: {found}")
}
