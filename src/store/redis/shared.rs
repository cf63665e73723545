//! The Redis of a process: what all its workers share. Data only; `client` encodes and decodes.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::base::time::{Clock, Span, Time};
use crate::limits::Limit;
use crate::store::memory::full_logs;
use crate::store::redis::connect::connection::Timeouts;
use crate::store::redis::connect::connection_metrics::ConnectionMetrics;
use crate::store::redis::connect::dialer::Dialer;
use crate::store::redis::durability::Durability;
use crate::store::redis::fallback::local::LocalFallback;
use crate::store::redis::fallback::membership::Membership;
use crate::store::redis::fallback::usage_cache::UsageCache;
use crate::store::redis::lateness::Lateness;
use crate::store::redis::leases::Leases;
use crate::store::redis::over_limit_cache::OverLimitCache;
use crate::store::redis::topology::deployment::{Deployment, PoolOptions};
use crate::store::redis::topology::lifetimes::UnconfirmedLifetimes;
use crate::store::redis::topology::metrics::ServerMetrics;
use crate::store::redis::topology::node::{Node, NodeParts};
use crate::store::redis::topology::pool::NodePool;
use crate::telemetry::metric::{self, Gauge, Histogram, Metrics};

/// The period of limits that may have a Redis of their own.
const PER_SECOND: Span = Span::from_secs(1);

/// Settings of Redis.
#[derive(Debug, Clone)]
pub struct Options {
    /// The main deployment.
    pub main: PoolOptions,
    /// The deployment for limits with a period of one second, if there is one.
    pub per_second: Option<PoolOptions>,
    /// The longest time of a decision.
    pub store_timeout: Span,
    /// Whether the process reports NOT_SERVING while Redis is unreachable.
    pub required: bool,
    /// The longest time that the key of a window outlives it, to spread expiry; zero disables it.
    pub expiration_jitter_max: Span,
    /// Memory of the over-limit cache; zero disables it.
    pub over_limit_cache_bytes: u64,
    /// Replicas that share the limits, until heartbeats count them; without a number, one.
    pub replicas: Option<NonZeroU32>,
    /// The first part of all keys.
    pub key_prefix: Box<str>,
    /// Opens connections.
    pub dialer: Dialer,
}

/// The Redis of a process: servers, caches, clock and metrics.
#[derive(Debug)]
pub struct Redis {
    pub(crate) main: NodePool,
    pub(crate) per_second: Option<NodePool>,
    pub(crate) store_timeout: Span,
    pub(crate) lateness: Lateness,
    pub(crate) expiration_jitter_max: Span,
    pub(crate) over_limit_cache: Option<OverLimitCache>,
    pub(crate) leases: Leases,
    pub(crate) usage: UsageCache,
    /// Decides while Redis is unavailable.
    pub(crate) local: LocalFallback,
    pub(crate) membership: Membership,
    pub(crate) durability: Durability,
    /// Whether the process reports NOT_SERVING while Redis is unreachable.
    pub(crate) required: bool,
    pub(crate) clock: Clock,
    pub(crate) metrics: RedisMetrics,
}

#[derive(Debug)]
pub(crate) struct RedisMetrics {
    pub(crate) seconds: Histogram,
    pub(crate) checks: Histogram,
    pub(crate) in_flight: Gauge,
    pub(crate) full: metric::Counter,
    pub(crate) abandoned: metric::Counter,
    pub(crate) ambiguous: metric::Counter,
    pub(crate) unknown_script: metric::Counter,
    pub(crate) full_logs: metric::Counter,
    /// MOVED, ASK and TRYAGAIN.
    pub(crate) redirects: [metric::Counter; 3],
}

impl Redis {
    /// Connects to nothing yet. With a manual clock, Redis gets the time instead of using its own.
    pub fn new(options: Options, clock: Clock, metrics: &Metrics) -> Self {
        let servers = Arc::new(ServerMetrics::new(metrics));
        let pool = |pool: PoolOptions, connections: ConnectionMetrics| {
            let timeouts = Timeouts {
                connect: pool.connect_timeout.into(),
                reply: options.store_timeout.into(),
            };
            let parts = NodeParts {
                has_slots: matches!(pool.deployment, Deployment::Cluster(_)),
                timeouts,
                dialer: options.dialer.clone(),
                clock: clock.clone(),
                connections,
                metrics: servers.clone(),
                lifetimes: Arc::new(UnconfirmedLifetimes::new(servers.lifetimes_lost.clone())),
                refresh: Arc::new(Notify::new()),
            };
            NodePool::new(pool.deployment, parts)
        };
        let per_second = options.per_second.map(|options| {
            pool(options, ConnectionMetrics::new("per_second", "redis_per_second_pool", metrics))
        });
        let membership = Membership::new(
            &options.key_prefix,
            options.main.deployment.database(),
            options.replicas,
            metrics,
        );
        let cache_bytes = options.over_limit_cache_bytes;
        Self {
            main: pool(options.main, ConnectionMetrics::new("main", "redis_pool", metrics)),
            per_second,
            store_timeout: options.store_timeout,
            lateness: Lateness::new(options.store_timeout),
            expiration_jitter_max: options.expiration_jitter_max,
            over_limit_cache: (cache_bytes > 0).then(|| OverLimitCache::new(cache_bytes, metrics)),
            leases: Leases::new(metrics),
            usage: UsageCache::new(metrics),
            local: LocalFallback::new(metrics),
            membership,
            durability: Durability::new(metrics),
            required: options.required,
            clock,
            metrics: RedisMetrics::new(metrics),
        }
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = &NodePool> {
        std::iter::once(&self.main).chain(&self.per_second)
    }

    /// The pool that counts a limit.
    pub(crate) fn pool_of(&self, limit: &Limit) -> &NodePool {
        self.per_second.as_ref().filter(|_| self.is_per_second(limit)).unwrap_or(&self.main)
    }

    /// Whether a limit is counted by the per-second Redis. A lease is no period, and limits that
    /// are decided with others are in the main one.
    pub(crate) fn is_per_second(&self, limit: &Limit) -> bool {
        self.per_second.is_some()
            && limit.period == PER_SECOND
            && !limit.algorithm.counts_holders()
            && !limit.chained
    }

    /// The server that forwards messages between processes: any of a cluster sends them to all
    /// others.
    pub(crate) fn home(&self) -> Option<Arc<Node>> {
        let topology = self.main.topology();
        let mut nodes = topology.nodes.iter();
        nodes.find(|node| !node.health.breaker.is_open()).cloned()
    }

    /// The time to send to Redis. It uses its own clock unless a test sets the time.
    pub(crate) fn clock_for_redis(&self) -> Option<Time> {
        self.clock.is_manual().then(|| self.clock.now())
    }
}

impl RedisMetrics {
    fn new(metrics: &Metrics) -> Self {
        let redirects = |kind| {
            metrics.counter_with(
                "tollgate_store_redirects_total",
                "Checks that a cluster node redirected because their slot had moved or was migrating.",
                &[("kind", kind)],
            )
        };
        Self {
            seconds: metrics.latency(
                "tollgate_store_call_seconds",
                "Latency of one call to Redis, with all of its checks; STORE_TIMEOUT if there was no reply.",
                &[],
            ),
            checks: metrics.sizes("tollgate_store_batch_checks", "Checks of one call to Redis."),
            in_flight: metrics.gauge(
                "tollgate_store_calls_in_flight",
                "Calls to Redis without a reply so far.",
            ),
            full: metrics.counter(
                "tollgate_store_batches_full_total",
                "Calls to Redis with as many checks as one may have (batch_size_max), so that other requests had to wait.",
            ),
            full_logs: full_logs("store", metrics),
            abandoned: metrics.counter(
                "tollgate_store_abandoned_total",
                "Requests whose caller gave up before they were sent to Redis. They were not counted.",
            ),
            ambiguous: metrics.counter(
                "tollgate_store_ambiguous_total",
                "Requests with an unknown outcome: sent to Redis, no reply in time.",
            ),
            redirects: ["moved", "ask", "again"].map(redirects),
            unknown_script: metrics.counter(
                "tollgate_store_script_unknown_total",
                "Calls that sent the whole script again because Redis had lost it: after a restart, a failover or a flush.",
            ),
        }
    }
}
