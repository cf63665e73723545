//! The servers of Redis as an operator sees them.
//!
//! Calls find out about a fault; without calls, none does. So each server that is in use gets a
//! PING of its own. No call finds out about counters that a restart would lose: INFO does.

use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::{self, Pipeline, RedisError};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use crate::base::time::{Span, ticks};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::durability::{self, Reasons};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::Node;

/// Time for a PING of the console or an INFO, with its connection.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Servers that are asked at a time.
const NODES_ASKED_MAX: usize = 64;
/// Operators change persistence and memory rarely.
const INFO_INTERVAL: Duration = Duration::from_secs(300);
/// How soon Redis is noticed at the start, and limits of a day or more after a reload.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
            let began = self.clock.now();
            let replied = ask(&node, async |connection| connection.ask_one("PING").await).await;
            NodeStatus {
                is_per_second,
                address: node.address().to_string(),
                ping: replied.map(|_| self.clock.now().since(began)),
                is_breaker_open: node.health.breaker.is_open(),
                faults: node.health.active_faults().collect(),
            }
        });
        stream::iter(pings).buffered(NODES_ASKED_MAX).collect().await
    }

    /// Reads whether each master keeps its counters, at the start and every 5 minutes while there
    /// are limits of a day or more, for as long as the process lives.
    pub async fn watch_durability(&self, has_long_periods: impl Fn() -> bool) {
        let mut looks = ticks(LOOK_INTERVAL);
        let mut next = Instant::now();
        loop {
            looks.tick().await;
            if !has_long_periods() {
                self.durability.record(Vec::new());
                next = Instant::now();
            } else if Instant::now() >= next && self.main.is_reachable() {
                next = Instant::now() + INFO_INTERVAL;
                self.check_durability().await;
            }
        }
    }

    /// Reads whether each known master keeps its counters, and logs what changed. The Redis for
    /// limits per second has no others.
    pub async fn check_durability(&self) {
        let nodes = self.main.topology().nodes.clone();
        let read = stream::iter(nodes)
            .map(|node| async move { (node.address().to_string(), durability_of(&node).await) });
        let read = read.buffered(NODES_ASKED_MAX).collect().await;
        self.durability.record(read);
    }
}

/// Asks a server by a connection of its own.
///
/// # Errors
/// The server did not reply.
async fn ask<T>(
    node: &Node,
    question: impl AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
) -> Result<T, String> {
    if node.health.breaker.is_open() {
        return Err("its circuit breaker is open".to_owned());
    }
    let asked = async {
        let connector = node.connector.uncounted();
        question(&mut connector.connect_background().await?).await
    };
    match tokio::time::timeout(ASK_TIMEOUT, asked).await {
        Ok(answered) => answered.map_err(|error| node.address().explain(&error)),
        Err(_) => Err("no reply within 1 s".to_owned()),
    }
}

/// # Errors
/// The server did not reply, replied with an error, or has no such fields.
async fn durability_of(node: &Node) -> Result<Reasons, String> {
    let info = ask(node, async |connection| {
        // Redis 6.2 takes one section at a time.
        let mut commands = Pipeline::with_capacity(2);
        for section in ["persistence", "memory"] {
            commands.cmd("INFO").arg(section);
        }
        let mut info = String::new();
        for reply in connection.ask(&commands).await? {
            info += &redis::from_redis_value::<String>(reply)?;
        }
        Ok(info)
    });
    durability::reasons(&info.await?)
        .ok_or_else(|| "INFO has no aof_enabled, maxmemory or maxmemory_policy".to_owned())
}
