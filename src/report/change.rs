//! Differences between two rule sets: rules that were added, removed or changed, and counters that
//! restart.
//!
//! A rule is identified by its domain and the keys and values of its descriptors. Its values are
//! those of `/rlconfig?format=json`, so everything that the dump shows is compared. A descriptor
//! without a `rate_limit` and without others inside is a rule too: what it matches is not limited.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::named_enum::named_enum;
use crate::report::dump::path;
use crate::report::rule::{RuleView, Source};
use crate::rules::tree::{Domain, Node};
use crate::rules::{OnStoreError, Rule, RuleSet};

/// A rule that is not the same in both sets.
#[derive(Debug, Serialize)]
pub(crate) struct RuleChange {
    pub(crate) change: ChangeKind,
    pub(crate) domain: String,
    /// The path of the rule
    pub(crate) rule: String,
    /// Options and their values
    pub(crate) before: Option<RuleSide>,
    /// Options and their values
    pub(crate) after: Option<RuleSide>,
    /// Its key changes, so that it counts from zero
    pub(crate) counter_restarts: bool,
}

named_enum! {
    /// In which of the sets a rule is.
    pub enum ChangeKind {
        /// In the new one.
        Added = "added",
        /// In the old one.
        Removed = "removed",
        /// In both.
        Changed = "changed",
    }
}

/// A rule in one set.
#[derive(Debug, Serialize)]
pub(crate) struct RuleSide {
    /// Options by their names in rules files.
    #[serde(flatten)]
    pub(crate) values: Map<String, Value>,
    /// `None` without a `rate_limit`.
    #[serde(flatten)]
    places: Option<Places>,
}

#[derive(Debug, Serialize)]
struct Places {
    /// The place of the rule
    source: Source,
    /// The places of the options that `tollgate` blocks set
    option_sources: BTreeMap<String, OptionSource>,
}

#[derive(Debug, Serialize)]
struct OptionSource {
    /// The kind of block
    set_by: &'static str,
    #[serde(flatten)]
    place: Source,
}

/// A domain, and the keys and values of descriptors.
type Identity<'r> = (&'r str, Vec<(&'r str, &'r str)>);

/// A rule with its nodes, the outermost first.
struct Described<'r> {
    path: String,
    rule: Option<&'r Rule>,
    side: RuleSide,
}

/// The differences, sorted by domain and descriptors. `on_store_error` is the policy of rules
/// without one.
pub(crate) fn diff(old: &RuleSet, new: &RuleSet, on_store_error: OnStoreError) -> Vec<RuleChange> {
    let mut old = described(old, on_store_error);
    let mut sides: BTreeMap<Identity<'_>, (Option<_>, Option<_>)> = BTreeMap::new();
    for (identity, after) in described(new, on_store_error) {
        let before = old.remove(&identity);
        sides.insert(identity, (before, Some(after)));
    }
    sides.extend(old.into_iter().map(|(identity, before)| (identity, (Some(before), None))));
    sides
        .into_iter()
        .filter_map(|((domain, _), (before, after))| change(domain, before, after))
        .collect()
}

/// `None` if the sides are equal.
fn change(
    domain: &str,
    before: Option<Described<'_>>,
    after: Option<Described<'_>>,
) -> Option<RuleChange> {
    let (change, counter_restarts) = match (&before, &after) {
        (None, _) => (ChangeKind::Added, false),
        (_, None) => (ChangeKind::Removed, false),
        (Some(before), Some(after)) => {
            let restarts = before.restarts_as(after);
            if !restarts && before.side.values == after.side.values {
                return None;
            }
            (ChangeKind::Changed, restarts)
        }
    };
    let rule = after.as_ref().or(before.as_ref())?.path.clone();
    let side = |described: Described<'_>| described.side;
    Some(RuleChange {
        change,
        domain: domain.to_owned(),
        rule,
        before: before.map(side),
        after: after.map(side),
        counter_restarts,
    })
}

impl RuleChange {
    /// The names of options whose values differ, without those that follow from others.
    pub(crate) fn changed_options(&self) -> Vec<&str> {
        let sides = [&self.before, &self.after].map(Option::as_ref);
        let names = sides.into_iter().flatten().flat_map(|side| side.values.keys());
        let names: BTreeSet<&str> = names.map(String::as_str).collect();
        let differs = |name: &&str| {
            let [before, after] = sides.map(|side| side?.values.get(*name));
            before != after
        };
        let is_own = |name: &&str| *name != "period_seconds";
        names.into_iter().filter(is_own).filter(differs).collect()
    }
}

impl RuleSide {
    /// The place of the rule; `None` without a `rate_limit`.
    pub(crate) fn source(&self) -> Option<&Source> {
        Some(&self.places.as_ref()?.source)
    }

    /// Where an option is set, and by which kind of block if by one.
    pub(crate) fn source_of(&self, option: &str) -> Option<(Option<&'static str>, &Source)> {
        let places = self.places.as_ref()?;
        Some(match places.option_sources.get(option) {
            Some(OptionSource { set_by, place }) => (Some(*set_by), place),
            None => (None, &places.source),
        })
    }
}

impl<'r> Described<'r> {
    fn new(domain: &Domain, nodes: &[&'r Node], on_store_error: OnStoreError) -> Self {
        let node = nodes[nodes.len() - 1];
        let rule = node.rule.as_deref();
        let mut values = match rule {
            Some(rule) => values_of(&RuleView::new(node, rule, on_store_error)),
            None => Map::from_iter([("rate_limit".to_owned(), Value::Null)]),
        };
        if domain.all_or_nothing && rule.is_some() {
            values.insert("all_or_nothing".to_owned(), true.into());
        }
        // These have an effect on all rules inside.
        let mut add = |name: &str, has: fn(&Node) -> bool| {
            let labels = nodes.iter().filter(|node| has(node));
            let labels: Vec<&str> = labels.map(|node| &*node.label).collect();
            if !labels.is_empty() {
                values.insert(name.to_owned(), labels.into());
            }
        };
        add("share_threshold", |node| node.share_threshold);
        add("value_to_metric", |node| node.value_to_metric);
        Self {
            path: path(domain, nodes),
            rule,
            side: RuleSide { values, places: rule.map(Places::of) },
        }
    }

    /// Whether the counters of this rule are not those of the other one.
    fn restarts_as(&self, other: &Self) -> bool {
        let (Some(rule), Some(other_rule)) = (self.rule, other.rule) else {
            return false;
        };
        let shared = |described: &Self| described.side.values.get("share_threshold").cloned();
        let is_counted = rule.all_limits().next().is_some();
        let (counters, others) = (counters(rule), counters(other_rule));
        let mut common =
            counters.iter().filter_map(|(name, counter)| Some((counter, others.get(name)?)));
        common.any(|(counter, other)| counter != other)
            || is_counted
                && (rule.tagged_entries != other_rule.tagged_entries
                    || shared(self) != shared(other))
    }
}

impl Places {
    fn of(rule: &Rule) -> Self {
        let options = rule.options.iter().map(|option| {
            let source =
                OptionSource { set_by: option.provenance.name(), place: (&option.origin).into() };
            (option.key.to_owned(), source)
        });
        Self { source: (&rule.origin).into(), option_sources: options.collect() }
    }
}

/// What the keys of each limit of a rule end with, by its name; empty for the rule's own.
fn counters(rule: &Rule) -> BTreeMap<&str, impl PartialEq> {
    let counters = rule.counters().map(|(further, limit, tail)| {
        let name = further.map_or("", |further| &further.name);
        (name, (tail, limit.key_windows(), limit.first_days()))
    });
    counters.collect()
}

/// All fields but the place.
fn values_of(view: &RuleView) -> Map<String, Value> {
    let Ok(Value::Object(mut values)) = serde_json::to_value(view) else {
        unreachable!("a view is an object whose keys are texts")
    };
    values.remove("source");
    values
}

/// Everything that a rule set limits, or names as not limited.
fn described(
    rules: &RuleSet,
    on_store_error: OnStoreError,
) -> BTreeMap<Identity<'_>, Described<'_>> {
    let mut all = BTreeMap::new();
    for domain in rules.domains() {
        domain.visit(&mut |nodes| {
            let is_rule =
                nodes.last().is_some_and(|node| node.rule.is_some() || node.below.is_none());
            if is_rule {
                let entries = nodes.iter().map(|node| (&*node.key, &*node.value));
                let described = Described::new(domain, nodes, on_store_error);
                all.insert((&*domain.name, entries.collect()), described);
            }
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rules::tree::tests::rules_of;

    const OLD: &str = "
domain: d
descriptors:
  - {key: same, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: more, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: longer, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: bucket, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: gone, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: path, value: /a/*, descriptors: [{key: id, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: free}
";
    const NEW: &str = "
domain: d
metadata: {tollgate: {defaults: {on_store_error: deny}}}
descriptors:
  - {key: same, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {on_store_error: local}}}
  - {key: more, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {tollgate: {on_store_error: local}}}
  - {key: longer, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: bucket, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tollgate: {algorithm: leaky_bucket}}}
  - {key: path, value: /a/*, share_threshold: true, descriptors: [{key: id, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: free, rate_limit: {unit: day, requests_per_unit: 1}}
";

    #[test]
    fn rules_are_added_removed_and_changed_and_counters_restart() {
        let old = rules_of(OLD);
        let new = rules_of(NEW);
        let found: Vec<String> = diff(&old, &new, OnStoreError::Local)
            .iter()
            .map(|found| {
                let restarts = if found.counter_restarts { ", restarts" } else { "" };
                let options = found.changed_options().join(" ");
                format!("{} {}{restarts}: {options}", found.change.name(), found.rule)
            })
            .collect();
        let expected = [
            "changed d.bucket, restarts: algorithm on_store_error",
            "changed d.free: ",
            "removed d.gone: ",
            "changed d.longer, restarts: on_store_error unit",
            "changed d.more: requests_per_unit",
            "changed d.path_/a/*.id, restarts: on_store_error share_threshold",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}: {expected}");
        }
        assert!(diff(&old, &old, OnStoreError::Local).is_empty());
    }

    #[test]
    fn counters_of_further_limits_restart_as_their_keys_do() {
        let rules = |limit: &str| {
            rules_of(&format!(
                "domain: d\ndescriptors:\n  - key: team\n    rate_limit: {{unlimited: true}}\n    metadata: {{tollgate: {{limits: [{{requests: 9, unit: year}}, {{name: n, requests: 5, {limit}}}]}}}}\n"
            ))
        };
        let before = rules("unit: month, calendar: UTC");
        for (limit, restarts) in [
            ("unit: month, calendar: Europe/Berlin, warn_at: 80%", false),
            ("unit: month, calendar: {time_zone: UTC, at: \"06:00\"}", false),
            ("unit: month, calendar: {time_zone: UTC, first_day: 2}", true),
            ("unit: month, unit_multiplier: 3, calendar: UTC", true),
            ("unit: month", true),
        ] {
            let found = diff(&before, &rules(limit), OnStoreError::Local);
            let found: Vec<_> = found
                .iter()
                .map(|found| (found.changed_options(), found.counter_restarts))
                .collect();
            assert_eq!(found, [(vec!["limits"], restarts)], "{limit}");
        }
    }

    #[test]
    fn json_has_both_sides_and_who_set_each_option() {
        let old = rules_of(OLD);
        let new = rules_of(NEW);
        let found = diff(&old, &new, OnStoreError::Local);
        let longer = found.iter().find(|found| found.rule == "d.longer");
        let json = json!(longer.expect("it changed"));
        assert_eq!(
            (&json["change"], &json["domain"], &json["rule"], &json["counter_restarts"]),
            (&json!("changed"), &json!("d"), &json!("d.longer"), &json!(true))
        );
        assert_eq!(json["before"]["unit"], "day");
        assert_eq!(json["before"]["option_sources"], json!({}));
        assert_eq!(json["after"]["source"], json!({"file": "rules.yaml", "line": 7, "column": 5}));
        assert_eq!(
            json["after"]["option_sources"]["on_store_error"],
            json!({"set_by": "the domain's defaults", "file": "rules.yaml", "line": 3, "column": 50})
        );
    }
}
