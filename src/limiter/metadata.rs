//! Dynamic metadata of a response: the request, the metadata of its rules, which rule decided, and
//! what is used of limits that are shared by levels, have a calendar, or warn.

use serde_json::{Map, Value, json};

use crate::base::text::Text;
use crate::limiter::decision::{Counted, Decision};
use crate::limiter::response::Status;
use crate::limiter::warnings::Warning;
use crate::limits::{Unit, Windows};
use crate::rules::query::{Descriptor, Override};
use crate::rules::{Link, Metadata, Rule, Step};

/// The key of the list of rules that degrade.
const DEGRADED: &str = "degraded";

/// The key of [`decided`].
const DECIDED: &str = "tollgate";

/// The fields of envoyproxy/ratelimit: domain, descriptors, hitsAddend and merged metadata. Maps
/// are merged; the first rule wins for any other key. Rules that are over limit, unlimited or
/// replaced add nothing. `decisive` is the index of the step that [`decided`] describes, and
/// `over_limit` whether the response is.
pub(crate) fn dynamic_metadata(
    decision: &Decision<'_, '_, '_>,
    statuses: &[Status],
    decisive: Option<usize>,
    over_limit: bool,
) -> Metadata {
    let query = decision.query;
    let mut merged = Map::new();
    for (step, status) in decision.plan.steps.iter().zip(statuses) {
        let rules = step.links().iter().filter_map(Link::own_rule);
        for metadata in rules.filter_map(|rule| rule.metadata.as_ref()) {
            if !status.over_limit {
                merge(&mut merged, metadata);
            }
        }
    }
    let mut fields = Map::new();
    fields.insert("domain".to_owned(), json!(Text(query.domain).shown()));
    fields.insert("descriptors".to_owned(), query.descriptors.iter().map(described).collect());
    if query.hits_addend > 0 {
        fields.insert("hitsAddend".to_owned(), json!(query.hits_addend));
    }
    if !merged.is_empty() {
        fields.insert("metadata".to_owned(), Value::Object(merged));
    }
    let decided = decisive.and_then(|index| decided(decision, statuses, index));
    if let Some(mut decided) = decided {
        let warnings =
            if over_limit { Vec::new() } else { decision.warnings().map(warning).collect() };
        for (key, list) in [("limits", used(decision)), ("warnings", warnings)] {
            if !list.is_empty() {
                decided[key] = list.into();
            }
        }
        fields.insert(DECIDED.to_owned(), decided);
    }
    fields
}

/// The rule, limit and source of the decisive step, and each rule that is over limit.
fn decided(decision: &Decision<'_, '_, '_>, statuses: &[Status], decisive: usize) -> Option<Value> {
    let steps = &decision.plan.steps;
    let decisive = decision.counted(&steps[decisive])?;
    let link = decisive.link;
    let limit = decisive.check.limit;
    let over_limit = steps.iter().zip(statuses).filter_map(|(step, status)| {
        let counted = decision.counted(step).filter(|_| status.over_limit)?;
        let retry_after = counted.verdict.retry_after.map(|_| status.reset_secs);
        Some(json!({"rule": &*counted.link.path(), "retry_after_seconds": retry_after}))
    });
    let mut decided = json!({
        "rule": &*link.path(),
        "limit": limit.to_string(),
        "algorithm": limit.algorithm.name(),
        "source": decisive.verdict.source,
        "over_limit": over_limit.collect::<Value>(),
    });
    if let Some(further) = link.further {
        decided["limit_name"] = json!(further.name);
    }
    Some(decided)
}

/// The limits of rules with `limits`, `parents`, `calendar` or `warn_at`. All others have what is
/// left in the status.
fn used(decision: &Decision<'_, '_, '_>) -> Vec<Value> {
    let limits = decision.plan.steps.iter().flat_map(|step| {
        let is_chain = matches!(step, Step::Chain { .. });
        decision.links(step).filter(move |counted| {
            let has_calendar = matches!(counted.check.limit.windows, Windows::Calendar(_));
            is_chain || has_calendar || counted.link.warn_at().is_some()
        })
    });
    let shown = |counted: Counted<'_, '_>| {
        json!({
            "rule": &*counted.link.path(),
            "name": counted.link.name(),
            "over_limit": counted.is_over(),
            "limit": counted.check.limit.capacity,
            "used": counted.verdict.used,
            "remaining": counted.verdict.remaining,
            "reset_seconds": counted.reset_secs(),
        })
    };
    limits.map(shown).collect()
}

fn warning(warning: Warning<'_, '_>) -> Value {
    json!({
        "name": warning.counted.link.name(),
        "used_percent": warning.used_percent,
        "threshold_percent": warning.threshold_percent,
    })
}

/// Adds the rules that degrade, by name, or by path if they have no name.
pub(crate) fn add_degraded(metadata: &mut Metadata, degraded: &[&Rule]) {
    let name = |rule: &&Rule| {
        if rule.name.is_empty() { json!(*rule.path) } else { json!(rule.name) }
    };
    metadata.insert(DEGRADED.to_owned(), degraded.iter().map(name).collect());
}

fn described(descriptor: &Descriptor<'_>) -> Value {
    let entries = descriptor.entries.iter().map(ToString::to_string);
    let mut fields = json!({"entries": entries.collect::<Value>()});
    if let Some(limit) = &descriptor.limit {
        fields["limit"] = text_of(limit).into();
    }
    if let Some(hits) = descriptor.hits_addend {
        fields["hitsAddend"] = hits.into();
    }
    fields
}

/// A limit in protobuf's text form, which omits zeros.
fn text_of(limit: &Override) -> String {
    let requests = (limit.requests_per_unit > 0)
        .then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
    let unit = (limit.wire_unit != 0).then(|| match limit.unit {
        Some(unit) if unit != Unit::Week => format!("unit:{}", unit.name().to_uppercase()),
        // The type of this field has no name for a week.
        _ => format!("unit:{}", limit.wire_unit),
    });
    let parts: Vec<String> = requests.into_iter().chain(unit).collect();
    parts.join(" ")
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
