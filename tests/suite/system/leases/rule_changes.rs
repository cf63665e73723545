//! Leased rules whose limit, algorithm or consistency changes while they are called: no call fails,
//! no count is lost, and hits of the rules before return.

use std::cell::Cell;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::GIVEN_BACK_AFTER;
use super::fleet::Fleet;
use crate::support::redis::RedisProcess;
use crate::support::xds::{ControlPlane, NODE};
use crate::support::{TestServer, eventually, request, write};

/// More than the load uses.
const LIMIT: u64 = 50_000;
/// Of each service in a part of the load.
const CALLS: u64 = 250;
const RATE: u64 = 1_000;
/// Hits that are used from leases between two changes.
const USED: u64 = 300;

/// Calls while rules change. Returns the number of calls, each of which was admitted.
async fn under_load<R>(fleet: &Fleet<R>, changes: impl Future<Output = ()>) -> u64 {
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
async fn uses_leases<R>(fleet: &Fleet<R>) {
    let before = fleet.hits("used");
    eventually("leases are used", async || fleet.hits("used") >= before + USED).await;
}

/// Hits that the counter of the rules in force has.
async fn used<R>(fleet: &Fleet<R>, limit: u64) -> u64 {
    let mut client = fleet.services[0].client().await;
    let mut peek = request("d", &[&[("key", "v")]]);
    peek.descriptors[0].hits_addend = Some(0);
    let answer = client.answer(peek).await;
    limit - u64::from(answer.statuses[0].limit_remaining)
}

/// Waits until every service has another hash of its rules, after this.
async fn changed<R>(fleet: &Fleet<R>, change: impl FnOnce()) {
    let hashes = || fleet.services.iter().map(|service| service.metric("tollgate_rules_hash"));
    let before: Vec<_> = hashes().collect();
    change();
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
    format!(
        "domain: d\ndescriptors:\n  - key: key\n    rate_limit: {{unit: year, requests_per_unit: {limit}}}\n    metadata: {{tollgate: {{algorithm: {algorithm}, consistency: {consistency}}}}}\n"
    )
}

async fn write_file(fleet: &Fleet, text: &str) {
    changed(fleet, || {
        for service in &fleet.services {
            service.write("rules.yaml", text);
        }
    })
    .await;
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

fn resources(limit: u64, block: &Value) -> Value {
    let rule = json!({
        "key": "key",
        "rate_limit": {"unit": "YEAR", "requests_per_unit": limit},
        "metadata": {"tollgate": block},
    });
    json!([{"name": "d", "domain": "d", "descriptors": [rule]}])
}

/// Two services of this control plane.
async fn of(plane: &ControlPlane, set: &[(&str, &str)]) -> Fleet {
    let redis = RedisProcess::start();
    let start = || {
        TestServer::with_xds(&plane.addr.to_string())
            .with_env("CONFIG_GRPC_XDS_NODE_ID", NODE)
            .with_env("REDIS_URL", &redis.url())
            .with_env("ON_STORE_ERROR", "error")
            .with_envs(set)
            .start()
    };
    let services = vec![start(), start()];
    for service in &services {
        service.metric_becomes("tollgate_rules", 1.0).await;
    }
    Fleet::on(redis, services).await
}

#[tokio::test]
async fn limit_algorithm_and_consistency_change_by_xds() {
    let plane = ControlPlane::start();
    let leased = json!({"consistency": "leased"});
    plane.serve("0", &resources(LIMIT, &leased));
    let fleet = of(&plane, &[]).await;
    let serve = async |version: &str, limit, block: &Value| {
        changed(&fleet, || plane.serve(version, &resources(limit, block))).await;
    };
    let admitted = under_load(&fleet, async {
        uses_leases(&fleet).await;
        serve("1", LIMIT * 2, &leased).await;
        uses_leases(&fleet).await;
        serve("2", LIMIT, &json!({"consistency": "exact"})).await;
        asks_redis(&fleet).await;
        serve("3", LIMIT, &leased).await;
        uses_leases(&fleet).await;
        let bucket = json!({"consistency": "leased", "algorithm": "token_bucket"});
        serve("4", LIMIT, &bucket).await;
        uses_leases(&fleet).await;
    })
    .await;
    let of_bucket = used(&fleet, LIMIT).await;
    serve("5", LIMIT, &leased).await;
    assert_eq!(used(&fleet, LIMIT).await + of_bucket, admitted);
}

/// Rules of Envoy Gateway have no block of their own.
#[tokio::test]
async fn consistency_of_rules_of_envoy_gateway_changes_by_the_overlay() {
    let plane = ControlPlane::start();
    let rule = json!({"key": "key", "rate_limit": {"unit": "YEAR", "requests_per_unit": LIMIT}});
    plane.serve("1", &json!([{"name": "d", "domain": "d", "descriptors": [rule]}]));
    let directory = TempDir::new().expect("a temporary directory can be made");
    let path = directory.path().join("overlay.yaml");
    let overlay = |consistency: &str| {
        let text = format!(
            "overlays: [{{domain: '*', tollgate: {{defaults: {{consistency: {consistency}}}}}}}]\n"
        );
        write(&path, &text);
    };
    overlay("exact");
    let fleet = of(&plane, &[("TOLLGATE_OVERLAY", &path.display().to_string())]).await;
    let admitted = under_load(&fleet, async {
        for _ in 0..2 {
            asks_redis(&fleet).await;
            changed(&fleet, || overlay("leased")).await;
            uses_leases(&fleet).await;
            changed(&fleet, || overlay("exact")).await;
        }
        asks_redis(&fleet).await;
    })
    .await;
    assert_eq!(fleet.used("v"), admitted);
}
