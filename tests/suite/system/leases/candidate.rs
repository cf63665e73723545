//! Candidate rules beside leased ones: an answer from a lease waits for no check of theirs.

use serde_json::{Value, json};

use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, eventually};

/// More than the calls.
const LIMIT: u32 = 1_000_000;
/// Calls until the counter has a lease, and while Redis does not reply.
const BEFORE: u32 = 300;
const MEANWHILE: u32 = 20;
/// Longer than the calls take. A call that waited for Redis would end a check of the candidate rules
/// without a verdict.
const STORE_TIMEOUT: &str = "60s";

fn rules(consistency: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n  - key: key\n    rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n    metadata: {{tollgate: {{{consistency}}}}}\n"
    )
}

#[tokio::test]
async fn answers_from_leases_do_not_wait_for_candidate_rules() {
    let leased = "consistency: leased, lease: 60s";
    for (candidate, leases) in [("consistency: exact", 1.0), (leased, 2.0)] {
        let redis = RedisProcess::start();
        let proxy = Proxy::before(redis.port());
        let (rules, of_candidate) = (rules(leased), rules(candidate));
        let server = TestServer::with_files([
            ("rules.yaml", &*rules),
            ("candidate/rules.yaml", &of_candidate),
        ])
        .with_env("REDIS_URL", &format!("redis://{}", proxy.addr()))
        .with_env("STORE_TIMEOUT", STORE_TIMEOUT)
        .start();
        server.metric_becomes("tollgate_candidate_rules", 1.0).await;
        server.metric_becomes("tollgate_replicas", 1.0).await;
        let mut client = server.client().await;
        for _ in 0..BEFORE {
            assert_eq!(client.ask("d", &[("key", "v")]).await, Code::Ok);
        }
        server.metric_becomes("tollgate_leases", leases).await;

        proxy.set(Fault::Stall);
        let used = r#"tollgate_rule_lease_hits_total{domain="d",key1="key",event="used"}"#;
        let before = server.metric(used).expect("it is exposed");
        for _ in 0..MEANWHILE {
            assert_eq!(client.ask("d", &[("key", "v")]).await, Code::Ok);
        }
        server.assert_metric(used, before + f64::from(MEANWHILE));
        let without_verdict = r#"tollgate_candidate_undecided_total{reason="store_error"}"#;
        server.assert_metric(without_verdict, 0.0);

        proxy.set(Fault::None);
        let page =
            || -> Value { serde_json::from_str(&server.admin("/candidate")).expect("it is JSON") };
        let calls = BEFORE + MEANWHILE;
        eventually("all calls are compared", async || {
            page()["requests"] == calls
        })
        .await;
        assert_eq!(page()["rules"][0]["same"], json!(calls), "{candidate}");
    }
}
