//! The record of one decision. The response, metrics, span and log line are made from it.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::check::{Check, Hits, StoreError, Verdict, Verdicts};
use crate::limiter::queue::is_booked;
use crate::limiter::response::Response;
use crate::rules::query::Query;
use crate::rules::stats::StatsTable;
use crate::rules::stats::counts::{Disposition, HitCounts};
use crate::rules::{Plan, Step};
use crate::text::Text;
use crate::time::Time;

/// For each check, why the store gave no verdict. Empty if it gave all of them.
pub(crate) type StoreErrors = SmallVec<[Option<StoreError>; 2]>;

/// What was decided about a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decision<'d, 'q, 'r> {
    pub(crate) query: &'d Query<'q>,
    pub(crate) plan: &'d Plan<'r>,
    /// One for each check of the plan, by the store or by the fallback.
    pub(crate) verdicts: &'d Verdicts,
    pub(crate) store_errors: &'d StoreErrors,
    /// See [`crate::check::CheckRequest::is_blocked`].
    pub(crate) blocked: bool,
}

impl<'q, 'r> Decision<'_, 'q, 'r> {
    /// The check and the verdict of a step that is counted.
    pub(crate) fn counted(&self, step: &Step<'r>) -> Option<(&Check, &Verdict)> {
        let index = step.check()?;
        Some((&self.plan.request.checks[index], &self.verdicts[index]))
    }

    /// Whether a step was over limit. A refund is never over limit, as in
    /// envoyproxy/ratelimit.
    pub(crate) fn is_over(&self, step: &Step<'r>) -> bool {
        self.counted(step)
            .is_some_and(|(check, verdict)| verdict.over && !matches!(check.hits, Hits::Refund(_)))
    }

    /// Why the store gave no verdict on a step.
    pub(crate) fn store_error(&self, step: &Step<'r>) -> Option<StoreError> {
        *self.store_errors.get(step.check()?)?
    }

    pub(crate) fn domain(&self) -> Cow<'q, str> {
        Text(self.query.domain).shown()
    }

    /// Adds every counted step to the metrics of its rule. `count` gets the index of each, its check
    /// and its hits.
    pub(crate) fn record(
        &self,
        response: &Response,
        stats: &StatsTable,
        near_ratio: f32,
        now: Time,
        mut count: impl FnMut(usize, &Check, HitCounts),
    ) {
        for (index, step) in self.plan.steps.iter().enumerate() {
            let Some((check, verdict)) = self.counted(step) else {
                continue;
            };
            let of_client;
            let counters = match step {
                Step::Counted {
                    rule,
                    metric_name: None,
                    ..
                } => &rule.stats,
                Step::Counted {
                    metric_name: Some(name),
                    ..
                }
                | Step::Override {
                    metric_name: name, ..
                } => {
                    of_client = stats.of_client(&self.domain(), name);
                    &of_client
                }
                Step::NoRule | Step::Unlimited(_) | Step::Replaced(_) => continue,
            };
            // The fallback does not know what is used.
            if let Step::Counted { rule, .. } = step
                && self.store_error(step).is_none()
            {
                rule.stats.set_usage(verdict, now);
            }
            let disposition = self.disposition(step, verdict, response);
            let counts = counters.record(check, verdict, disposition, near_ratio);
            count(index, check, counts);
        }
    }

    fn disposition(&self, step: &Step<'_>, verdict: &Verdict, response: &Response) -> Disposition {
        match step.rule() {
            _ if self.blocked && !verdict.over => Disposition::NotConsumed,
            _ if step.in_shadow() => Disposition::Shadowed,
            Some(rule) if response.degraded && rule.degrades() => Disposition::Degraded,
            _ if is_booked(verdict) && !response.over_limit => Disposition::Queued,
            _ => Disposition::Nothing,
        }
    }
}
