//! The upstream's side of a call during a trial.

use std::convert::Infallible;
use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use prost::Message as _;
use tonic::body::Body;
use tonic::{Code as Grpc, Status};

use crate::api::codec::message_in;
use crate::api::convert;
use crate::api::decode::Fields;
use crate::api::request_size::DESCRIPTORS_MAX;
use crate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use crate::base::time::Span;
use crate::report::comparison::StatedLimit;
use crate::trial::compare;
use crate::trial::request::Reply;
use crate::trial::tally::CallOutcome;
use crate::trial::upstream::{ForwardError, RawReply};

/// Fields of a RateLimitResponse.
const OVERALL_CODE: u32 = 1;
const STATUSES: u32 = 2;

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
        let status = trailers.as_ref().and_then(Status::from_header_map);
        match status.or_else(|| Status::from_header_map(response.headers())) {
            Some(status) if status.code() == Grpc::Ok && response.status() == StatusCode::OK => {
                Self::Message(response.body().clone())
            }
            Some(status) => {
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
pub(crate) fn respond(forwarded: Forwarded) -> Response<Body> {
    match forwarded {
        Ok(RawReply { response, trailers }) => response.map(|body| body_of(body, trailers)),
        Err(ForwardError::Unavailable(status) | ForwardError::Late(status)) => status.into_http(),
    }
}

/// Bytes and trailers as they were received. It has no size: hyper would add it to the headers.
fn body_of(bytes: Bytes, trailers: Option<HeaderMap>) -> Body {
    let data = Some(bytes).filter(|bytes| !bytes.is_empty());
    let frames = data.map(Frame::data).into_iter();
    let frames: Vec<_> = frames.chain(trailers.map(Frame::trailers)).collect();
    if frames.is_empty() {
        return Body::empty();
    }
    let frames = frames.into_iter().map(Ok::<_, Infallible>);
    Body::new(StreamBody::new(tokio_stream::iter(frames)))
}

/// Decodes what is compared of a RateLimitResponse, status by status: all that a response may have
/// takes a hundred times its bytes. `None` if it is none, or has more statuses than a request may
/// have descriptors.
pub(crate) fn decoded(body: &Bytes) -> Option<Reply> {
    let message = message_in(&HeaderMap::new(), body)?;
    let mut over_limit = false;
    let mut statuses = Vec::new();
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
    Some(Reply::Decided { over_limit, statuses })
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
