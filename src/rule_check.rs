//! Tries a change of a rules file: what the compiler reports about it, which rules and keys it
//! changes, and what it admits. Changes nothing.
//!
//! ```text
//!  files of the folder, one with another text --> compiler --> errors, warnings
//!                                                     |
//!  rules in force ---------------- compared with -----+----> differences ([`rules::diff`])
//!  top keys ---------------------- matched by both ---+----> keys        ([`keys`])
//!  a pattern of requests --------- played to both ----+----> what passes ([`simulate`])
//! ```
//! All functions block: compiling takes as long as a reload. Names of rules are registered in a table
//! of their own, so that a check leaves nothing behind.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::error::{Finding, in_file_order};
use crate::config::{self, CompileOptions, Source};
use crate::redact::Redaction;
use crate::rule_check::keys::{ChangedKeys, Keys};
use crate::rule_check::simulate::{Outcome, Scenario};
use crate::rule_files::name::FileName;
use crate::rule_source::files::{Directory, read_overlay};
use crate::rules::diff::{Difference, diff};
use crate::rules::plan::Modes;
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::rules::{LiveRules, OnStoreError, RuleSet};
use crate::telemetry::metric::Metrics;
use crate::top_keys::RuleKeys;

pub(crate) mod keys;
pub(crate) mod simulate;

/// Differences of an answer: more are read in the file.
const DIFFERENCES_MAX: usize = 500;

/// What a change is compared with, and how it is compiled.
#[derive(Debug)]
pub(crate) struct RuleCheck {
    /// `None` unless rules come from files.
    pub(crate) directory: Option<Directory>,
    /// Those of the rules in force, without the overlay.
    pub(crate) options: CompileOptions,
    /// TOLLGATE_OVERLAY
    pub(crate) overlay: Option<PathBuf>,
    pub(crate) rules: Arc<LiveRules>,
    pub(crate) modes: Modes,
    /// The default of rules without `on_store_error`.
    pub(crate) on_store_error: OnStoreError,
    /// `None` shows values as they are.
    pub(crate) redaction: Option<Arc<Redaction>>,
}

/// A rules file with another text. There need be no such file yet.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) file: FileName,
    pub(crate) text: String,
}

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Checked {
    /// For programs, without the keys.
    pub(crate) json: Value,
    pub(crate) keys: ChangedKeys,
}

/// Rules that are valid, or why they are not.
struct Compiled {
    rules: Option<RuleSet>,
    errors: Vec<Value>,
    warnings: Vec<Value>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoResult {
    #[error("the rules come from a control plane; there are no rules files")]
    NoFiles,
    /// The rules with the change are invalid.
    #[error("{0}")]
    Invalid(String),
    /// The scenario cannot be played.
    #[error("{0}")]
    Scenario(String),
}

impl RuleCheck {
    /// Compiles the rules with a change, and compares them with those in force. `top` has the keys to
    /// match.
    ///
    /// # Errors
    /// The rules do not come from files.
    pub(crate) fn check(&self, change: Change, top: &[RuleKeys]) -> Result<Checked, NoResult> {
        let compiled = self.compile(change)?;
        let mut json = json!({
            "valid": compiled.rules.is_some(),
            "errors": compiled.errors,
            "warnings": compiled.warnings,
            "differences": [],
            "differences_left_out": 0,
        });
        let Some(changed) = compiled.rules else {
            return Ok(Checked {
                json,
                keys: ChangedKeys::default(),
            });
        };
        let in_force = self.in_force();
        let differences = diff(&in_force, &changed, self.on_store_error);
        let left_out = differences.len().saturating_sub(DIFFERENCES_MAX);
        let shown = differences.iter().take(DIFFERENCES_MAX);
        json["differences"] = shown.map(Difference::json).collect();
        json["differences_left_out"] = left_out.into();
        let keys = Keys {
            in_force: &in_force,
            changed: &changed,
            modes: self.modes,
            redaction: self.redaction.as_deref(),
        };
        let keys = keys.changed(top);
        Ok(Checked { json, keys })
    }

    /// Plays requests to the rules in force and to those with a change.
    ///
    /// # Errors
    /// The rules do not come from files, or are invalid, or the requests cannot be played.
    pub(crate) fn simulate(
        &self,
        change: Change,
        scenario: &Scenario,
    ) -> Result<Outcome, NoResult> {
        let compiled = self.compile(change)?;
        let Some(changed) = compiled.rules else {
            let first = &compiled.errors[0];
            let [file, message] = ["file", "message"].map(|name| first[name].as_str());
            let (file, message) = (file.unwrap_or_default(), message.unwrap_or_default());
            return Err(NoResult::Invalid(format!(
                "the rules are invalid: {file}:{}: {message}; the check has all errors",
                first["line"]
            )));
        };
        scenario
            .play(&self.in_force(), &changed)
            .map_err(NoResult::Scenario)
    }

    /// Without rules in force nothing is limited.
    fn in_force(&self) -> Arc<RuleSet> {
        let rules = Option::clone(&self.rules.load());
        rules.unwrap_or_else(|| Arc::new(RuleSet::new([])))
    }

    fn compile(&self, Change { file, text }: Change) -> Result<Compiled, NoResult> {
        let directory = self.directory.as_ref().ok_or(NoResult::NoFiles)?;
        let path = directory.path.join(file.as_str());
        let read = directory.read_with(&path, text).and_then(|sources| {
            let overlay = self.overlay.as_deref().map(read_overlay);
            Ok((sources, overlay.transpose()?))
        });
        let (sources, overlay) = match read {
            Ok(read) => read,
            Err(error) => return Ok(Compiled::unreadable(&error)),
        };
        let options = CompileOptions {
            overlay,
            stats: StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()),
            ..self.options.clone()
        };
        let shown = |findings: Vec<Finding>| {
            let findings = in_file_order(findings).into_iter();
            findings.map(|found| finding(directory, &found)).collect()
        };
        Ok(match config::load(&sources, &options) {
            Ok(loaded) => Compiled {
                rules: Some(loaded.rules),
                errors: Vec::new(),
                warnings: shown(loaded.warnings),
            },
            Err(problems) => Compiled {
                rules: None,
                errors: shown(problems),
                warnings: Vec::new(),
            },
        })
    }
}

impl Compiled {
    /// A reload would be rejected for the same reason.
    fn unreadable(error: &anyhow::Error) -> Self {
        let message = format!("{error:#}");
        let error = json!({"file": null, "line": null, "column": null, "message": message, "place": null, "hint": null});
        Self {
            rules: None,
            errors: vec![error],
            warnings: Vec::new(),
        }
    }
}

/// An error or a warning.
fn finding(directory: &Directory, found: &Finding) -> Value {
    json!({
        "file": file_of(directory, &found.source),
        "line": found.location.map(|at| at.line),
        "column": found.location.map(|at| at.column),
        "message": found.message(),
        "place": found.place,
        "hint": found.hint,
    })
}

/// The path of a file below the folder; of the overlay its whole path.
fn file_of(directory: &Directory, source: &Source) -> String {
    let path = std::path::Path::new(&*source.path);
    let below = path.strip_prefix(&directory.path).unwrap_or(path);
    below.to_string_lossy().into_owned()
}
