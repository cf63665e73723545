//! Gives unused hits of leases back: after their lifetime, and before the process ends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::base::shutdown::{Lifecycle, Phase};
use crate::base::time::{Span, Time, ticks};
use crate::limits::Limit;
use crate::limits::check::Key;
use crate::store::redis::client::RedisClient;
use crate::store::redis::fallback::outage::FINISH_TIMEOUT;
use crate::store::redis::shared::Redis;

/// How long hits may be kept beyond their lifetime.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl Redis {
    /// Gives hits back whose lifetime is over, for as long as the process lives. Takes nothing more
    /// once it drains.
    pub(crate) async fn keep_leases(self: &Arc<Self>, lifecycle: &Lifecycle) {
        let drained = async {
            lifecycle.reached(Phase::Draining).await;
            self.leases.stop_taking();
        };
        let swept = async {
            // Connects when something is given back.
            let mut client = None;
            let mut interval = ticks(SWEEP_INTERVAL);
            loop {
                interval.tick().await;
                self.give_back(None, &mut client).await;
            }
        };
        tokio::join!(drained, swept);
    }

    /// Gives all unused hits back. Nothing is taken any more.
    async fn end_leases(self: &Arc<Self>) {
        self.leases.stop_taking();
        let give_back = async {
            self.leases.tasks.close();
            self.leases.tasks.wait().await;
            self.give_back(Some(Span::ZERO), &mut None).await;
        };
        // What is not given back by then stays charged until its window ends.
        let _ = tokio::time::timeout(FINISH_TIMEOUT, give_back).await;
    }

    /// Sends what must not be lost when the process ends. All workers have ended before.
    pub async fn finish(self: &Arc<Self>) {
        tokio::join!(self.set_last_lifetimes(), self.end_leases());
    }

    async fn give_back(self: &Arc<Self>, lifetime: Option<Span>, client: &mut Option<RedisClient>) {
        if self.leases.is_empty() {
            return;
        }
        let now = self.clock.now();
        let due = self.leases.sweep(lifetime, |key, limit| self.time_in_use(key, limit, now));
        if due.is_empty() {
            return;
        }
        let client = client.get_or_insert_with(|| self.open());
        join_all(due.into_iter().map(|due| client.give_back(due))).await;
    }

    /// The time of the server that has a counter; `None` while it is away: its hits are kept, since
    /// no others can be taken.
    fn time_in_use(&self, key: &Key, limit: &Limit, now: Time) -> Option<Time> {
        let topology = self.pool_of(limit).topology();
        let node = topology.owner(key.as_bytes())?;
        let is_in_use = node.clock.is_known() && !node.health.breaker.is_open();
        is_in_use.then(|| node.clock.at(now))
    }
}
