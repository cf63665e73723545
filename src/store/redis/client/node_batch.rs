//! The checks of a request, by the node that has their keys.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::store::redis::client::encode::EncodedCheck;
use crate::store::redis::client::waiting::BATCH_SIZE_MAX;
use crate::store::redis::topology::cluster;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;

/// The checks of a request that one node has.
#[derive(Debug)]
pub(crate) struct NodeBatch<'s> {
    pub(crate) pool: &'s NodePool,
    pub(crate) node: Arc<Node>,
    /// Indices of the checks in the request.
    pub(crate) indices: SmallVec<[usize; 2]>,
    pub(crate) checks: Vec<EncodedCheck>,
}

/// Most requests need one node.
pub(crate) type NodeBatches<'s> = SmallVec<[NodeBatch<'s>; 1]>;

/// The batch of a node, which may be new and gets at most `checks`.
pub(crate) fn batch_of<'b, 's>(
    batches: &'b mut NodeBatches<'s>,
    pool: &'s NodePool,
    node: &Arc<Node>,
    checks: usize,
) -> &'b mut NodeBatch<'s> {
    let mut known = batches.iter();
    let index = match known.position(|batch| batch.node.id == node.id) {
        Some(index) => index,
        None => {
            batches.push(NodeBatch {
                pool,
                node: node.clone(),
                indices: SmallVec::new(),
                checks: Vec::with_capacity(checks),
            });
            batches.len() - 1
        }
    };
    &mut batches[index]
}

/// Whether one call of the script can decide all checks.
pub(crate) fn is_one_call(batches: &[NodeBatch<'_>], checks: usize) -> bool {
    let [batch] = batches else { return false };
    let slot = |check: &EncodedCheck| cluster::slot(check.key.as_bytes());
    let shares_slot = || {
        let mut slots = batch.checks.iter().map(slot);
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    };
    batch.checks.len() == checks && (!batch.node.has_slots || shares_slot())
}

/// The number of leading checks that fit into one batch. `checks` is not empty.
pub(crate) fn checks_of_batch(checks: &[EncodedCheck]) -> usize {
    let mut left = BATCH_SIZE_MAX;
    let fits = |check: &&EncodedCheck| match left.checked_sub(check.size()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    checks.iter().take_while(fits).count()
}
