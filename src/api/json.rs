//! POST /json: the same question and the same answer in protobuf's JSON, with the reference's
//! status codes.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use prost::bytes::BytesMut;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_json::Value;

use crate::api::budget::{Budget, Call};
use crate::api::request_size::RequestSize;
use crate::api::{MESSAGE_BYTES_MAX, convert};
use crate::limit::EXACT_MAX;
use crate::limiter::{Limiter, LimiterError};
use crate::proto::DESCRIPTOR_SET;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::telemetry::metric::Counter;
use crate::telemetry::traces::{Kind, LiveSpan, Traces};

/// Whoever has not sent its body by then is not going to, and would hold its connection for ever.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A reason may quote the request, which has up to 4 MiB.
const REASON_BYTES_MAX: usize = 1_024;
/// What a body that cannot be read should have been.
pub const EXAMPLE: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}"#;
/// The reference's name for what is done once the request was read.
const SPAN: &str = "NewJsonHandler Remaining Execution";
const SPAN_STATUS: &str = "http.status_code";

/// What the handler needs.
#[derive(Debug, Clone)]
pub struct JsonHandler {
    limiter: Limiter,
    messages: Messages,
    budget: Budget,
    oversized: Counter,
    traces: Traces,
}

/// The messages of the service, as they were compiled in.
#[derive(Debug, Clone)]
pub struct Messages {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// It has more bytes than this.
    Oversized(usize),
    /// It did not arrive in time.
    Late,
    /// Its connection ended, or its bytes are no HTTP body.
    Broken,
    /// Too many calls, or bytes of calls, are in flight.
    NoRoom,
}

impl Messages {
    /// Finds them.
    ///
    /// # Errors
    /// The descriptors that were compiled in cannot be read.
    pub fn new() -> anyhow::Result<Self> {
        let pool =
            DescriptorPool::decode(DESCRIPTOR_SET).context("read the compiled descriptors")?;
        let message = |name: &str| {
            pool.get_message_by_name(name)
                .with_context(|| format!("find {name} in the compiled descriptors"))
        };
        Ok(Self {
            request: message("envoy.service.ratelimit.v3.RateLimitRequest")?,
            response: message("envoy.service.ratelimit.v3.RateLimitResponse")?,
        })
    }

    /// Reads protobuf's JSON: either spelling of names, numbers as text, null for absent; unknown
    /// names are an error.
    ///
    /// # Errors
    /// What is no JSON, or no request.
    pub fn read(&self, body: &[u8]) -> anyhow::Result<RateLimitRequest> {
        RequestSize::of_json(body)?;
        self.build(body)
    }

    fn build(&self, body: &[u8]) -> anyhow::Result<RateLimitRequest> {
        let mut reader = serde_json::Deserializer::from_slice(body);
        let message = DynamicMessage::deserialize_with_options(
            self.request.clone(),
            &mut reader,
            &DeserializeOptions::new(),
        )?;
        reader.end()?;
        Ok(message.transcode_to()?)
    }
}

impl JsonHandler {
    /// A handler to the limiter, which counts the bodies that it refuses for their size.
    pub fn new(
        limiter: Limiter,
        messages: Messages,
        budget: Budget,
        oversized: Counter,
        traces: Traces,
    ) -> Self {
        Self {
            limiter,
            messages,
            budget,
            oversized,
            traces,
        }
    }

    /// Reads the body of a call, which holds what it takes.
    async fn read(&self, body: Body, call: &Call) -> Result<RateLimitRequest, Response> {
        let body = read_body(body, MESSAGE_BYTES_MAX, |bytes| call.hold(bytes))
            .await
            .map_err(|error| {
                match error {
                    BodyError::Oversized(_) => self.oversized.inc(),
                    BodyError::Late => call.count_late(),
                    BodyError::Broken | BodyError::NoRoom => {}
                }
                error.into_response()
            })?;
        let size = RequestSize::of_json(&body).map_err(|error| self.invalid(&error))?;
        if !call.hold(size.bytes()) {
            return Err(BodyError::NoRoom.into_response());
        }
        self.messages
            .build(&body)
            .map_err(|error| self.invalid(&error))
    }

    fn invalid(&self, error: &anyhow::Error) -> Response {
        if let Some(refusal) = error.downcast_ref() {
            self.limiter.count(refusal);
            return bad_request(&error.to_string(), None);
        }
        let error = format!("{error:#}");
        let response = bad_request(&format!("invalid request: {error}"), Some(EXAMPLE));
        tracing::debug!(error, "a /json body that is no request");
        response
    }

    fn write(&self, response: &RateLimitResponse) -> anyhow::Result<Vec<u8>> {
        let mut message = DynamicMessage::new(self.messages.response.clone());
        message.transcode_from(response)?;
        if response.dynamic_metadata.is_none() {
            return Ok(serde_json::to_vec(&message)?);
        }
        let mut json = serde_json::to_value(&message)?;
        shorten_numbers(&mut json);
        Ok(serde_json::to_vec(&json)?)
    }
}

/// Metadata knows only doubles. JSON readers that tell 2 from 2.0 expect the former, as the
/// reference writes it.
fn shorten_numbers(json: &mut Value) {
    match json {
        Value::Number(number) => {
            // `{}` prints a double without a fraction as a whole number, and every whole number of
            // up to 16 digits is exact.
            if let Some(whole) = number
                .as_f64()
                .and_then(|value| value.to_string().parse::<i64>().ok())
                .filter(|whole| whole.unsigned_abs() < EXACT_MAX)
            {
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_numbers),
        Value::Object(map) => map.values_mut().for_each(shorten_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Answers 200 or 429 with an answer, 400 for anything that has none.
pub async fn answer(
    State(handler): State<JsonHandler>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(call) = handler.budget.connection().begin() else {
        return BodyError::NoRoom.into_response();
    };
    let request = match handler.read(body, &call).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let mut span = handler.traces.begin(SPAN, Kind::Server, &headers);
    let response = respond(&handler, &request, span.as_ref()).await;
    if let Some(span) = &mut span {
        span.set_number(SPAN_STATUS, response.status().as_u16());
        if response.status().is_server_error() {
            span.fail(response.status().to_string());
        }
    }
    response
}

/// Reads a body of at most `bytes_max` bytes, if `hold` has room for each of its pieces.
///
/// # Errors
/// It is too long, late or broken, or there is no room.
pub async fn read_body(
    body: Body,
    bytes_max: usize,
    hold: impl Fn(usize) -> bool,
) -> Result<Bytes, BodyError> {
    let reading = async {
        let mut body = pin!(body);
        let mut read = BytesMut::new();
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
                continue;
            };
            if read.len() + piece.len() > bytes_max {
                return Err(BodyError::Oversized(bytes_max));
            }
            if !hold(piece.len()) {
                return Err(BodyError::NoRoom);
            }
            read.extend_from_slice(&piece);
        }
        Ok(read.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading)
        .await
        .unwrap_or(Err(BodyError::Late))
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        match self {
            Self::Oversized(max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a body has at most {max} bytes\n"),
            )
                .into_response(),
            Self::Late => (
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time\n",
            )
                .into_response(),
            Self::Broken => (
                StatusCode::BAD_REQUEST,
                "the body cannot be read to its end\n",
            )
                .into_response(),
            Self::NoRoom => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many calls, or bytes of calls, are in flight\n",
            )
                .into_response(),
        }
    }
}

async fn respond(
    handler: &JsonHandler,
    request: &RateLimitRequest,
    span: Option<&LiveSpan>,
) -> Response {
    let answer = match handler.limiter.decide(&convert::query(request), span).await {
        Ok(answer) => answer,
        Err(refusal @ LimiterError::Store(_)) => {
            return (StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n")).into_response();
        }
        Err(
            refusal @ (LimiterError::NoDomain
            | LimiterError::NoDescriptors
            | LimiterError::NoRules
            | LimiterError::TooManyDescriptors
            | LimiterError::TooManyEntries
            | LimiterError::Invalid(_)),
        ) => return bad_request(&refusal.to_string(), None),
    };
    let status = if answer.over_limit {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    match handler.write(&convert::response(answer)) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                "cannot write an answer as JSON"
            );
            (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n").into_response()
        }
    }
}

/// 400 with the reason, and an example if there is one.
pub fn bad_request(reason: &str, example: Option<&str>) -> Response {
    let example = example
        .map(|example| format!("write a RateLimitRequest as JSON, such as {example}\n"))
        .unwrap_or_default();
    (
        StatusCode::BAD_REQUEST,
        format!("{}\n{example}", bounded(reason)),
    )
        .into_response()
}

/// At most [`REASON_BYTES_MAX`] of a text, with three dots for the rest.
fn bounded(text: &str) -> String {
    if text.len() <= REASON_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=REASON_BYTES_MAX)
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default();
    format!("{}...", &text[..end])
}
