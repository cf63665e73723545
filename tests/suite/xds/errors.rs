//! Invalid responses: rejected with all errors, while the last good rules serve.

use prost::Message as _;
use serde_json::json;
use tollgate::base::proto::envoy::service::discovery::v3::DiscoveryResponse;
use tollgate::base::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};
use tollgate::rules::config::CompileOptions;
use tollgate::rules::source::xds;
use tollgate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use tollgate::telemetry::metric::Metrics;

use crate::reload::{has_limit, limit_becomes};
use crate::support::xds::{
    ControlPlane, Puppet, Stream, TYPE_URL, resource_of, response, rules_of,
};
use crate::xds::helpers::{accepted, acked, asking, logged, nacked, resource, subscribed, why};

/// Rules with another limit.
fn limited(change: impl FnOnce(&mut RateLimitPolicy)) -> RateLimitConfig {
    let mut rules = rules_of(2);
    change(rules.descriptors[0].rate_limit.as_mut().expect("a limit"));
    rules
}

/// What is invalid about a resource of a response.
fn problems(resource: &[u8]) -> Vec<String> {
    let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
    xds::load(resource, &CompileOptions::new(stats)).err().unwrap_or_default()
}

fn problems_of(rules: &RateLimitConfig) -> Vec<String> {
    problems(&resource_of(TYPE_URL, rules.encode_to_vec()))
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
    assert!(has_limit(&server, "d.k", 7));
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    server.assert_metric("ratelimit_service_config_load_error", 1.0);
    server.metric_becomes(r#"tollgate_xds_updates_total{verdict="refused"}"#, 1.0).await;
    let ready = server.get("/ready").body;
    let note = "rules: the newest are invalid, the last good configuration serves\n";
    assert!(ready.contains(note), "{ready}");
    assert_eq!(server.get("/healthcheck").status, 200);

    plane.serve("3", &json!([resource("d", 8)]));
    limit_becomes(&server, "d.k", 8).await;
    assert_eq!(acked(&plane, "3").await["error"], "");
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
}

#[test]
fn unknown_units_are_reported_by_number() {
    let with = |unit| problems_of(&limited(|policy| policy.unit = unit));
    for unit in 1..=7 {
        assert!(with(unit).is_empty(), "{unit}");
    }
    let unknown = with(99);
    assert!(unknown[0].starts_with("d: invalid rate limit unit '99'\n"), "{unknown:?}");
}

#[tokio::test]
async fn invalid_resources_are_rejected_and_the_stream_continues() {
    let (_puppet, server, mut stream) = subscribed().await;
    accepted(&stream.ask(response("1", "a", &[rules_of(1)])).await, "1", "a");

    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    for (type_url, shown) in [(cluster.as_bytes(), cluster), (b"t\xff", "t%FF")] {
        let mut foreign = response("2", "b", &[rules_of(2)]);
        foreign.type_url = type_url.into();
        let error = format!("a response has type {shown}; expected {TYPE_URL}");
        rejects(&mut stream, foreign, &[&error]).await;
    }

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

    let named = RateLimitConfig { name: b"d\xff".into(), ..rules_of(2) };
    let error = "d%FF: name is not UTF-8: d%FF";
    rejects(&mut stream, response("5", "e", &[named]), &[error]).await;
    logged(&server, error).await;

    assert!(has_limit(&server, "d.k", 1), "{}", server.admin("/rlconfig"));
    server.assert_metric("tollgate_rules_rejected", 1.0);
    // Versions and nonces are whatever the server likes, and go back as they came.
    let answers: [(&[u8], &[u8], u32); 4] =
        [(b"5", b"a", 5), (b"6", b"a", 6), (b"6", b"", 7), (b"6\xff", b"f\xff", 8)];
    for (version, nonce, requests) in answers {
        let mut answer = response("", "", &[rules_of(requests)]);
        (answer.version_info, answer.nonce) = (version.into(), nonce.into());
        let ack = stream.ask(answer).await;
        assert_eq!((&*ack.version_info, &*ack.response_nonce), (version, nonce));
        assert_eq!(ack.error_detail, None);
    }
    limit_becomes(&server, "d.k", 8).await;
    server.assert_metric("tollgate_xds_streams_total", 1.0);
}

#[test]
fn strings_that_are_not_utf8_are_errors_of_their_rule() {
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
        let expected = format!("{text}\n  --> {place}\n");
        let found = problems_of(&rules);
        assert!(found.iter().any(|problem| problem.starts_with(&expected)), "{found:?}");
    }

    // Metadata is read with the resource.
    let mut rules = rules_of(2);
    rules.descriptors[0].metadata = Some(prost_types::Struct {
        fields: [("KEY".to_owned(), prost_types::Value::default())].into(),
    });
    let mut bytes = rules.encode_to_vec();
    let at = bytes.windows(3).position(|part| part == b"KEY").expect("it exists");
    bytes[at..at + 3].copy_from_slice(b"K\xffY");
    let found = problems(&resource_of(TYPE_URL, bytes)).concat();
    let error = r#"resource "d" of domain "d" cannot be decoded: "#;
    for text in [error, "RateLimitDescriptor.metadata: ", "UTF-8"] {
        assert!(found.contains(text), "{text}: {found}");
    }
    // A resource whose type is not UTF-8: field 1, two bytes.
    let found = problems(b"\x0a\x02t\xff").concat();
    assert!(found.starts_with("a resource cannot be decoded: "), "{found}");
}

#[tokio::test]
async fn oversized_response_is_rejected_with_the_name_of_the_setting() {
    let mut long = rules_of(1);
    long.name = vec![b'n'; 5 << 20];
    let long = response("2", "b", &[long]);
    assert!(long.encoded_len() > 4 << 20);

    let (mut puppet, server, mut stream) = subscribed().await;
    stream.ask(response("1", "a", &[rules_of(7)])).await;
    stream.send(long.clone()).await;
    let error = "a response has more than 4194304 bytes; increase XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
    logged(&server, error).await;
    assert!(has_limit(&server, "d.k", 7));
    server.metric_becomes("tollgate_rules_rejected", 1.0).await;
    // The stream is of no use any more. On the next one the rules that serve are the newest again.
    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "1", "");
    accepted(&stream.ask(response("3", "a", &[rules_of(7)])).await, "3", "a");
    server.metric_becomes("tollgate_rules_rejected", 0.0).await;
    drop(server);

    for (bytes_max, is_accepted) in [("8388608", true), ("10", false)] {
        let mut puppet = Puppet::start().await;
        let server =
            asking(puppet.addr).with_env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", bytes_max).start();
        let mut stream = puppet.stream().await;
        stream.request().await;
        stream.send(long.clone()).await;
        if is_accepted {
            accepted(&stream.request().await, "2", "b");
        } else {
            logged(&server, "a response has more than 10 bytes").await;
        }
    }
}
