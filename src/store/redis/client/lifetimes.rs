//! Repairs of keys, and lifetimes that Redis has not confirmed.
//!
//! INCRBY creates a key without a lifetime if the key has expired or was evicted. The EXPIRE that follows
//! may be lost with its connection, and so may the reply that shows that it is needed. Later hits do not show it. So
//! such lifetimes are sent again in the background.

use parking_lot::Mutex;
use redis::Pipeline;

use crate::check::Key;
use crate::store::redis::topology::node::NodeId;
use crate::telemetry::metric::{Counter, Metrics};

/// Unconfirmed lifetimes. They come from the few batches that fail before a breaker opens.
const LIFETIMES_MAX: usize = 1_024;

/// What a key needs after INCRBY.
#[derive(Debug, Clone)]
pub(crate) enum Repair {
    /// Sets the lifetime of a key that INCRBY created.
    Expire { key: Key, lifetime_secs: u64 },
    /// Replaces a value that no counter has.
    Reset {
        key: Key,
        hits: i64,
        lifetime_secs: u64,
    },
}

/// Unconfirmed lifetimes of all servers.
#[derive(Debug)]
pub(crate) struct UnconfirmedLifetimes {
    lifetimes: Mutex<Vec<(NodeId, Repair)>>,
    lost: Counter,
}

impl Repair {
    /// The commands of several repairs.
    pub(crate) fn commands(repairs: &[Self]) -> Pipeline {
        let mut commands = Pipeline::new();
        for repair in repairs {
            match repair {
                Self::Expire { key, lifetime_secs } => commands
                    .cmd("EXPIRE")
                    .arg(key.as_bytes())
                    .arg(lifetime_secs),
                Self::Reset {
                    key,
                    hits,
                    lifetime_secs,
                } => commands
                    .cmd("SET")
                    .arg(key.as_bytes())
                    .arg(hits)
                    .arg("EX")
                    .arg(lifetime_secs),
            };
        }
        commands
    }
}

impl UnconfirmedLifetimes {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            lifetimes: Mutex::default(),
            lost: metrics.counter(
                "tollgate_store_expiries_unconfirmed_total",
                "Keys that may stay in Redis without an expiry: too many were unconfirmed (lifetimes_max).",
            ),
        }
    }

    /// Adds lifetimes of keys on one server. Other repairs are not repeated: they replace a value.
    pub(crate) fn add(&self, node: NodeId, repairs: impl IntoIterator<Item = Repair>) {
        let mut lifetimes = self.lifetimes.lock();
        let is_lifetime = |repair: &Repair| matches!(repair, Repair::Expire { .. });
        for repair in repairs.into_iter().filter(is_lifetime) {
            if lifetimes.len() < LIFETIMES_MAX {
                lifetimes.push((node, repair));
            } else {
                self.lost.inc();
            }
        }
    }

    /// Takes those of one server.
    pub(crate) fn take(&self, node: NodeId) -> Vec<Repair> {
        let mut lifetimes = self.lifetimes.lock();
        let taken = lifetimes.extract_if(.., |(id, _)| *id == node);
        taken.map(|(_, repair)| repair).collect()
    }
}
