//! Gauges of rules that have one counter: what it admits, and what is in use.
//!
//! They are read from the rules in force when metrics are collected. A request only stores the
//! usage that its verdict states anyway. Rules whose keys clients choose have a counter for each
//! key, so they have no gauges.

use std::sync::Arc;

use crate::base::time::Clock;
use crate::limit::Limit;
use crate::rules::live::LiveRules;
use crate::rules::metric_name;
use crate::rules::rule::Rule;
use crate::rules::tree::Node;
use crate::telemetry::metric::{Gauge, Metrics, Series, Source};

/// Rules with `tollgate_rule_limit` and `tollgate_rule_used`.
// bound rule_gauges_max: the rule has no gauges; tollgate_rule_gauges_left_out
pub(crate) const RULE_GAUGES_MAX: usize = 10_000;
const LIMIT_HELP: &str = "Most hits in use of a rule whose keys clients do not choose: its requests per period, or its burst.";
const USED_HELP: &str = "Hits in use of a rule whose keys clients do not choose, as of its last request here; 0 once its counter is unused.";

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
            "Rules without tollgate_rule_limit and tollgate_rule_used on this page because rule_gauges_max was reached.",
        );
        Self {
            rules,
            clock,
            rules_max,
            left_out,
        }
    }
}

impl Source for RuleGauges {
    fn collect(&self, series: &mut Vec<Series>) {
        let rules = self.rules.load();
        let now = self.clock.now();
        let mut count = 0;
        for domain in rules.iter().flat_map(|rules| rules.domains()) {
            domain.visit(&mut |nodes| {
                let Some((rule, limit)) = with_one_counter(nodes) else {
                    return;
                };
                count += 1;
                if count > self.rules_max {
                    return;
                }
                let mut labels = metric_name::labels(&rule.path);
                labels.push(("rule", rule.path.to_string()));
                let capacity = u64::from(limit.capacity);
                let limit =
                    Series::gauge("tollgate_rule_limit", LIMIT_HELP, labels.clone(), capacity);
                let used = rule.stats.used(now);
                let used = Series::gauge("tollgate_rule_used", USED_HELP, labels, used);
                series.extend([limit, used]);
            });
        }
        let left_out = i64::try_from(count.saturating_sub(self.rules_max));
        self.left_out.set(left_out.unwrap_or(i64::MAX));
    }
}

/// The rule of a descriptor and its limit, unless values of requests are part of its counter's key.
fn with_one_counter<'r>(nodes: &[&'r Node]) -> Option<(&'r Rule, &'r Limit)> {
    let rule = nodes.last()?.rule.as_deref()?;
    let limit = rule.limit()?;
    // The last entry names a holder, which is no part of the key.
    let counted = nodes.len() - usize::from(rule.names_holders());
    let is_fixed = |node: &&Node| {
        let is_shared = node.share_threshold || !node.value.contains('*');
        !node.value.is_empty() && is_shared && !node.key.contains('*')
    };
    nodes[..counted]
        .iter()
        .all(is_fixed)
        .then_some((rule, limit))
}
