//! POST /json: the same question and the same answer in protobuf's JSON, with the reference's status codes.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use smallvec::SmallVec;

use crate::api::{MESSAGE_BYTES_MAX, convert};
use crate::limit::EXACT_MAX;
use crate::limiter::{Limiter, Refusal};
use crate::proto::DESCRIPTOR_SET;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::telemetry::metric::Counter;
use crate::telemetry::traces::{Kind, LiveSpan, Traces};

/// Whoever has not sent its body by then is not going to, and would hold its connection for ever.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// More names than any of our messages has fields.
const FIELDS_MAX: usize = 32;
/// A reason may quote the request, which has up to 4 MiB.
const REASON_BYTES_MAX: usize = 1_024;
/// What a body that cannot be read should have been.
pub const EXAMPLE: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}"#;
/// The reference's name for what is done once the request was read.
const SPAN: &str = "NewJsonHandler Remaining Execution";
const SPAN_STATUS: &str = "http.status_code";

/// What the door needs.
#[derive(Debug, Clone)]
pub struct JsonDoor {
    limiter: Limiter,
    messages: Messages,
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
    /// It has more than [`MESSAGE_BYTES_MAX`] bytes, or its connection failed.
    Oversized,
    /// It did not come in time.
    Late,
}

impl Messages {
    /// Finds them.
    ///
    /// # Errors
    /// The descriptors that were compiled in cannot be read.
    pub fn new() -> anyhow::Result<Self> {
        let pool = DescriptorPool::decode(DESCRIPTOR_SET).context("read the compiled descriptors")?;
        let message = |name: &str| pool.get_message_by_name(name).with_context(|| format!("find {name} in the compiled descriptors"));
        Ok(Self {
            request: message("envoy.service.ratelimit.v3.RateLimitRequest")?,
            response: message("envoy.service.ratelimit.v3.RateLimitResponse")?,
        })
    }

    /// Reads protobuf's JSON: either spelling of names, numbers as text, null for absent; unknown names are an error.
    ///
    /// # Errors
    /// What is no JSON, or no request.
    pub fn read(&self, body: &[u8]) -> anyhow::Result<RateLimitRequest> {
        refuse_repeated_names(body)?;
        let mut reader = serde_json::Deserializer::from_slice(body);
        let message = DynamicMessage::deserialize_with_options(self.request.clone(), &mut reader, &DeserializeOptions::new())?;
        reader.end()?;
        Ok(message.transcode_to()?)
    }
}

impl JsonDoor {
    /// A door to the limiter, which counts the bodies that it refuses for their size.
    pub fn new(limiter: Limiter, messages: Messages, oversized: Counter, traces: Traces) -> Self {
        Self { limiter, messages, oversized, traces }
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

/// Metadata knows only doubles. JSON readers that tell 2 from 2.0 expect the former, as the reference writes it.
fn shorten_numbers(json: &mut Value) {
    match json {
        Value::Number(number) => {
            // `{}` prints a double without a fraction as a whole number, and every whole number of up to 16 digits is exact.
            if let Some(whole) =
                number.as_f64().and_then(|value| value.to_string().parse::<i64>().ok()).filter(|whole| whole.unsigned_abs() < EXACT_MAX)
            {
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_numbers),
        Value::Object(map) => map.values_mut().for_each(shorten_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// An object that has a name twice, in whichever spelling, is an error in protobuf's JSON; our reader would take the last.
fn refuse_repeated_names(body: &[u8]) -> serde_json::Result<()> {
    serde_json::Deserializer::from_slice(body).deserialize_any(Names)
}

/// Visits any JSON and keeps nothing but the names of the object it is in.
#[derive(Clone, Copy)]
struct Names;

impl<'de> DeserializeSeed<'de> for Names {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Names {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: SmallVec<[String; 8]> = SmallVec::new();
        while let Some(written) = map.next_key::<String>()? {
            let name = written.replace('_', "").to_ascii_lowercase();
            if seen.contains(&name) {
                return Err(serde::de::Error::custom(format!("repeated field name '{written}'")));
            }
            // Messages have a handful of fields; whatever has more names is refused for one that no message has.
            if seen.len() < FIELDS_MAX {
                seen.push(name);
            }
            map.next_value_seed(self)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Answers 200 or 429 with an answer, 400 for anything that has none.
pub async fn answer(State(door): State<JsonDoor>, headers: HeaderMap, body: Body) -> Response {
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(error) => {
            if error == BodyError::Oversized {
                door.oversized.inc();
            }
            return error.into_response();
        }
    };
    let request = match door.messages.read(&body) {
        Ok(request) => request,
        Err(error) => {
            let error = format!("{error:#}");
            let response = bad_request(&format!("invalid request: {error}"), Some(EXAMPLE));
            tracing::debug!(error, "a /json body that is no request");
            return response;
        }
    };
    let mut span = door.traces.begin(SPAN, Kind::Server, &headers);
    let response = respond(&door, &request, span.as_ref()).await;
    if let Some(span) = &mut span {
        span.tell_number(SPAN_STATUS, response.status().as_u16());
        if response.status().is_server_error() {
            span.fail(response.status().to_string());
        }
    }
    response
}

/// Reads a body of at most [`MESSAGE_BYTES_MAX`] bytes.
///
/// # Errors
/// It is too long, or late.
pub async fn read_body(body: Body) -> Result<Bytes, BodyError> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MESSAGE_BYTES_MAX)).await {
        Ok(read) => read.map_err(|_| BodyError::Oversized),
        Err(_) => Err(BodyError::Late),
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        match self {
            Self::Oversized => (StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {MESSAGE_BYTES_MAX} bytes\n")).into_response(),
            Self::Late => (StatusCode::REQUEST_TIMEOUT, "the body did not come\n").into_response(),
        }
    }
}

async fn respond(door: &JsonDoor, request: &RateLimitRequest, span: Option<&LiveSpan>) -> Response {
    let answer = match door.limiter.answer_within(&convert::query(request), span).await {
        Ok(answer) => answer,
        Err(refusal @ Refusal::Store(_)) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n")).into_response(),
        Err(
            refusal
            @ (Refusal::NoDomain | Refusal::NoDescriptors | Refusal::NoRules | Refusal::TooManyDescriptors(_) | Refusal::Invalid(_)),
        ) => return bad_request(&refusal.to_string(), None),
    };
    let status = if answer.over_limit { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    match door.write(&convert::response(answer)) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "cannot write an answer as JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n").into_response()
        }
    }
}

/// 400 with the reason, and an example if there is one.
pub fn bad_request(reason: &str, example: Option<&str>) -> Response {
    let example = example.map(|example| format!("write a RateLimitRequest as JSON, such as {example}\n")).unwrap_or_default();
    (StatusCode::BAD_REQUEST, format!("{}\n{example}", bounded(reason))).into_response()
}

/// At most [`REASON_BYTES_MAX`] of a text, with three dots for the rest.
fn bounded(text: &str) -> String {
    if text.len() <= REASON_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=REASON_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}...", &text[..end])
}
