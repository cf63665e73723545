//! What a plan and its verdicts come to. Pure.

use smallvec::SmallVec;

use crate::check::Verdicts;
use crate::limiter::answer::{Answer, Status, StatusLimit};
use crate::limiter::headers::headers;
use crate::limiter::metadata::dynamic_metadata;
use crate::limiter::{Modes, Policy};
use crate::rules::query::Query;
use crate::rules::{Plan, Step};

/// Which statuses refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Being over refuses.
    Hard,
    /// Refuses only if every quota is over.
    Quota,
    /// Unlimited: has no say.
    Silent,
}

/// Puts the verdicts together. A request is refused if a hard status is over, or if there are quotas and all of them are over.
pub fn combine(query: &Query<'_>, plan: &Plan<'_>, verdicts: &Verdicts, policy: &Policy) -> Answer {
    let mut statuses: SmallVec<[Status; 2]> = SmallVec::new();
    let mut kinds: SmallVec<[Kind; 4]> = SmallVec::new();
    for step in &plan.steps {
        statuses.push(status(step, plan, verdicts));
        kinds.push(kind(step, policy.modes));
    }
    let over = statuses.iter().zip(&kinds).any(|(status, &kind)| kind == Kind::Hard && status.over_limit);
    let mut quotas = statuses.iter().zip(&kinds).filter(|&(_, &kind)| kind == Kind::Quota).peekable();
    let quotas_over = quotas.peek().is_some() && quotas.all(|(status, _)| status.over_limit);
    let over = over || quotas_over;
    let over_limit = over && !policy.modes.shadow;

    let hard_over = |index: usize| kinds[index] == Kind::Hard && statuses[index].over_limit;
    let response_headers = headers(&statuses, hard_over, over_limit, policy);
    let dynamic_metadata = policy.dynamic_metadata.then(|| dynamic_metadata(query, plan, &statuses));
    Answer { over_limit, shadowed: over && policy.modes.shadow, statuses, response_headers, dynamic_metadata }
}

fn status(step: &Step<'_>, plan: &Plan<'_>, verdicts: &Verdicts) -> Status {
    let (shadow_mode, name): (bool, &str) = match step {
        Step::Unlimited(_) => return Status { remaining: u32::MAX, ..Status::default() },
        Step::NoRule | Step::Replaced(_) => return Status::default(),
        Step::Override { .. } => (false, ""),
        Step::Counted { rule, .. } => (rule.shadow_mode, &rule.name),
    };
    let Some(check) = step.check() else { return Status::default() };
    let (limit, verdict) = (&plan.ask.checks[check].limit, &verdicts[check]);
    let reset = if verdict.over { verdict.retry_after.unwrap_or(verdict.reset_after) } else { verdict.reset_after };
    Status {
        over_limit: verdict.over && !shadow_mode,
        limit: Some(StatusLimit::new(limit, name)),
        remaining: verdict.remaining,
        reset_secs: reset.ceil_secs().max(1),
    }
}

fn kind(step: &Step<'_>, modes: Modes) -> Kind {
    match step {
        Step::Unlimited(_) => Kind::Silent,
        _ if modes.quota => Kind::Quota,
        Step::Counted { rule, .. } if rule.quota_mode => Kind::Quota,
        Step::NoRule | Step::Replaced(_) | Step::Override { .. } | Step::Counted { .. } => Kind::Hard,
    }
}
