//! A master, its replicas, and three sentinels that look after them, of one test.
//!
//! They are told little: sentinels find each other, and the replicas, through the master. A test
//! waits until they have.

use super::certificates::Identity;
use super::look_until;
use super::redis::{self, RedisProcess};
use super::versions::{DEFAULT, Version};

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
pub(crate) struct Builder<'i> {
    version: Version,
    replicas: usize,
    tls: Option<(&'i Identity, &'static str)>,
    password: Option<&'static str>,
    /// Of the sentinels.
    sentinel_password: Option<&'static str>,
    sentinel_user: Option<&'static str>,
}

impl SentinelProcess {
    /// A master, a replica, and three sentinels.
    pub(crate) fn start() -> Self {
        Self::builder().start()
    }

    /// A deployment with options.
    pub(crate) fn builder<'i>() -> Builder<'i> {
        Builder {
            version: DEFAULT,
            replicas: 1,
            tls: None,
            password: None,
            sentinel_password: None,
            sentinel_user: None,
        }
    }

    /// As an operator writes it: the master's name, and where the sentinels are.
    pub(crate) fn url(&self) -> String {
        let places = self.sentinels.iter().map(RedisProcess::address);
        [MASTER.to_owned()]
            .into_iter()
            .chain(places)
            .collect::<Vec<String>>()
            .join(",")
    }

    /// The server that the sentinels call the master, if they agree.
    pub(crate) fn master_by_name(&self) -> Option<usize> {
        let mut named = self.living().map(named_by);
        let first = named.next()?;
        let number = self
            .servers
            .iter()
            .position(|server| server.port() == first)?;
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
        look_until("the old master follows the new one", || {
            self.servers[before].is_replica()
        });
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
            self.servers
                .iter()
                .filter(|server| server.follows_its_master())
                .count()
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

impl<'i> Builder<'i> {
    /// Other servers than the one on the PATH, and sentinels of the same version.
    pub(crate) fn of(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// Redis replicas.
    pub(crate) fn with_replicas(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }

    /// TLS instead of plain text everywhere, and whether clients must show a certificate of the
    /// same authority.
    pub(crate) fn with_tls(self, identity: &'i Identity, auth_clients: &'static str) -> Self {
        Self {
            tls: Some((identity, auth_clients)),
            ..self
        }
    }

    /// The password of the servers.
    pub(crate) fn with_password(self, password: &'static str) -> Self {
        Self {
            password: Some(password),
            ..self
        }
    }

    /// The password of the sentinels.
    pub(crate) fn with_sentinel_password(self, password: &'static str) -> Self {
        Self {
            sentinel_password: Some(password),
            ..self
        }
    }

    /// A user of the sentinels besides the default one, such as `app on >s3cret ~* &* +@all`.
    pub(crate) fn with_sentinel_user(self, user: &'static str) -> Self {
        Self {
            sentinel_user: Some(user),
            ..self
        }
    }

    /// Starts everything, and waits until everybody knows everybody.
    pub(crate) fn start(self) -> SentinelProcess {
        let master = self.server().start();
        let of = ["--replicaof", "127.0.0.1", &master.port().to_string()].map(str::to_owned);
        let of = of.each_ref().map(String::as_str);
        let replicas = (0..self.replicas).map(|_| self.server().with_arguments(&of).start());
        let servers: Vec<RedisProcess> = [master].into_iter().chain(replicas).collect();
        let sentinels = (0..SENTINELS).map(|_| self.sentinel(servers[0].port()));
        let deployment = SentinelProcess {
            sentinels: sentinels.collect(),
            servers,
        };
        deployment.wait_until_known();
        deployment
    }

    fn server(&self) -> redis::Builder {
        let mut builder = self.secured(RedisProcess::builder().of(self.version));
        if let Some(password) = self.password {
            builder = builder
                .with_password(password)
                .with_arguments(&["--masterauth", password]);
        }
        // What replicas are sent first is ready at once.
        builder.with_arguments(&["--repl-diskless-sync-delay", "0"])
    }

    fn sentinel(&self, master: u16) -> RedisProcess {
        let mut lines = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {MASTER} 3000\n"
        );
        if let Some(password) = self.password {
            lines += &format!("sentinel auth-pass {MASTER} {password}\n");
        }
        if let Some(password) = self.sentinel_password {
            lines += &format!("sentinel sentinel-pass {password}\n");
        }
        if let Some(user) = self.sentinel_user {
            lines += &format!("user {user}\n");
        }
        let builder = self.secured(
            RedisProcess::builder()
                .of(self.version)
                .for_sentinel(&lines),
        );
        match self.sentinel_password {
            Some(password) => builder.with_password(password),
            None => builder,
        }
        .start()
    }

    fn secured(&self, builder: redis::Builder) -> redis::Builder {
        match self.tls {
            Some((identity, auth_clients)) => builder.with_tls(identity, auth_clients),
            None => builder,
        }
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
    let at = state
        .iter()
        .position(|word| word == name)
        .expect("it is there");
    state[at + 1].clone()
}
