//! A Redis Cluster of one test: masters and replicas, each a process of its own, that a test may
//! kill, stop, and move slots between.
//!
//! It is made by the commands that `redis-cli --cluster create` sends. Slots are moved step by
//! step, so that a test can stand still where a key is asked for that is half-way. A proxy may
//! stand before each node, where the cluster tells clients that the node is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::ops::Range;

use super::look_until;
use super::proxy::Proxy;
use super::redis::{self, BUS_PORT_OFFSET, RedisProcess};

/// All slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;
const MASTERS: usize = 3;
/// After how many ms of silence a node is taken for gone. Less would be a busy machine's doing;
/// with it a replica has taken over within two to three seconds.
const NODE_TIMEOUT_MS: &str = "1000";

/// A running cluster. Masters come first, then the replicas of each in turn: 4 is the second
/// one's.
pub(crate) struct ClusterProcess {
    nodes: Vec<Node>,
}

/// Options of a cluster; by default three masters without replicas.
pub(crate) struct Options {
    /// What all nodes are like.
    pub(crate) node: redis::Builder,
    /// Redis replicas per master.
    pub(crate) replicas: usize,
    pub(crate) has_proxies: bool,
}

struct Node {
    server: RedisProcess,
    proxy: Option<Proxy>,
    id: String,
}

/// A slot on its way from one master to another. What is done next is the test's choice.
#[must_use]
pub(crate) struct Migration<'c> {
    cluster: &'c ClusterProcess,
    slot: u16,
    from: usize,
    to: usize,
}

/// What one node says of all.
#[derive(Debug, PartialEq, Eq)]
struct View {
    is_whole: bool,
    /// Who has slots, by number of the node.
    owners: BTreeMap<usize, Vec<Range<u16>>>,
}

impl ClusterProcess {
    /// Three masters.
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    /// The same with a proxy before each node: that is where clients are sent.
    pub(crate) fn start_behind_proxies() -> Self {
        Self::with(Options { has_proxies: true, ..Options::default() })
    }

    /// Starts and joins the nodes, and waits until all slots are served.
    pub(crate) fn with(mut options: Options) -> Self {
        options.node.is_node = true;
        // A replica takes over whatever it has missed.
        options.node = options.node.with_arguments(&[
            "--cluster-node-timeout",
            NODE_TIMEOUT_MS,
            "--cluster-replica-validity-factor",
            "0",
        ]);
        let count = MASTERS * (1 + options.replicas);
        let nodes = (0..count).map(|_| options.start_node()).collect();
        let mut cluster = Self { nodes };
        cluster.meet(options.replicas);
        cluster
    }

    /// Masters, as an operator writes them: `127.0.0.1:port,127.0.0.1:port`.
    pub(crate) fn url(&self) -> String {
        let places: Vec<String> = (0..MASTERS).map(|number| self.place(number)).collect();
        places.join(",")
    }

    /// The address of a node as the cluster announces it.
    pub(crate) fn place(&self, number: usize) -> String {
        let node = &self.nodes[number];
        node.proxy.as_ref().map_or(node.server.address(), |proxy| proxy.addr().to_string())
    }

    /// A node.
    pub(crate) fn server(&self, number: usize) -> &RedisProcess {
        &self.nodes[number].server
    }

    /// The same, to be killed or restarted.
    pub(crate) fn server_mut(&mut self, number: usize) -> &mut RedisProcess {
        &mut self.nodes[number].server
    }

    /// The proxy of a node.
    pub(crate) fn proxy(&self, number: usize) -> &Proxy {
        self.nodes[number].proxy.as_ref().expect("this cluster was built with them")
    }

    /// How many nodes there are, whether they run or not.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Those that run.
    pub(crate) fn living(&self) -> impl Iterator<Item = &RedisProcess> {
        self.nodes.iter().map(|node| &node.server).filter(|server| server.runs())
    }

    /// The slot that a key lives in.
    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        self.living().next().expect("some node runs").command(&["CLUSTER", "KEYSLOT", key])
    }

    /// The node that serves a slot, once all masters that run name the same one, and the same
    /// epochs. Until a new owner's configuration epoch has reached a node, a late heartbeat of the
    /// old owner makes that node name the old one again. A node that takes a slot before it knows
    /// the highest epoch gets one that another node has, too; then that remains so.
    fn agreed_owner_of(&self, slot: u16) -> usize {
        let mut agreed = None;
        look_until("all nodes name the same owner of a slot", || {
            let masters = self.living().filter(|server| server.is_master());
            let views: BTreeSet<_> =
                masters.map(|server| (self.view(server).owner_of(slot), epochs(server))).collect();
            agreed = views.first().and_then(|(owner, _)| *owner).filter(|_| views.len() == 1);
            agreed.is_some()
        });
        agreed.expect("they name the same one")
    }

    /// All keys of all masters that run.
    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        let masters = self.living().filter(|server| server.is_master());
        masters.flat_map(|server| server.command::<Vec<String>>(&["KEYS", pattern])).collect()
    }

    /// Sets a slot on its way to the next master: the one who has it asks for keys that have gone
    /// to be asked for elsewhere (ASK), the other one takes them.
    pub(crate) fn begin_to_migrate(&self, slot: u16) -> Migration<'_> {
        let from = self.agreed_owner_of(slot);
        let to = (from + 1) % MASTERS;
        let number = slot.to_string();
        self.server(to).command::<()>(&[
            "CLUSTER",
            "SETSLOT",
            &number,
            "IMPORTING",
            &self.nodes[from].id,
        ]);
        self.server(from).command::<()>(&[
            "CLUSTER",
            "SETSLOT",
            &number,
            "MIGRATING",
            &self.nodes[to].id,
        ]);
        Migration { cluster: self, slot, from, to }
    }

    /// Moves a slot with all of its keys to the next master.
    pub(crate) fn migrate(&self, slot: u16) {
        let migration = self.begin_to_migrate(slot);
        migration.move_keys();
        migration.finish();
    }

    /// Waits until a replica serves in a master's place, and every node that runs knows.
    pub(crate) fn wait_until_replaced(&self, lost: usize) {
        look_until("a replica has taken its place", || {
            self.agreed().is_some_and(|view| view.is_whole && !view.owners.contains_key(&lost))
        });
    }

    /// The same where the lost one is stopped, and cannot be asked.
    pub(crate) fn wait_until_replaced_by_all_but(&self, lost: usize) {
        let others =
            || (0..self.len()).filter(|number| *number != lost && self.server(*number).runs());
        look_until("a replica has taken its place", || {
            others()
                .map(|number| self.view(self.server(number)))
                .all(|view| view.is_whole && !view.owners.contains_key(&lost))
        });
    }

    /// A master in whose place a replica could serve.
    pub(crate) fn a_master_with_a_replica(&self) -> usize {
        let has_a_replica = |server: &RedisProcess| {
            server.is_master() && server.info("replication", "connected_slaves:") > Some(0)
        };
        let number = (0..self.len())
            .find(|number| self.server(*number).runs() && has_a_replica(self.server(*number)));
        number.expect("some master has one")
    }

    /// Waits until all slots are served, and every node that runs says so.
    pub(crate) fn wait_until_whole(&self) {
        look_until("the cluster is whole, and all agree", || {
            self.agreed().is_some_and(|view| view.is_whole)
        });
    }

    /// What all nodes say that run, if they say the same.
    fn agreed(&self) -> Option<View> {
        let mut views = self.living().map(|server| self.view(server));
        let first = views.next()?;
        views.all(|view| view == first).then_some(first)
    }

    fn view(&self, of: &RedisProcess) -> View {
        let nodes: String = of.text(&["CLUSTER", "NODES"]);
        let mut owners = BTreeMap::new();
        let mut served = 0;
        for line in nodes.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [id, _, flags, .., link] = words[..8] else { panic!("{line}") };
            let number = self.nodes.iter().position(|node| node.id == id);
            // Slots on their way are in brackets.
            let slots = words[8..].iter().filter(|word| !word.starts_with('[')).map(|word| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                first.parse::<u16>().expect("a slot")..last.parse::<u16>().expect("a slot") + 1
            });
            let slots: Vec<Range<u16>> = slots.collect();
            let is_well =
                link == "connected" && !flags.contains("fail") && flags.contains("master");
            if let (Some(number), true, false) = (number, is_well, slots.is_empty()) {
                served += slots.iter().map(|slots| slots.end - slots.start).sum::<u16>();
                owners.insert(number, slots);
            }
        }
        let state: String = of.text(&["CLUSTER", "INFO"]);
        View { is_whole: served == SLOTS && state.contains("cluster_state:ok"), owners }
    }

    /// Joins the nodes and assigns slots.
    fn meet(&mut self, replicas: usize) {
        for node in &mut self.nodes {
            node.id = node.server.command(&["CLUSTER", "MYID"]);
        }
        let per_master = usize::from(SLOTS).div_ceil(MASTERS);
        let slots: Vec<String> = (0..SLOTS).map(|slot| slot.to_string()).collect();
        for (number, (node, slots)) in
            self.nodes.iter().zip(slots.chunks(per_master)).take(MASTERS).enumerate()
        {
            node.server.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            let words: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
                .into_iter()
                .chain(slots.iter().map(String::as_str))
                .collect();
            node.server.command::<()>(&words);
        }
        for node in &self.nodes[1..] {
            let (port, bus) = (
                node.server.port().to_string(),
                (node.server.port() + BUS_PORT_OFFSET).to_string(),
            );
            self.server(0).command::<()>(&[
                "CLUSTER",
                "MEET",
                &Ipv4Addr::LOCALHOST.to_string(),
                &port,
                &bus,
            ]);
        }
        look_until("everybody has met", || {
            let all = format!("cluster_known_nodes:{}\r", self.len());
            self.living().all(|server| server.text(&["CLUSTER", "INFO"]).contains(&all))
                && self
                    .living()
                    .all(|server| !server.text(&["CLUSTER", "NODES"]).contains("handshake"))
        });
        for number in MASTERS..self.len() {
            let master = &self.nodes[(number - MASTERS) / replicas].id;
            self.server(number).command::<()>(&["CLUSTER", "REPLICATE", master]);
        }
        look_until("replicas have what their masters have", || {
            self.nodes[MASTERS..].iter().all(|node| node.server.follows_its_master())
        });
        self.wait_until_whole();
        look_until("everybody knows who follows whom", || {
            let all = |server: &RedisProcess| {
                server.text(&["CLUSTER", "NODES"]).matches("slave").count() == self.len() - MASTERS
            };
            self.living().all(all)
        });
    }
}

impl View {
    fn owner_of(&self, slot: u16) -> Option<usize> {
        let owner =
            self.owners.iter().find(|(_, slots)| slots.iter().any(|slots| slots.contains(&slot)));
        owner.map(|(number, _)| *number)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { node: RedisProcess::builder(), replicas: 0, has_proxies: false }
    }
}

impl Options {
    fn start_node(&self) -> Node {
        loop {
            let port = self.node.free_port();
            let proxy = self.has_proxies.then(|| Proxy::before(port));
            let bus = (port + BUS_PORT_OFFSET).to_string();
            let mut node = self.node.clone();
            node = node.with_arguments(&["--cluster-announce-bus-port", &bus]);
            if let Some(proxy) = &proxy {
                let announced = proxy.addr().port().to_string();
                node = node.with_arguments(&["--cluster-announce-port", &announced]);
            }
            // Another process took a port: try others.
            if let Some(server) = node.start_at(port) {
                let id = String::new();
                return Node { server, proxy, id };
            }
        }
    }
}

/// The configuration epochs that a node knows, each with its node.
fn epochs(of: &RedisProcess) -> BTreeSet<(String, u64)> {
    let nodes: String = of.text(&["CLUSTER", "NODES"]);
    let epochs = nodes.lines().map(|line| {
        let mut words = line.split(' ');
        let id = words.next().expect("a name").to_owned();
        (id, words.nth(5).and_then(|epoch| epoch.parse().ok()).expect("an epoch"))
    });
    epochs.collect()
}

impl Migration<'_> {
    /// Moves up to this many keys of the slot. Returns how many were moved.
    pub(crate) fn move_some_keys(&self, keys_max: usize) -> usize {
        let from = self.cluster.server(self.from);
        let to = self.cluster.server(self.to);
        let keys: Vec<String> = from.command(&[
            "CLUSTER",
            "GETKEYSINSLOT",
            &self.slot.to_string(),
            &keys_max.to_string(),
        ]);
        if !keys.is_empty() {
            let host = Ipv4Addr::LOCALHOST.to_string();
            let port = to.port().to_string();
            let auth = to.password().map_or(Vec::new(), |password| vec!["AUTH", password]);
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let to = ["MIGRATE", &host, &port, "", "0", "5000"];
            let migrate = [&to[..], &auth[..], &["KEYS"][..], &keys].concat();
            // On a busy machine a node may miss the others for a moment (CLUSTERDOWN).
            look_until("the keys are moved", || from.tries(&migrate));
        }
        keys.len()
    }

    /// Moves all of them.
    pub(crate) fn move_keys(&self) {
        while self.move_some_keys(100) > 0 {}
    }

    /// Has the slot served by its new master alone: whoever asks the old one is sent there (MOVED).
    pub(crate) fn finish(self) {
        let slot = self.slot.to_string();
        let id = &self.cluster.nodes[self.to].id;
        // Who comes as soon as the old one lets go is not to find that the new one has not heard of
        // it. The others would hear of it in time.
        let others = (0..MASTERS).filter(|number| ![self.to, self.from].contains(number));
        for number in [self.to, self.from].into_iter().chain(others) {
            let server = self.cluster.server(number);
            if server.runs() && server.is_master() {
                server.command::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", id]);
            }
        }
    }
}
