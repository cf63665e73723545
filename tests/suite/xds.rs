//! Rules from a control plane: published, updated, rejected with all errors, and kept
//! while it is away.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use prost::Message as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tollgate::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tollgate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};
use tonic::Status;
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use crate::support::certificates::{Authority, KeyForm};
use crate::support::xds::{
    ControlPlane, NODE, Puppet, Stream, TYPE_URL, resource_of, response, rules_of,
};
use crate::support::{Builder, Client, Code, TestServer, eventually, limit_of, request, write};

/// Names that Envoy Gateway's certificates have.
const GATEWAY: &str = "DNS:envoy-gateway,DNS:envoy-gateway.envoy-gateway-system";

/// A service that asks there, as Envoy Gateway deploys it, and does not wait long between tries.
fn asking(addr: SocketAddr) -> Builder {
    TestServer::with_xds(&addr.to_string())
        .with_env("CONFIG_GRPC_XDS_NODE_ID", NODE)
        .with_env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms")
        .with_env("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms")
}

/// A resource with one limit of a year, as JSON.
fn resource(domain: &str, requests: u32) -> Value {
    let limit = json!({"unit": "YEAR", "requests_per_unit": requests});
    json!({"name": domain, "domain": domain, "descriptors": [{"key": "k", "rate_limit": limit}]})
}

/// Whether /rlconfig has a line that begins so.
fn has_rule(server: &TestServer, begin: &str) -> bool {
    server
        .admin("/rlconfig")
        .lines()
        .any(|line| line.starts_with(begin))
}

async fn has_limit(server: &TestServer, key: &str, requests: u32) {
    let line = format!("{key}: unit=YEAR requests_per_unit={requests}, ");
    eventually(&format!("there is {line}"), async || {
        has_rule(server, &line)
    })
    .await;
}

async fn metric(server: &TestServer, series: &str, value: f64) {
    eventually(&format!("{series} is {value}"), async || {
        server.metric(series) == Some(value)
    })
    .await;
}

async fn logged(server: &TestServer, text: &str) {
    eventually(&format!("the log has {text}"), async || {
        server.log().contains(text)
    })
    .await;
}

/// The newest request of the control plane has this version.
async fn acked(plane: &ControlPlane, version: &str) -> Value {
    eventually(&format!("version {version} is acknowledged"), async || {
        plane.newest()["version"] == version
    })
    .await;
    plane.newest()
}

/// Waits for a NACK, and returns it.
async fn nacked(plane: &ControlPlane) -> Value {
    eventually("rules are rejected", async || plane.newest()["error"] != "").await;
    plane.newest()
}

fn why(request: &DiscoveryRequest) -> &str {
    &request
        .error_detail
        .as_ref()
        .expect("it was rejected")
        .message
}

fn accepted(request: &DiscoveryRequest, version: &str, nonce: &str) {
    assert_eq!(
        (&*request.version_info, &*request.response_nonce),
        (version.as_bytes(), nonce.as_bytes())
    );
    assert_eq!(request.error_detail, None);
}

#[tokio::test]
async fn xds_rules_are_added_changed_and_removed() {
    let plane = ControlPlane::start();
    plane.serve("1", &json!([resource("d", 1), resource("e", 5)]));
    let server = asking(plane.addr).start();
    assert!(
        server.announcement().contains(&format!(
            "rules    none yet: asking xDS server {}",
            plane.addr
        )),
        "{}",
        server.announcement()
    );
    has_limit(&server, "d.k", 1).await;
    has_limit(&server, "e.k", 5).await;
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
    assert_eq!(server.metric("tollgate_xds_connected"), Some(1.0));
    assert_eq!(server.metric("tollgate_xds_streams_total"), Some(1.0));
    let page = server.admin("/explain?domain=d&descriptor=k%3D1");
    assert!(
        page.contains("rule d.k at d\n"),
        "the resource is where it is from: {page}"
    );

    // Only one of two is changed: the other one stays.
    plane.serve("2", &json!([resource("d", 3), resource("e", 5)]));
    has_limit(&server, "d.k", 3).await;
    assert!(has_rule(&server, "e.k: "));
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    acked(&plane, "2").await;

    plane.serve("3", &json!([]));
    eventually("all rules are gone", async || {
        server.admin("/rlconfig").is_empty()
    })
    .await;
    for _ in 0..5 {
        assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    }
    acked(&plane, "3").await;
    plane.serve("4", &json!([resource("d", 9)]));
    has_limit(&server, "d.k", 9).await;
    metric(&server, "ratelimit_service_config_load_success", 4.0).await;
    metric(
        &server,
        r#"tollgate_xds_updates_total{verdict="accepted"}"#,
        4.0,
    )
    .await;
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
    let server = asking(plane.addr)
        .with_env("TOLLGATE_OVERLAY", &path.display().to_string())
        .start();
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
    eventually("the new overlay counts", async || {
        page().contains("algorithm: sliding_log")
    })
    .await;
    eventually("the hash is that of the new overlay", async || {
        server.metric("tollgate_rules_hash") != hash
    })
    .await;

    write(&path, &overlay("sliding_frog"));
    metric(&server, "tollgate_rules_rejected", 1.0).await;
    assert!(page().contains("algorithm: sliding_log"));

    // Also while the control plane is unavailable.
    drop(plane);
    metric(&server, "tollgate_xds_connected", 0.0).await;
    write(&path, &overlay("token_bucket"));
    eventually("the overlay counts", async || {
        page().contains("algorithm: token_bucket")
    })
    .await;
    eventually("the hash is that of the first overlay", async || {
        server.metric("tollgate_rules_hash") == hash
    })
    .await;
}

#[tokio::test]
async fn nack_has_all_errors_and_the_last_good_rules_serve() {
    let plane = ControlPlane::start();
    plane.serve("1", &json!([resource("d", 7)]));
    let server = asking(plane.addr).start();
    acked(&plane, "1").await;
    let mut broken = resource("default/eg/http", 1);
    broken["descriptors"] = json!([
        {"key": "a", "descriptors": [{"key": "b"}, {"key": "c", "rate_limit": {"unit": "UNKNOWN", "requests_per_unit": 1}}]},
        {"key": "", "rate_limit": {"unit": "DAY"}},
        {"key": "free", "rate_limit": {"unlimited": true, "unit": "DAY"}},
        {"key": "x", "rate_limit": {"unit": "DAY", "name": "x", "replaces": ["x", ""]}},
        {"key": "x"},
    ]);
    plane.serve(
        "2",
        &json!([broken, resource("d", 8), resource("d", 9), resource("", 1)]),
    );
    let nack = nacked(&plane).await;
    assert_eq!(nack["version"], "1", "the last that was accepted");
    let error = nack["error"].as_str().expect("a text");
    for expected in [
        "default/eg/http: invalid rate limit unit 'UNKNOWN'\n  --> default/eg/http (domain default/eg/http > descriptors[0].descriptors[1].rate_limit)\n",
        "default/eg/http: descriptor has empty key\n",
        "default/eg/http: should not specify rate limit unit when unlimited\n",
        "default/eg/http: replaces should not contain name of same descriptor\n",
        "default/eg/http: should not have an empty replaces entry\n",
        "default/eg/http: duplicate descriptor composite key 'default/eg/http.x'\n",
        ": config file cannot have empty domain\n",
    ] {
        assert!(error.contains(expected), "{expected} is not in {error}");
    }
    assert!(has_rule(&server, "d.k: unit=YEAR requests_per_unit=7, "));
    metric(&server, "tollgate_rules_rejected", 1.0).await;
    assert_eq!(
        server.metric("ratelimit_service_config_load_error"),
        Some(1.0)
    );
    metric(
        &server,
        r#"tollgate_xds_updates_total{verdict="refused"}"#,
        1.0,
    )
    .await;
    assert!(
        server
            .get("/ready")
            .body
            .contains("rules: the newest are invalid, the last good configuration serves\n"),
        "{:?}",
        server.get("/ready")
    );
    assert_eq!(server.get("/healthcheck").status, 200);

    plane.serve("3", &json!([resource("d", 8)]));
    has_limit(&server, "d.k", 8).await;
    assert_eq!(acked(&plane, "3").await["error"], "");
    metric(&server, "tollgate_rules_rejected", 0.0).await;
}

#[tokio::test]
async fn unknown_units_are_reported_by_number() {
    let mut puppet = Puppet::start().await;
    let _server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    for unit in 1..=7 {
        let mut rules = rules_of(1);
        rules.descriptors[0]
            .rate_limit
            .as_mut()
            .expect("it has one")
            .unit = unit;
        accepted(&stream.ask(response("v", "n", &[rules])).await, "v", "n");
    }
    let mut rules = rules_of(1);
    rules.descriptors[0]
        .rate_limit
        .as_mut()
        .expect("it has one")
        .unit = 99;
    let nack = stream.ask(response("w", "n", &[rules])).await;
    assert!(
        why(&nack).starts_with("d: invalid rate limit unit '99'\n"),
        "{nack:?}"
    );
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
    assert!(
        why(&nack).starts_with("other: duplicate domain 'd' in config file\n"),
        "{nack:?}"
    );

    let merging = asking(puppet.addr)
        .with_env("MERGE_DOMAIN_CONFIG", "true")
        .start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(&stream.ask(both).await, "1", "n");
    assert!(
        has_rule(&merging, "d.k: ") && has_rule(&merging, "d.other: "),
        "{}",
        merging.admin("/rlconfig")
    );
}

#[tokio::test]
async fn rules_serve_while_the_control_plane_is_unavailable() {
    let plane = ControlPlane::start();
    plane.serve("1", &json!([resource("d", 2)]));
    let server = asking(plane.addr).start();
    has_limit(&server, "d.k", 2).await;
    let mut client = server.client().await;
    let addr = plane.addr;
    drop(plane);
    metric(&server, "tollgate_xds_connected", 0.0).await;
    logged(
        &server,
        "xDS stream failed; retrying with the last good configuration",
    )
    .await;
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::Ok);
    assert_eq!(client.ask("d", &[("k", "")]).await, Code::OverLimit);
    assert_eq!(server.get("/healthcheck").status, 200);
    assert_eq!(client.health("").await.expect("it is known"), Serving);

    let plane = ControlPlane::start_at(addr);
    plane.serve("one", &json!([resource("d", 5)]));
    has_limit(&server, "d.k", 5).await;
    let first = &plane.requests()[0];
    assert_eq!(
        (&first["version"], &first["nonce"]),
        (&json!("1"), &json!("")),
        "the version is known, the nonce was another stream's"
    );
    metric(&server, "tollgate_xds_connected", 1.0).await;
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
    let server = asking(plane.addr)
        .with_env("RESPONSE_DYNAMIC_METADATA", "true")
        .start();
    acked(&plane, "1").await;
    let mut client = server.client().await;
    let answer = client
        .call(request("shop", &[&[("user", "a")]]))
        .await
        .expect("there is an answer");
    assert_eq!(answer.statuses[0].limit_remaining, 3, "a bucket of four");
    let told_to_envoy = format!("{:?}", answer.dynamic_metadata);
    assert!(
        told_to_envoy.contains("blue") && !told_to_envoy.contains("tollgate"),
        "{told_to_envoy}"
    );
    assert!(
        server.admin("/rlconfig").contains("quota_mode: true"),
        "{}",
        server.admin("/rlconfig")
    );
    let in_force: Value =
        serde_json::from_str(&server.admin("/rlconfig?format=json")).expect("it is JSON");
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
}

#[tokio::test]
async fn rules_of_envoy_gateway_have_their_meaning() {
    let plane = ControlPlane::start();
    let limit = |unit: &str, requests: u32| json!({"unit": unit, "requests_per_unit": requests});
    let route = "httproute/default/backend/rule/0/match/0/www_example_com";
    let rules = json!([{"name": "default/eg/http", "domain": "default/eg/http", "descriptors": [{"key": route, "value": route, "descriptors": [
        {"key": "rule-0-match-0", "value": "rule-0-match-0", "shadow_mode": true, "descriptors": [
            {"key": "masked_remote_address", "value": "192.168.0.0/16", "shadow_mode": true, "descriptors": [
                {"key": "remote_address", "shadow_mode": true, "rate_limit": limit("WEEK", 1)}]}]},
        {"key": "rule-1-match-0", "value": "rule-1-match-0", "descriptors": [
            {"key": "rule-1-match-1", "rate_limit": limit("MONTH", 1)}]},
    ]}]}]);
    plane.serve("1", &rules);
    let server = asking(plane.addr).start();
    acked(&plane, "1").await;
    let mut client = server.client().await;
    let entries = [
        (route, route),
        ("rule-1-match-0", "rule-1-match-0"),
        ("rule-1-match-1", "alice"),
    ];
    assert_eq!(client.ask("default/eg/http", &entries).await, Code::Ok);
    assert_eq!(
        client.ask("default/eg/http", &entries).await,
        Code::OverLimit
    );
    let masked = ("masked_remote_address", "192.168.0.0/16");
    let entries = [
        (route, route),
        ("rule-0-match-0", "rule-0-match-0"),
        masked,
        ("remote_address", "192.168.1.1"),
    ];
    assert_eq!(client.ask("default/eg/http", &entries).await, Code::Ok);
    let answer = client
        .call(request("default/eg/http", &[&entries]))
        .await
        .expect("there is an answer");
    assert_eq!(answer.overall_code(), Code::Ok, "it is in shadow");
    assert_eq!(
        (
            answer.statuses[0].limit_remaining,
            server.metric("tollgate_rules")
        ),
        (0, Some(2.0))
    );
    assert!(
        !server.log().contains("shadow_mode"),
        "no warning about generated fields: {}",
        server.log()
    );
}

#[tokio::test]
async fn mtls_works_with_certificates_of_envoy_gateway() {
    let authority = Authority::new();
    let plane =
        ControlPlane::start_with_tls(&authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1));
    plane.serve("1", &json!([resource("d", 3)]));
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    let text = |path: &std::path::Path| path.to_str().expect("a plain name").to_owned();
    let by_tls = || asking(plane.addr).with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let named = || by_tls().with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway");
    let with_own = |server: Builder| {
        server
            .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &text(&own.cert))
            .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &text(&own.key))
    };
    let with_authority =
        |server: Builder| server.with_env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &text(&own.ca));

    let server = with_authority(with_own(named())).start();
    has_limit(&server, "d.k", 3).await;
    // The system's authorities are those that SSL_CERT_FILE names.
    let server = with_own(named())
        .with_env("SSL_CERT_FILE", &text(&own.ca))
        .start();
    has_limit(&server, "d.k", 3).await;

    let unnamed = with_authority(with_own(by_tls())).start();
    logged(&unnamed, "certificate not valid for name").await;
    let unknown = Authority::new();
    let distrusting = with_own(named()).with_env(
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        &text(&unknown.cacert()),
    );
    // A named authority is the only one, whatever the system trusts.
    let distrusting = distrusting
        .with_env("SSL_CERT_FILE", &text(&own.ca))
        .start();
    // It has the name of the one that is not trusted, so it is the signature that is wrong.
    logged(&distrusting, "invalid peer certificate: BadSignature").await;
    let anonymous = with_authority(named()).start();
    logged(&anonymous, "CertificateRequired").await;
    let in_plain_text = asking(plane.addr).start();
    logged(&in_plain_text, "xDS stream failed").await;
    for server in [unnamed, distrusting, anonymous, in_plain_text] {
        assert_eq!(server.admin("/rlconfig"), "");
    }
}

#[tokio::test]
async fn certificates_are_read_for_each_connection() {
    let authority = Authority::new();
    let plane =
        ControlPlane::start_with_tls(&authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1));
    plane.serve("1", &json!([resource("d", 3)]));
    let mounted = TempDir::new().expect("a temporary directory");
    let path = |name: &str| {
        mounted
            .path()
            .join(name)
            .to_str()
            .expect("a plain name")
            .to_owned()
    };
    let server = asking(plane.addr)
        .with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway")
        .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &path("tls.crt"))
        .with_env("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &path("tls.key"))
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &path("ca.crt"))
        .start();
    logged(&server, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT: ").await;
    fs::copy(authority.cacert(), path("ca.crt")).expect("it is copied");
    logged(&server, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT: ").await;
    fs::write(path("tls.crt"), "no certificate").expect("it is written");
    logged(&server, "has no certificate in PEM").await;
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    let other = authority.sign("other", "DNS:envoy-ratelimit", KeyForm::Pkcs8);
    fs::copy(&own.cert, path("tls.crt")).expect("it is copied");
    fs::copy(&other.key, path("tls.key")).expect("it is copied");
    logged(&server, "cannot be used together").await;
    fs::copy(&own.key, path("tls.key")).expect("it is copied");
    has_limit(&server, "d.k", 3).await;

    // Everybody gets new ones, of another authority.
    let addr = plane.addr;
    drop(plane);
    let authority = Authority::new();
    let plane = ControlPlane::start_with_tls_at(
        addr,
        &authority.sign("envoy-gateway", GATEWAY, KeyForm::Pkcs1),
    );
    plane.serve("2", &json!([resource("d", 4)]));
    logged(&server, "invalid peer certificate").await;
    let own = authority.sign("envoy-rate-limit", "DNS:envoy-ratelimit", KeyForm::Pkcs1);
    for (from, to) in [
        (&own.ca, "ca.crt"),
        (&own.cert, "tls.crt"),
        (&own.key, "tls.key"),
    ] {
        fs::copy(from, path(to)).expect("it is copied");
    }
    has_limit(&server, "d.k", 4).await;
}

#[tokio::test]
async fn every_request_has_the_node_and_every_stream_the_headers() {
    let mut puppet = Puppet::start().await;
    let server = TestServer::with_xds(&puppet.addr.to_string())
        .with_env("CONFIG_GRPC_XDS_NODE_ID", "limits-7")
        .with_env("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,cluster=b=c")
        .with_env(
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "Authorization:Bearer s3cret,x-time:12:30",
        )
        .with_env("LOG_LEVEL", "trace")
        .start();
    for round in 0..2 {
        let mut stream = puppet.stream().await;
        assert_eq!(
            stream.headers.get("authorization").expect("it is sent"),
            "Bearer s3cret"
        );
        assert_eq!(stream.headers.get("x-time").expect("it is sent"), "12:30");
        let first = stream.request().await;
        let ack = stream.ask(response("1", "n", &[rules_of(1)])).await;
        let nack = stream
            .ask(response("2", "m", &[RateLimitConfig::default()]))
            .await;
        assert!(nack.error_detail.is_some());
        for request in [first, ack, nack] {
            let node = request.node.expect("every request has it");
            assert_eq!(node.id, "limits-7", "in round {round}");
            let metadata = node.metadata.expect("it is sent").fields;
            let text = |key: &str| format!("{:?}", metadata[key].kind);
            assert_eq!(
                (text("zone"), text("cluster")),
                (
                    r#"Some(StringValue("a"))"#.into(),
                    r#"Some(StringValue("b=c"))"#.into()
                )
            );
        }
    }
    assert!(!server.log().contains("s3cret"), "{}", server.log());

    let _unnamed = TestServer::with_xds(&puppet.addr.to_string()).start();
    // The first service may have come back meanwhile.
    eventually("there is one without a name", async || {
        let node = puppet
            .stream()
            .await
            .request()
            .await
            .node
            .expect("every request has it");
        (&*node.id, node.metadata.is_none()) == ("default", true)
    })
    .await;
}

#[tokio::test]
async fn new_stream_starts_with_the_version_and_no_nonce() {
    let mut puppet = Puppet::start().await;
    let _server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "", "");
    accepted(
        &stream.ask(response("7", "a", &[rules_of(1)])).await,
        "7",
        "a",
    );
    let nack = stream
        .ask(response("8", "b", &[RateLimitConfig::default()]))
        .await;
    assert_eq!(
        (&*nack.version_info, &*nack.response_nonce),
        (&b"7"[..], &b"b"[..])
    );
    assert!(nack.error_detail.is_some());
    stream.fail(Status::unavailable("going away")).await;

    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "7", "");
    accepted(
        &stream.ask(response("9", "a", &[rules_of(2)])).await,
        "9",
        "a",
    );
    drop(stream);
    accepted(&puppet.stream().await.request().await, "9", "");
}

#[tokio::test]
async fn invalid_resources_are_rejected_and_the_stream_continues() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(
        &stream.ask(response("1", "a", &[rules_of(1)])).await,
        "1",
        "a",
    );

    let mut foreign = response("2", "b", &[rules_of(2)]);
    foreign.type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".into();
    let nack = stream.ask(foreign).await;
    assert_eq!(
        why(&nack),
        format!(
            "a response has type type.googleapis.com/envoy.config.cluster.v3.Cluster; expected {TYPE_URL}"
        )
    );
    assert_eq!(nack.type_url, TYPE_URL);

    let mut foreign = response("3", "c", &[rules_of(3), rules_of(3)]);
    foreign.resources[1] = resource_of("type.googleapis.com/google.protobuf.Empty", Vec::new());
    foreign
        .resources
        .push(resource_of(TYPE_URL, b"\xff\xff\xffgarbage".to_vec()));
    let nack = stream.ask(foreign).await;
    assert_eq!(
        (&*nack.version_info, &*nack.response_nonce),
        (&b"1"[..], &b"c"[..])
    );
    assert!(
        why(&nack).contains("a resource has type type.googleapis.com/google.protobuf.Empty"),
        "{nack:?}"
    );
    assert!(
        why(&nack).contains("\na resource cannot be decoded: "),
        "{nack:?}"
    );

    // Deeper than any decoder goes.
    let mut deep = RateLimitDescriptor {
        key: "k".into(),
        ..RateLimitDescriptor::default()
    };
    for _ in 0..200 {
        deep = RateLimitDescriptor {
            key: "k".into(),
            descriptors: vec![deep],
            ..RateLimitDescriptor::default()
        };
    }
    let nack = stream
        .ask(response(
            "4",
            "d",
            &[RateLimitConfig {
                descriptors: vec![deep],
                ..rules_of(1)
            }],
        ))
        .await;
    assert!(why(&nack).contains("recursion limit"), "{nack:?}");

    assert!(
        has_rule(&server, "d.k: unit=YEAR requests_per_unit=1, "),
        "{}",
        server.admin("/rlconfig")
    );
    assert_eq!(server.metric("tollgate_rules_rejected"), Some(1.0));
    // Nonces are whatever the server likes.
    accepted(
        &stream.ask(response("5", "a", &[rules_of(5)])).await,
        "5",
        "a",
    );
    accepted(
        &stream.ask(response("6", "a", &[rules_of(6)])).await,
        "6",
        "a",
    );
    accepted(
        &stream.ask(response("6", "", &[rules_of(7)])).await,
        "6",
        "",
    );
    has_limit(&server, "d.k", 7).await;
}

#[tokio::test]
async fn strings_that_are_not_utf8_are_errors_of_their_rule() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(
        &stream.ask(response("1", "a", &[rules_of(1)])).await,
        "1",
        "a",
    );

    let with = |change: fn(&mut RateLimitConfig)| {
        let mut rules = rules_of(2);
        change(&mut rules);
        rules
    };
    let policy_of = |rules: &mut RateLimitConfig, change: fn(&mut RateLimitPolicy)| {
        change(
            rules.descriptors[0]
                .rate_limit
                .as_mut()
                .expect("it has a limit"),
        );
    };
    let mut limit_name = rules_of(2);
    policy_of(&mut limit_name, |policy| policy.name = b"n\xff".into());
    let mut replaced_name = rules_of(2);
    policy_of(&mut replaced_name, |policy| {
        policy.replaces = vec![RateLimitReplace {
            name: b"r\xff".into(),
        }]
    });
    let nested = |rules: &mut RateLimitConfig| {
        let inner = RateLimitDescriptor {
            value: b"v\xff".into(),
            ..rules.descriptors[0].clone()
        };
        rules.descriptors[0].descriptors = vec![inner.clone(), inner];
    };
    for (rules, text, place) in [
        (
            with(|rules| rules.name = b"d\xff".into()),
            "d%FF: name is not UTF-8: d%FF",
            "d%FF (domain d)",
        ),
        (
            with(|rules| rules.domain = b"d\xff".into()),
            "d: domain is not UTF-8: d%FF",
            "d (domain d%FF)",
        ),
        (
            with(|rules| rules.descriptors[0].key = b"k\xff".into()),
            "d: key is not UTF-8: k%FF",
            "d (domain d > descriptors[0])",
        ),
        (
            with(nested),
            "d: value is not UTF-8: v%FF",
            "d (domain d > descriptors[0].descriptors[1])",
        ),
        (
            limit_name,
            "d: rate_limit.name is not UTF-8: n%FF",
            "d (domain d > descriptors[0])",
        ),
        (
            replaced_name,
            "d: rate_limit.replaces.name is not UTF-8: r%FF",
            "d (domain d > descriptors[0])",
        ),
    ] {
        let other = RateLimitConfig {
            name: "e".into(),
            domain: "e".into(),
            ..rules_of(2)
        };
        let nack = stream.ask(response("2", "b", &[other, rules])).await;
        assert_eq!(
            (&*nack.version_info, &*nack.response_nonce),
            (&b"1"[..], &b"b"[..])
        );
        assert!(
            why(&nack).contains(text) && why(&nack).contains(&format!("\n  --> {place}\n")),
            "{text}, {place}: {nack:?}"
        );
        assert!(server.log().contains(text), "{text}: {}", server.log());
    }

    // Metadata is read with the resource.
    let mut rules = rules_of(2);
    rules.descriptors[0].metadata = Some(prost_types::Struct {
        fields: [("KEY".to_owned(), prost_types::Value::default())].into(),
    });
    let mut bytes = rules.encode_to_vec();
    let at = bytes
        .windows(3)
        .position(|part| part == b"KEY")
        .expect("it exists");
    bytes[at..at + 3].copy_from_slice(b"K\xffY");
    let nack = stream
        .ask(DiscoveryResponse {
            resources: vec![resource_of(TYPE_URL, bytes)],
            ..response("3", "c", &[])
        })
        .await;
    assert!(
        why(&nack).contains(r#"resource "d" of domain "d" cannot be decoded: "#),
        "{nack:?}"
    );
    assert!(
        why(&nack).contains("RateLimitDescriptor.metadata: ") && why(&nack).contains("UTF-8"),
        "{nack:?}"
    );

    // A resource whose type is not UTF-8: field 1, two bytes.
    let nack = stream
        .ask(DiscoveryResponse {
            resources: vec![b"\x0a\x02t\xff".into()],
            ..response("4", "d", &[])
        })
        .await;
    assert!(
        why(&nack).contains("a resource cannot be decoded: "),
        "{nack:?}"
    );
    let nack = stream
        .ask(DiscoveryResponse {
            type_url: b"t\xff".into(),
            ..response("5", "e", &[])
        })
        .await;
    assert!(
        why(&nack).contains("a response has type t%FF; expected "),
        "{nack:?}"
    );

    // Those before them still serve. Versions and nonces go back as they came, and all of it was on
    // one stream.
    assert!(
        has_rule(&server, "d.k: unit=YEAR requests_per_unit=1, "),
        "{}",
        server.admin("/rlconfig")
    );
    let ack = stream
        .ask(DiscoveryResponse {
            version_info: b"6\xff".into(),
            nonce: b"f\xff".into(),
            ..response("", "", &[rules_of(6)])
        })
        .await;
    assert_eq!(
        (&*ack.version_info, &*ack.response_nonce),
        (&b"6\xff"[..], &b"f\xff"[..])
    );
    assert_eq!(ack.error_detail, None);
    has_limit(&server, "d.k", 6).await;
    assert_eq!(server.metric("tollgate_xds_streams_total"), Some(1.0));
}

#[tokio::test]
async fn nack_is_bounded_in_bytes() {
    let mut puppet = Puppet::start().await;
    let _server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    let broken = |index: usize| {
        let mut rules = rules_of(1);
        (rules.name, rules.domain) = (
            format!("{index}{}", "é".repeat(1_000)).into(),
            index.to_string().into(),
        );
        rules.descriptors[0].key.clear();
        rules
    };
    let nack = stream
        .ask(response("1", "a", &(0..50).map(broken).collect::<Vec<_>>()))
        .await;
    assert!(why(&nack).starts_with("0é"), "{nack:?}");
    assert!(
        why(&nack).ends_with(" bytes more, which are in the log)"),
        "{nack:?}"
    );
    assert!(why(&nack).len() < 17 << 10, "{}", why(&nack).len());
}

#[tokio::test]
async fn update_during_a_compilation_is_published_after_it() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    let mut many = rules_of(1);
    let template = many.descriptors[0].clone();
    many.descriptors = (0..40_000)
        .map(|index| RateLimitDescriptor {
            value: index.to_string().into(),
            ..template.clone()
        })
        .collect();
    stream.send(response("1", "a", &[many])).await;
    stream.send(response("2", "b", &[rules_of(2)])).await;
    stream.send(response("3", "c", &[rules_of(3)])).await;
    for (version, nonce) in [("1", "a"), ("2", "b"), ("3", "c")] {
        accepted(&stream.request().await, version, nonce);
    }
    has_limit(&server, "d.k", 3).await;
    metric(&server, "tollgate_rules", 1.0).await;
}

#[tokio::test]
async fn thousand_updates_are_accepted_and_the_last_serves() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).with_env("LOG_LEVEL", "warn").start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    for index in 1..=1_000 {
        stream
            .send(response(
                &index.to_string(),
                &format!("n{index}"),
                &[rules_of(index)],
            ))
            .await;
    }
    for index in 1..=1_000 {
        accepted(
            &stream.request().await,
            &index.to_string(),
            &format!("n{index}"),
        );
    }
    has_limit(&server, "d.k", 1_000).await;
    assert_eq!(
        server.metric("ratelimit_service_config_load_success"),
        Some(1_000.0)
    );
}

#[tokio::test]
async fn stream_reset_after_every_response_still_delivers_rules() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    for index in 1..=10 {
        let mut stream = puppet.stream().await;
        let first = stream.request().await;
        accepted(
            &first,
            &if index == 1 {
                String::new()
            } else {
                (index - 1).to_string()
            },
            "",
        );
        stream
            .ask(response(&index.to_string(), "n", &[rules_of(index)]))
            .await;
        stream.fail(Status::internal("reset")).await;
    }
    has_limit(&server, "d.k", 10).await;
    assert_eq!(server.metric("tollgate_rules_rejected"), Some(0.0));
    assert_eq!(
        server.log().matches("xDS stream failed").count(),
        1,
        "the same error is logged once: {}",
        server.log()
    );
}

#[tokio::test]
async fn unresponsive_server_does_not_delay_shutdown() {
    let silent = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let mute = silent.local_addr().expect("it is bound");
    let mut puppet = Puppet::start().await;
    let idle = puppet.addr;
    // Packets to it are dropped, or rejected at once.
    let nowhere: SocketAddr = "192.0.2.1:18001".parse().expect("an address");
    for (addr, tls) in [
        (mute, "false"),
        (mute, "true"),
        (idle, "false"),
        (nowhere, "false"),
    ] {
        let mut server = asking(addr)
            .with_env("CONFIG_GRPC_XDS_SERVER_USE_TLS", tls)
            .with_env("DRAIN_PERIOD", "0s")
            .start();
        let mut held: Option<Stream> = None;
        let mut connection: Option<TcpStream> = None;
        if addr == mute {
            connection = Some(silent.accept().await.expect("it comes").0);
        } else if addr == idle {
            held = Some(puppet.stream().await);
        }
        server.signal("TERM");
        assert_eq!(server.exit_code().await, Some(0), "{addr} {tls}");
        // How an attempt to connect ended would be logged.
        assert!(
            addr == nowhere || !server.log().contains("xDS stream failed"),
            "{addr} {tls}: {}",
            server.log()
        );
        drop((held, connection));
    }
}

#[tokio::test]
async fn oversized_response_is_rejected_with_the_name_of_the_setting() {
    let mut puppet = Puppet::start().await;
    let mut long = rules_of(1);
    long.name = vec![b'n'; 5 << 20];
    let long = response("2", "b", &[long]);
    assert!(long.encoded_len() > 4 << 20);

    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(7)])).await;
    stream.send(long.clone()).await;
    logged(
        &server,
        "a response has more than 4194304 bytes; increase XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
    )
    .await;
    assert!(has_rule(&server, "d.k: unit=YEAR requests_per_unit=7, "));
    metric(&server, "tollgate_rules_rejected", 1.0).await;
    // The stream is of no use any more. On the next one the rules that serve are the newest again.
    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "1", "");
    accepted(
        &stream.ask(response("3", "a", &[rules_of(7)])).await,
        "3",
        "a",
    );
    metric(&server, "tollgate_rules_rejected", 0.0).await;
    drop(server);

    let mut puppet = Puppet::start().await;
    let _server = asking(puppet.addr)
        .with_env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "8388608")
        .start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(&stream.ask(long).await, "2", "b");

    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr)
        .with_env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10")
        .start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.send(response("1", "a", &[rules_of(7)])).await;
    logged(&server, "a response has more than 10 bytes").await;
}

#[tokio::test]
async fn server_address_may_be_a_name_or_a_socket() {
    let mut puppet = Puppet::start().await;
    let server = TestServer::with_xds(&format!("dns:///localhost:{}", puppet.addr.port())).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(4)])).await;
    has_limit(&server, "d.k", 4).await;

    let home = TempDir::new().expect("a temporary directory");
    let path = home.path().join("xds.sock");
    let mut puppet = Puppet::start_on(UnixListenerStream::new(
        UnixListener::bind(&path).expect("it can be bound"),
    ));
    let server = TestServer::with_xds(&format!("unix:{}", path.display())).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(5)])).await;
    has_limit(&server, "d.k", 5).await;
}

#[tokio::test]
async fn sighup_requests_everything_on_a_new_stream() {
    let mut puppet = Puppet::start().await;
    let never = "1h";
    let server = TestServer::with_xds(&puppet.addr.to_string())
        .with_env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", never)
        .with_env("XDS_CLIENT_BACKOFF_MAX_INTERVAL", never)
        .start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[rules_of(1)])).await;
    server.signal("HUP");
    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "", "");
    // The same version, and other rules: what an operator asks for it for.
    accepted(
        &stream.ask(response("1", "a", &[rules_of(2)])).await,
        "1",
        "a",
    );
    has_limit(&server, "d.k", 2).await;
    drop(stream);
    logged(&server, "xDS stream failed").await;
    server.signal("HUP");
    accepted(&puppet.stream().await.request().await, "", "");
}

#[tokio::test]
async fn health_depends_on_rules_as_with_files() {
    let mut puppet = Puppet::start().await;
    let health =
        async |server: &TestServer| server.client().await.health("").await.expect("it is known");
    let becomes = async |server: &TestServer, status| {
        let mut client: Client = server.client().await;
        eventually("health follows the rules", async || {
            client.health("").await.expect("it is known") == status
        })
        .await;
    };
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    assert_eq!(health(&server).await, NotServing);
    assert_eq!(server.get("/healthcheck").status, 500);
    assert!(
        server
            .get("/ready")
            .body
            .contains("rules: waiting for the first rules\n"),
        "{:?}",
        server.get("/ready")
    );
    stream.request().await;
    stream
        .ask(response("1", "a", &[RateLimitConfig::default()]))
        .await;
    assert_eq!(health(&server).await, NotServing);
    stream.ask(response("2", "b", &[])).await;
    becomes(&server, Serving).await;

    let server = asking(puppet.addr)
        .with_env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .start();
    assert_eq!(health(&server).await, Serving);
    assert_eq!(server.get("/healthcheck").status, 200);
    drop((server, stream, puppet));

    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr)
        .with_env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")
        .start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.ask(response("1", "a", &[])).await;
    assert_eq!(health(&server).await, NotServing);
    stream.ask(response("2", "b", &[rules_of(1)])).await;
    becomes(&server, Serving).await;
    stream.ask(response("3", "c", &[])).await;
    becomes(&server, NotServing).await;
}

#[tokio::test]
async fn same_rules_have_the_same_hash() {
    let hash = async |server: &TestServer| {
        eventually("there are rules", async || {
            server
                .metric("tollgate_rules_hash")
                .is_some_and(|hash| hash > 0.0)
        })
        .await;
        server
            .metric("tollgate_rules_hash")
            .expect("it exists")
            .to_string()
    };
    let of_files = async |files: &[(&str, &str)]| {
        hash(&TestServer::with_files(files.iter().copied()).start()).await
    };
    let (one, two) = (limit_of(1), limit_of(2).replace("domain: d", "domain: e"));
    let both = of_files(&[("a.yaml", &one), ("b.yaml", &two)]).await;
    assert_eq!(both, of_files(&[("b.yaml", &two), ("a.yaml", &one)]).await);
    for other in [
        vec![("a.yaml", &*one)],
        vec![("a.yaml", &*one), ("c.yaml", &*two)],
        vec![("a.yaml", &*two), ("b.yaml", &*one)],
    ] {
        assert_ne!(both, of_files(&other).await, "{other:?}");
    }
    let root = TempDir::new().expect("a temporary directory");
    write(&root.path().join("config/a.yaml"), &one);
    write(&root.path().join("config/b.yaml"), &two);
    assert_eq!(
        both,
        hash(&TestServer::with_runtime_root(root.path()).start()).await,
        "wherever they lie"
    );

    let mut puppet = Puppet::start().await;
    let mut shown = async |rules: &[RateLimitConfig]| {
        let server = asking(puppet.addr).start();
        let mut stream = puppet.stream().await;
        stream.request().await;
        stream.ask(response("1", "a", rules)).await;
        let shown = hash(&server).await;
        assert!(
            server.log().contains(&format!("hash={shown}")),
            "{}",
            server.log()
        );
        drop(server);
        shown
    };
    let other = RateLimitConfig {
        name: "e".into(),
        domain: "e".into(),
        ..rules_of(2)
    };
    let both = shown(&[rules_of(1), other.clone()]).await;
    assert_eq!(both, shown(&[other.clone(), rules_of(1)]).await);
    assert_ne!(both, shown(&[rules_of(2), other]).await);
}

#[test]
fn invalid_xds_settings_exit_with_78_and_a_hint() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("CONFIG_TYPE", "XDS")], "write FILE or GRPC_XDS_SOTW"),
        (
            &[("CONFIG_GRPC_XDS_SERVER_URL", "http://gateway:18001")],
            "write host:port, dns:///host:port or unix:/path",
        ),
        (
            &[("CONFIG_GRPC_XDS_NODE_METADATA", "zone")],
            "zone is no pair; write key=value,key2=value2",
        ),
        (
            &[("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b,s3cret")],
            "number 2 of the pairs is no header; write name:value",
        ),
        (
            &[
                ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
            ],
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT is set and CONFIG_GRPC_XDS_CLIENT_TLS_KEY is not",
        ),
        (
            &[("CONFIG_GRPC_XDS_SERVER_USE_TLS", "yes")],
            "write true or false",
        ),
        (
            &[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0s")],
            "write a time from 1ms",
        ),
        (&[("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "10")], "such as 10s"),
        (
            &[("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "-1")],
            "write a number, such as 2",
        ),
        (
            &[("XDS_CLIENT_BACKOFF_JITTER", "some")],
            "write true or false",
        ),
        (
            &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "4MiB")],
            "write a whole number of bytes",
        ),
    ];
    for (settings, expected) in cases {
        let server = TestServer::with_xds("127.0.0.1:1");
        let ran = settings
            .iter()
            .fold(server, |server, (name, value)| server.with_env(name, value))
            .start_and_fail();
        assert_eq!(ran.code, Some(78), "{settings:?}: {ran:?}");
        assert!(
            ran.stderr.contains(expected) && !ran.stderr.contains("s3cret"),
            "{settings:?}: {ran:?}"
        );
    }
    let ran = TestServer::with_rules(&limit_of(1))
        .with_env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .start_and_fail();
    assert!(
        ran.code == Some(78)
            && ran
                .stderr
                .contains("CONFIG_TYPE is GRPC_XDS_SOTW; give one of them"),
        "{ran:?}"
    );
}

#[test]
fn xds_settings_without_effect_cause_a_warning() {
    let server = TestServer::with_xds("127.0.0.1:1")
        .with_env("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s")
        .with_env("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway")
        .start();
    for expected in [
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL has no effect: ",
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN has no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is not true",
    ] {
        assert!(server.log().contains(expected), "{}", server.log());
    }
    let empty = [
        "CONFIG_GRPC_XDS_NODE_ID",
        "CONFIG_GRPC_XDS_NODE_METADATA",
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS",
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
        "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
        "XDS_CLIENT_BACKOFF_JITTER",
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
    ];
    let server = empty
        .iter()
        .fold(TestServer::with_xds(""), |server, name| {
            server.with_env(name, "")
        })
        .start();
    assert!(
        server
            .announcement()
            .contains("asking xDS server localhost:18000"),
        "{}",
        server.announcement()
    );
    assert!(!server.log().contains("has no effect"), "{}", server.log());
}

#[tokio::test]
async fn repeated_nacks_are_sent_with_backoff() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    let broken = |nonce: &str| response("1", nonce, &[RateLimitConfig::default()]);
    let first = stream.ask(broken("0")).await;
    for round in 1..=3 {
        let began = Instant::now();
        let nack = stream.ask(broken(&round.to_string())).await;
        assert_eq!(
            (why(&nack), &*nack.response_nonce),
            (why(&first), round.to_string().as_bytes())
        );
        // Half of 200 ms, of 400 and of 800, and less than the clock may be wrong.
        assert!(
            began.elapsed() >= Duration::from_millis(90 * round),
            "{round}: {:?}",
            began.elapsed()
        );
    }
    assert_eq!(
        server.metric("ratelimit_service_config_load_error"),
        Some(1.0)
    );
    assert_eq!(
        server.metric(r#"tollgate_xds_updates_total{verdict="repeated"}"#),
        Some(3.0)
    );
    assert_eq!(
        server.log().matches("cannot have empty domain").count(),
        1,
        "{}",
        server.log()
    );

    // Other rules wait for nothing, and nothing is said of what came before them.
    stream.send(broken("4")).await;
    accepted(
        &stream.ask(response("2", "5", &[rules_of(2)])).await,
        "2",
        "5",
    );
    // Rules that are in force already are accepted under their new version, and not loaded again.
    accepted(
        &stream.ask(response("3", "6", &[rules_of(2)])).await,
        "3",
        "6",
    );
    assert_eq!(
        server.metric("ratelimit_service_config_load_success"),
        Some(1.0)
    );
    stream.fail(Status::internal("reset")).await;
    accepted(&puppet.stream().await.request().await, "3", "");
}
