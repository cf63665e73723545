//! Tries a change of a rules file: what the compiler reports about it, which rules and keys it
//! changes, and what it admits. Changes nothing.
//!
//! ```text
//!  files of the folder, one with another text --> compiler --> errors, warnings
//!                                                     |
//!  rules in force ---------------- compared with -----+----> differences ([`diff`])
//!  top keys ---------------------- matched by both ---+----> keys        ([`keys`])
//!  a pattern of requests --------- played to both ----+----> what passes ([`scenario`])
//! ```
//! All functions block: compiling takes as long as a reload. Names of rules are registered in a
//! table of their own, so that a check leaves nothing behind.

use std::sync::Arc;

use crate::observe::redact::Values;
use crate::observe::top_keys::RuleKeys;
use crate::report;
use crate::report::change::diff;
use crate::rule_source::edit::compile::{Compiled, Sender};
use crate::rule_source::edit::name::FileName;
use crate::rule_source::edit::{NO_FILES, RuleFiles};
use crate::rules::plan::Modes;
use crate::rules::{LiveRules, OnStoreError, RuleSet};
use crate::what_if::check::keys::{ChangedKey, ChangedKeys, Keys};
use crate::what_if::check::scenario::Scenario;

pub(crate) mod keys;
pub(crate) mod scenario;

/// Differences in the answer of a check: more are read in the file.
// bound differences_max: counted in `differences_left_out`; -
const DIFFERENCES_MAX: usize = 500;

/// The rules that a change is compared with, and the compiler of the change.
#[derive(Debug)]
pub(crate) struct RuleCheck {
    /// `None` unless rules come from files.
    pub(crate) files: Option<Arc<RuleFiles>>,
    pub(crate) rules: Arc<LiveRules>,
    pub(crate) modes: Modes,
    /// The default of rules without `on_store_error`.
    pub(crate) on_store_error: OnStoreError,
}

/// A rules file with another text. There need be no such file yet.
#[derive(Debug)]
pub(crate) struct ChangedFile {
    pub(crate) file: FileName,
    pub(crate) text: Arc<str>,
}

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Checked {
    /// Without the keys: their counters are still to be read.
    pub(crate) report: report::RuleCheck,
    pub(crate) keys: Vec<ChangedKey>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoResult {
    #[error("{}", NO_FILES)]
    NoFiles,
    /// The rules with the change are invalid.
    #[error("{0}")]
    Invalid(String),
    /// The scenario cannot be played.
    #[error("{0}")]
    Scenario(String),
}

impl RuleCheck {
    /// Compiles the rules with a change, and compares them with those in force. `top` has the keys
    /// to match.
    ///
    /// # Errors
    /// The rules do not come from files.
    pub(crate) fn check(
        &self,
        change: ChangedFile,
        top: &[RuleKeys],
        values: Values,
    ) -> Result<Checked, NoResult> {
        let Compiled { rules, warnings } = match self.compile(change)? {
            Ok(compiled) => compiled,
            Err(errors) => {
                let report = report::RuleCheck {
                    errors,
                    ..report::RuleCheck::default()
                };
                let keys = Vec::new();
                return Ok(Checked { report, keys });
            }
        };
        let in_force = self.in_force();
        let mut differences = diff(&in_force, &rules, self.on_store_error);
        let found = differences.len();
        differences.truncate(DIFFERENCES_MAX);
        let keys = Keys {
            in_force: &in_force,
            changed: &rules,
            modes: self.modes,
            values,
        };
        let ChangedKeys { keys, left_out } = keys.changed(top);
        let report = report::RuleCheck {
            valid: true,
            warnings,
            differences_left_out: found - differences.len(),
            differences,
            keys_left_out: left_out,
            ..report::RuleCheck::default()
        };
        Ok(Checked { report, keys })
    }

    /// Plays requests to the rules in force and to those with a change.
    ///
    /// # Errors
    /// The rules do not come from files, or are invalid, or the requests cannot be played.
    pub(crate) fn simulate(
        &self,
        change: ChangedFile,
        scenario: &Scenario,
    ) -> Result<report::RuleSimulation, NoResult> {
        let compiled = self.compile(change)?.map_err(|errors| {
            let first = &errors[0];
            NoResult::Invalid(format!(
                "the rules are invalid: {first}; the check has all errors"
            ))
        })?;
        scenario
            .play(&self.in_force(), &compiled.rules)
            .map_err(NoResult::Scenario)
    }

    /// Without rules in force nothing is limited.
    fn in_force(&self) -> Arc<RuleSet> {
        let rules = Option::clone(&self.rules.load());
        rules.unwrap_or_else(|| Arc::new(RuleSet::new([])))
    }

    /// Errors are a result, too.
    fn compile(
        &self,
        ChangedFile { file, text }: ChangedFile,
    ) -> Result<Result<Compiled, Vec<report::Finding>>, NoResult> {
        let files = self.files.as_ref().ok_or(NoResult::NoFiles)?;
        Ok(files.compiler.compile(&file, text, Sender::Unknown))
    }
}
