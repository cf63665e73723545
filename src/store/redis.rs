//! Counts in Redis, so that replicas share their counters.
//!
//! [`Redis`] exists once per process, a [`RedisClient`] once per worker. `client` sends checks, `topology`
//! knows the servers, `connect` connects to them, and `fallback` decides while they are unavailable. What
//! they share is in `shared`.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::RedisError;
use tokio::time::MissedTickBehavior;

use crate::check::{Check, CheckError, Verdicts};
use crate::limit::Share;
use crate::shutdown::Lifecycle;
use crate::store::redis::fallback::local::LocalFallback;
use crate::store::redis::fallback::membership::Membership;
use crate::store::redis::fallback::outage::OutageFallback;
use crate::store::redis::shared::Shared;
use crate::store::redis::topology::health::PROBE_INTERVAL;
use crate::store::redis::topology::pool::NodePool;
use crate::telemetry::metric::Metrics;
use crate::time::{Clock, Time};

pub use client::RedisClient;
pub use shared::Options;

pub mod client;
pub mod connect;
pub(crate) mod direct_mapped;
pub mod fallback;
pub mod over_limit_cache;
pub mod settings;
mod shared;
pub mod topology;

/// The Redis of a process.
#[derive(Debug)]
pub struct Redis {
    shared: Arc<Shared>,
    fallback: OutageFallback,
    required: bool,
}

impl Redis {
    /// Connects to nothing yet. With a manual clock, Redis gets the time instead of using its own.
    ///
    /// # Errors
    /// An address that the Redis client cannot use.
    pub fn new(options: Options, clock: Clock, metrics: &Metrics) -> Result<Self, RedisError> {
        let required = options.required;
        let membership = Membership::new(
            &options.key_prefix,
            options.main.deployment.database(),
            Share::one_of(options.replicas),
            metrics,
        );
        let shared = Arc::new(Shared::new(options, clock, metrics)?);
        let local = LocalFallback::new(metrics);
        Ok(Self {
            fallback: OutageFallback::new(shared.clone(), local, membership),
            shared,
            required,
        })
    }

    /// A client for the worker that this is called on.
    pub fn open(&self) -> RedisClient {
        RedisClient::new(self.shared.clone())
    }

    /// Discovers and probes servers, logs their faults, and writes hits of outages back, for as long as
    /// the process lives.
    pub async fn maintain(self: Arc<Self>, lifecycle: Lifecycle) {
        let fallback = &self.fallback;
        let pools = self.shared.pools().map(|pool| {
            topology::maintain(pool, move |node| async move {
                fallback.before_use(pool, &node).await
            })
        });
        tokio::join!(
            join_all(pools),
            fallback.run(&lifecycle),
            self.report(&lifecycle),
        );
    }

    /// Reports readiness and active faults.
    async fn report(&self, lifecycle: &Lifecycle) {
        let pools = || self.shared.pools();
        let mut reported = None;
        let mut interval = tokio::time::interval(PROBE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_ready = !self.required || pools().all(NodePool::is_reachable);
            let faults = pools()
                .map(NodePool::summary)
                .collect::<Vec<_>>()
                .join("; ");
            let current = Some((is_ready, faults));
            if reported != current {
                if let Some((is_ready, faults)) = &current {
                    lifecycle.set_store(*is_ready, faults.clone());
                }
                reported = current;
            }
            interval.tick().await;
        }
    }

    /// Whether every server was reachable at some time, or one node of each cluster.
    pub(crate) fn was_reachable(&self) -> bool {
        self.shared.pools().all(NodePool::was_reachable)
    }

    /// Whether the process reports NOT_SERVING while Redis is unreachable.
    pub(crate) fn is_required(&self) -> bool {
        self.required
    }

    /// Decides checks without a verdict of Redis, against this replica's share of each limit.
    pub fn decide_locally(
        &self,
        checks: &[(&Check, CheckError)],
        all_or_nothing: bool,
        now: Time,
    ) -> Verdicts {
        self.fallback.decide(checks, all_or_nothing, now)
    }
}

impl fmt::Display for Redis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.shared.main.deployment())?;
        match &self.shared.per_second {
            Some(pool) => write!(
                formatter,
                ", and {} for limits per second",
                pool.deployment()
            ),
            None => Ok(()),
        }
    }
}
