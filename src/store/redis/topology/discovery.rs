//! Finds the servers of a Sentinel or Cluster deployment, periodically and on request.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::backoff::{Backoff, jittered};
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::lookup::{LOOKUP_TIMEOUT, LookupConnection};
use crate::store::redis::topology::cluster::{self, SLOTS, View};
use crate::store::redis::topology::deployment::Deployment;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::{NODES_MAX, NodePool};
use crate::store::redis::topology::sentinel;
use crate::store::redis::topology::snapshot::{Topology, UNASSIGNED};

/// A failover in which the old master stays reachable shows in nothing else.
const SENTINEL_INTERVAL: Duration = Duration::from_secs(1);
/// Redirections and failures show most changes earlier.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(10);
/// Requests for a discovery within this time are one.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The first and the longest pause while a server is unreachable or requests are redirected. A new
/// master is used within the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// Keeps the topology of a pool current for as long as the process lives.
pub(crate) async fn run(pool: &NodePool) {
    let mut pauses = Backoff::doubling(PAUSES[0], PAUSES[1]);
    loop {
        let began = Instant::now();
        let (discovered, interval) = match &pool.deployment {
            // The topology never changes.
            Deployment::Single(_) => return,
            Deployment::Sentinel(config) => {
                (ask_sentinels(pool, &config.master).await, SENTINEL_INTERVAL)
            }
            Deployment::Cluster(_) => (ask_cluster(pool).await, CLUSTER_INTERVAL),
        };
        pool.record_discovery(discovered.err());
        let is_settled = pool.is_settled();
        let pause = pauses.pause();
        let interval = if is_settled { jittered(interval) } else { pause };
        tokio::select! {
            () = tokio::time::sleep_until(began + interval) => if is_settled {
                pauses.reset();
            },
            () = pool.parts.refresh.notified() => {
                let debounced = Instant::now() + jittered(DEBOUNCE);
                tokio::time::sleep_until(debounced.max(began + pause)).await;
            }
        }
    }
}

/// Installs the first of the reported masters that says itself that it is one.
async fn ask_sentinels(pool: &NodePool, master: &str) -> Result<(), String> {
    let known = pool.topology().nodes.first().cloned();
    let mut cause = "no sentinel names a server with the role of a master".to_owned();
    for endpoint in sentinel::masters(&pool.sources, master).await? {
        let Some(node) = pool.node_at(&endpoint) else {
            continue;
        };
        if known.as_ref().is_some_and(|known| known.id == node.id) {
            return Ok(());
        }
        match tokio::time::timeout(LOOKUP_TIMEOUT, sentinel::is_master(&node.lookup)).await {
            Ok(Ok(true)) => {
                pool.install(Topology::single(node));
                return Ok(());
            }
            // The sentinel is partitioned, or the server is not promoted yet.
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                cause = node.address().explain(&error);
                node.health.record_failure(&error, node.address());
            }
            Err(_) => cause = format!("{}: no reply", node.address()),
        }
    }
    // A known master that is unreachable is reported as that.
    if known.is_some() { Ok(()) } else { Err(cause) }
}

async fn ask_cluster(pool: &NodePool) -> Result<(), String> {
    let seeds = &pool.sources;
    let topology = Arc::clone(&pool.topology());
    let (healthy, failing): (Vec<_>, Vec<_>) =
        topology.nodes.iter().partition(|node| !node.health.breaker.is_open());
    let is_new = |seed: &&LookupConnection| {
        let mut nodes = topology.nodes.iter();
        nodes.all(|node| node.address().endpoint() != seed.address().endpoint())
    };
    let nodes: Vec<&LookupConnection> = healthy
        .into_iter()
        .chain(failing)
        .map(|node| &node.lookup)
        .chain(seeds.iter().filter(is_new))
        .collect();
    let (source, view) = cluster::ask(&nodes).await?;
    // One connection is enough for the next discovery.
    for other in nodes.into_iter().chain(seeds) {
        if !std::ptr::eq(other, source) {
            other.close();
        }
    }
    apply_view(pool, source.address(), &view)
}

fn apply_view(pool: &NodePool, source: &Address, view: &View) -> Result<(), String> {
    let mut nodes: Vec<Arc<Node>> = Vec::new();
    let mut slots = vec![UNASSIGNED; usize::from(SLOTS)];
    // The order must not depend on the node that was asked.
    let mut ranges: Vec<_> = view.ranges.iter().collect();
    ranges.sort_by_key(|range| range.first);
    for range in ranges {
        let node = pool
            .node_at(&range.master.resolve_relative_to(source))
            .ok_or_else(|| format!("the cluster has more than {NODES_MAX} nodes (nodes_max)"))?;
        let known = nodes.iter().position(|known| known.id == node.id);
        let index = known.unwrap_or_else(|| {
            nodes.push(node);
            nodes.len() - 1
        });
        slots[usize::from(range.first)..=usize::from(range.last)]
            .fill(u16::try_from(index).unwrap_or(UNASSIGNED));
    }
    let slots = Some(slots.into());
    pool.install(Topology { nodes, slots });
    Ok(())
}
