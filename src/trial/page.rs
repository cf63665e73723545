//! `/trial`: the results as JSON.

use serde_json::{Map, Value, json};

use crate::limit::Unit;
use crate::time::{MICROS_PER_SECOND, Time};
use crate::trial::compare::{Class, Status};
use crate::trial::request::Shown;
use crate::trial::tally::{Disagreement, RuleTally, Tally};

/// What is not part of the counts.
pub(crate) struct Head<'p> {
    pub(crate) since: Time,
    pub(crate) upstream: &'p str,
    pub(crate) enforce_percent: u8,
    pub(crate) dropped: u64,
}

/// The page. Disagreements are newest first.
pub(crate) fn page(head: &Head<'_>, tally: &Tally) -> String {
    let rules = tally.domains.iter().flat_map(|(domain, of_domain)| {
        let rules = of_domain.rules.iter();
        rules.map(move |(rule, of_rule)| rule_json(domain, rule, of_rule))
    });
    json!({
        "since": head.since.to_rfc3339(),
        "upstream": head.upstream,
        "enforce_percent": head.enforce_percent,
        "requests": tally.requests,
        "agreed": tally.agreed,
        "dropped": head.dropped,
        "rules": rules.collect::<Vec<Value>>(),
        "disagreements": tally.disagreements.iter().rev().map(disagreement_json).collect::<Vec<Value>>(),
    })
    .to_string()
}

fn rule_json(domain: &str, rule: &str, tally: &RuleTally) -> Value {
    let classes: Map<String, Value> = Class::ALL
        .into_iter()
        .map(|class| {
            (
                class.name().to_owned(),
                tally.classes[class as usize].into(),
            )
        })
        .collect();
    json!({
        "domain": domain,
        "rule": rule,
        "requests": tally.requests,
        "agreed": tally.agreed,
        "over_here": tally.over_here,
        "over_there": tally.over_there,
        "classes": classes,
    })
}

fn disagreement_json(disagreement: &Disagreement) -> Value {
    let difference = &disagreement.difference;
    json!({
        "time": disagreement.time.to_rfc3339(),
        "domain": &*disagreement.domain,
        "rule": difference.rule.as_deref(),
        "descriptors": &*disagreement.descriptors,
        "here": side_json(&difference.here),
        "there": side_json(&difference.there),
        "class": difference.class.name(),
    })
}

fn side_json(side: &Shown) -> Value {
    match side {
        Shown::Error(text) => json!({"error": &**text}),
        Shown::Response(over_limit) => json!({"code": code(*over_limit)}),
        Shown::Status(status) => status_json(status),
    }
}

/// With the names of the protobuf message. Absent fields are left out.
fn status_json(status: &Status) -> Value {
    let mut json = json!({
        "code": code(status.over_limit),
        "limit_remaining": status.remaining,
    });
    if let Some(limit) = &status.limit {
        json["current_limit"] = json!({
            "requests_per_unit": limit.requests,
            "unit": limit.unit.map(Unit::name),
        });
    }
    if let Some(span) = status.until_reset {
        json["duration_until_reset"] = format!("{}s", span.as_micros() / MICROS_PER_SECOND).into();
    }
    json
}

fn code(over_limit: bool) -> &'static str {
    if over_limit { "OVER_LIMIT" } else { "OK" }
}
