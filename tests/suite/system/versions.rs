//! The store behaves the same on each supported server.
//!
//! All other tests run on one server; these are the few that would notice a version that replies
//! differently.

use crate::support::cluster::{self, ClusterProcess};
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules, service};
use crate::support::fault::Servers as _;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::{self, SentinelProcess};
#[cfg(target_arch = "x86_64")]
use crate::support::versions::REDIS_6_2;
use crate::support::versions::{ON_PATH, REDIS_7_0, VALKEY_9_1, Version};
use crate::support::{Code, TestServer, look_until};

const LIMIT: u32 = 3;
const YEAR_SECONDS: i64 = 365 * 86_400;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn redis_6_2() {
    holds(REDIS_6_2).await;
}

#[tokio::test]
async fn valkey_9_1() {
    holds(VALKEY_9_1).await;
}

#[tokio::test]
async fn redis_of_the_distribution() {
    holds(ON_PATH).await;
}

#[tokio::test]
async fn redis_7_0_of_maven() {
    holds(REDIS_7_0).await;
}

async fn holds(version: Version) {
    alone_it_counts(version).await;
    behind_sentinel_it_counts(version).await;
    as_a_cluster_it_counts(version).await;
}

async fn alone_it_counts(version: Version) {
    let redis = RedisProcess::builder().of(version).start();
    let url = [("REDIS_URL", redis.address())];
    let server = service(LIMIT, &url);
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    counting.admits_exactly(LIMIT, ["one by one"]).await;

    // All kinds in one call of the script.
    let all = ALGORITHMS.map(|(key, _)| (key, "at once"));
    for expected in [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
        let answer = counting.ask(&all).await;
        assert!(
            answer.statuses.iter().all(|status| status.code() == expected),
            "{}: {answer:?}",
            version.name
        );
    }

    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    counting.admits_exactly(LIMIT, ["after a flush"]).await;

    // None of the counters outlives what it counts by more than the jitter, and none lives for
    // ever.
    for key in redis.command::<Vec<String>>(&["KEYS", "*"]) {
        let what = format!("{}: a lifetime of {key}", version.name);
        look_until(&what, || (1..=2 * YEAR_SECONDS + 300).contains(&redis.command(&["TTL", &key])));
    }

    let all_or_nothing = answered_by_redis(
        TestServer::with_rules(&rules(LIMIT, "metadata: {tollgate: {all_or_nothing: true}}\n")),
        &url,
    )
    .start();
    let mut counting = Counting::at(&all_or_nothing).await;
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    counting.rejections_consume_nothing(LIMIT).await;
}

async fn behind_sentinel_it_counts(version: Version) {
    let deployment = SentinelProcess::with(sentinel::Options {
        server: RedisProcess::builder().of(version),
        ..sentinel::Options::default()
    });
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    counting.admits_exactly(LIMIT, ["before"]).await;
    let key = "log";
    let value = "across";
    assert_eq!(counting.admitted(key, value, 1).await, 1);
    deployment.fail_over();
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    assert_eq!(
        counting.admitted(key, value, LIMIT).await,
        LIMIT - 1,
        "{}: the replica knew",
        version.name
    );
}

async fn as_a_cluster_it_counts(version: Version) {
    let cluster = ClusterProcess::with(cluster::Options {
        node: RedisProcess::builder().of(version),
        ..cluster::Options::default()
    });
    let server = service(LIMIT, &cluster.settings());
    let mut counting = Counting::at(&server).await;
    let values: Vec<String> = (0..6).map(|value| value.to_string()).collect();
    let all: Vec<(&str, &str)> = values.iter().map(|value| ("token", &**value)).collect();
    counting.wait_for_verdicts(&all).await;
    for value in &values {
        assert_eq!(
            counting.admitted("token", value, LIMIT).await,
            LIMIT - 1,
            "{}: the first was asked already",
            version.name
        );
    }
    counting.admits_exactly(LIMIT, ["a", "b"]).await;
    // On their way, and there.
    let key = cluster.keys("*log*").pop().expect("logs were counted");
    let slot = cluster.slot_of(&key);
    let migration = cluster.begin_to_migrate(slot);
    migration.move_keys();
    let over = |answer: tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse| {
        answer.overall_code() == Code::OverLimit
    };
    for value in ["a", "b"] {
        assert!(over(counting.ask(&[("log", value)]).await), "{}: ASK is followed", version.name);
    }
    migration.finish();
    for value in ["a", "b"] {
        assert!(over(counting.ask(&[("log", value)]).await), "{}: MOVED is followed", version.name);
    }
}
