//! What a plan and its verdicts come to. Pure.

use smallvec::SmallVec;

use crate::check::{Hits, Verdicts};
use crate::limiter::headers::{HeaderInput, headers, reference, request_headers};
use crate::limiter::metadata::{dynamic_metadata, tell_degraded};
use crate::limiter::response::{Response, Status, StatusLimit};
use crate::limiter::{Modes, Policy};
use crate::rules::query::Query;
use crate::rules::{OnLimit, Plan, Rule, Step};
use crate::time::Span;

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

/// Puts the verdicts together. A request is refused if a hard status is over, or if there are
/// quotas and all of them are over. `retry_later` is by how much Retry-After is lengthened.
pub fn combine(
    query: &Query<'_>,
    plan: &Plan<'_>,
    verdicts: &Verdicts,
    policy: &Policy,
    retry_later: Span,
) -> Response {
    let mut statuses: SmallVec<[Status; 2]> = SmallVec::new();
    let mut kinds: SmallVec<[Kind; 4]> = SmallVec::new();
    for step in &plan.steps {
        statuses.push(status(step, plan, verdicts));
        kinds.push(kind(step, policy.modes));
    }
    let over = statuses
        .iter()
        .zip(&kinds)
        .any(|(status, &kind)| kind == Kind::Hard && status.over_limit);
    let mut quotas = statuses
        .iter()
        .zip(&kinds)
        .filter(|&(_, &kind)| kind == Kind::Quota)
        .peekable();
    let quotas_over = quotas.peek().is_some() && quotas.all(|(status, _)| status.over_limit);
    let over = over || quotas_over;
    let over_limit = over && !policy.modes.shadow;

    let hard_over = |index: usize| kinds[index] == Kind::Hard && statuses[index].over_limit;
    let refuses = |index: usize| hard_over(index) || (quotas_over && kinds[index] == Kind::Quota);
    // Whoever is refused is not served at all, and a shadow is to change nothing.
    let degraded = if over || policy.modes.shadow {
        SmallVec::new()
    } else {
        degraded(plan, verdicts)
    };
    let mut told = policy
        .dynamic_metadata
        .then(|| dynamic_metadata(query, plan, &statuses));
    if !degraded.is_empty() {
        tell_degraded(told.get_or_insert_default(), &degraded);
    }
    let mut for_upstream = reference(
        &statuses,
        hard_over,
        policy.reference_request_headers.as_ref(),
    );
    for_upstream.extend(request_headers(&degraded));
    Response {
        over_limit,
        refused_by: if over_limit {
            (0..statuses.len()).find(|&index| refuses(index))
        } else {
            None
        },
        shadowed: over && policy.modes.shadow,
        degraded: !degraded.is_empty(),
        response_headers: headers(
            HeaderInput {
                statuses: &statuses,
                over_limit,
                retry_later,
            },
            hard_over,
            policy,
        ),
        request_headers: for_upstream,
        body: if over_limit {
            body(plan, refuses)
        } else {
            None
        },
        dynamic_metadata: told,
        statuses,
    }
}

/// The rules that are over and let the request pass, in order.
fn degraded<'r>(plan: &Plan<'r>, verdicts: &Verdicts) -> SmallVec<[&'r Rule; 2]> {
    let degraded = plan.steps.iter().filter_map(|step| {
        let (rule, check) = (step.rule()?, step.check()?);
        (is_over(plan, verdicts, check) && rule.degrades() && !step.in_shadow()).then_some(rule)
    });
    degraded.collect()
}

/// Whether there was no room for the hits of a check. Giving back is never over, as in the
/// reference.
fn is_over(plan: &Plan<'_>, verdicts: &Verdicts, check: usize) -> bool {
    verdicts[check].over && !matches!(plan.request.checks[check].hits, Hits::Refund(_))
}

/// What the first rule says that refuses and has something to say.
fn body(plan: &Plan<'_>, refuses: impl Fn(usize) -> bool) -> Option<Box<str>> {
    plan.steps
        .iter()
        .enumerate()
        .find_map(|(index, step)| match &step.rule()?.on_limit {
            OnLimit::Reject { body } if refuses(index) => body.clone(),
            _ => None,
        })
}

fn status(step: &Step<'_>, plan: &Plan<'_>, verdicts: &Verdicts) -> Status {
    if let Step::Unlimited(_) = step {
        return Status {
            remaining: u32::MAX,
            ..Status::default()
        };
    }
    let Some(check) = step.check() else {
        return Status::default();
    };
    let name = step.rule().map_or("", |rule| &rule.name);
    let lets_pass = step.in_shadow() || step.rule().is_some_and(Rule::degrades);
    let (limit, verdict) = (&plan.request.checks[check].limit, &verdicts[check]);
    let reset = if verdict.over {
        verdict.retry_after.unwrap_or(verdict.reset_after)
    } else {
        verdict.reset_after
    };
    Status {
        over_limit: is_over(plan, verdicts, check) && !lets_pass,
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
        Step::NoRule | Step::Replaced(_) | Step::Override { .. } | Step::Counted { .. } => {
            Kind::Hard
        }
    }
}
