//! The report for people.

use crate::cli::diff::report::{Report, keys_changed, limit, source, traffic_summary, value};
use crate::cli::table::table;
use crate::report::change::{RuleChange, RuleSide};
use crate::report::comparison::{KeyChanges, TrafficView};

pub(super) fn write(report: &Report) -> String {
    let mut text = format!("{}\n", report.summary());
    for found in &report.differences {
        text += &difference(found);
    }
    if let Some(traffic) = &report.traffic {
        text += &format!("\n{}", answers(traffic));
    }
    text
}

fn difference(found: &RuleChange) -> String {
    let (before, after) = (found.before.as_ref(), found.after.as_ref());
    let mut text = format!("\n{} {}", found.change.name(), found.rule);
    if let (None, Some(side)) | (Some(side), None) = (before, after) {
        return format!("{text}: {}{}\n", limit(side), place(side));
    }
    if found.counter_restarts {
        text += ", its counters restart";
    }
    text.push('\n');
    for option in found.changed_options() {
        let shown = |side| match value(side, option) {
            Some(value) => format!("{value}{}", source(side, option)),
            None => "not set".to_owned(),
        };
        text += &format!("  {option}: {} -> {}\n", shown(before), shown(after));
    }
    text
}

fn place(side: &RuleSide) -> String {
    let source = side.source();
    source.map_or_else(String::new, |source| format!(" at {source}"))
}

fn answers(traffic: &TrafficView) -> String {
    let mut text = traffic_summary(traffic) + "\n";
    if traffic.rules.is_empty() {
        return text;
    }
    let head = [
        "rule",
        "requests",
        "newly over",
        "no longer over",
        "keys changed",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for rule in &traffic.rules {
        rows.push(vec![
            rule.rule.clone(),
            rule.requests.to_string(),
            rule.newly_over.to_string(),
            rule.no_longer_over.to_string(),
            keys_changed(rule),
        ]);
    }
    text += &format!("\n{}", table(1, &rows));
    for rule in &traffic.rules {
        let path = &rule.rule;
        text += &format!("\nkeys of {path} with the most changed answers:\n");
        for KeyChanges { key, changed } in &rule.keys {
            text += &format!("{changed:>10}  {key}\n");
        }
    }
    text
}
