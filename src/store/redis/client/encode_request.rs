//! Encodes the checks of a request by the clocks of Redis: the start of a window is part of its key.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::algorithm::Counter;
use crate::check::StoreError;
use crate::store::redis::client::node_batch::{NodeBatches, batch_of};
use crate::store::redis::client::{RedisClient, Request};
use crate::store::redis::topology::node::Node;

impl RedisClient {
    /// Encodes checks for the nodes that have their keys, by the clocks of Redis. Those without a node
    /// are left out, and all if no clock was ever read. Also returns the nodes whose clocks are needed,
    /// were never read and can be: another node's clock replaces one of a node that is away.
    pub(super) fn encode(&self, request: &Request<'_>) -> (NodeBatches<'_>, Vec<Arc<Node>>) {
        let (mut batches, mut unread) = (NodeBatches::new(), Vec::new());
        for (index, check) in request.checks.iter().enumerate() {
            let pool = self.shared.pool_of(&check.limit);
            let (topology, charge) = (pool.topology(), Counter::charge(&check.limit, check.call()));
            let mut timer = topology.owner(check.key.as_bytes());
            if timer.is_none_or(|node| !node.clock.is_known()) {
                unread.extend(timer.filter(|node| !node.health.breaker.is_open()).cloned());
                timer = topology.nodes.iter().find(|node| node.clock.is_known());
                if timer.is_none() {
                    continue;
                }
            }
            let (mode, received) = (request.mode, request.received);
            let encoded = self.shared.encode(check, charge, timer, mode, received);
            if let Some(node) = topology.owner(encoded.key.as_bytes()) {
                let batch = batch_of(&mut batches, pool, node, request.checks.len() - index);
                batch.indices.push(index);
                batch.checks.push(encoded);
            }
        }
        (batches, unread)
    }

    /// The same after reading those clocks, by batches without a check.
    pub(super) async fn encode_by_redis_time(&self, request: &mut Request<'_>) -> NodeBatches<'_> {
        let (batches, mut unread) = self.encode(request);
        if unread.is_empty() {
            return batches;
        }
        unread.sort_by_key(|node| node.id);
        unread.dedup_by_key(|node| node.id);
        let read = unread.iter();
        let read = read.map(|node| self.call(node, Vec::new(), request));
        for (node, read) in unread.iter().zip(join_all(read).await) {
            match read {
                Err(error) => request.left_out = error.error,
                Ok(_) if !node.clock.is_known() => request.left_out = StoreError::Rejected,
                Ok(_) => {}
            }
        }
        self.encode(request).0
    }
}
