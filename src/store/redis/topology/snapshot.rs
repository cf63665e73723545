//! Where keys live, as far as it is known: a snapshot that requests go by.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::redis::topology::cluster;
use crate::store::redis::topology::node::Node;

/// A slot that nobody serves.
pub const UNASSIGNED: u16 = u16::MAX;

/// Where keys live, as far as it is known.
#[derive(Debug, Default)]
pub struct Topology {
    /// Nobody, until somebody is found.
    pub nodes: Vec<Arc<Node>>,
    /// For each slot of a cluster its node's place among those; [`UNASSIGNED`] where there is none.
    pub slots: Option<Box<[u16]>>,
}

impl Topology {
    /// The only server.
    pub fn single(node: Arc<Node>) -> Self {
        Self {
            nodes: vec![node],
            slots: None,
        }
    }

    /// All servers.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Whether keys of one command must share a slot.
    pub fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Who has this key, if anybody.
    pub fn owner(&self, key: &[u8]) -> Option<&Arc<Node>> {
        match &self.slots {
            None => self.nodes.first(),
            Some(slots) => self
                .nodes
                .get(usize::from(slots[usize::from(cluster::slot(key))])),
        }
    }

    /// Whether it leads every key to the same server.
    pub fn routes_like(&self, other: &Self) -> bool {
        let ids = |topology: &Self| {
            topology
                .nodes
                .iter()
                .map(|node| node.id())
                .collect::<Vec<_>>()
        };
        self.slots == other.slots && ids(self) == ids(other)
    }

    /// Whether it has the same servers.
    pub fn has_same_nodes(&self, other: &Self) -> bool {
        let ids = |topology: &Self| {
            topology
                .nodes
                .iter()
                .map(|node| node.id())
                .collect::<BTreeSet<_>>()
        };
        ids(self) == ids(other)
    }
}
