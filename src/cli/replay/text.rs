//! The report for people: a block for each rule, with a row for each set of rules.

use std::collections::HashMap;

use crate::cli::table::table;
use crate::report::{KeyReplay, Minute, Replay, RuleReplay, RulesReplay};

/// Rules that are shown. The others have fewer over-limit requests.
const RULES_SHOWN_MAX: usize = 50;
const HEAD: [&str; 6] = ["", "requests", "over limit", "share", "first minute", "worst minute"];

/// Writes everything.
pub(super) fn write(report: &Replay) -> String {
    let mut text = summary(report);
    let sets: Vec<&RulesReplay> = report.sets().collect();
    let paths = paths(&sets);
    for path in paths.iter().take(RULES_SHOWN_MAX) {
        let mut sources = sets.iter().filter_map(|set| set.rule(path)?.source.as_ref());
        let at = sources.next_back().map_or_else(String::new, |source| format!(" at {source}"));
        text += &format!("\nrule {path}{at}\n{}", figures(path, &sets));
        for set in &sets {
            text += &keys(path, set, sets.len() > 1);
        }
    }
    if paths.len() > RULES_SHOWN_MAX {
        let left_out = paths.len() - RULES_SHOWN_MAX;
        text += &format!("\nrules with fewer requests over limit: {left_out}; see --format json\n");
    }
    text
}

/// Counts of the traffic, and results of each set of rules.
fn summary(report: &Replay) -> String {
    let stats = &report.traffic;
    let mut text = format!("requests: {}", stats.requests);
    if let (Some(first), Some(last)) = (&report.first, &report.last) {
        text += &format!(", from {first} to {last}");
    }
    text += "\n";
    let late = format!(", by up to {}: counted at the latest time before", stats.late_max);
    for (name, number, about) in [
        ("invalid lines", stats.broken, ", left out"),
        ("lines without a request", stats.without_request, ""),
        ("requests out of order", stats.late, &*late),
    ] {
        if number > 0 {
            text += &format!("{name}: {number}{about}\n");
        }
    }
    for set in report.sets() {
        let label =
            if report.compared.is_empty() { String::new() } else { format!("{}: ", set.label) };
        let percent = percent(set.share);
        text += &format!("{label}over limit: {} ({percent})", set.over_limit);
        if set.without_limit > 0 {
            text += &format!(", without a limit: {}", set.without_limit);
        }
        if let Some(error) = &set.first_error {
            text += &format!(", answered with an error: {} ({error})", set.errors);
        }
        if set.evicted > 0 {
            let evicted = set.evicted;
            text += &format!(", counters evicted: {evicted} (set a greater MEMORY_BYTES_MAX)");
        }
        text += "\n";
    }
    text
}

/// The rules of all sets, those with the most over-limit requests first.
fn paths<'r>(sets: &[&'r RulesReplay]) -> Vec<&'r str> {
    let mut most: HashMap<&str, u64> = HashMap::new();
    for rule in sets.iter().flat_map(|set| &set.rules) {
        let known = most.entry(&rule.rule).or_default();
        *known = (*known).max(rule.over_limit);
    }
    let mut paths: Vec<(&str, u64)> = most.into_iter().collect();
    paths.sort_unstable_by(|(one, few), (other, many)| many.cmp(few).then(one.cmp(other)));
    paths.into_iter().map(|(path, _)| path).collect()
}

/// The figures of a rule, a row for each set of rules.
fn figures(path: &str, sets: &[&RulesReplay]) -> String {
    let rows = sets.iter().map(|set| {
        let label = if sets.len() == 1 { "" } else { &*set.label };
        match set.rule(path) {
            Some(rule) => row(label, rule),
            None => vec![label.to_owned(), "no such rule".to_owned()],
        }
    });
    table(1, &HEAD, rows)
}

fn row(label: &str, rule: &RuleReplay) -> Vec<String> {
    let minute = |minute: Option<Minute>| match minute {
        Some(minute) => {
            format!("{} of {} at {}", minute.over_limit, minute.requests, minute.start.to_rfc3339())
        }
        None => "-".to_owned(),
    };
    vec![
        label.to_owned(),
        rule.requests.to_string(),
        rule.over_limit.to_string(),
        percent(rule.share),
        minute(rule.first_minute),
        minute(rule.worst_minute),
    ]
}

/// The keys with the most over-limit requests.
fn keys(path: &str, set: &RulesReplay, is_compared: bool) -> String {
    let rule = set.rule(path);
    let Some(rule) = rule.filter(|rule| rule.over_limit > 0) else {
        return String::new();
    };
    let with = if is_compared { format!(", with {}", set.label) } else { String::new() };
    let missed = match rule.keys_missed_max {
        0 => String::new(),
        missed => format!(" (each may have up to {missed} more)"),
    };
    let mut text = format!("  keys with the most requests over limit{with}{missed}:\n");
    for KeyReplay { key, over_limit } in &rule.keys {
        text += &format!("  {over_limit:>10}  {key}\n");
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
