//! What each replica counts by itself while Redis is away, how it knows its share, and what Redis
//! is told when it is back: with real processes on a real Redis, which keeps what it had.

mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use crate::support::cluster::ClusterProcess;
use crate::support::fault::Servers;
use crate::support::http;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;
use crate::support::{Client, Code, TestServer, eventually, limit_of, look_until, request};

/// How much of each value.
const LIMIT: u64 = 30;
/// Rules of the algorithms whose hits do not come back while a test runs, and one by which a test
/// sees whether Redis counts.
const RULES: &str = "
domain: d
descriptors:
  - {key: window, rate_limit: {unit: year, requests_per_unit: 30}}
  - {key: sliding, rate_limit: {unit: year, requests_per_unit: 30}, metadata: {tollgate: {algorithm: sliding_window}}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 30}, metadata: {tollgate: {algorithm: sliding_log}}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 30}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: probe, rate_limit: {unit: year, requests_per_unit: 1000000}, metadata: {tollgate: {on_store_error: error}}}
";
const KEYS: [&str; 4] = ["window", "sliding", "log", "bucket"];
/// Only the test uses this key: a verdict for it comes from Redis.
const PROBE: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"probe"}]}]}"#;

/// A Redis that keeps on disk whatever it says that it has counted.
pub(crate) fn persistent() -> RedisProcess {
    RedisProcess::builder()
        .in_own_group()
        .with_arguments(&["--appendonly", "yes", "--appendfsync", "always"])
        .start()
}

fn replica(redis: &str) -> TestServer {
    TestServer::with_rules(RULES)
        .with_env("REDIS_URL", redis)
        .with_env("WORKERS", "1")
        .with_env("DRAIN_PERIOD", "1s")
        .start()
}

/// Replicas that have received heartbeats of each other.
fn replicas(redis: &RedisProcess, count: u32) -> Vec<TestServer> {
    let servers: Vec<_> = (0..count).map(|_| replica(&redis.url())).collect();
    look_until("heartbeats of all replicas", || {
        servers.iter().all(|server| alive(server) == count)
    });
    servers
}

/// Its number of known replicas.
fn alive(server: &TestServer) -> u32 {
    u32::try_from(whole(server.metric("tollgate_replicas"))).expect("few")
}

async fn clients(servers: &[TestServer]) -> Vec<Client> {
    let mut clients = Vec::new();
    for server in servers {
        clients.push(server.client().await);
    }
    clients
}

/// How many of `calls` pass, sent to the replicas in turn.
async fn passed(clients: &mut [Client], key: &str, calls: usize) -> u64 {
    passed_of(clients, (key, "v"), calls).await
}

/// The same of any counter.
async fn passed_of(clients: &mut [Client], counter: (&str, &str), calls: usize) -> u64 {
    let mut passed = 0;
    for at in 0..calls {
        let client = at % clients.len();
        passed += u64::from(clients[client].ask("d", &[counter]).await == Code::Ok);
    }
    passed
}

/// The distinct numbers of calls that pass for each of these.
async fn passed_of_each(
    client: &mut Client,
    counters: &[(&str, String)],
    calls: usize,
) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    for (key, value) in counters {
        numbers.insert(passed_of(slice::from_mut(client), (key, value), calls).await);
    }
    numbers
}

/// Learns what is left, and uses up nothing.
async fn look_at(client: &mut Client, key: &str, value: &str) {
    let mut look = request("d", &[&[(key, value)]]);
    look.descriptors[0].hits_addend = Some(0);
    client.answer(look).await;
}

/// Everybody learns what Redis says.
async fn look(clients: &mut [Client], key: &str) {
    for client in clients {
        look_at(client, key, "v").await;
    }
}

fn redis_counts(server: &TestServer) -> bool {
    server.json(PROBE).status == 200
}

fn wait_until_redis_is_given_up(servers: &[TestServer]) {
    look_until("Redis is given up", || {
        for server in servers {
            server.json(PROBE);
        }
        servers.iter().all(|server| server.metric("tollgate_store_breaker_open") == Some(1.0))
    });
}

fn wait_until_redis_counts(servers: &[TestServer]) {
    look_until("Redis counts for everybody", || servers.iter().all(redis_counts));
}

fn written_back(servers: &[TestServer]) -> u64 {
    servers.iter().map(|server| whole(server.metric("tollgate_write_back_hits_total"))).sum()
}

/// Waits for this number of hits. Fails if there are more.
fn wait_until_written_back(servers: &[TestServer], owed: u64) {
    look_until("all of it is written back", || written_back(servers) >= owed);
    assert_eq!(written_back(servers), owed);
}

/// A number of things.
pub(crate) fn whole(metric: Option<f64>) -> u64 {
    let metric = metric.expect("a metric").to_string();
    metric.parse().expect("a whole number")
}

#[tokio::test]
async fn three_replicas_together_admit_the_limit_over_an_outage() {
    let mut redis = persistent();
    let servers = replicas(&redis, 3);
    let mut clients = clients(&servers).await;
    let mut got = BTreeMap::new();
    for key in KEYS {
        got.insert(key, passed(&mut clients, key, 10).await);
        look(&mut clients, key).await;
    }
    redis.kill();
    wait_until_redis_is_given_up(&servers);
    for key in KEYS {
        *got.get_mut(key).expect("it was asked") += passed(&mut clients, key, 11).await;
        // A client of one replica gets that replica's share.
        *got.get_mut(key).expect("it was asked") += passed(&mut clients[..1], key, 50).await;
    }
    assert!(got.values().all(|got| (20..LIMIT).contains(got)), "{got:?}");
    redis.restart();
    wait_until_redis_counts(&servers);
    for key in KEYS {
        let later = passed(&mut clients, key, 60).await;
        assert_eq!(got[key] + later, LIMIT, "{key}, {later} of them later");
    }
}

/// One replica admits hits in an outage, and another one, which is back before it, refunds them.
#[tokio::test]
async fn refunds_wait_for_the_hits_of_a_replica_that_is_back_later() {
    let redis = persistent();
    let proxies = [Proxy::before(redis.port()), Proxy::before(redis.port())];
    let servers = proxies.each_ref().map(|proxy| {
        let url = format!("redis://{}", proxy.addr());
        replica(&url)
    });
    look_until("heartbeats of both", || servers.iter().all(|server| alive(server) == 2));
    let mut clients = clients(&servers).await;
    for proxy in &proxies {
        proxy.set(Fault::RefuseConnections);
    }
    wait_until_redis_is_given_up(&servers);
    for key in KEYS {
        assert_eq!(passed(&mut clients[..1], key, 5).await, 5, "{key}");
        let mut refund = request("d", &[&[(key, "v")]]);
        refund.descriptors[0].is_negative_hits = true;
        refund.descriptors[0].hits_addend = Some(5);
        clients[1].answer(refund).await;
    }
    for back in [1, 0] {
        proxies[back].set(Fault::None);
        wait_until_redis_counts(slice::from_ref(&servers[back]));
    }
    wait_until_written_back(&servers, 5 * KEYS.len() as u64);
    look_until("the refunds are counted", || {
        KEYS.iter().all(|key| {
            let path = format!("/api/v1/counters?domain=d&e={key}%3Dv");
            let read = http::get(servers[1].admin, &path);
            assert_eq!(read.status, 200, "{read:?}");
            read.body.contains(r#""used":0"#)
        })
    });
}

/// Slots move while no node is reachable: pending hits are written back to the new node.
#[tokio::test]
async fn on_a_cluster_each_node_is_told_of_the_counters_that_it_has_by_then() {
    const VALUES: usize = 6;
    let cluster = ClusterProcess::start_behind_proxies();
    let builder = TestServer::with_rules(RULES).with_env("WORKERS", "1");
    let servers = [builder.with_envs(&cluster.settings()).start()];
    look_until("its own heartbeat", || alive(&servers[0]) == 1);
    let mut client = servers[0].client().await;
    let counters: Vec<_> = KEYS
        .into_iter()
        .flat_map(|key| (0..VALUES).map(move |value| (key, value.to_string())))
        .collect();
    wait_until_redis_counts(&servers);
    assert_eq!(passed_of_each(&mut client, &counters, 9).await, BTreeSet::from([9]));
    (0..cluster.len()).for_each(|node| cluster.proxy(node).set(Fault::RefuseConnections));
    eventually("each node is given up", async || {
        for (key, value) in &counters {
            look_at(&mut client, key, value).await;
        }
        servers[0].metric("tollgate_store_breaker_open") == Some(3.0)
    })
    .await;
    assert_eq!(passed_of_each(&mut client, &counters, 11).await, BTreeSet::from([11]));
    for key in cluster.keys("tg:d:bucket:*") {
        let slot = cluster.slot_of(&key);
        cluster.migrate(slot);
    }
    (0..cluster.len()).for_each(|node| cluster.proxy(node).set(Fault::None));
    wait_until_written_back(&servers, counters.len() as u64 * 11);
    look_until("each node is asked again", || {
        servers[0].metric("tollgate_store_breaker_open") == Some(0.0)
    });
    assert_eq!(passed_of_each(&mut client, &counters, 40).await, BTreeSet::from([10]));
}

#[tokio::test]
async fn what_is_heard_of_other_replicas_goes_before_what_is_set() {
    let mut redis = RedisProcess::start();
    let servers = [TestServer::with_rules(&limit_of(10))
        .with_env("REDIS_URL", &redis.url())
        .with_env("REPLICAS", "4")
        .start()];
    look_until("its own heartbeat", || alive(&servers[0]) == 1);
    redis.kill();
    let mut clients = clients(&servers).await;
    let mut passed = 0;
    for _ in 0..20 {
        passed += u64::from(clients[0].ask("d", &[("k", "v")]).await == Code::Ok);
    }
    assert_eq!(passed, 10);
}
