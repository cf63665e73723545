//! Invalid responses: rejected with all errors, while the last good rules serve.

use prost::Message as _;
use serde_json::json;
use tollgate::base::proto::envoy::service::discovery::v3::DiscoveryResponse;
use tollgate::base::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};

use crate::support::TestServer;
use crate::support::xds::{
    ControlPlane, Puppet, Stream, TYPE_URL, resource_of, response, rules_of,
};
use crate::xds::helpers::{
    accepted, acked, asking, has_limit, has_rule, logged, nacked, resource, why,
};

/// A service that has accepted version 1 of its rules from a control plane.
async fn with_first_rules() -> (Puppet, TestServer, Stream) {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(&stream.ask(response("1", "a", &[rules_of(1)])).await, "1", "a");
    (puppet, server, stream)
}

/// Rules with another limit.
fn limited(change: impl FnOnce(&mut RateLimitPolicy)) -> RateLimitConfig {
    let mut rules = rules_of(2);
    change(rules.descriptors[0].rate_limit.as_mut().expect("a limit"));
    rules
}

/// The service rejects a response, the last good rules are those of version 1, and the error has
/// these texts.
async fn rejects(stream: &mut Stream, response: DiscoveryResponse, texts: &[&str]) {
    let nonce = response.nonce.clone();
    let nack = stream.ask(response).await;
    let error = why(&nack);
    assert!(texts.iter().all(|text| error.contains(text)), "{texts:?}: {error}");
    assert_eq!((&*nack.version_info, &*nack.response_nonce), (&b"1"[..], &*nonce));
    assert_eq!(nack.type_url, TYPE_URL);
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
    plane.serve("2", &json!([broken, resource("d", 8), resource("d", 9), resource("", 1)]));
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
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    server.assert_metric("ratelimit_service_config_load_error", 1.0);
    server.metric_becomes(r#"tollgate_xds_updates_total{verdict="refused"}"#, 1.0).await;
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
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
}

#[tokio::test]
async fn unknown_units_are_reported_by_number() {
    let mut puppet = Puppet::start().await;
    let _server = asking(puppet.addr).start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    let with = |unit| limited(|policy| policy.unit = unit);
    for unit in 1..=7 {
        accepted(&stream.ask(response("v", "n", &[with(unit)])).await, "v", "n");
    }
    let nack = stream.ask(response("w", "n", &[with(99)])).await;
    assert!(why(&nack).starts_with("d: invalid rate limit unit '99'\n"), "{nack:?}");
}

#[tokio::test]
async fn invalid_resources_are_rejected_and_the_stream_continues() {
    let (_puppet, server, mut stream) = with_first_rules().await;

    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let mut foreign = response("2", "b", &[rules_of(2)]);
    foreign.type_url = cluster.into();
    let error = format!("a response has type {cluster}; expected {TYPE_URL}");
    rejects(&mut stream, foreign, &[&error]).await;

    let empty = "type.googleapis.com/google.protobuf.Empty";
    let mut foreign = response("3", "c", &[rules_of(3), rules_of(3)]);
    foreign.resources[1] = resource_of(empty, Vec::new());
    let garbage = resource_of(TYPE_URL, b"\xff\xff\xffgarbage".to_vec());
    foreign.resources.push(garbage);
    let error = format!("a resource has type {empty}");
    rejects(&mut stream, foreign, &[&error, "\na resource cannot be decoded: "]).await;

    // Deeper than any decoder goes.
    let mut deep = rules_of(1);
    for _ in 0..200 {
        let descriptors = std::mem::take(&mut deep.descriptors);
        deep.descriptors = vec![RateLimitDescriptor {
            key: "k".into(),
            descriptors,
            ..RateLimitDescriptor::default()
        }];
    }
    rejects(&mut stream, response("4", "d", &[deep]), &["recursion limit"]).await;

    assert!(
        has_rule(&server, "d.k: unit=YEAR requests_per_unit=1, "),
        "{}",
        server.admin("/rlconfig")
    );
    server.assert_metric("tollgate_rules_rejected", 1.0);
    // Nonces are whatever the server likes.
    for (version, nonce, requests) in [("5", "a", 5), ("6", "a", 6), ("6", "", 7)] {
        let ack = stream.ask(response(version, nonce, &[rules_of(requests)])).await;
        accepted(&ack, version, nonce);
    }
    has_limit(&server, "d.k", 7).await;
}

#[tokio::test]
async fn strings_that_are_not_utf8_are_errors_of_their_rule() {
    let (_puppet, server, mut stream) = with_first_rules().await;

    let with = |change: fn(&mut RateLimitConfig)| {
        let mut rules = rules_of(2);
        change(&mut rules);
        rules
    };
    let name = |rules: &mut RateLimitConfig| rules.name = b"d\xff".into();
    let domain = |rules: &mut RateLimitConfig| rules.domain = b"d\xff".into();
    let key = |rules: &mut RateLimitConfig| rules.descriptors[0].key = b"k\xff".into();
    let limit_name = |policy: &mut RateLimitPolicy| policy.name = b"n\xff".into();
    let nested = |rules: &mut RateLimitConfig| {
        let inner = RateLimitDescriptor { value: b"v\xff".into(), ..rules.descriptors[0].clone() };
        rules.descriptors[0].descriptors = vec![inner.clone(), inner];
    };
    let replaces = |policy: &mut RateLimitPolicy| {
        let name = b"r\xff".into();
        policy.replaces = vec![RateLimitReplace { name }];
    };
    let descriptor = "d (domain d > descriptors[0])";
    let inner = "d (domain d > descriptors[0].descriptors[1])";
    for (rules, text, place) in [
        (with(name), "d%FF: name is not UTF-8: d%FF", "d%FF (domain d)"),
        (with(domain), "d: domain is not UTF-8: d%FF", "d (domain d%FF)"),
        (with(key), "d: key is not UTF-8: k%FF", descriptor),
        (with(nested), "d: value is not UTF-8: v%FF", inner),
        (limited(limit_name), "d: rate_limit.name is not UTF-8: n%FF", descriptor),
        (limited(replaces), "d: rate_limit.replaces.name is not UTF-8: r%FF", descriptor),
    ] {
        let other = RateLimitConfig { name: "e".into(), domain: "e".into(), ..rules_of(2) };
        let place = format!("\n  --> {place}\n");
        rejects(&mut stream, response("2", "b", &[other, rules]), &[text, &place]).await;
        server.assert_logged(text);
    }

    // Metadata is read with the resource.
    let mut rules = rules_of(2);
    rules.descriptors[0].metadata = Some(prost_types::Struct {
        fields: [("KEY".to_owned(), prost_types::Value::default())].into(),
    });
    let mut bytes = rules.encode_to_vec();
    let at = bytes.windows(3).position(|part| part == b"KEY").expect("it exists");
    bytes[at..at + 3].copy_from_slice(b"K\xffY");
    let metadata = DiscoveryResponse {
        resources: vec![resource_of(TYPE_URL, bytes)],
        ..response("3", "c", &[])
    };
    let error = r#"resource "d" of domain "d" cannot be decoded: "#;
    let texts = [error, "RateLimitDescriptor.metadata: ", "UTF-8"];
    rejects(&mut stream, metadata, &texts).await;

    // A resource whose type is not UTF-8: field 1, two bytes.
    let resource_type =
        DiscoveryResponse { resources: vec![b"\x0a\x02t\xff".into()], ..response("4", "d", &[]) };
    rejects(&mut stream, resource_type, &["a resource cannot be decoded: "]).await;
    let response_type = DiscoveryResponse { type_url: b"t\xff".into(), ..response("5", "e", &[]) };
    rejects(&mut stream, response_type, &["a response has type t%FF; expected "]).await;

    // Those before them still serve. Versions and nonces go back as they came, and all of it was on
    // one stream.
    assert!(
        has_rule(&server, "d.k: unit=YEAR requests_per_unit=1, "),
        "{}",
        server.admin("/rlconfig")
    );
    let valid = DiscoveryResponse {
        version_info: b"6\xff".into(),
        nonce: b"f\xff".into(),
        ..response("", "", &[rules_of(6)])
    };
    let ack = stream.ask(valid).await;
    assert_eq!((&*ack.version_info, &*ack.response_nonce), (&b"6\xff"[..], &b"f\xff"[..]));
    assert_eq!(ack.error_detail, None);
    has_limit(&server, "d.k", 6).await;
    server.assert_metric("tollgate_xds_streams_total", 1.0);
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
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    // The stream is of no use any more. On the next one the rules that serve are the newest again.
    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "1", "");
    accepted(&stream.ask(response("3", "a", &[rules_of(7)])).await, "3", "a");
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    drop(server);

    let mut puppet = Puppet::start().await;
    let _server =
        asking(puppet.addr).with_env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "8388608").start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    accepted(&stream.ask(long).await, "2", "b");

    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).with_env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10").start();
    let mut stream = puppet.stream().await;
    stream.request().await;
    stream.send(response("1", "a", &[rules_of(7)])).await;
    logged(&server, "a response has more than 10 bytes").await;
}
