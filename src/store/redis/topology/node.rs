//! One server, as the whole process knows it: how to connect to it, whether it is well, and what
//! time it is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis::RedisError;
use tokio::sync::Notify;

use crate::store::redis::clock::RedisClock;
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::{ConnectionMetrics, Connector, Timeouts};
use crate::store::redis::connect::dialer::Dialer;
use crate::store::redis::connect::lookup::LookupConnection;
use crate::store::redis::relocation::Relocation;
use crate::store::redis::topology::health::{Health, HealthMetrics};
use crate::time::Clock;

/// One server. Its address never changes: when another takes its place, that is another node.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    connector: Connector,
    /// For look-ups.
    pub lookup: LookupConnection,
    /// Whether another server has its name now.
    pub relocation: Relocation,
    /// Whether it is well.
    pub health: Health,
    /// What time it is there.
    pub clock: RedisClock,
    /// How often, once given up, it was there again.
    recoveries: AtomicU64,
}

/// Tells nodes of this process apart, also those that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

/// What the nodes of a pool have in common.
#[derive(Debug, Clone)]
pub struct NodeParts {
    /// How long to wait for connections and replies.
    pub timeouts: Timeouts,
    /// Opens their connections.
    pub dialer: Dialer,
    /// The clock of this process.
    pub clock: Clock,
    /// Counts connections.
    pub connections: ConnectionMetrics,
    /// Counts troubles.
    pub health: HealthMetrics,
    /// Rung when a node may no longer be the one to ask.
    pub refresh: Arc<Notify>,
}

impl Node {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(address: Address, parts: &NodeParts) -> Result<Self, RedisError> {
        static NODES: AtomicU64 = AtomicU64::new(0);
        let connector = Connector::new(
            address,
            parts.timeouts,
            parts.dialer.clone(),
            Some(parts.connections.clone()),
        )?;
        Ok(Self {
            id: NodeId(NODES.fetch_add(1, Relaxed)),
            lookup: LookupConnection::new(&connector),
            connector,
            relocation: Relocation::default(),
            health: Health::new(&parts.health, parts.clock.clone(), parts.refresh.clone()),
            clock: RedisClock::default(),
            recoveries: AtomicU64::new(0),
        })
    }

    /// Which one it is.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// It is asked again.
    pub fn mark_recovered(&self) {
        self.recoveries.fetch_add(1, Relaxed);
        self.connector.restart_connecting();
    }

    /// Tells one outage of one server from any other.
    pub fn epoch(&self) -> u64 {
        self.id.0 << 32 | self.recoveries.load(Relaxed)
    }

    /// Where it is, as it may be shown.
    pub fn address(&self) -> &Address {
        self.connector.address()
    }

    /// What makes connections to it.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }
}
