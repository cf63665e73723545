//! Our side of a call during a trial.

use std::sync::Arc;

use http::Response;
use hyper::body::Bytes;
use tonic::body::Body;

use crate::api::codec;
use crate::api::convert;
use crate::api::decode;
use crate::base::time::Time;
use crate::limiter::decision::Decision as LimiterDecision;
use crate::limiter::response::Response as OwnResponse;
use crate::limiter::{Limiter, LimiterError};
use crate::report::outcome::Outcome;
use crate::trial::request::Decision;

/// The rule of descriptors without a decision.
const NO_VERDICT: &str = "(no verdict)";

/// Whose response the caller gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answering {
    Local,
    Upstream,
}

/// A request to decide.
#[derive(Debug, Clone)]
pub(crate) struct DecodedCall {
    pub(crate) domain: Arc<str>,
    pub(crate) message: Bytes,
    pub(crate) deadline: Option<Time>,
    pub(crate) answering: Answering,
}

/// A decided request.
pub(crate) struct LocalAnswer {
    pub(crate) answer: Result<OwnResponse, LimiterError>,
    /// `None` if there is nothing to compare.
    pub(crate) decision: Option<Decision>,
}

/// Decides a request. A queued request waits for its slot if the caller gets our response.
pub(crate) async fn decide(limiter: Limiter, call: DecodedCall) -> LocalAnswer {
    let (mut query, _) = decode::query(&call.message).expect("it was decoded before");
    query.deadline = call.deadline;
    let time = limiter.clock().now();
    let inspect = |decision: &LimiterDecision<'_, '_, '_>| decision.outcomes();
    let decided = limiter.decide_at_once(&query, time, None, inspect).await;
    let (response, wait, outcomes) = match decided {
        Ok(decided) => decided,
        Err(error) => {
            limiter.count(&error);
            let has_failed = matches!(error, LimiterError::Store(_));
            let decision = has_failed.then(|| Decision {
                time,
                response: Err(error.to_string().into()),
                descriptors: query.descriptors.iter().map(|_| without_verdict()).collect(),
            });
            return LocalAnswer { answer: Err(error), decision };
        }
    };
    let decision = Decision { time, response: Ok(response.over_limit), descriptors: outcomes };
    if let Some((permit, wait)) = wait.filter(|_| call.answering == Answering::Local) {
        permit.wait(wait).await;
    }
    LocalAnswer { answer: Ok(response), decision: Some(decision) }
}

pub(crate) fn respond(answer: Result<OwnResponse, LimiterError>) -> Response<Body> {
    let answer = answer.map(convert::response);
    codec::respond(answer.map_err(|error| convert::status(&error)))
}

fn without_verdict() -> Outcome {
    Outcome { rule: Some(NO_VERDICT.into()), ..Outcome::default() }
}
