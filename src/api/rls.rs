//! RateLimitService: decodes a request, asks the limiter, converts the response.

use http::HeaderMap;
use tonic::{Code, Status};

use crate::api::call_metrics::RlsMetrics;
use crate::api::convert;
use crate::api::decode::{self, QueryError};
use crate::api::request_body::{RequestBody, no_bytes_left};
use crate::api::unary::{ReadError, read_message};
use crate::limiter::Limiter;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::rules::query::Query;
use crate::telemetry::traces::{LiveSpan, Traces};

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
        Self {
            limiter,
            metrics,
            traces,
        }
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

    /// Serves one call.
    ///
    /// # Errors
    /// The message cannot be read, and those of [`Self::should_rate_limit`].
    pub(crate) async fn call(
        &self,
        headers: &HeaderMap,
        body: &mut RequestBody,
    ) -> Result<RateLimitResponse, Status> {
        let message = match read_message(headers, &mut *body).await {
            Ok(message) => message,
            Err(ReadError::Oversized(status)) => {
                self.metrics.oversized.inc();
                return Err(status);
            }
            Err(ReadError::Other(status)) => return Err(status),
        };
        // Boxed: a call is moved several times before it begins, and may wait for its message.
        Box::pin(async {
            let (mut query, size) = decode::query(&message).map_err(|error| self.reject(&error))?;
            if !body.call.hold(size.bytes()) {
                return Err(no_bytes_left());
            }
            self.should_rate_limit(headers, &mut query).await
        })
        .await
    }

    /// Decides a request. `headers` may have a grpc-timeout, which sets the deadline, and a trace.
    ///
    /// # Errors
    /// The status of [`convert::status`].
    pub async fn should_rate_limit(
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
        let answer = answer
            .map(convert::response)
            .map_err(|error| convert::status(&error));
        if let Some(span) = &mut span {
            end_attributes(span, answer.as_ref().err());
        }
        answer
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
