//! Counting behind Sentinel: the master is found, and found again when it is another.

use tonic::Code as GrpcCode;

use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, service};
use crate::support::fault::Servers as _;
use crate::support::redis::RedisProcess;
use crate::support::sentinel::SentinelProcess;
use crate::support::{Code, TestServer, eventually, limit_of, look_until, request};

const LIMIT: u32 = 4;
/// Asked until Redis counts, and never of interest otherwise.
const ANYTHING: [(&str, &str); 1] = [("token", "anything")];

fn keys(redis: &RedisProcess) -> usize {
    redis.command(&["DBSIZE"])
}

#[tokio::test]
async fn the_master_is_found_and_replicas_of_the_service_share_what_they_count() {
    let deployment = SentinelProcess::builder().with_replicas(2).start();
    let (one, other) = (
        service(LIMIT, &deployment.settings()),
        service(LIMIT, &deployment.settings()),
    );
    assert!(
        one.announcement().contains("mymaster"),
        "{}",
        one.announcement()
    );
    let (mut one, mut other) = (Counting::at(&one).await, Counting::at(&other).await);
    one.wait_for_verdicts(&ANYTHING).await;
    other.wait_for_verdicts(&ANYTHING).await;
    for (key, algorithm) in ALGORITHMS.into_iter().filter(|(key, _)| *key != "places") {
        assert_eq!(one.admitted(key, "shared", 3).await, 3, "{algorithm}");
        assert_eq!(
            other.admitted(key, "shared", 3).await,
            LIMIT - 3,
            "{algorithm}"
        );
    }
}

#[tokio::test]
async fn after_a_failover_the_new_master_goes_on_counting_where_the_old_one_was() {
    let deployment = SentinelProcess::start();
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    for (key, _) in ALGORITHMS {
        assert_eq!(counting.admitted(key, "v", 2).await, 2);
    }
    let before = keys(deployment.master());
    look_until("the replica has everything", || {
        keys(&deployment.servers[1]) == before
    });
    deployment.fail_over();
    counting.wait_for_verdicts(&ANYTHING).await;
    for (key, algorithm) in ALGORITHMS {
        assert_eq!(
            counting.admitted(key, "v", LIMIT).await,
            LIMIT - 2,
            "{algorithm}"
        );
    }
    look_until("the change is counted", || {
        server.metric("tollgate_store_topology_changes_total") >= Some(1.0)
    });
    assert_eq!(server.metric("tollgate_store_nodes"), Some(1.0));
    look_until("the log says so", || {
        server.log().contains("Redis topology changed")
    });
}

#[tokio::test]
async fn a_master_that_is_killed_is_replaced_without_anybody_telling_the_service() {
    let mut deployment = SentinelProcess::builder().with_replicas(2).start();
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    assert_eq!(counting.admitted("log", "v", 2).await, 2);
    look_until("the replicas have it", || {
        deployment.servers[1..]
            .iter()
            .all(|replica| keys(replica) == 2)
    });
    deployment.master_mut().kill();
    deployment.wait_until_replaced(0);
    counting.wait_for_verdicts(&ANYTHING).await;
    assert_eq!(counting.admitted("log", "v", LIMIT).await, LIMIT - 2);
}

#[tokio::test]
async fn sentinels_and_servers_have_passwords_of_their_own() {
    let deployment = SentinelProcess::builder()
        .with_password("of-servers")
        .with_sentinel_password("of-sentinels")
        .start();
    let settings = |auth: &str, sentinel_auth: &str| {
        let auth = [
            ("REDIS_AUTH", auth.to_owned()),
            ("REDIS_SENTINEL_AUTH", sentinel_auth.to_owned()),
        ];
        [deployment.settings(), auth.to_vec()].concat()
    };
    let server = service(LIMIT, &settings("of-servers", "of-sentinels"));
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    counting.admits_exactly(LIMIT, ["v"]).await;
    assert!(!server.log().contains("WARN"), "{}", server.log());

    for (auth, sentinel_auth) in [("of-servers", "wrong"), ("wrong", "of-sentinels")] {
        let server = service(LIMIT, &settings(auth, sentinel_auth));
        let refused = server
            .client()
            .await
            .call(request("d", &[&[("log", "v"), ("caller", "")]]))
            .await
            .expect_err("UNAVAILABLE");
        assert_eq!(refused.code(), GrpcCode::Unavailable);
        look_until("the log says why", || {
            server.log().to_lowercase().contains("password")
        });
        assert!(
            !server.log().contains("of-s"),
            "and keeps what is right to itself: {}",
            server.log()
        );
    }
}

#[tokio::test]
async fn sentinels_may_know_users() {
    let deployment = SentinelProcess::builder()
        .with_sentinel_user("app on >s3cret ~* &* +@all")
        .start();
    let auth = ("REDIS_SENTINEL_AUTH", "app:s3cret".to_owned());
    let server = service(LIMIT, &[deployment.settings(), vec![auth]].concat());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    counting.admits_exactly(LIMIT, ["v"]).await;
}

#[tokio::test]
async fn sentinels_that_are_away_are_not_missed_while_one_is_there() {
    let mut deployment = SentinelProcess::start();
    deployment.sentinels[0].kill();
    deployment.sentinels[1].stop();
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    counting.admits_exactly(LIMIT, ["v"]).await;
    assert_eq!(
        server.metric("tollgate_store_topology_failures_total"),
        Some(0.0),
        "no sentinel is reachable"
    );

    // Where the master is was known before.
    deployment.sentinels[2].kill();
    look_until("the failed discovery is reported", || {
        server.metric("tollgate_store_topology_failures_total") > Some(0.0)
    });
    counting.admits_exactly(LIMIT, ["w"]).await;
}

#[tokio::test]
async fn a_sentinel_that_names_a_replica_is_not_believed() {
    let deployment = SentinelProcess::builder().with_a_liar().start();
    let server = service(LIMIT, &deployment.settings());
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&ANYTHING).await;
    counting.admits_exactly(LIMIT, ["v"]).await;
    assert_eq!(
        server.metric(r#"tollgate_store_fault{kind="refusing"}"#),
        Some(0.0)
    );

    // Nor if there is no other server: a Redis replica rejects writes.
    let liar = format!("mymaster,{}", deployment.sentinels[0].address());
    let server = service(
        LIMIT,
        &[("REDIS_TYPE", "sentinel".to_owned()), ("REDIS_URL", liar)],
    );
    let refused = server
        .client()
        .await
        .call(request("d", &[&[("log", "v"), ("caller", "")]]))
        .await
        .expect_err("there is no master");
    assert_eq!(refused.code(), GrpcCode::Unavailable);
    look_until("the log says why", || {
        server
            .log()
            .contains("no sentinel names a server with the role of a master")
    });
}

#[tokio::test]
async fn limits_of_a_second_may_be_behind_sentinels_of_their_own() {
    let rules = "
domain: d
descriptors:
  - {key: year, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
";
    let (main, per_second) = (RedisProcess::start(), SentinelProcess::start());
    let settings = [
        ("REDIS_URL", main.address()),
        ("REDIS_PERSECOND", "true".to_owned()),
        ("REDIS_PERSECOND_TYPE", "sentinel".to_owned()),
        ("REDIS_PERSECOND_URL", per_second.url()),
    ];
    let server = answered_by_redis(TestServer::with_rules(rules), &settings).start();
    let mut client = server.client().await;
    let mut ask = async |key: &str| {
        client
            .call(request("d", &[&[(key, "v")]]))
            .await
            .map(|answer| answer.overall_code())
    };
    eventually("both count", async || {
        ask("second").await.is_ok() && ask("year").await.is_ok()
    })
    .await;
    let kept = |redis: &RedisProcess| redis.command::<Vec<String>>(&["KEYS", "*_v_*"]);
    assert!(
        kept(&main).iter().all(|key| key.starts_with("d_year_")),
        "{:?}",
        kept(&main)
    );
    let of_seconds = kept(per_second.master());
    assert!(
        !of_seconds.is_empty() && of_seconds.iter().all(|key| key.starts_with("d_second_")),
        "{of_seconds:?}"
    );

    per_second.fail_over();
    eventually("the new master counts", async || {
        ask("second").await.is_ok()
    })
    .await;
    assert!(ask("year").await.is_ok());
    assert!(
        kept(per_second.master())
            .iter()
            .all(|key| key.starts_with("d_second_"))
    );
}

#[tokio::test]
async fn a_master_under_another_name_is_told_of() {
    let deployment = SentinelProcess::start();
    let url = deployment.url().replace("mymaster", "nobodys");
    let server = TestServer::with_rules(&limit_of(1))
        .with_env("REDIS_TYPE", "sentinel")
        .with_env("REDIS_URL", &url)
        .start();
    look_until("the log says what to look at", || {
        server.log().contains("knows no master named nobodys")
    });
    assert_eq!(
        server.client().await.ask("d", &[("k", "v")]).await,
        Code::Ok,
        "by policy"
    );
}
