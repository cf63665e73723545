//! The store as a runtime has it, on a redis-server of its own: a test asks it, and counts what
//! Redis had to do for it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::base::time::{Clock, Span, Time};
use tollgate::limits::check::{Check, CheckError, CheckRequest, Verdict};
use tollgate::limits::{Algorithm, Terms, Unit};
use tollgate::store::redis::connect::dialer::Dialer;
use tollgate::store::redis::connect::parse;
use tollgate::store::redis::topology::deployment::{Deployment, PoolOptions};
use tollgate::store::redis::{Options, Redis, RedisClient};
use tollgate::telemetry::metric::Metrics;

use super::redis::RedisProcess;
use super::{PATIENCE, counted};

/// The store, its Redis, and what both tell of themselves.
pub(crate) struct Bench {
    pub(crate) server: RedisProcess,
    pub(crate) remote: RedisClient,
    metrics: Metrics,
}

impl Bench {
    /// A store on the runtime that this is called on, by that clock.
    pub(crate) fn start(clock: Clock) -> Self {
        let server = RedisProcess::start();
        let metrics = Metrics::new();
        let remote = redis(&server, clock, &metrics).open();
        Self { server, remote, metrics }
    }

    /// How many batches the store has sent.
    pub(crate) fn batches(&self) -> u64 {
        counted(&self.metrics, "tollgate_store_batch_checks_count")
    }

    /// How often Redis has run a command since [`Self::count_anew`], for callers and in scripts.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.server.info("commandstats", &format!("cmdstat_{command}:calls=")).unwrap_or(0)
    }

    /// Resets the counts.
    pub(crate) fn count_anew(&self) {
        self.server.command::<()>(&["CONFIG", "RESETSTAT"]);
    }

    /// Waits until every key has a lifetime. Those of new windows get it after their first reply.
    pub(crate) async fn lifetimes_are_set(&self) {
        let has_lifetime = |key: &String| self.server.command::<i64>(&["TTL", key]) != -1;
        while !self.server.command::<Vec<String>>(&["KEYS", "*"]).iter().all(has_lifetime) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Asks each check in a request of its own; all of them come at the same time.
    pub(crate) async fn ask_each(
        &self,
        checks: &[Check],
        now: Time,
    ) -> Vec<Result<Verdict, CheckError>> {
        let mut callers = JoinSet::new();
        for (number, check) in checks.iter().cloned().enumerate() {
            let remote = self.remote.clone();
            callers.spawn(
                async move { (number, remote.decide(&request_of([check]), now, None).await) },
            );
        }
        in_order(callers).await.into_iter().flatten().collect()
    }
}

/// What tasks gave, by their numbers, without those that were canceled.
pub(crate) async fn in_order<T: 'static>(mut tasks: JoinSet<(usize, T)>) -> Vec<T> {
    let mut ended = Vec::new();
    while let Some(task) = tasks.join_next().await {
        ended.extend(task.ok());
    }
    ended.sort_by_key(|(number, _)| *number);
    ended.into_iter().map(|(_, result)| result).collect()
}

/// What a process knows of that server.
pub(crate) fn redis(server: &RedisProcess, clock: Clock, metrics: &Metrics) -> Arc<Redis> {
    let address = parse::address(parse::SERVER_PORT, &server.url());
    let address = address.expect("it is an address").address;
    let options = options(Deployment::Single(address), PATIENCE, PATIENCE);
    Arc::new(Redis::new(options, clock, metrics))
}

/// Options without a cache, a jitter, and a second Redis.
pub(crate) fn options(
    deployment: Deployment,
    connect_timeout: Duration,
    store_timeout: Duration,
) -> Options {
    Options {
        main: PoolOptions { deployment, connect_timeout: connect_timeout.into() },
        per_second: None,
        store_timeout: store_timeout.into(),
        required: false,
        expiration_jitter_max: Span::ZERO,
        over_limit_cache_bytes: 0,
        replicas: Some(NonZeroU32::MIN),
        key_prefix: Box::default(),
        dialer: Dialer::default(),
    }
}

/// A request of these checks, one by one.
pub(crate) fn request_of(checks: impl IntoIterator<Item = Check>) -> CheckRequest {
    CheckRequest { checks: checks.into_iter().collect(), deadline: None }
}

/// The same, all or nothing.
pub(crate) fn atomic_request(checks: impl IntoIterator<Item = Check>) -> CheckRequest {
    let joined = |check| Check { group: 1, ..check };
    request_of(checks.into_iter().map(joined))
}

/// Terms that admit this many hits at once with each algorithm.
pub(crate) fn all_at_once(requests: u32, unit: Unit, algorithm: Algorithm) -> Terms {
    Terms {
        burst: (algorithm == Algorithm::LeakyBucket).then_some(requests),
        lease: (algorithm == Algorithm::Concurrency).then_some(unit.span()),
        ..Terms::new(requests.into(), unit, algorithm)
    }
}
