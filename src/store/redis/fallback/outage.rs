//! Decides checks without Redis, and writes the pending hits back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use smallvec::SmallVec;

use crate::base::time::{Span, Time, ticks};
use crate::limits::check::{Check, CheckError, Hits, Verdicts};
use crate::store::redis::fallback::change::{Change, key_hash};
use crate::store::redis::fallback::local::{Undecided, WRITE_BACK_TIME_MAX};
use crate::store::redis::fallback::write_back::ServerTarget;
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;

/// The interval of writing pending hits back to servers in use.
const WRITE_BACK_INTERVAL: Duration = Duration::from_millis(500);

/// Time to set the last expiries at shutdown, and to give leases back. A server in use replies in a
/// fraction of it.
// bound finish_timeout: keys without expiry stay; tollgate_store_expiries_unconfirmed_total
pub(crate) const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

impl Redis {
    /// Decides checks without a verdict of Redis, against this replica's share of each limit.
    pub fn decide_locally(&self, checks: &[(&Check, CheckError)], now: Time) -> Verdicts {
        // Windows are cut by the clock of a server. The clocks of several rarely differ by more
        // than a moment, so one is used for all checks.
        let node = checks.first().and_then(|(check, _)| {
            let topology = self.pool_of(&check.limit).topology();
            topology.owner(check.key.as_bytes()).cloned()
        });
        let redis_time = |time: Time| node.as_ref().map_or(time, |node| node.clock.at(time));
        let undecided = checks.iter().map(|&(check, failed)| {
            let seen = self.usage.get(self.usage.hash(&check.key));
            Undecided {
                check,
                effect: failed.effect,
                seen: seen.map(|(used, seen)| (used, redis_time(seen))),
                epoch: self.node_of(check).map_or(0, |node| node.epoch()),
            }
        });
        let undecided: SmallVec<[Undecided<'_>; 2]> = undecided.collect();
        let share = self.membership.share();
        let now = redis_time(now);
        let verdicts = self.local.decide(&undecided, share, now);
        for (check, _) in checks {
            if let Hits::Refund(hits) = check.hits {
                self.usage.refund(self.usage.hash(&check.key), hits);
            }
        }
        verdicts
    }

    /// Uses no verdict or lease that was before a change of an operator.
    pub(crate) fn on_change(&self, change: Change) {
        match change {
            Change::Refunded => {
                if let Some(cache) = &self.over_limit_cache {
                    cache.all_refunded(self.clock.now());
                }
                self.leases.end_holds();
            }
            Change::Deleted { key, at } => {
                self.leases.drop_deleted(|other| key_hash(other) == key, at);
            }
        }
    }

    /// Writes back to a server that is reachable again, before it is used. `false` if it is not.
    pub(crate) async fn write_back_before_use(&self, pool: &NodePool, node: &Node) -> bool {
        // It need not wait for its turn to connect.
        node.relocation.record_background(true);
        self.write_back(pool, node, WRITE_BACK_TIME_MAX).await
    }

    /// Writes pending hits back to a server, and sets the lifetimes of keys that it did not
    /// confirm. `false` if it is unreachable again.
    async fn write_back(&self, pool: &NodePool, node: &Node, within: Span) -> bool {
        let mut target = ServerTarget::new(self, pool, node);
        target.set_lifetimes().await && self.local.write_back(&mut target, within).await
    }

    /// Sets the lifetimes that no server has confirmed, before the process ends.
    pub(crate) async fn set_last_lifetimes(&self) {
        for pool in self.pools() {
            let topology = Arc::clone(&pool.topology());
            let in_use = topology.nodes.iter().filter(|node| !node.health.breaker.is_open());
            let set = in_use.map(async |node| {
                ServerTarget::new(self, pool, node).set_lifetimes().await;
            });
            // What is not done by then is lost with the process.
            let _ = tokio::time::timeout(FINISH_TIMEOUT, join_all(set)).await;
        }
    }

    /// Writes back to servers in use: what they rejected, what became pending meanwhile, what there
    /// was no time for, and what another server has now.
    pub(crate) async fn write_back_to_all(&self) {
        let pools = || self.pools();
        let mut interval = ticks(WRITE_BACK_INTERVAL);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                _ = select_all(pools().map(|pool| Box::pin(pool.changed.notified()))) => {}
            }
            for pool in pools() {
                let topology = Arc::clone(&pool.topology());
                for node in &topology.nodes {
                    if !node.health.breaker.is_open() && node.clock.is_known() {
                        let no_limit = Span::from_secs(u64::MAX);
                        self.write_back(pool, node, no_limit).await;
                    }
                }
            }
        }
    }
}
