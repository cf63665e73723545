//! The record of one decision. The response, outcomes, metrics, span and log line are made from it.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::check::{Check, Hits, StoreError, Verdict, Verdicts};
use crate::limiter::response::Status;
use crate::report::outcome::Outcome;
use crate::rules::query::Query;
use crate::rules::{Plan, RuleSet, Step};

/// For each check, why the store gave no verdict. Empty if it gave all of them.
pub(crate) type StoreErrors = SmallVec<[Option<StoreError>; 2]>;

/// The decision on a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decision<'d, 'q, 'r> {
    pub(crate) query: &'d Query<'q>,
    /// The rules that decided.
    pub(crate) rules: &'r Arc<RuleSet>,
    pub(crate) plan: &'d Plan<'r>,
    /// A verdict for each check of the plan, by the store or by the fallback.
    pub(crate) verdicts: &'d Verdicts,
    pub(crate) store_errors: &'d StoreErrors,
    /// See [`crate::check::CheckRequest::is_blocked`].
    pub(crate) blocked: bool,
    /// When the request came.
    pub(crate) now: Time,
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

    /// The status of a step, as the response has it.
    pub(crate) fn status(&self, step: &Step<'r>) -> Status {
        if let Step::Unlimited(_) = step {
            return Status {
                remaining: u32::MAX,
                ..Status::default()
            };
        }
        let Some((check, verdict)) = self.counted(step) else {
            return Status::default();
        };
        let name = step.rule().map_or("", |rule| &rule.name);
        let reset = verdict
            .retry_after
            .filter(|_| verdict.over)
            .unwrap_or(verdict.reset_after);
        Status {
            over_limit: self.is_over(step) && !step.admits(),
            limit: Some((check.limit, name.into())),
            remaining: verdict.remaining,
            reset_secs: reset.ceil_secs().max(1),
        }
    }

    /// An outcome for each descriptor, in order.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let steps = self.plan.steps.iter();
        let outcome = |step| {
            let status = self.status(step);
            let limit = status.limit.map(|(limit, _)| limit);
            let counted = self.counted(step);
            Outcome {
                rule: step.path(),
                key: counted.map(|(check, _)| check.key.clone()),
                over_limit: status.over_limit,
                limit,
                remaining: status.remaining,
                reset: limit.map(|_| Span::from_secs(status.reset_secs)),
                source: counted.map(|(_, verdict)| verdict.source),
            }
        };
        steps.map(outcome).collect()
    }
}
