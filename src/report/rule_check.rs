//! The effect of a change of a rules file.

use serde::Serialize;

use crate::report::change::RuleChange;
use crate::report::finding::Finding;

/// Compiler's findings about a change, and its differences from the rules in force.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RuleCheck {
    pub(crate) valid: bool,
    pub(crate) errors: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
    /// At most 500 rules that differ
    pub(crate) differences: Vec<RuleChange>,
    pub(crate) differences_left_out: usize,
    /// The keys with the most hits among those that are treated differently, at most 50
    pub(crate) keys: Vec<ChangedKey>,
    pub(crate) keys_left_out: usize,
}

/// A key that is treated differently.
#[derive(Debug, Serialize)]
pub(crate) struct ChangedKey {
    pub(crate) domain: Box<str>,
    pub(crate) key: Vec<[String; 2]>,
    pub(crate) hits: u64,
    /// Hits over limit
    pub(crate) over_limit: u64,
    pub(crate) before: Treatment,
    pub(crate) after: Treatment,
    /// It counts from zero, under another key
    pub(crate) counter_restarts: bool,
}

/// Requests of a key under one rule set.
#[derive(Debug, Serialize)]
pub(crate) struct Treatment {
    /// The path of the rule
    pub(crate) rule: Option<String>,
    pub(crate) limit: Option<String>,
    pub(crate) mode: Mode,
    /// Whether one more hit would be over limit now; null if the store does not answer
    pub(crate) over_limit: Option<bool>,
}

/// Requests over limit are rejected or queued (enforced), only counted (shadow), rejected if all
/// quotas of the request are used up (quota), or pass and ask the upstream for a cheap response
/// (degrade). Invalid requests get an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    NotLimited,
    Enforced,
    Shadow,
    Quota,
    Degrade,
    Invalid,
}

/// Requests of one descriptor under the rules in force and under a change.
#[derive(Debug, Serialize)]
pub(crate) struct RuleSimulation {
    pub(crate) traffic: String,
    /// The longer period of both limits
    pub(crate) period_ms: u64,
    pub(crate) periods: usize,
    /// Into how many equal parts the time is divided
    pub(crate) columns: usize,
    pub(crate) requests: usize,
    pub(crate) requests_by_period: Vec<u64>,
    pub(crate) requests_by_column: Vec<u64>,
    pub(crate) note: Option<String>,
    pub(crate) before: SimulatedSide,
    pub(crate) after: SimulatedSide,
}

/// Requests under one rule set.
#[derive(Debug, Default, Serialize)]
pub(crate) struct SimulatedSide {
    /// The path of the rule
    pub(crate) rule: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) limit: Option<String>,
    /// Why there is no limit: every request passes
    pub(crate) not_limited: Option<String>,
    /// What the simulation does not show
    pub(crate) notes: Vec<String>,
    pub(crate) admitted: usize,
    pub(crate) over_limit: usize,
    pub(crate) queued: usize,
    pub(crate) wait_max_ms: u64,
    pub(crate) first_over_limit_ms: Option<u64>,
    pub(crate) admitted_by_period: Vec<u64>,
    pub(crate) admitted_by_column: Vec<u64>,
}
