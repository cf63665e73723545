//! Probes servers that are not used: at the start, and while their circuit breakers are open; and
//! those in use, if health depends on them.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::RedisError;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::time;
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::health::{
    PROBE_INTERVAL, PROBE_INTERVAL_MAX, TLS_PROBE_INTERVAL_MAX,
};
use crate::store::redis::topology::node::{Node, NodeId};
use crate::store::redis::topology::pool::NodePool;

/// How long calls wait for the first probe of a server; the probe itself continues.
const FIRST_PROBE_AWAITED: Duration = Duration::from_secs(1);

/// How often a server in use is sent a PING.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long its reply may take: three failures open the breaker, within 4 s of an outage.
// bound use_ping_timeout: counts as a failure of a call; tollgate_store_breaker_opened_total
const PING_TIMEOUT: Duration = Duration::from_millis(750);
/// How often a refused command is tried again: the user may be allowed it by now.
const REFUSED_INTERVAL: Duration = Duration::from_secs(60);
/// Servers that are sent one at a time.
const PINGS_MAX: usize = 64;

/// Probes servers and logs their faults for as long as the process lives.
pub(crate) async fn run(redis: &Redis, pool: &NodePool) {
    let mut ticks = time::ticks(PROBE_INTERVAL);
    let mut recoveries = FuturesUnordered::new();
    let mut recovering = BTreeSet::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => for node in &Arc::clone(&pool.topology()).nodes {
                node.health.log_transitions(node.address());
                if needs_probe(node) && recovering.insert(node.id) {
                    recoveries.push(recover(redis, pool, node.clone()));
                }
            },
            Some(id) = recoveries.next() => {
                recovering.remove(&id);
            }
        }
    }
}

/// Probes a server, one attempt at a time, until it is used or left the topology.
async fn recover(redis: &Redis, pool: &NodePool, node: Arc<Node>) -> NodeId {
    let mut pauses = Backoff::doubling(PROBE_INTERVAL, TLS_PROBE_INTERVAL_MAX);
    while needs_probe(&node) && pool.topology().contains(node.id) {
        let began = Instant::now();
        let pause_max = match probe(&node).await {
            Ok(())
                if !node.health.breaker.is_open()
                    || redis.write_back_before_use(pool, &node).await =>
            {
                node.mark_recovered();
                break;
            }
            Err(error) if node.address().is_tls() && !error.is_connection_refusal() => {
                TLS_PROBE_INTERVAL_MAX
            }
            _ => PROBE_INTERVAL_MAX,
        };
        tokio::time::sleep_until(began + pauses.pause_up_to(pause_max)).await;
    }
    node.id
}

/// Sends PING to the servers in use for as long as the process lives, so an outage is found without
/// calls.
pub(crate) async fn watch_use(pool: &NodePool) {
    let mut pings = time::ticks(PING_INTERVAL);
    loop {
        pings.tick().await;
        let nodes = Arc::clone(&pool.topology()).nodes.clone();
        let in_use = nodes.into_iter().filter(|node| !needs_probe(node));
        stream::iter(in_use)
            .for_each_concurrent(PINGS_MAX, async |node| node.ping(PING_TIMEOUT).await)
            .await;
    }
}

/// Tries refused commands again, for as long as the process lives.
pub(crate) async fn retry_refused(pool: &NodePool) {
    let mut retries = time::ticks(REFUSED_INTERVAL);
    loop {
        retries.tick().await;
        let nodes = Arc::clone(&pool.topology()).nodes.clone();
        for node in nodes {
            for command in node.health.refusals.commands() {
                node.retry(command).await;
            }
        }
    }
}

async fn probe(node: &Node) -> Result<(), RedisError> {
    let mut probing = pin!(node.probe());
    if let Ok(probed) = tokio::time::timeout(FIRST_PROBE_AWAITED, &mut probing).await {
        return probed;
    }
    node.health.probe_is_slow();
    probing.await
}

/// A server that has never replied is probed as well, so that no caller is the first to find out.
fn needs_probe(node: &Node) -> bool {
    node.health.breaker.is_open() || !node.health.was_reachable()
}
