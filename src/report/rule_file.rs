//! Rules files, their versions and changes of them by operators.

use serde::{Deserialize, Serialize};

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

/// The versions of a rules file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RulesHistory {
    pub(crate) versions: Vec<RulesVersion>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RulesVersion {
    /// Increases with each change
    pub(crate) version: u64,
    /// Since when the file has, or had, this text
    pub(crate) time: String,
    /// The ETag of its text, with its quotes
    pub(crate) etag: String,
}

/// A version that is to be restored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RulesRollback {
    pub(crate) version: u64,
}

/// A rules file that was changed and is in force.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RulesChanged {
    pub(crate) file: String,
    /// The one in force; the previous one if the file had this text already
    pub(crate) version: u64,
    /// The ETag of the text, for the next change
    pub(crate) etag: String,
    /// Rules in force, of all files
    pub(crate) rules: RuleCounts,
    pub(crate) warnings: Vec<Finding>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RuleCounts {
    pub(crate) domains: usize,
    pub(crate) limits: usize,
}
