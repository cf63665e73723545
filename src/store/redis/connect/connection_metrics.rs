//! Counts connections to Redis.

use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// Counts of connections, also under the names of envoyproxy/ratelimit.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionMetrics {
    made: Counter,
    open: Gauge,
    closed: Counter,
}

/// Counts as an open connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(ConnectionMetrics);

impl ConnectionMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let names = [
            "ratelimit_redis_pool_cx_active",
            "ratelimit_redis_pool_cx_local_close",
            "ratelimit_redis_pool_cx_total",
        ];
        Self::named("main", "ratelimit.redis_pool", names, metrics)
    }

    /// For the Redis of REDIS_PERSECOND.
    pub(crate) fn per_second(metrics: &Metrics) -> Self {
        let names = [
            "ratelimit_redis_per_second_pool_cx_active",
            "ratelimit_redis_per_second_pool_cx_local_close",
            "ratelimit_redis_per_second_pool_cx_total",
        ];
        Self::named(
            "per_second",
            "ratelimit.redis_per_second_pool",
            names,
            metrics,
        )
    }

    /// `statsd` precedes the names in statsd.
    fn named(pool: &str, statsd: &str, names: [&'static str; 3], metrics: &Metrics) -> Self {
        let help = "Connections made to Redis, except for discovery.";
        let closed = "Connections to Redis closed by either side.";
        let made =
            metrics.counter_with("tollgate_store_connections_total", help, &[("pool", pool)]);
        let [active, local_close, total] =
            ["cx_active", "cx_local_close", "cx_total"].map(|name| format!("{statsd}.{name}"));
        Self {
            open: metrics.reference_gauge(&active, names[0], "Open connections to Redis."),
            closed: metrics.reference_counter(&local_close, names[1], closed, &[]),
            made: metrics.reference_counter_of(made, &total, names[2], help),
        }
    }
}

impl ConnectionGuard {
    pub(crate) fn new(metrics: &ConnectionMetrics) -> Self {
        metrics.made.inc();
        metrics.open.inc();
        Self(metrics.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.open.dec();
        self.0.closed.inc();
    }
}
