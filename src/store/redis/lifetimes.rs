//! Lifetimes of keys that Redis has not confirmed, until it has.
//!
//! INCRBY creates a key without a lifetime if the key is gone: it expired, it was evicted, or Redis
//! lost it. The EXPIRE that has to follow may be lost with its connection, and so may the reply
//! that shows that it has to. Later hits of that key do not show it. So such lifetimes
//! are sent again in the background.

use parking_lot::{Mutex, MutexGuard};

use crate::store::redis::script::Repair;
use crate::store::redis::topology::node::NodeId;
use crate::telemetry::metric::{Counter, Metrics};

/// How many lifetimes are sent again. They come from the few batches that fail before a server is
/// given up.
const LIFETIMES_MAX: usize = 1_024;

/// Unconfirmed lifetimes of all servers.
#[derive(Debug)]
pub struct UnconfirmedLifetimes {
    lifetimes: Mutex<Vec<(NodeId, Repair)>>,
    lost: Counter,
}

impl UnconfirmedLifetimes {
    /// None is unconfirmed.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            lifetimes: Mutex::default(),
            lost: metrics.counter(
                "tollgate_store_expiries_unconfirmed_total",
                "Keys that may stay in Redis without an expiry, because too many were unconfirmed (lifetimes_max).",
            ),
        }
    }

    /// Adds lifetimes of keys on one server. Other repairs are not repeated: they replace a value.
    pub fn add(&self, node: NodeId, repairs: impl IntoIterator<Item = Repair>) {
        let mut lifetimes = self.lock();
        for repair in repairs
            .into_iter()
            .filter(|repair| matches!(repair, Repair::Expire { .. }))
        {
            if lifetimes.len() < LIFETIMES_MAX {
                lifetimes.push((node, repair));
            } else {
                self.lost.inc();
            }
        }
    }

    /// Takes those of one server.
    pub fn take(&self, node: NodeId) -> Vec<Repair> {
        let mut lifetimes = self.lock();
        lifetimes
            .extract_if(.., |(of, _)| *of == node)
            .map(|(_, repair)| repair)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(NodeId, Repair)>> {
        self.lifetimes.lock()
    }
}
