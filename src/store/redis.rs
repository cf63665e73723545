//! Counts in Redis, so that replicas share their counters.
//!
//! [`Redis`] exists once per process, a [`RedisClient`] once per worker. `client` sends checks,
//! `topology` knows the servers, `connect` connects to them, and `fallback` decides while they are
//! unavailable.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::base::shutdown::{Lifecycle, StoreProblem};
use crate::base::text::counted;
use crate::base::time::ticks;
use crate::store::redis::fallback::peers::HEARTBEAT_INTERVAL;
use crate::store::redis::topology::health::{Health, PROBE_INTERVAL};
use crate::store::redis::topology::pool::NodePool;

pub use client::RedisClient;
pub use shared::{Options, Redis};

pub mod client;
pub mod connect;
pub(crate) mod direct_mapped;
pub(crate) mod durability;
pub mod fallback;
pub(crate) mod lateness;
pub(crate) mod leases;
mod operator;
pub mod over_limit_cache;
pub mod settings;
mod shared;
pub(crate) mod status;
pub mod topology;

/// How soon a process that starts learns that Redis is unreachable.
const FAILURE_INTERVAL: Duration = Duration::from_millis(5);
/// Rules that one line names.
const RULES_NAMED_MAX: usize = 10;

impl Redis {
    /// A client for the worker that this is called on.
    pub fn open(self: &Arc<Self>) -> RedisClient {
        RedisClient::new(self.clone())
    }

    /// Discovers and probes servers, logs their faults, and writes hits of outages back, for as
    /// long as the process lives.
    pub async fn maintain(self: Arc<Self>, lifecycle: Lifecycle) {
        let redis = &*self;
        let pools = redis.pools().map(|pool| topology::maintain(redis, pool));
        let required = redis.pools().filter(|_| redis.required);
        tokio::join!(
            join_all(pools),
            join_all(required.map(topology::watch_use)),
            redis.membership.run_heartbeats(
                || redis.home(),
                |change| redis.on_change(change),
                &redis.clock,
                &lifecycle
            ),
            redis.local.counters.sweep_on(redis.clock.clone()),
            redis.write_back_to_all(),
            self.keep_leases(&lifecycle),
            redis.report(&lifecycle),
        );
    }

    /// Waits until the share of this process is known: an outage may begin at once. It is not if
    /// Redis is unreachable, or if peers do not answer.
    async fn peers_known(&self) {
        let failed = async {
            while !self.main.has_failed() {
                tokio::time::sleep(FAILURE_INTERVAL).await;
            }
        };
        tokio::select! {
            () = self.membership.settled() => {}
            () = failed => {}
            () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
        }
    }

    /// Reports readiness and active faults.
    async fn report(&self, lifecycle: &Lifecycle) {
        self.peers_known().await;
        let pools = || self.pools();
        let mut reported = None;
        let mut interval = ticks(PROBE_INTERVAL);
        loop {
            let is_ready = !self.required || pools().all(NodePool::is_reachable);
            let faults = pools().map(NodePool::summary).collect::<Vec<_>>().join("; ");
            let current = Some((is_ready, faults.clone()));
            if reported != current {
                lifecycle.set_store(is_ready, faults);
                reported = current;
            }
            interval.tick().await;
        }
    }

    /// What a Redis leaves undone that refuses commands which only some limits need. `scripted`
    /// has the rules that need its script.
    pub(crate) fn refusal(&self, scripted: impl Fn() -> Vec<String>) -> Option<StoreProblem> {
        let refused = self.pools().find_map(|pool| pool.find(|health| health.refusals.causes()))?;
        let rules = scripted();
        let named = rules[..rules.len().min(RULES_NAMED_MAX)].join(", ");
        let needing = match rules.len() {
            0 => "no rule needs EVALSHA".to_owned(),
            count => format!("EVALSHA is needed by {}: {named}", counted(count, "rule")),
        };
        Some(StoreProblem {
            summary: "Redis refuses commands".to_owned(),
            explanation: format!(
                "{refused}: fixed windows are counted with INCRBY and EXPIRE by the clock of each replica, and REPLICAS is their number; {needing}; allow the commands of docs/redis.md#users-of-redis"
            ),
            runbook: "tollgatestoreerrors",
            is_undecided: false,
        })
    }

    /// Why a server, or every node of a cluster, has never been reachable; `None` if none is so.
    pub(crate) fn never_reached(&self) -> Option<String> {
        let mut pools = self.pools();
        let unreached = pools.find(|pool| !pool.has_any(Health::was_reachable))?;
        let cause = unreached.last_failure();
        Some(cause.unwrap_or_else(|| format!("{}: no reply", unreached.deployment)))
    }
}

impl fmt::Display for Redis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.main.deployment)?;
        match &self.per_second {
            Some(pool) => write!(formatter, ", and {} for limits per second", pool.deployment),
            None => Ok(()),
        }
    }
}
