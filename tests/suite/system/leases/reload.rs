//! A rule that changes between exact and leased while it is called loses no count.

use std::cell::Cell;

use super::GIVEN_BACK_AFTER;
use super::fleet::Fleet;
use crate::support::{eventually, request};

/// More than the load uses.
const LIMIT: u64 = 50_000;
/// Of each service in a part of the load.
const CALLS: u64 = 250;
/// Hits from leases, or calls to Redis, before the rule changes again.
const DECIDED: u64 = 300;

#[tokio::test]
async fn consistency_changes_lose_no_count() {
    for algorithm in
        ["fixed_window", "sliding_window", "sliding_window, buckets: 6", "token_bucket"]
    {
        changes_lose_no_count(algorithm).await;
    }
}

fn rules(algorithm: &str, consistency: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n  - key: key\n    rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n    metadata: {{tollgate: {{algorithm: {algorithm}, consistency: {consistency}}}}}\n"
    )
}

async fn changes_lose_no_count(algorithm: &str) {
    let fleet = Fleet::with_rules(2, &rules(algorithm, "exact"), &[]).await;
    let is_done = Cell::new(false);
    let changes = async {
        for consistency in ["leased", "exact", "leased", "exact"] {
            change(&fleet, &rules(algorithm, consistency)).await;
            match consistency {
                "leased" => grows("leases are used", || fleet.hits("used")).await,
                _ => grows("Redis decides", || fleet.commands()).await,
            }
        }
        is_done.set(true);
    };
    let load = async {
        let mut offered = 0;
        let mut admitted = 0;
        while !is_done.get() {
            offered += 2 * CALLS;
            admitted += fleet.paced("v", CALLS, 1_000).await;
        }
        assert_eq!(admitted, offered, "{algorithm}");
        admitted
    };
    let (admitted, ()) = tokio::join!(load, changes);
    fleet.give_back(GIVEN_BACK_AFTER).await;
    let mut peek = request("d", &[&[("key", "v")]]);
    peek.descriptors[0].hits_addend = Some(0);
    let answer = fleet.services[0].client().await.answer(peek).await;
    let used = LIMIT - u64::from(answer.statuses[0].limit_remaining);
    assert_eq!(used, admitted, "{algorithm}");
}

/// Waits until [`DECIDED`] more are counted.
async fn grows(what: &str, count: impl Fn() -> u64) {
    let before = count();
    eventually(what, async || count() >= before + DECIDED).await;
}

/// Changes the rules of all services.
async fn change(fleet: &Fleet, rules: &str) {
    for service in &fleet.services {
        let loads = || service.metric("ratelimit_service_config_load_success");
        let before = loads();
        service.write("rules.yaml", rules);
        eventually("the rules are loaded", async || loads() > before).await;
    }
}
