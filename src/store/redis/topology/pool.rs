//! Which server a key lives on: the only one, the one that Sentinel names, or the one that serves
//! its slot of a Cluster.
//!
//! A [`Pool`] is all servers of one deployment. Its [`Layout`] is what requests go by: a snapshot,
//! replaced whole when the servers move. One task looks after both, so no request ever waits for
//! somebody to find out where to go.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::RedisError;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use crate::store::redis::backoff::{Backoff, jittered};
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::Manager;
use crate::store::redis::connect::lookup::{ANSWER_TIMEOUT, KeptLink};
use crate::store::redis::topology::cluster::{self, Place, SLOTS, View};
use crate::store::redis::topology::deployment::{self, Deployment};
use crate::store::redis::topology::health::{
    PROBE_INTERVAL, PROBE_INTERVAL_MAX, TLS_PROBE_INTERVAL_MAX,
};
use crate::store::redis::topology::node::{Node, NodeId, NodeParts};
use crate::store::redis::topology::sentinel::{self, Sentinels};
use crate::store::redis::topology::snapshot::NOBODY;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

pub use crate::store::redis::topology::snapshot::Layout;

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
pub struct Pool {
    deployment: Deployment,
    finder: Finder,
    parts: NodeParts,
    layout: ArcSwap<Layout>,
    /// Those of the layout, and those that somebody was sent to since.
    nodes: Mutex<HashMap<Place, Arc<Node>>>,
    /// Why nobody can tell where the servers are, while nobody can. It was logged when it came.
    lost: Mutex<Option<String>>,
    /// Rung when the layout is another.
    moved: Notify,
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
enum Finder {
    /// Nobody needs to be.
    Settled,
    Sentinels(Sentinels),
    Seeds(Vec<KeptLink>),
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

impl Pool {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(
        deployment: Deployment,
        parts: NodeParts,
        metrics: TopologyMetrics,
    ) -> Result<Self, RedisError> {
        let manager = |address: &Address| {
            Manager::new(address.clone(), parts.timeouts, parts.dialer.clone(), None)
        };
        let (finder, layout) = match &deployment {
            Deployment::Single(address) => {
                metrics.nodes.inc();
                (
                    Finder::Settled,
                    Layout::of_one(Arc::new(Node::new(address.clone(), &parts)?)),
                )
            }
            Deployment::Sentinel(deployment::Sentinels {
                master, sentinels, ..
            }) => (
                Finder::Sentinels(Sentinels::new(master.clone(), sentinels, manager)?),
                Layout::default(),
            ),
            Deployment::Cluster(seeds) => {
                let seeds = seeds
                    .iter()
                    .map(|seed| Ok(KeptLink::new(&manager(seed)?)))
                    .collect::<Result<_, RedisError>>()?;
                (Finder::Seeds(seeds), Layout::default())
            }
        };
        Ok(Self {
            deployment,
            finder,
            parts,
            layout: ArcSwap::from_pointee(layout),
            nodes: Mutex::default(),
            lost: Mutex::default(),
            moved: Notify::new(),
            recoveries: AtomicU64::new(0),
            metrics,
        })
    }

    /// Where keys live at the moment.
    pub fn layout(&self) -> Guard<Arc<Layout>> {
        self.layout.load()
    }

    /// Its servers, as an operator names them.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// The server to which another one has sent somebody. `None` if there are too many, or its
    /// place is none.
    pub fn node_at(&self, place: &Place) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(place) {
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
        let node = Arc::new(Node::new(address.at(&place.host, place.port), &self.parts).ok()?);
        nodes.insert(place.clone(), node.clone());
        Some(node)
    }

    /// Somebody was sent elsewhere: it should be looked where the keys are now.
    pub fn doubt(&self) {
        self.parts.doubts.notify_one();
    }

    /// Whether any server was ever seen to be there.
    pub fn has_come(&self) -> bool {
        self.layout()
            .nodes
            .iter()
            .any(|node| node.health.has_come())
    }

    /// Whether any server was reached, and not lost since.
    pub fn is_reachable(&self) -> bool {
        self.layout()
            .nodes
            .iter()
            .any(|node| node.health.has_come() && !node.health.breaker.is_open())
    }

    /// How often a server, once given up, was there again.
    pub fn recoveries(&self) -> u64 {
        self.recoveries.load(Relaxed)
    }

    /// What an operator should know of it: the servers, and what is wrong with them.
    pub fn note(&self) -> String {
        let mut notes = Vec::new();
        if let Some(cause) = &*self.lost() {
            notes.push(format!("{LOST} ({cause})"));
        }
        let is_one = matches!(self.deployment, Deployment::Single(_));
        for node in &self.layout().nodes {
            let troubles: Vec<String> = node.health.troubles().collect();
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
    pub async fn look_after<B: Future<Output = bool> + Send>(&self, back: impl Fn(Arc<Node>) -> B) {
        tokio::join!(self.keep_nodes(back), self.keep_layout());
    }

    /// Returns when keys may live elsewhere than before. For one waiter.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }

    async fn keep_nodes<B: Future<Output = bool> + Send>(&self, back: impl Fn(Arc<Node>) -> B) {
        let mut rounds = tokio::time::interval(PROBE_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut recoveries, mut recovering) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            tokio::select! {
                _ = rounds.tick() => for node in self.layout.load_full().nodes() {
                    node.health.tell(node.address());
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
    /// place.
    async fn recover<B: Future<Output = bool> + Send>(
        &self,
        node: Arc<Node>,
        back: &impl Fn(Arc<Node>) -> B,
    ) -> NodeId {
        let mut intervals = Backoff::new(PROBE_INTERVAL);
        let is_known = || {
            self.layout()
                .nodes
                .iter()
                .any(|known| known.id() == node.id())
        };
        while is_awaited(&node) && is_known() {
            let began = Instant::now();
            let interval_max = match probe(&node).await {
                Ok(()) if !node.health.breaker.is_open() || back(node.clone()).await => {
                    self.welcome(&node);
                    break;
                }
                Err(error) if node.address().is_tls() && !error.is_connection_refusal() => {
                    TLS_PROBE_INTERVAL_MAX
                }
                _ => PROBE_INTERVAL_MAX,
            };
            tokio::time::sleep_until(began + intervals.pause(interval_max)).await;
        }
        node.id()
    }

    /// A server is there. Calls go to it at once; that its trouble is over is told when that has
    /// gone well for a while.
    fn welcome(&self, node: &Node) {
        if node.health.breaker.is_open() {
            node.health.breaker.close();
            node.recovered();
            self.recoveries.fetch_add(1, Relaxed);
        }
    }

    async fn keep_layout(&self) {
        let [min, max] = LOOK_UP_PAUSES;
        let mut pauses = Backoff::new(min);
        loop {
            let asked = Instant::now();
            let found = match &self.finder {
                Finder::Settled => return,
                Finder::Sentinels(sentinels) => self.ask_sentinels(sentinels).await,
                Finder::Seeds(seeds) => self.ask_cluster(seeds).await,
            };
            self.tell(found.err());
            let is_reached = self.lost().is_none()
                && self
                    .layout()
                    .nodes
                    .iter()
                    .all(|node| !node.health.breaker.is_open());
            let pause = pauses.pause(max);
            let interval = match &self.finder {
                _ if !is_reached => pause,
                Finder::Sentinels(_) => jittered(SENTINEL_INTERVAL),
                _ => jittered(CLUSTER_INTERVAL),
            };
            tokio::select! {
                () = tokio::time::sleep_until(asked + interval) => if is_reached {
                    pauses.reset();
                },
                () = self.parts.doubts.notified() => {
                    let debounced = Instant::now() + jittered(DEBOUNCE);
                    tokio::time::sleep_until(debounced.max(asked + pause)).await;
                }
            }
        }
    }

    /// Logs once that nobody knows where the servers are, and once that somebody does.
    fn tell(&self, failure: Option<String>) {
        if failure.is_some() {
            self.metrics.failures.inc();
        }
        let mut lost = self.lost();
        match (&*lost, &failure) {
            (None, Some(cause)) => {
                tracing::warn!(deployment = %self.deployment, cause, "{LOST}; what was last known is gone by")
            }
            (Some(_), None) => tracing::warn!(deployment = %self.deployment, "over: {LOST}"),
            _ => {}
        }
        *lost = failure;
    }

    fn lost(&self) -> MutexGuard<'_, Option<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask_sentinels(&self, sentinels: &Sentinels) -> Result<(), String> {
        let known = self.layout().nodes.first().cloned();
        let mut cause = "no sentinel names a server that says it is a master".to_owned();
        for place in sentinels.masters().await? {
            let Some(node) = self.node_at(&place) else {
                continue;
            };
            if known.as_ref().is_some_and(|known| known.id() == node.id()) {
                return Ok(());
            }
            let Ok(answer) =
                tokio::time::timeout(ANSWER_TIMEOUT, sentinel::is_master(&node.look_ups)).await
            else {
                cause = format!("{} does not answer", node.address());
                continue;
            };
            match answer {
                Ok(true) => {
                    self.lay_out(Layout::of_one(node));
                    return Ok(());
                }
                // Somebody named it who was cut off, or it has not been promoted yet.
                Ok(false) => {}
                Err(error) => {
                    cause = node.address().explain(&error);
                    node.health.failed(&cause);
                }
            }
        }
        // While the master is gone and no other one is found, that is what is told.
        if known.is_some() { Ok(()) } else { Err(cause) }
    }

    async fn ask_cluster(&self, seeds: &[KeptLink]) -> Result<(), String> {
        let layout = self.layout.load_full();
        let (well, ill): (Vec<_>, Vec<_>) = layout
            .nodes
            .iter()
            .partition(|node| !node.health.breaker.is_open());
        let is_node = |seed: &&KeptLink| {
            layout
                .nodes
                .iter()
                .any(|node| node.address().place() == seed.address().place())
        };
        let nodes = well.into_iter().chain(ill).map(|node| &node.look_ups);
        let nodes: Vec<&KeptLink> = nodes
            .chain(seeds.iter().filter(|seed| !is_node(seed)))
            .collect();
        let (teller, view) = cluster::ask(&nodes).await?;
        // One connection is enough for the next look-up.
        for other in nodes
            .into_iter()
            .chain(seeds)
            .filter(|other| !std::ptr::eq(*other, teller))
        {
            other.close();
        }
        self.see(teller.address(), &view)
    }

    /// What a node has said of the cluster is the layout from now on.
    fn see(&self, teller: &Address, view: &View) -> Result<(), String> {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut slots = vec![NOBODY; usize::from(SLOTS)];
        // In an order that does not depend on who was asked.
        let mut ranges: Vec<_> = view.ranges.iter().collect();
        ranges.sort_by_key(|range| range.first);
        for range in ranges {
            let node = self
                .node_at(&range.master.told_by(teller))
                .ok_or_else(|| format!("there are more than {NODES_MAX} nodes (nodes_max)"))?;
            let index = nodes
                .iter()
                .position(|known| known.id() == node.id())
                .unwrap_or_else(|| {
                    nodes.push(node);
                    nodes.len() - 1
                });
            slots[usize::from(range.first)..=usize::from(range.last)]
                .fill(u16::try_from(index).unwrap_or(NOBODY));
        }
        self.lay_out(Layout {
            nodes,
            slots: Some(slots.into()),
        });
        Ok(())
    }

    fn lay_out(&self, layout: Layout) {
        let before = self.layout.load_full();
        if layout.serves_the_same(&before) {
            return;
        }
        if !before.nodes.is_empty() {
            self.metrics.changes.inc();
            if !layout.has_the_same_nodes(&before) {
                self.recoveries.fetch_add(1, Relaxed);
                let names = layout
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
            .add(signed(layout.nodes.len()) - signed(before.nodes.len()));
        let is_kept = |node: &Arc<Node>| layout.nodes.iter().any(|kept| kept.id() == node.id());
        self.nodes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, node| is_kept(node));
        let gone: Vec<_> = before.nodes.iter().filter(|node| !is_kept(node)).collect();
        self.layout.store(Arc::new(layout));
        for node in gone {
            node.health.dismiss(node.address());
        }
        self.moved.notify_one();
    }
}

const LOST: &str = "nobody tells where the servers of Redis are";

/// Probes a server to the end. One that takes long at the start is not asked meanwhile.
async fn probe(node: &Node) -> Result<(), RedisError> {
    let mut probing = pin!(node.health.probe(node.manager()));
    if let Ok(probed) = tokio::time::timeout(FIRST_PROBE_AWAITED, &mut probing).await {
        return probed;
    }
    node.health.await_longer();
    probing.await
}

/// Whether a server was not seen to be there yet, or is not asked because it failed. That it is
/// there at the start is worth knowing before the first caller finds out.
fn is_awaited(node: &Node) -> bool {
    node.health.breaker.is_open() || !node.health.has_come()
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
