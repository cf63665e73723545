//! The report as the comment of a pull request.

use crate::cli::diff::report::{Report, keys_changed, limit, traffic_summary, value};
use crate::report::change::{ChangeKind, RuleChange, RuleSide};
use crate::report::comparison::TrafficView;

/// Rows of a table. GitHub accepts comments of 65,536 characters.
const ROWS_MAX: usize = 100;

pub(super) fn write(report: &Report) -> String {
    let mut text = format!("**Rate limits:** {}\n", report.summary());
    if !report.differences.is_empty() {
        text += "\n| change | rule | before | after | counters |\n|---|---|---|---|---|\n";
        let rows = report.differences.iter().map(difference).collect();
        text += &limited(rows);
    }
    if let Some(traffic) = &report.traffic {
        text += &format!("\n**Recorded traffic:** {}\n", traffic_summary(traffic));
        if !traffic.rules.is_empty() {
            text += &answers(traffic);
        }
    }
    text
}

fn difference(found: &RuleChange) -> String {
    let (before, after) = (found.before.as_ref(), found.after.as_ref());
    let is_changed = found.change == ChangeKind::Changed;
    let side = |side: Option<&RuleSide>| match side {
        None => String::new(),
        Some(described) if !is_changed => code(&limit(described)),
        described => {
            let options = found.changed_options().into_iter().filter_map(|option| {
                let value = value(described, option)?;
                Some(code(&format!("{option}: {value}")))
            });
            options.collect::<Vec<_>>().join("<br>")
        }
    };
    let counters = if found.counter_restarts {
        "restart"
    } else {
        ""
    };
    let (change, rule) = (found.change.name(), code(&found.rule));
    let (before, after) = (side(before), side(after));
    format!("| {change} | {rule} | {before} | {after} | {counters} |\n")
}

fn answers(traffic: &TrafficView) -> String {
    let head = "\n| rule | requests | newly over limit | no longer over limit | keys changed | most changed |\n|---|--:|--:|--:|--:|---|\n";
    let rows = traffic.rules.iter().map(|rule| {
        let keys = rule.keys.iter().take(3);
        let keys: Vec<String> = keys.map(|key| code(&key.key)).collect();
        format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            code(&rule.rule),
            rule.requests,
            rule.newly_over,
            rule.no_longer_over,
            keys_changed(rule),
            keys.join(", ")
        )
    });
    head.to_owned() + &limited(rows.collect())
}

fn limited(rows: Vec<String>) -> String {
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    let text: String = rows.into_iter().take(ROWS_MAX).collect();
    match left_out {
        0 => text,
        _ => format!("{text}\n{left_out} more: see `tollgate diff --format text`\n"),
    }
}

/// A text of clients or rules, without an effect on the table around it.
fn code(text: &str) -> String {
    let escaped = text.chars().map(|letter| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '|' => "&#124;".to_owned(),
        _ if letter.is_control() => letter.escape_unicode().to_string(),
        _ => letter.to_string(),
    });
    format!("<code>{}</code>", escaped.collect::<String>())
}
