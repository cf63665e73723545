//! Counts and times the calls of a gRPC method, under the reference's names.

use http::{HeaderMap, HeaderName};

use crate::api::convert;
use crate::base::time::{Clock, Span, Time};
use crate::telemetry::metric::{Counter, Histogram, Metrics, Timer};

/// A name that is not parsed for each call.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The metrics of ShouldRateLimit. Clones share them.
#[derive(Debug, Clone)]
pub struct RlsMetrics {
    pub(crate) calls: CallMetrics,
    /// Messages, and bodies of `/json`, that are too large.
    pub(crate) oversized: Counter,
    deadlines: Histogram,
}

/// The metrics of one gRPC method. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CallMetrics {
    total: Counter,
    time: Timer,
}

impl RlsMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            calls: CallMetrics::new("ShouldRateLimit", metrics),
            oversized: metrics.counter(
                "tollgate_oversized_requests_total",
                "gRPC messages and /json bodies rejected because they were larger than 4 MiB.",
            ),
            deadlines: metrics.deadlines(
                "tollgate_call_deadline_seconds",
                "Time that callers of ShouldRateLimit wait for a response (grpc-timeout).",
            ),
        }
    }

    /// When a call that came at `now` must have its response sent, by its grpc-timeout.
    pub(crate) fn deadline(&self, headers: &HeaderMap, now: Time) -> Option<Time> {
        let timeout = grpc_timeout(headers)?;
        self.deadlines.observe(timeout.as_secs_f64());
        Some(convert::deadline_after(timeout, now))
    }
}

/// The grpc-timeout of a call, if it has a valid one.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Span> {
    convert::timeout(headers.get(&GRPC_TIMEOUT)?.to_str().ok()?)
}

impl CallMetrics {
    /// Registers the metrics of a method.
    pub(crate) fn new(method: &str, metrics: &Metrics) -> Self {
        let labels = [("grpc_method", method)];
        let statsd = |suffix: &str| format!("ratelimit_server.{method}.{suffix}");
        Self {
            total: metrics.reference_counter(
                &statsd("total_requests"),
                "ratelimit_service_total_requests",
                "gRPC calls, by method.",
                &labels,
            ),
            time: metrics.reference_timer(
                &statsd("response_time"),
                "ratelimit_service_response_time_seconds",
                "gRPC server latency.",
                &labels,
            ),
        }
    }

    /// Counts a call that began at `began` and ends now.
    pub(crate) fn observe(&self, began: Time, clock: &Clock) {
        self.total.inc();
        self.time.observe(clock.now().since(began));
    }
}
