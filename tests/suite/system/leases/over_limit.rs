//! What clients and metrics get of a leased limit that is used up: the same as of an exact one.

use super::GIVEN_BACK_AFTER;
use super::answers::assert_equal;
use super::fleet::{Fleet, per_year};
use crate::support::request;

const LIMIT: u64 = 300;
/// The most hits that one process takes of it at once, and holds besides.
const TAKES: u64 = LIMIT / 10;

#[tokio::test]
async fn leased_and_exact_answers_are_equal() {
    for algorithm in
        ["fixed_window", "sliding_window", "sliding_window, buckets: 6", "token_bucket"]
    {
        leased_equals_exact(algorithm).await;
    }
}

/// The same calls, one after the other, of both rules.
async fn leased_equals_exact(algorithm: &str) {
    let rule = |key: &str, consistency: &str| {
        format!(
            "  - key: {key}\n    rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n    metadata: {{tollgate: {{algorithm: {algorithm}, response_body: over, consistency: {consistency}}}}}\n"
        )
    };
    let rules = format!(
        "domain: d\ndescriptors:\n{}{}",
        rule("key", "leased"),
        rule("exact", "exact, over_limit_hits: drop")
    );
    let set = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("RETRY_AFTER_HEADER_ENABLED", "true"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
    ];
    let fleet = Fleet::with_rules(1, &rules, &set).await;
    let mut client = fleet.services[0].client().await;
    for call in 0..2 * LIMIT {
        let leased = client.answer(request("d", &[&[("key", "v")]])).await;
        let exact = client.answer(request("d", &[&[("exact", "v")]])).await;
        assert_equal(leased, exact, TAKES, &format!("{algorithm}, call {call}"));
    }
    let replies = ["key", "exact"].map(|key| {
        let body = format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{key}","value":"v"}}]}}]}}"#
        );
        let reply = fleet.services[0].json(&body);
        (reply.status, reply.body.contains("Retry-After"))
    });
    assert_eq!(replies, [(429, true); 2], "{algorithm}");
    let count = |key: &str, name: &str| {
        fleet.sum(&format!("ratelimit_service_rate_limit_{name}{{domain=\"d\",key1=\"{key}\"}}"))
    };
    for name in ["over_limit", "within_limit", "total_hits"] {
        let leased = count("key", name);
        let exact = count("exact", name);
        assert!(exact > 0);
        assert_eq!(leased, exact, "{algorithm}: {name}");
    }
    let [leased, exact] = ["key", "exact"].map(|key| count(key, "near_limit"));
    assert!(
        exact > 0 && leased.abs_diff(exact) <= TAKES,
        "{algorithm}: near_limit {leased} instead of {exact}"
    );
    fleet.give_back(GIVEN_BACK_AFTER).await;
}

#[tokio::test]
async fn flood_is_admitted_exactly_the_limit() {
    const LIMIT: u64 = 1_000;
    const SERVICES: u64 = 2;
    let fleet = Fleet::of(2, &per_year(LIMIT), "").await;
    let calls = 20 * LIMIT / SERVICES;
    let admitted = fleet.paced("v", calls, 1_000_000).await;
    assert_eq!(admitted, LIMIT);
    assert!(fleet.sum("tollgate_lease_held_answers_total") > 0);
    fleet.give_back(GIVEN_BACK_AFTER).await;
    assert_eq!(fleet.used("v"), LIMIT);
}
