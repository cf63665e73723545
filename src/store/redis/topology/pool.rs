//! Which server a key lives on: the only one, the one that Sentinel names, or the one that serves
//! its slot of a Cluster.
//!
//! A [`NodePool`] is all servers of one deployment. Its [`Topology`] is what requests go by: a snapshot,
//! replaced whole when the servers move. One task looks after both, so no request ever waits for
//! somebody to find out where to go.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, MutexGuard};
use redis::RedisError;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use crate::backoff::{Backoff, jittered};
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::Connector;
use crate::store::redis::connect::lookup::{ANSWER_TIMEOUT, LookupConnection};
use crate::store::redis::topology::cluster::{self, Endpoint, SLOTS, View};
use crate::store::redis::topology::deployment::{Deployment, SentinelConfig};
use crate::store::redis::topology::health::{
    PROBE_INTERVAL, PROBE_INTERVAL_MAX, TLS_PROBE_INTERVAL_MAX,
};
use crate::store::redis::topology::node::{Node, NodeId, NodeParts};
use crate::store::redis::topology::sentinel::{self, Sentinels};
use crate::store::redis::topology::snapshot::UNASSIGNED;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

pub use crate::store::redis::topology::snapshot::Topology;

/// How many nodes a cluster may have: what Redis itself recommends as the most.
pub const NODES_MAX: usize = 1_000;
/// How often to ask sentinels while all is well: a failover in which the old master stays reachable
/// shows in nothing else.
const SENTINEL_INTERVAL: Duration = Duration::from_secs(1);
/// How often to ask a cluster while all is well. Whatever matters shows earlier, in redirections
/// and failures.
const CLUSTER_INTERVAL: Duration = Duration::from_secs(10);
/// Doubts that come within this time are one.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How long to pause between look-ups while a server cannot be reached, or calls go to the wrong
/// one: first and at most. Within the latter of a failover the new master is used.
const LOOK_UP_PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// How long a server may take to answer its first probe before calls stop waiting for it. The probe
/// goes on.
const FIRST_PROBE_AWAITED: Duration = Duration::from_secs(1);

/// All servers of one deployment.
#[derive(Debug)]
pub struct NodePool {
    deployment: Deployment,
    discovery: Discovery,
    parts: NodeParts,
    topology: ArcSwap<Topology>,
    /// Those of the topology, and those that somebody was sent to since.
    nodes: Mutex<HashMap<Endpoint, Arc<Node>>>,
    /// Why nobody can tell where the servers are, while nobody can. It was logged when it came.
    discovery_error: Mutex<Option<String>>,
    /// Rung when the topology is another.
    changed: Notify,
    /// How often a server, once given up, was there again.
    recoveries: AtomicU64,
    metrics: TopologyMetrics,
}

/// What all pools tell together.
#[derive(Debug, Clone)]
pub struct TopologyMetrics {
    nodes: Gauge,
    changes: Counter,
    failures: Counter,
}

/// Who is asked where the servers are.
#[derive(Debug)]
enum Discovery {
    /// Nobody needs to be.
    Static,
    Sentinels(Sentinels),
    Seeds(Vec<LookupConnection>),
}

impl TopologyMetrics {
    /// No server is known yet.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            nodes: metrics.gauge("tollgate_store_nodes", "Servers of Redis that are asked: masters, as far as they are known."),
            changes: metrics.counter(
                "tollgate_store_topology_changes_total",
                "How often the servers of Redis turned out to be others, or to serve other slots: failovers, and slots that moved.",
            ),
            failures: metrics.counter(
                "tollgate_store_topology_failures_total",
                "How often nobody could tell where the servers of Redis are: no sentinel, or no node of the cluster.",
            ),
        }
    }
}

impl NodePool {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(
        deployment: Deployment,
        parts: NodeParts,
        metrics: TopologyMetrics,
    ) -> Result<Self, RedisError> {
        let connector = |address: &Address| {
            Connector::new(address.clone(), parts.timeouts, parts.dialer.clone(), None)
        };
        let (discovery, topology) = match &deployment {
            Deployment::Single(address) => {
                metrics.nodes.inc();
                (
                    Discovery::Static,
                    Topology::single(Arc::new(Node::new(address.clone(), &parts)?)),
                )
            }
            Deployment::Sentinel(SentinelConfig {
                master, sentinels, ..
            }) => (
                Discovery::Sentinels(Sentinels::new(master.clone(), sentinels, connector)?),
                Topology::default(),
            ),
            Deployment::Cluster(seeds) => {
                let seeds = seeds
                    .iter()
                    .map(|seed| Ok(LookupConnection::new(&connector(seed)?)))
                    .collect::<Result<_, RedisError>>()?;
                (Discovery::Seeds(seeds), Topology::default())
            }
        };
        Ok(Self {
            deployment,
            discovery,
            parts,
            topology: ArcSwap::from_pointee(topology),
            nodes: Mutex::default(),
            discovery_error: Mutex::default(),
            changed: Notify::new(),
            recoveries: AtomicU64::new(0),
            metrics,
        })
    }

    /// Where keys live at the moment.
    pub fn topology(&self) -> Guard<Arc<Topology>> {
        self.topology.load()
    }

    /// Its servers, as an operator names them.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// The server to which another one has sent somebody. `None` if there are too many, or its
    /// endpoint is none.
    pub fn node_at(&self, endpoint: &Endpoint) -> Option<Arc<Node>> {
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
        let node =
            Arc::new(Node::new(address.at(&endpoint.host, endpoint.port), &self.parts).ok()?);
        nodes.insert(endpoint.clone(), node.clone());
        Some(node)
    }

    /// Somebody was sent elsewhere: it should be looked where the keys are now.
    pub fn request_refresh(&self) {
        self.parts.refresh.notify_one();
    }

    /// Whether any server was ever seen to be there.
    pub fn was_reachable(&self) -> bool {
        self.topology()
            .nodes
            .iter()
            .any(|node| node.health.was_reachable())
    }

    /// Whether any server was reached, and not lost since.
    pub fn is_reachable(&self) -> bool {
        self.topology()
            .nodes
            .iter()
            .any(|node| node.health.was_reachable() && !node.health.breaker.is_open())
    }

    /// How often a server, once given up, was there again.
    pub fn recoveries(&self) -> u64 {
        self.recoveries.load(Relaxed)
    }

    /// What an operator should know of it: the servers, and what is wrong with them.
    pub fn summary(&self) -> String {
        let mut notes = Vec::new();
        if let Some(cause) = &*self.discovery_error() {
            notes.push(format!("{LOST} ({cause})"));
        }
        let is_one = matches!(self.deployment, Deployment::Single(_));
        for node in &self.topology().nodes {
            let troubles: Vec<String> = node.health.active_faults().collect();
            if !troubles.is_empty() {
                let troubles = troubles.join(", ");
                notes.push(if is_one {
                    troubles
                } else {
                    format!("{}: {troubles}", node.address())
                });
            }
        }
        let separator = if notes.is_empty() { "" } else { ": " };
        format!("{}{separator}{}", self.deployment, notes.join("; "))
    }

    /// Probes servers, tells of their troubles and finds out where they are, for as long as the
    /// process lives. `back` is what has to go well before a server that is back is asked
    /// again.
    pub async fn maintain<B: Future<Output = bool> + Send>(&self, back: impl Fn(Arc<Node>) -> B) {
        tokio::join!(self.maintain_nodes(back), self.maintain_topology());
    }

    /// Returns when keys may live elsewhere than before. For one waiter.
    pub async fn topology_changed(&self) {
        self.changed.notified().await;
    }

    async fn maintain_nodes<B: Future<Output = bool> + Send>(&self, back: impl Fn(Arc<Node>) -> B) {
        let mut rounds = tokio::time::interval(PROBE_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut recoveries, mut recovering) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            tokio::select! {
                _ = rounds.tick() => for node in self.topology.load_full().nodes() {
                    node.health.log_transitions(node.address());
                    if is_awaited(node) && recovering.insert(node.id()) {
                        recoveries.push(self.recover(node.clone(), &back));
                    }
                },
                Some(id) = recoveries.next() => {
                    recovering.remove(&id);
                }
            }
        }
    }

    /// Probes a server, one attempt at a time, until it is used again or another one serves in its
    /// endpoint.
    async fn recover<B: Future<Output = bool> + Send>(
        &self,
        node: Arc<Node>,
        back: &impl Fn(Arc<Node>) -> B,
    ) -> NodeId {
        let mut intervals = Backoff::doubling(PROBE_INTERVAL, TLS_PROBE_INTERVAL_MAX);
        let is_known = || {
            self.topology()
                .nodes
                .iter()
                .any(|known| known.id() == node.id())
        };
        while is_awaited(&node) && is_known() {
            let began = Instant::now();
            let interval_max = match probe(&node).await {
                Ok(()) if !node.health.breaker.is_open() || back(node.clone()).await => {
                    self.mark_recovered(&node);
                    break;
                }
                Err(error) if node.address().is_tls() && !error.is_connection_refusal() => {
                    TLS_PROBE_INTERVAL_MAX
                }
                _ => PROBE_INTERVAL_MAX,
            };
            tokio::time::sleep_until(began + intervals.pause_up_to(interval_max)).await;
        }
        node.id()
    }

    /// A server is there. Calls go to it at once; that its trouble is over is told when that has
    /// gone well for a while.
    fn mark_recovered(&self, node: &Node) {
        if node.health.breaker.is_open() {
            node.health.breaker.close();
            node.mark_recovered();
            self.recoveries.fetch_add(1, Relaxed);
        }
    }

    async fn maintain_topology(&self) {
        let [min, max] = LOOK_UP_PAUSES;
        let mut pauses = Backoff::doubling(min, max);
        loop {
            let asked = Instant::now();
            let found = match &self.discovery {
                Discovery::Static => return,
                Discovery::Sentinels(sentinels) => self.ask_sentinels(sentinels).await,
                Discovery::Seeds(seeds) => self.ask_cluster(seeds).await,
            };
            self.log_discovery(found.err());
            let is_reached = self.discovery_error().is_none()
                && self
                    .topology()
                    .nodes
                    .iter()
                    .all(|node| !node.health.breaker.is_open());
            let pause = pauses.pause();
            let interval = match &self.discovery {
                _ if !is_reached => pause,
                Discovery::Sentinels(_) => jittered(SENTINEL_INTERVAL),
                _ => jittered(CLUSTER_INTERVAL),
            };
            tokio::select! {
                () = tokio::time::sleep_until(asked + interval) => if is_reached {
                    pauses.reset();
                },
                () = self.parts.refresh.notified() => {
                    let debounced = Instant::now() + jittered(DEBOUNCE);
                    tokio::time::sleep_until(debounced.max(asked + pause)).await;
                }
            }
        }
    }

    /// Logs once that nobody knows where the servers are, and once that somebody does.
    fn log_discovery(&self, failure: Option<String>) {
        if failure.is_some() {
            self.metrics.failures.inc();
        }
        let mut lost = self.discovery_error();
        match (&*lost, &failure) {
            (None, Some(cause)) => {
                tracing::warn!(deployment = %self.deployment, cause, "{LOST}; what was last known is gone by")
            }
            (Some(_), None) => tracing::warn!(deployment = %self.deployment, "over: {LOST}"),
            _ => {}
        }
        *lost = failure;
    }

    fn discovery_error(&self) -> MutexGuard<'_, Option<String>> {
        self.discovery_error.lock()
    }

    async fn ask_sentinels(&self, sentinels: &Sentinels) -> Result<(), String> {
        let known = self.topology().nodes.first().cloned();
        let mut cause = "no sentinel names a server that says it is a master".to_owned();
        for endpoint in sentinels.masters().await? {
            let Some(node) = self.node_at(&endpoint) else {
                continue;
            };
            if known.as_ref().is_some_and(|known| known.id() == node.id()) {
                return Ok(());
            }
            let Ok(answer) =
                tokio::time::timeout(ANSWER_TIMEOUT, sentinel::is_master(&node.lookup)).await
            else {
                cause = format!("{} does not answer", node.address());
                continue;
            };
            match answer {
                Ok(true) => {
                    self.install(Topology::single(node));
                    return Ok(());
                }
                // Somebody named it who was cut off, or it has not been promoted yet.
                Ok(false) => {}
                Err(error) => {
                    cause = node.address().explain(&error);
                    node.health.record_failure(&cause);
                }
            }
        }
        // While the master is gone and no other one is found, that is what is told.
        if known.is_some() { Ok(()) } else { Err(cause) }
    }

    async fn ask_cluster(&self, seeds: &[LookupConnection]) -> Result<(), String> {
        let topology = self.topology.load_full();
        let (well, ill): (Vec<_>, Vec<_>) = topology
            .nodes
            .iter()
            .partition(|node| !node.health.breaker.is_open());
        let is_node = |seed: &&LookupConnection| {
            topology
                .nodes
                .iter()
                .any(|node| node.address().endpoint() == seed.address().endpoint())
        };
        let nodes = well.into_iter().chain(ill).map(|node| &node.lookup);
        let nodes: Vec<&LookupConnection> = nodes
            .chain(seeds.iter().filter(|seed| !is_node(seed)))
            .collect();
        let (source, view) = cluster::ask(&nodes).await?;
        // One connection is enough for the next look-up.
        for other in nodes
            .into_iter()
            .chain(seeds)
            .filter(|other| !std::ptr::eq(*other, source))
        {
            other.close();
        }
        self.apply_view(source.address(), &view)
    }

    /// What a node has said of the cluster is the topology from now on.
    fn apply_view(&self, source: &Address, view: &View) -> Result<(), String> {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut slots = vec![UNASSIGNED; usize::from(SLOTS)];
        // In an order that does not depend on who was asked.
        let mut ranges: Vec<_> = view.ranges.iter().collect();
        ranges.sort_by_key(|range| range.first);
        for range in ranges {
            let node = self
                .node_at(&range.master.resolve_relative_to(source))
                .ok_or_else(|| format!("there are more than {NODES_MAX} nodes (nodes_max)"))?;
            let index = nodes
                .iter()
                .position(|known| known.id() == node.id())
                .unwrap_or_else(|| {
                    nodes.push(node);
                    nodes.len() - 1
                });
            slots[usize::from(range.first)..=usize::from(range.last)]
                .fill(u16::try_from(index).unwrap_or(UNASSIGNED));
        }
        self.install(Topology {
            nodes,
            slots: Some(slots.into()),
        });
        Ok(())
    }

    fn install(&self, topology: Topology) {
        let before = self.topology.load_full();
        if topology.routes_like(&before) {
            return;
        }
        if !before.nodes.is_empty() {
            self.metrics.changes.inc();
            if !topology.has_same_nodes(&before) {
                self.recoveries.fetch_add(1, Relaxed);
                let names = topology
                    .nodes
                    .iter()
                    .map(|node| node.address().to_string())
                    .collect::<Vec<_>>()
                    .join(", ");
                tracing::warn!(deployment = %self.deployment, "Redis is now at {names}");
            }
        }
        self.metrics
            .nodes
            .add(signed(topology.nodes.len()) - signed(before.nodes.len()));
        let is_kept = |node: &Arc<Node>| topology.nodes.iter().any(|kept| kept.id() == node.id());
        self.nodes.lock().retain(|_, node| is_kept(node));
        let gone: Vec<_> = before.nodes.iter().filter(|node| !is_kept(node)).collect();
        self.topology.store(Arc::new(topology));
        for node in gone {
            node.health.retire(node.address());
        }
        self.changed.notify_one();
    }
}

const LOST: &str = "nobody tells where the servers of Redis are";

/// Probes a server to the end. One that takes long at the start is not asked meanwhile.
async fn probe(node: &Node) -> Result<(), RedisError> {
    let mut probing = pin!(node.health.probe(node.connector()));
    if let Ok(probed) = tokio::time::timeout(FIRST_PROBE_AWAITED, &mut probing).await {
        return probed;
    }
    node.health.probe_is_slow();
    probing.await
}

/// Whether a server was not seen to be there yet, or is not asked because it failed. That it is
/// there at the start is worth knowing before the first caller finds out.
fn is_awaited(node: &Node) -> bool {
    node.health.breaker.is_open() || !node.health.was_reachable()
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
