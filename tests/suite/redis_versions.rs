//! What is promised of Redis holds for each server that is named in the README: the oldest, the newest, and Valkey.
//!
//! Every other test runs on the redis-server that the machine has; here are the few that would tell if another version answered otherwise.

use std::path::Path;

use crate::support::certificates::{Authority, KeyForm};
use crate::support::cluster::ClusterProcess;
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules, service};
use crate::support::redis::RedisProcess;
use crate::support::scene::Servers as _;
use crate::support::sentinel::SentinelProcess;
use crate::support::versions::{ON_PATH, REDIS_6_2, REDIS_8_0, VALKEY_9_1, Version};
use crate::support::{Code, TestServer};

const LIMIT: u32 = 3;
const YEAR_SECONDS: i64 = 365 * 86_400;

#[tokio::test]
async fn the_redis_on_the_path() {
    holds(ON_PATH).await;
}

#[tokio::test]
async fn redis_6_2() {
    holds(REDIS_6_2).await;
}

#[tokio::test]
async fn redis_8_0() {
    holds(REDIS_8_0).await;
}

#[tokio::test]
async fn valkey_9_1() {
    holds(VALKEY_9_1).await;
}

async fn holds(version: Version) {
    alone_it_counts(version).await;
    behind_tls_it_counts(version).await;
    behind_sentinel_it_counts(version).await;
    as_a_cluster_it_counts(version).await;
}

async fn alone_it_counts(version: Version) {
    let redis = RedisProcess::builder().of(version).start();
    let url = [("REDIS_URL", redis.address())];
    let server = service(LIMIT, &url);
    let mut counting = Counting::at(&server).await;
    counting.admits_exactly(LIMIT, ["one by one"]).await;

    // All kinds in one call of the script.
    let all = ALGORITHMS.map(|(key, _)| (key, "at once"));
    for expected in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
        let answer = counting.ask(&all).await;
        assert!(answer.statuses.iter().all(|status| status.code() == expected), "{}: {answer:?}", version.name);
    }

    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    counting.admits_exactly(LIMIT, ["after a flush"]).await;

    // None of the counters outlives what it counts by more than the jitter, and none lives for ever.
    for key in redis.command::<Vec<String>>(&["KEYS", "*"]) {
        let life: i64 = redis.command(&["TTL", &key]);
        assert!((1..=2 * YEAR_SECONDS + 300).contains(&life), "{}: {key} lives for {life} s", version.name);
    }

    let together = answered_by_redis(TestServer::with_rules(&rules(LIMIT, "metadata: {tollgate: {together: true}}\n")), &url).start();
    let mut counting = Counting::at(&together).await;
    consumes_nothing_when_refused(&mut counting).await;
}

/// One counter has no room left, and then all others have what they had.
async fn consumes_nothing_when_refused(counting: &mut Counting) {
    for (refusing, _) in ALGORITHMS {
        let full = [(refusing, "full")];
        for _ in 0..LIMIT {
            counting.ask(&full).await;
        }
        let value = format!("beside {refusing}");
        let others: Vec<(&str, &str)> = ALGORITHMS.iter().filter(|(key, _)| *key != refusing).map(|(key, _)| (*key, &*value)).collect();
        for _ in 0..2 {
            assert_eq!(counting.ask(&[&full[..], &others].concat()).await.overall_code(), Code::OverLimit);
        }
        let answer = counting.ask(&others).await;
        assert!(answer.statuses.iter().all(|status| status.limit_remaining == LIMIT - 1), "beside {refusing}: {answer:?}");
    }
}

async fn behind_tls_it_counts(version: Version) {
    if !version.has_tls {
        return;
    }
    let authority = Authority::new();
    let identity = authority.sign("redis", "IP:127.0.0.1", KeyForm::Pkcs8);
    let path = |path: &Path| path.display().to_string();
    let redis = RedisProcess::builder().of(version).with_tls(&identity, "yes").start();
    let server = service(
        LIMIT,
        &[
            ("REDIS_URL", redis.url()),
            ("REDIS_TLS_CACERT", path(&identity.ca)),
            ("REDIS_TLS_CLIENT_CERT", path(&identity.cert)),
            ("REDIS_TLS_CLIENT_KEY", path(&identity.key)),
        ],
    );
    Counting::at(&server).await.admits_exactly(LIMIT, ["by TLS"]).await;
}

async fn behind_sentinel_it_counts(version: Version) {
    let deployment = SentinelProcess::builder().of(version).start();
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    counting.admits_exactly(LIMIT, ["before"]).await;
    let (key, value) = ("log", "across");
    assert_eq!(counting.admitted(key, value, 1).await, 1);
    deployment.fail_over();
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    assert_eq!(counting.admitted(key, value, LIMIT).await, LIMIT - 1, "{}: the replica knew", version.name);
}

async fn as_a_cluster_it_counts(version: Version) {
    let cluster = ClusterProcess::builder().of(version).start();
    let server = service(LIMIT, &cluster.settings());
    let mut counting = Counting::at(&server).await;
    let values: Vec<String> = (0..6).map(|value| value.to_string()).collect();
    let all: Vec<(&str, &str)> = values.iter().map(|value| ("token", &**value)).collect();
    counting.wait_for_verdicts(&all).await;
    for value in &values {
        assert_eq!(counting.admitted("token", value, LIMIT).await, LIMIT - 1, "{}: the first was asked already", version.name);
    }
    counting.admits_exactly(LIMIT, ["a", "b"]).await;
    // On their way, and there.
    let key = cluster.keys("*log*").pop().expect("logs were counted");
    let slot = cluster.slot_of(&key);
    let migration = cluster.begin_to_migrate(slot);
    migration.move_keys();
    let over = |answer: tollgate::proto::envoy::service::ratelimit::v3::RateLimitResponse| answer.overall_code() == Code::OverLimit;
    for value in ["a", "b"] {
        assert!(over(counting.ask(&[("log", value)]).await), "{}: ASK is followed", version.name);
    }
    migration.finish();
    for value in ["a", "b"] {
        assert!(over(counting.ask(&[("log", value)]).await), "{}: MOVED is followed", version.name);
    }
}
