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
const RULE_GAUGES_MAX: usize = 10_000;
const LIMIT_HELP: &str = "Most hits in use of each limit of a rule whose keys clients do not choose: its requests per period, or its burst.";
const BOUND_HELP: &str =
    "Most hits of each counter of a leased rule that all replicas together hold unused.";
const USED_HELP: &str = "Hits in use of each limit of a rule whose keys clients do not choose, as of its last request here; 0 once its counter is unused.";

/// The gauges of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleGauges {
    rules: Arc<LiveRules>,
    clock: Clock,
    left_out: Gauge,
}

impl RuleGauges {
    /// Registers the number of rules that are left out.
    pub(crate) fn new(rules: Arc<LiveRules>, clock: Clock, metrics: &Metrics) -> Self {
        let left_out = metrics.gauge(
            "tollgate_rule_gauges_left_out",
            "Rules without their gauges, such as tollgate_rule_limit, on this page because rule_gauges_max was reached.",
        );
        Self { rules, clock, left_out }
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
                if count > RULE_GAUGES_MAX {
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
        let left_out = i64::try_from(count.saturating_sub(RULE_GAUGES_MAX));
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
