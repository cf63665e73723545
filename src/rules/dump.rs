//! Writes the rules in force, as text and as JSON: what `/rlconfig` returns.
//!
//! A rule that envoyproxy/ratelimit can express has its line, byte for byte, because scripts parse
//! it. Any other rule has the same line with every option in force behind it. The JSON is a stable
//! interface for tools; `docs/rlconfig.md` describes it.

use serde_json::{Value, json};

use crate::limit::{Limit, LimitOption, OverLimitHits, Unit};
use crate::rules::enforced_share::EnforcedShare;
use crate::rules::rule::{Allowance, Naming, OnLimit, OnStoreError, Origin, Rule};
use crate::rules::tree::{Domain, Node, RuleSet};
use crate::text::Escaped;
use crate::time::Span;

/// Units for a period that is no single unit. Months and years are left out: 60 days are 60 days,
/// not two months.
const UNITS_OF_MULTIPLES: [Unit; 5] = [
    Unit::Week,
    Unit::Day,
    Unit::Hour,
    Unit::Minute,
    Unit::Second,
];
/// Units of a duration as rules files write it.
const DURATION_UNITS: [(u64, &str); 5] = [
    (3_600_000_000, "h"),
    (60_000_000, "m"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
];

impl RuleSet {
    /// One line per limit, sorted by path.
    pub fn dump(&self) -> String {
        let mut lines = Vec::new();
        for domain in self.domains() {
            domain.visit(&mut |nodes| {
                let rule = nodes
                    .last()
                    .and_then(|node| Some((node, node.rule.as_ref()?)));
                lines.extend(rule.map(|(node, rule)| (&rule.path, line(domain, node, rule))));
            });
        }
        lines.sort_unstable();
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// The rules as JSON. `on_store_error` is the policy of rules without one.
    pub fn dump_json(&self, on_store_error: OnStoreError) -> String {
        // Written piece by piece, because a tree of JSON values for all rules takes several times the
        // memory of the text.
        let mut text = r#"{"domains":["#.to_owned();
        for domain in self.domains() {
            separate(&mut text);
            text += &format!(
                r#"{{"domain":{},"all_or_nothing":{},"descriptors":["#,
                json!(domain.name),
                domain.all_or_nothing
            );
            domain.visit(&mut |nodes| {
                separate(&mut text);
                text += &descriptor(domain, nodes, on_store_error).to_string();
            });
            text += "]}";
        }
        text + "]}"
    }
}

/// Writes a comma unless a list begins here.
fn separate(text: &mut String) {
    if !text.ends_with('[') {
        text.push(',');
    }
}

fn line(domain: &Domain, node: &Node, rule: &Rule) -> String {
    let amount = match &rule.allowance {
        Allowance::Unlimited { requests_per_unit } => {
            format!("unit=UNKNOWN requests_per_unit={requests_per_unit}")
        }
        Allowance::Limited(limit) => amount(limit),
    };
    let Rule {
        path,
        shadow_mode,
        quota_mode,
        ..
    } = rule;
    let mut line = format!(
        "{}: {amount}, shadow_mode: {shadow_mode}, quota_mode: {quota_mode}",
        Escaped(path)
    );
    if let Allowance::Limited(limit) = &rule.allowance
        && !is_expressible(domain, rule, limit)
    {
        for (key, value) in options(node, rule, limit) {
            line += &format!(", {key}: {}", in_line(&value));
        }
        if domain.all_or_nothing {
            line += ", all_or_nothing: true";
        }
    }
    line + "\n"
}

fn amount(limit: &Limit) -> String {
    let period = match period_in_units(limit) {
        None => String::new(),
        Some((unit, 1)) => format!("unit={} ", unit.name().to_uppercase()),
        Some((unit, multiplier)) => {
            let unit = unit.name().to_uppercase();
            format!("unit={unit} unit_multiplier={multiplier} ")
        }
    };
    format!("{period}requests_per_unit={}", limit.requests)
}

/// Whether envoyproxy/ratelimit has the same limit: a fixed window of one unit and no option of a
/// `tollgate` block.
fn is_expressible(domain: &Domain, rule: &Rule, limit: &Limit) -> bool {
    limit.algorithm.has_windows()
        && limit.unit().is_some()
        && limit.over_limit_hits == OverLimitHits::Count
        && rule.on_limit == (OnLimit::Reject { body: None })
        && rule.on_store_error.is_none()
        && rule.enforced_share == EnforcedShare::ALL
        && !domain.all_or_nothing
}

/// The options in force that apply to the limit, by their keys in rules files.
fn options(node: &Node, rule: &Rule, limit: &Limit) -> Vec<(&'static str, Value)> {
    let value = |option: LimitOption| match option {
        LimitOption::Burst => Some(json!(limit.capacity)),
        LimitOption::Buckets => (limit.buckets > 0).then(|| json!(limit.buckets)),
        LimitOption::LeaseBy => Some(json!(node.key)),
        LimitOption::Lease => Some(json!(duration(limit.period))),
        LimitOption::OverLimitHits => Some(json!(limit.over_limit_hits.name())),
        // The one is a part of the period, the other of `on_limit`.
        LimitOption::UnitMultiplier | LimitOption::MaxWait => None,
    };
    let mut options = vec![("algorithm", json!(limit.algorithm.name()))];
    let of_limit = limit.algorithm.traits().options.iter();
    options.extend(of_limit.filter_map(|option| Some((option.name(), value(*option)?))));
    match &rule.on_limit {
        OnLimit::Reject { body } => {
            options.push(("on_limit", json!("reject")));
            options.extend(body.as_ref().map(|body| ("response_body", json!(&**body))));
        }
        OnLimit::Queue => options.extend([
            ("on_limit", json!("queue")),
            ("max_wait", json!(duration(limit.max_wait))),
        ]),
        OnLimit::Degrade { request_headers } => {
            let headers: serde_json::Map<_, _> = request_headers
                .iter()
                .map(|(name, value)| (name.to_string(), json!(value)))
                .collect();
            options.extend([
                ("on_limit", json!("degrade")),
                ("request_headers", Value::Object(headers)),
            ]);
        }
    }
    options.extend(
        rule.on_store_error
            .map(|policy| ("on_store_error", json!(policy.name()))),
    );
    if rule.enforced_share != EnforcedShare::ALL {
        options.push(("enforce_percent", json!(rule.enforced_share.percent())));
    }
    options
}

/// The unit and how many of it make the period; `None` for concurrency, which has none.
fn period_in_units(limit: &Limit) -> Option<(Unit, u64)> {
    if limit.algorithm.counts_holders() {
        return None;
    }
    let period = limit.period.as_micros();
    let unit = limit.unit().or_else(|| {
        UNITS_OF_MULTIPLES
            .into_iter()
            .find(|unit| period.is_multiple_of(unit.span().as_micros()))
    })?;
    Some((unit, period / unit.span().as_micros()))
}

/// A duration as rules files write it, such as `200ms`.
fn duration(span: Span) -> String {
    let micros = span.as_micros();
    let (unit, name) = DURATION_UNITS
        .into_iter()
        .find(|(unit, _)| micros.is_multiple_of(*unit))
        .unwrap_or((1, "us"));
    format!("{}{name}", micros / unit)
}

/// A word as it is, everything else as JSON, so that a line stays one line.
fn in_line(value: &Value) -> String {
    let is_word = |text: &&str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    value
        .as_str()
        .filter(is_word)
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The last of `nodes`, behind those around it.
fn descriptor(domain: &Domain, nodes: &[&Node], on_store_error: OnStoreError) -> Value {
    let labels = nodes.iter().map(|node| &*node.label);
    let path: Vec<&str> = std::iter::once(&*domain.name).chain(labels).collect();
    let entries = nodes.iter().map(|node| {
        if node.value.is_empty() {
            json!({"key": node.key})
        } else {
            json!({"key": node.key, "value": node.value})
        }
    });
    let entries: Vec<Value> = entries.collect();
    let node = nodes[nodes.len() - 1];
    json!({
        "path": path.join("."),
        "entries": entries,
        "share_threshold": node.share_threshold,
        "value_to_metric": node.value_to_metric,
        "limit": node.rule.as_ref().map(|rule| limit_json(node, rule, on_store_error)),
    })
}

/// A limit and what its descriptor says about it.
pub(super) fn limit_json(node: &Node, rule: &Rule, on_store_error: OnStoreError) -> Value {
    let mut json = json!({
        "source": source(&rule.origin),
        "name": rule.name,
        "replaces": rule.replaces,
        "unlimited": rule.limit().is_none(),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "detailed_metric": rule.naming == Naming::Detailed,
    });
    if let Some(metadata) = &rule.metadata {
        json["metadata"] = Value::Object(metadata.clone());
    }
    let Allowance::Limited(limit) = &rule.allowance else {
        return json;
    };
    json["requests_per_unit"] = limit.requests.into();
    if let Some((unit, multiplier)) = period_in_units(limit) {
        json["unit"] = unit.name().into();
        json["unit_multiplier"] = multiplier.into();
        json["period_seconds"] = limit.period.ceil_secs().into();
    }
    json["on_store_error"] = on_store_error.name().into();
    for (key, value) in options(node, rule, limit) {
        json[key] = value;
    }
    json
}

/// Where a rule is defined. A resource of a control plane has no lines.
pub(super) fn source(origin: &Origin) -> Value {
    if origin.line == 0 {
        json!({"resource": *origin.file})
    } else {
        json!({"file": *origin.file, "line": origin.line, "column": origin.column})
    }
}

#[cfg(test)]
mod tests;
