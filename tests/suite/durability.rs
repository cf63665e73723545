//! Whether Redis keeps counters of a day or more: what is reported about it, and what a Redis with
//! an append-only file has after it was killed.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::redis::RedisProcess;
use crate::support::{Client, TestServer, eventually, limit_of, request};

const REASONS: [&str; 2] = ["no_aof", "eviction"];
const BY_MINUTE: &str =
    "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: minute, requests_per_unit: 1}}\n";
/// A counter by INCR and one by the script.
const PLAIN_AND_SCRIPT: &str = "
domain: d
metadata: {tollgate: {defaults: {on_store_error: error}}}
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: script, rate_limit: {unit: year, requests_per_unit: 1000000000}, metadata: {tollgate: {over_limit_hits: drop}}}
";
const CLIENTS: u64 = 4;
/// What `appendfsync everysec` may lose.
const LOST_MAX: Duration = Duration::from_secs(1);

async fn becomes(server: &TestServer, expected: [f64; 2]) {
    for (reason, expected) in REASONS.into_iter().zip(expected) {
        let series = format!("tollgate_store_not_durable{{reason=\"{reason}\"}}");
        server.metric_becomes(&series, expected).await;
    }
}

#[tokio::test]
async fn warning_is_on_the_ready_page_until_it_is_over() {
    const LOST: &str = "are lost at a restart; set appendonly yes, and counters on";
    const RECOVERED: &str = "recovered: no counter of a day or more is at risk";
    let redis = RedisProcess::builder()
        .with_arguments(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"])
        .start();
    let server = TestServer::with_rules(&limit_of(7)).with_env("REDIS_URL", &redis.url()).start();
    becomes(&server, [1.0, 1.0]).await;
    let shown = async || server.get("/ready").body.contains(LOST);
    eventually("it is on the page", shown).await;
    assert_eq!(server.get("/ready").status, 200);
    server.assert_logged_once(LOST);

    redis.command::<()>(&["CONFIG", "SET", "appendonly", "yes"]);
    redis.command::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    // Without limits of a day or more it is no risk. With new ones INFO is read at once.
    server.write("rules.yaml", BY_MINUTE);
    becomes(&server, [0.0, 0.0]).await;
    eventually("it is gone from the page", async || !shown().await).await;
    server.assert_logged_once(RECOVERED);
    redis.command::<()>(&["CONFIG", "SET", "appendonly", "no"]);
    server.write("rules.yaml", &limit_of(7));
    becomes(&server, [1.0, 0.0]).await;
    assert_eq!(server.get("/ready").status, 200);
}

/// Calls until one is not answered, and returns when the others were.
async fn call_until_an_error(mut client: Client) -> Vec<Instant> {
    let mut answered = Vec::new();
    let both = request("d", &[&[("plain", "v")], &[("script", "v")]]);
    while client.call(both.clone()).await.is_ok() {
        answered.push(Instant::now());
    }
    answered
}

#[tokio::test]
async fn killed_redis_with_an_append_only_file_loses_at_most_the_last_second() {
    let mut redis = RedisProcess::builder()
        .with_arguments(&["--appendonly", "yes", "--appendfsync", "everysec"])
        .start();
    let server =
        TestServer::with_rules(PLAIN_AND_SCRIPT).with_env("REDIS_URL", &redis.url()).start();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(call_until_an_error(server.client().await));
    }
    let began = Instant::now();
    let counted = |redis: &RedisProcess, key: &str| {
        let keys: Vec<String> = redis.command(&["KEYS", &format!("*{key}*")]);
        let values = keys.iter().map(|key| redis.command::<u64>(&["GET", key]));
        values.sum::<u64>()
    };
    eventually("there was load for longer than may be lost", async || {
        began.elapsed() > LOST_MAX * 2 && counted(&redis, "script") > 100
    })
    .await;
    let killed = Instant::now();
    redis.kill();
    let answered = clients.join_all().await.concat();
    redis.restart();
    let all = u64::try_from(answered.len()).expect("few");
    let is_old = |at: &&Instant| killed.duration_since(**at) > LOST_MAX;
    let kept = u64::try_from(answered.iter().filter(is_old).count()).expect("few");
    assert!(kept > 0, "{all} answers");
    for key in ["plain", "script"] {
        let counted = counted(&redis, key);
        // The last call of each client may have been counted.
        assert!(
            (kept..=all + CLIENTS).contains(&counted),
            "{key}: {counted} of {all}, {kept} of them before the last second"
        );
    }
}
