//! Gauges of rules that have one counter: what it admits, and what is in use; and of leased rules:
//! what replicas may hold.
//!
//! They are read from the rules in force when metrics are collected. A request only stores the
//! usage that its verdict states anyway. Rules whose keys clients choose have a counter for each
//! key, so they have no usage.

use std::sync::Arc;

use crate::base::time::{Clock, Time};
use crate::limits::Limit;
use crate::rules::live::LiveRules;
use crate::rules::metric_name;
use crate::rules::rule::Rule;
use crate::rules::tree::Node;
use crate::telemetry::metric::{Gauge, Metrics, Series, Source};

/// Rules with `tollgate_rule_limit` and `tollgate_rule_used`, or with `tollgate_rule_lease_bound`.
// bound rule_gauges_max: the rule has no gauges; tollgate_rule_gauges_left_out
pub(crate) const RULE_GAUGES_MAX: usize = 10_000;
const LIMIT_HELP: &str = "Most hits in use of each limit of a rule whose keys clients do not choose: its requests per period, or its burst.";
const BOUND_HELP: &str =
    "Most hits of each counter of a leased rule that all replicas together hold unused.";
const USED_HELP: &str = "Hits in use of each limit of a rule whose keys clients do not choose, as of its last request here; 0 once its counter is unused.";

/// The gauges of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleGauges {
    rules: Arc<LiveRules>,
    clock: Clock,
    rules_max: usize,
    left_out: Gauge,
}

impl RuleGauges {
    /// Gauges of at most `rules_max` rules.
    pub(crate) fn new(
        rules: Arc<LiveRules>,
        clock: Clock,
        rules_max: usize,
        metrics: &Metrics,
    ) -> Self {
        let left_out = metrics.gauge(
            "tollgate_rule_gauges_left_out",
            "Rules without their gauges, such as tollgate_rule_limit, on this page because rule_gauges_max was reached.",
        );
        Self { rules, clock, rules_max, left_out }
    }
}

impl Source for RuleGauges {
    fn collect(&self, series: &mut Vec<Series>) {
        let rules = self.rules.load();
        let now = self.clock.now();
        let mut count = 0;
        for domain in rules.iter().flat_map(|rules| rules.domains()) {
            domain.visit(&mut |nodes| {
                let Some(rule) = nodes.last().and_then(|node| node.rule.as_deref()) else {
                    return;
                };
                let lease_bound = rule.lease.as_ref().and(rule.limit()).map(Limit::held_max);
                let limits =
                    if has_one_counter(nodes, rule) { limits(rule, now) } else { Vec::new() };
                if limits.is_empty() && lease_bound.is_none() {
                    return;
                }
                count += 1;
                if count > self.rules_max {
                    return;
                }
                let of_path = metric_name::labels(&rule.path);
                let mut add = |name, help, limit: Option<&str>, value| {
                    let mut labels = of_path.clone();
                    labels.extend(limit.map(|limit| ("limit", limit.to_owned())));
                    labels.push(("rule", rule.path.to_string()));
                    series.push(Series::gauge(name, help, labels, value));
                };
                if let Some(bound) = lease_bound {
                    add("tollgate_rule_lease_bound", BOUND_HELP, None, bound);
                }
                for (limit, capacity, used) in limits {
                    let limit = Some(limit);
                    add("tollgate_rule_limit", LIMIT_HELP, limit, capacity);
                    add("tollgate_rule_used", USED_HELP, limit, used);
                }
            });
        }
        let left_out = i64::try_from(count.saturating_sub(self.rules_max));
        self.left_out.set(left_out.unwrap_or(i64::MAX));
    }
}

/// Name, capacity and usage of each limit of a rule.
fn limits(rule: &Rule, now: Time) -> Vec<(&str, u64, u64)> {
    let counters = rule.counters().map(|(further, limit, _)| {
        let (name, used) = match further {
            Some(further) => (&further.name, further.stats.used(now)),
            None => (&rule.name, rule.stats.used(now)),
        };
        (&**name, limit.capacity, used)
    });
    counters.collect()
}

/// Whether no values of requests are part of the keys of a rule, which is that of the last node.
fn has_one_counter(nodes: &[&Node], rule: &Rule) -> bool {
    // The last entry names a holder, which is no part of the key.
    let counted = nodes.len() - usize::from(rule.names_holders());
    let is_fixed = |node: &&Node| {
        let is_shared = node.share_threshold || !node.value.contains('*');
        !node.value.is_empty() && is_shared && !node.key.contains('*')
    };
    nodes[..counted].iter().all(is_fixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tree::tests::rules_of;

    /// The value of a gauge of each rule, by the label `rule`, of at most `rules_max` rules; and the
    /// page.
    fn by_rule(rules: &str, gauge: &str, rules_max: usize) -> (Vec<(String, u64)>, String) {
        let live = Arc::new(LiveRules::default());
        live.replace(rules_of(rules));
        let metrics = Metrics::new();
        let gauges = RuleGauges::new(live, Clock::system(), rules_max, &metrics);
        metrics.add_source(Arc::new(gauges));
        // The number of those left out is that of the page before.
        let [_, page] = [(); 2].map(|()| metrics.page());
        let lines = page.lines().filter_map(|line| line.strip_prefix(gauge)?.strip_prefix('{'));
        let values = lines.filter_map(|line| line.split_once("rule=\"")?.1.split_once("\"} "));
        let mut values: Vec<_> = values
            .map(|(rule, value)| (rule.to_owned(), value.parse().expect("a number")))
            .collect();
        values.sort();
        (values, page)
    }

    fn expected<const N: usize>(values: [(&str, u64); N]) -> Vec<(String, u64)> {
        values.map(|(rule, value)| (rule.to_owned(), value)).into()
    }

    #[test]
    fn rules_with_one_counter_have_gauges_of_limit_and_usage() {
        let rules = "
domain: d
descriptors:
  - {key: fixed, value: a, rate_limit: {unit: year, requests_per_unit: 2}}
  - key: bucket
    value: a
    rate_limit: {unit: year, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: token_bucket, burst: 30}}
  - {key: shared, value: a*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 4}}
  - key: outer
    value: a
    descriptors:
      - key: middle
        value: b
        descriptors:
          - {key: inner, value: c, rate_limit: {unit: year, requests_per_unit: 5}}
          - {key: inner, value: d, rate_limit: {unit: year, requests_per_unit: 6}}
          - {key: user, rate_limit: {unit: year, requests_per_unit: 7}}
  - key: work
    value: a
    descriptors:
      - key: holder
        rate_limit: {unit: second, requests_per_unit: 8}
        metadata: {tollgate: {algorithm: concurrency, lease_by: holder, lease: 1h}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: star, value: a*, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: free, value: a, rate_limit: {unlimited: true}}
";
        let limits = [
            ("d.bucket_a", 30),
            ("d.fixed_a", 2),
            ("d.outer_a.middle_b.inner_c", 5),
            ("d.outer_a.middle_b.inner_d", 6),
            ("d.shared_a*", 4),
            ("d.work_a.holder", 8),
        ];
        let (found, page) = by_rule(rules, "tollgate_rule_limit", 6);
        assert_eq!(found, expected(limits));
        let (found, _) = by_rule(rules, "tollgate_rule_used", 6);
        assert_eq!(found, expected(limits.map(|(rule, _)| (rule, 0))));
        let labels = r#"domain="d",key1="outer_a",key2="middle_b",limit="",rule="d.outer_a.middle_b.inner_c""#;
        assert!(page.contains(&format!("\ntollgate_rule_limit{{{labels}}} 5\n")), "{page}");
        assert!(page.contains("\ntollgate_rule_gauges_left_out 0\n"), "{page}");
        let (found, page) = by_rule(rules, "tollgate_rule_limit", 4);
        assert_eq!(found.len(), 4);
        assert!(page.contains("\ntollgate_rule_gauges_left_out 2\n"), "{page}");
    }

    #[test]
    fn leased_rules_have_a_gauge_of_what_replicas_hold() {
        let rules = "
domain: d
metadata: {tollgate: {defaults: {consistency: leased}}}
descriptors:
  - {key: one, value: a, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: many, rate_limit: {unit: hour, requests_per_unit: 1009}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 7}, metadata: {tollgate: {algorithm: token_bucket, burst: 500}}}
  - {key: exact, value: a, rate_limit: {unit: hour, requests_per_unit: 1000}, metadata: {tollgate: {consistency: exact}}}
  - {key: log, value: a, rate_limit: {unit: hour, requests_per_unit: 1000}, metadata: {tollgate: {algorithm: sliding_log}}}
";
        let (found, page) = by_rule(rules, "tollgate_rule_lease_bound", 9);
        assert_eq!(found, expected([("d.bucket", 50), ("d.many", 100), ("d.one_a", 100)]));
        let (found, _) = by_rule(rules, "tollgate_rule_limit", 9);
        assert_eq!(found, expected([("d.exact_a", 1000), ("d.log_a", 1000), ("d.one_a", 1000)]));
        assert!(!page.contains("tollgate_rule_lease_hits_total"), "{page}");
    }
}
