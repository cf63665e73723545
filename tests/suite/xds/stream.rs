//! The xDS protocol: requests, versions and nonces, streams that end, updates in quick succession.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::base::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor,
};
use tonic::Status;

use crate::reload::limit_becomes;
use crate::support::xds::{Puppet, response, rules_of};
use crate::support::{TestServer, eventually};
use crate::xds::helpers::{accepted, asking, logged, subscribed, why};

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
        assert_eq!(stream.headers.get("authorization").expect("it is sent"), "Bearer s3cret");
        assert_eq!(stream.headers.get("x-time").expect("it is sent"), "12:30");
        let first = stream.request().await;
        let ack = stream.ask(response("1", "n", &[rules_of(1)])).await;
        let nack = stream.ask(response("2", "m", &[RateLimitConfig::default()])).await;
        assert!(nack.error_detail.is_some());
        for request in [first, ack, nack] {
            let node = request.node.expect("every request has it");
            assert_eq!(node.id, "limits-7", "in round {round}");
            let metadata = node.metadata.expect("it is sent").fields;
            let text = |key: &str| format!("{:?}", metadata[key].kind);
            assert_eq!(
                (text("zone"), text("cluster")),
                (r#"Some(StringValue("a"))"#.into(), r#"Some(StringValue("b=c"))"#.into())
            );
        }
    }
    server.assert_not_logged("s3cret");

    let _unnamed = TestServer::with_xds(&puppet.addr.to_string()).start();
    // The first service may have come back meanwhile.
    eventually("there is one without a name", async || {
        let node = puppet.stream().await.request().await.node.expect("every request has it");
        (&*node.id, node.metadata.is_none()) == ("default", true)
    })
    .await;
}

#[tokio::test]
async fn new_stream_starts_with_the_version_and_no_nonce() {
    let (mut puppet, _server, mut stream) = subscribed().await;
    accepted(&stream.ask(response("7", "a", &[rules_of(1)])).await, "7", "a");
    let nack = stream.ask(response("8", "b", &[RateLimitConfig::default()])).await;
    assert_eq!((&*nack.version_info, &*nack.response_nonce), (&b"7"[..], &b"b"[..]));
    assert!(nack.error_detail.is_some());
    stream.fail(Status::unavailable("going away")).await;

    let mut stream = puppet.stream().await;
    accepted(&stream.request().await, "7", "");
    accepted(&stream.ask(response("9", "a", &[rules_of(2)])).await, "9", "a");
    drop(stream);
    accepted(&puppet.stream().await.request().await, "9", "");
}

#[tokio::test]
async fn update_during_a_compilation_is_published_after_it() {
    let (_puppet, server, mut stream) = subscribed().await;
    let mut many = rules_of(1);
    let template = many.descriptors[0].clone();
    many.descriptors = (0..40_000)
        .map(|index| RateLimitDescriptor { value: index.to_string().into(), ..template.clone() })
        .collect();
    stream.send(response("1", "a", &[many])).await;
    stream.send(response("2", "b", &[rules_of(2)])).await;
    stream.send(response("3", "c", &[rules_of(3)])).await;
    for (version, nonce) in [("1", "a"), ("2", "b"), ("3", "c")] {
        accepted(&stream.request().await, version, nonce);
    }
    limit_becomes(&server, "d.k", 3).await;
    server.metric_becomes("tollgate_rules", 1.0).await;
}

#[tokio::test]
async fn stream_reset_after_every_response_still_delivers_rules() {
    let mut puppet = Puppet::start().await;
    let server = asking(puppet.addr).start();
    for index in 1..=10 {
        let mut stream = puppet.stream().await;
        let first = stream.request().await;
        accepted(&first, &if index == 1 { String::new() } else { (index - 1).to_string() }, "");
        stream.ask(response(&index.to_string(), "n", &[rules_of(index)])).await;
        stream.fail(Status::internal("reset")).await;
    }
    limit_becomes(&server, "d.k", 10).await;
    server.assert_metric("tollgate_rules_rejected", 0.0);
    server.assert_logged_once("xDS stream failed");
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
    accepted(&stream.ask(response("1", "a", &[rules_of(2)])).await, "1", "a");
    limit_becomes(&server, "d.k", 2).await;
    drop(stream);
    logged(&server, "xDS stream failed").await;
    server.signal("HUP");
    accepted(&puppet.stream().await.request().await, "", "");
}

#[tokio::test]
async fn repeated_nacks_are_sent_with_backoff() {
    let (mut puppet, server, mut stream) = subscribed().await;
    let broken = |nonce: &str| response("1", nonce, &[RateLimitConfig::default()]);
    let first = stream.ask(broken("0")).await;
    for round in 1..=3 {
        let began = Instant::now();
        let nack = stream.ask(broken(&round.to_string())).await;
        assert_eq!(why(&nack), why(&first));
        assert_eq!(*nack.response_nonce, *round.to_string().as_bytes());
        // Half of 200 ms, of 400 and of 800, and less than the clock may be wrong.
        let elapsed = began.elapsed();
        assert!(elapsed >= Duration::from_millis(90 * round), "{round}: {elapsed:?}");
    }
    server.assert_metric("ratelimit_service_config_load_error", 1.0);
    server.assert_metric(r#"tollgate_xds_updates_total{verdict="repeated"}"#, 3.0);
    server.assert_logged_once("cannot have empty domain");

    // Other rules wait for nothing, and nothing is said of what came before them.
    stream.send(broken("4")).await;
    accepted(&stream.ask(response("2", "5", &[rules_of(2)])).await, "2", "5");
    // Rules that are in force already are accepted under their new version, and not loaded again.
    accepted(&stream.ask(response("3", "6", &[rules_of(2)])).await, "3", "6");
    server.assert_metric("ratelimit_service_config_load_success", 1.0);
    stream.fail(Status::internal("reset")).await;
    accepted(&puppet.stream().await.request().await, "3", "");
}

#[tokio::test]
async fn nack_is_bounded_in_bytes() {
    let (_puppet, _server, mut stream) = subscribed().await;
    let broken = |index: usize| {
        let mut rules = rules_of(1);
        (rules.name, rules.domain) =
            (format!("{index}{}", "é".repeat(1_000)).into(), index.to_string().into());
        rules.descriptors[0].key.clear();
        rules
    };
    let nack = stream.ask(response("1", "a", &(0..50).map(broken).collect::<Vec<_>>())).await;
    assert!(why(&nack).starts_with("0é"), "{nack:?}");
    assert!(why(&nack).ends_with(" bytes more, which are in the log)"), "{nack:?}");
    assert!(why(&nack).len() < 17 << 10, "{}", why(&nack).len());
}
