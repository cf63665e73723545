//! Rules of a control plane: published, updated, merged, and kept while it is unavailable.

use serde_json::{Value, json};
use tempfile::TempDir;
use tonic_health::pb::health_check_response::ServingStatus::Serving;

use crate::reload::{has_limit, limit_becomes};
use crate::support::xds::{ControlPlane, Puppet, TYPE_URL, response, rules_of};
use crate::support::{Code, eventually, request, write};
use crate::xds::helpers::{accepted, acked, asking, logged, nacked, resource, why};

#[tokio::test]
async fn xds_rules_are_added_changed_and_removed() {
    let plane = ControlPlane::start();
    plane.serve("1", &json!([resource("d", 1), resource("e", 5)]));
    let server = asking(plane.addr).start();
    server.assert_announced(&format!(
        "rules    none yet: requesting them from xDS server {}",
        plane.addr
    ));
    limit_becomes(&server, "d.k", 1).await;
    limit_becomes(&server, "e.k", 5).await;
    let mut client = server.client().await;
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::OverLimit);
    let first = &plane.requests()[0];
    for (field, value) in [
        ("version", json!("")),
        ("nonce", json!("")),
        ("type_url", json!(TYPE_URL)),
        ("names", json!(null)),
    ] {
        assert_eq!(first[field], value, "{field} of {first}");
    }
    let ack = acked(&plane, "1").await;
    assert!(ack["nonce"] != "" && ack["error"] == "", "{ack}");
    server.assert_metric("tollgate_xds_connected", 1.0);
    server.assert_metric("tollgate_xds_streams_total", 1.0);
    let page = server.admin("/explain?domain=d&descriptor=k%3D1");
    assert!(page.contains("rule d.k at d\n"), "the resource is where it is from: {page}");

    // Only one of two is changed: the other one stays.
    plane.serve("2", &json!([resource("d", 3), resource("e", 5)]));
    limit_becomes(&server, "d.k", 3).await;
    assert!(has_limit(&server, "e.k", 5));
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    acked(&plane, "2").await;

    plane.serve("3", &json!([]));
    eventually("all rules are gone", async || server.admin("/rlconfig").is_empty()).await;
    for _ in 0..5 {
        assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    }
    acked(&plane, "3").await;
    plane.serve("4", &json!([resource("d", 9)]));
    limit_becomes(&server, "d.k", 9).await;
    server.metric_becomes("ratelimit_service_config_load_success", 4.0).await;
    server.metric_becomes(r#"tollgate_xds_updates_total{verdict="accepted"}"#, 4.0).await;
}

#[tokio::test]
async fn overlay_applies_to_xds_rules_and_is_reloaded() {
    let overlay = |algorithm: &str| {
        format!("overlays: [{{domain: '*', tollgate: {{defaults: {{algorithm: {algorithm}}}}}}}]\n")
    };
    let directory = TempDir::new().expect("a temporary directory can be made");
    let path = directory.path().join("overlay.yaml");
    write(&path, &overlay("token_bucket"));
    let plane = ControlPlane::start();
    plane.serve("1", &json!([resource("d", 5)]));
    let server =
        asking(plane.addr).with_env("TOLLGATE_OVERLAY", &path.display().to_string()).start();
    let page = || server.admin("/explain?domain=d&descriptor=k%3D1");
    eventually("the overlay counts", async || {
        page().contains("algorithm: token_bucket (by the overlay's defaults, ")
    })
    .await;
    // Metrics are updated after the rules are in force. If the rules come before the watch of
    // the overlay has started, they are loaded twice.
    let loads = || server.metric("ratelimit_service_config_load_success");
    eventually("the load is counted", async || loads() >= Some(1.0)).await;
    let hash = server.metric("tollgate_rules_hash");

    write(&path, &overlay("sliding_log"));
    eventually("the new overlay counts", async || page().contains("algorithm: sliding_log")).await;
    eventually("the hash is that of the new overlay", async || {
        server.metric("tollgate_rules_hash") != hash
    })
    .await;

    write(&path, &overlay("sliding_frog"));
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    assert!(page().contains("algorithm: sliding_log"));

    // Also while the control plane is unavailable.
    drop(plane);
    server.metric_becomes("tollgate_xds_connected", 0.0).await;
    write(&path, &overlay("token_bucket"));
    eventually("the overlay counts", async || page().contains("algorithm: token_bucket")).await;
    eventually("the hash is that of the first overlay", async || {
        server.metric("tollgate_rules_hash") == hash
    })
    .await;
}

#[tokio::test]
async fn domain_in_two_resources_is_rejected_unless_merged() {
    let mut puppet = Puppet::start().await;
    let mut other = rules_of(2);
    other.name = "other".into();
    other.descriptors[0].key = "other".into();
    let both = response("1", "n", &[rules_of(1), other]);

    let _strict = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    let nack = stream.ask(both.clone()).await;
    assert!(why(&nack).starts_with("other: duplicate domain 'd' in config file\n"), "{nack:?}");

    let merging = asking(puppet.addr).with_env("MERGE_DOMAIN_CONFIG", "true").start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(&stream.ask(both).await, "1", "n");
    assert!(
        has_limit(&merging, "d.k", 1) && has_limit(&merging, "d.other", 2),
        "{}",
        merging.admin("/rlconfig")
    );
}

#[tokio::test]
async fn rules_serve_while_the_control_plane_is_unavailable() {
    let plane = ControlPlane::start();
    plane.serve("1", &json!([resource("d", 2)]));
    let server = asking(plane.addr).start();
    limit_becomes(&server, "d.k", 2).await;
    let mut client = server.client().await;
    let addr = plane.addr;
    drop(plane);
    server.metric_becomes("tollgate_xds_connected", 0.0).await;
    logged(&server, "xDS stream failed; retrying with the last good configuration").await;
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::OverLimit);
    assert_eq!(server.get("/healthcheck").status, 200);
    assert_eq!(client.health("").await.expect("it is known"), Serving);

    let plane = ControlPlane::start_at(addr);
    plane.serve("one", &json!([resource("d", 5)]));
    limit_becomes(&server, "d.k", 5).await;
    let first = &plane.requests()[0];
    assert_eq!(
        (&first["version"], &first["nonce"]),
        (&json!("1"), &json!("")),
        "the version is known, the nonce was another stream's"
    );
    server.metric_becomes("tollgate_xds_connected", 1.0).await;
    acked(&plane, "one").await;
}

#[tokio::test]
async fn tollgate_block_in_metadata_has_the_meaning_of_a_file() {
    let plane = ControlPlane::start();
    let rules = |block: Value| {
        let limit = json!({"unit": "YEAR", "requests_per_unit": 2});
        json!([{"name": "shop", "domain": "shop", "descriptors": [
            {"key": "user", "rate_limit": limit, "quota_mode": true, "metadata": {"team": "blue", "tollgate": block}},
        ]}])
    };
    // Numbers are doubles on their way.
    plane.serve(
        "1",
        &rules(json!({"algorithm": "token_bucket", "burst": 4.0, "unit_multiplier": 1})),
    );
    let server = asking(plane.addr).with_env("RESPONSE_DYNAMIC_METADATA", "true").start();
    acked(&plane, "1").await;
    let mut client = server.client().await;
    let answer = client.answer(request("shop", &[&[("user", "a")]])).await;
    assert_eq!(answer.statuses[0].limit_remaining, 3, "a bucket of four");
    let told_to_envoy = format!("{:?}", answer.dynamic_metadata);
    assert!(
        told_to_envoy.contains("blue") && !told_to_envoy.contains("unit_multiplier"),
        "{told_to_envoy}"
    );
    assert!(
        server.admin("/rlconfig").contains("quota_mode: true"),
        "{}",
        server.admin("/rlconfig")
    );
    let in_force = server.admin_json("/rlconfig?format=json");
    assert_eq!(
        in_force["domains"][0]["descriptors"][0]["limit"]["source"],
        json!({"resource": "shop"})
    );

    plane.serve(
        "2",
        &rules(json!({"algorithm": "token_bukket", "burst": 1.5, "buckets": "2", "colour": null})),
    );
    let error = nacked(&plane).await["error"].to_string();
    for expected in [
        "shop: 'token_bukket' is no value of `algorithm`",
        "shop: `burst` must be a whole number",
        "shop: `buckets` must be a whole number from 0 to 4294967295, without quotes",
        "shop: unknown key 'colour'",
        "  --> shop (domain shop > descriptors[0].metadata.tollgate)",
        "did you mean `token_bucket`?",
    ] {
        assert!(error.contains(expected), "{expected} is not in {error}");
    }

    // The amount is the largest that a double holds exactly.
    plane.serve(
        "3",
        &rules(json!({"limits": [{"requests": 9_007_199_254_740_990_u64, "unit": "month", "calendar": "UTC"}]})),
    );
    acked(&plane, "3").await;
    let page = server.admin("/rlconfig");
    assert!(page.contains("\"requests\":9007199254740990"), "{page}");
    plane.serve(
        "4",
        &rules(json!({"parents": true, "calendar": "Europe/Berln", "limits": [{"requests": 1.5, "unit": "day"}]})),
    );
    let error = nacked(&plane).await["error"].to_string();
    for expected in [
        "shop: unknown time zone 'Europe/Berln'; did you mean `Europe/Berlin`?",
        "shop: `requests` must be a whole number from 0 to 9007199254740990, without quotes",
        "  --> shop (domain shop > descriptors[0].metadata.tollgate.limits[0])",
    ] {
        assert!(error.contains(expected), "{expected} is not in {error}");
    }
}
