//! RateLimitService: borrow, ask, convert. No decisions.

use tonic::{Code, Request, Response, Status};

use crate::api::convert;
use crate::limiter::Limiter;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::rules::query::Query;
use crate::telemetry::metric::{Counter, Metrics, Timer};
use crate::telemetry::traces::{Kind, LiveSpan, Traces};
use crate::time::{Clock, Time};

/// How long the caller waits.
const GRPC_TIMEOUT: &str = "grpc-timeout";
/// The name of a call's span, and of its parts, as OpenTelemetry's library for gRPC has them.
const SPAN: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SPAN_ATTRIBUTES: [(&str, &str); 3] =
    [("rpc.system", "grpc"), ("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"), ("rpc.method", "ShouldRateLimit")];
const SPAN_STATUS: &str = "rpc.grpc.status_code";

/// The service.
#[derive(Debug, Clone)]
pub struct Rls {
    limiter: Limiter,
    calls: Calls,
    traces: Traces,
}

/// Calls of one gRPC method, as the reference counts them.
#[derive(Debug, Clone)]
pub struct Calls {
    total: Counter,
    time: Timer,
}

impl Rls {
    /// A door to the limiter.
    pub fn new(limiter: Limiter, calls: Calls, traces: Traces) -> Self {
        Self { limiter, calls, traces }
    }
}

impl Calls {
    /// The metrics of a method.
    pub fn of(method: &str, metrics: &Metrics) -> Self {
        let labels = [("grpc_method", method)];
        let statsd = |what: &str| format!("ratelimit_server.{method}.{what}");
        let (total, time) = ("gRPC calls, by method.", "How long a gRPC call took in here.");
        Self {
            total: metrics.reference_counter(&statsd("total_requests"), "ratelimit_service_total_requests", total, &labels),
            time: metrics.reference_timer(&statsd("response_time"), "ratelimit_service_response_time_seconds", time, &labels),
        }
    }

    /// Counts a call that began then, and ends now.
    pub fn count(&self, began: Time, clock: &Clock) {
        self.total.inc();
        self.time.observe(clock.now().since(began));
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(&self, request: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        let clock = self.limiter.clock();
        let began = clock.now();
        let deadline = request.metadata().get(GRPC_TIMEOUT).and_then(|timeout| convert::deadline(timeout.to_str().ok()?, began));
        let mut span = self.traces.begin(SPAN, Kind::Server, request.metadata().as_ref()).map(begun);
        let request = request.into_inner();
        let answer = self.limiter.answer_within(&Query { deadline, ..convert::query(&request) }, span.as_ref()).await;
        self.calls.count(began, clock);
        let answer = answer.map(|answer| Response::new(convert::response(answer))).map_err(|refusal| convert::status(&refusal));
        if let Some(span) = &mut span {
            ended(span, answer.as_ref().err());
        }
        answer
    }
}

/// Until there is an answer, whoever looks at its span sees a call that its caller gave up.
fn begun(mut span: LiveSpan) -> LiveSpan {
    for (key, value) in SPAN_ATTRIBUTES {
        span.tell(key, value);
    }
    span.tell_number(SPAN_STATUS, Code::Cancelled as i32);
    span
}

fn ended(span: &mut LiveSpan, status: Option<&Status>) {
    let code = status.map_or(Code::Ok, Status::code);
    span.tell_number(SPAN_STATUS, code as i32);
    // As OpenTelemetry has it: an error that is the caller's own is none of the server's.
    if let Some(status) = status.filter(|_| matches!(code, Code::Unknown | Code::Unavailable)) {
        span.fail(status.message());
    }
}
