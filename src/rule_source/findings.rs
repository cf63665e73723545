//! What was reported about the newest rules, for operators: the log has it too, but not for long.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config::error::{Finding, in_file_order};

/// The findings of the last load. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastFindings(Arc<ArcSwap<Findings>>);

/// Errors are those of rules that were rejected, warnings those of rules in force.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) errors: Vec<Message>,
    pub(crate) warnings: Vec<Message>,
}

/// An error or a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Of the file; `None` if the rules could not be read.
    pub(crate) path: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
    pub(crate) text: String,
    /// What to write instead.
    pub(crate) hint: Option<String>,
}

impl LastFindings {
    pub(crate) fn load(&self) -> Arc<Findings> {
        self.0.load_full()
    }

    pub(crate) fn set(&self, findings: Findings) {
        self.0.store(Arc::new(findings));
    }
}

impl Findings {
    pub(crate) fn of_errors(errors: &[Finding]) -> Self {
        Self {
            errors: messages(errors),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn of_warnings(warnings: &[Finding]) -> Self {
        Self {
            errors: Vec::new(),
            warnings: messages(warnings),
        }
    }

    /// Of rules that could not be read.
    pub(crate) fn of_problems(problems: &[String]) -> Self {
        let message = |text: &String| Message {
            path: None,
            line: None,
            text: text.clone(),
            hint: None,
        };
        Self {
            errors: problems.iter().map(message).collect(),
            warnings: Vec::new(),
        }
    }
}

fn messages(findings: &[Finding]) -> Vec<Message> {
    let findings = in_file_order(findings.to_vec()).into_iter();
    findings
        .map(|finding| Message {
            line: finding.location.map(|at| at.line),
            text: finding.message(),
            path: Some(finding.source.path),
            hint: finding.hint,
        })
        .collect()
}
