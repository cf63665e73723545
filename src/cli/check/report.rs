//! The result of a check, which each format prints.

use crate::cli::manifest::Quoted;
use crate::report::{CheckFinding, CheckReport, Severity};
use crate::rules::config::error::Finding;

/// The findings.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The name of the input.
    pub(super) name: String,
    pub(super) findings: Vec<(Severity, Finding)>,
    pub(super) quoted: Vec<Quoted>,
    /// Rules files, and the limits and domains of valid ones.
    pub(super) files: usize,
    pub(super) limits: usize,
    pub(super) domains: usize,
}

impl Report {
    pub(super) fn add(&mut self, severity: Severity, findings: Vec<Finding>) {
        let findings = findings.into_iter().map(|finding| (severity, finding));
        self.findings.extend(findings);
    }

    pub(super) fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter().filter(move |(other, _)| *other == severity);
        findings.map(|(_, finding)| finding)
    }

    pub(super) fn count(&self, severity: Severity) -> usize {
        self.of(severity).count()
    }

    /// For programs.
    pub(super) fn checked(&self) -> CheckReport {
        let findings = self.findings.iter();
        CheckReport {
            valid: self.count(Severity::Error) == 0,
            files: self.files,
            domains: self.domains,
            limits: self.limits,
            findings: findings.map(|(severity, finding)| self.placed(*severity, finding)).collect(),
        }
    }

    /// A finding in a quoted text is at the place of the quotation.
    pub(super) fn placed(&self, severity: Severity, finding: &Finding) -> CheckFinding {
        let mut quoted = self.quoted.iter();
        let quoted = quoted.find(|quoted| quoted.path == *finding.source.path);
        let mut found = finding.report();
        let line_within = quoted.and(found.line);
        let mut location = finding.location;
        if let Some(quoted) = quoted {
            found.file = Some(quoted.file.clone());
            location = Some(quoted.location);
        }
        found.line = location.map(|at| at.line);
        found.column = location.map(|at| at.column);
        CheckFinding {
            severity,
            finding: found,
            end_column: location.map(|at| at.column.saturating_add(at.width)),
            line_within,
        }
    }
}
