//! Writes the rules in force, as text and as JSON: what `/rlconfig` returns.
//!
//! A rule that envoyproxy/ratelimit can express has its line, byte for byte, because scripts parse
//! it. Any other rule has the same line with every option in force behind it. The JSON is a stable
//! interface for tools; `docs/console.md` describes it.

use std::iter;

use serde_json::Value;

use crate::base::text::Escaped;
use crate::limits::{Limit, OverLimitHits, WarnAt};
use crate::report::dump::options::{options, period_in_units};
use crate::report::rule::{DescriptorView, EntryView, LimitView, PeriodView, RuleView};
use crate::report::serialize::json;
use crate::rules::tree::{Domain, Node};
use crate::rules::{Allowance, EnforcedShare, Naming, OnLimit, OnStoreError, Rule, RuleSet};

mod options;

impl RuleSet {
    /// A line per limit, sorted by path.
    pub fn dump(&self) -> String {
        let mut lines = Vec::new();
        for domain in self.domains() {
            domain.visit(&mut |nodes| {
                let rule = nodes.last().and_then(|node| Some((node, node.rule.as_ref()?)));
                lines.extend(rule.map(|(node, rule)| (&rule.path, line(domain, node, rule))));
            });
        }
        lines.sort_unstable();
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// The rules as JSON. `on_store_error` is the policy of rules without one.
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
    let Rule { path, shadow_mode, quota_mode, .. } = rule;
    let mut line = format!(
        "{}: {amount}, shadow_mode: {shadow_mode}, quota_mode: {quota_mode}",
        Escaped(path)
    );
    let counts = rule.limit().is_some() || rule.is_chained();
    if counts && !rule.limit().is_some_and(|limit| is_expressible(domain, rule, limit)) {
        for (key, value) in options(node, rule) {
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
        && !rule.is_chained()
        && rule.warn_at == WarnAt::NEVER
        && !domain.all_or_nothing
}

/// A word as it is, everything else as JSON, so that a line stays one line.
fn in_line(value: &Value) -> String {
    let is_word = |text: &&str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    value.as_str().filter(is_word).map_or_else(|| value.to_string(), str::to_owned)
}

impl DescriptorView {
    /// The last of `nodes`, behind those around it.
    fn new(domain: &Domain, nodes: &[&Node], on_store_error: OnStoreError) -> Self {
        let entries = nodes
            .iter()
            .map(|node| EntryView { key: node.key.to_string(), value: node.value.to_string() });
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
            LimitView { requests_per_unit: limit.requests, period }
        };
        let counts = rule.limit().is_some() || rule.is_chained();
        let default = ("on_store_error", on_store_error.name().into());
        let options = iter::once(default).chain(options(node, rule));
        let options = options.filter(|_| counts);
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
            options: options.map(|(key, value)| (key.to_owned(), value)).collect(),
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
