//! Failures as annotations of a pull request.

use crate::cli::cases::text;
use crate::cli::github::annotation;
use crate::report::{CaseReport, Finding, Severity};

/// Each mismatch at its expectation.
pub(super) fn write(report: &CaseReport) -> String {
    let mut annotations = String::new();
    for test in &report.tests {
        let Some(failure) = &test.failure else {
            continue;
        };
        for mismatch in &failure.mismatches {
            let finding = Finding {
                file: Some(test.file.clone()),
                line: Some(mismatch.line),
                column: Some(mismatch.column),
                message: format!("{}: {}", test.name, mismatch.text),
                place: Some(mismatch.place.clone()),
                hint: Some(text::moment(failure)),
            };
            annotations += &annotation(Severity::Error, &finding, None);
        }
    }
    annotations
}
