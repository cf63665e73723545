//! Admits gRPC calls: each needs a stream and bytes in the budget of its connection, and its message
//! in time.
//!
//! It is in front of all services, so that health checks, watches and reflection are bounded as
//! ShouldRateLimit is.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service as _;

use crate::api::budget::{Call, ConnectionBudget};
use crate::telemetry::metric::Counter;

/// Time for a request to arrive, from its head to the end of its stream. Envoy sends a call at once,
/// and waits 20 ms.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Memory of a header besides its bytes: its entry in the map of headers.
const HEADER_BYTES: usize = 128;
const STREAMS_REASON: &str = "too many calls are in flight (streams_max)";
const BYTES_REASON: &str =
    "too many bytes are in flight (message_bytes_in_flight_max, message_bytes_per_connection_max)";
const GRPC_STATUS: &str = "grpc-status";
const OUT_OF_RANGE: HeaderValue = HeaderValue::from_static("11");
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// The gRPC services of a worker, behind the bounds of one connection.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) routes: Routes,
    pub(crate) budget: Arc<ConnectionBudget>,
    /// Counts messages that are too large.
    pub(crate) oversized: Counter,
}

/// The body of a request: charges its bytes as they arrive, and fails when they are late.
struct RequestBody {
    body: Incoming,
    call: Arc<Call>,
    /// Set when the body is pending for the first time.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Admission {
    /// Serves a call, or rejects it. The call is in flight until the body of its response is sent.
    pub(crate) async fn call(
        mut self,
        request: Request<Incoming>,
    ) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Status>>, Infallible> {
        let (mut response, call) = match self.admit(request.headers()) {
            Ok(call) => {
                let call = Arc::new(call);
                let mut request = request.map(|body| RequestBody {
                    body,
                    call: call.clone(),
                    deadline: None,
                });
                // The decoder charges what the decoded message takes.
                request.extensions_mut().insert(call.clone());
                let Ok(response) = self.routes.call(request).await;
                (response, Some(call))
            }
            Err(reason) => (Status::resource_exhausted(reason).into_http(), None),
        };
        if rename_oversized(&mut response) {
            self.oversized.inc();
        }
        Ok(response.map(|body| {
            body.map_frame(move |frame| {
                let _held = &call;
                frame
            })
        }))
    }

    fn admit(&self, headers: &HeaderMap) -> Result<Call, &'static str> {
        let call = self.budget.begin().ok_or(STREAMS_REASON)?;
        if call.hold(bytes_of(headers)) {
            Ok(call)
        } else {
            Err(BYTES_REASON)
        }
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let deadline = this
                .deadline
                .get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            ready!(deadline.as_mut().poll(context));
            this.call.count_late();
            let late = "the request did not arrive in time (message_timeout)";
            return Poll::Ready(Some(Err(Status::deadline_exceeded(late).into())));
        };
        let arrived = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, Bytes::len);
        Poll::Ready(if this.call.hold(arrived) {
            frame.map(|frame| frame.map_err(Into::into))
        } else {
            Some(Err(no_bytes_left().into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The error of a call that needs more bytes than are left.
pub(crate) fn no_bytes_left() -> Status {
    Status::resource_exhausted(BYTES_REASON)
}

/// A few bytes on the wire can refer to 16 KiB of headers that were sent before.
fn bytes_of(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len())
        .sum()
}

/// tonic reports a message that is too large as OUT_OF_RANGE, which no service here uses.
/// envoyproxy/ratelimit and the documentation of gRPC use RESOURCE_EXHAUSTED.
fn rename_oversized(response: &mut Response<Body>) -> bool {
    match response.headers_mut().get_mut(GRPC_STATUS) {
        Some(status) if *status == OUT_OF_RANGE => {
            *status = RESOURCE_EXHAUSTED;
            true
        }
        _ => false,
    }
}
