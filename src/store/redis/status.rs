//! The servers of Redis as an operator sees them.
//!
//! Calls find out about a fault; without calls, none does. So each server that is in use gets a
//! PING of its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use crate::base::time::{Clock, Span};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::Node;

/// Time for a PING of the console, with its connection.
// bound status_timeout: reported as unreachable; -
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Servers that the console asks at a time.
// bound pings_max: asked after them; -
const PINGS_MAX: usize = 64;

/// A server.
#[derive(Debug, Clone)]
pub(crate) struct NodeStatus {
    /// Whether the server has the limits per second only.
    pub(crate) is_per_second: bool,
    /// Without credentials.
    pub(crate) address: String,
    /// The time of a PING with a connection of its own, or why there was no reply.
    pub(crate) ping: Result<Span, String>,
    pub(crate) is_breaker_open: bool,
    /// Faults that have not ended, with their causes.
    pub(crate) faults: Vec<String>,
}

impl Redis {
    /// Every known server. Without any, discovery has not found them yet.
    pub(crate) async fn status(&self) -> Vec<NodeStatus> {
        let nodes = self.pools().enumerate().flat_map(|(pool, servers)| {
            let nodes = Arc::clone(&servers.topology()).nodes.clone();
            nodes.into_iter().map(move |node| (pool > 0, node))
        });
        // Collected, because a guard of the topology must not be kept across an await.
        let nodes: Vec<_> = nodes.collect();
        let pings = nodes.into_iter().map(|(is_per_second, node)| async move {
            NodeStatus {
                is_per_second,
                address: node.address().to_string(),
                ping: ping(&node, &self.clock).await,
                is_breaker_open: node.health.breaker.is_open(),
                faults: node.health.active_faults().collect(),
            }
        });
        stream::iter(pings).buffered(PINGS_MAX).collect().await
    }
}

async fn ping(node: &Node, clock: &Clock) -> Result<Span, String> {
    if node.health.breaker.is_open() {
        return Err("its circuit breaker is open".to_owned());
    }
    let began = clock.now();
    let probed = async {
        let connector = node.connector.uncounted();
        connector.connect_background().await?.probe().await
    };
    match tokio::time::timeout(PING_TIMEOUT, probed).await {
        Ok(Ok(_)) => Ok(clock.now().since(began)),
        Ok(Err(error)) => Err(node.address().explain(&error)),
        Err(_) => Err("no reply within 1 s".to_owned()),
    }
}
