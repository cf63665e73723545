//! Admits gRPC calls: each needs a stream and bytes in the budget of its connection.
//!
//! Admission is in front of all services, so health checks, watches and reflection are bounded as
//! ShouldRateLimit is.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{self, BoxFuture};
use http::{HeaderMap, Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service as _;

use crate::api::budget::{BYTES_REASON, CallInFlight, ConnectionBudget};
use crate::api::codec;
use crate::api::request_body::RequestBody;
use crate::api::rls::generated::rate_limit_service_server::RateLimitServiceServer;
use crate::api::rls::{self, Rls};
use crate::api::trial::TrialRls;
use crate::telemetry::metric::Counter;

/// Memory of a header besides its bytes: its entry in the map of headers.
const HEADER_BYTES: usize = 128;
const STREAMS_REASON: &str = "too many calls are in flight (streams_max)";

/// The gRPC services of a worker.
pub(crate) struct Services {
    pub(crate) rls: RateLimitServiceServer<Rls>,
    /// Is asked for ShouldRateLimit instead of `rls` during a trial.
    pub(crate) trial: Option<TrialRls>,
    /// Health and reflection.
    pub(crate) others: Routes,
    /// Counts messages that are too large.
    pub(crate) oversized: Counter,
}

/// The gRPC services of a worker, behind the bounds of one connection.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) services: Arc<Services>,
    pub(crate) budget: Arc<ConnectionBudget>,
}

/// The body of a response. Its call, if it was admitted, is in flight until the body is sent.
pub(crate) struct ResponseBody {
    body: Body,
    _call: Option<Arc<CallInFlight>>,
}

impl Admission {
    /// Serves a call, or rejects it. The future is small, since hyper moves it several times: the
    /// request goes into the box of its service at once.
    pub(crate) fn call(
        self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
        let is_forwarded = self.services.forwards(&request);
        let (served, call) = match self.admit(request.headers()) {
            Ok(call) => {
                let call = Arc::new(call);
                let compression = codec::compression_of(request.headers());
                let request = request.map(|body| RequestBody::new(body, call.clone(), compression));
                (self.services.serve(request), Some(call))
            }
            Err(reason) => {
                let response = Status::resource_exhausted(reason).into_http();
                (future::ready(Ok(response)).boxed(), None)
            }
        };
        served.map(move |response| {
            let Ok(response) = response;
            if let Some(call) = &call {
                call.answer();
            }
            // Replies to a trial stay as they are.
            let response =
                if is_forwarded { response } else { self.services.rename_oversized(response) };
            Ok(response.map(|body| ResponseBody { body, _call: call }))
        })
    }

    fn admit(&self, headers: &HeaderMap) -> Result<CallInFlight, &'static str> {
        let call = self.budget.begin().ok_or(STREAMS_REASON)?;
        if call.hold(bytes_of(headers)) { Ok(call) } else { Err(BYTES_REASON) }
    }
}

impl Services {
    fn serve(
        &self,
        mut request: Request<RequestBody>,
    ) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
        if request.uri().path() != rls::PATH {
            return Box::pin(self.others.clone().call(request));
        }
        if let Some(trial) = self.trial.clone() {
            return Box::pin(async move { Ok(trial.call(request).await) });
        }
        let call = request.body().call.clone();
        request.extensions_mut().insert(call);
        self.rls.clone().call(request)
    }

    /// Whether a trial answers.
    fn forwards<B>(&self, request: &Request<B>) -> bool {
        self.trial.is_some() && request.uri().path() == rls::PATH
    }

    /// tonic reports a message that is too large as OUT_OF_RANGE.
    fn rename_oversized(&self, response: Response<Body>) -> Response<Body> {
        match codec::oversized(response.headers()) {
            Some(status) => {
                self.oversized.inc();
                status.into_http()
            }
            None => response,
        }
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

/// A few bytes on the wire can refer to 16 KiB of headers that were sent before.
fn bytes_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len()).sum()
}
