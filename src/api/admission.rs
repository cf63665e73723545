//! Admits gRPC calls of one connection: each needs a place and bytes in the budget, and its message
//! in time.
//!
//! It lies around all services alike, so a health check, a watch and reflection are bounded as
//! ShouldRateLimit is.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::api::budget::{Call, ConnectionBudget};
use crate::telemetry::metric::Counter;

/// How long all of a request may take to arrive, from its head to the end of its stream. Envoy
/// sends a call at once, and waits 20 ms.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// What a header takes besides its bytes: its place in the map of headers.
const HEADER_BYTES: usize = 128;
const STREAMS_REASON: &str = "too many calls are in flight (streams_max)";
const BYTES_REASON: &str =
    "too many bytes are in flight (message_bytes_in_flight_max, message_bytes_per_connection_max)";
const GRPC_STATUS: &str = "grpc-status";
const OUT_OF_RANGE: HeaderValue = HeaderValue::from_static("11");
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// Admits the calls of one connection.
#[derive(Debug, Clone)]
pub struct AdmissionLayer {
    connection: ConnectionBudget,
    oversized: Counter,
}

/// See [`AdmissionLayer`].
#[derive(Debug, Clone)]
pub struct Admission<S> {
    inner: S,
    layer: AdmissionLayer,
}

/// A request's body: its bytes are charged as they arrive, and they have to arrive in time.
struct RequestBody {
    body: Body,
    call: Arc<Call>,
    /// Set when the first bytes are missing.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// A response's body: until it was sent, the call is in flight.
#[derive(Debug)]
pub struct ResponseBody {
    body: Body,
    _call: Option<Arc<Call>>,
}

pin_project! {
    /// A call that was admitted, or rejected.
    pub struct Admitted<F> {
        #[pin]
        serving: Option<F>,
        // The bound that it met, if it was rejected.
        rejected: &'static str,
        call: Option<Arc<Call>>,
        oversized: Counter,
    }
}

impl AdmissionLayer {
    /// Admits calls as far as the budget of their connection goes. `oversized` counts messages that
    /// are too large.
    pub fn new(connection: ConnectionBudget, oversized: Counter) -> Self {
        Self {
            connection,
            oversized,
        }
    }

    /// A place for a call with these headers.
    fn admit(&self, headers: &HeaderMap) -> Result<Call, &'static str> {
        let call = self.connection.begin().ok_or(STREAMS_REASON)?;
        if call.hold(bytes_of(headers)) {
            Ok(call)
        } else {
            Err(BYTES_REASON)
        }
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Admission<S> {
        Admission {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S: Service<Request<Body>, Response = Response<Body>>> Service<Request<Body>> for Admission<S> {
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = Admitted<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let oversized = self.layer.oversized.clone();
        let call = match self.layer.admit(request.headers()) {
            Ok(call) => Arc::new(call),
            Err(rejected) => {
                return Admitted {
                    serving: None,
                    rejected,
                    call: None,
                    oversized,
                };
            }
        };
        let mut request = request.map(|body| {
            Body::new(RequestBody {
                body,
                call: call.clone(),
                deadline: None,
            })
        });
        // The decoder lets it hold what the message takes once it is decoded.
        request.extensions_mut().insert(call.clone());
        Admitted {
            serving: Some(self.inner.call(request)),
            rejected: "",
            call: Some(call),
            oversized,
        }
    }
}

impl<F: Future<Output = Result<Response<Body>, E>>, E> Future for Admitted<F> {
    type Output = Result<Response<ResponseBody>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.serving.as_pin_mut() {
            Some(serving) => ready!(serving.poll(context))?,
            None => Status::resource_exhausted(*this.rejected).into_http(),
        };
        name_oversized(&mut response, this.oversized);
        Poll::Ready(Ok(response.map(|body| ResponseBody {
            body,
            _call: this.call.take(),
        })))
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let deadline = this
                .deadline
                .get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            ready!(deadline.as_mut().poll(context));
            this.call.count_late();
            return Poll::Ready(Some(Err(Status::deadline_exceeded(
                "the request did not arrive in time (message_timeout)",
            ))));
        };
        let arrived = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, Bytes::len);
        Poll::Ready(if this.call.hold(arrived) {
            frame
        } else {
            Some(Err(no_bytes_left()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The error of a call that holds more bytes than are left.
pub fn no_bytes_left() -> Status {
    Status::resource_exhausted(BYTES_REASON)
}

/// A few bytes on the wire can stand for 16 KiB of headers, if they were sent before.
fn bytes_of(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len())
        .sum()
}

/// tonic reports a message that is too large as OUT_OF_RANGE, which no service here uses.
/// envoyproxy/ratelimit and the documentation of gRPC use RESOURCE_EXHAUSTED.
fn name_oversized(response: &mut Response<Body>, oversized: &Counter) {
    if let Some(status) = response
        .headers_mut()
        .get_mut(GRPC_STATUS)
        .filter(|status| **status == OUT_OF_RANGE)
    {
        *status = RESOURCE_EXHAUSTED;
        oversized.inc();
    }
}
