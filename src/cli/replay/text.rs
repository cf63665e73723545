//! The report for people: a block for each rule, with a row for each set of rules.

use std::collections::HashMap;

use crate::cli::replay::report::{KEYS_SHOWN, Report, share};
use crate::cli::replay::tally::{Minute, RuleTally};
use crate::cli::replay::variant::Variant;
use crate::cli::table::table;
use crate::rules::Origin;

/// Rules that are shown. The others have fewer over-limit requests.
const RULES_SHOWN_MAX: usize = 50;
const HEAD: [&str; 6] = [
    "",
    "requests",
    "over limit",
    "share",
    "first minute",
    "worst minute",
];

/// Writes everything.
pub(super) fn write(report: &Report) -> String {
    let mut text = summary(report);
    let paths = paths(&report.variants);
    let rules = report.variants.iter().flat_map(Variant::rules);
    let origins: HashMap<&str, &Origin> = rules.map(|rule| (&*rule.path, &rule.origin)).collect();
    for path in paths.iter().take(RULES_SHOWN_MAX) {
        let at = match origins.get(path) {
            Some(origin) => format!(" at {origin}"),
            None => String::new(),
        };
        text += &format!("\nrule {path}{at}\n{}", figures(path, &report.variants));
        for variant in &report.variants {
            text += &keys(path, variant, report.variants.len() > 1);
        }
    }
    if paths.len() > RULES_SHOWN_MAX {
        let left_out = paths.len() - RULES_SHOWN_MAX;
        text += &format!("\nrules with fewer requests over limit: {left_out}; see --format json\n");
    }
    text
}

/// What was read, and what each set of rules did.
fn summary(report: &Report) -> String {
    let stats = &report.stats;
    let mut text = format!("requests: {}", stats.requests);
    if let Some((first, last)) = report.times {
        text += &format!(", from {} to {}", first.to_rfc3339(), last.to_rfc3339());
    }
    text += "\n";
    let late = format!(
        ", by up to {}: counted at the latest time before",
        stats.late_max
    );
    for (name, number, about) in [
        ("invalid lines", stats.broken, ", left out"),
        ("lines without a request", stats.without_request, ""),
        ("requests out of order", stats.late, &*late),
    ] {
        if number > 0 {
            text += &format!("{name}: {number}{about}\n");
        }
    }
    for variant in &report.variants {
        let tally = &variant.tally;
        let label = if report.variants.len() > 1 {
            format!("{}: ", variant.label)
        } else {
            String::new()
        };
        let percent = percent(tally.over_limit, stats.requests);
        text += &format!("{label}over limit: {} ({percent})", tally.over_limit);
        if tally.without_limit > 0 {
            text += &format!(", without a limit: {}", tally.without_limit);
        }
        if let Some(error) = &tally.first_error {
            text += &format!(", answered with an error: {} ({error})", tally.errors);
        }
        if variant.evicted() > 0 {
            let evicted = variant.evicted();
            text += &format!(", counters evicted: {evicted} (set a greater MEMORY_BYTES_MAX)");
        }
        text += "\n";
    }
    text
}

/// The rules of all sets, those with the most over-limit requests first.
fn paths(variants: &[Variant]) -> Vec<&str> {
    let mut most: HashMap<&str, u64> = HashMap::new();
    for (path, rule) in variants.iter().flat_map(|variant| variant.tally.sorted()) {
        let known = most.entry(path).or_default();
        *known = (*known).max(rule.over_limit);
    }
    let mut paths: Vec<(&str, u64)> = most.into_iter().collect();
    paths.sort_unstable_by(|(one, few), (other, many)| many.cmp(few).then(one.cmp(other)));
    paths.into_iter().map(|(path, _)| path).collect()
}

/// The figures of a rule, a row for each set of rules.
fn figures(path: &str, variants: &[Variant]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for variant in variants {
        let Some(rule) = variant.tally.rules.get(path) else {
            rows.push(vec![variant.label.clone(), "no such rule".to_owned()]);
            continue;
        };
        rows.push(row(&variant.label, rule));
    }
    if variants.len() == 1 {
        for row in &mut rows {
            row[0].clear();
        }
    }
    table(1, &rows)
}

fn row(label: &str, rule: &RuleTally) -> Vec<String> {
    let minute = |minute: Option<Minute>| match minute {
        Some(minute) => format!(
            "{} of {} at {}",
            minute.over_limit,
            minute.requests,
            minute.start.to_rfc3339()
        ),
        None => "-".to_owned(),
    };
    vec![
        label.to_owned(),
        rule.requests.to_string(),
        rule.over_limit.to_string(),
        percent(rule.over_limit, rule.requests),
        minute(rule.first),
        minute(rule.worst),
    ]
}

/// The keys with the most over-limit requests.
fn keys(path: &str, variant: &Variant, is_compared: bool) -> String {
    let rule = variant.tally.rules.get(path);
    let Some(rule) = rule.filter(|rule| rule.over_limit > 0) else {
        return String::new();
    };
    let with = if is_compared {
        format!(", with {}", variant.label)
    } else {
        String::new()
    };
    let missed = match rule.keys.missed_max() {
        0 => String::new(),
        missed => format!(" (each may have up to {missed} more)"),
    };
    let mut text = format!("  keys with the most requests over limit{with}{missed}:\n");
    for (key, over_limit) in rule.keys.top(KEYS_SHOWN) {
        text += &format!("  {over_limit:>10}  {key}\n");
    }
    text
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2} %", 100.0 * share(part, whole))
}
