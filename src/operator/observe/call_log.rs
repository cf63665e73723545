//! Logs calls at LOG_LEVEL=debug, a line each: what Envoy sent, the rules that were found, and the
//! answer. Most questions on limits that do not apply are about what Envoy sent.
//!
//! Values are shown as ADMIN_REDACT says.

use parking_lot::Mutex;
use tracing::Level;

use crate::base::sampling::PerSecond;
use crate::base::text::{Text, prefix};
use crate::base::time::Time;
use crate::operator::observe::feed::OverLimitFeed;
use crate::report::outcome::Outcome;
use crate::rules::lookup::{End, lookup};
use crate::rules::tree::Level as Nodes;
use crate::rules::{Descriptor, Query, RuleSet};
use crate::telemetry::metric::{Counter, Metrics};

/// Lines about calls in a second. A line has at most 3 KiB.
// bound call_lines_per_second_max: the line is dropped; tollgate_call_log_dropped_total
const LINES_PER_SECOND_MAX: u32 = 100;
/// Bytes of a domain, of all descriptors, and of what was found for them.
const TEXT_BYTES_MAX: usize = 1_024;
/// Names of the rules that are compared with one that they do not have.
const COMPARED_NAMES_MAX: usize = 1_000;
/// Bytes of a name that count for it.
const COMPARED_BYTES_MAX: usize = 64;

/// The log of the calls of all workers.
#[derive(Debug)]
pub(crate) struct CallLog {
    second: Mutex<PerSecond>,
    dropped: Counter,
}

/// The outcome of each descriptor, and whether the response is OVER_LIMIT; or an error.
pub(crate) type Answer = Result<(Vec<Outcome>, bool), String>;

impl CallLog {
    /// Registers the metric. `None` if the log has a higher level.
    pub(crate) fn new(metrics: &Metrics) -> Option<Self> {
        let dropped = metrics.counter(
            "tollgate_call_log_dropped_total",
            "Log lines about calls, which LOG_LEVEL=debug has, dropped by the rate limit (call_lines_per_second_max).",
        );
        tracing::enabled!(Level::DEBUG).then(|| Self { second: Mutex::default(), dropped })
    }

    /// Logs a call, which these rules decided.
    #[cold]
    pub(crate) fn log(
        &self,
        query: &Query<'_>,
        rules: &RuleSet,
        now: Time,
        feed: &OverLimitFeed,
        answer: impl FnOnce() -> Answer,
    ) {
        let Some(dropped) = self.second.lock().admit(now, LINES_PER_SECOND_MAX) else {
            return self.dropped.inc();
        };
        let (found, code, error) = match answer() {
            Ok((outcomes, over_limit)) => {
                let code = if over_limit { "OVER_LIMIT" } else { "OK" };
                let of_each = query.descriptors.iter().zip(&outcomes);
                let found = of_each.map(|(descriptor, outcome)| {
                    found(outcome).unwrap_or_else(|| why_no_rule(rules, query.domain, descriptor))
                });
                let found = found.collect::<Vec<_>>().join("; ");
                (Some(bounded(&found)), Some(code), None)
            }
            Err(error) => (None, None, Some(error)),
        };
        feed.redacted_query(query, rules, |query| {
            let domain = bounded(&Text(query.domain).shown());
            let descriptors: Vec<_> = query.descriptors.iter().map(Descriptor::shown).collect();
            let descriptors = bounded(&descriptors.join("; "));
            tracing::debug!(domain, descriptors, found, code, error, dropped, "call");
        });
    }
}

fn bounded(text: &str) -> String {
    match prefix(text, TEXT_BYTES_MAX) {
        shown if shown.len() < text.len() => format!("{shown}..."),
        _ => text.to_owned(),
    }
}

/// What was found for a descriptor, if it was a rule.
fn found(outcome: &Outcome) -> Option<String> {
    let rule = outcome.rule.as_ref()?;
    let (Some(source), Some(limit)) = (outcome.source, outcome.limit) else {
        return Some(format!("rule {rule}: unlimited, or replaced by another rule of the call"));
    };
    let answer = if outcome.over_limit { "OVER_LIMIT" } else { "OK" };
    let source = source.name();
    let left = outcome.remaining;
    Some(format!("rule {rule}: {answer} by {source}, {left} left of {limit}"))
}

/// Why no rule is about a descriptor, with the name of the rules that is nearest to its own.
fn why_no_rule(rules: &RuleSet, domain: &[u8], descriptor: &Descriptor<'_>) -> String {
    let Some(domain) = rules.domain(domain) else {
        let names = rules.domains().into_iter().map(|known| &*known.name);
        return format!("no rule: unknown domain{}", nearest(domain, names));
    };
    let (hops, end) = lookup(domain, &descriptor.entries);
    let last = hops.last().map(|hop| hop.node);
    let label = last.map_or("", |last| &last.label);
    match end {
        End::Rule(rule) => format!("no limit: rule {}", rule.path),
        End::NoEntries => "no rule: no entries".to_owned(),
        End::NoLimit => format!("no rule: {label} has no rate_limit"),
        End::TooDeep => format!("no rule: nothing is below {label}"),
        End::NoChild => {
            let entry = descriptor.entries[hops.len()];
            let level = last.map_or(Some(&domain.root), |last| last.below.as_deref());
            let nodes = level.map_or(&[][..], Nodes::nodes);
            let of_key = nodes.iter().filter(|node| node.key.as_bytes() == entry.key);
            let key = Text(entry.key);
            if of_key.clone().next().is_some() {
                let nearest = nearest(entry.value, of_key.map(|node| &*node.value));
                format!("no rule for this value of {key}{nearest}")
            } else {
                let nearest = nearest(entry.key, nodes.iter().map(|node| &*node.key));
                format!("no rule for key {key}{nearest}")
            }
        }
    }
}

/// The nearest of these names, as the end of a sentence.
fn nearest<'r>(name: &[u8], known: impl Iterator<Item = &'r str>) -> String {
    let compared = |name: &'r str| prefix(name, COMPARED_BYTES_MAX);
    let name = Text(name).shown();
    let name = prefix(&name, COMPARED_BYTES_MAX);
    let known = known.take(COMPARED_NAMES_MAX);
    let nearest = known.min_by_key(|known| strsim::osa_distance(compared(known), name));
    nearest.map_or_else(String::new, |nearest| format!(", nearest is {nearest}"))
}
