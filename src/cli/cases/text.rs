//! The report for people: each failure with its line, a caret at the expectation, and the
//! difference.

use crate::cli::output::counted;
use crate::report::{CaseFailure, CaseReport, CaseResult, Mismatch};

pub(super) fn write(report: &CaseReport) -> String {
    let mut text = String::new();
    for tests in report.files() {
        text += &format!("{}\n", tests[0].file);
        for test in tests {
            let state = if test.passed { "ok    " } else { "failed" };
            text += &format!("  {state}  {}\n", test.name);
        }
    }
    text.extend(report.tests.iter().map(failure));
    if let Some(coverage) = &report.coverage {
        let rules = counted(coverage.rules, "rule");
        text += &format!("\n{} of {rules} reached", coverage.reached);
        for rule in &coverage.unreached {
            text += &format!("\n  no test reaches {} at {}:{}", rule.rule, rule.file, rule.line);
        }
        text += "\n";
    }
    let CaseReport { tests, passed, failed, .. } = report;
    let tests = counted(tests.len(), "test");
    text + &format!("\n{tests}: {passed} passed, {failed} failed\n")
}

/// Why a test fails; empty if it passes.
pub(super) fn failure(test: &CaseResult) -> String {
    let Some(failure) = &test.failure else {
        return String::new();
    };
    let differences = failure.mismatches.iter().map(difference);
    format!("\nfailed: {}\n{}{}\n", test.name, differences.collect::<String>(), moment(failure))
}

fn difference(mismatch: &Mismatch) -> String {
    let Mismatch { place, excerpt, .. } = mismatch;
    let field = place.rsplit('.').next().unwrap_or_default();
    let [expected, found] =
        [&mismatch.expected, &mismatch.found].map(|value| value.as_deref().unwrap_or("null"));
    format!("{excerpt}\n   - {field}: {expected}\n   + {field}: {found}\n\n")
}

/// Which request it was, when, and its response.
pub(super) fn moment(failure: &CaseFailure) -> String {
    let CaseFailure { request, requests, .. } = failure;
    let which = match requests {
        1 => String::new(),
        requests => format!("request {request} of {requests}, "),
    };
    let time = failure.time.to_rfc3339();
    format!("{which}at {time}: {}", failure.response)
}
