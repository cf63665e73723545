//! ShouldRateLimit during a trial: forwards the call as it came, decides it as well, and answers
//! with one of the two.
//!
//! Both sides are futures that own their data: the one that does not answer is finished by the task
//! that compares them.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::task::Poll;

use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use prost::bytes::{BufMut as _, Bytes, BytesMut};
use tonic::Status;
use tonic::body::Body;

use crate::api::call_metrics::{RlsMetrics, grpc_timeout};
use crate::api::codec::message_in;
use crate::api::decode;
use crate::api::request_body::RequestBody;
use crate::api::request_size::MESSAGE_BYTES_MAX;
use crate::api::trial::local::{Answering, DecodedCall, LocalAnswer};
use crate::api::trial::upstream::{Forwarded, UpstreamReply};
use crate::base::text::Text;
use crate::base::time::{Span, Time};
use crate::limiter::Limiter;
use crate::operator::observe::redact::{DescriptorView, Quoted};
use crate::report::outcome::Outcome;
use crate::trial::Worker;
use crate::trial::request::{Decision, compare_request};
use crate::trial::settings::OnUpstreamError;
use crate::trial::tally::{CallOutcome, OTHER};
use crate::trial::upstream::{Call, HOP};

mod local;
mod upstream;

/// Bytes of the body of a call: the largest message, and five before it.
const BODY_BYTES: usize = MESSAGE_BYTES_MAX + 5;
/// Descriptors of a disagreement of a trial.
const SHOWN_DESCRIPTORS_MAX: usize = 10;
/// With TRIAL_ON_UPSTREAM_ERROR=decide, the part of a deadline that is reserved for our response.
const RESERVED_PARTS: u64 = 5;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The service during a trial, without its transport.
#[derive(Debug, Clone)]
pub(crate) struct TrialRls {
    worker: Worker,
    limiter: Limiter,
    metrics: RlsMetrics,
}

/// A side that does not answer, when the other one has.
enum Progress<T> {
    Done(T),
    Pending(Boxed<T>),
}

impl TrialRls {
    pub(crate) fn new(worker: Worker, limiter: Limiter, metrics: RlsMetrics) -> Self {
        Self { worker, limiter, metrics }
    }

    /// Serves one call.
    pub(crate) async fn call(&self, request: Request<RequestBody>) -> Response<Body> {
        let began = self.limiter.clock().now();
        let (head, body) = request.into_parts();
        if head.headers.contains_key(HOP) {
            self.worker.reject_loop();
            return Status::failed_precondition(
                "the upstream of a trial is a trial itself: set TRIAL_UPSTREAM to the rate limit service in use",
            )
            .into_http();
        }
        let charged = body.call.clone();
        let body = match self.read(body).await {
            Ok(body) => body,
            Err(status) => return status.into_http(),
        };
        let decoded = message_in(&head.headers, &body).and_then(|message| {
            let (query, size) = decode::query(&message).ok()?;
            let is_ours = self.worker.answers(&query);
            let answering = if is_ours { Answering::Local } else { Answering::Upstream };
            let decoded = DecodedCall {
                domain: Text(query.domain).shown().into(),
                message: message.clone(),
                deadline: self.metrics.deadline(&head.headers, began),
                answering,
            };
            charged.hold(size.bytes()).then_some(decoded)
        });
        let call = self.forwarded_call(head.headers, body, began);
        let response = match decoded {
            Some(decoded) => self.answer(decoded, call, began).await,
            None => self.forward_only(&call, began).await,
        };
        self.metrics.calls.observe(began, self.limiter.clock());
        response
    }

    /// Reads the whole body of a call. It is copied: it would keep the receive buffer of the
    /// connection while the call waits.
    async fn read(&self, body: RequestBody) -> Result<Bytes, Status> {
        let collected = Limited::new(body, BODY_BYTES).collect().await;
        let body = collected.map_err(|error| {
            if error.is::<LengthLimitError>() {
                self.metrics.oversized.inc();
                let text = format!("a body of more than {BODY_BYTES} bytes");
                return Status::resource_exhausted(text);
            }
            Status::from_error(error)
        })?;
        let mut bytes = BytesMut::new();
        bytes.put(body.aggregate());
        Ok(bytes.freeze())
    }

    fn forwarded_call(&self, headers: HeaderMap, body: Bytes, began: Time) -> Call {
        let timeout = grpc_timeout(&headers);
        let reserved = match self.worker.on_upstream_error() {
            OnUpstreamError::Error => Span::ZERO,
            OnUpstreamError::Decide => {
                Span::from_micros(timeout.unwrap_or_default().as_micros() / RESERVED_PARTS)
            }
        };
        Call {
            headers,
            body,
            deadline: timeout.map(|timeout| began.plus(timeout)),
            reply_by: timeout.map(|timeout| began.plus(timeout.less(reserved))),
        }
    }

    /// Answers a request that cannot be decided here.
    async fn forward_only(&self, call: &Call, began: Time) -> Response<Body> {
        let mut ending = self.worker.begin(OTHER.into());
        self.worker.drop_invalid();
        let forwarded = self.worker.upstream.forward(call).await;
        self.worker.observe_reply(began);
        ending.outcome = upstream::outcome_of(&forwarded, &UpstreamReply::of(&forwarded));
        upstream::respond(forwarded)
    }

    async fn answer(&self, decoded: DecodedCall, call: Call, began: Time) -> Response<Body> {
        let mut ending = self.worker.begin(decoded.domain.clone());
        let bytes = call.body.len();
        let worker = self.worker.clone();
        let forward: Boxed<Forwarded> = Box::pin(async move {
            let forwarded = worker.upstream.forward(&call).await;
            worker.observe_reply(began);
            forwarded
        });
        let decide: Boxed<LocalAnswer> =
            Box::pin(local::decide(self.limiter.clone(), decoded.clone()));
        if decoded.answering == Answering::Local {
            let (LocalAnswer { answer, decision }, forwarded) = beside(decide, forward).await;
            ending.outcome = CallOutcome::Enforced;
            let reply = async { UpstreamReply::of(&forwarded.finish().await) };
            self.compare(&decoded, bytes, ready(decision), reply);
            return local::respond(answer);
        }
        let (forwarded, local_answer) = beside(forward, decide).await;
        let reply = UpstreamReply::of(&forwarded);
        let bytes = bytes + reply.len();
        ending.outcome = upstream::outcome_of(&forwarded, &reply);
        if matches!(reply, UpstreamReply::Message(_))
            || self.worker.on_upstream_error() == OnUpstreamError::Error
        {
            let decision = async { local_answer.finish().await.decision };
            self.compare(&decoded, bytes, decision, ready(reply));
            return upstream::respond(forwarded);
        }
        let LocalAnswer { answer, decision } = local_answer.finish().await;
        self.compare(&decoded, bytes, ready(decision), ready(reply));
        if answer.is_err() {
            return upstream::respond(forwarded);
        }
        ending.outcome = CallOutcome::Decided;
        local::respond(answer)
    }

    fn compare(
        &self,
        decoded: &DecodedCall,
        bytes: usize,
        decision: impl Future<Output = Option<Decision>> + Send + 'static,
        reply: impl Future<Output = UpstreamReply> + Send + 'static,
    ) {
        let message = decoded.message.clone();
        let reply = async { reply.await.decode() };
        self.worker.compare_later(decoded.domain.clone(), bytes, decision, reply, move |view| {
            described(&message, view)
        });
    }
}

impl<T> Progress<T> {
    async fn finish(self) -> T {
        match self {
            Self::Done(done) => done,
            Self::Pending(pending) => pending.await,
        }
    }
}

/// Runs both until the first one, which is polled first, is done.
async fn beside<T, O>(mut first: Boxed<T>, mut other: Boxed<O>) -> (T, Progress<O>) {
    let mut done = None;
    let output = poll_fn(|context| {
        let output = first.as_mut().poll(context);
        if done.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(context)
        {
            done = Some(output);
        }
        output
    })
    .await;
    (output, done.map_or(Progress::Pending(other), Progress::Done))
}

/// Reads a reply of the upstream as it was received, and compares it with a request of this many
/// descriptors that no rule applies to. The number of differences; `None` if it is not comparable.
/// For fuzz targets.
pub fn differences_of(reply: &[u8], descriptors: usize) -> Option<usize> {
    let reply = upstream::decoded(&Bytes::copy_from_slice(reply))?;
    let decision = Decision {
        time: Time::default(),
        response: Ok(false),
        descriptors: vec![Outcome::default(); descriptors],
    };
    let (_, differences) = compare_request(&decision, &reply, Time::default())?;
    Some(differences.len())
}

fn described(message: &[u8], view: &DescriptorView) -> Quoted<Vec<String>> {
    let Ok((query, _)) = decode::query(message) else {
        return Quoted::default();
    };
    view.shown(&query, SHOWN_DESCRIPTORS_MAX)
}
