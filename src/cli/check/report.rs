//! The result of a check, which each format prints.

use crate::cli::manifest::Quoted;
use crate::config::error::Finding;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// What was checked.
    pub(super) name: String,
    pub(super) findings: Vec<(Severity, Finding)>,
    pub(super) quoted: Vec<Quoted>,
    /// Rules files, and the limits and domains of valid ones.
    pub(super) files: usize,
    pub(super) limits: usize,
    pub(super) domains: usize,
}

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// The rules are invalid.
    Error,
    /// The rules may not mean what their author thinks.
    Warning,
    /// What the rules need from other systems.
    Note,
}

/// The place of a finding, for programs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'f> {
    pub(super) file: &'f str,
    /// Line, column and column behind the end, from 1; `None` for the whole file.
    pub(super) range: Option<(u32, u32, u32)>,
    /// The line within a quoted text, whose lines are not lines of the file.
    pub(super) line_within: Option<u32>,
}

impl Report {
    pub(super) fn add(&mut self, severity: Severity, findings: Vec<Finding>) {
        let findings = findings.into_iter().map(|finding| (severity, finding));
        self.findings.extend(findings);
    }

    pub(super) fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        let findings = findings.filter(move |(other, _)| *other == severity);
        findings.map(|(_, finding)| finding)
    }

    pub(super) fn count(&self, severity: Severity) -> usize {
        self.of(severity).count()
    }

    pub(super) fn place<'f>(&'f self, finding: &'f Finding) -> Place<'f> {
        let path = &*finding.source.path;
        let own = finding.location;
        let quoted = self.quoted.iter().find(|quoted| quoted.path == path);
        let (file, location) = match quoted {
            Some(quoted) => (&*quoted.file, Some(quoted.location)),
            None => (path, own),
        };
        Place {
            file,
            range: location.map(|at| (at.line, at.column, at.column.saturating_add(at.width))),
            line_within: quoted.and(own).map(|at| at.line),
        }
    }

    /// The text and the hint of a finding whose place is shown beside them.
    pub(super) fn message(&self, finding: &Finding) -> String {
        let mut message = finding.message();
        if let Some(line) = self.place(finding).line_within {
            message += &format!(", in line {line} of {}", finding.source.name);
        }
        if let Some(hint) = &finding.hint {
            message += &format!("\n{hint}");
        }
        message
    }
}

impl Severity {
    /// As in the text and in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}
