//! What clients get who call all the while that Redis goes and comes back, and how soon it is asked again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tollgate::check::{Check, Hits, Key, StoreError};
use tollgate::limit::{Algorithm, Limit, Terms, Unit};
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::shutdown::Lifecycle;
use tollgate::telemetry::metric::Metrics;
use tollgate::time::{Clock, Span};

use crate::local_share::{LIMIT, handed_back, persistent, redis_counts, replica, started};
use crate::support::redis::RedisProcess;
use crate::support::remote::redis_at;
use crate::support::{Code, TestServer, alone, counted, eventually, request};

/// So many counters owe something: more than can be handed back before Redis is asked again, by a binary that is not optimised.
const OWED: usize = 16_384;
/// From when Redis answers until it is asked again.
const RECOVERY_MAX: Span = Span::from_secs(1);

/// Runs a test that needs the machine for itself.
fn by_itself(test: impl Future<Output = ()>) {
    let _alone = alone();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(test);
}

/// What clients do who never stop: they call one replica after the other, each of their values again and again.
struct Crowd {
    values: u64,
    stop: Arc<AtomicBool>,
    callers: JoinSet<BTreeMap<u64, u64>>,
}

impl Crowd {
    async fn start(servers: &[TestServer], values: u64, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for (number, server) in servers.iter().enumerate() {
            let (mut client, stop) = (server.client().await, stop.clone());
            callers.spawn(async move {
                let mut got = BTreeMap::new();
                let mut value = number as u64;
                while !stop.load(Relaxed) {
                    value = (value + 1) % values;
                    let request: RateLimitRequest = request("d", &[&[("bucket", &value.to_string())]]);
                    let answer = client.call(request).await.expect("there is an answer");
                    *got.entry(value).or_default() += u64::from(answer.overall_code() == Code::Ok);
                    tokio::time::sleep(pause).await;
                }
                got
            });
        }
        Self { values, stop, callers }
    }

    /// What each value got.
    async fn finish(mut self) -> Vec<u64> {
        self.stop.store(true, Relaxed);
        let mut all = BTreeMap::new();
        while let Some(got) = self.callers.join_next().await {
            for (value, got) in got.expect("it does not panic") {
                *all.entry(value).or_default() += got;
            }
        }
        (0..self.values).map(|value| all.get(&value).copied().unwrap_or(0)).collect()
    }
}

/// Three replicas under load lose a Redis that keeps what it has, in this way, and find it again; everybody asks until nothing is left.
async fn under_load(redis: &mut RedisProcess, away: impl AsyncFnOnce(&mut RedisProcess), values: u64) -> Vec<u64> {
    let servers = started(3, || replica(redis).with_the_default_store_timeout());
    let crowd = Crowd::start(&servers, values, Duration::from_millis(3)).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    away(redis).await;
    eventually("Redis counts for everybody", async || servers.iter().all(redis_counts)).await;
    let used = || -> u64 { (0..values).map(|value| left(redis, value)).sum() };
    eventually("nothing is left", async || used() == 0).await;
    let got = crowd.finish().await;
    println!("each got {got:?}; {} hits were handed back", handed_back(&servers));
    assert!(handed_back(&servers) > 0);
    got
}

/// How many hits of a value Redis would let pass.
fn left(redis: &RedisProcess, value: u64) -> u64 {
    let keys: Vec<String> = redis.command(&["KEYS", &format!("tg:d:bucket:{value}:*")]);
    let Some(key) = keys.first() else { return LIMIT };
    let state: Vec<u8> = redis.command(&["GET", key]);
    let spent = f64::from_le_bytes(state[..8].try_into().expect("two doubles"));
    let hit = f64::from(365 * 86_400) * 1e6;
    (0..=LIMIT).rev().find(|&left| spent + hit * f64::from(u32::try_from(left).expect("few")) <= hit * 30.0).unwrap_or(0)
}

fn holds_the_bound(got: &[u64]) {
    // docs/operations.md: once by Redis, once by the replicas.
    assert!(got.iter().all(|got| *got <= 2 * LIMIT), "{got:?}");
    let (all, limits) = (got.iter().sum::<u64>(), LIMIT * got.len() as u64);
    // What replicas had not seen yet of each other, and calls that nobody knows whether they were counted.
    assert!(all <= limits * 6 / 5 && all >= limits * 9 / 10, "{all} of {limits}: {got:?}");
}

/// Of a Redis that goes in this way and comes back.
fn holds_over(away: impl AsyncFnOnce(&mut RedisProcess)) {
    by_itself(async { holds_the_bound(&under_load(&mut persistent(), away, 30).await) });
}

#[test]
fn under_load_a_redis_that_is_killed_and_comes_back_has_let_through_hardly_more_than_the_limits() {
    holds_over(async |redis| {
        redis.kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        redis.restart();
    });
}

#[test]
fn under_load_a_redis_that_stands_still_and_goes_on_has_let_through_hardly_more_than_the_limits() {
    holds_over(async |redis| {
        redis.stop();
        tokio::time::sleep(Duration::from_secs(1)).await;
        redis.cont();
    });
}

#[test]
fn redis_is_asked_within_a_second_however_much_it_is_owed() {
    by_itself(async {
        let port = RedisProcess::start().port();
        let limit = Limit::new(&Terms::new(10, Unit::Year, Algorithm::TokenBucket)).expect("a limit");
        let check = |number: usize| Check::new(Key::from(&*format!("tg:d:k:{number}:")), limit, Hits::Add(3));
        let (metrics, clock) = (Metrics::new(), Clock::system());
        let node = redis_at(&format!("redis://127.0.0.1:{port}"), clock.clone(), &metrics);
        let mut chores = JoinSet::new();
        chores.spawn(node.clone().look_after(Lifecycle::default()));
        let is_given_up = || counted(&metrics, "tollgate_store_breaker_open") == 1;
        eventually("Redis is missed", async || is_given_up()).await;
        for number in 0..OWED {
            assert!(!node.count_alone(&[(&check(number), StoreError::Unreachable)], false, clock.now())[0].over);
        }
        let redis = RedisProcess::builder().start_at(port).expect("nobody else has the port");
        let back = clock.now();
        eventually("Redis is asked again", async || !is_given_up()).await;
        let asked = clock.now().since(back);
        let owed = 3 * OWED as u64;
        eventually("all of it is handed back", async || counted(&metrics, "tollgate_handed_back_hits_total") == owed).await;
        println!("Redis was asked after {asked}, and had all of it after {}", clock.now().since(back));
        assert!(asked < RECOVERY_MAX, "{asked}");
        assert_eq!(redis.command::<usize>(&["DBSIZE"]), OWED);
        assert_eq!(counted(&metrics, "tollgate_hand_back_full_total"), 0);
    });
}
