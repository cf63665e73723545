//! Metrics of the servers of Redis: sums over all deployments, which share them.

use crate::store::redis::topology::fault::FaultKind;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

#[derive(Debug)]
pub(crate) struct ServerMetrics {
    pub(super) nodes: Gauge,
    pub(super) topology_changes: Counter,
    pub(super) topology_failures: Counter,
    pub(super) breakers_open: Gauge,
    pub(super) breakers_opened: Counter,
    pub(super) faults: [Gauge; FaultKind::ALL.len()],
    pub(super) probes_failed: Counter,
    /// Replies beyond their bound.
    pub(super) oversized: Counter,
    /// Unconfirmed lifetimes beyond their bound.
    pub(crate) lifetimes_lost: Counter,
}

impl ServerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            nodes: metrics.gauge("tollgate_store_nodes", "Redis masters in use."),
            topology_changes: metrics.counter(
                "tollgate_store_topology_changes_total",
                "Changes of the Redis topology: failovers and moved slots.",
            ),
            topology_failures: metrics.counter(
                "tollgate_store_topology_failures_total",
                "Failed topology discoveries: no sentinel or cluster node named the masters.",
            ),
            breakers_open: metrics.gauge(
                "tollgate_store_breaker_open",
                "Redis servers whose circuit breaker is open.",
            ),
            breakers_opened: metrics
                .counter("tollgate_store_breaker_opened_total", "Times a circuit breaker opened."),
            faults: FaultKind::ALL.map(|kind| {
                metrics.gauge_with(
                    "tollgate_store_fault",
                    "Redis servers with this kind of fault.",
                    &[("kind", kind.name())],
                )
            }),
            probes_failed: metrics.counter(
                "tollgate_store_probes_failed_total",
                "Failed probes of servers whose circuit breaker is open.",
            ),
            oversized: metrics.counter(
                "tollgate_store_replies_oversized_total",
                "Connections to Redis closed because of replies or heartbeats beyond their bound (redis_reply_bytes_max, redis_reply_lines_max, redis_line_bytes_max, discovery_bytes_max, heartbeat_bytes_max).",
            ),
            lifetimes_lost: metrics.counter(
                "tollgate_store_expiries_unconfirmed_total",
                "Keys that may stay in Redis without an expiry: too many were unconfirmed (lifetimes_bytes_max).",
            ),
        }
    }
}
