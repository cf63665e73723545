//! Counting on Redis, as operators and callers see it from outside of the process.

use std::time::Duration;

use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use tollgate::base::time::{Clock, Time};
use tonic::Code as GrpcCode;
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use crate::support::redis::RedisProcess;
use crate::support::{
    Builder, Client, Code, TestServer, eventually, limit_of, look_until, request,
};

/// A port without a listener.
const NOWHERE: &str = "127.0.0.1:1";

const POLICIES: &str = "
domain: d
metadata: {tollgate: {defaults: {on_store_error: deny}}}
descriptors:
  - {key: by_domain, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {on_store_error: local}}}
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {on_store_error: allow}}}
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {on_store_error: deny}}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {on_store_error: error}}}
";

fn on_redis(rules: &str, redis: &str) -> Builder {
    TestServer::with_rules(rules).with_env("REDIS_URL", redis)
}

async fn codes(client: &mut Client, key: &str, times: usize) -> Vec<Code> {
    let mut codes = Vec::new();
    for _ in 0..times {
        codes.push(client.ask("d", &[(key, "v")]).await);
    }
    codes
}

#[tokio::test]
async fn refusals_from_the_cache_are_counted_once() {
    let rules = "
domain: d
descriptors:
  - key: a
    descriptors:
      - {key: b, rate_limit: {unit: year, requests_per_unit: 1}}
";
    let redis = RedisProcess::start();
    let server =
        on_redis(rules, &redis.address()).with_env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").start();
    let mut client = server.client().await;
    for _ in 0..4 {
        client.ask("d", &[("a", "1"), ("b", "2")]).await;
    }
    let labels = r#"{domain="d",key1="a",key2="b"}"#;
    server.assert_metric(&format!("ratelimit_service_rate_limit_over_limit{labels}"), 3.0);
    server.assert_metric("ratelimit_service_rate_limit_d_a_b_over_limit_with_local_cache", 2.0);
    server.assert_metric("tollgate_over_limit_cache_hits_total", 2.0);
}

#[tokio::test]
async fn without_redis_each_rule_says_what_is_answered() {
    let server = on_redis(POLICIES, NOWHERE).with_env("ON_STORE_ERROR", "error").start();
    let mut client = server.client().await;
    assert_eq!(codes(&mut client, "local", 3).await, [Code::Ok, Code::Ok, Code::OverLimit]);
    assert_eq!(codes(&mut client, "allow", 3).await, [Code::Ok; 3]);
    assert_eq!(codes(&mut client, "deny", 2).await, [Code::OverLimit; 2]);
    assert_eq!(codes(&mut client, "by_domain", 2).await, [Code::OverLimit; 2]);
    let refused =
        client.call(request("d", &[&[("error", "v")]])).await.expect_err("the caller is to know");
    assert_eq!(refused.code(), GrpcCode::Unavailable);
    assert!(refused.message().contains("on_store_error is error"), "{}", refused.message());
    let reply =
        server.json(r#"{"domain":"d","descriptors":[{"entries":[{"key":"error","value":"v"}]}]}"#);
    assert_eq!(reply.status, 503);
    // Nothing is counted, so nothing can fail.
    assert_eq!(client.ask("elsewhere", &[("k", "v")]).await, Code::Ok);
    server.assert_metric(
        r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"}"#,
        12.0,
    );
    server.assert_metric(
        r#"tollgate_store_fallbacks_total{cause="unreachable",policy="allow"}"#,
        3.0,
    );
    assert_eq!(server.get("/healthcheck").status, 200);
    look_until("it is logged", || server.log().contains("Redis unreachable"));
    look_until("it is reported", || server.get("/ready").body.contains("Redis unreachable"));
    assert_eq!(server.get("/ready").status, 200);
}

#[tokio::test]
async fn request_limits_follow_on_store_error() {
    for (policy, expected) in
        [("allow", Some(Code::Ok)), ("deny", Some(Code::OverLimit)), ("error", None)]
    {
        let server = on_redis(POLICIES, NOWHERE).with_env("ON_STORE_ERROR", policy).start();
        let mut request = request("d", &[&[("free", "v")]]);
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 1 });
        let answer = server.client().await.call(request).await;
        assert_eq!(answer.ok().map(|answer| answer.overall_code()), expected, "{policy}");
    }
}

#[tokio::test]
async fn each_of_several_replicas_lets_its_share_through() {
    let server = on_redis(&limit_of(10), NOWHERE).with_env("REPLICAS", "4").start();
    let mut client = server.client().await;
    assert_eq!(codes(&mut client, "k", 3).await, [Code::Ok, Code::Ok, Code::OverLimit]);
}

#[tokio::test]
async fn a_start_that_gives_up_says_why_and_what_to_do() {
    let closed = RedisProcess::start().port();
    let redis = RedisProcess::builder().with_password("s3cret").start();
    let closed = format!("127.0.0.1:{closed}");
    let address = redis.address();
    let sentinel = format!("mymaster,{closed}");
    for (settings, cause) in [
        (
            &[("REDIS_URL", &*closed)][..],
            "redis://CLOSED: Connection refused (os error 111); check that it runs, and REDIS_URL",
        ),
        (
            &[("REDIS_URL", &sentinel), ("REDIS_TYPE", "sentinel")],
            "redis://CLOSED: Connection refused (os error 111); check that it runs, and REDIS_URL",
        ),
        (
            &[("REDIS_URL", &closed), ("REDIS_TYPE", "cluster")],
            "redis://CLOSED: Connection refused (os error 111); check that it runs, and REDIS_URL",
        ),
        (
            &[("REDIS_URL", &address)],
            "redis://ADDRESS requires a password (NOAUTH); set REDIS_AUTH",
        ),
        (
            &[("REDIS_URL", &address), ("REDIS_AUTH", "wrong")],
            "redis://ADDRESS rejects the user or password (WRONGPASS), or has none; check REDIS_AUTH and REDIS_URL",
        ),
    ] {
        let mut server = TestServer::with_rules(&limit_of(2))
            .with_env("REDIS_STARTUP_MAX_ELAPSED_TIME", "300ms")
            .with_envs(settings)
            .start();
        assert_eq!(server.exit_code().await, Some(1), "{cause}");
        let cause = cause.replace("CLOSED", &closed).replace("ADDRESS", &address);
        let expected = format!(
            "tollgate: Redis was not reached within 300 ms (REDIS_STARTUP_MAX_ELAPSED_TIME): {cause}"
        );
        let log = server.log();
        assert_eq!(log.lines().last(), Some(&*expected), "{log}");
    }
}

#[tokio::test]
async fn a_redis_that_comes_in_time_lets_the_service_run() {
    let redis = RedisProcess::start();
    let mut server = on_redis(&limit_of(2), &redis.address())
        .with_env("REDIS_STARTUP_MAX_ELAPSED_TIME", "3s")
        .start();
    look_until("the time is over", || {
        server.metric("process_start_time_seconds").is_some_and(|start| unix_now() - start > 4.5)
    });
    assert!(server.is_running() && server.get("/healthcheck").status == 200);
}

/// Seconds since the epoch.
fn unix_now() -> f64 {
    Duration::from(Clock::system().now().since(Time::default())).as_secs_f64()
}

#[tokio::test]
async fn health_can_be_told_to_need_redis() {
    let port = RedisProcess::start().port();
    let server = on_redis(&limit_of(2), &format!("127.0.0.1:{port}"))
        .with_env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")
        .start();
    assert_eq!(server.get("/healthcheck").status, 500);
    let mut redis =
        RedisProcess::builder().in_own_group().start_at(port).expect("the port is free");
    eventually("health is good", async || server.get("/healthcheck").status == 200).await;
    // Without a call.
    let mut client = server.client().await;
    for _ in 0..2 {
        redis.kill();
        eventually("health is bad", async || {
            server.get("/healthcheck").status == 500
                && client.health("").await.expect("it is known") == NotServing
        })
        .await;
        look_until("/ready has the reason", || {
            server.get("/ready").body.contains("Redis unreachable")
        });
        redis.restart();
        eventually("health is good", async || {
            server.get("/healthcheck").status == 200
                && client.health("").await.expect("it is known") == Serving
        })
        .await;
    }
    // One that replies to nothing.
    redis.stop();
    eventually("health is bad", async || server.get("/healthcheck").status == 500).await;
    redis.cont();
}
