//! Counts connections to Redis.

use crate::telemetry::mapper::escaped;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// Counts of connections, also under the names of envoyproxy/ratelimit.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionMetrics {
    made: Counter,
    open: Gauge,
    closed: Counter,
    /// Closed by the peer while no call was in flight.
    pub(crate) closed_idle: Counter,
}

/// Counts as an open connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(ConnectionMetrics);

impl ConnectionMetrics {
    /// `name` is that of the pool in envoyproxy/ratelimit.
    pub(crate) fn new(pool: &str, name: &str, metrics: &Metrics) -> Self {
        let help = "Connections made to Redis, except for discovery.";
        let closed = "Connections to Redis closed by either side.";
        let made =
            metrics.counter_with("tollgate_store_connections_total", help, &[("pool", pool)]);
        let statsd = |metric| format!("ratelimit.{name}.{metric}");
        metrics.reference_counter_of(&made, &statsd("cx_total"), help);
        let active = statsd("cx_active");
        let local_close = statsd("cx_local_close");
        let open = "Open connections to Redis.";
        Self {
            made,
            open: metrics.reference_gauge(&active, &escaped(&active), open),
            closed: metrics.reference_counter(&local_close, &escaped(&local_close), closed, &[]),
            closed_idle: metrics.counter_with(
                "tollgate_store_connections_closed_idle_total",
                "Connections closed by Redis, or by a proxy before it, while no call was in flight.",
                &[("pool", pool)],
            ),
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
