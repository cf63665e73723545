//! All servers of one deployment, and the topology that requests read.
//!
//! The topology is a snapshot: it is replaced whole, and a request uses the same one from start to
//! end.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::store::redis::connect::address::short;
use crate::store::redis::connect::lookup::LookupConnection;
use crate::store::redis::topology::cluster::Endpoint;
use crate::store::redis::topology::deployment::Deployment;
use crate::store::redis::topology::health::Health;
use crate::store::redis::topology::node::{Node, NodeParts};
use crate::store::redis::topology::snapshot::Topology;
use crate::telemetry::metric::gauged;

/// Nodes of one cluster: the maximum that Redis recommends.
// bound nodes_max: a larger topology is rejected, the previous one stays;
// tollgate_store_topology_failures_total
pub(crate) const NODES_MAX: usize = 1_000;

const DISCOVERY_FAILED: &str = "Redis topology discovery failed";

#[derive(Debug)]
pub(crate) struct NodePool {
    pub(crate) deployment: Deployment,
    /// Servers that discovery queries: the sentinels, or the configured nodes of a cluster.
    pub(crate) sources: Vec<LookupConnection>,
    pub(crate) parts: NodeParts,
    topology: ArcSwap<Topology>,
    /// The nodes of the topology, and those that redirections have named since.
    nodes: Mutex<HashMap<Endpoint, Arc<Node>>>,
    /// Why the last discovery failed, if it did.
    discovery_error: Mutex<Option<String>>,
    /// Notified when keys may have another server. For one waiter.
    pub(crate) changed: Notify,
}

impl NodePool {
    pub(crate) fn new(deployment: Deployment, parts: NodeParts) -> Self {
        let (topology, sources) = match &deployment {
            Deployment::Single(address) => {
                parts.metrics.nodes.inc();
                let node = Arc::new(Node::new(address.clone(), &parts));
                (Topology::single(node), &[][..])
            }
            Deployment::Sentinel(config) => (Topology::default(), &*config.sentinels),
            Deployment::Cluster(seeds) => (Topology::default(), &**seeds),
        };
        let lookup = |address| LookupConnection::new(&parts.connector(address));
        Self {
            sources: sources.iter().cloned().map(lookup).collect(),
            deployment,
            parts,
            topology: ArcSwap::from_pointee(topology),
            nodes: Mutex::default(),
            discovery_error: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// The current snapshot.
    pub(crate) fn topology(&self) -> Guard<Arc<Topology>> {
        self.topology.load()
    }

    /// The node at an endpoint that a redirection or a discovery named. `None` if there are
    /// `NODES_MAX` others.
    pub(crate) fn node_at(&self, endpoint: &Endpoint) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(endpoint) {
            return Some(node.clone());
        }
        if nodes.len() >= NODES_MAX {
            return None;
        }
        let address = match &self.deployment {
            Deployment::Single(_) => return None,
            Deployment::Sentinel(sentinels) => &sentinels.server,
            Deployment::Cluster(seeds) => seeds.first()?,
        };
        let address = address.at(&endpoint.host, endpoint.port);
        let node = Arc::new(Node::new(address, &self.parts));
        nodes.insert(endpoint.clone(), node.clone());
        Some(node)
    }

    /// Requests a discovery, after a redirection for example.
    pub(crate) fn request_refresh(&self) {
        self.parts.refresh.notify_one();
    }

    /// Why a server did not reply, or is not found.
    pub(crate) fn last_failure(&self) -> Option<String> {
        let of_node = self.find(Health::last_failure);
        of_node.or_else(|| self.discovery_error.lock().clone())
    }

    /// What is wrong with a server.
    pub(crate) fn find<T>(&self, of: impl Fn(&Health) -> Option<T>) -> Option<T> {
        let nodes = &self.topology().nodes;
        nodes.iter().find_map(|node| of(&node.health))
    }

    /// Whether any server is in use.
    pub(crate) fn is_reachable(&self) -> bool {
        self.has_any(|health| health.was_reachable() && !health.breaker.is_open())
    }

    /// Whether no server can be used, or is known.
    pub(crate) fn has_failed(&self) -> bool {
        if self.topology().nodes.is_empty() {
            self.discovery_error.lock().is_some()
        } else {
            !self.has_any(|health| !health.breaker.is_open())
        }
    }

    /// Whether the last discovery succeeded and all servers are in use.
    pub(crate) fn is_settled(&self) -> bool {
        self.discovery_error.lock().is_none() && !self.has_any(|health| health.breaker.is_open())
    }

    /// Whether this is so of a server.
    pub(crate) fn has_any(&self, has: impl Fn(&Health) -> bool) -> bool {
        self.topology().nodes.iter().any(|node| has(&node.health))
    }

    /// The deployment and its active faults, for `/ready`.
    pub(crate) fn summary(&self) -> String {
        let mut faults = Vec::new();
        if let Some(cause) = &*self.discovery_error.lock() {
            faults.push(format!("{DISCOVERY_FAILED} ({cause})"));
        }
        let is_single = matches!(self.deployment, Deployment::Single(_));
        for node in &self.topology().nodes {
            let of_node: Vec<String> = node.health.active_faults().collect();
            if of_node.is_empty() {
                continue;
            }
            let of_node = of_node.join(", ");
            faults.push(if is_single { of_node } else { format!("{}: {of_node}", node.address()) });
        }
        let separator = if faults.is_empty() { "" } else { ": " };
        format!("{}{separator}{}", self.deployment, faults.join("; "))
    }

    /// Records the result of a discovery; the first failure and the first success are logged.
    pub(crate) fn record_discovery(&self, failure: Option<String>) {
        let failure = failure.map(|cause| short(&cause).to_owned());
        let mut known = self.discovery_error.lock();
        if let Some(cause) = &failure {
            self.parts.metrics.topology_failures.inc();
            if known.is_none() {
                tracing::warn!(deployment = %self.deployment, cause, "{DISCOVERY_FAILED}; keeping the last known topology");
            }
        } else if known.is_some() {
            tracing::warn!(deployment = %self.deployment, fault = DISCOVERY_FAILED, "recovered: Redis topology discovered");
        }
        *known = failure;
    }

    /// Replaces the topology, and retires nodes that are no longer part of it.
    pub(crate) fn install(&self, topology: Topology) {
        let metrics = &self.parts.metrics;
        let before = self.topology.load_full();
        if topology.routes_like(&before) {
            return;
        }
        if !before.nodes.is_empty() {
            metrics.topology_changes.inc();
            if !topology.has_same_nodes(&before) {
                let addresses = topology.nodes.iter().map(|node| node.address().to_string());
                let nodes = addresses.collect::<Vec<_>>().join(", ");
                tracing::warn!(deployment = %self.deployment, nodes, "Redis topology changed");
            }
        }
        metrics.nodes.add(gauged(topology.nodes.len()) - gauged(before.nodes.len()));
        let is_kept = |node: &Arc<Node>| topology.nodes.iter().any(|kept| kept.id == node.id);
        self.nodes.lock().retain(|_, node| is_kept(node));
        let retired: Vec<_> = before.nodes.iter().filter(|node| !is_kept(node)).collect();
        self.topology.store(Arc::new(topology));
        for node in retired {
            node.health.retire(node.address());
        }
        self.changed.notify_one();
    }
}
