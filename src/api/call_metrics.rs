//! Counts and times the calls of a gRPC method, under the reference's names.

use crate::base::time::{Clock, Time};
use crate::telemetry::metric::{Counter, Metrics, Timer};

/// The metrics of ShouldRateLimit. Clones share them.
#[derive(Debug, Clone)]
pub struct RlsMetrics {
    pub(crate) calls: CallMetrics,
    /// Messages, and bodies of `/json`, that are too large.
    pub(crate) oversized: Counter,
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
        }
    }
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
