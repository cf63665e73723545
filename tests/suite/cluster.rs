//! Counting on a Redis Cluster: exact over all slots, while they move, and when a node is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;

use crate::support::cluster::ClusterProcess;
use crate::support::counting::{ALGORITHMS, Counting, answered_by_redis, rules, service};
use crate::support::fault::Servers as _;
use crate::support::{Code, TestServer};

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
    let mut counting = Counting::at(server).await;
    let values = values();
    let anything: Vec<String> = values.iter().map(|value| format!("anything {value}")).collect();
    counting.wait_for_verdicts(&counters("leaky", &anything)).await;
    counting
}

fn redirects(server: &TestServer, kind: &str) -> f64 {
    server
        .metric(&format!(r#"tollgate_store_redirects_total{{kind="{kind}"}}"#))
        .expect("it is counted")
}

fn trips(server: &TestServer) -> f64 {
    server.metric("tollgate_store_call_seconds_count").expect("they are counted")
}

#[tokio::test]
async fn replicas_of_the_service_count_exactly_over_all_slots() {
    let cluster = ClusterProcess::start();
    let ((one, mut asks_one), (_other, mut asks_other)) =
        (on(&cluster, LIMIT).await, on(&cluster, LIMIT).await);
    one.assert_metric("tollgate_store_nodes", 3.0);
    for value in values() {
        for (key, algorithm) in ALGORITHMS.into_iter().filter(|(key, _)| *key != "places") {
            assert_eq!(asks_one.admitted(key, &value, 3).await, 3, "{algorithm}: {value}");
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
async fn of_a_slot_that_is_half_way_each_counter_is_asked_for_alone() {
    // Far from each other: the slots of texts that are almost the same differ.
    let values: Vec<String> = (1..=600)
        .map(|number: u64| format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect();
    for (top, all_or_nothing) in
        [("", false), ("metadata: {tollgate: {all_or_nothing: true}}\n", true)]
    {
        let cluster = ClusterProcess::start();
        let server =
            answered_by_redis(TestServer::with_rules(&rules(LIMIT, top)), &cluster.settings())
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
            by_slot.insert(slot, value_of(&key)).map(|other| (slot, other, value_of(&key)))
        });
        let (slot, one, other) = shared.expect("two of them share a slot");
        let both = [("token", &*one), ("token", &*other)];
        let migration = cluster.begin_to_migrate(slot);
        assert_eq!(migration.move_some_keys(1), 1);
        for left in (0..LIMIT - 1).rev() {
            let answer = counting.ask(&both).await;
            assert!(
                answer.statuses.iter().all(|status| status.limit_remaining == left),
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
    let slots: Vec<u16> = cluster.keys("*v*").iter().map(|key| cluster.slot_of(key)).collect();
    assert!(slots.len() >= ALGORITHMS.len(), "{slots:?}");
    let cluster = Arc::new(cluster);
    let over = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU32::new(0));
    let mover = thread::spawn({
        let cluster = cluster.clone();
        let over = over.clone();
        let rounds = rounds.clone();
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
    assert!(wrong.is_empty(), "{} of {hit} hits of each, such as {:?}", wrong.len(), wrong[0]);
    assert!(rounds.load(Relaxed) >= 3);
    assert!(redirects(&server, "ask") > 0.0 && redirects(&server, "moved") > 0.0);
}

#[tokio::test]
async fn all_or_nothing_holds_over_several_slots() {
    let cluster = ClusterProcess::start();
    let rules = rules(LIMIT, "metadata: {tollgate: {all_or_nothing: true}}\n");
    let server = answered_by_redis(TestServer::with_rules(&rules), &cluster.settings()).start();
    let mut counting = ready(&server).await;
    counting.rejections_consume_nothing(LIMIT).await;
}

#[tokio::test]
async fn a_request_of_many_descriptors_is_one_trip_to_each_node() {
    let cluster = ClusterProcess::start();
    let (server, mut counting) = on(&cluster, LIMIT).await;
    for count in [10, 64, 200] {
        let values: Vec<String> = (0..count).map(|value| format!("of {count}: {value}")).collect();
        for key in ["counted", "token"] {
            for expected in [Code::Ok, Code::Ok, Code::Ok, Code::Ok, Code::OverLimit] {
                let before = trips(&server);
                let answer = counting.ask(&counters(key, &values)).await;
                assert!(
                    answer.statuses.iter().all(|status| status.code() == expected),
                    "{count} of {key}: {answer:?}"
                );
                // More than 64 buckets of one node are more than one call.
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
