//! Rules files, and changes of them by operators.

use serde::Serialize;

use crate::report::finding::Finding;

/// The rules files of a replica.
#[derive(Debug, Serialize)]
pub(crate) struct RulesList {
    pub(crate) files: Vec<RulesFile>,
    /// Whether requests with the admin token can change files
    pub(crate) writable: bool,
    /// Why files cannot be changed, or the folder cannot be read; null if files can be changed
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RulesFile {
    /// The name of the file
    pub(crate) file: String,
    /// The ETag of its bytes, with its quotes
    pub(crate) etag: String,
    pub(crate) bytes: usize,
}

/// A rules file that was changed and is in force.
#[derive(Debug, Serialize)]
pub(crate) struct RulesChanged {
    pub(crate) file: String,
    /// The ETag of the text, for the next change
    pub(crate) etag: String,
    /// Rules in force, of all files
    pub(crate) rules: RuleCounts,
    pub(crate) warnings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RuleCounts {
    pub(crate) domains: usize,
    pub(crate) limits: usize,
}
