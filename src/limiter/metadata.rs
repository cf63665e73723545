//! What Envoy is told about a request besides the verdict: what was asked, and the metadata of the
//! rules that were met.

use serde_json::{Map, Value, json};

use crate::limit::Unit;
use crate::limiter::response::Status;
use crate::rules::query::{Descriptor, Override, Query};
use crate::rules::{Metadata, Plan, Rule, Step};
use crate::text::Text;

/// Under which key rules are named that degrade.
const DEGRADED: &str = "degraded";

/// The reference's shape: domain, descriptors, hitsAddend, and merged metadata. Of two rules that
/// say something about the same key the first wins; maps are merged. Rules that are over, unlimited
/// or replaced say nothing.
pub fn dynamic_metadata(query: &Query<'_>, plan: &Plan<'_>, statuses: &[Status]) -> Metadata {
    let mut merged = Map::new();
    for (step, status) in plan.steps.iter().zip(statuses) {
        if let Step::Counted { rule, .. } = step
            && let Some(metadata) = &rule.metadata
            && !status.over_limit
        {
            merge(&mut merged, metadata);
        }
    }
    let mut told = Map::new();
    told.insert("domain".to_owned(), json!(Text(query.domain).shown()));
    told.insert(
        "descriptors".to_owned(),
        query.descriptors.iter().map(described).collect(),
    );
    if query.hits_addend > 0 {
        told.insert("hitsAddend".to_owned(), json!(query.hits_addend));
    }
    if !merged.is_empty() {
        told.insert("metadata".to_owned(), Value::Object(merged));
    }
    told
}

/// Adds the rules that are over and let the request pass all the same, by name, or by where they
/// stand where they have none.
pub fn tell_degraded(told: &mut Metadata, degraded: &[&Rule]) {
    let name = |rule: &&Rule| {
        if rule.name.is_empty() {
            json!(rule.path)
        } else {
            json!(rule.name)
        }
    };
    told.insert(DEGRADED.to_owned(), degraded.iter().map(name).collect());
}

fn described(descriptor: &Descriptor<'_>) -> Value {
    let mut told = Map::new();
    let entries = descriptor
        .entries
        .iter()
        .map(|entry| json!(format!("{}={}", Text(entry.key), Text(entry.value))));
    told.insert("entries".to_owned(), entries.collect());
    if let Some(limit) = &descriptor.limit {
        told.insert("limit".to_owned(), json!(text_of(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        told.insert("hitsAddend".to_owned(), json!(hits));
    }
    Value::Object(told)
}

/// A limit in protobuf's text form, in which what is zero is left out.
fn text_of(limit: &Override) -> String {
    let requests = (limit.requests_per_unit > 0)
        .then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
    let unit = (limit.wire_unit != 0).then(|| match limit.unit {
        Some(unit) if unit != Unit::Week => format!("unit:{}", unit.name().to_uppercase()),
        // The type of this field has no name for a week.
        _ => format!("unit:{}", limit.wire_unit),
    });
    requests
        .into_iter()
        .chain(unit)
        .collect::<Vec<_>>()
        .join(" ")
}

fn merge(into: &mut Metadata, from: &Metadata) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, _) => {
                into.insert(key.clone(), value.clone());
            }
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}
