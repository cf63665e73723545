//! The result of a comparison, which each format prints.

use serde::Serialize;
use serde_json::Value;

use crate::cli::output::counted;
use crate::report::change::{ChangeKind, RuleChange, RuleSide};

/// The differences.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(rename = "rules")]
    pub(super) differences: Vec<RuleChange>,
}

impl Report {
    /// One line about all rules.
    pub(super) fn summary(&self) -> String {
        if self.differences.is_empty() {
            return "the rules are the same".to_owned();
        }
        let number = |change: ChangeKind| {
            self.differences.iter().filter(|found| found.change == change).count()
        };
        let mut text = format!(
            "rules: {} added, {} removed, {} changed",
            number(ChangeKind::Added),
            number(ChangeKind::Removed),
            number(ChangeKind::Changed)
        );
        let restarts = self.differences.iter().filter(|found| found.counter_restarts);
        match restarts.count() {
            0 => {}
            restarts => text += &format!("; the counters of {} restart", counted(restarts, "rule")),
        }
        text
    }
}

/// The value of an option on one side, without quotes around texts.
pub(super) fn value(side: Option<&RuleSide>, option: &str) -> Option<String> {
    let value = side?.values.get(option)?;
    Some(match value {
        Value::String(text) if !text.contains(['\n', '\r']) && !text.is_empty() => text.clone(),
        value => value.to_string(),
    })
}

/// `10 per minute`, or why nothing is counted.
pub(super) fn limit(side: &RuleSide) -> String {
    let value = |option| value(Some(side), option);
    if side.source().is_none() {
        return "no rate_limit, not limited".to_owned();
    }
    let Some(requests) = value("requests_per_unit") else {
        return "unlimited".to_owned();
    };
    let period = match (value("unit"), value("unit_multiplier").as_deref()) {
        (None, _) => " at once".to_owned(),
        (Some(unit), Some("1") | None) => format!(" per {unit}"),
        (Some(unit), Some(number)) => format!(" per {number} {unit}s"),
    };
    let algorithm = value("algorithm").unwrap_or_default();
    format!("{requests}{period}, {algorithm}")
}

/// ` (by the domain's defaults, config/shop.yaml:3)`
pub(super) fn source(side: Option<&RuleSide>, option: &str) -> String {
    match side.and_then(|side| side.source_of(option)) {
        None => String::new(),
        Some((None, place)) => format!(" ({place})"),
        Some((Some(who), place)) => format!(" (by {who}, {place})"),
    }
}
