//! The record of one decision. The response, outcomes, metrics, span and log line are made from it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::limiter::response::Status;
use crate::limits::check::{Blocked, Check, Hits, Source, StoreError, Verdict, Verdicts};
use crate::report::outcome::Outcome;
use crate::rules::query::Query;
use crate::rules::{Link, Plan, RuleSet, Step};

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
    pub(crate) blocked: &'d Blocked,
    /// When the request came.
    pub(crate) now: Time,
}

/// A limit that decides a step, with its check and the verdict on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted<'d, 'r> {
    pub(crate) link: &'d Link<'r>,
    pub(crate) check: &'d Check,
    pub(crate) verdict: &'d Verdict,
}

impl Counted<'_, '_> {
    /// Whether it is over limit. A refund is never over limit, as in envoyproxy/ratelimit.
    pub(crate) fn is_over(&self) -> bool {
        self.verdict.over && !matches!(self.check.hits, Hits::Refund(_))
    }

    /// Whether the request is over limit because of it.
    pub(crate) fn rejects(&self) -> bool {
        self.is_over() && !self.link.admits()
    }

    /// Stores what is used as of the verdict. The fallback does not know it.
    pub(crate) fn store_usage(&self, decision: &Decision<'_, '_, '_>) {
        let verdict = self.verdict;
        let now = decision.now;
        match (self.link.further, self.link.own_rule()) {
            _ if verdict.source == Source::Fallback => {}
            (Some(further), _) => further.stats.set_usage(verdict, now),
            (None, Some(rule)) => rule.stats.set_usage(verdict, now),
            (None, None) => {}
        }
    }

    /// Seconds until the same hits would be admitted when over limit; else until nothing is used.
    /// At least 1.
    pub(crate) fn reset_secs(&self) -> u64 {
        let Verdict { over, retry_after, reset_after, .. } = *self.verdict;
        let reset = retry_after.filter(|_| over).unwrap_or(reset_after);
        reset.ceil_secs().max(1)
    }

    /// The greatest decides: of those over limit the one with the longest wait, else the one with
    /// the least remaining, of which those in shadow mode reject nothing.
    fn rank(&self) -> impl Ord + use<> {
        let over = self.is_over() && !self.link.in_shadow();
        let rejects = self.rejects();
        let wait = self.verdict.retry_after.map_or(u64::MAX, Span::as_micros);
        let is_enforced = !self.link.in_shadow();
        let left = (!over).then_some(self.verdict.remaining);
        (rejects, over.then_some(wait), is_enforced, Reverse(left))
    }
}

impl<'d, 'q, 'r> Decision<'d, 'q, 'r> {
    /// The limits of a step.
    pub(crate) fn links(&self, step: &'d Step<'r>) -> impl Iterator<Item = Counted<'d, 'r>> {
        step.links().iter().map(|link| self.of(link))
    }

    /// The limit that decides a step, if it is counted: of equal ones the outermost.
    pub(crate) fn counted(&self, step: &'d Step<'r>) -> Option<Counted<'d, 'r>> {
        self.decisive(step.links())
    }

    /// The one of these that decides.
    pub(crate) fn decisive(&self, links: &'d [Link<'r>]) -> Option<Counted<'d, 'r>> {
        match links {
            [] => None,
            [link] => Some(self.of(link)),
            _ => self.decisive_of_several(links),
        }
    }

    #[cold]
    fn decisive_of_several(&self, links: &'d [Link<'r>]) -> Option<Counted<'d, 'r>> {
        let links = links.iter().rev().map(|link| self.of(link));
        links.max_by_key(Counted::rank)
    }

    /// A limit of the plan.
    pub(crate) fn of(&self, link: &'d Link<'r>) -> Counted<'d, 'r> {
        Counted {
            link,
            check: &self.plan.request.checks[link.check],
            verdict: &self.verdicts[link.check],
        }
    }

    /// Why the store gave no verdict on a check.
    pub(crate) fn store_error(&self, link: &Link<'r>) -> Option<StoreError> {
        *self.store_errors.get(link.check)?
    }

    pub(crate) fn domain(&self) -> Cow<'q, str> {
        Text(self.query.domain).shown()
    }

    /// The status of a step, as the response has it.
    pub(crate) fn status(&self, step: &'d Step<'r>) -> Status {
        if let Step::Unlimited(_) = step {
            return Status { remaining: u32::MAX.into(), ..Status::default() };
        }
        let Some(counted) = self.counted(step) else {
            return Status::default();
        };
        Status {
            over_limit: counted.rejects(),
            limit: Some((counted.check.limit, counted.link.name().into())),
            remaining: counted.verdict.remaining,
            reset_secs: counted.reset_secs(),
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
                rule: counted.map_or_else(|| step.path(), |counted| Some(counted.link.path())),
                over_limit: status.over_limit,
                limit,
                remaining: status.remaining,
                reset: limit.map(|_| Span::from_secs(status.reset_secs)),
                source: counted.map(|counted| counted.verdict.source),
            }
        };
        steps.map(outcome).collect()
    }
}
