//! `/candidate`: the results as JSON.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::candidate::tally::{Change, Tally};
use crate::time::{Span, Time};

/// The page. Examples are newest first.
pub(crate) fn page(tally: &Tally) -> String {
    let rules = tally.domains.iter().flat_map(|(domain, rules)| {
        rules
            .iter()
            .map(move |(rule, of_rule)| (domain, rule, of_rule))
    });
    let rules: Vec<Value> = rules
        .map(|(domain, rule, of_rule)| {
            json!({
                "domain": domain,
                "rule": &**rule,
                "same": of_rule.changes[Change::Same as usize],
                "newly_over": of_rule.changes[Change::NewlyOver as usize],
                "no_longer_over": of_rule.changes[Change::NoLongerOver as usize],
                "keys_changed": of_rule.keys_changed(),
            })
        })
        .collect();
    let examples: Vec<Value> = tally
        .examples
        .iter()
        .rev()
        .map(|example| {
            json!({
                "time": rfc3339(example.time),
                "domain": example.domain,
                "rule": &*example.rule,
                "change": example.change.name(),
                "descriptor": example.descriptor,
            })
        })
        .collect();
    json!({"requests": tally.requests, "rules": rules, "examples": examples}).to_string()
}

fn rfc3339(time: Time) -> String {
    let since_epoch: Duration = Span::from_micros(time.as_micros()).into();
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_epoch).to_string()
}
