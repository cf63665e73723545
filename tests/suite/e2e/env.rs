//! The test environment: Envoy, a sample backend, Tollgate, and counts of every
//! request and its outcome.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;
use tollgate::base::time::{Clock, Time};

use crate::e2e::env::envoy::Envoy;
use crate::e2e::env::http::Request;
use crate::e2e::env::ports::Ports;
use crate::e2e::env::reply::Tally;
use crate::e2e::env::service::Service;
use crate::e2e::env::upstream::Upstream;
use crate::support::http::{Connection, Reply};
use crate::support::process::StoreOnDrop;
use crate::support::redis::RedisProcess;

pub(crate) use crate::e2e::env::reply::{Outcome, Timed};
pub(crate) use crate::support::process::{look_for, look_until};

pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod ports;
pub(crate) mod reply;
pub(crate) mod service;
pub(crate) mod upstream;

/// Rules with a limit of a day for each path and address, in the domain of the samples.
pub(crate) fn limit_of_a_day(requests: u64) -> String {
    format!(
        "
domain: web
descriptors:
  - key: path
    descriptors:
      - key: remote_address
        rate_limit: {{unit: day, requests_per_unit: {requests}}}
"
    )
}

/// Envoy and Tollgate, running. Both end with it.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) envoy: Envoy,
    pub(crate) tollgate: Service,
    redis: Option<Mutex<RedisProcess>>,
    upstream: Option<Upstream>,
    pub(crate) clock: Clock,
    ports: Ports,
    tally: Tally,
    _home: TempDir,
}

/// An env that is not started yet.
#[derive(Debug)]
pub(crate) struct Builder {
    config: String,
    store: Store,
    variables: Vec<(&'static str, String)>,
    upstream: Option<Upstream>,
    ports: Ports,
    rules: PathBuf,
    home: TempDir,
}

/// Where Tollgate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// In its memory, which ends with it.
    Memory,
    /// In a Redis, which outlives it.
    Redis,
}

/// Envoy's counters of its checks: `cluster.backend.ratelimit.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    pub(crate) error: u64,
    pub(crate) failure_mode_allowed: u64,
}

/// A request whose reply is not read yet. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Pending<'s> {
    env: &'s Env,
    connection: Connection,
    sent_at: Time,
}

impl Env {
    /// An env with this file of `deploy/envoy`, and the rules that are beside it.
    pub(crate) fn with(config: &str) -> Builder {
        let home = TempDir::new().expect("a temporary directory can be made");
        let rules = home.path().join("rules");
        fs::create_dir(&rules).expect("it is empty");
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy/rules"))
            .expect("rules are shipped")
        {
            let path = entry.expect("it can be listed").path();
            fs::copy(&path, rules.join(path.file_name().expect("it was listed")))
                .expect("a file can be copied");
        }
        let ports = Ports::take();
        let config = envoy::config(config, &ports);
        Builder {
            config,
            store: Store::Memory,
            variables: Vec::new(),
            upstream: None,
            ports,
            rules,
            home,
        }
    }

    /// The same env with every store, one after the other: what clients see must not depend on it.
    pub(crate) fn with_every_store(config: &str) -> impl Iterator<Item = Builder> {
        Store::ALL.into_iter().map(move |store| {
            println!("with {store:?}");
            Self::with(config).on(store)
        })
    }

    /// The Redis of an env that has one.
    pub(crate) fn redis(&self) -> MutexGuard<'_, RedisProcess> {
        let redis = self.redis.as_ref().expect("this env counts in Redis");
        redis.lock()
    }

    /// The backend of an env that has one that the test controls.
    pub(crate) fn upstream(&self) -> &Upstream {
        self.upstream.as_ref().expect("this env was started with it")
    }

    /// Where it counts.
    pub(crate) fn store(&self) -> Store {
        if self.redis.is_some() { Store::Redis } else { Store::Memory }
    }

    /// GET on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Timed {
        self.send(Request::get(path))
    }

    /// GET by the holder of an API key.
    pub(crate) fn get_as(&self, api_key: &str, path: &str) -> Timed {
        self.send(Request::get(path).with(&[("x-api-key", api_key)]))
    }

    /// Any request, on a connection of its own.
    pub(crate) fn send(&self, request: Request<'_>) -> Timed {
        self.send_on(&mut self.connect(), request)
    }

    /// Sends a request on a connection of its own, and lets the test do other things until it wants
    /// the reply.
    pub(crate) fn begin(&self, request: Request<'_>) -> Pending<'_> {
        let mut connection = self.connect();
        self.tally.sent.fetch_add(1, Relaxed);
        let sent_at = self.clock.now();
        request
            .begin(&mut connection)
            .unwrap_or_else(|error| panic!("{request:?} cannot be sent: {error}"));
        Pending { env: self, connection, sent_at }
    }

    /// A connection to Envoy.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.ports.ingress())
    }

    /// Runs clients that GET a path as fast as they can while `act` runs. Returns all replies.
    pub(crate) fn under_traffic(
        &self,
        clients: usize,
        path: &str,
        act: impl FnOnce(),
    ) -> Vec<Timed> {
        let stopped = AtomicBool::new(false);
        let send = || {
            let mut connection = self.connect();
            let mut seen = Vec::new();
            while !stopped.load(Relaxed) {
                seen.push(self.send_on(&mut connection, Request::get(path)));
            }
            seen
        };
        thread::scope(|scope| {
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(send)).collect();
            let stop = StoreOnDrop(&stopped);
            act();
            drop(stop);
            let ended = clients.into_iter();
            ended.flat_map(|client| client.join().expect("every request gets a reply")).collect()
        })
    }

    /// Requests with this outcome so far.
    pub(crate) fn seen(&self, outcome: Outcome) -> u64 {
        self.tally.ended[outcome as usize].load(Relaxed)
    }

    /// Fails unless Envoy got so many verdicts of either kind and no error, and every request its
    /// reply.
    pub(crate) fn assert_verdicts(&self, ok: u64, over_limit: u64) {
        self.assert_counts(Counts { ok, over_limit, ..Counts::default() });
    }

    /// How often Envoy has asked.
    pub(crate) fn asked(&self) -> u64 {
        self.tollgate.stat("ratelimit_server.ShouldRateLimit.total_requests")
    }

    /// A counter of a rule, by its statsd name behind the domain.
    pub(crate) fn rule_stat(&self, name: &str) -> u64 {
        self.tollgate.stat(&format!("ratelimit.service.rate_limit.{name}"))
    }

    /// Fails unless every request got its reply through this Envoy, with these counters.
    pub(crate) fn assert_counts(&self, expected: Counts) {
        let stats = self.envoy.stats();
        let stat = |name: &str| stats.get(name).copied().unwrap_or(0);
        let counts = Counts {
            ok: stat("cluster.backend.ratelimit.ok"),
            over_limit: stat("cluster.backend.ratelimit.over_limit"),
            error: stat("cluster.backend.ratelimit.error"),
            failure_mode_allowed: stat("cluster.backend.ratelimit.failure_mode_allowed"),
        };
        assert_eq!(counts, expected, "what Envoy counted; the replies: {:?}", self.tally);
        let sent = self.tally.sent.load(Relaxed);
        let [passed, over_limit, failed] = [Outcome::Passed, Outcome::OverLimit, Outcome::Failed]
            .map(|outcome| self.seen(outcome));
        assert_eq!(passed + over_limit + failed, sent, "requests with a reply, and sent");
        assert_eq!(
            stat("http.ingress.downstream_rq_total"),
            sent,
            "requests that Envoy got, and sent"
        );
        assert_eq!(passed, counts.ok + counts.failure_mode_allowed, "requests that passed");
        assert_eq!(over_limit, counts.over_limit, "requests over limit");
        assert_eq!(failed, counts.error - counts.failure_mode_allowed, "requests that failed");
    }

    fn send_on(&self, connection: &mut Connection, request: Request<'_>) -> Timed {
        self.tally.sent.fetch_add(1, Relaxed);
        let sent_at = self.clock.now();
        let reply = request
            .send(connection)
            .unwrap_or_else(|error| panic!("no reply to {request:?}: {error}"));
        self.received(reply, sent_at)
    }

    fn received(&self, reply: Reply, sent_at: Time) -> Timed {
        let timed = Timed { reply, sent_at, received_at: self.clock.now() };
        self.tally.ended[timed.outcome() as usize].fetch_add(1, Relaxed);
        timed
    }
}

impl Builder {
    /// Sets an environment variable of Tollgate's.
    pub(crate) fn with_env(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Counts in this store.
    pub(crate) fn on(mut self, store: Store) -> Self {
        self.store = store;
        self
    }

    /// Replaces the sample's backend by one that the test controls.
    pub(crate) fn with_upstream(mut self) -> Self {
        let upstream = Upstream::start();
        self.config = envoy::with_backend(&self.config, self.ports.backend(), upstream.addr());
        self.upstream = Some(upstream);
        self
    }

    /// Replaces a part of Envoy's configuration.
    pub(crate) fn with_instead(mut self, there: &str, here: &str) -> Self {
        self.config = envoy::replaced(&self.config, there, here);
        self
    }

    /// Adds the access log that a page of the documentation shows first. Envoy writes it to `file`.
    pub(crate) fn with_access_log(mut self, page: &str, file: &Path) -> Self {
        const FILTERS: &str = "          http_filters:\n";
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page));
        let text = text.expect("the page exists");
        let mut lines = text
            .lines()
            .skip_while(|line| line.trim_start() != "access_log:")
            .take_while(|line| line.trim_start() != "```")
            .peekable();
        let first = lines.peek().expect("the page shows it");
        let indent = first.len() - first.trim_start().len();
        let shown = lines.map(|line| match line.split_once("path: /") {
            Some((start, _)) => format!("{start}path: {}", file.display()),
            None => line.to_owned(),
        });
        let indented = shown.map(|line| format!("          {}\n", &line[indent..]));
        let indented = indented.collect::<Vec<_>>().concat();
        // The next one is the backend.
        self.config = self.config.replacen(FILTERS, &format!("{indented}{FILTERS}"), 1);
        self
    }

    /// Replaces a rules file.
    pub(crate) fn with_rules(self, file: &str, yaml: &str) -> Self {
        fs::write(self.rules.join(file), yaml).expect("the rules are a copy of this test's own");
        self
    }

    /// Starts Envoy and Tollgate, and waits until they serve.
    pub(crate) fn start(self) -> Env {
        let Self { config, store, mut variables, upstream, ports, rules, home } = self;
        let redis = (store == Store::Redis).then(|| RedisProcess::builder().in_own_group().start());
        variables.extend(redis.iter().map(|redis| ("REDIS_URL", redis.url())));
        let tollgate = Service::start(variables, &rules, &ports);
        let envoy = Envoy::start(&config, &ports, home.path());
        Env {
            envoy,
            tollgate,
            redis: redis.map(Mutex::new),
            upstream,
            clock: Clock::system(),
            ports,
            tally: Tally::default(),
            _home: home,
        }
    }
}

impl Store {
    /// Every one of them.
    pub(crate) const ALL: [Self; 2] = [Self::Memory, Self::Redis];
}

impl Pending<'_> {
    /// Waits for the reply.
    pub(crate) fn finish(mut self) -> Timed {
        let reply = self.connection.read("GET").unwrap_or_else(|error| panic!("no reply: {error}"));
        self.env.received(reply, self.sent_at)
    }

    /// Whether this is in what has come of the reply so far.
    pub(crate) fn has_received(&self, text: &str) -> bool {
        self.connection.peek().contains(text)
    }

    /// Hangs up.
    pub(crate) fn hang_up(self) {
        drop(self.connection);
    }
}
