//! The batchers of one worker: one for each server that was asked and is still in the topology.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::store::redis::client::batcher::Batcher;
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::{Node, NodeId};

/// Clones share the batchers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batchers(Arc<Mutex<HashMap<NodeId, Arc<Batcher>>>>);

impl Batchers {
    /// Starts the batchers of all known servers, so that they connect before the first request.
    pub(crate) fn start(shared: &Arc<Redis>) -> Self {
        let batchers = Self::default();
        for pool in shared.pools() {
            for node in &pool.topology().nodes {
                batchers.of(shared, node);
            }
        }
        batchers
    }

    /// The batcher of a node, started at the first use.
    pub(crate) fn of(&self, shared: &Arc<Redis>, node: &Arc<Node>) -> Arc<Batcher> {
        let mut batchers = self.0.lock();
        match batchers.get(&node.id) {
            Some(batcher) if !batcher.has_ended() => return batcher.clone(),
            Some(_) => {
                tracing::error!(address = %node.address(), "a batcher ended unexpectedly; starting another one");
            }
            None => {}
        }
        // Batchers of removed nodes end when no request uses them.
        let is_known = |id: &NodeId| shared.pools().any(|pool| pool.topology().contains(*id));
        batchers.retain(|id, _| is_known(id));
        let batcher = Arc::new(Batcher::start(shared.clone(), node.clone()));
        batchers.insert(node.id, batcher.clone());
        batcher
    }
}
