//! Errors and warnings about rules.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::named_enum::named_enum;

/// An error or a warning about rules.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Its path below the folder of rules, or the path of the overlay
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
    pub(crate) message: String,
    /// The place in the rules, such as `domain shop > descriptors[0]`
    pub(crate) place: Option<String>,
    /// What to write instead
    pub(crate) hint: Option<String>,
}

/// The result of `tollgate check`.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport {
    pub(crate) valid: bool,
    pub(crate) files: usize,
    pub(crate) domains: usize,
    pub(crate) limits: usize,
    pub(crate) findings: Vec<CheckFinding>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CheckFinding {
    pub(crate) severity: Severity,
    #[serde(flatten)]
    pub(crate) finding: Finding,
    /// The column behind the end.
    pub(crate) end_column: Option<u32>,
    /// The line within a quoted text, whose lines are not lines of the file.
    pub(crate) line_within: Option<u32>,
}

named_enum! {
    /// How serious a finding is.
    pub enum Severity {
        /// The rules are invalid.
        Error = "error",
        /// The rules may not mean what their author thinks.
        Warning = "warning",
        /// A requirement of the rules on other systems.
        Note = "note",
    }
}

impl Finding {
    /// An error of rules that could not be read.
    pub(crate) fn unread(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.message;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(formatter, "{file}:{line}: {message}"),
            (Some(file), None) => write!(formatter, "{file}: {message}"),
            (None, _) => formatter.write_str(message),
        }
    }
}
