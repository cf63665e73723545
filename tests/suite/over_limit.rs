//! What a client gets of a request over its limit: the headers and the body of its rule, word to the
//! upstream, or its slot. `in_process/queue.rs` has the times of queued requests.

use serde_json::json;

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, eventually, request};

const RULES: &str = "
domain: d
descriptors:
  - key: slow
    rate_limit: {unit: second, requests_per_unit: 1}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 5s}}
  - key: full
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: cheap
    rate_limit: {unit: hour, requests_per_unit: 1}
    metadata: {tollgate: {on_limit: degrade, request_headers: {x-degraded: 'true'}}}
";

#[test]
fn jitter_lengthens_retry_after_only() {
    let server = TestServer::with_rules(RULES)
        .with_env("RETRY_AFTER_HEADER_ENABLED", "true")
        .with_env("IETF_RATELIMIT_HEADERS_ENABLED", "true")
        .with_env("RETRY_AFTER_JITTER", "36000s")
        .start();
    let header = |key: &str, name: &str| {
        let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{key}"}}]}}]}}"#);
        let answer = server.json(&body).json();
        let mut headers = answer["responseHeadersToAdd"].as_array()?.iter();
        let value = headers.find(|header| header["key"] == name)?["value"].as_str()?;
        let secs = value.rsplit_once("t=").map_or(value, |(_, secs)| secs);
        Some(secs.parse::<u64>().expect("it is seconds"))
    };
    // An hour has 3,600 s, and nine of ten are to be longer than that.
    assert!((0..20).any(|_| header("full", "Retry-After") > Some(3_600)));
    assert!((0..20).all(|_| header("full", "RateLimit").is_some_and(|secs| secs <= 3_600)));
    assert_eq!(header("hour", "Retry-After"), None, "for over-limit responses alone");
}

#[test]
fn degraded_json_responses_are_200_with_upstream_headers() {
    let server = TestServer::with_rules(RULES).start();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"cheap"}]}]}"#;
    assert!(!server.json(body).body.contains("degraded"));
    let reply = server.json(body);
    let answer = reply.json();
    assert_eq!(reply.status, 200);
    assert_eq!(answer["requestHeadersToAdd"], json!([{"key": "x-degraded", "value": "true"}]));
    assert_eq!(answer["dynamicMetadata"], json!({"degraded": ["d.cheap"]}));
}

#[tokio::test]
async fn keys_that_are_not_enforced_are_not_denied_without_redis() {
    let mut redis = RedisProcess::start();
    // Of user=a and user=d, 50 percent include the first.
    let rules = "
domain: ramp
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 9}
    metadata: {tollgate: {enforce_percent: 50, on_store_error: deny}}
";
    let server = TestServer::with_rules(rules).with_env("REDIS_URL", &redis.url());
    let server = server.start();
    redis.kill();
    let mut client = server.client().await;
    assert_eq!(client.ask("ramp", &[("user", "a")]).await, Code::OverLimit);
    assert_eq!(client.ask("ramp", &[("user", "d")]).await, Code::Ok);
}

#[tokio::test]
async fn queued_requests_are_served_during_drain() {
    let mut server = TestServer::with_rules(RULES).with_env("DRAIN_PERIOD", "0s").start();
    let mut first = server.client().await;
    let mut second = server.client().await;
    let waiting = async {
        first.ask("d", &[("slow", "")]).await;
        first.ask("d", &[("slow", "")]).await
    };
    let stopping = async {
        server.metric_becomes("tollgate_queue_waiters", 1.0).await;
        server.signal("TERM");
        eventually("no more calls are taken", async || {
            second.call(request("d", &[&[("hour", "")]])).await.is_err()
        })
        .await;
    };
    let (code, ()) = tokio::join!(waiting, stopping);
    assert_eq!(code, Code::Ok);
    assert_eq!(server.exit_code().await, Some(0));
}
