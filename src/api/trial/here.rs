//! Our side of a call during a trial.

use std::sync::Arc;

use http::Response;
use hyper::body::Bytes;

use crate::api::convert;
use crate::api::decode;
use crate::api::unary::{self, UnaryBody};
use crate::limit::Limit;
use crate::limiter::decision::Decision as LimiterDecision;
use crate::limiter::response::{Response as OwnResponse, Status as OwnStatus};
use crate::limiter::{Limiter, LimiterError};
use crate::time::{Span, Time};
use crate::trial::compare::{Here, Status};
use crate::trial::request::Decision;

/// The rule of descriptors without a decision.
const NO_VERDICT: &str = "(no verdict)";

/// Whose response the caller gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answering {
    Here,
    There,
}

/// A request to decide.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) domain: Arc<str>,
    pub(crate) message: Bytes,
    pub(crate) deadline: Option<Time>,
    pub(crate) answering: Answering,
}

/// A decided request.
pub(crate) struct Own {
    pub(crate) answer: Result<OwnResponse, LimiterError>,
    /// `None` if there is nothing to compare.
    pub(crate) decision: Option<Decision>,
}

/// Decides a request. A queued request waits for its slot if the caller gets our response.
pub(crate) async fn decide(limiter: Limiter, known: Known) -> Own {
    let (mut query, _) = decode::query(&known.message).expect("it was decoded before");
    query.deadline = known.deadline;
    let time = limiter.clock().now();
    let decided = limiter.decide_at_once(&query, None, rules_of).await;
    let (response, wait, rules) = match decided {
        Ok(decided) => decided,
        Err(error) => {
            limiter.count(&error);
            let has_failed = matches!(error, LimiterError::Store(_));
            let decision = has_failed.then(|| Decision {
                time,
                response: Err(error.to_string().into()),
                descriptors: query
                    .descriptors
                    .iter()
                    .map(|_| without_verdict())
                    .collect(),
            });
            return Own {
                answer: Err(error),
                decision,
            };
        }
    };
    let descriptors = rules.into_iter().zip(&response.statuses);
    let descriptors = descriptors.map(|((rule, store_failed), status)| Here {
        rule,
        status: Some(status_here(status)),
        store_failed,
    });
    let decision = Decision {
        time,
        response: Ok(response.over_limit),
        descriptors: descriptors.collect(),
    };
    if let Some((permit, wait)) = wait.filter(|_| known.answering == Answering::Here) {
        permit.wait(wait).await;
    }
    Own {
        answer: Ok(response),
        decision: Some(decision),
    }
}

pub(crate) fn respond(answer: Result<OwnResponse, LimiterError>) -> Response<UnaryBody> {
    let answer = answer.map(convert::response);
    unary::respond(answer.map_err(|error| convert::status(&error)))
}

/// The rule of each descriptor, and whether the store gave no verdict on it.
fn rules_of(decision: &LimiterDecision<'_, '_, '_>) -> Vec<(Option<Arc<str>>, bool)> {
    let steps = decision.plan.steps.iter();
    let rules = steps.map(|step| (step.path(), decision.store_error(step).is_some()));
    rules.collect()
}

fn without_verdict() -> Here {
    Here {
        rule: Some(NO_VERDICT.into()),
        status: None,
        store_failed: true,
    }
}

fn status_here(status: &OwnStatus) -> Status<Limit> {
    let limit = status.limit.as_ref().map(|(limit, _)| *limit);
    Status {
        over_limit: status.over_limit,
        remaining: status.remaining,
        until_reset: limit.map(|_| Span::from_secs(status.reset_secs)),
        limit,
    }
}
