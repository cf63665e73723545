//! Answers of the API: JSON with the name of the replica, or why there is none.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::body::{BodyError, REASON_BYTES_MAX};
use crate::http::response_budget;
use crate::report::Finding;
use crate::rules::explain::Explanation;
use crate::text::prefix;

pub(crate) const JSON_TYPE: &str = "application/json";

/// A JSON object, or why there is none.
pub(crate) type Answer<T = Value> = Result<T, Rejected>;

/// The body of a response of the API.
#[derive(Serialize)]
struct Body<'r, T> {
    replica: &'r str,
    #[serde(flatten)]
    answer: T,
}

/// Why a request is rejected.
#[derive(Debug, Clone)]
pub(crate) struct Rejected {
    pub(crate) status: StatusCode,
    /// A sentence, and what to do.
    reason: String,
    /// The walk through the rules, as `explain` prints it.
    explanation: Option<Explanation>,
    /// What the compiler reports about rules.
    errors: Option<Vec<Finding>>,
    /// Seconds until the client may try again.
    retry_after: Option<u64>,
}

impl Rejected {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            explanation: None,
            errors: None,
            retry_after: None,
        }
    }

    /// 400.
    pub(crate) fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    /// Adds why rules do not match.
    pub(crate) fn explained(self, explanation: Explanation) -> Self {
        Self {
            explanation: Some(explanation),
            ..self
        }
    }

    /// Adds what the compiler reports about rules.
    pub(crate) fn with_errors(self, errors: Vec<Finding>) -> Self {
        Self {
            errors: Some(errors),
            ..self
        }
    }

    /// Adds when the client may try again.
    pub(crate) fn retry_after(self, secs: u64) -> Self {
        Self {
            retry_after: Some(secs),
            ..self
        }
    }

    /// A sentence, and what to do.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    fn json(&self) -> Value {
        let reason = prefix(&self.reason, REASON_BYTES_MAX);
        match (&self.explanation, &self.errors) {
            (None, None) => json!({"error": reason}),
            (None, Some(errors)) => json!({"error": reason, "errors": errors}),
            (Some(Explanation { text, outcome }), _) => {
                json!({"error": reason, "explanation": text, "outcome": outcome.name()})
            }
        }
    }
}

impl From<BodyError> for Rejected {
    fn from(error: BodyError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}

/// The response of the replica with this name.
pub(crate) fn response(replica: &str, answer: Answer<impl Serialize>) -> Response {
    match answer {
        Ok(answer) => {
            let body = serde_json::to_string(&Body { replica, answer });
            found(body.expect("the keys of its maps are texts"))
        }
        Err(rejected) => rejection(replica, &rejected),
    }
}

/// 200 with JSON that has the name of the replica already.
pub(crate) fn found(json: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, JSON_TYPE)], json).into_response()
}

/// Why a request is rejected because there are too many others.
pub(crate) fn full() -> Rejected {
    let full = Rejected::new(StatusCode::SERVICE_UNAVAILABLE, response_budget::FULL);
    full.retry_after(response_budget::RETRY_AFTER_SECS)
}

pub(crate) fn rejection(replica: &str, rejected: &Rejected) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_TYPE));
    if rejected.status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        headers.insert(header::WWW_AUTHENTICATE, scheme);
    }
    let retry_after = rejected.retry_after;
    headers.extend(retry_after.map(|secs| (header::RETRY_AFTER, secs.into())));
    let mut body = rejected.json();
    body["replica"] = replica.into();
    (rejected.status, headers, body.to_string()).into_response()
}
