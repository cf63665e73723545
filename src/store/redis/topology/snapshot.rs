//! A snapshot of the topology: which node has a key.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::redis::topology::cluster;
use crate::store::redis::topology::node::{Node, NodeId};

/// A slot without a node.
pub(crate) const UNASSIGNED: u16 = u16::MAX;

/// Empty until the first discovery.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For each slot of a cluster the index of its node, or [`UNASSIGNED`].
    pub(crate) slots: Option<Box<[u16]>>,
}

impl Topology {
    /// A topology of one server, which has all keys.
    pub(crate) fn single(node: Arc<Node>) -> Self {
        Self { nodes: vec![node], slots: None }
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        self.nodes.iter().any(|node| node.id == id)
    }

    /// The node that has a key.
    pub(crate) fn owner(&self, key: &[u8]) -> Option<&Arc<Node>> {
        match &self.slots {
            None => self.nodes.first(),
            Some(slots) => {
                let index = slots[usize::from(cluster::slot(key))];
                self.nodes.get(usize::from(index))
            }
        }
    }

    /// Whether both have the same node for every key.
    pub(crate) fn routes_like(&self, other: &Self) -> bool {
        self.slots == other.slots && self.ids().eq(other.ids())
    }

    pub(crate) fn has_same_nodes(&self, other: &Self) -> bool {
        self.ids().collect::<BTreeSet<_>>() == other.ids().collect()
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|node| node.id)
    }
}
