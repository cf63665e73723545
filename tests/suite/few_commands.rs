//! A Redis that has the commands of envoyproxy/ratelimit only: INCRBY, EXPIRE, GET and PING.

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, eventually, look_until};

const USER: &str = "user rls on >secret ~* &* -@all +ping +incrby +expire +get";

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: sliding_log}}}
";

fn start(redis: &RedisProcess) -> TestServer {
    TestServer::with_rules(RULES)
        .with_env("REDIS_URL", &redis.address())
        .with_env("REDIS_AUTH", "rls:secret")
        .start()
}

/// Two replicas share a counter, which has an expiry; the log and `/ready` name the commands and
/// the rules that need them.
#[tokio::test]
async fn a_user_of_the_reference_counts_fixed_windows() {
    let redis = RedisProcess::builder().with_user(USER).start();
    let servers = [(); 2].map(|()| start(&redis));
    for server in &servers {
        look_until("it has found out", || server.log().contains("Redis refuses commands"));
    }
    let mut clients = [servers[0].client().await, servers[1].client().await];
    let mut codes = Vec::new();
    for call in 0..8 {
        codes.push(clients[call % 2].ask("d", &[("k", "v")]).await);
    }
    let expected = [&[Code::Ok; 2][..], &[Code::OverLimit; 6]].concat();
    assert_eq!(codes, expected);
    let keys = redis.command::<Vec<String>>(&["KEYS", "*"]);
    assert!(keys.len() == 1 && keys[0].starts_with("d_k_v_"), "{keys:?}");
    assert!(redis.command::<i64>(&["TTL", &keys[0]]) > 0);
    assert_eq!(redis.text(&["GET", &keys[0]]), "8");
    for server in &servers {
        server.assert_logged_once("Redis refuses commands");
        look_until("/ready has it", || {
            server.get("/ready").body.contains("Redis refuses commands")
        });
        let ready = server.get("/ready").body;
        for text in [&server.log_with("Redis refuses commands"), &ready] {
            for part in ["TIME: ", "EVALSHA is needed by 2 rules: d.bucket, d.log;", "REPLICAS"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(!ready.contains("unreachable"), "{ready}");
        server.assert_not_logged("unreachable");
        server.assert_not_logged("heartbeats rejected");
        assert_eq!(server.get("/healthcheck").status, 200);
    }
    let [server, _] = &servers;
    server.assert_logged("'time' command");
    // Each replica by itself.
    let mut client = server.client().await;
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(client.ask("d", &[("bucket", "v")]).await, expected);
    }
    look_until("the refused command is reported", || server.log().contains("'evalsha' command"));
    eventually("/ready has it", async || {
        client.ask("d", &[("bucket", "v")]).await;
        server.get("/ready").body.contains("'evalsha' command")
    })
    .await;
    server.assert_not_logged("Redis replies with errors");
    server.assert_not_logged("unreachable");
}

#[tokio::test]
async fn hits_of_an_outage_are_written_back_without_scripts() {
    let mut redis = RedisProcess::builder().with_user(USER).start();
    let server = start(&redis);
    let mut client = server.client().await;
    look_until("it has found out", || server.log().contains("Redis refuses commands"));
    redis.kill();
    eventually("Redis is found unreachable", async || {
        client.ask("d", &[("k", "first")]).await;
        server.log().contains("Redis unreachable")
    })
    .await;
    assert_eq!(client.ask("d", &[("k", "v")]).await, Code::Ok);
    redis.restart();
    let hits = || -> Option<(String, i64)> {
        let keys = redis.command::<Vec<String>>(&["KEYS", "d_k_v_*"]);
        let key = keys.first()?;
        Some((redis.text(&["GET", key]), redis.command(&["TTL", key])))
    };
    look_until("the hit is in Redis", || {
        hits().is_some_and(|(hits, life)| hits == "1" && life > 0)
    });
}
