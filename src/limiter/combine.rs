//! Combines a plan and its verdicts into the response. Pure.

use smallvec::SmallVec;

use crate::base::time::Span;
use crate::limiter::decision::Decision;
use crate::limiter::headers;
use crate::limiter::metadata::{add_degraded, dynamic_metadata};
use crate::limiter::response::{Response, Status};
use crate::limiter::settings::Settings;
use crate::rules::plan::Modes;
use crate::rules::{Link, OnLimit, Rule, Step};

/// The contribution of a status to the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The request is over limit if this status is.
    Hard,
    /// The request is over limit if all quotas are.
    Quota,
    /// Unlimited: no effect.
    Neutral,
}

/// The response to a request. It is over limit if a hard status is, or if there are quotas and all
/// of them are. `retry_later` lengthens `Retry-After`.
pub(crate) fn combine(
    decision: &Decision<'_, '_, '_>,
    settings: &Settings,
    retry_later: Span,
) -> Response {
    let plan = decision.plan;
    let modes = settings.modes();
    let mut statuses: SmallVec<[Status; 2]> = SmallVec::with_capacity(plan.steps.len());
    statuses.extend(plan.steps.iter().map(|step| decision.status(step)));
    let kinds: SmallVec<[Kind; 16]> = plan.steps.iter().map(|step| kind(step, modes)).collect();
    let hard_over = |index: usize| kinds[index] == Kind::Hard && statuses[index].over_limit;
    let is_quota = |index: &usize| kinds[*index] == Kind::Quota;
    let mut quotas = (0..kinds.len()).filter(is_quota).peekable();
    let quotas_over = quotas.peek().is_some() && quotas.all(|index| statuses[index].over_limit);
    let over = quotas_over || (0..kinds.len()).any(hard_over);
    let over_limit = over && !modes.shadow;
    let rejects = |index: usize| hard_over(index) || (quotas_over && is_quota(&index));

    // A request that is over limit is not served at all, and SHADOW_MODE changes nothing.
    let degraded = if over || modes.shadow { SmallVec::new() } else { degraded(decision) };
    let rejected_by = (0..kinds.len()).find(|&index| over_limit && rejects(index));
    let mut metadata = settings.response_dynamic_metadata.then(|| {
        let decisive = rejected_by.or_else(|| headers::nearest(&statuses, hard_over));
        dynamic_metadata(decision, &statuses, decisive, over_limit)
    });
    if !degraded.is_empty() {
        add_degraded(metadata.get_or_insert_default(), &degraded);
    }
    let retry_after = over_limit.then_some(retry_later);
    Response {
        over_limit,
        rejected_by,
        shadowed: over && modes.shadow,
        degraded: !degraded.is_empty(),
        response_headers: headers::of_response(
            decision,
            &statuses,
            hard_over,
            retry_after,
            settings,
        ),
        request_headers: headers::of_request(&statuses, hard_over, &degraded, settings),
        body: over_limit.then(|| body(decision, rejects)).flatten(),
        dynamic_metadata: metadata,
        statuses,
    }
}

/// The rules that are over limit and degrade, in order.
fn degraded<'r>(decision: &Decision<'_, '_, 'r>) -> SmallVec<[&'r Rule; 2]> {
    let mut degraded = SmallVec::new();
    for step in &decision.plan.steps {
        let counted = decision.links(step);
        let over = counted.filter(|counted| counted.is_over() && !counted.link.in_shadow());
        let rules = over.filter_map(|counted| counted.link.rule);
        degraded.extend(rules.filter(|rule| rule.degrades()));
    }
    degraded
}

/// The body of the first rejecting rule that has one.
fn body(decision: &Decision<'_, '_, '_>, rejects: impl Fn(usize) -> bool) -> Option<Box<str>> {
    let mut steps = decision.plan.steps.iter().enumerate();
    steps.find_map(|(index, step)| {
        let rule = decision.counted(step).filter(|_| rejects(index))?.link.rule?;
        match &rule.on_limit {
            OnLimit::Reject { body } => body.as_deref().map(Into::into),
            _ => None,
        }
    })
}

fn kind(step: &Step<'_>, modes: Modes) -> Kind {
    match step {
        Step::Unlimited(_) => Kind::Neutral,
        _ if modes.quota => Kind::Quota,
        _ => {
            let mut rules = step.links().iter().filter_map(Link::own_rule);
            if rules.any(|rule| rule.quota_mode) { Kind::Quota } else { Kind::Hard }
        }
    }
}
