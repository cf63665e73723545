//! A whole service without its listeners, in this process: limiter, rules and store, counting on a
//! scripted Redis.
//!
//! Tests run it under tokio's paused clock (`#[tokio::test(start_paused = true)]`), which its own
//! clock follows. So the time that a call takes is exact, and an hour passes in no time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::api::{convert, decode};
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::base::shutdown::Lifecycle;
use tollgate::base::time::{Clock, Time};
use tollgate::limiter::fallback::Fallback;
use tollgate::limiter::{self, Limiter, LimiterError, Observers, Parts, Settings};
use tollgate::limits::check::StoreError;
use tollgate::operator::observe::feed::OverLimitFeed;
use tollgate::operator::observe::redact::Values;
use tollgate::rules::config::{self, CompileOptions, Source};
use tollgate::rules::query::Query;
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::rules::{KeyFormat, LiveRules, OnStoreError};
use tollgate::store::Backend;
use tollgate::store::redis::connect::address::Address;
use tollgate::store::redis::connect::parse;
use tollgate::store::redis::topology::deployment::{Deployment, SentinelConfig};
use tollgate::store::redis::{Options, Redis};
use tollgate::telemetry::metric::Metrics;

use super::fault_log::{self, FAULTS};
use super::remote::options;
use super::scripted_redis::{Network, ScriptedRedis};
use super::{PATIENCE, counted, request};

/// Nodes of a cluster.
pub(crate) const NODES: [&str; 3] = ["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"];
/// The slots of those nodes.
pub(crate) const RANGES: [(u16, u16, &str); 3] =
    [(0, 5_460, NODES[0]), (5_461, 10_922, NODES[1]), (10_923, 16_383, NODES[2])];
/// When every test starts: on no edge of any unit.
pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);
/// The default of STORE_TIMEOUT.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_millis(100);
/// Envoy's default.
pub(crate) const GRPC_TIMEOUT: &str = "20m";
/// What of it the store has: the rest is for the way back (`convert::deadline_after`).
pub(crate) const WITHIN: Duration = millis(12);
/// More turns than any chain of tasks takes that wait for nothing but each other.
const SETTLE_TURNS: usize = 100;
const CALL_INTERVAL: Duration = millis(50);
/// How often to look whether Redis counts again.
const LOOK_INTERVAL: Duration = millis(10);
/// The default of REDIS_TIMEOUT.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// From when Redis answers until it is asked again.
pub(crate) const RECOVERY_MAX: Duration = Duration::from_secs(1);
/// Where a single Redis is.
pub(crate) const ADDRESS: &str = "10.0.0.1:6379";
/// What is answered where Redis gives no verdict, each the key of a rule that says so.
pub(crate) const POLICIES: [&str; 4] = ["local", "allow", "deny", "error"];
/// The key of a rule whose checks are decided by the script. Where Redis gives no verdict, an error is
/// answered.
pub(crate) const SCRIPT: &str = "script";
/// The limit of those rules, in a year.
pub(crate) const LIMIT: u64 = 6;

/// The service.
pub(crate) struct Service {
    pub(crate) network: Network,
    /// At [`ADDRESS`].
    pub(crate) server: Arc<ScriptedRedis>,
    pub(crate) redis: Arc<Redis>,
    pub(crate) limiter: Limiter,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    pub(crate) lifecycle: Lifecycle,
    background: JoinSet<()>,
}

/// Rules, and where they count. Clones are the same.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) live: Arc<LiveRules>,
    stats: Arc<StatsTable>,
}

/// How one call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    OverLimit,
    /// UNAVAILABLE, with the reason.
    Error(StoreError),
}

/// Callers that keep calling.
pub(crate) struct Traffic {
    callers: JoinSet<Vec<Called>>,
    until: watch::Sender<bool>,
}

/// What this thread logs while it exists. A paused clock needs a runtime of one thread, so that is
/// all that a test logs.
pub(crate) struct Log(Rc<RefCell<Vec<u8>>>);

thread_local! {
    static LOG: RefCell<Option<Rc<RefCell<Vec<u8>>>>> = const { RefCell::new(None) };
}

/// Appends to the [`Log`] of its thread.
struct LogWriter;

/// The deployment of one server at [`ADDRESS`].
pub(crate) fn single() -> Deployment {
    Deployment::Single(address(ADDRESS))
}

/// A cluster with these seeds.
pub(crate) fn cluster(seeds: &[&str]) -> Deployment {
    Deployment::Cluster(seeds.iter().map(|seed| address(seed)).collect())
}

/// The master `m` of these sentinels.
pub(crate) fn sentinel(sentinels: &[&str]) -> Deployment {
    let sentinels = sentinels.iter().map(|sentinel| address(sentinel)).collect();
    Deployment::Sentinel(SentinelConfig {
        master: "m".to_owned(),
        sentinels,
        server: Address::unresolved(),
    })
}

pub(crate) fn address(place: &str) -> Address {
    parse::address(parse::SERVER_PORT, place).expect("an address").address
}

/// A network without servers.
pub(crate) fn network() -> Network {
    Network::new(Clock::starting_at(START))
}

/// Redis as a process knows it, with the default time-outs, and an over-limit cache of this size.
pub(crate) fn redis(
    network: &Network,
    deployment: Deployment,
    metrics: &Metrics,
    over_limit_cache_bytes: u64,
) -> Arc<Redis> {
    let options = Options {
        over_limit_cache_bytes,
        dialer: network.dialer(),
        ..options(deployment, CONNECT_TIMEOUT, STORE_TIMEOUT)
    };
    let clock = network.clock.clone();
    Arc::new(Redis::new(options, clock, metrics))
}

/// A real server at this URL, with time for a busy machine.
pub(crate) fn real_redis(
    network: &Network,
    url: &str,
    metrics: &Metrics,
    over_limit_cache_bytes: u64,
) -> Arc<Redis> {
    let deployment = Deployment::Single(address(url));
    let options = Options { over_limit_cache_bytes, ..options(deployment, PATIENCE, PATIENCE) };
    Arc::new(Redis::new(options, network.clock.clone(), metrics))
}

/// A rule for each policy, with limits of a year.
fn rules() -> String {
    let rule = |key: &str, policy: &str| {
        format!(
            "  - key: {key}\n    rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n    metadata: {{tollgate: {{on_store_error: {policy}}}}}\n"
        )
    };
    let script = rule(SCRIPT, "error, over_limit_hits: drop");
    let rules = POLICIES.map(|policy| rule(policy, policy)).concat();
    format!("domain: d\ndescriptors:\n{rules}{script}")
}

/// What decides requests by these rules.
pub(crate) fn limiter(
    backend: Backend,
    clock: &Clock,
    rules: &Rules,
    metrics: &Metrics,
) -> Limiter {
    let Rules { live, stats } = rules.clone();
    let settings = Settings::default();
    let feed = OverLimitFeed::new("a", Values::Clear, metrics);
    let observers = Observers::new(stats, feed, &settings, clock, metrics);
    let parts = Parts {
        rules: live,
        backend,
        fallback: Fallback::new(OnStoreError::Local, metrics),
        clock: clock.clone(),
        settings,
        observers: Some(Arc::new(observers)),
    };
    Arc::new(limiter::Shared::new(parts, metrics)).open()
}

impl Rules {
    /// One file for each text.
    pub(crate) fn load(key_format: KeyFormat, texts: &[String], metrics: &Metrics) -> Self {
        let stats = StatsTable::new(METRIC_SERIES_MAX, metrics);
        let source = |(number, text): (usize, &String)| Source {
            name: format!("rules{number}").into(),
            path: format!("rules{number}.yaml").into(),
            text: text.as_str().into(),
        };
        let sources: Vec<Source> = texts.iter().enumerate().map(source).collect();
        let options = CompileOptions { key_format, ..CompileOptions::new(stats.clone()) };
        let live = Arc::new(LiveRules::default());
        live.replace(config::load(&sources, &options).expect("valid rules").rules);
        Self { live, stats }
    }
}

impl Service {
    /// One that has connected to nothing yet, and has no background tasks: no probes, no discovery,
    /// no heartbeats.
    pub(crate) fn new(network: &Network, deployment: Deployment) -> Self {
        Self::with_rules(network, deployment, &rules())
    }

    pub(crate) fn with_rules(network: &Network, deployment: Deployment, rules: &str) -> Self {
        let metrics = Metrics::new();
        let rules = Rules::load(KeyFormat::Reference, &[rules.to_owned()], &metrics);
        let redis = redis(network, deployment, &metrics, 0);
        Self::with_redis(network, redis, &rules, metrics)
    }

    /// The same on a Redis with options of its own, and rules that other services may have, too.
    pub(crate) fn with_redis(
        network: &Network,
        redis: Arc<Redis>,
        rules: &Rules,
        metrics: Metrics,
    ) -> Self {
        let clock = network.clock.clone();
        let backend = Backend::Redis(redis.clone());
        let limiter = limiter(backend, &clock, rules, &metrics);
        Self {
            network: network.clone(),
            server: network.server(ADDRESS),
            redis,
            limiter,
            metrics,
            clock,
            lifecycle: Lifecycle::default(),
            background: JoinSet::new(),
        }
    }

    /// One on a single server, with its background tasks, which has seen that Redis counts.
    pub(crate) async fn started() -> Self {
        let mut service = Self::new(&network(), single());
        service.start().await;
        assert_eq!(service.ask("error", "start").await.verdict, Verdict::Ok, "Redis counts");
        service
    }

    /// Starts the background tasks, and lets them do what takes no time.
    pub(crate) async fn start(&mut self) {
        let redis = self.redis.clone();
        let lifecycle = self.lifecycle.clone();
        self.background.spawn(async move { redis.maintain(lifecycle).await });
        settle().await;
    }

    /// One hit by a caller without a deadline.
    pub(crate) async fn ask(&self, key: &str, value: &str) -> Called {
        self.ask_within(key, value, None).await
    }

    /// One hit by a caller that sends this grpc-timeout.
    pub(crate) async fn ask_within(
        &self,
        key: &str,
        value: &str,
        grpc_timeout: Option<&str>,
    ) -> Called {
        ask(&self.limiter, key, value, grpc_timeout).await
    }

    /// Whether the breaker of a server is open.
    pub(crate) fn is_open(&self) -> bool {
        self.metric("tollgate_store_breaker_open") > 0
    }

    /// How often breakers have opened.
    pub(crate) fn openings(&self) -> u64 {
        self.metric("tollgate_store_breaker_opened_total")
    }

    /// Calls with Envoy's deadline, for each rule one every 50 ms, until it is dropped or finished.
    pub(crate) fn traffic(&self) -> Traffic {
        let mut callers = JoinSet::new();
        let until = watch::Sender::new(false);
        for key in POLICIES.into_iter().chain([SCRIPT]) {
            let limiter = self.limiter.clone();
            let mut until = until.subscribe();
            callers.spawn(async move {
                let mut called = Vec::new();
                let mut calls = tokio::time::interval(CALL_INTERVAL);
                while !*until.borrow_and_update() {
                    calls.tick().await;
                    let value = format!("traffic {}", called.len());
                    called.push(ask(&limiter, key, &value, Some(GRPC_TIMEOUT)).await);
                }
                called
            });
        }
        Traffic { callers, until }
    }

    /// Calls until Redis gives a verdict, and returns how long that took.
    pub(crate) async fn recovery(&self) -> Duration {
        let began = Instant::now();
        let mut number = 0;
        while {
            let value = format!("recovery {number}");
            let called = self.ask_within("error", &value, Some(GRPC_TIMEOUT)).await;
            called.verdict != Verdict::Ok
        } {
            assert!(began.elapsed() < millis(60_000), "Redis does not count again");
            tokio::time::sleep(LOOK_INTERVAL).await;
            number += 1;
        }
        began.elapsed()
    }

    /// A metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        counted(&self.metrics, name)
    }

    /// How many verdicts policies gave, by policy and cause. Only those that are not zero.
    pub(crate) fn fallbacks(&self) -> BTreeMap<(String, String), u64> {
        const SERIES: &str = "tollgate_store_fallbacks_total{cause=\"";
        let page = self.metrics.page();
        let series = page.lines().filter_map(|line| line.strip_prefix(SERIES));
        let counts = series.map(|series| {
            let [cause, _, policy, count] = series.split('"').collect::<Vec<_>>()[..] else {
                panic!("cause and policy, not {series}")
            };
            let count = count.trim_start_matches("} ").parse().expect("a number");
            ((policy.to_owned(), cause.to_owned()), count)
        });
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

impl Called {
    pub(crate) const OK: Self = called(Verdict::Ok, Duration::ZERO);
}

pub(crate) const fn called(verdict: Verdict, took: Duration) -> Called {
    Called { verdict, took }
}

impl Traffic {
    /// Stops, asserts that every call was answered in time, and returns them.
    pub(crate) async fn finish(self) -> Vec<Called> {
        self.until.send_replace(true);
        let called = self.callers.join_all().await.concat();
        let late: Vec<_> = called.iter().filter(|called| called.took > WITHIN).collect();
        assert!(late.is_empty(), "{} of {} are late: {:?}", late.len(), called.len(), late[0]);
        called
    }
}

/// One hit by a caller that may send a grpc-timeout.
pub(crate) async fn ask(
    limiter: &Limiter,
    key: &str,
    value: &str,
    grpc_timeout: Option<&str>,
) -> Called {
    decide(limiter, &request("d", &[&[(key, value)]]), grpc_timeout).await
}

/// The same with any request.
pub(crate) async fn decide(
    limiter: &Limiter,
    request: &RateLimitRequest,
    grpc_timeout: Option<&str>,
) -> Called {
    let began = Instant::now();
    let now = limiter.clock().now();
    let deadline = grpc_timeout.map(|text| convert::timeout(text).expect("a grpc-timeout"));
    let deadline = deadline.map(|timeout| convert::deadline_after(timeout, now));
    let message = request.encode_to_vec();
    let (query, _) = decode::query(&message).expect("it was encoded here");
    let query = Query { deadline, ..query };
    let verdict = match limiter.decide(&query, None).await {
        Ok(answer) if answer.over_limit => Verdict::OverLimit,
        Ok(_) => Verdict::Ok,
        Err(LimiterError::Store(error)) => Verdict::Error(error),
        Err(refusal) => panic!("{refusal}"),
    };
    called(verdict, began.elapsed())
}

/// Lets all tasks do what takes no time.
pub(crate) async fn settle() {
    for _ in 0..SETTLE_TURNS {
        tokio::task::yield_now().await;
    }
}

/// Lets this much time pass, with everything that happens in it.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    settle().await;
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Drop for Log {
    fn drop(&mut self) {
        LOG.set(None);
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow(|log| {
            if let Some(log) = log {
                log.borrow_mut().extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn capture() -> Self {
        // One for all threads: tracing caches per process whether anything listens to an event.
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            tracing_subscriber::fmt()
                .with_ansi(false)
                .without_time()
                .with_target(false)
                .with_writer(|| LogWriter)
                .init();
        });
        let log = Self(Rc::default());
        LOG.set(Some(log.0.clone()));
        log
    }

    /// The lines so far that report a fault of Redis, or its end.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.lines(&FAULTS)
    }

    /// The lines so far that have one of these texts.
    pub(crate) fn lines(&self, texts: &[&str]) -> Vec<String> {
        let log = String::from_utf8(self.0.borrow().clone()).expect("text");
        log.lines()
            .filter(|line| texts.iter().any(|text| line.contains(text)))
            .map(str::to_owned)
            .collect()
    }

    /// Asserts that this fault was logged once, and that it is over once if it `is_over`; and that
    /// no other was.
    pub(crate) fn assert_logged_once(&self, fault: &str, is_over: bool) {
        let lines = self.faults();
        let expected = 1 + usize::from(is_over);
        assert_eq!(lines.len(), expected, "{lines:#?}");
        for (line, ends) in lines.iter().zip([false, true]) {
            assert!(line.contains(fault) && fault_log::is_end(line) == ends, "{lines:#?}");
            assert!(line.contains("WARN "), "at every default level: {lines:#?}");
        }
    }
}
