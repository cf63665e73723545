//! Candidate rules: decided for every request, in the same round trips, and never part of an answer.

use std::fs;

use serde_json::{Value, json};

use crate::support::redis::RedisProcess;
use crate::support::{Builder, Code, TestServer, eventually, tollgate, write};

/// A limit of a year for each user, in the domain `d`.
fn users(requests: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {{unit: year, requests_per_unit: {requests}}}\n"
    )
}

/// Three requests for each user by the rules in force, and one by the candidate rules.
fn limits_of_three_and_one() -> Builder {
    let (rules, candidate) = (users(3), users(1));
    TestServer::with_files([
        ("rules.yaml", &*rules),
        ("candidate/rules.yaml", &candidate),
    ])
}

fn page(server: &TestServer) -> Value {
    serde_json::from_str(&server.admin("/candidate")).expect("it is JSON")
}

/// What the page states of `d.user`.
fn of_user(same: u64, newly_over: u64, no_longer_over: u64, keys_changed: u64) -> Value {
    json!([{
        "domain": "d", "rule": "d.user", "same": same, "newly_over": newly_over,
        "no_longer_over": no_longer_over, "keys_changed": keys_changed,
    }])
}

async fn has_candidates(server: &TestServer, rules: f64) {
    server
        .metric_becomes("tollgate_candidate_rules", rules)
        .await;
}

async fn codes(server: &TestServer, user: &str, requests: usize) -> Vec<Code> {
    let mut client = server.client().await;
    let mut codes = Vec::new();
    for _ in 0..requests {
        codes.push(client.ask("d", &[("user", user)]).await);
    }
    codes
}

#[tokio::test]
async fn changes_are_counted_by_rule_and_key() {
    let server = limits_of_three_and_one().start();
    has_candidates(&server, 1.0).await;
    server.assert_metric("tollgate_rules", 1.0);
    assert_eq!(
        codes(&server, "ann", 4).await,
        [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit]
    );
    assert_eq!(codes(&server, "bob", 2).await, [Code::Ok; 2]);
    assert_eq!(codes(&server, "eve", 1).await, [Code::Ok]);
    let shown = page(&server);
    assert_eq!(shown["requests"], 7);
    assert_eq!(shown["rules"], of_user(4, 3, 0, 2));
    let example = &shown["examples"][0];
    assert_eq!(
        (&example["change"], &example["descriptor"]),
        (&json!("newly_over"), &json!("user=bob"))
    );
    assert_eq!(shown["examples"].as_array().map(Vec::len), Some(2));
    let series = |change: &str| {
        format!(
            r#"tollgate_candidate_decisions_total{{domain="d",rule="d.user",change="{change}"}}"#
        )
    };
    server.assert_metric(&series("same"), 4.0);
    server.assert_metric(&series("newly_over"), 3.0);
    let hits = r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="user"}"#;
    server.assert_metric(hits, 7.0);

    let url = format!("http://{}", server.admin);
    let ran = tollgate(&["candidate", "report", "--url", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for expected in [
        "7 requests decided",
        "d       d.user     4           3",
        "user=bob",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}: {ran:?}");
    }
}

#[tokio::test]
async fn candidate_rules_come_go_and_are_kept_while_new_ones_are_invalid() {
    let server = TestServer::with_rules(&users(1)).start();
    let empty = json!({"requests": 0, "rules": [], "examples": []});
    assert_eq!(codes(&server, "ann", 2).await, [Code::Ok, Code::OverLimit]);
    assert_eq!(page(&server), empty);

    write(&server.path("candidate/rules.yaml"), &users(5));
    has_candidates(&server, 1.0).await;
    assert_eq!(codes(&server, "ann", 1).await, [Code::OverLimit]);
    assert_eq!(page(&server)["rules"], of_user(0, 0, 1, 1));

    write(&server.path("candidate/rules.yaml"), "domain: [");
    server
        .metric_becomes("tollgate_candidate_rules_rejected", 1.0)
        .await;
    server.assert_logged("Error loading candidate rules");
    server.assert_metric("tollgate_rules_rejected", 0.0);
    assert_eq!(codes(&server, "ann", 1).await, [Code::OverLimit]);
    assert_eq!(page(&server)["rules"], of_user(0, 0, 2, 1));

    write(&server.path("candidate/rules.yaml"), &users(9));
    server
        .metric_becomes("tollgate_candidate_rules_rejected", 0.0)
        .await;
    assert_eq!(page(&server), empty, "other rules are counted anew");

    fs::remove_dir_all(server.path("candidate")).expect("it exists");
    has_candidates(&server, 0.0).await;
    server.assert_logged("candidate rules removed");
    assert_eq!(codes(&server, "ann", 1).await, [Code::OverLimit]);
    assert_eq!(page(&server), empty);
}

#[tokio::test]
async fn candidate_checks_share_the_round_trips_of_redis() {
    let redis = RedisProcess::start();
    let server = limits_of_three_and_one()
        .with_env("REDIS_URL", &redis.url())
        .with_env("CACHE_KEY_PREFIX", "p:")
        .start();
    has_candidates(&server, 1.0).await;
    assert_eq!(codes(&server, "ann", 1).await, [Code::Ok]);
    let trips = || {
        let sum = server
            .metric("tollgate_store_batch_checks_sum")
            .expect("it is exposed");
        let count = server
            .metric("tollgate_store_batch_checks_count")
            .expect("it is exposed");
        (sum, count)
    };
    let (checks_before, trips_before) = trips();
    assert_eq!(
        codes(&server, "ann", 3).await,
        [Code::Ok, Code::Ok, Code::OverLimit]
    );
    let (checks, count) = trips();
    assert_eq!((checks - checks_before, count - trips_before), (6.0, 3.0));
    assert_eq!(page(&server)["rules"], of_user(2, 2, 0, 1));
    let keys: Vec<String> = redis.command(&["KEYS", "*user_ann_*"]);
    let of_candidate = keys.iter().filter(|key| key.starts_with("candidate:p:d_"));
    assert_eq!((keys.len(), of_candidate.count()), (2, 1), "{keys:?}");
}

#[tokio::test]
async fn without_redis_answers_are_those_of_the_rules_in_force() {
    let mut redis = RedisProcess::start();
    let server = limits_of_three_and_one()
        .with_env("REDIS_URL", &redis.url())
        .start();
    has_candidates(&server, 1.0).await;
    assert_eq!(codes(&server, "ann", 1).await, [Code::Ok]);
    redis.kill();
    assert_eq!(
        codes(&server, "bob", 4).await,
        [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit]
    );
    let undecided = r#"tollgate_candidate_undecided_total{reason="store_error"}"#;
    server.assert_metric(undecided, 4.0);
    assert_eq!(page(&server)["requests"], 1);
    let fallbacks = server.admin("/metrics");
    let fallbacks = fallbacks
        .lines()
        .filter(|line| line.starts_with("tollgate_store_fallbacks_total"))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    assert!(
        (fallbacks.sum::<f64>() - 4.0).abs() < 0.5,
        "one for each request"
    );
}

#[tokio::test]
async fn requests_that_are_invalid_under_candidate_rules_are_answered() {
    let candidate = "domain: d\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, requests_per_unit: 1}\n    metadata: {tollgate: {algorithm: concurrency, lease_by: user, lease: 30s}}\n";
    let rules = users(1);
    let files = [("rules.yaml", &*rules), ("candidate/rules.yaml", candidate)];
    let server = TestServer::with_files(files).start();
    has_candidates(&server, 1.0).await;
    assert_eq!(codes(&server, "", 2).await, [Code::Ok, Code::OverLimit]);
    let undecided = r#"tollgate_candidate_undecided_total{reason="invalid"}"#;
    server.assert_metric(undecided, 2.0);
}

#[tokio::test]
async fn runtime_root_has_candidate_rules_where_candidate_subdirectory_is_set() {
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    write(&root.path().join("config/rules.yaml"), &users(1));
    write(
        &root.path().join("config/candidate/more.yaml"),
        &users(1).replace("domain: d", "domain: more"),
    );
    write(&root.path().join("next/config/rules.yaml"), &users(2));
    let server = TestServer::with_runtime_root(root.path())
        .with_env("CANDIDATE_SUBDIRECTORY", "next")
        .start();
    has_candidates(&server, 1.0).await;
    server.assert_metric("tollgate_rule_domains", 2.0);
    assert_eq!(codes(&server, "ann", 2).await, [Code::Ok, Code::OverLimit]);
    eventually("it is counted", async || page(&server)["requests"] == 2).await;
    assert_eq!(page(&server)["rules"], of_user(1, 0, 1, 1));

    let server = TestServer::with_runtime_root(root.path()).start();
    assert_eq!(server.metric("tollgate_candidate_rules"), None);
}
