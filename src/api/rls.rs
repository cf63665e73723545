//! RateLimitService: borrow, ask, convert. No decisions.

use tonic::{Request, Response, Status};

use crate::api::convert;
use crate::limiter::Limiter;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::rules::query::Query;
use crate::telemetry::metric::{Counter, Metrics, Timer};
use crate::time::{Clock, Time};

/// How long the caller waits.
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The service.
#[derive(Debug, Clone)]
pub struct Rls {
    limiter: Limiter,
    calls: Calls,
}

/// Calls of one gRPC method, as the reference counts them.
#[derive(Debug, Clone)]
pub struct Calls {
    total: Counter,
    time: Timer,
}

impl Rls {
    /// A door to the limiter.
    pub fn new(limiter: Limiter, calls: Calls) -> Self {
        Self { limiter, calls }
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
        let request = request.into_inner();
        let answer = self.limiter.answer(&Query { deadline, ..convert::query(&request) }).await;
        self.calls.count(began, clock);
        answer.map(|answer| Response::new(convert::response(answer))).map_err(|refusal| convert::status(&refusal))
    }
}
