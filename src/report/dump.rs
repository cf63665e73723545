//! Writes the rules in force, as text and as JSON: what `/rlconfig` returns.
//!
//! A rule that envoyproxy/ratelimit can express has its line, byte for byte, because scripts parse
//! it. Any other rule has the same line with every option in force behind it. The JSON is a stable
//! interface for tools; `docs/rlconfig.md` describes it.

use std::iter;

use serde_json::Value;

use crate::base::text::Escaped;
use crate::base::time::Span;
use crate::limit::{Consistency, LeaseTerms, Limit, LimitOption, OverLimitHits, Unit};
use crate::report::rule::{DescriptorView, EntryView, LimitView, PeriodView, RuleView};
use crate::report::serialize::json;
use crate::rules::tree::{Domain, Node};
use crate::rules::{Allowance, EnforcedShare, Naming, OnLimit, OnStoreError, Rule, RuleSet};

/// Units for a period that is no single unit. Windows and years are left out: 60 days are 60 days,
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
    /// A line per limit, sorted by path.
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

    /// The rules as JSON: see [`RulesView`](crate::report::rule::RulesView). `on_store_error` is
    /// the policy of rules without one.
    pub fn dump_json(&self, on_store_error: OnStoreError) -> String {
        // Written piece by piece, because the views of all rules take several times the memory of
        // the text.
        let mut text = r#"{"domains":["#.to_owned();
        for domain in self.domains() {
            separate(&mut text);
            text += &format!(
                r#"{{"domain":{},"all_or_nothing":{},"descriptors":["#,
                Value::from(&*domain.name),
                domain.all_or_nothing
            );
            domain.visit(&mut |nodes| {
                separate(&mut text);
                let view = DescriptorView::new(domain, nodes, on_store_error);
                text += &json(&view);
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
        && rule.lease.is_none()
        && !domain.all_or_nothing
}

/// The options in force that apply to the limit, by their keys in rules files.
fn options(node: &Node, rule: &Rule, limit: &Limit) -> Vec<(&'static str, Value)> {
    let value = |option: LimitOption| match option {
        LimitOption::Burst => Some(limit.capacity.into()),
        LimitOption::Buckets => (limit.buckets > 0).then(|| limit.buckets.into()),
        LimitOption::LeaseBy => Some((*node.key).into()),
        LimitOption::Lease => Some(duration(limit.period).into()),
        // Leased limits drop over-limit hits, and have another key if the rule says so itself.
        LimitOption::OverLimitHits => {
            let counts = limit.over_limit_hits == OverLimitHits::Count;
            (rule.lease.is_none() || !counts).then(|| limit.over_limit_hits.name().into())
        }
        // The one is a part of the period, the other of `on_limit`.
        LimitOption::UnitMultiplier | LimitOption::MaxWait => None,
    };
    let mut options = vec![("algorithm", limit.algorithm.name().into())];
    let of_limit = limit.algorithm.traits().options.iter();
    options.extend(of_limit.filter_map(|option| Some((option.name(), value(*option)?))));
    let lease = rule.lease.as_ref();
    if let Some(terms) = lease.and_then(|lease| LeaseTerms::new(limit, lease.lifetime)) {
        options.extend([
            ("consistency", Consistency::Leased.name().into()),
            ("lease", duration(terms.lifetime).into()),
        ]);
    }
    match &rule.on_limit {
        OnLimit::Reject { body } => {
            options.push(("on_limit", "reject".into()));
            options.extend(body.as_ref().map(|body| ("response_body", (**body).into())));
        }
        OnLimit::Queue => options.extend([
            ("on_limit", "queue".into()),
            ("max_wait", duration(limit.max_wait).into()),
        ]),
        OnLimit::Degrade { request_headers } => {
            let headers = request_headers.iter();
            let headers = headers.map(|(name, value)| (name.to_string(), (**value).into()));
            options.extend([
                ("on_limit", "degrade".into()),
                ("request_headers", Value::Object(headers.collect())),
            ]);
        }
    }
    let policy = rule.on_store_error;
    options.extend(policy.map(|policy| ("on_store_error", policy.name().into())));
    if rule.enforced_share != EnforcedShare::ALL {
        options.push(("enforce_percent", rule.enforced_share.percent().into()));
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

impl DescriptorView {
    /// The last of `nodes`, behind those around it.
    fn new(domain: &Domain, nodes: &[&Node], on_store_error: OnStoreError) -> Self {
        let entries = nodes.iter().map(|node| EntryView {
            key: node.key.to_string(),
            value: node.value.to_string(),
        });
        let node = nodes[nodes.len() - 1];
        let rule = node.rule.as_ref();
        Self {
            path: path(domain, nodes),
            entries: entries.collect(),
            share_threshold: node.share_threshold,
            value_to_metric: node.value_to_metric,
            limit: rule.map(|rule| RuleView::new(node, rule, on_store_error)),
        }
    }
}

impl RuleView {
    /// `on_store_error` is the policy of rules without one.
    pub(super) fn new(node: &Node, rule: &Rule, on_store_error: OnStoreError) -> Self {
        let replaces = rule.replaces.iter();
        let limit = |limit: &Limit| {
            let period = period_in_units(limit).map(|(unit, unit_multiplier)| PeriodView {
                unit: unit.name().to_owned(),
                unit_multiplier,
                period_seconds: limit.period.ceil_secs(),
            });
            let default = ("on_store_error", on_store_error.name().into());
            let options = iter::once(default).chain(options(node, rule, limit));
            LimitView {
                requests_per_unit: limit.requests,
                period,
                options: options
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect(),
            }
        };
        Self {
            source: (&rule.origin).into(),
            name: rule.name.to_string(),
            replaces: replaces.map(ToString::to_string).collect(),
            unlimited: rule.limit().is_none(),
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            detailed_metric: rule.naming == Naming::Detailed,
            metadata: rule.metadata.clone(),
            limit: rule.limit().map(limit),
        }
    }
}

/// The domain and the labels of the descriptors.
pub(super) fn path(domain: &Domain, nodes: &[&Node]) -> String {
    let labels = nodes.iter().map(|node| &*node.label);
    let path: Vec<&str> = iter::once(&*domain.name).chain(labels).collect();
    path.join(".")
}

#[cfg(test)]
mod tests;
