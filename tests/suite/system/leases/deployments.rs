//! Leases on Cluster, Sentinel and with REDIS_PERSECOND: never more than the limit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use futures_util::future::join_all;
use tollgate::base::time::Clock;

use super::GIVEN_BACK_AFTER;
use super::fleet::{Fleet, commands_of, leased, per_year};
use crate::support::cluster::ClusterProcess;
use crate::support::counting::answered_by_redis;
use crate::support::fault::Servers;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::{Options, SentinelProcess};
use crate::support::{TestServer, look_until};

const LIMIT: u64 = 3_000;
const LIMIT_PER_SECOND: u64 = 2_000;
/// Of each of two services: together above the limit.
const CALLS: u64 = 2_500;
/// Calls per second of each value.
const RATE: u64 = 1_000;
/// In microseconds.
const SECOND: u64 = 1_000_000;

/// Two services that count there.
async fn on<R: Servers>(redis: R) -> Fleet<R> {
    let services = services_of(&redis.settings());
    Fleet::on(redis, services).await
}

fn services_of(settings: &[(&'static str, String)]) -> Vec<TestServer> {
    let rules = leased(&per_year(LIMIT), "");
    let start = || answered_by_redis(TestServer::with_rules(&rules), settings).start();
    vec![start(), start()]
}

/// Offers more than the limit of each value at once. `used` is what the counter of a value has
/// afterwards.
async fn exceeds_no_limit<R: Servers>(
    fleet: &Fleet<R>,
    values: &[&str],
    used: impl Fn(&str) -> u64,
) {
    let calls = values.iter().map(|value| fleet.paced(value, CALLS, RATE));
    let admitted = join_all(calls).await;
    fleet.give_back(GIVEN_BACK_AFTER).await;
    for (value, admitted) in values.iter().zip(admitted) {
        assert!(admitted <= LIMIT, "{value}: {admitted}");
        assert_eq!(used(value), admitted, "{value}");
    }
}

/// The counter of a value, wherever it is.
fn used_on(servers: &[&RedisProcess], value: &str) -> u64 {
    let pattern = format!("d_key_{value}_*");
    let masters = servers.iter().filter(|server| server.is_master());
    let counters = masters.flat_map(|server| {
        let keys: Vec<String> = server.command(&["KEYS", &pattern]);
        keys.into_iter().map(|key| server.command::<u64>(&["GET", &key]))
    });
    let counters: Vec<u64> = counters.collect();
    assert_eq!(counters.len(), 1, "{value}: {counters:?}");
    counters[0]
}

#[tokio::test]
async fn cluster_exceeds_no_limit() {
    let fleet = on(ClusterProcess::start()).await;
    let values = ["a", "b", "c"];
    exceeds_no_limit(&fleet, &values, |value| used_on(&fleet.redis.all(), value)).await;
    let keys = fleet.redis.keys("d_key_*");
    let slots = keys.iter().map(|key| fleet.redis.slot_of(key));
    let nodes: BTreeSet<u16> = slots.map(|slot| slot / 5_462).collect();
    assert!(nodes.len() > 1, "the counters are on one node: {keys:?}");
}

#[tokio::test]
async fn sentinel_exceeds_no_limit() {
    let fleet = on(SentinelProcess::with(Options::default())).await;
    exceeds_no_limit(&fleet, &["v"], |value| used_on(&[fleet.redis.master()], value)).await;
}

/// Over-limit hits whose give-back is redirected stay charged.
#[tokio::test]
async fn slot_that_moves_under_load_fails_no_call_and_exceeds_no_limit() {
    let cluster = Arc::new(ClusterProcess::start());
    let services = services_of(&cluster.settings());
    let fleet = Fleet::on(cluster.clone(), services).await;
    assert_eq!(fleet.ask(0, "v").await, 1);
    let key = cluster.keys("d_key_v_*").remove(0);
    let is_over = Arc::new(AtomicBool::new(false));
    let mover = thread::spawn({
        let (cluster, is_over, slot) = (cluster.clone(), is_over.clone(), cluster.slot_of(&key));
        move || {
            let mut moves = 0;
            while !is_over.load(Relaxed) {
                let used = used_on(&cluster.all(), "v");
                cluster.migrate(slot);
                moves += 1;
                // A call follows a limited number of redirections, each of which the next move ends.
                look_until("hits are counted after the move", || {
                    is_over.load(Relaxed) || used_on(&cluster.all(), "v") != used
                });
            }
            moves
        }
    });
    let admitted = 1 + fleet.paced("v", CALLS, RATE).await;
    is_over.store(true, Relaxed);
    let migrations = mover.join().expect("slots can be moved");
    assert!(migrations >= 3, "{migrations} migrations");
    fleet.give_back(GIVEN_BACK_AFTER).await;
    assert!(admitted <= LIMIT, "{admitted}");
    let stranded = fleet.hits("stranded");
    let used = used_on(&cluster.all(), "v");
    assert!(used >= admitted + stranded, "{used}");
    assert!(used.min(LIMIT) == admitted + stranded, "{used}, {admitted}");
    // Only what is stranded is missing.
    assert!(admitted + stranded >= LIMIT * 98 / 100, "{admitted} and {stranded}");
}

/// Windows of a second are on a Redis of their own.
#[tokio::test]
async fn redis_persecond_exceeds_no_limit() {
    let redis = RedisProcess::start();
    let of_seconds = RedisProcess::start();
    let settings = [
        ("REDIS_URL", redis.url()),
        ("REDIS_PERSECOND", "true".to_owned()),
        ("REDIS_PERSECOND_URL", of_seconds.url()),
    ];
    let limit = format!("rate_limit: {{unit: second, requests_per_unit: {LIMIT_PER_SECOND}}}");
    let rules = leased(&limit, "");
    let start = || answered_by_redis(TestServer::with_rules(&rules), &settings).start();
    let fleet = Fleet::on(of_seconds, vec![start(), start()]).await;
    let clock = Clock::system();
    let window = || clock.now().as_micros() / SECOND;
    for rate in [LIMIT_PER_SECOND / 2, 3 * LIMIT_PER_SECOND] {
        let first = window();
        let admitted = fleet.paced("v", CALLS, rate).await;
        let windows = window() - first + 1;
        assert!(admitted <= windows * LIMIT_PER_SECOND, "{admitted} in {windows} windows");
    }
    fleet.give_back(GIVEN_BACK_AFTER).await;
    assert_eq!(commands_of(&redis), 0);
}
