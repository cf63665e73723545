//! The checks of a request, by the node that has their keys.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limits::check::{Check, runs};
use crate::store::redis::client::encode::EncodedCheck;
use crate::store::redis::client::size::{ATOMIC_SIZE_MAX, BATCH_SIZE_MAX};
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
                indices: SmallVec::with_capacity(checks),
                checks: Vec::with_capacity(checks),
            });
            batches.len() - 1
        }
    };
    &mut batches[index]
}

/// Whether one call of the script can decide all checks of each group.
pub(crate) fn are_in_one_call(batches: &[NodeBatch<'_>], checks: &[Check]) -> bool {
    let place = |index: usize| {
        batches.iter().find_map(|batch| {
            let at = batch.indices.iter().position(|&other| other == index)?;
            let check = &batch.checks[at];
            let slot = || cluster::slot(check.key.as_bytes());
            Some(((batch.node.id, batch.node.has_slots.then(slot)), check.size()))
        })
    };
    let mut index = 0;
    runs(checks, |check| check.group).all(|group| {
        let mut places = (index..).take(group.len()).map(place);
        index += group.len();
        let mut first = None;
        let mut all = 0;
        group.len() == 1
            || places.all(|found| {
                found.is_some_and(|(place, size)| {
                    all += size;
                    *first.get_or_insert(place) == place && all <= ATOMIC_SIZE_MAX
                })
            })
    })
}

/// The number of leading checks that fit into one batch, without a part of a group. `checks` is not
/// empty.
pub(crate) fn checks_of_batch(checks: &[EncodedCheck]) -> usize {
    let mut count = 0;
    let mut size = 0;
    for group in runs(checks, |check| check.group) {
        size += group.iter().map(EncodedCheck::size).sum::<usize>();
        if count > 0 && size > BATCH_SIZE_MAX {
            break;
        }
        count += group.len();
    }
    count
}
