//! Admits gRPC calls: each needs a stream and bytes in the budget of its connection.
//!
//! Admission is in front of all services, so health checks, watches and reflection are bounded as
//! ShouldRateLimit is.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Bytes;
use futures_util::future::{self, FutureExt as _};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Either;
use hyper::body::{Frame, Incoming, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service as _;

use crate::api::budget::{CallInFlight, ConnectionBudget};
use crate::api::request_body::{BYTES_REASON, RequestBody};
use crate::api::rls::{self, Rls};
use crate::api::trial::TrialRls;
use crate::api::unary::{self, GRPC_STATUS, UnaryBody};

/// Memory of a header besides its bytes: its entry in the map of headers.
const HEADER_BYTES: usize = 128;
const STREAMS_REASON: &str = "too many calls are in flight (streams_max)";
const OUT_OF_RANGE: HeaderValue = HeaderValue::from_static("11");
const RESOURCE_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// The gRPC services of a worker.
pub(crate) struct Services {
    pub(crate) rls: Rls,
    /// Serves instead of `rls` during a trial.
    pub(crate) trial: Option<TrialRls>,
    /// Health and reflection.
    pub(crate) others: Routes,
}

/// The gRPC services of a worker, behind the bounds of one connection.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) services: Arc<Services>,
    pub(crate) budget: Arc<ConnectionBudget>,
}

/// The body of a response. Its call, if it was admitted, is in flight until the body is sent.
pub(crate) struct ResponseBody {
    body: Either<UnaryBody, Body>,
    _call: Option<Arc<CallInFlight>>,
}

impl Admission {
    /// Serves a call, or rejects it.
    pub(crate) fn call(
        self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
        let (served, call) = match self.admit(request.headers()) {
            Ok(call) => {
                let call = Arc::new(call);
                let request = request.map(|body| RequestBody::new(body, call.clone()));
                (
                    future::Either::Left(self.services.serve(request)),
                    Some(call),
                )
            }
            Err(reason) => {
                let response = Status::resource_exhausted(reason).into_http();
                let response = response.map(Either::Left);
                (future::Either::Right(future::ready(response)), None)
            }
        };
        served.map(|response| {
            if let Some(call) = &call {
                call.answer();
            }
            Ok(response.map(|body| ResponseBody { body, _call: call }))
        })
    }

    fn admit(&self, headers: &HeaderMap) -> Result<CallInFlight, &'static str> {
        let call = self.budget.begin().ok_or(STREAMS_REASON)?;
        if call.hold(bytes_of(headers)) {
            Ok(call)
        } else {
            Err(BYTES_REASON)
        }
    }
}

impl Services {
    /// The future of ShouldRateLimit is kept small, since each call moves it several times: it has
    /// what it needs of the request, and all others are boxed.
    fn serve(
        self: Arc<Self>,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Either<UnaryBody, Body>>> {
        if request.uri().path() != rls::PATH || self.trial.is_some() {
            return future::Either::Left(Box::pin(self.serve_other(request)));
        }
        let (head, mut body) = request.into_parts();
        let headers = head.headers;
        future::Either::Right(async move {
            let answer = self.rls.call(&headers, &mut body).await;
            unary::respond(answer).map(Either::Left)
        })
    }

    /// Serves health, reflection, and ShouldRateLimit of a trial.
    async fn serve_other(
        self: Arc<Self>,
        request: Request<RequestBody>,
    ) -> Response<Either<UnaryBody, Body>> {
        if let Some(trial) = &self.trial
            && request.uri().path() == rls::PATH
        {
            let response = trial.call(request).await;
            return response.map(Either::Left);
        }
        let Ok(mut response) = self.others.clone().call(request).await;
        if rename_oversized(&mut response) {
            self.rls.metrics.oversized.inc();
        }
        response.map(Either::Right)
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut self.body {
            Either::Left(body) => Pin::new(body).poll_frame(context),
            Either::Right(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
