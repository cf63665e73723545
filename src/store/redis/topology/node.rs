//! A Redis server: connector, health and clock, shared by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bb8_redis::redis::{Pipeline, RedisError};
use tokio::sync::Notify;

use crate::base::time::Clock;
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::{Connector, Timeouts};
use crate::store::redis::connect::connection_metrics::ConnectionMetrics;
use crate::store::redis::connect::dialer::Dialer;
use crate::store::redis::connect::lookup::LookupConnection;
use crate::store::redis::connect::relocation::Relocation;
use crate::store::redis::connect::reply_bound::{OversizedReplies, REPLY_BYTES_MAX};
use crate::store::redis::topology::clock::RedisClock;
use crate::store::redis::topology::health::Health;
use crate::store::redis::topology::lifetimes::UnconfirmedLifetimes;
use crate::store::redis::topology::metrics::ServerMetrics;
use crate::store::redis::topology::refusals::{self, is_dropped, is_refused};

/// A Redis server. The address never changes: another address is another node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) connector: Connector,
    /// For discovery, and PINGs without calls.
    pub(crate) lookup: LookupConnection,
    pub(crate) relocation: Relocation,
    pub(crate) health: Health,
    pub(crate) clock: RedisClock,
    pub(crate) lifetimes: Arc<UnconfirmedLifetimes>,
    recoveries: AtomicU64,
    /// Whether the node belongs to a cluster: the keys of one command must share a slot.
    pub(crate) has_slots: bool,
}

/// Never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u64);

/// Parts that the nodes of a pool share.
#[derive(Debug, Clone)]
pub(crate) struct NodeParts {
    /// See [`Node::has_slots`].
    pub(crate) has_slots: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) dialer: Dialer,
    /// The clock of this process.
    pub(crate) clock: Clock,
    pub(crate) connections: ConnectionMetrics,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) lifetimes: Arc<UnconfirmedLifetimes>,
    /// Notified when the keys of a node may have moved. For one waiter.
    pub(crate) refresh: Arc<Notify>,
}

impl NodeParts {
    /// Connects to a server or a source of the topology.
    pub(crate) fn connector(&self, address: Address) -> Connector {
        Connector {
            address,
            timeouts: self.timeouts,
            dialer: self.dialer.clone(),
            restart: Arc::default(),
            reply_bytes_max: REPLY_BYTES_MAX,
            oversized: OversizedReplies::new(self.metrics.oversized.clone()),
            metrics: Some(self.connections.clone()),
        }
    }
}

impl Node {
    pub(crate) fn new(address: Address, parts: &NodeParts) -> Self {
        static NODES: AtomicU64 = AtomicU64::new(0);
        let connector = parts.connector(address);
        let refresh = parts.refresh.clone();
        let oversized = connector.oversized.clone();
        Self {
            id: NodeId(NODES.fetch_add(1, Relaxed)),
            lookup: LookupConnection::new(&connector),
            connector,
            relocation: Relocation::default(),
            health: Health::new(parts.metrics.clone(), parts.clock.clone(), refresh, oversized),
            clock: RedisClock::new(parts.clock.clone()),
            lifetimes: parts.lifetimes.clone(),
            recoveries: AtomicU64::new(0),
            has_slots: parts.has_slots,
        }
    }

    /// Probes the server, and reads its clock if that is allowed. A failure may open the breaker.
    ///
    /// # Errors
    /// The server did not reply.
    pub(crate) async fn probe(&self) -> Result<(), RedisError> {
        let mut probed = self.ping_and_time().await;
        let is_repeated = match &probed {
            // One closed connection is no outage.
            Err(error) => is_dropped(error) && !error.is_connection_refusal(),
            // A proxy closes the connection of a command that it does not know.
            Ok(Err(error)) => is_refused(error),
            Ok(Ok(())) => false,
        };
        if is_repeated {
            probed = self.ping_and_time().await;
        }
        let probed = probed.and_then(|time| match time {
            Err(error) if self.uses_own_clock(&error) => Ok(()),
            time => time,
        });
        self.health.record_probe(&probed, self.address());
        probed
    }

    /// Replaces the server's clock by ours if TIME is refused, and not if the server is unable.
    pub(crate) fn uses_own_clock(&self, error: &RedisError) -> bool {
        let is_refused = is_refused(error);
        if is_refused {
            self.clock.use_own();
            let cause = format!("TIME: {}", self.address().explain(error));
            self.health.refusals.record(refusals::TIME, &cause);
        }
        is_refused
    }

    /// Tries a refused command without an effect, and uses it if it is allowed by now.
    pub(crate) async fn retry(&self, command: &'static str) {
        let mut commands = Pipeline::with_capacity(1);
        commands.cmd(command);
        if command == refusals::EVALSHA {
            // No script has this hash.
            commands.arg("0".repeat(40)).arg(0);
        }
        let retried = async {
            let mut connection = self.connector.connect_background().await?;
            connection.ask(&commands).await
        };
        match retried.await {
            Err(error) if error.code() != Some("NOSCRIPT") => return,
            _ => self.health.refusals.forget(command),
        }
        if command == refusals::TIME {
            self.clock.use_servers();
        }
    }

    /// The inner result is that of TIME.
    async fn ping_and_time(&self) -> Result<Result<(), RedisError>, RedisError> {
        let mut connection = self.connector.connect_background().await?;
        connection.ask_one("PING").await?;
        Ok(self.clock.read(connection.ask_one("TIME")).await)
    }

    /// Sends PING, and records the result as that of a call.
    pub(crate) async fn ping(&self, timeout: Duration) {
        let mut ping = Pipeline::with_capacity(1);
        ping.cmd("PING");
        match tokio::time::timeout(timeout, self.lookup.call(&ping)).await {
            Ok(Ok(_)) => self.health.record_success(),
            Ok(Err(error)) => self.health.record_failure(&error, self.address()),
            Err(_) => self.health.record_timeout(),
        }
    }

    /// Closes the breaker of a reachable server. Its recovery is logged once it stayed healthy for
    /// a second.
    pub(crate) fn mark_recovered(&self) {
        if !self.health.breaker.is_open() {
            return;
        }
        self.health.mark_recovered();
        self.recoveries.fetch_add(1, Relaxed);
        self.connector.restart_connecting();
    }

    /// Identifies the time since the last recovery of this node, within the process.
    pub(crate) fn epoch(&self) -> u64 {
        self.id.0 << 32 | self.recoveries.load(Relaxed)
    }

    pub(crate) fn address(&self) -> &Address {
        &self.connector.address
    }
}
