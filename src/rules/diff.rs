//! Compares two rule sets: which rules were added, removed or changed, and which counters restart.
//!
//! A rule is identified by its domain and the keys and values of its descriptors. Its values are those
//! of `/rlconfig?format=json`, so everything that the dump shows is compared. A descriptor without a
//! `rate_limit` and without others inside is a rule too: what it matches is not limited.

use std::collections::BTreeMap;
use std::iter;

use serde_json::{Map, Value, json};

use crate::limit::{Limit, Months};
use crate::rules::dump::{limit_json, source};
use crate::rules::rule::{OnStoreError, Origin, Rule};
use crate::rules::tree::{Domain, Node, RuleSet};
use crate::time::Span;

/// A rule that is not the same in both sets.
#[derive(Debug)]
pub(crate) struct Difference<'r> {
    pub(crate) domain: &'r str,
    /// `None` if it was added.
    pub(crate) before: Option<Described<'r>>,
    /// `None` if it was removed.
    pub(crate) after: Option<Described<'r>>,
    /// Its key changes, so that it counts from zero.
    pub(crate) counter_restarts: bool,
}

/// A rule of one set.
#[derive(Debug)]
pub(crate) struct Described<'r> {
    path: String,
    /// `None` without a `rate_limit`.
    pub(crate) rule: Option<&'r Rule>,
    /// Options by their names in rules files.
    pub(crate) values: Map<String, Value>,
}

/// A domain, and the keys and values of descriptors.
type Identity<'r> = (&'r str, Vec<(&'r str, &'r str)>);

/// The differences, sorted by domain and descriptors. `on_store_error` is the policy of rules without
/// one.
pub(crate) fn diff<'r>(
    old: &'r RuleSet,
    new: &'r RuleSet,
    on_store_error: OnStoreError,
) -> Vec<Difference<'r>> {
    let (mut old, new) = (
        described(old, on_store_error),
        described(new, on_store_error),
    );
    let mut sides: BTreeMap<Identity<'r>, (Option<_>, Option<_>)> = BTreeMap::new();
    for (identity, after) in new {
        let before = old.remove(&identity);
        sides.insert(identity, (before, Some(after)));
    }
    let removed = old.into_iter();
    sides.extend(removed.map(|(identity, before)| (identity, (Some(before), None))));
    let differences = sides
        .into_iter()
        .filter_map(|((domain, _), (before, after))| {
            let counter_restarts = match (&before, &after) {
                (Some(before), Some(after)) => before.restarts_as(after),
                _ => false,
            };
            let values = [&before, &after].map(|side| side.as_ref().map(|side| &side.values));
            let is_same = !counter_restarts && values[0] == values[1];
            (!is_same).then_some(Difference {
                domain,
                before,
                after,
                counter_restarts,
            })
        });
    differences.collect()
}

impl Difference<'_> {
    /// `added`, `removed` or `changed`.
    pub(crate) fn change(&self) -> &'static str {
        match (&self.before, &self.after) {
            (None, _) => "added",
            (_, None) => "removed",
            (Some(_), Some(_)) => "changed",
        }
    }

    /// The path of the rule.
    pub(crate) fn path(&self) -> &str {
        let side = self.after.as_ref().or(self.before.as_ref());
        side.map_or("", |side| &side.path)
    }

    /// The names of options whose values differ.
    pub(crate) fn changed_options(&self) -> Vec<&str> {
        let sides = [&self.before, &self.after].map(Option::as_ref);
        let mut names: Vec<&str> = sides
            .iter()
            .flatten()
            .flat_map(|side| side.values.keys())
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        names.dedup();
        let value = |side: Option<&Described<'_>>, name: &str| {
            side.and_then(|side| side.values.get(name).cloned())
        };
        names.retain(|name| value(sides[0], name) != value(sides[1], name));
        names
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "change": self.change(),
            "domain": self.domain,
            "rule": self.path(),
            "before": self.before.as_ref().map(Described::json),
            "after": self.after.as_ref().map(Described::json),
            "counter_restarts": self.counter_restarts,
        })
    }
}

impl<'r> Described<'r> {
    fn new(domain: &Domain, nodes: &[&'r Node], on_store_error: OnStoreError) -> Self {
        let node = nodes[nodes.len() - 1];
        let rule = node.rule.as_deref();
        let json = rule.map_or(json!({"rate_limit": null}), |rule| {
            limit_json(node, rule, on_store_error)
        });
        let Value::Object(mut values) = json else {
            unreachable!("a limit is an object")
        };
        values.remove("source");
        if domain.all_or_nothing && rule.is_some() {
            values.insert("all_or_nothing".to_owned(), true.into());
        }
        // These have an effect on all rules inside.
        for (name, has) in [
            (
                "share_threshold",
                (|node| node.share_threshold) as fn(&Node) -> bool,
            ),
            ("value_to_metric", |node| node.value_to_metric),
        ] {
            let labels = nodes.iter().filter(|node| has(node));
            let labels: Vec<&str> = labels.map(|node| &*node.label).collect();
            if !labels.is_empty() {
                values.insert(name.to_owned(), json!(labels));
            }
        }
        let labels = nodes.iter().map(|node| &*node.label);
        let path: Vec<&str> = iter::once(&*domain.name).chain(labels).collect();
        Self {
            path: path.join("."),
            rule,
            values,
        }
    }

    /// Where an option is set: who set it, unless it is no option of a block, and the place.
    pub(crate) fn source(&self, option: &str) -> Option<(Option<&'static str>, &Origin)> {
        let rule = self.rule?;
        let set = rule.options.iter().find(|set| set.key == option);
        Some(match set {
            Some(set) => (Some(set.provenance.name()), &set.origin),
            None => (None, &rule.origin),
        })
    }

    /// Whether the counters of this rule are not those of the other one.
    fn restarts_as(&self, other: &Self) -> bool {
        let (Some(rule), Some(other_rule)) = (self.rule, other.rule) else {
            return false;
        };
        let (Some(limit), Some(other_limit)) = (rule.limit(), other_rule.limit()) else {
            return false;
        };
        let shared = |side: &Self| side.values.get("share_threshold").cloned();
        rule.key_tail != other_rule.key_tail
            || windows(limit) != windows(other_limit)
            || shared(self) != shared(other)
    }

    fn json(&self) -> Value {
        let mut json = Value::Object(self.values.clone());
        let Some(rule) = self.rule else { return json };
        json["source"] = source(&rule.origin);
        let sources = rule.options.iter().map(|option| {
            let mut place = source(&option.origin);
            place["set_by"] = option.provenance.name().into();
            (option.key.to_owned(), place)
        });
        json["option_sources"] = Value::Object(sources.collect());
        json
    }
}

/// Everything that a rule set limits, or names as not limited.
fn described(
    rules: &RuleSet,
    on_store_error: OnStoreError,
) -> BTreeMap<Identity<'_>, Described<'_>> {
    let mut all = BTreeMap::new();
    for domain in rules.domains() {
        domain.visit(&mut |nodes| {
            let is_rule = nodes
                .last()
                .is_some_and(|node| node.rule.is_some() || node.below.is_none());
            if is_rule {
                let entries = nodes.iter().map(|node| (&*node.key, &*node.value));
                let described = Described::new(domain, nodes, on_store_error);
                all.insert((&*domain.name, entries.collect()), described);
            }
        });
    }
    all
}

/// Keys of fixed windows end with the start of the window.
pub(crate) fn windows(limit: &Limit) -> Option<(Span, Months)> {
    limit
        .algorithm
        .has_windows()
        .then_some((limit.period, limit.months))
}

#[cfg(test)]
mod tests {
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
        let (old, new) = (rules_of(OLD), rules_of(NEW));
        let found: Vec<String> = diff(&old, &new, OnStoreError::Local)
            .iter()
            .map(|found| {
                let restarts = if found.counter_restarts {
                    ", restarts"
                } else {
                    ""
                };
                let options = found.changed_options().join(" ");
                format!("{} {}{restarts}: {options}", found.change(), found.path())
            })
            .collect();
        let expected = [
            "changed d.bucket, restarts: algorithm on_store_error",
            "changed d.free: ",
            "removed d.gone: ",
            "changed d.longer, restarts: on_store_error period_seconds unit",
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
    fn json_has_both_sides_and_who_set_each_option() {
        let (old, new) = (rules_of(OLD), rules_of(NEW));
        let found = diff(&old, &new, OnStoreError::Local);
        let longer = found.iter().find(|found| found.path() == "d.longer");
        let json = longer.expect("it changed").json();
        assert_eq!(
            (
                &json["change"],
                &json["domain"],
                &json["rule"],
                &json["counter_restarts"]
            ),
            (
                &json!("changed"),
                &json!("d"),
                &json!("d.longer"),
                &json!(true)
            )
        );
        assert_eq!(json["before"]["unit"], "day");
        assert_eq!(json["before"]["option_sources"], json!({}));
        assert_eq!(
            json["after"]["source"],
            json!({"file": "rules.yaml", "line": 7, "column": 5})
        );
        assert_eq!(
            json["after"]["option_sources"]["on_store_error"],
            json!({"set_by": "the domain's defaults", "file": "rules.yaml", "line": 3, "column": 50})
        );
    }
}
