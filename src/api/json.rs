//! `POST /json`: ShouldRateLimit in protobuf's JSON, with the reference's status codes.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, header};

use crate::api::body::{BodyError, bad_request, read_body};
use crate::api::budget::{Budget, CallInFlight};
use crate::api::messages::{self, EXAMPLE};
use crate::api::request_size::{MESSAGE_BYTES_MAX, RequestSize};
use crate::api::{convert, decode};
use crate::limiter::{Limiter, LimiterError};
use crate::telemetry::metric::Counter;
use crate::telemetry::traces::{LiveSpan, Traces};

/// The reference's name for what follows the reading of the request.
const SPAN: &str = "NewJsonHandler Remaining Execution";
const SPAN_STATUS: &str = "http.status_code";

/// Serves `/json` with the decisions of a limiter.
#[derive(Debug, Clone)]
pub struct JsonHandler {
    /// Decides.
    pub limiter: Limiter,
    /// Bounds the calls in flight, and their bytes.
    pub budget: Arc<Budget>,
    /// Counts bodies that are too large.
    pub oversized: Counter,
    /// Spans of the calls.
    pub traces: Traces,
}

impl JsonHandler {
    /// Reads and encodes a request, and charges what it takes to its call.
    async fn read(&self, body: Body, call: &CallInFlight) -> Result<Vec<u8>, Response> {
        let body = read_body(body, MESSAGE_BYTES_MAX, |bytes| call.hold(bytes)).await.map_err(
            |error| {
                match error {
                    BodyError::Oversized(_) => self.oversized.inc(),
                    BodyError::Late => call.count_late(),
                    BodyError::Broken | BodyError::OverBudget => {}
                }
                error.into_response()
            },
        )?;
        let size = RequestSize::of_json(&body).map_err(|error| {
            self.limiter.count_invalid();
            bad_request(&error.to_string(), None)
        })?;
        if !call.hold(size.bytes()) {
            return Err(BodyError::OverBudget.into_response());
        }
        messages::read(&body).map_err(|error| {
            let error = format!("{error:#}");
            let response = bad_request(&format!("invalid request: {error}"), Some(EXAMPLE));
            tracing::debug!(error, "invalid body of /json");
            response
        })
    }

    /// Responds to an encoded request.
    async fn respond(&self, request: &[u8], span: Option<&LiveSpan>) -> Response {
        let query = match decode::query(request) {
            Ok((query, _)) => query,
            Err(error) => return bad_request(&error.to_string(), None),
        };
        let answer = match self.limiter.decide(&query, span).await {
            Ok(answer) => answer,
            Err(error @ LimiterError::Store(_)) => {
                return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response();
            }
            Err(error) => return bad_request(&error.to_string(), None),
        };
        let status = if answer.over_limit { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        match messages::write(&convert::response(answer)) {
            Ok(body) => {
                (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "cannot write a response as JSON");
                (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n").into_response()
            }
        }
    }
}

/// Responds 200 or 429 with a RateLimitResponse, or with the status and reason of an error.
pub async fn answer(
    State(handler): State<JsonHandler>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(call) = handler.budget.connection().begin() else {
        return BodyError::OverBudget.into_response();
    };
    let request = match handler.read(body, &call).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let mut span = handler.traces.begin(SPAN, &headers);
    let response = handler.respond(&request, span.as_ref()).await;
    if let Some(span) = &mut span {
        span.set_number(SPAN_STATUS, response.status().as_u16());
        if response.status().is_server_error() {
            span.fail(response.status().to_string());
        }
    }
    response
}
