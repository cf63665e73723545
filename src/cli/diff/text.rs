//! The report for people.

use crate::cli::diff::report::{Report, limit, source, value};
use crate::report::change::{RuleChange, RuleSide};

pub(super) fn write(report: &Report) -> String {
    let mut text = format!("{}\n", report.summary());
    for found in &report.differences {
        text += &difference(found);
    }
    text
}

fn difference(found: &RuleChange) -> String {
    let before = found.before.as_ref();
    let after = found.after.as_ref();
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
