//! Servers that close idle connections: limits hold, and nothing is reported as an outage. Each
//! connection is closed between two calls: those of the workers, for heartbeats (PUBLISH and
//! SUBSCRIBE), for discovery and for probes.

use crate::support::cluster::ClusterProcess;
use crate::support::fault::Servers as _;
use crate::support::http;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::SentinelProcess;
use crate::support::{Builder, Code, TestServer, limit_of, look_until};

pub(crate) const LIMIT: u32 = 5;
const LEASED: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: day, requests_per_unit: 5}
    metadata: {tollgate: {consistency: leased}}
";

/// Uses a limit up, with all connections closed after each call.
///
/// # Panics
/// More or fewer calls are admitted than `expected`, or a close is reported as an outage.
pub(crate) async fn closes_are_no_outage(
    service: Builder,
    closing: &[&RedisProcess],
    pool: &str,
    expected: u32,
) {
    let server = service.start();
    look_until("its own heartbeat", || server.metric("tollgate_replicas") == Some(1.0));
    let mut client = server.client().await;
    let mut admitted = 0;
    let series = format!("tollgate_store_connections_closed_idle_total{{pool=\"{pool}\"}}");
    for round in 1..=2 * LIMIT {
        admitted += u32::from(client.ask("d", &[("k", "v")]).await == Code::Ok);
        let closed = server.metric(&series).unwrap_or_default();
        let mut killed = 0;
        for redis in closing {
            for of in ["normal", "pubsub"] {
                killed += redis.command::<u32>(&["CLIENT", "KILL", "TYPE", of, "SKIPME", "yes"]);
            }
        }
        assert!(killed > 0, "round {round}");
        look_until("a close that is counted", || {
            server.metric(&series).is_some_and(|now| now > closed)
        });
    }
    assert_eq!(admitted, expected);
    let read = http::get(server.admin, "/api/v1/counters?domain=d&e=k%3Dv");
    assert_eq!(read.status, 200, "{read:?}");
    look_until("its heartbeats are received again", || {
        server.metric("tollgate_replicas") == Some(1.0)
    });
    server.assert_not_logged("unreachable");
    server.assert_metric("tollgate_store_breaker_opened_total", 0.0);
    let metrics = server.admin("/metrics");
    let fallbacks =
        metrics.lines().filter(|line| line.starts_with("tollgate_store_fallbacks_total"));
    assert!(
        fallbacks.clone().all(|line| line.ends_with(" 0")),
        "{:?}",
        fallbacks.collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn of_one_server() {
    let redis = RedisProcess::start();
    let service = TestServer::with_rules(&limit_of(LIMIT)).with_env("REDIS_URL", &redis.url());
    closes_are_no_outage(service, &[&redis], "main", LIMIT).await;
}

#[tokio::test]
async fn of_a_unix_socket() {
    let redis = RedisProcess::start();
    let url = format!("unix://{}", redis.socket().display());
    let service = TestServer::with_rules(&limit_of(LIMIT)).with_env("REDIS_URL", &url);
    closes_are_no_outage(service, &[&redis], "main", LIMIT).await;
}

#[tokio::test]
async fn of_leases() {
    let redis = RedisProcess::start();
    let service = TestServer::with_rules(LEASED).with_env("REDIS_URL", &redis.url());
    closes_are_no_outage(service, &[&redis], "main", LIMIT).await;
}

#[tokio::test]
async fn of_the_second_redis() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: second, requests_per_unit: 1000}}
";
    let redis = RedisProcess::start();
    let other = RedisProcess::start();
    let service = TestServer::with_rules(RULES).with_envs(&[
        ("REDIS_URL", &*other.url()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &redis.url()),
    ]);
    closes_are_no_outage(service, &[&redis, &other], "per_second", 2 * LIMIT).await;
}

#[tokio::test]
async fn of_a_cluster() {
    let cluster = ClusterProcess::start();
    let servers: Vec<&RedisProcess> = cluster.living().collect();
    let service = TestServer::with_rules(&limit_of(LIMIT)).with_envs(&cluster.settings());
    closes_are_no_outage(service, &servers, "main", LIMIT).await;
}

#[tokio::test]
async fn of_sentinels_and_their_master() {
    let sentinels = SentinelProcess::start();
    let service = TestServer::with_rules(&limit_of(LIMIT)).with_envs(&sentinels.settings());
    let servers: Vec<&RedisProcess> =
        sentinels.sentinels.iter().chain([sentinels.master()]).collect();
    closes_are_no_outage(service, &servers, "main", LIMIT).await;
}

/// A proxy closes both directions while nothing is on the way.
#[tokio::test]
async fn of_a_proxy_with_a_timeout() {
    let redis = RedisProcess::start();
    let proxy = Proxy::closing_idle(redis.port());
    let server = TestServer::with_rules(&limit_of(LIMIT))
        .with_env("REDIS_URL", &proxy.addr().to_string())
        .start();
    let mut client = server.client().await;
    let mut admitted = 0;
    for _ in 1..=2 * LIMIT {
        admitted += u32::from(client.ask("d", &[("k", "v")]).await == Code::Ok);
        let closed = proxy.closed();
        look_until("the proxy closes connections", || proxy.closed() > closed + 1);
    }
    assert_eq!(admitted, LIMIT);
    server.assert_not_logged("unreachable");
    server.assert_metric("tollgate_store_breaker_opened_total", 0.0);
}
