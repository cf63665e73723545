//! `/candidate`: the results as JSON.

use serde_json::{Value, json};

use crate::candidate::tally::{Change, Tally};

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
                "time": example.time.to_rfc3339_millis(),
                "domain": example.domain,
                "rule": &*example.rule,
                "change": example.change.name(),
                "descriptor": example.descriptor,
            })
        })
        .collect();
    json!({"requests": tally.requests, "rules": rules, "examples": examples}).to_string()
}
