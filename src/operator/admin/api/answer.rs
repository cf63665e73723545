//! Answers of the API: JSON with the name of the replica, or why there is none.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::api::body::{BodyError, REASON_BYTES_MAX};
use crate::base::http::response_budget;
use crate::base::text::prefix;
use crate::report;
use crate::report::Finding;
use crate::report::answer::ErrorBody;
use crate::rules::explain::Explanation;

pub(crate) const JSON_TYPE: &str = "application/json";

/// An answer, or why there is none.
pub(crate) type Answer<T> = Result<T, Rejected>;

/// An answer, with the name of the replica
#[derive(Debug, Serialize)]
pub(crate) struct Body<'r, T> {
    /// The name of the process that answered, as in heartbeats
    replica: &'r str,
    #[serde(flatten)]
    answer: T,
}

/// Why a request is rejected.
#[derive(Debug, Clone)]
pub(crate) struct Rejected {
    pub(crate) status: StatusCode,
    body: ErrorBody,
    /// Seconds until the client may try again.
    retry_after: Option<u64>,
}

impl Rejected {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            body: ErrorBody { error: reason.into(), ..ErrorBody::default() },
            retry_after: None,
        }
    }

    /// 400.
    pub(crate) fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    /// Adds why rules do not match.
    pub(crate) fn explained(mut self, Explanation { text, outcome }: Explanation) -> Self {
        self.body.explanation = Some(text);
        self.body.outcome = Some(outcome);
        self
    }

    /// Adds what the compiler reports about rules.
    pub(crate) fn with_errors(mut self, errors: Vec<Finding>) -> Self {
        self.body.errors = Some(errors);
        self
    }

    /// Adds when the client may try again.
    pub(crate) fn retry_after(self, secs: u64) -> Self {
        Self { retry_after: Some(secs), ..self }
    }

    /// A sentence, and what to do.
    pub(crate) fn reason(&self) -> &str {
        &self.body.error
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
        Ok(answer) => found(json(replica, answer)),
        Err(rejected) => rejection(replica, rejected),
    }
}

/// 200 with JSON that has the name of the replica already.
pub(crate) fn found(json: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, JSON_TYPE)], json).into_response()
}

/// The body of a response, with the name of the replica.
pub(crate) fn json(replica: &str, answer: impl Serialize) -> String {
    report::json(&Body { replica, answer })
}

/// Why a request is rejected because there are too many others.
pub(crate) fn full() -> Rejected {
    let full = Rejected::new(StatusCode::SERVICE_UNAVAILABLE, response_budget::FULL);
    full.retry_after(response_budget::RETRY_AFTER_SECS)
}

pub(crate) fn rejection(replica: &str, rejected: Rejected) -> Response {
    let Rejected { status, mut body, retry_after } = rejected;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_TYPE));
    if status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        headers.insert(header::WWW_AUTHENTICATE, scheme);
    }
    headers.extend(retry_after.map(|secs| (header::RETRY_AFTER, secs.into())));
    let shown = prefix(&body.error, REASON_BYTES_MAX).len();
    body.error.truncate(shown);
    (status, headers, json(replica, body)).into_response()
}
