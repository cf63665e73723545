//! The upstream's side of a call during a trial.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};
use hyper::body::Bytes;
use prost::Message as _;
use tonic::Status;

use crate::api::convert;
use crate::api::decode::Fields;
use crate::api::request_size::DESCRIPTORS_MAX;
use crate::api::unary::{GRPC_STATUS, UnaryBody, message_in};
use crate::base::time::Span;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use crate::report::comparison::StatedLimit;
use crate::trial::compare;
use crate::trial::request::Reply;
use crate::trial::tally::CallOutcome;
use crate::trial::upstream::{ForwardError, RawReply};

/// Fields of a RateLimitResponse.
const OVERALL_CODE: u32 = 1;
const STATUSES: u32 = 2;
const GRPC_OK: &str = "0";

pub(crate) type Forwarded = Result<RawReply, ForwardError>;

/// A reply before it is decoded.
pub(crate) enum UpstreamReply {
    Message(Bytes),
    Error(Arc<str>),
}

impl UpstreamReply {
    pub(crate) fn of(forwarded: &Forwarded) -> Self {
        let RawReply { response, trailers } = match forwarded {
            Ok(reply) => reply,
            Err(ForwardError::Unavailable(status) | ForwardError::Late(status)) => {
                return Self::Error(format!("{:?}: {}", status.code(), status.message()).into());
            }
        };
        let has_status = |headers: &&HeaderMap| headers.contains_key(GRPC_STATUS);
        let headers = trailers.as_ref().filter(has_status);
        let headers = headers.unwrap_or(response.headers());
        match headers.get(GRPC_STATUS) {
            Some(code) if code == GRPC_OK && response.status() == StatusCode::OK => {
                Self::Message(response.body().clone())
            }
            Some(_) => {
                let status = Status::from_header_map(headers);
                let status = status.unwrap_or_else(|| Status::unknown(""));
                Self::Error(format!("{:?}: {}", status.code(), status.message()).into())
            }
            None => Self::Error(format!("HTTP status {}", response.status()).into()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Message(message) => message.len(),
            Self::Error(text) => text.len(),
        }
    }

    /// `None` if it cannot be compared.
    pub(crate) fn decode(self) -> Option<Reply> {
        match self {
            Self::Message(body) => decoded(&body),
            Self::Error(text) => Some(Reply::Error(text)),
        }
    }
}

pub(crate) fn outcome_of(forwarded: &Forwarded, reply: &UpstreamReply) -> CallOutcome {
    match (forwarded, reply) {
        (Ok(_), UpstreamReply::Message(_)) => CallOutcome::Forwarded,
        (Ok(_), UpstreamReply::Error(_)) => CallOutcome::Error,
        (Err(ForwardError::Unavailable(_)), _) => CallOutcome::Unavailable,
        (Err(ForwardError::Late(_)), _) => CallOutcome::Late,
    }
}

/// The reply unchanged, or the error of the failure.
pub(crate) fn respond(forwarded: Forwarded) -> Response<UnaryBody> {
    match forwarded {
        Ok(RawReply { response, trailers }) => response.map(|body| UnaryBody::raw(body, trailers)),
        Err(ForwardError::Unavailable(status) | ForwardError::Late(status)) => status.into_http(),
    }
}

/// Decodes what is compared of a RateLimitResponse, status by status: all that a response may have
/// takes a hundred times its bytes. `None` if it is none, or has more statuses than a request may
/// have descriptors.
pub(crate) fn decoded(body: &Bytes) -> Option<Reply> {
    let message = message_in(&HeaderMap::new(), body).ok()?;
    let (mut over_limit, mut statuses) = (false, Vec::new());
    let mut fields = Fields(&message);
    while let Some(field) = fields.next().ok()? {
        match field.number {
            OVERALL_CODE => over_limit = field.varint().ok()? == Code::OverLimit as u64,
            STATUSES if statuses.len() == DESCRIPTORS_MAX => return None,
            STATUSES => {
                let status = DescriptorStatus::decode(field.bytes().ok()?).ok()?;
                statuses.push(status_of(&status));
            }
            _ => {}
        }
    }
    Some(Reply::Decided {
        over_limit,
        statuses,
    })
}

fn status_of(status: &DescriptorStatus) -> compare::Status {
    let seconds = |duration: &prost_types::Duration| u64::try_from(duration.seconds).ok();
    let reset = status.duration_until_reset.as_ref().and_then(seconds);
    compare::Status {
        over_limit: status.code() == Code::OverLimit,
        limit: status.current_limit.as_ref().map(|limit| StatedLimit {
            requests: limit.requests_per_unit.into(),
            unit: convert::unit(limit.unit),
        }),
        remaining: status.limit_remaining.into(),
        until_reset: reset.map(Span::from_secs),
    }
}
