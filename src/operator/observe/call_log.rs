//! Logs calls at LOG_LEVEL=debug, a line each: what Envoy sent, the rules that were found, and the
//! answer. Most questions on limits that do not apply are about what Envoy sent.
//!
//! Values are shown as ADMIN_REDACT says.

use parking_lot::Mutex;
use tracing::Level;

use crate::base::sampling::PerSecond;
use crate::base::text::{Text, shortened};
use crate::base::time::Time;
use crate::operator::observe::feed::OverLimitFeed;
use crate::report::outcome::Outcome;
use crate::rules::unmatched::why_no_rule;
use crate::rules::{Descriptor, Query, RuleSet};
use crate::telemetry::metric::{Counter, Metrics};

/// Lines about calls in a second. A line has at most 3 KiB.
// bound call_lines_per_second_max: the line is dropped; tollgate_call_log_dropped_total
const LINES_PER_SECOND_MAX: u32 = 100;
/// Bytes of a domain, of all descriptors, and of what was found for them.
const TEXT_BYTES_MAX: usize = 1_024;

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
                    found(outcome).or_else(|| why_no_rule(rules, query.domain, descriptor))
                });
                let found: Vec<_> = found.map(Option::unwrap_or_default).collect();
                (Some(found.join("; ")), Some(code), None)
            }
            Err(error) => (None, None, Some(error)),
        };
        feed.redacted_query(query, rules, |query| {
            let descriptors: Vec<_> = query.descriptors.iter().map(Descriptor::shown).collect();
            let descriptors = descriptors.join("; ");
            let bounded = |text| shortened(text, TEXT_BYTES_MAX);
            let domain = Text(query.domain).shown();
            let (domain, descriptors) = (bounded(&domain), bounded(&descriptors));
            let found = found.as_deref().map(bounded);
            tracing::debug!(
                domain = &*domain,
                descriptors = &*descriptors,
                found = found.as_deref(),
                code,
                error,
                dropped,
                "call"
            );
        });
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
