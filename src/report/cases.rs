//! Results of test cases of rules, as `tollgate test` shows them.

use serde::Serialize;

use crate::base::time::Time;
use crate::report::serialize::rfc3339;

#[derive(Debug, Serialize)]
pub(crate) struct CaseReport {
    /// By file.
    pub(crate) tests: Vec<CaseResult>,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) coverage: Option<Coverage>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CaseResult {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) name: String,
    pub(crate) passed: bool,
    pub(crate) failure: Option<CaseFailure>,
}

/// The first response of a test that is not as expected.
#[derive(Debug, Serialize)]
pub(crate) struct CaseFailure {
    /// Which of the requests of the step; from 1.
    pub(crate) request: u32,
    /// The requests of the step.
    pub(crate) requests: u32,
    #[serde(serialize_with = "rfc3339")]
    pub(crate) time: Time,
    /// In the form of `expect`, or the error that the service would answer with.
    pub(crate) response: String,
    /// At least one.
    pub(crate) mismatches: Vec<Mismatch>,
}

/// A field that is not as expected.
#[derive(Debug, Serialize)]
pub(crate) struct Mismatch {
    pub(crate) line: u32,
    pub(crate) column: u32,
    /// Such as `tests[0].steps[1].expect.statuses[0].remaining`.
    pub(crate) place: String,
    /// `None` is an absent field.
    pub(crate) expected: Option<String>,
    pub(crate) found: Option<String>,
    /// `statuses[0].remaining: expected 8, found 9`.
    #[serde(skip)]
    pub(crate) text: String,
    /// The text with the expectation in its line, and a caret below.
    #[serde(skip)]
    pub(crate) excerpt: String,
}

/// The rules that tests reach.
#[derive(Debug, Serialize)]
pub(crate) struct Coverage {
    pub(crate) rules: usize,
    pub(crate) reached: usize,
    /// Rules that no descriptor of a test matches.
    pub(crate) unreached: Vec<UnreachedRule>,
}

#[derive(Debug, Serialize)]
pub(crate) struct UnreachedRule {
    /// The path of the rule.
    pub(crate) rule: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

impl CaseReport {
    /// The results of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[CaseResult]> {
        self.tests.chunk_by(|one, next| one.file == next.file)
    }
}
