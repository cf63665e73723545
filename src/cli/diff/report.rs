//! The result of a comparison, which each format prints.

use serde_json::{Value, json};

use crate::cli::diff::traffic::Traffic;
use crate::cli::output::counted;
use crate::rules::diff::{Described, Difference};

/// What is printed.
pub(super) struct Report<'r> {
    pub(super) differences: Vec<Difference<'r>>,
    pub(super) traffic: Option<Traffic>,
}

impl Report<'_> {
    /// Whether rules or answers differ.
    pub(super) fn is_different(&self) -> bool {
        let changed = self.traffic.as_ref().map_or(0, |traffic| traffic.changed);
        !self.differences.is_empty() || changed > 0
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let rules = self.differences.iter().map(Difference::json);
        let mut json = json!({"rules": rules.collect::<Vec<_>>()});
        if let Some(traffic) = &self.traffic {
            json["traffic"] = traffic.json();
        }
        json
    }

    /// One line about all rules.
    pub(super) fn summary(&self) -> String {
        if self.differences.is_empty() {
            return "the rules are the same".to_owned();
        }
        let number = |change: &str| {
            let differences = self.differences.iter();
            differences.filter(|found| found.change() == change).count()
        };
        let mut text = format!(
            "rules: {} added, {} removed, {} changed",
            number("added"),
            number("removed"),
            number("changed")
        );
        let restarts = self
            .differences
            .iter()
            .filter(|found| found.counter_restarts);
        match restarts.count() {
            0 => {}
            restarts => text += &format!("; the counters of {} restart", counted(restarts, "rule")),
        }
        text
    }
}

/// The value of an option on one side, without quotes around texts.
pub(super) fn value(side: Option<&Described<'_>>, option: &str) -> Option<String> {
    let value = side?.values.get(option)?;
    Some(match value {
        Value::String(text) if !text.contains(['\n', '\r']) && !text.is_empty() => text.clone(),
        value => value.to_string(),
    })
}

/// `10 per minute`, or why nothing is counted.
pub(super) fn limit(side: &Described<'_>) -> String {
    let value = |option| value(Some(side), option);
    if side.rule.is_none() {
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

/// The options that differ, without what follows from others.
pub(super) fn changed_options<'d>(found: &'d Difference<'_>) -> Vec<&'d str> {
    let mut options = found.changed_options();
    options.retain(|option| *option != "period_seconds");
    options
}

/// ` (by the domain's defaults, config/shop.yaml:3)`
pub(super) fn source(side: Option<&Described<'_>>, option: &str) -> String {
    match side.and_then(|side| side.source(option)) {
        None => String::new(),
        Some((None, origin)) => format!(" ({origin})"),
        Some((Some(who), origin)) => format!(" (by {who}, {origin})"),
    }
}
