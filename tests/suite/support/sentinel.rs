//! A master, its replicas, and three sentinels that look after them, of one test.
//!
//! They are told little: sentinels find each other, and the replicas, through the master. A test
//! waits until they have.

use super::look_until;
use super::redis::{self, RedisProcess};

/// What the sentinels call it.
pub(crate) const MASTER: &str = "mymaster";
const SENTINELS: usize = 3;
/// After how many ms of silence a sentinel takes a server for gone.
const DOWN_AFTER_MS: usize = 500;

/// A running deployment. The first server was the master at the start.
pub(crate) struct SentinelProcess {
    pub(crate) servers: Vec<RedisProcess>,
    pub(crate) sentinels: Vec<RedisProcess>,
}

/// Options of a deployment; by default one Redis replica.
pub(crate) struct Options {
    /// What the servers are like, and the sentinels but for their password.
    pub(crate) server: redis::Builder,
    pub(crate) replicas: usize,
    pub(crate) sentinel_password: Option<&'static str>,
    /// A user of the sentinels besides the default one, such as `app on >s3cret ~* &* +@all`.
    pub(crate) sentinel_user: Option<&'static str>,
}

impl SentinelProcess {
    /// A master, a replica, and three sentinels.
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    /// Starts everything, and waits until everybody knows everybody.
    pub(crate) fn with(options: Options) -> Self {
        // What replicas are sent first is ready at once.
        let server = options.server.clone();
        let server = server.with_arguments(&["--repl-diskless-sync-delay", "0"]);
        let master = server.clone().start();
        let of = ["--replicaof", "127.0.0.1", &master.port().to_string()].map(str::to_owned);
        let replica = server.with_arguments(&of.each_ref().map(String::as_str));
        let replicas = (0..options.replicas).map(|_| replica.clone().start());
        let servers: Vec<RedisProcess> = [master].into_iter().chain(replicas).collect();
        let sentinel = options.sentinel(servers[0].port());
        let deployment =
            Self { sentinels: (0..SENTINELS).map(|_| sentinel.clone().start()).collect(), servers };
        deployment.wait_until_known();
        deployment
    }

    /// As an operator writes it: the master's name, and where the sentinels are.
    pub(crate) fn url(&self) -> String {
        let places = self.sentinels.iter().map(RedisProcess::address);
        [MASTER.to_owned()].into_iter().chain(places).collect::<Vec<String>>().join(",")
    }

    /// The server that the sentinels call the master, if they agree.
    pub(crate) fn master_by_name(&self) -> Option<usize> {
        let mut named = self.living().map(named_by);
        let first = named.next()?;
        let number = self.servers.iter().position(|server| server.port() == first)?;
        named.all(|port| port == first).then_some(number)
    }

    /// The master.
    pub(crate) fn master(&self) -> &RedisProcess {
        &self.servers[self.master_by_name().expect("they agree")]
    }

    /// The same, to be killed.
    pub(crate) fn master_mut(&mut self) -> &mut RedisProcess {
        let number = self.master_by_name().expect("they agree");
        &mut self.servers[number]
    }

    /// Has a replica take over from a master that is well, and waits until it has.
    pub(crate) fn fail_over(&self) {
        let before = self.master_by_name().expect("they agree");
        let sentinel = self.living().next().expect("a sentinel runs");
        // A sentinel rejects this after a recent failover, or without a recent reply of a replica.
        look_until("a sentinel begins to fail over", || {
            sentinel.tries(&["SENTINEL", "FAILOVER", MASTER])
        });
        self.wait_until_replaced(before);
        // Until then it counts hits that are lost.
        look_until("the old master follows the new one", || self.servers[before].is_replica());
    }

    /// Waits until the sentinels say that another server is the master, and it says so, too.
    pub(crate) fn wait_until_replaced(&self, lost: usize) {
        look_until("a replica has taken over", || {
            self.master_by_name()
                .is_some_and(|number| number != lost && self.servers[number].is_master())
        });
    }

    fn living(&self) -> impl Iterator<Item = &RedisProcess> {
        self.sentinels.iter().filter(|sentinel| sentinel.runs())
    }

    fn wait_until_known(&self) {
        look_until("the replicas have what the master has", || {
            self.servers.iter().filter(|server| server.follows_its_master()).count()
                == self.servers.len() - 1
        });
        look_until("the sentinels know each other, and the replicas", || {
            let number = |sentinel, name| state(sentinel, name).parse::<usize>().expect("a number");
            self.living().all(|sentinel| {
                number(sentinel, "num-slaves") == self.servers.len() - 1
                    && number(sentinel, "num-other-sentinels") >= SENTINELS - 1
            })
        });
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            server: RedisProcess::builder(),
            replicas: 1,
            sentinel_password: None,
            sentinel_user: None,
        }
    }
}

impl Options {
    fn sentinel(self, master: u16) -> redis::Builder {
        let mut lines = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {MASTER} 3000\n"
        );
        if let Some(password) = self.server.password() {
            lines += &format!("sentinel auth-pass {MASTER} {password}\n");
        }
        if let Some(password) = self.sentinel_password {
            lines += &format!("sentinel sentinel-pass {password}\n");
        }
        if let Some(user) = self.sentinel_user {
            lines += &format!("user {user}\n");
        }
        self.server.for_sentinel(lines, self.sentinel_password)
    }
}

/// The port that a sentinel says the master has.
pub(crate) fn named_by(sentinel: &RedisProcess) -> u16 {
    let [_, port]: [String; 2] = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
    port.parse().expect("a port")
}

/// What a sentinel knows of the master under that name.
fn state(sentinel: &RedisProcess, name: &str) -> String {
    let state: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", MASTER]);
    let at = state.iter().position(|word| word == name).expect("it is there");
    state[at + 1].clone()
}
