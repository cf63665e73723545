//! The result of all tests, which each format prints; as JSON.

use serde_json::{Value, json};

use crate::cli::output::counted;
use crate::cli::test::play::{Failure, Mismatch, Outcome};
use crate::config::Source;
use crate::rules::Rule;

/// What is printed.
pub(super) struct Report<'r> {
    pub(super) files: Vec<FileReport<'r>>,
    /// Present with --coverage.
    pub(super) coverage: Option<Coverage<'r>>,
}

/// The tests of one file.
pub(super) struct FileReport<'r> {
    pub(super) source: &'r Source,
    pub(super) outcomes: Vec<Outcome<'r>>,
}

/// The rules that tests reach.
pub(super) struct Coverage<'r> {
    pub(super) rules: usize,
    /// Those that no descriptor of a test matches.
    pub(super) unreached: Vec<&'r Rule>,
}

impl Outcome<'_> {
    pub(super) fn passed(&self) -> bool {
        self.failure.is_none()
    }
}

impl FileReport<'_> {
    pub(super) fn failed(&self) -> usize {
        let failed = self.outcomes.iter().filter(|outcome| !outcome.passed());
        failed.count()
    }
}

impl Report<'_> {
    pub(super) fn tests(&self) -> usize {
        self.files.iter().map(|file| file.outcomes.len()).sum()
    }

    pub(super) fn failed(&self) -> usize {
        self.files.iter().map(FileReport::failed).sum()
    }

    /// All results, for programs.
    pub(super) fn json(&self) -> String {
        let tests = self.files.iter().flat_map(|file| {
            let of_file = |outcome| of_outcome(file.source, outcome);
            file.outcomes.iter().map(of_file)
        });
        let report = json!({
            "tests": tests.collect::<Vec<_>>(),
            "passed": self.tests() - self.failed(),
            "failed": self.failed(),
            "coverage": self.coverage.as_ref().map(of_coverage),
        });
        format!("{report:#}\n")
    }
}

impl Coverage<'_> {
    /// `5 of 6 rules reached`.
    pub(super) fn headline(&self) -> String {
        let reached = self.rules - self.unreached.len();
        format!("{reached} of {} reached", counted(self.rules, "rule"))
    }
}

impl Mismatch {
    /// A sentence without a full stop.
    pub(super) fn text(&self) -> String {
        let [expected, found] = self.values();
        format!("{}: expected {expected}, found {found}", self.name)
    }

    /// The expected and the found value; null is an absent field.
    pub(super) fn values(&self) -> [&str; 2] {
        [&self.expected, &self.found].map(|value| value.as_deref().unwrap_or("null"))
    }
}

impl Failure {
    /// Which request it was, and when.
    pub(super) fn moment(&self) -> String {
        let time = self.time.to_rfc3339();
        match self.requests {
            1 => format!("at {time}"),
            requests => format!("request {} of {requests}, at {time}", self.request),
        }
    }
}

fn of_outcome(source: &Source, outcome: &Outcome<'_>) -> Value {
    json!({
        "file": *source.path,
        "line": outcome.case.name.location.line,
        "name": outcome.case.name.value,
        "passed": outcome.passed(),
        "failure": outcome.failure.as_ref().map(of_failure),
    })
}

fn of_failure(failure: &Failure) -> Value {
    let mismatches = failure.mismatches.iter().map(|mismatch| {
        json!({
            "line": mismatch.location.line,
            "column": mismatch.location.column,
            "place": mismatch.place,
            "expected": mismatch.expected,
            "found": mismatch.found,
        })
    });
    json!({
        "request": failure.request,
        "requests": failure.requests,
        "time": failure.time.to_rfc3339(),
        "response": failure.response,
        "mismatches": mismatches.collect::<Vec<_>>(),
    })
}

fn of_coverage(coverage: &Coverage<'_>) -> Value {
    let unreached = coverage.unreached.iter().map(
        |rule| json!({"rule": *rule.path, "file": *rule.origin.file, "line": rule.origin.line}),
    );
    json!({
        "rules": coverage.rules,
        "reached": coverage.rules - coverage.unreached.len(),
        "unreached": unreached.collect::<Vec<_>>(),
    })
}
