//! Three replicas lose Redis and find it again while clients call them: what clients get by
//! `local`, and what is written back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::base::shutdown::Lifecycle;
use tollgate::base::time::Clock;
use tollgate::limits::check::{Check, Hits, Key, StoreError};
use tollgate::limits::{Algorithm, Limit, Terms, Unit};
use tollgate::telemetry::metric::Metrics;

use crate::local_share::{LIMIT, persistent, redis_counts, replica, started, whole, written_back};
use crate::support::redis::RedisProcess;
use crate::support::remote::redis_at;
use crate::support::{Code, TestServer, counted, eventually, request};

/// Distinct values that clients ask for.
const VALUES: u64 = 30;
/// Between two calls of a client.
const PAUSE: Duration = Duration::from_millis(3);
/// Counters that are owed hits: more than one call to Redis can write back.
const OWED: usize = 16_384;

/// A client for each replica, which asks for all values in turn until it is stopped.
struct Clients {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<BTreeMap<u64, u64>>,
}

impl Clients {
    async fn start(servers: &[TestServer]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (number, server) in servers.iter().enumerate() {
            let mut client = server.client().await;
            let stop = stop.clone();
            tasks.spawn(async move {
                let mut granted = BTreeMap::new();
                let mut value = number as u64;
                while !stop.load(Relaxed) {
                    value = (value + 1) % VALUES;
                    let answer =
                        client.answer(request("d", &[&[("bucket", &value.to_string())]])).await;
                    *granted.entry(value).or_default() +=
                        u64::from(answer.overall_code() == Code::Ok);
                    tokio::time::sleep(PAUSE).await;
                }
                granted
            });
        }
        Self { stop, tasks }
    }

    /// How many hits of each value were granted.
    async fn finish(mut self) -> Vec<u64> {
        self.stop.store(true, Relaxed);
        let mut all = vec![0; usize::try_from(VALUES).expect("few")];
        while let Some(granted) = self.tasks.join_next().await {
            for (value, granted) in granted.expect("a client does not panic") {
                all[usize::try_from(value).expect("few")] += granted;
            }
        }
        all
    }
}

/// How many hits of a value Redis would grant now.
fn left(redis: &RedisProcess, value: u64) -> u64 {
    let keys: Vec<String> = redis.command(&["KEYS", &format!("tg:d:bucket:{value}:*")]);
    let Some(key) = keys.first() else {
        return LIMIT;
    };
    let state: Vec<u8> = redis.command(&["GET", key]);
    let spent = f64::from_le_bytes(state[..8].try_into().expect("two doubles"));
    let hit = f64::from(365 * 86_400) * 1e6;
    (0..=LIMIT)
        .rev()
        .find(|&left| spent + hit * f64::from(u32::try_from(left).expect("few")) <= hit * 30.0)
        .unwrap_or(0)
}

/// An outage under load grants no more than docs/operations.md says, and no less than the limit.
async fn outage_stays_within_the_bound(
    begin: impl FnOnce(&mut RedisProcess),
    end: impl FnOnce(&mut RedisProcess),
) {
    let mut redis = persistent();
    let servers = started(3, || replica(&redis).with_the_default_store_timeout());
    let each = |series: &str| {
        servers.iter().map(|server| whole(server.metric(series))).collect::<Vec<u64>>()
    };
    let sum = |series: &str| each(series).into_iter().sum::<u64>();
    let clients = Clients::start(&servers).await;
    eventually("Redis has counted some of it", async || {
        (0..VALUES).all(|value| left(&redis, value) < LIMIT)
    })
    .await;
    begin(&mut redis);
    eventually("every replica counts by itself", async || sum("tollgate_store_breaker_open") == 3)
        .await;
    let local = || sum(r#"tollgate_store_fallbacks_total{cause="unreachable",policy="local"}"#);
    let enough = local() + 2 * VALUES;
    eventually("clients are answered", async || local() >= enough).await;
    end(&mut redis);
    eventually("Redis counts for every replica", async || servers.iter().all(redis_counts)).await;
    eventually("every limit is used up", async || {
        (0..VALUES).all(|value| left(&redis, value) == 0)
    })
    .await;
    let granted = clients.finish().await;

    assert!(written_back(&servers) > 0);
    // Once by Redis, and once more by the replicas in each outage.
    let outages =
        each("tollgate_store_breaker_opened_total").into_iter().max().expect("there are replicas");
    let granted_max = LIMIT * (1 + outages);
    assert!(
        granted.iter().all(|granted| *granted <= granted_max),
        "at most {granted_max}: {granted:?}"
    );
    // A call without a reply may have been charged in Redis and not granted by its replica.
    let granted_min = (LIMIT * VALUES).saturating_sub(sum("tollgate_store_ambiguous_total"));
    assert!(granted.iter().sum::<u64>() >= granted_min, "at least {granted_min}: {granted:?}");
}

#[tokio::test]
async fn killed_redis_stays_within_the_bound_of_local() {
    outage_stays_within_the_bound(RedisProcess::kill, RedisProcess::restart).await;
}

#[tokio::test]
async fn stopped_redis_stays_within_the_bound_of_local() {
    outage_stays_within_the_bound(|redis| redis.stop(), |redis| redis.cont()).await;
}

#[tokio::test]
async fn everything_owed_is_written_back() {
    let port = RedisProcess::start().port();
    let limit = Limit::new(&Terms::new(10, Unit::Year, Algorithm::TokenBucket)).expect("a limit");
    let check =
        |number: usize| Check::new(Key::from(&*format!("tg:d:k:{number}:")), limit, Hits::Add(3));
    let metrics = Metrics::new();
    let clock = Clock::system();
    let node = redis_at(&format!("redis://127.0.0.1:{port}"), clock.clone(), &metrics);
    let mut chores = JoinSet::new();
    chores.spawn(node.clone().maintain(Lifecycle::default()));
    let is_given_up = || counted(&metrics, "tollgate_store_breaker_open") == 1;
    eventually("Redis is given up", async || is_given_up()).await;
    for number in 0..OWED {
        assert!(
            !node.decide_locally(
                &[(&check(number), StoreError::Unreachable.not_counted())],
                clock.now()
            )[0]
            .over
        );
    }
    let redis = RedisProcess::builder().start_at(port).expect("the port is still free");
    eventually("Redis is asked again", async || !is_given_up()).await;
    let owed = 3 * OWED as u64;
    eventually("all of it is written back", async || {
        counted(&metrics, "tollgate_write_back_hits_total") == owed
    })
    .await;
    assert_eq!(redis.command::<usize>(&["DBSIZE"]), OWED);
    assert_eq!(counted(&metrics, "tollgate_write_back_full_total"), 0);
}
