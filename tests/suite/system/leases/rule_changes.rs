//! Leased rules whose limit, algorithm or consistency changes while they are called: no call fails,
//! no count is lost, and hits of the rules before return.

use std::cell::Cell;

use super::GIVEN_BACK_AFTER;
use super::fleet::{Fleet, per_year, rules};
use crate::support::{eventually, request};

/// More than the load uses.
const LIMIT: u64 = 50_000;
/// Of each service in a part of the load.
const CALLS: u64 = 250;
const RATE: u64 = 1_000;
/// Hits that are used from leases between two changes.
const USED: u64 = 300;

/// Calls while rules change. Returns the number of calls, each of which was admitted.
async fn under_load(fleet: &Fleet, changes: impl Future<Output = ()>) -> u64 {
    let is_done = Cell::new(false);
    let changes = async {
        changes.await;
        is_done.set(true);
    };
    let load = async {
        let mut offered = 0;
        let mut admitted = 0;
        while !is_done.get() {
            offered += 2 * CALLS;
            admitted += fleet.paced("v", CALLS, RATE).await;
        }
        assert_eq!(admitted, offered);
        admitted
    };
    let (admitted, ()) = tokio::join!(load, changes);
    fleet.give_back(GIVEN_BACK_AFTER).await;
    admitted
}

/// Waits until leases of the present rules were used.
async fn uses_leases(fleet: &Fleet) {
    let before = fleet.hits("used");
    eventually("leases are used", async || fleet.hits("used") >= before + USED).await;
}

/// Hits that the counter of the rules in force has.
async fn used(fleet: &Fleet, limit: u64) -> u64 {
    let mut client = fleet.services[0].client().await;
    let mut peek = request("d", &[&[("key", "v")]]);
    peek.descriptors[0].hits_addend = Some(0);
    let answer = client.answer(peek).await;
    limit - u64::from(answer.statuses[0].limit_remaining)
}

/// Writes the rules of every service, and waits until all have them.
async fn write_file(fleet: &Fleet, text: &str) {
    let hashes = || fleet.services.iter().map(|service| service.metric("tollgate_rules_hash"));
    let before: Vec<_> = hashes().collect();
    for service in &fleet.services {
        service.write("rules.yaml", text);
    }
    eventually("all have the new rules", async || {
        hashes().zip(&before).all(|(now, before)| now != *before)
    })
    .await;
}

/// Waits until Redis decided calls.
async fn asks_redis(fleet: &Fleet) {
    let before = fleet.commands();
    eventually("calls ask Redis", async || fleet.commands() > before + USED).await;
}

fn file(limit: u64, algorithm: &str, consistency: &str) -> String {
    rules(&per_year(limit), &format!("algorithm: {algorithm}, consistency: {consistency}"))
}

#[tokio::test]
async fn consistency_changes_by_files() {
    for algorithm in
        ["fixed_window", "sliding_window", "sliding_window, buckets: 6", "token_bucket"]
    {
        let fleet = Fleet::with_rules(2, &file(LIMIT, algorithm, "exact"), &[]).await;
        let admitted = under_load(&fleet, async {
            for _ in 0..2 {
                write_file(&fleet, &file(LIMIT, algorithm, "leased")).await;
                uses_leases(&fleet).await;
                write_file(&fleet, &file(LIMIT, algorithm, "exact")).await;
                asks_redis(&fleet).await;
            }
        })
        .await;
        assert_eq!(used(&fleet, LIMIT).await, admitted, "{algorithm}");
    }
}

#[tokio::test]
async fn limits_change_by_files() {
    for algorithm in ["fixed_window", "sliding_window", "token_bucket"] {
        let fleet = Fleet::with_rules(2, &file(LIMIT, algorithm, "leased"), &[]).await;
        let limits = [LIMIT * 2, LIMIT / 2, LIMIT];
        let admitted = under_load(&fleet, async {
            for limit in limits {
                uses_leases(&fleet).await;
                write_file(&fleet, &file(limit, algorithm, "leased")).await;
            }
            uses_leases(&fleet).await;
        })
        .await;
        assert_eq!(used(&fleet, LIMIT).await, admitted, "{algorithm}");
    }
}

/// Each algorithm has a counter of its own.
#[tokio::test]
async fn algorithms_change_by_files() {
    let algorithms = ["token_bucket", "sliding_window", "fixed_window"];
    let fleet = Fleet::with_rules(2, &file(LIMIT, "fixed_window", "leased"), &[]).await;
    let admitted = under_load(&fleet, async {
        for algorithm in algorithms {
            uses_leases(&fleet).await;
            write_file(&fleet, &file(LIMIT, algorithm, "leased")).await;
        }
        uses_leases(&fleet).await;
    })
    .await;
    let mut counted = 0;
    for algorithm in algorithms {
        write_file(&fleet, &format!("{}# {algorithm}\n", file(LIMIT, algorithm, "leased"))).await;
        let of_one = used(&fleet, LIMIT).await;
        assert!(of_one >= USED, "{algorithm}: {of_one}");
        counted += of_one;
    }
    assert_eq!(counted, admitted);
}
