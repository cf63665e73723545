//! RateLimitService: decodes a request, asks the limiter, converts the response.

use std::sync::Arc;

use http::HeaderMap;
use prost::bytes::Bytes;
use tonic::{Code, Request, Response, Status};

use crate::api::budget::{BYTES_REASON, CallInFlight};
use crate::api::call_metrics::RlsMetrics;
use crate::api::convert;
use crate::api::decode::{self, QueryError};
use crate::api::rls::generated::rate_limit_service_server::RateLimitService;
use crate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::limiter::Limiter;
use crate::rules::query::Query;
use crate::telemetry::traces::{LiveSpan, Traces};

/// The service of `proto/` as tonic-prost-build generates it with the codec of `codec.rs`.
#[allow(clippy::all, clippy::pedantic, reason = "generated: generated code has its own style")]
pub(crate) mod generated {
    include!(concat!(env!("OUT_DIR"), "/server/envoy.service.ratelimit.v3.rs"));
}

pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Span name and attributes as in OpenTelemetry's instrumentation for gRPC.
const SPAN: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SPAN_ATTRIBUTES: [(&str, &str); 3] = [
    ("rpc.system", "grpc"),
    ("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
    ("rpc.method", "ShouldRateLimit"),
];
const SPAN_STATUS: &str = "rpc.grpc.status_code";

/// The service, without its transport.
#[derive(Debug, Clone)]
pub struct Rls {
    limiter: Limiter,
    pub(crate) metrics: RlsMetrics,
    traces: Traces,
}

impl Rls {
    /// Serves the decisions of a limiter.
    pub fn new(limiter: Limiter, metrics: RlsMetrics, traces: Traces) -> Self {
        Self { limiter, metrics, traces }
    }

    /// The status of a message that is no query.
    fn reject(&self, error: &QueryError) -> Status {
        match error {
            QueryError::Invalid(error) => Status::internal(error.to_string()),
            QueryError::TooLarge(error) => {
                let clock = self.limiter.clock();
                self.limiter.count_invalid();
                self.metrics.calls.observe(clock.now(), clock);
                Status::invalid_argument(error.to_string())
            }
        }
    }

    /// Decides a request. `headers` may have a grpc-timeout, which sets the deadline, and a trace.
    ///
    /// # Errors
    /// The status of [`convert::status`].
    pub async fn decide(
        &self,
        headers: &HeaderMap,
        query: &mut Query<'_>,
    ) -> Result<RateLimitResponse, Status> {
        let clock = self.limiter.clock();
        let began = clock.now();
        query.deadline = self.metrics.deadline(headers, began);
        let mut span = self.traces.begin(SPAN, headers).map(start_attributes);
        let answer = self.limiter.decide(query, span.as_ref()).await;
        self.metrics.calls.observe(began, clock);
        let answer = answer.map(convert::response).map_err(|error| convert::status(&error));
        if let Some(span) = &mut span {
            end_attributes(span, answer.as_ref().err());
        }
        answer
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let message = request.get_ref();
        let (mut query, size) = decode::query(message).map_err(|error| self.reject(&error))?;
        let call = request.extensions().get::<Arc<CallInFlight>>();
        if call.is_some_and(|call| !call.hold(size.bytes())) {
            return Err(Status::resource_exhausted(BYTES_REASON));
        }
        let headers = request.metadata().as_ref();
        let answer = self.decide(headers, &mut query).await;
        answer.map(Response::new)
    }
}

/// The status is CANCELLED until there is a response: a caller that gives up leaves it so.
fn start_attributes(mut span: LiveSpan) -> LiveSpan {
    for (key, value) in SPAN_ATTRIBUTES {
        span.set_attribute(key, value);
    }
    span.set_number(SPAN_STATUS, Code::Cancelled as i32);
    span
}

fn end_attributes(span: &mut LiveSpan, status: Option<&Status>) {
    let code = status.map_or(Code::Ok, Status::code);
    span.set_number(SPAN_STATUS, code as i32);
    // As in OpenTelemetry's conventions: a client's error is not an error of the server.
    if let Some(status) = status.filter(|_| matches!(code, Code::Unknown | Code::Unavailable)) {
        span.fail(status.message());
    }
}
