//! Counting on a Redis Cluster: exact over all slots, while they move, and when a node is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;

use tonic::Code as GrpcCode;

use crate::support::cluster::ClusterProcess;
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules, service};
use crate::support::fault::Servers as _;
use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, look_until, request};

const LIMIT: u32 = 4;
/// Enough that each of three nodes has some.
const VALUES: usize = 24;

pub(crate) fn values() -> Vec<String> {
    (0..VALUES).map(|value| value.to_string()).collect()
}

/// A counter of an algorithm for each value.
pub(crate) fn counters<'v>(
    key: &'static str,
    values: &'v [String],
) -> Vec<(&'static str, &'v str)> {
    values.iter().map(|value| (key, &**value)).collect()
}

/// A service on a cluster, when it counts on each of its nodes.
pub(crate) async fn on(cluster: &ClusterProcess, limit: u32) -> (TestServer, Counting) {
    let server = service(limit, &cluster.settings());
    let counting = ready(&server).await;
    (server, counting)
}

pub(crate) async fn ready(server: &TestServer) -> Counting {
    let (mut counting, values) = (Counting::at(server).await, values());
    let anything: Vec<String> = values
        .iter()
        .map(|value| format!("anything {value}"))
        .collect();
    counting
        .wait_for_verdicts(&counters("leaky", &anything))
        .await;
    counting
}

fn redirects(server: &TestServer, kind: &str) -> f64 {
    server
        .metric(&format!(
            r#"tollgate_store_redirects_total{{kind="{kind}"}}"#
        ))
        .expect("it is counted")
}

fn trips(server: &TestServer) -> f64 {
    server
        .metric("tollgate_store_call_seconds_count")
        .expect("they are counted")
}

#[tokio::test]
async fn replicas_of_the_service_count_exactly_over_all_slots() {
    let cluster = ClusterProcess::start();
    let ((one, mut asks_one), (_other, mut asks_other)) =
        (on(&cluster, LIMIT).await, on(&cluster, LIMIT).await);
    assert_eq!(one.metric("tollgate_store_nodes"), Some(3.0));
    for value in values() {
        for (key, algorithm) in ALGORITHMS.into_iter().filter(|(key, _)| *key != "places") {
            assert_eq!(
                asks_one.admitted(key, &value, 3).await,
                3,
                "{algorithm}: {value}"
            );
            assert_eq!(
                asks_other.admitted(key, &value, 3).await,
                LIMIT - 3,
                "{algorithm}: {value}"
            );
        }
    }
    asks_one.admits_exactly(LIMIT, ["by one"]).await;
    for number in 0..3 {
        assert!(
            cluster.server(number).command::<usize>(&["DBSIZE"]) > VALUES,
            "node {number} has its share"
        );
    }
    assert_eq!(
        (redirects(&one, "moved"), redirects(&one, "ask")),
        (0.0, 0.0),
        "everybody was asked for what is theirs"
    );
}

#[tokio::test]
async fn slots_that_moved_unseen_are_found_by_what_their_old_master_says() {
    let cluster = ClusterProcess::start();
    let (server, mut counting) = on(&cluster, LIMIT).await;
    for (key, _) in ALGORITHMS {
        assert_eq!(counting.admitted(key, "v", 2).await, 2);
    }
    for key in cluster.keys("*v*") {
        let slot = cluster.slot_of(&key);
        cluster.migrate(slot);
    }
    for (key, algorithm) in ALGORITHMS {
        assert_eq!(
            counting.admitted(key, "v", LIMIT).await,
            LIMIT - 2,
            "{algorithm}"
        );
    }
    assert!(redirects(&server, "moved") > 0.0);
    // After that it knows by itself.
    look_until("the layout is known", || {
        server.metric("tollgate_store_topology_changes_total") > Some(0.0)
    });
    let before = redirects(&server, "moved");
    counting.admits_exactly(LIMIT, ["w"]).await;
    for (key, algorithm) in ALGORITHMS {
        assert_eq!(counting.admitted(key, "v", 1).await, 0, "{algorithm}");
    }
    assert!(
        (redirects(&server, "moved") - before).abs() < 0.5,
        "nothing is sent elsewhere any more"
    );
}

#[tokio::test]
async fn on_its_way_a_counter_is_asked_for_where_it_is() {
    let cluster = ClusterProcess::start();
    let (server, mut counting) = on(&cluster, LIMIT).await;
    for (key, algorithm) in ALGORITHMS {
        let before: Vec<String> = cluster.keys("*");
        assert_eq!(counting.admitted(key, "v", 1).await, 1);
        let now = cluster.keys("*");
        let name = now
            .iter()
            .find(|key| !before.contains(key))
            .expect("it has a counter");
        let slot = cluster.slot_of(name);
        let migration = cluster.begin_to_migrate(slot);
        assert_eq!(
            counting.admitted(key, "v", 1).await,
            1,
            "{algorithm}: it is still there"
        );
        let asked = redirects(&server, "ask");
        migration.move_keys();
        assert_eq!(
            counting.admitted(key, "v", 1).await,
            1,
            "{algorithm}: it is over there"
        );
        assert!(redirects(&server, "ask") > asked, "{algorithm}");
        migration.finish();
        assert_eq!(
            counting.admitted(key, "v", LIMIT).await,
            LIMIT - 3,
            "{algorithm}: and stays there"
        );
    }
}

#[tokio::test]
async fn of_a_slot_that_is_half_way_each_counter_is_asked_for_alone() {
    // Far from each other: the slots of texts that are almost the same differ.
    let values: Vec<String> = (1..=600)
        .map(|number: u64| format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    for (top, all_or_nothing) in [
        ("", false),
        ("metadata: {tollgate: {all_or_nothing: true}}\n", true),
    ] {
        let cluster = ClusterProcess::start();
        let server = answered_by_redis(
            TestServer::with_rules(&rules(LIMIT, top)),
            &cluster.settings(),
        )
        .start();
        let mut counting = ready(&server).await;
        for some in values.chunks(100) {
            counting.ask(&counters("token", some)).await;
        }
        // Among this many counters, two share a slot.
        let mut by_slot: HashMap<u16, String> = HashMap::new();
        let value_of = |key: &str| key.split(':').nth(3).expect("the safe form").to_owned();
        let shared = cluster.keys("tg:d:token:*").into_iter().find_map(|key| {
            let slot = cluster.slot_of(&key);
            by_slot
                .insert(slot, value_of(&key))
                .map(|other| (slot, other, value_of(&key)))
        });
        let (slot, one, other) = shared.expect("two of them share a slot");
        let both = [("token", &*one), ("token", &*other)];
        let migration = cluster.begin_to_migrate(slot);
        assert_eq!(migration.move_some_keys(1), 1);
        for left in (0..LIMIT - 1).rev() {
            let answer = counting.ask(&both).await;
            assert!(
                answer
                    .statuses
                    .iter()
                    .all(|status| status.limit_remaining == left),
                "{left} of each: {answer:?}"
            );
        }
        assert_eq!(counting.ask(&both).await.overall_code(), Code::OverLimit);
        assert!(
            redirects(&server, "again") + redirects(&server, "ask") > 0.0,
            "all_or_nothing: {all_or_nothing}"
        );
        migration.move_keys();
        migration.finish();
        assert_eq!(counting.ask(&both).await.overall_code(), Code::OverLimit);
    }
}

#[tokio::test]
async fn slots_that_go_to_and_fro_lose_no_hit_and_count_none_twice() {
    const MANY: u32 = 1_000;
    const HITS: u32 = 60;
    let cluster = ClusterProcess::start();
    let (server, mut counting) = on(&cluster, MANY).await;
    for (key, _) in ALGORITHMS {
        assert_eq!(counting.admitted(key, "v", 1).await, 1);
    }
    let slots: Vec<u16> = cluster
        .keys("*v*")
        .iter()
        .map(|key| cluster.slot_of(key))
        .collect();
    assert!(slots.len() >= ALGORITHMS.len(), "{slots:?}");
    let cluster = Arc::new(cluster);
    let (over, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let mover = thread::spawn({
        let (cluster, over, rounds) = (cluster.clone(), over.clone(), rounds.clone());
        move || {
            while !over.load(Relaxed) {
                for slot in &slots {
                    cluster.migrate(*slot);
                }
                rounds.fetch_add(1, Relaxed);
            }
        }
    });
    let mut hit = 1;
    let mut wrong = Vec::new();
    // At least three rounds, and enough hits for a significant result.
    while hit < HITS || (rounds.load(Relaxed) < 3 && hit < MANY - 1) {
        hit += 1;
        for (key, algorithm) in ALGORITHMS {
            let left = counting
                .try_ask(&[(key, "v")])
                .await
                .map(|answer| answer.statuses[0].limit_remaining);
            if left.as_ref().ok() != Some(&(MANY - hit)) {
                wrong.push((algorithm, MANY - hit, left));
            }
        }
    }
    over.store(true, Relaxed);
    mover.join().expect("slots can be moved");
    assert!(
        wrong.is_empty(),
        "{} of {hit} hits of each, such as {:?}",
        wrong.len(),
        wrong[0]
    );
    assert!(rounds.load(Relaxed) >= 3);
    assert!(redirects(&server, "ask") > 0.0 && redirects(&server, "moved") > 0.0);
}

#[tokio::test]
async fn a_replica_goes_on_counting_where_its_lost_master_was() {
    let mut cluster = ClusterProcess::builder().with_replicas(1).start();
    let (server, mut counting) = on(&cluster, LIMIT).await;
    let values = values();
    for value in &values {
        assert_eq!(counting.admitted("log", value, 2).await, 2);
    }
    look_until("the replica has everything", || {
        let keys = |number: usize| cluster.server(number).command::<usize>(&["DBSIZE"]);
        keys(1) == keys(4)
    });
    cluster.server_mut(1).kill();
    cluster.wait_until_replaced(1);
    let anything: Vec<String> = values
        .iter()
        .map(|value| format!("anything {value}"))
        .collect();
    counting
        .wait_for_verdicts(&counters("token", &anything))
        .await;
    for value in &values {
        assert_eq!(
            counting.admitted("log", value, LIMIT).await,
            LIMIT - 2,
            "{value}"
        );
    }
    assert_eq!(server.metric("tollgate_store_nodes"), Some(3.0));
    look_until("the log says so", || {
        server.log().contains("Redis topology changed")
    });
}

#[tokio::test]
async fn of_a_node_that_is_lost_for_good_only_its_own_counters_go_by_policy() {
    let mut cluster = ClusterProcess::builder()
        .with_arguments(&["--cluster-require-full-coverage", "no"])
        .start();
    let (server, mut counting) = on(&cluster, 1_000).await;
    let values = values();
    for value in &values {
        assert_eq!(counting.admitted("counted", value, 1).await, 1);
    }
    let is_lost: Vec<bool> = values
        .iter()
        .map(|value| {
            let key = cluster
                .keys(&format!("d_counted_{value}_*"))
                .pop()
                .expect("it is there");
            cluster.owner_of(cluster.slot_of(&key)) == 1
        })
        .collect();
    assert!(
        is_lost.contains(&true) && is_lost.contains(&false),
        "{is_lost:?}"
    );
    cluster.server_mut(1).kill();
    for _ in 0..20 {
        for (value, is_lost) in values.iter().zip(&is_lost) {
            match counting.try_ask(&[("counted", value)]).await {
                Ok(_) => assert!(!is_lost, "{value}: no node can have counted it"),
                Err(error) => assert!(
                    *is_lost && error.code() == GrpcCode::Unavailable,
                    "{value}: {error}"
                ),
            }
        }
    }
    look_until("one node is unreachable", || {
        server.metric(r#"tollgate_store_fault{kind="unreachable"}"#) == Some(1.0)
    });
    cluster.server_mut(1).restart();
    cluster.wait_until_whole();
    counting
        .wait_for_verdicts(&counters("counted", &values))
        .await;
}

#[tokio::test]
async fn all_or_nothing_holds_over_several_slots() {
    let cluster = ClusterProcess::start();
    let rules = rules(LIMIT, "metadata: {tollgate: {all_or_nothing: true}}\n");
    let server = answered_by_redis(TestServer::with_rules(&rules), &cluster.settings()).start();
    let mut counting = ready(&server).await;
    for (refusing, _) in ALGORITHMS {
        let full = [(refusing, "full")];
        for _ in 0..LIMIT {
            assert_eq!(counting.ask(&full).await.overall_code(), Code::Ok);
        }
        let value = format!("beside {refusing}");
        let others: Vec<(&str, &str)> = ALGORITHMS
            .iter()
            .filter(|(key, _)| *key != refusing)
            .map(|(key, _)| (*key, &*value))
            .collect();
        for _ in 0..3 {
            assert_eq!(
                counting
                    .ask(&[&full[..], &others].concat())
                    .await
                    .overall_code(),
                Code::OverLimit
            );
        }
        let answer = counting.ask(&others).await;
        assert!(
            answer
                .statuses
                .iter()
                .all(|status| status.limit_remaining == LIMIT - 1),
            "beside {refusing}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn a_request_of_many_descriptors_is_one_trip_to_each_node() {
    let cluster = ClusterProcess::start();
    let (server, mut counting) = on(&cluster, LIMIT).await;
    for count in [10, 64, 200] {
        let values: Vec<String> = (0..count)
            .map(|value| format!("of {count}: {value}"))
            .collect();
        for key in ["counted", "token"] {
            for expected in [Code::Ok, Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
                let before = trips(&server);
                let answer = counting.ask(&counters(key, &values)).await;
                assert!(
                    answer
                        .statuses
                        .iter()
                        .all(|status| status.code() == expected),
                    "{count} of {key}: {answer:?}"
                );
                // More than 64 checks of one node are more than one call.
                let trips_max = if count <= 64 { 3.0 } else { 6.0 };
                assert!(
                    trips(&server) - before <= trips_max,
                    "{count} of {key}: {} trips",
                    trips(&server) - before
                );
            }
        }
    }
}

#[tokio::test]
async fn a_counter_that_a_request_names_twice_is_hit_twice() {
    let cluster = ClusterProcess::start();
    let (_server, mut counting) = on(&cluster, LIMIT).await;
    // One holder that comes twice holds one place.
    for (key, algorithm) in ALGORITHMS.into_iter().filter(|(key, _)| *key != "places") {
        for expected in [[LIMIT - 1, LIMIT - 2], [LIMIT - 3, LIMIT - 4]] {
            let answer = counting
                .ask(&[(key, "v"), ("token", "between"), (key, "v")])
                .await;
            let remaining = [
                answer.statuses[0].limit_remaining,
                answer.statuses[2].limit_remaining,
            ];
            if key != "token" {
                assert_eq!(remaining, expected, "{algorithm}");
            }
        }
    }
}

#[tokio::test]
async fn a_node_that_forgot_the_script_is_sent_it_again() {
    let cluster = ClusterProcess::start();
    let (server, mut counting) = on(&cluster, LIMIT).await;
    let before = server.metric("tollgate_store_script_unknown_total");
    for number in 0..3 {
        cluster.server(number).command::<()>(&["SCRIPT", "FLUSH"]);
        counting
            .admits_exactly(
                LIMIT,
                values()
                    .iter()
                    .map(|value| format!("{number} {value}"))
                    .collect::<Vec<_>>()
                    .iter()
                    .take(4)
                    .map(String::as_str),
            )
            .await;
    }
    assert!(server.metric("tollgate_store_script_unknown_total") > before);
}

#[tokio::test]
async fn limits_of_a_second_and_all_others_may_be_on_different_redis() {
    let rules = "
domain: d
metadata: {tollgate: {all_or_nothing: true}}
descriptors:
  - {key: year, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
";
    let (cluster, single) = (ClusterProcess::start(), RedisProcess::start());
    let of_cluster = |prefix: &str| {
        vec![
            (format!("{prefix}_TYPE"), "cluster".to_owned()),
            (format!("{prefix}_URL"), cluster.url()),
        ]
    };
    let of_single = |prefix: &str| vec![(format!("{prefix}_URL"), single.address())];
    let kept_by_cluster = || cluster.keys("d_*");
    let kept_by_single = || single.command::<Vec<String>>(&["KEYS", "d_*"]);
    for is_main in [true, false] {
        let (main, second) = if is_main {
            (of_cluster("REDIS"), of_single("REDIS_PERSECOND"))
        } else {
            (of_single("REDIS"), of_cluster("REDIS_PERSECOND"))
        };
        let mut builder = answered_by_redis(
            TestServer::with_rules(rules),
            &[("REDIS_PERSECOND", "true".to_owned())],
        );
        for (name, value) in main.iter().chain(&second) {
            builder = builder.with_env(name, value);
        }
        let server = builder.start();
        look_until("both are known", || {
            server.metric("tollgate_store_nodes") == Some(4.0)
        });
        let mut client = server.client().await;
        let values = values();
        for value in &values {
            let value = format!("{is_main} {value}");
            let mut ask = async |keys: &[&str]| {
                let entries: Vec<[(&str, &str); 1]> =
                    keys.iter().map(|key| [(*key, &*value)]).collect();
                let descriptors: Vec<&[(&str, &str)]> =
                    entries.iter().map(|entry| &entry[..]).collect();
                client
                    .call(request("d", &descriptors))
                    .await
                    .map(|answer| answer.overall_code())
            };
            assert_eq!(ask(&["second", "year"]).await.expect("a verdict"), Code::Ok);
            assert_eq!(
                ask(&["second", "year"]).await.expect("a verdict"),
                Code::OverLimit
            );
        }
        let (main, second) = if is_main {
            (kept_by_cluster(), kept_by_single())
        } else {
            (kept_by_single(), kept_by_cluster())
        };
        let are_of = |keys: &[String], key: &str| {
            keys.iter()
                .filter(|name| name.contains(&format!("{is_main} ")))
                .all(|name| name.starts_with(key))
        };
        assert!(main.len() >= VALUES && are_of(&main, "d_year_"), "{main:?}");
        assert!(
            !second.is_empty() && are_of(&second, "d_second_"),
            "{second:?}"
        );
    }
}
