//! `/api/v1/counters`: what counters are, with every algorithm and store.

use serde_json::{Value, json};

use crate::support::cluster::ClusterProcess;
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules};
use crate::support::fault::Servers as _;
use crate::support::redis::RedisProcess;
use crate::support::{Builder, Ran, TestServer, http, tollgate, tollgate_with_env};

const LIMIT: u32 = 5;

/// The path of a counter of [`rules`].
fn path_of(key: &str, value: &str) -> String {
    format!("/api/v1/counters?domain=d&e={key}%3D{value}&e=caller%3D{}", caller(key))
}

/// A holder's name has a value; the others are counted by an empty one.
fn caller(key: &str) -> &'static str {
    if key == "places" { "anyone" } else { "" }
}

/// Reads a counter.
fn read(server: &TestServer, key: &str, value: &str) -> Value {
    server.admin_json(&path_of(key, value))
}

fn service() -> Builder {
    TestServer::with_rules(&rules(LIMIT, ""))
}

fn service_on(redis: &RedisProcess) -> Builder {
    answered_by_redis(service(), &[("REDIS_URL", redis.address())])
}

/// Every algorithm: each hit is in `used` and `remaining`, and the last one makes `over_limit`.
async fn counters_are_those_that_decide(server: &TestServer, counted_in: &str) {
    let mut counting = Counting::at(server).await;
    counting.wait_for_verdicts(&[("token", "another")]).await;
    for (key, algorithm) in ALGORITHMS {
        for used in 0..=LIMIT {
            let counter = read(server, key, "v");
            let expected = json!([used, LIMIT - used, used == LIMIT, counted_in]);
            let fields = ["used", "remaining", "over_limit", "counted_in"];
            let shown = json!(fields.map(|field| &counter[field]));
            assert_eq!(shown, expected, "{algorithm}: {counter}");
            assert_eq!(counter["rule"], format!("d.{key}.caller"));
            assert_eq!(counter["limit"]["requests"], LIMIT);
            let expected = u32::from(used < LIMIT);
            assert_eq!(counting.admitted(key, "v", 1).await, expected, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn counters_in_memory_are_those_that_decide() {
    counters_are_those_that_decide(&service().start(), "memory").await;
}

#[tokio::test]
async fn counters_in_redis_are_those_that_decide() {
    let redis = RedisProcess::start();
    counters_are_those_that_decide(&service_on(&redis).start(), "redis").await;
}

#[tokio::test]
async fn counters_of_a_cluster_are_those_that_decide() {
    let cluster = ClusterProcess::start();
    let server = answered_by_redis(service(), &cluster.settings()).start();
    counters_are_those_that_decide(&server, "redis").await;
}

#[tokio::test]
async fn a_read_changes_no_value_and_no_lifetime() {
    let redis = RedisProcess::start();
    let server = service_on(&redis).start();
    let mut counting = Counting::at(&server).await;
    for (key, _) in ALGORITHMS {
        counting.wait_for_verdicts(&[(key, "v")]).await;
    }
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    assert_eq!(keys.len(), ALGORITHMS.len());
    let state = || -> Vec<(Vec<u8>, i64)> {
        let of_key = |key: &String| {
            let expires: i64 = redis.command(&["PTTL", key]);
            assert!(expires > 0, "{key}");
            (redis.command(&["DUMP", key]), expires)
        };
        keys.iter().map(of_key).collect()
    };
    let before = state();
    for (key, _) in ALGORITHMS {
        read(&server, key, "v");
        read(&server, key, "absent");
    }
    let after = state();
    for ((key, before), after) in keys.iter().zip(before).zip(after) {
        assert_eq!(before.0, after.0, "{key}");
        assert!(after.1 <= before.1, "{key}: {} ms became {}", before.1, after.1);
    }
    assert_eq!(redis.command::<Vec<String>>(&["KEYS", "*"]).len(), keys.len());
}

#[tokio::test]
async fn limits_and_resets_are_those_of_the_rule() {
    let rules = "
domain: d
descriptors:
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 10}
    metadata: {tollgate: {algorithm: token_bucket, burst: 40}}
  - key: holder
    rate_limit: {unit: second, requests_per_unit: 3}
    metadata: {tollgate: {algorithm: concurrency, lease_by: holder, lease: 30s}}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 1}
    metadata: {tollgate: {algorithm: leaky_bucket, on_limit: queue, max_wait: 1h}}
";
    let server = TestServer::with_rules(rules).start();
    let mut client = server.client().await;
    let mut read = async |key: &str, hits: usize| {
        let entry = format!("{key}%3D1");
        for _ in 0..hits {
            client.ask("d", &[(key, "1")]).await;
        }
        server.admin_json(&format!("/api/v1/counters?domain=d&e={entry}"))
    };
    // The limit of the API counts over-limit hits.
    let window = read("window", 5).await;
    assert_eq!(window["limit"], json!({"requests": 2, "period_seconds": 60, "burst": null}));
    assert!(window["resets_in_seconds"].as_u64().is_some_and(|secs| (1..=60).contains(&secs)));
    assert_eq!((&window["remaining"], &window["over_limit"]), (&json!(0), &json!(true)));
    let bucket = read("bucket", 0).await;
    assert_eq!(bucket["limit"], json!({"requests": 10, "period_seconds": 1, "burst": 40}));
    assert_eq!(bucket["remaining"], 40);
    let holders = read("holder", 1).await;
    assert_eq!(
        (&holders["limit"], &holders["used"]),
        (&json!({"requests": 3, "period_seconds": null, "burst": null}), &json!(1))
    );
    // Nothing remains, but one more hit would be queued.
    let queue = read("queue", 1).await;
    assert_eq!((&queue["remaining"], &queue["over_limit"]), (&json!(0), &json!(false)), "{queue}");
}

#[tokio::test]
async fn requests_are_read_descriptor_by_descriptor() {
    let server = service().start();
    Counting::at(&server).await.admitted("counted", "v", LIMIT + 2).await;
    let request = json!({"domain": "d", "hits_addend": 3, "descriptors": [
        {"entries": [{"key": "counted", "value": "v"}, {"key": "caller"}]},
        {"entries": [{"key": "unknown", "value": "v"}]},
        {"entries": [{"key": "counted", "value": "v"}], "limit": {"requests_per_unit": 9, "unit": "HOUR"}},
    ]});
    let reply = http::post(server.admin, "/api/v1/counters", &request.to_string());
    let body = reply.json();
    assert_eq!(reply.status, 200, "{reply:?}");
    let counters = body["counters"].as_array().expect("a list");
    let used: Vec<_> = counters.iter().map(|counter| &counter["used"]).collect();
    assert_eq!(used, [&json!(LIMIT + 2), &json!(null), &json!(0)]);
    assert_eq!(counters[2]["limit"]["period_seconds"], 3600);
    assert_eq!(body["replica"].as_str().map(str::len), Some(16), "{body}");
    assert_eq!(read(&server, "counted", "v")["replica"], body["replica"]);
}

/// A query, the status, and a text of the answer.
const REJECTED: &str = "
e=counted%3Dv | 400 | a domain and at least one entry are needed
domain=d | 400 | a domain and at least one entry are needed
domain=d&e=%3Dv | 400 | the entry `=v` has no key; write key=value
domain=d&e=places%3Dv&e=caller%3D | 400 | names the holder of a slot
domain=d&e=counted%3Dv | 404 | no rate_limit here: not limited
domain=d&e=unknown%3Dv | 404 | no such key
domain=nobody&e=counted%3Dv | 404 | known domains: d
";

#[test]
fn rejections_say_why() {
    let server = service().start();
    for line in REJECTED.trim().lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let reply = http::get(server.admin, &format!("/api/v1/counters?{}", cells[0]));
        assert_eq!(reply.status.to_string(), cells[1], "{line}: {reply:?}");
        assert!(reply.body.contains(cells[2]), "{line}: {reply:?}");
        assert!(reply.json()["replica"].is_string(), "{reply:?}");
    }
    for body in ["", "{", r#"{"domain":"d"}"#, r#"{"domain":"d","entries":[]}"#] {
        let reply = http::post(server.admin, "/api/v1/counters", body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
    }
    let reply = http::get(server.admin, "/api/v1/nothing");
    assert_eq!((reply.status, reply.json()["replica"].is_string()), (404, true));
}

#[tokio::test]
async fn without_redis_the_local_counter_is_read() {
    let mut redis = RedisProcess::start();
    let server = service_on(&redis).with_env("ON_STORE_ERROR", "local").start();
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "v")]).await;
    redis.kill();
    crate::support::eventually("it is counted locally", async || {
        read(&server, "token", "v")["counted_in"] == "fallback"
    })
    .await;
    counting.admitted("token", "other", 2).await;
    assert_eq!(read(&server, "token", "other")["used"], 2);
}

const TOKEN: &str = "s3cret";

#[tokio::test]
async fn commands_read_reset_and_grant() {
    let server = service().with_env("ADMIN_TOKEN", TOKEN).start();
    let mut counting = Counting::at(&server).await;
    counting.admitted("counted", "v&w", LIMIT + 2).await;
    let url = format!("http://{}", server.admin);
    let counter = |action: &str, more: &[&str], token: &str| {
        let target = ["counter", action, "d", "counted=v&w", "caller="];
        let variables = [("ADMIN_TOKEN", token), ("TOLLGATE_URL", &*url)];
        tollgate_with_env(&[&target, more].concat(), &variables)
    };
    let has_line = |ran: &Ran, line: &[&str]| {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let is_there = |shown: &str| shown.split_whitespace().eq(line.iter().copied());
        assert!(ran.stdout.lines().any(is_there), "{line:?}: {ran:?}");
    };
    let got = counter("get", &[], "");
    has_line(&got, &["used", "7"]);
    has_line(&got, &["over", "limit", "yes"]);
    let json = counter("get", &["--format", "json"], "");
    let json = json.json();
    assert_eq!((&json["used"], &json["remaining"]), (&json!(7), &json!(0)));
    assert_eq!(json["leased"], json!(0));
    has_line(&got, &["leased", "0"]);

    for (token, code, text) in [("", 64, "set ADMIN_TOKEN"), ("wrong", 1, "401")] {
        let ran = counter("reset", &[], token);
        ran.assert_failed(code, &[text]);
    }
    has_line(&counter("grant", &["--hits", "2"], TOKEN), &["remaining", "0", "2"]);
    has_line(&counter("reset", &[], TOKEN), &["used", "3", "0"]);
    let none = tollgate(&["counter", "get", "d", "unknown=v", "--url", &url]);
    none.assert_printed(4, &["no such key"]);
    let none = tollgate(&["counter", "get", "nobody", "unknown=v", "--url", &url]);
    assert_eq!(none.code, Some(3), "{none:?}");
}

#[tokio::test]
async fn explain_live_prints_the_walk_and_the_counter() {
    let server = service().start();
    Counting::at(&server).await.admitted("counted", "v", 2).await;
    let url = format!("http://{}", server.admin);
    let explain = |entries: &[&str]| {
        tollgate(&[&["explain", "--live", "--url", &url, "d"], entries].concat())
    };
    let ran = explain(&["counted=v", "caller="]);
    ran.assert_printed(0, &["=> limit 5 per year, fixed_window"]);
    assert!(ran.stdout.contains("used          2\n"), "{ran:?}");
    assert_eq!(explain(&["unknown=v"]).code, Some(4));
    let unknown = tollgate(&["explain", "--live", "nobody", "unknown=v", "--url", &url]);
    unknown.assert_printed(3, &["known domains: d"]);
}
